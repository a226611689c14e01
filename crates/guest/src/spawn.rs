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

use crate::tree::{Supervisor, Supervisors};
use ringfence_proto::{Code, Failure, ProcessLimits};
use std::cell::UnsafeCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use tokio::io::AsyncReadExt as _;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

/// The search path of commands whose environment has none.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Most bytes of arguments and environment; the kernel's own limit is about the same.
const ARGUMENTS_LIMIT: usize = 2 << 20;

/// What to start, and what it gets.
pub(crate) struct Spawn {
    /// The program, looked up on the `PATH` of `env` unless it has a slash, and its arguments.
    pub(crate) argv: Vec<String>,
    /// The whole environment; the last of several values of a name wins.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) cwd: String,
    /// Descriptors of the new process: what is opened here, and its number there. Nothing else
    /// is inherited, so 0, 1 and 2 belong on this list. Closed on this side after the fork.
    pub(crate) fds: Vec<(OwnedFd, RawFd)>,
    pub(crate) limits: ProcessLimits,
    /// Makes descriptor 0 the controlling terminal.
    pub(crate) terminal: bool,
}

/// A process that was started: its supervisor, and the pipe that tells its end.
pub(crate) struct Spawned {
    pub(crate) supervisor: Arc<Supervisor>,
    report: Report,
    program: String,
    cwd: String,
}

/// What the supervisor has to say after the start.
pub(crate) struct Report {
    pipe: pipe::Receiver,
}

/// The end of the command, or of all its descendants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    /// As of waitpid.
    pub(crate) status: i32,
    /// Whether descendants are left.
    pub(crate) left: bool,
    pub(crate) cpu_us: u64,
    pub(crate) peak_memory: u64,
}

impl Spawned {
    /// Waits until the program runs; answers with its process id and what tells its end. The id
    /// is 0 where the program was quick enough to kill its supervisor before it could say so.
    pub(crate) async fn started(mut self) -> Result<(i32, Arc<Supervisor>, Report), Failure> {
        let Some(message) = self.report.message().await else {
            return Ok((0, self.supervisor, self.report));
        };
        let (pid, stage, errno) = (message[1] as i32, message[2] as i32, message[3] as i32);
        if stage == Stage::Done as i32 {
            return Ok((pid, self.supervisor, self.report));
        }
        Err(start_failure(&self.program, &self.cwd, stage, errno))
    }
}

impl Report {
    async fn message(&mut self) -> Option<[i64; 6]> {
        let mut bytes = [0; size_of::<Message>()];
        self.pipe.read_exact(&mut bytes).await.ok()?;
        let mut message = [0; 6];
        for (value, chunk) in message.iter_mut().zip(bytes.chunks_exact(8)) {
            *value = i64::from_ne_bytes(chunk.try_into().unwrap_or_default());
        }
        Some(message)
    }

    /// The next report: first of the command's end, then of the end of what it left behind.
    /// None when the supervisor is gone.
    pub(crate) async fn ended(&mut self) -> Option<Ended> {
        let message = self.message().await?;
        Some(Ended {
            status: message[1] as i32,
            left: message[2] != 0,
            cpu_us: (message[3].max(0) as u64).saturating_add(message[4].max(0) as u64),
            peak_memory: (message[5].max(0) as u64).saturating_mul(1024),
        })
    }
}

fn start_failure(program: &str, cwd: &str, stage: i32, errno: i32) -> Failure {
    let error = std::io::Error::from_raw_os_error(errno);
    let what = format!("cannot run {program}");
    if stage == Stage::Chdir as i32 {
        return Failure::io(format!("cannot enter {cwd}"), &error);
    }
    if stage == Stage::Exec as i32 {
        return match errno {
            libc::ENOENT | libc::ENOTDIR if program.contains('/') => Failure::new(
                Code::Missing,
                format!("{what}: no such file, or its interpreter"),
            ),
            libc::ENOENT | libc::ENOTDIR => {
                Failure::new(Code::Missing, format!("{what}: not found on PATH"))
            }
            libc::EACCES | libc::EPERM => {
                Failure::new(Code::Forbidden, format!("{what}: not executable"))
                    .hint("chmod +x the file, or name its interpreter")
            }
            libc::ENOEXEC => Failure::invalid(format!("{what}: not a program"))
                .hint("start a script with #! and its interpreter, or name the interpreter"),
            libc::E2BIG => Failure::invalid(format!(
                "{what}: the arguments or the environment are too long"
            ))
            .hint("pass large data on standard input or in a file"),
            _ => Failure::io(what, &error),
        };
    }
    if errno == libc::EAGAIN {
        return Failure::new(
            Code::TooMany,
            format!("{what}: no more processes are allowed"),
        )
        .hint("end processes that still run");
    }
    if stage == Stage::Limits as i32 && errno == libc::EPERM {
        return Failure::new(
            Code::Forbidden,
            format!("{what}: a limit is over the sandbox's own"),
        );
    }
    Failure::io(what, &error)
}

