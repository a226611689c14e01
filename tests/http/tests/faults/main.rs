//! What goes wrong around a server: each ends in a clear answer and a consistent state.

mod kills;

use ringfence_http_tests::{Outcome, Server};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Waits until something is so, for as long as the test may run.
async fn until(mut so: impl AsyncFnMut() -> Outcome<bool>) -> Outcome {
    while !so().await? {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// The folders of sandboxes in a state folder.
fn sandboxes(state: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(state).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .filter(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with("sbx-"))
        })
        .collect()
}

fn folder(state: &Path, session: &str) -> PathBuf {
    state.join(session.replace('_', "-"))
}

/// The process of a session's guest.
fn guest(state: &Path, session: &str) -> Outcome<i32> {
    let text = std::fs::read_to_string(folder(state, session).join("process.json"))?;
    let value: Value = serde_json::from_str(&text)?;
    Ok(value["pid"].as_i64().ok_or("no pid")? as i32)
}

fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn children(pid: u32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let mut all = Vec::new();
    // Threads start processes too.
    for entry in std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = std::fs::read_to_string(entry.path().join("children")).unwrap_or_default();
        all.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<i32>().ok()),
        );
    }
    let text = std::fs::read_to_string(path).unwrap_or_default();
    all.extend(
        text.split_whitespace()
            .filter_map(|pid| pid.parse::<i32>().ok()),
    );
    all.sort_unstable();
    all.dedup();
    all
}

#[tokio::test]
async fn a_killed_server_loses_nobody() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut first = Server::start_on(&state, &[], &[])?;
    let id = first.session().await?;
    let expired = first
        .session_with(&json!({"max_lifetime_seconds": 1}))
        .await?;
    let pid = guest(&state, &expired)?;
    first
        .code(&id, "x = 41; open('f', 'w').write('kept')")
        .await?;
    // In the middle of a call, of creations and of deletions.
    let doomed = first.session().await?;
    let (url, http) = (first.url.clone(), first.http.clone());
    let mut cut = tokio::task::JoinSet::new();
    let ask = |method: &str, path: String, body: Value| {
        let request = http.request(method.parse().unwrap_or_default(), format!("{url}{path}"));
        request.json(&body).send()
    };
    let wait = json!({"tool": "code_execution", "input": {"code": "open('began', 'w').close()\nimport time\nwhile True: time.sleep(0.01)"}});
    cut.spawn(ask("POST", format!("/sessions/{id}/exec"), wait));
    until(async || {
        let done = first.bash(&id, "ls began 2>/dev/null").await?;
        Ok(done["stdout"] == "began\n")
    })
    .await?;
    for _ in 0..4 {
        cut.spawn(ask("POST", "/sessions".to_owned(), json!({})));
    }
    cut.spawn(ask("DELETE", format!("/sessions/{doomed}"), json!({})));
    tokio::task::yield_now().await;
    first.kill()?;
    while let Some(done) = cut.join_next().await {
        done?.err();
    }
    let mut second = Server::start_on(&state, &["--gc-interval", "1"], &[])?;
    let done = second.bash(&id, "cat f").await?;
    assert_eq!(done["stdout"], "kept");
    // The loss of a server is no cancel: the call goes on until somebody ends it.
    let (status, _) = second
        .post(&format!("/sessions/{id}/interrupt"), &json!({}))
        .await?;
    assert!(status < 300, "{status}");
    assert_eq!(second.code(&id, "print(x + 1)").await?["stdout"], "42");
    until(async || Ok(second.get(&format!("/sessions/{expired}")).await?.0 == 404)).await?;
    until(async || Ok(!is_alive(pid))).await?;
    // What was cut off half way is whole or gone.
    until(async || {
        for folder in sandboxes(&state) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            let (status, _) = second
                .get(&format!("/sessions/{}", name.replace('-', "_")))
                .await?;
            if status != 200 {
                return Ok(false);
            }
        }
        Ok(true)
    })
    .await?;
    assert!(second.stop()?.success());
    assert!(sandboxes(&state).is_empty());
    Ok(())
}

