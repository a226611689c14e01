//! What a model has seen of the files of a session, so that it does not change what has become
//! something else meanwhile.

use sha2::{Digest as _, Sha256};
use std::collections::HashMap;

/// Most paths that are remembered; then all are forgotten, which refuses nothing.
const MOST: usize = 4096;

/// Hashes of contents, by the path as the model names it.
#[derive(Debug, Default)]
pub(crate) struct Seen(HashMap<String, [u8; 32]>);

impl Seen {
    pub(crate) fn note(&mut self, path: &str, content: &[u8]) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0
            .insert(path.to_owned(), Sha256::digest(content).into());
    }

    /// Whether this is another content than the one that was seen, if one was.
    pub(crate) fn is_other(&self, path: &str, content: &[u8]) -> bool {
        let now: [u8; 32] = Sha256::digest(content).into();
        self.0.get(path).is_some_and(|seen| *seen != now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_seen_can_be_other() {
        let mut seen = Seen::default();
        assert!(!seen.is_other("a", b"1"));
        seen.note("a", b"1");
        assert!(!seen.is_other("a", b"1") && seen.is_other("a", b"2"));
        for n in 0..=MOST {
            seen.note(&n.to_string(), b"");
        }
        assert!(seen.0.len() <= MOST);
    }
}
