//! What the host knows of its native sandboxes: a folder each, from which any process finds them.

use crate::backend::process::Process;
use crate::backend::{Notes, SandboxState, notes};
use crate::plan::{Lifetime, Plan, SandboxId};
use crate::spec::Workspace;
use ringfence_jail::Cgroup;
use ringfence_proto::{Cause, Certificate, Code, Ended, Failure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const RECORD: &str = "sandbox.json";
const PROCESS: &str = "process.json";
const SUSPENDED: &str = "suspended";
const REMOVED: &str = "removed";
const SOCKET: &str = "guest.sock";

fn wait(pidfd: &OwnedFd, patience: Duration) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec {
        tv_sec: patience.as_secs() as i64,
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    let _ = poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&limit));
    // Reaps it where it is a child of ours; elsewhere its parent does.
    let _ = rustix::process::waitid(
        rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(pidfd)),
        rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG,
    );
}

/// Everything about one sandbox that outlives its maker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    pub plan: Plan,
    pub cgroup: Option<Cgroup>,
    pub created: f64,
    /// Who made it.
    maker: Option<Process>,
    /// Its guest; kept in a file of its own, which is written when it runs.
    #[serde(skip)]
    pub process: Option<Process>,
    #[serde(skip)]
    suspended: bool,
    /// Its removal has begun: for others it is gone.
    #[serde(skip)]
    pub removed: bool,
    #[serde(skip)]
    pub notes: Notes,
}

impl Record {
    pub(super) fn new(plan: Plan, cgroup: Option<Cgroup>) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let maker = Process::own();
        let created = now.as_secs_f64();
        Self {
            plan,
            cgroup,
            created,
            maker,
            process: None,
            suspended: false,
            removed: false,
            notes: Notes::new(),
        }
    }

    /// Nobody will ever come back for it.
    pub(super) fn is_abandoned(&self) -> bool {
        if self.removed {
            return true;
        }
        let maker_lives = self.maker.as_ref().is_some_and(Process::is_alive);
        match self.plan.lifetime {
            Lifetime::Disposable => !maker_lives,
            // Cut off between its launch and the note of its process.
            Lifetime::Kept => self.process.is_none() && !self.suspended && !maker_lives,
        }
    }

    /// Its processes have ended and its files are kept.
    fn is_suspended(&self) -> bool {
        self.suspended && !self.removed && !self.process.as_ref().is_some_and(Process::is_alive)
    }

    pub(super) fn state(&self) -> SandboxState {
        match &self.process {
            Some(process) if process.is_alive() => SandboxState::Running,
            Some(_) if !self.suspended => SandboxState::Dead,
            _ => SandboxState::Suspended,
        }
    }

    /// Ends every process of it. The guest is the init of its pid namespace, so all go with it,
    /// but only when it gets to run; so that nothing keeps it from that, all are told.
    pub(super) fn kill(&self, patience: Duration) {
        let guests = match &self.process {
            Some(process) => vec![process.clone()],
            None => self.unnoted(),
        };
        let gone: Vec<OwnedFd> = guests.iter().filter_map(Process::kill).collect();
        for process in self.in_cgroup() {
            process.kill();
        }
        for pidfd in gone {
            wait(&pidfd, patience);
        }
    }

    /// Why it ended, if it has, or does within this time.
    pub(super) fn fate(&self, patience: Duration) -> Option<Certificate> {
        let process = self.process.as_ref()?;
        if let Some(pidfd) = process.watch() {
            wait(&pidfd, patience);
        }
        if process.is_alive() {
            return None;
        }
        let mut certificate = if self.cgroup.as_ref().is_some_and(|c| c.oom_kills() > 0) {
            let limit = self.plan.limits.memory;
            let message = format!("the sandbox used more than {limit} of memory and was ended");
            let next = "use less memory at a time, or ask for more";
            Certificate {
                limit: Some(limit.to_string()),
                ..Certificate::new(Cause::Memory, Ended::Sandbox, message, false, next)
            }
        } else {
            let message =
                "the guest was killed or crashed, and the sandbox ended with all that ran in it";
            Certificate::new(
                Cause::Killed,
                Ended::Sandbox,
                message,
                false,
                "run it again",
            )
        };
        let on_disk = matches!(
            self.plan.workspace,
            Workspace::Disk | Workspace::Folder { .. }
        );
        certificate.survived.files = on_disk;
        Some(certificate)
    }

    fn in_cgroup(&self) -> Vec<Process> {
        let pids = self.cgroup.iter().flat_map(Cgroup::processes);
        pids.filter_map(Process::of).collect()
    }

    /// The guest of a sandbox whose maker died before it could note the process.
    fn unnoted(&self) -> Vec<Process> {
        let mark = format!("--id\0{}\0", self.plan.id);
        let pids = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid| {
                fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                    line.starts_with(b"ringfence-guest\0")
                        && line.windows(mark.len()).any(|w| w == mark.as_bytes())
                })
            });
        let mut found: Vec<Process> = pids.filter_map(Process::of).collect();
        // A child that had not become the guest yet is only known to its cgroup.
        found.extend(self.in_cgroup());
        found
    }

    pub(super) fn remove_cgroup(&self) -> io::Result<()> {
        self.cgroup.as_ref().map_or(Ok(()), Cgroup::remove)
    }
}

