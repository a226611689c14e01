//! The system calls that no safe wrapper has, each behind a safe function.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// libc's constant overflows its type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a [`clone`] this is.
pub(crate) enum Cloned {
    Parent { pid: i32, pidfd: OwnedFd },
    Child,
}

/// Forks into new namespaces, and on cgroup v2 straight into a cgroup.
///
/// The caller must be single-threaded: the child goes on with a copy of this process, and a lock
/// held by another thread would stay locked in it for ever. [`assert_single_threaded`] holds that.
pub(crate) fn clone(flags: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    assert_single_threaded()?;
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(&tid) = THREAD_ID.get() {
        args.flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
        args.child_tid = tid as u64;
    }
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // WHY: glibc's fork takes no namespace flags, and its clone wants a stack of its own.
    // SAFETY: args outlives the call; without CLONE_VM the child has its own copy of memory, and
    // no other thread exists whose locks it could inherit.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw const args,
            size_of::<libc::clone_args>(),
        )
    })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel has just stored a new descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cloned::Parent {
        pid: pid as i32,
        pidfd,
    })
}

/// Where libc keeps the id of this thread. Its own fork has the kernel write the child's there, and
/// so does [`clone`]: a guest goes on in that child and relies on it.
static THREAD_ID: OnceLock<usize> = OnceLock::new();

/// Looks up where libc keeps the id of this thread. A kernel that does not tell is no reason to
/// fail: only what asks libc for it would notice.
pub(crate) fn find_thread_id() {
    let mut place = 0usize;
    // SAFETY: the kernel stores one pointer in `place`.
    let found = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut place) };
    if found == 0 && place != 0 {
        let _ = THREAD_ID.set(place);
    }
}

/// A copy of this process; answers whether this is the copy. Needs a caller with one thread, as
/// [`clone`] does, and works where an engine's filter does not know that call.
pub(crate) fn fork() -> io::Result<bool> {
    assert_single_threaded()?;
    // SAFETY: no other thread exists whose locks the copy could inherit.
    check(libc::c_long::from(unsafe { libc::fork() })).map(|pid| pid == 0)
}

fn assert_single_threaded() -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.take(2).count();
    if threads == 1 {
        return Ok(());
    }
    Err(io::Error::other("the launcher has more than one thread"))
}

/// Leaves at once, without running anything of the copied process.
pub(crate) fn exit_now(status: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory.
    unsafe { libc::_exit(status) }
}

pub(crate) fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(libc::c_long::from(unsafe { libc::unshare(flags) })).map(drop)
}

/// Changes properties of a mount and of all mounts below it.
pub(crate) fn mount_setattr(
    fd: BorrowedFd<'_>,
    recursive: bool,
    set: u64,
    userns: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // SAFETY: all-zero is a valid mount_attr.
    let mut attr: libc::mount_attr = unsafe { std::mem::zeroed() };
    attr.attr_set = set;
    if let Some(userns) = userns {
        attr.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attr.userns_fd = userns.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a static C string, attr outlives the call and its size is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    })
    .map(drop)
}

pub(crate) fn prctl(option: i32, argument: u64) -> io::Result<()> {
    // SAFETY: only options whose arguments are plain numbers are passed in this crate.
    check(libc::c_long::from(unsafe {
        libc::prctl(option, argument, 0u64, 0u64, 0u64)
    }))
    .map(drop)
}

pub(crate) fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    // WHY: the libc wrappers signal all threads of a process; the raw calls suit a single one.
    // SAFETY: take no pointers.
    unsafe {
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

pub(crate) fn clear_groups() -> io::Result<()> {
    // SAFETY: a count of zero reads nothing from the null pointer.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()) }).map(drop)
}

/// Empties the permitted, effective and inheritable capability sets.
pub(crate) fn clear_capabilities() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header {
        version: 0x2008_0522,
        pid: 0,
    };
    let data = [0u32; 6];
    // SAFETY: version 3 reads two structures of three words each, which `data` is.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Sets both limits of this process; a hard limit that is lower already stays.
pub(crate) fn set_rlimit(resource: u32, value: u64) -> io::Result<()> {
    let mut now = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure outlives the call; no new limit is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            std::ptr::null::<libc::rlimit64>(),
            &raw mut now,
        )
    })?;
    let value = value.min(now.rlim_max);
    let limit = libc::rlimit64 {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: limit outlives the call; the old limit is not asked for.
    check(unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            0,
            resource,
            &raw const limit,
            std::ptr::null_mut::<libc::rlimit64>(),
        )
    })
    .map(drop)
}

pub(crate) fn install_filter(program: &[libc::sock_filter]) -> io::Result<()> {
    let prog = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies `len` instructions, which the slice holds, and keeps no pointer.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0,
            &raw const prog,
        )
    })
    .map(drop)
}

