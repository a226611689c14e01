//! Sandboxes as pods of a Kubernetes cluster, which is the database, the scheduler and the judge:
//! the API server decides who made a sandbox first, and what a server knows it has from one watch.
//!
//! The guest is a pod's first process. It comes in the image or by an init container, and is
//! reached at the pod's address or through the API server; to callers both are the same stream.

mod agent;
mod claim;
mod cluster;
mod fate;
mod lease;
mod look;
mod pod;
mod pool;
mod reach;
mod removal;
mod start;
mod sweep;
mod watch;

pub use cluster::Endpoint;
pub use look::{About, Right};
pub use reach::Reach;
pub use sweep::Swept;

use crate::backend::{Backend, Io, Notes, Place, SandboxInfo, SandboxState};
use crate::container::ContainerPlan;
use crate::plan::{Control, DiskWorkspace, Guarantees, Hold, Lifetime, Plan, SandboxId};
use crate::random_hex;
use crate::spec::Workspace;
use async_trait::async_trait;
use cluster::{Cluster, Reached, failed, persist, status};
use fate::{Fate, fate};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use pod::Purpose;
use pool::Pool;
use removal::{Condemned, Doomed, Extent, same};
use ringfence_proto::{Certificate, Code, Failure, SECRET_LENGTH};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{OnceCell, mpsc};
use watch::Watch;

/// Where the guest lies that an init container brings.
const GUEST_FOLDER: &str = "/.ringfence";
const GUEST: &str = "/.ringfence/guest";
/// Where an image has it that has one.
pub const GUEST_IN_IMAGE: &str = "/ringfence-guest";

/// The port of every guest.
pub const PORT: u16 = 7433;
/// The container that is the sandbox.
const CONTAINER: &str = "sandbox";

/// On every object of ours; says what it is for.
pub const LABEL: &str = "ringfence";
/// The id of the sandbox that an object belongs to.
const SANDBOX_LABEL: &str = "ringfence.sandbox";
const SHAPE_LABEL: &str = "ringfence.shape";
/// Which server parked a pod.
const MAKER_LABEL: &str = "ringfence.maker";
const POOL: &str = "pool";
const PLAN_NOTE: &str = "ringfence.plan";
const SECRET_NOTE: &str = "ringfence.secret";
const NOTES_NOTE: &str = "ringfence.notes";

/// How long a node may be silent until its pods are given up.
const NODES_GONE: Duration = Duration::from_secs(10);
/// How often a pod may change while something is noted about it.
const NOTINGS: u32 = 8;

/// What sandboxes are to the cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Sandboxes {
    /// Pods that we make.
    #[default]
    Pods,
    /// Objects of kubernetes-sigs/agent-sandbox, whose controller makes the pods.
    AgentSandbox,
}

/// How this backend is set up.
#[derive(Debug, Clone)]
pub struct Config {
    pub endpoint: Endpoint,
    /// Used when a plan names no image.
    pub image: String,
    /// The image whose guest is brought into pods; absent where their own images have it.
    pub guest_image: Option<String>,
    pub reach: Reach,
    pub sandboxes: Sandboxes,
    /// The cluster enforces the network policy of `deploy/`, so guests need not deny sockets.
    pub network_policy: bool,
    /// The class of volumes for work folders that outlive their pods; absent where there are none.
    pub storage_class: Option<String>,
    /// For all pods, besides what a plan names.
    pub pull_secrets: Vec<String>,
    /// The share of a sandbox's memory and processors that is reserved for it.
    pub reserve: f64,
    /// How long a pod may stay without a node that takes it.
    pub scheduling: Duration,
    /// The age at which the cluster itself ends a pod.
    pub deadline: Duration,
    /// How many pods are kept ready for each kind that is asked for.
    pub pool: usize,
}

impl Config {
    /// The usual one, on the cluster that the surroundings name.
    pub fn new(image: impl Into<String>) -> Self {
        Self {
            endpoint: Endpoint::default(),
            image: image.into(),
            guest_image: None,
            reach: Reach::Auto,
            sandboxes: Sandboxes::Pods,
            network_policy: false,
            storage_class: None,
            pull_secrets: Vec::new(),
            reserve: 0.05,
            scheduling: Duration::from_secs(5),
            deadline: Duration::from_secs(86_400),
            pool: 0,
        }
    }
}

