//! The root of a native sandbox: the host's system read-only with a minimal `/etc`, or a folder.

use crate::backend::native::workspace;
use crate::backend::source;
use crate::interpreter::Interpreter;
use crate::plan::{Plan, SandboxId};
use crate::spec::{Access, Network, Workspace};
use ringfence_jail::{Access as JailAccess, Cgroup, Item, LIMITS, Mount, Owner, Resource, Rlimit};
use ringfence_proto::Failure;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// First of the host users that sandboxes of root run as, each as one of its own; far from what
/// distributions and `/etc/subuid` hand out.
const FIRST_USER: u32 = 0x5000_0000;
const USERS: u32 = 0x0fff_ffff;

/// Most files in a workspace or in `/tmp` that live in memory.
const MEMORY_FILES: u64 = 200_000;

/// The host user and group that the code runs as: never root.
pub(super) fn identity(id: &SandboxId) -> (u32, u32) {
    if !rustix::process::geteuid().is_root() {
        return (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
    }
    // FNV-1a, since files on disk belong to this user: it must come out the same for ever.
    let hash = id.as_str().bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let own = FIRST_USER + (hash & USERS);
    (own, own)
}

/// The whole environment of a sandbox: nothing of the host's comes in.
pub(super) fn environment(plan: &Plan, interpreter: Option<&Interpreter>) -> Vec<(String, String)> {
    let usual = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";
    let path: String = interpreter
        .into_iter()
        .flat_map(Interpreter::search_path)
        .filter(|bin| !usual.split(':').any(|p| Path::new(p) == *bin))
        .map(|bin| format!("{}:", bin.display()))
        .chain([usual.to_owned()])
        .collect();
    let mut env = std::collections::BTreeMap::from([
        ("PATH".to_owned(), path),
        ("HOME".to_owned(), plan.workspace_at.display().to_string()),
        ("USER".to_owned(), "sandbox".to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("MPLBACKEND".to_owned(), "Agg".to_owned()),
    ]);
    env.extend(plan.env.clone());
    env.into_iter().collect()
}

/// Small files and links of the root.
pub(super) fn skeleton(plan: &Plan, interpreter: Option<&Interpreter>) -> Vec<Item> {
    let mut items = root(plan);
    let links = interpreter.into_iter().flat_map(|i| i.links.clone());
    items.extend(links.map(|(path, target)| Item::Link { path, target }));
    items
}

fn root(plan: &Plan) -> Vec<Item> {
    let file = |path: &str, text: &str| Item::File {
        path: path.into(),
        text: text.to_owned(),
    };
    let mut items = Vec::new();
    if plan.workspace == Workspace::Empty {
        let path = plan.workspace_at.clone();
        items.push(Item::Folder { path });
    }
    if let Some(root) = &plan.rootfs {
        // Links at its top are made anew: to follow one here would lead to the host's files.
        for (name, entry) in entries_of(root) {
            if let Ok(target) = fs::read_link(entry) {
                let path = Path::new("/").join(name);
                items.push(Item::Link { path, target });
            }
        }
        return items;
    }
    items.extend([
        file(
            "/etc/passwd",
            &format!(
                "root:x:0:0:root:/root:/usr/sbin/nologin\n\
                 sandbox:x:1000:1000:sandbox:{}:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
                plan.workspace_at.display()
            ),
        ),
        file(
            "/etc/group",
            "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n",
        ),
        file("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
        file("/etc/hostname", "sandbox\n"),
        file(
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n",
        ),
    ]);
    // Debian's matplotlib does not start without its own file.
    let mut copied = vec!["/etc/ld.so.cache", "/etc/localtime", "/etc/matplotlibrc"];
    if plan.network == Network::Host {
        copied.push("/etc/resolv.conf");
    }
    for path in copied {
        if fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() < 1 << 20) {
            items.push(Item::Copy {
                path: path.into(),
                from: path.into(),
            });
        }
    }
    for path in ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] {
        if let Ok(target) = fs::read_link(path) {
            items.push(Item::Link {
                path: path.into(),
                target,
            });
        }
    }
    items.extend(
        ["/home", "/root", "/run", "/var/tmp", "/opt", "/mnt", "/srv"]
            .map(|path| Item::Folder { path: path.into() }),
    );
    items
}

/// What lies at the top of a root folder, but for the places where our own mounts go.
fn entries_of(root: &Path) -> Vec<(OsString, PathBuf)> {
    let ours = ["proc", "dev", "sys", "tmp", "workspace"];
    let mut entries: Vec<_> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok())
        .map(|entry| (entry.file_name(), entry.path()))
        .filter(|(name, _)| !ours.iter().any(|o| name == *o))
        .collect();
    entries.sort();
    entries
}

/// What programs need of `/etc` to run, and that holds nothing private. Each is a mount, and each
/// mount takes time at every start, so what programs do without is not here.
const ETC: [&str; 5] = [
    "alternatives",
    "fonts",
    "java-17-openjdk",
    "java-21-openjdk",
    "R",
];

