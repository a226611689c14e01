//! Commands: from a request to a running process, and from its end to a result.

use crate::certificates::{Facts, Stopped, of_command};
use crate::checks;
use crate::files::Before;
use crate::http::{self, Answer, Request};
use crate::input::{Channel, Input, open_stdin, open_terminal, set_input, write_all};
use crate::jobs::{self, Job, NewJob, Stream, Tie};
use crate::launch::{self, Ended, Report, Spawn, Spawned};
use crate::server::Guest;
use crate::spawn::nonblocking;
use crate::tree::Supervisor;
use ringfence_proto::{
    Code, Command, ExecRequest, ExecResult, Exit, Failure, JobEnd, OnDisconnect, ProcessLimits,
    Stdin,
};
use std::cell::RefCell;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::sync::oneshot;

/// How long output is awaited that descendants may still write after the command has ended.
const LINGER: Duration = Duration::from_millis(100);
/// Most bytes of the folder that a shell says it ended in.
const CWD_LIMIT: usize = 4096;
/// The shortest time between two looks at what a command has used.
const CPU_LOOK: Duration = Duration::from_millis(50);
/// What the system takes as one argument, its final NUL included.
const ARGUMENT_LIMIT: usize = 128 << 10;

/// `POST /exec`: runs a command to its end.
pub(crate) async fn run(guest: &Arc<Guest>, request: Request) -> Answer {
    let streamed = jobs::wants_events(&request);
    let exec: ExecRequest = http::body(request).await?;
    let (on_disconnect, chosen) = (exec.on_disconnect, exec.id.is_some());
    let transient = exec.transient;
    let before = before(guest, &exec).await;
    let (job, started) = start(guest, exec, before)?;
    let tie = Tie::new(guest, &job, on_disconnect, chosen, transient);
    has_started(started).await?;
    jobs::follow(job, tie, streamed).await
}

/// Runs a command to its end; it ends early with whoever waits for it.
pub(crate) async fn to_end(guest: &Arc<Guest>, exec: ExecRequest) -> Result<ExecResult, Failure> {
    let (job, started) = start(guest, exec, None)?;
    let _tie = Tie::new(guest, &job, OnDisconnect::Cancel, false, true);
    has_started(started).await?;
    job.ended().await;
    job.result(None)
}

/// `POST /jobs`: starts a command and answers when it runs.
pub(crate) async fn start_job(guest: &Arc<Guest>, request: Request) -> Answer {
    let exec: ExecRequest = http::body(request).await?;
    let before = before(guest, &exec).await;
    let (job, started) = start(guest, exec, before)?;
    has_started(started).await?;
    http::json(&job.info())
}

/// How the workspace is now, if anybody wants to know what changes.
async fn before(guest: &Guest, exec: &ExecRequest) -> Option<Before> {
    match exec.report_files {
        true => Some(Before::look(&guest.config.workspace).await),
        false => None,
    }
}

/// Tells whether the program of a command runs.
type Started = oneshot::Receiver<Result<(), Failure>>;

async fn has_started(started: Started) -> Result<(), Failure> {
    let lost = || Failure::new(Code::Internal, "cannot run the command");
    started.await.map_err(|e| lost().detail(e))?
}

/// What the end of a command is judged by.
struct Terms {
    timeout: Option<Duration>,
    limits: ProcessLimits,
    shell: Option<&'static str>,
    cwd: String,
    oom_kills: u64,
    before: Option<Before>,
}

/// Our ends of a command's descriptors.
struct Ends {
    stdout: Arc<Channel>,
    stderr: Option<Channel>,
    /// Bytes to write to standard input before it is closed.
    feed: Option<(Channel, Vec<u8>)>,
    /// Where a shell says which folder it ended in.
    cwd: Option<OwnedFd>,
    terminal: bool,
}

