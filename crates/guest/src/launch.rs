//! What is to be started, checked and made ready for the fork, and what its supervisor reports.

use crate::jobs::shortened;
use crate::spawn::{FDS, Message, Plan, Prepared, Stage, fork};
use crate::tree::{Supervisor, Supervisors};
use ringfence_proto::{Code, Failure, ProcessLimits};
use std::ffi::CString;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use tokio::io::AsyncReadExt as _;
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
    let what = format!("cannot run {}", shortened(program));
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

/// Starts a process below a new supervisor; the answer comes before the program runs.
pub(crate) fn spawn(spawn: Spawn, supervisors: &Arc<Supervisors>) -> Result<Spawned, Failure> {
    let Some(program) = spawn.argv.first().cloned() else {
        return Err(Failure::invalid("the command is empty"));
    };
    if program.is_empty() {
        return Err(Failure::invalid("the command has no name"));
    }
    let failed = |e: std::io::Error| Failure::io(format!("cannot run {}", shortened(&program)), &e);

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

    // With 0 a core pattern that is a program would still be run; with 1 nothing is.
    let no_core = libc::rlimit {
        rlim_cur: 1,
        rlim_max: 1,
    };
    let mut plan = Plan {
        candidates,
        argv,
        envp,
        cwd: c_string(spawn.cwd.clone(), "the folder")?,
        fds: spawn.fds,
        report: report_writer,
        limits: vec![(libc::RLIMIT_CORE, no_core)],
        terminal: spawn.terminal,
    };
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
            let limit = libc::rlimit {
                rlim_cur: value,
                rlim_max: hard,
            };
            plan.limits.push((resource, limit));
        }
    }

    let mut prepared = Prepared::new(&plan);
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

/// A pipe whose both ends are closed by exec.
pub(crate) fn close_on_exec_pipe() -> std::io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

fn c_string(text: String, what: &str) -> Result<CString, Failure> {
    CString::new(text).map_err(|_| Failure::invalid(format!("{what} contains a NUL byte")))
}
