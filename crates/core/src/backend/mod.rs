//! What makes sandboxes, and nothing else.

pub mod native;

use crate::plan::{Guarantees, Plan, SandboxId};
use async_trait::async_trait;
use ringfence_proto::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
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

/// A sandbox as its engine knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SandboxInfo {
    pub id: SandboxId,
    pub state: SandboxState,
    pub labels: BTreeMap<String, String>,
    /// Seconds since the epoch.
    pub created: f64,
}

/// An engine that makes sandboxes with our guest in them.
///
/// The contract, which `tests/conformance` holds every backend to:
/// - `create` answers when the guest can be dialled, or fails and leaves nothing behind. A plan
///   whose sandbox is suspended starts that one.
/// - `dial` gives a new stream to the guest each time; dialling is cheap and may be repeated.
/// - `suspend` frees processes and memory and keeps files.
/// - `destroy` answers when processes, memory and files are gone; destroying what is not there
///   is no failure.
/// - `list` is the truth: it reads the engine, not a memory of our own.
#[async_trait]
pub trait Backend: Send + Sync {
    /// What this engine can enforce, on this host, now.
    async fn guarantees(&self) -> Result<Guarantees, Failure>;
    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure>;
    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure>;
    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure>;
    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure>;
    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure>;
}
