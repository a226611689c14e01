//! Attacks from inside a pod, on everything near it. Each has a control: the same probe succeeds
//! outside, or in a pod that is not ours.

use ringfence_kubernetes_tests::cluster::{Namespace, Outcome, Server, kubectl_ok, until};
use ringfence_tests::{Answer, Running, processes_with, unique, whole};
use serde_json::json;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Output};

/// A probe on the node itself, where the tests run.
fn outside(probe: &str, args: &[&str]) -> Outcome<Answer> {
    outside_by(&[], probe, args)
}

/// The same, started by another program.
fn outside_by(starter: &[&str], probe: &str, args: &[&str]) -> Outcome<Answer> {
    let code = whole(probe, args);
    let words = [starter, &["/usr/bin/python3", "-c", &code]].concat();
    let output = Command::new(words[0]).args(&words[1..]).output()?;
    Ok(Answer::of(&output))
}

/// A server with one session in a namespace of its own.
struct Place {
    server: Server,
    session: String,
    /// The last to go.
    namespace: Namespace,
}

impl Place {
    async fn new(what: &str, args: &[&str]) -> Outcome<Self> {
        let namespace = Namespace::new(what)?;
        let server = namespace.serve(args)?;
        let session = server.session().await?;
        Ok(Self {
            server,
            session,
            namespace,
        })
    }

    /// Runs a text of Python in a process of its own.
    async fn python(&self, code: &str) -> Outcome<Output> {
        let input = json!({"command": format!("python3 - <<'PROBE'\n{code}\nPROBE")});
        let done = self
            .server
            .tool(&self.session, "bash_code_execution", &input)
            .await?;
        let text = |name: &str| done[name].as_str().unwrap_or_default().as_bytes().to_vec();
        let code = done["return_code"].as_i64().unwrap_or(-1) as i32;
        Ok(Output {
            status: ExitStatus::from_raw(code << 8),
            stdout: text("stdout"),
            stderr: text("stderr"),
        })
    }

    /// Runs a probe inside.
    async fn inside(&self, probe: &str, args: &[&str]) -> Outcome<Answer> {
        Ok(Answer::of(&self.python(&whole(probe, args)).await?))
    }

    /// The session works as it did.
    async fn assert_alive(&self) -> Outcome {
        let said = self.python("print('alive')").await?;
        assert_eq!(said.stdout, b"alive\n", "{said:?}");
        Ok(())
    }

    async fn end(self) -> Outcome {
        let path = format!("/sessions/{}", self.session);
        let (status, said) = self.server.ask("DELETE", &path, None).await?;
        assert_eq!(status, 204, "{said}");
        self.namespace.await_nothing()
    }
}

const READ: &str = "judge(lambda: open(ARGS[0]).read())";

const CONNECT: &str = r#"
def connect():
    s = socket.socket()
    s.settimeout(5)
    s.connect((ARGS[0], int(ARGS[1])))
judge(connect)
"#;

/// Finds a process, or an environment, that holds a text; which travels backwards, so that the
/// probe does not find itself.
const FIND: &str = r#"
def find():
    mark = ARGS[0][::-1].encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in open("/proc/%s/%s" % (pid, ARGS[1]), "rb").read():
                return pid
        except OSError:
            pass
    raise Denied("NONE")
judge(find)
"#;

