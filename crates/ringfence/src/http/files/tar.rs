//! `/sessions/{session}/tar`: a folder as one archive, in and out, as it comes.

use super::Files;
use super::download;
use super::upload::Sending;
use crate::http::act;
use crate::http::extract::{Path, Query};
use crate::http::problem::{Answer, Problem, ProblemBody};
use crate::http::state::{App, Caller, Scope};
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::header::{self, HeaderValue};
use http::{Method, StatusCode};
use ringfence_core::guest::{full, with_query};
use ringfence_core::proto::{TarQuery, WORKSPACE};
use ringfence_core::{Code, Failure};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use utoipa::IntoParams;

fn dot() -> String {
    ".".to_owned()
}

/// Which folder.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FolderQuery {
    /// Below the workspace.
    #[serde(default = "dot")]
    path: String,
}

impl FolderQuery {
    fn request(&self) -> Result<String, Failure> {
        let query = TarQuery {
            root: WORKSPACE.to_owned(),
            path: self.path.clone(),
        };
        with_query("/files/tar", &query)
    }
}

/// Downloads a folder as a tar archive.
#[utoipa::path(
    get,
    path = "/sessions/{session}/tar",
    tag = "files",
    params(("session" = String, Path), FolderQuery),
    responses(
        (status = 200, body = [u8], content_type = "application/x-tar"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn pack(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FolderQuery>,
) -> Answer<Response> {
    let files = Files::of(&app, &caller, &id, Scope::Read).await?;
    let answer = files
        .guest
        .stream(Method::GET, &query.request()?, full(Bytes::new()))
        .await
        .map_err(|failure| files.refused(failure, &["query", "path"]))?;
    let mut response = Response::new(download::body(files, answer.into_body(), None));
    let headers = response.headers_mut();
    let media = HeaderValue::from_static("application/x-tar");
    headers.insert(header::CONTENT_TYPE, media);
    let inner = query.path.trim_end_matches(['/', '.']);
    let name = inner.rsplit('/').next().filter(|name| !name.is_empty());
    download::attachment(headers, &format!("{}.tar", name.unwrap_or("workspace")));
    Ok(response)
}

/// Unpacks a tar archive into a folder, which is made where it is missing.
#[utoipa::path(
    put,
    path = "/sessions/{session}/tar",
    tag = "files",
    params(("session" = String, Path), FolderQuery),
    request_body(content = Vec<u8>, content_type = "application/x-tar"),
    responses(
        (status = 204),
        (status = 413, description = "over the server's limit", body = ProblemBody),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn unpack(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<FolderQuery>,
    request: Request,
) -> Answer<StatusCode> {
    let files = Files::of(&app, &caller, &id, Scope::Use).await?;
    let limit = app.config.http.max_upload.0;
    let over = || {
        let message = format!("the archive is over {limit} bytes");
        Problem::from(Failure::new(Code::TooLarge, message))
    };
    let mut sending = Some(Sending::begin(&files.guest, query.request()?));
    let mut body = request.into_body().into_data_stream();
    let mut size: u64 = 0;
    let mut sha256 = Sha256::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|e| {
            let failure = Failure::invalid("the body ended early").detail(e);
            Problem::from(failure)
        })?;
        size = size.saturating_add(piece.len() as u64);
        if size > limit {
            // As for a file: the rest is heard out for a while, and goes nowhere.
            sending = None;
            if size > limit.saturating_mul(2) {
                return Err(over());
            }
        }
        if let Some(sending) = &mut sending {
            sha256.update(&piece);
            sending.push(piece).await;
        }
    }
    let sending = sending.ok_or_else(over)?;
    act::hashed(sha256);
    let done = sending.finish().await;
    done.map_err(|failure| files.refused(failure, &["body"]))?;
    Ok(StatusCode::NO_CONTENT)
}
