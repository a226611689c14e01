//! `GET /files/stat` and `GET /files/list`.

use super::Cancel;
use super::beneath::{GuestPath, Root};
use super::tree::{Options, Tree};
use ringfence_proto::{Entry, Failure, FileKind, ListResult, PathQuery};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use std::os::fd::AsFd;

/// Most entries in one answer.
const LIST_LIMIT: usize = 10_000;

/// Deeper than any path can be.
const DEPTH_LIMIT: u32 = 4096;

/// What is known of a thing, links not followed.
pub(crate) fn entry(path: &GuestPath, stat: &Stat, target: Option<Vec<u8>>) -> Entry {
    entry_at(path.shown(), stat, target)
}

pub(crate) fn entry_at(path: String, stat: &Stat, target: Option<Vec<u8>>) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    };
    Entry {
        path,
        kind,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified: stat.st_mtime as f64 + stat.st_mtime_nsec as f64 / 1e9,
        uid: stat.st_uid,
        gid: stat.st_gid,
        target: target.map(|t| String::from_utf8_lossy(&t).into_owned()),
    }
}

/// Where a link points; none when it is no link.
pub(crate) fn link_text(dir: impl AsFd, name: &[u8]) -> Option<Vec<u8>> {
    rustix::fs::readlinkat(dir, name, Vec::new())
        .ok()
        .map(std::ffi::CString::into_bytes)
}

pub(crate) fn stat(root: &Root, path: &GuestPath) -> Result<Entry, Failure> {
    let fail = |e| root.fail("stat", path, e);
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    let fd = root.open(path, flags, Mode::empty()).map_err(fail)?;
    let stat = rustix::fs::fstat(&fd).map_err(fail)?;
    let target = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => link_text(&fd, b""),
        _ => None,
    };
    Ok(entry(path, &stat, target))
}

pub(crate) fn list(root: &Root, query: &PathQuery, cancel: &Cancel) -> Result<ListResult, Failure> {
    let path = root.path(&query.path)?;
    let depth = match (query.recursive, query.depth) {
        (true, None) => DEPTH_LIMIT,
        (true, Some(depth @ 1..=DEPTH_LIMIT)) => depth,
        (false, None | Some(1)) => 1,
        (false, Some(_)) => return Err(Failure::invalid("depth goes with recursive=true")),
        (true, Some(depth)) => {
            let message = format!("depth {depth} is out of range: 1 to {DEPTH_LIMIT}");
            return Err(Failure::invalid(message));
        }
    };
    let mut tree = Tree::new(
        root,
        "list",
        &path,
        Options {
            depth,
            ..Options::default()
        },
    )?;
    let mut entries = Vec::new();
    while let Some(node) = tree.next(cancel)? {
        if entries.len() == LIST_LIMIT {
            tree.truncated = true;
            break;
        }
        entries.push(entry(&path.join(&node.path), &node.stat, node.target));
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(ListResult {
        entries,
        truncated: tree.truncated,
    })
}
