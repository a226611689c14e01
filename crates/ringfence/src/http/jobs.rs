//! `/sessions/{session}/jobs`: starts commands and calls, with their output as it comes, at the
//! end, or later.

use super::act;
use super::events::{self, Last, ServerEvent};
use super::extract::{Body, Path};
use super::problem::{Answer, Problem, ProblemBody};
use super::run::{Start, broken, seen_to_end};
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use ringfence_core::Work;
use ringfence_core::blocks::return_code;
use ringfence_core::guest::is_name;
use ringfence_core::proto::{
    Blob, Command, ExecRequest, ExecResult, JobEnd, JobInfo, JobState, OUTPUT_LIMIT_MAX, Output,
    PtySize, Rich, RunRequest, Stdin,
};
use ringfence_core::sessions::MAIN;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// Most characters of code or of a command.
const TEXT: usize = 1_000_000;
/// Most arguments, and most variables.
const WORDS: usize = 10_000;
/// The longest time limit.
const LONGEST: f64 = 86_400.0;

/// A job to be started: exactly one of `code`, `command` and `argv`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(example = json!({"code": "print(2 + 2)"}))]
pub(crate) struct NewJob {
    /// Python, run in a kernel.
    #[schema(min_length = 1, max_length = 1_000_000)]
    code: Option<String>,
    /// A string for the shell.
    #[schema(min_length = 1, max_length = 1_000_000)]
    command: Option<String>,
    /// A program and its arguments.
    #[schema(min_items = 1, max_items = 10_000)]
    argv: Option<Vec<String>>,
    /// The kernel that `code` runs in; `main` when absent.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    kernel: Option<String>,
    /// Added to the environment of a command.
    env: BTreeMap<String, String>,
    /// The folder that a command starts in; the workspace when absent.
    #[schema(min_length = 1, max_length = 4096)]
    cwd: Option<String>,
    /// What a command reads: a string, `{"base64": …}`, or `{"stream": true}` for what is sent to
    /// the job's `stdin`. Nothing when absent.
    stdin: Option<Input>,
    /// The server's `limits.wall_clock` when absent.
    #[schema(minimum = 0.01, maximum = 86400)]
    timeout_seconds: Option<f64>,
    /// Bytes of each stream that a result carries; the latest 4 MiB after them are kept besides.
    #[schema(minimum = 0, maximum = 67_108_864)]
    output_limit: Option<u64>,
    /// Seconds of processor time; the server's `limits.cpu_seconds` when absent.
    #[schema(minimum = 1, maximum = 1_000_000)]
    cpu_seconds: Option<u64>,
    /// Chosen by the caller: the same request sent again joins the job that is there.
    #[schema(pattern = "^[A-Za-z0-9_-]{1,64}$")]
    id: Option<String>,
    /// Answers at once; the job runs on whether anybody reads it or not.
    detach: bool,
    /// Runs a command in a terminal of this size.
    pty: Option<PtySize>,
}

/// Written too, as the description tells defaults.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "must be a string, {\"base64\": …} or {\"stream\": true}"
)]
enum Input {
    Bytes(Blob),
    Stream(Stream),
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Stream {
    stream: bool,
}

impl Input {
    fn resolve(self) -> Stdin {
        match self {
            Self::Bytes(bytes) => Stdin::Bytes(bytes),
            Self::Stream(Stream { stream: true }) => Stdin::Stream,
            Self::Stream(_) => Stdin::Empty,
        }
    }
}

fn wrong(name: &str, message: impl Into<String>) -> Problem {
    Problem::at(&["body", name], message, "value_error")
}

/// A text of a length that is allowed.
fn text(name: &str, text: String) -> Answer<String> {
    let length = text.chars().count();
    if !(1..=TEXT).contains(&length) {
        let message = format!("must have 1 to {TEXT} characters, has {length}");
        return Err(wrong(name, message));
    }
    Ok(text)
}

/// No program can be given a null byte.
fn words<'a>(name: &str, words: impl IntoIterator<Item = &'a String>) -> Answer<()> {
    match words.into_iter().any(|word| word.contains('\0')) {
        true => Err(wrong(name, "must have no null bytes")),
        false => Ok(()),
    }
}

pub(crate) fn checked_size(loc: &[&str], size: PtySize) -> Answer<PtySize> {
    const SIDE: std::ops::RangeInclusive<u16> = 1..=10_000;
    if SIDE.contains(&size.rows) && SIDE.contains(&size.cols) {
        return Ok(size);
    }
    let message = "rows and cols must be between 1 and 10000";
    Err(Problem::at(loc, message, "value_error"))
}

impl App {
    /// Bytes of each stream that a result carries when nobody says how many.
    pub(crate) fn output_limit(&self) -> u64 {
        self.config.limits.output.0.min(OUTPUT_LIMIT_MAX)
    }
}

