//! Limits on a whole sandbox, by cgroup v2 or v1, whichever the host has.

use crate::words::{Context as _, LastWords, Stage};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The controllers that a sandbox is limited by.
const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];

/// The folder, below our own cgroup, in which each sandbox gets one of its own.
const PARENT: &str = "ringfence";

/// Where on this host cgroups can be made, with the controllers that work there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hierarchy {
    V2 {
        parent: PathBuf,
        controllers: Vec<String>,
    },
    /// One parent folder per controller.
    V1 { parents: Vec<(String, PathBuf)> },
}

/// Limits of one sandbox; absent ones are not set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes, swap included.
    pub memory: Option<u64>,
    pub pids: Option<u64>,
    /// Thousandths of a processor.
    pub millicpus: Option<u64>,
}

/// The cgroup of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cgroup {
    pub hierarchy: Hierarchy,
    pub name: String,
    pub limits: Limits,
}

impl Hierarchy {
    /// Finds where cgroups can be made, by making the parent folder.
    pub fn find() -> Option<Self> {
        let own = read_at_once("/proc/self/cgroup")?;
        Self::find_usual(&own).or_else(|| Self::find_anywhere(&own))
    }

    /// Looks where nearly every host has them: a list of many mounts takes long to read.
    fn find_usual(own: &str) -> Option<Self> {
        /// What the two kinds of file system call themselves.
        const V1: u64 = 0x0027_e0eb;
        const V2: u64 = 0x6367_7270;
        let usual = Path::new("/sys/fs/cgroup");
        let is_kind = |path: &Path, kind| {
            rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == kind)
        };
        let of = |controller: &str| usual.join(controller);
        if is_kind(usual, V2) {
            return Self::find_v2(usual, own);
        }
        let all = CONTROLLERS
            .iter()
            .all(|controller| is_kind(&of(controller), V1));
        all.then(|| Self::find_v1(|controller| Some(of(controller)), own))
            .flatten()
    }

    fn find_anywhere(own: &str) -> Option<Self> {
        let mounts = read_at_once("/proc/self/mountinfo")?;
        let v2 = mount_point(&mounts, |kind, _| kind == "cgroup2");
        let v1 = |controller: &str| {
            mount_point(&mounts, |kind, options| {
                kind == "cgroup" && options.split(',').any(|o| o == controller)
            })
        };
        v2.and_then(|mount| Self::find_v2(&mount, own))
            .or_else(|| Self::find_v1(v1, own))
    }

    fn find_v1(mount: impl Fn(&str) -> Option<PathBuf>, own: &str) -> Option<Self> {
        let mut parents = Vec::new();
        for controller in CONTROLLERS {
            let mount = mount(controller);
            let path = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let names = fields.next()?;
                names
                    .split(',')
                    .any(|n| n == controller)
                    .then(|| fields.next())?
            });
            let (Some(mount), Some(path)) = (mount, path) else {
                continue;
            };
            let parent = below(&mount, path).join(PARENT);
            if make(&parent).is_ok()
                && rustix::fs::access(&parent, rustix::fs::Access::WRITE_OK).is_ok()
            {
                parents.push((controller.to_owned(), parent));
            }
        }
        (!parents.is_empty()).then_some(Self::V1 { parents })
    }

    fn find_v2(mount: &Path, own: &str) -> Option<Self> {
        // A hybrid host has a second hierarchy without the controllers that matter here.
        let offered = read(&mount.join("cgroup.controllers"));
        if !offered.split_whitespace().any(|c| CONTROLLERS.contains(&c)) {
            return None;
        }
        let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
        let own = below(mount, path);
        // A cgroup with processes can't have limited children, so look beside our own, not in it.
        let first = if own == mount {
            Some(mount)
        } else {
            own.parent()
        };
        first?
            .ancestors()
            .take_while(|a| a.starts_with(mount))
            .find_map(|at| {
                let parent = at.join(PARENT);
                make(&parent).ok()?;
                if enable(at).is_empty() && at == mount {
                    // The root of a container's own cgroup namespace holds the container's processes.
                    make_room(at);
                    enable(at);
                }
                let controllers = enable(&parent);
                if controllers.is_empty() {
                    let _ = fs::remove_dir(&parent);
                    return None;
                }
                Some(Self::V2 {
                    parent,
                    controllers,
                })
            })
    }

    /// Whether sandboxes here can be limited by this controller.
    pub fn has(&self, controller: &str) -> bool {
        match self {
            Self::V2 { controllers, .. } => controllers.iter().any(|c| c == controller),
            Self::V1 { parents } => parents.iter().any(|(c, _)| c == controller),
        }
    }

    pub fn version(&self) -> &'static str {
        match self {
            Self::V2 { .. } => "cgroup v2",
            Self::V1 { .. } => "cgroup v1",
        }
    }
}

