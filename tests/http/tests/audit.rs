//! The audit file: who did what, and nothing without it.

use ringfence_http_tests::mcp::rpc;
use ringfence_http_tests::{Outcome, Server, bearer, key, ringfence, until};
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

fn lines(path: &Path) -> Outcome<Vec<Value>> {
    let text = std::fs::read_to_string(path)?;
    assert!(text.ends_with('\n'));
    Ok(text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<_, _>>()?)
}

/// The lines of a request.
fn of(lines: &[Value], request: &str) -> Vec<Value> {
    lines
        .iter()
        .filter(|line| line["request"] == request)
        .cloned()
        .collect()
}

fn with(state: &Path, file: &Path, more: &[&str]) -> Outcome<Server> {
    let file = file.to_str().ok_or("no text")?;
    Server::start_on(state, &[&["--audit-file", file], more].concat(), &[])
}

const CODE: &str = "print('for nobody else')";

async fn exec(server: &Server, key: &str, id: &str, request: &str) -> Outcome<u16> {
    let body = json!({"tool": "code_execution", "input": {"code": CODE}});
    let url = format!("{}/sessions/{id}/exec", server.url);
    let sent = bearer(key)?
        .post(url)
        .header("x-request-id", request)
        .json(&body);
    Ok(sent.send().await?.status().as_u16())
}

#[tokio::test]
async fn acts_are_recorded() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (state, file) = (
        folder.path().join("state"),
        folder.path().join("audit.jsonl"),
    );
    let key = key(&state, "worker", &[])?;
    let mut server = with(&state, &file, &[])?;
    server.http = bearer(&key)?;
    assert_eq!(std::fs::metadata(&file)?.mode() & 0o777, 0o600);
    let id = server.session().await?;
    assert_eq!(exec(&server, &key, &id, "the-exec").await?, 200);
    assert_eq!(server.get(&format!("/sessions/{id}")).await?.0, 200);
    assert_eq!(
        server
            .ask("DELETE", &format!("/sessions/{id}"), None)
            .await?
            .0,
        204
    );
    assert_eq!(exec(&server, &key, &id, "too-late").await?, 404);
    for nothing in [&id, "key:never", "no-id"] {
        let path = format!("/sessions/{nothing}");
        assert_eq!(server.ask("DELETE", &path, None).await?.0, 204);
    }
    let all = lines(&file)?;
    let exec = of(&all, "the-exec");
    assert_eq!(exec.len(), 2, "{all:?}");
    for (line, event) in exec.iter().zip(["start", "end"]) {
        assert_eq!(line["event"], event);
        assert_eq!(
            (&line["key"], &line["session"], &line["kind"]),
            (&json!("worker"), &json!(id), &json!("code"))
        );
        assert_eq!(line["sha256"], sha256(CODE)?);
        assert!(
            line["time"]
                .as_str()
                .is_some_and(|t| t.ends_with('Z') && t.len() == 24),
            "{line}"
        );
    }
    assert!(exec[0]["outcome"].is_null());
    assert_eq!(
        (&exec[1]["outcome"], &exec[1]["status"]),
        (&json!("ok"), &json!(200))
    );
    assert!(exec[1]["ms"].as_f64() > Some(0.0));
    let late = of(&all, "too-late");
    assert_eq!(
        (late.len(), &late[0]["outcome"], &late[0]["kind"]),
        (1, &json!("not_found"), &json!("exec"))
    );
    let kinds: Vec<&str> = all
        .iter()
        .filter(|l| l["event"] == "end")
        .filter_map(|l| l["kind"].as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "create", "code", "delete", "exec", "delete", "delete", "delete"
        ],
        "to look at something is no act"
    );
    let outcomes = all.iter().filter(|l| l["kind"] == "delete");
    let outcomes: Vec<_> = outcomes.map(|line| line["outcome"].as_str()).collect();
    let nothing = Some("not_found");
    assert_eq!(outcomes, [Some("ok"), nothing, nothing, nothing]);
    assert_eq!(
        all[1]["session"],
        json!(id),
        "also of the one that was made"
    );
    let text = std::fs::read_to_string(&file)?;
    assert!(!text.contains("nobody else") && !text.contains(&key));
    Ok(())
}

