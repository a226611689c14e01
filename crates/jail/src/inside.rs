//! The inside half: what the child does before it becomes the guest. Each step gives something up.

use crate::launch::{FIRST_FREE, Prepared};
use crate::line::Line;
use crate::words::{Context as _, LastWords, Stage};
use crate::{
    INSIDE_ID, Jail, LIMITS, Lifetime, Mount, Network, Resource, Rlimit, landlock, mounts, seccomp,
    sys,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

/// The namespaces to be cloned into. With a privileged maker the user namespace is made last,
/// and the network comes from the maker.
pub(crate) fn namespaces(jail: &Jail, privileged: bool) -> u64 {
    let mut flags =
        libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if !privileged {
        flags |= libc::CLONE_NEWUSER;
        if jail.network == Network::None {
            flags |= libc::CLONE_NEWNET;
        }
    }
    flags as u64
}

/// Gives up everything that the guest may not have. What is left open are its descriptors; the
/// end of the others is the sign that nothing went wrong.
pub(crate) fn enter(prepared: &Prepared<'_>, maker: &Line) -> Result<(), LastWords> {
    let jail = prepared.jail;
    sys::rename(&["ringfence-guest", "--id", &jail.id]);
    let _ = rustix::thread::set_name(c"ringfence-guest");
    if !prepared.privileged {
        map_self(jail)?;
    }
    if let Some(cgroup) = &jail.cgroup {
        cgroup.enter()?;
    }
    sys::unshare(libc::CLONE_NEWCGROUP).at(Stage::Namespaces, "cgroup")?;
    if jail.network == Network::None && !prepared.privileged {
        sys::loopback().at(Stage::Network, "lo")?;
    }
    rustix::system::sethostname(jail.hostname.as_bytes()).at(Stage::Namespaces, &jail.hostname)?;
    mounts::build(prepared, maker)?;
    for limit in &jail.rlimits {
        set(limit).at(Stage::Limits, format!("{:?}", limit.resource))?;
    }
    if prepared.privileged {
        if jail.network == Network::None {
            join_network(maker).at(Stage::Network, "network namespace")?;
        }
        sys::clear_groups().at(Stage::Identity, "groups")?;
        sys::unshare(libc::CLONE_NEWUSER).at(Stage::Identity, "user namespace")?;
        maker.send(None).at(Stage::Identity, "the maker")?;
        maker.receive().at(Stage::Identity, "the maker")?;
        sys::set_ids(INSIDE_ID, INSIDE_ID).at(Stage::Identity, "user")?;
    }
    limit_watches()?;
    let working = prepared.jail.folder.as_path();
    rustix::process::chdir(working).at(Stage::Root, working.display())?;
    drop_rights(jail)?;
    place_descriptors(prepared).at(Stage::Prepare, "descriptors")
}

/// What watches files counts against the numbers of whoever has made this user namespace, too,
/// and with its own default one sandbox could leave them nothing.
fn limit_watches() -> Result<(), LastWords> {
    for (name, most) in [("instances", "16"), ("watches", "16384")] {
        let path = format!("/proc/sys/user/max_inotify_{name}");
        match fs::write(&path, most) {
            // A kernel without them.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            written => written.at(Stage::Limits, path)?,
        }
    }
    Ok(())
}

/// An ordinary user may map itself, and only itself, once it has given up `setgroups`.
fn map_self(jail: &Jail) -> Result<(), LastWords> {
    let write = |file: &str, text: String| fs::write(file, text).at(Stage::Identity, file);
    write("/proc/self/setgroups", "deny".to_owned())?;
    write("/proc/self/uid_map", format!("{INSIDE_ID} {} 1", jail.uid))?;
    write("/proc/self/gid_map", format!("{INSIDE_ID} {} 1", jail.gid))
}

/// Enters the network namespace that the maker has made meanwhile.
fn join_network(maker: &Line) -> io::Result<()> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let network = maker.receive_descriptor()?;
    Ok(move_into_link_name_space(
        network.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Sets the limits of every sandbox for this process and all that it will start, where an engine
/// has made the sandbox around it and knows of no limits.
pub fn limit() -> io::Result<()> {
    LIMITS.iter().try_for_each(set)
}

fn set(limit: &Rlimit) -> io::Result<()> {
    sys::set_rlimit(resource(limit.resource), limit.value)
}

fn resource(resource: Resource) -> u32 {
    match resource {
        Resource::Core => libc::RLIMIT_CORE,
        Resource::Data => libc::RLIMIT_DATA,
        Resource::FileSize => libc::RLIMIT_FSIZE,
        Resource::OpenFiles => libc::RLIMIT_NOFILE,
        Resource::Processes => libc::RLIMIT_NPROC,
        Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
        Resource::MessageQueues => libc::RLIMIT_MSGQUEUE,
        Resource::RealTimePriority => libc::RLIMIT_RTPRIO,
        Resource::Nice => libc::RLIMIT_NICE,
    }
}

/// Puts the guest's descriptors where its arguments say, and closes all others.
fn place_descriptors(prepared: &Prepared<'_>) -> io::Result<()> {
    sys::place(prepared.null.as_raw_fd(), 0)?;
    sys::place(prepared.null.as_raw_fd(), 1)?;
    sys::place(prepared.log.as_raw_fd(), 2)?;
    sys::place(prepared.listener.as_raw_fd(), 3)?;
    if let Some(fd) = &prepared.oom_events {
        sys::place(fd.as_raw_fd(), 4)?;
    }
    if let Some(fd) = &prepared.lifeline {
        sys::place(fd.as_raw_fd(), 5)?;
    }
    sys::close_from(FIRST_FREE)
}

fn drop_rights(jail: &Jail) -> Result<(), LastWords> {
    const LAST_CAPABILITY: u64 = 63;
    const SECURE_NOROOT_LOCKED: u64 = 0b10_1111;
    let at = Stage::Capabilities;
    sys::prctl(libc::PR_SET_SECUREBITS, SECURE_NOROOT_LOCKED).at(at, "secure bits")?;
    for capability in 0..=LAST_CAPABILITY {
        match sys::prctl(libc::PR_CAPBSET_DROP, capability) {
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => break,
            other => other.at(at, "bounding set")?,
        }
    }
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).at(at, "no_new_privs")?;
    sys::clear_capabilities().at(at, "capability sets")?;
    if jail.lifetime == Lifetime::WithLauncher {
        // The lifeline asks the guest to end; this needs nobody's help. A maker that is gone by
        // now is seen by the lifeline.
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64).at(at, "parent death signal")?;
    }
    let writable: Vec<&Path> = jail
        .mounts
        .iter()
        .filter_map(|mount| match mount {
            Mount::Bind {
                to,
                access: crate::Access::ReadWrite,
                ..
            }
            | Mount::Memory { to, .. }
            | Mount::Image { to, .. } => Some(to.as_path()),
            Mount::Dev { .. } => Some(Path::new("/dev/shm")),
            Mount::Bind { .. } | Mount::Proc => None,
        })
        .collect();
    landlock::restrict(&writable).at(Stage::Landlock, "ruleset")?;
    seccomp::install().at(Stage::Seccomp, "filter")
}
