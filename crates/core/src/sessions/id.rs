//! The name of a session, and of its sandbox.

use crate::plan::SandboxId;
use crate::{hex, random_hex};
use ringfence_proto::Failure;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;

const PREFIX: &str = "sbx_";

/// Names a session: `sbx_` and 32 hexadecimal digits. The name of its sandbox follows from it, so
/// any server finds one by the other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId(String);

impl SessionId {
    /// Hexadecimal digits after the prefix.
    pub const DIGITS: usize = 32;

    /// One that nobody can guess.
    pub fn random() -> Result<Self, Failure> {
        Ok(Self(format!(
            "{PREFIX}{}",
            random_hex::<{ Self::DIGITS / 2 }>()?
        )))
    }

    /// The one that this key of this owner means, everywhere and always: whoever makes it first
    /// has made it for all.
    pub fn of_key(owner: Option<&str>, key: &str) -> Self {
        let mut hash = Sha256::new();
        // The length keeps `a` + `bc` and `ab` + `c` apart.
        let owner = owner.unwrap_or("");
        hash.update((owner.len() as u64).to_be_bytes());
        hash.update(owner);
        hash.update(key);
        let digest = hash.finalize();
        Self(format!("{PREFIX}{}", hex(&digest[..Self::DIGITS / 2])))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What tells it from others.
    pub fn digits(&self) -> &str {
        self.0.strip_prefix(PREFIX).unwrap_or_default()
    }

    pub fn of_digits(digits: &str) -> Option<Self> {
        Self::try_from(format!("{PREFIX}{digits}")).ok()
    }

    pub fn sandbox(&self) -> SandboxId {
        SandboxId::named(self.0.replace('_', "-"))
    }

    pub fn of_sandbox(sandbox: &SandboxId) -> Option<Self> {
        Self::try_from(sandbox.as_str().replacen('-', "_", 1)).ok()
    }
}

impl TryFrom<String> for SessionId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let good = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        match text.strip_prefix(PREFIX) {
            Some(rest) if rest.len() == Self::DIGITS && rest.chars().all(good) => Ok(Self(text)),
            _ => Err("not a session id".to_owned()),
        }
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_leads_to_its_session_and_back() {
        let id = SessionId::random().unwrap();
        assert_eq!(SessionId::of_sandbox(&id.sandbox()), Some(id.clone()));
        assert!(id.as_str().len() <= 64);
        for bad in [
            "",
            "sbx_",
            "sbx_../..",
            "run-0011",
            &format!("{id}0"),
            &id.as_str().to_uppercase(),
        ] {
            assert!(SessionId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_of_different_owners_are_different_sessions() {
        let a = SessionId::of_key(Some("a"), "bc");
        assert_eq!(a, SessionId::of_key(Some("a"), "bc"));
        assert_ne!(a, SessionId::of_key(Some("ab"), "c"));
        assert_ne!(a, SessionId::of_key(None, "bc"));
    }
}
