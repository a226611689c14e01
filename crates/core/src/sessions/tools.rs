//! The tools that code in a session can call, and where the calls go. They are a note of the
//! session, so every server goes on with them; the guest, which forgets them when it is started
//! again, is told by whoever reaches it.

use super::session::Session;
use crate::guest::GuestClient;
use ringfence_proto::{Code, Failure, Tool, ToolsInfo, ToolsRequest};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The note; a text that is none means that nothing is registered.
const NOTE: &str = "tools";
const NOTHING: &str = "";

/// How often another server may be faster, before this one lets it.
const TRIES: u32 = 8;

/// Tools with the place that carries them out. The token is for that place only: it is never
/// printed, and never goes into a sandbox.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    pub callback_url: String,
    pub token: String,
    pub timeout_ms: u64,
    pub tools: Vec<Tool>,
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.tools.iter().map(|tool| &tool.name);
        f.debug_list().entries(names).finish()
    }
}

impl Registration {
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }

    pub fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// What a guest is told of it.
    pub fn request(&self) -> ToolsRequest {
        ToolsRequest {
            tools: self.tools.clone(),
            timeout_ms: self.timeout_ms,
        }
    }
}

/// Listens for the calls of a session; there is one in each server.
pub struct Listener {
    session: Arc<Session>,
}

impl Listener {
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.session.set_listening(false);
    }
}

impl Session {
    /// Whether code in it can call tools, as far as this server knows.
    pub fn has_tools(&self) -> bool {
        self.with_note(NOTE, |text| text.is_some_and(|text| text != NOTHING))
    }

    /// The right to listen for its calls, where nobody in this server does yet.
    pub fn listen(self: &Arc<Self>) -> Option<Listener> {
        let wanted = self.has_tools() && !self.is_closing() && !self.set_listening(true);
        wanted.then(|| Listener {
            session: Arc::clone(self),
        })
    }

    fn known_tools(&self) -> Option<Registration> {
        self.with_note(NOTE, |text| serde_json::from_str(text?).ok())
    }

    /// What is registered now, also by another server.
    pub async fn tools(&self) -> Result<Option<Registration>, Failure> {
        self.look().await?;
        Ok(self.known_tools())
    }

    /// Registers these in place of those of before.
    pub async fn register_tools(&self, new: &Registration) -> Result<ToolsInfo, Failure> {
        new.request().check()?;
        let text = serde_json::to_string(new)
            .map_err(|e| Failure::new(Code::Internal, "cannot note the tools").detail(e))?;
        let _turn = self.registering().await;
        let guest = self.guest().await?;
        self.look().await?;
        let before = self.note(NOTE).unwrap_or_else(|| NOTHING.to_owned());
        // The note comes first: whoever installs what it says can't be wrong for long.
        self.set_note(NOTE, text).await?;
        let installed = match self.install(&guest).await {
            Ok(Some(info)) => Ok(info),
            Ok(None) => Err(Failure::new(Code::Conflict, "the tools were taken back")),
            Err(failure) => Err(failure),
        };
        if installed.is_err() && self.known_tools().as_ref() == Some(new) {
            // Nothing was installed, so what was there goes on.
            self.set_note(NOTE, before).await?;
        }
        installed.map(|info| ToolsInfo {
            tool_count: new.tools.len() as u32,
            ..info
        })
    }

    /// Installs what is registered. Another server may register something at the same time, so
    /// what was installed is looked at again.
    async fn install(&self, guest: &GuestClient) -> Result<Option<ToolsInfo>, Failure> {
        let mut wanted = self.tools().await?;
        let mut info = None;
        for _ in 0..TRIES {
            let Some(now) = wanted else {
                return Ok(info);
            };
            info = Some(guest.register_tools(&now.request()).await?);
            wanted = self.tools().await?;
            if wanted.as_ref() == Some(&now) {
                break;
            }
        }
        Ok(info)
    }

    /// Tells a guest that was just reached of the tools. One that can't be told is still of use.
    pub(super) async fn restore_tools(&self, guest: &GuestClient) {
        if !self.has_tools() {
            return;
        }
        if let Err(failure) = self.install(guest).await {
            tracing::warn!(session = %self.id, detail = failure.detail, "cannot install the tools again: {failure}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_never_printed() {
        let tool = Tool {
            name: "f".to_owned(),
            doc: "secret".to_owned(),
        };
        let registration = Registration {
            callback_url: "http://user.example/secret".to_owned(),
            token: "secret".to_owned(),
            timeout_ms: 1000,
            tools: vec![tool],
        };
        assert_eq!(format!("{registration:?}"), r#"["f"]"#);
    }
}