#[tokio::test]
async fn kept_sessions_wait_for_the_next_server() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut first = Server::start_on(&state, &["--keep"], &[])?;
    let id = first.session().await?;
    first.code(&id, "x = 7").await?;
    assert!(first.stop()?.success());
    let mut second = Server::start_on(&state, &[], &[])?;
    assert_eq!(second.code(&id, "print(x)").await?["stdout"], "7");
    assert!(second.stop()?.success());
    assert!(sandboxes(&state).is_empty());
    Ok(())
}

#[tokio::test]
async fn two_servers_serve_every_session() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut first = Server::start_on(&state, &[], &[])?;
    let second = Server::start_on(&state, &[], &[])?;
    let id = first.session().await?;
    first.code(&id, "x = 1").await?;
    assert_eq!(second.code(&id, "x += 1; print(x)").await?["stdout"], "2");
    assert_eq!(first.code(&id, "print(x)").await?["stdout"], "2");
    let other = second.session().await?;
    // One that stops leaves the rest to the other.
    assert!(first.stop()?.success());
    assert_eq!(second.code(&id, "print(x)").await?["stdout"], "2");
    assert_eq!(second.code(&other, "print(3)").await?["stdout"], "3");
    second
        .ask("DELETE", &format!("/sessions/{other}"), None)
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_session_removed_by_one_server_is_gone_for_the_other() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let first = Server::start_on(&state, &[], &[])?;
    let second = Server::start_on(&state, &[], &[])?;
    let id = first.session().await?;
    assert_eq!(second.code(&id, "print(1)").await?["stdout"], "1");
    first
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    let body = json!({"tool": "code_execution", "input": {"code": "print(1)"}});
    let (status, answer) = second.post(&format!("/sessions/{id}/exec"), &body).await?;
    assert_eq!(status, 404, "{answer}");
    assert_eq!(second.get(&format!("/sessions/{id}")).await?.0, 404);
    Ok(())
}

