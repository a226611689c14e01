//! Terminals, with a WebSocket client that is not ours.

use futures_util::{SinkExt as _, StreamExt as _};
use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// A terminal, and what it has shown.
struct Screen {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    shown: Vec<u8>,
    told: Vec<Value>,
    closed: Option<CloseFrame>,
}

impl Screen {
    async fn open(server: &Server, path: &str) -> Outcome<Self> {
        let url = format!("{}{path}", server.url.replace("http://", "ws://"));
        let (socket, _) = tokio_tungstenite::connect_async(url).await?;
        Ok(Self {
            socket,
            shown: Vec::new(),
            told: Vec::new(),
            closed: None,
        })
    }

    /// Reads one message; none after the last.
    async fn read(&mut self) -> Outcome<Option<()>> {
        let Some(message) = self.socket.next().await else {
            return Ok(None);
        };
        match message? {
            Message::Binary(bytes) => self.shown.extend_from_slice(&bytes),
            Message::Text(text) => self.told.push(serde_json::from_str(&text)?),
            Message::Close(frame) => self.closed = frame,
            _ => {}
        }
        Ok(Some(()))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    async fn until(&mut self, words: &str) -> Outcome {
        while !self.text().contains(words) {
            if self.read().await?.is_none() {
                let (text, told) = (self.text(), &self.told);
                return Err(
                    format!("no {words:?} in {text:?}, {told:?}, {:?}", self.closed).into(),
                );
            }
        }
        Ok(())
    }

    async fn until_closed(&mut self) -> Outcome<(u16, String)> {
        while let Ok(Some(())) = self.read().await {}
        let frame = self.closed.take().ok_or("closed without a word")?;
        Ok((frame.code.into(), frame.reason.to_string()))
    }

    async fn job(&mut self) -> Outcome<String> {
        while self.told.is_empty() {
            self.read().await?.ok_or("closed early")?;
        }
        let attached = &self.told[0]["attached"];
        Ok(attached["job_id"].as_str().ok_or("no job")?.to_owned())
    }

    async fn send(&mut self, keys: &str) -> Outcome {
        Ok(self
            .socket
            .send(Message::binary(keys.as_bytes().to_vec()))
            .await?)
    }

    async fn control(&mut self, value: &Value) -> Outcome {
        Ok(self.socket.send(Message::text(value.to_string())).await?)
    }
}

#[tokio::test]
async fn a_shell_in_a_terminal() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/v1/sessions/{id}/pty?rows=30&cols=100");
    let mut screen = Screen::open(&server, &path).await?;
    let job = screen.job().await?;
    screen.send("stty size\n").await?;
    screen.until("30 100").await?;
    screen
        .control(&json!({"resize": {"rows": 40, "cols": 120}}))
        .await?;
    screen.send("stty size\n").await?;
    screen.until("40 120").await?;
    let url = format!("/sessions/{id}/jobs/{job}/resize");
    assert_eq!(
        server.post(&url, &json!({"rows": 50, "cols": 0})).await?.0,
        422
    );
    assert_eq!(
        server.post(&url, &json!({"rows": 50, "cols": 70})).await?.0,
        204
    );
    screen.send("stty size; kept=5$((1+1))\n").await?;
    screen.until("50 70").await?;

    // It drops, and comes back where it was.
    let at = screen.shown.len();
    drop(screen);
    let path = format!("/sessions/{id}/jobs/{job}/pty?offset={at}");
    let mut screen = Screen::open(&server, &path).await?;
    screen.send("echo =$kept=\n").await?;
    screen.until("=52=").await?;
    assert!(!screen.text().contains("50 70"), "{}", screen.text());
    assert_eq!(screen.told[0]["attached"]["offset"], at);
    // A second one sees all of it from the beginning, and both may type.
    let path = format!("/sessions/{id}/jobs/{job}/pty");
    let mut second = Screen::open(&server, &path).await?;
    second.until("=52=").await?;
    assert!(second.text().contains("30 100"));
    second.send("echo from-$((1+1))\n").await?;
    screen.until("from-2").await?;
    // Ctrl-C reaches what runs. A shell forgets one that comes before it waits for a command, so
    // it is for one that says when it runs.
    let wait = "python3 -c 'print(3*7*2, flush=True); import time; time.sleep(600)'\n";
    screen.send(wait).await?;
    screen.until("42\r\n").await?;
    screen.send("\u{3}").await?;
    screen.send("exit 7\n").await?;
    for screen in [&mut screen, &mut second] {
        assert_eq!(
            screen.until_closed().await?,
            (1000, "ended with 7".to_owned())
        );
        let ended = screen.told.last().ok_or("told nothing")?;
        assert_eq!(ended["ended"]["return_code"], 7);
    }
    // One that has ended shows what it had.
    let mut late = Screen::open(&server, &path).await?;
    assert_eq!(late.until_closed().await?.0, 1000);
    assert_eq!(late.shown, second.shown);
    Ok(())
}

