//! The root of a sandbox: a small read-only file system in memory with mounts in it.

use crate::launch::Prepared;
use crate::line::Line;
use crate::words::{Context as _, LastWords, Stage};
use crate::{Access, Item, Jail, Mount, Owner, sys};
use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat, symlinkat};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;

/// Builds the whole root and makes it the root of this process. Images come from the maker.
pub(crate) fn build(prepared: &Prepared<'_>, maker: &Line) -> Result<(), LastWords> {
    let jail = prepared.jail;
    // Nothing mounted here may appear outside.
    let flags =
        rustix::mount::MountPropagationFlags::REC | rustix::mount::MountPropagationFlags::PRIVATE;
    rustix::mount::mount_change("/", flags).at(Stage::Mounts, "/")?;

    // Sources are opened before the root changes, through the mounts of the host.
    let mut sources = Vec::with_capacity(jail.mounts.len());
    for (mount, owners) in jail.mounts.iter().zip(&prepared.owners) {
        sources.push(open_source(mount, owners.as_ref())?);
    }
    let devices = open_devices(jail, prepared.privileged)?;

    // The new root lies on a folder that every system has, in this mount namespace only.
    let root = memory(4 << 20, 10_000, 0o755).at(Stage::Mounts, "the root")?;
    let at = Path::new("/proc");
    attach(&root, CWD, at).at(Stage::Mounts, "the root")?;
    rustix::process::fchdir(&root).at(Stage::Root, "the root")?;
    rustix::process::pivot_root(".", ".").at(Stage::Root, "pivot_root")?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).at(Stage::Root, "the host's root")?;
    rustix::process::chdir("/").at(Stage::Root, "/")?;

    for item in &jail.skeleton {
        make_item(item)?;
    }
    for (mount, source) in jail.mounts.iter().zip(sources) {
        match (mount, source) {
            (Mount::Bind { to, .. }, Some(source)) => {
                make_target(to, &source).at(Stage::Mounts, to.display())?;
                attach(&source, CWD, to).at(Stage::Mounts, to.display())?;
            }
            (Mount::Image { to, .. }, _) => {
                make_folder(to).at(Stage::Mounts, to.display())?;
                maker
                    .receive_descriptor()
                    .and_then(|image| attach(&image, CWD, to))
                    .at(Stage::Mounts, to.display())?;
            }
            (Mount::Memory { to, bytes, files }, _) => {
                make_folder(to).at(Stage::Mounts, to.display())?;
                memory(*bytes, *files, 0o1777)
                    .and_then(|m| attach(&m, CWD, to))
                    .at(Stage::Mounts, to.display())?;
            }
            (Mount::Proc, Some(source)) => {
                let to = Path::new("/proc");
                make_folder(to)
                    .and_then(|()| attach(&source, CWD, to))
                    .at(Stage::Mounts, "/proc")?;
            }
            (Mount::Dev { shm }, _) => dev(*shm, &devices)?,
            (Mount::Bind { .. } | Mount::Proc, None) => {
                let missing = io::Error::from_raw_os_error(libc::ENOENT);
                return Err(missing).at(Stage::Mounts, format!("{mount:?}"));
            }
        }
    }
    if jail.mounts.contains(&Mount::Proc) {
        mask_proc()?;
    }
    let root =
        openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).at(Stage::Mounts, "/")?;
    sys::mount_setattr(root.as_fd(), false, RDONLY | NOSUID, None).at(Stage::Mounts, "/")
}

/// Files of `/proc` that tell of the host or act on it, whoever asks: an ordinary user's keys are
/// shown to every process of that user. Most of the others are root's already.
const MASKED: [&str; 6] = [
    "/proc/keys",
    "/proc/key-users",
    "/proc/kcore",
    "/proc/timer_list",
    "/proc/latency_stats",
    "/proc/sysrq-trigger",
];

fn mask_proc() -> Result<(), LastWords> {
    let null = Path::new("/dev/null");
    for path in MASKED.map(Path::new) {
        if path.exists() {
            clone_device(null)
                .and_then(|empty| attach(&empty, CWD, path))
                .at(Stage::Mounts, path.display())?;
        }
    }
    Ok(())
}

/// A detached copy of what is to be mounted, with its final attributes.
fn open_source(mount: &Mount, owners: Option<&OwnedFd>) -> Result<Option<OwnedFd>, LastWords> {
    match mount {
        Mount::Bind {
            from,
            access,
            owner,
            ..
        } => bind(from, *access, *owner, owners)
            .at(Stage::Mounts, from.display())
            .map(Some),
        // An ordinary user may mount a new one only where a whole one is in sight.
        Mount::Proc => file_system("proc", &[])
            .at(Stage::Mounts, "/proc")
            .map(Some),
        Mount::Image { .. } | Mount::Memory { .. } | Mount::Dev { .. } => Ok(None),
    }
}

