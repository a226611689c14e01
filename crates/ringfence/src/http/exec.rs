//! `POST /sessions/{session}/exec`: one tool call, answered with a result block.

use super::act;
use super::events::{self, Last, ServerEvent};
use super::extract::{Body, Path};
use super::problem::{Answer, Problem, ProblemBody};
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse as _, Response};
use http::HeaderMap;
use ringfence_core::blocks::{self, Asked, EditorCall, Text, Tool};
use ringfence_core::proto::{Command, ExecRequest, ExecResult, Output, OutputQuery, RunRequest};
use ringfence_core::sessions::MAIN;
use ringfence_core::{Code, Failure, Session, Work, random_hex};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Most characters of code or of a command.
const CODE: usize = 200_000;

/// A tool call.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(example = json!({"tool": "code_execution", "input": {"code": "print(2 + 2)"}}))]
pub(crate) struct Exec {
    #[schema(value_type = ToolName)]
    tool: String,
    #[schema(value_type = ToolInput)]
    input: serde_json::Map<String, Value>,
    #[serde(default = "default_timeout")]
    #[schema(minimum = 1, maximum = 120)]
    timeout_seconds: f64,
    /// Generated when absent.
    tool_use_id: Option<String>,
}

/// The names of the tools.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(
    dead_code,
    clippy::enum_variant_names,
    reason = "for the description only: they are the names of Tool"
)]
pub(crate) enum ToolName {
    CodeExecution,
    BashCodeExecution,
    TextEditorCodeExecution,
}

/// What a tool is given.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(
    dead_code,
    reason = "for the description only: see text and EditorCall"
)]
pub(crate) enum ToolInput {
    /// Of `code_execution`.
    Code {
        #[schema(min_length = 1, max_length = 200_000)]
        code: String,
    },
    /// Of `bash_code_execution`.
    Bash {
        #[schema(min_length = 1, max_length = 200_000)]
        command: String,
    },
    /// Of `text_editor_code_execution`: with `file_text`, `old_str`, `new_str`, `insert_line` or
    /// `view_range` as the command needs.
    Editor {
        /// `view`, `create`, `str_replace`, `insert` or `undo_edit`.
        command: String,
        path: String,
    },
}

/// A result block, as clients of the hosted code execution tool parse it.
#[derive(ToSchema)]
#[allow(
    dead_code,
    reason = "for the description only: see ringfence_core::blocks"
)]
pub(crate) struct ResultBlock {
    /// The tool's name and `_tool_result`.
    #[schema(
        rename = "type",
        pattern = "^(bash_|text_editor_)?code_execution_tool_result$"
    )]
    kind: String,
    tool_use_id: String,
    content: ResultContent,
}

/// A result, or an error. Besides what is listed there is what the type has: `content` and
/// `results` of code and commands, the lines of the editor, `error_code` of errors.
#[derive(ToSchema)]
#[allow(
    dead_code,
    reason = "for the description only: see ringfence_core::blocks"
)]
pub(crate) struct ResultContent {
    /// Such as `code_execution_result`; errors end in `_error`.
    #[schema(rename = "type")]
    kind: String,
    stdout: String,
    stderr: String,
    /// Its own, minus the number of the signal that ended it, or -1.
    return_code: i32,
}

fn default_timeout() -> f64 {
    30.0
}

/// What a tool call came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecAnswer {
    tool_use_id: String,
    #[schema(value_type = ResultBlock)]
    result_block: Value,
    execution_time_ms: u64,
    /// Where some of the output was left out: all that is kept of it is at
    /// `/sessions/{session}/jobs/{job_id}/output/stdout` and `…/stderr`.
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<String>,
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

