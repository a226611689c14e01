//! One watch over all pods of ours in the namespace: what is known here follows it, nothing polls,
//! and whoever is connected to a sandbox hears of its end as soon as the cluster knows of it.

use super::fate::{Fate, deleted, fate};
use super::{LABEL, pod_name, sandbox_of};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use ringfence_proto::{Certificate, Code, Failure};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// How long the first look may take.
const FIRST: Duration = Duration::from_secs(20);
/// How long what was seen last is believed while the API server is away.
const BELIEVED: Duration = Duration::from_secs(5);
/// Seconds after which a watch is begun anew, so that one that hangs is noticed.
const TURN: u32 = 60;
/// Between two tries to watch on, the shortest and the longest pause.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Ends of sandboxes that are remembered after their pods are gone.
const REMEMBERED: usize = 4096;

pub(super) struct Watch {
    seen: Arc<Seen>,
    task: AbortHandle,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Seen {
    known: Mutex<Known>,
    /// Counts changes.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Known {
    /// By name.
    pods: HashMap<String, Arc<Pod>>,
    /// By sandbox: the name of a pod that was ready before anybody asked for it.
    claimed: HashMap<String, String>,
    /// Pods that we removed, by uid: news from before must not bring them back.
    removed: HashMap<String, Instant>,
    /// By uid: who wants to hear of its end.
    ends: HashMap<String, watch::Sender<Option<Arc<Certificate>>>>,
    /// By sandbox: why it ended.
    epitaphs: HashMap<String, Arc<Certificate>>,
    order: VecDeque<String>,
    /// All that there was has been seen once.
    complete: bool,
    /// Since when nothing is heard.
    deaf: Option<Instant>,
    /// Who wants to hear of pods that others deleted.
    deleted: Option<mpsc::UnboundedSender<Pod>>,
}

impl Seen {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, work: impl FnOnce(&mut Known) -> T) -> T {
        let done = work(&mut self.known());
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
        done
    }
}

/// Versions are numbers on every API server there is; what is none counts as newer.
fn is_older(pod: &Pod, than: &Pod) -> bool {
    let version = |pod: &Pod| pod.resource_version()?.parse::<u64>().ok();
    pod.uid() == than.uid() && matches!((version(pod), version(than)), (Some(a), Some(b)) if a < b)
}

impl Known {
    fn apply(&mut self, mut pod: Pod) {
        pod.metadata.managed_fields = None;
        let uid = pod.uid().unwrap_or_default();
        let name = pod.name_any();
        if self.removed.contains_key(&uid) {
            return;
        }
        if self
            .pods
            .get(&name)
            .is_some_and(|known| is_older(&pod, known))
        {
            return;
        }
        let known = self.pods.get(&name).and_then(|known| known.uid());
        match fate(&pod) {
            Fate::Ended(certificate) => self.end(&pod, *certificate),
            // Another server made it: what is known of an earlier one is not about it. One that a
            // controller makes in the place of one that was deleted is none.
            _ if known.as_ref() != Some(&uid) && self.deleted.is_none() => {
                if let Some(sandbox) = sandbox_of(&pod) {
                    self.forget(sandbox);
                }
            }
            _ => {}
        }
        if let Some(sandbox) = sandbox_of(&pod).filter(|sandbox| pod_name(sandbox) != name) {
            self.claimed.insert(sandbox.to_owned(), name.clone());
        }
        self.pods.insert(name, Arc::new(pod));
    }

    /// Takes a pod out, if the one of that name is it.
    fn drop_pod(&mut self, name: &str, uid: Option<&str>) {
        let Some(pod) = self.pods.get(name) else {
            return;
        };
        if pod.uid().as_deref() != uid {
            return;
        }
        if let Some(sandbox) = sandbox_of(pod)
            && self.claimed.get(sandbox).is_some_and(|other| other == name)
        {
            self.claimed.remove(sandbox);
        }
        self.pods.remove(name);
    }

