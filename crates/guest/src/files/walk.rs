//! Resolves a path without openat2: one component at a time, no link ever followed by the kernel.
//!
//! The folders passed are held open in a stack, so `..` goes back to a folder that was entered
//! and not to wherever it has been moved since. A link is read and its text put in front of what
//! is left to resolve; `/proc`'s magic links are text too, so they lead nowhere special.

use super::beneath::{LINKS, Links, RETRIES, Root, Scope, components};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Where a walk ended.
struct Found {
    /// The folders between the root and the end, with their names.
    dirs: Vec<(OwnedFd, Vec<u8>)>,
    /// The name in the last folder; none when the path ended in the folder itself.
    name: Option<Vec<u8>>,
}

impl Found {
    fn dir<'a>(&'a self, root: &'a Root) -> BorrowedFd<'a> {
        self.dirs.last().map_or(root.as_fd(), |(fd, _)| fd.as_fd())
    }
}

/// Opens a path as openat2 would.
pub(super) fn open(
    root: &Root,
    path: &[u8],
    flags: OFlags,
    mode: Mode,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
    let follow = !flags.contains(OFlags::NOFOLLOW) && !exclusive;
    for _ in 0..RETRIES {
        let found = walk(root, path, follow, links)?;
        let name = found.name.as_deref().unwrap_or(b".");
        let opened = rustix::fs::openat(found.dir(root), name, flags | OFlags::NOFOLLOW, mode);
        match opened {
            // It was no link when the walk looked: someone put one there since. Look again.
            Err(Errno::LOOP) if follow => {}
            Ok(fd) if follow && flags.contains(OFlags::PATH) && is_link(&fd)? => {}
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
    Err(Errno::LOOP)
}

/// The names from the root to what a path stands for, which need not exist.
pub(super) fn canonical(root: &Root, path: &[u8]) -> Result<Vec<u8>, Errno> {
    let found = walk(root, path, true, Links::Follow)?;
    let mut names: Vec<Vec<u8>> = found.dirs.into_iter().map(|(_, name)| name).collect();
    names.extend(found.name);
    Ok(names.join(&b'/'))
}

fn walk(root: &Root, path: &[u8], follow: bool, links: Links) -> Result<Found, Errno> {
    let mut found = Found {
        dirs: Vec::new(),
        name: None,
    };
    let mut budget = LINKS;
    // What is left to resolve, the next component last.
    let mut pending = Vec::new();
    push(&mut pending, path);
    while let Some(part) = pending.pop() {
        if part == b"." {
            continue;
        }
        if part == b".." {
            if found.dirs.pop().is_none() && root.scope() == Scope::Beneath {
                return Err(Errno::XDEV);
            }
            continue;
        }
        let last = pending.is_empty();
        if last && !follow {
            found.name = Some(part);
            return Ok(found);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(found.dir(root), &part[..], flags, Mode::empty()) {
            Err(Errno::NOENT) if last => {
                found.name = Some(part);
                return Ok(found);
            }
            other => other?,
        };
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            FileType::Symlink => {
                budget = budget.checked_sub(1).ok_or(Errno::LOOP)?;
                if links == Links::Refuse {
                    return Err(Errno::LOOP);
                }
                let link = rustix::fs::readlinkat(&fd, "", Vec::new())
                    .or_else(|_| rustix::fs::readlinkat(found.dir(root), &part[..], Vec::new()))?
                    .into_bytes();
                match (link.first(), root.scope()) {
                    (None, _) => return Err(Errno::NOENT),
                    (Some(b'/'), Scope::InRoot) => {
                        found.dirs.clear();
                        push(&mut pending, &link);
                    }
                    (Some(b'/'), Scope::Beneath) => {
                        let rest = root.below(&link).ok_or(Errno::XDEV)?;
                        found.dirs.clear();
                        push(&mut pending, &rest);
                    }
                    _ => push(&mut pending, &link),
                }
            }
            _ if last => {
                found.name = Some(part);
                return Ok(found);
            }
            FileType::Directory => found.dirs.push((fd, part)),
            _ => return Err(Errno::NOTDIR),
        }
    }
    Ok(found)
}

/// Puts a path in front of what is pending. A path that ends in `/` or `/.` must name a folder,
/// which a last `.` makes sure of.
fn push(pending: &mut Vec<Vec<u8>>, path: &[u8]) {
    if path.ends_with(b"/") || path.ends_with(b"/.") || path == b"." {
        pending.push(b".".to_vec());
    }
    let at = pending.len();
    pending.extend(components(path).map(<[u8]>::to_vec));
    pending[at..].reverse();
}

fn is_link(fd: &OwnedFd) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
}
