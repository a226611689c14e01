//! Limits of requests and connections: each with a control just below it.

use ringfence_http_tests::{Outcome, Server, bearer, key, until};
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends bytes and gives what comes until the server closes.
async fn raw(server: &Server, bytes: &[u8]) -> Outcome<String> {
    let mut stream = TcpStream::connect(server.address()).await?;
    stream.write_all(bytes).await?;
    rest(&mut stream).await
}

/// What comes until the server closes; a reset is a close, too.
async fn rest(stream: &mut TcpStream) -> Outcome<String> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut bytes)).await;
    match read.map_err(|_| "the server does not close")? {
        Err(e) if e.kind() != std::io::ErrorKind::ConnectionReset => return Err(e.into()),
        _ => {}
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or("nothing")
}

#[tokio::test]
async fn bodies_and_headers_have_limits() -> Outcome {
    let server = Server::start(&["--max-body", "4k", "--max-headers", "8k"])?;
    let body = |size: usize| json!({"key": "k", "ignored": "x".repeat(size)});
    assert_eq!(server.post("/sessions", &body(3000)).await?.0, 201);
    let (code, answer) = server.post("/sessions", &body(5000)).await?;
    assert_eq!((code, &answer["code"]), (413, &json!("too_large")));
    let with = |headers: &str| {
        format!("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")
    };
    for (headers, expected) in [
        ("a: b\r\n".repeat(50), "200"),
        ("a: b\r\n".repeat(200), "431"),
        (format!("a: {}\r\n", "b".repeat(4000)), "200"),
        (format!("a: {}\r\n", "b".repeat(20_000)), "431"),
    ] {
        let answer = raw(&server, with(&headers).as_bytes()).await?;
        assert_eq!(
            status(&answer),
            expected,
            "{} bytes: {answer}",
            headers.len()
        );
    }
    assert_eq!(server.get("/health").await?.0, 200);
    Ok(())
}

#[tokio::test]
async fn rates_hold_for_each_key() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let slow = key(&state, "slow", &["--rate", "0.01"])?;
    let fast = key(&state, "fast", &["--rate", "1000000"])?;
    let server = Server::start_on(
        &state,
        &["--burst", "3", "--requests-per-second", "0.01"],
        &[],
    )?;
    let url = format!("{}/sessions", server.url);
    let ask = async |key: &str| -> Outcome<_> { Ok(bearer(key)?.get(&url).send().await?) };
    for _ in 0..3 {
        assert_eq!(ask(&slow).await?.status(), 200);
    }
    let refused = ask(&slow).await?;
    assert_eq!(refused.status(), 429);
    let wait: u64 = refused.headers()["retry-after"].to_str()?.parse()?;
    assert!((1..=100).contains(&wait), "{wait}");
    let body: serde_json::Value = refused.json().await?;
    assert_eq!(body["code"], "too_many");
    for _ in 0..20 {
        assert_eq!(ask(&fast).await?.status(), 200);
    }
    // Those who guess are counted by where they come from, and not for the owner of a key.
    for expected in [401, 401, 401, 429] {
        assert_eq!(server.get("/sessions").await?.0, expected);
    }
    assert_eq!(ask(&fast).await?.status(), 200);
    // Those who watch the server are not counted.
    for _ in 0..5 {
        assert_eq!(server.get("/health").await?.0, 200);
    }
    Ok(())
}

