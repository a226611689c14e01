//! Files that a snippet made, and that its caller wants.

use super::WORK;
use crate::guest::GuestClient;
use ringfence_proto::{Blob, Failure, FileKind, GlobRequest, GlobResult, ReadQuery};
use serde::Serialize;
use std::collections::BTreeSet;

/// Most files, most bytes of one and of all.
const MOST_FILES: usize = 100;
const MOST_BYTES: u64 = 8 << 20;
const MOST_IN_ALL: u64 = 24 << 20;

/// A file that a snippet made.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OutputFile {
    /// Relative to `/work`, or below `/tmp`.
    pub path: String,
    pub size: u64,
    /// Absent where the file, or all of them together, are over the limit (8 and 24 MiB).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Blob>,
}

/// Reads what the globs name. What the sandbox says about its files is not believed: each is read
/// with a limit, and counts by what came.
pub(super) async fn collect(
    guest: &GuestClient,
    globs: &[String],
) -> Result<Vec<OutputFile>, Failure> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    let mut room = MOST_IN_ALL;
    for glob in globs {
        let (root, pattern) = match glob.strip_prefix("/tmp/") {
            Some(inner) => ("/tmp", inner),
            None => (WORK, glob.as_str()),
        };
        let request = GlobRequest {
            root: root.to_owned(),
            path: ".".to_owned(),
            pattern: pattern.to_owned(),
            hidden: false,
            gitignore: false,
            limit: Some(MOST_FILES as u32),
        };
        let found: GlobResult = guest.post("/files/glob", &request).await?;
        for entry in found.entries {
            let path = match root {
                WORK => entry.path.clone(),
                _ => format!("{root}/{}", entry.path),
            };
            let wanted = entry.kind == FileKind::File && files.len() < MOST_FILES;
            if !wanted || !seen.insert(path.clone()) {
                continue;
            }
            let content = match entry.size <= MOST_BYTES.min(room) {
                true => {
                    let query = ReadQuery {
                        root: root.to_owned(),
                        length: Some(entry.size),
                        ..ReadQuery::new(entry.path)
                    };
                    // One that is gone again, or can't be read, is told without its content.
                    guest.read(&query).await.ok()
                }
                false => None,
            };
            let content = content.filter(|bytes| bytes.len() as u64 <= entry.size);
            room -= content.as_ref().map_or(0, |bytes| bytes.len() as u64);
            files.push(OutputFile {
                path,
                size: entry.size,
                content: content.map(|bytes| Blob(bytes.into())),
            });
        }
    }
    Ok(files)
}