/// As somebody else makes it.
fn sha256(text: &str) -> Outcome<String> {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child
        .stdin
        .take()
        .ok_or("no stdin")?
        .write_all(text.as_bytes())?;
    let out = String::from_utf8(child.wait_with_output()?.stdout)?;
    Ok(out.split(' ').next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn code_is_recorded_when_asked_for() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (state, file) = (
        folder.path().join("state"),
        folder.path().join("audit.jsonl"),
    );
    let server = with(&state, &file, &["--audit-code"])?;
    let id = server.session().await?;
    server.code(&id, CODE).await?;
    let all = lines(&file)?;
    let start = all
        .iter()
        .find(|l| l["event"] == "start")
        .ok_or("no line")?;
    assert_eq!(
        (&start["code"], &start["key"]),
        (&json!(CODE), &json!("anybody"))
    );
    Ok(())
}

#[tokio::test]
async fn a_file_that_can_not_be_written_stops_the_server_from_starting() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let absent = folder.path().join("no/such/folder/audit");
    for bad in ["/dev/full", absent.to_str().ok_or("no text")?, "/"] {
        let done = std::process::Command::new(ringfence())
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--audit-file",
                bad,
                "--state-dir",
            ])
            .arg(&state)
            .output()?;
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            !done.status.success() && said.contains("cannot write the audit file"),
            "{bad}: {said}"
        );
    }
    drop(with(&state, &folder.path().join("audit"), &[])?);
    Ok(())
}

#[tokio::test]
async fn nothing_is_done_that_can_not_be_recorded() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (state, file) = (
        folder.path().join("state"),
        folder.path().join("audit.jsonl"),
    );
    let server = with(&state, &file, &[])?;
    let id = server.session().await?;
    let input = json!({"tool": "bash_code_execution", "input": {"command": "echo x >> ran"}});
    let run = async || server.post(&format!("/sessions/{id}/exec"), &input).await;
    assert_eq!(run().await?.0, 200);
    // The disk is full.
    let kept = folder.path().join("kept");
    std::fs::rename(&file, &kept)?;
    std::os::unix::fs::symlink("/dev/full", &file)?;
    let (status, body) = run().await?;
    assert_eq!(
        (status, &body["code"]),
        (503, &json!("unavailable")),
        "{body}"
    );
    // The first that only changes something is done, and owed; then nothing more is.
    let terms = json!({"idle_timeout_seconds": 60});
    let change = async || {
        server
            .ask("PATCH", &format!("/sessions/{id}"), Some(&terms))
            .await
    };
    assert_eq!(
        change().await?.0,
        503,
        "the line of the refused one is owed"
    );
    assert_eq!(
        server.get(&format!("/sessions/{id}")).await?.0,
        200,
        "looking is no act"
    );
    let text = reqwest::get(format!("{}/metrics", server.url))
        .await?
        .text()
        .await?;
    assert!(!text.contains("ringfence_audit_errors_total 0"), "{text}");
    std::fs::remove_file(&file)?;
    std::fs::rename(&kept, &file)?;
    assert_eq!(run().await?.0, 200);
    assert_eq!(change().await?.0, 200);
    // A file that can't even be opened is known before anything is done.
    std::fs::rename(&file, &kept)?;
    std::fs::create_dir(&file)?;
    assert_eq!(change().await?.0, 503);
    std::fs::remove_dir(&file)?;
    std::fs::rename(&kept, &file)?;
    let ran = server.bash(&id, "cat ran").await?;
    assert_eq!(ran["stdout"], "x\nx\n", "what was refused did not run");
    let refused = lines(&file)?;
    let refused = refused.iter().filter(|l| l["status"] == 503).count();
    assert_eq!(refused, 3, "what was owed was written");
    Ok(())
}