/// What a sweep removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Leftovers {
    pub sandboxes: Vec<SandboxId>,
    /// Those that did not go, and why.
    pub stuck: Vec<(SandboxId, String)>,
}

/// The right to make a sandbox, or to start it again.
pub(super) struct Claim {
    pub folder: PathBuf,
    /// What it was when it was suspended.
    pub again: Option<Record>,
    _lock: fs::File,
}

/// The state folder.
#[derive(Debug)]
pub(super) struct Store {
    root: PathBuf,
}

/// A socket's path that is short enough to connect to.
pub(super) struct Socket {
    folder: OwnedFd,
}

impl Socket {
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!(
            "/proc/self/fd/{}/{SOCKET}",
            self.folder.as_raw_fd()
        ))
    }
}

impl Store {
    pub(super) fn open(root: &Path) -> Result<Self, Failure> {
        make_private(root).map_err(|e| {
            Failure::io(format!("cannot make the folder {}", root.display()), &e)
                .hint("RINGFENCE_STATE_DIR names another folder")
        })?;
        Ok(Self {
            root: root.to_owned(),
        })
    }

    fn folder(&self, id: &SandboxId) -> PathBuf {
        self.root.join(id.as_str())
    }

    /// Takes the folder of a new sandbox, or of a suspended one that is to run again. The lock is
    /// the claim, and what says that files are kept stays until the guest is noted: whoever is
    /// killed in between leaves a sandbox that is suspended, for the next one to claim.
    pub(super) fn claim(&self, plan: &Plan) -> Result<Claim, Failure> {
        let folder = self.folder(&plan.id);
        let failed = |e| Failure::io(format!("cannot make the folder {}", folder.display()), &e);
        let taken = || {
            let message = format!("sandbox {} exists already", plan.id);
            Failure::new(Code::AlreadyExists, message)
        };
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => {
                let lock = self.locked(&plan.id).map_err(failed)?;
                Ok(Claim {
                    folder,
                    again: None,
                    _lock: lock,
                })
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let lock = self.lock(&plan.id).ok_or_else(taken)?;
                let record = self.read(&plan.id).ok().flatten();
                let again = record.filter(Record::is_suspended).ok_or_else(taken)?;
                Ok(Claim {
                    folder,
                    again: Some(again),
                    _lock: lock,
                })
            }
            Err(e) => Err(failed(e)),
        }
    }

    pub(super) fn write(&self, record: &Record) -> Result<(), Failure> {
        self.put(&record.plan.id, RECORD, record)
    }

    pub(super) fn write_process(&self, record: &Record) -> Result<(), Failure> {
        self.put(&record.plan.id, PROCESS, &record.process)
    }

    pub(super) fn note(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        notes::set(&self.folder(id), name, value)
            .map_err(|e| Failure::io(format!("cannot note something about sandbox {id}"), &e))
    }

    fn put(&self, id: &SandboxId, name: &str, value: &impl Serialize) -> Result<(), Failure> {
        let path = self.folder(id).join(name);
        let new = path.with_extension("new");
        serde_json::to_vec(value)
            .map_err(io::Error::other)
            .and_then(|bytes| fs::write(&new, bytes))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))
    }

    pub(super) fn read(&self, id: &SandboxId) -> Result<Option<Record>, Failure> {
        let folder = self.folder(id);
        let path = folder.join(RECORD);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound && !folder.exists() => return Ok(None),
            Err(e) => return Err(Failure::io(format!("cannot read {}", path.display()), &e)),
        };
        let mut record: Record = serde_json::from_slice(&bytes).map_err(|e| {
            Failure::new(Code::Internal, format!("cannot read {}", path.display())).detail(e)
        })?;
        record.process = fs::read(folder.join(PROCESS))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .flatten();
        record.notes = notes::read(&folder);
        record.suspended = folder.join(SUSPENDED).exists();
        record.removed = folder.join(REMOVED).exists();
        Ok(Some(record))
    }

    pub(super) fn forget_process(&self, id: &SandboxId) -> Result<(), Failure> {
        let folder = self.folder(id);
        let what = || format!("cannot suspend sandbox {id}");
        // From here on, whoever creates it again gets it with its files.
        fs::write(folder.join(SUSPENDED), b"").map_err(|e| Failure::io(what(), &e))?;
        // A socket that is there means that a guest was started.
        for name in [PROCESS, SOCKET] {
            match fs::remove_file(folder.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::io(what(), &e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Its guest is noted. Where this is not done, that counts more.
    pub(super) fn mark_running(&self, id: &SandboxId) {
        let _ = fs::remove_file(self.folder(id).join(SUSPENDED));
    }

    /// Whether a guest was started, noted or not, since it was suspended; then its socket goes.
    pub(super) fn had_guest(&self, id: &SandboxId) -> bool {
        fs::remove_file(self.folder(id).join(SOCKET)).is_ok()
    }

    /// From here on it is gone for everybody, also where whoever removes it is killed: then the
    /// next one that looks goes on with that. On a full disk it is removed all the same.
    pub(super) fn mark_removed(&self, id: &SandboxId) {
        let _ = fs::write(self.folder(id).join(REMOVED), b"");
    }

    /// Removes this folder, unless its name has gone to another one since it was opened.
    pub(super) fn remove_opened(&self, id: &SandboxId, folder: &fs::File) -> Result<(), Failure> {
        let same = |there: fs::Metadata| {
            let ours = folder.metadata();
            ours.is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        };
        match fs::metadata(self.folder(id)).is_ok_and(same) {
            true => self.remove(id),
            false => Ok(()),
        }
    }

    pub(super) fn remove(&self, id: &SandboxId) -> Result<(), Failure> {
        let folder = self.folder(id);
        // Without a record nobody takes what is left of it for a sandbox.
        let _ = fs::remove_file(folder.join(RECORD));
        let mut gone = fs::remove_dir_all(&folder);
        for _ in 0..10 {
            // Two may be at it, of which one has just marked it.
            if !matches!(&gone, Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty) {
                break;
            }
            gone = fs::remove_dir_all(&folder);
        }
        match gone {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::io(
                format!("cannot remove {}", folder.display()),
                &e,
            )),
            _ => Ok(()),
        }
    }

    pub(super) fn ids(&self) -> Result<Vec<SandboxId>, Failure> {
        let entries = fs::read_dir(&self.root)
            .map_err(|e| Failure::io(format!("cannot read {}", self.root.display()), &e))?;
        let mut ids: Vec<SandboxId> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                // Servers keep files of their own here.
                let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
                let name = entry.file_name().into_string().ok()?;
                SandboxId::try_from(name).ok().filter(|_| is_folder)
            })
            .collect();
        ids.sort();
        Ok(ids)
    }

    /// A folder without a record that nobody holds, and older than it takes to hold it.
    pub(super) fn is_stale(&self, id: &SandboxId) -> bool {
        let folder = self.folder(id);
        if folder.join(RECORD).exists() {
            return false;
        }
        let modified = fs::metadata(folder).and_then(|m| m.modified());
        modified.is_ok_and(|m| m.elapsed().is_ok_and(|age| age > Duration::from_secs(5)))
    }

    /// Its folder as it is now.
    pub(super) fn opened(&self, id: &SandboxId) -> io::Result<fs::File> {
        fs::File::open(self.folder(id))
    }

    /// The right to start, suspend, remove or sweep a sandbox; absent where another has it.
    pub(super) fn lock(&self, id: &SandboxId) -> Option<fs::File> {
        let folder = self.opened(id).ok()?;
        folder.try_lock().ok()?;
        Some(folder)
    }

    /// The same, waited for.
    pub(super) fn locked(&self, id: &SandboxId) -> io::Result<fs::File> {
        let folder = self.opened(id)?;
        folder.lock()?;
        Ok(folder)
    }

    pub(super) fn socket(&self, id: &SandboxId) -> Result<Socket, Failure> {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let folder = self.folder(id);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, &folder, flags, Mode::empty()) {
            Ok(folder) => Ok(Socket { folder }),
            Err(_) => Err(unknown(id)),
        }
    }
}

