//! The outside half of making a sandbox.

use crate::line::{Line, is_ready};
use crate::words::{Context as _, LastWords, Stage};
use crate::{Guest, Item, Jail, Lifetime, Network, inside, mounts, sys};
use rustix::event::PollFlags;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// A sandbox whose child has become the guest.
#[derive(Debug)]
pub(crate) struct Launched {
    /// Process id of the guest, in our own pid namespace.
    pub pid: i32,
    pub pidfd: OwnedFd,
    /// Held by whoever the sandbox's life hangs on; its closing ends a bound sandbox.
    pub lifeline: Option<OwnedFd>,
}

/// Everything the child needs, opened and allocated before it exists.
pub(crate) struct Prepared<'a> {
    pub jail: &'a Jail,
    pub listener: OwnedFd,
    pub oom_events: Option<OwnedFd>,
    pub lifeline: Option<OwnedFd>,
    pub null: OwnedFd,
    pub log: OwnedFd,
    /// Root on the host: the jail's namespaces then belong to the host, and only the code's
    /// identity is in a user namespace of its own, so it has no say over any of them.
    pub privileged: bool,
    /// For each mount the user namespace that maps its owners, if they are mapped.
    pub owners: Vec<Option<OwnedFd>>,
}

/// What a maker can have ready before it knows what will be asked of it.
#[derive(Debug, Default)]
pub(crate) struct Spares {
    network: Option<OwnedFd>,
}

impl Spares {
    pub(crate) fn make() -> Self {
        // One that can't be made is made when it is needed, and then its failure is told.
        Self {
            network: is_privileged().then(new_network).and_then(Result::ok),
        }
    }
}

fn is_privileged() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes a sandbox in the cgroup that is there, and answers when its guest runs, or with what went
/// wrong; then nothing of it is left.
pub(crate) fn launch(
    jail: &Jail,
    guest: Guest,
    spares: &mut Spares,
) -> Result<Launched, LastWords> {
    if is_privileged() && (jail.uid == 0 || jail.gid == 0) {
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        return Err(refused).at(Stage::Identity, "code never runs as root of the host");
    }
    let jail = &with_copies(jail)?;
    let (lifeline_inside, lifeline_outside) = match jail.lifetime {
        Lifetime::WithLauncher => {
            let (read, write) = pipe().at(Stage::Prepare, "a pipe")?;
            (Some(read), Some(write))
        }
        Lifetime::Independent => (None, None),
    };
    let listener = listen(&jail.socket).at(Stage::Prepare, jail.socket.display())?;
    let result = start(jail, guest, spares, listener, lifeline_inside);
    match result {
        Ok((pid, pidfd)) => Ok(Launched {
            pid,
            pidfd,
            lifeline: lifeline_outside,
        }),
        Err(words) => {
            let _ = fs::remove_file(&jail.socket);
            Err(words)
        }
    }
}

