//! The contract of `run_code`, line by line, by each of its faces: the command line, HTTP, MCP and
//! Python; on native sandboxes and on Docker.

use ringfence_http_tests::{Outcome, Server, python, ringfence, until};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Face {
    Cli,
    Http,
    Mcp,
    Python,
}

const FACES: [Face; 4] = [Face::Cli, Face::Http, Face::Mcp, Face::Python];

/// Everything that a snippet of the contract can say.
#[derive(Debug, Clone, Default)]
struct Snippet<'a> {
    language: &'a str,
    code: &'a str,
    timeout: Option<f64>,
    network: bool,
    /// The folder, and whether it is to be written to.
    workspace: Option<(&'a Path, bool)>,
}

fn snippet<'a>(language: &'a str, code: &'a str) -> Snippet<'a> {
    Snippet {
        language,
        code,
        ..Snippet::default()
    }
}

/// A server, and a place for the command line, with the same backend.
struct Place {
    server: Server,
    state: PathBuf,
    image: Option<&'static str>,
    _folder: tempfile::TempDir,
}

/// What the Python package is asked for and answers with, as JSON on both sides.
const PYTHON: &str = r#"
import json, sys
from ringfence import RingfenceError, SyncSandbox
asked = json.load(sys.stdin)
with SyncSandbox(asked.pop("url"), key="python") as sandbox:
    try:
        done = sandbox.run(**asked)
        told = {"exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr, "ok": done.ok,
            "language": done.details["language"], "text": done.details["text"]}
    except RingfenceError as error:
        told = {"refused": str(error)}
print(json.dumps(told))
"#;

impl Place {
    fn new(image: Option<&'static str>, workspace: &Path) -> Outcome<Self> {
        let allowed = format!("{}:rw", workspace.display());
        let mut args = vec!["--allow-host-network", "--allow-mount", &allowed];
        let languages = ["python", "sh", "typescript"];
        let images: Vec<String> = image
            .iter()
            .flat_map(|image| languages.map(|language| format!("{language}={image}")))
            .collect();
        if image.is_some() {
            args.extend(["--backend", "docker", "--image", "ringfence-test/python"]);
        }
        for image in &images {
            args.extend(["--language-image", image]);
        }
        let folder = tempfile::Builder::new().prefix("rf-faces-").tempdir()?;
        Ok(Self {
            server: Server::start(&args)?,
            state: folder.path().join("state"),
            image,
            _folder: folder,
        })
    }

    /// The result, or an object that says `refused`.
    async fn run(&self, face: Face, snippet: &Snippet<'_>) -> Outcome<Value> {
        match face {
            Face::Cli => self.by_command(snippet).await,
            Face::Http => {
                let (status, answer) = self.server.post("/run", &asked(snippet)).await?;
                Ok(match status {
                    200 => answer,
                    _ => json!({"refused": answer.to_string()}),
                })
            }
            Face::Mcp => self.by_mcp(snippet).await,
            Face::Python => self.by_python(snippet).await,
        }
    }

    async fn by_command(&self, snippet: &Snippet<'_>) -> Outcome<Value> {
        let mut command = Command::new(ringfence());
        command
            .args(["run", "--json", "--language", snippet.language])
            .env("RINGFENCE_STATE_DIR", &self.state)
            .stdin(Stdio::null());
        if let Some(image) = self.image {
            command.args(["--image", image]);
        }
        if let Some(timeout) = snippet.timeout {
            command.args(["--timeout", &timeout.to_string()]);
        }
        if snippet.network {
            command.args(["--network", "host"]);
        }
        if let Some((folder, writable)) = snippet.workspace {
            let access = if writable { "rw" } else { "ro" };
            let folder = format!("{}:{access}", folder.display());
            command.args(["--workspace", &folder]);
        }
        let done = command.args(["-c", snippet.code]).output().await?;
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let Ok(outcome) = serde_json::from_slice::<Value>(&done.stdout) else {
            return Ok(json!({"refused": said}));
        };
        if outcome["exit_code"].is_null() {
            return Ok(json!({"refused": outcome.to_string()}));
        }
        // Its status is that of the code.
        assert_eq!(outcome["exit_code"], json!(done.status.code()), "{outcome}");
        Ok(outcome)
    }

    async fn by_mcp(&self, snippet: &Snippet<'_>) -> Outcome<Value> {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let params = json!({"name": "run_code", "arguments": asked(snippet), "_meta": meta});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
        let answer = self
            .server
            .http
            .post(format!("{}/mcp?family=shipit&session=mcp", self.server.url))
            .header("accept", "application/json, text/event-stream")
            .header("mcp-protocol-version", "2026-07-28")
            .header("mcp-method", "tools/call")
            .header("mcp-name", "run_code")
            .json(&body)
            .send()
            .await?;
        let text = answer.text().await?;
        let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
        let mut said = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        let said = said
            .next_back()
            .or_else(|| serde_json::from_str(&text).ok());
        let said = said.ok_or_else(|| format!("no answer: {text}"))?;
        let result = &said["result"];
        Ok(match result["structuredContent"].is_object() {
            true => {
                let told = &result["content"][0]["text"];
                assert_eq!(*told, result["structuredContent"]["text"], "{said}");
                result["structuredContent"].clone()
            }
            false => json!({"refused": said.to_string()}),
        })
    }

