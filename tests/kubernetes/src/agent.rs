//! A stand-in for the controller of kubernetes-sigs/agent-sandbox, in one namespace. It does to
//! objects and pods what that one does, also where it is strict: a claim gives no labels of its
//! own to a pod and changes none of the template, and a pod that is deleted is made again.

use crate::cluster::{Namespace, Outcome, kubeconfig, kubectl_ok};
use futures_util::StreamExt as _;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{Config, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

const GROUP: &str = "agents.x-k8s.io";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io";
const CLAIM_LABEL: &str = "agents.x-k8s.io/claim-uid";

/// Runs until it is dropped.
pub struct Controller(JoinSet<()>);

impl Controller {
    /// Its resources are applied first.
    pub async fn start(namespace: &Namespace) -> Outcome<Self> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/agent-sandbox.yaml");
        kubectl_ok(&["apply", "-f", file])?;
        let established = ["wait", "--for=condition=Established", "-f", file];
        kubectl_ok(&established)?;
        let file = Kubeconfig::read_from(kubeconfig()?)?;
        let options = KubeConfigOptions::default();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await?;
        let standin = StandIn {
            client: Client::try_from(config)?,
            namespace: namespace.0.clone(),
        };
        let changed = Arc::new(Notify::new());
        let mut tasks = JoinSet::new();
        for kind in [
            "Pod",
            "Sandbox",
            "SandboxClaim",
            "SandboxTemplate",
            "SandboxWarmPool",
        ] {
            let (api, changed) = (standin.api(kind), Arc::clone(&changed));
            tasks.spawn(async move {
                let events = watcher(api, Config::default());
                let mut events = std::pin::pin!(events);
                while events.next().await.is_some() {
                    changed.notify_one();
                }
            });
        }
        tasks.spawn(async move {
            loop {
                // What conflicts with another is done at the next look.
                let _ = standin.reconcile().await;
                let _ = tokio::time::timeout(Duration::from_secs(1), changed.notified()).await;
            }
        });
        Ok(Self(tasks))
    }

    /// It is away from now on.
    pub async fn stop(mut self) {
        self.0.shutdown().await;
    }
}