impl NewJob {
    fn resolve(self, app: &App) -> Answer<Work> {
        let limits = &app.config.limits;
        let seconds = self.timeout_seconds;
        let seconds = seconds.unwrap_or(limits.wall_clock.as_secs_f64());
        if !(0.01..=LONGEST).contains(&seconds) {
            let message = format!("must be between 0.01 and {LONGEST}");
            return Err(wrong("timeout_seconds", message));
        }
        let timeout_ms = Some((seconds * 1000.0) as u64);
        let output_limit = self.output_limit.unwrap_or(app.output_limit());
        if output_limit > OUTPUT_LIMIT_MAX {
            let message = format!("must be at most {OUTPUT_LIMIT_MAX}");
            return Err(wrong("output_limit", message));
        }
        let cpu_seconds = self.cpu_seconds.unwrap_or(limits.cpu_seconds);
        if !(1..=1_000_000).contains(&cpu_seconds) {
            return Err(wrong("cpu_seconds", "must be between 1 and 1000000"));
        }
        for (field, name) in [("id", &self.id), ("kernel", &self.kernel)] {
            if name.as_deref().is_some_and(|name| !is_name(name)) {
                return Err(wrong(field, "has 1 to 64 letters, digits, _ and -"));
            }
        }
        let command = match (self.code, self.command, self.argv) {
            (Some(code), None, None) => {
                let of_commands = [
                    ("env", !self.env.is_empty()),
                    ("cwd", self.cwd.is_some()),
                    ("stdin", self.stdin.is_some()),
                    ("pty", self.pty.is_some()),
                ];
                if let Some((name, _)) = of_commands.into_iter().find(|(_, given)| *given) {
                    return Err(wrong(name, "is for commands, not for code"));
                }
                let request = RunRequest {
                    code: text("code", code)?,
                    id: self.id,
                    timeout_ms,
                    output_limit: Some(output_limit),
                    cpu_seconds: Some(cpu_seconds),
                    detached: self.detach,
                    report_files: true,
                    ..RunRequest::default()
                };
                let kernel = self.kernel.unwrap_or_else(|| MAIN.to_owned());
                return Ok(Work::Run { kernel, request });
            }
            (None, Some(command), None) => {
                let command = text("command", command)?;
                words("command", [&command])?;
                Command::Shell(command)
            }
            (None, None, Some(argv)) => {
                if !(1..=WORDS).contains(&argv.len()) || argv[0].is_empty() {
                    let message = format!("must be a program and at most {WORDS} words in all");
                    return Err(wrong("argv", message));
                }
                words("argv", &argv)?;
                Command::Argv(argv)
            }
            _ => {
                let message = "must have exactly one of code, command and argv";
                return Err(Problem::at(&["body"], message, "value_error"));
            }
        };
        if self.kernel.is_some() {
            return Err(wrong("kernel", "is for code, not for commands"));
        }
        if self.env.len() > WORDS {
            return Err(wrong("env", format!("has at most {WORDS} variables")));
        }
        if self
            .env
            .keys()
            .any(|name| name.is_empty() || name.contains('='))
        {
            return Err(wrong("env", "a variable's name is not empty and has no ="));
        }
        words(
            "env",
            self.env.iter().flat_map(|(name, value)| [name, value]),
        )?;
        if let Some(cwd) = &self.cwd {
            words("cwd", [cwd])?;
            if !(1..=4096).contains(&cwd.len()) {
                return Err(wrong("cwd", "must have 1 to 4096 bytes"));
            }
        }
        if self.pty.is_some() && self.stdin.is_some() {
            return Err(wrong(
                "stdin",
                "a terminal has none: join it at the job's pty",
            ));
        }
        let mut request = ExecRequest::new(command);
        request.env = self.env;
        request.cwd = self.cwd;
        request.stdin = self.stdin.map(Input::resolve).unwrap_or_default();
        request.timeout_ms = timeout_ms;
        request.output_limit = Some(output_limit);
        request.limits.cpu_seconds = Some(cpu_seconds);
        request.pty = self
            .pty
            .map(|size| checked_size(&["body", "pty"], size))
            .transpose()?;
        request.id = self.id;
        request.detached = self.detach;
        request.report_files = true;
        Ok(Work::Exec(request))
    }
}

/// A job, running or ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobObject {
    job_id: String,
    /// Its first words.
    command: String,
    /// The kernel that a call runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<String>,
    /// `running` or `ended`.
    pub(super) state: &'static str,
    /// Process id in the sandbox; 0 for what has not begun.
    pid: i32,
    /// Seconds since the epoch.
    started_at: f64,
    /// Runs on whether anybody reads it or not.
    detached: bool,
    /// Runs in a terminal.
    pty: bool,
    stdout_bytes: u64,
    stderr_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<EndObject>,
}