/// Enables our controllers for the children of a cgroup and says which of them are enabled.
fn enable(at: &Path) -> Vec<String> {
    let control = at.join("cgroup.subtree_control");
    for controller in CONTROLLERS {
        let _ = fs::write(&control, format!("+{controller}"));
    }
    let enabled = read(&control);
    CONTROLLERS
        .into_iter()
        .filter(|c| enabled.split_whitespace().any(|e| e == *c))
        .map(str::to_owned)
        .collect()
}

/// Moves the processes of a cgroup into a leaf of it.
fn make_room(at: &Path) {
    let leaf = at.join("ringfence-host");
    if make(&leaf).is_err() {
        return;
    }
    for pid in read(&at.join("cgroup.procs")).lines() {
        let _ = fs::write(leaf.join("cgroup.procs"), pid);
    }
}

/// Reads a file of `/proc`, which tells no size beforehand, in few pieces.
fn read_at_once(path: &str) -> Option<String> {
    let mut text = String::with_capacity(16 << 10);
    io::Read::read_to_string(&mut fs::File::open(path).ok()?, &mut text).ok()?;
    Some(text)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// A cgroup's folder; `/proc/self/cgroup` may name one outside of what is mounted here.
fn below(mount: &Path, path: &str) -> PathBuf {
    let joined = mount.join(path.trim_start_matches('/'));
    if path.starts_with("/..") || !joined.is_dir() {
        mount.to_owned()
    } else {
        joined
    }
}

/// The first mount point whose type and superblock options satisfy the test.
fn mount_point(mountinfo: &str, wanted: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
        let point = left.split(' ').nth(4)?;
        wanted(kind, options).then(|| PathBuf::from(point.replace("\\040", " ")))
    })
}

impl Cgroup {
    /// Its folders, one on v2 and one per controller on v1.
    pub fn folders(&self) -> Vec<PathBuf> {
        match &self.hierarchy {
            Hierarchy::V2 { parent, .. } => vec![parent.join(&self.name)],
            Hierarchy::V1 { parents } => parents.iter().map(|(_, p)| p.join(&self.name)).collect(),
        }
    }

    /// Makes the folders, without limits.
    pub(crate) fn make(&self) -> Result<(), LastWords> {
        for folder in self.folders() {
            fs::create_dir(&folder).at(Stage::Cgroup, folder.display())?;
        }
        Ok(())
    }

    /// Sets the limits. The child builds its root meanwhile; no code runs in it before this is done.
    pub(crate) fn limit(&self) -> Result<(), LastWords> {
        for (file, value) in self.settings() {
            fs::write(&file, value).at(Stage::Cgroup, file.display())?;
        }
        Ok(())
    }

    fn settings(&self) -> Vec<(PathBuf, String)> {
        let Limits {
            memory,
            pids,
            millicpus,
        } = self.limits;
        let mut settings = Vec::new();
        match &self.hierarchy {
            Hierarchy::V2 { parent, .. } => {
                let at = parent.join(&self.name);
                if let Some(bytes) = memory {
                    settings.push((at.join("memory.max"), bytes.to_string()));
                    if at.join("memory.swap.max").exists() {
                        settings.push((at.join("memory.swap.max"), "0".to_owned()));
                    }
                }
                if let Some(pids) = pids {
                    settings.push((at.join("pids.max"), pids.to_string()));
                }
                if let Some(milli) = millicpus {
                    settings.push((at.join("cpu.max"), format!("{} 100000", milli * 100)));
                }
            }
            Hierarchy::V1 { parents } => {
                for (controller, parent) in parents {
                    let at = parent.join(&self.name);
                    match (controller.as_str(), memory, pids, millicpus) {
                        ("memory", Some(bytes), _, _) => {
                            settings.push((at.join("memory.limit_in_bytes"), bytes.to_string()));
                            let swap = at.join("memory.memsw.limit_in_bytes");
                            if swap.exists() {
                                settings.push((swap, bytes.to_string()));
                            }
                        }
                        ("pids", _, Some(pids), _) => {
                            settings.push((at.join("pids.max"), pids.to_string()));
                        }
                        ("cpu", _, _, Some(milli)) => {
                            settings.push((at.join("cpu.cfs_quota_us"), (milli * 100).to_string()));
                        }
                        _ => {}
                    }
                }
            }
        }
        settings
    }

