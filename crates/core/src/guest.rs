//! The client of a guest. What comes back was written by something hostile until proven otherwise:
//! sizes are bounded, JSON is parsed strictly, and nothing is trusted to end.

mod gather;
mod jobs;

pub use jobs::is_name;

use crate::backend::Io;
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use gather::Gather;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ringfence_proto::{
    Code, Event, ExecRequest, ExecResult, Failure, Health, JobInfo, KernelInfo, KernelRequest,
    PROTOCOL, RunRequest, TarQuery, ToolEvent, ToolReply, ToolsInfo, ToolsRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::Instant;

/// Most bytes of an answer that are read into memory.
const ANSWER_LIMIT: usize = 160 << 20;

/// Most bytes of a failure.
const FAILURE_LIMIT: usize = 64 << 10;

/// Most bytes of one line of a stream of events.
const LINE_LIMIT: usize = 32 << 20;

/// Bytes of one answer that are taken before anybody reads it.
const STREAM_WINDOW: u32 = 1 << 20;

/// The most that HTTP/2 knows: over a thousand answers that nobody reads must not keep another from
/// coming. It is a promise and takes no memory; what can be held is one window for each request.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// How often a guest that owes an answer is asked whether it is there, and how long it may take to
/// say so.
const PING_EVERY: Duration = Duration::from_secs(15);
const PING_ANSWER: Duration = Duration::from_secs(30);

/// The longest that any other request may take, whatever is carried.
const LONGEST: Duration = Duration::from_secs(600);

/// How long after a command's time limit its guest may take to kill it and say so. Then the guest
/// is not believed any more: it has been stopped, starved or taken over.
const GRACE: Duration = Duration::from_secs(15);

/// The events of a job as they come; the last one is its end, or a failure.
pub type Events = std::pin::Pin<Box<dyn Stream<Item = Result<Event, Failure>> + Send>>;

/// Calls of tools as they come, without end but by a failure: then ask for a new stream, which is
/// given the calls that are open.
pub type ToolEvents = std::pin::Pin<Box<dyn Stream<Item = Result<ToolEvent, Failure>> + Send>>;

pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A connection to a guest, cheap to clone; requests on it run side by side.
#[derive(Debug, Clone)]
pub struct GuestClient {
    sender: SendRequest<Body>,
}

fn lost(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(
        Code::Unavailable,
        format!("cannot read the sandbox's answer: {what}"),
    )
    .detail(error)
}

impl GuestClient {
    /// Speaks HTTP/2 on this stream.
    pub async fn connect(io: Box<dyn Io>) -> Result<Self, Failure> {
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_ANSWER)
            .handshake(TokioIo::new(Gather::new(io)))
            .await
            .map_err(|e| lost("handshake", e))?;
        // Its end is seen by every request on it.
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    /// Whether nothing can be asked on it any more.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Asks for its health and checks that both sides speak the same protocol.
    pub async fn health(&self) -> Result<Health, Failure> {
        let deadline = Some(Instant::now() + GRACE);
        let health: Health = by(deadline, self.get("/health", &())).await?;
        if health.protocol != PROTOCOL {
            let theirs = health.protocol;
            return Err(Failure::new(
                Code::Unavailable,
                format!("the guest speaks protocol {theirs}, this host {PROTOCOL}"),
            ));
        }
        Ok(health)
    }

    pub async fn exec(&self, request: &ExecRequest) -> Result<ExecResult, Failure> {
        by(
            deadline(request.timeout_ms),
            self.call(Method::POST, "/exec", request),
        )
        .await
    }

    /// Runs a command and hands out its events as they come.
    pub async fn exec_events(&self, request: &ExecRequest) -> Result<Events, Failure> {
        self.events(Method::POST, "/exec", request, deadline(request.timeout_ms))
            .await
    }

    pub async fn start(&self, request: &ExecRequest) -> Result<JobInfo, Failure> {
        by(
            Some(Instant::now() + GRACE),
            self.call(Method::POST, "/jobs", request),
        )
        .await
    }

    pub async fn run(&self, kernel: &str, request: &RunRequest) -> Result<ExecResult, Failure> {
        let path = format!("/kernels/{kernel}/run");
        by(queued(request), self.call(Method::POST, &path, request)).await
    }

    pub async fn run_events(&self, kernel: &str, request: &RunRequest) -> Result<Events, Failure> {
        let path = format!("/kernels/{kernel}/run");
        self.events(Method::POST, &path, request, queued(request))
            .await
    }

    pub async fn start_kernel(
        &self,
        kernel: &str,
        request: &KernelRequest,
    ) -> Result<KernelInfo, Failure> {
        by(
            longest(),
            self.call(Method::PUT, &format!("/kernels/{kernel}"), request),
        )
        .await
    }

    /// Installs functions that code in the sandbox can call, in place of those of before.
    pub async fn register_tools(&self, request: &ToolsRequest) -> Result<ToolsInfo, Failure> {
        by(longest(), self.call(Method::PUT, "/tools", request)).await
    }

    /// Calls of tools for this reader, as they come. Who reads must check that the name is one
    /// that was registered, and bound what a sandbox may have going on: the guest does both, and
    /// is not believed.
    pub async fn tool_calls(&self) -> Result<ToolEvents, Failure> {
        let answer = self.send(Method::GET, "/tools/calls", full(Bytes::new()), None);
        let deadline = Some(Instant::now() + GRACE);
        let response = by(deadline, async { checked(answer.await?).await }).await?;
        Ok(Box::pin(lines(response.into_body(), None, |_| false)))
    }

    /// Delivers the reply to a call; not found when nobody waits for it any more.
    pub async fn reply_tool(&self, id: &str, reply: &ToolReply) -> Result<(), Failure> {
        let path = format!("/tools/calls/{id}");
        self.tell(Method::POST, &path, reply).await
    }

    /// Writes a whole file; `query` is a [`ringfence_proto::WriteQuery`].
    pub async fn write(
        &self,
        query: &ringfence_proto::WriteQuery,
        bytes: impl Into<Bytes>,
    ) -> Result<ringfence_proto::Entry, Failure> {
        let path = with_query("/files/content", query)?;
        let answer = self.send(Method::PUT, &path, full(bytes.into()), None);
        by(longest(), async { read_json(answer.await?).await }).await
    }

    /// Reads a file, or a part of it, that fits into memory.
    pub async fn read(&self, query: &ringfence_proto::ReadQuery) -> Result<Bytes, Failure> {
        let path = with_query("/files/content", query)?;
        let answer = self.send(Method::GET, &path, full(Bytes::new()), None);
        by(longest(), async {
            read_all(checked(answer.await?).await?, ANSWER_LIMIT).await
        })
        .await
    }

    /// A folder as an archive that fits into `limit` bytes.
    pub async fn pack(&self, query: &TarQuery, limit: usize) -> Result<Bytes, Failure> {
        let path = with_query("/files/tar", query)?;
        let answer = self.send(Method::GET, &path, full(Bytes::new()), None);
        by(longest(), async {
            read_all(checked(answer.await?).await?, limit).await
        })
        .await
    }

    /// Unpacks an archive into a folder, which is made where it is missing.
    pub async fn unpack(&self, query: &TarQuery, archive: Bytes) -> Result<(), Failure> {
        let path = with_query("/files/tar", query)?;
        let answer = self.send(Method::PUT, &path, full(archive), None);
        by(longest(), async { checked(answer.await?).await.map(drop) }).await
    }

    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &impl Serialize,
    ) -> Result<T, Failure> {
        let path = with_query(path, query)?;
        let answer = self.send(Method::GET, &path, full(Bytes::new()), None);
        by(longest(), async { read_json(answer.await?).await }).await
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        by(longest(), self.call(Method::POST, path, body)).await
    }

    /// A JSON request with a JSON answer, for as long as that takes.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        read_json(self.send(method, path, json_body(body)?, None).await?).await
    }

    /// A request whose answer has no body.
    pub async fn tell(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(), Failure> {
        let answer = self.send(method, path, json_body(body)?, None);
        by(longest(), async { checked(answer.await?).await.map(drop) }).await
    }

    /// A request with a streamed body; the answer is checked for failure and handed over.
    pub async fn stream(
        &self,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, Failure> {
        checked(self.send(method, path, body, None).await?).await
    }

    /// Hands on what a client of the HasteKit contract asks of the guest's daemon: the answer is
    /// the guest's own, whatever it says.
    pub async fn daemon(
        &self,
        method: Method,
        path: &str,
        body: Body,
        accept: Option<&'static str>,
        timeout_ms: Option<u64>,
    ) -> Result<Response<Incoming>, Failure> {
        let path = format!("/daemon{path}");
        let due = deadline(timeout_ms).or_else(longest);
        by(due, self.send(method, &path, body, accept)).await
    }

    async fn events(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        deadline: Option<Instant>,
    ) -> Result<Events, Failure> {
        let accept = Some("application/x-ndjson");
        let answer = self.send(method, path, json_body(body)?, accept);
        let response = by(deadline, async { checked(answer.await?).await }).await?;
        Ok(Box::pin(lines(response.into_body(), deadline, is_end)))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Body,
        accept: Option<&'static str>,
    ) -> Result<Response<Incoming>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://guest{path}"))
            .body(body)
            .map_err(|e| Failure::new(Code::Internal, "cannot make a request").detail(e))?;
        if let Some(accept) = accept {
            request
                .headers_mut()
                .insert(http::header::ACCEPT, http::HeaderValue::from_static(accept));
        }
        let mut sender = self.sender.clone();
        sender
            .ready()
            .await
            .map_err(|e| lost("connection closed", e))?;
        sender
            .send_request(request)
            .await
            .map_err(|e| lost(path, e))
    }
}