pub(super) fn unknown(id: &SandboxId) -> Failure {
    Failure::new(Code::NotFound, format!("there is no sandbox {id}"))
}

fn make_private(path: &Path) -> io::Result<()> {
    match fs::DirBuilder::new()
        .mode(0o700)
        .recursive(true)
        .create(path)
    {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Control, DiskWorkspace, Guarantees, Hold, resolve};
    use crate::spec::SandboxSpec;

    fn plan() -> Plan {
        let claimed = [Control::Isolation, Control::SystemCalls, Control::Network];
        let guarantees = Guarantees {
            backend: "native".to_owned(),
            disk_workspace: DiskWorkspace::Limited,
            image: None,
            controls: claimed
                .map(|control| (control, (Hold::Sandbox, "pretended".to_owned())))
                .into(),
        };
        resolve(SandboxSpec::default(), Lifetime::Kept, &guarantees).unwrap()
    }

    fn of_the_dead() -> Process {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let process = Process::of(child.id() as i32).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        process
    }

    #[test]
    fn whoever_is_killed_while_it_starts_a_suspended_one_again_leaves_it_suspended() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let plan = plan();
        let made = store.claim(&plan).unwrap();
        assert!(made.again.is_none());
        let mut record = Record::new(plan.clone(), None);
        record.maker = Some(of_the_dead());
        record.process = record.maker.clone();
        store.write(&record).unwrap();
        let read = || store.read(&plan.id).unwrap().unwrap();
        // Nobody was told of one that was cut off before it began.
        assert!(read().is_abandoned());
        store.write_process(&record).unwrap();
        assert_eq!(read().state(), SandboxState::Dead);
        drop(made);
        store.forget_process(&plan.id).unwrap();
        let taken = |claim: Result<Claim, Failure>| claim.err().map(|failure| failure.code);
        for _ in 0..2 {
            let claim = store.claim(&plan).unwrap();
            assert!(claim.again.is_some());
            assert_eq!(taken(store.claim(&plan)), Some(Code::AlreadyExists));
            // Here it is killed: the system lets go of the lock, and nothing else happens.
            drop(claim);
            assert!(!read().is_abandoned());
            assert_eq!(read().state(), SandboxState::Suspended);
        }
        let claim = store.claim(&plan).unwrap();
        record.process = Process::own();
        store.write_process(&record).unwrap();
        assert_eq!(read().state(), SandboxState::Running);
        drop(claim);
        assert_eq!(taken(store.claim(&plan)), Some(Code::AlreadyExists));
    }
    #[test]
    fn a_record_that_this_version_cannot_read_is_no_creation_that_was_cut_off() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let plan = plan();
        drop(store.claim(&plan).unwrap());
        let old = SystemTime::now() - Duration::from_secs(60);
        let age = || {
            let folder = fs::File::open(store.folder(&plan.id)).unwrap();
            folder.set_modified(old).unwrap();
        };
        age();
        assert!(store.is_stale(&plan.id));
        let written = r#"{"by": "another version"}"#;
        fs::write(store.folder(&plan.id).join(RECORD), written).unwrap();
        age();
        assert!(store.read(&plan.id).is_err() && !store.is_stale(&plan.id));
    }
}
