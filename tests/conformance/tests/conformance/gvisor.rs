//! Docker with gVisor as the runtime of every container.

use async_trait::async_trait;
use ringfence_core::backend::docker::Docker;
use ringfence_core::backend::{Io, SandboxInfo};
use ringfence_core::plan::{Guarantees, Plan, SandboxId};
use ringfence_core::{Backend, Failure};
use std::sync::Arc;

/// What is not tried on it, and why.
pub(crate) const LACKS: &[(&str, &str)] = &[
    ("memory", NO_CGROUPS),
    ("pids", NO_CGROUPS),
    ("timeout_kills_the_whole_tree", NO_SUBREAPERS),
    ("cancel_kills_the_whole_tree", NO_SUBREAPERS),
    ("tool_calls_are_cancelled_with_their_callers", SLOW),
];

const NO_CGROUPS: &str = "the test engine's runsc ignores cgroups";
/// It ends with the sandbox.
const NO_SUBREAPERS: &str = "what has forked twice is not below its supervisor";
const SLOW: &str = "a call has half a second there, too short for ptrace";

pub(crate) struct Gvisor(pub(crate) Arc<Docker>);

#[async_trait]
impl Backend for Gvisor {
    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        let mut plan = plan.clone();
        if let Some(container) = &mut plan.container {
            container.runtime = Some("runsc".to_owned());
        }
        self.0.create(&plan).await
    }

    async fn guarantees(&self) -> Result<Guarantees, Failure> {
        self.0.guarantees().await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure> {
        self.0.dial(id).await
    }

    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure> {
        self.0.suspend(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure> {
        self.0.destroy(id).await
    }

    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        self.0.annotate(id, name, value).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure> {
        self.0.list().await
    }
}
