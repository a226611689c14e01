//! Traces, as a collector gets them.

use ringfence_http_tests::{Outcome, Server, ringfence};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|part| part == what)
}

/// One request to a collector: head and body.
async fn receive(listener: &TcpListener) -> Outcome<(String, Vec<u8>)> {
    let (mut stream, _) = listener.accept().await?;
    let mut bytes = Vec::new();
    loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).await?;
        bytes.extend_from_slice(&part[..read]);
        let Some(end) = find(&bytes, b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if bytes.len() >= end + 4 + length.unwrap_or(0) {
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .await?;
            return Ok((head, bytes[end + 4..].to_vec()));
        }
        assert!(read > 0, "cut off");
    }
}

#[tokio::test]
async fn a_collector_gets_a_span_for_each_request() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let mut server = Server::start(&["--otlp-endpoint", &endpoint])?;
    let id = server.session().await?;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let answer = server
        .http
        .post(format!("{}/sessions/{id}/exec", server.url))
        .header("traceparent", format!("00-{trace}-b7ad6b7169203331-01"))
        .json(&json!({"tool": "bash_code_execution", "input": {"command": "echo of the caller"}}))
        .send()
        .await?;
    assert_eq!(answer.status(), 200);
    // What is left is sent at the end.
    let stopped = tokio::task::spawn_blocking(move || server.stop().map(|s| s.success()));
    let wanted = b"POST /sessions/{session}/exec";
    let mut all = Vec::new();
    while find(&all, wanted).is_none() {
        let received = tokio::time::timeout(Duration::from_secs(60), receive(&listener));
        let (head, body) = received.await??;
        assert!(head.starts_with("post /v1/traces "), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        all.extend(body);
    }
    assert!(stopped.await??);
    for part in [
        id.as_bytes(),
        b"POST /sessions",
        b"http.route",
        b"bash",
        b"ringfence",
    ] {
        assert!(
            find(&all, part).is_some(),
            "{}",
            String::from_utf8_lossy(part)
        );
    }
    let trace: Vec<u8> = (0..16)
        .map(|n| u8::from_str_radix(&trace[2 * n..2 * n + 2], 16))
        .collect::<Result<_, _>>()?;
    assert!(find(&all, &trace).is_some(), "the caller's trace goes on");
    assert!(find(&all, b"of the caller").is_none(), "no code");
    Ok(())
}

#[tokio::test]
async fn a_collector_that_is_not_there_hurts_nobody() -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    drop(listener);
    let mut server = Server::start(&["--otlp-endpoint", &endpoint])?;
    let id = server.session().await?;
    assert_eq!(server.code(&id, "print(1)").await?["stdout"], "1");
    assert!(server.stop()?.success());
    Ok(())
}

#[test]
fn a_collector_behind_tls_is_refused_at_the_start() -> Outcome {
    let folder = tempfile::tempdir()?;
    let done = std::process::Command::new(ringfence())
        .args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--otlp-endpoint",
            "https://collector.example",
            "--state-dir",
        ])
        .arg(folder.path())
        .output()?;
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && said.contains("only http"),
        "{said}"
    );
    Ok(())
}
