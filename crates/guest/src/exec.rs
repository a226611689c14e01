//! Commands: from a request to a running process, and from its end to a result.

use crate::certificates::{Facts, Stopped, of_command};
use crate::checks;
use crate::http::{self, Answer, Request};
use crate::jobs::{self, Job, Stream, Tie};
use crate::server::Guest;
use crate::spawn::{self, Ended, Report, Spawn, Spawned, nonblocking};
use crate::tree::Supervisor;
use http_body_util::BodyExt as _;
use ringfence_proto::{
    Code, Command, ExecRequest, Exit, Failure, JobEnd, OutputQuery, ProcessLimits, PtySize, Stdin,
};
use rustix::io::Errno;
use rustix::termios::Winsize;
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

/// How long output is awaited that descendants may still write after the command has ended.
const LINGER: Duration = Duration::from_millis(100);
/// Most bytes of the folder that a shell says it ended in.
const CWD_LIMIT: usize = 4096;

/// One end of a pipe or a terminal, never blocking.
pub(crate) type Channel = AsyncFd<OwnedFd>;

/// Where a command's input goes.
pub(crate) enum Input {
    Pipe(Channel),
    Terminal(Arc<Channel>),
}

impl Input {
    fn channel(&self) -> &Channel {
        match self {
            Self::Pipe(channel) => channel,
            Self::Terminal(channel) => channel,
        }
    }
}

/// `POST /exec`: runs a command to its end.
pub(crate) async fn run(guest: &Arc<Guest>, request: Request) -> Answer {
    let streamed = jobs::wants_events(&request);
    let exec: ExecRequest = http::body(request).await?;
    let (on_disconnect, chosen) = (exec.on_disconnect, exec.id.is_some());
    let (job, started) = start(guest, exec)?;
    let tie = Tie::new(guest, &job, on_disconnect, chosen);
    has_started(started).await?;
    jobs::follow(job, tie, streamed).await
}

