//! Pods that are made before anybody asks, so that a session is there at once.
//!
//! What is ready is a question to the cluster, not to this server: any server hands out what any
//! has parked, and all of them count together. A claim is a lease that has the sandbox's name (see
//! `lease.rs`), and then a change of the pod that only one can make.

use super::cluster::{failed, status};
use super::fate::{Fate, fate};
use super::pod::{self, Purpose};
use super::reach::Mortal;
use super::removal::{Doomed, Extent, unchanged};
use super::watch::Watch;
use super::{
    Kubernetes, LABEL, MAKER_LABEL, PLAN_NOTE, POOL, SANDBOX_LABEL, SECRET_NOTE, SHAPE_LABEL,
    exists, info, note, pod_name, text_of,
};
use crate::backend::docker::shape;
use crate::backend::{Io, SandboxInfo};
use crate::guest::GuestClient;
use crate::plan::{Plan, SandboxId};
use crate::sessions::MAIN;
use crate::spec::Workspace;
use crate::{hex, random_hex};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use ringfence_proto::{Code, Failure, KernelRequest};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// Shapes that are kept ready at one time; who asks for more of them waits for each.
const SHAPES: usize = 8;
/// Pods that one server makes ready at the same time.
const AT_ONCE: usize = 16;
/// Pods that one claim is tried on: in a rush, others are faster again and again.
const TRIES: usize = 3;
/// Times that a server that stops looks for what it has parked: what changes at the moment is left.
const DRAINING: usize = 5;

#[derive(Default)]
pub(super) struct Pool {
    shapes: Mutex<HashMap<String, Shape>>,
    /// Connections to what this server has parked, by uid, where a new one takes time.
    fresh: Mutex<HashMap<String, Box<dyn Io>>>,
}

struct Shape {
    /// One of its plans.
    plan: Plan,
    /// Who fills it up, unless that is done.
    filling: Option<AbortHandle>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a plan has in common with others that one pod would do for, as a label has it.
fn key(plan: &Plan) -> Option<String> {
    let cluster = plan.container.as_ref()?.kubernetes.as_ref();
    if plan.workspace == Workspace::Disk || cluster.is_some_and(|c| c.claim.is_some()) {
        return None;
    }
    let text = shape(plan)?;
    Some(hex(&Sha256::digest(text)[..16]))
}

fn is_parked(pod: &Pod, key: &str) -> bool {
    pod.labels().get(LABEL).map(String::as_str) == Some(POOL)
        && pod.labels().get(SHAPE_LABEL).map(String::as_str) == Some(key)
}

impl Kubernetes {
    /// A parked pod for this plan, if there is one. Others are made in its place.
    pub(super) async fn claim(&self, plan: &Plan) -> Result<Option<SandboxInfo>, Failure> {
        let Some(key) = key(plan).filter(|_| self.config.pool > 0) else {
            return Ok(None);
        };
        if self.is_agent() {
            // Those on the node's network would share one door.
            let alone = plan.container.as_ref().is_some_and(|c| c.network != "host");
            return match alone && self.keeps(&key, plan) {
                true => self.claim_sandbox(plan).await.map(Some),
                false => Ok(None),
            };
        }
        let watch = self.watch().await?;
        watch.complete().await?;
        let mut claimed = None;
        for _ in 0..TRIES {
            let Some(pod) = any_ready(watch, &key)? else {
                break;
            };
            if let Some(info) = self.hand_out(watch, plan, &pod).await? {
                claimed = Some(info);
                break;
            }
        }
        self.refill(key, plan);
        Ok(claimed)
    }

    /// None where another was faster to take this pod.
    async fn hand_out(
        &self,
        watch: &Watch,
        plan: &Plan,
        pod: &Pod,
    ) -> Result<Option<SandboxInfo>, Failure> {
        let id = &plan.id;
        let lease = self.lease(id, pod).await?.ok_or_else(|| exists(id))?;
        if self.is_taken(id).await? {
            self.release(&lease).await?;
            return Err(exists(id));
        }
        watch.begin(id.as_str());
        let patch = json!({"metadata": {
            "resourceVersion": pod.resource_version(),
            "labels": {LABEL: "sandbox", SANDBOX_LABEL: id, SHAPE_LABEL: null},
            "annotations": {PLAN_NOTE: text_of(plan)?},
        }});
        match self.patch(&pod.name_any(), &patch).await {
            Ok(()) => {}
            Err(error) if matches!(status(&error), Some(404 | 409)) => {
                self.release(&lease).await?;
                return Ok(None);
            }
            Err(error) => {
                // It may be claimed by now, and nobody would know.
                let failure = failed(format!("cannot claim a pod for {id}"), error);
                if let Some(doomed) = Doomed::of(pod) {
                    self.discard(id, doomed, &failure).await;
                }
                return Err(failure);
            }
        }
        Ok(self.known(watch, id).and_then(|pod| info(&pod)))
    }

