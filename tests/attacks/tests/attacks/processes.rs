//! Processes of the host: seeing them, signalling them, reading them.

use ringfence_tests::{Running, attacks, script, unique};
use std::process::Command;

/// The marker travels backwards, so that the probe does not find itself.
fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

attacks! {
    fn see_host_processes(host) {
        let probe = r#"
def find():
    mark = ARGS[0][::-1].encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in open("/proc/%s/cmdline" % pid, "rb").read():
                return pid
        except FileNotFoundError:
            pass
    raise Denied("NONE")
judge(find)
"#;
        let mark = unique();
        let _sleeper = Running::start(Command::new("/bin/sh").args(["-c", "read line", &mark]).stdin(std::process::Stdio::piped()));
        let args = [backwards(&mark)];
        host.outside(probe, &[&args[0]]).reached();
        host.inside(&[], probe, &[&args[0]]).denied(&["NONE"]);
    }

    fn environment_of_the_launcher(host) {
        let probe = r#"
def find():
    mark = ARGS[0][::-1].encode()
    for name in ["self", "1", str(os.getppid())] + list(filter(str.isdigit, os.listdir("/proc"))):
        try:
            if mark in open("/proc/%s/environ" % name, "rb").read():
                return name
        except OSError:
            pass
    raise Denied("NONE")
judge(find)
"#;
        let mark = unique();
        let variable = format!("RF_SECRET={mark}");
        let back = backwards(&mark);
        host.outside_by(&["env", &variable], probe, &[&back]).reached();
        let mut command = host.sandbox(&[], &script(probe), &[&back]);
        command.env("RF_SECRET", &mark);
        ringfence_tests::Answer::of(&ringfence_tests::finish(&mut command)).denied(&["NONE"]);
    }

    fn signal_a_host_process(host) {
        let probe = r#"judge(lambda: os.kill(int(ARGS[0]), signal.SIGCONT))"#;
        let all = r#"
import threading
child = subprocess.Popen(["sleep", "100"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(-1, signal.SIGTERM)
print("child", child.wait(), flush=True)
"#;
        let mut sleeper = Running::start(Command::new("/bin/sleep").arg("300"));
        let pid = sleeper.pid().to_string();
        host.outside(probe, &[&pid]).reached();
        host.inside(&[], probe, &[&pid]).denied(&["ESRCH"]);
        // To everybody: the child shows that it went out.
        let output = host.run(&[], &script(all), &[]);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "child -15\n", "{output:?}");
        assert!(sleeper.0.try_wait().unwrap().is_none(), "a host process was ended");
    }

    /// Other processes of the same sandbox can't be traced or robbed of descriptors either.
    fn trace(host) {
        let probe = r#"
child = os.fork()
if child == 0:
    time.sleep(100)
    os._exit(0)
def attach():
    call("ptrace", 16, child, 0, 0)
    os.waitpid(child, 0)
    call("ptrace", 17, child, 0, 0)
def traced():
    pid = os.fork()
    if pid == 0:
        try:
            call("ptrace", 0, 0, 0, 0)
        except OSError as e:
            os._exit(e.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, "traceme")
def read():
    text = ctypes.create_string_buffer(b"hello")
    to = ctypes.create_string_buffer(5)
    local = struct.pack("QQ", ctypes.addressof(to), 5)
    remote = struct.pack("QQ", ctypes.addressof(text), 5)
    call("process_vm_readv", child, local, 1, remote, 1, 0)
def take():
    call("pidfd_getfd", call("pidfd_open", child, 0), 0, 0)
judge_all(read=read, take=take, same=lambda: call("kcmp", child, child, 0, 0, 0),
    traced=traced, attach=attach)
os.kill(child, signal.SIGKILL)
"#;
        let control = host.outside(probe, &[]);
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &["EPERM"]);
    }

    fn join_namespaces(host) {
        let probe = r#"
def join(kind):
    fd = os.open("/proc/self/ns/" + kind, os.O_RDONLY)
    call("setns", fd, 0)
victim = ARGS[0] if ARGS else "1"
def of_init(kind):
    return os.close(os.open("/proc/%s/ns/%s" % (victim, kind), os.O_RDONLY))
rows = {"join_" + k: (lambda k=k: join(k)) for k in ["mnt", "net", "uts", "ipc", "cgroup", "pid"]}
rows.update({"init_" + k: (lambda k=k: of_init(k)) for k in ["mnt", "net", "user", "pid"]})
judge_all(**rows)
"#;
        let sleeper = Running::start(Command::new("/bin/sleep").arg("300"));
        let control = host.outside(probe, &[&sleeper.pid().to_string()]);
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &["EPERM", "EACCES"]);
    }

    fn new_namespaces(host) {
        let probe = r#"
FLAGS = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000, "pid": 0x20000000,
         "ipc": 0x8000000, "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80}
def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except OSError as e:
            os._exit(e.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))
def clone(flag):
    pid = call("clone", flag | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
rows = {"unshare_" + k: (lambda f=f: in_child(lambda: call("unshare", f))) for k, f in FLAGS.items()}
rows.update({"clone_" + k: (lambda f=f: clone(f)) for k, f in FLAGS.items() if k != "time"})
judge_all(**rows)
"#;
        let control = host.outside(probe, &[]);
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &["EPERM"]);
    }

    fn become_root(host) {
        let probe = r#"
def capabilities():
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(struct.pack("6I", 1 << 21, 1 << 21, 0, 0, 0, 0))
    call("capset", header, data)
judge_all(user=lambda: os.setuid(0), group=lambda: os.setgid(0),
    groups=lambda: os.setgroups([0]), capabilities=capabilities)
"#;
        let control = host.outside(probe, &[]);
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &["EPERM", "EINVAL"]);
    }

    /// What is typed at the terminal of whoever started the sandbox, and typing into it.
    fn terminal(host) {
        let probe = r#"
import fcntl, pty, termios
def fake():
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSTI, b"x")
judge_all(controlling=lambda: os.open("/dev/tty", os.O_RDWR), fake=fake)
"#;
        // Runs its arguments on a terminal of their own and passes on what they say.
        let on_terminal = "import os, pty, sys\npid, fd = pty.fork()\nif pid == 0:\n \
            os.execvp(sys.argv[1], sys.argv[1:])\ntext = b''\nwhile True:\n try: part = os.read(fd, 4096)\n \
            except OSError: break\n if not part: break\n text += part\nsys.stdout.write(text.decode())";
        let starter = ["/usr/bin/python3", "-c", on_terminal];
        let control = host.outside_by(&starter, probe, &[]);
        let inside = host.inside_by(&starter, probe, &[]);
        inside.all_denied(control.all_reached(), &["ENXIO", "EPERM"]);
    }
}