fn start(
    jail: &Jail,
    guest: Guest,
    spares: &mut Spares,
    listener: OwnedFd,
    lifeline: Option<OwnedFd>,
) -> Result<(i32, OwnedFd), LastWords> {
    let open = |path: &Path, flags| {
        openat(
            CWD,
            path,
            flags | OFlags::CLOEXEC,
            Mode::from_raw_mode(0o600),
        )
        .map_err(io::Error::from)
        .and_then(out_of_the_way)
        .at(Stage::Prepare, path.display())
    };
    let null = Path::new("/dev/null");
    let log_flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let prepared = Prepared {
        jail,
        listener,
        oom_events: match jail
            .cgroup
            .as_ref()
            .and_then(crate::Cgroup::open_oom_events)
        {
            Some(fd) => Some(out_of_the_way(fd).at(Stage::Prepare, "cgroup events")?),
            None => None,
        },
        lifeline,
        null: open(null, OFlags::RDWR)?,
        log: match &jail.log {
            Some(log) => open(log, log_flags)?,
            None => open(null, OFlags::RDWR)?,
        },
        privileged: is_privileged(),
        owners: mounts::owners(jail)?,
    };
    let cgroup = match &jail.cgroup {
        Some(cgroup) => cgroup.enter_by_clone().at(Stage::Cgroup, &cgroup.name)?,
        None => None,
    };
    let (words_read, words_write) = pipe().at(Stage::Prepare, "a pipe")?;
    let (ours, theirs) = Line::pair().at(Stage::Prepare, "a socket pair")?;

    let flags = inside::namespaces(jail, prepared.privileged);
    let cloned = sys::clone(flags, cgroup.as_ref().map(std::os::fd::AsFd::as_fd))
        .at(Stage::Namespaces, "clone3")?;
    let (pid, pidfd) = match cloned {
        sys::Cloned::Child => {
            drop((words_read, ours));
            // A panic must not go on in a copy of the caller.
            let work = std::panic::AssertUnwindSafe(|| inside::enter(&prepared, &theirs));
            let entered = std::panic::catch_unwind(work).unwrap_or_else(|_| {
                Err(LastWords {
                    stage: Stage::Prepare,
                    object: "a panic in the child".to_owned(),
                    errno: 0,
                })
            });
            if let Err(words) = entered {
                let text = serde_json::to_vec(&words).unwrap_or_default();
                let _ = rustix::io::write(&words_write, &text);
                sys::exit_now(1);
            }
            // What this frame owns is closed or the guest's by now, and is never dropped.
            let (args, env) = (prepared.arguments(), jail.env.clone());
            let work = std::panic::AssertUnwindSafe(|| guest(args, env));
            sys::exit_now(std::panic::catch_unwind(work).unwrap_or(1))
        }
        sys::Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop((words_write, theirs));
    // The child builds its root meanwhile, and on the other processor.
    if let Err(words) = outfit(jail, prepared.privileged, spares, pid, &ours) {
        let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
        reap(&pidfd);
        return Err(words);
    }
    drop(ours);
    // End of file without a word means that the child has become the guest.
    let mut text = Vec::new();
    fs::File::from(words_read)
        .read_to_end(&mut text)
        .at(Stage::Prepare, "last words")?;
    if text.is_empty() && !is_ready(&pidfd, PollFlags::IN) {
        return Ok((pid, pidfd));
    }
    reap(&pidfd);
    if text.is_empty() {
        let killed = io::Error::from_raw_os_error(libc::ESRCH);
        return Err(killed).at(Stage::Prepare, "the child was killed");
    }
    Err(serde_json::from_slice(&text).unwrap_or(LastWords {
        stage: Stage::Prepare,
        object: String::from_utf8_lossy(&text).into_owned(),
        errno: 0,
    }))
}

/// Gives a new child what only a process outside can, or can at the same time: images, limits, a
/// network, users.
fn outfit(
    jail: &Jail,
    privileged: bool,
    spares: &mut Spares,
    pid: i32,
    child: &Line,
) -> Result<(), LastWords> {
    mounts::hand_over_images(jail, child)?;
    if let Some(cgroup) = &jail.cgroup {
        cgroup.limit()?;
    }
    if !privileged {
        return Ok(());
    }
    if jail.network == Network::None {
        let network = match spares.network.take() {
            Some(network) => network,
            None => new_network().at(Stage::Network, "network namespace")?,
        };
        // As with images: a child that failed says why, here and below.
        let _ = child.send(Some(network.as_fd()));
    }
    // It says so when it has made its user namespace. Only a process outside of that may write maps
    // for a user other than its own.
    if child.receive().is_ok() {
        let (uid, gid, inside) = (jail.uid, jail.gid, crate::INSIDE_ID);
        mounts::write_maps(
            pid,
            &format!("{inside} {uid} 1"),
            &format!("{inside} {gid} 1"),
        )
        .at(Stage::Identity, format!("user {uid}"))?;
        let _ = child.send(None);
    }
    Ok(())
}

/// A network namespace with loopback up. To make one takes as long as half of a root does, so it is
/// made before it is asked for; this process is in it only for that moment.
fn new_network() -> io::Result<OwnedFd> {
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    let own = || fs::File::open("/proc/self/ns/net").map(OwnedFd::from);
    let before = own()?;
    sys::unshare(libc::CLONE_NEWNET)?;
    let made = sys::loopback().and_then(|()| own());
    move_into_link_name_space(before.as_fd(), Some(LinkNameSpaceType::Network))?;
    made
}

fn reap(pidfd: &OwnedFd) {
    let id = rustix::process::WaitId::PidFd(std::os::fd::AsFd::as_fd(pidfd));
    let _ = rustix::process::waitid(id, rustix::process::WaitIdOptions::EXITED);
}

pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((out_of_the_way(read)?, out_of_the_way(write)?))
}

/// The guest has the numbers below this one.
pub(crate) const FIRST_FREE: u32 = 6;

/// Moves a descriptor past the numbers that the guest's will have, so that placing one of those
/// in the child does not close another that it still needs.
pub(crate) fn out_of_the_way(fd: OwnedFd) -> io::Result<OwnedFd> {
    if std::os::fd::AsRawFd::as_raw_fd(&fd) >= FIRST_FREE as i32 {
        return Ok(fd);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_FREE as i32)?)
}

/// Binds through the folder's descriptor, since a socket's path has at most 107 bytes.
fn listen(path: &Path) -> io::Result<OwnedFd> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let folder = openat(CWD, folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&folder);
    let listener = UnixListener::bind(Path::new(&format!("/proc/self/fd/{fd}")).join(name))?;
    out_of_the_way(listener.into())
}

/// Reads the files that are copied into the root while the host's files are still there.
fn with_copies(jail: &Jail) -> Result<Jail, LastWords> {
    let mut jail = jail.clone();
    for item in &mut jail.skeleton {
        if let Item::Copy { path, from } = item {
            let bytes = fs::read(&*from).at(Stage::Prepare, from.display())?;
            let path = std::mem::take(path);
            *item = Item::Bytes { path, bytes };
        }
    }
    Ok(jail)
}

impl Prepared<'_> {
    /// What the guest is told about its descriptors, and the arguments of the description.
    fn arguments(&self) -> Vec<String> {
        let mut args = vec!["--listen-fd".to_owned(), "3".to_owned()];
        if self.oom_events.is_some() {
            args.extend(["--oom-fd".to_owned(), "4".to_owned()]);
        }
        if self.lifeline.is_some() {
            args.extend(["--lifeline-fd".to_owned(), "5".to_owned()]);
        }
        args.extend(self.jail.args.iter().cloned());
        args
    }
}