    /// Whether this shape is kept ready: from now on, where there is room.
    fn keeps(&self, key: &str, plan: &Plan) -> bool {
        let mut shapes = locked(&self.pool.shapes);
        let room = shapes.len() < SHAPES;
        if room && !shapes.contains_key(key) {
            let plan = plan.clone();
            let filling = None;
            shapes.insert(key.to_owned(), Shape { plan, filling });
        }
        shapes.contains_key(key)
    }

    /// Has this shape filled up, unless somebody is at it.
    fn refill(&self, key: String, plan: &Plan) {
        if !self.keeps(&key, plan) {
            return;
        }
        let mut shapes = locked(&self.pool.shapes);
        let Some(shape) = shapes.get_mut(&key) else {
            return;
        };
        if shape.filling.as_ref().is_some_and(|it| !it.is_finished()) {
            return;
        }
        let Some(me) = self.me.upgrade() else {
            return;
        };
        let filling = tokio::spawn(async move {
            if let Err(failure) = Box::pin(me.fill_up(&key)).await {
                tracing::warn!(detail = failure.detail, "cannot fill the pool: {failure}");
            }
        });
        shape.filling = Some(filling.abort_handle());
    }

    /// Fills up what was asked for so far, where some is lost.
    pub(super) fn refill_all(&self) {
        let shapes: Vec<_> = locked(&self.pool.shapes)
            .iter()
            .map(|(key, shape)| (key.clone(), shape.plan.clone()))
            .collect();
        for (key, plan) in shapes {
            self.refill(key, &plan);
        }
    }

    /// The plans of what was asked for so far.
    pub(super) fn shapes(&self) -> Vec<Plan> {
        let shapes = locked(&self.pool.shapes);
        shapes.values().map(|shape| shape.plan.clone()).collect()
    }

