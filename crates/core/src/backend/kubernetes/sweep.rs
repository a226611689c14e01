//! The removal of what makers that died in the middle left in the namespace, by any server.

use super::fate::{Fate, fate};
use super::removal::unchanged;
use super::{Kubernetes, LABEL, POOL, plan_of};
use crate::plan::Lifetime;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use ringfence_proto::Failure;
use serde::Serialize;
use std::time::Duration;

/// Longer than it takes to make a pod, the fetching of its images included.
pub(super) const STALE: Duration = Duration::from_secs(600);

/// How long a pod is kept ready: whose server is gone is not for ever there.
pub(super) const PARKED: Duration = Duration::from_secs(1800);

/// What a sweep removed, by the cluster's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    pub pods: Vec<String>,
    /// Objects of agent-sandbox, each with its kind.
    pub objects: Vec<String>,
}

/// Longer than a node takes to end a pod that is deleted: then its node is gone, and nobody else
/// says that it has ended.
const ENDING: Duration = Duration::from_secs(10);

/// Whether nobody will come back for a pod: its maker died before it ran, or it was disposable.
fn is_left(pod: &Pod) -> bool {
    if let Some(deleted) = &pod.metadata.deletion_timestamp {
        let ago = super::now() - deleted.0.as_second() as f64;
        return ago > ENDING.as_secs_f64() && pod.finalizers().is_empty();
    }
    let age = pod
        .creation_timestamp()
        .map_or(0.0, |at| super::now() - at.0.as_second() as f64);
    let parked = pod.labels().get(LABEL).map(String::as_str) == Some(POOL);
    let plan = plan_of(pod);
    if !parked && plan.is_none() {
        // One that the controller of agent-sandbox keeps ready, and looks after.
        return false;
    }
    let disposable = plan.is_some_and(|plan| plan.lifetime == Lifetime::Disposable);
    match fate(pod) {
        Fate::Running => parked && age > PARKED.as_secs_f64(),
        Fate::Ended(_) if parked => true,
        Fate::Ended(_) => disposable,
        Fate::Coming | Fate::Unschedulable(_) | Fate::Refused(_) => age > STALE.as_secs_f64(),
    }
}

impl Kubernetes {
    /// Removes pods that never ran, disposable ones whose maker is gone, what was parked long ago,
    /// and objects that nobody made a pod of.
    pub async fn sweep(&self) -> Result<Swept, Failure> {
        let watch = self.watch().await?;
        watch.complete().await?;
        let mut swept = Swept::default();
        for pod in watch.all() {
            if is_left(&pod) {
                let name = pod.name_any();
                // What is known may be old: a parked one may be somebody's by now.
                if self.remove_pod(&name, Some(unchanged(&pod))).await? {
                    swept.pods.push(name);
                }
            }
        }
        if self.is_agent() {
            swept.objects = self.sweep_objects(watch, &self.shapes()).await?;
        }
        Ok(swept)
    }
}
