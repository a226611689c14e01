//! Sandboxes on a plain Linux host: namespaces, cgroups, seccomp, landlock; nothing to install.

mod bytecode;
mod record;
mod system;
mod workspace;

use crate::backend::process::Process;
use crate::backend::{Backend, Io, SandboxInfo};
use crate::hex;
use crate::interpreter::Interpreter;
use crate::plan::{Control, DiskWorkspace, Guarantees, Hold, Lifetime, Plan, SandboxId};
use crate::spec::{Access, Network, Workspace};
use async_trait::async_trait;
use bytecode::Bytecode;
use record::{Record, Store, unknown};
use ringfence_jail::{
    Cgroup, CgroupLimits, Hierarchy, Item, Jail, Janitor, LastWords, Owner, Request, Stage,
};
use ringfence_proto::{Certificate, Code, Failure};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

pub use record::Leftovers;
pub use ringfence_jail::Launcher;

/// Where things of this backend are on the host.
#[derive(Debug, Clone)]
pub struct Config {
    /// Holds a folder per sandbox.
    pub state: PathBuf,
    /// The static program that is launcher and guest.
    pub guest: PathBuf,
    /// Holds the packages environments.
    pub environments: PathBuf,
    /// Used when a plan names neither an interpreter nor an environment.
    pub interpreter: Option<Interpreter>,
}

/// Where the compiled kernel is inside.
const KERNEL: &str = "/run/ringfence-kernel";

/// How long a sandbox that is ended may take to be gone.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How long one whose connection broke may take to be seen to have ended.
const MOMENT: Duration = Duration::from_secs(2);

pub struct Native {
    config: Config,
    /// Started when it is first needed, and again when it was killed.
    launcher: Mutex<Option<Launcher>>,
    store: Store,
    hierarchy: OnceLock<Option<Hierarchy>>,
    bytecode: Bytecode,
    /// What disposable sandboxes made here live as long as.
    requests: Mutex<BTreeMap<SandboxId, Request>>,
}

impl Native {
    pub fn new(config: Config) -> Result<Self, Failure> {
        Self::with_launcher(config, None)
    }

    /// With a launcher that was started before, so that nobody waits for its start.
    pub fn with_launcher(config: Config, launcher: Option<Launcher>) -> Result<Self, Failure> {
        let store = Store::open(&config.state)?;
        Ok(Self {
            config,
            launcher: Mutex::new(launcher),
            store,
            hierarchy: OnceLock::new(),
            bytecode: Bytecode::default(),
            requests: Mutex::new(BTreeMap::new()),
        })
    }

    fn hierarchy(&self) -> Option<&Hierarchy> {
        self.hierarchy.get_or_init(Hierarchy::find).as_ref()
    }

    /// What can be enforced here; quick, so that each creation can ask.
    pub fn offers(&self) -> Guarantees {
        let cgroup = self.hierarchy();
        let by = |controller| cgroup.filter(|h| h.has(controller)).map(Hierarchy::version);
        let sandbox = |by: &str| (Hold::Sandbox, by.to_owned());
        let mut controls = BTreeMap::from([
            (
                Control::Isolation,
                sandbox("user, mount, pid, ipc, uts, net and cgroup namespaces"),
            ),
            (
                Control::SystemCalls,
                sandbox("seccomp, no new privileges, no capabilities"),
            ),
            (Control::Network, sandbox("an empty network namespace")),
            (Control::Tmp, sandbox("a file system in memory")),
            (Control::Workspace, sandbox(workspace::means())),
            (
                Control::FileSize,
                (Hold::Process, "RLIMIT_FSIZE".to_owned()),
            ),
            (
                Control::OpenFiles,
                (Hold::Process, "RLIMIT_NOFILE".to_owned()),
            ),
        ]);
        controls.insert(
            Control::Landlock,
            match ringfence_jail::landlock_version() {
                0 => (Hold::None, "this kernel has no landlock".to_owned()),
                version => (Hold::Sandbox, format!("landlock version {version}")),
            },
        );
        controls.insert(
            Control::Memory,
            match by("memory") {
                Some(version) => sandbox(version),
                None => (
                    Hold::Process,
                    "RLIMIT_DATA, without shared memory; no cgroup can be made here".to_owned(),
                ),
            },
        );
        controls.insert(
            Control::Cpus,
            match by("cpu") {
                Some(version) => sandbox(version),
                None => (Hold::None, "no cgroup can be made here".to_owned()),
            },
        );
        controls.insert(
            Control::Pids,
            match by("pids") {
                Some(version) => sandbox(version),
                None => sandbox("RLIMIT_NPROC in a user namespace of its own"),
            },
        );
        Guarantees {
            backend: "native".to_owned(),
            disk_workspace: match workspace::can_loop() {
                true => DiskWorkspace::Limited,
                false => DiskWorkspace::No,
            },
            image: None,
            controls,
        }
    }

