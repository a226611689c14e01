//! The jail: makes one native sandbox from a complete description, and decides nothing itself.
//!
//! Single-threaded, no async, meant to be read in an hour. The order of what happens:
//!
//! 1. [`serve`] (the launcher): keeps a maker ready, a copy of itself that waits for a request.
//! 2. `launch` (the maker, outside): binds the guest's socket, makes the cgroup, clones.
//! 3. `inside` (the child): joins the cgroup, builds the root, leaves the host behind, drops
//!    every right, installs the filters, becomes the guest by calling it.
//! 4. If any step fails the child's last words travel over a pipe: stage, object, errno.

mod cgroup;
mod confine;
mod inside;
mod janitor;
mod landlock;
mod launch;
mod line;
mod mounts;
mod seccomp;
mod server;
mod sys;
mod words;

pub use cgroup::{Cgroup, Hierarchy, Limits as CgroupLimits};
pub use confine::confine;
pub use inside::limit;
pub use janitor::{Janitor, Parting, janitor};
pub use mounts::without_links;
pub use seccomp::{Rule, filter, rules};
pub use server::{Launcher, Request, serve};
pub use words::{LastWords, Stage};

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// User and group that code has inside every native sandbox.
pub const INSIDE_ID: u32 = 1000;

/// A complete description of a native sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jail {
    /// Host name inside.
    pub hostname: String,
    /// Names the sandbox to those who look at its processes from outside.
    pub id: String,
    /// The guest's arguments after those that name its descriptors.
    pub args: Vec<String>,
    /// The whole environment of the guest, and so of everything it starts.
    pub env: Vec<(String, String)>,
    /// The folder inside that it starts in.
    pub folder: PathBuf,
    /// Where the guest's listening socket is bound, outside.
    pub socket: PathBuf,
    /// What the guest itself says goes here; nothing of the sandboxed code does.
    pub log: Option<PathBuf>,
    /// Host user and group that the code runs as; never 0.
    pub uid: u32,
    pub gid: u32,
    /// Small files, folders and links of the root, made before the mounts.
    pub skeleton: Vec<Item>,
    /// In order; later ones may lie inside earlier ones.
    pub mounts: Vec<Mount>,
    pub network: Network,
    pub cgroup: Option<Cgroup>,
    pub rlimits: Vec<Rlimit>,
    pub lifetime: Lifetime,
}

/// One thing of the root that is made, not mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
    Folder {
        path: PathBuf,
    },
    File {
        path: PathBuf,
        text: String,
    },
    /// A host file, copied as it is when the sandbox starts.
    Copy {
        path: PathBuf,
        from: PathBuf,
    },
    Bytes {
        path: PathBuf,
        bytes: Vec<u8>,
    },
    Link {
        path: PathBuf,
        target: PathBuf,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    ReadOnly,
    ReadWrite,
}

/// Whose files a bound folder shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// As they are.
    Same,
    /// Files of this host user and group appear as the sandbox's own, and new ones become theirs.
    Mapped { uid: u32, gid: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mount {
    Bind {
        /// No link may lie on this path.
        from: PathBuf,
        to: PathBuf,
        access: Access,
        owner: Owner,
    },
    /// A file system in memory of this many bytes and files.
    Memory { to: PathBuf, bytes: u64, files: u64 },
    /// A file that holds an ext4 file system, through a loop device that goes with the mount.
    Image { file: PathBuf, to: PathBuf },
    /// A fresh `/proc` of the sandbox's own processes.
    Proc,
    /// A minimal `/dev`: null, zero, full, random, urandom, tty, pts, shm of this many bytes.
    Dev { shm: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A network of its own in which there is only loopback.
    None,
    Host,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifetime {
    /// Ends when the process that launched it ends, however that happens.
    WithLauncher,
    Independent,
}

/// A soft and hard limit on every process inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rlimit {
    pub resource: Resource,
    pub value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    Core,
    Data,
    FileSize,
    OpenFiles,
    Processes,
    LockedMemory,
    MessageQueues,
    RealTimePriority,
    Nice,
}

/// Limits of every process in every sandbox, whatever was asked for.
pub const LIMITS: [Rlimit; 5] = [
    // Not 0: a core pattern that is a program, run by root outside, gets the core of a process with
    // that limit, and of one with the limit 1 it does not.
    Rlimit::of(Resource::Core, 1),
    Rlimit::of(Resource::LockedMemory, 64 << 10),
    Rlimit::of(Resource::MessageQueues, 800 << 10),
    // What whoever started us may have is not for the code.
    Rlimit::of(Resource::RealTimePriority, 0),
    Rlimit::of(Resource::Nice, 0),
];

impl Rlimit {
    pub const fn of(resource: Resource, value: u64) -> Self {
        Self { resource, value }
    }
}

/// What the child becomes in the end: takes its arguments and its whole environment, and answers
/// with its exit status.
pub type Guest = fn(Vec<String>, Vec<(String, String)>) -> i32;

/// The version of landlock that this kernel has, 0 where it has none.
pub fn landlock_version() -> i32 {
    landlock::version()
}
