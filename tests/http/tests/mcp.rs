//! The Model Context Protocol, spoken by a client that we did not write: the `mcp` package, on
//! stdio and over HTTP, in the current version of the protocol and in the one before.

use ringfence_http_tests::mcp::rpc;
use ringfence_http_tests::{Outcome, Server, bearer, key, python, ringfence, until};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// An interpreter that has matplotlib; `./test` installs it.
const PYTHON: &str = "/usr/bin/python3";

/// A state without a server, whose sandboxes go when this does.
struct Kept(PathBuf);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = std::process::Command::new(ringfence())
            .args(["rm", "--all"])
            .env("RINGFENCE_STATE_DIR", &self.0)
            .output();
    }
}

async fn client(args: &[&str], state: &Path) -> Outcome<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp_client.py");
    let output = tokio::process::Command::new(python()?)
        .arg(script)
        .args(args)
        .env("RINGFENCE_STATE_DIR", state)
        .output()
        .await?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn check(told: &Value, protocol: &str, own_again: bool) {
    assert_eq!(told["protocol"], protocol, "{told}");
    assert_eq!(told["server"], "ringfence");
    assert_eq!(
        told["tools"],
        json!([
            "python",
            "bash",
            "read_output",
            "stop",
            "read_file",
            "write_file",
            "edit_file",
            "list_files",
            "search"
        ])
    );
    assert_eq!(told["session_in_schema"], true);
    assert_eq!(told["kept"], "[value] 42");
    // Another name is another sandbox.
    assert_eq!(
        told["other"],
        json!(["NameError: name 'x' is not defined", "[exit status 1]"])
    );
    assert_eq!(told["images"], json!(["image/png"]), "{told}");
    assert_eq!(told["png"], json!(["89504e470d0a1a0a"]));
    assert_eq!(told["slow"], "working");
    let steps = told["steps"].as_array().map(Vec::as_slice);
    assert!(
        steps.is_some_and(|steps| steps
            .iter()
            .any(|step| step[1] == "running for 2 s, 8 bytes of output")),
        "{told}"
    );
    assert_eq!(told["ran"], "1");
    assert_eq!(told["cancelled"], "CancelledError");
    assert_eq!(told["left"], "0");
    assert_eq!(
        told["resources"],
        json!([["ringfence://default/a%20b/note.txt", "text/plain", 6]])
    );
    assert_eq!(told["read"], "hello\n");
    assert_eq!(told["templates"], json!(["ringfence://{session}/{+path}"]));
    assert_eq!(
        told["wrong"],
        json!([true, "Error: the argument code must be a string, not 1"])
    );
    assert_eq!(
        told["unknown"],
        "the family ringfence has no tool nope; it has python, bash, read_output, stop, \
         read_file, write_file, edit_file, list_files, search"
    );
    assert_eq!(told["no_file"], "cannot read nope.txt: not found");
    assert_eq!(told["named_again"], "[value] 7");
    assert_eq!(
        told["own_again"],
        format!(
            "[value] {}",
            match own_again {
                true => "True",
                false => "False",
            }
        )
    );
}

/// The command that `mcp install` tells a desktop agent to start.
fn installed() -> Outcome<Vec<String>> {
    let home = tempfile::tempdir()?;
    let done = std::process::Command::new(ringfence())
        .args(["mcp", "install", "claude-desktop"])
        .env("HOME", home.path())
        .env_remove("XDG_CONFIG_HOME")
        .output()?;
    assert!(done.status.success(), "{done:?}");
    let file = ".config/Claude/claude_desktop_config.json";
    let written: Value = serde_json::from_slice(&std::fs::read(home.path().join(file))?)?;
    let ours = &written["mcpServers"]["ringfence"];
    let args: Vec<String> = serde_json::from_value(ours["args"].clone())?;
    let command = ours["command"].as_str().ok_or("no command")?.to_owned();
    Ok([vec![command], args].concat())
}

