//! Jobs that outlive the request that started them, and terminals.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may fail loudly"
)]
mod support;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use ringfence_proto::{Cause, Code, Event, ExecResult, Exit, JobInfo, JobState};
use serde_json::{Value, json};
use support::{Guest, marker, until, with_argument};

#[tokio::test]
async fn a_job_is_started_listed_waited_for_and_removed() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let info = client
        .job(json!({"command": {"shell": "echo a; read x; echo b >&2; exit 3"}, "stdin": "stream", "id": "one"}))
        .await;
    assert_eq!((info.id.as_str(), &info.state), ("one", &JobState::Running));
    assert!(info.pid > 1);
    let failure = client
        .try_post("/jobs", json!({"command": {"argv": ["true"]}, "id": "one"}))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::AlreadyExists);
    let (status, _) = client
        .call(Method::GET, "/jobs/one/result", &Value::Null)
        .await;
    assert_eq!(status, 409);
    let listed: Vec<JobInfo> = client.get("/jobs").await;
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].command, "echo a; read x; echo b >&2; exit 3");
    let early: JobInfo = client.get("/jobs/one/wait?timeout_ms=1").await;
    assert_eq!(early.state, JobState::Running);
    client
        .try_post("/jobs/one/stdin", json!("x"))
        .await
        .unwrap();
    let info = client.wait("one").await;
    assert!(matches!(info.state, JobState::Ended(end) if end.exit == Exit::Code(3)));
    let result = client.result("one").await;
    assert_eq!(
        (&*result.stdout.data.text(), &*result.stderr.data.text()),
        ("a\n", "b\n")
    );
    let result: ExecResult = client.get("/jobs/one/result?output_limit=1").await;
    assert_eq!((&*result.stdout.data.text(), result.stdout.total), ("a", 2));
    assert_eq!(client.delete("one").await, 204);
    assert_eq!(client.delete("one").await, 404);
    for path in [
        "/jobs/one",
        "/jobs/one/events",
        "/jobs/one/wait",
        "/jobs/one/result",
    ] {
        assert_eq!(
            client.call(Method::GET, path, &Value::Null).await.0,
            404,
            "{path}"
        );
    }
    assert_eq!(
        client.call(Method::PUT, "/jobs/one", &Value::Null).await.0,
        404
    );
}

#[tokio::test]
async fn output_is_read_again_from_any_position() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    client
        .job(json!({"command": {"shell": "printf 0123456789; printf abc >&2"}, "id": "o", "output_limit": 4}))
        .await;
    client.wait("o").await;
    for _ in 0..2 {
        let events = client
            .events("/jobs/o/events?stdout=2&stderr=1")
            .await
            .all()
            .await;
        assert_eq!(
            events[0],
            Event::Started {
                id: "o".into(),
                detached: false
            }
        );
        let mut out = Vec::new();
        for event in &events {
            if let Event::Stdout { offset, data } = event {
                assert_eq!(*offset, 2 + out.len() as u64);
                out.extend_from_slice(&data.0);
            }
        }
        assert_eq!(out, b"23456789");
        assert!(events.contains(&Event::Stderr {
            offset: 1,
            data: "bc".into()
        }));
        assert!(matches!(events.last(), Some(Event::End(_))));
    }
    let events = client
        .events("/jobs/o/events?stdout=99&stderr=99")
        .await
        .all()
        .await;
    assert_eq!(events.len(), 2);
    for bad in ["stdout=-1", "stdout=x", "other=1"] {
        let path = format!("/jobs/o/events?{bad}");
        assert_eq!(
            client.call(Method::GET, &path, &Value::Null).await.0,
            422,
            "{bad}"
        );
    }
}

#[tokio::test]
async fn a_reader_that_comes_late_learns_what_is_gone() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    // 10 MiB of numbered lines, eight bytes each.
    client
        .job(json!({"command": {"argv": ["seq", "-f", "%07.0f", "1310720"]}, "id": "long", "output_limit": 1000}))
        .await;
    client.wait("long").await;
    let events = client.events("/jobs/long/events").await.all().await;
    let total: u64 = 10 << 20;
    let oldest = total - (4 << 20);
    assert!(events.contains(&Event::Skipped {
        stream: "stdout".into(),
        from: 1000,
        to: oldest
    }));
    let mut tail = Vec::new();
    for event in events {
        match event {
            Event::Stdout { offset, data } if offset >= oldest => {
                assert_eq!(offset, oldest + tail.len() as u64);
                tail.extend_from_slice(&data.0);
            }
            _ => {}
        }
    }
    assert_eq!(tail.len(), 4 << 20);
    for (n, line) in (oldest / 8 + 1..).zip(tail.chunks(8)) {
        assert_eq!(line, format!("{n:07}\n").as_bytes());
    }
}

