//! What the host knows of its native sandboxes: a folder each, from which any process finds them.

use crate::backend::Notes;
use crate::backend::process::Process;
use crate::plan::{Lifetime, Plan, SandboxId};
use crate::spec::Workspace;
use ringfence_jail::Cgroup;
use ringfence_proto::{Cause, Certificate, Code, Ended, Failure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const RECORD: &str = "sandbox.json";
const PROCESS: &str = "process.json";
const NOTES: &str = "notes.json";
const SUSPENDED: &str = "suspended";
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
            notes: Notes::new(),
        }
    }

    /// Nobody will ever come back for it.
    pub(super) fn is_abandoned(&self) -> bool {
        let maker_lives = self.maker.as_ref().is_some_and(Process::is_alive);
        match self.plan.lifetime {
            Lifetime::Disposable => !maker_lives,
            // Cut off between its launch and the note of its process.
            Lifetime::Kept => self.process.is_none() && !self.suspended && !maker_lives,
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

    /// Takes the folder of a new sandbox, or of a suspended one that is to run again.
    pub(super) fn claim(&self, plan: &Plan) -> Result<(bool, PathBuf), Failure> {
        let folder = self.folder(&plan.id);
        let what = || format!("cannot make the folder {}", folder.display());
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Ok(()) => Ok((false, folder)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                // Removing the marker is the claim: only one caller can.
                match fs::remove_file(folder.join(SUSPENDED)) {
                    Ok(()) => {
                        let _ = fs::remove_file(folder.join(SOCKET));
                        Ok((true, folder))
                    }
                    Err(_) => Err(Failure::new(
                        Code::AlreadyExists,
                        format!("sandbox {} exists already", plan.id),
                    )),
                }
            }
            Err(e) => Err(Failure::io(what(), &e)),
        }
    }

    pub(super) fn write(&self, record: &Record) -> Result<(), Failure> {
        self.put(&record.plan.id, RECORD, record)
    }

    pub(super) fn write_process(&self, record: &Record) -> Result<(), Failure> {
        self.put(&record.plan.id, PROCESS, &record.process)
    }

    pub(super) fn write_notes(&self, id: &SandboxId, notes: &Notes) -> Result<(), Failure> {
        self.put(id, NOTES, notes)
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
        record.notes = fs::read(folder.join(NOTES))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        record.suspended = folder.join(SUSPENDED).exists();
        Ok(Some(record))
    }

    pub(super) fn forget_process(&self, id: &SandboxId) -> Result<(), Failure> {
        let folder = self.folder(id);
        let what = || format!("cannot suspend sandbox {id}");
        self.mark_suspended(id)
            .map_err(|e| Failure::io(what(), &e))?;
        match fs::remove_file(folder.join(PROCESS)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::io(what(), &e)),
            _ => Ok(()),
        }
    }

    /// From here on, whoever creates it again gets it with its files.
    pub(super) fn mark_suspended(&self, id: &SandboxId) -> io::Result<()> {
        fs::write(self.folder(id).join(SUSPENDED), b"")
    }

    pub(super) fn remove(&self, id: &SandboxId) -> Result<(), Failure> {
        let folder = self.folder(id);
        match fs::remove_dir_all(&folder) {
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

    /// A folder without a readable record that nobody holds, and older than it takes to hold it.
    pub(super) fn is_stale(&self, id: &SandboxId) -> bool {
        let modified = fs::metadata(self.folder(id)).and_then(|m| m.modified());
        modified.is_ok_and(|m| m.elapsed().is_ok_and(|age| age > Duration::from_secs(5)))
    }

    /// The right to remove an abandoned sandbox; absent where another process has it.
    pub(super) fn lock(&self, id: &SandboxId) -> Option<fs::File> {
        let folder = fs::File::open(self.folder(id)).ok()?;
        folder.try_lock().ok()?;
        Some(folder)
    }

    pub(super) fn socket(&self, id: &SandboxId) -> Result<Socket, Failure> {
        use rustix::fs::{CWD, Mode, OFlags, openat};
        let folder = self.folder(id);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match openat(CWD, &folder, flags, Mode::empty()) {
            Ok(folder) => Ok(Socket { folder }),
            Err(_) => Err(Failure::new(
                Code::NotFound,
                format!("there is no sandbox {id}"),
            )),
        }
    }
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