/// Starts a command and what drives it; the receiver tells whether its program runs.
fn start(
    guest: &Arc<Guest>,
    exec: ExecRequest,
    before: Option<Before>,
) -> Result<(Arc<Job>, Started), Failure> {
    let output_limit = checks::limits(exec.output_limit, exec.timeout_ms)?;
    if exec.limits.cpu_seconds == Some(0) || exec.limits.open_files.is_some_and(|n| n < 4) {
        return Err(Failure::invalid("a limit is too low to start any program"));
    }
    let words = match &exec.command {
        Command::Argv(argv) => argv.join(" "),
        Command::Shell(text) | Command::Sh(text) => text.clone(),
    };
    let job = guest.jobs.add(NewJob {
        id: exec.id.as_deref(),
        command: &words,
        kernel: None,
        output_limit,
        detached: exec.detached,
        pty: exec.pty.is_some(),
    })?;
    match launch(guest, &job, exec, before) {
        Ok(started) => Ok((job, started)),
        Err(failure) => {
            guest.jobs.forget(&job);
            Err(failure)
        }
    }
}

fn launch(
    guest: &Arc<Guest>,
    job: &Arc<Job>,
    exec: ExecRequest,
    before: Option<Before>,
) -> Result<Started, Failure> {
    let cwd = folder(&guest.config.workspace, exec.cwd.as_deref())?;
    let mut env = guest.config.env.clone();
    env.extend(exec.env);
    guest.tools.add_to(&mut env);
    let failed = |e: std::io::Error| Failure::io("cannot set up the command", &e);

    let mut fds = Vec::with_capacity(5);
    let shells: &[Shell] = match exec.command {
        Command::Argv(_) => &[],
        Command::Shell(_) => &[BASH, USR_BASH, SH],
        Command::Sh(_) => &[SH],
    };
    let (mut argv, shell, cwd_reader) = match exec.command {
        Command::Argv(argv) => (argv, None, None),
        Command::Shell(text) | Command::Sh(text) => {
            let shell = Shell::first_of(shells)?;
            let (reader, writer) = launch::close_on_exec_pipe().map_err(failed)?;
            fds.push((writer, shell.folder));
            let (argv, file) = shell.argv(text)?;
            fds.extend(file.map(|file| (file, shell.file)));
            (argv, Some(shell.path), Some(reader))
        }
    };
    argv.extend(exec.args);
    let terminal = exec.pty.is_some();
    let mut ends = match exec.pty {
        Some(size) => {
            if exec.stdin != Stdin::Empty {
                return Err(Failure::invalid("a terminal takes no stdin: attach to it"));
            }
            if !env.iter().any(|(name, _)| name == "TERM") {
                env.push(("TERM".to_owned(), "xterm-256color".to_owned()));
            }
            let (ours, theirs) = open_terminal(size)?;
            for number in [1, 2] {
                fds.push((theirs.try_clone().map_err(failed)?, number));
            }
            fds.push((theirs, 0));
            let channel = Arc::new(nonblocking(ours).map_err(failed)?);
            set_input(job, Input::Terminal(Arc::clone(&channel)));
            Ends {
                stdout: channel,
                stderr: None,
                feed: None,
                cwd: None,
                terminal,
            }
        }
        None => {
            let (stdin, ours) = open_stdin(&exec.stdin).map_err(failed)?;
            fds.push((stdin, 0));
            let (stdout, writer) = launch::close_on_exec_pipe().map_err(failed)?;
            fds.push((writer, 1));
            let (stderr, writer) = launch::close_on_exec_pipe().map_err(failed)?;
            fds.push((writer, 2));
            let mut feed = None;
            if let Some(ours) = ours {
                let ours = nonblocking(ours).map_err(failed)?;
                match exec.stdin {
                    Stdin::Bytes(bytes) => feed = Some((ours, bytes.0)),
                    _ => set_input(job, Input::Pipe(ours)),
                }
            }
            let stdout = Arc::new(nonblocking(stdout).map_err(failed)?);
            let stderr = Some(nonblocking(stderr).map_err(failed)?);
            Ends {
                stdout,
                stderr,
                feed,
                cwd: None,
                terminal,
            }
        }
    };
    ends.cwd = cwd_reader;

    let terms = Terms {
        timeout: exec.timeout_ms.map(Duration::from_millis),
        limits: exec.limits.clone(),
        shell,
        cwd: cwd.clone(),
        oom_kills: guest.oom.kills(),
        before,
    };
    let what = Spawn {
        argv,
        env,
        cwd,
        fds,
        limits: guest.within_limits(exec.limits),
        terminal,
    };
    let spawned = launch::spawn(what, &guest.supervisors)?;
    let (sender, started) = oneshot::channel();
    tokio::spawn(drive(
        Arc::clone(guest),
        Arc::clone(job),
        spawned,
        ends,
        terms,
        sender,
    ));
    Ok(started)
}

