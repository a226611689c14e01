//! Sandboxes as containers of a Docker engine, spoken to by its API.
//!
//! The guest comes by a volume and is the container's first process. The first connection to it
//! travels over the container's own standard streams; those who come later are joined to it by an
//! exec. So nothing of the host is mounted, no network is needed, and the engine may be far away.

mod body;
mod credentials;
mod engine;
mod image;
mod inject;
mod launch;
mod offline;
mod owner;
mod pool;
mod record;
mod stdio;
mod sweep;

pub use engine::{Endpoint, Surroundings};
pub use sweep::Swept;

use crate::backend::progress::Listener;
use crate::backend::{Backend, Io, Notes, Place, SandboxInfo, SandboxState, source};
use crate::container::ContainerPlan;
use crate::plan::{Control, DiskWorkspace, Guarantees, Hold, Lifetime, Plan, SandboxId};
use crate::random_hex;
use crate::spec::{Access, Workspace};
use async_trait::async_trait;
use bollard::models::{ContainerSummary, ContainerSummaryStateEnum as EngineState};
use bollard::query_parameters::{
    InspectContainerOptions, ListContainersOptions, RemoveVolumeOptions, StopContainerOptions,
};
use engine::{Engine, failed, status, unless_gone};
use inject::Cargo;
use launch::say;
use pool::Pool;
#[cfg(feature = "kubernetes")]
pub(in crate::backend) use pool::shape;
use record::{Borrowed, Door, Store};
use ringfence_proto::{Code, Failure, SECRET_LENGTH};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use stdio::Stdio;

/// Where the guest lies inside.
pub(crate) const GUEST_FOLDER: &str = "/.ringfence";
const GUEST_NAME: &str = "guest";
const GUEST: &str = "/.ringfence/guest";

/// On every container, volume and network of ours; a sandbox's own has its id as the value.
pub const LABEL: &str = "ringfence";
const PLAN_LABEL: &str = "ringfence.plan";
const SECRET_LABEL: &str = "ringfence.secret";
/// Which state folder a container belongs to: other servers on the engine have nothing to do with it.
const STATE_LABEL: &str = "ringfence.state";
/// On the work folder of one container: without that container nobody can use it.
const WORK_LABEL: &str = "ringfence.work";
/// Which process made a container that goes with it: a disposable one, or one that is parked.
const MAKER_LABEL: &str = "ringfence.maker";
/// The first label's value on containers that are parked.
const POOL: &str = "pool";

/// Seconds that a guest has to end what runs when it is told to stop.
const STOPPING: i32 = 5;

/// Where things of this backend are.
#[derive(Clone)]
pub struct Config {
    pub endpoint: Endpoint,
    /// Holds what is noted about sandboxes.
    pub state: PathBuf,
    /// The static guest executable.
    pub guest: PathBuf,
    /// Used when a plan names no image.
    pub image: String,
    /// Docker's own folder of settings, for credentials.
    pub docker_config: PathBuf,
    /// Hears how far images are that have to be fetched, where nobody else listens.
    pub listener: Option<Listener>,
    /// How many containers are kept ready for each kind that is asked for.
    pub pool: usize,
}

pub struct Docker {
    config: Config,
    engine: Engine,
    store: Store,
    cargo: OnceLock<Cargo>,
    /// The first connections to guests that were started here, until somebody dials.
    fresh: Mutex<HashMap<SandboxId, Stdio>>,
    pool: Pool,
    /// For work that goes on behind a call.
    me: Weak<Docker>,
}

/// A sandbox's container as it was found.
struct Seen {
    container: String,
    plan: Plan,
    state: SandboxState,
    created: f64,
    way: Way,
}

/// How a guest is reached that runs already.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Way {
    /// It is the container's first process.
    Door(Door),
    /// The container is not ours: each connection starts a guest, which ends with it.
    Visit,
}

fn unknown(id: &SandboxId) -> Failure {
    Failure::new(Code::NotFound, format!("there is no sandbox {id}"))
}

