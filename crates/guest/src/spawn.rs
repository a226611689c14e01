//! Starting a process below a supervisor of its own: the only unsafe code of the guest.
//!
//! `fork` makes the supervisor, a subreaper that does nothing but wait; it starts the command
//! with `clone(CLONE_VM | CLONE_VFORK)` on a stack of its own and reports over a private pipe.
//! So every process that the command ever starts stays below the supervisor until it has ended,
//! and the supervisor's own exit is the kernel's proof that none is left.
//!
//! Everything that needs memory is prepared before the fork: the supervisor and the child run
//! with the heap of a process that may have had other threads, and must not touch it.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use tokio::io::unix::AsyncFd;

/// Which step of the start failed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Stage {
    Done = 0,
    Fork = 1,
    Session = 2,
    Descriptors = 3,
    Terminal = 4,
    Chdir = 5,
    Limits = 6,
    Exec = 7,
}

/// One message of the report pipe: a tag and five values. Start: pid, stage, errno. End: status,
/// left, user and system microseconds, peak kilobytes.
pub(crate) type Message = [i64; 6];

/// Most descriptors that one process is given.
pub(crate) const FDS: usize = 16;

/// What a supervisor is to start, and what that gets. Made before the fork, and only read after.
pub(crate) struct Plan {
    /// Where the program may be, in the order to try.
    pub(crate) candidates: Vec<CString>,
    pub(crate) argv: Vec<CString>,
    pub(crate) envp: Vec<CString>,
    pub(crate) cwd: CString,
    /// What is opened here, and its number there; at most [`FDS`].
    pub(crate) fds: Vec<(OwnedFd, RawFd)>,
    /// Where the supervisor reports.
    pub(crate) report: OwnedFd,
    pub(crate) limits: Vec<(libc::__rlimit_resource_t, libc::rlimit)>,
    /// Makes descriptor 0 the controlling terminal.
    pub(crate) terminal: bool,
}

/// Everything that the supervisor and the child need, in plain memory.
pub(crate) struct Prepared<'a> {
    plan: &'a Plan,
    /// Lists of pointers into the plan, each with a null at its end.
    candidates: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    sources: [RawFd; FDS],
    targets: [RawFd; FDS],
    fds: usize,
    /// Descriptors that stay open in the supervisor until the child runs, in order.
    keep: Vec<RawFd>,
    report: RawFd,
    /// Set by the child, which shares this memory with the supervisor until it runs.
    stage: Stage,
    errno: i32,
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Self {
        let report = plan.report.as_raw_fd();
        let mut keep: Vec<RawFd> = plan.fds.iter().map(|(fd, _)| fd.as_raw_fd()).collect();
        keep.push(report);
        keep.sort_unstable();
        let mut prepared = Self {
            plan,
            candidates: pointers(&plan.candidates),
            argv: pointers(&plan.argv),
            envp: pointers(&plan.envp),
            sources: [-1; FDS],
            targets: [-1; FDS],
            fds: plan.fds.len().min(FDS),
            keep,
            report,
            stage: Stage::Done,
            errno: 0,
        };
        for (i, (fd, target)) in plan.fds.iter().take(FDS).enumerate() {
            prepared.sources[i] = fd.as_raw_fd();
            prepared.targets[i] = *target;
        }
        prepared
    }
}

/// Takes over the inherited descriptors that are named here, and closes all others over 2, so
/// that nothing of whoever started this process is passed on. To be called first of all.
pub(crate) fn take_inherited(wanted: &BTreeSet<RawFd>) -> BTreeMap<RawFd, OwnedFd> {
    let open: Vec<RawFd> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect(),
        Err(_) => (3..4096).collect(),
    };
    let mut taken = BTreeMap::new();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // SAFETY: fcntl and close on a number that may not be open only fail. Nothing in this
        // process has opened a descriptor yet, so nobody else owns what is taken or closed.
        unsafe {
            if !wanted.contains(&fd) {
                libc::close(fd);
            } else if libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) == 0 {
                taken.insert(fd, OwnedFd::from_raw_fd(fd));
            }
        }
    }
    taken
}

/// Takes back the handlers that Rust's start installs to tell of a stack overflow. An init gets no
/// signal of the code inside unless it handles it, and these handlers, one upon the other on their
/// small stack, were a way to end it.
pub(crate) fn forget_fault_handlers() {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: the default disposition installs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// How long a process has the processor before others have their turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turns {
    /// So short that it gets the processor soon after it asks, which counts where each need is
    /// short. Its share stays the same.
    Short,
    /// As long as the system finds right.
    Usual,
}