/// Runs one tool call in a session. With `Accept: text/event-stream` its output comes as events,
/// and the last one, `done`, carries the answer.
#[utoipa::path(
    post,
    path = "/sessions/{session}/exec",
    tag = "exec",
    params(("session" = String, Path)),
    request_body = Exec,
    responses(
        (status = 200, description = "the answer, or events until it is there", content(
            (ExecAnswer = "application/json"),
            (ServerEvent = "text/event-stream"),
        )),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn exec(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Body(body): Body<Exec>,
) -> Answer<Response> {
    let session = app.session(&caller, &id, Scope::Use).await?;
    let Some(tool) = Tool::named(&body.tool) else {
        let names = Tool::ALL.map(Tool::name).join(", ");
        let message = format!("no such tool: must be one of {names}");
        return Err(Problem::at(&["body", "tool"], message, "enum"));
    };
    if !(1.0..=120.0).contains(&body.timeout_seconds) {
        let message = "must be between 1 and 120";
        return Err(Problem::at(
            &["body", "timeout_seconds"],
            message,
            "value_error",
        ));
    }
    let tool_use_id = match body.tool_use_id {
        Some(id) => id,
        None => format!("srvtoolu_{}", random_hex::<12>()?),
    };
    let call = Call {
        tool,
        tool_use_id,
        begun: Instant::now(),
        asked: Asked {
            timeout: Duration::from_secs_f64(body.timeout_seconds),
            output: app.output_limit(),
        },
    };
    let _use = session.begin();
    let work = match tool {
        Tool::Code => python(&app, text(&body.input, "code")?.to_owned(), call.asked),
        Tool::Bash => bash(&app, text(&body.input, "command")?.to_owned(), call.asked),
        Tool::TextEditor => {
            let input = EditorCall::parse(&body.input)
                .map_err(|bad| Problem::at(&["body", "input", bad.field], bad.message, bad.kind))?;
            if let Some(text) = input.text() {
                act::writes(text);
            }
            let content = match edit(&session, &input, call.asked).await {
                Ok(content) => content,
                Err(failure) => infrastructure(&app, &session, tool, failure)?,
            };
            if content["return_code"] != 0 {
                act::finished("failed", None);
            }
            return Ok(Json(call.with(content, None)).into_response());
        }
    };
    if events::wanted(&headers) {
        let at = OutputQuery::default();
        return events::start(&app, &session, work, at, Last::Call(call)).await;
    }
    let done = app.run(&session, work).await;
    Ok(Json(call.answer(&app, &session, done).await?).into_response())
}

/// A tool call that was begun.
pub(crate) struct Call {
    tool: Tool,
    tool_use_id: String,
    begun: Instant,
    asked: Asked,
}

impl Call {
    /// What the call came to.
    pub(crate) async fn answer(
        self,
        app: &App,
        session: &Arc<Session>,
        done: Result<ExecResult, Failure>,
    ) -> Answer<ExecAnswer> {
        let tool = self.tool;
        let mut job_id = None;
        let content = match done {
            Ok(result) => {
                let news = session.take_news();
                let text = Text::of(tool, self.asked, &result, news.as_ref());
                let content = blocks::result(tool, &text, &session.id, &result);
                let cut = |output: &Output| output.total > output.data.len() as u64;
                if cut(&result.stdout) || cut(&result.stderr) {
                    job_id = Some(result.id);
                }
                content
            }
            Err(failure) => infrastructure(app, session, tool, failure)?,
        };
        Ok(self.with(content, job_id))
    }

    fn with(self, content: Value, job_id: Option<String>) -> ExecAnswer {
        ExecAnswer {
            result_block: self.tool.block(&self.tool_use_id, content),
            tool_use_id: self.tool_use_id,
            execution_time_ms: self.begun.elapsed().as_millis() as u64,
            job_id,
        }
    }
}

/// What failed on the way to the code and back, as an error block; what the caller did wrong, and
/// a session that is gone, as a problem.
fn infrastructure(
    app: &App,
    session: &Arc<Session>,
    tool: Tool,
    failure: Failure,
) -> Answer<Value> {
    // Where the engine says why it ended, that is told.
    let deleted = session.is_closing() && session.epitaph().is_none();
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
    if deleted {
        return Ok(tool.error("unavailable", "the session was ended while this ran"));
    }
    // Where it was found dead and started again, that is what happened. The next call says so too.
    let news = (code == "unavailable").then(|| session.news());
    Ok(match news.flatten() {
        Some(news) => {
            let message = format!("the sandbox ended while this ran: {}", news.message);
            tool.error(code, &message)
        }
        None => tool.error(code, &failure.message),
    })
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

fn python(app: &App, code: String, asked: Asked) -> Work {
    let request = RunRequest {
        code,
        timeout_ms: Some(asked.timeout.as_millis() as u64),
        output_limit: Some(asked.output),
        cpu_seconds: Some(app.config.limits.cpu_seconds),
        report_files: true,
        ..RunRequest::default()
    };
    let kernel = MAIN.to_owned();
    Work::Run { kernel, request }
}

fn bash(app: &App, command: String, asked: Asked) -> Work {
    let mut request = ExecRequest::new(Command::Shell(command));
    request.timeout_ms = Some(asked.timeout.as_millis() as u64);
    request.output_limit = Some(asked.output);
    request.report_files = true;
    request.limits.cpu_seconds = Some(app.config.limits.cpu_seconds);
    Work::Exec(request)
}
