//! `/health`: whether the server lives; `/ready`: whether it can do its work; `/metrics`: numbers.

use super::problem::{Answer, ProblemBody};
use super::seen;
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::IntoResponse;
use http::header;
use metrics_exporter_prometheus::PrometheusHandle;
use ringfence_core::{Backend, Code, Failure};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    status: &'static str,
    session_count: usize,
    max_sessions: usize,
}

/// Whether the server lives, and how full it is.
#[utoipa::path(get, path = "/health", tag = "server", responses((status = 200, body = HealthBody)))]
pub(crate) async fn health(State(app): State<App>) -> Json<HealthBody> {
    Json(HealthBody {
        status: "ok",
        session_count: app.sessions.count(),
        max_sessions: app.sessions.quotas().sessions,
    })
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReadyBody {
    status: &'static str,
}

/// How long the backend may take to be ready.
const QUICK: Duration = Duration::from_secs(2);
/// How long one look at it is good for: anybody may ask, as often as they like.
const FRESH: Duration = Duration::from_millis(500);

/// The last look at the backend.
#[derive(Default)]
pub(crate) struct Readiness {
    seen: tokio::sync::Mutex<Option<(Instant, Result<(), Failure>)>>,
}

impl Readiness {
    async fn look(&self, backend: &Arc<dyn Backend>) -> Result<(), Failure> {
        let mut seen = self.seen.lock().await;
        if let Some((when, what)) = &*seen
            && when.elapsed() < FRESH
        {
            return what.clone();
        }
        let backend = Arc::clone(backend);
        // Of its own, so that it can block without blocking the answer.
        let asked = tokio::spawn(async move { backend.ready().await });
        let ready = match tokio::time::timeout(QUICK, asked).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(failure))) => Err(Failure {
                code: Code::Unavailable,
                ..failure
            }),
            Ok(Err(broken)) => Err(Failure::new(
                Code::Unavailable,
                "the look at the backend broke off",
            )
            .detail(broken)),
            Err(_) => Err(Failure::new(
                Code::Unavailable,
                format!("the backend has not answered for {} s", QUICK.as_secs()),
            )),
        };
        *seen = Some((Instant::now(), ready.clone()));
        ready
    }
}

/// Whether the server can make and reach sandboxes.
#[utoipa::path(
    get,
    path = "/ready",
    tag = "server",
    responses((status = 200, body = ReadyBody), (status = 503, body = ProblemBody))
)]
pub(crate) async fn ready(State(app): State<App>) -> Answer<Json<ReadyBody>> {
    app.readiness.look(app.sessions.backend()).await?;
    Ok(Json(ReadyBody { status: "ready" }))
}

/// Numbers for Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "server",
    responses((status = 200, body = String), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn metrics(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Answer<impl IntoResponse + use<>> {
    caller.may_beyond(Scope::Read)?;
    seen::sessions(app.backend_name(), app.sessions.count());
    let text = app.metrics.render();
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

/// Histograms are folded now and then, also where nobody looks.
pub(crate) async fn fold(metrics: PrometheusHandle) {
    let mut ticks = tokio::time::interval(Duration::from_secs(10));
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}