fn resource(kind: &str) -> ApiResource {
    let (group, version) = match kind {
        "Pod" => ("", "v1"),
        "Sandbox" => (GROUP, "v1beta1"),
        _ => (EXTENSIONS, "v1beta1"),
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
}

struct StandIn {
    client: Client,
    namespace: String,
}

fn controller(owner: &DynamicObject, kind: &str) -> Value {
    let resource = resource(kind);
    json!([{
        "apiVersion": resource.api_version,
        "kind": kind,
        "name": owner.name_any(),
        "uid": owner.uid(),
        "controller": true,
        "blockOwnerDeletion": true,
    }])
}

fn is_owned(object: &DynamicObject, owner: &DynamicObject) -> bool {
    let mut owners = object.owner_references().iter();
    owners.any(|one| Some(&one.uid) == owner.uid().as_ref())
}

/// What users may not say, and the controller does.
fn is_system(key: &str) -> bool {
    key.split_once('/')
        .is_some_and(|(domain, _)| domain.ends_with(GROUP))
}

fn texts(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn condition(object: &DynamicObject, ready: bool, reason: &str, message: &str) -> Value {
    json!([{
        "type": "Ready",
        "status": if ready { "True" } else { "False" },
        "reason": reason,
        "message": message,
        "observedGeneration": object.metadata.generation,
        // When it changed matters to nobody here.
        "lastTransitionTime": object.metadata.creation_timestamp,
    }])
}

impl StandIn {
    fn api(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    async fn all(&self, kind: &str) -> Outcome<Vec<DynamicObject>> {
        let listed = self.api(kind).list(&ListParams::default()).await?;
        let live = |object: &DynamicObject| object.metadata.deletion_timestamp.is_none();
        Ok(listed.items.into_iter().filter(live).collect())
    }

    async fn create(&self, kind: &str, metadata: Value, spec: Value) -> Result<(), kube::Error> {
        let mut object = DynamicObject::new("", &resource(kind)).data(json!({"spec": spec}));
        object.metadata = serde_json::from_value(metadata).map_err(kube::Error::SerdeError)?;
        let (api, parameters) = (self.api(kind), PostParams::default());
        api.create(&parameters, &object).await.map(drop)
    }

    async fn patch(&self, kind: &str, name: &str, patch: Value) -> Outcome {
        let api = self.api(kind);
        let patch = Patch::Merge(&patch);
        api.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn say(&self, kind: &str, object: &DynamicObject, status: Value) -> Outcome {
        let differs = status
            .as_object()
            .is_some_and(|new| new.iter().any(|(k, v)| object.data["status"][k] != *v));
        if differs {
            let patch = json!({"status": status});
            let patch = Patch::Merge(&patch);
            let (api, name) = (self.api(kind), object.name_any());
            api.patch_status(&name, &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }

    async fn reconcile(&self) -> Outcome {
        for claim in self.all("SandboxClaim").await? {
            self.claim(&claim).await?;
        }
        for pool in self.all("SandboxWarmPool").await? {
            self.pool(&pool).await?;
        }
        for sandbox in self.all("Sandbox").await? {
            self.sandbox(&sandbox).await?;
        }
        Ok(())
    }

    /// The pool that a claim names, and its template.
    async fn template(&self, pool: &str) -> Outcome<Option<(DynamicObject, DynamicObject)>> {
        let Some(pool) = self.api("SandboxWarmPool").get_opt(pool).await? else {
            return Ok(None);
        };
        let name = pool.data["spec"]["sandboxTemplateRef"]["name"].as_str();
        let name = name.unwrap_or_default().to_owned();
        let template = self.api("SandboxTemplate").get_opt(&name).await?;
        Ok(template.map(|template| (pool, template)))
    }

    /// Keeps as many ready as it says.
    async fn pool(&self, pool: &DynamicObject) -> Outcome {
        let Some((_, template)) = self.template(&pool.name_any()).await? else {
            return Ok(());
        };
        let sandboxes = self.all("Sandbox").await?;
        let own: Vec<_> = sandboxes.iter().filter(|one| is_owned(one, pool)).collect();
        let wanted = pool.data["spec"]["replicas"].as_u64().unwrap_or(1) as usize;
        for _ in own.len()..wanted {
            let metadata = json!({
                "generateName": format!("{}-", pool.name_any()),
                "labels": {"agents.x-k8s.io/warm-pool-sandbox": pool.name_any()},
                "ownerReferences": controller(pool, "SandboxWarmPool"),
            });
            let spec = json!({"podTemplate": template.data["spec"]["podTemplate"]});
            self.create("Sandbox", metadata, spec).await?;
        }
        for one in own.iter().skip(wanted) {
            let parameters = DeleteParams::default();
            let api = self.api("Sandbox");
            api.delete(&one.name_any(), &parameters).await?;
        }
        let count = json!({"replicas": own.len()});
        self.say("SandboxWarmPool", pool, count).await
    }

    /// Gives a claim one of its pool, or makes one.
    async fn claim(&self, claim: &DynamicObject) -> Outcome {
        let own = self.all("Sandbox").await?;
        if let Some(sandbox) = own.iter().find(|one| is_owned(one, claim)) {
            let status = json!({
                "sandbox": {"name": sandbox.name_any()},
                "conditions": sandbox.data["status"]["conditions"],
            });
            return self.say("SandboxClaim", claim, status).await;
        }
        let refuse = async |reason: &str, message: &str| {
            let status = json!({"conditions": condition(claim, false, reason, message)});
            self.say("SandboxClaim", claim, status).await
        };
        let asked = &claim.data["spec"]["additionalPodMetadata"];
        let mut labels = texts(&asked["labels"]).into_iter();
        if let Some((label, _)) = labels.find(|(key, _)| !key.starts_with("sandbox.users.io/")) {
            let message = format!("label {label:?} must have a domain prefix");
            return refuse("InvalidMetadata", &message).await;
        }
        let pool = claim.data["spec"]["warmPoolRef"]["name"].as_str();
        let Some((pool, template)) = self.template(pool.unwrap_or_default()).await? else {
            return refuse("WarmPoolNotFound", "SandboxWarmPool not found").await;
        };
        let mut pod = template.data["spec"]["podTemplate"].clone();
        for kind in ["labels", "annotations"] {
            let mut all = texts(&pod["metadata"][kind]);
            for (key, value) in texts(&asked[kind]) {
                if all.get(&key).is_some_and(|other| *other != value) {
                    return refuse("ReconcilerError", "metadata override conflict").await;
                }
                all.insert(key, value);
            }
            pod["metadata"][kind] = json!(all);
        }
        let parked = own.iter().filter(|one| is_owned(one, &pool));
        let mut parked: Vec<_> = parked.collect();
        parked.sort_by_key(|one| one.data["status"]["conditions"][0]["status"] != "True");
        let mine = json!({CLAIM_LABEL: claim.uid()});
        match parked.first() {
            Some(sandbox) => {
                let patch = json!({
                    "metadata": {
                        "resourceVersion": sandbox.resource_version(),
                        "labels": {
                            CLAIM_LABEL: claim.uid(),
                            "agents.x-k8s.io/warm-pool-sandbox": null,
                        },
                        "ownerReferences": controller(claim, "SandboxClaim"),
                    },
                    "spec": {"podTemplate": {"metadata": pod["metadata"]}},
                });
                self.patch("Sandbox", &sandbox.name_any(), patch).await
            }
            None => {
                let metadata = json!({
                    "name": claim.name_any(),
                    "labels": mine,
                    "ownerReferences": controller(claim, "SandboxClaim"),
                });
                let spec = json!({"podTemplate": pod});
                Ok(self.create("Sandbox", metadata, spec).await?)
            }
        }
    }

    /// Sees that the pod is there, with the labels and annotations that it is to have.
    async fn sandbox(&self, sandbox: &DynamicObject) -> Outcome {
        let name = sandbox.name_any();
        let template = &sandbox.data["spec"]["podTemplate"];
        let mut labels = texts(&template["metadata"]["labels"]);
        labels.retain(|key, _| !is_system(key));
        if let Some(uid) = sandbox.labels().get(CLAIM_LABEL) {
            labels.insert(CLAIM_LABEL.to_owned(), json!(uid));
        }
        let mut annotations = texts(&template["metadata"]["annotations"]);
        annotations.retain(|key, _| !is_system(key));
        let Some(pod) = self.api("Pod").get_opt(&name).await? else {
            let metadata = json!({
                "name": name,
                "labels": labels,
                "annotations": annotations,
                "ownerReferences": controller(sandbox, "Sandbox"),
            });
            let made = self.create("Pod", metadata, template["spec"].clone()).await;
            let Err(error) = made else {
                return Ok(());
            };
            let said = format!("Error seen: {error}");
            let status = json!({"conditions": condition(sandbox, false, "ReconcilerError", &said)});
            return self.say("Sandbox", sandbox, status).await;
        };
        if !is_owned(&pod, sandbox) {
            return Ok(());
        }
        let has = |all: &std::collections::BTreeMap<String, String>, wanted: &Map<_, Value>| {
            let mut wanted = wanted.iter();
            wanted.all(|(key, value)| all.get(key).map(String::as_str) == value.as_str())
        };
        if !has(pod.labels(), &labels) || !has(pod.annotations(), &annotations) {
            let patch = json!({"metadata": {"labels": labels, "annotations": annotations}});
            self.patch("Pod", &name, patch).await?;
        }
        let conditions = pod.data["status"]["conditions"].as_array();
        let ready = conditions.is_some_and(|all| {
            let mut all = all.iter();
            all.any(|one| one["type"] == "Ready" && one["status"] == "True")
        });
        let (reason, message) = match ready {
            true => ("DependenciesReady", "Pod is Ready"),
            false => ("DependenciesNotReady", "Pod is not Ready"),
        };
        let status = json!({"conditions": condition(sandbox, ready, reason, message)});
        self.say("Sandbox", sandbox, status).await
    }
}
