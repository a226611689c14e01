//! Files of the sandbox: every path is resolved beneath a root that the caller chose.

mod beneath;
mod changed;
mod edit;
mod glob;
mod grep;
mod history;
mod ignored;
mod list;
mod place;
mod read;
mod relocate;
mod remove;
mod tar_in;
mod tar_out;
mod text;
mod tree;
mod walk;
mod whole;
mod write;

#[cfg(test)]
mod tests;

use crate::http::{self, Answer, Request};
use crate::server::Guest;
use ::http::Method;
use beneath::{Resolver, Root};
use bytes::{Bytes, BytesMut};
pub(crate) use changed::Before;
use http_body_util::BodyExt as _;
use ringfence_proto::{
    Code, Copy, EditRequest, Failure, GlobRequest, GrepRequest, Mkdir, Move, PathQuery, ReadQuery,
    TarQuery, WriteQuery,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
pub(crate) use whole::{Whole, read_whole, remove_whole, stream, write_whole};

/// Bytes of a body that are gathered before they are written.
const CHUNK: usize = 256 << 10;

/// Archives that are packed or unpacked at a time. Each holds a thread for as long as its client
/// takes.
pub(crate) const TRANSFERS: usize = 4;

/// Archives that wait for their turn at a time. What their clients have sent meanwhile is held in
/// memory.
const WAITING: usize = 8;

/// How long an archive waits for a client that neither sends nor takes anything.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// What the file routes share.
pub(crate) struct Files {
    resolver: Resolver,
    transfers: Arc<Semaphore>,
    waiting: Semaphore,
    /// The edits that can be undone. Held while one is made, so that no two read the same text and one is lost.
    history: Mutex<history::History>,
}

impl Default for Files {
    fn default() -> Self {
        Self::new(Resolver::detect())
    }
}

impl Files {
    fn new(resolver: Resolver) -> Self {
        Self {
            resolver,
            transfers: Arc::new(Semaphore::new(TRANSFERS)),
            waiting: Semaphore::new(WAITING),
            history: Mutex::default(),
        }
    }

    /// Waits until one more archive may be packed or unpacked.
    async fn transfer(&self) -> Result<OwnedSemaphorePermit, Failure> {
        if let Ok(permit) = Arc::clone(&self.transfers).try_acquire_owned() {
            return Ok(permit);
        }
        let Ok(_waiting) = self.waiting.try_acquire() else {
            return Err(
                Failure::new(Code::TooMany, "too many archives are transferred at once")
                    .hint("wait until some of them are done"),
            );
        };
        let permit = Arc::clone(&self.transfers).acquire_owned().await;
        permit.map_err(|e| Failure::new(Code::Internal, "no archive can be transferred").detail(e))
    }
}

/// Says that nobody waits for the answer any more.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.0.load(Ordering::Relaxed) {
            Err(tree::cancelled())
        } else {
            Ok(())
        }
    }
}

/// Cancels when it is dropped: a client that goes away drops the future of its request.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs work that waits for the disk where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&Cancel) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let guard = CancelOnDrop(Cancel::default());
    let cancel = guard.0.clone();
    tokio::task::spawn_blocking(move || work(&cancel))
        .await
        .map_err(|e| Failure::new(Code::Internal, "a file operation broke off").detail(e))?
}

/// Runs work on the root that the caller chose.
async fn rooted<T: Send + 'static>(
    guest: &Arc<Guest>,
    root: &str,
    work: impl FnOnce(&Root, &Cancel) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (guest, root) = (Arc::clone(guest), root.to_owned());
    blocking(move |cancel| {
        work(
            &Root::choose(&root, &guest.config.workspace, guest.files.resolver)?,
            cancel,
        )
    })
    .await
}

