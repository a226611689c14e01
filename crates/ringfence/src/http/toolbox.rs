//! `/tools` and `/sessions/{session}/tools/{tool}`: the registry of tools for models, over HTTP.

use super::extract::{Body, Path, Query};
use super::problem::{Answer, Problem, ProblemBody};
use super::run::broken;
use super::state::{App, Caller, Scope};
use async_trait::async_trait;
use axum::Json;
use axum::extract::{Extension, State};
use ringfence_core::proto::{ExecResult, JobInfo};
use ringfence_core::snippet::{Outcome, Snippet};
use ringfence_core::tools::{self, Family, Format, Refusal, RunLimits, Runner, Snippets};
use ringfence_core::{Code, Failure, Session, Work};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use utoipa::{IntoParams, ToSchema};

/// Which tools.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct FamilyQuery {
    /// `ringfence` when absent, `axio`, `haiku`, `hastekit`, `anthropic` or `shipit`.
    #[param(pattern = "^(ringfence|axio|haiku|hastekit|anthropic|shipit)$")]
    family: Option<String>,
}

/// Which tools, and how they are written down.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ToolsQuery {
    /// `ringfence` when absent, `axio`, `haiku`, `hastekit`, `anthropic` or `shipit`.
    #[param(pattern = "^(ringfence|axio|haiku|hastekit|anthropic|shipit)$")]
    family: Option<String>,
    /// `mcp` when absent, `openai` or `anthropic`.
    #[param(pattern = "^(mcp|openai|anthropic)$")]
    format: Option<String>,
}

/// A family of tools.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolList {
    family: &'static str,
    /// Name, description and JSON schema of each, in the format that was asked for.
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
}

/// What the call of a tool came to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ToolAnswer {
    /// All text of the content.
    text: String,
    #[serde(flatten)]
    answer: tools::Answer,
}

impl FamilyQuery {
    fn family(&self) -> Answer<Family> {
        family(self.family.as_deref())
    }
}

/// The family of this name.
pub(crate) fn family(name: Option<&str>) -> Answer<Family> {
    let Some(name) = name else {
        return Ok(Family::default());
    };
    Family::named(name).ok_or_else(|| {
        let message = format!(
            "must be one of {}",
            Family::ALL.map(Family::name).join(", ")
        );
        Problem::at(&["query", "family"], message, "enum")
    })
}

/// The tools of a family, as a model is told of them.
#[utoipa::path(
    get,
    path = "/tools",
    tag = "tools",
    params(ToolsQuery),
    responses((status = 200, body = ToolList), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(Query(query): Query<ToolsQuery>) -> Answer<Json<ToolList>> {
    let family = family(query.family.as_deref())?;
    let format = match query.format.as_deref() {
        None => Format::Mcp,
        Some(name) => Format::named(name).ok_or_else(|| {
            let message = format!(
                "must be one of {}",
                Format::ALL.map(Format::name).join(", ")
            );
            Problem::at(&["query", "format"], message, "enum")
        })?,
    };
    Ok(Json(ToolList {
        family: family.name(),
        tools: family.definitions(format),
    }))
}

/// Calls a tool; the body has its arguments. Code that fails has an answer like any other.
#[utoipa::path(
    post,
    path = "/sessions/{session}/tools/{tool}",
    tag = "tools",
    params(("session" = String, Path), ("tool" = String, Path), FamilyQuery),
    request_body(content = Object, description = "the arguments, as the tool's schema says"),
    responses((status = 200, body = ToolAnswer), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn call(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, tool)): Path<(String, String)>,
    Query(query): Query<FamilyQuery>,
    Body(arguments): Body<Map<String, Value>>,
) -> Answer<Json<ToolAnswer>> {
    caller.may(Scope::Use)?;
    let family = query.family()?;
    let tool = family.tool(&tool).ok_or_else(|| unknown(family, &tool))?;
    let session = app.session(&caller, &id, Scope::Use).await?;
    let runner = SessionRunner::new(&app, &session, &caller, Left::Grace);
    let _use = session.begin();
    let answer = family.call(tool, &runner, arguments).await;
    let answer = answer.map_err(|refusal| match refusal {
        Refusal::Argument(bad) => Problem::at(&["body", &bad.name], bad.message, bad.kind),
        Refusal::Failure(failure) => broken(&app, &session, failure),
    })?;
    Ok(Json(ToolAnswer {
        text: answer.words(),
        answer,
    }))
}

