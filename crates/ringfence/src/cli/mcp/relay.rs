//! `ringfence mcp --url`: what a client says on standard input goes to `/mcp` of a server, and what
//! that answers comes out. The process has a sandbox there, which ends with it.

use crate::client::{Client, empty, failure, json, segment};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, Method, StatusCode, header};
use hyper::body::Incoming;
use ringfence_core::tools::Family;
use ringfence_core::{Code, Failure};
use serde_json::{Value, json as object};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

/// Most bytes of a line.
const LINE: u64 = 64 << 20;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Where a message of the protocol says which version it is in.
const META_VERSION: &str = "/params/_meta/io.modelcontextprotocol~1protocolVersion";

struct Relay {
    client: Client,
    path: String,
    state: Mutex<State>,
    /// Whole lines on their way out: a request that is given up leaves no half of one.
    out: mpsc::Sender<String>,
    /// One greeting at a time.
    greeting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The server's session, in versions of the protocol that have them.
    session: Option<String>,
    version: Option<String>,
    /// What such a session began with, to begin another when the server has forgotten it.
    greeting: Option<Value>,
    /// Requests under way, by their ids as they were written.
    running: HashMap<String, AbortHandle>,
}

pub(super) async fn relay(
    client: Client,
    family: Family,
    session: Option<String>,
) -> Result<(), Failure> {
    let own = super::own(session.as_deref())?;
    let path = format!("/mcp?family={}&session={}", family.name(), segment(&own));
    let (out, lines) = mpsc::channel(64);
    let writer = tokio::spawn(write(lines));
    let relay = Arc::new(Relay {
        client,
        path,
        state: Mutex::default(),
        out,
        greeting: tokio::sync::Mutex::default(),
    });
    let mut terminate = crate::cli::serve::on(SignalKind::terminate())?;
    let mut interrupt = crate::cli::serve::on(SignalKind::interrupt())?;
    let read = tokio::select! {
        read = relay.read(tokio::io::stdin()) => read,
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    };
    for (_, running) in relay.state().running.drain() {
        running.abort();
    }
    writer.abort();
    if session.is_none() {
        let path = crate::client::session(&format!("key:{own}"));
        let ended = relay.client.send(Method::DELETE, &path, &[], empty()).await;
        match ended {
            // Who has no server any more has been told; an idle sandbox ends by itself.
            Err(failure) if failure.code != Code::Unavailable => return Err(failure),
            _ => {}
        }
    }
    read
}

async fn write(mut lines: mpsc::Receiver<String>) {
    let mut out = tokio::io::stdout();
    while let Some(line) = lines.recv().await {
        // A client that is gone closes our input as well.
        if out.write_all(line.as_bytes()).await.is_ok() {
            let _ = out.flush().await;
        }
    }
}

impl Relay {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the end of the input.
    async fn read(self: &Arc<Self>, input: impl AsyncRead + Unpin) -> Result<(), Failure> {
        let mut input = BufReader::new(input);
        loop {
            let mut line = Vec::new();
            let mut limited = (&mut input).take(LINE);
            let read = limited.read_until(b'\n', &mut line).await;
            let read = read.map_err(|e| Failure::io("cannot read standard input", &e))?;
            if read == 0 {
                return Ok(());
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            match serde_json::from_slice(&line) {
                Ok(message @ Value::Object(_)) => self.take(message).await,
                _ => {
                    let error = object!({"code": -32700, "message": "not a message in JSON"});
                    self.write(&object!({"jsonrpc": "2.0", "id": null, "error": error}))
                        .await;
                    if line.len() as u64 == LINE {
                        return Err(super::broken());
                    }
                }
            }
        }
    }

    async fn take(self: &Arc<Self>, message: Value) {
        let id = message.get("id").map(Value::to_string);
        let (Some(id), Some(method)) = (id, message["method"].as_str()) else {
            // What has to come before the next message is waited for.
            if let Err(failure) = self.tell(&message).await {
                tracing::warn!(detail = failure.detail, "{failure}");
            }
            if message["method"] == "notifications/cancelled" {
                let id = message["params"]["requestId"].to_string();
                if let Some(running) = self.state().running.remove(&id) {
                    running.abort();
                }
            }
            return;
        };
        let greets = method == "initialize";
        let relay = Arc::clone(self);
        let name = id.clone();
        let asked = {
            // Held until it is in, as the task takes itself out.
            let mut state = self.state();
            let asked = tokio::spawn(async move {
                if let Err(failure) = relay.ask(&message).await {
                    relay.refuse(&message["id"], &failure).await;
                }
                relay.state().running.remove(&name);
            });
            state.running.insert(id, asked.abort_handle());
            asked
        };
        if greets {
            // Everything else depends on it.
            let _ = asked.await;
        }
    }

    /// Sends a message that has no answer.
    async fn tell(&self, message: &Value) -> Result<(), Failure> {
        let answer = self.post(message).await?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(failure(status, &self.client.bytes(answer).await?)),
        }
    }

