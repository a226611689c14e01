//! A listener for each sandbox of the HasteKit face: sandboxes have no network, so the server is
//! where their daemons are reached. What is asked there is handed to the guest, over the connection
//! that everything of a sandbox shares.

use super::super::act;
use super::super::auth::check_browser;
use super::super::connection::Holding;
use super::super::problem::{Answer, Problem};
use super::super::serve::{Listener, serve};
use super::super::state::{App, Caller};
use super::super::{audit, limits, seen};
use crate::config;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state as layer;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use ringfence_core::guest::full;
use ringfence_core::{Code, Failure, Session, SessionId};
use serde::Deserialize;
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, watch};

/// Connections to one sandbox at a time.
const CONNECTIONS: u64 = 64;

/// Milliseconds of a command that names no timeout, and the most that one can name.
const TIMEOUT_MS: f64 = 60_000.0;
const LONGEST_MS: f64 = 86_400_000.0;

/// The listeners of this server.
pub(crate) struct Relays {
    open: Mutex<HashMap<SessionId, Relay>>,
    stopping: watch::Sender<bool>,
    /// Held by each that serves.
    serving: Mutex<Option<mpsc::Sender<()>>>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

struct Relay {
    session: Arc<Session>,
    address: SocketAddr,
}

impl Default for Relays {
    fn default() -> Self {
        let (serving, ended) = mpsc::channel(1);
        Self {
            open: Mutex::default(),
            stopping: watch::channel(false).0,
            serving: Mutex::new(Some(serving)),
            ended: tokio::sync::Mutex::new(ended),
        }
    }
}

impl Relays {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Relay>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails where clients would be told an address that leads nowhere.
    pub(crate) fn check(settings: &config::Hastekit) -> Result<(), Failure> {
        let address = settings.address;
        if !settings.enabled || !address.is_unspecified() || settings.advertise.is_some() {
            return Ok(());
        }
        let message = format!("cannot tell clients to reach their sandboxes at {address}");
        Err(Failure::invalid(message).hint("say where that is: --hastekit-advertise HOST"))
    }

    /// Where a session is reached, from now until its end.
    pub(super) fn open(&self, app: &App, session: &Arc<Session>) -> Result<SocketAddr, Failure> {
        let mut open = self.lock();
        if let Some(relay) = open.get(&session.id)
            && Arc::ptr_eq(&relay.session, session)
        {
            return Ok(relay.address);
        }
        let serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(serving) = serving.clone() else {
            return Err(Failure::new(Code::Unavailable, "the server is stopping"));
        };
        let listener = bind(&app.config.hastekit, &session.id)?;
        let failed = |e| Failure::io("cannot listen for a sandbox", &e);
        let address = listener.local_addr().map_err(failed)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(failed)?;
        let relay = Relay {
            session: Arc::clone(session),
            address,
        };
        open.insert(session.id.clone(), relay);
        let (app, session) = (app.clone(), Arc::clone(session));
        tokio::spawn(async move {
            attend(&app, &session, Listener::Tcp(listener)).await;
            app.relays.forget(&session);
            drop(serving);
        });
        Ok(address)
    }

    fn forget(&self, session: &Arc<Session>) {
        let mut open = self.lock();
        let ours = |relay: &Relay| Arc::ptr_eq(&relay.session, session);
        if open.get(&session.id).is_some_and(ours) {
            open.remove(&session.id);
        }
    }

    /// Opens those of the sessions that were there before this server, at the ports where their
    /// clients know them, as far as these are free.
    pub(crate) fn reopen(&self, app: &App) {
        if !app.config.hastekit.enabled {
            return;
        }
        for session in app.sessions.known().iter().filter(|s| super::is_ours(s)) {
            if let Err(failure) = self.open(app, session) {
                tracing::warn!(session = %session.id, detail = failure.detail, "{failure}");
            }
        }
    }