/// A tool that a family does not have.
pub(crate) fn unknown(family: Family, name: &str) -> Failure {
    let names: Vec<_> = family.tools().iter().map(|tool| tool.name).collect();
    let shown: String = name.chars().take(64).collect();
    let message = format!("the family {} has no tool {shown}", family.name());
    Failure::new(Code::NotFound, message).hint(format!("it has {}", names.join(", ")))
}

/// Runs what tools run without a session.
pub(crate) struct SnippetRunner {
    app: App,
    caller: Caller,
}

impl SnippetRunner {
    pub(crate) fn new(app: &App, caller: &Caller) -> Self {
        Self {
            app: app.clone(),
            caller: caller.clone(),
        }
    }
}

#[async_trait]
impl Snippets for SnippetRunner {
    async fn snippet(&self, snippet: Snippet) -> Result<Outcome, Failure> {
        let done = self.app.run_snippet(&self.caller, snippet).await;
        done.map_err(|problem| problem.failure().clone())
    }
}

/// Runs what tools run, with everything that the server does around a job.
pub(crate) struct SessionRunner {
    app: App,
    session: Arc<Session>,
    snippets: SnippetRunner,
    left: Left,
    waits_for: Mutex<Option<String>>,
}

/// What becomes of a job whose call nobody waits for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Whoever called may come back for it.
    Grace,
    Killed,
}

impl SessionRunner {
    fn new(app: &App, session: &Arc<Session>, caller: &Caller, left: Left) -> Self {
        Self {
            app: app.clone(),
            session: Arc::clone(session),
            snippets: SnippetRunner::new(app, caller),
            left,
            waits_for: Mutex::default(),
        }
    }

    /// One that ends what it runs at once when it is dropped.
    pub(crate) fn killing(app: &App, session: &Arc<Session>, caller: &Caller) -> Self {
        Self::new(app, session, caller, Left::Killed)
    }

    fn slot(&self) -> MutexGuard<'_, Option<String>> {
        self.waits_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The job that the call waits for.
    pub(crate) fn job(&self) -> Option<String> {
        self.slot().clone()
    }
}

impl Drop for SessionRunner {
    fn drop(&mut self) {
        let job = self.slot().take();
        let (Some(job), Left::Killed) = (job, self.left) else {
            return;
        };
        // Without a runtime the process is about to end.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(kill(Arc::clone(&self.session), job));
        }
    }
}

/// Cancels a job, also one that is about to begin.
async fn kill(session: Arc<Session>, job: String) {
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(100);
    for _ in 0..TRIES {
        let cancelled = async { session.guest().await?.cancel(&job).await };
        match cancelled.await {
            Err(failure) if failure.code == Code::NotFound && !session.is_closing() => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(failure) => {
                let detail = failure.detail.as_deref();
                tracing::warn!(session = %session.id, job, detail, "cannot cancel a call: {failure}");
                return;
            }
            Ok(()) => return,
        }
    }
}

#[async_trait]
impl Runner for SessionRunner {
    fn session(&self) -> &Session {
        &self.session
    }

    fn limits(&self) -> RunLimits {
        RunLimits {
            output: self.app.output_limit(),
            cpu_seconds: self.app.config.limits.cpu_seconds,
        }
    }

    async fn run(&self, mut work: Work) -> Result<ExecResult, Failure> {
        work.set_transient();
        let job = work.name()?;
        *self.slot() = Some(job.clone());
        let done = self.app.run_named(&self.session, &work, job).await;
        *self.slot() = None;
        done
    }

    async fn start(&self, mut work: Work) -> Result<JobInfo, Failure> {
        let job = work.name()?;
        let (info, _) = self.app.start(&self.session, &work, &job).await?;
        Ok(info)
    }
}

#[async_trait]
impl Snippets for SessionRunner {
    async fn snippet(&self, snippet: Snippet) -> Result<Outcome, Failure> {
        self.snippets.snippet(snippet).await
    }
}