    async fn by_python(&self, snippet: &Snippet<'_>) -> Outcome<Value> {
        let mut asked = json!({"url": self.server.url, "code": snippet.code,
            "language": snippet.language, "timeout": snippet.timeout, "network": snippet.network});
        if let Some((folder, writable)) = snippet.workspace {
            asked["workspace"] = json!(folder);
            asked["writable"] = json!(writable);
        }
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python");
        let mut child = Command::new(python()?)
            .args(["-c", PYTHON])
            .env("PYTHONPATH", package)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("RINGFENCE_API_KEY")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut stdin = child.stdin.take().ok_or("no stdin")?;
        stdin.write_all(asked.to_string().as_bytes()).await?;
        drop(stdin);
        let done = child.wait_with_output().await?;
        Ok(serde_json::from_slice(&done.stdout)?)
    }

    async fn nothing_is_left(&self) -> Outcome {
        for state in [&self.state, &self.server.state] {
            until(async || {
                let left = std::fs::read_dir(state)?
                    .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                    .any(|name| name.starts_with("run-"));
                Ok((!left).then_some(()))
            })
            .await?;
        }
        Ok(())
    }
}

/// As HTTP and MCP take it.
fn asked(snippet: &Snippet<'_>) -> Value {
    let mut asked = json!({"language": snippet.language, "code": snippet.code,
        "network": snippet.network, "sandbox": true});
    if let Some(timeout) = snippet.timeout {
        asked["timeout_seconds"] = json!(timeout);
    }
    if let Some((folder, writable)) = snippet.workspace {
        asked["workspace_root"] = json!(folder);
        asked["sandbox"] = json!(!writable);
    }
    asked
}

/// Where it is, and what it may write to: nothing but 64 MB of `/tmp`.
const PLACES: &str = r#"
import os
def write(path, size):
    try:
        with open(path, "wb") as file:
            for _ in range(size):
                file.write(bytes(1 << 20))
            file.flush()
        return "wrote"
    except OSError as error:
        return "denied"
print(os.getcwd(), write("/x", 1), write("/work/x", 1), write("/tmp/x", 48), write("/tmp/y", 32))
"#;

async fn every_line(place: &Place, workspace: &Path) -> Outcome {
    for face in FACES {
        // An alias, both streams, the status, and the text of the contract.
        let code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)";
        let done = place.run(face, &snippet("py", code)).await?;
        let told = ["language", "exit_code", "stdout", "stderr", "ok"].map(|part| &done[part]);
        let expected = [
            json!("python"),
            json!(3),
            json!("out\n"),
            json!("err\n"),
            json!(false),
        ];
        assert_eq!(told, expected.each_ref(), "{face:?}: {done}");
        assert_eq!(
            done["text"], "exit_code: 3\nstdout:\nout\n\nstderr:\nerr",
            "{face:?}"
        );
        // A language that is not known: an error that lists those that are.
        let done = place.run(face, &snippet("pyhton", "1")).await?;
        let refused = done["refused"].as_str().unwrap_or_default();
        for part in ["python, javascript, typescript", "did you mean `python`?"] {
            assert!(refused.contains(part), "{face:?}: {done}");
        }
        // Where it is, and where it may write.
        let done = place.run(face, &snippet("python", PLACES)).await?;
        assert_eq!(
            done["stdout"], "/work denied denied wrote denied\n",
            "{face:?}: {done}"
        );
        // The workspace is read-only, unless it was asked for otherwise.
        std::fs::write(workspace.join("data"), "from outside")?;
        for (writable, expected) in [(false, "denied"), (true, "wrote")] {
            let _ = std::fs::remove_file(workspace.join("made"));
            let code = "cat data; pwd; (echo x > made) 2>/dev/null && echo wrote || echo denied";
            let asked = Snippet {
                workspace: Some((workspace, writable)),
                ..snippet("sh", code)
            };
            let done = place.run(face, &asked).await?;
            assert_eq!(
                done["stdout"],
                format!("from outside/work\n{expected}\n"),
                "{face:?}: {done}"
            );
            assert_eq!(workspace.join("made").exists(), writable, "{face:?}");
        }
        // No network, unless it was asked for.
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let code = format!(
            "import socket\ntry:\n    socket.create_connection(('127.0.0.1', {port}), 5)\n    \
             print('reached')\nexcept OSError: print('denied')"
        );
        for (network, expected) in [(false, "denied\n"), (true, "reached\n")] {
            let asked = Snippet {
                network,
                ..snippet("python", &code)
            };
            let done = place.run(face, &asked).await?;
            assert_eq!(done["stdout"], expected, "{face:?}: {done}");
        }
        // A timeout is a result, with the output so far.
        let asked = Snippet {
            timeout: Some(2.0),
            ..snippet("sh", "echo before; sleep 600")
        };
        let done = place.run(face, &asked).await?;
        assert_eq!(
            (&done["exit_code"], &done["stdout"], &done["ok"]),
            (&json!(124), &json!("before\n"), &json!(false)),
            "{face:?}: {done}"
        );
        // TypeScript, without a network.
        let done = place
            .run(face, &snippet("ts", "const n: number = 42; console.log(n)"))
            .await?;
        assert_eq!(done["stdout"], "42\n", "{face:?}: {done}");
        // All of it is gone.
        place.nothing_is_left().await?;
    }
    Ok(())
}

#[tokio::test]
async fn every_line_of_the_contract_on_native() -> Outcome {
    let workspace = tempfile::tempdir()?;
    let place = Place::new(None, workspace.path())?;
    every_line(&place, workspace.path()).await
}

#[tokio::test]
async fn every_line_of_the_contract_on_docker() -> Outcome {
    let workspace = tempfile::tempdir()?;
    let place = Place::new(Some("ringfence-test/languages"), workspace.path())?;
    every_line(&place, workspace.path()).await
}