/// Which step of the start failed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
enum Stage {
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
type Message = [i64; 6];

/// Most descriptors that one process is given.
const FDS: usize = 16;

/// Everything that the supervisor and the child need, in plain memory.
struct Prepared {
    candidates: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    cwd: CString,
    sources: [RawFd; FDS],
    targets: [RawFd; FDS],
    fds: usize,
    /// Descriptors that stay open in the supervisor until the child runs, in order.
    keep: Vec<RawFd>,
    report: RawFd,
    limits: [(libc::__rlimit_resource_t, libc::rlimit); 5],
    limits_set: usize,
    terminal: bool,
    /// Set by the child, which shares this memory with the supervisor until it runs.
    stage: Stage,
    errno: i32,
}

/// Starts a process below a new supervisor; the answer comes before the program runs.
pub(crate) fn spawn(spawn: Spawn, supervisors: &Arc<Supervisors>) -> Result<Spawned, Failure> {
    let Some(program) = spawn.argv.first().cloned() else {
        return Err(Failure::invalid("the command is empty"));
    };
    if program.is_empty() {
        return Err(Failure::invalid("the command has no name"));
    }
    let failed = |e: std::io::Error| Failure::io(format!("cannot run {program}"), &e);

    let mut env: Vec<(&str, &str)> = Vec::with_capacity(spawn.env.len());
    for (name, value) in &spawn.env {
        match env.iter_mut().find(|(known, _)| known == name) {
            Some(entry) => entry.1 = value,
            None => env.push((name, value)),
        }
    }
    let search = env
        .iter()
        .find(|(name, _)| *name == "PATH")
        .map_or(DEFAULT_PATH, |(_, v)| v);
    let candidates: Vec<CString> = if program.contains('/') {
        vec![c_string(program.clone(), "the command")?]
    } else {
        search
            .split(':')
            .map(|dir| if dir.is_empty() { "." } else { dir })
            .map(|dir| c_string(format!("{dir}/{program}"), "the search path"))
            .collect::<Result<_, _>>()?
    };
    let total = spawn.argv.iter().map(|a| a.len() + 9).sum::<usize>()
        + env
            .iter()
            .map(|(n, v)| n.len() + v.len() + 10)
            .sum::<usize>();
    if total > ARGUMENTS_LIMIT {
        return Err(start_failure(&program, "", Stage::Exec as i32, libc::E2BIG));
    }
    let argv = spawn
        .argv
        .into_iter()
        .map(|a| c_string(a, "an argument"))
        .collect::<Result<Vec<_>, _>>()?;
    let envp = env
        .into_iter()
        .map(|(name, value)| {
            if name.is_empty() || name.contains('=') {
                return Err(Failure::invalid(format!(
                    "bad name of a variable: {name:?}"
                )));
            }
            c_string(format!("{name}={value}"), "a variable")
        })
        .collect::<Result<Vec<_>, _>>()?;
    if spawn.fds.len() > FDS {
        return Err(Failure::new(
            Code::Internal,
            "too many descriptors for one process",
        ));
    }

    let (report, report_writer) = close_on_exec_pipe().map_err(failed)?;
    let report = pipe::Receiver::from_owned_fd(report).map_err(failed)?;

    let mut keep: Vec<RawFd> = spawn.fds.iter().map(|(fd, _)| fd.as_raw_fd()).collect();
    keep.push(report_writer.as_raw_fd());
    keep.sort_unstable();
    let mut prepared = Prepared {
        candidates: pointers(&candidates),
        argv: pointers(&argv),
        envp: pointers(&envp),
        cwd: c_string(spawn.cwd.clone(), "the folder")?,
        sources: [-1; FDS],
        targets: [-1; FDS],
        fds: spawn.fds.len(),
        keep,
        report: report_writer.as_raw_fd(),
        // With 0 a core pattern that is a program would still be run; with 1 nothing is.
        limits: [(
            libc::RLIMIT_CORE,
            libc::rlimit {
                rlim_cur: 1,
                rlim_max: 1,
            },
        ); 5],
        limits_set: 1,
        terminal: spawn.terminal,
        stage: Stage::Done,
        errno: 0,
    };
    for (i, (fd, target)) in spawn.fds.iter().enumerate() {
        prepared.sources[i] = fd.as_raw_fd();
        prepared.targets[i] = *target;
    }
    let limits = &spawn.limits;
    for (resource, value) in [
        (libc::RLIMIT_CPU, limits.cpu_seconds),
        (libc::RLIMIT_DATA, limits.data),
        (libc::RLIMIT_FSIZE, limits.file_size),
        (libc::RLIMIT_NOFILE, limits.open_files),
    ] {
        if let Some(value) = value {
            // One second between SIGXCPU and SIGKILL, for what catches the first.
            let hard = if resource == libc::RLIMIT_CPU {
                value.saturating_add(1)
            } else {
                value
            };
            prepared.limits[prepared.limits_set] = (
                resource,
                libc::rlimit {
                    rlim_cur: value,
                    rlim_max: hard,
                },
            );
            prepared.limits_set += 1;
        }
    }

    let supervisor = supervisors.register(|| fork(&mut prepared)).map_err(|e| {
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        start_failure(&program, &spawn.cwd, Stage::Fork as i32, errno)
    })?;
    Ok(Spawned {
        supervisor,
        report: Report { pipe: report },
        program,
        cwd: spawn.cwd,
    })
}

/// Takes over the inherited descriptors that are named here, and closes all others over 2, so
/// that nothing of whoever started this process is passed on. To be called first of all.
pub fn take_inherited(wanted: &BTreeSet<RawFd>) -> BTreeMap<RawFd, OwnedFd> {
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

/// Makes a descriptor one that never blocks and can be waited for.
pub fn nonblocking(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    let flags = rustix::fs::fcntl_getfl(&fd)?;
    // SAFETY: an `OwnedFd` stays open and the same until it is dropped, which `AsyncFd` does
    // after it has let go of it; nobody takes it out of there.
    let fd = unsafe { AsyncFd::register(fd)? };
    rustix::fs::fcntl_setfl(fd.get_ref(), flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(fd)
}

fn c_string(text: String, what: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::invalid(format!("{what} contains a NUL byte")))
}

/// A null-terminated list of pointers into `strings`, which must live as long.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// A pipe whose both ends are closed by exec.
pub(crate) fn close_on_exec_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Forks the supervisor and answers with its process id.
fn fork(prepared: &mut Prepared) -> std::io::Result<i32> {
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
unsafe fn supervise(prepared: &mut Prepared) -> ! {
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
        let (oom, before) = raise_oom_score();

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
        if oom >= 0 {
            libc::pwrite(
                oom,
                before.as_ptr().cast(),
                libc::strlen(before.as_ptr().cast()),
                0,
            );
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

/// Makes the command a better victim of the kernel's OOM killer than the guest. Answers with
/// the open file and what it held, for the supervisor to take its own value back.
///
/// # Safety
/// In the supervisor only.
unsafe fn raise_oom_score() -> (RawFd, [u8; 16]) {
    // SAFETY: plain calls on local memory. A process that is not dumpable can't open its own
    // file unless it is root, hence the short change.
    unsafe {
        let mut before = [0u8; 16];
        let hidden = libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) == 0;
        if hidden {
            libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
        }
        let path = c"/proc/self/oom_score_adj".as_ptr();
        let fd = libc::open(path, libc::O_RDWR | libc::O_CLOEXEC);
        if hidden {
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        }
        if fd < 0 {
            return (-1, before);
        }
        let count = libc::read(fd, before.as_mut_ptr().cast(), before.len() - 1);
        if count <= 0 || libc::atoi(before.as_ptr().cast()) >= 500 {
            libc::close(fd);
            return (-1, before);
        }
        libc::pwrite(fd, c"500".as_ptr().cast(), 3, 0);
        (fd, before)
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
        let prepared = &mut *argument.cast::<Prepared>();
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
unsafe fn start_stages(prepared: &mut Prepared) -> Stage {
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
        if prepared.terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return Stage::Terminal;
        }
        if libc::chdir(prepared.cwd.as_ptr()) < 0 {
            return Stage::Chdir;
        }
        for i in 0..prepared.limits_set {
            let (resource, mut limit) = prepared.limits[i];
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
