//! Sessions over HTTP. One file per group of routes.

mod exec;
mod extract;
mod files;
mod health;
mod policy;
mod presence;
mod problem;
mod readers;
mod run;
mod serve;
mod sessions;
mod state;

pub(crate) use presence::Presence;
pub(crate) use serve::{Listener, serve};
pub(crate) use state::App;

use axum::Router;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes, at `/` and under `/v1`.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::show, sessions::remove, sessions::change))
        .routes(routes!(sessions::suspend))
        .routes(routes!(exec::exec))
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
        .routes(routes!(health::health))
}

/// Everything that is served.
pub(crate) fn router(app: App) -> Router {
    let (routes, _api) = routes().split_for_parts();
    Router::new()
        .merge(routes.clone())
        .nest("/v1", routes)
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            state::authenticate,
        ))
        .with_state(app)
}
