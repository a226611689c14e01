//! The stand-alone daemon of the HasteKit contract, as a client on TCP sees it.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

#[path = "support/mod.rs"]
mod support;

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use support::{marker, until, with_argument};

struct Daemon {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

impl Daemon {
    async fn start(env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Free a moment ago; nobody else is given it so soon.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let process = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
            .arg("--daemon")
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("SANDBOX_PORT", port.to_string())
            .env("SANDBOX_ROOT", folder.path().join("root"))
            .envs(env.iter().copied())
            .spawn()
            .unwrap();
        let daemon = Self {
            process,
            port,
            folder,
        };
        until("the daemon listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
        .await;
        daemon
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        accept: &str,
        body: Option<Value>,
    ) -> (StatusCode, Vec<u8>) {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", self.port))
            .await
            .unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "sandbox")
            .header("accept", accept)
            .body(Full::new(bytes::Bytes::from(body)))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        let status = answer.status();
        (
            status,
            answer
                .into_body()
                .collect()
                .await
                .unwrap()
                .to_bytes()
                .to_vec(),
        )
    }

    async fn json(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (status, bytes) = self.ask(method, path, "*/*", body).await;
        let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        (status.as_u16(), value)
    }

    async fn bash(&self, body: Value) -> Value {
        let (status, done) = self.json("POST", "/exec/bash", Some(body)).await;
        assert_eq!(status, 200, "{done}");
        done
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the Go client makes of a path: encoded by itself, and again as a part of the URL.
fn twice(path: &Path) -> String {
    let escape = |text: &str| -> String {
        text.bytes()
            .map(|b| match b {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                    (b as char).to_string()
                }
                _ => format!("%{b:02X}"),
            })
            .collect()
    };
    format!("/files/{}", escape(&escape(path.to_str().unwrap())))
}

#[tokio::test]
async fn commands_run_in_sh_with_arguments_environment_and_folder() {
    let daemon = Daemon::start(&[]).await;
    let done = daemon
        .bash(json!({"command": "echo \"$1|$2|$A\"; echo err >&2; exit 3",
                     "args": ["one two", "$HOME"], "env": {"A": "b"}, "more": [1]}))
        .await;
    assert_eq!(done["stdout"], "one two|$HOME|b\n");
    assert_eq!(
        (&done["stderr"], &done["exit_code"]),
        (&json!("err\n"), &json!(3))
    );
    assert!(done["duration_ms"].is_u64());
    assert_eq!(done["cwd"], json!(daemon.root()));

    // What the client leaves open it may send as null, zero or nothing.
    let open = json!({"command": "", "script": "pwd", "args": null, "timeout_seconds": 0,
                      "workdir": "", "env": null});
    assert_eq!(
        daemon.bash(open).await["stdout"],
        format!("{}\n", daemon.root().display())
    );

    // The folder is not confined, and is carried on by the client.
    let done = daemon
        .bash(json!({"command": "cd usr/bin", "workdir": "/"}))
        .await;
    assert_eq!(done["cwd"], "/usr/bin");
    let done = daemon
        .bash(json!({"command": "pwd", "workdir": done["cwd"]}))
        .await;
    assert_eq!(done["stdout"], "/usr/bin\n");

    let killed = daemon.bash(json!({"command": "kill -9 $$"})).await;
    assert_eq!(killed["exit_code"], 137);
}

#[tokio::test]
async fn python_runs_a_script_of_any_length() {
    let daemon = Daemon::start(&[]).await;
    let long = format!("x = '''{}'''\n", "y".repeat(300_000));
    let script =
        format!("{long}import os, sys\nprint(len(x), sys.argv[1:], os.environ['A'])\nsys.exit(4)");
    let body = json!({"script": script, "args": ["a", "b"], "env": {"A": "1"}, "workdir": "/tmp"});
    let (status, done) = daemon.json("POST", "/exec/python", Some(body)).await;
    assert_eq!(status, 200, "{done}");
    assert_eq!(done["stdout"], "300000 ['a', 'b'] 1\n");
    assert_eq!(
        (&done["exit_code"], &done["cwd"]),
        (&json!(4), &json!("/tmp"))
    );
}

#[tokio::test]
async fn a_timeout_kills_everything_and_is_an_answer() {
    let daemon = Daemon::start(&[]).await;
    let sleep = format!("sleep {}", marker());
    let script = format!("echo before; setsid {sleep} & {sleep}");
    let done = daemon
        .bash(json!({"command": script, "timeout_seconds": 1}))
        .await;
    assert_eq!(
        (&done["stdout"], &done["exit_code"]),
        (&json!("before\n"), &json!(124))
    );
    assert!(
        done["stderr"]
            .as_str()
            .unwrap()
            .contains("time limit of 1 s"),
        "{done}"
    );
    assert_eq!(with_argument(&sleep[6..]), Vec::<i32>::new());
}

#[tokio::test]
async fn files_are_written_read_and_deleted_however_their_path_is_encoded() {
    let daemon = Daemon::start(&[]).await;
    let file = daemon.root().join("new folder/50%.txt");
    let body = json!({"path": file, "content": "hällo"});
    let (status, written) = daemon.json("POST", &twice(&file), Some(body.clone())).await;
    assert_eq!((status, &written), (200, &body));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "hällo");
    for path in [
        twice(&file),
        "/files/new%20folder/50%25.txt".to_owned(),
        "/files/new%2520folder%252F50%2525.txt".to_owned(),
        format!("/files/{}/new%20folder/50%25.txt", daemon.root().display()),
    ] {
        let (status, read) = daemon.json("GET", &path, None).await;
        assert_eq!(
            (status, &read["content"]),
            (200, &json!("hällo")),
            "{path}: {read}"
        );
    }
    let (status, _) = daemon.ask("DELETE", &twice(&file), "*/*", None).await;
    assert!(status.is_success(), "{status}");
    assert!(!file.exists());
    let (status, gone) = daemon.json("GET", &twice(&file), None).await;
    assert_eq!(status, 404, "{gone}");
    assert!(
        gone["message"].as_str().unwrap().contains("not found"),
        "{gone}"
    );
}

#[tokio::test]
async fn bytes_that_are_no_text_come_raw() {
    let daemon = Daemon::start(&[]).await;
    let bytes = [0, 0xff, 0xfe, b'\n'];
    std::fs::write(daemon.root().join("b.bin"), bytes).unwrap();
    let raw = daemon
        .ask("GET", "/files/b.bin", "application/octet-stream", None)
        .await;
    assert_eq!(raw, (StatusCode::OK, bytes.to_vec()));
    let (status, refused) = daemon.json("GET", "/files/b.bin", None).await;
    assert!((400..500).contains(&status), "{status}");
    assert!(
        refused["hint"].as_str().unwrap().contains("octet-stream"),
        "{refused}"
    );
}

#[tokio::test]
async fn nothing_leads_out_of_the_root() {
    let daemon = Daemon::start(&[]).await;
    let outside = daemon.folder.path().join("outside");
    std::fs::write(&outside, "secret").unwrap();
    std::os::unix::fs::symlink(&outside, daemon.root().join("link")).unwrap();
    std::os::unix::fs::symlink(daemon.folder.path(), daemon.root().join("dir")).unwrap();
    // The control: it can be read, and inside the root this way.
    let seen = daemon.bash(json!({"command": "cat link"})).await;
    assert_eq!(seen["stdout"], "secret");
    let body = || Some(json!({"content": "x"}));
    for path in [
        twice(&outside),
        "/files/..%252Foutside".to_owned(),
        "/files/..%2Foutside".to_owned(),
        "/files/link".to_owned(),
        "/files/dir%2Foutside".to_owned(),
        "/files/%2Fetc%2Fpasswd".to_owned(),
    ] {
        assert_eq!(daemon.json("GET", &path, None).await.0, 403, "GET {path}");
        assert_eq!(
            daemon.json("POST", &path, body()).await.0,
            403,
            "POST {path}"
        );
    }
    assert_eq!(
        daemon.json("DELETE", "/files/dir%2Foutside", None).await.0,
        403
    );
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "secret");
}