    /// Makes a sandbox; on failure nothing of it is left.
    fn make(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        // As long as this is held, nobody takes what is half made for abandoned.
        let claim = match self.store.claim(plan) {
            Err(taken) if taken.code == Code::AlreadyExists && self.end_removed(&plan.id) => {
                self.store.claim(plan)?
            }
            claim => claim?,
        };
        if let Some(record) = &claim.again
            && self.store.had_guest(&plan.id)
        {
            // Who started it last was killed before its guest was noted; two would share its files.
            self.stop(record, PATIENCE)?;
        }
        let made = self.make_in(plan, &claim.folder);
        match (&made, &claim.again) {
            (Ok(_), Some(_)) => self.store.mark_running(&plan.id),
            // The failure at hand is the one to tell; what could not be put right is swept later.
            (Err(_), None) => drop(self.store.remove(&plan.id)),
            (Ok(_), None) | (Err(_), Some(_)) => {}
        }
        made
    }

    fn make_in(&self, plan: &Plan, folder: &Path) -> Result<SandboxInfo, Failure> {
        let mut jail = self.jail(plan, folder)?;
        let mut record = Record::new(plan.clone(), jail.cgroup.clone());
        self.store.write(&record)?;
        if plan.workspace == Workspace::Disk {
            // No sandbox has a name with a dot.
            let templates = self.config.state.join(".templates");
            let size = plan.limits.workspace;
            workspace::make_image(folder, &templates, size, jail.uid, jail.gid)?;
        }
        let pid = match self.launch(plan, &jail) {
            Err(words) if owners_unsupported(&words, &jail) => {
                // The file system of the folder can't map owners: run as its owner instead.
                run_as_owner(&mut jail)?;
                self.launch(plan, &jail)
            }
            other => other,
        }
        .map_err(|words| {
            // A maker that was killed has left what it had made so far.
            let _ = self.stop(&record, PATIENCE);
            explain(&words)
        })?;
        record.process = Process::of(pid);
        let noted = match record.process {
            Some(_) => self.store.write_process(&record),
            None => Err(Failure::new(
                Code::Unavailable,
                "the sandbox ended as soon as it began",
            )),
        };
        if let Err(failure) = noted {
            let _ = self.stop(&record, PATIENCE);
            return Err(failure);
        }
        Ok(record.info())
    }

    fn launch(&self, plan: &Plan, jail: &Jail) -> Result<i32, LastWords> {
        let gone = |error: io::Error| LastWords {
            stage: Stage::Prepare,
            object: "the launcher".to_owned(),
            errno: error
                .raw_os_error()
                .unwrap_or(rustix::io::Errno::PIPE.raw_os_error()),
        };
        let mut request = self.request().map_err(gone)?;
        // A maker that was killed is replaced by its launcher, and that by the next request.
        let pid = request.launch(jail).map_err(gone)??;
        if plan.lifetime == Lifetime::Disposable
            && let Ok(mut requests) = self.requests.lock()
        {
            requests.insert(plan.id.clone(), request);
        }
        Ok(pid)
    }

    /// Asks the launcher, or a new one if that is gone.
    fn request(&self) -> io::Result<Request> {
        let mut launcher = self.launcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(living) = &*launcher
            && let Ok(request) = living.request()
        {
            return Ok(request);
        }
        if let Some(old) = launcher.take() {
            old.end();
        }
        let new = Launcher::start(&self.config.guest)?;
        launcher.insert(new).request()
    }

    /// A session's key leads to the same id on every state folder, and all of them share the
    /// host's cgroups.
    fn cgroup_name(&self, id: &SandboxId) -> String {
        let state = self.config.state.as_os_str().as_encoded_bytes();
        format!("{id}-{}", hex(&Sha256::digest(state)[..4]))
    }

