//! `/run` and `/run/batch`: code in a sandbox of its own, in many languages.

use super::act::{self, Act};
use super::events::{self, shown};
use super::extract::Body;
use super::problem::{Answer, Problem, ProblemBody};
use super::state::{App, Caller, Scope};
use crate::cli::Known;
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::sse::Event as Sse;
use axum::response::{IntoResponse as _, Response};
use futures_util::{Stream, StreamExt as _, stream};
use http::HeaderMap;
use ringfence_core::proto::Cause;
use ringfence_core::sessions::Room;
use ringfence_core::snippet::{
    Batch, Case, Entry, Judged, Outcome, Program, Progress, Snippet, Wires,
};
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Failure, Size};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use utoipa::ToSchema;

/// Most runs of one batch, and most of them at one time.
const MOST_RUNS: usize = 10_000;
const MOST_JOBS: usize = 64;

/// Bytes of all that the runs of a batch said and made, where it is answered with at once.
const MOST_OUTPUT: usize = 64 << 20;

/// Snippets to run, or to try on cases.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "snippets": [{"language": "python", "code": "print(int(input()) * 2)"}],
    "cases": [{"stdin": "21", "expected_stdout": "42"}],
}))]
pub(crate) struct BatchRequest {
    #[schema(max_items = 10000)]
    snippets: Vec<Snippet>,
    /// Each snippet is run on each of them; without any it is run once, on its own input.
    #[serde(default)]
    #[schema(max_items = 10000)]
    cases: Vec<Case>,
    /// How many run at one time: as many as the machine has processors when absent.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 64)]
    jobs: Option<usize>,
    /// Results come in the order of the snippets and cases, not as they finish.
    #[serde(default)]
    ordered: bool,
}

/// What came of a batch.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BatchAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    results: Option<Vec<Judged>>,
    /// How many results have which verdict.
    #[schema(value_type = BTreeMap<String, usize>)]
    verdicts: BTreeMap<&'static str, usize>,
    duration_ms: u64,
}

/// One event of a snippet that runs, or of a batch.
#[derive(ToSchema)]
#[allow(dead_code, reason = "for the description only")]
pub(crate) struct SnippetEvent {
    #[schema(value_type = SnippetEventName)]
    event: String,
    /// JSON: of output its `text` or `base64`; of `result` a `Judged`; a `ProblemBody` of
    /// `failure`; of `done` the answer.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "for the description only")]
pub(crate) enum SnippetEventName {
    Compiling,
    Stdout,
    Stderr,
    Result,
    Done,
    Failure,
}

impl App {
    /// A snippet that was checked, within the server's policy and with its defaults.
    fn program(&self, snippet: Snippet) -> Answer<Program> {
        let base = SandboxSpec {
            // Skills are for agents, which have sessions.
            skills: Vec::new(),
            ..self.spec(SandboxSpec::default())?
        };
        let mut program = Program::new(snippet, base)?;
        // The interpreter and the environment are the server's own, and not looked at again.
        let own = (program.spec.python.take(), program.spec.environment.take());
        super::policy::apply(&self.config.policy, &[], &mut program.spec)?;
        (program.spec.python, program.spec.environment) = own;
        Ok(program)
    }

    /// Room for the sandbox of a snippet, which counts like a session while it runs.
    fn room(&self, caller: &Caller, memory: Size) -> Result<Room, Failure> {
        self.sessions.room(caller.owner.as_ref(), memory)
    }

    /// Room for as many runs of a batch at one time as are asked for and there is room for: one at
    /// least. So batches together stay within what the server and the key may have.
    fn rooms(&self, caller: &Caller, batch: &Batch, jobs: usize) -> Result<Vec<Room>, Failure> {
        let programs = batch.entries.iter().flat_map(|entry| &entry.program);
        let memory = programs.map(|program| self.runner.memory(program)).max();
        // Of what can't run nothing is made.
        let memory = memory.unwrap_or(Size(0));
        let mut rooms = vec![self.room(caller, memory)?];
        let more = (1..jobs).map_while(|_| self.room(caller, memory).ok());
        rooms.extend(more);
        Ok(rooms)
    }

    /// Checks a snippet, notes it, and takes room for it.
    fn begin_snippet(&self, caller: &Caller, snippet: Snippet) -> Answer<(Program, Room)> {
        caller.may_beyond(Scope::Use)?;
        act::runs("snippet", &snippet.code)?;
        let program = self.program(snippet)?;
        let room = self.room(caller, self.runner.memory(&program))?;
        Ok((program, room))
    }

