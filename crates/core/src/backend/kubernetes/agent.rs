//! Sandboxes by kubernetes-sigs/agent-sandbox: its controller makes the pods, of objects of ours.
//!
//! A cold sandbox is a `Sandbox` whose template is the pod that we would have made, and whose name
//! the pod gets. One that was ready is a `SandboxClaim` against a `SandboxWarmPool` and its
//! `SandboxTemplate`; the plan is an annotation of the claim, which the controller puts on the pod.
//! Either has the sandbox's name, so the API server decides who was first, and either way the one
//! watch over pods tells everything.

use super::cluster::{failed, first_line, persist, status};
use super::pod::{self, Purpose};
use super::watch::Watch;
use super::{
    Kubernetes, LABEL, MAKER_LABEL, PLAN_NOTE, POOL, SANDBOX_LABEL, exists, info, pod_name,
    sandbox_of, text_of,
};
use crate::backend::SandboxInfo;
use crate::plan::{Plan, SandboxId};
use crate::{hex, random_hex};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams, Preconditions,
};
use kube::{Api, ResourceExt as _};
use ringfence_proto::{Code, Failure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

const GROUP: &str = "agents.x-k8s.io";
const EXTENSIONS: &str = "extensions.agents.x-k8s.io";
const VERSION: &str = "v1beta1";

/// On a pod that was claimed: the uid of its claim.
const CLAIM_LABEL: &str = "agents.x-k8s.io/claim-uid";
/// On an object of ours: tells it from one that another made under the same name.
const MARK_NOTE: &str = "ringfence.mark";

/// How long the controller may take until there is a pod.
const APPEARING: Duration = Duration::from_secs(30);
/// How long nothing is asked while a pod may appear.
const LOOKING: Duration = Duration::from_secs(1);
/// Between two looks for objects that nobody comes back for.
const SWEEPING: Duration = Duration::from_secs(60);

const CONTROLLER: &str = "its controller makes the pods: see that it runs, and what \
    `kubectl describe sandboxes,sandboxclaims` says";

/// Its resources.
#[derive(Debug, Clone, Copy)]
enum Object {
    Sandbox,
    Claim,
    Template,
    Pool,
}

impl Object {
    fn resource(self) -> ApiResource {
        let (group, kind, plural) = match self {
            Self::Sandbox => (GROUP, "Sandbox", "sandboxes"),
            Self::Claim => (EXTENSIONS, "SandboxClaim", "sandboxclaims"),
            Self::Template => (EXTENSIONS, "SandboxTemplate", "sandboxtemplates"),
            Self::Pool => (EXTENSIONS, "SandboxWarmPool", "sandboxwarmpools"),
        };
        let kind = GroupVersionKind::gvk(group, VERSION, kind);
        ApiResource::from_gvk_with_plural(&kind, plural)
    }

    fn named(self, name: &str) -> String {
        format!("{} {name}", self.resource().kind)
    }
}

/// What is done with its resources: group, plural and verbs, as `deploy/` allows.
pub(super) fn rights(
    pooled: bool,
) -> impl Iterator<Item = (&'static str, &'static str, &'static [&'static str])> {
    const SOME: &[&str] = &["create", "delete", "get", "list"];
    let pool = [
        (EXTENSIONS, "sandboxclaims", SOME),
        (EXTENSIONS, "sandboxtemplates", &SOME[..3]),
        (
            EXTENSIONS,
            "sandboxwarmpools",
            &["create", "delete", "get", "list", "patch"],
        ),
    ];
    let pool = pool.into_iter().filter(move |_| pooled);
    std::iter::once((GROUP, "sandboxes", SOME)).chain(pool)
}

/// The template of a pod, as its resources have it.
fn template(pod: &Pod) -> Value {
    json!({
        "metadata": {"labels": pod.labels(), "annotations": pod.annotations()},
        "spec": pod.spec,
    })
}