    fn jail(&self, plan: &Plan, folder: &Path) -> Result<Jail, Failure> {
        let interpreter = self.interpreter(plan)?;
        let (uid, gid) = system::identity(&plan.id);
        let cgroup = self.hierarchy().map(|hierarchy| Cgroup {
            hierarchy: hierarchy.clone(),
            name: self.cgroup_name(&plan.id),
            limits: CgroupLimits {
                memory: hierarchy.has("memory").then_some(plan.limits.memory.0),
                // The guest and its supervisors count too.
                pids: hierarchy.has("pids").then_some(plan.limits.pids),
                millicpus: hierarchy
                    .has("cpu")
                    .then_some((plan.limits.cpus * 1000.0) as u64),
            },
        });
        let mut args = vec![
            "--workspace".to_owned(),
            plan.workspace_at.display().to_string(),
        ];
        args.extend([
            "--open-files".to_owned(),
            plan.limits.open_files.to_string(),
        ]);
        args.extend([
            "--file-size".to_owned(),
            plan.limits.file_size.0.to_string(),
        ]);
        args.extend([
            "--memory-limit".to_owned(),
            plan.limits.memory.0.to_string(),
        ]);
        let mut skeleton = system::skeleton(plan, interpreter.as_ref());
        // What is kept has kernels, mostly.
        if plan.lifetime == Lifetime::Kept
            && let Some(Interpreter { executable, .. }) = &interpreter
            && let named = plan.python.is_some()
            && let Some(from) = self.bytecode.of(&self.config.guest, executable, named)
        {
            args.extend(["--kernel".to_owned(), KERNEL.to_owned()]);
            let path = KERNEL.into();
            skeleton.push(Item::Copy { path, from });
        }
        Ok(Jail {
            hostname: "sandbox".to_owned(),
            id: plan.id.to_string(),
            args,
            env: system::environment(plan, interpreter.as_ref()),
            folder: plan.workspace_at.clone(),
            socket: folder.join("guest.sock"),
            log: (plan.lifetime == Lifetime::Kept).then(|| folder.join("guest.log")),
            uid,
            gid,
            skeleton,
            mounts: system::mounts(plan, folder, interpreter.as_ref())?,
            network: match plan.network {
                Network::None => ringfence_jail::Network::None,
                Network::Host => ringfence_jail::Network::Host,
            },
            rlimits: system::rlimits(plan, cgroup.as_ref()),
            cgroup,
            lifetime: match plan.lifetime {
                Lifetime::Disposable => ringfence_jail::Lifetime::WithLauncher,
                Lifetime::Kept => ringfence_jail::Lifetime::Independent,
            },
        })
    }

    fn interpreter(&self, plan: &Plan) -> Result<Option<Interpreter>, Failure> {
        match (&plan.environment, &plan.python) {
            (Some(_), Some(_)) => Err(Failure::invalid(
                "name an environment or an interpreter, not both",
            )),
            (Some(name), None) => {
                let python = self.config.environments.join(name).join("bin/python3");
                Interpreter::at(&python).map(Some).map_err(|failure| {
                    Failure::new(Code::NotFound, format!("there is no environment `{name}`"))
                        .hint(format!("`ringfence env add {name} --packages …` makes it"))
                        .detail(failure)
                })
            }
            (None, Some(python)) => Interpreter::at(python).map(Some),
            (None, None) if plan.rootfs.is_some() => Ok(None),
            (None, None) => Ok(self.config.interpreter.clone()),
        }
    }

