//! The HasteKit manager and the daemons behind it, tried with exactly what its Go client sends.

use ringfence_http_tests::callback::Callback;
use ringfence_http_tests::{Outcome, Server, bearer, key, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

const ENABLED: (&str, &str) = ("SANDBOX_ENABLED", "true");

/// Options of a server whose sandboxes are containers.
const DOCKER: [&str; 4] = ["--backend", "docker", "--image", "ringfence-test/python"];

/// Makes two tests of one: on native sandboxes, and on containers.
macro_rules! on_both {
    (async fn $name:ident($args:ident) $body:block) => {
        mod $name {
            use super::*;

            pub(super) async fn trial($args: &[&str]) -> Outcome $body

            #[tokio::test]
            async fn native() -> Outcome {
                trial(&[]).await
            }

            #[tokio::test]
            async fn docker() -> Outcome {
                trial(&DOCKER).await
            }
        }
    };
}

/// A server with its state, which outlives it.
struct Manager {
    server: Server,
    folder: tempfile::TempDir,
}

impl Manager {
    fn start(args: &[&str], env: &[(&str, &str)]) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("rf-hastekit-").tempdir()?;
        let state = folder.path().join("state");
        let server = Server::start_on(&state, args, &[&[ENABLED], env].concat())?;
        Ok(Self { server, folder })
    }

    /// `POST /api/sandbox`, as the client does before each tool call.
    async fn sandbox(&self, body: &Value) -> Outcome<Daemon> {
        let (status, answer) = self.server.post("/api/sandbox", body).await?;
        if status != 200 {
            return Err(format!("{status} {answer}").into());
        }
        Daemon::of(&answer, body["session_id"].as_str().unwrap_or_default())
    }
}

/// The daemon that a handle leads to.
#[derive(Debug, Clone, PartialEq)]
struct Daemon {
    url: String,
    pod: String,
}

/// As Go's `url.PathEscape` does it.
fn escape(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~$&+=:@".contains(&b);
    text.bytes()
        .map(|b| match plain(b) {
            true => (b as char).to_string(),
            false => format!("%{b:02X}"),
        })
        .collect()
}

