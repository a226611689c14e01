//! A backend whose failures and times are counted.

use super::seen;
use async_trait::async_trait;
use ringfence_core::backend::Place;
use ringfence_core::proto::Certificate;
use ringfence_core::{Backend, Failure, Guarantees, Io, Plan, SandboxId, SandboxInfo};
use std::sync::Arc;
use std::time::Instant;

pub(crate) struct Watched(pub Arc<dyn Backend>);

async fn counted<T>(
    operation: &'static str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let begun = Instant::now();
    let done = work.await;
    let failed = done.as_ref().err().map(|failure| failure.code);
    seen::backend(operation, begun.elapsed(), failed);
    done
}

#[async_trait]
impl Backend for Watched {
    async fn guarantees(&self) -> Result<Guarantees, Failure> {
        counted("guarantees", self.0.guarantees()).await
    }

    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        counted("create", self.0.create(plan)).await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure> {
        counted("dial", self.0.dial(id)).await
    }

    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure> {
        counted("suspend", self.0.suspend(id)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure> {
        counted("destroy", self.0.destroy(id)).await
    }

    async fn bury(&self, id: &SandboxId) -> Result<(), Failure> {
        counted("bury", self.0.bury(id)).await
    }

    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        counted("annotate", self.0.annotate(id, name, value)).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure> {
        counted("list", self.0.list()).await
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<SandboxInfo>, Failure> {
        counted("find", self.0.find(id)).await
    }

    async fn tidy(&self) -> Result<(), Failure> {
        counted("tidy", self.0.tidy()).await
    }

    fn is_absent(&self) -> bool {
        self.0.is_absent()
    }

    fn prepare(&self, plan: &Plan) {
        self.0.prepare(plan);
    }

    async fn close(&self) -> Result<(), Failure> {
        counted("close", self.0.close()).await
    }

    async fn place(&self, id: &SandboxId) -> Result<Option<Place>, Failure> {
        counted("place", self.0.place(id)).await
    }

    fn epitaph(&self, id: &SandboxId) -> Option<Certificate> {
        self.0.epitaph(id)
    }

    async fn autopsy(&self, id: &SandboxId) -> Option<Certificate> {
        self.0.autopsy(id).await
    }

    async fn ready(&self) -> Result<(), Failure> {
        counted("ready", self.0.ready()).await
    }
}