    async fn fill_up(&self, key: &str) -> Result<(), Failure> {
        let watch = self.watch().await?;
        watch.complete().await?;
        let mut parks = FuturesUnordered::new();
        let mut under_way = HashSet::new();
        let mut failure = None;
        loop {
            let plan = match locked(&self.pool.shapes).get(key) {
                Some(shape) => shape.plan.clone(),
                None => return Ok(()),
            };
            if self.is_agent() {
                return self.keep_pool(&plan).await.map(drop);
            }
            let parked = parked(watch, key);
            // Some of what is under way is not posted yet.
            let names: HashSet<_> = parked.iter().map(|pod| pod.name_any()).collect();
            let count = names.union(&under_way).count();
            let room = AT_ONCE.saturating_sub(under_way.len());
            let missing = self.config.pool.saturating_sub(count).min(room);
            for _ in 0..missing {
                if failure.is_some() {
                    break;
                }
                let mut plan = plan.clone();
                plan.id = SandboxId::named(format!("{POOL}-{}", random_hex::<8>()?));
                let name = pod_name(&plan.id);
                under_way.insert(name.clone());
                let park = Box::pin(self.park(watch, plan, key));
                parks.push(async move { (name, park.await) });
            }
            match parks.next().await {
                Some((name, done)) => {
                    under_way.remove(&name);
                    failure = failure.or(done.err());
                }
                None => {
                    self.trim(&parked).await?;
                    return failure.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Removes what is too many of what this server has parked.
    async fn trim(&self, parked: &[Arc<Pod>]) -> Result<(), Failure> {
        for pod in surplus(parked, self.config.pool, &self.maker) {
            self.take_fresh(pod);
            let name = pod.name_any();
            self.remove_pod(&name, Some(unchanged(pod))).await?;
        }
        Ok(())
    }

    /// Makes a pod that belongs to nobody yet, with the Python of its first kernel.
    async fn park(&self, watch: &Watch, mut plan: Plan, key: &str) -> Result<(), Failure> {
        plan.labels.clear();
        let (name, secret) = (pod_name(&plan.id), super::secret()?);
        let purpose = Purpose::Pool {
            shape: key,
            maker: &self.maker,
        };
        let pod = pod::pod(&self.config, &plan, &name, &secret, None, &purpose)?;
        let warm = async {
            if !self.post(watch, &pod, &name, &secret).await? {
                return Err(exists(&plan.id));
            }
            let pod = self.started(watch, &name).await?;
            let guest = GuestClient::connect(self.open(&pod, &plan).await?).await?;
            match guest.start_kernel(MAIN, &KernelRequest::default()).await {
                Err(failure) if failure.code == Code::Missing => {}
                started => drop(started?),
            }
            if !self.by_address(self.reach().await?, &plan) {
                let io = self.open(&pod, &plan).await?;
                let uid = pod.uid().unwrap_or_default();
                locked(&self.pool.fresh).insert(uid, io);
            }
            Ok(())
        };
        let warmed: Result<(), Failure> = warm.await;
        if let Err(failure) = &warmed {
            let extent = Extent::Parked;
            let doomed = Doomed {
                name,
                secret,
                extent,
            };
            self.discard(&plan.id, doomed, failure).await;
        }
        warmed
    }

    /// A connection that was made when its pod was parked.
    pub(super) fn take_fresh(&self, pod: &Pod) -> Option<Box<dyn Io>> {
        locked(&self.pool.fresh).remove(&pod.uid()?)
    }

    /// A new stream to the guest of a pod that runs.
    pub(super) async fn open(&self, pod: &Pod, plan: &Plan) -> Result<Box<dyn Io>, Failure> {
        let by_address = self.by_address(self.reach().await?, plan);
        self.open_by(pod, &plan.id, by_address).await
    }

    pub(super) async fn open_by(
        &self,
        pod: &Pod,
        id: &SandboxId,
        by_address: bool,
    ) -> Result<Box<dyn Io>, Failure> {
        let watch = self.watch().await?;
        let end = watch.end_of(pod);
        let gone = || super::unknown(id);
        let secret = note(pod, SECRET_NOTE).ok_or_else(gone)?;
        let io = match (by_address, super::address_of(pod)) {
            (true, Some(address)) => super::reach::by_address(address, secret).await?,
            (true, None) => {
                let message = format!("sandbox {id} has no address yet");
                return Err(Failure::new(Code::Unavailable, message));
            }
            (false, _) => {
                let (guest, door) = super::guest_of(pod).ok_or_else(gone)?;
                let pods = self.pods().await?;
                super::reach::by_exec(&pods, &pod.name_any(), [guest, "relay", door], secret)
                    .await?
            }
        };
        Ok(Box::new(Mortal::new(io, end)))
    }

    /// Removes what this server has parked and nobody claimed.
    pub(super) async fn drain(&self) -> Result<(), Failure> {
        if self.config.pool == 0 {
            return Ok(());
        }
        for (_, shape) in locked(&self.pool.shapes).drain() {
            if let Some(filling) = shape.filling {
                filling.abort();
            }
        }
        locked(&self.pool.fresh).clear();
        if self.is_agent() {
            return self.drain_pools().await;
        }
        let mine = format!("{LABEL}={POOL},{MAKER_LABEL}={}", self.maker);
        for _ in 0..DRAINING {
            let mut left = false;
            for pod in self.labelled(&mine).await? {
                // Somebody may have claimed it since; then it is not ours to remove.
                let name = pod.name_any();
                left |= !self.remove_pod(&name, Some(unchanged(&pod))).await?;
            }
            if !left {
                break;
            }
        }
        Ok(())
    }

    /// Makes this plan's shape ready before anybody asks for it.
    pub(super) fn make_ready(&self, plan: &Plan) {
        if let Some(key) = key(plan).filter(|_| self.config.pool > 0) {
            self.refill(key, plan);
        }
    }
}

/// Servers that filled up at the same moment have made too many. All of them see the same ones as
/// too many, and each removes its own of these.
fn surplus<'a>(
    parked: &'a [Arc<Pod>],
    wanted: usize,
    maker: &str,
) -> impl Iterator<Item = &'a Arc<Pod>> {
    let newest = parked.iter().skip(wanted);
    newest.filter(move |pod| pod.labels().get(MAKER_LABEL).map(String::as_str) == Some(maker))
}

/// Pods of a shape that nobody has claimed, the oldest first.
fn parked(watch: &Watch, key: &str) -> Vec<Arc<Pod>> {
    let mut parked = watch.all();
    parked.retain(|pod| is_parked(pod, key) && !matches!(fate(pod), Fate::Ended(_)));
    parked.sort_by_key(|pod| (pod.creation_timestamp(), pod.name_any()));
    parked
}

/// One that is ready, by chance: of many servers that look at the same list few choose the same.
fn any_ready(watch: &Watch, key: &str) -> Result<Option<Arc<Pod>>, Failure> {
    let mut ready = parked(watch, key);
    ready.retain(|pod| fate(pod) == Fate::Running);
    if ready.is_empty() {
        return Ok(None);
    }
    let drawn = u64::from_str_radix(&random_hex::<7>()?, 16).unwrap_or_default();
    let index = (drawn % ready.len() as u64) as usize;
    Ok(Some(ready.swap_remove(index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_parked_too_many_keep_as_many_as_they_want_together() {
        let parked: Vec<Arc<Pod>> = ["a", "b", "b", "a", "b", "a"]
            .iter()
            .enumerate()
            .map(|(number, maker)| {
                let pod = json!({"metadata": {
                    "name": format!("pod-{number}"),
                    "labels": {MAKER_LABEL: maker},
                }});
                Arc::new(serde_json::from_value(pod).unwrap())
            })
            .collect();
        let removed = |maker| {
            let surplus = surplus(&parked, 3, maker);
            surplus.map(|pod| pod.name_any()).collect::<Vec<_>>()
        };
        assert_eq!(removed("a"), ["pod-3", "pod-5"]);
        assert_eq!(removed("b"), ["pod-4"]);
        assert!(removed("c").is_empty());
    }
}
