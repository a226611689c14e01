//! The daemon of the HasteKit contract: commands and files of one sandbox, for clients that know
//! nothing else. It stands alone on TCP, or is reached by the host below `/daemon`.

mod exec;
mod files;
mod settings;

pub(crate) use settings::DaemonSettings;

use crate::http::{self, Answer, Request};
use crate::server::Guest;
use ::http::Method;
use ringfence_proto::{Code, Failure};
use std::sync::Arc;

/// Answers a request; `path` is that of the contract, as it was encoded.
pub(crate) async fn route(guest: &Arc<Guest>, request: Request, path: &str) -> Answer {
    match (request.method(), path) {
        (&Method::GET, "/health") => Ok(http::with_type("text/plain", http::full("ok"))),
        (&Method::POST, "/exec/bash") => exec::bash(guest, request).await,
        (&Method::POST, "/exec/python") => exec::python(guest, request).await,
        (method, _) => match path.strip_prefix("/files/") {
            Some(file) => files::route(guest, request, file).await,
            None => Err(nothing(method, path)),
        },
    }
}

fn nothing(method: &Method, path: &str) -> Failure {
    Failure::new(Code::NotFound, format!("no such route: {method} {path}"))
        .hint("POST /exec/bash or /exec/python; GET, POST or DELETE /files/PATH; GET /health")
}