/// The folder that a command starts in: absolute, or below the workspace.
pub(crate) fn folder(workspace: &Path, cwd: Option<&str>) -> Result<String, Failure> {
    let path = match cwd {
        Some("") => return Err(Failure::invalid("cwd is empty")),
        Some(cwd) => workspace.join(cwd),
        None => workspace.to_owned(),
    };
    path.into_os_string()
        .into_string()
        .map_err(|_| Failure::new(Code::Internal, "the workspace's path is not UTF-8"))
}

/// A shell, and the descriptors that it gets besides the usual ones: out of the way, and for
/// plain shells one digit, as they know no others.
struct Shell {
    path: &'static str,
    /// Where it says which folder it ended in.
    folder: RawFd,
    /// Where a command is that is too long for an argument.
    file: RawFd,
}

const BASH: Shell = Shell {
    path: "/bin/bash",
    folder: 198,
    file: 199,
};
const USR_BASH: Shell = Shell {
    path: "/usr/bin/bash",
    ..BASH
};
const SH: Shell = Shell {
    path: "/bin/sh",
    folder: 7,
    file: 8,
};

impl Shell {
    /// The first one that exists.
    fn first_of(shells: &[Self]) -> Result<&Self, Failure> {
        let mut shells = shells.iter();
        shells
            .find(|shell| Path::new(shell.path).exists())
            .ok_or_else(|| {
                let message = "cannot run a shell string: there is no /bin/sh";
                Failure::new(Code::Missing, message)
                    .hint("give the program and its arguments as a list")
            })
    }

    /// Its arguments for a command, and the file for one that is too long for them. What we add
    /// is on the first line, so that line numbers in its messages stay right.
    fn argv(&self, text: String) -> Result<(Vec<String>, Option<OwnedFd>), Failure> {
        let Self { path, folder, file } = self;
        let trap = format!("trap 'pwd -P 2>/dev/null >&{folder}' EXIT");
        let mut script = format!("{trap}; {text}");
        let mut long = None;
        if script.len() >= ARGUMENT_LIMIT {
            if text.contains('\0') {
                return Err(Failure::invalid("the command contains a NUL byte"));
            }
            // The shell has it open on its own by then.
            let text = format!("exec {file}<&-; {text}");
            let kept = in_memory(text.as_bytes());
            long = Some(kept.map_err(|e| Failure::io("cannot keep a long command", &e))?);
            script = format!("{trap}; . /proc/self/fd/{file}");
        }
        let argv = [path, "-c", &script, path].map(str::to_owned);
        Ok((argv.into(), long))
    }
}

