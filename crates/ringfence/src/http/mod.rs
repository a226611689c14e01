//! Sessions over HTTP. One file per group of routes.

mod act;
mod audit;
mod auth;
mod calls;
mod connection;
mod events;
mod exec;
mod extract;
mod files;
mod flow;
mod hastekit;
mod health;
mod job;
mod jobs;
mod kernels;
mod limits;
mod making;
mod openapi;
mod policy;
mod presence;
mod problem;
mod pty;
mod readers;
mod run;
mod seen;
mod serve;
mod sessions;
mod skills;
mod snippets;
mod state;
mod strict;
mod toolbox;
mod tools;
mod traces;
mod watched;

pub(crate) use act::{Act, apart};
pub(crate) use audit::Audit;
pub(crate) use auth::Gate;
pub(crate) use calls::attend_all;
pub(crate) use hastekit::Relays;
pub(crate) use health::fold;
#[cfg(test)]
pub(crate) use openapi::text as description;
pub(crate) use presence::Presence;
pub(crate) use seen::{reaped, start as start_metrics};
pub(crate) use serve::{Listener, serve};
pub(crate) use skills::SkillList;
pub(crate) use state::{App, Caller, Scope};
pub(crate) use toolbox::{
    SessionRunner, SnippetRunner, family as named_family, unknown as unknown_tool,
};
pub(crate) use traces::{TARGET as TRACE, Traces};
pub(crate) use watched::Watched;

use axum::Router;
use axum::middleware::from_fn_with_state as layer;
use http::StatusCode;
use problem::Problem;
use ringfence_core::{Code, Failure};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes, at `/` and under `/v1`.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::show, sessions::remove, sessions::change))
        .routes(routes!(sessions::suspend))
        .routes(routes!(exec::exec))
        .routes(routes!(snippets::run))
        .routes(routes!(snippets::batch))
        .routes(routes!(snippets::languages))
        .routes(routes!(jobs::start, jobs::list))
        .routes(routes!(job::show, job::remove))
        .routes(routes!(job::follow))
        .routes(routes!(job::wait))
        .routes(routes!(job::result))
        .routes(routes!(job::output))
        .routes(routes!(job::signal))
        .routes(routes!(job::resize))
        .routes(routes!(job::stdin))
        .routes(routes!(pty::join))
        .routes(routes!(pty::open))
        .routes(routes!(kernels::list))
        .routes(routes!(kernels::put, kernels::show, kernels::remove))
        .routes(routes!(kernels::interrupt))
        .routes(routes!(kernels::interrupt_main))
        .routes(routes!(tools::register))
        .routes(routes!(toolbox::list))
        .routes(routes!(toolbox::call))
        .routes(routes!(skills::all))
        .routes(routes!(skills::of_session))
        .routes(routes!(
            files::upload::upload,
            files::download::download,
            files::ops::delete
        ))
        .routes(routes!(files::list))
        .routes(routes!(files::ops::stat))
        .routes(routes!(files::ops::tree))
        .routes(routes!(files::ops::relocate))
        .routes(routes!(files::ops::copy))
        .routes(routes!(files::ops::mkdir))
        .routes(routes!(files::ops::glob))
        .routes(routes!(files::ops::grep))
        .routes(routes!(files::ops::edit))
        .routes(routes!(files::tar::pack, files::tar::unpack))
        .routes(routes!(files::ids::metadata, files::ids::remove))
        .routes(routes!(files::ids::content))
        .routes(routes!(hastekit::create))
        .routes(routes!(hastekit::show, hastekit::remove))
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        .routes(routes!(openapi::description))
        .routes(routes!(openapi::page))
}

/// Everything that is served.
pub(crate) fn router(app: App) -> Router {
    let (routes, _api) = routes().split_for_parts();
    Router::new()
        .merge(routes.clone())
        .nest("/v1", routes)
        .route_service("/mcp", crate::mcp::service(&app))
        .fallback(nothing)
        .method_not_allowed_fallback(not_so)
        // The last one is the first that a request meets.
        .layer(layer(app.clone(), audit::record))
        .layer(layer(app.clone(), limits::guard))
        .layer(layer(app.clone(), auth::authenticate))
        .layer(layer(app.clone(), seen::observe))
        .with_state(app)
}

async fn nothing() -> Problem {
    Failure::new(Code::NotFound, "there is nothing at this path").into()
}

async fn not_so() -> Problem {
    let failure = Failure::new(Code::NotFound, "this path does not know this method");
    Problem::from(failure).with_status(StatusCode::METHOD_NOT_ALLOWED)
}