/// A copy of the host's own device.
fn clone_device(from: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    Ok(rustix::mount::open_tree(CWD, from, flags)?)
}

/// Finds what lies at an absolute path on which there is no link. Whoever may write to a folder
/// could make one at any time, and it would lead to whatever they like.
pub fn without_links(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at = openat(CWD, "/", flags, Mode::empty())?;
    for part in path.components() {
        let name = match part {
            Component::RootDir => continue,
            Component::Normal(name) => name,
            _ => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
        };
        at = openat(&at, name, flags, Mode::empty())?;
        if FileType::from_raw_mode(rustix::fs::fstat(&at)?.st_mode) == FileType::Symlink {
            return Err(io::Error::from_raw_os_error(libc::ELOOP));
        }
    }
    Ok(at)
}

fn bind(
    from: &Path,
    access: Access,
    owner: Owner,
    owners: Option<&OwnedFd>,
) -> io::Result<OwnedFd> {
    let set = NOSUID
        | NODEV
        | if access == Access::ReadOnly {
            RDONLY
        } else {
            0
        };
    // Mounts below a folder with mapped owners keep their own, so they are left out.
    let recursive = owners.is_none();
    let source = without_links(from)?;
    let found = rustix::fs::fstat(&source)?;
    if let Owner::Mapped { uid, gid } = owner
        && (found.st_uid, found.st_gid) != (uid, gid)
    {
        // It is not what was looked at: what is mapped would be files of somebody else.
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    let tree = rustix::mount::open_tree(&source, "", flags)?;
    sys::mount_setattr(tree.as_fd(), recursive, set, owners.map(|o| o.as_fd()))?;
    Ok(tree)
}

/// For each mount with mapped owners a user namespace that says so. Made outside, because process
/// ids inside are those of another namespace.
pub(crate) fn owners(jail: &Jail) -> Result<Vec<Option<OwnedFd>>, LastWords> {
    jail.mounts
        .iter()
        .map(|mount| match mount {
            Mount::Bind {
                from,
                owner: Owner::Mapped { uid, gid },
                ..
            } => {
                let maps = (
                    format!("{uid} {} 1", jail.uid),
                    format!("{gid} {} 1", jail.gid),
                );
                mapping(&maps.0, &maps.1)
                    .at(Stage::Identity, from.display())
                    .map(Some)
            }
            _ => Ok(None),
        })
        .collect()
}

/// A user namespace with these maps, held only by the descriptor.
fn mapping(uids: &str, gids: &str) -> io::Result<OwnedFd> {
    let (wait, hold) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    match sys::clone(libc::CLONE_NEWUSER as u64, None)? {
        sys::Cloned::Child => {
            // Lives until the other end closes, also when that is because the launcher was killed.
            drop(hold);
            while rustix::io::read(&wait, &mut [0u8; 1]) == Err(rustix::io::Errno::INTR) {}
            sys::exit_now(0)
        }
        sys::Cloned::Parent { pid, pidfd } => {
            let result = write_maps(pid, uids, gids)
                .and_then(|()| fs::File::open(format!("/proc/{pid}/ns/user")));
            drop(hold);
            let _ = rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            );
            result.map(OwnedFd::from)
        }
    }
}

pub(crate) fn write_maps(pid: i32, uids: &str, gids: &str) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/uid_map"), uids)?;
    fs::write(format!("/proc/{pid}/gid_map"), gids)
}

/// How often a device is tried for.
const IMAGE_TRIES: u32 = 16;

/// Mounts the images of a child and hands them over, in their order. A device and a file system
/// take as long as all the rest of its root, which the child builds meanwhile.
pub(crate) fn hand_over_images(jail: &Jail, child: &Line) -> Result<(), LastWords> {
    for mount in &jail.mounts {
        if let Mount::Image { file, .. } = mount {
            let image = image(file).at(Stage::Mounts, file.display())?;
            match child.send(Some(image.as_fd())) {
                // A child that failed already says why by its last words.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
                sent => sent.at(Stage::Mounts, file.display())?,
            }
        }
    }
    Ok(())
}

/// Many who make sandboxes at once are in each other's way where there is one list of devices.
fn image(file: &Path) -> io::Result<OwnedFd> {
    // Those who lost at the same moment must not meet again.
    let own = Duration::from_micros(u64::from(std::process::id() % 1000));
    for tries in 1..IMAGE_TRIES {
        match mounted_image(file) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(own * tries);
            }
            done => return done,
        }
    }
    mounted_image(file)
}

fn mounted_image(file: &Path) -> io::Result<OwnedFd> {
    let backing = fs::OpenOptions::new().read(true).write(true).open(file)?;
    let (device, path) = sys::loop_device(backing.as_fd())?;
    let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "source", path)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    drop(device);
    Ok(mount)
}