fn exists(id: &SandboxId) -> Failure {
    Failure::new(Code::AlreadyExists, format!("sandbox {id} exists already"))
}

fn container_of(plan: &Plan) -> Result<&ContainerPlan, Failure> {
    plan.container.as_ref().ok_or_else(|| {
        Failure::new(
            Code::Internal,
            "a plan without a container reached an engine",
        )
    })
}

impl Docker {
    pub fn new(config: Config) -> Result<Arc<Self>, Failure> {
        let store = Store::open(&config.state)?;
        Ok(Arc::new_cyclic(|me| Self {
            engine: Engine::new(config.endpoint.clone()),
            store,
            config,
            cargo: OnceLock::new(),
            fresh: Mutex::default(),
            pool: Pool::default(),
            me: Weak::clone(me),
        }))
    }

    fn fresh(&self) -> MutexGuard<'_, HashMap<SandboxId, Stdio>> {
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn make(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        let container = container_of(plan)?;
        self.check_sources(plan)?;
        let secret = secret()?;
        let labels = body::sandbox_labels(plan, &secret, &self.store.name)?;
        let body = self.describe(plan, labels).await?;
        let own_name = || self.name_of(&plan.id);
        let name = container.name.clone().unwrap_or_else(own_name);
        match self.launch(plan, &name, body, &secret).await? {
            Some((_, stdio)) => self.fresh().insert(plan.id.clone(), stdio),
            None => return self.occupied(plan).await,
        };
        Ok(SandboxInfo {
            plan: plan.clone(),
            state: SandboxState::Running,
            created: now(),
            notes: Notes::new(),
        })
    }

    /// A new connection to a guest that runs.
    async fn knock(&self, container: &str, door: &Door) -> Result<Box<dyn Io>, Failure> {
        let words = vec!["relay".to_owned(), door.name.clone()];
        let mut stdio = self.exec(container, words, None, Vec::new()).await?;
        say(&mut stdio, &door.secret).await?;
        Ok(Box::new(stdio))
    }

    /// What is to be mounted must be there; an engine that is far away says so itself.
    fn check_sources(&self, plan: &Plan) -> Result<(), Failure> {
        if !self.config.endpoint.is_local() {
            return Ok(());
        }
        let folder = match &plan.workspace {
            Workspace::Folder { path, .. } => Some(path),
            _ => None,
        };
        for path in plan.mounts.iter().map(|mount| &mount.from).chain(folder) {
            source(path)?;
        }
        Ok(())
    }

    /// The name is taken: by one that is suspended, by one to attach to, or for good.
    async fn occupied(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        let found = self.seen(&plan.id).await?;
        if let Some(seen) = found {
            if seen.state == SandboxState::Running || !self.store.claim_suspended(&plan.id) {
                return Err(exists(&plan.id));
            }
            let restarted = self.restart(&seen).await;
            if restarted.is_err() {
                self.store.mark_suspended(&plan.id)?;
            }
            return restarted;
        }
        match &container_of(plan)?.name {
            Some(name) => self.visit(plan, name).await,
            None => Err(exists(&plan.id)),
        }
    }

    async fn restart(&self, seen: &Seen) -> Result<SandboxInfo, Failure> {
        let id = &seen.plan.id;
        match &seen.way {
            Way::Door(door) => {
                let stdio = self
                    .start(&seen.container, &door.secret, Lifetime::Kept)
                    .await?;
                self.fresh().insert(id.clone(), stdio);
            }
            Way::Visit => self.run(&seen.container).await?,
        }
        Ok(SandboxInfo {
            plan: seen.plan.clone(),
            state: SandboxState::Running,
            created: seen.created,
            notes: self.store.notes(id),
        })
    }

