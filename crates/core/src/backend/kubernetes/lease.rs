//! Who has a sandbox's name where its pod has another: a lease, which the API server grants once.
//!
//! Two may want one sandbox: who holds the lease for a pod that was ready, and who posts a pod of
//! the sandbox's name. The holder looks for such a pod before it claims its own, and then backs
//! off. The maker looks for a lease after it has posted, and the leased pod decides: where that is
//! claimed, the maker backs off; else it changes that pod, so that a claim, which is a change at
//! the version that was seen, can't succeed any more. So one of the two goes on, and never both.

use super::cluster::{failed, persist, status};
use super::{Kubernetes, LABEL, POOL, SANDBOX_LABEL, is_going, pod_name, sandbox_of};
use crate::plan::SandboxId;
use crate::random_hex;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use ringfence_proto::{Code, Failure};
use serde_json::json;

/// On a ready pod that somebody was not to get any more.
const DENIED_NOTE: &str = "ringfence.denied";
/// Seconds after which who holds a lease and has not claimed its pod is taken for dead. One that
/// is only slow finds that it can't claim it.
const HELD: f64 = 10.0;
/// How often a lease is tried for that others let go.
const TRIES: usize = 5;

/// Whose a leased pod is.
enum Leased {
    /// The sandbox has it.
    Claimed,
    /// The sandbox does not have it, and won't by this lease.
    Void,
}

fn owner(lease: &Lease) -> Option<&OwnerReference> {
    lease.owner_references().first()
}

impl Kubernetes {
    async fn leases(&self) -> Result<Api<Lease>, Failure> {
        let reached = self.reach().await?;
        Ok(Api::namespaced(reached.client.clone(), &reached.namespace))
    }

    async fn lease_of(&self, id: &SandboxId) -> Result<Option<Lease>, Failure> {
        let (name, leases) = (pod_name(id), self.leases().await?);
        match persist(|| leases.get_opt(&name)).await {
            Ok(found) => Ok(found),
            // Who may not look at leases has nobody who makes them.
            Err(error) if status(&error) == Some(403) => Ok(None),
            Err(error) => Err(failed(format!("cannot look at lease {name}"), error)),
        }
    }

    /// Takes the name of a sandbox for a pod that has another; none where somebody has it. The
    /// cluster removes the lease with its pod.
    pub(super) async fn lease(&self, id: &SandboxId, pod: &Pod) -> Result<Option<Lease>, Failure> {
        let name = pod_name(id);
        let lease = json!({
            "metadata": {
                "name": name,
                "labels": {LABEL: "claim", SANDBOX_LABEL: id},
                "ownerReferences": [{
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": pod.name_any(),
                    "uid": pod.uid(),
                }],
            },
            "spec": {"holderIdentity": self.maker},
        });
        let lease: Lease = serde_json::from_value(lease)
            .map_err(|e| Failure::new(Code::Internal, "cannot describe a lease").detail(e))?;
        let leases = self.leases().await?;
        let parameters = PostParams::default();
        for _ in 0..TRIES {
            match persist(|| leases.create(&parameters, &lease)).await {
                Ok(made) => return Ok(Some(made)),
                Err(error) if status(&error) == Some(409) => {}
                Err(error) => return Err(failed(format!("cannot make lease {name}"), error)),
            }
            let Some(found) = self.lease_of(id).await? else {
                continue;
            };
            // It may be ours: the answer to the first try was lost.
            if found.spec == lease.spec && owner(&found) == owner(&lease) {
                return Ok(Some(found));
            }
            if self.is_fresh(&found).await? {
                return Ok(None);
            }
            match self.judge(id, &found).await? {
                Leased::Claimed => return Ok(None),
                Leased::Void => self.release(&found).await?,
            }
        }
        Ok(None)
    }

    /// Whether who holds a lease may be about to claim its pod.
    async fn is_fresh(&self, lease: &Lease) -> Result<bool, Failure> {
        let made = lease.creation_timestamp();
        let age = made.map_or(0.0, |at| super::now() - at.0.as_second() as f64);
        Ok(age < HELD && self.leased_pod(lease).await?.is_some())
    }

    async fn leased_pod(&self, lease: &Lease) -> Result<Option<Pod>, Failure> {
        let Some(owner) = owner(lease) else {
            return Ok(None);
        };
        let (name, pods) = (&owner.name, self.pods().await?);
        let found = persist(|| pods.get_opt(name)).await;
        let found = found.map_err(|e| failed(format!("cannot look at pod {name}"), e))?;
        Ok(found.filter(|pod| pod.uid().as_ref() == Some(&owner.uid) && !is_going(pod)))
    }

    /// Sees whether a sandbox has the pod that is leased for it; where not, it does not get it any
    /// more.
    async fn judge(&self, id: &SandboxId, lease: &Lease) -> Result<Leased, Failure> {
        loop {
            let Some(pod) = self.leased_pod(lease).await? else {
                return Ok(Leased::Void);
            };
            if sandbox_of(&pod) == Some(id.as_str()) {
                return Ok(Leased::Claimed);
            }
            if pod.labels().get(LABEL).map(String::as_str) != Some(POOL) {
                // Another sandbox has it.
                return Ok(Leased::Void);
            }
            // A value that was there before would change nothing.
            let patch = json!({"metadata": {
                "resourceVersion": pod.resource_version(),
                "annotations": {DENIED_NOTE: random_hex::<8>()?},
            }});
            match self.patch(&pod.name_any(), &patch).await {
                Ok(()) => return Ok(Leased::Void),
                // It was changed meanwhile.
                Err(error) if matches!(status(&error), Some(404 | 409)) => {}
                Err(error) => {
                    let what = format!("cannot see whether {id} has a pod that was ready");
                    return Err(failed(what, error));
                }
            }
        }
    }

    /// Whether a pod was made under the name of a sandbox.
    pub(super) async fn is_taken(&self, id: &SandboxId) -> Result<bool, Failure> {
        let (name, pods) = (pod_name(id), self.pods().await?);
        let found = persist(|| pods.get_opt(&name)).await;
        let found = found.map_err(|e| failed(format!("cannot look at pod {name}"), e))?;
        Ok(found.is_some())
    }

    /// Whether somebody has this sandbox in a pod of another name; where not, nobody gets it so
    /// any more as long as there is a pod of its own name.
    pub(super) async fn is_leased(&self, id: &SandboxId) -> Result<bool, Failure> {
        match self.lease_of(id).await? {
            Some(lease) => Ok(matches!(self.judge(id, &lease).await?, Leased::Claimed)),
            None => Ok(false),
        }
    }

    /// Removes this lease, and no newer one of its name.
    pub(super) async fn release(&self, lease: &Lease) -> Result<(), Failure> {
        let (name, leases) = (lease.name_any(), self.leases().await?);
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: lease.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match persist(|| leases.delete(&name, &parameters)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(status(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(failed(format!("cannot remove lease {name}"), error)),
        }
    }

    /// Removes the lease by which a sandbox had this pod.
    pub(super) async fn release_pod(&self, id: &SandboxId, pod: &str) -> Result<(), Failure> {
        match self.lease_of(id).await? {
            Some(lease) if owner(&lease).is_some_and(|owner| owner.name == pod) => {
                self.release(&lease).await
            }
            _ => Ok(()),
        }
    }
}