    /// The pod of a sandbox. Who has one of another name was first: see `pool.rs`.
    fn of_sandbox(&self, sandbox: &str) -> Option<&Arc<Pod>> {
        let its = |name: &String| {
            let pod = self.pods.get(name);
            pod.filter(|pod| sandbox_of(pod) == Some(sandbox))
        };
        let named = its(&pod_name(sandbox));
        match self.claimed.get(sandbox).and_then(its) {
            Some(pod) if named.is_none() || !matches!(fate(pod), Fate::Ended(_)) => Some(pod),
            _ => named,
        }
    }

    fn delete(&mut self, pod: &Pod) {
        let uid = pod.uid();
        let name = pod.name_any();
        let ours = uid.as_ref().and_then(|uid| self.removed.remove(uid));
        self.drop_pod(&name, uid.as_deref());
        if ours.is_none() {
            self.end(pod, deleted(pod));
            if let Some(listener) = &self.deleted {
                // Who listens no more does not mind.
                let _ = listener.send(pod.clone());
            }
        }
    }

    fn forget(&mut self, sandbox: &str) {
        if self.epitaphs.remove(sandbox).is_some() {
            self.order.retain(|other| other != sandbox);
        }
    }

    /// Tells and keeps why a sandbox ended; the first reason is the right one.
    fn end(&mut self, pod: &Pod, certificate: Certificate) {
        let uid = pod.uid().unwrap_or_default();
        let certificate = Arc::new(certificate);
        if let Some(end) = self.ends.get(&uid) {
            end.send_if_modified(|end| {
                let first = end.is_none();
                end.get_or_insert_with(|| Arc::clone(&certificate));
                first
            });
        }
        let Some(sandbox) = sandbox_of(pod) else {
            return;
        };
        if self.epitaphs.contains_key(sandbox) {
            return;
        }
        self.epitaphs.insert(sandbox.to_owned(), certificate);
        self.order.push_back(sandbox.to_owned());
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.epitaphs.remove(&oldest);
        }
    }
}

impl Watch {
    pub(super) fn start(api: Api<Pod>, deleted: Option<mpsc::UnboundedSender<Pod>>) -> Self {
        let seen = Arc::new(Seen {
            known: Mutex::new(Known {
                deleted,
                ..Known::default()
            }),
            changed: watch::channel(0).0,
        });
        let task = tokio::spawn(follow(api, Arc::clone(&seen))).abort_handle();
        Self { seen, task }
    }

    /// Comes back when all that there is has been seen; fails while the API server is away.
    pub(super) async fn complete(&self) -> Result<(), Failure> {
        let mut changed = self.seen.changed.subscribe();
        let looked = async {
            loop {
                changed.borrow_and_update();
                let (complete, deaf) = {
                    let known = self.seen.known();
                    let deaf = known.deaf.is_some_and(|since| since.elapsed() > BELIEVED);
                    (known.complete, deaf)
                };
                match (complete, deaf) {
                    (_, true) => return Err(away()),
                    (true, false) => return Ok(()),
                    (false, false) => {}
                }
                // The sender is ours, so it lives.
                let _ = tokio::time::timeout(PAUSE, changed.changed()).await;
            }
        };
        let looked = tokio::time::timeout(FIRST, looked).await;
        looked.unwrap_or_else(|_| Err(away()))
    }

    pub(super) fn pod(&self, name: &str) -> Option<Arc<Pod>> {
        self.seen.known().pods.get(name).cloned()
    }

    /// The pod of a sandbox.
    pub(super) fn of_sandbox(&self, sandbox: &str) -> Option<Arc<Pod>> {
        self.seen.known().of_sandbox(sandbox).cloned()
    }

    pub(super) fn all(&self) -> Vec<Arc<Pod>> {
        self.seen.known().pods.values().cloned().collect()
    }