/// The connection of a server to a guest lives for a moment longer than that does.
#[tokio::test]
async fn who_asks_by_key_never_gets_a_session_that_was_just_killed() -> Outcome {
    for (place, found) in [("memory", ""), ("disk", "kept")] {
        let server = Server::start(&["--workspace-in", place])?;
        let id = server.session_with(&json!({"key": "k"})).await?;
        for round in 0..10 {
            let tool = "/sessions/key:k/tools/bash";
            let command = json!({"command": "cat f; printf kept > f"});
            let (status, answer) = server.post(tool, &command).await?;
            assert_eq!(status, 200, "{place} {round}: {answer}");
            kill(guest(&server.state, &id)?);
            // Half of them make it first, the other half use it at once.
            if round % 2 == 0 {
                let (status, made) = server.post("/sessions", &json!({"key": "k"})).await?;
                let expected = if found.is_empty() { 201 } else { 200 };
                assert_eq!(
                    (status, &made["session_id"]),
                    (expected, &json!(id)),
                    "{place} {round}"
                );
            }
            let (status, answer) = server
                .post(tool, &json!({"command": "cat f 2>/dev/null"}))
                .await?;
            assert_eq!(status, 200, "{place} {round}: {answer}");
            let text = answer["text"].as_str().unwrap_or_default();
            assert_eq!(text.contains("kept"), !found.is_empty(), "{place}: {text}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn fifty_clients_with_one_key_get_one_sandbox() -> Outcome {
    let server = Server::start(&[])?;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let request = server.http.post(format!("{}/sessions", server.url));
        let request = request.json(&json!({"key": "conversation 1"}));
        clients.spawn(async move { request.send().await?.json::<Value>().await });
    }
    let mut ids = std::collections::BTreeSet::new();
    while let Some(answer) = clients.join_next().await {
        ids.insert(answer??["session_id"].to_string());
    }
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(sandboxes(&server.state).len(), 1);
    Ok(())
}

#[tokio::test]
async fn more_sessions_than_allowed_are_refused_one_by_one() -> Outcome {
    let server = Server::start(&["--max-sessions", "3"])?;
    let mut clients = tokio::task::JoinSet::new();
    let mut statuses = std::collections::BTreeMap::new();
    for number in 0..10_000 {
        let request = server.http.post(format!("{}/sessions", server.url));
        clients.spawn(async move { Ok::<_, reqwest::Error>(request.send().await?.status()) });
        if number % 64 == 63 {
            while let Some(status) = clients.join_next().await {
                *statuses.entry(status??.as_u16()).or_insert(0) += 1;
            }
        }
    }
    while let Some(status) = clients.join_next().await {
        *statuses.entry(status??.as_u16()).or_insert(0) += 1;
    }
    assert_eq!(statuses, [(201, 3), (503, 9997)].into());
    let (_, health) = server.get("/health").await?;
    assert_eq!(
        (&health["session_count"], &health["max_sessions"]),
        (&json!(3), &json!(3))
    );
    let (_, refused) = server.post("/sessions", &json!({})).await?;
    assert!(
        refused["detail"]
            .as_str()
            .is_some_and(|d| d.contains("too many sessions"))
    );
    Ok(())
}

#[tokio::test]
async fn a_killed_guest_is_told_and_its_files_come_back() -> Outcome {
    let server = Server::start(&["--workspace-in", "disk"])?;
    let id = server.session().await?;
    server
        .code(&id, "x = 1; open('f', 'w').write('kept')")
        .await?;
    server.bash(&id, "sync").await?;
    let pid = guest(&server.state, &id)?;
    let running = server.code(
        &id,
        "open('began', 'w').close()\nimport time\nwhile True: time.sleep(0.01)",
    );
    let killing = async {
        until(async || Ok(server.bash(&id, "ls began").await?["return_code"] == 0)).await?;
        kill(pid);
        Ok(())
    };
    let (cut, killed): (Outcome<Value>, Outcome) = tokio::join!(running, killing);
    killed?;
    let cut = cut?;
    assert_eq!(
        (&cut["error_code"], &cut["return_code"]),
        (&json!("unavailable"), &json!(-1))
    );
    let told = cut["stderr"].as_str().unwrap_or_default();
    assert!(told.contains("the sandbox ended while this ran"), "{cut}");
    let after = server
        .code(&id, "print(open('f').read(), 'x' in globals())")
        .await?;
    assert_eq!(after["stdout"], "kept False", "{after}");
    let told = after["stderr"].as_str().unwrap_or_default();
    assert!(
        told.contains("started again") && told.contains("variables"),
        "{after}"
    );
    Ok(())
}

#[tokio::test]
async fn a_killed_guest_with_files_in_memory_ends_its_session() -> Outcome {
    let server = Server::start(&["--workspace-in", "memory", "--gc-interval", "1"])?;
    let id = server.session().await?;
    kill(guest(&server.state, &id)?);
    let body = json!({"tool": "code_execution", "input": {"code": "print(1)"}});
    let path = format!("/sessions/{id}/exec");
    until(async || {
        let (status, answer) = server.post(&path, &body).await?;
        let lost =
            status == 200 && answer["result_block"]["content"]["error_code"] == "unavailable";
        assert!(status == 404 || lost, "{status} {answer}");
        Ok(status == 404)
    })
    .await?;
    until(async || Ok(sandboxes(&server.state).is_empty())).await
}

#[tokio::test]
async fn a_killed_kernel_is_told_and_replaced() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let died = server
        .code(&id, "import os; os.kill(os.getpid(), 9)")
        .await?;
    assert_eq!(died["return_code"], -1, "{died}");
    assert!(!died["stderr"].as_str().unwrap_or_default().is_empty());
    assert_eq!(server.code(&id, "print(1)").await?["stdout"], "1");
    Ok(())
}

#[tokio::test]
async fn a_killed_launcher_is_replaced() -> Outcome {
    let server = Server::start(&[])?;
    let before = server.session().await?;
    let guest = guest(&server.state, &before)?;
    for pid in children(server.pid())
        .into_iter()
        .filter(|pid| *pid != guest)
    {
        kill(pid);
    }
    assert_eq!(server.code(&before, "print(1)").await?["stdout"], "1");
    // One that is asked for at the very moment may fail, with a clear answer. The first may still
    // be made by the maker that waited; the others need a new launcher.
    for _ in 0..3 {
        until(async || {
            let (status, answer) = server.post("/sessions", &json!({})).await?;
            assert!(
                status == 201 || answer["detail"].is_string(),
                "{status} {answer}"
            );
            Ok(status == 201)
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn delete_during_exec_ends_it_with_a_clear_answer() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let body =
        json!({"tool": "bash_code_execution", "input": {"command": "touch began; sleep 1000"}});
    let path = format!("/sessions/{id}/exec");
    let running = server.post(&path, &body);
    let deleting = async {
        until(async || Ok(server.bash(&id, "ls began").await?["return_code"] == 0)).await?;
        server.ask("DELETE", &format!("/sessions/{id}"), None).await
    };
    let ((status, answer), (deleted, _)) = tokio::try_join!(running, deleting)?;
    assert_eq!(deleted, 204);
    let said = answer.to_string();
    assert!(
        status == 404 || said.contains("unavailable"),
        "{status} {said}"
    );
    assert!(
        said.contains("ended") || said.contains("no session"),
        "{said}"
    );
    assert!(sandboxes(&server.state).is_empty());
    Ok(())
}

/// Something that took the place of a guest answers with `answer`, or never.
async fn impostor(answer: Option<&'static [u8]>) -> Outcome<Value> {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let id = {
        let mut first = Server::start_on(&state, &["--keep", "--workspace-in", "memory"], &[])?;
        let id = first.session().await?;
        first.stop()?;
        id
    };
    let place = self::folder(&state, &id);
    kill(guest(&state, &id)?);
    std::fs::remove_file(place.join("guest.sock"))?;
    let listener = tokio::net::UnixListener::bind(place.join("guest.sock"))?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while stream.read(&mut buffer).await.is_ok_and(|n| n > 0) {
                    if let Some(answer) = answer {
                        let _ = stream.write_all(answer).await;
                    }
                }
            });
        }
    });
    // The dead one is found at the start of a server: this one must not look for that first.
    let server = Server::start_on(&state, &["--gc-interval", "30"], &[])?;
    let body =
        json!({"tool": "code_execution", "input": {"code": "print(1)"}, "timeout_seconds": 1});
    let (status, answer) = server.post(&format!("/sessions/{id}/exec"), &body).await?;
    assert!(status == 404 || status == 200, "{status} {answer}");
    Ok(answer)
}

