//! `GET /sessions/{session}/files`: a file, or a range of it, as it comes from the guest.

use super::{Files, media_type};
use crate::http::extract::{Path, Query};
use crate::http::problem::{Answer, Problem, ProblemBody};
use crate::http::state::{App, Caller, Scope};
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use ringfence_core::guest::{full, with_query};
use ringfence_core::proto::ReadQuery;
use ringfence_core::{Code, Failure};
use serde::Deserialize;
use std::time::Duration;
use utoipa::IntoParams;

/// How long a guest may take to answer, and between two pieces of what it sends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which file; what a contract's client sends besides is ignored.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct DownloadQuery {
    /// Below the workspace.
    path: String,
}

/// Downloads a file. Its type is guessed from its name; a `Range` of bytes may be asked for.
#[utoipa::path(
    get,
    path = "/sessions/{session}/files",
    tag = "files",
    params(("session" = String, Path), DownloadQuery),
    responses(
        (status = 200, description = "the bytes", body = [u8], content_type = "*/*"),
        (status = 206, description = "the bytes of the range", body = [u8], content_type = "*/*"),
        (status = 400, description = "it is a folder, or no file at all", body = ProblemBody),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn download(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(query): Query<DownloadQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let files = Files::of(&app, &caller, &id, Scope::Read).await?;
    send(files, &query.path, &headers).await
}

/// An open file of a guest.
struct Opened {
    /// Of the whole file; some have none before they are read.
    size: Option<u64>,
    body: Incoming,
}

async fn open(files: &Files, query: &ReadQuery) -> Result<Opened, Failure> {
    let path = with_query("/files/content", query)?;
    let asked = files.guest.stream(Method::GET, &path, full(Bytes::new()));
    let answer = tokio::time::timeout(PATIENCE, asked).await.map_err(|_| {
        let message = format!("cannot read {}: the sandbox did not answer", query.path);
        Failure::new(Code::Unavailable, message)
    })??;
    let size = answer
        .headers()
        .get("x-ringfence-size")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    Ok(Opened {
        size,
        body: answer.into_body(),
    })
}

/// The answer to a request for a file's bytes.
pub(super) async fn send(files: Files, path: &str, headers: &HeaderMap) -> Answer<Response> {
    let refused = |failure: Failure| match failure.code {
        // A folder, a fifo, a path that can't be: the contract has one status for what is no file.
        Code::InvalidInput => Problem::sentence(failure).with_status(StatusCode::BAD_REQUEST),
        _ => files.refused(failure, &["query", "path"]),
    };
    let range = match asked_range(headers) {
        None => None,
        Some(range) => {
            let probe = ReadQuery {
                length: Some(0),
                ..ReadQuery::new(path)
            };
            match open(&files, &probe).await.map_err(refused)?.size {
                // Of what has no size there are no ranges.
                None => None,
                Some(size) => match range.of(size) {
                    Some(part) => Some(part),
                    None => return Ok(unsatisfiable(size)),
                },
            }
        }
    };
    let (offset, length) = range.unwrap_or((0, u64::MAX));
    let query = ReadQuery {
        offset,
        length: range.map(|(_, length)| length),
        ..ReadQuery::new(path)
    };
    let opened = open(&files, &query).await.map_err(refused)?;
    let left = opened
        .size
        .map(|size| size.saturating_sub(offset).min(length));
    let mut response = Response::new(body(files, opened.body, left));
    describe(response.headers_mut(), path);
    if let Some(left) = left {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, left.into());
    }
    if let (Some(_), Some(size), Some(left @ 1..)) = (range, opened.size, left) {
        let text = format!("bytes {offset}-{}/{size}", offset + left - 1);
        if let Ok(value) = HeaderValue::from_str(&text) {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            response.headers_mut().insert(header::CONTENT_RANGE, value);
        }
    }
    Ok(response)
}

/// What the bytes are. They are somebody else's: no browser runs them as a page of this server.
fn describe(headers: &mut HeaderMap, path: &str) {
    let media = media_type(path).unwrap_or("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    attachment(headers, path);
}

/// Named after the last part of a path, and not to be shown in place.
pub(super) fn attachment(headers: &mut HeaderMap, path: &str) {
    let name = path.rsplit('/').next().unwrap_or(path);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    let name: String = name
        .bytes()
        .map(|b| match plain(b) {
            true => char::from(b).to_string(),
            false => format!("%{b:02X}"),
        })
        .collect();
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{name}")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("sandbox"),
    );
}