#[tokio::test]
async fn a_file_that_was_moved_away_is_made_anew() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (state, file) = (
        folder.path().join("state"),
        folder.path().join("audit.jsonl"),
    );
    let server = with(&state, &file, &[])?;
    let id = server.session().await?;
    let old = folder.path().join("audit.jsonl.1");
    std::fs::rename(&file, &old)?;
    server.signal(rustix::process::Signal::HUP);
    server.code(&id, CODE).await?;
    until(async || Ok(file.exists().then_some(()))).await?;
    let (old, new) = (lines(&old)?, lines(&file)?);
    assert!(old.iter().any(|l| l["kind"] == "create") && old.iter().all(|l| l["kind"] != "code"));
    assert_eq!(new.iter().filter(|l| l["kind"] == "code").count(), 2);
    assert_eq!(std::fs::metadata(&file)?.mode() & 0o777, 0o600);
    assert_eq!(
        server.get("/health").await?.0,
        200,
        "a hangup does not end it"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_streamed_is_recorded_when_it_has_ended() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("audit.jsonl");
    let server = with(&folder.path().join("state"), &file, &[])?;
    let id = server.session().await?;
    let stream = server
        .http
        .post(format!("{}/sessions/{id}/jobs", server.url))
        .header("accept", "text/event-stream")
        .header("x-request-id", "streamed")
        .json(&json!({"command": "cat; exit 3", "stdin": {"stream": true}, "id": "reads"}))
        .send()
        .await?;
    assert_eq!(stream.status(), 200);
    assert_eq!(of(&lines(&file)?, "streamed").len(), 1, "it runs");
    let path = format!("/sessions/{id}/jobs/reads/stdin");
    assert_eq!(server.ask("POST", &path, None).await?.0, 204);
    assert!(stream.text().await?.contains("event: done"));
    let all = until(async || {
        let all = of(&lines(&file)?, "streamed");
        Ok((all.len() == 2).then_some(all))
    })
    .await?;
    assert_eq!(
        (&all[1]["kind"], &all[1]["outcome"]),
        (&json!("bash"), &json!("failed"))
    );
    let text = reqwest::get(format!("{}/metrics", server.url))
        .await?
        .text()
        .await?;
    let series = "ringfence_execs_total{kind=\"bash\",outcome=\"failed\"} 1";
    assert!(text.contains(series), "{text}");
    Ok(())
}

/// What the call of a tool over MCP is answered with.
async fn call(server: &Server, key: &str, tool: &str, arguments: Value) -> Outcome<Value> {
    let params = json!({"name": tool, "arguments": arguments});
    rpc(server, Some(key), "/mcp", "tools/call", params).await
}

#[tokio::test]
async fn calls_over_mcp_are_acts_like_others() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (state, file) = (
        folder.path().join("state"),
        folder.path().join("audit.jsonl"),
    );
    let key = key(&state, "agent", &[])?;
    let mut server = with(&state, &file, &[])?;
    server.http = bearer(&key)?;
    let command = "echo x >> ran; exit 3";
    call(&server, &key, "bash", json!({"command": command})).await?;
    rpc(&server, Some(&key), "/mcp", "tools/list", json!({})).await?;
    let bad = json!({"path": "no/such/file"});
    call(&server, &key, "read_file", bad).await?;
    let uri = json!({"uri": "ringfence://default/ran"});
    rpc(&server, Some(&key), "/mcp", "resources/read", uri).await?;
    let (_, page) = server.get("/sessions").await?;
    let id = &page["sessions"][0]["session_id"];
    let all = until(async || {
        let all = lines(&file)?;
        let ends = all.iter().filter(|line| line["event"] == "end").count();
        Ok((ends == 3).then_some(all))
    })
    .await?;
    let said: Vec<_> = all[1..]
        .iter()
        .map(|line| (line["event"].as_str(), line["kind"].as_str()))
        .collect();
    let (start, end) = (Some("start"), Some("end"));
    let expected = [
        (start, Some("bash")),
        (end, Some("bash")),
        (end, Some("tool")),
        (end, Some("download")),
    ];
    assert_eq!(said, expected, "to look at something is no act: {all:?}");
    for line in &all[1..] {
        assert_eq!((&line["key"], &line["session"]), (&json!("agent"), id));
        assert!(line["request"].is_string(), "{line}");
    }
    for line in &all[1..3] {
        assert_eq!(line["sha256"], sha256(command)?);
    }
    let outcomes: Vec<_> = all[2..].iter().map(|line| &line["outcome"]).collect();
    assert_eq!(outcomes, [&json!("failed"), &json!("failed"), &json!("ok")]);
    // What can't be recorded is not done.
    let kept = folder.path().join("kept.jsonl");
    std::fs::rename(&file, &kept)?;
    std::os::unix::fs::symlink("/dev/full", &file)?;
    let refused = call(&server, &key, "bash", json!({"command": command})).await?;
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("audit file"), "{refused}");
    std::fs::remove_file(&file)?;
    std::fs::rename(&kept, &file)?;
    let ran = call(&server, &key, "bash", json!({"command": "cat ran"})).await?;
    assert_eq!(ran["result"]["content"][0]["text"], "x", "{ran}");
    Ok(())
}