pub struct Kubernetes {
    config: Config,
    cluster: Cluster,
    watch: OnceCell<Watch>,
    pool: Pool,
    condemned: Condemned,
    /// Names this server.
    maker: String,
    /// When objects of agent-sandbox were last looked through.
    swept: Mutex<Option<Instant>>,
    /// For work that goes on behind a call.
    me: Weak<Kubernetes>,
}

fn unknown(id: &SandboxId) -> Failure {
    Failure::new(Code::NotFound, format!("there is no sandbox {id}"))
}

fn exists(id: &SandboxId) -> Failure {
    Failure::new(Code::AlreadyExists, format!("sandbox {id} exists already"))
}

fn container_of(plan: &Plan) -> Result<&ContainerPlan, Failure> {
    plan.container.as_ref().ok_or_else(|| {
        let message = "a plan without a container reached a cluster";
        Failure::new(Code::Internal, message)
    })
}

fn text_of(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map_err(|e| Failure::new(Code::Internal, "cannot annotate a pod").detail(e))
}

/// The pod of a sandbox that none was ready for: whoever makes it first has made it for all.
fn pod_name(id: impl fmt::Display) -> String {
    format!("ringfence-{id}")
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

fn note<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.annotations().get(name).map(String::as_str)
}

/// The id of the sandbox that a pod belongs to; none where it belongs to nobody yet.
fn sandbox_of(pod: &Pod) -> Option<&str> {
    let label = pod.labels().get(SANDBOX_LABEL).map(String::as_str);
    // Who claims a pod of agent-sandbox may not label it.
    label.or_else(|| note(pod, SANDBOX_LABEL))
}

fn plan_of(pod: &Pod) -> Option<Plan> {
    serde_json::from_str(note(pod, PLAN_NOTE)?).ok()
}

