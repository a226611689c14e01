//! `POST /sessions/{session}/files`: a form with a file, sent on to the guest as it comes.
//!
//! The guest puts a file in its place when its body has ended well, and not before: whatever
//! breaks off leaves nothing behind.

use super::Files;
use crate::http::act;
use crate::http::extract::Path;
use crate::http::problem::{Answer, Problem, ProblemBody};
use crate::http::state::{App, Caller, Scope};
use axum::Json;
use axum::body::BodyDataStream;
use axum::extract::{Extension, Request, State};
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use http::{Method, StatusCode, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use multer::{Field, Multipart};
use ringfence_core::guest::{GuestClient, read_json, with_query};
use ringfence_core::proto::{Entry, FileKind, Move, PathQuery, WORKSPACE, WriteQuery};
use ringfence_core::{Code, Failure, random_hex};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use utoipa::ToSchema;

/// Bytes of a form that are not its file: boundaries, headers, the path.
const FORM: u64 = 1 << 20;

/// Bytes of a file that wait here for the form to say where they go.
const WAITING: usize = 256 << 10;

/// The longest path, and the longest name in it, that Linux takes.
const PATH: usize = 4095;
const NAME: usize = 255;

/// How long a guest may take over a file whose last byte it has.
const SETTLE: Duration = Duration::from_secs(120);

/// A file on its way to a guest. Dropped before its end, it is as if it had never begun.
pub(super) struct Sending {
    feed: Option<mpsc::Sender<Piece>>,
    answer: Pin<Box<dyn Future<Output = Result<http::Response<Incoming>, Failure>> + Send>>,
    /// The guest's answer, where it came before the end.
    early: Option<Result<http::Response<Incoming>, Failure>>,
}

enum Piece {
    Data(Bytes),
    End,
}

impl Sending {
    pub(super) fn begin(guest: &GuestClient, path: String) -> Self {
        let (feed, pieces) = mpsc::channel(2);
        let frames = futures_util::stream::unfold(Some(pieces), |pieces| async {
            let mut pieces: mpsc::Receiver<Piece> = pieces?;
            match pieces.recv().await {
                Some(Piece::Data(data)) => Some((Ok(Frame::data(data)), Some(pieces))),
                Some(Piece::End) => None,
                // Ending in peace would make half a file a whole one.
                None => Some((Err(std::io::Error::other("the upload broke off")), None)),
            }
        });
        let body = StreamBody::new(frames).boxed_unsync();
        let guest = guest.clone();
        Self {
            feed: Some(feed),
            answer: Box::pin(async move { guest.stream(Method::PUT, &path, body).await }),
            early: None,
        }
    }

    /// Sends a piece. After an early answer pieces go nowhere: whoever sends them gets it at the
    /// end.
    pub(super) async fn push(&mut self, data: Bytes) {
        let Some(feed) = &self.feed else {
            return;
        };
        tokio::select! {
            answer = &mut self.answer => {
                self.early = Some(answer);
                self.feed = None;
            }
            _ = feed.send(Piece::Data(data)) => {}
        }
    }

    pub(super) async fn finish(mut self) -> Result<http::Response<Incoming>, Failure> {
        if let Some(early) = self.early {
            return early;
        }
        let end = async {
            if let Some(feed) = self.feed.take() {
                // One who has answered already takes nothing more.
                let _ = feed.send(Piece::End).await;
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = end => Err(Failure::new(Code::Internal, "an upload has two ends")),
            answer = tokio::time::timeout(SETTLE, &mut self.answer) => answer.unwrap_or_else(|_| {
                let message = "the sandbox did not put the file in its place in time";
                Err(Failure::new(Code::Unavailable, message))
            }),
        }
    }
}

/// A body that hands its reader one piece at a time, and breaks when the reader takes too many
/// without making anything of them: a form's parser would else hold a header of any size.
struct Paced {
    body: BodyDataStream,
    meter: Arc<Meter>,
    pause: bool,
}

#[derive(Default)]
struct Meter {
    passed: AtomicU64,
    used: AtomicU64,
}

impl Meter {
    /// What has passed was understood.
    fn use_all(&self) {
        self.used
            .store(self.passed.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Stream for Paced {
    type Item = Result<Bytes, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if std::mem::take(&mut self.pause) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = match Pin::new(&mut self.body).poll_next(cx) {
            Poll::Ready(Some(Ok(piece))) => piece,
            Poll::Ready(Some(Err(e))) => {
                let failure = Failure::invalid("the body ended early").detail(e);
                return Poll::Ready(Some(Err(failure)));
            }
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => return Poll::Pending,
        };
        self.pause = true;
        let length = piece.len() as u64;
        let passed = self.meter.passed.fetch_add(length, Ordering::Relaxed) + length;
        if passed - self.meter.used.load(Ordering::Relaxed) > FORM {
            let failure = Failure::invalid("the form has too much in it that is no file");
            return Poll::Ready(Some(Err(failure)));
        }
        Poll::Ready(Some(Ok(piece)))
    }
}

/// A form that could not be read.
fn unread(error: multer::Error) -> Problem {
    let message = match &error {
        multer::Error::StreamReadFailed(cause) => match cause.downcast_ref::<Failure>() {
            Some(failure) => failure.message.clone(),
            None => "the body ended early".to_owned(),
        },
        multer::Error::IncompleteFieldData { .. }
        | multer::Error::IncompleteHeaders
        | multer::Error::IncompleteStream => "the body ended early".to_owned(),
        other => format!("not a form: {other}"),
    };
    Problem::at(&["body"], message, "value_error")
}

/// Where a file has got to.
enum Place {
    /// In memory: it is small, or has only begun.
    Here(BytesMut),
    /// On its way to where the form said, before the file came.
    There(Sending),
    /// On its way to a name of its own, until the form says where it goes.
    Aside(Sending, String),
}

struct Received {
    place: Place,
    size: u64,
    sha256: Sha256,
    name: Option<String>,
}

/// A form as it is read.
struct Form<'a> {
    files: &'a Files,
    limit: u64,
    meter: Arc<Meter>,
    path: Option<String>,
    file: Option<Received>,
    too_large: bool,
}

impl Form<'_> {
    async fn read(&mut self, mut parts: Multipart<'_>) -> Answer<()> {
        while let Some(mut part) = parts.next_field().await.map_err(unread)? {
            self.meter.use_all();
            match part.name() {
                Some("path") if self.path.is_none() => {
                    self.path = Some(self.read_path(&mut part).await?);
                }
                Some("file") if self.file.is_none() => {
                    self.read_file(&mut part).await?;
                }
                Some(name @ ("path" | "file")) => {
                    let name = name.to_owned();
                    let message = "one is enough";
                    return Err(Problem::at(&["body", &name], message, "value_error"));
                }
                // What a contract's client sends besides is ignored.
                _ => while part.chunk().await.map_err(unread)?.is_some() {},
            }
        }
        Ok(())
    }

    async fn read_path(&mut self, part: &mut Field<'_>) -> Answer<String> {
        let bad = |message: &str| Problem::at(&["body", "path"], message, "value_error");
        let mut bytes = Vec::new();
        while let Some(piece) = part.chunk().await.map_err(unread)? {
            self.meter.use_all();
            bytes.extend_from_slice(&piece);
            if bytes.len() > PATH {
                return Err(bad("the path is too long"));
            }
        }
        match String::from_utf8(bytes) {
            Ok(path) if path.is_empty() => Err(bad("the path is empty")),
            Ok(path) => Ok(path),
            Err(_) => Err(bad("the path is not UTF-8")),
        }
    }

    async fn read_file(&mut self, part: &mut Field<'_>) -> Answer<()> {
        let place = match &self.path {
            Some(path) => Place::There(self.send_to(path)?),
            None => Place::Here(BytesMut::new()),
        };
        let mut file = Received {
            place,
            size: 0,
            sha256: Sha256::new(),
            name: part.file_name().map(str::to_owned),
        };
        while let Some(piece) = part.chunk().await.map_err(unread)? {
            self.meter.use_all();
            file.size += piece.len() as u64;
            if file.size > self.limit {
                // What has come goes at once. The rest is heard out for a while: many clients
                // read no answer before they have sent everything.
                file.place = Place::Here(BytesMut::new());
                self.too_large = true;
                if file.size > self.limit.saturating_mul(2) {
                    return Err(over(self.limit));
                }
                continue;
            }
            file.sha256.update(&piece);
            match &mut file.place {
                Place::There(sending) | Place::Aside(sending, _) => sending.push(piece).await,
                Place::Here(bytes) if bytes.len() + piece.len() <= WAITING => {
                    bytes.extend_from_slice(&piece);
                }
                Place::Here(bytes) => {
                    let begun = std::mem::take(bytes).freeze();
                    let aside = format!(".ringfence-{}.tmp", random_hex::<16>()?);
                    let mut sending = self.send_to(&aside)?;
                    sending.push(begun).await;
                    sending.push(piece).await;
                    file.place = Place::Aside(sending, aside);
                }
            }
        }
        self.file = Some(file);
        Ok(())
    }

    fn send_to(&self, path: &str) -> Answer<Sending> {
        let query = WriteQuery::new(path);
        let path = with_query("/files/content", &query)?;
        Ok(Sending::begin(&self.files.guest, path))
    }
}

fn over(limit: u64) -> Problem {
    Failure::new(Code::TooLarge, format!("the file is over {limit} bytes")).into()
}

/// The last part of the name that the client's file had.
fn base(name: &str) -> Option<&str> {
    let name = name.rsplit(['/', '\\']).next()?;
    let fits = (1..=NAME).contains(&name.len()) && name != "." && name != "..";
    (fits && !name.chars().any(char::is_control)).then_some(name)
}

/// Where an uploaded file is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Uploaded {
    /// Below the workspace.
    path: String,
    size_bytes: u64,
}

/// A form with a file.
#[derive(ToSchema)]
#[allow(
    dead_code,
    reason = "for the documentation only: a form is read as it comes"
)]
pub(crate) struct UploadForm {
    #[schema(value_type = String, format = Binary)]
    file: Vec<u8>,
    /// Where it goes; the file's own name when absent.
    #[schema(max_length = 4095)]
    path: Option<String>,
}

