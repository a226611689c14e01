//! What makes sandboxes, and nothing else.

pub mod docker;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod native;
mod notes;
mod process;
pub mod progress;

use crate::plan::{Guarantees, Plan, SandboxId};
use async_trait::async_trait;
use ringfence_proto::{Certificate, Code, Failure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use tokio::io::{AsyncRead, AsyncWrite};

/// A byte stream to a guest.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    Running,
    /// Its files are kept; [`Backend::create`] with its plan starts it again.
    Suspended,
    /// It ended and has not been removed.
    Dead,
}

/// What is noted about a sandbox after it was made. It goes when the sandbox goes, and nothing
/// inside can read it.
pub type Notes = BTreeMap<String, String>;

/// A sandbox as its engine knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// As it was made; with it a suspended one is started again.
    pub plan: Plan,
    pub state: SandboxState,
    /// Seconds since the epoch.
    pub created: f64,
    pub notes: Notes,
}

impl SandboxInfo {
    pub fn id(&self) -> &SandboxId {
        &self.plan.id
    }
}

/// Where an engine has put a sandbox, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub name: String,
    pub address: Option<String>,
}

/// An engine that makes sandboxes with our guest in them.
///
/// The contract, which `tests/conformance` holds every backend to:
/// - `create` answers when the guest can be dialled, or fails and leaves nothing behind. A plan
///   whose sandbox is suspended starts that one.
/// - `dial` gives a new stream to the guest each time; dialling is cheap and may be repeated.
/// - `suspend` frees processes and memory and keeps files. One that is dead can be suspended too,
///   if its files are still there.
/// - `destroy` answers when processes, memory and files are gone; destroying what is not there
///   is no failure.
/// - `list` is the truth: it reads the engine, not a memory of our own. `find` is the same for one.
/// - `annotate` sets one note of a sandbox. Others stay, also those that another server sets at the
///   same moment; readers see the old or the new one.
#[async_trait]
pub trait Backend: Send + Sync {
    /// What this engine can enforce, on this host, now.
    async fn guarantees(&self) -> Result<Guarantees, Failure>;
    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure>;
    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure>;
    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure>;
    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure>;

    /// Removes a sandbox that is dead; one of its id that lives stays, whoever made it.
    async fn bury(&self, id: &SandboxId) -> Result<(), Failure> {
        match self.find(id).await? {
            Some(info) if info.state == SandboxState::Dead => self.destroy(id).await,
            _ => Ok(()),
        }
    }

    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure>;
    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure>;

    /// Fails while no sandbox could be made or reached, for reasons of the engine.
    async fn ready(&self) -> Result<(), Failure> {
        self.guarantees().await?;
        self.list().await.map(drop)
    }

    /// Whether there is no engine at all where one would be, in place of one that fails.
    fn is_absent(&self) -> bool {
        false
    }

    /// Removes what makers that died in the middle left, where the engine does not do so itself.
    async fn tidy(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Makes ready for this plan, where sandboxes can be made before anybody asks for them.
    fn prepare(&self, _plan: &Plan) {}

    /// Removes what was made before anybody asked for it; for a server that stops.
    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Where a sandbox is, on an engine whose names and addresses mean something to others.
    async fn place(&self, _id: &SandboxId) -> Result<Option<Place>, Failure> {
        Ok(None)
    }

    /// Why a sandbox ended that did not end by us, where the engine said so.
    fn epitaph(&self, _id: &SandboxId) -> Option<Certificate> {
        None
    }

    /// The same for one that has just broken off a call, where that can be seen from here; its end
    /// may still be on its way.
    async fn autopsy(&self, _id: &SandboxId) -> Option<Certificate> {
        None
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<SandboxInfo>, Failure> {
        let all = self.list().await?;
        Ok(all.into_iter().find(|sandbox| sandbox.id() == id))
    }
}

/// Finds a file or folder of the host that is to be mounted. Links were followed when the sandbox
/// was described, and never are again: code that may write there could have made one since.
fn source(path: &Path) -> Result<OwnedFd, Failure> {
    ringfence_jail::without_links(path).map_err(|error| {
        let what = format!("cannot mount {}", path.display());
        match error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
            true => Failure::new(
                Code::Forbidden,
                format!("{what}: there is a link on its path"),
            ),
            false => Failure::io(what, &error),
        }
    })
}