impl JobObject {
    pub(super) fn of(info: JobInfo) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let ago = info.started_ms_ago as f64 / 1000.0;
        let (state, end) = match &info.state {
            JobState::Running => ("running", None),
            JobState::Ended(end) => ("ended", Some(EndObject::of(&info.id, end))),
        };
        Self {
            command: info.command,
            kernel: info.kernel,
            state,
            pid: info.pid,
            started_at: now.unwrap_or_default().as_secs_f64() - ago,
            detached: info.detached,
            pty: info.pty,
            stdout_bytes: info.stdout_bytes,
            stderr_bytes: info.stderr_bytes,
            end,
            job_id: info.id,
        }
    }
}

/// How a job ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndObject {
    job_id: String,
    /// Its own, minus the number of the signal that ended it, or -1.
    return_code: i32,
    #[serde(flatten)]
    end: JobEnd,
}

impl EndObject {
    pub(super) fn of(job: &str, end: &JobEnd) -> Self {
        Self {
            job_id: job.to_owned(),
            return_code: return_code(end),
            end: end.clone(),
        }
    }

    pub(super) fn return_code(&self) -> i32 {
        self.return_code
    }
}

/// Bytes that were printed.
#[derive(ToSchema)]
#[allow(dead_code, reason = "for the description only: see events::shown")]
pub(crate) struct Shown {
    /// Where they are UTF-8.
    #[schema(value_type = String, required = false)]
    text: Option<String>,
    /// Where they are not.
    #[schema(value_type = String, required = false, content_encoding = "base64")]
    base64: Option<String>,
}

/// One stream of a job's output: `text`, or `base64` where it is none.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OutputObject {
    #[serde(flatten)]
    #[schema(value_type = Shown)]
    data: Value,
    /// Bytes in all; what is not here is at the job's `output`.
    total: u64,
    truncated: bool,
}

impl OutputObject {
    fn of(output: &Output) -> Self {
        Self {
            data: events::shown(&output.data),
            total: output.total,
            truncated: output.total > output.data.len() as u64,
        }
    }
}

/// The whole result of a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ResultObject {
    stdout: OutputObject,
    stderr: OutputObject,
    /// Values and figures, each by media type.
    results: Vec<Rich>,
    #[serde(flatten)]
    end: EndObject,
}

impl ResultObject {
    pub(super) fn of(job: &str, result: ExecResult) -> Self {
        Self {
            stdout: OutputObject::of(&result.stdout),
            stderr: OutputObject::of(&result.stderr),
            results: result.results,
            end: EndObject::of(job, &result.end),
        }
    }
}

/// What a job that was asked for has come to.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Begun {
    Result(ResultObject),
    Job(JobObject),
}

/// Runs code or a command: waits for the result, streams it as events (`Accept:
/// text/event-stream`), or lets it run (`detach`).
#[utoipa::path(
    post,
    path = "/sessions/{session}/jobs",
    tag = "jobs",
    params(
        ("session" = String, Path),
        ("last-event-id" = Option<String>, Header, description = "For events: where to go on."),
    ),
    request_body = NewJob,
    responses(
        (status = 200, description = "the result, or events until it is there; with `detach` the \
            job that was there", content(
            (Begun = "application/json"),
            (ServerEvent = "text/event-stream"),
        )),
        (status = 201, body = JobObject, description = "detached"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn start(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Body(body): Body<NewJob>,
) -> Answer<Response> {
    caller.may(Scope::Use)?;
    let detach = body.detach;
    let at = events::position(&headers, None)?;
    let mut work = body.resolve(&app)?;
    let session = app.session(&caller, &id, Scope::Use).await?;
    let _use = session.begin();
    if events::wanted(&headers) {
        return events::start(&app, &session, work, at, Last::Job).await;
    }
    let job = work.name()?;
    if !detach {
        let result = app.run_named(&session, &work, job.clone()).await;
        let result = result.map_err(|failure| broken(&app, &session, failure))?;
        return Ok(Json(Begun::Result(ResultObject::of(&job, result))).into_response());
    }
    let started = app.start(&session, &work, &job).await;
    let (info, start) = started.map_err(|failure| broken(&app, &session, failure))?;
    let status = match start {
        Start::New => {
            if let Some(act) = act::later() {
                tokio::spawn(seen_to_end(Arc::clone(&session), job, act));
            }
            StatusCode::CREATED
        }
        Start::Again => StatusCode::OK,
    };
    Ok((status, Json(Begun::Job(JobObject::of(info)))).into_response())
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobList {
    jobs: Vec<JobObject>,
}

/// The jobs of a session, in the order of their start. Ended ones are kept as long as there are no
/// more than 256 of them, with 64 MiB of output.
#[utoipa::path(
    get,
    path = "/sessions/{session}/jobs",
    tag = "jobs",
    params(("session" = String, Path)),
    responses((status = 200, body = JobList), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<JobList>> {
    let session = app.session(&caller, &id, Scope::Read).await?;
    let jobs = async { session.guest().await?.jobs().await };
    let jobs = jobs.await.map_err(|failure| app.lost(&session, failure))?;
    let jobs = jobs.into_iter().map(JobObject::of).collect();
    Ok(Json(JobList { jobs }))
}