fn owner(pod: &Pod) -> Option<&OwnerReference> {
    let mut owners = pod.owner_references().iter();
    owners.find(|owner| owner.kind == "Sandbox" && owner.api_version.starts_with(GROUP))
}

/// Why the controller makes no pod, as it says.
fn trouble(object: &DynamicObject) -> Option<(String, String)> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let ready = conditions.iter().find(|one| one["type"] == "Ready")?;
    let text = |name: &str| ready[name].as_str().unwrap_or_default().to_owned();
    (ready["status"] == "False").then(|| (text("reason"), text("message")))
}

impl Kubernetes {
    async fn objects(&self, object: Object) -> Result<Api<DynamicObject>, Failure> {
        let reached = self.reach().await?;
        let client = reached.client.clone();
        let resource = object.resource();
        Ok(Api::namespaced_with(client, &reached.namespace, &resource))
    }

    /// Fails where the cluster lacks what is needed.
    pub(super) async fn installed(&self) -> Result<(), Failure> {
        let client = &self.reach().await?.client;
        let mut needed = vec![Object::Sandbox];
        if self.config.pool > 0 {
            needed.extend([Object::Claim, Object::Template, Object::Pool]);
        }
        for object in needed {
            let resource = object.resource();
            let listed = persist(|| client.list_api_group_resources(&resource.api_version)).await;
            let there = match listed {
                Ok(all) => all.resources.iter().any(|one| one.name == resource.plural),
                Err(error) if status(&error) == Some(404) => false,
                Err(error) => return Err(failed("cannot ask for agent-sandbox", error)),
            };
            if !there {
                let (plural, version) = (&resource.plural, &resource.api_version);
                let message = format!("the cluster has no {plural} of {version}");
                return Err(Failure::new(Code::Missing, message).hint(
                    "install kubernetes-sigs/agent-sandbox with its extensions, or leave the \
                     setting `kubernetes.sandboxes` at `pods`",
                ));
            }
        }
        Ok(())
    }

    /// Makes an object; none where its name is taken.
    async fn make_object(
        &self,
        object: Object,
        name: &str,
        labels: Value,
        spec: Value,
    ) -> Result<Option<DynamicObject>, Failure> {
        let mark = random_hex::<8>()?;
        let mut body = DynamicObject::new(name, &object.resource()).data(json!({"spec": spec}));
        body.annotations_mut()
            .insert(MARK_NOTE.to_owned(), mark.clone());
        body.metadata.labels = serde_json::from_value(labels).ok();
        let objects = self.objects(object).await?;
        let parameters = PostParams::default();
        match persist(|| objects.create(&parameters, &body)).await {
            Ok(made) => Ok(Some(made)),
            Err(error) if status(&error) == Some(409) => {
                // It may be ours: the answer to the first try was lost.
                let found = self.object(object, name).await?;
                Ok(found.filter(|found| found.annotations().get(MARK_NOTE) == Some(&mark)))
            }
            Err(error) => Err(failed(format!("cannot make {}", object.named(name)), error)),
        }
    }

    async fn object(&self, object: Object, name: &str) -> Result<Option<DynamicObject>, Failure> {
        let objects = self.objects(object).await?;
        match persist(|| objects.get_opt(name)).await {
            Ok(found) => Ok(found),
            Err(error) => Err(failed(
                format!("cannot look at {}", object.named(name)),
                error,
            )),
        }
    }

