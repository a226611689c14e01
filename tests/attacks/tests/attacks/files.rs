//! Files of the host, the system's own files, and what a writable folder could leave behind.

use ringfence_tests::{Host, Verdict, attacks, unique};
use std::os::unix::fs::PermissionsExt as _;

const READ: &str = "judge(lambda: open(ARGS[0]).read())";

/// A device node that can be used.
const MAKE_NODE: &str = r#"
import stat
def make():
    path = ARGS[0] + "/node"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 11))
    os.chmod(path, 0o666)
    os.close(os.open(path, os.O_RDONLY))
judge(make)
"#;

/// Those that root can open; a denial of the others would show nothing.
fn reachable<'a>(host: &Host, probe: &str, wanted: &[&'a str]) -> Vec<&'a str> {
    let tried = host.outside(probe, wanted);
    let reached = |p: &&str| matches!(tried.rows.get(*p), Some(Verdict::Reached(_)));
    wanted.iter().copied().filter(reached).collect()
}

attacks! {
    fn host_file(host) {
        let (secret, _) = host.secret();
        let path = secret.to_str().unwrap();
        host.outside(READ, &[path]).reached();
        host.inside(&[], READ, &[path]).denied(&["ENOENT"]);
    }

    fn password_hashes(host) {
        host.outside(READ, &["/etc/shadow"]).reached();
        // An image has one of its own.
        let error = if host.place.is_native() { "ENOENT" } else { "EACCES" };
        host.inside(&[], READ, &["/etc/shadow"]).denied(&[error]);
    }

    /// Roots and folders of other processes lead out, where they may be followed.
    fn proc_links(host) {
        let probe = r#"
def read():
    failed = None
    for start in ["/proc/self/root", "/proc/1/root", "/proc/%d/root" % os.getppid(),
                  "/proc/self/cwd/../../../..", "/proc/1/cwd/../../../..", "/proc/1/fd/0/..",
                  "/proc/thread-self/root/../.."]:
        try:
            return open(start + ARGS[0]).read()
        except OSError as e:
            failed = e
    raise failed
judge(read)
"#;
        let (secret, _) = host.secret();
        let path = secret.to_str().unwrap();
        host.outside(probe, &[path]).reached();
        host.inside(&[], probe, &[path]).denied(&["ENOENT", "EACCES"]);
    }

    fn chroot_with_a_held_folder(host) {
        let probe = r#"
def escape():
    held = os.open("/", os.O_RDONLY)
    os.chroot("/tmp")
    os.fchdir(held)
    return open("." + ARGS[0]).read()
judge(escape)
"#;
        let (secret, _) = host.secret();
        let path = secret.to_str().unwrap();
        host.outside(probe, &[path]).reached();
        host.inside(&[], probe, &[path]).denied(&["EPERM"]);
    }

    /// A handle made outside opens a file by its number, through any mount of its file system.
    fn file_handle(host) {
        let make = r#"
def make():
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount = ctypes.c_int(0)
    call("name_to_handle_at", -100, ARGS[0].encode(), handle, ctypes.byref(mount), 0)
    return handle.raw[:8 + struct.unpack_from("I", handle.raw)[0]].hex()
judge(make)
"#;
        let open = r#"
def read():
    mount = os.open("/usr", os.O_RDONLY)
    handle = ctypes.create_string_buffer(bytes.fromhex(ARGS[0]))
    return os.read(call("open_by_handle_at", mount, handle, 0), 100)
judge(read)
"#;
        // On the file system of /usr, which every sandbox sees.
        let made = host.outside(make, &["/usr/bin/env"]);
        let whole = made.reached().whole.clone();
        let handle = whole.split_whitespace().nth(2).unwrap();
        host.outside(open, &[handle]).reached();
        host.inside(&[], open, &[handle]).denied(&["EPERM"]);
        host.inside(&[], make, &["/usr/bin/env"]).denied(&["EPERM"]);
    }

    /// A link in the workspace means what it names inside.
    fn link_out_of_the_workspace(host) not_on_pods "a pod has no folders of the host" {
        let probe = r#"
judge_all(
    there=lambda: open(ARGS[0] + "/link").read(),
    made=lambda: (os.symlink(ARGS[1], ARGS[0] + "/made"), open(ARGS[0] + "/made").read()),
    parent=lambda: open(ARGS[0] + "/../secret").read(),
)
"#;
        let (secret, _) = host.secret();
        let folder = host.owned_folder("work");
        std::os::unix::fs::symlink(&secret, folder.join("link")).unwrap();
        let (secret, at) = (secret.to_str().unwrap(), folder.to_str().unwrap());
        let control = host.outside(probe, &[at, secret]);
        std::fs::remove_file(folder.join("made")).unwrap();
        let option = format!("{at}:rw");
        let inside = host.inside(&["--workspace", &option], probe, &["/workspace", secret]);
        inside.all_denied(control.all_reached(), &["ENOENT"]);
        assert!(folder.join("made").is_symlink(), "the workspace was not writable");
    }

    /// A second name, in the workspace, of a file that can only be read.
    fn hard_link_into_the_workspace(host) not_on_pods "a pod has no folders of the host" {
        let probe = r#"judge(lambda: os.link("/usr/bin/env", ARGS[0] + "/env"))"#;
        let folder = host.owned_folder("work");
        let at = folder.to_str().unwrap();
        host.outside(probe, &[at]).reached();
        std::fs::remove_file(folder.join("env")).unwrap();
        let option = format!("{at}:rw");
        host.inside(&["--workspace", &option], probe, &["/workspace"])
            .denied(&["EXDEV", "EPERM", "EROFS"]);
        assert!(!folder.join("env").exists());
    }

    fn read_only_workspace(host) not_on_pods "a pod has no folders of the host" {
        let probe = r#"
judge_all(
    write=lambda: open(ARGS[0] + "/new", "w"),
    change=lambda: os.chmod(ARGS[0] + "/file", 0o600),
    remove=lambda: os.unlink(ARGS[0] + "/file"),
)
"#;
        let folder = host.owned_folder("work");
        let at = folder.to_str().unwrap();
        let file = folder.join("file");
        std::fs::write(&file, "x").unwrap();
        let control = host.outside(probe, &[at]);
        std::fs::write(&file, "x").unwrap();
        let option = format!("{at}:ro");
        let inside = host.inside(&["--workspace", &option], probe, &["/workspace"]);
        inside.all_denied(control.all_reached(), &["EROFS"]);
    }

    fn write_the_system(host) {
        let probe = r#"
def write(folder):
    path = folder + "/.rf-" + ARGS[0]
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    os.unlink(path)
judge_all(**{f: (lambda f=f: write(f)) for f in
    ["/", "/usr", "/usr/bin", "/etc", "/etc/ssl/certs", "/root", "/home", "/opt", "/dev", "/run", "/var"]})
"#;
        let name = unique();
        let control = host.outside(probe, &[&name]);
        host.inside(&[], probe, &[&name])
            .all_denied(control.all_reached(), &["EROFS", "EACCES", "ENOENT"]);
    }

    /// Settings of the kernel, and the ways by which a file becomes a program that root runs.
    fn kernel_settings(host) {
        let probe = r#"
def every(path):
    fd = os.open(path, os.O_WRONLY)
    if os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev:
        raise Denied("NULL")
judge_all(**{f: (lambda f=f: every(f)) for f in ARGS})
"#;
        // Opened, never written: the control must not change this machine.
        let wanted = [
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/hostname",
            "/proc/sys/kernel/modprobe",
            "/proc/sys/kernel/sysrq",
            "/proc/sys/kernel/panic",
            "/proc/sys/kernel/shmmax",
            "/proc/sys/vm/overcommit_memory",
            "/proc/sys/fs/file-max",
            "/proc/sys/fs/binfmt_misc/register",
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/sys/user/max_user_namespaces",
            "/proc/sysrq-trigger",
            "/sys/kernel/uevent_helper",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/class/mem/null/uevent",
            "/sys/fs/cgroup/memory/release_agent",
            "/sys/fs/cgroup/cgroup.procs",
            "/sys/fs/cgroup/memory/cgroup.procs",
        ];
        let here = reachable(&host, probe, &wanted);
        assert!(here.len() > 5, "{here:?}");
        let control = host.outside(probe, &here);
        host.inside(&[], probe, &here)
            .all_denied(control.all_reached(), &["EACCES", "ENOENT", "EROFS", "EPERM", "NULL"]);
    }

    /// Memory of the kernel, its log, and devices.
    fn devices(host) {
        let probe = r#"
def every(path):
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev:
        raise Denied("NULL")
judge_all(**{f: (lambda f=f: every(f)) for f in ARGS})
"#;
        let wanted = [
            "/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/loop-control", "/dev/fuse",
            "/dev/net/tun", "/dev/kvm", "/dev/vda", "/dev/sda", "/dev/nvme0n1", "/dev/mapper/control",
            "/dev/vhost-net", "/dev/vsock", "/dev/userfaultfd", "/dev/rtc0", "/proc/kcore", "/proc/kmsg",
        ];
        let here = reachable(&host, probe, &wanted);
        assert!(here.contains(&"/dev/kmsg"), "{here:?}");
        let control = host.outside(probe, &here);
        host.inside(&[], probe, &here)
            .all_denied(control.all_reached(), &["ENOENT", "EACCES", "EPERM", "NULL"]);
    }

    fn device_node(host) {
        let folder = host.owned_folder("work");
        host.outside(MAKE_NODE, &[folder.to_str().unwrap()]).reached();
        host.inside(&[], MAKE_NODE, &["/tmp"]).denied(&["EPERM", "EACCES"]);
    }

    /// A node that is there already, in a folder of the host.
    fn device_node_of_the_host(host) not_on_pods "a pod has no folders of the host" {
        let folder = host.owned_folder("work");
        let read = r#"judge(lambda: os.close(os.open(ARGS[0] + "/node", os.O_RDONLY)))"#;
        host.outside(MAKE_NODE, &[folder.to_str().unwrap()]).reached();
        host.outside(read, &[folder.to_str().unwrap()]).reached();
        let option = format!("{}:rw", folder.display());
        host.inside(&["--workspace", &option], read, &["/workspace"]).denied(&["EACCES", "EPERM"]);
    }

    fn kernel_addresses(host) {
        let probe = r#"
def addresses():
    with open("/proc/kallsyms") as f:
        known = [line for line in f if int(line.split()[0], 16)]
    if not known:
        raise Denied("ZERO")
    return known[0]
judge(addresses)
"#;
        host.outside(probe, &[]).reached();
        host.inside(&[], probe, &[]).denied(&["ZERO"]);
    }

    /// A program that is root's and setuid, in a folder that is mounted.
    fn setuid_program(host) not_on_pods "a pod has no folders of the host" {
        let probe = r#"
def run():
    user = subprocess.run([ARGS[0], "-u"], capture_output=True, text=True).stdout.strip()
    if user != "0":
        raise Denied("USER" + user)
judge(run)
"#;
        let folder = host.path("programs");
        std::fs::create_dir(&folder).unwrap();
        let program = folder.join("id");
        std::fs::copy("/usr/bin/id", &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let user = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"];
        host.outside_by(&user, probe, &[program.to_str().unwrap()]).reached();
        let option = format!("{}:/opt/programs", folder.display());
        host.inside(&["--mount", &option], probe, &["/opt/programs/id"]).denied(&["USER1000"]);
    }

    /// A setuid program of the folder's owner, left behind on the host for others to run.
    fn setuid_left_behind(host) not_on_pods "a pod has no folders of the host" {
        let probe = r#"
import stat
at = ARGS[0]
def check(path):
    if not os.stat(path).st_mode & 0o6000:
        raise Denied("CLEARED")
def changed(name, mode):
    open(at + name, "w").close()
    os.chmod(at + name, mode)
    check(at + name)
def by_descriptor():
    fd = os.open(at + "/fchmod", os.O_CREAT | os.O_WRONLY, 0o755)
    call("fchmod", fd, 0o4755)
    check(at + "/fchmod")
def newest():
    open(at + "/fchmodat2", "w").close()
    call("fchmodat2", -100, (at + "/fchmodat2").encode(), 0o4755, 0)
    check(at + "/fchmodat2")
def opened():
    os.close(os.open(at + "/open", os.O_CREAT | os.O_WRONLY, 0o6755))
    check(at + "/open")
def opened_2():
    how = ctypes.create_string_buffer(struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, 0o4755, 0))
    call("openat2", -100, (at + "/openat2").encode(), how, 24)
    check(at + "/openat2")
def unnamed():
    fd = os.open(at, os.O_TMPFILE | os.O_RDWR, 0o4755)
    call("linkat", -100, b"/proc/self/fd/%d" % fd, -100, (at + "/unnamed").encode(), 0x400)
    check(at + "/unnamed")
def node():
    os.mknod(at + "/node", stat.S_IFREG | 0o4755)
    check(at + "/node")
judge_all(setuid=lambda: changed("/setuid", 0o4755), setgid=lambda: changed("/setgid", 0o2755),
    descriptor=by_descriptor, newest=newest, opened=opened, opened_2=opened_2, unnamed=unnamed,
    node=node)
"#;
        let outside = host.owned_folder("outside");
        let folder = host.owned_folder("work");
        let control = host.outside(probe, &[outside.to_str().unwrap()]);
        let option = format!("{}:rw", folder.display());
        let inside = host.inside(&["--workspace", &option], probe, &["/workspace"]);
        inside.all_denied(control.all_reached(), &["EPERM", "ENOSYS"]);
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o6000, 0, "{entry:?}");
        }
    }

    fn file_capabilities(host) not_on_pods "a pod has no folders of the host" {
        let probe = r#"
def give():
    path = ARGS[0] + "/program"
    open(path, "w").close()
    os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x2000001, 1 << 21, 0, 0, 0))