    /// Attaches to a container that is there: started if it is stopped, and never removed.
    async fn visit(&self, plan: &Plan, name: &str) -> Result<SandboxInfo, Failure> {
        let client = self.engine.client().await?;
        let what = || format!("cannot look at container {name}");
        let options = None::<InspectContainerOptions>;
        let found = client
            .inspect_container(name, options)
            .await
            .map_err(|e| failed(what(), e))?;
        let container = found
            .id
            .ok_or_else(|| Failure::new(Code::Internal, what()))?;
        let running = found.state.and_then(|state| state.running);
        let running = running.unwrap_or_default();
        let labels = found.config.and_then(|config| config.labels);
        let door = Door::of_labels(&labels.unwrap_or_default());
        match &door {
            // One of ours that was kept: it has a guest.
            Some(door) if !running => {
                let stdio = self.start(&container, &door.secret, Lifetime::Kept).await?;
                self.fresh().insert(plan.id.clone(), stdio);
            }
            Some(_) => {}
            None => {
                if !running {
                    self.run(&container).await?;
                }
                let runtime = found.host_config.and_then(|host| host.runtime);
                self.put_guest(&container, runtime.as_deref()).await?;
            }
        }
        let borrowed = Borrowed {
            plan: plan.clone(),
            container,
            created: now(),
            door,
            stays: true,
        };
        self.store.write_borrowed(&borrowed)?;
        Ok(SandboxInfo {
            plan: borrowed.plan,
            state: SandboxState::Running,
            created: borrowed.created,
            notes: Notes::new(),
        })
    }

    async fn stop(&self, container: &str) -> Result<(), Failure> {
        let client = self.engine.client().await?;
        let options = StopContainerOptions {
            t: Some(STOPPING),
            ..StopContainerOptions::default()
        };
        client
            .stop_container(container, Some(options))
            .await
            .map_err(|e| failed(format!("cannot stop container {container}"), e))
    }

    /// The container of a sandbox, unless it is only being made or removed.
    async fn seen(&self, id: &SandboxId) -> Result<Option<Seen>, Failure> {
        if let Some(borrowed) = self.store.borrowed(id) {
            return self.seen_borrowed(borrowed).await.map(Some);
        }
        let found = self.containers(&format!("{LABEL}={id}")).await?;
        Ok(found.into_iter().find_map(|found| self.of_summary(found)))
    }

    /// The name of a sandbox's container, where none was asked for.
    fn name_of(&self, id: &SandboxId) -> String {
        format!("ringfence-{}-{id}", self.store.name)
    }

    /// Containers of this state folder that have a label.
    async fn containers(&self, label: &str) -> Result<Vec<ContainerSummary>, Failure> {
        let state = format!("{STATE_LABEL}={}", self.store.name);
        self.labelled(vec![label.to_owned(), state]).await
    }

    async fn labelled(&self, labels: Vec<String>) -> Result<Vec<ContainerSummary>, Failure> {
        let client = self.engine.client().await?;
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([("label".to_owned(), labels)])),
            ..ListContainersOptions::default()
        };
        client
            .list_containers(Some(options))
            .await
            .map_err(|e| failed("cannot list containers", e))
    }

    fn of_summary(&self, found: ContainerSummary) -> Option<Seen> {
        let labels = found.labels?;
        let plan: Plan = serde_json::from_str(labels.get(PLAN_LABEL)?).ok()?;
        let door = Door::of_labels(&labels)?;
        if self.store.is_released(&plan.id) {
            return None;
        }
        let state = match found.state? {
            EngineState::RUNNING | EngineState::PAUSED | EngineState::RESTARTING => {
                SandboxState::Running
            }
            EngineState::EXITED | EngineState::DEAD | EngineState::STOPPING => {
                self.ended_state(&plan.id)
            }
            // It is being made, or removed.
            _ => return None,
        };
        Some(Seen {
            container: found.id?,
            plan,
            state,
            created: found.created.unwrap_or_default() as f64,
            way: Way::Door(door),
        })
    }

    fn ended_state(&self, id: &SandboxId) -> SandboxState {
        match self.store.is_suspended(id) {
            true => SandboxState::Suspended,
            false => SandboxState::Dead,
        }
    }

    async fn seen_borrowed(&self, borrowed: Borrowed) -> Result<Seen, Failure> {
        let client = self.engine.client().await?;
        let options = None::<InspectContainerOptions>;
        let state = match client.inspect_container(&borrowed.container, options).await {
            Ok(found) => match found.state.and_then(|state| state.running) {
                Some(true) => SandboxState::Running,
                _ => self.ended_state(&borrowed.plan.id),
            },
            Err(error) if status(&error) == Some(404) => SandboxState::Dead,
            Err(error) => {
                let what = format!("cannot look at container {}", borrowed.container);
                return Err(failed(what, error));
            }
        };
        Ok(Seen {
            container: borrowed.container,
            plan: borrowed.plan,
            state,
            created: borrowed.created,
            way: borrowed.door.map_or(Way::Visit, Way::Door),
        })
    }

    fn info(&self, seen: Seen) -> SandboxInfo {
        SandboxInfo {
            notes: self.store.notes(&seen.plan.id),
            plan: seen.plan,
            state: seen.state,
            created: seen.created,
        }
    }
}