    /// Removes an object, or only that of this uid. What the controller made of it the cluster
    /// removes.
    async fn remove_object(
        &self,
        object: Object,
        name: &str,
        uid: Option<String>,
    ) -> Result<(), Failure> {
        let objects = self.objects(object).await?;
        let parameters = DeleteParams {
            preconditions: uid.map(|uid| Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match persist(|| objects.delete(name, &parameters)).await {
            Ok(_) => Ok(()),
            // It is gone, or another has its name.
            Err(error) if matches!(status(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(failed(
                format!("cannot remove {}", object.named(name)),
                error,
            )),
        }
    }

    async fn list_objects(
        &self,
        object: Object,
        labels: &str,
    ) -> Result<Vec<DynamicObject>, Failure> {
        let objects = self.objects(object).await?;
        let parameters = ListParams::default().labels(labels);
        match persist(|| objects.list(&parameters)).await {
            Ok(listed) => Ok(listed.items),
            // Without a pool the extensions need not be there.
            Err(error) if status(&error) == Some(404) => Ok(Vec::new()),
            Err(error) => Err(failed(
                format!("cannot list {}", object.resource().plural),
                error,
            )),
        }
    }

    /// Has a pod made by a `Sandbox` of its name; false where that is taken.
    pub(super) async fn post_sandbox(&self, pod: &Pod) -> Result<bool, Failure> {
        let labels = json!(pod.labels());
        let spec = json!({"podTemplate": template(pod)});
        let name = pod.name_any();
        let made = self.make_object(Object::Sandbox, &name, labels, spec);
        Ok(made.await?.is_some())
    }

    /// Waits for the pod of a `Sandbox`.
    pub(super) async fn sandbox_pod(&self, watch: &Watch, pod: &Pod) -> Result<(), Failure> {
        let (name, secret) = (pod.name_any(), super::note(pod, super::SECRET_NOTE));
        let is_its =
            |pod: &Pod| pod.name_any() == name && super::note(pod, super::SECRET_NOTE) == secret;
        let appeared = self.appears(watch, Object::Sandbox, &name, None, is_its);
        appeared.await.map(drop)
    }

    /// Whether somebody has this sandbox by a claim.
    pub(super) async fn has_claim(&self, id: &SandboxId) -> Result<bool, Failure> {
        Ok(self.object(Object::Claim, &pod_name(id)).await?.is_some())
    }

    /// Waits until the controller has made, or chosen, a pod for an object.
    async fn appears(
        &self,
        watch: &Watch,
        object: Object,
        name: &str,
        pool_for: Option<&Plan>,
        is_its: impl Fn(&Pod) -> bool,
    ) -> Result<Arc<Pod>, Failure> {
        let begun = Instant::now();
        loop {
            if let Ok(pod) = tokio::time::timeout(LOOKING, watch.appears(&is_its)).await {
                return Ok(pod);
            }
            let named = object.named(name);
            let Some(found) = self.object(object, name).await? else {
                let message = format!("{named} was deleted before it began");
                return Err(Failure::new(Code::Unavailable, message));
            };
            let (reason, said) = trouble(&found).unwrap_or_default();
            let said = first_line(&said);
            if said.contains("exceeded quota") {
                let message = format!("agent-sandbox makes no pod for {named}: {said}");
                return Err(Failure::new(Code::Full, message)
                    .hint("the namespace's resource quota holds no more"));
            }
            // Another server that stopped took its pool along.
            if let (Some(plan), "WarmPoolNotFound" | "TemplateNotFound") =
                (pool_for, reason.as_str())
            {
                self.keep_pool(plan).await?;
            }
            if begun.elapsed() > APPEARING || said.contains("forbidden") {
                let message = format!("agent-sandbox makes no pod for {named}: {reason} {said}");
                let message = message.trim_end().trim_end_matches(':');
                return Err(Failure::new(Code::Unavailable, message).hint(CONTROLLER));
            }
        }
    }

    /// A sandbox by a claim, of a pod that is ready where there is one: else the controller makes
    /// one of the same template.
    pub(super) async fn claim_sandbox(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        let watch = self.watch().await?;
        let id = &plan.id;
        let name = pod_name(id);
        let pool = self.keep_pool(plan).await?;
        watch.begin(id.as_str());
        let labels = pod::labels(plan, &Purpose::Sandbox);
        let spec = json!({
            "warmPoolRef": {"name": pool},
            "additionalPodMetadata": {
                "annotations": {PLAN_NOTE: text_of(plan)?, SANDBOX_LABEL: id},
            },
        });
        let made = self.make_object(Object::Claim, &name, labels, spec).await?;
        let made = made.ok_or_else(|| exists(id))?;
        let uid = made.uid();
        let started = async {
            // Another server, one without a pool, may have made a sandbox of that name.
            let other = self.object(Object::Sandbox, &name).await?;
            if other.is_some_and(|other| {
                let mut owners = other.owner_references().iter();
                !owners.any(|owner| Some(&owner.uid) == uid.as_ref())
            }) {
                return Err(exists(id));
            }
            let is_its = |pod: &Pod| {
                pod.labels().get(CLAIM_LABEL) == uid.as_ref() && sandbox_of(pod).is_some()
            };
            let appeared = self.appears(watch, Object::Claim, &name, Some(plan), is_its);
            self.started(watch, &appeared.await?.name_any()).await
        };
        match started.await {
            Ok(pod) => info(&pod).ok_or_else(|| exists(id)),
            Err(failure) => {
                let is_its = |pod: &Arc<Pod>| pod.labels().get(CLAIM_LABEL) == uid.as_ref();
                match self.known(watch, id).filter(is_its) {
                    Some(pod) => self.remove_pod(&pod.name_any(), None).await.map(drop)?,
                    None => self.remove_object(Object::Claim, &name, uid).await?,
                }
                Err(failure)
            }
        }
    }

    /// The pod that a claim got, where the watch has not seen it yet.
    pub(super) async fn claimed_pod(&self, id: &SandboxId) -> Result<Option<Pod>, Failure> {
        let Some(claim) = self.object(Object::Claim, &pod_name(id)).await? else {
            return Ok(None);
        };
        let Some(name) = claim.data["status"]["sandbox"]["name"].as_str() else {
            return Ok(None);
        };
        let pods = self.pods().await?;
        let found = persist(|| pods.get_opt(name)).await;
        found.map_err(|e| failed(format!("cannot look at pod {name}"), e))
    }

    /// Removes what has a pod made, so that it is not made again.
    pub(super) async fn remove_owners(&self, pod: &str) -> Result<(), Failure> {
        if let Some(known) = self.watch().await?.pod(pod) {
            self.remove_claim_of(&known).await?;
        }
        self.remove_object(Object::Sandbox, pod, None).await
    }

    async fn remove_claim_of(&self, pod: &Pod) -> Result<(), Failure> {
        let claim = pod.labels().get(CLAIM_LABEL).cloned();
        match (sandbox_of(pod), claim) {
            (Some(id), Some(uid)) => {
                let name = pod_name(id);
                self.remove_object(Object::Claim, &name, Some(uid)).await
            }
            _ => Ok(()),
        }
    }

    /// Removes the claim of a sandbox, whichever pod it has.
    pub(super) async fn remove_claim(&self, id: &SandboxId) -> Result<(), Failure> {
        self.remove_object(Object::Claim, &pod_name(id), None).await
    }

    /// Somebody deleted a sandbox's pod: the next one that the controller makes would be empty and
    /// pass for the same.
    pub(super) async fn forget(&self, pod: &Pod) -> Result<(), Failure> {
        self.remove_claim_of(pod).await?;
        match owner(pod).filter(|_| sandbox_of(pod).is_some()) {
            Some(owner) => {
                let uid = Some(owner.uid.clone());
                self.remove_object(Object::Sandbox, &owner.name, uid).await
            }
            None => Ok(()),
        }
    }

    /// The pool for pods of this plan's shape, which says all that they are: those of a server that
    /// is configured otherwise have another.
    fn pool_of(&self, plan: &Plan, secret: &str) -> Result<(String, Pod), Failure> {
        let describe = |name: &str, secret: &str| {
            pod::pod(&self.config, plan, name, secret, None, &Purpose::Template)
        };
        let digest = Sha256::digest(text_of(&describe(POOL, "")?)?);
        let digest = hex(&digest[..8]);
        let name = pod_name(format_args!("{POOL}-{digest}"));
        let pod = describe(&name, secret)?;
        Ok((name, pod))
    }

    /// Sees that there is a pool for this plan, of the size that is configured, and names it.
    pub(super) async fn keep_pool(&self, plan: &Plan) -> Result<String, Failure> {
        let (name, pod) = self.pool_of(plan, &super::secret()?)?;
        let found = self.object(Object::Pool, &name).await?;
        let Some(found) = found else {
            let labels = json!({LABEL: POOL, MAKER_LABEL: self.maker});
            // The policy of `deploy/` is for the whole namespace; its own would let traffic out.
            let spec = json!({
                "podTemplate": template(&pod),
                "networkPolicyManagement": "Unmanaged",
            });
            self.make_object(Object::Template, &name, labels.clone(), spec)
                .await?;
            let spec = json!({
                "replicas": self.config.pool,
                "sandboxTemplateRef": {"name": name},
            });
            self.make_object(Object::Pool, &name, labels, spec).await?;
            return Ok(name);
        };
        if found.data["spec"]["replicas"] != self.config.pool {
            let pools = self.objects(Object::Pool).await?;
            let patch = json!({"spec": {"replicas": self.config.pool}});
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
            let patched = persist(|| pools.patch(&name, &parameters, &patch)).await;
            patched.map_err(|e| failed(format!("cannot size {}", Object::Pool.named(&name)), e))?;
        }
        Ok(name)
    }

    async fn remove_pool(&self, name: &str) -> Result<(), Failure> {
        self.remove_object(Object::Pool, name, None).await?;
        self.remove_object(Object::Template, name, None).await
    }

    /// Removes the pools that this server made; others make theirs again.
    pub(super) async fn drain_pools(&self) -> Result<(), Failure> {
        let mine = format!("{LABEL}={POOL},{MAKER_LABEL}={}", self.maker);
        for pool in self.list_objects(Object::Pool, &mine).await? {
            self.remove_pool(&pool.name_any()).await?;
        }
        Ok(())
    }

    /// Removes objects without a pod whose maker died, and pools that were made long ago and are
    /// not used here.
    pub(super) async fn sweep_objects(
        &self,
        watch: &Watch,
        used: &[Plan],
    ) -> Result<Vec<String>, Failure> {
        {
            let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
            if swept.is_some_and(|at| at.elapsed() < SWEEPING) {
                return Ok(Vec::new());
            }
            *swept = Some(Instant::now());
        }
        let age = |object: &DynamicObject| {
            let made = object.creation_timestamp();
            made.map_or(0.0, |at| super::now() - at.0.as_second() as f64)
        };
        let pods = watch.all();
        let living: HashSet<_> = pods.iter().filter_map(|pod| sandbox_of(pod)).collect();
        let mut removed = Vec::new();
        for object in [Object::Claim, Object::Sandbox] {
            for found in self.list_objects(object, SANDBOX_LABEL).await? {
                let id = found.labels().get(SANDBOX_LABEL);
                let has_pod = id.is_some_and(|id| living.contains(id.as_str()));
                if !has_pod && age(&found) > super::sweep::STALE.as_secs_f64() {
                    let name = found.name_any();
                    self.remove_object(object, &name, found.uid()).await?;
                    removed.push(object.named(&name));
                }
            }
        }
        let used: Vec<_> = used
            .iter()
            .filter_map(|plan| self.pool_of(plan, "").ok())
            .map(|(name, _)| name)
            .collect();
        for pool in self
            .list_objects(Object::Pool, &format!("{LABEL}={POOL}"))
            .await?
        {
            let name = pool.name_any();
            if !used.contains(&name) && age(&pool) > super::sweep::PARKED.as_secs_f64() {
                self.remove_pool(&name).await?;
                removed.push(Object::Pool.named(&name));
            }
        }
        Ok(removed)
    }
}