/// A file that is nowhere else.
fn in_memory(bytes: &[u8]) -> std::io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("command", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// Sees a command from its start to its end, and what it left behind to theirs.
async fn drive(
    guest: Arc<Guest>,
    job: Arc<Job>,
    spawned: Spawned,
    ends: Ends,
    mut terms: Terms,
    started: oneshot::Sender<Result<(), Failure>>,
) {
    let mut deadline = pin!(sleep_until(terms.timeout.map(|time| job.started + time)));
    let mut cancelled = pin!(job.cancelled());
    let mut stopped = None;

    let supervisor = Arc::clone(&spawned.supervisor);
    let mut starting = pin!(spawned.started());
    let early = tokio::select! {
        biased;
        start = &mut starting => Some(start),
        () = &mut deadline => {
            stopped = terms.timeout.map(Stopped::Timeout);
            None
        }
        () = &mut cancelled => {
            stopped = Some(Stopped::Cancelled);
            None
        }
    };
    let start = match early {
        Some(start) => start,
        None => {
            // A command can stop its supervisor before that has said a word; killed, it does.
            supervisor.kill_tree().await;
            starting.await
        }
    };
    let (pid, _, mut report) = match start {
        Ok(parts) => parts,
        Err(failure) => {
            guest.jobs.forget(&job);
            let _ = started.send(Err(failure));
            return;
        }
    };
    // A terminal is a place for many commands, each of which has its own time.
    let cpu = terms.limits.cpu_seconds.filter(|_| !ends.terminal);
    let terminal = ends.terminal.then(|| Arc::clone(&ends.stdout));
    job.running(pid, Arc::clone(&supervisor), terminal);
    let _ = started.send(Ok(()));

    let Ends {
        stdout,
        stderr,
        feed: to_feed,
        cwd,
        ..
    } = ends;
    let mut output = pin!(async {
        tokio::join!(pump(&stdout, &job, Stream::Stdout), async {
            if let Some(stderr) = &stderr {
                pump(stderr, &job, Stream::Stderr).await;
            }
        });
    });
    let mut output_done = false;
    let mut feeding = pin!(async {
        if let Some((channel, bytes)) = to_feed {
            // A command may leave its input unread.
            let _ = write_all(&channel, &bytes).await;
        }
    });
    let mut fed = false;
    // One process that uses it up is told so by a signal, and has a second to leave.
    let most = cpu.map(|limit| Duration::from_secs(limit.saturating_add(1)));
    let mut look = most.map(|most| Instant::now() + soonest(most));
    let mut ended = loop {
        if stopped.is_some() {
            break None;
        }
        tokio::select! {
            biased;
            () = &mut output, if !output_done => output_done = true,
            () = &mut feeding, if !fed => fed = true,
            ended = report.ended() => {
                if ended.is_none() {
                    stopped = Some(Stopped::SupervisorLost);
                }
                break ended;
            }
            () = &mut deadline => {
                stopped = terms.timeout.map(Stopped::Timeout);
                break None;
            }
            () = &mut cancelled => {
                stopped = Some(Stopped::Cancelled);
                break None;
            }
            () = sleep_until(look), if look.is_some() => {
                let used = supervisor.cpu();
                let left = most.map(|most| most.saturating_sub(used));
                if left == Some(Duration::ZERO) {
                    stopped = cpu.map(Stopped::Cpu);
                    break None;
                }
                look = left.map(|left| Instant::now() + soonest(left));
            }
        }
    };
    // What ended by itself is measured here, what we end when it is gone.
    let mut elapsed = job.started.elapsed();
    if stopped.is_some() {
        ended = kill(&supervisor, &mut report).await;
        elapsed = job.started.elapsed();
    }
    if !output_done {
        output_done = tokio::time::timeout(LINGER, &mut output).await.is_ok();
    }
    let left = ended.is_some_and(|ended| ended.left);
    let left_running = if left {
        supervisor.descendants().len() as u32
    } else {
        0
    };
    let mut end = judge(
        &guest,
        &job,
        &terms,
        ended,
        stopped,
        elapsed,
        left_running,
        cwd,
    );
    if let Some(before) = terms.before.take() {
        (end.changed, end.changed_truncated) = before.changed().await;
    }
    job.finish(end);
    // Closes standard input: nobody is to write to a command that has ended.
    if let Ok(mut input) = job.input.try_lock() {
        *input = None;
    }

    // What was left behind may write on, and must not get SIGPIPE.
    if !left {
        if !output_done {
            output.await;
        }
        return;
    }
    let mut proper = false;
    let mut report_done = false;
    while !(output_done && report_done) {
        tokio::select! {
            () = &mut output, if !output_done => output_done = true,
            last = report.ended(), if !report_done => {
                match last {
                    Some(_) => proper = true,
                    None => report_done = true,
                }
                if report_done && !proper {
                    supervisor.kill_orphans().await;
                }
            }
        }
    }
}

/// How soon so much processor time can have been used, on all processors; at least a moment.
fn soonest(time: Duration) -> Duration {
    static PROCESSORS: OnceLock<u32> = OnceLock::new();
    let processors = PROCESSORS.get_or_init(|| {
        let all = std::thread::available_parallelism();
        all.map_or(1, |all| all.get().try_into().unwrap_or(u32::MAX))
    });
    (time / *processors).max(CPU_LOOK)
}

/// Waits until then; without a time for ever.
pub(crate) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Kills a command with everything it started, and reads the last words of its supervisor.
async fn kill(supervisor: &Supervisor, report: &mut Report) -> Option<Ended> {
    supervisor.kill_tree().await;
    let mut last: Option<Ended> = None;
    let mut lost = true;
    while let Ok(Some(ended)) = tokio::time::timeout(LINGER, report.ended()).await {
        lost = ended.left;
        last = Some(ended);
    }
    if lost {
        supervisor.kill_orphans().await;
    }
    last.map(|last| Ended {
        left: false,
        ..last
    })
}

#[expect(clippy::too_many_arguments, reason = "the facts of one end, used once")]
fn judge(
    guest: &Guest,
    job: &Job,
    terms: &Terms,
    ended: Option<Ended>,
    stopped: Option<Stopped>,
    elapsed: Duration,
    left_running: u32,
    cwd: Option<OwnedFd>,
) -> JobEnd {
    let exit = match ended.map(|ended| ended.status) {
        Some(status) if libc::WIFEXITED(status) => Exit::Code(libc::WEXITSTATUS(status)),
        Some(status) => Exit::Signal(libc::WTERMSIG(status)),
        None => Exit::Signal(libc::SIGKILL),
    };
    let (stdout_bytes, stderr_bytes) = job.totals();
    let cpu = Duration::from_micros(ended.map_or(0, |ended| ended.cpu_us));
    let peak_memory = ended.map_or(0, |ended| ended.peak_memory);
    let certificate = of_command(&Facts {
        exit,
        stopped,
        elapsed,
        cpu,
        peak_memory,
        out_of_memory: (exit == Exit::Signal(libc::SIGKILL) || exit == Exit::Code(137))
            && guest.oom.kills() > terms.oom_kills,
        memory_limit: guest.config.memory_limit,
        limits: &terms.limits,
        asked: job.asked_signal(),
        shell: terms.shell.is_some(),
        output: stdout_bytes.max(stderr_bytes),
        output_limit: job.output_limit(),
    });
    JobEnd {
        cpu_ms: cpu.as_millis() as u64,
        peak_memory,
        cwd: cwd.map(|pipe| final_folder(pipe).unwrap_or_else(|| terms.cwd.clone())),
        shell: terms.shell.map(str::to_owned),
        left_running,
        stdout_bytes,
        stderr_bytes,
        certificate,
        ..JobEnd::new(exit, elapsed)
    }
}

/// What the shell said about the folder it ended in: not to be believed beyond its form.
fn final_folder(pipe: OwnedFd) -> Option<String> {
    let flags = rustix::fs::fcntl_getfl(&pipe).ok()?;
    rustix::fs::fcntl_setfl(&pipe, flags | rustix::fs::OFlags::NONBLOCK).ok()?;
    let mut bytes = vec![0; CWD_LIMIT + 1];
    let count = rustix::io::read(&pipe, &mut bytes).ok()?;
    bytes.truncate(count);
    if bytes.len() > CWD_LIMIT || bytes.pop() != Some(b'\n') || bytes.contains(&0) {
        return None;
    }
    String::from_utf8(bytes)
        .ok()
        .filter(|path| path.starts_with('/'))
}

thread_local! {
    /// Where output passes through on its way from a pipe to a log; one for all jobs.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
const BUFFER_SIZE: usize = 64 << 10;

/// Moves output into the job's log until its end, as fast as it comes.
async fn pump(channel: &Channel, job: &Job, stream: Stream) {
    loop {
        for _ in 0..16 {
            let moved = channel
                .async_io(Interest::READABLE, |fd| {
                    BUFFER.with_borrow_mut(|buffer| {
                        buffer.resize(BUFFER_SIZE, 0);
                        let count = rustix::io::read(fd, &mut buffer[..])?;
                        job.push(stream, &buffer[..count]);
                        Ok(count)
                    })
                })
                .await;
            match moved {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
                // A terminal says EIO when its last user has gone.
                Err(_) => return,
            }
        }
        tokio::task::yield_now().await;
    }
}
