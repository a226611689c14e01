//! The removal of pods, with certainty: what could not go at once, because the API server is away or
//! because others hold it, is not reached any more and goes as soon as it can.

use super::cluster::{failed, persist, status};
use super::fate::{Fate, fate};
use super::{Kubernetes, LABEL, POOL, SECRET_NOTE, note, pod_name};
use crate::plan::SandboxId;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt as _};
use ringfence_proto::{Code, Failure};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long others may take to let go of a pod until that is told.
const LETTING_GO: Duration = Duration::from_secs(5);
/// Between two looks, the shortest and the longest pause.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Sandboxes that are to go and could not yet.
#[derive(Default)]
pub(super) struct Condemned(Mutex<HashMap<SandboxId, Doomed>>);

/// How much of a sandbox is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// Files that outlive it stay.
    Pod,
    /// Its pod, unless somebody has claimed it.
    Parked,
    Whole,
}

/// A pod that is to go. One of the same name with another secret is another's.
#[derive(Debug, Clone)]
pub(super) struct Doomed {
    pub(super) name: String,
    pub(super) secret: String,
    pub(super) extent: Extent,
}

impl Doomed {
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        Some(Self {
            name: pod.name_any(),
            secret: note(pod, SECRET_NOTE)?.to_owned(),
            extent: Extent::Whole,
        })
    }
}

impl Condemned {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Doomed>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn holds(&self, id: &SandboxId) -> bool {
        self.lock().contains_key(id)
    }
}

/// Whether a pod of that name was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    There,
    Nothing,
}

/// Whether the same may succeed later.
fn is_passing(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unavailable | Code::Conflict)
}

impl Kubernetes {
    /// Removes a sandbox with all that belongs to it. One that could not go nobody reaches any
    /// more, and its removal is tried on.
    pub(super) async fn remove(&self, id: &SandboxId) -> Result<(), Failure> {
        let pod = self.pod_of(id).await?;
        // One that is only just being made somewhere else has its name, if nothing else.
        let name = pod
            .as_ref()
            .map_or_else(|| pod_name(id), |pod| pod.name_any());
        let removed = async {
            if self.is_agent() {
                self.remove_claim(id).await?;
            }
            self.remove_pod(&name, None).await?;
            // One that lost against a claimed one, and whose maker was killed then.
            let own = pod_name(id);
            if name != own && self.watch().await?.pod(&own).is_some() {
                self.remove_pod(&own, None).await?;
            }
            self.remove_rest(id, &name).await
        };
        let removed = removed.await;
        let doomed = pod.as_deref().and_then(Doomed::of);
        match (removed, doomed) {
            (Err(failure), Some(doomed)) if is_passing(&failure) => {
                self.condemn(id, doomed);
                let hint = "nobody reaches it any more, and it is removed as soon as it can be";
                Err(failure.hint(hint))
            }
            (removed, _) => removed,
        }
    }

    /// Removes the pod of a sandbox if it has ended. The one that was seen is meant, and not the
    /// next one, which another server may have made by now.
    pub(super) async fn remove_dead(&self, id: &SandboxId) -> Result<(), Failure> {
        let Some(pod) = self.pod_of(id).await? else {
            return Ok(());
        };
        if !matches!(fate(&pod), Fate::Ended(_)) {
            return Ok(());
        }
        let name = pod.name_any();
        self.remove_pod(&name, Some(same(&pod))).await?;
        self.remove_lease(id, &name).await
    }

    /// Removes what failed to come about. Where that takes long, nobody waits for it.
    pub(super) async fn discard(&self, id: &SandboxId, doomed: Doomed, failure: &Failure) {
        let removed = tokio::time::timeout(LETTING_GO, self.finish_off(id, &doomed)).await;
        let done = match removed {
            Ok(Ok(Found::There)) => true,
            Ok(Ok(Found::Nothing)) => failure.code != Code::Unavailable,
            Ok(Err(_)) | Err(_) => false,
        };
        if !done {
            self.condemn(id, doomed);
        }
    }

    /// What belongs to a sandbox besides its pod.
    async fn remove_rest(&self, id: &SandboxId, name: &str) -> Result<(), Failure> {
        self.remove_lease(id, name).await?;
        self.remove_volume(id).await
    }

    async fn remove_lease(&self, id: &SandboxId, name: &str) -> Result<(), Failure> {
        match name != pod_name(id) && !self.is_agent() {
            true => self.release_pod(id, name).await,
            false => Ok(()),
        }
    }

