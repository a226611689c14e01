//! Files beyond the contract: look, delete, move, copy, find, search, edit.

use super::Files;
use super::shapes::{
    DeleteQuery, EditBody, Edited, Entries, EntryObject, Found, FromTo, GlobBody, GrepBody,
    MkdirBody, StatQuery, TreeQuery,
};
use crate::http::extract::{Body, Path, Query};
use crate::http::problem::{Answer, ProblemBody};
use crate::http::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use http::{Method, StatusCode};
use ringfence_core::guest::with_query;
use ringfence_core::proto::{
    Copy, EditRequest, EditResult, Entry, GlobRequest, GlobResult, GrepRequest, GrepResult,
    ListResult, Mkdir, Move, PathQuery,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

impl Files {
    async fn post<T: DeserializeOwned>(&self, path: &str, ask: &impl Serialize) -> Answer<T> {
        let answer = self.guest.post(path, ask).await;
        answer.map_err(|failure| self.refused(failure, &["body"]))
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Answer<T> {
        let answer = self.guest.get(path, query).await;
        answer.map_err(|failure| self.refused(failure, &["query", "path"]))
    }
}

/// What is at a path; a link is not followed.
#[utoipa::path(
    get,
    path = "/sessions/{session}/files/stat",
    tag = "files",
    params(("session" = String, Path), StatQuery),
    responses((status = 200, body = EntryObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn stat(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<StatQuery>,
) -> Answer<Json<EntryObject>> {
    let files = Files::of(&app, &caller, &id, Scope::Read).await?;
    let query = PathQuery::new(query.path);
    let entry: Entry = files.get("/files/stat", &query).await?;
    Ok(Json(entry.into()))
}

/// Lists a folder with its folders and links, and on request all that is below.
#[utoipa::path(
    get,
    path = "/sessions/{session}/files/tree",
    tag = "files",
    params(("session" = String, Path), TreeQuery),
    responses((status = 200, body = Entries), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn tree(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<TreeQuery>,
) -> Answer<Json<Entries>> {
    let files = Files::of(&app, &caller, &id, Scope::Read).await?;
    let query = PathQuery {
        recursive: query.recursive,
        depth: query.depth,
        ..PathQuery::new(query.path)
    };
    let found: ListResult = files.get("/files/list", &query).await?;
    Ok(Json(Entries::of(found.entries, found.truncated)))
}

/// Deletes a file, a link, an empty folder, or on request a folder with all that is in it.
#[utoipa::path(
    delete,
    path = "/sessions/{session}/files",
    tag = "files",
    params(("session" = String, Path), DeleteQuery),
    responses((status = 204), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn delete(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<DeleteQuery>,
) -> Answer<StatusCode> {
    let files = Files::of(&app, &caller, &id, Scope::Use).await?;
    files.delete(query.path, query.recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Files {
    pub(super) async fn delete(&self, path: String, recursive: bool) -> Answer<()> {
        let query = PathQuery {
            recursive,
            ..PathQuery::new(path)
        };
        let path = with_query("/files", &query)?;
        let told = self.guest.tell(Method::DELETE, &path, &()).await;
        told.map_err(|failure| self.refused(failure, &["query", "path"]))
    }
}

/// Moves a file or a folder; folders that lead to its new place are made.
#[utoipa::path(
    post,
    path = "/sessions/{session}/files/move",
    tag = "files",
    params(("session" = String, Path)),
    request_body = FromTo,
    responses((status = 200, body = EntryObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn relocate(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<FromTo>,
) -> Answer<Json<EntryObject>> {
    let files = Files::of(&app, &caller, &id, Scope::Use).await?;
    let entry: Entry = files.post("/files/move", &Move::from(body)).await?;
    Ok(Json(entry.into()))
}

/// Copies a file, or a folder with all that is in it.
#[utoipa::path(
    post,
    path = "/sessions/{session}/files/copy",
    tag = "files",
    params(("session" = String, Path)),
    request_body = FromTo,
    responses((status = 200, body = EntryObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn copy(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<FromTo>,
) -> Answer<Json<EntryObject>> {
    let files = Files::of(&app, &caller, &id, Scope::Use).await?;
    let entry: Entry = files.post("/files/copy", &Copy::from(body)).await?;
    Ok(Json(entry.into()))
}

/// Makes a folder and those that lead to it; one that is there is no error.
#[utoipa::path(
    post,
    path = "/sessions/{session}/files/mkdir",
    tag = "files",
    params(("session" = String, Path)),
    request_body = MkdirBody,
    responses((status = 200, body = EntryObject), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn mkdir(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<MkdirBody>,
) -> Answer<Json<EntryObject>> {
    let files = Files::of(&app, &caller, &id, Scope::Use).await?;
    let entry: Entry = files.post("/files/mkdir", &Mkdir::from(body)).await?;
    Ok(Json(entry.into()))
}

/// Finds files and folders by a pattern of their paths.
#[utoipa::path(
    post,
    path = "/sessions/{session}/files/glob",
    tag = "files",
    params(("session" = String, Path)),
    request_body = GlobBody,
    responses((status = 200, body = Entries), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn glob(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<GlobBody>,
) -> Answer<Json<Entries>> {
    let files = Files::of(&app, &caller, &id, Scope::Read).await?;
    let found: GlobResult = files.post("/files/glob", &GlobRequest::from(body)).await?;
    Ok(Json(Entries::of(found.entries, found.truncated)))
}

/// Searches texts for an expression.
#[utoipa::path(
    post,
    path = "/sessions/{session}/files/grep",
    tag = "files",
    params(("session" = String, Path)),
    request_body = GrepBody,
    responses((status = 200, body = Found), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn grep(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<GrepBody>,
) -> Answer<Json<Found>> {
    let files = Files::of(&app, &caller, &id, Scope::Read).await?;
    let found: GrepResult = files.post("/files/grep", &GrepRequest::from(body)).await?;
    Ok(Json(found.into()))
}

/// Edits a text: replaces, inserts, patches, or takes the last edit back.
#[utoipa::path(
    post,
    path = "/sessions/{session}/files/edit",
    tag = "files",
    params(("session" = String, Path)),
    request_body = EditBody,
    responses((status = 200, body = Edited), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn edit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(body): Body<EditBody>,
) -> Answer<Json<Edited>> {
    let files = Files::of(&app, &caller, &id, Scope::Use).await?;
    let edited: EditResult = files.post("/files/edit", &EditRequest::from(body)).await?;
    Ok(Json(edited.into()))
}
