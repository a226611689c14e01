//! `/tools` and `/sessions/{session}/tools/{tool}`: the registry of tools for models, over HTTP.

use super::extract::{Body, Path, Query};
use super::problem::{Answer, Problem, ProblemBody};
use super::run::broken;
use super::state::{App, Caller, Scope};
use async_trait::async_trait;
use axum::Json;
use axum::extract::{Extension, State};
use ringfence_core::proto::{ExecResult, JobInfo};
use ringfence_core::tools::{self, Family, Format, Refusal, RunLimits, Runner, Tool};
use ringfence_core::{Code, Failure, Session, Work};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Which tools.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct FamilyQuery {
    /// `ringfence` when absent, `axio`, `haiku`, `hastekit` or `anthropic`.
    #[param(pattern = "^(ringfence|axio|haiku|hastekit|anthropic)$")]
    family: Option<String>,
}

/// Which tools, and how they are written down.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct ToolsQuery {
    /// `ringfence` when absent, `axio`, `haiku`, `hastekit` or `anthropic`.
    #[param(pattern = "^(ringfence|axio|haiku|hastekit|anthropic)$")]
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

fn family(name: Option<&str>) -> Answer<Family> {
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
    let family = family(query.family.as_deref())?;
    let tool = family.tool(&tool).ok_or_else(|| unknown(family, &tool))?;
    let session = app.session(&caller, &id, Scope::Use).await?;
    let answer = app.call_tool(&session, family, tool, arguments).await;
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

impl App {
    async fn call_tool(
        &self,
        session: &Arc<Session>,
        family: Family,
        tool: &Tool,
        arguments: Map<String, Value>,
    ) -> Result<tools::Answer, Refusal> {
        let runner = SessionRunner::new(self, session);
        let _use = session.begin();
        family.call(tool, &runner, arguments).await
    }
}

/// Runs what tools run, with everything that the server does around a job.
pub(crate) struct SessionRunner {
    app: App,
    session: Arc<Session>,
}

impl SessionRunner {
    pub(crate) fn new(app: &App, session: &Arc<Session>) -> Self {
        Self {
            app: app.clone(),
            session: Arc::clone(session),
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

    async fn run(&self, work: Work) -> Result<ExecResult, Failure> {
        self.app.run(&self.session, work).await
    }

    async fn start(&self, mut work: Work) -> Result<JobInfo, Failure> {
        let job = work.name()?;
        let (info, _) = self.app.start(&self.session, &work, &job).await?;
        Ok(info)
    }
}
