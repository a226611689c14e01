//! `/files/{file_id}`: files that calls made, by the ids in their results, in the shapes of the
//! vendor's files API.

use super::{Files, download, media_type};
use crate::http::extract::Path;
use crate::http::problem::{Answer, Problem, ProblemBody};
use crate::http::state::{App, Caller, Scope};
use axum::Json;
use axum::extract::{Extension, State};
use axum::response::Response;
use http::header::HeaderMap;
use ringfence_core::proto::{Entry, FileKind, PathQuery};
use ringfence_core::{Code, Failure, FileId};
use serde::Serialize;
use utoipa::ToSchema;

/// What a file is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileMetadata {
    id: String,
    /// Always `file`.
    #[serde(rename = "type")]
    kind: &'static str,
    filename: String,
    mime_type: &'static str,
    size_bytes: u64,
    /// When it was last written, as in RFC 3339.
    #[schema(format = DateTime)]
    created_at: String,
    downloadable: bool,
    scope: FileScope,
}

/// What a file belongs to.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileScope {
    /// Always `session`.
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
}

/// A file that is no more.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DeletedFile {
    id: String,
    /// Always `file_deleted`.
    #[serde(rename = "type")]
    kind: &'static str,
}

/// An id that names nothing, be it badly written, of a session that has ended, of somebody else's,
/// or of a file that is gone: all the same to the caller.
fn unknown(text: &str) -> Problem {
    let shown: String = text.chars().take(64).collect();
    let message = format!("there is no file {shown}");
    Failure::new(Code::NotFound, message)
        .hint("files go with the session that made them")
        .into()
}

async fn find(app: &App, caller: &Caller, text: &str, scope: Scope) -> Answer<(FileId, Files)> {
    let id = FileId::parse(text).ok_or_else(|| unknown(text))?;
    let session = id.session().as_str();
    match Files::of(app, caller, session, scope).await {
        Ok(files) => {
            crate::http::act::about(id.session());
            Ok((id, files))
        }
        Err(problem) if problem.failure().code == Code::NotFound => Err(unknown(text)),
        Err(problem) => Err(problem),
    }
}

/// The file as it is now; a link or a folder of its name is not it.
async fn look(id: &FileId, files: &Files, text: &str) -> Answer<Entry> {
    let query = PathQuery::new(id.path());
    match files.guest.get::<Entry>("/files/stat", &query).await {
        Ok(entry) if entry.kind == FileKind::File => Ok(entry),
        Ok(_) => Err(unknown(text)),
        Err(failure) if failure.code == Code::NotFound && !files.session.is_closing() => {
            Err(unknown(text))
        }
        Err(failure) => Err(files.refused(failure, &["path", "file_id"])),
    }
}

/// What a file is that a call made.
#[utoipa::path(
    get,
    path = "/files/{file_id}",
    tag = "files",
    params(("file_id" = String, Path)),
    responses((status = 200, body = FileMetadata), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn metadata(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(text): Path<String>,
) -> Answer<Json<FileMetadata>> {
    let (id, files) = find(&app, &caller, &text, Scope::Read).await?;
    let entry = look(&id, &files, &text).await?;
    Ok(Json(FileMetadata {
        kind: "file",
        filename: id.name().to_owned(),
        mime_type: media_type(id.name()).unwrap_or("application/octet-stream"),
        size_bytes: entry.size,
        created_at: rfc3339(entry.modified),
        downloadable: true,
        scope: FileScope {
            kind: "session",
            id: id.session().to_string(),
        },
        id: text,
    }))
}

/// The bytes of a file that a call made.
#[utoipa::path(
    get,
    path = "/files/{file_id}/content",
    tag = "files",
    params(("file_id" = String, Path)),
    responses(
        (status = 200, description = "the bytes", body = [u8], content_type = "*/*"),
        (status = 206, description = "the bytes of the range", body = [u8], content_type = "*/*"),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn content(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(text): Path<String>,
    headers: HeaderMap,
) -> Answer<Response> {
    let (id, files) = find(&app, &caller, &text, Scope::Read).await?;
    look(&id, &files, &text).await?;
    download::send(files, id.path(), &headers).await
}

/// Deletes a file that a call made.
#[utoipa::path(
    delete,
    path = "/files/{file_id}",
    tag = "files",
    params(("file_id" = String, Path)),
    responses((status = 200, body = DeletedFile), (status = "4XX", body = ProblemBody))
)]
pub(crate) async fn remove(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(text): Path<String>,
) -> Answer<Json<DeletedFile>> {
    let (id, files) = find(&app, &caller, &text, Scope::Use).await?;
    look(&id, &files, &text).await?;
    files.delete(id.path().to_owned(), false).await?;
    Ok(Json(DeletedFile {
        id: text,
        kind: "file_deleted",
    }))
}

/// A time as RFC 3339 writes it, in UTC and whole seconds. A guest may say any time: those that
/// the form has no room for become the nearest that it has.
fn rfc3339(seconds: f64) -> String {
    const LAST: f64 = 253_402_300_799.0; // the end of the year 9999
    let seconds = seconds.clamp(0.0, LAST) as u64;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from the first of March, so that the day that comes and goes is the last.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest % 3600 / 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
            (1_709_251_199.9, "2024-02-29T23:59:59Z"),
            (1_735_689_600.0, "2025-01-01T00:00:00Z"),
            (-5.0, "1970-01-01T00:00:00Z"),
            (f64::MAX, "9999-12-31T23:59:59Z"),
            (f64::NAN, "1970-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
