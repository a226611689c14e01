//! Tests of the file routes. Every one that resolves paths runs with both resolvers.

mod beneath;
mod changed;
mod edits;
mod races;
mod search;
mod tars;
mod whole;
mod wire;

use super::beneath::{Resolver, Root};
use super::{Cancel, write};
use ringfence_proto::{Entry, Failure, WORKSPACE, WriteQuery};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(super) const BOTH: [Resolver; 2] = [Resolver::Openat2, Resolver::Walk];

/// A workspace, and beside it a folder that must stay as it is.
pub(super) struct World {
    _folder: TempDir,
    pub(super) inside: PathBuf,
    pub(super) outside: PathBuf,
    pub(super) root: Root,
}

pub(super) const SECRET: &str = "outside\n";

impl World {
    pub(super) fn new(resolver: Resolver) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("workspace");
        let outside = folder.path().join("outside");
        fs::create_dir(&inside).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("secret"), SECRET).unwrap();
        let root = Root::choose(WORKSPACE, &inside, resolver).unwrap();
        Self {
            _folder: folder,
            inside,
            outside,
            root,
        }
    }

    pub(super) fn file(&self, path: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.inside.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(super) fn link(&self, path: &str, target: impl AsRef<Path>) {
        let path = self.inside.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    pub(super) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.inside.join(path)).unwrap()
    }

    pub(super) fn write(&self, path: &str, text: &str) -> Result<Entry, Failure> {
        self.write_as(&WriteQuery::new(path), text)
    }

    pub(super) fn write_as(&self, query: &WriteQuery, text: &str) -> Result<Entry, Failure> {
        let mut writing = write::begin(&self.root, query)?;
        writing.write(text.as_bytes())?;
        writing.finish()
    }

    /// Every path below the workspace, and no half-written file among them.
    pub(super) fn names(&self) -> Vec<String> {
        fn below(at: &Path, from: &Path, names: &mut Vec<String>) {
            for entry in fs::read_dir(at).unwrap() {
                let path = entry.unwrap().path();
                names.push(
                    path.strip_prefix(from)
                        .unwrap()
                        .to_string_lossy()
                        .into_owned(),
                );
                if path.is_dir() && !path.is_symlink() {
                    below(&path, from, names);
                }
            }
        }
        let mut names = Vec::new();
        below(&self.inside, &self.inside, &mut names);
        names.sort();
        assert!(
            !names.iter().any(|n| n.contains(".ringfence-")),
            "left over: {names:?}"
        );
        names
    }

    pub(super) fn assert_outside_untouched(&self) {
        let mut names: Vec<_> = fs::read_dir(&self.outside)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["secret"]);
        assert_eq!(
            fs::read_to_string(self.outside.join("secret")).unwrap(),
            SECRET
        );
    }
}

pub(super) fn go() -> Cancel {
    Cancel::default()
}
