//! The wait for a pod to start: until its guest runs, or until the cluster says why it will not.

use super::cluster::{failed, persist};
use super::fate::{self, Fate, fate};
use super::watch::Watch;
use super::{GUEST_IN_IMAGE, Kubernetes};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use ringfence_proto::{Code, Failure};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a pod may take from its creation to its start, the fetching of images included.
const STARTING: Duration = Duration::from_secs(300);
/// How long nothing may be heard of a pod that is to start until the API server is asked.
const HEARD: Duration = Duration::from_secs(5);
/// The least time between two looks.
const SOON: Duration = Duration::from_millis(200);

impl Kubernetes {
    /// Waits until a pod's guest runs, or will not.
    pub(super) async fn started(&self, watch: &Watch, name: &str) -> Result<Arc<Pod>, Failure> {
        let begun = Instant::now();
        let mut without_node: Option<(Instant, String)> = None;
        let mut hindered: Option<Instant> = None;
        loop {
            let left = match &without_node {
                Some((since, _)) => self.config.scheduling.saturating_sub(since.elapsed()),
                None => STARTING.saturating_sub(begun.elapsed()),
            };
            let heard = hindered.map_or(HEARD, |since| {
                self.config.scheduling.saturating_sub(since.elapsed())
            });
            // Nobody is asked all the time.
            let heard = heard.clamp(SOON, HEARD);
            let waits = without_node.is_some();
            let look = |pod: Option<&Pod>| match pod.map(fate) {
                Some(Fate::Coming) => waits.then_some(Ok(Fate::Coming)),
                Some(Fate::Unschedulable(_)) if waits => None,
                Some(fate) => Some(Ok(fate)),
                None => Some(Err(())),
            };
            let seen = tokio::time::timeout(left.min(heard), watch.until(name, look)).await;
            match seen {
                Ok(Ok(Fate::Running)) => {
                    if let Some(pod) = watch.pod(name) {
                        return Ok(pod);
                    }
                }
                Ok(Ok(Fate::Coming)) => without_node = None,
                Ok(Ok(Fate::Unschedulable(why))) => without_node = Some((Instant::now(), why)),
                Ok(Ok(Fate::Refused(failure))) => return Err(failure),
                Ok(Ok(Fate::Ended(certificate))) => {
                    let message =
                        format!("the sandbox ended before it began: {}", certificate.message);
                    let failure = Failure::new(Code::Unavailable, message);
                    return Err(match certificate.message.contains(GUEST_IN_IMAGE) {
                        true => failure.hint(fate::NO_GUEST),
                        false => failure,
                    });
                }
                Ok(Err(())) => {
                    let message = format!("pod {name} was deleted before it began");
                    return Err(Failure::new(Code::Unavailable, message));
                }
                // What is silent may be the API server, or the way to it.
                Err(_) if left > heard => {
                    self.look(watch, name).await?;
                    match self.hindrance(watch, name).await {
                        None => hindered = None,
                        Some(why) => {
                            let since = *hindered.get_or_insert_with(Instant::now);
                            if since.elapsed() >= self.config.scheduling {
                                return Err(why);
                            }
                        }
                    }
                }
                Err(_) => {
                    return Err(match without_node {
                        Some((_, why)) => {
                            let message =
                                format!("no node takes the sandbox: Unschedulable: {why}");
                            Failure::new(Code::Full, message)
                                .hint("ask for less, or add nodes to the cluster")
                        }
                        None => {
                            let message = format!("pod {name} does not start");
                            Failure::new(Code::DeadlineExceeded, message)
                                .hint("`kubectl describe pod` says how far it is")
                        }
                    });
                }
            }
        }
    }

    /// Asks for a pod that the watch says nothing of.
    pub(super) async fn look(&self, watch: &Watch, name: &str) -> Result<(), Failure> {
        let pods = self.pods().await?;
        let found = persist(|| pods.get(name)).await;
        watch.put(found.map_err(|e| failed(format!("cannot look at pod {name}"), e))?);
        Ok(())
    }

    /// What keeps a pod from starting that its own status does not say: volumes and networks that
    /// its node can't give it.
    async fn hindrance(&self, watch: &Watch, name: &str) -> Option<Failure> {
        let uid = watch.pod(name)?.uid()?;
        let reached = self.reach().await.ok()?;
        let events: Api<Event> = Api::namespaced(reached.client.clone(), &reached.namespace);
        let its = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        // Who may not read them, or can't, waits on.
        let listed = tokio::time::timeout(HEARD, events.list(&its)).await;
        let listed = listed.ok()?.ok()?;
        let (reason, said) = fate::hindrance(&listed.items)?;
        let message = format!("the sandbox's pod does not start: {reason}: {said}");
        Some(Failure::new(Code::Unavailable, message))
    }
}
