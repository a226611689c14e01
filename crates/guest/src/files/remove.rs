//! Removes a thing with all that is in it; no link is followed, and no depth is too deep.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

/// Folders held open at a time. What lies deeper is first moved up to the top one.
const DEPTH: usize = 64;

/// How often a folder that others keep filling, or that is very deep, is gone through again.
const PASSES: usize = 10_000;

/// Removes what a folder has under a name: a file, a link, or a folder with what is in it.
pub(crate) fn remove(dir: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    let refused = match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        // A folder is refused with EISDIR, by some file systems with EPERM.
        Err(e @ (Errno::ISDIR | Errno::PERM)) => e,
        other => return other,
    };
    for pass in 0..PASSES {
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => empty(dir, name, pass)?,
            Err(Errno::NOTDIR) => return Err(refused),
            other => return other,
        }
    }
    Err(Errno::NOTEMPTY)
}

struct Level {
    entries: Dir,
    name: Vec<u8>,
}

fn open(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Dir, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd: OwnedFd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    Dir::new(fd)
}

/// Goes once through a folder and removes what is in it.
fn empty(dir: BorrowedFd<'_>, name: &[u8], pass: usize) -> Result<(), Errno> {
    let mut stack = vec![Level {
        entries: open(dir, name)?,
        name: Vec::new(),
    }];
    let mut moved = 0_u64;
    while let Some(level) = stack.last_mut() {
        let Some(entry) = level.entries.read() else {
            let done = stack.pop();
            if let (Some(done), Some(level)) = (done, stack.last()) {
                match rustix::fs::unlinkat(level.entries.fd()?, &done.name[..], AtFlags::REMOVEDIR)
                {
                    // Filled meanwhile, or readdir missed some: the next pass sees it.
                    Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
            }
            continue;
        };
        let entry = entry?;
        let child = entry.file_name().to_bytes().to_vec();
        if child == b"." || child == b".." {
            continue;
        }
        let at = stack[stack.len() - 1].entries.fd()?;
        if entry.file_type() != FileType::Directory {
            match rustix::fs::unlinkat(at, &child[..], AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(e) => return Err(e),
            }
        }
        match rustix::fs::unlinkat(at, &child[..], AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        if stack.len() < DEPTH {
            match open(at.as_fd(), &child) {
                Ok(entries) => stack.push(Level {
                    entries,
                    name: child,
                }),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(e) => return Err(e),
            }
            continue;
        }
        let top = stack[0].entries.fd()?;
        let up = format!(".ringfence-deep-{pass}-{moved}");
        moved += 1;
        match rustix::fs::renameat(at, &child[..], top, &up) {
            Ok(()) | Err(Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
