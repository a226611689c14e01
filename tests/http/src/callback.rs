//! A place that carries out tools: what it does with a call depends on the tool's name.

use crate::Outcome;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// A request that came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: Value,
    /// The input as it was written.
    input: String,
}

/// Listens on loopback until it is dropped.
pub struct Callback {
    pub port: u16,
    shared: Arc<Shared>,
    task: tokio::task::AbortHandle,
}

struct Shared {
    seen: Mutex<Vec<Seen>>,
    /// Callers that went away before they had a reply.
    gone: watch::Sender<usize>,
    /// Calls of `held` wait until this many are there.
    release: watch::Sender<usize>,
    held: watch::Sender<usize>,
}

impl Drop for Callback {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Callback {
    pub async fn start() -> Outcome<Self> {
        Self::start_with(|stream| async { Ok(stream) }).await
    }

    /// With something around each connection, such as TLS.
    pub async fn start_with<S, F>(
        wrap: impl Fn(tokio::net::TcpStream) -> F + Send + Sync + 'static,
    ) -> Outcome<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = std::io::Result<S>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            gone: watch::channel(0).0,
            release: watch::channel(usize::MAX).0,
            held: watch::channel(0).0,
        });
        let serving = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (shared, wrapped) = (Arc::clone(&serving), wrap(stream));
                tokio::spawn(async move {
                    if let Ok(stream) = wrapped.await {
                        let _ = shared.serve(stream).await;
                    }
                });
            }
        });
        Ok(Self {
            port,
            shared,
            task: task.abort_handle(),
        })
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/tools?v=1", self.port)
    }

    /// What to register.
    pub fn registration(&self, token: &str, names: &[&str]) -> Value {
        let tools: Vec<_> = names
            .iter()
            .map(|name| json!({"name": name, "doc": format!("does {name}")}))
            .collect();
        json!({"callback_url": self.url(), "token": token, "tools": tools})
    }

    pub fn seen(&self) -> Vec<Seen> {
        let seen = self.shared.seen.lock();
        seen.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls of `held` are answered when so many are there at the same time.
    pub fn release_at(&self, count: usize) {
        self.shared.release.send_replace(count);
    }

    /// Waits until so many calls of `held` or `hang` are there at the same time.
    pub async fn held(&self, count: usize) -> Outcome {
        let mut held = self.shared.held.subscribe();
        held.wait_for(|held| *held >= count).await?;
        Ok(())
    }

    /// Waits until so many callers went away.
    pub async fn gone(&self, count: usize) -> Outcome {
        let mut gone = self.shared.gone.subscribe();
        gone.wait_for(|gone| *gone >= count).await?;
        Ok(())
    }
}

impl Shared {
    async fn serve(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Outcome {
        let seen = read(&mut stream).await?;
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(seen.clone());
        let name = seen.body["name"].as_str().unwrap_or_default();
        let ok = |content: &Value| json!({"content": content, "is_error": false}).to_string();
        let (status, more, body) = match name {
            "held" | "hang" => {
                let mut release = self.release.subscribe();
                let mut held = self.held.subscribe();
                self.held.send_modify(|held| *held += 1);
                let mut more = [0];
                let answered = tokio::select! {
                    // Nothing is said after the request: this is its end.
                    _ = stream.read(&mut more) => false,
                    () = async {
                        loop {
                            let enough = *held.borrow_and_update() >= *release.borrow_and_update();
                            if name == "held" && enough {
                                return;
                            }
                            tokio::select! {
                                _ = held.changed() => {}
                                _ = release.changed() => {}
                            }
                        }
                    } => true,
                };
                if !answered {
                    self.held.send_modify(|held| *held -= 1);
                    self.gone.send_modify(|gone| *gone += 1);
                    return Ok(());
                }
                ("200 OK", String::new(), ok(&seen.body["input"]))
            }
            "fail" => {
                let body = json!({"content": {"why": "closed"}, "is_error": true});
                ("200 OK", String::new(), body.to_string())
            }
            "status" => ("500 Oops", String::new(), format!("{:?}", seen.headers)),
            "garbage" => ("200 OK", String::new(), "<html>".to_owned()),
            "big" => ("200 OK", String::new(), ok(&"x".repeat(17 << 20).into())),
            "large" => ("200 OK", String::new(), ok(&"x".repeat(15 << 20).into())),
            "redirect" => {
                let to = "location: /stolen\r\n".to_owned();
                ("307 There", to, String::new())
            }
            "cut" => {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{")
                    .await?;
                return Ok(stream.shutdown().await?);
            }
            _ => {
                let body = format!(r#"{{"content": {}, "is_error": false}}"#, seen.input);
                ("200 OK", String::new(), body)
            }
        };
        let head = format!(
            "HTTP/1.1 {status}\r\n{more}content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
        stream.shutdown().await?;
        Ok(())
    }
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Outcome<Seen> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err("half a request".into());
        }
        if !bytes.starts_with(b"P") {
            return Err("no request".into());
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec())?;
    let mut lines = text.split("\r\n");
    let mut first = lines
        .next()
        .unwrap_or_default()
        .split(' ')
        .map(str::to_owned);
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length: usize = headers.get("content-length").ok_or("no length")?.parse()?;
    while bytes.len() < head + 4 + length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err("half a body".into());
        }
    }
    let body = &bytes[head + 4..];
    let parts: HashMap<&str, &RawValue> = serde_json::from_slice(body)?;
    Ok(Seen {
        method: first.next().unwrap_or_default(),
        path: first.next().unwrap_or_default(),
        headers,
        body: serde_json::from_slice(body)?,
        input: parts.get("input").ok_or("no input")?.get().to_owned(),
    })
}