/// Sets the turns of a process, or of this one by 0; what it starts inherits them. Systems that
/// have no such setting (Linux before 6.12) go on as they did.
pub(crate) fn set_turns(pid: i32, turns: Turns) {
    /// Of `linux/sched.h`: whatever else schedules the process stays.
    const KEEP_POLICY: u64 = 8;
    // SAFETY: zero is a value of each field, and the kernel reads and writes no more of `attr`
    // than the size that it is told.
    unsafe {
        let mut attr: libc::sched_attr = std::mem::zeroed();
        let size = size_of::<libc::sched_attr>() as u32;
        if libc::syscall(libc::SYS_sched_getattr, pid, &raw mut attr, size, 0) != 0 {
            return;
        }
        attr.size = size;
        attr.sched_flags = KEEP_POLICY;
        attr.sched_runtime = match turns {
            Turns::Short => 100_000,
            Turns::Usual => 0,
        };
        libc::syscall(libc::SYS_sched_setattr, pid, &raw const attr, 0);
    }
}

/// Where the handler of SIGTERM writes.
static TOLD: AtomicI32 = AtomicI32::new(-1);

/// A pipe on which a byte comes when this process is told to end. To an init only whoever is
/// outside of its namespace can say that: code inside would end its own sandbox, and be it by a
/// signal to everybody.
pub(crate) fn told_to_end() -> std::io::Result<AsyncFd<OwnedFd>> {
    let flags = rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK;
    let (told, tell) = rustix::pipe::pipe_with(flags)?;
    TOLD.store(tell.into_raw_fd(), Ordering::Relaxed);
    // SAFETY: `tell_end` is async-signal-safe and has the signature that SA_SIGINFO asks for.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = tell_end as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigaction(libc::SIGTERM, &raw const action, std::ptr::null_mut())
    };
    match set {
        0 => nonblocking(told),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// From here on neither this process nor anything it starts gets a socket but unix ones; what is
/// open already stays. Only for a process with one thread.
pub(crate) fn deny_sockets() -> std::io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    const ARCH: u32 = 0xc000_003e;
    #[cfg(target_arch = "aarch64")]
    const ARCH: u32 = 0xc000_00b7;
    /// Calls of the x32 kind have this bit.
    const X32: u32 = 0x4000_0000;
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const AT_LEAST: u32 = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let refuse = |errno: i32| libc::SECCOMP_RET_ERRNO | errno as u32;
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        // Where the number of the call means something else, none is allowed.
        op(LOAD, 0, 0, 4),
        op(EQUAL, 0, 8, ARCH),
        op(LOAD, 0, 0, 0),
        op(AT_LEAST, 6, 0, X32),
        // Rings make sockets without asking for one.
        op(EQUAL, 4, 0, libc::SYS_io_uring_setup as u32),
        op(EQUAL, 0, 5, libc::SYS_socket as u32),
        // The low half of the family is what counts: it is an int.
        op(LOAD, 0, 0, 16),
        op(EQUAL, 3, 0, libc::AF_UNIX as u32),
        op(RETURN, 0, 0, refuse(libc::EAFNOSUPPORT)),
        op(RETURN, 0, 0, refuse(libc::EPERM)),
        op(RETURN, 0, 0, refuse(libc::ENOSYS)),
        op(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the program and its filter live until the call is over, and the kernel copies them.
    let done = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

extern "C" fn tell_end(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info`; getpid and write are async-signal-safe, and errno
    // is as before for whoever was interrupted.
    unsafe {
        // A sender in another namespace has no number here. What one inside claims to be comes
        // with another code.
        let outside = (*info).si_code == libc::SI_USER && (*info).si_pid() == 0;
        if outside || libc::getpid() != 1 {
            let errno = *libc::__errno_location();
            libc::write(TOLD.load(Ordering::Relaxed), [0u8].as_ptr().cast(), 1);
            *libc::__errno_location() = errno;
        }
    }
}

/// Makes a descriptor one that never blocks and can be waited for.
pub(crate) fn nonblocking(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    // SAFETY: an `OwnedFd` stays open and the same until it is dropped, which `AsyncFd` does
    // after it has let go of it; nobody takes it out of there.
    let fd = unsafe { AsyncFd::register(fd)? };
    rustix::fs::fcntl_setfl(fd.get_ref(), flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(fd)
}

/// A null-terminated list of pointers into `strings`, which must live as long.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// Forks the supervisor and answers with its process id.
pub(crate) fn fork(prepared: &mut Prepared<'_>) -> std::io::Result<i32> {
    // SAFETY: plain calls with valid pointers to local memory. The child of the fork goes to
    // `supervise`, which never returns and only makes async-signal-safe calls. All signals are
    // blocked over the fork, so that no handler of the guest runs in the child.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let pid = libc::fork();
        if pid == 0 {
            supervise(prepared);
        }
        let error = std::io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        if pid < 0 { Err(error) } else { Ok(pid) }
    }
}

/// The stack of the child until it runs its program. Each supervisor has its own copy (it is
/// forked), and starts one child in its life.
#[repr(align(64))]
struct Stack(UnsafeCell<[u8; STACK]>);
const STACK: usize = 32 << 10;
// SAFETY: never touched in the guest itself; see above.
unsafe impl Sync for Stack {}
static CHILD_STACK: Stack = Stack(UnsafeCell::new([0; STACK]));

/// The life of a supervisor. All signals stay blocked, so only SIGKILL and SIGSTOP reach it.
///
/// # Safety
/// To be called in the child of a fork only; never returns.
unsafe fn supervise(prepared: &mut Prepared<'_>) -> ! {
    // SAFETY: this process has one thread and a private copy of the guest's memory; every
    // function called here is async-signal-safe, and every pointer is to memory made before the
    // fork or to locals.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_NAME, c"rf-supervisor".as_ptr(), 0, 0, 0);
        // The kernel's own form of a sigaction, all zero: the default. The C library's wrapper
        // refuses the two signals that it uses itself, which may be ignored as well.
        let default = [0u64; 8];
        for signal in 1..=64 {
            let old = std::ptr::null_mut::<libc::c_void>();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                old,
                8usize,
            );
        }
        close_all_but(&prepared.keep);

        let stack = CHILD_STACK.0.get().cast::<u8>().add(STACK);
        let main = libc::clone(
            start,
            stack.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            std::ptr::from_mut(prepared).cast(),
        );
        if main < 0 {
            prepared.stage = Stage::Fork;
            prepared.errno = *libc::__errno_location();
        }
        if main > 0 && prepared.stage == Stage::Done {
            raise_oom_score(main);
        }
        close_all_but(&[prepared.report]);
        send(
            prepared.report,
            &[
                1,
                i64::from(main),
                prepared.stage as i64,
                i64::from(prepared.errno),
                0,
                0,
            ],
        );
        if main < 0 {
            libc::_exit(1);
        }

        let started = prepared.stage == Stage::Done;
        let (mut status, mut main_status, mut left) = (0, 0, false);
        loop {
            let pid = libc::wait4(-1, &raw mut status, libc::__WALL, std::ptr::null_mut());
            if pid < 0 {
                if *libc::__errno_location() == libc::EINTR {
                    continue;
                }
                break;
            }
            if pid != main || !started {
                continue;
            }
            main_status = status;
            // The dead command's children are ours by now, so this tells exactly whether any is left.
            loop {
                let options = libc::__WALL | libc::WNOHANG;
                let pid = libc::wait4(-1, &raw mut status, options, std::ptr::null_mut());
                left = pid == 0;
                if pid <= 0 {
                    break;
                }
            }
            report_end(prepared.report, main_status, left);
        }
        if left {
            report_end(prepared.report, main_status, false);
        }
        libc::_exit(0);
    }
}

/// # Safety
/// In the supervisor only.
unsafe fn report_end(report: RawFd, status: i32, left: bool) {
    // SAFETY: plain calls on local memory.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        let us = |time: libc::timeval| time.tv_sec * 1_000_000 + time.tv_usec;
        let (user, system) = (us(usage.ru_utime), us(usage.ru_stime));
        send(
            report,
            &[
                2,
                i64::from(status),
                i64::from(left),
                user,
                system,
                usage.ru_maxrss,
            ],
        );
    }
}

/// # Safety
/// In the supervisor only.
unsafe fn send(report: RawFd, message: &Message) {
    // SAFETY: the message is plain memory of this size; shorter than PIPE_BUF, so written whole.
    unsafe {
        libc::write(report, message.as_ptr().cast(), size_of::<Message>());
    }
}

/// Makes the command a better victim of the kernel's OOM killer than the guest. Only once it runs
/// its own program: until then it is a copy of the guest, whose memory nobody may look into, and
/// that holds for every file of it in `/proc`.
///
/// # Safety
/// In the supervisor only.
unsafe fn raise_oom_score(pid: i32) {
    let mut path = [0u8; 40];
    let mut length = 0;
    let mut put = |bytes: &[u8]| {
        path[length..length + bytes.len()].copy_from_slice(bytes);
        length += bytes.len();
    };
    put(b"/proc/");
    // Formatting is for processes with a heap.
    let mut place = 1_000_000_000;
    while place > 0 {
        if pid >= place {
            put(&[b'0' + (pid / place % 10) as u8]);
        }
        place /= 10;
    }
    put(b"/oom_score_adj");
    // SAFETY: plain calls on local memory; the path ends with a null. The child is not reaped yet,
    // so the number is its own.
    unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            return;
        }
        let mut before = [0u8; 16];
        let count = libc::read(fd, before.as_mut_ptr().cast(), before.len() - 1);
        if count > 0 && libc::atoi(before.as_ptr().cast()) < 500 {
            libc::pwrite(fd, c"500".as_ptr().cast(), 3, 0);
        }
        libc::close(fd);
    }
}

/// Closes every descriptor but these, which are in ascending order.
///
/// # Safety
/// In the supervisor only.
unsafe fn close_all_but(keep: &[RawFd]) {
    // SAFETY: this process owns none of the descriptors in any way that Rust code relies on.
    unsafe {
        let mut first: libc::c_uint = 0;
        for fd in keep.iter().copied().chain([RawFd::MAX]) {
            let fd = fd as libc::c_uint;
            if fd > first && libc::syscall(libc::SYS_close_range, first, fd - 1, 0) != 0 {
                let mut limit: libc::rlimit = std::mem::zeroed();
                libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
                let end = (limit.rlim_cur.min(1 << 16) as libc::c_uint).min(fd);
                for fd in first..end {
                    libc::close(fd as RawFd);
                }
            }
            first = fd + 1;
        }
    }
}

/// The child until exec: shares memory with the waiting supervisor, and has its own descriptors.
extern "C" fn start(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the argument is the supervisor's `Prepared`; the supervisor is suspended until
    // this process runs its program or exits, so nobody else uses it.
    unsafe {
        let prepared = &mut *argument.cast::<Prepared<'_>>();
        let stage = start_stages(prepared);
        prepared.errno = *libc::__errno_location();
        prepared.stage = stage;
        libc::_exit(127)
    }
}

/// Answers with the stage that failed, errno set; does not come back when all went well.
///
/// # Safety
/// In the child only.
unsafe fn start_stages(prepared: &mut Prepared<'_>) -> Stage {
    // SAFETY: async-signal-safe calls on memory that was prepared before the fork.
    unsafe {
        if libc::setsid() < 0 {
            return Stage::Session;
        }
        let count = prepared.fds;
        let mut top = 2;
        for i in 0..count {
            top = top.max(prepared.targets[i]);
        }
        for i in 0..count {
            if prepared.sources[i] <= top {
                let moved = libc::fcntl(prepared.sources[i], libc::F_DUPFD_CLOEXEC, top + 1);
                if moved < 0 {
                    return Stage::Descriptors;
                }
                prepared.sources[i] = moved;
            }
        }
        for i in 0..count {
            if libc::dup2(prepared.sources[i], prepared.targets[i]) < 0 {
                return Stage::Descriptors;
            }
        }
        if prepared.plan.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return Stage::Terminal;
        }
        if libc::chdir(prepared.plan.cwd.as_ptr()) < 0 {
            return Stage::Chdir;
        }
        for (resource, limit) in &prepared.plan.limits {
            let (resource, mut limit) = (*resource, *limit);
            let mut now: libc::rlimit = std::mem::zeroed();
            // A limit of the sandbox that is tighter already stays.
            if libc::getrlimit(resource, &raw mut now) == 0 {
                limit.rlim_max = limit.rlim_max.min(now.rlim_max);
                limit.rlim_cur = limit.rlim_cur.min(limit.rlim_max);
            }
            if libc::setrlimit(resource, &raw const limit) < 0 {
                return Stage::Limits;
            }
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());

        let mut refused = 0;
        let mut i = 0;
        while !prepared.candidates[i].is_null() {
            libc::execve(
                prepared.candidates[i],
                prepared.argv.as_ptr(),
                prepared.envp.as_ptr(),
            );
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => refused = libc::EACCES,
                _ => return Stage::Exec,
            }
            i += 1;
        }
        if refused != 0 {
            *libc::__errno_location() = refused;
        }
        Stage::Exec
    }
}
