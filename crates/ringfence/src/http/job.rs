//! `/sessions/{session}/jobs/{job}`: one job, its output, input and end.

use super::events::{self, Last, ServerEvent};
use super::extract::{Body, Path, Query};
use super::jobs::{JobObject, ResultObject, checked_size};
use super::problem::{Answer, Problem, ProblemBody};
use super::readers::{Reader, Unread};
use super::run::broken;
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use ringfence_core::guest::{Events, is_name};
use ringfence_core::proto::{
    Event, JobInfo, JobState, OUTPUT_LIMIT_MAX, OutputQuery, PtySize, SignalRequest, StdinQuery,
    WaitQuery, signal_number,
};
use ringfence_core::{Code, Failure, Session};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use utoipa::{IntoParams, ToSchema};

/// The session and the job of a path, if the caller may do that with them.
pub(super) async fn place(
    app: &App,
    caller: &Caller,
    (session, job): &(String, String),
    scope: Scope,
) -> Answer<Arc<Session>> {
    let session = app.known(caller, session, scope).await?;
    if !is_name(job) {
        let shown: String = job.chars().take(64).collect();
        return Err(Failure::new(Code::NotFound, format!("no such job: {shown}")).into());
    }
    if caller.scope > Scope::Read {
        app.touch(&session, job);
    }
    Ok(session)
}

async fn info(app: &App, session: &Arc<Session>, job: &str) -> Answer<JobInfo> {
    let info = async { session.guest().await?.job(job).await };
    info.await.map_err(|failure| app.lost(session, failure))
}

/// A job: what it is, how far it is.
#[utoipa::path(
    get,
    path = "/sessions/{session}/jobs/{job}",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path)),
    responses((status = 200, body = JobObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
) -> Answer<Json<JobObject>> {
    let session = place(&app, &caller, &path, Scope::Read).await?;
    Ok(Json(JobObject::of(info(&app, &session, &path.1).await?)))
}

/// Kills whatever is left of a job, and forgets it with its output.
#[utoipa::path(
    delete,
    path = "/sessions/{session}/jobs/{job}",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
) -> Answer<StatusCode> {
    let session = place(&app, &caller, &path, Scope::Use).await?;
    let _use = session.begin();
    let removed = async { session.guest().await?.remove_job(&path.1).await };
    removed
        .await
        .map_err(|failure| app.lost(&session, failure))?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// The id of the last event that was seen; the header `Last-Event-ID` goes before it.
    #[param(pattern = "^[0-9]+[.][0-9]+[.][0-9]+$")]
    after: Option<String>,
}