    /// The folder to clone into, on v2.
    pub(crate) fn enter_by_clone(&self) -> io::Result<Option<OwnedFd>> {
        match &self.hierarchy {
            Hierarchy::V2 { .. } => fs::File::open(&self.folders()[0]).map(|f| Some(f.into())),
            Hierarchy::V1 { .. } => Ok(None),
        }
    }

    /// Joins the calling process, on v1. A process that writes its own `0` does so at once;
    /// writing the number of another one waits for a grace period of several milliseconds.
    pub(crate) fn enter(&self) -> Result<(), LastWords> {
        if let Hierarchy::V1 { parents } = &self.hierarchy {
            for (_, parent) in parents {
                let tasks = parent.join(&self.name).join("tasks");
                fs::write(&tasks, "0").at(Stage::Cgroup, tasks.display())?;
            }
        }
        Ok(())
    }

    /// The file in which the kernel counts processes killed for memory.
    pub(crate) fn open_oom_events(&self) -> Option<OwnedFd> {
        let path = match &self.hierarchy {
            Hierarchy::V2 { parent, .. } => parent.join(&self.name).join("memory.events"),
            Hierarchy::V1 { parents } => {
                let (_, parent) = parents.iter().find(|(c, _)| c == "memory")?;
                parent.join(&self.name).join("memory.oom_control")
            }
        };
        fs::File::open(path).ok().map(OwnedFd::from)
    }

    /// How many of its processes were killed for memory.
    pub fn oom_kills(&self) -> u64 {
        let mut text = String::new();
        let read = self
            .open_oom_events()
            .map(|file| fs::File::from(file).read_to_string(&mut text));
        let count = |line: &str| line.strip_prefix("oom_kill ")?.trim().parse().ok();
        match read {
            Some(Ok(_)) => text.lines().find_map(count).unwrap_or(0),
            _ => 0,
        }
    }

    /// Processes in it, in our own pid namespace.
    pub fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> = self
            .folders()
            .iter()
            .flat_map(|folder| {
                read(&folder.join("cgroup.procs"))
                    .lines()
                    .filter_map(|l| l.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Removes the folders; one that still holds processes stays and is the error.
    pub fn remove(&self) -> io::Result<()> {
        let mut result = Ok(());
        for folder in self.folders() {
            match fs::remove_dir(&folder) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => result = Err(e),
                _ => {}
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_version_2() {
        let cgroup = Cgroup {
            hierarchy: Hierarchy::V2 {
                parent: "/none/p".into(),
                controllers: vec![],
            },
            name: "x".into(),
            limits: Limits {
                memory: Some(1 << 20),
                pids: Some(7),
                millicpus: Some(1500),
            },
        };
        let settings: Vec<(String, String)> = cgroup
            .settings()
            .into_iter()
            .map(|(p, v)| (p.display().to_string(), v))
            .collect();
        assert_eq!(
            settings,
            [
                ("/none/p/x/memory.max".to_owned(), "1048576".to_owned()),
                ("/none/p/x/pids.max".to_owned(), "7".to_owned()),
                ("/none/p/x/cpu.max".to_owned(), "150000 100000".to_owned()),
            ]
        );
    }

    #[test]
    fn mount_points_are_read_from_mountinfo() {
        let info = "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                    32 23 0:28 / /a\\040b rw - cgroup2 cgroup2 rw\n";
        let v1 = mount_point(info, |k, o| k == "cgroup" && o.contains("memory"));
        assert_eq!(v1, Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(
            mount_point(info, |k, _| k == "cgroup2"),
            Some("/a b".into())
        );
    }
}