#[tokio::test]
async fn an_edit_is_known_by_its_hash() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("audit.jsonl");
    let server = with(&folder.path().join("state"), &file, &[])?;
    let id = server.session().await?;
    for (input, text, outcome) in [
        (
            json!({"command": "create", "file_text": "one"}),
            Some("one"),
            "ok",
        ),
        // It is there by now.
        (
            json!({"command": "create", "file_text": "two"}),
            Some("two"),
            "failed",
        ),
        (
            json!({"command": "str_replace", "old_str": "one", "new_str": "three"}),
            Some("three"),
            "ok",
        ),
        (
            json!({"command": "insert", "insert_line": 1, "insert_text": "four"}),
            Some("four"),
            "ok",
        ),
        (json!({"command": "view"}), None, "ok"),
    ] {
        let mut input = input;
        input["path"] = json!("a.txt");
        let call = json!({"tool": "text_editor_code_execution", "input": input});
        let (status, body) = server.post(&format!("/sessions/{id}/exec"), &call).await?;
        assert_eq!(status, 200, "{body}");
        let last = lines(&file)?.pop().ok_or("no line")?;
        assert_eq!(
            (&last["kind"], &last["outcome"]),
            (&json!("exec"), &json!(outcome)),
            "{body}"
        );
        let expected = match text {
            Some(text) => json!(sha256(text)?),
            None => Value::Null,
        };
        assert_eq!(last["sha256"], expected);
    }
    Ok(())
}

#[tokio::test]
async fn an_upload_is_known_by_its_hash() -> Outcome {
    use reqwest::multipart::{Form, Part};
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("audit.jsonl");
    let server = with(&folder.path().join("state"), &file, &[])?;
    let id = server.session().await?;
    let url = format!("{}/sessions/{id}/files", server.url);
    // One that waits for its place here, and one that goes on to the sandbox as it comes.
    for content in ["short".to_owned(), "long".repeat(200_000)] {
        let part = Part::text(content.clone()).file_name("a.txt");
        let form = Form::new().part("file", part);
        assert_eq!(
            server
                .http
                .post(&url)
                .multipart(form)
                .send()
                .await?
                .status(),
            201
        );
        let last = lines(&file)?.pop().ok_or("no line")?;
        assert_eq!(
            (&last["kind"], &last["session"], &last["outcome"]),
            (&json!("upload"), &json!(id), &json!("ok"))
        );
        assert_eq!(last["sha256"], sha256(&content)?);
    }
    // Two blocks of nothing are the end of an archive, and here all of it.
    let archive = "\0".repeat(1024);
    let sent = server
        .http
        .put(format!("{}/sessions/{id}/tar", server.url))
        .body(archive.clone())
        .send()
        .await?;
    assert_eq!(sent.status(), 204);
    let last = lines(&file)?.pop().ok_or("no line")?;
    assert_eq!(
        (&last["kind"], &last["outcome"]),
        (&json!("upload"), &json!("ok"))
    );
    assert_eq!(last["sha256"], sha256(&archive)?);
    Ok(())
}

#[tokio::test]
async fn what_was_detached_is_recorded_when_it_has_ended() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("audit.jsonl");
    let server = with(&folder.path().join("state"), &file, &[])?;
    let id = server.session().await?;
    let job = json!({"command": "while [ ! -e go ]; do sleep 0.01; done; exit 3", "detach": true});
    let sent = server
        .http
        .post(format!("{}/sessions/{id}/jobs", server.url))
        .header("x-request-id", "detached")
        .json(&job);
    assert_eq!(sent.send().await?.status(), 201);
    assert_eq!(of(&lines(&file)?, "detached").len(), 1, "it runs");
    server.bash(&id, "touch go").await?;
    let all = until(async || {
        let all = of(&lines(&file)?, "detached");
        Ok((all.len() == 2).then_some(all))
    })
    .await?;
    assert_eq!(
        (&all[1]["kind"], &all[1]["outcome"], &all[1]["status"]),
        (&json!("bash"), &json!("failed"), &json!(201))
    );
    let text = reqwest::get(format!("{}/metrics", server.url)).await?;
    let series = "ringfence_execs_total{kind=\"bash\",outcome=\"failed\"} 1";
    assert!(text.text().await?.contains(series));
    Ok(())
}