    fn condemn(&self, id: &SandboxId, doomed: Doomed) {
        match self.condemned.lock().entry(id.clone()) {
            // Somebody is at it.
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => place.insert(doomed.clone()),
        };
        let (me, id) = (self.me.clone(), id.clone());
        tokio::spawn(async move {
            let mut pause = PAUSE;
            let mut missed = false;
            loop {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                // Without a server there is nobody who could.
                let Some(me) = me.upgrade() else { return };
                match me.finish_off(&id, &doomed).await {
                    // A request that was given up may still be on its way.
                    Ok(Found::Nothing) if !missed => {
                        missed = true;
                        pause = LONGEST_PAUSE;
                    }
                    Ok(_) => {
                        me.condemned.lock().remove(&id);
                        return;
                    }
                    Err(failure) => tracing::debug!(pod = doomed.name, "{failure}"),
                }
            }
        });
    }

    /// Removes a sandbox if its pod is still the one that is meant.
    async fn finish_off(&self, id: &SandboxId, doomed: &Doomed) -> Result<Found, Failure> {
        let (name, pods) = (&doomed.name, self.pods().await?);
        let found = persist(|| pods.get_opt(name)).await;
        let found = found.map_err(|e| failed(format!("cannot look at pod {name}"), e))?;
        let there = match found {
            Some(pod) if note(&pod, SECRET_NOTE) != Some(&doomed.secret) => {
                return Ok(Found::There);
            }
            Some(pod) if doomed.extent == Extent::Parked => {
                let parked = pod.labels().get(LABEL).map(String::as_str) == Some(POOL);
                if parked && !self.remove_pod(name, Some(unchanged(&pod))).await? {
                    let message = format!("cannot remove pod {name}: it was changed");
                    return Err(Failure::new(Code::Conflict, message));
                }
                Found::There
            }
            Some(pod) => {
                self.remove_pod(name, Some(same(&pod))).await?;
                Found::There
            }
            None => {
                if self.is_agent() {
                    self.remove_owners(name).await?;
                }
                Found::Nothing
            }
        };
        if doomed.extent == Extent::Whole {
            self.remove_rest(id, name).await?;
        }
        Ok(there)
    }

    /// Tries once more, for the last time, what could not go so far.
    pub(super) async fn remove_condemned(&self) {
        let left = self.condemned.lock().clone();
        for (id, doomed) in left {
            if let Err(failure) = self.finish_off(&id, &doomed).await {
                tracing::error!(pod = doomed.name, detail = failure.detail, "{failure}");
            }
        }
    }

    /// Removes a pod, or only the one that is meant; false where that is another by now.
    pub(super) async fn remove_pod(
        &self,
        name: &str,
        only: Option<Preconditions>,
    ) -> Result<bool, Failure> {
        let pods = self.pods().await?;
        let meant = only.as_ref().and_then(|only| only.uid.clone());
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: only,
            ..DeleteParams::default()
        };
        let watch = self.watch().await?;
        let known = watch.removing(name, meant.as_deref());
        let removing = async {
            if self.is_agent() {
                self.remove_owners(name).await?;
            }
            match persist(|| pods.delete(name, &parameters)).await {
                Ok(removed) => Ok(Some(removed.left())),
                Err(error) if status(&error) == Some(404) => Ok(Some(None)),
                // Another one has its name, or it was changed.
                Err(error) if meant.is_some() && status(&error) == Some(409) => Ok(None),
                Err(error) => Err(failed(format!("cannot remove pod {name}"), error)),
            }
        };
        let removed = removing.await;
        let Ok(Some(removed)) = removed else {
            if let Some(uid) = known {
                watch.not_removed(&uid);
            }
            return removed.map(|_| false);
        };
        let uid = removed.as_ref().and_then(|pod| pod.uid()).or(known);
        let uid = uid.unwrap_or_default();
        if removed.is_some_and(|pod| !pod.finalizers().is_empty()) {
            wait_out(&pods, name, &uid).await?;
        }
        watch.removed(name, &uid);
        Ok(true)
    }
}

/// This pod, and no other of its name.
pub(super) fn same(pod: &Pod) -> Preconditions {
    Preconditions {
        uid: pod.uid(),
        resource_version: None,
    }
}

/// This pod as it was seen: nobody has claimed it since.
pub(super) fn unchanged(pod: &Pod) -> Preconditions {
    Preconditions {
        uid: pod.uid(),
        resource_version: pod.resource_version(),
    }
}

/// Waits until those who hold a pod by a finalizer have let go.
async fn wait_out(pods: &Api<Pod>, name: &str, uid: &str) -> Result<(), Failure> {
    let begun = Instant::now();
    loop {
        let found = persist(|| pods.get_opt(name)).await;
        let found = found.map_err(|e| failed(format!("cannot remove pod {name}"), e))?;
        let Some(pod) = found.filter(|pod| pod.uid().as_deref() == Some(uid)) else {
            return Ok(());
        };
        if begun.elapsed() > LETTING_GO {
            let holders = pod.finalizers().join(", ");
            let message = format!("pod {name} has ended and can't be removed: {holders} holds it");
            return Err(Failure::new(Code::Conflict, message));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