/// `POST /jobs`: starts a command and answers when it runs.
pub(crate) async fn start_job(guest: &Arc<Guest>, request: Request) -> Answer {
    let exec: ExecRequest = http::body(request).await?;
    let (job, started) = start(guest, exec)?;
    has_started(started).await?;
    http::json(&job.info())
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
fn start(guest: &Arc<Guest>, exec: ExecRequest) -> Result<(Arc<Job>, Started), Failure> {
    let output_limit = checks::limits(exec.output_limit, exec.timeout_ms)?;
    if exec.limits.cpu_seconds == Some(0) || exec.limits.open_files.is_some_and(|n| n < 4) {
        return Err(Failure::invalid("a limit is too low to start any program"));
    }
    let words = match &exec.command {
        Command::Argv(argv) => argv.join(" "),
        Command::Shell(text) | Command::Sh(text) => text.clone(),
    };
    let job = guest
        .jobs
        .add(exec.id.as_deref(), words, None, output_limit)?;
    match launch(guest, &job, exec) {
        Ok(started) => Ok((job, started)),
        Err(failure) => {
            guest.jobs.forget(&job);
            Err(failure)
        }
    }
}

fn launch(guest: &Arc<Guest>, job: &Arc<Job>, exec: ExecRequest) -> Result<Started, Failure> {
    let cwd = folder(&guest.config.workspace, exec.cwd.as_deref())?;
    let (argv, shell) = match exec.command {
        Command::Argv(argv) => (argv, None),
        Command::Shell(text) => shell_argv(&["/bin/bash", "/usr/bin/bash", "/bin/sh"], text)?,
        Command::Sh(text) => shell_argv(&["/bin/sh"], text)?,
    };
    let mut env = guest.config.env.clone();
    env.extend(exec.env);
    let failed = |e: std::io::Error| Failure::io("cannot set up the command", &e);

    let mut fds = Vec::with_capacity(4);
    let cwd_reader = match shell {
        Some(shell) => {
            let (reader, writer) = spawn::close_on_exec_pipe().map_err(failed)?;
            fds.push((writer, cwd_number(shell)));
            Some(reader)
        }
        None => None,
    };
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
            let (stdout, writer) = spawn::close_on_exec_pipe().map_err(failed)?;
            fds.push((writer, 1));
            let (stderr, writer) = spawn::close_on_exec_pipe().map_err(failed)?;
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
    };
    let what = Spawn {
        argv,
        env,
        cwd,
        fds,
        limits: guest.within_limits(exec.limits),
        terminal,
    };
    let spawned = spawn::spawn(what, &guest.supervisors)?;
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

/// The first of these shells that exists, and its arguments. The shell is told to say on a
/// descriptor of its own which folder it ended in; on the same line, so that line numbers in its
/// messages stay right.
fn shell_argv(
    shells: &[&'static str],
    text: String,
) -> Result<(Vec<String>, Option<&'static str>), Failure> {
    let Some(shell) = shells
        .iter()
        .copied()
        .find(|shell| Path::new(shell).exists())
    else {
        return Err(Failure::new(
            Code::Missing,
            "cannot run a shell string: there is no /bin/sh",
        )
        .hint("give the program and its arguments as a list"));
    };
    let number = cwd_number(shell);
    let text = format!("trap 'pwd -P 2>/dev/null >&{number}' EXIT; {text}");
    Ok((vec![shell.to_owned(), "-c".to_owned(), text], Some(shell)))
}

/// The number of the descriptor for the final folder: out of the way, and for plain shells one
/// digit, as they know no others.
fn cwd_number(shell: &str) -> i32 {
    if shell.ends_with("bash") { 198 } else { 7 }
}

/// The command's standard input, and our end of it where there is one.
pub(crate) fn open_stdin(stdin: &Stdin) -> std::io::Result<(OwnedFd, Option<OwnedFd>)> {
    // A null device where there is one: some programs read a pipe that is at its end as if it
    // were data. Opened once.
    static NULL: OnceLock<Option<File>> = OnceLock::new();
    if *stdin == Stdin::Empty
        && let Some(null) = NULL.get_or_init(|| File::open("/dev/null").ok())
    {
        return Ok((null.try_clone()?.into(), None));
    }
    let (reader, writer) = spawn::close_on_exec_pipe()?;
    Ok((reader, (*stdin != Stdin::Empty).then_some(writer)))
}

fn open_terminal(size: PtySize) -> Result<(OwnedFd, OwnedFd), Failure> {
    use rustix::pty::OpenptFlags;
    let size = winsize(size)?;
    let missing = |e: Errno| {
        Failure::new(
            Code::Missing,
            "cannot open a terminal: this sandbox has no /dev/pts",
        )
        .detail(e)
    };
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags).map_err(missing)?;
    rustix::pty::grantpt(&ours).map_err(missing)?;
    rustix::pty::unlockpt(&ours).map_err(missing)?;
    let theirs = match rustix::pty::ioctl_tiocgptpeer(&ours, flags) {
        Ok(theirs) => theirs,
        Err(_) => {
            let path = rustix::pty::ptsname(&ours, Vec::new()).map_err(missing)?;
            let flags =
                rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(missing)?
        }
    };
    rustix::termios::tcsetwinsize(&ours, size)
        .map_err(|e| Failure::io("cannot size the terminal", &e.into()))?;
    Ok((ours, theirs))
}

fn winsize(size: PtySize) -> Result<Winsize, Failure> {
    if size.rows == 0 || size.cols == 0 {
        return Err(Failure::invalid(
            "a terminal has at least one row and one column",
        ));
    }
    Ok(Winsize {
        ws_row: size.rows,
        ws_col: size.cols,
        ws_xpixel: 0,
        ws_ypixel: 0,
    })
}

/// Tells the terminal its new size, and with that what runs in it.
pub(crate) fn resize(terminal: &Channel, size: PtySize) -> Result<(), Failure> {
    rustix::termios::tcsetwinsize(terminal.get_ref(), winsize(size)?)
        .map_err(|e| Failure::io("cannot resize the terminal", &e.into()))
}

fn set_input(job: &Job, input: Input) {
    // Nobody else knows the job yet.
    if let Ok(mut slot) = job.input.try_lock() {
        *slot = Some(input);
    }
}

/// Sees a command from its start to its end, and what it left behind to theirs.
async fn drive(
    guest: Arc<Guest>,
    job: Arc<Job>,
    spawned: Spawned,
    ends: Ends,
    terms: Terms,
    started: oneshot::Sender<Result<(), Failure>>,
) {
    let deadline = async {
        match terms.timeout {
            Some(timeout) => tokio::time::sleep_until((job.started + timeout).into()).await,
            None => std::future::pending().await,
        }
    };
    let mut deadline = pin!(deadline);
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
        }
    };
    // What ended by itself is measured here, what we end when it is gone.
    let mut elapsed = job.started.elapsed();
    if stopped.is_some() {
        ended = kill(&guest, &supervisor, &mut report).await;
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
    job.finish(judge(
        &guest,
        &job,
        &terms,
        ended,
        stopped,
        elapsed,
        left_running,
        cwd,
    ));
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
                    guest.supervisors.kill_strangers().await;
                }
            }
        }
    }
}

