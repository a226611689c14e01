//! Files of the sandbox: every path is resolved beneath a root that the caller chose.

use crate::http::{Answer, Request};
use crate::server::Guest;
use ringfence_proto::{Code, Failure};
use std::sync::Arc;

/// What the file routes remember: the edits that can be undone.
#[derive(Default)]
pub(crate) struct Files {}

pub(crate) async fn route(guest: &Arc<Guest>, request: Request, rest: &[&str]) -> Answer {
    let _ = (&guest.files, &guest.config.workspace, request);
    Err(Failure::new(
        Code::NotFound,
        format!("no such route: /files/{}", rest.join("/")),
    ))
}
