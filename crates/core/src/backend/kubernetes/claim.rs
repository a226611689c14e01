//! Work folders that outlive their pods: volume claims. A claim says what its sandbox is, so that
//! any server can give it a new pod.

use super::cluster::{failed, persist, status};
use super::{
    Kubernetes, LABEL, NOTES_NOTE, PLAN_NOTE, SANDBOX_LABEL, container_of, notes_of, pod_name,
    text_of,
};
use crate::backend::{Notes, SandboxInfo, SandboxState};
use crate::plan::{Plan, SandboxId};
use crate::spec::Workspace;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use ringfence_proto::{Code, Failure};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;

/// On a claim whose pod was dropped on purpose.
const SUSPENDED: &str = "ringfence.suspended";

/// The claim of a plan's work folder: one that is there, or its own.
pub(super) fn name(plan: &Plan) -> Option<String> {
    let cluster = plan.container.as_ref().and_then(|c| c.kubernetes.as_ref());
    let asked = cluster.and_then(|cluster| cluster.claim.clone());
    match plan.workspace {
        Workspace::Disk => Some(pod_name(&plan.id)),
        _ => asked,
    }
}

/// A claim that a new pod gets.
pub(super) struct Claimed {
    /// It was not there before.
    pub(super) made: bool,
    pub(super) suspended: bool,
    pub(super) notes: Option<String>,
}

impl Kubernetes {
    async fn claims(&self) -> Result<Api<PersistentVolumeClaim>, Failure> {
        let reached = self.reach().await?;
        Ok(Api::namespaced(reached.client.clone(), &reached.namespace))
    }

    /// The claim of a sandbox, made where there is none.
    pub(super) async fn claim_volume(&self, plan: &Plan) -> Result<Claimed, Failure> {
        let Some(class) = &self.config.storage_class else {
            let message = "no volumes can be made here for files that outlive their pod";
            return Err(Failure::new(Code::Unenforceable, message)
                .hint("the server's configuration decides: kubernetes.storage_class"));
        };
        container_of(plan)?;
        let name = pod_name(&plan.id);
        let claim = json!({
            "metadata": {
                "name": name,
                "labels": {
                    LABEL: "sandbox",
                    SANDBOX_LABEL: plan.id,
                    "app.kubernetes.io/managed-by": "ringfence",
                },
                "annotations": {PLAN_NOTE: text_of(plan)?},
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": class,
                "resources": {"requests": {"storage": plan.limits.workspace.0.to_string()}},
            },
        });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim)
            .map_err(|e| Failure::new(Code::Internal, "cannot describe a claim").detail(e))?;
        let claims = self.claims().await?;
        let parameters = PostParams::default();
        match persist(|| claims.create(&parameters, &claim)).await {
            Ok(_) => Ok(Claimed {
                made: true,
                suspended: false,
                notes: None,
            }),
            Err(error) if status(&error) == Some(409) => {
                let found = persist(|| claims.get(&name)).await;
                let found = found.map_err(|e| failed(format!("cannot look at claim {name}"), e))?;
                Ok(Claimed {
                    made: false,
                    suspended: found.annotations().contains_key(SUSPENDED),
                    notes: found.annotations().get(NOTES_NOTE).cloned(),
                })
            }
            Err(error) => Err(failed(format!("cannot make claim {name}"), error)),
        }
    }

    pub(super) async fn mark_volume(
        &self,
        id: &SandboxId,
        suspended: bool,
        notes: Option<&Notes>,
    ) -> Result<(), Failure> {
        let mark = match suspended {
            true => json!("true"),
            false => Value::Null,
        };
        let mut annotations = json!({SUSPENDED: mark});
        if let Some(notes) = notes {
            annotations[NOTES_NOTE] = json!(text_of(notes)?);
        }
        let patch = json!({"metadata": {"annotations": annotations}});
        self.patch_volume(id, &patch).await
    }

    pub(super) async fn patch_volume(&self, id: &SandboxId, patch: &Value) -> Result<(), Failure> {
        let claims = self.claims().await?;
        let name = pod_name(id);
        let parameters = PatchParams::default();
        let patch = Patch::Merge(patch);
        match persist(|| claims.patch(&name, &parameters, &patch)).await {
            Ok(_) => Ok(()),
            Err(error) if status(&error) == Some(404) => Err(super::unknown(id)),
            Err(error) => Err(failed(format!("cannot change claim {name}"), error)),
        }
    }

    /// Removes the volume of a sandbox, where there may be one.
    pub(super) async fn remove_volume(&self, id: &SandboxId) -> Result<(), Failure> {
        if self.config.storage_class.is_none() {
            return Ok(());
        }
        let claims = self.claims().await?;
        let name = pod_name(id);
        let parameters = DeleteParams::default();
        match persist(|| claims.delete(&name, &parameters)).await {
            Ok(_) => Ok(()),
            Err(error) if status(&error) == Some(404) => Ok(()),
            Err(error) => Err(failed(format!("cannot remove claim {name}"), error)),
        }
    }

    /// Sandboxes that have a volume and no pod.
    pub(super) async fn without_pod(&self, pods: &[Arc<Pod>]) -> Result<Vec<SandboxInfo>, Failure> {
        if self.config.storage_class.is_none() {
            return Ok(Vec::new());
        }
        let claims = self.claims().await?;
        let parameters = ListParams::default().labels(SANDBOX_LABEL);
        let listed = persist(|| claims.list(&parameters)).await;
        let listed = listed.map_err(|e| failed("cannot list claims", e))?;
        let names: HashSet<_> = pods.iter().map(|pod| pod.name_any()).collect();
        let gone = listed
            .items
            .iter()
            .filter(|claim| !names.contains(&claim.name_any()));
        Ok(gone.filter_map(info).collect())
    }

    pub(super) async fn find_volume(&self, id: &SandboxId) -> Result<Option<SandboxInfo>, Failure> {
        if self.config.storage_class.is_none() {
            return Ok(None);
        }
        let claims = self.claims().await?;
        let name = pod_name(id);
        let found = persist(|| claims.get_opt(&name)).await;
        let found = found.map_err(|e| failed(format!("cannot look at claim {name}"), e))?;
        Ok(found.as_ref().and_then(info))
    }
}

/// A sandbox whose pod is gone.
fn info(claim: &PersistentVolumeClaim) -> Option<SandboxInfo> {
    if claim.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let annotations = claim.annotations();
    Some(SandboxInfo {
        plan: serde_json::from_str(annotations.get(PLAN_NOTE)?).ok()?,
        state: match annotations.contains_key(SUSPENDED) {
            true => SandboxState::Suspended,
            false => SandboxState::Dead,
        },
        created: claim
            .creation_timestamp()
            .map_or(0.0, |at| at.0.as_second() as f64),
        notes: notes_of(annotations),
    })
}