/// The events of a job, from its beginning or from where a reader was cut off. They are `started`,
/// `stdout`, `stderr`, `result`, `skipped` where output is no longer kept, `certificate`, and at
/// the end `done`; `failure` where there is no end to tell.
#[utoipa::path(
    get,
    path = "/sessions/{session}/jobs/{job}/events",
    tag = "jobs",
    params(
        ("session" = String, Path),
        ("job" = String, Path),
        ("last-event-id" = Option<String>, Header, description = "the id of the last event that was seen"),
        EventsQuery,
    ),
    responses(
        (status = 200, body = ServerEvent, content_type = "text/event-stream"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn follow(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Answer<Response> {
    let at = events::position(&headers, query.after.as_deref())?;
    let session = place(&app, &caller, &path, Scope::Read).await?;
    // Before anybody counts on this reader: one that goes at once is one that has gone.
    let unread = Unread::of(info(&app, &session, &path.1).await?.detached);
    let reader = Reader::joining(&app, &caller, &session, &path.1, unread);
    events::stream_job(&app, &session, path.1, at, reader, Last::Job, None).await
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitFor {
    /// 30 when absent.
    #[param(minimum = 0, maximum = 300)]
    timeout_seconds: Option<f64>,
}

/// Answers when a job has ended, or after the time, with what it is then. Who waits counts as a
/// reader.
#[utoipa::path(
    get,
    path = "/sessions/{session}/jobs/{job}/wait",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path), WaitFor),
    responses((status = 200, body = JobObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn wait(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    Query(query): Query<WaitFor>,
) -> Answer<Json<JobObject>> {
    let seconds = query.timeout_seconds.unwrap_or(30.0);
    if !(0.0..=300.0).contains(&seconds) {
        let message = "must be between 0 and 300";
        return Err(Problem::at(
            &["query", "timeout_seconds"],
            message,
            "value_error",
        ));
    }
    let session = place(&app, &caller, &path, Scope::Read).await?;
    let job = path.1;
    let now = info(&app, &session, &job).await?;
    if now.state != JobState::Running {
        return Ok(Json(JobObject::of(now)));
    }
    let _use = session.begin();
    let unread = Unread::of(now.detached);
    let reader = Reader::joining(&app, &caller, &session, &job, unread);
    let query = WaitQuery {
        timeout_ms: Some((seconds * 1000.0) as u64),
    };
    let waited = async { session.guest().await?.wait(&job, &query).await };
    let now = waited
        .await
        .map_err(|failure| broken(&app, &session, failure))?;
    if let Some(reader) = reader
        && now.state != JobState::Running
    {
        reader.finish();
    }
    Ok(Json(JobObject::of(now)))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ResultQuery {
    /// Bytes of each stream, at most those that were asked for when the job was started.
    #[param(minimum = 0, maximum = 67_108_864)]
    output_limit: Option<u64>,
}

/// The whole result of a job that has ended.
#[utoipa::path(
    get,
    path = "/sessions/{session}/jobs/{job}/result",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path), ResultQuery),
    responses(
        (status = 200, body = ResultObject),
        (status = 409, body = ProblemBody, description = "it still runs"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn result(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    Query(query): Query<ResultQuery>,
) -> Answer<Json<ResultObject>> {
    let limit = query.output_limit;
    if limit.is_some_and(|limit| limit > OUTPUT_LIMIT_MAX) {
        let message = format!("must be at most {OUTPUT_LIMIT_MAX}");
        return Err(Problem::at(
            &["query", "output_limit"],
            message,
            "value_error",
        ));
    }
    let session = place(&app, &caller, &path, Scope::Read).await?;
    let result = async { session.guest().await?.result(&path.1, limit).await };
    let result = result
        .await
        .map_err(|failure| app.lost(&session, failure))?;
    Ok(Json(ResultObject::of(&path.1, result)))
}

/// Which output of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StreamName {
    Stdout,
    Stderr,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct OffsetQuery {
    /// Where to begin.
    #[param(maximum = 9_007_199_254_740_991_i64)]
    offset: u64,
}

/// Offsets are numbers that every reader of JSON has.
pub(super) fn checked_offset(offset: u64) -> Answer<()> {
    const MOST: u64 = (1 << 53) - 1;
    if offset <= MOST {
        return Ok(());
    }
    let message = format!("must be at most {MOST}");
    Err(Problem::at(&["query", "offset"], message, "value_error"))
}

/// The bytes of one output stream that are kept, from an offset on. `Ringfence-Output-From` says
/// where they begin (later than asked where those are no longer kept), `Ringfence-Output-Total`
/// how many there were so far. They have no gap: where there is one, the answer ends before it,
/// and asking from there on brings what comes after.
#[utoipa::path(
    get,
    path = "/sessions/{session}/jobs/{job}/output/{stream}",
    tag = "jobs",
    params(
        ("session" = String, Path),
        ("job" = String, Path),
        ("stream" = inline(StreamName), Path, description = "`stdout` or `stderr`."),
        OffsetQuery,
    ),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/octet-stream", headers(
            ("ringfence-output-from" = u64),
            ("ringfence-output-total" = u64),
            ("ringfence-job-state" = String),
        )),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn output(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((session, job, stream)): Path<(String, String, String)>,
    Query(query): Query<OffsetQuery>,
) -> Answer<Response> {
    checked_offset(query.offset)?;
    let path = (session, job);
    let session = place(&app, &caller, &path, Scope::Read).await?;
    let job = path.1;
    let stream = match stream.as_str() {
        "stdout" => StreamName::Stdout,
        "stderr" => StreamName::Stderr,
        _ => {
            let message = "must be stdout or stderr";
            return Err(Problem::at(&["path", "stream"], message, "enum"));
        }
    };
    let info = info(&app, &session, &job).await?;
    let total = match stream {
        StreamName::Stdout => info.stdout_bytes,
        StreamName::Stderr => info.stderr_bytes,
    };
    // Nothing of what was not asked for.
    let mut from = OutputQuery {
        stdout: u64::MAX,
        stderr: u64::MAX,
        results: u32::MAX,
        follow: false,
    };
    match stream {
        StreamName::Stdout => from.stdout = query.offset,
        StreamName::Stderr => from.stderr = query.offset,
    }
    let mut kept = Kept {
        events: None,
        at: query.offset.min(total),
        to: total,
        ready: Bytes::new(),
    };
    let mut begins = kept.at;
    if kept.at < total {
        let events = async { session.guest().await?.job_events(&job, &from).await };
        let events = events.await;
        kept.events = Some(events.map_err(|failure| app.lost(&session, failure))?);
        let first = kept.pull(true).await;
        kept.ready = first.map_err(|failure| app.lost(&session, failure))?;
        begins = kept.at - kept.ready.len() as u64;
    }
    let body = stream::unfold(kept, async |mut kept| {
        let bytes = match std::mem::take(&mut kept.ready) {
            ready if !ready.is_empty() => Ok(ready),
            _ => kept.pull(false).await,
        };
        match bytes {
            Ok(bytes) if bytes.is_empty() => None,
            bytes => Some((bytes, kept)),
        }
    });
    let mut response = axum::body::Body::from_stream(body).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/octet-stream"),
    );
    headers.insert("ringfence-output-from", HeaderValue::from(begins));
    headers.insert("ringfence-output-total", HeaderValue::from(total));
    let state = match info.state {
        JobState::Running => "running",
        JobState::Ended(_) => "ended",
    };
    headers.insert("ringfence-job-state", HeaderValue::from_static(state));
    Ok(response)
}

/// The kept bytes of one stream without a gap.
struct Kept {
    events: Option<Events>,
    at: u64,
    to: u64,
    ready: Bytes,
}

impl Kept {
    /// The next bytes; none at the end and before a gap. Only `first` jumps over one.
    async fn pull(&mut self, first: bool) -> Result<Bytes, Failure> {
        while self.at < self.to {
            let Some(events) = &mut self.events else {
                break;
            };
            match events.next().await {
                Some(Ok(Event::Stdout { offset, data } | Event::Stderr { offset, data })) => {
                    if offset != self.at {
                        break;
                    }
                    let room = usize::try_from(self.to - self.at).unwrap_or(usize::MAX);
                    let mut bytes = Bytes::from(data.0);
                    bytes.truncate(room);
                    self.at += bytes.len() as u64;
                    if !bytes.is_empty() {
                        return Ok(bytes);
                    }
                }
                Some(Ok(Event::Skipped { to, .. })) if first => self.at = to.min(self.to),
                Some(Ok(Event::Started { .. })) => {}
                Some(Err(failure)) => return Err(failure),
                Some(Ok(_)) | None => break,
            }
        }
        self.events = None;
        Ok(Bytes::new())
    }
}

/// A signal for a job.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Signal {
    /// A number, or a name such as `TERM`.
    #[schema(max_length = 16, pattern = "^[A-Za-z0-9]+$", example = "TERM")]
    signal: String,
    /// To every process of the job, not only to the command itself.
    #[serde(default)]
    all: bool,
}

/// Sends a signal to a command. For a call there is the interrupt of its kernel.
#[utoipa::path(
    post,
    path = "/sessions/{session}/jobs/{job}/signal",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path)),
    request_body = Signal,
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn signal(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    Body(body): Body<Signal>,
) -> Answer<StatusCode> {
    if body.signal.len() > 16 || signal_number(&body.signal).is_none() {
        let message = "must be a signal's number, 1 to 64, or its name, such as TERM";
        return Err(Problem::at(&["body", "signal"], message, "value_error"));
    }
    let session = place(&app, &caller, &path, Scope::Use).await?;
    let _use = session.begin();
    let request = SignalRequest {
        signal: body.signal,
        all: body.all,
    };
    let sent = async { session.guest().await?.signal(&path.1, &request).await };
    sent.await.map_err(|failure| app.lost(&session, failure))?;
    Ok(StatusCode::NO_CONTENT)
}