    /// Takes no more requests, and lets those that run come to their end.
    pub(crate) async fn close(&self) {
        self.stopping.send_replace(true);
        let serving = self.serving.lock();
        drop(serving.unwrap_or_else(PoisonError::into_inner).take());
        // Nothing is ever sent: this waits until the last has let go.
        let _ = self.ended.lock().await.recv().await;
    }
}

/// A free port of the range. Where to look first follows from the session, so that a client that
/// comes back most often finds it where it was.
fn bind(settings: &config::Hastekit, id: &SessionId) -> Result<TcpListener, Failure> {
    let ports = settings.ports;
    let hash = u64::from_str_radix(&id.digits()[..8], 16).unwrap_or(0);
    for step in 0..ports.count() {
        let address = SocketAddr::new(settings.address, ports.nth(hash + step));
        match TcpListener::bind(address) {
            Ok(listener) => {
                let set = listener.set_nonblocking(true);
                set.map_err(|e| Failure::io(format!("cannot listen on {address}"), &e))?;
                return Ok(listener);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(Failure::io(format!("cannot listen on {address}"), &e)),
        }
    }
    let message = format!(
        "no port of {ports} is free on {} for a sandbox",
        settings.address
    );
    Err(Failure::new(Code::Full, message).hint("widen hastekit.ports, or end some sandboxes"))
}

/// What a request here needs to know.
#[derive(Clone)]
struct Way {
    app: App,
    session: Arc<Session>,
    loopback: bool,
}

/// Serves until the session or the server ends.
async fn attend(app: &App, session: &Arc<Session>, listener: Listener) {
    let way = Way {
        app: app.clone(),
        session: Arc::clone(session),
        loopback: app.config.hastekit.address.is_loopback(),
    };
    let router = Router::new()
        .route("/health", any(hand_over))
        .route("/exec/bash", any(hand_over))
        .route("/exec/python", any(hand_over))
        .route("/files/{*path}", any(hand_over))
        .fallback(hand_over)
        // The last one is the first that a request meets.
        .layer(layer(app.clone(), audit::record))
        .layer(layer(app.clone(), limits::guard))
        .layer(layer(way.clone(), admit))
        .layer(layer(app.clone(), seen::observe))
        .layer(from_fn(plain))
        .with_state(way);
    let mut http = app.config.http.clone();
    http.max_connections = http.max_connections.min(CONNECTIONS);
    let mut stopping = app.relays.stopping.subscribe();
    let over = async {
        tokio::select! {
            () = session.closed() => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    };
    serve(&http, listener, router, over).await;
}

/// What comes from a sandbox is nothing for a browser to make sense of.
async fn plain(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let nosniff = HeaderValue::from_static("nosniff");
    answer
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    answer
}

/// Anybody who gets here may use the sandbox, but for web pages in a browser of this machine.
async fn admit(State(way): State<Way>, request: Request, next: Next) -> Response {
    act::by(&Caller::anybody());
    act::about(&way.session.id);
    match check_browser(way.loopback, &request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// What has to be known of a command here.
#[derive(Deserialize)]
struct Command {
    #[serde(default)]
    command: Option<String>,
    #[serde(default)]
    script: Option<String>,
    #[serde(default)]
    timeout_seconds: Option<f64>,
}

async fn hand_over(State(way): State<Way>, request: Request) -> Answer<Response> {
    let session = &way.session;
    let in_use = session.begin();
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let (body, timeout_ms) = match (&parts.method, path) {
        (&Method::POST, "/exec/bash" | "/exec/python") => {
            let (bytes, timeout_ms) = command(&way.app, path, body).await?;
            (full(bytes), Some(timeout_ms))
        }
        _ => (body.map_err(std::io::Error::other).boxed_unsync(), None),
    };
    let accept = parts.headers.get_all(header::ACCEPT).iter();
    let bytes = accept
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains(BYTES));
    let asked = async {
        let guest = session.guest().await?;
        let accept = bytes.then_some(BYTES);
        guest
            .daemon(parts.method, path, body, accept, timeout_ms)
            .await
    };
    let answer = asked
        .await
        .map_err(|failure| way.app.lost(session, failure))?;
    believable(answer, in_use)
}

const BYTES: &str = "application/octet-stream";

/// Reads a command, so that it can be recorded and its end awaited.
async fn command(app: &App, path: &str, body: Body) -> Answer<(Bytes, u64)> {
    let bytes = axum::body::to_bytes(body, app.max_body()).await;
    let bytes = bytes.map_err(|error| super::super::extract::unread(&error, app.max_body()))?;
    let command: Command = serde_json::from_slice(&bytes)
        .map_err(|e| Problem::from(Failure::invalid(format!("bad body: {e}"))))?;
    let (kind, code) = match path {
        "/exec/python" => ("code", command.script.or(command.command)),
        _ => ("bash", command.command.or(command.script)),
    };
    act::runs(kind, &code.unwrap_or_default())?;
    let asked = command.timeout_seconds.map(|seconds| seconds * 1000.0);
    let asked = asked.filter(|ms| *ms > 0.0).unwrap_or(TIMEOUT_MS);
    Ok((bytes, asked.min(LONGEST_MS).ceil() as u64))
}

/// The answer of a guest with nothing in it but what an answer of the contract has.
fn believable<T: Send + Unpin + 'static>(
    answer: http::Response<hyper::body::Incoming>,
    held: T,
) -> Answer<Response> {
    let (parts, body) = answer.into_parts();
    let status = parts.status;
    if !(status.is_success() || status.is_client_error() || status.is_server_error()) {
        let message = format!("the sandbox answered with status {status}");
        return Err(Failure::new(Code::Unavailable, message).into());
    }
    let kinds = ["application/json", "text/plain"];
    let kind = parts.headers.get(header::CONTENT_TYPE);
    let kind = kinds
        .into_iter()
        .find(|known| kind.is_some_and(|kind| kind == known));
    let mut answer = Response::new(Holding::until_end(Body::new(body), held));
    *answer.status_mut() = status;
    if status != StatusCode::NO_CONTENT {
        let kind = HeaderValue::from_static(kind.unwrap_or(BYTES));
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    }
    Ok(answer)
}
