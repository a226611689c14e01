//! A session that is made while somebody reads how far it is.

use super::act;
use super::events;
use super::problem::Problem;
use super::sessions::make;
use super::state::App;
use axum::response::Response;
use axum::response::sse::Event as Sse;
use futures_util::{StreamExt as _, future, stream};
use ringfence_core::backend::progress::{Listener, Progress, heard_by};
use ringfence_core::sessions::NewSession;
use serde::Serialize;
use std::sync::Arc;
use tokio::sync::mpsc;
use utoipa::ToSchema;

/// Events that wait for a reader; of those that tell how far it is, some may then be missing.
const WAITING: usize = 64;

/// One event of a session that is made.
#[derive(ToSchema)]
#[allow(dead_code, reason = "for the description only")]
pub(crate) struct MakingEvent {
    #[schema(value_type = MakingEventName)]
    event: String,
    /// JSON: of `progress` how far the fetching of the image is; of `done` the session; a
    /// `ProblemBody` of `failure`.
    #[schema(content_media_type = "application/json")]
    data: String,
}

#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[allow(dead_code, reason = "for the description only")]
pub(crate) enum MakingEventName {
    Progress,
    Done,
    Failure,
}

/// Makes a session while its events are read. A reader that goes away takes it along, unless it
/// has a key by which it can be found.
pub(super) fn followed(app: App, new: NewSession) -> Response {
    let act = act::later();
    let (tell, mut told) = mpsc::channel(WAITING);
    let hears = tell.clone();
    let listener: Listener = Arc::new(move |progress: &Progress| {
        let _ = hears.try_send(event("progress", progress));
    });
    let making = async move {
        let making = Box::pin(heard_by(Some(listener), Box::pin(make(&app, new))));
        let made = match &act {
            Some(act) => Arc::clone(act).during(making).await,
            None => making.await,
        };
        if let Some(act) = &act {
            let outcome = match &made {
                Ok(_) => "ok",
                Err(problem) => problem.failure().code.name(),
            };
            act.finished(outcome, None);
        }
        let last = match made {
            Ok((session, _)) => event("done", &session),
            Err(problem) => event("failure", &Problem::into_parts(problem).1),
        };
        let _ = tell.send(last).await;
    };
    let making = stream::once(making).filter_map(|()| future::ready(None));
    let told = stream::poll_fn(move |context| told.poll_recv(context));
    events::response(stream::select(told, making))
}

fn event(name: &'static str, data: &impl Serialize) -> Sse {
    let event = Sse::default().event(name);
    // All of our data can be written as JSON.
    event.json_data(data).unwrap_or_default()
}