/// What they need besides on a network; not `/etc/ssl/private`.
const ETC_NETWORK: [&str; 3] = ["ca-certificates", "ssl/certs", "ssl/openssl.cnf"];

pub(super) fn mounts(
    plan: &Plan,
    folder: &Path,
    interpreter: Option<&Interpreter>,
) -> Result<Vec<Mount>, Failure> {
    let mut mounts = Vec::new();
    let read_only = |from: PathBuf, to: PathBuf| Mount::Bind {
        from,
        to,
        access: JailAccess::ReadOnly,
        owner: Owner::Same,
    };
    match &plan.rootfs {
        Some(root) => {
            fs::read_dir(root).map_err(|e| {
                Failure::io(
                    format!("cannot read the root folder {}", root.display()),
                    &e,
                )
            })?;
            // Each entry of the folder is bound, so that our own mount points can lie beside them.
            for (name, entry) in entries_of(root) {
                if !entry.is_symlink() {
                    mounts.push(read_only(entry, Path::new("/").join(name)));
                }
            }
        }
        None => {
            mounts.push(read_only("/usr".into(), "/usr".into()));
            for path in ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"] {
                if fs::symlink_metadata(path).is_ok_and(|m| m.is_dir()) {
                    mounts.push(read_only(path.into(), path.into()));
                }
            }
            let network: &[&str] = match plan.network {
                Network::None => &[],
                Network::Host => &ETC_NETWORK,
            };
            let usual = || ETC.to_vec();
            let named = plan.etc.as_ref();
            let etc: Vec<&str> = named.map_or_else(usual, |n| n.iter().map(|n| &**n).collect());
            for name in etc.iter().chain(network) {
                let path = Path::new("/etc").join(name);
                if let Ok(from) = path.canonicalize() {
                    mounts.push(read_only(from, path));
                }
            }
        }
    }
    mounts.push(Mount::Proc);
    mounts.push(Mount::Dev {
        shm: plan.limits.tmp.0,
    });
    mounts.push(Mount::Memory {
        to: "/tmp".into(),
        bytes: plan.limits.tmp.0,
        files: MEMORY_FILES,
    });
    let to = plan.workspace_at.clone();
    mounts.extend(match &plan.workspace {
        Workspace::Empty => None,
        Workspace::Fresh | Workspace::Memory => Some(Mount::Memory {
            to,
            bytes: plan.limits.workspace.0,
            files: MEMORY_FILES,
        }),
        Workspace::Disk => Some(Mount::Image {
            file: workspace::image(folder),
            to,
        }),
        Workspace::Folder { path, access } => {
            // Also says so here when it may not be entered.
            fs::read_dir(path).map_err(|e| {
                Failure::io(
                    format!("cannot use {} as the workspace", path.display()),
                    &e,
                )
            })?;
            Some(host(path, to, *access)?)
        }
    });
    for folder in interpreter
        .map(|i| i.folders.as_slice())
        .unwrap_or_default()
    {
        mounts.push(read_only(folder.clone(), folder.clone()));
    }
    for mount in &plan.mounts {
        mounts.push(host(&mount.from, mount.to.clone(), mount.access)?);
    }
    Ok(mounts)
}

/// A file or folder of the host, seen as the sandbox's own where root can arrange that.
fn host(from: &Path, to: PathBuf, access: Access) -> Result<Mount, Failure> {
    let found = rustix::fs::fstat(source(from)?)
        .map_err(|e| Failure::io(format!("cannot mount {}", from.display()), &e.into()))?;
    let owner = if rustix::process::geteuid().is_root() {
        Owner::Mapped {
            uid: found.st_uid,
            gid: found.st_gid,
        }
    } else {
        Owner::Same
    };
    let access = if access.writable() {
        JailAccess::ReadWrite
    } else {
        JailAccess::ReadOnly
    };
    Ok(Mount::Bind {
        from: from.to_owned(),
        to,
        access,
        owner,
    })
}

pub(super) fn rlimits(plan: &Plan, cgroup: Option<&Cgroup>) -> Vec<Rlimit> {
    /// The guest serves many at once; what it starts gets the plan's own limit.
    const GUEST_FILES: u64 = 4096;
    let limited = |controller: &str| cgroup.is_some_and(|c| c.hierarchy.has(controller));
    let mut all = LIMITS.to_vec();
    all.extend([
        Rlimit::of(Resource::FileSize, plan.limits.guest_file_size()),
        Rlimit::of(Resource::OpenFiles, plan.limits.open_files.max(GUEST_FILES)),
    ]);
    if !limited("pids") {
        all.push(Rlimit::of(Resource::Processes, plan.limits.pids));
    }
    if !limited("memory") {
        all.push(Rlimit::of(Resource::Data, plan.limits.memory.0));
    }
    all
}