#[tokio::test]
async fn a_guest_that_answers_garbage_is_not_believed() -> Outcome {
    let answer = impostor(Some(b"HTTP/1.1 200 OK\r\n\r\nnonsense\0\xff\n")).await?;
    let text = answer.to_string();
    assert!(
        text.contains("unavailable") || text.contains("not_found"),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn a_guest_that_never_answers_is_not_waited_for() -> Outcome {
    let answer = impostor(None).await?;
    let text = answer.to_string();
    assert!(
        ["unavailable", "execution_time_exceeded", "not_found"]
            .iter()
            .any(|w| text.contains(w)),
        "{text}"
    );
    Ok(())
}

#[tokio::test]
async fn a_guest_that_is_slow_keeps_nobody_else_waiting() -> Outcome {
    let server = Server::start(&[])?;
    let (id, other) = (server.session().await?, server.session().await?);
    server.code(&id, "x = 41").await?;
    let pid = Pid::from_raw(guest(&server.state, &id)?).ok_or("no guest")?;
    kill_process(pid, Signal::STOP)?;
    let slow = server.code(&id, "x += 1; print(x)");
    let others = async {
        let done = server.code(&other, "print(1)").await;
        let list = server.get("/sessions").await;
        kill_process(pid, Signal::CONT)?;
        assert_eq!(done?["stdout"], "1");
        assert_eq!(list?.0, 200);
        Ok(())
    };
    let (done, ()) = tokio::try_join!(slow, others)?;
    assert_eq!(done["stdout"], "42");
    Ok(())
}

/// As if somebody had set the clock forward by a day while no server ran.
#[tokio::test]
async fn a_clock_that_jumps_ends_no_session() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut first = Server::start_on(&state, &["--keep"], &[])?;
    let id = first.session().await?;
    let terms = json!({"max_lifetime_seconds": 3600, "idle_timeout_seconds": 3600});
    let path = format!("/sessions/{id}");
    assert_eq!(first.ask("PATCH", &path, Some(&terms)).await?.0, 200);
    first.code(&id, "x = 7").await?;
    first.stop()?;
    let mut set = 0;
    for entry in std::fs::read_dir(self::folder(&state, &id))?.flatten() {
        let Ok(text) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        // In a string of JSON it is written as one.
        for mark in ["\"wall\":", "\\\"wall\\\":"] {
            let mut pieces = text.split(mark);
            let mut earlier = pieces.next().unwrap_or_default().to_owned();
            for piece in pieces {
                let end = piece.find(|c: char| !c.is_ascii_digit() && c != '.');
                let (number, rest) = piece.split_at(end.ok_or("no end")?);
                let moved = number.parse::<f64>()? - 86_400.0;
                earlier += &format!("{mark}{moved}{rest}");
                set += 1;
            }
            if earlier != text {
                std::fs::write(entry.path(), &earlier)?;
            }
        }
    }
    assert!(set > 0, "nothing says when it was made");
    let mut second = Server::start_on(&state, &[], &[])?;
    assert_eq!(second.code(&id, "print(x)").await?["stdout"], "7");
    second.stop()?;
    Ok(())
}

#[tokio::test]
async fn half_a_body_harms_nobody() -> Outcome {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let server = Server::start(&["--body-timeout", "1"])?;
    let id = server.session().await?;
    let address = server.url.trim_start_matches("http://");
    let mut cut = tokio::net::TcpStream::connect(address).await?;
    let head = format!(
        "POST /sessions/{id}/exec HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{{"
    );
    cut.write_all(head.as_bytes()).await?;
    // One that goes away, and one that stands still until it is cut off.
    drop(cut);
    let mut slow = tokio::net::TcpStream::connect(address).await?;
    slow.write_all(head.as_bytes()).await?;
    let mut said = Vec::new();
    slow.read_to_end(&mut said).await?;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    assert_eq!(server.code(&id, "print(1)").await?["stdout"], "1");
    Ok(())
}

#[tokio::test]
async fn a_full_disk_is_told_and_nothing_is_left() -> Outcome {
    // A small file system of its own, full but for a few pages.
    let folder = tempfile::tempdir()?;
    let small = folder.path().join("small");
    std::fs::create_dir(&small)?;
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"])
        .arg(&small)
        .status()?;
    assert!(mounted.success());
    let tried = async {
        let state = small.join("state");
        let mut server = Server::start_on(&state, &["--workspace-in", "memory"], &[])?;
        let id = server.session().await?;
        std::fs::write(small.join("filler"), vec![1; 4 << 20]).err();
        let (status, answer) = server.post("/sessions", &json!({})).await?;
        assert_eq!(status, 507, "{answer}");
        assert_eq!(sandboxes(&state).len(), 1);
        // Those that live are not harmed.
        assert_eq!(server.code(&id, "print(1)").await?["stdout"], "1");
        std::fs::remove_file(small.join("filler"))?;
        server.session().await?;
        server.stop()?;
        Ok(())
    };
    let outcome: Outcome = tried.await;
    let unmounted = std::process::Command::new("umount").arg(&small).status()?;
    assert!(unmounted.success());
    outcome
}

#[tokio::test]
async fn out_of_descriptors_is_survived() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let mut server = Server::start_on(&state, &["--max-connections", "1000"], &[])?;
    let limit = rustix::process::Rlimit {
        current: Some(80),
        maximum: Some(80),
    };
    let pid = Pid::from_raw(server.pid() as i32);
    rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit)?;
    let id = server.session().await?;
    let address = server.url.trim_start_matches("http://").to_owned();
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(tokio::net::TcpStream::connect(&address).await?);
    }
    drop(held);
    until(async || {
        let done = server.code(&id, "print(1)").await;
        Ok(done.is_ok_and(|done| done["stdout"] == "1"))
    })
    .await?;
    let mut made = 0;
    for _ in 0..60 {
        let (status, answer) = server.post("/sessions", &json!({})).await?;
        assert!(
            status == 201 || answer["detail"].is_string(),
            "{status} {answer}"
        );
        made += usize::from(status == 201);
    }
    assert!(made > 0);
    assert_eq!(server.code(&id, "print(2)").await?["stdout"], "2");
    server.stop()?;
    until(async || Ok(sandboxes(&state).is_empty())).await
}