/// Uploads a file. Folders that lead to it are made; what was there is replaced in one step.
#[utoipa::path(
    post,
    path = "/sessions/{session}/files",
    tag = "files",
    params(("session" = String, Path)),
    request_body(content = UploadForm, content_type = "multipart/form-data"),
    responses(
        (status = 201, body = Uploaded),
        (status = 413, description = "over the server's limit", body = ProblemBody),
        (status = "4XX", body = ProblemBody),
    )
)]
pub(crate) async fn upload(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Answer<(StatusCode, Json<Uploaded>)> {
    let files = Files::of(&app, &caller, &id, Scope::Use).await?;
    let limit = app.config.http.max_upload.0;
    let (parts, body) = request.into_parts();
    let header = |name| parts.headers.get(name)?.to_str().ok();
    let declared = header(header::CONTENT_LENGTH).and_then(|text| text.parse::<u64>().ok());
    let waits = parts.headers.contains_key(header::EXPECT);
    if waits && declared.is_some_and(|declared| declared > limit.saturating_add(FORM)) {
        return Err(over(limit));
    }
    let missing = || Problem::at(&["body", "file"], "field required", "missing");
    let boundary = header(header::CONTENT_TYPE)
        .and_then(|media| multer::parse_boundary(media).ok())
        .ok_or_else(missing)?;
    let meter = Arc::new(Meter::default());
    let paced = Paced {
        body: body.into_data_stream(),
        meter: Arc::clone(&meter),
        pause: false,
    };
    let mut form = Form {
        files: &files,
        limit,
        meter,
        path: None,
        file: None,
        too_large: false,
    };
    form.read(Multipart::new(paced, boundary)).await?;
    if form.too_large {
        return Err(over(limit));
    }
    let (path, file) = (form.path, form.file.ok_or_else(missing)?);
    let path = match (path, file.name.as_deref().map(base)) {
        (Some(path), _) => path,
        (None, Some(Some(name))) => name.to_owned(),
        (None, _) => {
            let message = "field required: the file has no name that could be used";
            return Err(Problem::at(&["body", "path"], message, "missing"));
        }
    };
    // A caller that goes away now has sent all of it: a file aside is not left there.
    let size_bytes = file.size;
    act::hashed(file.sha256);
    let settled = tokio::spawn(async move {
        settle(&files.guest, file.place, &path)
            .await
            .map_err(|failure| files.refused(failure, &["body", "path"]))
    });
    let entry = settled
        .await
        .map_err(|e| Failure::new(Code::Internal, "an upload broke off").detail(e))??;
    let uploaded = Uploaded {
        path: entry.path,
        size_bytes,
    };
    Ok((StatusCode::CREATED, Json(uploaded)))
}

/// The form has ended well: the file takes its place.
async fn settle(guest: &GuestClient, place: Place, path: &str) -> Result<Entry, Failure> {
    let (sending, aside) = match place {
        Place::Here(bytes) => return guest.write(&WriteQuery::new(path), bytes.freeze()).await,
        Place::There(sending) => return read_json(sending.finish().await?).await,
        Place::Aside(sending, aside) => (sending, aside),
    };
    // Said before the file is made; a folder would be moved out of the way.
    let there = guest
        .get::<Entry>("/files/stat", &PathQuery::new(path))
        .await;
    match there {
        Ok(entry) if matches!(entry.kind, FileKind::File | FileKind::Symlink) => {}
        Ok(_) => {
            let message = format!("cannot write {path}: it is not a regular file");
            return Err(Failure::invalid(message));
        }
        Err(failure) if failure.code == Code::NotFound => {}
        Err(failure) => return Err(failure),
    }
    sending.finish().await?;
    let request = Move {
        root: WORKSPACE.to_owned(),
        from: aside.clone(),
        to: path.to_owned(),
        overwrite: true,
    };
    let moved = guest.post("/files/move", &request).await;
    if moved.is_err() {
        let left = with_query("/files", &PathQuery::new(aside))?;
        let _ = guest.tell(Method::DELETE, &left, &()).await;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_last_part_of_it() {
        let long = "x".repeat(256);
        for (given, name) in [
            ("a.csv", Some("a.csv")),
            ("../../a.csv", Some("a.csv")),
            ("C:\\temp\\a.csv", Some("a.csv")),
            ("..", None),
            ("a/", None),
            ("", None),
            ("a\0b", None),
            ("a\nb", None),
            (long.as_str(), None),
        ] {
            assert_eq!(base(given), name, "{given:?}");
        }
    }
}
