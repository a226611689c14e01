//! Events: their form, resumption, and what becomes of a job that nobody reads.

use ringfence_http_tests::events::{Gathered, Got, Sse, bytes};
use ringfence_http_tests::{Outcome, Server, bearer};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Waits for the end of a job without being a reader of it.
async fn ended(server: &Server, session: &str, job: &str) -> Outcome<Value> {
    loop {
        let (status, list) = server.get(&format!("/sessions/{session}/jobs")).await?;
        assert_eq!(status, 200, "{list}");
        let jobs = list["jobs"].as_array().ok_or("no list")?;
        let found = jobs.iter().find(|found| found["job_id"] == job);
        let found = found.ok_or_else(|| format!("no job {job} in {list}"))?;
        if found["state"] == "ended" {
            return Ok(found["end"].clone());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn state(server: &Server, session: &str, job: &str) -> Outcome<Value> {
    let (_, list) = server.get(&format!("/sessions/{session}/jobs")).await?;
    let jobs = list["jobs"].as_array().ok_or("no list")?;
    let found = jobs.iter().find(|found| found["job_id"] == job);
    Ok(found.ok_or("no such job")?["state"].clone())
}

fn names(all: &[Got]) -> Vec<&str> {
    all.iter().map(|got| got.name.as_str()).collect()
}

#[tokio::test]
async fn a_call_comes_as_events() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let code = "import sys\nsys.stdout.write('é\\n')\nsys.stderr.write('e\\n')\nsys.stderr.flush()\n40 + 2";
    let mut events = server
        .events(
            "POST",
            &path,
            Some(&json!({"code": code, "id": "one"})),
            None,
        )
        .await?;
    let all = events.until("done").await?;
    assert_eq!(all[0].name, "started");
    assert_eq!(
        (&all[0].id, &all[0].data["job_id"]),
        (&"0.0.0".to_owned(), &json!("one"))
    );
    let of = |name| {
        all.iter()
            .find(move |got: &&Got| got.name == name)
            .ok_or(name)
    };
    assert_eq!(of("stdout")?.data["text"], "é\n");
    assert_eq!(of("stderr")?.data["text"], "e\n");
    assert_eq!(of("result")?.data["data"]["text/plain"], "42");
    let done = of("done")?;
    assert_eq!(
        (&done.id, &done.data["return_code"]),
        (&"3.2.1".to_owned(), &json!(0))
    );
    assert!(events.next().await?.is_none(), "the stream ends after done");

    // Bytes that are no text, and a death that has a certificate.
    let command = "printf '\\377\\376'; sleep 600";
    let body = json!({"command": command, "timeout_seconds": 0.3});
    let all = server
        .events("POST", &path, Some(&body), None)
        .await?
        .until("done")
        .await?;
    assert_eq!(names(&all), ["started", "stdout", "certificate", "done"]);
    assert_eq!(bytes(&all[1].data)?, [0xff, 0xfe]);
    assert_eq!(all[2].data["cause"], "wall_clock");
    assert_eq!(all[3].data["return_code"], -1);

    // Nothing is lost, whichever event was the last one seen.
    let events = format!("{path}/one/events");
    for after in ["0.0.0", "3.0.0", "3.2.0", "3.2.1"] {
        let query = format!("{events}?after={after}");
        let all = server
            .events("GET", &query, None, None)
            .await?
            .until("done")
            .await?;
        let again = server
            .events("GET", &events, None, Some(after))
            .await?
            .until("done")
            .await?;
        let mut expected = vec!["started"];
        let seen: Vec<u32> = after.split('.').map(|n| n.parse().unwrap_or(0)).collect();
        expected.extend((seen[0] == 0).then_some("stdout"));
        expected.extend((seen[1] == 0).then_some("stderr"));
        expected.extend((seen[2] == 0).then_some("result"));
        expected.push("done");
        assert_eq!(
            (names(&all), names(&again)),
            (expected.clone(), expected),
            "{after}"
        );
    }
    for bad in ["x", "1.2", "1.2.3.4", "-1.0.0"] {
        let refused = server.events("GET", &events, None, Some(bad)).await;
        assert!(
            refused.err().ok_or("taken")?.to_string().starts_with("422"),
            "{bad}"
        );
    }
    let missing = server
        .events("GET", &format!("{path}/none/events"), None, None)
        .await;
    assert!(missing.err().ok_or("there")?.to_string().starts_with("404"));
    Ok(())
}

#[tokio::test]
async fn a_tool_call_streams_and_ends_with_its_answer() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/v1/sessions/{id}/exec");
    for (tool, input, shown) in [
        (
            "code_execution",
            json!({"code": "import sys; sys.stdout.write('1\\n'); None"}),
            "1",
        ),
        ("bash_code_execution", json!({"command": "echo 1"}), "1\n"),
    ] {
        let body = json!({"tool": tool, "input": input, "tool_use_id": "toolu_1"});
        let all = server
            .events("POST", &path, Some(&body), None)
            .await?
            .until("done")
            .await?;
        assert_eq!(names(&all), ["started", "stdout", "done"]);
        assert_eq!(all[1].data["text"], "1\n");
        let answer = &all[2].data;
        assert_eq!(answer["tool_use_id"], "toolu_1");
        assert_eq!(answer["result_block"]["content"]["stdout"], shown);
        assert!(answer["execution_time_ms"].is_u64());
    }
    Ok(())
}

/// What the program of the tests below prints on each stream.
fn expected(lines: usize) -> (Vec<u8>, Vec<u8>) {
    let of = |tag: &str| -> Vec<u8> {
        let line = |n| format!("{tag} {n:07} {}\n", "é".repeat(30));
        (0..lines).map(line).collect::<String>().into_bytes()
    };
    (of("o"), of("e"))
}

/// Prints in parts, so that there is a middle to be cut off in.
fn printing(lines: usize) -> String {
    format!(
        "import sys, time\n\
         for n in range({lines}):\n\
         \x20   for out, tag in ((sys.stdout, 'o'), (sys.stderr, 'e')):\n\
         \x20       out.write('%s %07d %s\\n' % (tag, n, 'é' * 30))\n\
         \x20   if n % 2000 == 0:\n\
         \x20       sys.stdout.flush(); sys.stderr.flush(); time.sleep(0.02)\n"
    )
}

/// Reads until so many bytes came in all.
async fn read(events: &mut Sse, gathered: &mut Gathered, bytes: usize) -> Outcome {
    while gathered.stdout.len() + gathered.stderr.len() < bytes {
        let got = events.next().await?.ok_or("ended early")?;
        gathered.take(&got)?;
    }
    Ok(())
}

const LINES: usize = 45_000;

#[tokio::test]
async fn a_reader_that_was_cut_off_loses_nothing() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let (stdout, stderr) = expected(LINES);
    assert!(stdout.len() > 3 << 20, "several megabytes");
    for body in [
        json!({"code": printing(LINES), "id": "call"}),
        json!({"argv": ["python3", "-c", printing(LINES)], "id": "command"}),
    ] {
        let mut gathered = Gathered::default();
        let path = format!("/sessions/{id}/jobs");
        let mut events = server.events("POST", &path, Some(&body), None).await?;
        read(&mut events, &mut gathered, 500_000).await?;
        drop(events);
        let path = format!("{path}/{}/events", body["id"].as_str().ok_or("no id")?);
        for part in 2..12 {
            let last = gathered.last.clone();
            let mut events = server.events("GET", &path, None, Some(&last)).await?;
            read(&mut events, &mut gathered, part * 500_000).await?;
        }
        let last = gathered.last.clone();
        let mut events = server.events("GET", &path, None, Some(&last)).await?;
        for got in events.until("done").await? {
            gathered.take(&got)?;
        }
        assert!(gathered.stdout == stdout && gathered.stderr == stderr);
        assert_eq!(gathered.done.ok_or("no end")?["return_code"], 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_killed_server_loses_nothing() -> Outcome {
    let mut server = Server::start(&["--reader-grace", "1s"])?;
    let id = server.session().await?;
    let (stdout, stderr) = expected(LINES);
    let body = json!({"code": printing(LINES), "id": "call"});
    let mut gathered = Gathered::default();
    let path = format!("/sessions/{id}/jobs");
    let mut events = server.events("POST", &path, Some(&body), None).await?;
    read(&mut events, &mut gathered, 700_000).await?;
    server.kill()?;
    // What had been sent before may still come; a part of an event does not.
    while let Ok(Some(got)) = events.next().await {
        gathered.take(&got)?;
    }
    assert!(gathered.done.is_none());
    let server = Server::start_on(&server.state, &["--reader-grace", "1s"], &[])?;
    let path = format!("{path}/call/events");
    let last = gathered.last.clone();
    let mut events = server.events("GET", &path, None, Some(&last)).await?;
    for got in events.until("done").await? {
        gathered.take(&got)?;
    }
    assert!(gathered.stdout == stdout && gathered.stderr == stderr);
    assert_eq!(gathered.done.ok_or("no end")?["return_code"], 0);
    Ok(())
}

/// Runs until there is a file `go`.
const UNTIL_GO: &str = "echo begun; until [ -e go ]; do sleep 0.02; done; echo over";

/// Shows that the grace has passed, by a job that ends with it.
async fn grace_passes(server: &Server, session: &str, job: &str) -> Outcome {
    let body = json!({"command": UNTIL_GO, "id": job});
    let path = format!("/sessions/{session}/jobs");
    let mut events = server.events("POST", &path, Some(&body), None).await?;
    events.until("stdout").await?;
    drop(events);
    let end = ended(server, session, job).await?;
    assert_eq!(end["certificate"]["cause"], "cancelled", "{end}");
    Ok(())
}

#[tokio::test]
async fn who_goes_on_reading_at_another_server_keeps_the_job() -> Outcome {
    let args = ["--reader-grace", "0s", "--log-level", "debug"];
    let first = Server::start(&args)?;
    let second = Server::start_on(&first.state, &args, &[])?;
    let id = first.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let body = json!({"command": UNTIL_GO, "id": "moved"});
    let mut events = first.events("POST", &path, Some(&body), None).await?;
    events.until("stdout").await?;
    let path = format!("{path}/moved/events");
    let mut moved = second.events("GET", &path, None, None).await?;
    moved.until("stdout").await?;
    drop(events);
    let left = |line: &str| line.contains("somebody reads it");
    first.log_line(left).await?;
    second.bash(&id, "touch go").await?;
    let all = moved.until("done").await?;
    let end = &all.last().ok_or("no end")?.data;
    assert_eq!(end["return_code"], 0, "{end}");
    Ok(())
}

#[tokio::test]
async fn what_nobody_reads_is_cancelled() -> Outcome {
    let server = Server::start(&["--reader-grace", "1s"])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    // As events, and as plain answers of both routes.
    let body = json!({"command": UNTIL_GO, "id": "events"});
    let mut events = server.events("POST", &path, Some(&body), None).await?;
    events.until("stdout").await?;
    drop(events);
    let body = json!({"command": UNTIL_GO, "id": "plain"});
    let waiting = async { server.post(&path, &body).await };
    let _ = tokio::time::timeout(Duration::from_millis(500), waiting).await;
    let code = json!({"code": "import time\nx = 7\nwhile True: time.sleep(0.01)"});
    let call = json!({"tool": "code_execution", "input": code});
    let exec = format!("/sessions/{id}/exec");
    let waiting = async { server.post(&exec, &call).await };
    let _ = tokio::time::timeout(Duration::from_millis(500), waiting).await;
    for job in ["events", "plain"] {
        let end = ended(&server, &id, job).await?;
        assert_eq!(end["certificate"]["cause"], "cancelled", "{end}");
    }
    // The call was interrupted, and its variables are there.
    assert_eq!(server.code(&id, "print(x)").await?["stdout"], "7");
    Ok(())
}

#[tokio::test]
async fn a_reader_that_comes_back_in_time_finds_its_job() -> Outcome {
    let server = Server::start(&["--reader-grace", "3s"])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let body = json!({"command": UNTIL_GO, "id": "job"});
    let mut events = server.events("POST", &path, Some(&body), None).await?;
    let seen = events.until("stdout").await?;
    let mut second = server
        .events("GET", &format!("{path}/job/events"), None, None)
        .await?;
    second.until("stdout").await?;
    // With one reader left nothing begins; without any the grace does, and it ends with the next.
    drop(events);
    grace_passes(&server, &id, "first").await?;
    assert_eq!(state(&server, &id, "job").await?, "running");
    drop(second);
    let last = &seen.last().ok_or("nothing seen")?.id;
    let mut events = server
        .events("GET", &format!("{path}/job/events"), None, Some(last))
        .await?;
    grace_passes(&server, &id, "second").await?;
    server.bash(&id, "touch go").await?;
    let all = events.until("done").await?;
    assert_eq!(names(&all), ["started", "stdout", "done"]);
    assert_eq!(
        (&all[1].data["text"], &all[2].data["return_code"]),
        (&json!("over\n"), &json!(0))
    );
    Ok(())
}

#[tokio::test]
async fn what_was_detached_runs_on() -> Outcome {
    let server = Server::start(&["--reader-grace", "0s"])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let body = json!({"command": UNTIL_GO, "id": "job", "detach": true});
    let (status, job) = server.post(&path, &body).await?;
    assert_eq!(
        (status, &job["state"], &job["detached"]),
        (201, &json!("running"), &json!(true))
    );
    // Readers come and go, also one that only waits.
    let mut events = server
        .events("GET", &format!("{path}/job/events"), None, None)
        .await?;
    events.until("stdout").await?;
    drop(events);
    let (_, waited) = server
        .get(&format!("{path}/job/wait?timeout_seconds=0.1"))
        .await?;
    assert_eq!(waited["state"], "running");
    grace_passes(&server, &id, "control").await?;
    assert_eq!(state(&server, &id, "job").await?, "running");
    server.bash(&id, "touch go").await?;
    let end = ended(&server, &id, "job").await?;
    assert_eq!(
        (&end["return_code"], &end["certificate"]),
        (&json!(0), &Value::Null)
    );
    Ok(())
}

#[tokio::test]
async fn the_loss_of_the_server_cancels_nothing() -> Outcome {
    let args = ["--reader-grace", "0s"];
    let mut server = Server::start(&args)?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let body = json!({"command": UNTIL_GO, "id": "job"});
    let mut events = server.events("POST", &path, Some(&body), None).await?;
    events.until("stdout").await?;
    server.kill()?;
    let server = Server::start_on(&server.state, &args, &[])?;
    grace_passes(&server, &id, "control").await?;
    assert_eq!(state(&server, &id, "job").await?, "running");
    server.bash(&id, "touch go").await?;
    let end = ended(&server, &id, "job").await?;
    assert_eq!(
        (&end["return_code"], &end["certificate"]),
        (&json!(0), &Value::Null)
    );
    Ok(())
}

/// Reads a job's events with a key until it has said something, and goes away.
async fn glance(server: &Server, key: &str, path: &str, start: Option<&Value>) -> Outcome {
    let client = bearer(key)?;
    let url = format!("{}{path}", server.url);
    let request = match start {
        Some(body) => client.post(url).json(body),
        None => client.get(url),
    };
    let mut answer = request.header("accept", "text/event-stream").send().await?;
    assert_eq!(answer.status(), 200);
    let mut seen = String::new();
    while !seen.contains("event: stdout") {
        let more = answer.chunk().await?.ok_or("no output")?;
        seen += &String::from_utf8_lossy(&more);
    }
    Ok(())
}

#[tokio::test]
async fn who_may_only_look_decides_nothing() -> Outcome {
    let args = ["--reader-grace", "0s"];
    let (mut server, key) = Server::start_with_key(&args)?;
    let looker = ringfence_http_tests::key(&server.state, "looker", &["--scope", "read"])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    // A job that lost its reader with the server, which cancels nothing.
    let mut stream = bearer(&key)?
        .post(format!("{}{path}", server.url))
        .header("accept", "text/event-stream")
        .json(&json!({"command": UNTIL_GO, "id": "job"}))
        .send()
        .await?;
    assert!(stream.chunk().await?.is_some());
    server.kill()?;
    let state_dir = server.state.clone();
    let mut server = Server::start_on(&state_dir, &args, &[])?;
    server.http = bearer(&key)?;
    let events = format!("{path}/job/events");
    glance(&server, &looker, &events, None).await?;
    // Meanwhile the grace of another one passes.
    let control = json!({"command": UNTIL_GO, "id": "control"});
    glance(&server, &key, &path, Some(&control)).await?;
    let cancelled = json!("cancelled");
    assert_eq!(
        ended(&server, &id, "control").await?["certificate"]["cause"],
        cancelled
    );
    assert_eq!(state(&server, &id, "job").await?, "running");
    // Somebody else who comes and goes decides it.
    glance(&server, &key, &events, None).await?;
    assert_eq!(
        ended(&server, &id, "job").await?["certificate"]["cause"],
        cancelled
    );
    Ok(())
}

#[tokio::test]
async fn fifty_streams_at_once() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let one = async |n: usize| -> Outcome {
        let command = format!("for i in $(seq 200); do echo {n}-$i; done");
        let body = json!({"command": command});
        let mut events = server.events("POST", &path, Some(&body), None).await?;
        let mut gathered = Gathered::default();
        for got in events.until("done").await? {
            gathered.take(&got)?;
        }
        let expected: String = (1..=200).map(|i| format!("{n}-{i}\n")).collect();
        assert_eq!(String::from_utf8(gathered.stdout)?, expected);
        Ok(())
    };
    let all = futures_util::future::join_all((0..50).map(one)).await;
    all.into_iter().collect()
}

/// Resident bytes of the server.
fn resident(server: &Server) -> Outcome<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", server.pid()))?;
    let pages: u64 = text.split(' ').nth(1).ok_or("no pages")?.parse()?;
    Ok(pages * 4096)
}

/// Asks for events and reads no more than a first few bytes of them. The system holds little of
/// the rest on the way.
async fn stalled(server: &Server, path: &str, body: &Value) -> Outcome<tokio::net::TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    let host = server.url.replace("http://", "");
    let mut stream = socket.connect(host.parse()?).await?;
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut begin = [0; 12];
    stream.read_exact(&mut begin).await?;
    assert_eq!(&begin, b"HTTP/1.1 200");
    Ok(stream)
}

