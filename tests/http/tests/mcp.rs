//! The Model Context Protocol, spoken by a client that we did not write: the `mcp` package, on
//! stdio and over HTTP, in the current version of the protocol and in the one before.

use ringfence_http_tests::{Outcome, Server, bearer, key, python, ringfence};
use serde_json::{Value, json};
use std::path::Path;

/// An interpreter that has matplotlib; `./test` installs it.
const PYTHON: &str = "/usr/bin/python3";

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

#[tokio::test]
async fn a_desktop_agent_has_a_computer_on_stdio() -> Outcome {
    let folder = tempfile::tempdir()?;
    let program = ringfence();
    let program = program.to_str().ok_or("an odd path")?;
    // The sandbox without a name belongs to the process, so the next process has another.
    for (mode, protocol) in [("auto", "2026-07-28"), ("legacy", "2025-11-25")] {
        let state = folder.path().join(mode);
        let command = [
            mode,
            "stdio",
            "env",
            &format!("RINGFENCE_STATE_DIR={}", state.display()),
            &format!("RINGFENCE_SANDBOX_PYTHON={PYTHON}"),
            program,
            "mcp",
        ];
        check(&client(&command, &state).await?, protocol, false);
        let left = tokio::process::Command::new(program)
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
        // Over when its server is.
        drop(Server::start_on(&state, &[], &[])?);
    }
    Ok(())
}

#[tokio::test]
async fn agents_have_computers_over_http() -> Outcome {
    let server = Server::start(&["--python", PYTHON])?;
    let url = format!("{}/mcp", server.url);
    for (mode, protocol) in [("auto", "2026-07-28"), ("legacy", "2025-11-25")] {
        // The first one's variables are the second one's: both are nobody in particular.
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

/// One call over HTTP, without a session of the protocol.
async fn call(
    server: &Server,
    key: &str,
    path: &str,
    tool: &str,
    arguments: Value,
) -> Outcome<Value> {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments, "_meta": meta}});
    let answer = bearer(key)?
        .post(format!("{}{path}", server.url))
        .header("accept", "application/json, text/event-stream")
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", tool)
        .json(&body)
        .send()
        .await?;
    let status = answer.status();
    let text = answer.text().await?;
    let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let data = data
        .filter_map(|data| serde_json::from_str::<Value>(data).ok())
        .next_back();
    let data = data.or_else(|| serde_json::from_str(&text).ok());
    data.ok_or_else(|| format!("{status} {text}").into())
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
