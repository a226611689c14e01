//! Whole files of the workspace, by the name that the workspace has in the sandbox.

use super::beneath::Root;
use super::{Cancel, read, relocate, rooted, write};
use crate::exec;
use crate::http::Answer;
use crate::server::Guest;
use ringfence_proto::{Failure, PathQuery, ReadQuery, WriteQuery};
use std::io::Read as _;
use std::sync::Arc;

/// A file that was read into memory, if it may be.
pub(crate) enum Whole {
    Bytes(Vec<u8>),
    TooLarge,
}

async fn in_workspace<T: Send + 'static>(
    guest: &Arc<Guest>,
    work: impl FnOnce(&Root, &Cancel) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    rooted(guest, &exec::folder(&guest.config.workspace, None)?, work).await
}

/// The file as a stream of its bytes.
pub(crate) async fn stream(guest: &Arc<Guest>, path: &str) -> Answer {
    let query = ReadQuery::new(path);
    let reading = in_workspace(guest, move |root, _| read::open(root, &query)).await?;
    Ok(reading.answer())
}

pub(crate) async fn read_whole(
    guest: &Arc<Guest>,
    path: &str,
    limit: usize,
) -> Result<Whole, Failure> {
    let path = path.to_owned();
    in_workspace(guest, move |root, _| {
        let path = root.path(&path)?;
        let file = read::open_regular(root, "read", &path)?;
        let mut bytes = Vec::new();
        let read = file.take(limit as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|e| Failure::io(format_args!("cannot read {}", path.shown()), &e))?;
        Ok(match bytes.len() > limit {
            true => Whole::TooLarge,
            false => Whole::Bytes(bytes),
        })
    })
    .await
}

/// Writes a file in place of what was there; folders that lead to it are made.
pub(crate) async fn write_whole(
    guest: &Arc<Guest>,
    path: &str,
    content: String,
) -> Result<(), Failure> {
    let query = WriteQuery::new(path);
    in_workspace(guest, move |root, _| {
        let mut writing = write::begin(root, &query)?;
        writing.write(content.as_bytes())?;
        writing.finish().map(drop)
    })
    .await
}

/// Removes a file, or a folder with what is in it.
pub(crate) async fn remove_whole(guest: &Arc<Guest>, path: &str) -> Result<(), Failure> {
    let mut query = PathQuery::new(path);
    query.recursive = true;
    in_workspace(guest, move |root, _| relocate::delete(root, &query)).await
}