/// The bytes as they come; the session is in use until they end. `left` is what was promised.
pub(super) fn body(files: Files, incoming: Incoming, left: Option<u64>) -> Body {
    let start = Some((files, incoming, left));
    let pieces = futures_util::stream::unfold(start, |state| async {
        let (files, mut incoming, left) = state.filter(|(_, _, left)| *left != Some(0))?;
        let broken = |what: &str| Some((Err(std::io::Error::other(what.to_owned())), None));
        loop {
            let frame = match tokio::time::timeout(PATIENCE, incoming.frame()).await {
                Err(_) => return broken("the sandbox stopped sending"),
                Ok(None) if left.is_some() => return broken("the file became shorter"),
                Ok(None) => return None,
                Ok(Some(Err(e))) => return Some((Err(std::io::Error::other(e)), None)),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(mut data) = frame.into_data() else {
                continue;
            };
            if let Some(left) = left {
                data.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            }
            let left = left.map(|left| left - data.len() as u64);
            return Some((Ok(data), Some((files, incoming, left))));
        }
    });
    Body::from_stream(pieces)
}

fn unsatisfiable(size: u64) -> Response {
    use axum::response::IntoResponse as _;
    let message = format!("the range is outside of the file, which has {size} bytes");
    let mut response = Problem::sentence(Failure::invalid(message))
        .with_status(StatusCode::RANGE_NOT_SATISFIABLE)
        .into_response();
    if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
        response.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    response
}

/// One range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Range {
    /// From here to there, both included, or to the end.
    From(u64, Option<u64>),
    /// The last so many.
    Last(u64),
}

/// The one range that is asked for. Several, other units and nonsense are answered with all of
/// it, as is a range that depends on a state of the file, which has no name here.
fn asked_range(headers: &HeaderMap) -> Option<Range> {
    if headers.contains_key(header::IF_RANGE) {
        return None;
    }
    let text = headers.get(header::RANGE)?.to_str().ok()?;
    let (first, last) = text.strip_prefix("bytes=")?.trim().split_once('-')?;
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<u64>().ok(),
        false => None,
    };
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        (true, false) => Some(Range::Last(number(last)?)),
        (false, true) => Some(Range::From(number(first)?, None)),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(Range::From(first, Some(last)))
        }
    }
}

impl Range {
    /// Where it starts and how long it is; none when nothing of it is in the file.
    fn of(self, size: u64) -> Option<(u64, u64)> {
        let (start, end) = match self {
            Self::From(first, last) => (first, last.map_or(size, |last| last.saturating_add(1))),
            Self::Last(count) => (size.saturating_sub(count), size),
        };
        let end = end.min(size);
        (start < end).then(|| (start, end - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Option<Range> {
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, text.parse().unwrap());
        asked_range(&headers)
    }

    #[test]
    fn ranges_are_read_as_the_standard_has_them() {
        assert_eq!(asked("bytes=0-4"), Some(Range::From(0, Some(4))));
        assert_eq!(asked("bytes=5-"), Some(Range::From(5, None)));
        assert_eq!(asked("bytes=-3"), Some(Range::Last(3)));
        for all in [
            "bytes=0-1,3-4",
            "bytes=4-2",
            "lines=1-2",
            "bytes=-",
            "bytes=+1-2",
            "0-4",
        ] {
            assert_eq!(asked(all), None, "{all}");
        }
    }

    #[test]
    fn ranges_end_where_the_file_does() {
        assert_eq!(Range::From(2, Some(99)).of(10), Some((2, 8)));
        assert_eq!(Range::From(2, Some(u64::MAX)).of(10), Some((2, 8)));
        assert_eq!(Range::Last(99).of(10), Some((0, 10)));
        assert_eq!(Range::From(10, None).of(10), None);
        assert_eq!(Range::Last(0).of(10), None);
        assert_eq!(Range::From(0, None).of(0), None);
    }
}
