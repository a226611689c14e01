//! A sandbox that is removed when nobody holds it any more.

use crate::backend::Backend;
use crate::guest::GuestClient;
use crate::plan::{Plan, SandboxId};
use ringfence_proto::{Code, Failure};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::JoinSet;

/// Sandboxes on their way out. The answer does not wait for them; whoever ends the process does.
#[derive(Clone, Default)]
pub(super) struct Removals(Arc<Mutex<JoinSet<()>>>);

impl Removals {
    fn add(&self, backend: Arc<dyn Backend>, id: SandboxId) {
        // Without a runtime the process ends, and its disposable sandboxes with it.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.try_join_next().is_some() {}
        all.spawn(async move {
            if let Err(failure) = backend.destroy(&id).await {
                tracing::warn!(sandbox = %id, detail = failure.detail, "{failure}");
            }
        });
    }

    /// Answers when all are gone.
    pub(super) async fn finish(&self) {
        let all = {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *all)
        };
        all.join_all().await;
    }
}

/// One sandbox, until it is dropped.
pub(super) struct Disposable {
    pub(super) guest: GuestClient,
    _hold: Hold,
}

struct Hold {
    backend: Arc<dyn Backend>,
    id: SandboxId,
    removals: Removals,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.removals
            .add(Arc::clone(&self.backend), self.id.clone());
    }
}

impl Disposable {
    /// Makes it. Goes on when the caller goes away, and then removes it again.
    pub(super) async fn make(
        backend: &Arc<dyn Backend>,
        removals: &Removals,
        plan: Plan,
    ) -> Result<Self, Failure> {
        let (done, made) = tokio::sync::oneshot::channel();
        let maker = Arc::clone(backend);
        let hold = Hold {
            backend: Arc::clone(backend),
            id: plan.id.clone(),
            removals: removals.clone(),
        };
        tokio::spawn(async move {
            let made = maker.create(&plan).await.map(|_| hold);
            // A hold that nobody takes is dropped here.
            drop(done.send(made));
        });
        let broke = |e| Failure::new(Code::Internal, "the creation broke off").detail(e);
        let hold = made.await.map_err(broke)??;
        let guest = GuestClient::connect(backend.dial(&hold.id).await?).await?;
        Ok(Self { guest, _hold: hold })
    }
}
