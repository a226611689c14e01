//! The socket that code in the sandbox calls tools on, used as its module never would.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]
mod support;

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use ringfence_proto::{TOOL_CALLS, TOOL_INPUT_LIMIT, TOOL_REPLY_LIMIT, ToolCall, ToolEvent};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use support::{Client, Guest, PATIENCE, full, private_memory};

/// Installs the tool `f`; where the socket is.
async fn install(client: &Client) -> PathBuf {
    let request = json!({"tools": [{"name": "f", "doc": "Does it."}], "timeout_ms": 60_000});
    let (status, body) = client.call(Method::PUT, "/tools", &request).await;
    assert_eq!(status, 200, "{body:?}");
    let info: ringfence_proto::ToolsInfo = serde_json::from_slice(&body).unwrap();
    let stub = PathBuf::from(info.stub_path);
    stub.ancestors().nth(2).unwrap().join("socket")
}

fn frame(body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// Says this and waits for all that comes back.
async fn say(socket: &Path, bytes: Vec<u8>) -> Vec<u8> {
    let socket = socket.to_owned();
    let talk = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(socket).unwrap();
        // It may be refused before it is read.
        let _ = stream.write_all(&bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    });
    tokio::time::timeout(PATIENCE, talk).await.unwrap().unwrap()
}

async fn refusal(socket: &Path, bytes: Vec<u8>) -> String {
    let answer: Value = serde_json::from_slice(&say(socket, bytes).await).unwrap();
    assert_eq!(answer["is_error"], true);
    answer["content"].as_str().unwrap().to_owned()
}

struct Calls {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Calls {
    async fn open(client: &Client) -> Self {
        let body = full(Bytes::new());
        let answer = client.send(Method::GET, "/tools/calls", None, body).await;
        assert_eq!(answer.status(), 200);
        Self {
            body: answer.into_body(),
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self) -> ToolEvent {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).unwrap();
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame());
            let frame = frame.await.unwrap().unwrap().unwrap();
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    async fn call(&mut self) -> ToolCall {
        match self.next().await {
            ToolEvent::Call(call) => call,
            ToolEvent::Cancelled(id) => panic!("{id} was cancelled"),
        }
    }
}

#[tokio::test]
async fn nonsense_is_refused_in_words() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let socket = install(&client).await;
    let big = json!({"name": "f", "input": {"x": "y".repeat(TOOL_INPUT_LIMIT)}}).to_string();
    for (body, why) in [
        (&b""[..], "can't be read"),
        (b"{", "can't be read"),
        (b"\xff\xfe", "can't be read"),
        (
            b"{\"name\":\"f\",\"input\":{\"x\":\"\xff\"}}",
            "can't be read",
        ),
        (b"{\"name\":\"f\"}", "can't be read"),
        (b"{\"name\":\"f\",\"input\":{},\"id\":1}", "can't be read"),
        (b"{\"name\":\"f\",\"input\":[]}", "not an object"),
        (b"{\"name\":\"f\",\"input\":null}", "not an object"),
        (b"{\"name\":\"g\",\"input\":{}}", "no tool g"),
        (big.as_bytes(), "over 1048576 bytes"),
    ] {
        let message = refusal(&socket, frame(body)).await;
        assert!(message.contains(why), "{message}");
    }
    // A length that nobody sends, and one that is not kept.
    let message = refusal(&socket, vec![0xff; 64]).await;
    assert!(message.contains("over 1048576 bytes"), "{message}");
    drop(
        UnixStream::connect(&socket)
            .unwrap()
            .write_all(&[9, 0, 0, 0, b'{']),
    );
    drop(UnixStream::connect(&socket).unwrap().write_all(&[9]));
    // None of it has reached the host.
    let mut calls = Calls::open(&client).await;
    let good = frame(br#"{"name":"f","input":{"good":1}}"#);
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(&good).unwrap();
    assert_eq!(calls.call().await.input.get(), r#"{"good":1}"#);
}

#[tokio::test]
async fn what_code_writes_stays_one_line_of_one_call() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let socket = install(&client).await;
    let mut calls = Calls::open(&client).await;
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(400_000), "]".repeat(400_000));
    for (input, want) in [
        ("{\n\"a\":\r\n1}\n{", None),
        ("{\n\"a\":\r\n1}", Some("{ \"a\":  1}".to_owned())),
        (
            r#"{"a":"\n{\"cancelled\":\"x\"}\n","b":1e999,"c":"\ud800"}"#,
            None,
        ),
        (deep.as_str(), Some(deep.clone())),
    ] {
        let body = format!("{{\"name\":\"f\",\"input\":{input}}}");
        if input.ends_with('{') {
            assert!(
                refusal(&socket, frame(body.as_bytes()))
                    .await
                    .contains("read")
            );
            continue;
        }
        let waiting = tokio::spawn({
            let socket = socket.clone();
            async move { say(&socket, frame(body.as_bytes())).await }
        });
        let call = calls.call().await;
        assert_eq!(call.input.get(), want.unwrap_or_else(|| input.to_owned()));
        let path = format!("/tools/calls/{}", call.id);
        let reply = json!({"content": [1, null], "is_error": false});
        assert_eq!(client.call(Method::POST, &path, &reply).await.0, 204);
        let answer: Value = serde_json::from_slice(&waiting.await.unwrap()).unwrap();
        assert_eq!(answer, reply);
        assert_eq!(client.call(Method::POST, &path, &reply).await.0, 404);
    }
    let large = full(Bytes::from(vec![b' '; TOOL_REPLY_LIMIT + 1]));
    let answer = client
        .send(Method::POST, "/tools/calls/x", None, large)
        .await;
    assert_eq!(answer.status(), 413);
    let odd = json!({"content": 1, "more": 2});
    let (status, _) = client.call(Method::POST, "/tools/calls/x", &odd).await;
    assert_eq!(status, 422);
}