/// What opens the door of one guest.
fn secret() -> Result<String, Failure> {
    random_hex::<{ SECRET_LENGTH / 2 }>()
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}

#[async_trait]
impl Backend for Docker {
    async fn guarantees(&self) -> Result<Guarantees, Failure> {
        self.engine.client().await?;
        let sandbox = |by: &str| (Hold::Sandbox, by.to_owned());
        let process = |by: &str| (Hold::Process, by.to_owned());
        Ok(Guarantees {
            backend: "docker".to_owned(),
            disk_workspace: DiskWorkspace::Unlimited,
            image: Some(self.config.image.clone()),
            controls: BTreeMap::from([
                (Control::Isolation, sandbox("a container of the engine")),
                (
                    Control::SystemCalls,
                    sandbox("our filter and the engine's, no new privileges, no capabilities"),
                ),
                (
                    Control::Landlock,
                    (Hold::None, "not used in containers".to_owned()),
                ),
                (
                    Control::Network,
                    sandbox(
                        "a network namespace without a way out; where a daemon has an address, \
                         no sockets",
                    ),
                ),
                (Control::Memory, sandbox("the container's cgroup")),
                (Control::Cpus, sandbox("the container's cgroup")),
                (Control::Pids, sandbox("the container's cgroup")),
                (Control::Workspace, sandbox("a file system in memory")),
                (Control::Tmp, sandbox("a file system in memory")),
                (Control::FileSize, process("RLIMIT_FSIZE")),
                (Control::OpenFiles, process("RLIMIT_NOFILE")),
            ]),
        })
    }