#[tokio::test]
async fn two_readers_follow_one_job() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    client
        .job(json!({"command": {"argv": ["cat"]}, "stdin": "stream", "id": "two"}))
        .await;
    let mut first = client.events("/jobs/two/events?follow=true").await;
    let mut second = client.events("/jobs/two/events?follow=true").await;
    first.next().await.unwrap();
    second.next().await.unwrap();
    client
        .send(
            Method::POST,
            "/jobs/two/stdin",
            None,
            support::full("hello".into()),
        )
        .await;
    for events in [first, second] {
        let rest = events.all().await;
        assert_eq!(
            rest[0],
            Event::Stdout {
                offset: 0,
                data: "hello".into()
            }
        );
        assert!(matches!(rest[1], Event::End(_)));
    }
}

#[tokio::test]
async fn signals_reach_the_command_or_all() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let text = "trap 'echo caught; exit 5' TERM; echo ready; while :; do read -t 1 x <> <(:); done";
    client
        .job(json!({"command": {"shell": text}, "id": "s"}))
        .await;
    let mut events = client.events("/jobs/s/events?follow=true").await;
    while !matches!(events.next().await, Some(Event::Stdout { .. })) {}
    for bad in ["", "NOPE", "0", "65", "-9"] {
        let failure = client
            .try_post("/jobs/s/signal", json!({"signal": bad}))
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::InvalidInput, "{bad}");
    }
    client
        .try_post("/jobs/s/signal", json!({"signal": "TERM"}))
        .await
        .unwrap();
    let result = client.result("s").await;
    assert_eq!(result.stdout.data.text(), "ready\ncaught\n");
    assert_eq!(result.end.exit, Exit::Code(5));
    let failure = client
        .try_post("/jobs/s/signal", json!({"signal": "9"}))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::Conflict);

    let mark = marker();
    let text = format!("setsid sleep {mark} & sleep {mark}");
    client
        .job(json!({"command": {"shell": text}, "id": "all"}))
        .await;
    until("both sleep", || with_argument(&mark).len() == 2).await;
    client
        .try_post(
            "/jobs/all/signal",
            json!({"signal": "sigkill", "all": true}),
        )
        .await
        .unwrap();
    let result = client.result("all").await;
    assert_eq!(result.end.certificate.unwrap().cause, Cause::Cancelled);
    until("both are gone", || with_argument(&mark).is_empty()).await;
}

#[tokio::test]
async fn what_is_left_running_goes_on_and_is_heard() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let text = "(while [ ! -e go ]; do sleep 0.01; done; echo late) & echo early";
    client
        .job(json!({"command": {"shell": text}, "id": "left"}))
        .await;
    let result = client.result("left").await;
    assert_eq!(result.stdout.data.text(), "early\n");
    assert!(result.end.left_running >= 1, "{:?}", result.end);
    std::fs::write(guest.workspace().join("go"), "").unwrap();
    loop {
        let info: JobInfo = client.get("/jobs/left").await;
        if info.stdout_bytes == 11 {
            break;
        }
    }
    let events = client
        .events("/jobs/left/events?stdout=6")
        .await
        .all()
        .await;
    assert_eq!(
        events[1],
        Event::Stdout {
            offset: 6,
            data: "late\n".into()
        }
    );

    // The same below `exec`, which has no job afterwards: it must not get SIGPIPE.
    let text = "(while [ ! -e go2 ]; do sleep 0.01; done; echo late && touch written) & echo early";
    let result = client.shell(text).await;
    assert!(result.end.left_running >= 1);
    std::fs::write(guest.workspace().join("go2"), "").unwrap();
    until("it has written", || {
        guest.workspace().join("written").exists()
    })
    .await;

    // Removing a job ends what it left behind.
    let mark = marker();
    client
        .job(json!({"command": {"shell": format!("sleep {mark} &")}, "id": "gone"}))
        .await;
    client.wait("gone").await;
    assert_eq!(with_argument(&mark).len(), 1);
    client.delete("gone").await;
    until("it is gone", || with_argument(&mark).is_empty()).await;
}

#[tokio::test]
async fn old_ended_jobs_make_room() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    for n in 0..260 {
        client
            .job(json!({"command": {"argv": ["true"]}, "id": format!("n{n}")}))
            .await;
        client.wait(&format!("n{n}")).await;
    }
    let listed: Vec<JobInfo> = client.get("/jobs").await;
    assert_eq!(listed.len(), 257);
    assert_eq!(listed[0].id, "n3");
}