#[tokio::test]
async fn it_knows_its_own_routes_and_no_others() {
    let daemon = Daemon::start(&[]).await;
    assert_eq!(
        daemon.ask("GET", "/health", "*/*", None).await.0,
        StatusCode::OK
    );
    for (method, path) in [
        ("POST", "/exec"),
        ("GET", "/jobs"),
        ("PUT", "/kernels/main"),
        ("PUT", "/tools"),
        ("GET", "/daemon/health"),
        ("GET", "/"),
        ("PUT", "/files/a"),
    ] {
        let (status, refused) = daemon.json(method, path, None).await;
        assert_eq!(status, 404, "{method} {path}");
        assert!(refused["message"].is_string(), "{method} {path}: {refused}");
    }
    for bad in [
        json!({}),
        json!({"command": 1}),
        json!({"command": "true", "timeout_seconds": -1}),
        json!({"command": "true", "workdir": "/nowhere"}),
    ] {
        let (status, refused) = daemon.json("POST", "/exec/bash", Some(bad.clone())).await;
        assert!((400..500).contains(&status), "{bad}: {status}");
        assert!(refused["message"].is_string(), "{bad}: {refused}");
    }
}

#[tokio::test]
async fn it_ends_when_nobody_uses_it() {
    let mut daemon = Daemon::start(&[("SANDBOX_IDLE_TIMEOUT", "1")]).await;
    // While something runs it is in use, however long that takes.
    let done = daemon.bash(json!({"command": "sleep 2; echo awake"})).await;
    assert_eq!(done["stdout"], "awake\n");
    until("the daemon ends", || {
        matches!(daemon.process.try_wait(), Ok(Some(_)))
    })
    .await;
}

#[test]
fn settings_that_mean_nothing_are_told() {
    let done = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
        .arg("--daemon")
        .env("SANDBOX_PORT", "none")
        .output()
        .unwrap();
    assert!(!done.status.success());
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.contains("SANDBOX_PORT is `none`"), "{said}");
}