    /// Runs a snippet to its end.
    pub(crate) async fn run_snippet(&self, caller: &Caller, snippet: Snippet) -> Answer<Outcome> {
        let (program, room) = self.begin_snippet(caller, snippet)?;
        let done = self.runner.run(&program, Wires::default()).await;
        drop(room);
        noted(None, &done);
        Ok(done?)
    }
}

/// How a snippet ended, in a word, for those who watch.
fn word(outcome: &Outcome) -> &'static str {
    match &outcome.certificate {
        Some(certificate) if certificate.cause != Cause::Output => certificate.cause.name(),
        _ if outcome.error.is_some() => "unavailable",
        _ if outcome.ok => "ok",
        _ => "failed",
    }
}

fn noted(act: Option<&Act>, done: &Result<Outcome, Failure>) {
    let (word, certificate) = match done {
        Ok(outcome) => (word(outcome), outcome.certificate.as_ref()),
        Err(failure) => (failure.code.name(), None),
    };
    match act {
        Some(act) => act.finished(word, certificate),
        None => act::finished(word, certificate),
    }
}

/// Runs code in a sandbox of its own. With `Accept: text/event-stream` its output comes as events,
/// and the last one, `done`, carries the answer.
#[utoipa::path(
    post,
    path = "/run",
    tag = "snippets",
    request_body = Snippet,
    responses(
        (status = 200, description = "the outcome, or events until it is there", content(
            (Outcome = "application/json"),
            (SnippetEvent = "text/event-stream"),
        )),
        (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "too many at one time"),
    )
)]
pub(crate) async fn run(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(snippet): Body<Snippet>,
) -> Answer<Response> {
    if !events::wanted(&headers) {
        return Ok(Json(app.run_snippet(&caller, snippet).await?).into_response());
    }
    let (program, room) = app.begin_snippet(&caller, snippet)?;
    let act = act::later();
    Ok(events::response(followed(app, program, act, room)))
}

type Running = Pin<Box<dyn Future<Output = Result<Outcome, Failure>> + Send>>;

/// A snippet that runs while somebody reads: its sandbox goes with the stream.
fn followed(
    app: App,
    program: Program,
    act: Option<Arc<Act>>,
    room: Room,
) -> impl Stream<Item = Sse> + Send {
    struct Following {
        running: Option<Running>,
        progress: mpsc::Receiver<Progress>,
        /// The last event, until what was said before is told.
        last: Option<Sse>,
        act: Option<Arc<Act>>,
    }
    let (watch, progress) = mpsc::channel(64);
    let running: Running = Box::pin(async move {
        let _room = room;
        let wires = Wires {
            watch: Some(watch),
            stdin: None,
        };
        app.runner.run(&program, wires).await
    });
    let start = Following {
        running: Some(running),
        progress,
        last: None,
        act,
    };
    stream::unfold(start, async |mut state| {
        if let Some(running) = state.running.as_mut() {
            let done = tokio::select! {
                biased;
                Some(progress) = state.progress.recv() => return Some((told(progress), state)),
                done = running => done,
            };
            state.running = None;
            noted(state.act.as_deref(), &done);
            state.act = None;
            state.last = Some(ended(done));
        }
        // What was said comes before the end.
        let event = match state.progress.try_recv() {
            Ok(progress) => told(progress),
            Err(_) => state.last.take()?,
        };
        Some((event, state))
    })
}

fn told(progress: Progress) -> Sse {
    let (name, data) = match progress {
        Progress::Compiling => ("compiling", json!({})),
        Progress::Stdout(data) => ("stdout", shown(&data)),
        Progress::Stderr(data) => ("stderr", shown(&data)),
    };
    event(name, &data)
}

fn ended(done: Result<impl Serialize, Failure>) -> Sse {
    match done {
        Ok(answer) => event("done", &answer),
        Err(failure) => event("failure", &Problem::from(failure).into_parts().1),
    }
}

fn event(name: &'static str, data: &impl Serialize) -> Sse {
    let event = Sse::default().event(name);
    // All of our data can be written as JSON.
    event.json_data(data).unwrap_or_default()
}

