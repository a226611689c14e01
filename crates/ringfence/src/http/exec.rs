//! `POST /sessions/{session}/exec`: one tool call, answered with a result block.

use super::extract::Body;
use super::problem::{Answer, Problem, ProblemBody};
use super::run::Work;
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, Path, State};
use ringfence_core::blocks::{self, Asked, EditorCall, Text, Tool};
use ringfence_core::plan::random_hex;
use ringfence_core::proto::{Command, ExecRequest, ExecResult, RunRequest};
use ringfence_core::sessions::MAIN;
use ringfence_core::{Code, Failure, Session};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Most characters of code or of a command.
const CODE: usize = 200_000;

/// A tool call.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Exec {
    /// `code_execution`, `bash_code_execution` or `text_editor_code_execution`.
    tool: String,
    /// `{"code": …}`, `{"command": …}`, or an editor command.
    #[schema(value_type = Object)]
    input: serde_json::Map<String, Value>,
    #[serde(default = "default_timeout")]
    #[schema(minimum = 1, maximum = 120)]
    timeout_seconds: f64,
    /// Generated when absent.
    tool_use_id: Option<String>,
}

fn default_timeout() -> f64 {
    30.0
}

/// What a tool call came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecAnswer {
    tool_use_id: String,
    #[schema(value_type = Object)]
    result_block: Value,
    execution_time_ms: u64,
}

/// A string of the input, with a length that is allowed.
fn text<'a>(input: &'a serde_json::Map<String, Value>, name: &str) -> Answer<&'a str> {
    let loc = ["body", "input", name];
    let Some(value) = input.get(name) else {
        return Err(Problem::at(&loc, "field required", "missing"));
    };
    let Some(text) = value.as_str() else {
        return Err(Problem::at(&loc, "must be a string", "string_type"));
    };
    let length = text.chars().count();
    if (1..=CODE).contains(&length) {
        return Ok(text);
    }
    let message = format!("must have 1 to {CODE} characters, has {length}");
    Err(Problem::at(&loc, message, "string_length"))
}

/// Runs one tool call in a session.
#[utoipa::path(
    post,
    path = "/sessions/{session}/exec",
    tag = "exec",
    params(("session" = String, Path)),
    request_body = Exec,
    responses((status = 200, body = ExecAnswer), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn exec(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<Exec>,
) -> Answer<Json<ExecAnswer>> {
    let session = app.session(&caller, &id, Scope::Use).await?;
    let Some(tool) = Tool::named(&body.tool) else {
        let names = Tool::ALL.map(Tool::name).join(", ");
        let message = format!("no such tool: must be one of {names}");
        return Err(Problem::at(&["body", "tool"], message, "enum"));
    };
    if !(1.0..=120.0).contains(&body.timeout_seconds) {
        let message = "must be between 1 and 120";
        return Err(Problem::at(&["body", "timeout_seconds"], message, "value_error"));
    }
    let tool_use_id = match body.tool_use_id {
        Some(id) => id,
        None => format!("srvtoolu_{}", random_hex::<12>()?),
    };
    let begun = Instant::now();
    let asked = Asked {
        timeout: Duration::from_secs_f64(body.timeout_seconds),
        output: app.config.limits.output.0,
    };
    let _use = session.begin();
    let done = match tool {
        Tool::Code => {
            let code = text(&body.input, "code")?.to_owned();
            let done = python(&app, &session, code, asked).await;
            done.map(|done| told(tool, asked, &session, &done))
        }
        Tool::Bash => {
            let command = text(&body.input, "command")?.to_owned();
            let done = bash(&app, &session, command, asked).await;
            done.map(|done| told(tool, asked, &session, &done))
        }
        Tool::TextEditor => {
            let call = EditorCall::parse(&body.input)
                .map_err(|bad| Problem::at(&["body", "input", bad.field], bad.message, bad.kind))?;
            edit(&session, &call, asked).await
        }
    };
    let content = match done {
        Ok(content) => content,
        Err(failure) => infrastructure(&app, &session, tool, failure)?,
    };
    Ok(Json(ExecAnswer {
        result_block: tool.block(&tool_use_id, content),
        tool_use_id,
        execution_time_ms: begun.elapsed().as_millis() as u64,
    }))
}

/// What failed on the way to the code and back, as an error block; what the caller did wrong, and
/// a session that is gone, as a problem.
fn infrastructure(
    app: &App,
    session: &Arc<Session>,
    tool: Tool,
    failure: Failure,
) -> Answer<Value> {
    let deleted = session.is_closing();
    let problem = app.lost(session, failure);
    let failure = problem.failure();
    let code = match failure.code {
        Code::NotFound | Code::Forbidden => return Err(problem),
        Code::InvalidInput => "invalid_tool_input",
        Code::TooMany | Code::Full => "too_many_requests",
        Code::DeadlineExceeded => "execution_time_exceeded",
        _ => "unavailable",
    };
    tracing::warn!(session = %session.id, detail = failure.detail, "{failure}");
    Ok(match deleted {
        true => tool.error("unavailable", "the session was ended while this ran"),
        false => tool.error(code, &failure.message),
    })
}

fn told(tool: Tool, asked: Asked, session: &Session, done: &ExecResult) -> Value {
    let news = session.take_news();
    let text = Text::of(tool, asked, done, news.as_ref());
    blocks::result(tool, &text, &session.id, done)
}

async fn edit(session: &Session, call: &EditorCall, asked: Asked) -> Result<Value, Failure> {
    let work = async { call.run(&session.guest().await?, asked.output).await };
    tokio::time::timeout(asked.timeout, work)
        .await
        .unwrap_or_else(|_| {
            let seconds = asked.timeout.as_secs_f64();
            let message = format!("the editor timed out after {seconds}s");
            Err(Failure::new(Code::DeadlineExceeded, message))
        })
}

async fn python(
    app: &App,
    session: &Arc<Session>,
    code: String,
    asked: Asked,
) -> Result<ExecResult, Failure> {
    let request = RunRequest {
        code,
        timeout_ms: Some(asked.timeout.as_millis() as u64),
        output_limit: Some(asked.output),
        cpu_seconds: Some(app.config.limits.cpu_seconds),
        report_files: true,
        ..RunRequest::default()
    };
    let kernel = MAIN.to_owned();
    app.run(session, Work::Run { kernel, request }).await
}

async fn bash(
    app: &App,
    session: &Arc<Session>,
    command: String,
    asked: Asked,
) -> Result<ExecResult, Failure> {
    let mut request = ExecRequest::new(Command::Shell(command));
    request.timeout_ms = Some(asked.timeout.as_millis() as u64);
    request.output_limit = Some(asked.output);
    request.limits.cpu_seconds = Some(app.config.limits.cpu_seconds);
    request.report_files = true;
    app.run(session, Work::Exec(request)).await
}
