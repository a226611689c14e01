//! Names of files for those who know nothing of sessions: a name holds its session and its path,
//! so that every server understands it and none has to remember it.

use crate::hex;
use crate::sessions::SessionId;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt;

const PREFIX: &str = "file_";

/// Bytes of a session's id.
const SESSION: usize = 16;

/// Most bytes of a path in an id.
const PATH: usize = 1024;

/// A file of a session. It says nothing about whether the file is there, or who may have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileId {
    session: SessionId,
    path: String,
}

/// Names below the workspace, one after the other, none of which leads elsewhere.
fn is_plain(path: &str) -> bool {
    let name = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.len() <= PATH && !path.contains('\0') && path.split('/').all(name)
}

impl FileId {
    /// None for a path that is too long, or not a plain one below the workspace.
    pub fn new(session: &SessionId, path: &str) -> Option<Self> {
        is_plain(path).then(|| Self {
            session: session.clone(),
            path: path.to_owned(),
        })
    }

    /// Reads what [`fmt::Display`] writes, and nothing else.
    pub fn parse(text: &str) -> Option<Self> {
        let code = text.strip_prefix(PREFIX)?;
        if code.len() > (SESSION + PATH).div_ceil(3) * 4 {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(code).ok()?;
        let (session, path) = bytes.split_at_checked(SESSION)?;
        let session = SessionId::try_from(format!("sbx_{}", hex(session))).ok()?;
        Self::new(&session, std::str::from_utf8(path).ok()?)
    }

    pub fn session(&self) -> &SessionId {
        &self.session
    }

    /// Below the workspace.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.session.as_str().strip_prefix("sbx_").unwrap_or("");
        let pairs = digits.as_bytes().chunks(2);
        let mut bytes: Vec<u8> = pairs
            .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
            .collect();
        bytes.extend_from_slice(self.path.as_bytes());
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn session() -> SessionId {
        SessionId::try_from(format!("sbx_{}", "0123456789abcdef".repeat(2))).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(path in "[^/\0]{1,40}(/[^/\0]{1,40}){0,3}") {
            if let Some(id) = FileId::new(&session(), &path) {
                prop_assert_eq!(FileId::parse(&id.to_string()), Some(id));
            }
        }

        #[test]
        fn there_is_one_way_to_write_each(text in "file_[A-Za-z0-9_-]{20,60}") {
            if let Some(id) = FileId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn paths_that_lead_elsewhere_have_no_id() {
        let long = "a".repeat(PATH + 1);
        for bad in [
            "", "/", "/etc", "..", "a/../b", "a//b", ".", "a/", "a\0b", &long,
        ] {
            assert_eq!(FileId::new(&session(), bad), None, "{bad}");
            let forged = [&[7u8; SESSION][..], bad.as_bytes()].concat();
            let forged = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(forged));
            assert_eq!(FileId::parse(&forged), None, "{bad}");
        }
        let id = FileId::new(&session(), "a/b.txt").unwrap();
        assert_eq!(id.name(), "b.txt");
        for bad in ["", "file_", "file_AAAA", "file_*", "x", &format!("{id}=")] {
            assert_eq!(FileId::parse(bad), None, "{bad}");
        }
    }
}
