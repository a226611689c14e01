//! `/sessions/{session}/files`: upload, download and list as the contract has them.

pub(crate) mod download;
pub(crate) mod ids;
pub(crate) mod ops;
mod shapes;
pub(crate) mod tar;
pub(crate) mod upload;

use super::extract::{Path, Query};
use super::problem::{Answer, Problem, ProblemBody};
use super::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use ringfence_core::proto::{Entry, FileKind, ListResult, PathQuery};
use ringfence_core::sessions::Use;
use ringfence_core::{Code, Failure, GuestClient, Session};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Most bytes of what a guest says about a failure.
const MESSAGE: usize = 8 << 10;

/// The files of one session, in use until this is dropped.
pub(crate) struct Files {
    app: App,
    session: Arc<Session>,
    guest: GuestClient,
    _use: Use,
}

impl Files {
    pub(crate) async fn of(app: &App, caller: &Caller, id: &str, scope: Scope) -> Answer<Self> {
        let session = app.session(caller, id, scope).await?;
        let guest = session
            .guest()
            .await
            .map_err(|failure| app.lost(&session, failure))?;
        Ok(Self {
            _use: session.begin(),
            app: app.clone(),
            session,
            guest,
        })
    }

    /// A failure of the guest, with the place in the request that it is about. What only this
    /// server can say is not believed of a guest.
    pub(crate) fn refused(&self, mut failure: Failure, loc: &[&str]) -> Problem {
        if !matches!(
            failure.code,
            Code::InvalidInput
                | Code::NotFound
                | Code::AlreadyExists
                | Code::Forbidden
                | Code::Conflict
                | Code::TooLarge
                | Code::TooMany
                | Code::NoSpace
                | Code::Unavailable
                | Code::DeadlineExceeded
        ) {
            failure.code = Code::Unavailable;
        }
        let end = failure.message.floor_char_boundary(MESSAGE);
        failure.message.truncate(end);
        match failure.code {
            Code::InvalidInput => Problem::at(loc, failure.message, "value_error"),
            _ => self.app.lost(&self.session, failure),
        }
    }
}

/// The media type that a file's name suggests.
pub(crate) fn media_type(name: &str) -> Option<&'static str> {
    mime_guess::from_path(name).first_raw()
}

/// What a file is, in the contract's words.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileInfo {
    /// Below the workspace.
    path: String,
    size_bytes: u64,
    /// Guessed from the name.
    mime_type: Option<&'static str>,
    /// Seconds since the epoch.
    modified_at: f64,
}

impl From<Entry> for FileInfo {
    fn from(entry: Entry) -> Self {
        Self {
            mime_type: media_type(&entry.path),
            size_bytes: entry.size,
            modified_at: entry.modified,
            path: entry.path,
        }
    }
}

/// Files of one folder.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileList {
    files: Vec<FileInfo>,
    /// There are more than are listed in one answer.
    truncated: bool,
}

/// Which folder; what a contract's client sends besides is ignored.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Below the workspace.
    #[serde(default = "dot")]
    path: String,
}

fn dot() -> String {
    ".".to_owned()
}

/// Lists the files directly in a folder, sorted; folders and links are left out.
#[utoipa::path(
    get,
    path = "/sessions/{session}/files/list",
    tag = "files",
    params(("session" = String, Path), ListQuery),
    responses((status = 200, body = FileList), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<ListQuery>,
) -> Answer<Json<FileList>> {
    let files = Files::of(&app, &caller, &id, Scope::Read).await?;
    let query = PathQuery::new(query.path);
    let listed: Result<ListResult, Failure> = files.guest.get("/files/list", &query).await;
    let mut found = match listed {
        Ok(found) => found,
        Err(failure) if failure.code == Code::InvalidInput => {
            // The list of a file is that file.
            match files.guest.get::<Entry>("/files/stat", &query).await {
                Ok(entry) if entry.kind == FileKind::File => ListResult {
                    entries: vec![entry],
                    truncated: false,
                },
                _ => return Err(files.refused(failure, &["query", "path"])),
            }
        }
        Err(failure) => return Err(files.refused(failure, &["query", "path"])),
    };
    found.entries.retain(|entry| entry.kind == FileKind::File);
    found.entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Json(FileList {
        files: found.entries.into_iter().map(FileInfo::from).collect(),
        truncated: found.truncated,
    }))
}
