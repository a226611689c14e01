//! A backend in this process: the real guest on an in-memory stream, and no isolation at all.

use async_trait::async_trait;
use ringfence_core::backend::{Backend, Io, Notes, SandboxInfo, SandboxState};
use ringfence_core::plan::{Guarantees, Plan, SandboxId};
use ringfence_core::{Code, Control, DiskWorkspace, Failure, Hold};
use ringfence_guest::{Config, Guest};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

#[derive(Default)]
pub struct Fake {
    sandboxes: Mutex<BTreeMap<SandboxId, Sandbox>>,
}

struct Sandbox {
    plan: Plan,
    workspace: TempDir,
    notes: Notes,
    /// Absent while it is suspended.
    guest: Option<Arc<Guest>>,
}

impl Fake {
    fn all(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Sandbox>> {
        self.sandboxes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(id: &SandboxId) -> Failure {
    Failure::new(Code::NotFound, format!("there is no sandbox {id}"))
}

fn guest(plan: &Plan, workspace: &TempDir) -> Arc<Guest> {
    let mut config = Config::new(workspace.path());
    let path = "/usr/local/bin:/usr/bin:/bin";
    config.env = vec![
        ("PATH".to_owned(), path.to_owned()),
        ("LANG".into(), "C.UTF-8".into()),
    ];
    config.env.extend(plan.env.clone());
    Guest::new(config)
}

#[async_trait]
impl Backend for Fake {
    async fn guarantees(&self) -> Result<Guarantees, Failure> {
        // What a plan demands always is claimed, or nothing could be made; the limits are not.
        let claimed = [Control::Isolation, Control::SystemCalls, Control::Network];
        let controls = claimed.map(|c| (c, (Hold::Sandbox, "pretended".to_owned())));
        Ok(Guarantees {
            backend: "fake".to_owned(),
            disk_workspace: DiskWorkspace::Limited,
            image: None,
            controls: controls.into(),
        })
    }

    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        for mount in &plan.mounts {
            std::fs::metadata(&mount.from)
                .map_err(|e| Failure::io(format!("cannot mount {}", mount.from.display()), &e))?;
        }
        let mut all = self.all();
        if let Some(known) = all.get_mut(&plan.id) {
            if known.guest.is_some() {
                let message = format!("sandbox {} exists already", plan.id);
                return Err(Failure::new(Code::AlreadyExists, message));
            }
            known.guest = Some(guest(plan, &known.workspace));
            return Ok(known.info());
        }
        let workspace =
            tempfile::tempdir().map_err(|e| Failure::io("cannot make a workspace", &e))?;
        let guest = Some(guest(plan, &workspace));
        let sandbox = Sandbox {
            plan: plan.clone(),
            workspace,
            notes: Notes::new(),
            guest,
        };
        let info = sandbox.info();
        all.insert(plan.id.clone(), sandbox);
        Ok(info)
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure> {
        let guest = self
            .all()
            .get(id)
            .ok_or_else(|| unknown(id))?
            .guest
            .clone()
            .ok_or_else(|| Failure::new(Code::Unavailable, format!("sandbox {id} has ended")))?;
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        tokio::spawn(guest.serve(theirs));
        Ok(Box::new(ours))
    }

    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure> {
        let guest = self
            .all()
            .get_mut(id)
            .ok_or_else(|| unknown(id))?
            .guest
            .take();
        if let Some(guest) = guest {
            guest.kill_everything().await;
        }
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure> {
        let sandbox = self.all().remove(id);
        if let Some(guest) = sandbox.and_then(|s| s.guest) {
            guest.kill_everything().await;
        }
        Ok(())
    }

    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        let mut all = self.all();
        let notes = &mut all.get_mut(id).ok_or_else(|| unknown(id))?.notes;
        notes.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure> {
        Ok(self.all().values().map(Sandbox::info).collect())
    }
}

impl Sandbox {
    fn info(&self) -> SandboxInfo {
        SandboxInfo {
            plan: self.plan.clone(),
            state: match self.guest {
                Some(_) => SandboxState::Running,
                None => SandboxState::Suspended,
            },
            created: 0.0,
            notes: self.notes.clone(),
        }
    }
}
