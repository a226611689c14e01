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