/// Makes `from` also known as `to`.
pub(crate) fn place(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: takes no pointers; the caller owns both numbers.
    check(libc::c_long::from(unsafe { libc::dup2(from, to) })).map(drop)
}

/// Closes every descriptor from `first` on. Whoever owns one of them must not use it any more.
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: takes no pointers. The caller lets go of what it owns there without dropping it.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) }).map(drop)
}

/// Where the words of this process's command line are, as the kernel shows them to others.
static COMMAND_LINE: OnceLock<Range<usize>> = OnceLock::new();

/// Looks up where the command line is: what later copies of this process call themselves is
/// written there.
pub(crate) fn find_command_line() -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The second field may hold anything, and ends with the last parenthesis.
    let (_, fields) = stat.rsplit_once(')').unwrap_or_default();
    let field = |number: usize| fields.split(' ').nth(number - 2)?.parse().ok();
    let (Some(start), Some(end)) = (field(48), field(49)) else {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    };
    let _ = COMMAND_LINE.set(start..end);
    Ok(())
}

/// Shows other words as the command line of this process, as far as there is room. Without
/// [`find_command_line`] nothing happens.
pub(crate) fn rename(words: &[&str]) {
    let Some(place) = COMMAND_LINE.get() else {
        return;
    };
    let mut text: Vec<u8> = words
        .iter()
        .flat_map(|word| [word.as_bytes(), &[0]].concat())
        .collect();
    text.resize(place.len(), 0);
    // SAFETY: the kernel has put the words of the command line there, on this thread's stack; they
    // stay for as long as the process does, can be written to, and nothing here holds a reference
    // to them: `std::env::args_os` gives copies.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.start as *mut u8, text.len());
    }
}

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is an initialised ifreq, which is what SIOCSIFFLAGS reads.
    let result = unsafe {
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    };
    check(libc::c_long::from(result)).map(drop)
}

/// A loop device that shows `file` and goes away with its last user.
pub(crate) fn loop_device(file: BorrowedFd<'_>) -> io::Result<(OwnedFd, String)> {
    const CTL_GET_FREE: u64 = 0x4C82;
    const CONFIGURE: u64 = 0x4C0A;
    const AUTOCLEAR: u32 = 4;
    let open = |path: &str| {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map(OwnedFd::from)
    };
    let control = open("/dev/loop-control")?;
    // Another process may take the free number between the two calls.
    for _ in 0..64 {
        // SAFETY: takes no argument.
        let number = check(libc::c_long::from(unsafe {
            libc::ioctl(control.as_raw_fd(), CTL_GET_FREE as _)
        }))?;
        let path = format!("/dev/loop{number}");
        let device = open(&path)?;
        // loop_config: fd, block size, loop_info64 (its flags are word 13), eight reserved words.
        let mut config = [0u32; 76];
        config[0] = file.as_raw_fd() as u32;
        config[1] = 4096;
        config[2 + 13] = AUTOCLEAR;
        // SAFETY: the array has the size of struct loop_config (304 bytes).
        let result = unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE as _, config.as_ptr()) };
        match check(libc::c_long::from(result)) {
            Ok(_) => return Ok((device, path)),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// `landlock_create_ruleset` with a plain structure, or its version query.
pub(crate) fn landlock_create(attr: Option<&[u64; 3]>, size: usize) -> io::Result<OwnedFd> {
    let pointer = attr.map_or(std::ptr::null(), |a| a.as_ptr());
    // SAFETY: `size` is at most the size of the array.
    let fd = check(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, pointer, size, 0) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

pub(crate) fn landlock_version() -> i32 {
    // SAFETY: with the version flag the kernel reads no attributes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            1u32,
        )
    };
    i32::try_from(result).unwrap_or(0).max(0)
}

/// Allows `access` beneath the folder or for the file behind `path`.
pub(crate) fn landlock_allow(
    rules: BorrowedFd<'_>,
    path: BorrowedFd<'_>,
    access: u64,
) -> io::Result<()> {
    #[repr(C, packed)]
    struct PathBeneath {
        access: u64,
        parent: i32,
    }
    let attr = PathBeneath {
        access,
        parent: path.as_raw_fd(),
    };
    // SAFETY: rule type 1 reads one packed path_beneath structure.
    check(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            rules.as_raw_fd(),
            1,
            &raw const attr,
            0,
        )
    })
    .map(drop)
}

pub(crate) fn landlock_restrict(rules: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })
        .map(drop)
}

/// Lets the kernel reap children that end, or leaves them to be waited for.
pub(crate) fn reap_children_unseen(unseen: bool) {
    let disposition = if unseen { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: both are valid dispositions and install no code of ours.
    unsafe { libc::signal(libc::SIGCHLD, disposition) };
}