judge(give)
"#;
        let outside = host.owned_folder("outside");
        let folder = host.owned_folder("work");
        host.outside(probe, &[outside.to_str().unwrap()]).reached();
        let option = format!("{}:rw", folder.display());
        host.inside(&["--workspace", &option], probe, &["/workspace"]).denied(&["EPERM"]);
    }

    /// Private keys that the host keeps beside its certificates.
    fn private_keys(host) native_only "an image's files are all that there is" {
        let probe = r#"judge(lambda: os.listdir("/etc/ssl/private"))"#;
        if std::path::Path::new("/etc/ssl/private").exists() {
            host.outside(probe, &[]).reached();
        }
        // With a network, where certificates are there, so it is not just that nothing is.
        let network = ["--network", "host"];
        host.inside(&network, probe, &[]).denied(&["ENOENT"]);
        let certificates = r#"judge(lambda: len(os.listdir("/etc/ssl/certs")))"#;
        if std::path::Path::new("/etc/ssl/certs").exists() {
            host.inside(&network, certificates, &[]).reached();
        }
        host.inside(&[], probe, &[]).denied(&["ENOENT"]);
    }

    /// Files that whoever started the sandbox had open.
    fn inherited_descriptors(host) {
        let probe = r#"
def read():
    for fd in range(3, 64):
        try:
            found = os.pread(fd, 100, 0)
        except OSError:
            continue
        if found.startswith(b"secret-"):
            return found
    raise Denied("NONE")
judge(read)
"#;
        let (secret, _) = host.secret();
        let open = format!(
            "exec 3<{0} 4<{0} 5<{0} 6<{0} 9<{0} 42<{0}; exec \"$0\" \"$@\"",
            secret.display()
        );
        let starter = ["/bin/bash", "-c", &open];
        host.outside_by(&starter, probe, &[]).reached();
        host.inside_by(&starter, probe, &[]).denied(&["NONE"]);
    }

    /// Names of the keys that the kernel keeps for whoever started the sandbox.
    fn keys(host) {
        let probe = r#"
def find():
    if ARGS[0] not in open("/proc/keys").read():
        raise Denied("NONE")
judge(find)
"#;
        // Runs its arguments in a session with a key of that name.
        let name = unique();
        let with_key = format!(
            "import ctypes, os, platform, sys\nx = platform.machine() == 'x86_64'\n\
             c = ctypes.CDLL(None).syscall\nassert c(250 if x else 219, 1, None) > 0\n\
             assert c(248 if x else 217, b'user', b'{name}', b'x', 1, -3) > 0\n\
             os.execvp(sys.argv[1], sys.argv[1:])"
        );
        let starter = ["/usr/bin/python3", "-c", &with_key];
        host.outside_by(&starter, probe, &[&name]).reached();
        host.inside_by(&starter, probe, &[&name]).denied(&["NONE"]);
    }

    fn core_limit(host) {
        let probe = r#"
import resource
def raise_it():
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
    except ValueError:
        raise Denied("LIMIT")
judge(raise_it)
"#;
        host.outside(probe, &[]).reached();
        host.inside(&[], probe, &[]).denied(&["LIMIT"]);
    }
}
