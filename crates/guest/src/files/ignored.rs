//! What `.gitignore` files leave out.

use super::beneath::{GuestPath, Root, components};
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, Mode, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A longer `.gitignore` is none.
const FILE_LIMIT: u64 = 1 << 20;

/// The rules that hold in a folder: its own, and those of the folders above.
pub(crate) struct Ignored {
    rules: Gitignore,
    /// The folder whose rules are in.
    folder: Vec<u8>,
    above: Option<Arc<Ignored>>,
}

impl Ignored {
    /// The rules of the folders above one, from the root on.
    pub(crate) fn above(root: &Root, path: &GuestPath) -> Arc<Self> {
        let none = Self {
            rules: Gitignore::empty(),
            folder: Vec::new(),
            above: None,
        };
        let mut rules = Arc::new(none);
        let mut at = GuestPath::root();
        for part in components(&path.clean()) {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            if let Ok(fd) = root.open(&at, flags, Mode::empty()) {
                rules = Self::with(rules, fd, &at.clean());
            }
            at = at.join(part);
        }
        rules
    }

    /// The rules of a folder on top of those above it; a batch later they are the same still.
    pub(crate) fn with(above: Arc<Self>, dir: impl AsFd, folder: &[u8]) -> Arc<Self> {
        if above.folder == folder {
            return above;
        }
        let Some(text) = read(dir) else { return above };
        let mut builder = GitignoreBuilder::new(absolute(folder));
        for line in text.lines() {
            // A line that is no pattern is skipped, as git does.
            let _ = builder.add_line(None, line);
        }
        match builder.build() {
            Ok(rules) => Arc::new(Self {
                rules,
                folder: folder.to_vec(),
                above: Some(above),
            }),
            Err(_) => above,
        }
    }

    /// Whether a thing is left out; `path` is from the root.
    pub(crate) fn matches(&self, name: &[u8], path: &[u8], folder: bool) -> bool {
        if name == b".git" {
            return true;
        }
        let path = absolute(path);
        let mut at = Some(self);
        while let Some(rules) = at {
            let found = rules.rules.matched(&path, folder);
            if !found.is_none() {
                return found.is_ignore();
            }
            at = rules.above.as_deref();
        }
        false
    }
}

/// The rules know no roots, so paths are written as if the root were `/`.
fn absolute(path: &[u8]) -> PathBuf {
    let path = if path == b"." { b"" } else { path };
    Path::new("/").join(OsStr::from_bytes(path))
}

fn read(dir: impl AsFd) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, ".gitignore", flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut bytes = Vec::new();
    File::from(fd)
        .take(FILE_LIMIT + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    (bytes.len() as u64 <= FILE_LIMIT).then(|| String::from_utf8_lossy(&bytes).into_owned())
}
