//! The client of the HTTP API, for the verbs of the command line: of a server that runs, or of one
//! inside this process, on the same state.

mod events;
mod local;
mod reach;

pub(crate) use events::{Event, Following};
pub(crate) use local::Local;
pub(crate) use reach::Stream;

use bytes::Bytes;
use clap::Args;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reach::Place;
use ringfence_core::{Code, Failure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::io;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Most bytes of an answer that is read into memory.
const ANSWER: usize = 256 << 20;

/// Which server a verb talks to.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServerArgs {
    /// A running server, http://HOST:PORT, https://… or unix:PATH; without one the sandboxes are
    /// made by this command itself and kept in the state folder
    #[arg(long, global = true, value_name = "URL", help_heading = "Server")]
    url: Option<String>,
}

impl ServerArgs {
    pub(crate) fn is_remote(&self) -> bool {
        self.url.is_some() || crate::settings::server_url().is_some()
    }

    /// Does something with the server that is named, or with one of our own.
    pub(crate) fn with<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        work: impl FnOnce(Client) -> F,
    ) -> Result<T, Failure> {
        let named = self.url.clone().or_else(crate::settings::server_url);
        // What makes sandboxes is started while there is one thread.
        let (place, local) = match named {
            Some(url) => (Some(Place::parse(&url)?), None),
            None => (None, Some(Local::prepare()?)),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::io("cannot start", &e))?;
        let done = runtime.block_on(async {
            let client = match (place, local) {
                (Some(place), _) => Client {
                    place,
                    key: crate::settings::api_key(),
                },
                (None, Some(local)) => Client {
                    place: Place::Local(local.start().await?),
                    key: None,
                },
                (None, None) => return Err(Failure::new(Code::Internal, "there is no server")),
            };
            work(client).await
        });
        // A thread that still reads standard input must not keep us.
        runtime.shutdown_background();
        done
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    place: Place,
    key: Option<String>,
}

/// Whether this can be the address of a server.
pub(crate) fn check_address(url: &str) -> Result<(), Failure> {
    Place::parse(url).map(drop)
}

/// A part of a path.
pub(crate) fn segment(text: &str) -> String {
    const ODD: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    utf8_percent_encode(text, ODD).to_string()
}

/// The path of a session: an id as it is, anything else as a key of the caller's own.
pub(crate) fn session(name: &str) -> String {
    let is_id = ringfence_core::SessionId::try_from(name.to_owned()).is_ok();
    let key = match is_id || name.starts_with("key:") {
        true => name.to_owned(),
        false => format!("key:{name}"),
    };
    format!("/sessions/{}", segment(&key))
}

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn json(value: &Value) -> Body {
    Full::new(Bytes::from(value.to_string()))
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A failure as the API tells it.
#[derive(Deserialize)]
struct Problem {
    detail: Value,
    code: Option<Code>,
    hint: Option<String>,
}

impl Client {
    /// Of a server that runs.
    pub(crate) fn at(url: &str, key: Option<String>) -> Result<Self, Failure> {
        let place = Place::parse(url)?;
        Ok(Self { place, key })
    }

    fn lost(&self, what: &str, error: impl std::fmt::Display) -> Failure {
        let message = format!("cannot talk to {}: {what}", self.place);
        Failure::new(Code::Unavailable, message).detail(error)
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.place.host());
        if let Some(key) = &self.key
            && let Ok(mut value) = HeaderValue::try_from(format!("Bearer {key}"))
        {
            value.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, value);
        }
        request
    }

    async fn stream(&self) -> Result<Stream, Failure> {
        self.place.connect().await
    }

    /// One request on a connection of its own; an answer that is a failure becomes one.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(header::HeaderName, &str)],
        body: Body,
    ) -> Result<Response<Incoming>, Failure> {
        let answer = self.exchange(method, path, headers, body).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let bytes = self.bytes(answer).await?;
        Err(failure(status, &bytes))
    }

    /// The same for who looks at the status. The connection ends when the answer is dropped.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        path: &str,
        headers: &[(header::HeaderName, &str)],
        body: Body,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = self.request(method, path);
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request
            .body(body)
            .map_err(|e| Failure::invalid("cannot write the request").detail(e))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(self.stream().await?))
                .await
                .map_err(|e| self.lost("no HTTP", e))?;
        // Its end is seen by the answer.
        tokio::spawn(connection);
        let answer = sender.send_request(request).await;
        answer.map_err(|e| self.lost("no answer", e))
    }

    pub(crate) async fn bytes(&self, answer: Response<Incoming>) -> Result<Bytes, Failure> {
        let collected = Limited::new(answer.into_body(), ANSWER).collect().await;
        let collected = collected.map_err(|e| self.lost("the answer broke off", e))?;
        Ok(collected.to_bytes())
    }

    /// A request with JSON, or nothing, both ways.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Failure> {
        let kind = [(header::CONTENT_TYPE, "application/json")];
        let body = body.map_or_else(empty, json);
        let answer = self.send(method, path, &kind, body).await?;
        let bytes = self.bytes(answer).await?;
        let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(bytes).map_err(|e| self.lost("not the answer that was expected", e))
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.ask(Method::GET, path, None).await
    }

    /// A WebSocket.
    pub(crate) async fn socket(&self, path: &str) -> Result<WebSocketStream<Stream>, Failure> {
        let address = format!("ws://{}{path}", self.place.host());
        let broken = |e| self.lost("no WebSocket", e);
        let mut request = address.into_client_request().map_err(broken)?;
        let ours = self.request(Method::GET, path);
        if let Some(key) = ours
            .headers_ref()
            .and_then(|all| all.get(header::AUTHORIZATION))
        {
            let key = key.clone();
            request.headers_mut().insert(header::AUTHORIZATION, key);
        }
        let stream = self.stream().await?;
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(tokio_tungstenite::tungstenite::Error::Http(answer)) => {
                let body = answer.body().as_deref().unwrap_or_default();
                Err(failure(answer.status(), body))
            }
            Err(error) => Err(self.lost("no WebSocket", error)),
        }
    }
}

