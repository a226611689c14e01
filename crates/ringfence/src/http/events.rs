//! Jobs as server-sent events. The id of each event is the position after it, so a reader that was
//! cut off goes on where it was; all that is needed for that is kept by the guest, and outlives
//! this server.

use super::act::{self, Act};
use super::exec::Call;
use super::problem::{Answer, Problem};
use super::readers::{Reader, Unread};
use super::run::broken;
use super::state::App;
use axum::response::sse::{Event as Sse, KeepAlive, Sse as SseResponse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use ringfence_core::guest::Events;
use ringfence_core::proto::{Blob, Event, JobEnd, OutputQuery};
use ringfence_core::sessions::Use;
use ringfence_core::{Code, Failure, Session, Work};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use utoipa::ToSchema;

/// How often a silent stream says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How long a guest may take for its first event, which it has at once.
const FIRST: Duration = Duration::from_secs(15);

/// One event of a stream.
#[derive(ToSchema)]
#[allow(dead_code, reason = "for the description only: see Follower::push")]
pub(crate) struct ServerEvent {
    #[schema(value_type = EventName)]
    event: String,
    /// The position after it: what `Last-Event-ID` takes.
    #[schema(pattern = "^[0-9]+\\.[0-9]+\\.[0-9]+$")]
    id: String,
    /// JSON: of `started` the `job_id` and whether it is `detached`; of output its `offset` and
    /// `text` or `base64`; a `Rich` of `result`; a `Certificate`; a `ProblemBody` of `failure`; of
    /// `done` the end of the job, or the answer of a tool call.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "for the description only: see Follower::push")]
pub(crate) enum EventName {
    Started,
    Stdout,
    Stderr,
    Result,
    Skipped,
    Certificate,
    Done,
    Failure,
}

/// Whether a request asks for events.
pub(crate) fn wanted(headers: &HeaderMap) -> bool {
    let accept = headers.get_all(header::ACCEPT);
    accept
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("text/event-stream"))
}

/// Where a reader was, from `Last-Event-ID`, else from `after`.
pub(crate) fn position(headers: &HeaderMap, after: Option<&str>) -> Answer<OutputQuery> {
    let name = HeaderName::from_static("last-event-id");
    let sent = headers.get(name).filter(|value| !value.is_empty());
    let (loc, text) = match (sent, after) {
        (Some(value), _) => (["header", "last-event-id"], value.to_str().unwrap_or("?")),
        (None, Some(after)) => (["query", "after"], after),
        (None, None) => (["", ""], "0.0.0"),
    };
    parsed(text).ok_or_else(|| {
        let message = "must be the id of an event, such as 0.0.0";
        Problem::at(&loc, message, "value_error")
    })
}

fn parsed(text: &str) -> Option<OutputQuery> {
    let mut parts = text.split('.');
    let at = OutputQuery {
        stdout: parts.next()?.parse().ok()?,
        stderr: parts.next()?.parse().ok()?,
        results: parts.next()?.parse().ok()?,
        follow: true,
    };
    parts.next().is_none().then_some(at)
}

/// Bytes as `text` where they are UTF-8, else as `base64`.
pub(crate) fn shown(data: &Blob) -> Value {
    match serde_json::to_value(data) {
        Ok(Value::String(text)) => json!({"text": text}),
        Ok(other) => other,
        Err(_) => Value::Null,
    }
}

/// What the last event carries.
pub(crate) enum Last {
    /// How the job ended.
    Job,
    /// The answer of a tool call.
    Call(Call),
}

/// Starts work and streams it.
pub(crate) async fn start(
    app: &App,
    session: &Arc<Session>,
    mut work: Work,
    at: OutputQuery,
    last: Last,
) -> Answer<Response> {
    let job = work.name()?;
    let reader = Reader::new(app, session, &job, Unread::of(work.is_detached()));
    if let Err(failure) = app.start(session, &work, &job).await {
        reader.finish();
        return Err(broken(app, session, failure));
    }
    let act = act::later();
    stream_job(app, session, job, at, Some(reader), last, act).await
}

/// Streams a job that runs, or has ended.
pub(crate) async fn stream_job(
    app: &App,
    session: &Arc<Session>,
    job: String,
    at: OutputQuery,
    reader: Option<Reader>,
    last: Last,
    act: Option<Arc<Act>>,
) -> Answer<Response> {
    let mut follower = Follower {
        app: app.clone(),
        session: Arc::clone(session),
        job,
        at: OutputQuery { follow: true, ..at },
        events: None,
        moved: false,
        ready: VecDeque::new(),
        reader,
        last: Some(last),
        over: false,
        act,
        _use: session.begin(),
    };
    if let Err(failure) = follower.open().await {
        if failure.code == Code::NotFound {
            follower.finish();
        }
        return Err(broken(app, session, failure));
    }
    Ok(response(stream::unfold(follower, async |mut follower| {
        let event = follower.next().await?;
        Some((event, follower))
    })))
}

/// Events as an answer.
pub(crate) fn response(events: impl Stream<Item = Sse> + Send + 'static) -> Response {
    let mut response = SseResponse::new(events.map(Ok::<_, Infallible>))
        .keep_alive(KeepAlive::new().interval(HEARTBEAT))
        .into_response();
    // Proxies that gather answers would hold events back.
    response.headers_mut().insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

struct Follower {
    app: App,
    session: Arc<Session>,
    job: String,
    /// After what was handed out.
    at: OutputQuery,
    events: Option<Events>,
    /// Whether anything came since the way to the guest was last found.
    moved: bool,
    ready: VecDeque<Sse>,
    reader: Option<Reader>,
    /// Until it was handed out.
    last: Option<Last>,
    over: bool,
    /// Of the request that started the job.
    act: Option<Arc<Act>>,
    _use: Use,
}

impl Follower {
    /// Finds the way to the job's events. The first of them says what the job is.
    async fn open(&mut self) -> Result<(), Failure> {
        let guest = self.session.guest().await?;
        let mut events = guest.job_events(&self.job, &self.at).await?;
        let first = tokio::time::timeout(FIRST, events.next()).await;
        let odd = || Failure::new(Code::Unavailable, "the sandbox does not say what it runs");
        let Event::Started { detached, .. } = first.map_err(|_| odd())?.ok_or_else(odd)?? else {
            return Err(odd());
        };
        if let Some(reader) = &mut self.reader {
            reader.set_unread(Unread::of(detached));
        }
        if self.events.is_none() {
            let started = json!({"job_id": self.job, "detached": detached});
            self.push("started", &started);
        }
        self.events = Some(events);
        self.moved = false;
        Ok(())
    }

    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.finish();
        }
    }

    fn push(&mut self, name: &'static str, data: &impl Serialize) {
        let at = &self.at;
        let id = format!("{}.{}.{}", at.stdout, at.stderr, at.results);
        // All of our data can be written as JSON.
        if let Ok(event) = Sse::default().event(name).id(id).json_data(data) {
            self.ready.push_back(event);
        }
    }

    async fn next(&mut self) -> Option<Sse> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.over {
                return None;
            }
            let next = match &mut self.events {
                Some(events) => events.next().await,
                None => None,
            };
            match next {
                Some(Ok(event)) => {
                    self.moved = true;
                    Box::pin(self.take(event)).await;
                }
                Some(Err(failure)) => self.broke(failure).await,
                None => self.over = true,
            }
        }
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Started { .. } => {}
            Event::Stdout { offset, data } => {
                self.at.stdout = offset.saturating_add(data.len() as u64);
                self.output("stdout", offset, &data);
            }
            Event::Stderr { offset, data } => {
                self.at.stderr = offset.saturating_add(data.len() as u64);
                self.output("stderr", offset, &data);
            }
            Event::Skipped { stream, from, to } => {
                match stream.as_str() {
                    "stdout" => self.at.stdout = to,
                    _ => self.at.stderr = to,
                }
                self.push(
                    "skipped",
                    &json!({"stream": stream, "from": from, "to": to}),
                );
            }
            Event::Result { index, rich } => {
                self.at.results = index.saturating_add(1);
                self.push("result", &rich);
            }
            Event::End(end) => self.end(&end).await,
        }
    }

    fn output(&mut self, name: &'static str, offset: u64, data: &Blob) {
        let mut value = shown(data);
        value["offset"] = json!(offset);
        self.push(name, &value);
    }

    async fn end(&mut self, end: &JobEnd) {
        self.over = true;
        self.finish();
        if let Some(act) = self.act.take() {
            act.ended(Ok(end));
        }
        if let Some(certificate) = &end.certificate {
            self.push("certificate", certificate);
        }
        match self.last.take() {
            Some(Last::Call(call)) => {
                let result = async { self.session.guest().await?.result(&self.job, None).await };
                let result = result.await.map(|mut result| {
                    result.id.clone_from(&self.job);
                    result
                });
                match call.answer(&self.app, &self.session, result).await {
                    Ok(answer) => self.push("done", &answer),
                    Err(problem) => self.fail(problem),
                }
            }
            Some(Last::Job) | None => {
                let done = super::jobs::EndObject::of(&self.job, end);
                self.push("done", &done);
            }
        }
    }

    /// The way to the guest broke: if the sandbox lives, so does the job.
    async fn broke(&mut self, failure: Failure) {
        let again = self.moved && failure.code == Code::Unavailable && !self.session.is_closing();
        if again && self.open().await.is_ok() {
            return;
        }
        self.over = true;
        if let Some(act) = self.act.take() {
            act.ended(Err(&failure));
        }
        let problem = broken(&self.app, &self.session, failure);
        self.fail(problem);
    }

    fn fail(&mut self, problem: Problem) {
        let (_, body) = problem.into_parts();
        if let Some(certificate) = &body.certificate {
            self.push("certificate", certificate);
        }
        self.push("failure", &body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_three_numbers() {
        let at = parsed("1.2.3").unwrap();
        assert_eq!((at.stdout, at.stderr, at.results), (1, 2, 3));
        for bad in [
            "",
            "1",
            "1.2",
            "1.2.3.4",
            "a.b.c",
            "-1.0.0",
            "1.2.99999999999",
        ] {
            assert!(parsed(bad).is_none(), "{bad}");
        }
    }
}
