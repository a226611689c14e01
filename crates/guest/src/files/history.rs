//! What files were before they were edited, so that edits can be undone: bounded, oldest dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};

/// Edits that are remembered of one file.
const PER_FILE: usize = 100;

/// Bytes that are remembered of all files.
const IN_ALL: usize = 64 << 20;

/// What an entry costs beside its text and its name.
const OVERHEAD: usize = 256;

/// A file: the root that the caller chose, and the path below it.
pub(crate) type Key = (String, Vec<u8>);

/// A file before an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Past {
    /// None where there was no file.
    pub(crate) bytes: Option<Vec<u8>>,
    pub(crate) mode: Option<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    files: HashMap<Key, VecDeque<(u64, Past)>>,
    /// Which file each edit was of, oldest first.
    order: BTreeMap<u64, Key>,
    next: u64,
    bytes: usize,
}

fn cost(key: &Key, past: &Past) -> usize {
    OVERHEAD + 2 * (key.0.len() + key.1.len()) + past.bytes.as_ref().map_or(0, Vec::len)
}

impl History {
    pub(crate) fn push(&mut self, key: Key, past: Past) {
        self.bytes += cost(&key, &past);
        self.order.insert(self.next, key.clone());
        let pasts = self.files.entry(key).or_default();
        pasts.push_back((self.next, past));
        self.next += 1;
        let oldest = (pasts.len() > PER_FILE).then(|| pasts[0].0);
        if let Some(oldest) = oldest {
            self.forget(oldest);
        }
        while self.bytes > IN_ALL
            && let Some((&oldest, _)) = self.order.first_key_value()
        {
            self.forget(oldest);
        }
    }

    pub(crate) fn last(&self, key: &Key) -> Option<&Past> {
        self.files
            .get(key)
            .and_then(|pasts| pasts.back())
            .map(|(_, past)| past)
    }

    pub(crate) fn pop(&mut self, key: &Key) {
        if let Some(newest) = self.files.get(key).and_then(|p| p.back()).map(|(n, _)| *n) {
            self.forget(newest);
        }
    }

    fn forget(&mut self, number: u64) {
        let Some(key) = self.order.remove(&number) else {
            return;
        };
        let Some(pasts) = self.files.get_mut(&key) else {
            return;
        };
        if let Some(index) = pasts.iter().position(|(n, _)| *n == number)
            && let Some((_, past)) = pasts.remove(index)
        {
            self.bytes -= cost(&key, &past);
        }
        if pasts.is_empty() {
            self.files.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("/workspace".to_owned(), name.as_bytes().to_vec())
    }

    fn past(text: &str) -> Past {
        Past {
            bytes: Some(text.as_bytes().to_vec()),
            mode: None,
        }
    }

    #[test]
    fn one_file_keeps_its_latest() {
        let mut history = History::default();
        for n in 0..250 {
            history.push(key("a"), past(&n.to_string()));
        }
        for n in (150..250).rev() {
            assert_eq!(history.last(&key("a")), Some(&past(&n.to_string())));
            history.pop(&key("a"));
        }
        assert_eq!(history.last(&key("a")), None);
        assert_eq!(
            (history.bytes, history.order.len(), history.files.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn all_files_share_the_bytes() {
        let mut history = History::default();
        let text = "x".repeat(20 << 20);
        for name in ["a", "b", "c", "d"] {
            history.push(key(name), past(&text));
        }
        assert!(history.bytes <= IN_ALL);
        assert_eq!(history.last(&key("a")), None);
        assert!(history.last(&key("b")).is_some());
    }
}