impl Daemon {
    fn of(answer: &Value, session: &str) -> Outcome<Self> {
        assert_eq!(answer["error"], false, "{answer}");
        assert_eq!(answer["status"], 200, "{answer}");
        assert!(answer["message"].is_string(), "{answer}");
        let handle = &answer["data"];
        assert_eq!(handle["session_id"], session, "{answer}");
        let pod = handle["pod_name"].as_str().ok_or("no pod_name")?.to_owned();
        let ip = handle["pod_ip"].as_str().ok_or("no pod_ip")?;
        let port = handle["port"].as_u64().ok_or("no port")?;
        Ok(Self {
            url: format!("http://{ip}:{port}"),
            pod,
        })
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Outcome<(u16, Value)> {
        let method = reqwest::Method::from_bytes(method.as_bytes())?;
        // A connection of its own each time, as a client that makes a new one for each call.
        let http = reqwest::Client::new();
        let mut request = http.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let bytes = answer.bytes().await?;
        Ok((
            status,
            serde_json::from_slice(&bytes).unwrap_or(Value::Null),
        ))
    }

    async fn exec(&self, language: &str, body: &Value) -> Outcome<Value> {
        let (status, done) = self
            .ask("POST", &format!("/exec/{language}"), Some(body))
            .await?;
        match status {
            200 => Ok(done),
            _ => Err(format!("{status} {done}").into()),
        }
    }

    async fn bash(&self, command: &str) -> Outcome<Value> {
        self.exec("bash", &json!({"command": command})).await
    }

    /// The client escapes the path, and its URL library does so again.
    fn file(path: &str) -> String {
        format!("/files/{}", escape(&escape(path)))
    }
}

/// An id of this test's own: sandboxes of one host have one name each.
fn id(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

fn named(name: &str) -> String {
    format!("/api/sandbox/{}", id(name))
}

fn one(name: &str) -> Value {
    json!({"session_id": id(name), "image": ""})
}

#[tokio::test]
async fn disabled_routes_say_so() -> Outcome {
    let server = Server::start(&[])?;
    let body = one("a");
    for (method, path, body) in [
        ("POST", "/api/sandbox", Some(&body)),
        ("GET", "/api/sandbox/a", None),
        ("DELETE", "/api/sandbox/a", None),
    ] {
        let (status, answer) = server.ask(method, path, body).await?;
        assert_eq!(
            (status, &answer["error"]),
            (403, &json!(true)),
            "{method}: {answer}"
        );
        assert!(
            answer["message"]
                .as_str()
                .unwrap_or_default()
                .contains("disabled")
        );
        assert!(
            answer["hint"]
                .as_str()
                .unwrap_or_default()
                .contains("SANDBOX_ENABLED")
        );
    }
    Ok(())
}

on_both! {
    async fn the_client_gets_a_sandbox_and_works_in_it(args) {
        let manager = Manager::start(args, &[])?;
        let chat = id("chat/1 ä");
        let body = json!({"session_id": chat, "image": "", "agent_name": "helper",
                          "namespace": "default", "env": {"GREETING": "hello"}, "later": {"x": 1}});
        let daemon = manager.sandbox(&body).await?;
        assert_eq!(daemon.ask("GET", "/health", None).await?.0, 200);

        // The first call names the folder /, the next ones what the last one answered with.
        let first = json!({"command": "echo $GREETING $SANDBOX_ROOT $SANDBOX_PORT; cd sandbox/workspace; mkdir d; cd d",
                           "workdir": "/"});
        let done = daemon.exec("bash", &first).await?;
        assert_eq!(done["stdout"], "hello /sandbox/workspace 8080\n", "{done}");
        assert_eq!(done["cwd"], "/sandbox/workspace/d");
        let next = json!({"command": "echo \"$1\" > made.txt; echo err >&2; exit 7", "args": ["a b"],
                          "workdir": done["cwd"]});
        let done = daemon.exec("bash", &next).await?;
        assert_eq!(
            (&done["stderr"], &done["exit_code"]),
            (&json!("err\n"), &json!(7))
        );
        assert!(done["duration_ms"].is_u64(), "{done}");

        let made = Daemon::file("/sandbox/workspace/d/made.txt");
        let (status, read) = daemon.ask("GET", &made, None).await?;
        let text = json!({"path": "/sandbox/workspace/d/made.txt", "content": "a b\n"});
        assert_eq!((status, &read), (200, &text));
        let write = json!({"path": "/sandbox/workspace/50% ü.txt", "content": "x = 41 + 1"});
        let path = Daemon::file("/sandbox/workspace/50% ü.txt");
        assert_eq!(
            daemon.ask("POST", &path, Some(&write)).await?,
            (200, write.clone())
        );
        assert_eq!(
            daemon.bash("cat '50% ü.txt'").await?["stdout"],
            "x = 41 + 1"
        );
        let script = json!({"script": "import sys\nexec(open('50% ü.txt').read())\nprint(x, sys.argv[1])",
                            "args": ["y"]});
        assert_eq!(daemon.exec("python", &script).await?["stdout"], "42 y\n");
        let (status, _) = daemon.ask("DELETE", &path, None).await?;
        assert!((200..300).contains(&status), "{status}");
        assert_eq!(daemon.ask("GET", &path, None).await?.0, 404);

        // By the same id it is the same one, also for others who ask.
        assert_eq!(manager.sandbox(&body).await?, daemon);
        let named = format!("/api/sandbox/{}", escape(&chat));
        let (status, shown) = manager.server.get(&named).await?;
        assert_eq!((status, Daemon::of(&shown, &chat)?), (200, daemon.clone()));
        let other = manager.sandbox(&one("other")).await?;
        assert_ne!(other, daemon);
        assert_eq!(
            other.bash("ls; pwd").await?["stdout"],
            "/sandbox/workspace\n"
        );

        let (status, gone) = manager.server.ask("DELETE", &named, None).await?;
        assert_eq!((status, &gone["error"]), (200, &json!(false)), "{gone}");
        let (status, unknown) = manager.server.get(&named).await?;
        assert_eq!(
            (status, &unknown["error"]),
            (404, &json!(true)),
            "{unknown}"
        );
        assert!(daemon.bash("true").await.is_err());
        assert_eq!(other.bash("echo on").await?["stdout"], "on\n");
        Ok(())
    }
}

#[tokio::test]
async fn what_is_wrong_is_a_failure_of_the_contract() -> Outcome {
    let manager = Manager::start(&[], &[])?;
    for body in [
        json!({}),
        json!({"session_id": ""}),
        json!({"session_id": null}),
        json!({"session_id": 1}),
        json!({"session_id": "x".repeat(201)}),
        json!({"session_id": "a", "env": {"A": 1}}),
        json!({"session_id": "a", "image": "python:3"}),
        json!([]),
    ] {
        let (status, answer) = manager.server.post("/api/sandbox", &body).await?;
        assert_eq!(
            (status, &answer["error"]),
            (400, &json!(true)),
            "{body}: {answer}"
        );
        assert_eq!(answer["status"], 400, "{body}: {answer}");
        assert!(
            !answer["message"].as_str().unwrap_or_default().is_empty(),
            "{answer}"
        );
    }
    let (_, answer) = manager.server.post("/api/sandbox", &json!({})).await?;
    assert!(
        answer["message"]
            .as_str()
            .unwrap_or_default()
            .contains("session_id"),
        "{answer}"
    );
    let (status, answer) = manager.server.get("/api/sandbox/nobody").await?;
    assert_eq!((status, &answer["error"]), (404, &json!(true)), "{answer}");
    // One that is not there is as gone as it is to be.
    let (status, answer) = manager
        .server
        .ask("DELETE", "/api/sandbox/nobody", None)
        .await?;
    assert_eq!((status, &answer["error"]), (200, &json!(false)), "{answer}");
    Ok(())
}

on_both! {
    async fn a_timeout_is_an_answer_and_leaves_nothing_running(args) {
        let manager = Manager::start(args, &[])?;
        let daemon = manager.sandbox(&one("a")).await?;
        let body =
            json!({"command": "echo begun; setsid sleep 4321 & sleep 4321", "timeout_seconds": 1});
        let done = daemon.exec("bash", &body).await?;
        assert_eq!(
            (&done["exit_code"], &done["stdout"]),
            (&json!(124), &json!("begun\n"))
        );
        assert!(
            done["stderr"]
                .as_str()
                .unwrap_or_default()
                .contains("time limit"),
            "{done}"
        );
        let left = daemon.bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 432[1]'");
        assert_eq!(left.await?["stdout"], "0\n");
        Ok(())
    }
}

on_both! {
    async fn files_outside_of_the_root_are_forbidden(args) {
        let manager = Manager::start(args, &[])?;
        let daemon = manager.sandbox(&one("a")).await?;
        // The control: commands can read it.
        let seen = daemon.bash("ln -s /etc/passwd link; head -c4 link").await?;
        assert_eq!(seen["stdout"], "root");
        for path in [
            "/etc/passwd",
            "../../etc/passwd",
            "/sandbox/workspace/link",
            "/sandbox/other",
        ] {
            let write = json!({"path": path, "content": "x"});
            assert_eq!(
                daemon.ask("GET", &Daemon::file(path), None).await?.0,
                403,
                "{path}"
            );
            assert_eq!(
                daemon
                    .ask("POST", &Daemon::file(path), Some(&write))
                    .await?
                    .0,
                403,
                "{path}"
            );
        }
        // Bytes that are no text come as they are.
        daemon.bash("printf '\\377\\000' > b.bin").await?;
        let raw = reqwest::Client::new()
            .get(format!("{}/files/b.bin", daemon.url))
            .header("accept", "application/octet-stream")
            .send()
            .await?;
        assert_eq!(raw.headers()["content-type"], "application/octet-stream");
        assert_eq!(raw.bytes().await?.as_ref(), [0xff, 0]);
        Ok(())
    }
}

on_both! {
    async fn a_suspended_sandbox_is_started_again_by_the_next_call(args) {
        let manager = Manager::start(&[args, &["--workspace-in", "disk"]].concat(), &[])?;
        let daemon = manager.sandbox(&one("a")).await?;
        daemon.bash("echo kept > file").await?;
        let (_, digits) = daemon.pod.rsplit_once('-').ok_or("no name")?;
        let session = format!("sbx_{digits}");
        let path = format!("/sessions/{session}/suspend");
        assert_eq!(manager.server.post(&path, &json!({})).await?.0, 204);
        assert_eq!(daemon.bash("cat file").await?["stdout"], "kept\n");
        assert_eq!(manager.sandbox(&one("a")).await?, daemon);
        Ok(())
    }
}

#[tokio::test]
async fn a_daemon_at_the_address_of_its_container_is_the_same() -> Outcome {
    let direct = [&DOCKER[..], &["--hastekit-pod-address"]].concat();
    the_client_gets_a_sandbox_and_works_in_it::trial(&direct).await?;
    a_timeout_is_an_answer_and_leaves_nothing_running::trial(&direct).await?;
    files_outside_of_the_root_are_forbidden::trial(&direct).await?;
    skills_of_the_agent_are_there_and_cannot_be_changed::trial(&direct).await
}

/// The process that a sandbox is.
fn guest(state: &Path, pod: &str) -> Outcome<Pid> {
    let text = std::fs::read(state.join(pod).join("process.json"))?;
    let process: Value = serde_json::from_slice(&text)?;
    let pid = process["pid"].as_i64().ok_or("no pid")?;
    Pid::from_raw(pid as i32).ok_or_else(|| "no pid".into())
}

#[tokio::test]
async fn one_that_died_is_replaced() -> Outcome {
    let manager = Manager::start(&["--workspace-in", "memory"], &[])?;
    let daemon = manager.sandbox(&one("a")).await?;
    daemon.bash("echo lost > file").await?;
    kill_process(guest(&manager.server.state, &daemon.pod)?, Signal::KILL)?;
    until(async || Ok(daemon.bash("true").await.is_err().then_some(()))).await?;
    let again = manager.sandbox(&one("a")).await?;
    assert_eq!(again.bash("ls").await?["stdout"], "");
    Ok(())
}

#[tokio::test]
async fn one_that_nobody_uses_ends_and_the_next_call_makes_a_new_one() -> Outcome {
    let args = ["--idle-timeout", "1s", "--gc-interval", "1s"];
    let manager = Manager::start(&args, &[])?;
    let daemon = manager.sandbox(&one("a")).await?;
    daemon.bash("echo old > file").await?;
    until(async || {
        let http = reqwest::Client::new();
        let closed = http
            .get(format!("{}/health", daemon.url))
            .send()
            .await
            .is_err();
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(closed.then_some(()))
    })
    .await?;
    assert_eq!(manager.server.get(&named("a")).await?.0, 404);
    let again = manager.sandbox(&one("a")).await?;
    assert_eq!(again.bash("ls; echo new").await?["stdout"], "new\n");
    Ok(())
}

on_both! {
    async fn a_server_that_was_killed_comes_back_with_every_handle(args) {
        let mut manager = Manager::start(args, &[])?;
        let daemon = manager.sandbox(&one("a")).await?;
        daemon.bash("echo kept > file").await?;
        manager.server.kill()?;
        assert!(daemon.bash("true").await.is_err());
        let state = manager.folder.path().join("state");
        manager.server = Server::start_on(&state, args, &[ENABLED])?;
        let (status, shown) = manager.server.get(&named("a")).await?;
        assert_eq!(status, 200, "{shown}");
        let again = Daemon::of(&shown, &id("a"))?;
        assert_eq!(again.pod, daemon.pod);
        assert_eq!(again.bash("cat file").await?["stdout"], "kept\n");
        assert_eq!(manager.sandbox(&one("a")).await?, again);
        Ok(())
    }
}

on_both! {
    async fn skills_of_the_agent_are_there_and_cannot_be_changed(args) {
        let skills = tempfile::tempdir()?;
        let folder = skills.path().join("helper/pdf/scripts");
        std::fs::create_dir_all(&folder)?;
        let text = "---\nname: pdf\ndescription: Reads PDFs.\n---\n# PDF\n";
        std::fs::write(skills.path().join("helper/pdf/SKILL.md"), text)?;
        std::fs::write(folder.join("read.sh"), "echo read")?;
        std::fs::create_dir_all(skills.path().join("helper/no-skill"))?;
        std::fs::create_dir_all(skills.path().join("other/xls"))?;
        std::fs::write(skills.path().join("other/xls/SKILL.md"), "")?;
        let root = skills.path().to_string_lossy().into_owned();
        let manager = Manager::start(args, &[("SKILLS_ROOT", &root)])?;
        let ask =
            |name: &str, agent: &str| json!({"session_id": id(name), "image": "", "agent_name": agent});

        let daemon = manager.sandbox(&ask("a", "helper")).await?;
        let seen = daemon.bash("cat /sandbox/skills/pdf/SKILL.md; sh /sandbox/skills/pdf/scripts/read.sh; ls /sandbox/skills");
        assert_eq!(seen.await?["stdout"], format!("{text}read\npdf\n"));
        for command in [
            "echo x > /sandbox/skills/pdf/new",
            "rm /sandbox/skills/pdf/SKILL.md",
            "mkdir /sandbox/skills/mine",
        ] {
            assert_ne!(daemon.bash(command).await?["exit_code"], 0, "{command}");
        }
        // The control: elsewhere the same can be done.
        let done = daemon
            .bash("mkdir mine && echo x > mine/new && rm mine/new")
            .await?;
        assert_eq!(done["exit_code"], 0, "{done}");

        let none = manager.sandbox(&ask("b", "stranger")).await?;
        assert_ne!(none.bash("ls /sandbox/skills").await?["exit_code"], 0);
        let (status, answer) = manager
            .server
            .post("/api/sandbox", &ask("c", "../helper"))
            .await?;
        assert_eq!((status, &answer["error"]), (400, &json!(true)), "{answer}");
        let outside = tempfile::tempdir()?;
        std::fs::write(outside.path().join("SKILL.md"), "secret")?;
        std::os::unix::fs::symlink(outside.path(), skills.path().join("other/out"))?;
        let (status, answer) = manager
            .server
            .post("/api/sandbox", &ask("d", "other"))
            .await?;
        assert_eq!((status, &answer["error"]), (403, &json!(true)), "{answer}");
        Ok(())
    }
}

#[tokio::test]
async fn the_manager_asks_for_keys_and_the_daemon_does_not() -> Outcome {
    let manager = Manager::start(&[], &[])?;
    let state = &manager.server.state;
    let (user, other) = (
        key(state, "user", &["--scope", "use"])?,
        key(state, "other", &["--scope", "use"])?,
    );
    let reader = key(state, "reader", &["--scope", "read"])?;
    until(async || Ok((manager.server.get("/sessions").await?.0 == 401).then_some(()))).await?;
    assert_eq!(manager.server.post("/api/sandbox", &one("a")).await?.0, 401);
    let (status, made) = manager
        .server
        .as_key(&user, "POST", "/api/sandbox", Some(&one("a")))
        .await?;
    assert_eq!(status, 200, "{made}");
    let daemon = Daemon::of(&made, &id("a"))?;
    assert_eq!(daemon.bash("echo in").await?["stdout"], "in\n");
    // Ids are those of the key's owner, and who may only look gets no way in.
    assert_eq!(
        manager
            .server
            .as_key(&other, "GET", &named("a"), None)
            .await?
            .0,
        404
    );
    for (method, path, body) in [
        ("POST", "/api/sandbox", Some(one("a"))),
        ("GET", &named("a"), None),
    ] {
        let answer = manager
            .server
            .as_key(&reader, method, path, body.as_ref())
            .await?;
        assert_eq!(
            (answer.0, &answer.1["error"]),
            (403, &json!(true)),
            "{method}: {answer:?}"
        );
    }
    let http = bearer(&user)?;
    let answer = http
        .delete(format!("{}{}", manager.server.url, named("a")))
        .send()
        .await?;
    assert_eq!(answer.status(), 200);
    Ok(())
}

#[tokio::test]
async fn the_relay_is_bounded_and_closed_to_web_pages() -> Outcome {
    let args = [
        "--max-body",
        "64k",
        "--max-upload",
        "64k",
        "--max-headers",
        "8k",
    ];
    let manager = Manager::start(&args, &[])?;
    let daemon = manager.sandbox(&one("a")).await?;
    let http = reqwest::Client::new();
    let url = format!("{}/exec/bash", daemon.url);
    let body = json!({"command": "echo in"});
    let sent = async |name: &str, value: &str| -> Outcome<u16> {
        let request = http.post(&url).header(name, value).json(&body);
        Ok(request.send().await?.status().as_u16())
    };
    assert_eq!(sent("x-harmless", "yes").await?, 200);
    assert_eq!(sent("origin", "https://evil.example").await?, 403);
    assert_eq!(sent("host", "evil.example").await?, 403);
    assert_eq!(sent("x-long", &"x".repeat(100_000)).await?, 431);
    let long = json!({"command": format!("true {}", "x".repeat(100_000))});
    assert_eq!(daemon.ask("POST", "/exec/bash", Some(&long)).await?.0, 413);
    // What the guest can do besides is not for clients.
    for path in [
        "/jobs",
        "/daemon/health",
        "/kernels",
        "/../jobs",
        "/%2e%2e/jobs",
    ] {
        assert_eq!(daemon.ask("GET", path, None).await?.0, 404, "{path}");
    }
    assert_eq!(daemon.bash("echo still").await?["stdout"], "still\n");
    Ok(())
}

/// Daemons believe whoever reaches them, and the server is on the same host: what a tenant has
/// the server call must not be one of them.
#[tokio::test]
async fn no_callback_reaches_a_daemon_or_the_server() -> Outcome {
    let callback = Callback::start().await?;
    let manager = Manager::start(&["--keep"], &[])?;
    let (server, daemon) = (&manager.server, manager.sandbox(&one("other")).await?);
    let id = server.session().await?;
    let path = format!("/sessions/{id}/programmatic-tools/register");
    let to = |url: String| {
        let mut body = callback.registration("token", &["echo"]);
        body["callback_url"] = json!(url);
        body
    };
    let port = |url: &str| url.rsplit(':').next().unwrap_or_default().to_owned();
    for port in [port(&daemon.url), port(&server.url)] {
        for host in ["127.0.0.1", "127.3.2.1", "localhost", "[::ffff:127.0.0.1]"] {
            let url = format!("http://{host}:{port}/exec/bash");
            let (status, answer) = server.post(&path, &to(url)).await?;
            assert_eq!(status, 403, "{host}:{port} {answer}");
        }
    }
    // Control: another port of the same addresses.
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{}/", callback.port);
        assert_eq!(server.post(&path, &to(url)).await?.0, 200, "{host}");
        let done = server
            .code(&id, "from _platform_tools import echo; print(echo(a=1))")
            .await?;
        assert_eq!(done["stdout"], "{'a': 1}", "{done}");
    }
    // What was registered before is looked at again.
    let (seen, ports) = (callback.seen().len(), callback.port.to_string());
    let Manager { mut server, folder } = manager;
    server.stop()?;
    let state = folder.path().join("state");
    let server = Server::start_on(&state, &["--hastekit-ports", &ports], &[ENABLED])?;
    let done = server
        .code(&id, "from _platform_tools import echo; print(echo(a=1))")
        .await?;
    assert!(done.to_string().contains("not allowed"), "{done}");
    assert_eq!(callback.seen().len(), seen);
    Ok(())
}