#[tokio::test]
async fn nothing_of_the_node_or_the_cluster_is_reached() -> Outcome {
    let place = Place::new("near", &["--kube-reach", "address"]).await?;

    // A file of the node.
    let folder = tempfile::tempdir()?;
    let secret = folder.path().join("secret").display().to_string();
    std::fs::write(&secret, "secret")?;
    outside(READ, &[&secret])?.reached();
    place.inside(READ, &[&secret]).await?.denied(&["ENOENT"]);
    outside(READ, &["/etc/shadow"])?.reached();
    place
        .inside(READ, &["/etc/shadow"])
        .await?
        .denied(&["EACCES"]);

    // Its processes, and the server's environment.
    let mark = unique();
    let back: String = mark.chars().rev().collect();
    let sleeper = Running::start(
        Command::new("/bin/sh")
            .args(["-c", "read line", &mark])
            .env("RF_SECRET", &mark)
            .stdin(std::process::Stdio::piped()),
    );
    for file in ["cmdline", "environ"] {
        outside(FIND, &[&back, file])?.reached();
        place.inside(FIND, &[&back, file]).await?.denied(&["NONE"]);
    }
    drop(sleeper);

    // The token of a service account: where every pod has one, ours has none.
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    let usual = [
        "run",
        "usual",
        "--image=ringfence-test/python",
        "--restart=Never",
    ];
    let rest = ["--image-pull-policy=IfNotPresent", "--", "sleep", "1000"];
    place.namespace.kubectl(&[&usual[..], &rest].concat())?;
    let ready = [
        "wait",
        "--for=condition=Ready",
        "pod/usual",
        "--timeout=100s",
    ];
    place.namespace.kubectl(&ready)?;
    let code = whole(READ, &[token]);
    let in_usual = |code: &str| -> Outcome<Answer> {
        let args = ["exec", "usual", "--namespace", &place.namespace.0, "--"];
        let args = [&args[..], &["python3", "-c", code]].concat();
        Ok(Answer::of(&ringfence_kubernetes_tests::cluster::kubectl(
            &args,
        )?))
    };
    in_usual(&code)?.reached();
    place.inside(READ, &[token]).await?.denied(&["ENOENT"]);
    let variables = r#"
def find():
    found = [name for name in os.environ if "KUBERNETES" in name or "SERVICE" in name]
    if not found:
        raise Denied("NONE")
    return found
judge(find)
"#;
    in_usual(&whole(variables, &[]))?.reached();
    place.inside(variables, &[]).await?.denied(&["NONE"]);

    // The API server and other pods, by the network; and where clouds hand out credentials.
    let server = kubectl_ok(&[
        "config",
        "view",
        "-o",
        "jsonpath={.clusters[0].cluster.server}",
    ])?;
    let address = server.trim_start_matches("https://");
    let (host, port) = address.split_once(':').ok_or("no port")?;
    outside(CONNECT, &[host, port])?.reached();
    place
        .inside(CONNECT, &[host, port])
        .await?
        .denied(&["EAFNOSUPPORT"]);
    let path = ["get", "pods", "--selector=ringfence=sandbox"];
    let ip = ["--output=jsonpath={.items[0].status.podIP}"];
    let ip = place.namespace.kubectl(&[&path[..], &ip].concat())?;
    outside(CONNECT, &[&ip, "7433"])?.reached();
    place
        .inside(CONNECT, &[&ip, "7433"])
        .await?
        .denied(&["EAFNOSUPPORT"]);
    let around = "import socket, subprocess, sys\n\
        for line in ([\"link\", \"set\", \"lo\", \"up\"], [\"addr\", \"add\", \"169.254.169.254/32\", \"dev\", \"lo\"]):\n    \
            subprocess.run([\"ip\", *line], check=True)\n\
        s = socket.socket()\ns.bind((\"169.254.169.254\", 80))\ns.listen()\n\
        sys.exit(subprocess.run(sys.argv[1:]).returncode)";
    let starter = ["unshare", "-n", "/usr/bin/python3", "-c", around];
    let metadata = ["169.254.169.254", "80"];
    outside_by(&starter, CONNECT, &metadata)?.reached();
    place
        .inside(CONNECT, &metadata)
        .await?
        .denied(&["EAFNOSUPPORT"]);
    let pods = ["delete", "pod", "usual", "--grace-period=0", "--force"];
    place.namespace.kubectl(&pods)?;
    place.end().await
}