#[tokio::test]
async fn a_desktop_agent_has_a_computer_on_stdio() -> Outcome {
    let folder = tempfile::tempdir()?;
    let installed = installed()?;
    // The sandbox without a name belongs to the process, so the next process has another.
    for (mode, protocol) in [("auto", "2026-07-28"), ("legacy", "2025-11-25")] {
        let state = folder.path().join(mode);
        let _sandboxes = Kept(state.clone());
        let within = [
            mode,
            "stdio",
            "env",
            &format!("RINGFENCE_STATE_DIR={}", state.display()),
            &format!("RINGFENCE_SANDBOX_PYTHON={PYTHON}"),
        ];
        let command = within
            .into_iter()
            .chain(installed.iter().map(String::as_str));
        let command: Vec<&str> = command.collect();
        check(&client(&command, &state).await?, protocol, false);
        let left = tokio::process::Command::new(ringfence())
            .args(["gc", "--json"])
            .env("RINGFENCE_STATE_DIR", &state)
            .output()
            .await?;
        assert!(left.status.success());
        // Those with a name are still there; each process has taken its own one along.
        let kept = std::fs::read_dir(&state)?
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("sbx-"))
            .count();
        assert_eq!(kept, 2, "{mode}");
    }
    Ok(())
}

#[tokio::test]
async fn agents_have_computers_over_http() -> Outcome {
    let server = Server::start(&["--python", PYTHON])?;
    // Whoever has no key says in the address which sandbox is theirs.
    let url = format!("{}/mcp?session=me", server.url);
    for (mode, protocol) in [("auto", "2026-07-28"), ("legacy", "2025-11-25")] {
        check(
            &client(&[mode, "http", &url], &server.state).await?,
            protocol,
            true,
        );
        let (_, all) = server.get("/sessions").await?;
        for session in all["sessions"].as_array().ok_or("no list")? {
            let id = session["session_id"].as_str().ok_or("no id")?;
            server
                .ask("DELETE", &format!("/sessions/{id}"), None)
                .await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_desktop_agent_has_a_computer_of_a_server() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let key = key(&state, "desktop", &[])?;
    let server = Server::start_on(&state, &["--python", PYTHON], &[])?;
    let program = ringfence();
    let program = program.to_str().ok_or("an odd path")?;
    let elsewhere = folder.path().join("elsewhere");
    for (mode, protocol) in [("auto", "2026-07-28"), ("legacy", "2025-11-25")] {
        let command = [
            mode,
            "stdio",
            program,
            "mcp",
            "--url",
            &server.url,
            "--api-key",
            &key,
        ];
        check(&client(&command, &elsewhere).await?, protocol, false);
        // Each process has taken its own sandbox along; those with a name are of the key.
        let (_, all) = server.as_key(&key, "GET", "/sessions", None).await?;
        let mut names = Vec::new();
        for session in all["sessions"].as_array().ok_or("no list")? {
            names.push(session["key"].as_str().unwrap_or_default().to_owned());
            let id = session["session_id"].as_str().ok_or("no id")?;
            server
                .as_key(&key, "DELETE", &format!("/sessions/{id}"), None)
                .await?;
        }
        names.sort();
        assert_eq!(names, ["named", "other"], "{mode}");
    }
    assert!(!elsewhere.exists(), "nothing was made here");
    // Without the key it is an answer, not the end.
    let mut talk = Talk::start(&["--url", &server.url])?;
    let refused = talk.ask("initialize", initialize())?;
    assert_eq!(
        refused["error"]["data"]["code"], "unauthenticated",
        "{refused}"
    );
    Ok(())
}

fn initialize() -> Value {
    json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"}})
}

/// `ringfence mcp`, spoken to line by line.
struct Talk {
    child: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    asked: u64,
    state: tempfile::TempDir,
}

impl Talk {
    fn start(args: &[&str]) -> Outcome<Self> {
        let state = tempfile::tempdir()?;
        let mut child = std::process::Command::new(ringfence())
            .arg("mcp")
            .args(args)
            .env_remove("RINGFENCE_API_KEY")
            .env("RINGFENCE_STATE_DIR", state.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
        Ok(Self {
            child,
            lines,
            asked: 0,
            state,
        })
    }

    fn say(&mut self, message: &Value) -> Outcome {
        let stdin = self.child.stdin.as_mut().ok_or("no stdin")?;
        Ok(stdin.write_all(format!("{message}\n").as_bytes())?)
    }

    fn ask(&mut self, method: &str, params: Value) -> Outcome<Value> {
        self.asked += 1;
        let id = self.asked;
        self.say(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        loop {
            let line = self.lines.next().ok_or("it ended")??;
            let said: Value = serde_json::from_str(&line)?;
            if said["id"] == id {
                return Ok(said);
            }
        }
    }

    fn greet(&mut self) -> Outcome<Value> {
        let hello = self.ask("initialize", initialize())?;
        self.say(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(hello)
    }

    fn python(&mut self, code: &str) -> Outcome<Value> {
        let call = json!({"name": "python", "arguments": {"code": code}});
        self.ask("tools/call", call)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn an_environment_that_is_not_there_is_told_at_the_first_call() -> Outcome {
    let mut talk = Talk::start(&["--env-name", "nope"])?;
    talk.greet()?;
    let refused = talk.python("1")?;
    assert_eq!(
        refused["error"]["message"],
        "there is no environment `nope`; `ringfence env add nope --packages …` makes it",
        "{refused}"
    );
    Ok(())
}

/// Clients do not always wait for their servers to end.
#[tokio::test]
async fn a_process_that_is_killed_leaves_no_sandbox_of_its_own() -> Outcome {
    let mut talk = Talk::start(&[])?;
    let kept = Kept(talk.state.path().to_owned());
    let names = || -> Outcome<Vec<String>> {
        let known = std::process::Command::new(ringfence())
            .args(["ls", "--json"])
            .env("RINGFENCE_STATE_DIR", &kept.0)
            .output()?;
        let known: Value = serde_json::from_slice(&known.stdout)?;
        let known = known["sessions"].as_array().ok_or("no list")?.iter();
        let name = |session: &Value| session["key"].as_str().map(str::to_owned);
        Ok(known.filter_map(name).collect())
    };
    talk.greet()?;
    talk.python("1")?;
    // The control: one that was given a name is kept.
    let named = json!({"name": "python", "arguments": {"code": "1", "session": "mine"}});
    talk.ask("tools/call", named)?;
    assert_eq!(names()?.len(), 2);
    talk.child.kill()?;
    until(async || Ok((names()? == ["mine"]).then_some(()))).await
}

/// The sessions of the protocol went with the server; the sandbox did not.
#[tokio::test]
async fn a_desktop_agent_finds_a_server_that_was_started_again() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let socket = format!("unix:{}", folder.path().join("socket").display());
    let start = || Server::start_with(&state, &["--listen", &socket, "--no-auth"], &[]);
    let mut first = start()?;
    let mut talk = Talk::start(&["--url", &socket])?;
    let hello = talk.greet()?;
    assert_eq!(
        hello["result"]["serverInfo"]["name"], "ringfence",
        "{hello}"
    );
    let done = talk.python("x = 41")?;
    assert_eq!(done["result"]["isError"], false, "{done}");
    first.kill()?;
    let lost = talk.python("x")?;
    let message = lost["error"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("cannot reach unix:"), "{lost}");
    assert!(message.contains("`ringfence serve` starts one"), "{lost}");
    let _second = start()?;
    let done = talk.python("x + 1")?;
    assert_eq!(done["result"]["content"][0]["text"], "[value] 42", "{done}");
    // What is no message is answered, and the next one is heard.
    talk.say(&json!("hello"))?;
    let done = talk.python("x + 2")?;
    assert_eq!(done["result"]["content"][0]["text"], "[value] 43", "{done}");
    Ok(())
}

#[tokio::test]
async fn who_has_no_key_names_a_sandbox() -> Outcome {
    let skills = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../skills");
    let skills = skills.to_str().ok_or("an odd path")?;
    let server = Server::start(&["--skills", skills])?;
    let tools = rpc(&server, None, "/mcp", "tools/list", json!({})).await?;
    let schema = &tools["result"]["tools"][0]["inputSchema"];
    assert_eq!(schema["required"], json!(["code", "session"]), "{tools}");
    let code = json!({"code": "1"});
    let answer = call(&server, "", "/mcp", "python", code.clone()).await?;
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    assert_eq!(
        answer["result"]["content"][0]["text"],
        "Error: you have no sandbox of your own here: name one by `session`; or put \
         ?session=NAME into the address of the server, or use a key"
    );
    let (_, none) = server.get("/sessions").await?;
    assert_eq!(none["sessions"], json!([]));
    // By the argument, and by the address, which is then not asked for.
    let named = json!({"code": "x = 41", "session": "mine"});
    let answer = call(&server, "", "/mcp", "python", named).await?;
    assert_eq!(answer["result"]["isError"], false, "{answer}");
    let path = "/mcp?session=mine";
    let answer = call(&server, "", path, "python", json!({"code": "x + 1"})).await?;
    assert_eq!(answer["result"]["content"][0]["text"], "[value] 42");
    let tools = rpc(&server, None, path, "tools/list", json!({})).await?;
    let schema = &tools["result"]["tools"][0]["inputSchema"];
    assert_eq!(schema["required"], json!(["code"]), "{tools}");
    // The model is told of the skills that every sandbox has.
    let hello = rpc(&server, None, path, "server/discover", json!({})).await?;
    let told = hello["result"]["instructions"].as_str().unwrap_or_default();
    let place = "<location>/sandbox/skills/ringfence/SKILL.md</location>";
    assert!(told.contains(place), "{hello}");
    let read = json!({"command": "head -c3 /sandbox/skills/ringfence/SKILL.md"});
    let answer = call(&server, "", path, "bash", read).await?;
    assert_eq!(answer["result"]["content"][0]["text"], "---");
    Ok(())
}

/// One call over HTTP, without a session of the protocol.
async fn call(
    server: &Server,
    key: &str,
    path: &str,
    tool: &str,
    arguments: Value,
) -> Outcome<Value> {
    let params = json!({"name": tool, "arguments": arguments});
    let key = Some(key).filter(|key| !key.is_empty());
    rpc(server, key, path, "tools/call", params).await
}

#[tokio::test]
async fn keys_have_sandboxes_of_their_own() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let admin = key(&state, "admin", &["--scope", "admin"])?;
    let (one, two) = (key(&state, "one", &[])?, key(&state, "two", &[])?);
    let server = Server::start_on(&state, &[], &[])?;
    let said = |answer: &Value| answer["result"]["content"][0]["text"].clone();
    let write = json!({"path": "mine.txt", "content": "secret"});
    let wrote = call(&server, &one, "/mcp", "write_file", write).await?;
    assert_eq!(said(&wrote), "mine.txt created: 1 line, 6 bytes", "{wrote}");
    let read = json!({"path": "mine.txt"});
    let answer = call(&server, &one, "/mcp", "read_file", read.clone()).await?;
    assert_eq!(said(&answer), "     1\tsecret");
    // The same words of somebody else mean another sandbox, with a name and without.
    for arguments in [
        read.clone(),
        json!({"path": "mine.txt", "session": "default"}),
    ] {
        let answer = call(&server, &two, "/mcp", "read_file", arguments).await?;
        assert_eq!(
            said(&answer),
            "Error: cannot read /workspace/mine.txt: not found"
        );
    }
    // Not even its id helps.
    let (_, all) = server.as_key(&one, "GET", "/sessions", None).await?;
    let id = all["sessions"][0]["session_id"]
        .as_str()
        .ok_or("no session")?;
    let stolen = json!({"path": "mine.txt", "session": id});
    let answer = call(&server, &two, "/mcp", "read_file", stolen.clone()).await?;
    assert_eq!(
        answer["error"]["message"],
        format!("there is no session {id}")
    );
    let answer = call(&server, &admin, "/mcp", "read_file", stolen).await?;
    assert_eq!(said(&answer), "     1\tsecret");
    // Other families are asked for in the address.
    let shell = json!({"command": "echo hi; exit 2"});
    let answer = call(&server, &one, "/mcp?family=axio", "shell", shell).await?;
    assert_eq!(said(&answer), "hi\n\n[exit code: 2]");
    // Without a key there is nothing.
    let refused = reqwest::Client::new()
        .post(format!("{}/mcp", server.url))
        .json(&json!({}))
        .send()
        .await?;
    assert_eq!(refused.status(), 401);
    Ok(())
}

#[tokio::test]
async fn only_names_that_are_allowed_are_answered() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let one = key(&state, "one", &[])?;
    let ask = async |server: &Server, host: &str| -> Outcome<u16> {
        let answer = bearer(&one)?
            .get(format!("{}/mcp", server.url))
            .header("host", host)
            .header("accept", "text/event-stream")
            .send()
            .await?;
        Ok(answer.status().as_u16())
    };
    let any = Server::start_on(&state, &[], &[])?;
    assert_ne!(ask(&any, "sandboxes.example").await?, 403);
    drop(any);
    let some = Server::start_on(&state, &["--mcp-allow-host", "sandboxes.example"], &[])?;
    assert_ne!(ask(&some, "sandboxes.example").await?, 403);
    assert_eq!(ask(&some, "evil.example").await?, 403);
    Ok(())
}