/// Kills a command with everything it started, and reads the last words of its supervisor.
async fn kill(guest: &Guest, supervisor: &Supervisor, report: &mut Report) -> Option<Ended> {
    supervisor.kill_tree().await;
    let mut last: Option<Ended> = None;
    let mut lost = true;
    while let Ok(Some(ended)) = tokio::time::timeout(LINGER, report.ended()).await {
        lost = ended.left;
        last = Some(ended);
    }
    if lost {
        guest.supervisors.kill_strangers().await;
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
        exit,
        duration_ms: elapsed.as_millis() as u64,
        cpu_ms: cpu.as_millis() as u64,
        peak_memory,
        cwd: cwd.map(|pipe| final_folder(pipe).unwrap_or_else(|| terms.cwd.clone())),
        shell: terms.shell.map(str::to_owned),
        left_running,
        stdout_bytes,
        stderr_bytes,
        certificate,
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

async fn write_all(channel: &Channel, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let count = channel
            .async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?))
            .await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// `POST /jobs/{id}/stdin`: the body goes to the command, and its end is the input's end.
pub(crate) async fn stdin(job: &Arc<Job>, request: Request) -> Answer {
    copy_input(job, request).await?;
    http::empty()
}

/// Sends a request's body to the command, as fast as it reads. The end of the body closes a
/// pipe; a body that breaks off does not, so that another can go on.
async fn copy_input(job: &Job, request: Request) -> Result<(), Failure> {
    let conflict = |what: &str| Failure::new(Code::Conflict, format!("job {} {what}", job.id));
    let Ok(mut slot) = job.input.try_lock() else {
        return Err(conflict("has a writer already"));
    };
    let Some(input) = slot.as_ref() else {
        return Err(conflict("takes no input")
            .hint("start it with stdin `stream`, and write before it has ended"));
    };
    let copy = async {
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| Failure::invalid("the input ended early").detail(e))?;
            if let Ok(bytes) = frame.into_data() {
                write_all(input.channel(), &bytes)
                    .await
                    .map_err(|e| conflict("reads no more input").detail(e))?;
            }
        }
        Ok(())
    };
    let result = tokio::select! {
        result = copy => result,
        () = job.ended() => Err(conflict("has ended")),
    };
    if job.has_ended() || (result.is_ok() && matches!(*slot, Some(Input::Pipe(_)))) {
        *slot = None;
    }
    result
}

/// Stops a task when its owner goes away.
struct Abort(tokio::task::AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// `POST /jobs/{id}/attach`: the body goes in, what comes out is the answer's body.
pub(crate) fn attach(job: Arc<Job>, request: Request) -> Answer {
    let query: OutputQuery = http::query(&request)?;
    let writer = Arc::clone(&job);
    let task = tokio::spawn(async move {
        // The end of the answer tells the client all it needs.
        let _ = copy_input(&writer, request).await;
    });
    let held = Abort(task.abort_handle());
    let output = jobs::raw_output(job, query.stdout, held);
    Ok(http::with_type("application/octet-stream", output))
}