#[tokio::test]
async fn sessions_that_died_with_their_server_count_and_end() -> Outcome {
    let args = ["--gc-interval", "1s", "--max-sessions", "1"];
    let mut server = Server::start(&args)?;
    let id = server
        .session_with(&json!({"idle_timeout_seconds": 4}))
        .await?;
    server.bash(&id, "echo kept > f").await?;
    let pid = guest(&server.state, &id)?;
    server.kill()?;
    kill(pid);
    let server = Server::start_on(&server.state, &args, &[])?;
    // It can be started again, with its files, so it has its place until it is idle.
    until(async || Ok(server.get("/health").await?.1["session_count"] == 1)).await?;
    assert_eq!(server.post("/sessions", &json!({})).await?.0, 503);
    until(async || Ok(server.get("/health").await?.1["session_count"] == 0)).await?;
    until(async || Ok(sandboxes(&server.state).is_empty())).await?;
    assert_eq!(server.post("/sessions", &json!({})).await?.0, 201);
    Ok(())
}

#[tokio::test]
async fn a_removal_that_was_cut_off_is_finished() -> Outcome {
    let args = ["--gc-interval", "30s"];
    let mut server = Server::start(&args)?;
    let made = json!({"key": "conversation"});
    let first = server.session_with(&made).await?;
    let other = server.session().await?;
    for id in [&first, &other] {
        server.bash(id, "echo old > f").await?;
    }
    let guests = [guest(&server.state, &first)?, guest(&server.state, &other)?];
    server.kill()?;
    // As whoever removes them leaves them when it is killed.
    for (id, pid) in [&first, &other].into_iter().zip(guests) {
        std::fs::write(folder(&server.state, id).join("removed"), "")?;
        kill(pid);
    }
    let server = Server::start_on(&server.state, &args, &[])?;
    for id in [&first, &other] {
        assert_eq!(server.get(&format!("/sessions/{id}")).await?.0, 404);
    }
    let (_, page) = server.get("/sessions").await?;
    assert_eq!(page["sessions"], json!([]));
    let (status, again) = server.post("/sessions", &made).await?;
    assert_eq!(status, 201, "{again}");
    assert_eq!(again["session_id"], json!(first));
    assert_ne!(server.bash(&first, "cat f").await?["return_code"], 0);
    until(async || Ok(sandboxes(&server.state).len() == 1)).await?;
    Ok(())
}

#[tokio::test]
async fn a_delete_that_is_sent_twice_answers_when_it_is_gone() -> Outcome {
    let (server, _) = Server::start_with_key(&[])?;
    let user = ringfence_http_tests::key(&server.state, "user", &[])?;
    for _ in 0..5 {
        let made = ringfence_http_tests::until(async || {
            let (status, made) = server
                .as_key(&user, "POST", "/sessions", Some(&json!({})))
                .await?;
            Ok((status == 201).then_some(made))
        })
        .await?;
        let id = made["session_id"].as_str().ok_or("no id")?.to_owned();
        let path = format!("/sessions/{id}");
        let gone = async |wait: u64| -> Outcome {
            tokio::time::sleep(Duration::from_millis(wait)).await;
            assert_eq!(server.as_key(&user, "DELETE", &path, None).await?.0, 204);
            assert!(!folder(&server.state, &id).exists());
            Ok(())
        };
        let (first, second, third) = tokio::join!(gone(0), gone(3), gone(8));
        first.and(second).and(third)?;
    }
    Ok(())
}
