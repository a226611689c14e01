//! What a behaviour is tried on.

use crate::behaviours::Behaviour;
use crate::{Outcome, Wrong};
use ringfence_core::proto::{Command, ExecRequest, ExecResult, RunRequest};
use ringfence_core::spec::{SandboxSpec, Workspace};
use ringfence_core::{Backend, GuestClient, Hold, Lifetime, Plan, resolve};
use std::sync::Arc;
use std::time::Duration;

/// One behaviour on one backend.
pub struct Trial {
    pub backend: Arc<dyn Backend>,
}

/// A live sandbox and a connection to its guest.
pub struct Subject {
    pub backend: Arc<dyn Backend>,
    pub plan: Plan,
    pub guest: GuestClient,
}

impl Trial {
    pub async fn run(&self, behaviour: &Behaviour) -> Outcome {
        let guarantees = self.backend.guarantees().await?;
        let hold = |control| {
            guarantees
                .controls
                .get(&control)
                .map_or(Hold::None, |(h, _)| *h)
        };
        if let Some(control) = behaviour.needs.filter(|c| hold(*c) != Hold::Sandbox) {
            // Not enforced here: then asking for it must fail, and the answer must name it.
            let failure = resolve((behaviour.spec)(), Lifetime::Disposable, &guarantees).err();
            let said = failure.is_some_and(|f| f.message.contains(control.name()));
            return if said {
                Ok(())
            } else {
                Err(Wrong("taken, but not enforced".into()))
            };
        }
        let mut spec = (behaviour.spec)();
        // Where no folder of the host can be seen, a volume keeps the files.
        let has_folders = guarantees.backend != "kubernetes";
        if matches!(spec.workspace, Workspace::Folder { .. }) && !has_folders {
            spec.workspace = Workspace::Disk;
        }
        let subject = Subject::new(&self.backend, spec, behaviour.lifetime).await?;
        let id = subject.plan.id.clone();
        let limit = Duration::from_secs(100);
        let outcome = tokio::time::timeout(limit, (behaviour.run)(&subject)).await;
        drop(subject);
        self.backend.destroy(&id).await?;
        let left = self.backend.list().await?;
        if left.iter().any(|s| *s.id() == id) {
            return Err(Wrong("it is still listed after its end".into()));
        }
        outcome.unwrap_or_else(|_| Err(Wrong("it hangs".into())))
    }
}

impl Subject {
    pub async fn new(
        backend: &Arc<dyn Backend>,
        spec: SandboxSpec,
        lifetime: Lifetime,
    ) -> Result<Self, Wrong> {
        let plan = resolve(spec, lifetime, &backend.guarantees().await?)?;
        backend.create(&plan).await?;
        let guest = GuestClient::connect(backend.dial(&plan.id).await?).await?;
        Ok(Self {
            backend: Arc::clone(backend),
            plan,
            guest,
        })
    }

    pub async fn exec(&self, argv: &[&str]) -> Result<ExecResult, Wrong> {
        let argv = argv.iter().map(|a| (*a).to_owned()).collect();
        Ok(self
            .guest
            .exec(&ExecRequest::new(Command::Argv(argv)))
            .await?)
    }

    pub async fn shell(&self, text: &str) -> Result<ExecResult, Wrong> {
        Ok(self
            .guest
            .exec(&ExecRequest::new(Command::Shell(text.to_owned())))
            .await?)
    }

    pub async fn python(&self, code: &str) -> Result<ExecResult, Wrong> {
        self.python_within(code, 30_000).await
    }

    pub async fn python_within(&self, code: &str, ms: u64) -> Result<ExecResult, Wrong> {
        let request = RunRequest {
            code: code.into(),
            timeout_ms: Some(ms),
            ..RunRequest::default()
        };
        Ok(self.guest.run("main", &request).await?)
    }
}