    /// Takes over what the API server just answered with.
    pub(super) fn put(&self, pod: Pod) {
        self.seen.change(|known| known.apply(pod));
    }

    /// A sandbox of this id begins: what is known of an earlier one is not about it.
    pub(super) fn begin(&self, sandbox: &str) {
        self.seen.change(|known| known.forget(sandbox));
    }

    /// We are about to remove a pod, or only that of this uid: news of its end are no news.
    pub(super) fn removing(&self, name: &str, meant: Option<&str>) -> Option<String> {
        self.seen.change(|known| {
            let uid = known.pods.get(name)?.uid()?;
            if meant.is_some_and(|meant| meant != uid) {
                return None;
            }
            known.removed.insert(uid.clone(), Instant::now());
            Some(uid)
        })
    }

    /// It did not come to that.
    pub(super) fn not_removed(&self, uid: &str) {
        self.seen.change(|known| known.removed.remove(uid));
    }

    /// We removed a pod.
    pub(super) fn removed(&self, name: &str, uid: &str) {
        self.seen.change(|known| {
            known.removed.insert(uid.to_owned(), Instant::now());
            known.drop_pod(name, Some(uid));
            known.ends.remove(uid);
        });
    }

    /// Waits until looking at a pod, or at its absence, gives something.
    pub(super) async fn until<T>(
        &self,
        name: &str,
        mut look: impl FnMut(Option<&Pod>) -> Option<T>,
    ) -> T {
        let mut changed = self.seen.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let pod = self.pod(name);
            if let Some(found) = look(pod.as_deref()) {
                return found;
            }
            // The sender is ours, so it lives.
            let _ = changed.changed().await;
        }
    }

    /// Waits for such a pod.
    pub(super) async fn appears(&self, is_it: impl Fn(&Pod) -> bool) -> Arc<Pod> {
        let mut changed = self.seen.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let found = self.all().into_iter().find(|pod| is_it(pod));
            if let Some(found) = found {
                return found;
            }
            // The sender is ours, so it lives.
            let _ = changed.changed().await;
        }
    }

    /// Hears of the end of a pod.
    pub(super) fn end_of(&self, pod: &Pod) -> watch::Receiver<Option<Arc<Certificate>>> {
        let mut known = self.seen.known();
        known.ends.retain(|_, end| end.receiver_count() > 0);
        let uid = pod.uid().unwrap_or_default();
        let end = known
            .ends
            .entry(uid)
            .or_insert_with(|| watch::channel(None).0);
        end.subscribe()
    }

    /// Why a sandbox ended, where that is known.
    pub(super) fn epitaph(&self, sandbox: &str) -> Option<Arc<Certificate>> {
        self.seen.known().epitaphs.get(sandbox).cloned()
    }
}

fn away() -> Failure {
    Failure::new(
        Code::Unavailable,
        "cannot list sandboxes: the cluster's API server does not answer",
    )
}

async fn follow(api: Api<Pod>, seen: Arc<Seen>) {
    let config = watcher::Config::default().labels(LABEL).timeout(TURN);
    let mut events = std::pin::pin!(watcher(api.clone(), config));
    let mut pause = PAUSE;
    let mut found = Listing::default();
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                pause = PAUSE;
                seen.change(|known| {
                    known.deaf = None;
                    follow_one(known, &mut found, event);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "the watch over pods broke off");
                seen.change(|known| known.deaf.get_or_insert_with(Instant::now).to_owned());
                // A watch that begins again says nothing until something happens.
                loop {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    let one = ListParams::default().labels(LABEL).limit(1);
                    if let Ok(Ok(_)) = tokio::time::timeout(BELIEVED, api.list(&one)).await {
                        seen.change(|known| known.deaf = None);
                        break;
                    }
                }
            }
        }
    }
}

/// All that there is, while it is being listed.
#[derive(Default)]
struct Listing {
    /// The uids of what was known when it began: only of these its silence says something, since
    /// what came later may have been made after it was read.
    known: HashSet<String>,
    found: HashMap<String, Pod>,
}

