//! `/health`: whether the server lives.

use super::state::App;
use axum::Json;
use axum::extract::State;
use serde::Serialize;
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