    /// Ends a sandbox and removes everything of it. Waits for its processes to be gone.
    fn end(&self, id: &SandboxId) -> Result<(), Failure> {
        let Ok(folder) = self.store.opened(id) else {
            return self.store.read(id).map(drop);
        };
        // Where another has it, as a janitor does or whoever makes it, it goes all the same.
        let _ = folder.try_lock();
        let deadline = Instant::now() + MOMENT;
        let record = loop {
            match self.store.read(id) {
                Ok(Some(record)) => break record,
                Ok(None) => return Ok(()),
                Err(failure) if Instant::now() > deadline => return Err(failure),
                // Another is about to have made it, or to have removed it.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        if !record.removed {
            self.store.mark_removed(id);
        }
        self.stop(&record, PATIENCE)?;
        self.store.remove_opened(id, &folder)
    }

    /// Goes on with a removal that was cut off, unless somebody is at it; says whether it is done.
    fn end_removed(&self, id: &SandboxId) -> bool {
        let record = self.store.read(id).ok().flatten();
        record.is_some_and(|record| record.removed)
            && self.store.lock(id).is_some()
            && self.end(id).is_ok()
    }

    fn stop(&self, record: &Record, patience: Duration) -> Result<(), Failure> {
        if let Ok(mut requests) = self.requests.lock() {
            requests.remove(&record.plan.id);
        }
        let deadline = Instant::now() + patience;
        record.kill(patience);
        while let Err(error) = record.remove_cgroup() {
            if Instant::now() > deadline {
                return Err(Failure::io(
                    "cannot remove the cgroup of the sandbox",
                    &error,
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Sees to it that a sandbox is ended and removed when the answer is dropped or this process
    /// has ended, be it by SIGKILL; nobody has to wait for that. Only for a process with one thread.
    pub fn mind(&self, id: &SandboxId) -> Result<Janitor, Failure> {
        // What it can't remove is swept by the next one that looks.
        ringfence_jail::janitor(|gone| {
            let lock = self.store.lock(id);
            gone.wait();
            let _ = self.end(id);
            drop(lock);
            // What others left is swept here too, where nobody waits.
            let _ = self.sweep(Duration::ZERO);
        })
        .map_err(|e| Failure::io("cannot start a janitor", &e))
    }

    /// Removes what dead owners left behind: disposable sandboxes whose maker is gone, and
    /// creations that were cut off half way.
    /// One that does not go within `patience` stays for the next, and is no reason to stop here.
    pub fn sweep(&self, patience: Duration) -> Result<Leftovers, Failure> {
        let mut swept = Leftovers::default();
        for id in self.store.ids()? {
            // A janitor is at it.
            let Some(folder) = self.store.lock(&id) else {
                continue;
            };
            match self.store.read(&id) {
                Ok(Some(record)) if record.is_abandoned() => {
                    let gone = self
                        .stop(&record, patience)
                        .and_then(|()| self.store.remove_opened(&id, &folder));
                    match gone {
                        Ok(()) => swept.sandboxes.push(id),
                        Err(failure) => swept.stuck.push((id, failure.message)),
                    }
                }
                Ok(_) => {}
                // Without a record it is a creation that was cut off.
                Err(_) if self.store.is_stale(&id) => {
                    self.store.remove(&id)?;
                    swept.sandboxes.push(id);
                }
                // Another version may read what this one can't, and its files are somebody's.
                Err(failure) if failure.code == Code::Internal => {
                    swept.stuck.push((id, failure.message));
                }
                Err(_) => {}
            }
        }
        Ok(swept)
    }
}

/// The words of the jail as a failure with a way out.
fn explain(words: &LastWords) -> Failure {
    let code = match (words.stage, words.errno) {
        (Stage::Namespaces | Stage::Identity, _) => Code::Unenforceable,
        (Stage::Mounts, 2) => Code::NotFound,
        (Stage::Prepare, 2) => Code::NotFound,
        (_, 28) => Code::NoSpace,
        // A link on the path of a mount, or another owner than a moment before.
        (Stage::Mounts, 40 | 116) => Code::Forbidden,
        (Stage::Mounts | Stage::Root | Stage::Cgroup, 1 | 13) => Code::Unenforceable,
        _ => Code::Internal,
    };
    let failure = Failure::new(code, words.to_string());
    match code {
        Code::NotFound | Code::Forbidden => failure,
        _ => failure.hint("`ringfence doctor` shows what this host allows, and how to change it"),
    }
}

fn owners_unsupported(words: &LastWords, jail: &Jail) -> bool {
    // EINVAL and EPERM are what file systems without idmapped mounts answer.
    let refused = words.stage == Stage::Mounts && matches!(words.errno, 1 | 22 | 95);
    refused
        && jail.mounts.iter().any(|mount| match mount {
            ringfence_jail::Mount::Bind { from, .. } => {
                mapped_owner(mount).is_some() && words.object == from.display().to_string()
            }
            _ => false,
        })
}

fn mapped_owner(mount: &ringfence_jail::Mount) -> Option<(u32, u32)> {
    match mount {
        ringfence_jail::Mount::Bind {
            owner: Owner::Mapped { uid, gid },
            ..
        } => Some((*uid, *gid)),
        _ => None,
    }
}

fn run_as_owner(jail: &mut Jail) -> Result<(), Failure> {
    let found = jail.mounts.iter().find_map(|mount| match mount {
        ringfence_jail::Mount::Bind {
            from,
            owner: Owner::Mapped { uid, gid },
            ..
        } => Some((from.display().to_string(), *uid, *gid)),
        _ => None,
    });
    let Some((folder, uid, gid)) = found else {
        return Ok(());
    };
    if uid == 0 {
        return Err(Failure::new(
            Code::Unenforceable,
            format!(
                "cannot mount {folder}: it belongs to root, and its file system can't map owners"
            ),
        )
        .hint("give the folder to an ordinary user, or use a file system such as ext4"));
    }
    jail.uid = uid;
    // The group of root is root's too: then the sandbox keeps one of its own.
    if gid != 0 {
        jail.gid = gid;
    }
    for mount in &mut jail.mounts {
        if let ringfence_jail::Mount::Bind { owner, .. } = mount {
            *owner = Owner::Same;
        }
    }
    Ok(())
}

impl Native {
    /// Runs blocking work where it may block: in place when this process has one thread, else on
    /// a thread for such work.
    async fn blocking<T: Send>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        match tokio::runtime::Handle::current().runtime_flavor() {
            tokio::runtime::RuntimeFlavor::CurrentThread => work(self),
            _ => tokio::task::block_in_place(|| work(self)),
        }
    }
}

#[async_trait]
impl Backend for Native {
    async fn guarantees(&self) -> Result<Guarantees, Failure> {
        Ok(self.offers())
    }

    async fn create(&self, plan: &Plan) -> Result<SandboxInfo, Failure> {
        self.blocking(|native| native.make(plan)).await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Box<dyn Io>, Failure> {
        let socket = self.store.socket(id)?;
        match tokio::net::UnixStream::connect(&socket.path()).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(unknown(id)),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Err(Failure::new(
                Code::Unavailable,
                format!("sandbox {id} has ended"),
            )),
            Err(e) => {
                let message = format!("cannot connect to sandbox {id}");
                Err(Failure::new(Code::Unavailable, message).detail(e))
            }
        }
    }

    async fn suspend(&self, id: &SandboxId) -> Result<(), Failure> {
        self.blocking(|native| {
            let seen = native.store.read(id)?.ok_or_else(|| unknown(id))?;
            let _lock = native.store.locked(id).map_err(|_| unknown(id))?;
            let record = native.store.read(id)?.ok_or_else(|| unknown(id))?;
            if record.process != seen.process {
                // Another suspended it meanwhile, or has started it again by now.
                return Ok(());
            }
            match &record.plan.workspace {
                Workspace::Disk
                | Workspace::Folder {
                    access: Access::ReadWrite,
                    ..
                } => {}
                _ => {
                    return Err(Failure::new(
                        Code::Conflict,
                        format!("sandbox {id} keeps its files in memory: they would be lost"),
                    ));
                }
            }
            native.stop(&record, PATIENCE)?;
            native.store.forget_process(id)
        })
        .await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Failure> {
        self.blocking(|native| native.end(id)).await
    }

    async fn annotate(&self, id: &SandboxId, name: &str, value: &str) -> Result<(), Failure> {
        self.blocking(|native| native.store.note(id, name, value))
            .await
    }

    async fn autopsy(&self, id: &SandboxId) -> Option<Certificate> {
        let looked = self.blocking(|native| {
            let record = native.store.read(id)?;
            Ok(record.and_then(|record| record.fate(MOMENT)))
        });
        looked.await.ok().flatten()
    }

    async fn tidy(&self) -> Result<(), Failure> {
        self.blocking(|native| native.sweep(Duration::ZERO).map(drop))
            .await
    }

    async fn find(&self, id: &SandboxId) -> Result<Option<SandboxInfo>, Failure> {
        self.blocking(|native| {
            let record = native.store.read(id)?.filter(|record| !record.removed);
            Ok(record.map(|record| record.info()))
        })
        .await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, Failure> {
        self.blocking(|native| {
            let mut all = Vec::new();
            for id in native.store.ids()? {
                // One that is being made or removed at this moment has no record to read.
                if let Ok(Some(record)) = native.store.read(&id)
                    && !record.removed
                {
                    all.push(record.info());
                }
            }
            Ok(all)
        })
        .await
    }
}

impl Record {
    fn info(&self) -> SandboxInfo {
        SandboxInfo {
            plan: self.plan.clone(),
            state: self.state(),
            created: self.created,
            notes: self.notes.clone(),
        }
    }
}
