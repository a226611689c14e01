//! `POST /sessions/{session}/programmatic-tools/register`: functions of the caller's own that code
//! in a session can call.

use super::calls;
use super::extract::{Body, Path};
use super::problem::{Answer, Problem, ProblemBody};
use super::state::{App, Caller, Scope};
use crate::callback::{self, Target};
use axum::Json;
use axum::extract::{Extension, State};
use ringfence_core::proto::Tool;
use ringfence_core::sessions::Registration;
use ringfence_core::{Code, Failure};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Tools, and where they are carried out.
#[derive(Deserialize, ToSchema)]
pub(crate) struct Register {
    /// Each call is one POST to this URL.
    callback_url: String,
    /// Sent there as `Authorization: Bearer`; it never enters the sandbox.
    token: String,
    tools: Vec<NewTool>,
    /// How long a call may take.
    #[serde(default = "default_timeout")]
    #[schema(minimum = 1, maximum = 3600)]
    timeout_seconds: f64,
}

fn default_timeout() -> f64 {
    300.0
}

#[derive(Deserialize, ToSchema)]
pub(crate) struct NewTool {
    /// A Python identifier.
    name: String,
    /// What `help` shows.
    #[serde(default)]
    doc: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Registered {
    /// The module's file, inside the sandbox.
    stub_path: String,
    tool_count: u32,
}

impl Register {
    fn resolve(self) -> Answer<(Registration, Target)> {
        if !(1.0..=3600.0).contains(&self.timeout_seconds) {
            let message = "must be between 1 and 3600";
            let loc = ["body", "timeout_seconds"];
            return Err(Problem::at(&loc, message, "value_error"));
        }
        let tool = |tool: NewTool| Tool {
            name: tool.name,
            doc: tool.doc.unwrap_or_default(),
        };
        let registration = Registration {
            callback_url: self.callback_url.trim().to_owned(),
            token: self.token,
            timeout_ms: (self.timeout_seconds * 1000.0) as u64,
            tools: self.tools.into_iter().map(tool).collect(),
        };
        let checked = callback::token(&registration.token)
            .and_then(|()| registration.request().check())
            .and_then(|()| Target::parse(&registration.callback_url));
        let target = checked.map_err(Problem::sentence)?;
        Ok((registration, target))
    }
}

/// Installs the Python module `_platform_tools` with these functions, in place of those of before.
/// Each call of one becomes one `POST callback_url` with `{"call_id", "name", "input"}`, made by
/// this server; the reply `{"content", "is_error"}` is what the call returns, or raises.
#[utoipa::path(
    post,
    path = "/sessions/{session}/programmatic-tools/register",
    tag = "tools",
    params(("session" = String, Path)),
    request_body = Register,
    responses((status = 200, body = Registered), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn register(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<Register>,
) -> Answer<Json<Registered>> {
    let session = app.session(&caller, &id, Scope::Use).await?;
    let (registration, target) = body.resolve()?;
    app.callbacks.allow(&target).await?;
    let _use = session.begin();
    // Half of it done would be neither the old nor the new: it goes on when the caller goes.
    let registered = {
        let session = std::sync::Arc::clone(&session);
        tokio::spawn(async move { session.register_tools(&registration).await })
    };
    let broken = |e| Failure::new(Code::Internal, "the registration broke off").detail(e);
    let info = registered
        .await
        .map_err(broken)?
        .map_err(|failure| match failure.code {
            Code::InvalidInput => Problem::sentence(failure),
            _ => app.lost(&session, failure),
        })?;
    calls::attend(&app, &session);
    Ok(Json(Registered {
        stub_path: info.stub_path,
        tool_count: info.tool_count,
    }))
}
