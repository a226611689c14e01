//! Kernels by name: their turns, their start, and the interpreters that they run on.

use crate::support::{Guest, PATIENCE, full, marker, until, with_argument};
use crate::{err, good, out, put, run, run_events, try_run, value};
use http::Method;
use ringfence_proto::{Cause, Code, Ended, Event, Exit, KernelInfo};
use serde_json::{Value, json};
use std::path::PathBuf;

#[tokio::test]
async fn calls_of_one_kernel_take_turns() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let code = "print('runs')\nimport os\nwhile not os.path.exists('go'): pass\nlog = ['first']";
    let mut first = run_events(&client, json!({"code": code})).await;
    while !matches!(first.next().await, Some(Event::Stdout { .. })) {}
    let queued = |code: &'static str, id: &'static str| {
        let request = json!({"code": code, "id": id, "on_disconnect": "keep", "timeout_ms": 5_000});
        async { try_run(&client, "main", request).await.unwrap() }
    };
    let second = queued("log.append('second'); print(log)", "two");
    let taken_back = queued("log.append('never')", "never");
    let third = queued("log.append('third'); print(log)", "three");
    let rest = async {
        // All of them wait; one is taken back before its turn.
        for id in ["two", "never", "three"] {
            let path = format!("/jobs/{id}");
            while client.call(Method::GET, &path, &Value::Null).await.0 != 200 {}
        }
        assert_eq!(client.delete("never").await, 204);
        let info: KernelInfo = client.get("/kernels/main").await;
        assert!(info.busy);
        std::fs::write(guest.workspace().join("go"), "").unwrap();
        first.all().await
    };
    let (second, never, third, _) = tokio::join!(second, taken_back, third, rest);
    assert_eq!(out(&second), "['first', 'second']\n");
    assert_eq!(never.end.exit, Exit::Lost);
    assert_eq!(never.end.certificate.unwrap().cause, Cause::Cancelled);
    assert_eq!(out(&third), "['first', 'second', 'third']\n");
}

#[tokio::test]
async fn calls_have_short_turns_of_the_processor_until_they_are_long() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    // `sched_getattr` of the caller; a turn's nanoseconds are its fourth word.
    let turn = "import ctypes, platform\n\
        def turn():\n    \
            attr, call = (ctypes.c_uint64 * 6)(), 315 if platform.machine() == 'x86_64' else 275\n    \
            assert ctypes.CDLL(None).syscall(call, 0, attr, 48, 0) == 0\n    \
            return attr[3]\n";
    let short = good(&client, &format!("{turn}print(turn())")).await;
    if short == "0\n" {
        // Linux before 6.12 neither tells nor sets them.
        return;
    }
    assert_eq!(short, "100000\n");
    let wait = "import time\nend = time.monotonic() + 20\n\
        while turn() == 100_000 and time.monotonic() < end: time.sleep(0.01)\nprint(turn())";
    let usual = good(&client, wait).await;
    assert_ne!(usual, short, "a long call");
    assert_eq!(good(&client, "print(turn())").await, short, "the next one");
    let command = json!({"argv": ["python3", "-c", format!("{turn}print(turn())")]});
    let result = client.exec(json!({"command": command})).await;
    assert_eq!(out(&result), short, "a command");
}