#[tokio::test]
async fn slow_readers_cost_no_memory_and_stop_nobody() -> Outcome {
    const READERS: u64 = 12;
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let before = resident(&server)?;
    // Output that goes on for as long as the test; nobody reads on after the first of it.
    let mut readers = Vec::new();
    for n in 0..READERS {
        let body = json!({"command": "yes 'some words to fill a line'", "id": format!("r{n}")});
        readers.push(stalled(&server, &path, &body).await?);
    }
    // All of them have produced far more than may wait for its reader.
    loop {
        let (_, list) = server.get(&path).await?;
        let jobs = list["jobs"].as_array().ok_or("no list")?;
        if jobs.len() as u64 == READERS
            && jobs
                .iter()
                .all(|job| job["stdout_bytes"].as_u64() > Some(8 << 20))
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(server.code(&id, "print(1)").await?["stdout"], "1");
    assert_eq!(readers.len() as u64, READERS);
    let grown = resident(&server)?.saturating_sub(before);
    assert!(grown < READERS * (2 << 20), "grown by {grown} bytes");
    Ok(())
}

#[tokio::test]
async fn a_session_that_ends_says_so_in_its_streams() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/jobs");
    let body = json!({"command": UNTIL_GO});
    let mut events = server.events("POST", &path, Some(&body), None).await?;
    events.until("stdout").await?;
    let plain = async { server.post(&path, &body).await };
    let call = json!({"tool": "bash_code_execution", "input": {"command": UNTIL_GO}});
    let exec = format!("/sessions/{id}/exec");
    let call = async { server.post(&exec, &call).await };
    let remove = async {
        // Until all of them run.
        loop {
            let (_, list) = server.get(&path).await?;
            let begun = |job: &Value| job["stdout_bytes"].as_u64() > Some(0);
            let jobs = list["jobs"].as_array().ok_or("no list")?;
            if jobs.iter().filter(|job| begun(job)).count() == 3 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        server.ask("DELETE", &format!("/sessions/{id}"), None).await
    };
    let (plain, call, removed) = tokio::join!(plain, call, remove);
    assert_eq!(removed?.0, 204);
    let (status, plain) = plain?;
    assert_eq!((status, &plain["code"]), (404, &json!("not_found")));
    assert!(
        plain["detail"]
            .as_str()
            .ok_or("no words")?
            .contains("ended while this ran")
    );
    let (status, call) = call?;
    assert_eq!(status, 200);
    assert_eq!(call["result_block"]["content"]["error_code"], "unavailable");
    let all = events.until("failure").await?;
    let words = &all.last().ok_or("nothing")?.data["detail"];
    assert!(
        words
            .as_str()
            .ok_or("no words")?
            .contains("ended while this ran"),
        "{words}"
    );
    Ok(())
}