/// Runs many snippets, or tries them on cases: each in a sandbox of its own, so many at a time as
/// the machine has processors. With `Accept: text/event-stream` each result is an event as soon as
/// it is there, and `done` counts the verdicts. Without, all results together hold at most 64 MiB of
/// output: past that each says that it is truncated.
#[utoipa::path(
    post,
    path = "/run/batch",
    tag = "snippets",
    request_body = BatchRequest,
    responses(
        (status = 200, description = "all results, or events as they come", content(
            (BatchAnswer = "application/json"),
            (SnippetEvent = "text/event-stream"),
        )),
        (status = "4XX", body = ProblemBody),
        (status = 503, body = ProblemBody, description = "too many at one time"),
    )
)]
pub(crate) async fn batch(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(request): Body<BatchRequest>,
) -> Answer<Response> {
    caller.may_beyond(Scope::Use)?;
    let runs = request.snippets.len() * request.cases.len().max(1);
    if !(1..=MOST_RUNS).contains(&runs) {
        let message = format!("snippets and cases must come to 1 to {MOST_RUNS} runs, not {runs}");
        return Err(Problem::at(&["body", "snippets"], message, "value_error"));
    }
    if request
        .jobs
        .is_some_and(|jobs| !(1..=MOST_JOBS).contains(&jobs))
    {
        let message = format!("must be between 1 and {MOST_JOBS}");
        return Err(Problem::at(&["body", "jobs"], message, "value_error"));
    }
    for (at, snippet) in request.snippets.iter().enumerate() {
        snippet.check().map_err(|failure| {
            let loc = ["body", "snippets", &at.to_string()];
            Problem::at(&loc, failure.message, "value_error")
        })?;
    }
    let code: Vec<&str> = request.snippets.iter().map(|s| s.code.as_str()).collect();
    act::runs("batch", &code.join("\n"))?;
    let cases: Arc<[Case]> = request.cases.into();
    let entry = |snippet| Entry {
        program: app.program(snippet).map_err(|p| p.failure().clone()),
        cases: Arc::clone(&cases),
    };
    let mut batch = Batch {
        entries: request.snippets.into_iter().map(entry).collect(),
        jobs: request.jobs,
        ordered: request.ordered,
    };
    let rooms = app.rooms(&caller, &batch, batch.at_once().min(runs))?;
    batch.jobs = Some(rooms.len());
    let begun = Instant::now();
    let results = Arc::clone(&app.runner).batch(batch);
    if events::wanted(&headers) {
        let judging = Judging {
            results: Some(Box::pin(results)),
            verdicts: BTreeMap::new(),
            begun,
            act: act::later(),
            _rooms: rooms,
        };
        return Ok(events::response(judging.events()));
    }
    let mut left = MOST_OUTPUT;
    let fit = |mut result: Judged| {
        result.fit(&mut left);
        result
    };
    let mut results: Vec<Judged> = results.map(fit).collect().await;
    drop(rooms);
    results.sort_by_key(|result| (result.index, result.case));
    let mut verdicts = BTreeMap::new();
    results
        .iter()
        .for_each(|result| count(&mut verdicts, result));
    act::finished("ok", None);
    let answer = BatchAnswer {
        results: Some(results),
        verdicts,
        duration_ms: begun.elapsed().as_millis() as u64,
    };
    Ok(Json(answer).into_response())
}

fn count(verdicts: &mut BTreeMap<&'static str, usize>, result: &Judged) {
    *verdicts.entry(result.verdict.name()).or_default() += 1;
}

/// A batch that runs while somebody reads.
struct Judging {
    results: Option<Pin<Box<dyn Stream<Item = Judged> + Send>>>,
    verdicts: BTreeMap<&'static str, usize>,
    begun: Instant,
    act: Option<Arc<Act>>,
    _rooms: Vec<Room>,
}

impl Judging {
    fn events(self) -> impl Stream<Item = Sse> + Send {
        stream::unfold(self, async |mut state| {
            let event = match state.results.as_mut()?.next().await {
                Some(result) => {
                    count(&mut state.verdicts, &result);
                    event("result", &result)
                }
                None => state.end(),
            };
            Some((event, state))
        })
    }

    fn end(&mut self) -> Sse {
        self.results = None;
        if let Some(act) = self.act.take() {
            act.finished("ok", None);
        }
        ended(Ok(BatchAnswer {
            results: None,
            verdicts: std::mem::take(&mut self.verdicts),
            duration_ms: self.begun.elapsed().as_millis() as u64,
        }))
    }
}

/// The languages, and what of them is on this host.
#[utoipa::path(
    get,
    path = "/languages",
    tag = "snippets",
    responses((status = 200, body = [Known]), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn languages(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<Vec<Known>>> {
    caller.may(Scope::Read)?;
    let images = app.config.languages.images();
    Ok(Json(crate::cli::known_languages(&images)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_core::tools::Family;
    use utoipa::PartialSchema as _;

    /// The tool of models takes what the route takes, and says the same of it.
    #[test]
    fn a_snippet_is_described_once() {
        let route = json!(Snippet::schema());
        let tool = Family::Shipit.tool("run_code").unwrap();
        let tool = tool.schema(Family::Shipit);
        let names = |schema: &serde_json::Value| {
            let all = schema["properties"].as_object().unwrap();
            let mut names: Vec<_> = all.keys().cloned().collect();
            names.sort();
            names
        };
        assert_eq!(names(&route), names(&tool));
        assert_eq!(route["required"], tool["required"]);
        for name in names(&route) {
            let own = &route["properties"][&name];
            // That of a type which may be absent stands beside the type.
            let own = own
                .get("description")
                .unwrap_or(&own["oneOf"][0]["description"]);
            assert_eq!(*own, tool["properties"][&name]["description"], "{name}");
        }
    }
}
