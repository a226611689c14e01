//! What the engine can't keep: labels never change, so what is noted later lies in the state folder.

use super::{LABEL, SECRET_LABEL};
use crate::backend::{Notes, notes};
use crate::plan::{Plan, SandboxId};
use crate::random_hex;
use ringfence_proto::{Code, Failure};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SUSPENDED: &str = "suspended";
const RELEASED: &str = "released";
const BORROWED: &str = "borrowed.json";

/// A sandbox in a container that was made for something else: by others, or for the pool.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Borrowed {
    pub(super) plan: Plan,
    /// The engine's id of the container.
    pub(super) container: String,
    /// Seconds since the epoch.
    pub(super) created: f64,
    /// The way to its guest; absent in a container that is not ours.
    pub(super) door: Option<Door>,
    /// Whether the container was there before, and is there afterwards.
    pub(super) stays: bool,
}

/// The way to a guest that runs already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Door {
    pub(super) name: String,
    pub(super) secret: String,
}

impl Door {
    /// That of a container of ours, whose labels tell it.
    pub(super) fn of_labels(labels: &HashMap<String, String>) -> Option<Self> {
        Some(Self {
            name: labels.get(LABEL)?.clone(),
            secret: labels.get(SECRET_LABEL)?.clone(),
        })
    }
}

#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
    /// Tells the containers of this state folder from those of others on the same engine.
    pub(super) name: String,
}

impl Store {
    /// Below the state folder; no native sandbox has a name with a dot.
    pub(super) fn open(state: &Path) -> Result<Self, Failure> {
        let root = state.join(".docker");
        fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&root)
            .map_err(|e| {
                Failure::io(format!("cannot make the folder {}", root.display()), &e)
                    .hint("RINGFENCE_STATE_DIR names another folder")
            })?;
        let name = name(&root)
            .map_err(|e| Failure::io(format!("cannot use the folder {}", root.display()), &e))?;
        Ok(Self { root, name })
    }

    fn folder(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    pub(super) fn notes(&self, id: &SandboxId) -> Notes {
        notes::read(&self.folder(id))
    }

    pub(super) fn note(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        self.make_folder(id)
            .and_then(|folder| notes::set(&folder, name, value))
            .map_err(|e| Failure::io(format!("cannot note something about sandbox {id}"), &e))
    }

    pub(super) fn borrowed(&self, id: &SandboxId) -> Option<Borrowed> {
        let bytes = fs::read(self.folder(id).join(BORROWED)).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    pub(super) fn write_borrowed(&self, borrowed: &Borrowed) -> Result<(), Failure> {
        self.put(&borrowed.plan.id, BORROWED, borrowed)
    }

    /// From here on its end is no death: it can be started again.
    pub(super) fn mark_suspended(&self, id: &SandboxId) -> Result<(), Failure> {
        self.put(id, SUSPENDED, &())
    }

    pub(super) fn is_suspended(&self, id: &SandboxId) -> bool {
        self.folder(id).join(SUSPENDED).exists()
    }

    /// Takes the right to start it again; only one caller gets it.
    pub(super) fn claim_suspended(&self, id: &SandboxId) -> bool {
        fs::remove_file(self.folder(id).join(SUSPENDED)).is_ok()
    }

    /// From here on the container is nobody's sandbox.
    pub(super) fn mark_released(&self, id: &SandboxId) -> Result<(), Failure> {
        self.put(id, RELEASED, &())
    }

    pub(super) fn is_released(&self, id: &SandboxId) -> bool {
        self.folder(id).join(RELEASED).exists()
    }

    fn make_folder(&self, id: &SandboxId) -> io::Result<PathBuf> {
        let folder = self.folder(id);
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(folder),
        }
    }

    fn put(&self, id: &SandboxId, name: &str, value: &impl Serialize) -> Result<(), Failure> {
        let path = self.folder(id).join(name);
        let new = path.with_extension("new");
        self.make_folder(id)
            .and_then(|_| serde_json::to_vec(value).map_err(io::Error::other))
            .and_then(|bytes| fs::write(&new, bytes))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))
    }

    pub(super) fn remove(&self, id: &SandboxId) -> Result<(), Failure> {
        let folder = self.folder(id);
        match fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                let what = format!("cannot remove {}", folder.display());
                Err(Failure::io(what, &e))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn ids(&self) -> Result<Vec<SandboxId>, Failure> {
        let entries = fs::read_dir(&self.root).map_err(|e| {
            Failure::new(
                Code::Internal,
                format!("cannot read {}", self.root.display()),
            )
            .detail(e)
        })?;
        Ok(entries
            .filter_map(|entry| {
                let name = entry.ok()?.file_name().into_string().ok()?;
                SandboxId::try_from(name).ok()
            })
            .collect())
    }

    /// Older than it takes to make what it belongs to.
    pub(super) fn is_old(&self, id: &SandboxId, age: Duration) -> bool {
        let modified = fs::metadata(self.folder(id)).and_then(|m| m.modified());
        modified.is_ok_and(|m| m.elapsed().is_ok_and(|elapsed| elapsed > age))
    }
}

/// The name of a state folder: whoever comes first chooses it.
fn name(root: &Path) -> io::Result<String> {
    let path = root.join(".name");
    let fresh = random_hex::<4>().map_err(|failure| io::Error::other(failure.message))?;
    let own = root.join(format!(".name.{fresh}"));
    fs::write(&own, &fresh)?;
    let linked = fs::hard_link(&own, &path);
    fs::remove_file(&own)?;
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
        _ => fs::read_to_string(&path),
    }
}