    fn is_absent(&self) -> bool {
        self.engine.is_absent()
    }

    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        match self.claim(plan).await? {
            Some(claimed) => Ok(claimed),
            None => self.make(plan).await,
        }
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure> {
        if let Some(stdio) = self.fresh().remove(id) {
            return Ok(Box::new(stdio));
        }
        let mut seen = self.seen(id).await?;
        if seen.is_none() {
            // A disposable one may be in use before the engine is done with its start, and lets
            // nobody look at it until then.
            self.place(id).await?;
            seen = self.seen(id).await?;
        }
        let seen = seen.ok_or_else(|| unknown(id))?;
        if seen.state != SandboxState::Running {
            let message = format!("sandbox {id} has ended");
            return Err(Failure::new(Code::Unavailable, message));
        }
        match seen.way {
            Way::Door(door) => self.knock(&seen.container, &door).await,
            Way::Visit => {
                let container = container_of(&seen.plan)?;
                let mut words = body::arguments(&seen.plan, container);
                words.push("--end-with-stdio".to_owned());
                let env = seen
                    .plan
                    .env
                    .iter()
                    .map(|(n, v)| format!("{n}={v}"))
                    .collect();
                let user = container.user.clone();
                Ok(Box::new(
                    self.exec(&seen.container, words, user, env).await?,
                ))
            }
        }
    }

    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure> {
        let seen = self.seen(id).await?.ok_or_else(|| unknown(id))?;
        let durable = match &seen.plan.workspace {
            Workspace::Disk => true,
            Workspace::Folder { access, .. } => *access == Access::ReadWrite,
            Workspace::Memory | Workspace::Fresh | Workspace::Empty => false,
        };
        if !durable || seen.plan.lifetime == Lifetime::Disposable {
            let message = format!("sandbox {id} keeps its files in memory: they would be lost");
            return Err(Failure::new(Code::Conflict, message));
        }
        self.fresh().remove(id);
        // Who is killed between the two has left one that runs, which counts more.
        self.store.mark_suspended(id)?;
        self.stop(&seen.container).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure> {
        self.fresh().remove(id);
        if let Some(borrowed) = self.store.borrowed(id) {
            // What was there before stays; one of ours is stopped, as whoever kept it left it.
            if !borrowed.stays {
                self.discard(&borrowed.container).await?;
            } else if borrowed.door.is_some() {
                self.stop(&borrowed.container).await?;
            }
            return self.store.remove(id);
        }
        for found in self.containers(&format!("{LABEL}={id}")).await? {
            let seen = self.of_summary(found.clone());
            let plan = seen.and_then(|seen| seen.plan.container);
            if plan.as_ref().is_some_and(|plan| plan.keep) {
                self.store.mark_released(id)?;
                return self.stop(found.id.as_deref().unwrap_or_default()).await;
            }
            if let Some(container) = found.id {
                self.discard(&container).await?;
            }
            for volume in plan
                .into_iter()
                .filter(|container| container.remove_volumes)
                .flat_map(|container| container.volumes)
            {
                let client = self.engine.client().await?;
                let options = None::<RemoveVolumeOptions>;
                unless_gone(client.remove_volume(&volume.name, options).await)
                    .map_err(|e| failed(format!("cannot remove volume {}", volume.name), e))?;
            }
        }
        self.store.remove(id)
    }

    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        self.seen(id).await?.ok_or_else(|| unknown(id))?;
        self.store.note(id, name, value)
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure> {
        let mut all = Vec::new();
        for found in self.containers(LABEL).await? {
            if let Some(seen) = self.of_summary(found) {
                all.push(self.info(seen));
            }
        }
        for id in self.store.ids()? {
            if let Some(borrowed) = self.store.borrowed(&id) {
                all.push(self.info(self.seen_borrowed(borrowed).await?));
            }
        }
        Ok(all)
    }

    async fn ready(&self) -> Result<(), Failure> {
        self.list().await.map(drop)
    }

    fn prepare(&self, plan: &Plan) {
        self.make_ready(plan);
    }

    async fn close(&self) -> Result<(), Failure> {
        self.drain().await
    }

    async fn tidy(&self) -> Result<(), Failure> {
        self.sweep().await.map(drop)
    }

    async fn place(&self, id: &SandboxId) -> Result<Option<Place>, Failure> {
        let client = self.engine.client().await?;
        let name = self.name_of(id);
        let options = None::<InspectContainerOptions>;
        match client.inspect_container(&name, options).await {
            Ok(found) => {
                let networks = found.network_settings.and_then(|all| all.networks);
                let mut networks = networks.unwrap_or_default().into_values();
                let address = networks.find_map(|network| network.ip_address);
                Ok(Some(Place {
                    name,
                    address: address.filter(|address| !address.is_empty()),
                }))
            }
            Err(error) if status(&error) == Some(404) => Ok(None),
            Err(error) => Err(failed(format!("cannot look at container {name}"), error)),
        }
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<SandboxInfo>, Failure> {
        Ok(self.seen(id).await?.map(|seen| self.info(seen)))
    }
}