#[tokio::test]
async fn slow_clients_are_cut() -> Outcome {
    let server = Server::start(&["--header-timeout", "1", "--body-timeout", "1"])?;
    // Nothing at all, half a request line, half of the headers.
    for start in [
        "",
        "GET /heal",
        "GET /health HTTP/1.1\r\nhost: localhost\r\n",
    ] {
        assert_eq!(raw(&server, start.as_bytes()).await?, "", "{start:?}");
    }
    // The same after a request that was served.
    let whole = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut stream = TcpStream::connect(server.address()).await?;
    stream.write_all(whole.as_bytes()).await?;
    stream.read_exact(&mut [0; 12]).await?;
    stream.write_all(b"GET /he").await?;
    rest(&mut stream).await?;
    // Half a body.
    let head = "POST /sessions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n";
    let answer = raw(&server, format!("{head}{{").as_bytes()).await?;
    assert_eq!(status(&answer), "408", "{answer}");
    assert!(
        answer.contains("\"code\":\"deadline_exceeded\""),
        "{answer}"
    );
    // One that is slow but gets on is served, however long it takes in all.
    let server = Server::start(&["--body-timeout", "3"])?;
    let mut stream = TcpStream::connect(server.address()).await?;
    stream
        .write_all(
            head.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await?;
    for piece in ["{   ", "     ", "}"] {
        stream.write_all(piece.as_bytes()).await?;
        tokio::time::sleep(Duration::from_millis(1200)).await;
    }
    let answer = rest(&mut stream).await?;
    assert_eq!(status(&answer), "201", "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_cut() -> Outcome {
    let server = Server::start(&["--body-timeout", "1", "--output", "20m"])?;
    let id = server.session().await?;
    let exec = json!({"tool": "bash_code_execution", "input": {"command": "head -c 15000000 /dev/zero | tr '\\0' x"}});
    let body = exec.to_string();
    let head = format!(
        "POST /sessions/{id}/exec HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // Control: one that reads gets it all.
    let answer = raw(&server, head.as_bytes()).await?;
    assert!(answer.len() > 15_000_000, "{}", answer.len());
    let mut stream = TcpStream::connect(server.address()).await?;
    stream.write_all(head.as_bytes()).await?;
    // It takes the first byte and then nothing, until the server has had enough of that.
    stream.read_exact(&mut [0]).await?;
    until(async || {
        let asked = server
            .http
            .get(format!("{}/metrics", server.url))
            .send()
            .await?;
        let text = asked.text().await?;
        // The one that asks is left.
        let open = text
            .lines()
            .find_map(|line| line.strip_prefix("ringfence_connections "));
        Ok((open == Some("1")).then_some(()))
    })
    .await?;
    let left = rest(&mut stream).await?;
    assert!(left.len() < 15_000_000, "{}", left.len());
    Ok(())
}

/// HTTP/2 by hand: no client that we know can be told to take nothing.
struct Http2(TcpStream);

impl Http2 {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const ACK: u8 = 1;

    /// With so much room for each answer.
    async fn connect(server: &Server, room: u32) -> Outcome<Self> {
        let mut own = Self(TcpStream::connect(server.address()).await?);
        own.0.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await?;
        let initial_window_size = [&[0, 4][..], &room.to_be_bytes()].concat();
        own.frame(Self::SETTINGS, 0, 0, &initial_window_size)
            .await?;
        Ok(own)
    }

    async fn frame(&mut self, kind: u8, flags: u8, stream: u32, content: &[u8]) -> Outcome {
        let length = (content.len() as u32).to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        Ok(self.0.write_all(&[&head[..], content].concat()).await?)
    }

    /// Sends the one request of this connection.
    async fn ask(&mut self, method: &str, path: &str, body: &str) -> Outcome {
        let mut block = Vec::new();
        for (name, value) in [
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("accept", "text/event-stream"),
            ("content-type", "application/json"),
        ] {
            // A literal with a new name, which nobody need remember.
            block.extend([0, name.len() as u8]);
            block.extend(name.as_bytes());
            block.push(value.len() as u8);
            block.extend(value.as_bytes());
        }
        self.frame(Self::HEADERS, Self::END_HEADERS, 1, &block)
            .await?;
        self.frame(Self::DATA, Self::END_STREAM, 1, body.as_bytes())
            .await
    }

    /// The answer as far as it comes, and whether it came to its end: else the server closed.
    async fn answer(&mut self) -> Outcome<(String, bool)> {
        let mut text = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), self.read(&mut text)).await;
        let ended = read.map_err(|_| "the server does not close")??;
        Ok((String::from_utf8_lossy(&text).into_owned(), ended))
    }

    /// Pings are answered, so that the server knows that somebody is here.
    async fn read(&mut self, text: &mut Vec<u8>) -> Outcome<bool> {
        loop {
            let mut head = [0; 9];
            if self.0.read_exact(&mut head).await.is_err() {
                return Ok(false);
            }
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut content = vec![0; length as usize];
            self.0.read_exact(&mut content).await?;
            match (head[3], head[4]) {
                (Self::PING, 0) => self.frame(Self::PING, Self::ACK, 0, &content).await?,
                (Self::SETTINGS, 0) => self.frame(Self::SETTINGS, Self::ACK, 0, &[]).await?,
                (Self::DATA, flags) => {
                    text.extend(content);
                    if flags & Self::END_STREAM != 0 {
                        return Ok(true);
                    }
                }
                _ => {}
            }
        }
    }
}

#[tokio::test]
async fn an_answer_for_which_there_is_no_room_is_cut() -> Outcome {
    let second = ["--header-timeout", "1", "--connection-idle", "1"];
    let server = Server::start(&[&second[..], &["--body-timeout", "1"]].concat())?;
    let id = server.session().await?;
    // Control: one that has room gets all of it, also where nothing is said for longer.
    let reads = async {
        let job = json!({"command": "sleep 3; echo done"}).to_string();
        let mut reader = Http2::connect(&server, 60_000).await?;
        reader
            .ask("POST", &format!("/sessions/{id}/jobs"), &job)
            .await?;
        reader.answer().await
    };
    let takes = async |room| {
        let mut stalled = Http2::connect(&server, room).await?;
        stalled.ask("GET", "/openapi.json", "").await?;
        stalled.answer().await
    };
    let ((text, ended), nothing, little) = tokio::try_join!(reads, takes(0), takes(10))?;
    assert!(ended && text.contains("event: done"), "{text}");
    for ((text, ended), room) in [(nothing, 0), (little, 10)] {
        assert_eq!((text.len(), ended), (room, false));
    }
    Ok(())
}

#[tokio::test]
async fn idle_connections_are_closed() -> Outcome {
    let server = Server::start(&["--connection-idle", "1"])?;
    let request = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let answer = raw(&server, format!("{request}{request}").as_bytes()).await?;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 2, "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_long_call_is_not_an_idle_connection() -> Outcome {
    let server = Server::start(&[
        "--connection-idle",
        "1",
        "--header-timeout",
        "1",
        "--body-timeout",
        "1",
    ])?;
    let id = server.session().await?;
    let done = server.bash(&id, "sleep 3; echo done").await?;
    assert_eq!(done["stdout"], "done\n");
    // Nor is a stream of events that has nothing to say.
    let stream = server
        .http
        .post(format!("{}/sessions/{id}/jobs", server.url))
        .header("accept", "text/event-stream")
        .json(&json!({"command": "sleep 3; echo done"}));
    let text = stream.send().await?.text().await?;
    assert!(text.contains("event: done"), "{text}");
    Ok(())
}

#[tokio::test]
async fn connections_have_a_limit_and_others_wait() -> Outcome {
    let server = Server::start(&["--max-connections", "4", "--header-timeout", "2"])?;
    // Four that never ask; then one that does, which is served when they are cut.
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(TcpStream::connect(server.address()).await?);
    }
    assert_eq!(server.get("/health").await?.0, 200);
    for stream in &mut idle {
        assert_eq!(rest(stream).await?, "");
    }
    // Those that were served and wait for more make room at once, long before they are idle.
    let request = "GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut served = Vec::new();
    for _ in 0..12 {
        let mut stream = TcpStream::connect(server.address()).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut first = [0; 12];
        stream.read_exact(&mut first).await?;
        assert_eq!(&first, b"HTTP/1.1 200");
        served.push(stream);
    }
    Ok(())
}

#[tokio::test]
async fn a_server_without_descriptors_goes_on_later() -> Outcome {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    let server = Server::start_limited(&state, 300)?;
    let id = server.session().await?;
    let mut many = Vec::new();
    for _ in 0..400 {
        many.push(TcpStream::connect(server.address()).await?);
    }
    server
        .log_line(|line| line.contains("cannot accept"))
        .await?;
    let complaints = server
        .log()
        .iter()
        .filter(|l| l.contains("cannot accept"))
        .count();
    drop(many);
    until(async || Ok((server.get("/health").await.is_ok()).then_some(()))).await?;
    assert_eq!(server.code(&id, "print(1)").await?["stdout"], "1");
    assert!(complaints < 100, "it does not spin: {complaints}");
    Ok(())
}

#[tokio::test]
async fn the_limit_of_descriptors_is_raised() -> Outcome {
    let server = Server::start(&[])?;
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", server.pid()))?;
    let line = limits
        .lines()
        .find(|l| l.starts_with("Max open files"))
        .ok_or("no line")?;
    let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
    assert_eq!(numbers[0], numbers[1], "{line}");
    Ok(())
}
