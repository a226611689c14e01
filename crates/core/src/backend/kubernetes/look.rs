//! What the cluster is and what it lets us do, asked of it: for people, before they trust it.

use super::cluster::{failed, persist, status};
use super::{Kubernetes, Reach, Sandboxes, unknown};
use crate::guest::GuestClient;
use crate::plan::SandboxId;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use ringfence_proto::{Code, Failure};
use serde_json::json;

const EVERY: &[&str] = &["create", "delete", "get", "list", "patch"];

/// The cluster that is meant, as we reach it.
#[derive(Debug, Clone)]
pub struct About {
    pub address: String,
    pub version: (u32, u32),
    pub namespace: String,
    /// Sandboxes are reached by address, and not through the API server.
    pub by_address: bool,
}

/// Something that could be done in the cluster, and whether we may.
#[derive(Debug, Clone)]
pub struct Right {
    /// Such as `create pods`.
    pub what: String,
    pub allowed: bool,
}

/// A resource, and what is done with it.
struct Asked {
    group: &'static str,
    resource: &'static str,
    part: Option<&'static str>,
    verbs: &'static [&'static str],
}

fn asked(group: &'static str, resource: &'static str, verbs: &'static [&'static str]) -> Asked {
    Asked {
        group,
        resource,
        part: None,
        verbs,
    }
}

fn exec(verbs: &'static [&'static str]) -> Asked {
    Asked {
        part: Some("exec"),
        ..asked("", "pods", verbs)
    }
}

impl Kubernetes {
    pub async fn about(&self) -> Result<About, Failure> {
        let reached = self.reach().await?;
        Ok(About {
            address: reached.address.clone(),
            version: reached.version,
            namespace: reached.namespace.clone(),
            by_address: match self.config.reach {
                Reach::Auto => reached.inside,
                reach => reach == Reach::Address,
            },
        })
    }

    /// What a server that is configured like this does, with whether it may.
    pub async fn rights(&self) -> Result<Vec<Right>, Failure> {
        let mut all = vec![asked(
            "",
            "pods",
            &["delete", "get", "list", "watch", "patch"],
        )];
        all.push(asked("", "events", &["list"]));
        if !self.about().await?.by_address {
            all.push(exec(&["create", "get"]));
        }
        if self.config.storage_class.is_some() {
            all.push(asked("", "persistentvolumeclaims", EVERY));
        }
        let pooled = self.config.pool > 0;
        match self.config.sandboxes {
            Sandboxes::Pods => {
                all.push(asked("", "pods", &["create"]));
                if pooled {
                    let verbs = &["create", "delete", "get", "list"];
                    all.push(asked("coordination.k8s.io", "leases", verbs));
                }
            }
            Sandboxes::AgentSandbox => all.extend(
                super::agent::rights(pooled)
                    .map(|(group, resource, verbs)| asked(group, resource, verbs)),
            ),
        }
        self.ask_all(all).await
    }

    /// What no server needs and an attacker would like, with whether we may.
    pub async fn excess(&self) -> Result<Vec<Right>, Failure> {
        let mut all = vec![
            asked("", "secrets", &["get"]),
            asked("rbac.authorization.k8s.io", "rolebindings", &["create"]),
        ];
        if self.about().await?.by_address {
            all.push(exec(&["create"]));
        }
        self.ask_all(all).await
    }

    async fn ask_all(&self, all: Vec<Asked>) -> Result<Vec<Right>, Failure> {
        let mut rights = Vec::new();
        for one in all {
            let part = one.part.map(|part| format!("/{part}")).unwrap_or_default();
            for verb in one.verbs {
                rights.push(Right {
                    what: format!("{verb} {}{part}", one.resource),
                    allowed: self.may(&one, verb).await?,
                });
            }
        }
        Ok(rights)
    }

    async fn may(&self, asked: &Asked, verb: &str) -> Result<bool, Failure> {
        let reached = self.reach().await?;
        let review = json!({"spec": {"resourceAttributes": {
            "namespace": reached.namespace,
            "group": asked.group,
            "resource": asked.resource,
            "subresource": asked.part,
            "verb": verb,
        }}});
        let review: SelfSubjectAccessReview = serde_json::from_value(review)
            .map_err(|e| Failure::new(Code::Internal, "cannot describe a review").detail(e))?;
        let reviews = Api::all(reached.client.clone());
        let parameters = PostParams::default();
        let reviewed = persist(|| reviews.create(&parameters, &review)).await;
        let reviewed: SelfSubjectAccessReview =
            reviewed.map_err(|e| failed("cannot ask what is allowed", e))?;
        Ok(reviewed.status.is_some_and(|status| status.allowed))
    }

    /// Whether the namespace is there; none where we may not look.
    pub async fn has_namespace(&self) -> Result<Option<bool>, Failure> {
        let reached = self.reach().await?;
        let namespaces: Api<Namespace> = Api::all(reached.client.clone());
        let found = persist(|| namespaces.get_opt(&reached.namespace)).await;
        match found {
            Ok(found) => Ok(Some(found.is_some())),
            Err(error) if status(&error) == Some(403) => Ok(None),
            Err(error) => Err(failed("cannot look at the namespace", error)),
        }
    }

    /// The runtime classes of the cluster; none where we may not look.
    pub async fn runtime_classes(&self) -> Result<Option<Vec<String>>, Failure> {
        let classes: Api<RuntimeClass> = Api::all(self.reach().await?.client.clone());
        let parameters = ListParams::default();
        match persist(|| classes.list(&parameters)).await {
            Ok(listed) => Ok(Some(listed.items.iter().map(|c| c.name_any()).collect())),
            Err(error) if status(&error) == Some(403) => Ok(None),
            Err(error) => Err(failed("cannot list runtime classes", error)),
        }
    }

    /// Fails where a sandbox can't be reached in this way.
    pub async fn try_reach(&self, id: &SandboxId, by_address: bool) -> Result<(), Failure> {
        let pod = self.pod_of(id).await?.ok_or_else(|| unknown(id))?;
        let guest = GuestClient::connect(self.open_by(&pod, id, by_address).await?).await?;
        guest.health().await.map(drop)
    }
}