/// A stranger that reaches the guest's door does not know the secret.
#[tokio::test]
async fn the_door_of_a_guest_opens_to_who_knows_its_secret() -> Outcome {
    let place = Place::new("door", &["--kube-reach", "address"]).await?;
    // The server itself came by that door.
    place.assert_alive().await?;
    let path = ["get", "pods", "--selector=ringfence=sandbox"];
    let ip = ["--output=jsonpath={.items[0].status.podIP}"];
    let ip = place.namespace.kubectl(&[&path[..], &ip].concat())?;
    let knock = r#"
def knock():
    s = socket.create_connection((ARGS[0], 7433), 5)
    s.sendall(b"0" * 64 + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
    try:
        answer = s.recv(100)
    except ConnectionResetError:
        answer = b""
    if not answer:
        raise Denied("SHUT")
    return answer
judge(knock)
"#;
    outside(knock, &[&ip])?.denied(&["SHUT"]);
    place.assert_alive().await?;
    place.end().await
}

#[tokio::test]
async fn the_kernel_grants_nothing_that_leads_out() -> Outcome {
    let place = Place::new("kernel", &[]).await?;
    let probe = r#"
import tempfile
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
def mount():
    folder = tempfile.mkdtemp()
    call("unshare", 0x20000)
    call("mount", b"none", folder.encode(), b"tmpfs", 0, 0)
def device():
    path = tempfile.mkdtemp() + "/node"
    os.mknod(path, 0o20666, os.makedev(1, 11))
    os.close(os.open(path, os.O_RDONLY))
judge_all(
    mount=lambda: in_child(mount),
    user=lambda: in_child(lambda: call("unshare", 0x10000000)),
    net=lambda: in_child(lambda: call("unshare", 0x40000000)),
    pid=lambda: in_child(lambda: call("unshare", 0x20000000)),
    join=lambda: in_child(lambda: call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)),
    chroot=lambda: in_child(lambda: call("chroot", b"/")),
    root=lambda: in_child(lambda: os.setuid(0)),
    keys=lambda: call("add_key", b"user", b"rf-probe", b"x", 1, -3),
    device=device,
    log=lambda: call("syslog", 3, ctypes.create_string_buffer(16), 16),
)
"#;
    let control = outside(probe, &[])?;
    let inside = place.inside(probe, &[]).await?;
    inside.all_denied(control.all_reached(), &["EPERM", "EACCES", "ENOSYS"]);
    // With arguments that do nothing: outside the error is about these, inside it is a refusal.
    let calls = r#"
judge_all(**{name: (lambda name=name: call(name, -1, 0, 0, 0, 0)) for name in
    ["bpf", "perf_event_open", "userfaultfd", "open_by_handle_at", "fsopen", "kexec_load", "init_module"]})
"#;
    let inside = place.inside(calls, &[]).await?;
    let refused = ["EPERM", "ENOSYS"];
    inside.all_denied(&inside, &refused);
    let control = outside(calls, &[])?;
    for (name, verdict) in &control.rows {
        let denied = format!("{verdict:?}");
        assert!(!denied.contains("EPERM"), "the control of {name}: {denied}");
    }
    // The guest, which is process 1 and the same user.
    let guest = r#"
def read(path):
    fd = os.open(path, os.O_RDONLY)
    return len(os.read(fd, 100)) if not path.endswith("mem") else 0
def trace(pid):
    call("ptrace", 16, pid, 0, 0)
    os.waitpid(pid, 0)
    call("ptrace", 17, pid, 0, 0)
judge_all(memory=lambda: read("/proc/%s/mem" % ARGS[0]), environment=lambda: read("/proc/%s/environ" % ARGS[0]),
    maps=lambda: read("/proc/%s/maps" % ARGS[0]), root=lambda: os.readlink("/proc/%s/root" % ARGS[0]),
    trace=lambda: trace(int(ARGS[0])))
"#;
    let sleeper = Running::start(Command::new("/bin/sleep").arg("300"));
    let control = outside(guest, &[&sleeper.pid().to_string()])?;
    let inside = place.inside(guest, &["1"]).await?;
    inside.all_denied(control.all_reached(), &["EACCES", "EPERM"]);
    place.end().await
}