#[tokio::test]
async fn those_who_say_nothing_are_in_nobodys_way() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let socket = install(&client).await;
    let before = private_memory(guest.pid());
    let mut calls = Calls::open(&client).await;
    // As many as may be connected: each announces much and sends little.
    let mut silent = Vec::new();
    for _ in 0..100 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream
            .write_all(&(TOOL_INPUT_LIMIT as u32).to_le_bytes())
            .unwrap();
        silent.push(stream);
    }
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream
        .write_all(&frame(br#"{"name":"f","input":{}}"#))
        .unwrap();
    let id = calls.call().await.id;
    drop(stream);
    assert!(matches!(calls.next().await, ToolEvent::Cancelled(gone) if gone == id));
    for _ in 0..28 {
        silent.push(UnixStream::connect(&socket).unwrap());
    }
    let message = refusal(&socket, Vec::new()).await;
    assert!(message.contains("128 callers"), "{message}");
    let now = private_memory(guest.pid());
    assert!(now < before + (8 << 20), "{before} bytes became {now}");
    // They are sent away, in words, after a while.
    for mut stream in silent {
        tokio::task::spawn_blocking(move || {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("too long"), "{answer}");
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn calls_at_a_time_are_counted() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let socket = install(&client).await;
    let mut calls = Calls::open(&client).await;
    let call = || frame(br#"{"name":"f","input":{}}"#);
    let mut open = Vec::new();
    for _ in 0..TOOL_CALLS {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&call()).unwrap();
        calls.call().await;
        open.push(stream);
    }
    let message = refusal(&socket, call()).await;
    assert!(message.contains("64 calls"), "{message}");
    drop(open);
    for _ in 0..TOOL_CALLS {
        assert!(matches!(calls.next().await, ToolEvent::Cancelled(_)));
    }
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(&call()).unwrap();
    calls.call().await;
}

#[tokio::test]
async fn a_flood_of_connections_starves_nobody() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    let socket = install(&client).await;
    let code = "import socket, sys\n\
        while True:\n    \
            c = socket.socket(socket.AF_UNIX)\n    \
            try: c.connect(sys.argv[1]); c.send(b'\\xff' * 8)\n    \
            except OSError: pass\n    \
            c.close()";
    let mut floods = Vec::new();
    for _ in 0..2 {
        let argv = json!(["python3", "-c", code, socket]);
        floods.push(client.job(json!({"command": {"argv": argv}})).await.id);
    }
    for _ in 0..20 {
        let answer = client.shell("echo here");
        let answer = tokio::time::timeout(PATIENCE, answer).await.unwrap();
        assert_eq!(&*answer.stdout.data.text(), "here\n");
    }
    for flood in floods {
        assert_eq!(client.delete(&flood).await, 204);
    }
}

#[tokio::test]
async fn an_interrupted_call_is_over_also_when_a_fork_has_the_socket() {
    let guest = Guest::start().await;
    let client = guest.connect().await;
    install(&client).await;
    let mut calls = Calls::open(&client).await;
    let code = "import os, threading, time\n\
        from _platform_tools import f\n\
        def fork():\n    \
            time.sleep(0.3)\n    \
            if os.fork() == 0:\n        \
                time.sleep(1000)\n        \
                os._exit(0)\n\
        threading.Thread(target=fork, daemon=True).start()\n\
        f()";
    let run = json!({"code": code, "timeout_ms": 1000});
    let done = client.try_post("/kernels/main/run", run);
    let (done, id) = tokio::join!(done, async { calls.call().await.id });
    done.unwrap();
    assert!(matches!(calls.next().await, ToolEvent::Cancelled(gone) if gone == id));
    // The kernel that was interrupted calls again.
    let run = client.try_post("/kernels/main/run", json!({"code": "f(n=1)"}));
    let (done, ()) = tokio::join!(run, async {
        let id = calls.call().await.id;
        let path = format!("/tools/calls/{id}");
        let reply = json!({"content": 42});
        assert_eq!(client.call(Method::POST, &path, &reply).await.0, 204);
    });
    let done: ringfence_proto::ExecResult = serde_json::from_slice(&done.unwrap()).unwrap();
    assert_eq!(done.results[0].data["text/plain"], "42");
}