fn notes_of(annotations: &BTreeMap<String, String>) -> Notes {
    let text = annotations.get(NOTES_NOTE);
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Its removal has begun. That may take for ever: others hold it, or its node is gone.
fn is_going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn address_of(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.pod_ip.as_deref()
}

/// The program that is the pod's first process, and its door.
fn guest_of(pod: &Pod) -> Option<(&str, &str)> {
    let containers = &pod.spec.as_ref()?.containers;
    let own = containers.iter().find(|one| one.name == CONTAINER)?;
    let mut words = own.args.as_ref()?.iter();
    words.find(|word| *word == pod::DOOR)?;
    Some((own.command.as_ref()?.first()?, words.next()?))
}

/// A sandbox as its pod says; none while it is being made or removed.
fn info(pod: &Pod) -> Option<SandboxInfo> {
    if is_going(pod) {
        return None;
    }
    let state = match fate(pod) {
        Fate::Coming | Fate::Unschedulable(_) | Fate::Refused(_) => return None,
        Fate::Running => SandboxState::Running,
        Fate::Ended(_) => SandboxState::Dead,
    };
    Some(SandboxInfo {
        plan: plan_of(pod)?,
        state,
        created: pod
            .creation_timestamp()
            .map_or(0.0, |at| at.0.as_second() as f64),
        notes: notes_of(pod.annotations()),
    })
}

/// Whether the guest keeps the network away from what it starts.
fn denies_sockets(container: &ContainerPlan, config: &Config) -> bool {
    container.network == "none" && !config.network_policy
}

impl Kubernetes {
    pub fn new(config: Config) -> Result<Arc<Self>, Failure> {
        let maker = random_hex::<8>()?;
        Ok(Arc::new_cyclic(|me| Self {
            cluster: Cluster::new(config.endpoint.clone()),
            config,
            watch: OnceCell::new(),
            pool: Pool::default(),
            condemned: Condemned::default(),
            maker,
            swept: Mutex::new(None),
            me: Weak::clone(me),
        }))
    }

    async fn reach(&self) -> Result<&Reached, Failure> {
        self.cluster.reach().await
    }

    async fn pods(&self) -> Result<Api<Pod>, Failure> {
        let reached = self.reach().await?;
        Ok(Api::namespaced(reached.client.clone(), &reached.namespace))
    }

    fn is_agent(&self) -> bool {
        self.config.sandboxes == Sandboxes::AgentSandbox
    }

    /// The one watch, started by who needs it first.
    async fn watch(&self) -> Result<&Watch, Failure> {
        let start = async || {
            if self.is_agent() {
                self.installed().await?;
            }
            let (deleted, mut gone) = mpsc::unbounded_channel();
            let deleted = self.is_agent().then_some(deleted);
            let watch = Watch::start(self.pods().await?, deleted);
            let me = Weak::clone(&self.me);
            tokio::spawn(async move {
                while let Some(pod) = gone.recv().await {
                    let Some(me) = me.upgrade() else { return };
                    if let Err(failure) = me.forget(&pod).await {
                        tracing::warn!(detail = failure.detail, "{failure}");
                    }
                }
            });
            Ok::<_, Failure>(watch)
        };
        self.watch.get_or_try_init(start).await
    }

    async fn make(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        let watch = self.watch().await?;
        let id = &plan.id;
        let (name, secret) = (pod_name(id), secret()?);
        let claim = claim::name(plan);
        // Whatever is wrong with the plan is found before anything is made.
        let claim = claim.as_deref();
        let mut pod = pod::pod(&self.config, plan, &name, &secret, claim, &Purpose::Sandbox)?;
        let claimed = match plan.workspace {
            Workspace::Disk => Some(self.claim_volume(plan).await?),
            _ => None,
        };
        if let Some(notes) = claimed.as_ref().and_then(|claimed| claimed.notes.clone()) {
            pod.annotations_mut().insert(NOTES_NOTE.to_owned(), notes);
        }
        watch.begin(id.as_str());
        let posted = self.post(watch, &pod, &name, &secret).await;
        if let Ok(false) = posted {
            return Err(exists(id));
        }
        let started = async {
            // Where this fails, the API server may have made it and not said so.
            posted?;
            // Another server may have given a pod that was ready.
            if plan.lifetime == Lifetime::Kept && self.is_claimed(id).await? {
                return Err(exists(id));
            }
            if self.is_agent() {
                self.sandbox_pod(watch, &pod).await?;
            }
            self.started(watch, &name).await
        };
        match started.await {
            Ok(pod) => {
                if claimed.is_some_and(|claimed| claimed.suspended) {
                    self.mark_volume(id, false, None).await?;
                }
                // Another server is removing it by now.
                info(&pod).ok_or_else(|| exists(id))
            }
            Err(failure) => {
                let extent = match claimed.is_some_and(|claimed| claimed.made) {
                    true => Extent::Whole,
                    false => Extent::Pod,
                };
                let doomed = Doomed {
                    name,
                    secret,
                    extent,
                };
                self.discard(id, doomed, &failure).await;
                Err(failure)
            }
        }
    }

    /// Makes a pod, or has it made; false where its name is taken.
    async fn post(
        &self,
        watch: &Watch,
        pod: &Pod,
        name: &str,
        secret: &str,
    ) -> Result<bool, Failure> {
        if self.is_agent() {
            return self.post_sandbox(pod).await;
        }
        let pods = self.pods().await?;
        let parameters = PostParams::default();
        let made = match persist(|| pods.create(&parameters, pod)).await {
            Ok(made) => Some(made),
            Err(error) if status(&error) == Some(409) => {
                // It may be ours: the answer to the first try was lost.
                let found = persist(|| pods.get_opt(name)).await;
                let found = found.map_err(|e| failed(format!("cannot look at pod {name}"), e))?;
                found.filter(|pod| note(pod, SECRET_NOTE) == Some(secret))
            }
            Err(error) => return Err(failed(format!("cannot make pod {name}"), error)),
        };
        Ok(made.map(|made| watch.put(made)).is_some())
    }

    /// Whether somebody has this sandbox in a pod of another name.
    async fn is_claimed(&self, id: &SandboxId) -> Result<bool, Failure> {
        match self.config.sandboxes {
            Sandboxes::Pods => self.is_leased(id).await,
            Sandboxes::AgentSandbox => self.has_claim(id).await,
        }
    }

    /// The pod of a sandbox as this server knows it.
    fn known(&self, watch: &Watch, id: &SandboxId) -> Option<Arc<Pod>> {
        watch.of_sandbox(id.as_str())
    }

    /// The pod of a sandbox; the API server is asked where the watch has none, and where it has one
    /// that has ended: by now another server may have made the next.
    async fn pod_of(&self, id: &SandboxId) -> Result<Option<Arc<Pod>>, Failure> {
        let watch = self.watch().await?;
        let known = self.known(watch, id);
        let ended = matches!(known.as_deref().map(fate), Some(Fate::Ended(_)));
        if known.is_some() && !ended {
            return Ok(known);
        }
        match self.labelled(&format!("{SANDBOX_LABEL}={id}")).await {
            Ok(pods) => pods.into_iter().for_each(|pod| watch.put(pod)),
            Err(_) if ended => return Ok(known),
            Err(failure) => return Err(failure),
        }
        if self.is_agent()
            && let Some(pod) = self.claimed_pod(id).await?
        {
            watch.put(pod);
        }
        Ok(self.known(watch, id))
    }

    async fn labelled(&self, labels: &str) -> Result<Vec<Pod>, Failure> {
        let pods = self.pods().await?;
        let parameters = ListParams::default().labels(labels);
        let listed = persist(|| pods.list(&parameters)).await;
        let listed = listed.map_err(|e| failed("cannot list pods", e))?;
        Ok(listed.items)
    }

    /// Changes annotations of a pod, and takes over what it is then.
    async fn patch(&self, name: &str, patch: &serde_json::Value) -> Result<(), kube::Error> {
        let pods = match self.pods().await {
            Ok(pods) => pods,
            Err(failure) => return Err(kube::Error::Service(failure.message.into())),
        };
        let parameters = PatchParams::default();
        let patch = Patch::Merge(patch);
        let pod = persist(|| pods.patch(name, &parameters, &patch)).await?;
        if let Some(watch) = self.watch.get() {
            watch.put(pod);
        }
        Ok(())
    }

    fn by_address(&self, reached: &Reached, plan: &Plan) -> bool {
        let on_host = plan.container.as_ref().is_some_and(|c| c.network == "host");
        match self.config.reach {
            Reach::Auto => reached.inside && !on_host,
            Reach::Address => !on_host,
            Reach::Exec => false,
        }
    }
}

/// What opens the door of one guest.
fn secret() -> Result<String, Failure> {
    random_hex::<{ SECRET_LENGTH / 2 }>()
}

#[async_trait]
impl Backend for Kubernetes {
    async fn guarantees(&self) -> Result<Guarantees, Failure> {
        let reached = self.reach().await?;
        let sandbox = |by: &str| (Hold::Sandbox, by.to_owned());
        let process = |by: &str| (Hold::Process, by.to_owned());
        let none = |by: &str| (Hold::None, by.to_owned());
        // Since then a volume in memory has the size that was asked for.
        let sized = match reached.version >= (1, 22) {
            true => sandbox("a volume in memory"),
            false => none("before Kubernetes 1.22 a volume in memory has no size of its own"),
        };
        let network = match self.config.network_policy {
            true => sandbox("the cluster's network policy"),
            false => sandbox(
                "the guest's seccomp filter: no socket but unix ones, so no loopback either",
            ),
        };
        Ok(Guarantees {
            backend: "kubernetes".to_owned(),
            disk_workspace: match self.config.storage_class {
                Some(_) => DiskWorkspace::Limited,
                None => DiskWorkspace::No,
            },
            image: Some(self.config.image.clone()),
            controls: BTreeMap::from([
                (Control::Isolation, sandbox("a pod of the cluster")),
                (
                    Control::SystemCalls,
                    sandbox("our filter and the runtime's, no new privileges, no capabilities"),
                ),
                (Control::Landlock, none("not used in pods")),
                (Control::Network, network),
                (Control::Memory, sandbox("the container's cgroup")),
                (Control::Cpus, sandbox("the container's cgroup")),
                (
                    Control::Pids,
                    none("a pod can't say it; the kubelet's own `podPidsLimit` holds for all"),
                ),
                (Control::Workspace, sized.clone()),
                (Control::Tmp, sized),
                (Control::FileSize, process("RLIMIT_FSIZE")),
                (Control::OpenFiles, process("RLIMIT_NOFILE")),
            ]),
        })
    }

    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        if self.condemned.holds(&plan.id) {
            return Err(exists(&plan.id));
        }
        match self.claim(plan).await? {
            Some(claimed) => Ok(claimed),
            None => self.make(plan).await,
        }
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure> {
        if self.condemned.holds(id) {
            return Err(unknown(id));
        }
        let pod = self.pod_of(id).await?.ok_or_else(|| unknown(id))?;
        match fate(&pod) {
            Fate::Running => {}
            Fate::Ended(certificate) => {
                let message = format!("sandbox {id} has ended: {}", certificate.message);
                return Err(Failure::new(Code::Unavailable, message));
            }
            _ => {
                let message = format!("sandbox {id} is being made");
                return Err(Failure::new(Code::Unavailable, message));
            }
        }
        if let Some(io) = self.take_fresh(&pod) {
            return Ok(io);
        }
        let plan = plan_of(&pod).ok_or_else(|| unknown(id))?;
        self.open(&pod, &plan).await
    }

    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure> {
        let found = self.find(id).await?.ok_or_else(|| unknown(id))?;
        if found.plan.workspace != Workspace::Disk {
            let message = format!("sandbox {id} keeps its files in memory: they would be lost");
            return Err(Failure::new(Code::Conflict, message));
        }
        let seen = self.pod_of(id).await?;
        // Who is killed between the two has left one that runs, which counts more.
        self.mark_volume(id, true, Some(&found.notes)).await?;
        match seen {
            // One that another server has started since is not meant.
            Some(pod) => self
                .remove_pod(&pod.name_any(), Some(same(&pod)))
                .await
                .map(drop),
            None => Ok(()),
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure> {
        self.remove(id).await
    }

    async fn bury(&self, id: &SandboxId) -> Result<(), Failure> {
        self.remove_dead(id).await
    }

    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        let mut tries = 0;
        loop {
            let pod = self.pod_of(id).await?;
            let found = match &pod {
                Some(pod) => Some(notes_of(pod.annotations())),
                None => self.find_volume(id).await?.map(|info| info.notes),
            };
            let mut notes = found.ok_or_else(|| unknown(id))?;
            notes.insert(name.to_owned(), value.to_owned());
            let text = text_of(&notes)?;
            let mut patch = json!({"metadata": {"annotations": {NOTES_NOTE: text}}});
            let is_durable = |plan: Plan| plan.workspace == Workspace::Disk;
            if pod
                .as_deref()
                .is_none_or(|pod| plan_of(pod).is_some_and(is_durable))
            {
                self.patch_volume(id, &patch).await?;
            }
            let Some(pod) = pod else { return Ok(()) };
            patch["metadata"]["resourceVersion"] = json!(pod.resource_version());
            let Err(error) = self.patch(&pod.name_any(), &patch).await else {
                return Ok(());
            };
            // It has changed since it was seen, perhaps by another's note.
            if status(&error) != Some(409) || tries == NOTINGS {
                let what = format!("cannot note something about sandbox {id}");
                return Err(failed(what, error));
            }
            tries += 1;
            self.look(self.watch().await?, &pod.name_any()).await?;
        }
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure> {
        let watch = self.watch().await?;
        watch.complete().await?;
        let mut pods = watch.all();
        pods.retain(|pod| !is_going(pod));
        let mut all: Vec<_> = pods.iter().filter_map(|pod| info(pod)).collect();
        all.extend(self.without_pod(&pods).await?);
        all.retain(|info| !self.condemned.holds(info.id()));
        Ok(all)
    }

    async fn ready(&self) -> Result<(), Failure> {
        let reached = self.reach().await?;
        let asked = persist(|| reached.client.apiserver_version()).await;
        asked.map_err(|e| failed("cannot ask for the cluster's version", e))?;
        self.watch().await?.complete().await
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<SandboxInfo>, Failure> {
        if self.condemned.holds(id) {
            return Ok(None);
        }
        match self.pod_of(id).await?.as_deref().and_then(info) {
            Some(info) => Ok(Some(info)),
            None => self.find_volume(id).await,
        }
    }

    async fn tidy(&self) -> Result<(), Failure> {
        self.sweep().await?;
        self.refill_all();
        Ok(())
    }

    fn prepare(&self, plan: &Plan) {
        self.make_ready(plan);
    }

    async fn close(&self) -> Result<(), Failure> {
        self.remove_condemned().await;
        self.drain().await
    }

    async fn place(&self, id: &SandboxId) -> Result<Option<Place>, Failure> {
        let known = self.watch.get().and_then(|watch| self.known(watch, id));
        Ok(known.map(|pod| Place {
            name: pod.name_any(),
            address: address_of(&pod).map(str::to_owned),
        }))
    }

    fn epitaph(&self, id: &SandboxId) -> Option<Certificate> {
        let watch = self.watch.get()?;
        let epitaph = watch.epitaph(id.as_str())?;
        Some(Certificate::clone(&epitaph))
    }
}
