//! The contract of `run_code`, line by line, by each of its faces: the command line, HTTP, MCP and
//! Python; on native sandboxes and on Docker.

use ringfence_http_tests::mcp::rpc;
use ringfence_http_tests::{Outcome, Server, python, ringfence, until};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::task::{JoinHandle, JoinSet};

/// An image that has every language.
const ALL: &str = "ringfence-test/languages";
/// One that has `sh`, and no other shell.
const SH: &str = "ringfence-test/busybox";

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
    image: Option<&'a str>,
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
    /// For the command line.
    flags: Vec<String>,
    /// Where the engine is, if not where it usually is.
    host: Option<String>,
    _folder: tempfile::TempDir,
}

/// The way to the engine, which can be taken away.
struct Way {
    host: String,
    passing: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Way {
    #[allow(clippy::disallowed_methods, reason = "tests have no settings")]
    fn open() -> Outcome<Self> {
        let engine = std::env::var("DOCKER_HOST")?;
        let engine = engine.strip_prefix("unix://").ok_or("not a socket")?;
        let engine = engine.to_owned();
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&path)?;
        let passing = tokio::spawn(async move {
            let mut joined = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let engine = engine.clone();
                joined.spawn(async move {
                    let mut far = UnixStream::connect(engine).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
        Ok(Self {
            host: format!("unix://{}", path.display()),
            passing,
            _folder: folder,
        })
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.passing.abort();
    }
}

/// What the Python package is asked for and answers with, as JSON on both sides.
const PYTHON: &str = r#"
import json, sys
from ringfence import RingfenceError, SyncSandbox
asked = json.load(sys.stdin)
sandbox = SyncSandbox(asked.pop("url"))
try:
    done = sandbox.run(**asked)
    told = {**done.details, "exit_code": done.exit_code, "stdout": done.stdout, "stderr": done.stderr,
        "ok": done.ok, "language": done.language, "text": done.text, "error": done.error,
        "notes": done.notes, "attributes": {"duration": done.duration, "peak_memory": done.peak_memory,
        "truncated": done.truncated, "cause": done.certificate and done.certificate.cause,
        "outputs": {each.path: each.content.hex() for each in done.outputs}}}
except RingfenceError as error:
    told = {"refused": str(error)}
sandbox.close()
print(json.dumps(told))
"#;

impl Place {
    fn new(serve: &[&str], flags: &[&str], host: Option<&str>) -> Outcome<Self> {
        let folder = tempfile::Builder::new().prefix("rf-faces-").tempdir()?;
        let env: Vec<_> = host.iter().map(|host| ("DOCKER_HOST", *host)).collect();
        Ok(Self {
            server: Server::start_in(serve, &env)?,
            state: folder.path().join("state"),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            host: host.map(str::to_owned),
            _folder: folder,
        })
    }

    /// The result, or an object that says `refused`.
    async fn run(&self, face: Face, snippet: &Snippet<'_>) -> Outcome<Value> {
        match face {
            Face::Cli => self.by_command(snippet).await,
            Face::Http => self.by_http(&asked(snippet)).await,
            Face::Mcp => self.by_mcp(&asked(snippet)).await,
            Face::Python => self.by_python(snippet).await,
        }
    }

    async fn by_command(&self, snippet: &Snippet<'_>) -> Outcome<Value> {
        let mut flags = vec!["--language".to_owned(), snippet.language.to_owned()];
        let mut flag = |name: &str, value: String| flags.extend([name.to_owned(), value]);
        if let Some(image) = snippet.image {
            flag("--image", image.to_owned());
        }
        if let Some(timeout) = snippet.timeout {
            flag("--timeout", timeout.to_string());
        }
        if snippet.network {
            flag("--network", "host".to_owned());
        }
        if let Some((folder, writable)) = snippet.workspace {
            let access = if writable { "rw" } else { "ro" };
            flag("--workspace", format!("{}:{access}", folder.display()));
        }
        flag("-c", snippet.code.to_owned());
        self.command(&flags, None).await
    }

    async fn command(&self, flags: &[String], input: Option<&str>) -> Outcome<Value> {
        let mut command = Command::new(ringfence());
        command
            .args(["run", "--json"])
            .args(&self.flags)
            .args(flags)
            .env("RINGFENCE_STATE_DIR", &self.state)
            .envs(self.host.iter().map(|host| ("DOCKER_HOST", host)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let done = match input {
            None => command.output().await?,
            Some(text) => fed(&mut command, text).await?,
        };
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

    async fn by_http(&self, asked: &Value) -> Outcome<Value> {
        let (status, answer) = self.server.post("/run", asked).await?;
        Ok(match status {
            200 => answer,
            _ => json!({"refused": answer.to_string()}),
        })
    }

    async fn by_mcp(&self, asked: &Value) -> Outcome<Value> {
        let params = json!({"name": "run_code", "arguments": asked});
        let path = "/mcp?family=shipit";
        let said = rpc(&self.server, None, path, "tools/call", params).await?;
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
        let mut asked = json!({"code": snippet.code, "language": snippet.language,
            "timeout": snippet.timeout, "network": snippet.network, "image": snippet.image});
        if let Some((folder, writable)) = snippet.workspace {
            asked["workspace"] = json!(folder);
            asked["writable"] = json!(writable);
        }
        self.package(asked).await
    }

    async fn package(&self, mut asked: Value) -> Outcome<Value> {
        asked["url"] = json!(self.server.url);
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sdk/python");
        let mut command = Command::new(python()?);
        command
            .args(["-c", PYTHON])
            .env("PYTHONPATH", package)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("RINGFENCE_API_KEY")
            .stdout(Stdio::piped());
        let done = fed(&mut command, &asked.to_string()).await?;
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

/// Runs a program on this input.
async fn fed(command: &mut Command, input: &str) -> Outcome<std::process::Output> {
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    Ok(child.wait_with_output().await?)
}

/// As HTTP and MCP take it.
fn asked(snippet: &Snippet<'_>) -> Value {
    let mut asked = json!({"language": snippet.language, "code": snippet.code,
        "network": snippet.network, "sandbox": true});
    if let Some(image) = snippet.image {
        asked["image"] = json!(image);
    }
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

async fn every_line(place: &Place, image: Option<&str>, workspace: &Path) -> Outcome {
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
            done["text"], "exit_code: 3\nstdout:\nout\nstderr:\nerr",
            "{face:?}"
        );
        // What else the result says of the call.
        let known: Vec<&str> = IMAGES.iter().map(|(language, _)| *language).collect();
        let told = [
            "supported_languages",
            "script_path",
            "workspace_root",
            "sandbox",
            "sandbox_image",
            "sandbox_network",
        ];
        let expected = [
            json!(known),
            json!("/tmp/code/main.py"),
            Value::Null,
            json!(true),
            json!(image),
            json!(false),
        ];
        assert_eq!(
            told.map(|part| &done[part]),
            expected.each_ref(),
            "{face:?}: {done}"
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
            assert_eq!(done["workspace_root"], json!(workspace), "{face:?}");
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
            assert_eq!(done["sandbox_network"], network, "{face:?}: {done}");
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
        let text = "exit_code: 124\nstdout:\nbefore\nstderr:";
        assert_eq!(done["text"], text, "{face:?}");
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

/// Flags of a server whose snippets may have the network, and this folder.
fn lenient(workspace: &Path) -> [String; 2] {
    let allowed = format!("--allow-mount={}:rw", workspace.display());
    ["--allow-host-network".to_owned(), allowed]
}

#[tokio::test]
async fn every_line_of_the_contract_on_native() -> Outcome {
    let workspace = tempfile::tempdir()?;
    let flags = lenient(workspace.path());
    let flags = flags.each_ref().map(String::as_str);
    let place = Place::new(&flags, &[], None)?;
    every_line(&place, None, workspace.path()).await
}

#[tokio::test]
async fn every_line_of_the_contract_on_docker() -> Outcome {
    let workspace = tempfile::tempdir()?;
    let images = ["python", "sh", "typescript"];
    let images = images.map(|language| format!("--language-image={language}={ALL}"));
    let flags = lenient(workspace.path());
    let flags = flags.iter().chain(&images).map(String::as_str);
    let docker = ["--backend", "docker", "--image", "ringfence-test/python"];
    let flags: Vec<&str> = flags.chain(docker).collect();
    let place = Place::new(&flags, &["--image", ALL], None)?;
    every_line(&place, Some(ALL), workspace.path()).await
}

/// What a language runs in where nobody says: of the contract, and of those that are compiled.
const IMAGES: [(&str, &str); 16] = [
    ("python", "python:3.11-slim"),
    ("javascript", "node:22-alpine"),
    ("typescript", "node:22-slim"),
    ("ruby", "ruby:3.3-alpine"),
    ("php", "php:8.3-cli-alpine"),
    ("perl", "perl:5.40-slim"),
    // The one of the contract does not have it.
    ("lua", "nickblah/lua:5.4-alpine"),
    ("r", "r-base:4.4.1"),
    ("bash", "alpine:3.20"),
    ("sh", "alpine:3.20"),
    ("zsh", "alpine:3.20"),
    ("go", "golang:1.23"),
    ("rust", "rust:1.83-slim"),
    ("java", "eclipse-temurin:21"),
    ("c", "gcc:14"),
    ("c++", "gcc:14"),
];

#[tokio::test(flavor = "multi_thread")]
async fn without_an_engine_the_answer_says_so_and_what_to_do() -> Outcome {
    let way = Way::open()?;
    let serve = ["--backend", "docker", "--image", "ringfence-test/python"];
    let place = Place::new(&serve, &["--backend", "docker"], Some(&way.host))?;
    // The control: where there is an engine, the same call runs.
    for face in FACES {
        let asked = Snippet {
            image: Some(ALL),
            ..snippet("python", "print(6 * 7)")
        };
        let done = place.run(face, &asked).await?;
        assert_eq!(
            (&done["stdout"], &done["sandbox_image"]),
            (&json!("42\n"), &json!(ALL)),
            "{face:?}: {done}"
        );
    }
    drop(way);
    for face in FACES {
        for (language, image) in IMAGES {
            let done = place.run(face, &snippet(language, "print(6 * 7)")).await?;
            let told = ["language", "ok", "exit_code", "sandbox", "sandbox_image"];
            assert_eq!(
                told.map(|part| &done[part]),
                [
                    &json!(language),
                    &json!(false),
                    &json!(125),
                    &json!(true),
                    &json!(image)
                ],
                "{face:?}: {done}"
            );
            let error = done["error"].as_str().ok_or("no error")?;
            assert_eq!(done["text"], format!("Error: {error}"), "{face:?}");
            let way_out = "docker is not installed or not on PATH. Install Docker Desktop or call \
                           the tool without sandbox=true. (";
            assert!(error.starts_with(way_out), "{face:?}: {done}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn without_an_engine_auto_is_native() -> Outcome {
    let place = Place::new(
        &["--backend", "auto"],
        &["--backend", "auto"],
        Some("unix:///nowhere/docker.sock"),
    )?;
    for face in FACES {
        let done = place.run(face, &snippet("python", "print(6 * 7)")).await?;
        assert_eq!(
            (&done["stdout"], &done["backend"], &done["sandbox_image"]),
            (&json!("42\n"), &json!("native"), &Value::Null),
            "{face:?}: {done}"
        );
    }
    place.nothing_is_left().await
}

#[tokio::test]
async fn a_shell_that_an_image_lacks_is_replaced_and_that_is_told() -> Outcome {
    let serve = ["--backend", "docker", "--image", "ringfence-test/python"];
    let place = Place::new(&serve, &["--backend", "docker"], None)?;
    for face in FACES {
        for (asked, language) in [("zsh", "zsh"), ("bash", "bash"), ("shell", "bash")] {
            let code = "echo \"${ZSH_VERSION:+zsh}${BASH_VERSION:+bash}\"";
            let asked = |image| Snippet {
                image: Some(image),
                ..snippet(asked, code)
            };
            // The control: it is taken where it is there.
            let done = place.run(face, &asked(ALL)).await?;
            let text = format!("exit_code: 0\nstdout:\n{language}\nstderr:");
            assert_eq!(done["text"], text, "{face:?}: {done}");
            let done = place.run(face, &asked(SH)).await?;
            let note = format!("there is no {language} here: sh ran it");
            assert_eq!(done["notes"], json!([note]), "{face:?}: {done}");
            let text = format!("exit_code: 0\nstdout:\n\nstderr:\nnote: {note}");
            assert_eq!(done["text"], text, "{face:?}: {done}");
        }
        // A compiler that an image lacks is told as that: the engine is there.
        let asked = Snippet {
            image: Some(SH),
            ..snippet("go", "package main")
        };
        let done = place.run(face, &asked).await?;
        let refused = done["refused"].as_str().unwrap_or_default();
        assert!(refused.contains("does not have it"), "{face:?}: {done}");
    }
    place.nothing_is_left().await
}

#[tokio::test]
async fn what_is_too_long_for_a_model_is_told_without_its_middle() -> Outcome {
    let place = Place::new(&[], &[], None)?;
    let all: String = (1..=10_000).map(|n| format!("{n}\n")).collect();
    for face in FACES {
        let done = place.run(face, &snippet("sh", "seq 10000")).await?;
        assert_eq!(done["stdout"], all, "{face:?}");
        let shown = all.trim_end();
        let text = format!(
            "exit_code: 0\nstdout:\n{}\n[{} bytes left out: print less, or the part that \
             matters]\n{}\nstderr:",
            &shown[..20_000],
            shown.len() - 30_000,
            &shown[shown.len() - 10_000..]
        );
        assert_eq!(done["text"], text, "{face:?}");
    }
    Ok(())
}

/// Reads all that it was given, and leaves two files.
const GIVEN: &str = r#"
import os, sys, helper
print(helper.twice(open("n.txt").read()), sys.stdin.read(), sys.argv[1:], os.environ["A"])
open("out.csv", "w").write("1,2")
open("/tmp/raw.bin", "wb").write(bytes([255]))
"#;

#[tokio::test]
async fn every_face_takes_and_tells_all_that_a_snippet_has() -> Outcome {
    let place = Place::new(&[], &[], None)?;
    let folder = tempfile::tempdir()?;
    let (helper, number) = ("def twice(text): return text * 2", "7");
    std::fs::write(folder.path().join("helper.py"), helper)?;
    std::fs::write(folder.path().join("n"), number)?;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let hog = "x = []\nwhile True: x.append(bytearray(1 << 20))";
    let flood = "print('x' * (3 << 20))";
    let write = "open('/work/x', 'w'); print('wrote')";
    for face in FACES {
        let given =
            |named: Value| {
                match face {
            Face::Python => json!({"timeout": 60, "compile_timeout": 60}),
            _ => json!({"timeout_seconds": 60, "compile_timeout_seconds": 60, "language": "py"}),
        }
        .as_object()
        .into_iter()
        .flatten()
        .chain(named.as_object().into_iter().flatten())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect::<Value>()
            };
        let run = async |flags: &[&str], input: Option<&str>, named: Value| match face {
            Face::Cli => {
                let always = ["-l", "py", "--timeout", "60", "--compile-timeout", "60"];
                let flags = [&always[..], flags].concat();
                let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
                place.command(&flags, input).await
            }
            Face::Http => place.by_http(&given(named)).await,
            Face::Mcp => place.by_mcp(&given(named)).await,
            Face::Python => place.package(given(named)).await,
        };
        let files = [
            format!("--file={}", file("helper.py")),
            format!("--file=n.txt={}", file("n")),
        ];
        let flags = [
            files[0].as_str(),
            files[1].as_str(),
            "--env",
            "A=b",
            "--outputs",
            "*.csv",
            "--outputs",
        ];
        let flags = [
            &flags[..],
            &["/tmp/*.bin", "--memory", "256m", "-c", GIVEN, "one", "two"],
        ];
        let named = json!({"code": GIVEN, "files": {"helper.py": helper, "n.txt": number},
            "stdin": "in", "args": ["one", "two"], "env": {"A": "b"}, "memory": "256m",
            "outputs": ["*.csv", "/tmp/*.bin"]});
        let done = run(&flags.concat(), Some("in"), named).await?;
        assert_eq!(
            done["stdout"], "77 in ['one', 'two'] b\n",
            "{face:?}: {done}"
        );
        let made = json!([{"path": "out.csv", "size": 3, "content": "1,2"},
            {"path": "/tmp/raw.bin", "size": 1, "content": {"base64": "/w=="}}]);
        assert_eq!(done["outputs"], made, "{face:?}: {done}");
        let told = "output: out.csv (3 bytes)\noutput: /tmp/raw.bin (1 bytes)";
        let text = done["text"].as_str().ok_or("no text")?;
        assert!(text.ends_with(told), "{face:?}: {text}");
        assert!(done["duration_ms"].is_u64(), "{face:?}: {done}");
        assert!(
            done["peak_memory"].as_u64() > Some(1 << 20),
            "{face:?}: {done}"
        );
        assert_eq!(done["stdout_truncated"], false, "{face:?}: {done}");

        let flags = ["--memory", "64m", "-c", hog];
        let hog = run(&flags, None, json!({"code": hog, "memory": "64m"})).await?;
        let told = (&hog["exit_code"], &hog["certificate"]["cause"]);
        assert_eq!(told, (&json!(137), &json!("memory")), "{face:?}: {hog}");

        let flood = run(&["-c", flood], None, json!({"code": flood})).await?;
        assert_eq!(flood["stdout_truncated"], true, "{face:?}");
        assert_eq!(flood["stderr_truncated"], false, "{face:?}");

        let flags = ["--scratch", "-c", write];
        let scratch = run(&flags, None, json!({"code": write, "scratch": true})).await?;
        assert_eq!(scratch["stdout"], "wrote\n", "{face:?}: {scratch}");
        // The control: without it there is nothing to write to.
        let denied = run(&["-c", write], None, json!({"code": write})).await?;
        assert_eq!(denied["exit_code"], 1, "{face:?}: {denied}");

        if face == Face::Python {
            let own = &done["attributes"];
            assert_eq!(
                own["outputs"],
                json!({"out.csv": "312c32", "/tmp/raw.bin": "ff"})
            );
            assert!(own["duration"].is_f64(), "{own}");
            assert_eq!(own["peak_memory"], done["peak_memory"]);
            assert_eq!(
                (&own["truncated"], &own["cause"]),
                (&json!(false), &Value::Null)
            );
            assert_eq!(hog["attributes"]["cause"], "memory");
            assert_eq!(flood["attributes"]["truncated"], true);
        }
    }
    place.nothing_is_left().await
}

/// An engine that is there and refuses is not one that is missing.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_refuses_says_why_and_what_to_do() -> Outcome {
    let way = Way::open()?;
    let serve = ["--backend", "docker", "--image", "ringfence-test/python"];
    let place = Place::new(&serve, &["--backend", "docker"], Some(&way.host))?;
    // The socket stays, and nobody listens any more.
    way.passing.abort();
    until(async || {
        let path = way.host.trim_start_matches("unix://");
        Ok(UnixStream::connect(path).await.is_err().then_some(()))
    })
    .await?;
    for face in FACES {
        let done = place.run(face, &snippet("python", "print(1)")).await?;
        let told = ["ok", "exit_code", "sandbox"].map(|part| &done[part]);
        assert_eq!(
            told,
            [&json!(false), &json!(125), &json!(true)],
            "{face:?}: {done}"
        );
        let error = done["error"].as_str().ok_or("no error")?;
        assert!(!error.contains("not installed"), "{face:?}: {error}");
        if face == Face::Cli {
            let why = format!(
                "cannot reach the Docker engine at {}: nothing listens",
                way.host
            );
            assert!(error.starts_with(&why), "{error}");
            assert!(error.contains("systemctl start docker"), "{error}");
        }
    }
    Ok(())
}