    /// Sends a request and passes on what comes of it.
    async fn ask(&self, message: &Value) -> Result<(), Failure> {
        let before = self.state().session.clone();
        let mut answer = self.post(message).await?;
        if answer.status() == StatusCode::NOT_FOUND && before.is_some() {
            // The server was started again since.
            self.greet(before).await?;
            answer = self.post(message).await?;
        }
        let status = answer.status();
        let session = answer.headers().get(SESSION);
        let session = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
        let greets = message["method"] == "initialize";
        if greets {
            let mut state = self.state();
            state.session = session;
            state.greeting = Some(message.clone());
        }
        let kind = answer.headers().get(header::CONTENT_TYPE);
        if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
            let mut events = Client::events(answer);
            let mut answered = false;
            while let Some(event) = events.next().await? {
                answered |= self.pass(&event.data, greets).await;
            }
            return match answered {
                true => Ok(()),
                false => Err(Failure::new(
                    Code::Unavailable,
                    "the server's answer broke off",
                )),
            };
        }
        let bytes = self.client.bytes(answer).await?;
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(said) if said.get("jsonrpc").is_some() => {
                self.pass(&said, greets).await;
                Ok(())
            }
            _ if status.is_success() => Err(Failure::new(
                Code::Unavailable,
                "the server does not speak the protocol",
            )),
            _ => Err(failure(status, &bytes)),
        }
    }

    /// Writes what the server said; answers with whether it was the answer to the request.
    async fn pass(&self, said: &Value, greets: bool) -> bool {
        if greets && let Some(version) = said["result"]["protocolVersion"].as_str() {
            self.state().version = Some(version.to_owned());
        }
        self.write(said).await;
        said.get("method").is_none()
    }

    /// Begins another session of the protocol as the first one was begun, unless somebody has.
    async fn greet(&self, before: Option<String>) -> Result<(), Failure> {
        let _one = self.greeting.lock().await;
        let greeting = {
            let mut state = self.state();
            if state.session != before {
                return Ok(());
            }
            state.session = None;
            state.greeting.clone()
        };
        let Some(greeting) = greeting else {
            return Ok(());
        };
        let answer = self.post(&greeting).await?;
        let session = answer.headers().get(SESSION);
        let session = session.and_then(|id| id.to_str().ok()).map(str::to_owned);
        if !answer.status().is_success() {
            let status = answer.status();
            return Err(failure(status, &self.client.bytes(answer).await?));
        }
        self.state().session = session;
        self.tell(&object!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
            .await
    }

    async fn post(&self, message: &Value) -> Result<http::Response<Incoming>, Failure> {
        let (session, agreed) = {
            let state = self.state();
            (state.session.clone(), state.version.clone())
        };
        let method = message["method"].as_str();
        let own = message.pointer(META_VERSION).and_then(Value::as_str);
        let version = own.map(str::to_owned).or(agreed);
        let name = match method {
            Some("tools/call" | "prompts/get") => message["params"]["name"].as_str(),
            Some("resources/read") => message["params"]["uri"].as_str(),
            _ => None,
        };
        let name = name.map(encoded);
        let mut headers = vec![
            (header::CONTENT_TYPE, "application/json"),
            (header::ACCEPT, "application/json, text/event-stream"),
        ];
        let more = [
            (
                SESSION,
                session.as_deref().filter(|_| method != Some("initialize")),
            ),
            (
                VERSION,
                version.as_deref().filter(|_| method != Some("initialize")),
            ),
            (METHOD, method),
            (NAME, name.as_deref()),
        ];
        headers.extend(
            more.into_iter()
                .filter_map(|(name, value)| Some((name, value?))),
        );
        let body = json(message);
        self.client
            .exchange(Method::POST, &self.path, &headers, body)
            .await
    }

    async fn refuse(&self, id: &Value, failure: &Failure) {
        let message = match &failure.hint {
            Some(hint) => format!("{}; {hint}", failure.message),
            None => failure.message.clone(),
        };
        let data = object!({"code": failure.code.name(), "hint": failure.hint});
        let error = object!({"code": failure.code.rpc_code(), "message": message, "data": data});
        self.write(&object!({"jsonrpc": "2.0", "id": id, "error": error}))
            .await;
    }

    async fn write(&self, message: &Value) {
        // The writer lives as long as this.
        let _ = self.out.send(format!("{message}\n")).await;
    }
}

/// A value of a header, in the form that the protocol has for those that can't be one.
fn encoded(text: &str) -> String {
    let plain = text.bytes().all(|b| (0x20..0x7f).contains(&b))
        && text.trim() == text
        && !text.starts_with("=?base64?");
    match plain {
        true => text.to_owned(),
        false => format!("=?base64?{}?=", STANDARD.encode(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_headers() {
        assert_eq!(encoded("read_file"), "read_file");
        assert_eq!(encoded("ü"), "=?base64?w7w=?=");
        assert_eq!(encoded(" a"), "=?base64?IGE=?=");
    }
}