/// When a command must have ended, whatever its guest does.
fn deadline(timeout_ms: Option<u64>) -> Option<Instant> {
    let limit = Duration::from_millis(timeout_ms?);
    Instant::now().checked_add(limit.checked_add(GRACE)?)
}

/// When a call must have ended. Calls of one kernel wait for each other, and its limit begins when
/// it does.
fn queued(request: &RunRequest) -> Option<Instant> {
    deadline(request.timeout_ms)?.checked_add(LONGEST)
}

/// When a request that is no command must have been answered.
fn longest() -> Option<Instant> {
    Instant::now().checked_add(LONGEST)
}

async fn by<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let Some(deadline) = deadline else {
        return work.await;
    };
    tokio::time::timeout_at(deadline, work)
        .await
        .unwrap_or_else(|_| Err(overdue()))
}

fn overdue() -> Failure {
    Failure::new(
        Code::DeadlineExceeded,
        "the sandbox did not answer in time, also not to say that time was up",
    )
}

pub fn full(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never| match never {})
        .boxed_unsync()
}

fn json_body(value: &impl Serialize) -> Result<Body, Failure> {
    serde_json::to_vec(value)
        .map(|bytes| full(bytes.into()))
        .map_err(|e| Failure::new(Code::Internal, "cannot write a request").detail(e))
}