/// The new size of a terminal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resize {
    #[schema(minimum = 1, maximum = 10_000)]
    rows: u16,
    #[schema(minimum = 1, maximum = 10_000)]
    cols: u16,
}

/// Gives the terminal of a job another size.
#[utoipa::path(
    post,
    path = "/sessions/{session}/jobs/{job}/resize",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path)),
    request_body = Resize,
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn resize(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    Body(Resize { rows, cols }): Body<Resize>,
) -> Answer<StatusCode> {
    let size = checked_size(&["body"], PtySize { rows, cols })?;
    let session = place(&app, &caller, &path, Scope::Use).await?;
    let _use = session.begin();
    let sent = async { session.guest().await?.resize(&path.1, size).await };
    sent.await.map_err(|failure| app.lost(&session, failure))?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct InputQuery {
    /// Whether the end of the body is the end of the input; `true` when absent.
    end: bool,
}

impl Default for InputQuery {
    fn default() -> Self {
        Self { end: true }
    }
}

/// Sends the body to a command that was started with `{"stream": true}`, as fast as it reads.
#[utoipa::path(
    post,
    path = "/sessions/{session}/jobs/{job}/stdin",
    tag = "jobs",
    params(("session" = String, Path), ("job" = String, Path), InputQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 204),
        (status = 409, body = ProblemBody, description = "it takes no input, or no more"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn stdin(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(path): Path<(String, String)>,
    Query(query): Query<InputQuery>,
    request: Request,
) -> Answer<StatusCode> {
    let session = place(&app, &caller, &path, Scope::Use).await?;
    let _use = session.begin();
    let most = app.config.http.max_upload.0;
    let over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&over);
    let limit = usize::try_from(most).unwrap_or(usize::MAX);
    let body = Limited::new(request.into_body(), limit)
        .map_err(move |error| {
            seen.store(error.is::<LengthLimitError>(), Ordering::Release);
            std::io::Error::other(error)
        })
        .boxed_unsync();
    let query = StdinQuery { end: query.end };
    let sent = async { session.guest().await?.stdin(&path.1, &query, body).await };
    match sent.await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(_) if over.load(Ordering::Acquire) => {
            let message = format!("the input is over {most} bytes");
            Err(Failure::new(Code::TooLarge, message)
                .hint("send it in several requests with end=false")
                .into())
        }
        Err(failure) => Err(app.lost(&session, failure)),
    }
}
