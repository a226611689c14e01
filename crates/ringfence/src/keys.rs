//! Who may call the server: keys, of which only hashes are kept, and keys of single sessions.

mod file;
mod session;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use file::{add, path, remove};
pub(crate) use session::SessionKeys;
pub(crate) use store::KeyStore;

use ringfence_core::{Failure, Size, hex, random_hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What every key starts with, so that scanners of leaked secrets know one when they see it.
const PREFIX: &str = "rf_";
const BYTES: usize = 32;

/// What a key allows; each allows what stands before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// Looks at everything, also at the files and output of all sessions; runs and changes nothing
    Read,
    /// Makes and uses sessions, and sees no others
    Use,
    /// Does everything, also with the sessions of other keys
    Admin,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Use => "use",
            Self::Admin => "admin",
        })
    }
}

/// What is known of a key. Unknown fields are refused: one of them could be a limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    pub name: String,
    pub scope: Scope,
    /// Seconds since the epoch.
    pub created: u64,
    /// Seconds since the epoch; from then on it opens nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
    /// Sessions at one time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_sessions: Option<u64>,
    /// Sum of the memory limits of its sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<Size>,
    /// Requests in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    sha256: Hash,
}

impl Key {
    pub(crate) fn is_expired(&self) -> bool {
        self.is_expired_at(now())
    }

    fn is_expired_at(&self, now: u64) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// SHA-256 of a key. A slow hash is for passwords, which can be guessed: a key has 256 random
/// bits, so that nobody finds it from its hash, however fast that is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Hash([u8; 32]);

impl Hash {
    fn of(key: &str) -> Self {
        Self(Sha256::digest(key).into())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> Self {
        hex(hash.0)
    }
}

impl TryFrom<String> for Hash {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        unhex(&text).map(Self).ok_or("not 64 digits of hex")
    }
}

/// The keys of a server at one moment.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    all: Vec<Arc<Key>>,
    by_hash: HashMap<Hash, Arc<Key>>,
}

impl Keys {
    /// Reads the keys of a file; one that is not there holds none.
    pub(crate) fn load(path: &Path) -> Result<Self, Failure> {
        Ok(file::read(path)?.map_or_else(Self::default, |(keys, _)| keys))
    }

    fn new(keys: Vec<Key>) -> Result<Self, String> {
        let mut names = BTreeSet::new();
        let mut made = Self::default();
        for key in keys {
            if !is_name(&key.name) {
                return Err(format!("`{}` is not a name", key.name));
            }
            if !names.insert(key.name.clone()) {
                return Err(format!("the name `{}` is there twice", key.name));
            }
            let key = Arc::new(key);
            if made.by_hash.insert(key.sha256, key.clone()).is_some() {
                return Err(format!("the key of `{}` is there twice", key.name));
            }
            made.all.push(key);
        }
        Ok(made)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Key> {
        self.all.iter().map(Arc::as_ref)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The key that somebody shows, unless it has expired.
    #[cfg(test)]
    pub(crate) fn find(&self, presented: &str) -> Option<&Key> {
        self.find_at(presented, now()).map(Arc::as_ref)
    }

    /// Looked up by its hash, and never compared itself: how long that takes can at most tell
    /// something of the hashes that are kept, from which no key can be made.
    fn find_at(&self, presented: &str, now: u64) -> Option<&Arc<Key>> {
        if presented.len() != PREFIX.len() + 2 * BYTES || !presented.starts_with(PREFIX) {
            return None;
        }
        let key = self.by_hash.get(&Hash::of(presented))?;
        Some(key).filter(|key| !key.is_expired_at(now))
    }

    fn named_at(&self, name: &str, now: u64) -> Option<&Arc<Key>> {
        let key = self.all.iter().find(|key| key.name == name)?;
        Some(key).filter(|key| !key.is_expired_at(now))
    }
}

/// What the maker of a key decides.
#[derive(Debug, Clone)]
pub(crate) struct NewKey {
    pub name: String,
    pub scope: Scope,
    pub expires: Option<u64>,
    pub max_sessions: Option<u64>,
    pub max_memory: Option<Size>,
    pub rate: Option<f64>,
}

impl NewKey {
    /// The key itself, which is kept nowhere, and what is kept of it.
    fn make(self) -> Result<(String, Key), Failure> {
        let secret = format!("{PREFIX}{}", random_hex::<BYTES>()?);
        let key = Key {
            name: self.name,
            scope: self.scope,
            created: now(),
            expires: self.expires,
            max_sessions: self.max_sessions,
            max_memory: self.max_memory,
            rate: self.rate,
            sha256: Hash::of(&secret),
        };
        Ok((secret, key))
    }
}

/// Fails unless this can be the name of a key.
pub(crate) fn check_name(name: &str) -> Result<(), Failure> {
    if is_name(name) {
        return Ok(());
    }
    Err(
        Failure::invalid(format!("`{name}` is not the name of a key"))
            .hint("use 1 to 64 letters, digits, `.`, `_` and `-`"),
    )
}

fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(good)
}

/// Seconds since the epoch.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let digits = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 64 || !text.bytes().all(digits) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}
