//! The guest is process 1 of the sandbox and has the same user as the code: killing it, starving
//! it, reading it, speaking in its place.

use ringfence_tests::{attacks, script};
use std::time::{Duration, Instant};

attacks! {
    fn read_the_guest(host) {
        let probe = r#"
def read(path):
    if os.path.islink(path):
        return os.readlink(path)
    if os.path.isdir(path):
        return [os.readlink(path + "/" + n) for n in os.listdir(path)]
    fd = os.open(path, os.O_RDONLY)
    return "" if path.endswith("mem") else len(os.read(fd, 100))
rows = {}
for name, pid in (("init", 1), ("parent", os.getppid())) if not ARGS else (("init", ARGS[0]), ("parent", ARGS[0])):
    for file in ("mem", "environ", "maps", "auxv", "fd", "exe", "root", "cwd", "stack"):
        rows["%s_%s" % (name, file)] = lambda p="/proc/%s/%s" % (pid, file): read(p)
judge_all(**rows)
"#;
        let sleeper = ringfence_tests::Running::start(
            std::process::Command::new("/bin/sleep").arg("300"),
        );
        let control = host.outside(probe, &[&sleeper.pid().to_string()]);
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &["EACCES", "EPERM"]);
    }

    /// The streams by which the guest is spoken to, and other ways to speak in its place.
    fn take_the_guests_streams(host) {
        let probe = r#"
victim = int(ARGS[0]) if ARGS else 1
def open_stream(number, mode):
    return os.close(os.open("/proc/%d/fd/%d" % (victim, number), mode | os.O_NONBLOCK))
def trace(request):
    call("ptrace", request, victim, 0, 0)
    os.waitpid(victim, 0x40000000) # __WALL
    return call("ptrace", 17, victim, 0, 0) # PTRACE_DETACH
def take():
    held = os.pidfd_open(victim)
    try:
        return os.close(call("pidfd_getfd", held, 1, 0))
    finally:
        os.close(held)
def memory(name):
    # Nothing of it: whether one may is asked first.
    return call(name, victim, 0, 0, 0, 0, 0)
judge_all(
    input=lambda: open_stream(0, os.O_RDONLY),
    input_for_writing=lambda: open_stream(0, os.O_WRONLY),
    output=lambda: open_stream(1, os.O_WRONLY),
    complaints=lambda: open_stream(2, os.O_WRONLY),
    descriptor=take,
    attach=lambda: trace(16),
    seize=lambda: call("ptrace", 0x4206, victim, 0, 0),
    read=lambda: memory("process_vm_readv"),
    write=lambda: memory("process_vm_writev"),
    compare=lambda: call("kcmp", os.getpid(), victim, 0, 0, 0),
)
"#;
        let null = || std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        let sleeper = ringfence_tests::Running::start(
            std::process::Command::new("/bin/sleep")
                .arg("300")
                .stdin(null())
                .stdout(null())
                .stderr(null()),
        );
        let control = host.outside(probe, &[&sleeper.pid().to_string()]);
        let denied = ["EACCES", "EPERM", "ENOSYS"];
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &denied);
    }

    /// Where the guest has a second way in, it is there for who knows a secret: nobody else gets a
    /// word out of it. The control is a guest on the host, with a secret that is known.
    fn knock_at_the_guests_door(host) {
        let probe = r#"
name, secret = ARGS if ARGS else ("ringfence", None)
def doors():
    found = set()
    for line in open("/proc/net/unix").read().splitlines()[1:]:
        parts = line.split()
        if len(parts) > 7 and name in parts[7]:
            found.add(parts[7])
    if not found:
        raise FileNotFoundError(errno.ENOENT, "there is no door")
    return found
def knock(words):
    for door in doors():
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(30)
            stream.connect("\0" + door[1:] if door[0] == "@" else door)
            stream.sendall((secret or words).encode() + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            try:
                heard = stream.recv(100)
            except ConnectionResetError:
                heard = b""
            if heard:
                return heard
    raise Denied("SILENCE")
identity = open("/proc/1/cmdline").read().replace("\0", "")
judge_all(
    nothing=lambda: knock(""),
    zeros=lambda: knock("0" * 64),
    nulls=lambda: knock("\0" * 64),
    long=lambda: knock("f" * 100000),
    words=lambda: knock(identity[-64:].rjust(64, "0")),
)
"#;
        let guest = host.path("guest");
        let mut unpack = std::process::Command::new(host.program());
        let unpacked = ringfence_tests::finish(unpack.arg("guest").arg(&guest));
        assert!(unpacked.status.success(), "{unpacked:?}");
        let (name, secret) = (ringfence_tests::unique(), ringfence_tests::unique().repeat(4));
        let mut open = ringfence_tests::Running::start(
            std::process::Command::new(&guest)
                .args(["--stdio", "--door", &name, "--workspace", "/tmp"])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped()),
        );
        open.say(&secret);
        ringfence_tests::wait_until("a door", || {
            let sockets = std::fs::read_to_string("/proc/net/unix");
            sockets.is_ok_and(|sockets| sockets.contains(&name))
        });
        let control = host.outside(probe, &[&name, &secret]);
        let nothing = if host.place.is_native() { "ENOENT" } else { "SILENCE" };
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &[nothing]);
    }

    /// No signal ends or stops the guest. The control sends the same ones to another process.
    fn signal_the_guest(host) {
        let code = r#"
def hit(pid):
    for number in list(range(1, 65)):
        try:
            os.kill(pid, number)
        except OSError:
            pass
child = subprocess.Popen(["sleep", "100"])
hit(child.pid)
for _ in range(100): # one upon the other
    hit(1)
print("child", child.wait() < 0, flush=True)
print("guest", os.path.exists("/proc/1/stat") and open("/proc/1/stat").read().split()[2] in "SR")
sys.exit(7)
"#;
        let output = host.run(&[], &script(code), &[]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, "child True\nguest True\n", "{output:?}");
        assert_eq!(output.status.code(), Some(7), "{output:?}");
    }

    /// Each command is started by a copy of the guest. Whoever looks at the right moment must not
    /// find it open; the control is a process that shows itself for such a moment.
    fn catch_a_supervisor(host) {
        let code = r#"
look = libc.open
def caught(parent, end):
    # Numbers of processes follow each other, so those that will be are known.
    while not end():
        newest = max(int(n) for n in os.listdir("/proc") if n.isdigit())
        soon = [(pid, b"/proc/%d/mem" % pid) for pid in range(newest + 1, newest + 4)]
        for pid, path in soon * 500:
            fd = look(path, os.O_RDONLY)
            if fd < 0:
                continue
            try:
                if int(open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[1]) == parent:
                    return True
            except OSError:
                pass
            finally:
                os.close(fd)
    return False
def shows_itself():
    libc.prctl(4, 0) # PR_SET_DUMPABLE
    for _ in range(3000):
        if os.fork() == 0:
            libc.prctl(4, 1)
            os.close(os.open("/proc/self/oom_score_adj", os.O_RDWR))
            libc.prctl(4, 0)
            time.sleep(0.002)
            os._exit(0)
        os.wait()
    os._exit(0)
control = os.fork() or shows_itself()
if not caught(control, lambda: os.waitpid(control, os.WNOHANG)[0] != 0):
    sys.exit("the control was not caught")
print("ready", flush=True)
print("supervisor", caught(1, lambda: os.path.exists("/tmp/enough")), flush=True)
"#;
        let server = host.server();
        let exec = |words: &[&str]| host.exec(&server, "catch", words);
        let code = script(code);
        let mut racer = exec(&["python3", "-c", &code]);
        racer.stdout(std::process::Stdio::piped());
        let mut racer = ringfence_tests::Running::start(&mut racer);
        racer.wait_for_line("ready");
        for _ in 0..40 {
            let output = ringfence_tests::finish(&mut exec(&["true"]));
            assert!(output.status.success(), "{output:?}");
        }
        let output = ringfence_tests::finish(&mut exec(&["touch", "/tmp/enough"]));
        assert!(output.status.success(), "{output:?}");
        racer.wait_for_line("supervisor False");
    }

    /// The supervisor of a command may be killed by it, but not to any use.
    fn kill_the_supervisor(host) {
        for signal in ["SIGKILL", "SIGSTOP"] {
            let mark = ringfence_tests::unique();
            let code = format!(
                "import os, signal, time\nos.kill(os.getppid(), signal.{signal})\ntime.sleep(60) # {mark}"
            );
            let start = Instant::now();
            let output = host.run(&["--timeout", "2"], &code, &[]);
            assert_ne!(output.status.code(), Some(0), "{signal}: {output:?}");
            assert!(start.elapsed() < Duration::from_secs(20), "{signal}: {output:?}");
            ringfence_tests::wait_until_gone(&mark);
        }
    }

    /// Calls that need nothing but the same user: limits and priorities. With them the guest was
    /// starved until it could neither keep the time nor die.
    fn starve_the_guest(host) {
        let probe = r#"
import resource
victim = int(ARGS[0]) if ARGS else 1
def on_nobody(work):
    # Of a user and a group that nobody is in, so that nothing is changed where it is allowed.
    try:
        work()
    except ProcessLookupError:
        pass
judge_all(
    files=lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE, (0, 4096)),
    idle=lambda: os.sched_setscheduler(victim, os.SCHED_IDLE, os.sched_param(0)),
    affinity=lambda: os.sched_setaffinity(victim, [0]),
    nice=lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
    input=lambda: call("ioprio_set", 1, victim, 3 << 13),
    nice_group=lambda: on_nobody(lambda: os.setpriority(os.PRIO_PGRP, 4194000, 0)),
    nice_user=lambda: on_nobody(lambda: os.setpriority(os.PRIO_USER, 64999, 0)),
    input_group=lambda: on_nobody(lambda: call("ioprio_set", 2, 4194000, 2 << 13)),
    input_user=lambda: on_nobody(lambda: call("ioprio_set", 3, 64999, 2 << 13)),
)
"#;
        let sleeper = ringfence_tests::Running::start(
            std::process::Command::new("/bin/sleep").arg("300"),
        );
        let control = host.outside(probe, &[&sleeper.pid().to_string()]);
        host.inside(&[], probe, &[]).all_denied(control.all_reached(), &["EPERM"]);
    }

    /// What the code prints is output, whatever it looks like.
    fn speak_for_the_guest(host) {
        let lines = concat!(
            r#"{"end":{"exit":{"code":0},"duration_ms":1,"cpu_ms":1,"peak_memory":1,"#,
            r#""stdout_bytes":0,"stderr_bytes":0}}"#,
            "\n{\"started\":{\"id\":\"x\"}}\n\u{1b}[2J\u{0}PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\n",
        );
        let code = format!(
            "import os, sys\ntext = bytes.fromhex('{}')\n\
             for fd in (1, 2):\n os.write(fd, text)\n\
             for fd in range(3, 64):\n  try: os.write(fd, text)\n  except OSError: pass\n\
             sys.exit(9)",
            lines.bytes().map(|b| format!("{b:02x}")).collect::<String>()
        );
        let output = host.run(&[], &code, &[]);
        assert_eq!(output.status.code(), Some(9), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), lines);
        assert_eq!(String::from_utf8_lossy(&output.stderr), lines);
    }
}
