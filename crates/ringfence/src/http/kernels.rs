//! `/sessions/{session}/kernels`: interpreters with variables of their own.

use super::extract::{Body, Path};
use super::problem::{Answer, Problem, ProblemBody};
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use http::StatusCode;
use ringfence_core::guest::is_name;
use ringfence_core::proto::{KernelInfo, KernelRequest};
use ringfence_core::sessions::MAIN;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// An interpreter of a session.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KernelObject {
    name: String,
    /// Counts its starts: a number that grew means that variables were lost in between.
    generation: u32,
    python: String,
    version: String,
    /// Whether a call runs in it.
    busy: bool,
}

impl From<KernelInfo> for KernelObject {
    fn from(info: KernelInfo) -> Self {
        Self {
            name: info.name,
            generation: info.generation,
            python: info.python,
            version: info.version,
            busy: info.busy,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KernelList {
    kernels: Vec<KernelObject>,
}

/// How a kernel is started.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewKernel {
    /// An interpreter in the sandbox; its usual one when absent.
    #[schema(min_length = 1, max_length = 4096)]
    python: Option<String>,
    env: BTreeMap<String, String>,
    /// The folder that it starts in; the workspace when absent.
    #[schema(min_length = 1, max_length = 4096)]
    cwd: Option<String>,
}

impl NewKernel {
    fn resolve(self) -> Answer<KernelRequest> {
        let wrong =
            |name: &str, message: &str| Problem::at(&["body", name], message, "value_error");
        for (field, path) in [("python", &self.python), ("cwd", &self.cwd)] {
            let good = |path: &String| (1..=4096).contains(&path.len()) && !path.contains('\0');
            if path.as_ref().is_some_and(|path| !good(path)) {
                return Err(wrong(field, "must have 1 to 4096 bytes, none of them null"));
            }
        }
        let bad = |(name, value): (&String, &String)| {
            name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
        };
        if self.env.len() > 10_000 || self.env.iter().any(bad) {
            let message = "has at most 10000 variables, with names without = and no null bytes";
            return Err(wrong("env", message));
        }
        Ok(KernelRequest {
            python: self.python,
            env: self.env,
            cwd: self.cwd,
            ..KernelRequest::default()
        })
    }
}

fn checked(name: &str) -> Answer<()> {
    if is_name(name) {
        return Ok(());
    }
    let message = "has 1 to 64 letters, digits, _ and -";
    Err(Problem::at(&["path", "kernel"], message, "value_error"))
}

/// The kernels of a session.
#[utoipa::path(
    get,
    path = "/sessions/{session}/kernels",
    tag = "kernels",
    params(("session" = String, Path)),
    responses((status = 200, body = KernelList), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<KernelList>> {
    let session = app.session(&caller, &id, Scope::Read).await?;
    let kernels = async { session.guest().await?.kernels().await };
    let kernels = kernels
        .await
        .map_err(|failure| app.lost(&session, failure))?;
    let kernels = kernels.into_iter().map(KernelObject::from).collect();
    Ok(Json(KernelList { kernels }))
}

/// Starts a kernel, or answers with the one that has this name.
#[utoipa::path(
    put,
    path = "/sessions/{session}/kernels/{kernel}",
    tag = "kernels",
    params(("session" = String, Path), ("kernel" = String, Path)),
    request_body = Option<NewKernel>,
    responses((status = 200, body = KernelObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn put(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, kernel)): Path<(String, String)>,
    Body(body): Body<NewKernel>,
) -> Answer<Json<KernelObject>> {
    checked(&kernel)?;
    let request = body.resolve()?;
    let session = app.session(&caller, &id, Scope::Use).await?;
    let _use = session.begin();
    let started = async { session.guest().await?.start_kernel(&kernel, &request).await };
    let info = started
        .await
        .map_err(|failure| app.lost(&session, failure))?;
    Ok(Json(info.into()))
}

/// A kernel of a session.
#[utoipa::path(
    get,
    path = "/sessions/{session}/kernels/{kernel}",
    tag = "kernels",
    params(("session" = String, Path), ("kernel" = String, Path)),
    responses((status = 200, body = KernelObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, kernel)): Path<(String, String)>,
) -> Answer<Json<KernelObject>> {
    checked(&kernel)?;
    let session = app.session(&caller, &id, Scope::Read).await?;
    let info = async { session.guest().await?.kernel(&kernel).await };
    let info = info.await.map_err(|failure| app.lost(&session, failure))?;
    Ok(Json(info.into()))
}

/// Ends a kernel and the call that runs in it; its variables are gone.
#[utoipa::path(
    delete,
    path = "/sessions/{session}/kernels/{kernel}",
    tag = "kernels",
    params(("session" = String, Path), ("kernel" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, kernel)): Path<(String, String)>,
) -> Answer<StatusCode> {
    checked(&kernel)?;
    let session = app.known(&caller, &id, Scope::Use).await?;
    let _use = session.begin();
    let removed = async { session.guest().await?.remove_kernel(&kernel).await };
    removed
        .await
        .map_err(|failure| app.lost(&session, failure))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Interrupts the call that runs in a kernel, as Ctrl-C does; its variables stay.
#[utoipa::path(
    post,
    path = "/sessions/{session}/kernels/{kernel}/interrupt",
    tag = "kernels",
    params(("session" = String, Path), ("kernel" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn interrupt(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path((id, kernel)): Path<(String, String)>,
) -> Answer<StatusCode> {
    checked(&kernel)?;
    let session = app.known(&caller, &id, Scope::Use).await?;
    let _use = session.begin();
    let sent = async { session.guest().await?.interrupt(&kernel).await };
    sent.await.map_err(|failure| app.lost(&session, failure))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Interrupts the call that runs in the kernel `main`.
#[utoipa::path(
    post,
    path = "/sessions/{session}/interrupt",
    tag = "kernels",
    params(("session" = String, Path)),
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn interrupt_main(
    state: State<App>,
    caller: Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    interrupt(state, caller, Path((id, MAIN.to_owned()))).await
}
