import sys,posix
f=int(sys.argv[1])
v=sys.version.split()[0].encode()
if sys.version_info<(3,8):posix.write(f,bytes(bytearray([len(v)+1,0,0,0]))+b"H"+v);sys.exit()
s=posix.read(f,int(sys.argv[2])).split(b"\0")
exec(compile(s[0],"<kernel>","exec",0,True),{"__name__":"<kernel>","FD":f,"LAZY":s[1:]})