#[tokio::test]
async fn what_takes_too_much_ends_alone() -> Outcome {
    let place = Place::new("much", &["--memory", "512m"]).await?;
    let beside = place.server.session().await?;

    // The limit of processes is the kubelet's, and holds for each pod by itself.
    let bomb = r#"
def bomb():
    children = []
    try:
        for _ in range(400):
            pid = os.fork()
            if pid == 0:
                time.sleep(100)
                os._exit(0)
            children.append(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return len(children)
judge(bomb)
"#;
    outside(bomb, &[])?.reached();
    place.inside(bomb, &[]).await?.denied(&["EAGAIN"]);
    place.assert_alive().await?;

    // Memory: the command is killed, the guest and the session beside it are not.
    let memory = "judge(lambda: len(bytearray(1 << 30)))";
    outside(memory, &[])?.reached();
    let killed = place.python(&whole(memory, &[])).await?;
    assert_eq!(killed.status.code(), Some(137), "{killed:?}");
    place.assert_alive().await?;

    // One file that is too large, and output without an end.
    let fill = r#"
def fill():
    path = ARGS[0] + "/big"
    try:
        with open(path, "wb") as f:
            f.truncate(1 << 30)
    finally:
        os.unlink(path)
judge(fill)
"#;
    let folder = tempfile::tempdir()?;
    outside(fill, &[&folder.path().display().to_string()])?.reached();
    place.inside(fill, &["/tmp"]).await?.denied(&["EFBIG"]);
    let flood = "import os\nfor _ in range(16): os.write(1, b'x' * (1 << 20))";
    let said = place.python(flood).await?;
    assert_eq!(said.status.code(), Some(0));
    // The limit, and a word about what is missing.
    assert!(
        said.stdout.len() < (1 << 20) + 1000,
        "{}",
        said.stdout.len()
    );

    // The guest is hit by every signal, and the code beside it as a control. All but the one by
    // which the cluster itself asks a pod to end: who sends that ends their own sandbox.
    let hit = r#"
child = subprocess.Popen(["sleep", "100"])
for pid in [child.pid] + [1] * 50:
    for number in set(range(1, 65)) - {signal.SIGTERM}:
        try:
            os.kill(pid, number)
        except OSError:
            pass
print("child", child.wait() < 0)
"#;
    let said = place.python(&whole(hit, &[])).await?;
    assert_eq!(said.stdout, b"child True\n", "{said:?}");
    place.assert_alive().await?;
    let said = place.server.code(&beside, "print(1)").await?;
    assert_eq!(said["return_code"], 0, "{said}");
    let path = format!("/sessions/{beside}");
    place.server.ask("DELETE", &path, None).await?;
    place.end().await
}

/// Leaves a process behind that wants to stay, in a session and group of its own.
const STAY: &str = r#"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.execvp("python3", ["python3", "-c", "import time; time.sleep(1000)", ARGS[0]])
    os._exit(0)
time.sleep(float(ARGS[1]))
"#;

#[tokio::test]
async fn nothing_outlives_its_time() -> Outcome {
    let place = Place::new("time", &[]).await?;
    let gone =
        async |mark: &str| until(async || Ok(processes_with(mark).is_empty().then_some(()))).await;
    // Its time limit: everything that it started goes, and the session stays.
    let mark = unique();
    let code = whole(STAY, &[&mark, "1000"]);
    let input = json!({"command": format!("python3 - <<'PROBE'\n{code}\nPROBE")});
    let running = async {
        let path = format!("/sessions/{}/exec", place.session);
        let body = json!({"tool": "bash_code_execution", "input": input, "timeout_seconds": 5});
        place.server.post(&path, &body).await
    };
    let seen = until(async || Ok((!processes_with(&mark).is_empty()).then_some(())));
    let (ended, seen) = tokio::join!(running, seen);
    seen?;
    ended?;
    gone(&mark).await?;
    place.assert_alive().await?;
    // Its session: the pod goes with all that is in it.
    let mark = unique();
    let words = format!("['python3', '-c', 'import time; time.sleep(1000)', '{mark}']");
    let keep = format!("import subprocess; p = subprocess.Popen({words}, start_new_session=True)");
    let started = place.server.code(&place.session, &keep).await?;
    assert_eq!(started["return_code"], 0, "{started}");
    until(async || Ok((!processes_with(&mark).is_empty()).then_some(()))).await?;
    place.end().await?;
    gone(&mark).await
}
