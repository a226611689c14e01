//! Containers that are made before anybody asks, so that a session is there at once.
//!
//! Plans that differ only in what says whose they are have the same shape. For each shape that was
//! asked for, so many are parked: their guest runs, and in it the Python of the first kernel. A
//! claim is a rename: the engine lets one name be taken once.

use super::body::labels;
use super::engine::{failed, status};
use super::record::{Borrowed, Door};
use super::stdio::Stdio;
use super::sweep::maker;
use super::{Docker, POOL, STATE_LABEL, now};
use crate::backend::{Notes, SandboxInfo, SandboxState};
use crate::guest::GuestClient;
use crate::plan::{Lifetime, Plan, SandboxId};
use crate::random_hex;
use crate::sessions::MAIN;
use bollard::query_parameters::RenameContainerOptions;
use ringfence_proto::{Code, Failure, KernelRequest};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Shapes that are kept ready at one time; who asks for more of them waits for each.
const SHAPES: usize = 8;
/// Who has just claimed one comes to its first result before another is made in its place.
const LEAD: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Pool {
    shapes: Mutex<HashMap<String, Shape>>,
}

struct Shape {
    /// One of its plans.
    plan: Plan,
    parked: Vec<Parked>,
    /// Somebody fills it up.
    filling: bool,
}

struct Parked {
    container: String,
    door: Door,
    stdio: Stdio,
}

impl Pool {
    fn shapes(&self) -> MutexGuard<'_, HashMap<String, Shape>> {
        self.shapes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &str) -> Option<Parked> {
        self.shapes().get_mut(key)?.parked.pop()
    }
}

/// What a plan has in common with others that one container would do for.
pub(in crate::backend) fn shape(plan: &Plan) -> Option<String> {
    let container = plan.container.as_ref()?;
    let own = plan
        .labels
        .keys()
        .any(|name| !name.starts_with("ringfence"));
    let shared = container.name.is_none()
        && container.ports.is_empty()
        && container.volumes.is_empty()
        && plan.lifetime == Lifetime::Kept
        && !own;
    if !shared {
        return None;
    }
    let mut common = plan.clone();
    common.id = SandboxId::named(POOL.to_owned());
    common.labels.clear();
    serde_json::to_string(&common).ok()
}

impl Docker {
    /// A parked container for this plan, if there is one. Others are made in its place.
    pub(super) async fn claim(&self, plan: &Plan) -> Result<Option<SandboxInfo>, Failure> {
        if self.config.pool == 0 {
            return Ok(None);
        }
        let Some(key) = shape(plan) else {
            return Ok(None);
        };
        let mut claimed = None;
        while let Some(parked) = self.pool.take(&key) {
            if let Some(info) = self.hand_out(plan, parked).await? {
                claimed = Some(info);
                break;
            }
        }
        self.refill(key, plan, LEAD);
        Ok(claimed)
    }

    /// None where the container is no good any more.
    async fn hand_out(
        &self,
        plan: &Plan,
        mut parked: Parked,
    ) -> Result<Option<SandboxInfo>, Failure> {
        let client = self.engine.client().await?;
        if parked.stdio.has_ended() {
            self.discard(&parked.container).await?;
            return Ok(None);
        }
        let id = &plan.id;
        let options = RenameContainerOptions {
            name: self.name_of(id),
        };
        match client.rename_container(&parked.container, options).await {
            Ok(()) => {}
            Err(error) if status(&error) == Some(409) => {
                self.discard(&parked.container).await?;
                return Err(super::exists(id));
            }
            Err(error) if status(&error) == Some(404) => return Ok(None),
            Err(error) => return Err(failed(format!("cannot claim a container for {id}"), error)),
        }
        let borrowed = Borrowed {
            plan: plan.clone(),
            container: parked.container,
            created: now(),
            door: Some(parked.door),
            stays: false,
        };
        self.store.write_borrowed(&borrowed)?;
        self.fresh().insert(id.clone(), parked.stdio);
        Ok(Some(SandboxInfo {
            plan: borrowed.plan,
            state: SandboxState::Running,
            created: borrowed.created,
            notes: Notes::new(),
        }))
    }

    /// Has this shape filled up after a while, unless somebody is at it.
    fn refill(&self, key: String, plan: &Plan, after: Duration) {
        let mut shapes = self.pool.shapes();
        if shapes.len() >= SHAPES && !shapes.contains_key(&key) {
            return;
        }
        let shape = shapes.entry(key.clone()).or_insert_with(|| Shape {
            plan: plan.clone(),
            parked: Vec::new(),
            filling: false,
        });
        if std::mem::replace(&mut shape.filling, true) {
            return;
        }
        drop(shapes);
        let Some(docker) = self.me.upgrade() else {
            return;
        };
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let filled = Box::pin(docker.fill_up(&key)).await;
            if let Some(shape) = docker.pool.shapes().get_mut(&key) {
                shape.filling = false;
            }
            if let Err(failure) = filled {
                tracing::warn!(detail = failure.detail, "cannot fill the pool: {failure}");
            }
        });
    }

    async fn fill_up(&self, key: &str) -> Result<(), Failure> {
        loop {
            let plan = match self.pool.shapes().get(key) {
                Some(shape) if shape.parked.len() < self.config.pool => shape.plan.clone(),
                _ => return Ok(()),
            };
            let parked = Box::pin(self.park(plan)).await?;
            match self.pool.shapes().get_mut(key) {
                Some(shape) => shape.parked.push(parked),
                None => return Ok(()),
            }
        }
    }

    /// Makes one container that belongs to nobody yet.
    async fn park(&self, mut plan: Plan) -> Result<Parked, Failure> {
        plan.id = SandboxId::named(format!("{POOL}-{}", random_hex::<8>()?));
        plan.labels.clear();
        let mut labels = labels(POOL);
        labels.extend([maker()?]);
        labels.insert(STATE_LABEL.to_owned(), self.store.name.clone());
        let secret = super::secret()?;
        let name = self.name_of(&plan.id);
        let body = self.describe(&plan, labels).await?;
        let (container, stdio) = self
            .launch(&plan, &name, body, &secret)
            .await?
            .ok_or_else(|| super::exists(&plan.id))?;
        let door = Door {
            name: plan.id.to_string(),
            secret,
        };
        let warm = async {
            let io = self.knock(&container, &door).await?;
            let guest = GuestClient::connect(io).await?;
            match guest.start_kernel(MAIN, &KernelRequest::default()).await {
                Err(failure) if failure.code == Code::Missing => Ok(()),
                started => started.map(drop),
            }
        };
        if let Err(failure) = warm.await {
            self.discard(&container).await?;
            return Err(failure);
        }
        Ok(Parked {
            container,
            door,
            stdio,
        })
    }

    /// Removes what is parked.
    pub(super) async fn drain(&self) -> Result<(), Failure> {
        let shapes = std::mem::take(&mut *self.pool.shapes());
        for parked in shapes.into_values().flat_map(|shape| shape.parked) {
            self.discard(&parked.container).await?;
        }
        Ok(())
    }

    /// Makes this plan's shape ready before anybody asks for it.
    pub(super) fn make_ready(&self, plan: &Plan) {
        if let Some(key) = shape(plan).filter(|_| self.config.pool > 0) {
            self.refill(key, plan, Duration::ZERO);
        }
    }
}