#[tokio::test]
async fn kernels_have_names() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let info = put(&client, "a", json!({"env": {"WHO": "a"}}))
        .await
        .unwrap();
    assert_eq!((info.name.as_str(), info.generation), ("a", 1));
    assert_eq!(put(&client, "a", json!({})).await.unwrap(), info);
    let code = "import os\nx = os.environ.get('WHO')\nprint(x)";
    for (name, expected) in [("a", "a\n"), ("b", "None\n")] {
        let result = try_run(&client, name, json!({"code": code})).await.unwrap();
        assert_eq!(out(&result), expected);
    }
    let all: Vec<KernelInfo> = client.get("/kernels").await;
    assert_eq!(
        all.iter().map(|k| k.name.as_str()).collect::<Vec<_>>(),
        ["a", "b"]
    );

    let code = "import atexit\natexit.register(lambda: open('left', 'w'))";
    try_run(&client, "a", json!({"code": code})).await.unwrap();
    assert_eq!(
        client
            .call(Method::DELETE, "/kernels/a", &Value::Null)
            .await
            .0,
        204
    );
    assert!(guest.workspace().join("left").exists());
    assert_eq!(
        client
            .call(Method::DELETE, "/kernels/a", &Value::Null)
            .await
            .0,
        404
    );
    assert_eq!(
        client.call(Method::GET, "/kernels/a", &Value::Null).await.0,
        404
    );

    // Removed in the middle of a call.
    let mut events = run_events(&client, json!({"code": "print(1)\nwhile True: pass"})).await;
    while !matches!(events.next().await, Some(Event::Stdout { .. })) {}
    assert_eq!(
        client
            .call(Method::DELETE, "/kernels/main", &Value::Null)
            .await
            .0,
        204
    );
    let Some(Event::End(end)) = events.all().await.pop() else {
        panic!()
    };
    assert_eq!(end.certificate.unwrap().cause, Cause::Cancelled);

    for bad in ["a.b", "%20", &"x".repeat(65)] {
        assert_eq!(
            put(&client, bad, json!({})).await.unwrap_err().code,
            Code::InvalidInput
        );
    }
    for n in 0..31 {
        try_run(&client, &format!("k{n}"), json!({"code": ""}))
            .await
            .unwrap();
    }
    let failure = try_run(&client, "more", json!({"code": ""}))
        .await
        .unwrap_err();
    assert_eq!(failure.code, Code::TooMany);
}

/// An interpreter that takes forever to start while there is a file `slow`.
fn slow_python(guest: &Guest, mark: &str) -> String {
    let path = guest.workspace().join("slow-python");
    let text = format!("#!/bin/sh\nif [ -e slow ]; then sleep {mark}; fi\nexec python3 \"$@\"\n");
    std::fs::write(&path, text).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_start_of_a_kernel_is_part_of_the_call() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let (mark, slow) = (marker(), guest.workspace().join("slow"));
    let python = slow_python(&guest, &mark);
    put(&client, "main", json!({"python": python}))
        .await
        .unwrap();
    std::fs::write(&slow, "").unwrap();
    run(&client, "import os; os._exit(1)").await;

    // Its time is over.
    let request = json!({"code": "open('ran', 'w')", "timeout_ms": 300});
    let result = try_run(&client, "main", request.clone()).await.unwrap();
    assert_eq!(result.end.exit, Exit::Lost);
    let certificate = result.end.certificate.unwrap();
    assert_eq!(
        (certificate.cause, certificate.ended),
        (Cause::WallClock, Ended::Kernel)
    );
    assert!(certificate.message.contains("started"), "{certificate}");
    assert!(result.end.duration_ms >= 300 && with_argument(&mark).is_empty());

    // Its caller goes away.
    let other = guest.connect().await;
    let request = json!({"code": "open('ran', 'w')", "on_disconnect": "cancel"});
    let call = tokio::spawn({
        let mut sender = other.sender.clone();
        let request = http::Request::post("http://guest/kernels/main/run")
            .body(full(request.to_string().into()))
            .unwrap();
        async move { sender.send_request(request).await.is_ok() }
    });
    until("it starts", || !with_argument(&mark).is_empty()).await;
    call.abort();
    other.hang_up();
    until("it is gone", || with_argument(&mark).is_empty()).await;

    // Its kernel is removed.
    let path = "/kernels/main/run";
    let call = client.try_post(path, json!({"code": "open('ran', 'w')"}));
    let delete = async {
        until("it starts", || !with_argument(&mark).is_empty()).await;
        client
            .call(Method::DELETE, "/kernels/main", &Value::Null)
            .await
    };
    let (call, (status, _)) = tokio::join!(call, delete);
    assert!(status.is_success() && with_argument(&mark).is_empty());
    assert_eq!(call.unwrap_err().code, Code::NotFound);

    assert!(!guest.workspace().join("ran").exists());
    assert_eq!(good(&client, "print('works')").await, "works\n");
}