/// A path with its query; values are percent-encoded.
pub fn with_query(path: &str, query: &impl Serialize) -> Result<String, Failure> {
    let query = serde_urlencoded::to_string(query)
        .map_err(|e| Failure::new(Code::Internal, "cannot write a query").detail(e))?;
    Ok(if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    })
}

async fn read_all(response: Response<Incoming>, limit: usize) -> Result<Bytes, Failure> {
    let limited = http_body_util::Limited::new(response.into_body(), limit);
    let collected = limited
        .collect()
        .await
        .map_err(|e| lost("the answer broke off", e))?;
    Ok(collected.to_bytes())
}

/// The JSON of an answer that fits into memory.
pub async fn read_json<T: DeserializeOwned>(response: Response<Incoming>) -> Result<T, Failure> {
    let bytes = read_all(checked(response).await?, ANSWER_LIMIT).await?;
    let bytes: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
    serde_json::from_slice(bytes).map_err(|e| lost("not the answer that was expected", e))
}

/// The response, or the failure that it carries.
async fn checked(response: Response<Incoming>) -> Result<Response<Incoming>, Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = read_all(response, FAILURE_LIMIT).await?;
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|_| odd_status(status)))
}

fn odd_status(status: StatusCode) -> Failure {
    Failure::new(
        Code::Unavailable,
        format!("the sandbox answered with status {status}"),
    )
}

/// A job's last event.
fn is_end(event: &Event) -> bool {
    matches!(event, Event::End(_))
}

/// Splits a body into lines, each one event, until the last; a line over the limit ends the stream.
fn lines<T: DeserializeOwned>(
    body: Incoming,
    deadline: Option<Instant>,
    is_last: fn(&T) -> bool,
) -> impl Stream<Item = Result<T, Failure>> {
    struct State {
        body: Incoming,
        buffer: BytesMut,
        /// Bytes of the buffer already searched for a line end.
        searched: usize,
        done: bool,
    }
    let start = State {
        body,
        buffer: BytesMut::new(),
        searched: 0,
        done: false,
    };
    futures_util::stream::unfold(start, move |mut state| async move {
        if state.done {
            return None;
        }
        loop {
            let unsearched = state.buffer.get(state.searched..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|b| *b == b'\n') {
                let line = state.buffer.split_to(state.searched + end + 1);
                state.searched = 0;
                let event = serde_json::from_slice::<T>(&line)
                    .map_err(|e| lost("an event that can't be read", e));
                state.done = event.as_ref().map_or(true, is_last);
                return Some((event, state));
            }
            state.searched = state.buffer.len();
            if state.buffer.len() > LINE_LIMIT {
                state.done = true;
                return Some((Err(lost("an event over the limit", LINE_LIMIT)), state));
            }
            let frame = match deadline {
                // A guest that floods always has a next frame, so time is looked at first.
                Some(deadline) if Instant::now() >= deadline => None,
                Some(deadline) => tokio::time::timeout_at(deadline, state.body.frame())
                    .await
                    .ok(),
                None => Some(state.body.frame().await),
            };
            let Some(frame) = frame else {
                state.done = true;
                return Some((Err(overdue()), state));
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        state.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => {
                    state.done = true;
                    return Some((Err(lost("the stream broke off", error)), state));
                }
                None => {
                    state.done = true;
                    return Some((Err(lost("the stream ended early", "no end event")), state));
                }
            }
        }
    })
}