fn follow_one(known: &mut Known, listing: &mut Listing, event: Event<Pod>) {
    match event {
        Event::Apply(pod) => known.apply(pod),
        Event::Delete(pod) => known.delete(&pod),
        Event::Init => {
            let uids = known.pods.values().filter_map(|pod| pod.uid());
            *listing = Listing {
                known: uids.collect(),
                found: HashMap::new(),
            };
        }
        Event::InitApply(pod) => {
            listing.found.insert(pod.uid().unwrap_or_default(), pod);
        }
        Event::InitDone => {
            let listing = std::mem::take(listing);
            let was_there = |uid: &String| listing.known.contains(uid);
            // What is gone went while nobody listened.
            let is_gone = |pod: &Pod| {
                let uid = pod.uid().filter(was_there);
                uid.is_some_and(|uid| !listing.found.contains_key(&uid))
            };
            let pods: Vec<_> = known.pods.values().cloned().collect();
            for pod in pods.iter().filter(|pod| is_gone(pod)) {
                known.delete(pod);
            }
            for pod in listing.found.into_values() {
                known.apply(pod);
            }
            known.removed.retain(|_, when| when.elapsed() < FIRST);
            known.complete = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, uid: &str, sandbox: &str, phase: &str) -> Pod {
        let own = json!({
            "name": "sandbox", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": match phase { "Running" => json!({"running": {}}), _ => json!({"waiting": {}}) },
        });
        serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "uid": uid,
                "labels": {"ringfence": "sandbox", "ringfence.sandbox": sandbox},
                // By clocks that differ, this is long ago.
                "creationTimestamp": "2020-01-01T00:00:00Z",
            },
            "status": {"phase": phase, "containerStatuses": [own]},
        }))
        .unwrap()
    }

    #[test]
    fn what_is_made_while_others_are_listed_is_not_gone() {
        let (mut known, mut listing) = (Known::default(), Listing::default());
        known.apply(pod("ringfence-old", "1", "old", "Running"));
        known.apply(pod("ringfence-kept", "2", "kept", "Running"));
        follow_one(&mut known, &mut listing, Event::Init);
        known.apply(pod("ringfence-new", "3", "new", "Running"));
        let kept = pod("ringfence-kept", "2", "kept", "Running");
        follow_one(&mut known, &mut listing, Event::InitApply(kept));
        follow_one(&mut known, &mut listing, Event::InitDone);
        assert!(known.of_sandbox("kept").is_some());
        assert!(known.of_sandbox("new").is_some());
        assert!(!known.epitaphs.contains_key("new"));
        // The control: what was there before and is not listed is gone.
        assert!(known.of_sandbox("old").is_none());
        assert!(known.epitaphs.contains_key("old"));
    }

    #[test]
    fn a_pod_that_was_claimed_hides_one_that_lost_against_it() {
        let mut known = Known::default();
        let name = |known: &Known| known.of_sandbox("a").map(|pod| pod.name_any());
        known.apply(pod("ringfence-a", "1", "a", "Running"));
        assert_eq!(name(&known).as_deref(), Some("ringfence-a"));
        known.apply(pod("ringfence-pool-x", "2", "a", "Running"));
        assert_eq!(name(&known).as_deref(), Some("ringfence-pool-x"));
        // One that has ended hides nobody.
        known.apply(pod("ringfence-pool-x", "2", "a", "Failed"));
        assert_eq!(name(&known).as_deref(), Some("ringfence-a"));
        known.delete(&pod("ringfence-a", "1", "a", "Running"));
        assert_eq!(name(&known).as_deref(), Some("ringfence-pool-x"));
        known.delete(&pod("ringfence-pool-x", "2", "a", "Failed"));
        assert_eq!(name(&known), None);
        assert!(known.claimed.is_empty());
    }
}
