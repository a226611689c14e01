//! Attacks from inside a pod on what only a cluster has; the others are those of `tests/attacks`.
//! Each has a control: the same probe succeeds outside, or in a pod that is not ours.

use ringfence_kubernetes_tests::cluster::{GUEST, Namespace, Outcome, Server, kubectl_ok, until};
use ringfence_tests::{Answer, processes_with, unique, whole};
use serde_json::json;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Output};

/// A probe on the node itself, where the tests run.
fn outside(probe: &str, args: &[&str]) -> Outcome<Answer> {
    let code = whole(probe, args);
    let output = Command::new("/usr/bin/python3")
        .args(["-c", &code])
        .output()?;
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

#[tokio::test]
async fn nothing_of_the_cluster_is_reached() -> Outcome {
    let place = Place::new("near", &["--kube-reach", "address"]).await?;

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

    // The API server and other pods, by the network.
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

/// What can be read can be looked into while it starts: the process that says the secret is one of
/// its program.
#[tokio::test]
async fn the_guests_program_can_be_executed_and_not_read() -> Outcome {
    let read = "judge(lambda: open(ARGS[0], 'rb').read(4))";
    let execute = r#"
def execute():
    if not os.access(ARGS[0], os.X_OK):
        raise Denied("NO")
judge(execute)
"#;
    for (program, args) in [
        ("/ringfence-guest", &[][..]),
        ("/.ringfence/guest", &["--guest-image", GUEST]),
    ] {
        let place = Place::new("program", args).await?;
        place.inside(read, &["/bin/sh"]).await?.reached();
        place.inside(execute, &[program]).await?.reached();
        place.inside(read, &[program]).await?.denied(&["EACCES"]);
        place.end().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_starts_too_many_processes_is_alone_in_that() -> Outcome {
    let place = Place::new("much", &[]).await?;
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

    let said = place.server.code(&beside, "print(1)").await?;
    assert_eq!(said["return_code"], 0, "{said}");
    let path = format!("/sessions/{beside}");
    place.server.ask("DELETE", &path, None).await?;
    place.end().await
}

#[tokio::test]
async fn nothing_outlives_its_session() -> Outcome {
    let place = Place::new("time", &[]).await?;
    let mark = unique();
    let words = format!("['python3', '-c', 'import time; time.sleep(1000)', '{mark}']");
    let keep = format!("import subprocess; p = subprocess.Popen({words}, start_new_session=True)");
    let started = place.server.code(&place.session, &keep).await?;
    assert_eq!(started["return_code"], 0, "{started}");
    until(async || Ok((!processes_with(&mark).is_empty()).then_some(()))).await?;
    place.end().await?;
    until(async || Ok(processes_with(&mark).is_empty().then_some(()))).await
}