#[tokio::test]
async fn a_terminal_says_why_it_closes() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let path = format!("/sessions/{id}/pty?command=cat");
    for wrong in [
        "{}",
        "x",
        r#"{"resize":{"rows":0,"cols":1}}"#,
        r#"{"resize":{"rows":1}}"#,
    ] {
        let mut screen = Screen::open(&server, &path).await?;
        screen.job().await?;
        screen.socket.send(Message::text(wrong)).await?;
        assert_eq!(screen.until_closed().await?.0, 1008, "{wrong}");
    }
    let mut screen = Screen::open(&server, &path).await?;
    screen.job().await?;
    let huge = Message::binary(vec![b'x'; (1 << 20) + 1]);
    // Its answer may come before all of it was sent.
    let _ = screen.socket.send(huge).await;
    assert_eq!(screen.until_closed().await?.0, 1009);
    // The session's end.
    let mut screen = Screen::open(&server, &path).await?;
    screen.job().await?;
    server
        .ask("DELETE", &format!("/sessions/{id}"), None)
        .await?;
    let (code, reason) = screen.until_closed().await?;
    assert!(
        code == 1001 && reason.contains("ended while this ran"),
        "{code} {reason}"
    );
    Ok(())
}

#[tokio::test]
async fn what_is_no_terminal_is_refused() -> Outcome {
    let server = Server::start(&[])?;
    let id = server.session().await?;
    let (status, answer) = server.get(&format!("/sessions/{id}/pty")).await?;
    assert!(
        (400..500).contains(&status) && answer["detail"].is_string(),
        "{status} {answer}"
    );
    let body = json!({"command": "sleep 600", "id": "plain", "detach": true});
    server.post(&format!("/sessions/{id}/jobs"), &body).await?;
    for (path, status) in [
        (format!("/sessions/{id}/jobs/plain/pty"), "409"),
        (format!("/sessions/{id}/jobs/none/pty"), "404"),
        (format!("/sessions/{id}/pty?rows=0"), "422"),
        (format!("/sessions/{id}/pty?row=1"), "422"),
    ] {
        let refused = Screen::open(&server, &path).await.err().ok_or("taken")?;
        assert!(refused.to_string().contains(status), "{path}: {refused}");
    }
    let (status, _) = server
        .post(
            &format!("/sessions/{id}/jobs/plain/resize"),
            &json!({"rows": 1, "cols": 1}),
        )
        .await?;
    assert_eq!(status, 409);
    Ok(())
}

#[tokio::test]
async fn a_terminal_that_nobody_joins_again_is_ended() -> Outcome {
    let server = Server::start(&["--reader-grace", "1s"])?;
    let id = server.session().await?;
    let jobs = format!("/sessions/{id}/jobs");
    let body =
        json!({"command": "cat", "id": "kept", "detach": true, "pty": {"rows": 5, "cols": 5}});
    assert_eq!(server.post(&jobs, &body).await?.0, 201);
    let mut kept = Screen::open(&server, &format!("{jobs}/kept/pty")).await?;
    let mut left = Screen::open(&server, &format!("/sessions/{id}/pty")).await?;
    let (_, left_job) = (kept.job().await?, left.job().await?);
    drop((kept, left));
    loop {
        let (_, list) = server.get(&jobs).await?;
        let all = list["jobs"].as_array().ok_or("no list")?;
        let of = |name: &str| all.iter().find(|job| job["job_id"] == name).cloned();
        let left = of(&left_job).ok_or("forgotten")?;
        if left["state"] == "ended" {
            assert_eq!(left["end"]["certificate"]["cause"], "cancelled");
            assert_eq!(of("kept").ok_or("forgotten")?["state"], "running");
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