pub(crate) async fn route(guest: &Arc<Guest>, request: Request, rest: &[&str]) -> Answer {
    match (request.method(), rest) {
        (&Method::GET, ["content"]) => {
            let query: ReadQuery = http::query(&request)?;
            let root = query.root.clone();
            let reading = rooted(guest, &root, move |root, _| read::open(root, &query)).await?;
            Ok(reading.answer())
        }
        (&Method::PUT, ["content"]) => put(guest, request).await,
        (&Method::DELETE, []) => {
            let query: PathQuery = http::query(&request)?;
            let root = query.root.clone();
            rooted(guest, &root, move |root, _| relocate::delete(root, &query)).await?;
            http::empty()
        }
        (&Method::POST, ["move"]) => {
            let ask: Move = http::body(request).await?;
            let root = ask.root.clone();
            let work = move |root: &Root, cancel: &Cancel| relocate::rename(root, &ask, cancel);
            http::json(&rooted(guest, &root, work).await?)
        }
        (&Method::POST, ["copy"]) => {
            let ask: Copy = http::body(request).await?;
            let root = ask.root.clone();
            let work = move |root: &Root, cancel: &Cancel| relocate::copy(root, &ask, cancel);
            http::json(&rooted(guest, &root, work).await?)
        }
        (&Method::POST, ["mkdir"]) => {
            let ask: Mkdir = http::body(request).await?;
            let root = ask.root.clone();
            http::json(&rooted(guest, &root, move |root, _| relocate::mkdir(root, &ask)).await?)
        }
        (&Method::GET, ["stat"]) => {
            let query: PathQuery = http::query(&request)?;
            let root = query.root.clone();
            let work = move |root: &Root, _: &Cancel| list::stat(root, &root.path(&query.path)?);
            http::json(&rooted(guest, &root, work).await?)
        }
        (&Method::GET, ["list"]) => {
            let query: PathQuery = http::query(&request)?;
            let root = query.root.clone();
            let work = move |root: &Root, cancel: &Cancel| list::list(root, &query, cancel);
            http::json(&rooted(guest, &root, work).await?)
        }
        (&Method::GET, ["tar"]) => {
            let query: TarQuery = http::query(&request)?;
            let root = query.root.clone();
            let permit = guest.files.transfer().await?;
            let tree = rooted(guest, &root, move |root, _| tar_out::open(root, &query)).await?;
            let body = tar_out::body(tree, IDLE_LIMIT, permit);
            Ok(http::with_type("application/x-tar", body))
        }
        (&Method::PUT, ["tar"]) => {
            let query: TarQuery = http::query(&request)?;
            let root = query.root.clone();
            let permit = guest.files.transfer().await?;
            let (feed, reader) = tar_in::pipe();
            let work = move |root: &Root, _: &Cancel| {
                // Until the thread is free again, also where nobody waits for the answer.
                let _permit = permit;
                tar_in::unpack(root, &query, reader)
            };
            let unpacked = rooted(guest, &root, work);
            let fed = feed.send_all(request.into_body(), IDLE_LIMIT);
            let (unpacked, ()) = tokio::join!(unpacked, fed);
            unpacked?;
            http::empty()
        }
        (&Method::POST, ["glob"]) => {
            let ask: GlobRequest = http::body(request).await?;
            let root = ask.root.clone();
            let work = move |root: &Root, cancel: &Cancel| glob::glob(root, &ask, cancel);
            http::json(&rooted(guest, &root, work).await?)
        }
        (&Method::POST, ["grep"]) => {
            let ask: GrepRequest = http::body(request).await?;
            let root = ask.root.clone();
            let work = move |root: &Root, cancel: &Cancel| grep::grep(root, &ask, cancel);
            http::json(&rooted(guest, &root, work).await?)
        }
        (&Method::POST, ["edit"]) => {
            let ask: EditRequest = http::body(request).await?;
            let (root, files) = (ask.root.clone(), Arc::clone(guest));
            let work = move |root: &Root, _: &Cancel| edit::edit(&files.files.history, root, &ask);
            http::json(&rooted(guest, &root, work).await?)
        }
        (method, _) => {
            let message = format!("no such route: {method} /files/{}", rest.join("/"));
            Err(Failure::new(Code::NotFound, message))
        }
    }
}

/// Writes a body to a file as it comes. Whatever ends this early drops the [`write::Writing`],
/// and with it all that came.
async fn put(guest: &Arc<Guest>, request: Request) -> Answer {
    let query: WriteQuery = http::query(&request)?;
    let root = query.root.clone();
    let mut writing = rooted(guest, &root, move |root, _| write::begin(root, &query)).await?;
    let mut body = request.into_body();
    let mut gathered = BytesMut::new();
    loop {
        let frame = body.frame().await.transpose();
        let frame = frame.map_err(|e| Failure::invalid("the body ended early").detail(e))?;
        let ended = frame.is_none();
        if let Some(data) = frame.and_then(|f| f.into_data().ok()) {
            gathered.extend_from_slice(&data);
        }
        if gathered.len() >= CHUNK || (ended && !gathered.is_empty()) {
            let bytes: Bytes = gathered.split().freeze();
            writing = blocking(move |_| writing.write(&bytes).map(|()| writing)).await?;
        }
        if ended {
            return http::json(&blocking(move |_| writing.finish()).await?);
        }
    }
}