fn file_system(kind: &str, options: &[(&str, &str)]) -> io::Result<OwnedFd> {
    // Only the root, whose owner is the launcher, has device nodes.
    let with_devices = options.contains(&("mode", "755"));
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        if value.is_empty() {
            rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?;
        } else {
            rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID;
    match kind {
        "proc" => {
            attributes |= MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC
        }
        "tmpfs" if !with_devices => attributes |= MountAttrFlags::MOUNT_ATTR_NODEV,
        _ => {}
    }
    Ok(rustix::mount::fsmount(
        context.as_fd(),
        FsMountFlags::FSMOUNT_CLOEXEC,
        attributes,
    )?)
}

fn memory(bytes: u64, files: u64, mode: u32) -> io::Result<OwnedFd> {
    let (size, inodes, mode) = (bytes.to_string(), files.to_string(), format!("{mode:o}"));
    file_system(
        "tmpfs",
        &[("size", &size), ("nr_inodes", &inodes), ("mode", &mode)],
    )
}

fn attach(mount: &OwnedFd, folder: BorrowedFd<'_>, to: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(
        mount.as_fd(),
        "",
        folder,
        to,
        flags,
    )?)
}

fn make_folder(path: &Path) -> io::Result<()> {
    let mut at = PathBuf::from("/");
    for part in path.components().skip(1) {
        at.push(part);
        match mkdirat(CWD, &at, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// A folder or an empty file to mount on, as the source is one.
fn make_target(to: &Path, source: &OwnedFd) -> io::Result<()> {
    let stat = rustix::fs::fstat(source)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return make_folder(to);
    }
    if let Some(parent) = to.parent() {
        make_folder(parent)?;
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(openat(CWD, to, flags, Mode::from_raw_mode(0o644)).map(drop)?)
}

fn make_item(item: &Item) -> Result<(), LastWords> {
    let (path, result) = match item {
        Item::Folder { path } => (path, make_folder(path)),
        Item::Link { path, target } => {
            let made = path.parent().map_or(Ok(()), make_folder);
            (path, made.and_then(|()| Ok(symlinkat(target, CWD, path)?)))
        }
        Item::File { path, text } => (path, make_file(path, text.as_bytes())),
        Item::Bytes { path, bytes } => (path, make_file(path, bytes)),
        // The launcher has read these while the host's files were there.
        Item::Copy { path, .. } => (path, Err(io::Error::from_raw_os_error(libc::EINVAL))),
    };
    result.at(Stage::Mounts, path.display())
}

fn make_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)?;
    io::Write::write_all(&mut file, bytes)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Copies of the host's device nodes, where new ones can't be made.
fn open_devices(jail: &Jail, privileged: bool) -> Result<Vec<OwnedFd>, LastWords> {
    let wanted = jail.mounts.iter().any(|m| matches!(m, Mount::Dev { .. }));
    if privileged || !wanted {
        return Ok(Vec::new());
    }
    DEVICES
        .iter()
        .map(|(name, ..)| {
            let path = Path::new("/dev").join(name);
            clone_device(&path).at(Stage::Mounts, path.display())
        })
        .collect()
}

fn dev(shm: u64, devices: &[OwnedFd]) -> Result<(), LastWords> {
    make_folder(Path::new("/dev/pts")).at(Stage::Mounts, "/dev")?;
    make_folder(Path::new("/dev/shm")).at(Stage::Mounts, "/dev")?;
    for (index, (name, major, minor)) in DEVICES.iter().enumerate() {
        let path = Path::new("/dev").join(name);
        let made = match devices.get(index) {
            Some(device) => make_file(&path, b"").and_then(|()| attach(device, CWD, &path)),
            None => {
                let device = rustix::fs::makedev(*major, *minor);
                mknodat(
                    CWD,
                    &path,
                    FileType::CharacterDevice,
                    Mode::from_raw_mode(0o666),
                    device,
                )
                .map_err(io::Error::from)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o666)))
            }
        };
        made.at(Stage::Mounts, path.display())?;
    }
    let pts = [
        ("newinstance", ""),
        ("ptmxmode", "0666"),
        ("mode", "0620"),
        // Terminals count against one number for the whole machine.
        ("max", "64"),
    ];
    file_system("devpts", &pts)
        .and_then(|m| attach(&m, CWD, Path::new("/dev/pts")))
        .at(Stage::Mounts, "/dev/pts")?;
    memory(shm, 100_000, 0o1777)
        .and_then(|m| attach(&m, CWD, Path::new("/dev/shm")))
        .at(Stage::Mounts, "/dev/shm")?;
    for (name, target) in [
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        let path = Path::new("/dev").join(name);
        symlinkat(target, CWD, &path).at(Stage::Mounts, path.display())?;
    }
    Ok(())
}
