//! Two sandboxes at once neither see nor reach each other.

use ringfence_tests::{Running, attacks, script, unique, whole};
use std::process::{Command, Stdio};

/// Offers everything by which processes of one machine find each other.
const OFFER: &str = r#"
key, name = int(ARGS[0]), ARGS[1]
call("shmget", key, 4096, 0o1666)
open("/dev/shm/" + name, "w").close()
open("/tmp/" + name, "w").close()
try:
    call("mq_open", name.encode(), os.O_CREAT | os.O_RDWR, 0o666, 0)
except PermissionError:
    pass  # landlock knows no place for queues
local = socket.socket(socket.AF_UNIX)
local.bind("\0" + name)
local.listen()
try:
    tcp = socket.socket()
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    tcp.bind(("127.0.0.1", int(ARGS[2])))
    tcp.listen()
except OSError as e:
    if e.errno != errno.EAFNOSUPPORT:
        raise  # a pod has no such sockets
sys.stdout.write("ready\n")
sys.stdout.flush()
sys.stdin.readline()
libc.shmctl(libc.shmget(key, 0, 0), 0, 0)
libc.mq_unlink(b"/" + name.encode())
for folder in ("/dev/shm/", "/tmp/"):
    os.unlink(folder + name)
"#;

const FIND: &str = r#"
key, name = int(ARGS[0]), ARGS[1]
def connect(family, address):
    s = socket.socket(family)
    s.settimeout(5)
    s.connect(address)
def process():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open("/proc/%s/cmdline" % pid, "rb").read()
        except FileNotFoundError:
            continue
        # What offers, not what looks for it.
        if name.encode() in line and b"stdin.read" b"line" in line:
            return pid
    raise Denied("NONE")
judge_all(
    memory=lambda: call("shmget", key, 0, 0),
    shm=lambda: os.stat("/dev/shm/" + name),
    tmp=lambda: os.stat("/tmp/" + name),
    queue=lambda: call("mq_open", name.encode(), os.O_RDWR, 0, 0),
    local=lambda: connect(socket.AF_UNIX, "\0" + name),
    tcp=lambda: connect(socket.AF_INET, ("127.0.0.1", int(ARGS[2]))),
    process=process,
)
"#;

attacks! {
    fn find_each_other(host) {
        let key = (0x5246_0000u32 + std::process::id() % 0xffff).to_string();
        let name = unique();
        // A port that is free on the host now, for the control.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let args = [key.as_str(), name.as_str(), &port.to_string()];

        let mut outside = Command::new("/usr/bin/python3");
        outside.arg("-c").arg(whole(OFFER, &args));
        outside.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut offer = Running::start(&mut outside);
        offer.wait_for_line("ready");
        let control = host.outside(FIND, &args);
        control.all_reached();
        offer.say("end");
        offer.0.wait().unwrap();

        let mut inside = host.sandbox(&[], &script(OFFER), &args);
        inside.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut offer = Running::start(&mut inside);
        offer.wait_for_line("ready");
        let errors = ["ENOENT", "EACCES", "ECONNREFUSED", "EAFNOSUPPORT", "NONE"];
        host.inside(&[], FIND, &args).all_denied(&control, &errors);
        offer.say("end");
        assert!(offer.0.wait().unwrap().success());
    }
}