#[tokio::test]
async fn a_kernel_that_nobody_waits_for_is_not_started() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let mark = marker();
    let python = slow_python(&guest, &mark);
    std::fs::write(guest.workspace().join("slow"), "").unwrap();
    let other = guest.connect().await;
    let ask = tokio::spawn({
        let mut sender = other.sender.clone();
        let request = http::Request::put("http://guest/kernels/main")
            .body(full(json!({"python": python}).to_string().into()))
            .unwrap();
        async move { sender.send_request(request).await.is_ok() }
    });
    until("it starts", || !with_argument(&mark).is_empty()).await;
    ask.abort();
    other.hang_up();
    until("it is gone", || with_argument(&mark).is_empty()).await;
    let deadline = std::time::Instant::now() + PATIENCE;
    while !client.get::<Vec<KernelInfo>>("/kernels").await.is_empty() {
        assert!(std::time::Instant::now() < deadline, "it is still listed");
    }
    assert_eq!(good(&client, "print('works')").await, "works\n");
}

#[tokio::test]
async fn without_python_the_rest_works() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let none = json!({"env": {"PATH": "/nonexistent"}});
    let failure = put(&client, "main", none).await.unwrap_err();
    assert_eq!(
        (failure.code, failure.message.as_str()),
        (Code::Missing, "no Python in this sandbox")
    );
    assert!(failure.hint.is_some());
    assert!(client.get::<Vec<KernelInfo>>("/kernels").await.is_empty());
    for (python, part) in [
        ("/no/python", "/no/python"),
        ("python9", "no python9"),
        ("/bin/true", "ended before"),
    ] {
        let failure = put(&client, "main", json!({"python": python}))
            .await
            .unwrap_err();
        assert_eq!(failure.code, Code::Missing);
        assert!(failure.message.contains(part), "{failure}");
    }
    assert_eq!(out(&client.shell("echo works").await), "works\n");
    assert_eq!(good(&client, "print('works')").await, "works\n");
}

/// Interpreters of this machine besides the first of the search path.
fn pythons() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir("/root/.pyenv/versions")
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.path().join("bin/python"))
                .collect()
        })
        .unwrap_or_default();
    found.push("/usr/bin/python3".into());
    found.retain(|path| path.exists());
    found.sort();
    found
}

#[tokio::test]
async fn every_python_from_3_8_on_works() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    for python in pythons() {
        let python = python.to_str().unwrap();
        let info = match put(&client, "k", json!({"python": python})).await {
            Ok(info) => info,
            Err(failure) => {
                assert_eq!(failure.code, Code::Missing);
                assert!(
                    failure.message.contains("the REPL needs 3.8 or later"),
                    "{failure}"
                );
                assert!(
                    ["2.7", "3.6", "3.7"]
                        .iter()
                        .any(|old| failure.message.contains(old))
                );
                continue;
            }
        };
        let run = async |code: &str| {
            try_run(&client, "k", json!({"code": code, "timeout_ms": 5000}))
                .await
                .unwrap()
        };
        assert_eq!(value(&run("x = 1\nx + 1").await), Some("2"), "{info:?}");
        let result = run("1/0").await;
        let text = err(&result);
        assert!(
            text.starts_with("Traceback (most recent call last):\n  File \"<cell 2>\""),
            "{text}"
        );
        assert!(text.contains("1/0") && !text.contains("kernel"), "{text}");
        assert_eq!(
            value(&run("import asyncio\nawait asyncio.sleep(0, 5)").await),
            Some("5")
        );
        let loops = json!({"code": "while True: pass", "timeout_ms": 100});
        let result = try_run(&client, "k", loops).await.unwrap();
        assert!(
            result.end.certificate.unwrap().survived.variables,
            "{info:?}"
        );
        assert_eq!(
            out(&run("import inspect\ndef f(): pass\nprint(x, inspect.getsource(f))").await),
            "1 def f(): pass\n\n"
        );
        client
            .call(Method::DELETE, "/kernels/k", &Value::Null)
            .await;
    }
}