/// What an answer that is a failure says.
pub(crate) fn failure(status: StatusCode, body: &[u8]) -> Failure {
    let Ok(problem) = serde_json::from_slice::<Problem>(body) else {
        let shown: String = String::from_utf8_lossy(body).chars().take(1000).collect();
        let message = format!("the server answered {status}");
        return Failure::new(Code::Unavailable, message).detail(shown);
    };
    let message = match &problem.detail {
        Value::String(text) => text.clone(),
        Value::Array(faults) => {
            let each = faults.iter().map(|fault| {
                let place = fault["loc"].as_array().and_then(|loc| loc.last());
                let place = place.map_or_else(String::new, |part| match part {
                    Value::String(name) => name.clone(),
                    other => other.to_string(),
                });
                format!("{place}: {}", fault["msg"].as_str().unwrap_or("is wrong"))
            });
            each.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    };
    let mut failure = Failure::new(problem.code.unwrap_or(Code::Unavailable), message);
    failure.hint = problem.hint;
    if failure.code == Code::Unauthenticated {
        failure.hint = Some("set RINGFENCE_API_KEY to a key of the server".to_owned());
    }
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_named_by_id_or_key() {
        let id = format!("sbx_{}", "0".repeat(32));
        assert_eq!(session(&id), format!("/sessions/{id}"));
        assert_eq!(session("my work/1"), "/sessions/key%3Amy%20work%2F1");
        assert_eq!(session("key:a"), "/sessions/key%3Aa");
    }

    #[test]
    fn failures_of_the_api_are_failures_here() {
        let said = failure(
            StatusCode::NOT_FOUND,
            br#"{"detail":"there is no session x","code":"not_found","hint":"h"}"#,
        );
        assert_eq!(said.code, Code::NotFound);
        assert_eq!(said.message, "there is no session x");
        assert_eq!(said.hint.as_deref(), Some("h"));
        let said = failure(
            StatusCode::UNPROCESSABLE_ENTITY,
            br#"{"detail":[{"loc":["body","key"],"msg":"must be short","type":"x"}],"code":"invalid_input"}"#,
        );
        assert_eq!(said.message, "key: must be short");
        let said = failure(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(said.message, "the server answered 502 Bad Gateway");
    }
}