#[tokio::test]
async fn a_terminal_echoes_resizes_and_ends() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    client
        .job(json!({
            "command": {"shell": "tty -s && echo yes $TERM; stty size; trap 'stty size' WINCH; while read x; do echo got $x; done"},
            "pty": {"rows": 24, "cols": 80},
            "id": "t",
        }))
        .await;
    let (sender, body) = support::channel();
    let response = client
        .send(Method::POST, "/jobs/t/attach", None, body)
        .await;
    assert_eq!(response.status(), 200);
    let mut output = response.into_body();
    let mut seen = String::new();
    async fn expect(output: &mut hyper::body::Incoming, seen: &mut String, text: &str) {
        while !seen.contains(text) {
            let frame = output.frame().await.expect(seen).unwrap();
            seen.push_str(&String::from_utf8_lossy(&frame.into_data().unwrap()));
        }
    }
    expect(&mut output, &mut seen, "yes xterm-256color\r\n24 80\r\n").await;
    sender.send(Bytes::from("hello\n")).await.unwrap();
    expect(&mut output, &mut seen, "hello\r\ngot hello\r\n").await;
    client
        .try_post("/jobs/t/resize", json!({"rows": 30, "cols": 100}))
        .await
        .unwrap();
    // The shell looks at its signals between commands.
    sender.send(Bytes::from("x\n")).await.unwrap();
    expect(&mut output, &mut seen, "30 100\r\n").await;
    let failure = client
        .try_post("/jobs/t/resize", json!({"rows": 0, "cols": 1}))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::InvalidInput);
    sender.send(Bytes::from_static(b"\x04")).await.unwrap();
    while let Some(frame) = output.frame().await {
        frame.unwrap();
    }
    let result = client.result("t").await;
    assert_eq!(result.end.exit, Exit::Code(0));
    let failure = client
        .try_post("/jobs/t/resize", json!({"rows": 3, "cols": 1}))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::Conflict);
}

#[tokio::test]
async fn control_c_ends_what_runs_in_a_terminal() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let mark = marker();
    client
        .job(json!({"command": {"argv": ["sleep", mark]}, "pty": {"rows": 24, "cols": 80}, "id": "c"}))
        .await;
    let (sender, body) = support::channel();
    let response = client
        .send(Method::POST, "/jobs/c/attach", None, body)
        .await;
    sender.send(Bytes::from_static(b"\x03")).await.unwrap();
    let output = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&output[..], b"^C");
    assert_eq!(client.result("c").await.end.exit, Exit::Signal(2));
}

#[tokio::test]
async fn health_counts_running_jobs() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    client
        .job(json!({"command": {"argv": ["cat"]}, "stdin": "stream", "id": "h"}))
        .await;
    let health: ringfence_proto::Health = client.get("/health").await;
    assert_eq!((health.jobs, health.pid), (1, guest.pid()));
    client.delete("h").await;
    let health: ringfence_proto::Health = client.get("/health").await;
    assert_eq!(health.jobs, 0);
}

#[tokio::test]
async fn a_terminal_that_is_left_with_unread_input_does_not_spin() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let job = client
        .job(json!({"command": {"shell": "stty raw -echo; echo ready; sleep 1000"}, "pty": {"rows": 9, "cols": 9}}))
        .await;
    let input = support::full(Bytes::from(vec![b'x'; 1 << 20]));
    let path = format!("/jobs/{}/attach", job.id);
    let mut answer = client.send(Method::POST, &path, None, input).await;
    let mut text = Vec::new();
    while !text.ends_with(b"ready\n") {
        text.extend(answer.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    let signal = json!({"signal": "KILL", "all": true});
    client
        .try_post(&format!("/jobs/{}/signal", job.id), signal)
        .await
        .unwrap();
    let rest = answer.into_body().collect();
    tokio::time::timeout(support::PATIENCE, rest)
        .await
        .expect("the guest hangs")
        .unwrap();
    assert!(matches!(
        client.wait(&job.id).await.state,
        JobState::Ended(_)
    ));
    assert_eq!(
        &*client.shell("echo here").await.stdout.data.text(),
        "here\n"
    );
}

/// What is kept of jobs is a small part of the sandbox's memory, whatever they print.
#[tokio::test]
async fn a_small_sandbox_keeps_little_output() {
    let guest = Guest::start_with(&["--memory-limit", "33554432"]).await;
    let client = guest.connect().await;
    let print = json!({"argv": ["head", "-c", "3000000", "/dev/zero"]});
    let ids = ["one", "two", "three", "four", "five"];
    for id in ids {
        client
            .job(json!({"command": print, "id": id, "output_limit": 1000}))
            .await;
        client.wait(id).await;
    }
    let events = client.events("/jobs/five/events").await.all().await;
    assert!(events.contains(&Event::Skipped {
        stream: "stdout".into(),
        from: 1000,
        to: 3_000_000 - (1 << 20),
    }));
    // Of those that had ended when the last began, as many as fit into 4 MiB.
    let left: Vec<JobInfo> = client.get("/jobs").await;
    let left: Vec<&str> = left.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(left, ids[1..]);
}
