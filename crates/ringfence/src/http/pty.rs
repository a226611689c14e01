//! Terminals over WebSocket. Binary frames are what is typed and what is shown; text frames are
//! JSON: `{"resize": {"rows", "cols"}}` from the client, `attached`, `skipped` and `ended` from
//! here. A socket that drops is a reader that left: the job waits for it to come back.

use super::act::{self, Act};
use super::extract::{Path, Query};
use super::job::{checked_offset, place};
use super::jobs::{EndObject, checked_size};
use super::problem::{Answer, Problem, ProblemBody};
use super::readers::{Reader, Unread};
use super::run::broken;
use super::state::{App, Caller, Scope};
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::extract::{Extension, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use ringfence_core::guest::Events;
use ringfence_core::proto::{
    Command, Event, ExecRequest, JobEnd, OutputQuery, PtySize, StdinQuery,
};
use ringfence_core::{Code, Failure, GuestClient, Session, Work};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use utoipa::IntoParams;

/// Spoken by clients that have to name something, such as browsers, which send their key as
/// another one; others need not.
const PROTOCOL: &str = "ringfence.pty";

/// Most bytes of a message. One that is larger, up to the second, is read, so that its sender
/// hears why it is refused; what is larger still cuts the connection off.
const MESSAGE: usize = 1 << 20;
const MESSAGE_READ: usize = 4 << 20;

/// How often a client is asked whether it is there, and how long nothing may come from it.
const PING: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(45);

/// How long the last words to a client may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// The longest time that a shell may run: the session ends before.
const LONGEST_MS: u64 = 86_400_000;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct JoinQuery {
    /// Where to begin with what was shown before; everything that is kept when absent.
    #[param(maximum = 9_007_199_254_740_991_i64)]
    offset: u64,
}

/// Joins the terminal of a job, as a WebSocket. Its messages are those of
/// `/sessions/{session}/pty`.
#[utoipa::path(
    get,
    path = "/sessions/{session}/jobs/{job}/pty",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path), JoinQuery),
    responses(
        (status = 101, description = "a WebSocket follows"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn join(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    Query(query): Query<JoinQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    checked_offset(query.offset)?;
    let upgrade = upgraded(upgrade)?;
    // Whoever joins may type.
    let session = place(&app, &caller, &path, Scope::Use).await?;
    let info = async { session.guest().await?.job(&path.1).await };
    let info = info.await.map_err(|failure| app.lost(&session, failure))?;
    if !info.pty {
        let message = format!("job {} has no terminal", path.1);
        let hint = "start one with `pty`, or read the job's events";
        return Err(Failure::new(Code::Conflict, message).hint(hint).into());
    }
    let reader = Reader::new(&app, &session, &path.1, Unread::of(info.detached));
    Ok(attach(
        upgrade,
        &app,
        &session,
        path.1,
        query.offset,
        reader,
        None,
    ))
}

/// Most bytes of a command, which must fit into a URL.
const COMMAND: usize = 16_384;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct OpenQuery {
    /// 24 when absent.
    #[param(minimum = 1, maximum = 10_000)]
    rows: u16,
    /// 80 when absent.
    #[param(minimum = 1, maximum = 10_000)]
    cols: u16,
    /// What runs in it; a login shell when absent.
    #[param(min_length = 1, max_length = 16_384)]
    command: Option<String>,
}

impl Default for OpenQuery {
    fn default() -> Self {
        Self {
            rows: 24,
            cols: 80,
            command: None,
        }
    }
}

/// Starts a shell in a terminal and joins it, as a WebSocket.
///
/// Binary messages are what is typed and what is shown, 1 MiB at most. Text messages are JSON:
/// `{"resize": {"rows": 24, "cols": 80}}` from the client; from here `{"attached": {"job_id",
/// "offset"}}` first of all, `{"skipped": {"from", "to"}}` where what was shown is no longer
/// kept, and `{"ended": …}` with how it ended, after which the socket is closed.
#[utoipa::path(
    get,
    path = "/sessions/{session}/pty",
    tag = "jobs",
    params(("session" = String, Path), OpenQuery),
    responses(
        (status = 101, description = "a WebSocket follows"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn open(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<OpenQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let upgrade = upgraded(upgrade)?;
    let (rows, cols) = (query.rows, query.cols);
    let size = checked_size(&["query"], PtySize { rows, cols })?;
    let command = query.command.unwrap_or_else(|| {
        // `exec` leaves one shell, not one that waits for another.
        "if [ -x /bin/bash ]; then exec /bin/bash -i; else exec /bin/sh -i; fi".to_owned()
    });
    if command.is_empty() || command.len() > COMMAND || command.contains('\0') {
        let message = format!("must have 1 to {COMMAND} bytes, none of them null");
        return Err(Problem::at(&["query", "command"], message, "value_error"));
    }
    let session = app.session(&caller, &id, Scope::Use).await?;
    let _use = session.begin();
    let mut request = ExecRequest::new(Command::Shell(command));
    request.pty = Some(size);
    request.timeout_ms = Some(LONGEST_MS);
    request.output_limit = Some(app.output_limit());
    request.limits.cpu_seconds = Some(app.config.limits.cpu_seconds);
    let mut work = Work::Exec(request);
    let job = work.name()?;
    let reader = Reader::new(&app, &session, &job, Unread::Cancel);
    if let Err(failure) = app.start(&session, &work, &job).await {
        reader.finish();
        return Err(broken(&app, &session, failure));
    }
    let act = act::later();
    Ok(attach(upgrade, &app, &session, job, 0, reader, act))
}

fn upgraded(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<WebSocketUpgrade> {
    upgrade.map_err(|rejection| {
        let failure = Failure::new(Code::InvalidInput, "a terminal is spoken to by WebSocket");
        Problem::sentence(failure.detail(&rejection)).with_status(rejection.status())
    })
}

fn attach(
    upgrade: WebSocketUpgrade,
    app: &App,
    session: &Arc<Session>,
    job: String,
    offset: u64,
    reader: Reader,
    act: Option<Arc<Act>>,
) -> Response {
    let terminal = Terminal {
        app: app.clone(),
        session: Arc::clone(session),
        job,
        offset,
        act,
    };
    upgrade
        .protocols([PROTOCOL])
        .max_message_size(MESSAGE_READ)
        .max_frame_size(MESSAGE_READ)
        .on_upgrade(move |socket| terminal.serve(socket, reader))
}

struct Terminal {
    app: App,
    session: Arc<Session>,
    job: String,
    offset: u64,
    /// Where this socket started the job.
    act: Option<Arc<Act>>,
}

/// Why a socket is closed, in numbers and words.
struct Farewell {
    code: u16,
    reason: String,
}

impl Farewell {
    fn new(code: u16, reason: impl Into<String>) -> Self {
        // A reason has at most 123 bytes.
        let mut reason = reason.into();
        while reason.len() > 123 {
            reason.pop();
        }
        Self { code, reason }
    }

    fn of(problem: Problem) -> Self {
        let failure = problem.failure();
        let code = match failure.code {
            // The session or the job was ended.
            Code::NotFound => close_code::AWAY,
            _ => close_code::ERROR,
        };
        Self::new(code, failure.message.clone())
    }
}

fn text(value: &Value) -> Message {
    Message::Text(Utf8Bytes::from(value.to_string()))
}

/// Why the talk is over.
enum Over {
    Ended(Box<JobEnd>),
    Failed(Failure),
    /// The client left, or can't be spoken to.
    Left,
    /// The client did what is not allowed.
    Wrong(Farewell),
}

impl Terminal {
    async fn serve(self, socket: WebSocket, reader: Reader) {
        let _use = self.session.begin();
        let (mut sink, mut stream) = socket.split();
        let opened = async {
            let guest = self.session.guest().await?;
            let from = OutputQuery {
                stdout: self.offset,
                stderr: u64::MAX,
                results: u32::MAX,
                follow: true,
            };
            let events = guest.job_events(&self.job, &from).await?;
            Ok((guest, events))
        };
        let over = match opened.await {
            Ok((guest, events)) => {
                // Whichever ends first ends both.
                tokio::select! {
                    over = show(&self, &mut sink, events) => over,
                    over = typed(&self, &mut stream, &guest) => over,
                }
            }
            Err(failure) => Over::Failed(failure),
        };
        let farewell = match over {
            Over::Left => {
                // Whoever said that they go is told that they were heard.
                let _ = tokio::time::timeout(FAREWELL, sink.close()).await;
                return;
            }
            Over::Wrong(farewell) => farewell,
            Over::Ended(end) => {
                reader.finish();
                if let Some(act) = &self.act {
                    act.ended(Ok(&end));
                }
                let end = EndObject::of(&self.job, &end);
                let words = format!("ended with {}", end.return_code());
                let told = sink.send(text(&json!({"ended": end})));
                let _ = tokio::time::timeout(FAREWELL, told).await;
                Farewell::new(close_code::NORMAL, words)
            }
            Over::Failed(failure) => {
                if !self.session.is_closing() {
                    // Finds out whether it is the session that is gone.
                    let _ = self.session.guest().await;
                }
                Farewell::of(broken(&self.app, &self.session, failure))
            }
        };
        let close = Message::Close(Some(CloseFrame {
            code: farewell.code,
            reason: farewell.reason.into(),
        }));
        let parted = async {
            // What is unread when the connection closes would take these words with it.
            if sink.send(close).await.is_ok() {
                while let Some(Ok(_)) = stream.next().await {}
            }
        };
        let _ = tokio::time::timeout(FAREWELL, parted).await;
    }
}

/// What the job shows goes to the client, as fast as that reads.
async fn show(
    terminal: &Terminal,
    sink: &mut SplitSink<WebSocket, Message>,
    mut events: Events,
) -> Over {
    let attached = json!({"attached": {"job_id": terminal.job, "offset": terminal.offset}});
    if sink.send(text(&attached)).await.is_err() {
        return Over::Left;
    }
    let mut pings = tokio::time::interval(PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            _ = pings.tick() => Message::Ping(Bytes::new()),
            event = events.next() => match event {
                Some(Ok(Event::Stdout { data, .. })) => Message::Binary(data.0.into()),
                Some(Ok(Event::Skipped { from, to, .. })) => {
                    text(&json!({"skipped": {"from": from, "to": to}}))
                }
                Some(Ok(Event::End(end))) => return Over::Ended(Box::new(end)),
                Some(Ok(_)) => continue,
                Some(Err(failure)) => return Over::Failed(failure),
                None => {
                    let message = "the terminal ended without a word";
                    return Over::Failed(Failure::new(Code::Unavailable, message));
                }
            },
        };
        if sink.send(message).await.is_err() {
            return Over::Left;
        }
    }
}

/// What a client may say besides typing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Control {
    Resize(PtySize),
}

/// What the client types goes to the job, as fast as that reads.
async fn typed(
    terminal: &Terminal,
    stream: &mut SplitStream<WebSocket>,
    guest: &GuestClient,
) -> Over {
    let (keys, queue) = mpsc::channel::<Bytes>(16);
    let body = stream::unfold(queue, async |mut queue| {
        let bytes = queue.recv().await?;
        Some((Ok::<_, std::io::Error>(Frame::data(bytes)), queue))
    });
    let body = StreamBody::new(body).boxed_unsync();
    let query = StdinQuery { end: false };
    let writing = async {
        // When the job takes no more, its end is on its way to the client.
        let _ = guest.stdin(&terminal.job, &query, body).await;
        std::future::pending::<Over>().await
    };
    let reading = async {
        loop {
            let Ok(message) = tokio::time::timeout(SILENCE, stream.next()).await else {
                return Over::Wrong(Farewell::new(
                    close_code::POLICY,
                    "nothing came for too long",
                ));
            };
            let bytes = match message {
                Some(Ok(Message::Binary(bytes))) if bytes.len() > MESSAGE => return too_large(),
                Some(Ok(Message::Text(text))) if text.len() > MESSAGE => return too_large(),
                Some(Ok(Message::Binary(bytes))) => bytes,
                Some(Ok(Message::Text(text))) => {
                    if let Err(farewell) = control(terminal, guest, &text).await {
                        return Over::Wrong(farewell);
                    }
                    continue;
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Close(_))) | None => return Over::Left,
                Some(Err(error)) => return refused(&error),
            };
            // A job that reads nothing holds its client back; one that has ended takes nothing.
            if !bytes.is_empty() && keys.send(bytes).await.is_err() {
                continue;
            }
        }
    };
    tokio::select! {
        over = writing => over,
        over = reading => over,
    }
}

async fn control(terminal: &Terminal, guest: &GuestClient, text: &str) -> Result<(), Farewell> {
    let wrong = |words: &str| Farewell::new(close_code::POLICY, words);
    let control = serde_json::from_str(text)
        .map_err(|_| wrong("text must be {\"resize\": {\"rows\": …, \"cols\": …}}"))?;
    let Control::Resize(size) = control;
    let size = checked_size(&[], size).map_err(|_| wrong("rows and cols must be 1 to 10000"))?;
    match guest.resize(&terminal.job, size).await {
        // It has just ended.
        Err(failure) if failure.code != Code::Conflict => Err(Farewell::of(failure.into())),
        _ => Ok(()),
    }
}

fn too_large() -> Over {
    let words = format!("a message has at most {MESSAGE} bytes");
    Over::Wrong(Farewell::new(close_code::SIZE, words))
}

/// A frame that can't be taken.
fn refused(error: &axum::Error) -> Over {
    let words = error.to_string();
    if words.contains("too long") || words.contains("too big") || words.contains("too large") {
        return too_large();
    }
    Over::Left
}
