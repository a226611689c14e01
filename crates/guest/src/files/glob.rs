//! `POST /files/glob`.

use super::Cancel;
use super::beneath::Root;
use super::list;
use super::tree::{Options, Tree};
use globset::{GlobBuilder, GlobMatcher};
use ringfence_proto::{Failure, GlobRequest, GlobResult};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

const DEFAULT_LIMIT: u32 = 10_000;
const LIMIT: u32 = 100_000;
const PATTERN_LIMIT: usize = 64 << 10;

/// A pattern in which `*` stays in a folder and `**` crosses them.
pub(crate) struct Pattern(GlobMatcher);

impl Pattern {
    pub(crate) fn new(pattern: &str) -> Result<Self, Failure> {
        if pattern.is_empty() {
            return Err(Failure::invalid("the glob pattern is empty"));
        }
        if pattern.len() > PATTERN_LIMIT {
            let message = format!("the glob pattern is over {PATTERN_LIMIT} bytes");
            return Err(Failure::invalid(message));
        }
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        let glob = GlobBuilder::new(pattern)
            .literal_separator(true)
            .backslash_escape(true)
            .build()
            .map_err(|e| Failure::invalid(format!("bad glob pattern: {e}")))?;
        Ok(Self(glob.compile_matcher()))
    }

    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        self.0.is_match(OsStr::from_bytes(path))
    }
}

/// A limit that was asked for, within its range.
pub(crate) fn limit(asked: Option<u32>, default: u32, most: u32) -> Result<usize, Failure> {
    match asked.unwrap_or(default) {
        limit if (1..=most).contains(&limit) => Ok(limit as usize),
        limit => Err(Failure::invalid(format!(
            "limit {limit} is out of range: 1 to {most}"
        ))),
    }
}

/// A pattern that names a dot on purpose sees hidden files, as in a shell.
fn names_hidden(pattern: &str) -> bool {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    pattern.split('/').any(|part| part.starts_with('.'))
}

pub(crate) fn glob(
    root: &Root,
    request: &GlobRequest,
    cancel: &Cancel,
) -> Result<GlobResult, Failure> {
    let limit = limit(request.limit, DEFAULT_LIMIT, LIMIT)?;
    let pattern = Pattern::new(&request.pattern)?;
    let path = root.path(&request.path)?;
    let options = Options {
        hidden: request.hidden || names_hidden(&request.pattern),
        gitignore: request.gitignore,
        ..Options::default()
    };
    let mut tree = Tree::new(root, "search", &path, options)?;
    let mut entries = Vec::new();
    while let Some(node) = tree.next(cancel)? {
        if !pattern.matches(&node.path) {
            continue;
        }
        if entries.len() == limit {
            tree.truncated = true;
            break;
        }
        entries.push(list::entry(&path.join(&node.path), &node.stat, node.target));
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(GlobResult {
        entries,
        truncated: tree.truncated,
    })
}
