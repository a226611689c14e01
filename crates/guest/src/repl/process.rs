//! One interpreter process: its start, its channel, its end.

use super::alarm::Alarm;
use super::bytecode;
use super::certificate::Stop;
use super::channel::{Broken, EXIT, Frame, Frames};
use super::output::Outputs;
use crate::exec;
use crate::input;
use crate::launch::{self, DEFAULT_PATH, Ended, Report, Spawn};
use crate::server::Guest;
use crate::spawn::{self, Turns};
use crate::tree::{Supervisor, cpu_of};
use ringfence_proto::{Code, Failure, KernelRequest, Stdin};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;

/// The descriptor of the channel in the kernel: out of the way of what user code opens.
const CHANNEL: i32 = 100;
/// How long an interpreter may take until it is ready.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long an interpreter may take to leave when asked to, for its exit handlers.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
/// How long the end of a process is awaited after its channel has ended.
const REPORT_LIMIT: Duration = Duration::from_secs(1);
/// Frames that are taken before others get their turn.
const FRAMES_PER_TURN: u32 = 64;

const BOOT: &str = include_str!("../../kernel/boot.py");
/// The first is compiled at the start, or was before; each other one at first need.
pub(super) const SOURCES: [&str; 6] = [
    include_str!("../../kernel/kernel.py"),
    include_str!("../../kernel/cells.py"),
    include_str!("../../kernel/values.py"),
    include_str!("../../kernel/report.py"),
    include_str!("../../kernel/imports.py"),
    include_str!("../../kernel/rich.py"),
];

/// Why there is no interpreter.
pub(crate) enum NotStarted {
    Failed(Failure),
    /// It was stopped before it was ready.
    Stopped(Stop),
}

impl From<Failure> for NotStarted {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Kills everything below a supervisor when it is dropped, unless that is gone by then.
struct Alive(Arc<Supervisor>);

impl Drop for Alive {
    fn drop(&mut self) {
        if !self.0.is_gone()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let supervisor = Arc::clone(&self.0);
            runtime.spawn(async move { supervisor.kill_tree().await });
        }
    }
}

pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) python: String,
    pub(crate) version: String,
    pub(crate) outputs: Arc<Outputs>,
    pub(crate) oom_kills: u64,
    /// Processor time of the calls that have ended.
    pub(crate) spent_us: u64,
    pub(crate) calls: u32,
    /// The tools that it knows of.
    pub(crate) tools: u64,
    pub(super) alarm: Alarm,
    alive: Alive,
    report: Report,
    stream: UnixStream,
    frames: Frames,
    /// Frames that were taken since others had their turn.
    taken: u32,
    scratch: Box<[u8]>,
    pump: tokio::task::AbortHandle,
    /// `/proc/PID/stat` and `status`, kept open: two reads per call cost less than two opens.
    stat: Option<File>,
    status: Option<File>,
}

impl Process {
    /// Starts an interpreter and waits until it is ready, or until `stop` says that nobody waits
    /// for it any more: then it is killed.
    pub(crate) async fn start(
        guest: &Guest,
        request: &KernelRequest,
        stop: impl Future<Output = Stop>,
    ) -> Result<Self, NotStarted> {
        let mut env = guest.config.env.clone();
        env.extend(request.env.clone());
        let tools = guest.tools.add_to(&mut env);
        // Figures are drawn without a display.
        if !env.iter().any(|(name, _)| name == "MPLBACKEND") {
            env.push(("MPLBACKEND".to_owned(), "Agg".to_owned()));
        }
        let python = find_python(request.python.as_deref(), &env)?;
        let cwd = exec::folder(&guest.config.workspace, request.cwd.as_deref())?;
        let failed = |e: std::io::Error| Failure::io("cannot set up the interpreter", &e);

        let mut kernel = bytecode::read(guest.config.kernel.as_deref());
        let compiled = kernel.len().to_string();
        kernel.extend(SOURCES.join("\0").bytes());
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let mut stream = UnixStream::from_std(ours).map_err(failed)?;
        // Fits the socket's buffer, so it is there before the interpreter reads.
        stream.write_all(&kernel).await.map_err(failed)?;
        let (stdin, _) = input::open_stdin(&Stdin::Empty).map_err(failed)?;
        let (stdout, out) = launch::close_on_exec_pipe().map_err(failed)?;
        let (stderr, err) = launch::close_on_exec_pipe().map_err(failed)?;
        let outputs = Outputs::new(
            spawn::nonblocking(stdout).map_err(failed)?,
            spawn::nonblocking(stderr).map_err(failed)?,
        );
        let argv = [
            "-u",
            "-c",
            BOOT,
            &CHANNEL.to_string(),
            &kernel.len().to_string(),
            &compiled,
        ];
        let argv = std::iter::once(python.clone())
            .chain(argv.map(str::to_owned))
            .collect();
        let spawned = launch::spawn(
            Spawn {
                argv,
                env,
                cwd,
                fds: vec![(stdin, 0), (out, 1), (err, 2), (theirs.into(), CHANNEL)],
                limits: guest.within_limits(request.limits.clone()),
                terminal: false,
            },
            &guest.supervisors,
        )?;
        let alive = Alive(Arc::clone(&spawned.supervisor));
        let mut over = pin!(async {
            tokio::select! {
                stop = stop => NotStarted::Stopped(stop),
                () = tokio::time::sleep(START_LIMIT) => NotStarted::Failed(Failure::new(
                    Code::DeadlineExceeded,
                    format!("{python} was not ready after {} s", START_LIMIT.as_secs()),
                )),
            }
        });
        let (pid, _, report) = tokio::select! {
            biased;
            started = spawned.started() => started?,
            why = &mut over => {
                // Code that stops or kills its supervisor keeps that from saying a word.
                alive.0.kill_orphans().await;
                return Err(why);
            }
        };
        let pump = tokio::spawn({
            let outputs = Arc::clone(&outputs);
            async move { outputs.pump().await }
        });
        let mut process = Self {
            pid,
            python: python.clone(),
            version: String::new(),
            outputs,
            oom_kills: guest.oom.kills(),
            spent_us: 0,
            calls: 0,
            tools,
            alarm: Alarm::default(),
            alive,
            report,
            stream,
            frames: Frames::default(),
            taken: 0,
            scratch: vec![0; 64 << 10].into_boxed_slice(),
            pump: pump.abort_handle(),
            stat: File::open(format!("/proc/{pid}/stat")).ok(),
            status: File::open(format!("/proc/{pid}/status")).ok(),
        };
        // A start is long: the calls of others go before.
        process.set_turns(Turns::Usual);
        let hello = tokio::select! {
            biased;
            hello = process.frame() => hello,
            why = &mut over => {
                process.kill().await;
                return Err(why);
            }
        };
        let failure = match hello {
            Ok(Some(Frame::Hello(version))) if is_supported(&version) => {
                process.version = version;
                process.set_turns(Turns::Short);
                return Ok(process);
            }
            Ok(Some(Frame::Hello(version))) => Failure::new(
                Code::Missing,
                format!("{python} is Python {version}: the REPL needs 3.8 or later"),
            )
            .hint("install a newer Python, or name one as the kernel's `python`"),
            _ => {
                let words = process.outputs.last_words();
                let failure = Failure::new(
                    Code::Missing,
                    format!("cannot start {python}: it ended before it was ready"),
                );
                if words.is_empty() {
                    failure
                } else {
                    failure.hint(words)
                }
            }
        };
        process.kill().await;
        Err(failure.into())
    }

    /// The next frame; none at the end of the channel. Cancel safe. However many there are, the
    /// rest of the guest gets its turn.
    pub(crate) async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        if self.taken >= FRAMES_PER_TURN {
            self.taken = 0;
            tokio::task::yield_now().await;
        }
        loop {
            if let Some(frame) = self.frames.next()? {
                self.taken += 1;
                return Ok(Some(frame));
            }
            if self.stream.readable().await.is_err() {
                return Ok(None);
            }
            match self.stream.try_read(&mut self.scratch) {
                Ok(0) => return Ok(None),
                Ok(count) => self.frames.push(&self.scratch[..count]),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => return Ok(None),
            }
        }
    }

    /// Writes all of `rest`, then waits for the next frame. Cancel safe: `rest` is what is still
    /// to be written.
    pub(crate) async fn exchange(&mut self, rest: &mut &[u8]) -> Result<Option<Frame>, Broken> {
        while !rest.is_empty() {
            // The end of the channel is seen by reading it.
            if self.stream.writable().await.is_err() {
                break;
            }
            match self.stream.try_write(rest) {
                Ok(count) => *rest = &rest[count..],
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
        self.frame().await
    }

    /// Whether it lives and has nothing to say, as is right between two calls.
    pub(crate) fn is_idle(&self) -> bool {
        self.frames.is_empty() && matches!(self.peek(), Err(rustix::io::Errno::AGAIN))
    }

    /// Whether its channel has ended, with nothing more to read.
    pub(crate) fn at_end(&self) -> bool {
        self.frames.is_empty() && matches!(self.peek(), Ok(0) | Err(rustix::io::Errno::CONNRESET))
    }

    fn peek(&self) -> Result<usize, rustix::io::Errno> {
        use rustix::net::RecvFlags;
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        rustix::net::recv(&self.stream, &mut [0; 1][..], flags).map(|(count, _)| count)
    }

    /// Whether calls get the processor soon, or have it for long.
    pub(crate) fn set_turns(&self, turns: Turns) {
        // 0, where its number never came, would be this process.
        if self.pid != 0 {
            spawn::set_turns(self.pid, turns);
        }
    }

    /// Signals the process group of the kernel, so that what it runs in the foreground gets it.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = Pid::from_raw(self.pid) {
            // What has ended meanwhile needs no signal.
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Processor time so far, children that were waited for included.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let mut bytes = [0; 1024];
        let count = self.stat.as_ref()?.read_at(&mut bytes, 0).ok()?;
        cpu_of(&bytes[..count])
    }

    /// Peak resident bytes so far.
    pub(crate) fn peak_memory(&self) -> Option<u64> {
        let mut bytes = [0; 4096];
        let count = self.status.as_ref()?.read_at(&mut bytes, 0).ok()?;
        let text = String::from_utf8_lossy(&bytes[..count]);
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kilobytes: u64 = line.trim().split(' ').next()?.parse().ok()?;
        Some(kilobytes << 10)
    }

    /// Kills it with everything it has started; how it ended, where that is known.
    pub(crate) async fn kill(mut self) -> Option<Ended> {
        self.alive.0.kill_tree().await;
        self.over().await
    }

    /// After the end of the channel: how it ended. What it left behind is killed.
    pub(crate) async fn ended(mut self) -> Option<Ended> {
        let report = tokio::time::timeout(REPORT_LIMIT, self.report.ended()).await;
        self.alive.0.kill_tree().await;
        match report {
            Ok(Some(ended)) => {
                self.outputs.end();
                Some(ended)
            }
            // It closed the channel and went on, or its supervisor was killed.
            _ => self.over().await,
        }
    }

    async fn over(&mut self) -> Option<Ended> {
        let report = tokio::time::timeout(REPORT_LIMIT, self.report.ended())
            .await
            .ok()
            .flatten();
        if report.is_none() {
            self.signal(Signal::KILL);
            self.alive.0.kill_orphans().await;
        }
        self.outputs.end();
        report
    }

    /// Asks it to leave, lets its exit handlers run, and kills what is left.
    pub(crate) async fn close(mut self) {
        let leave = async {
            if self.stream.write_all(&EXIT).await.is_ok() {
                while let Ok(Some(_)) = self.frame().await {}
            }
        };
        let _ = tokio::time::timeout(EXIT_LIMIT, leave).await;
        self.kill().await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

fn is_supported(version: &str) -> bool {
    let mut parts = version
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (3, 8)
}

/// The interpreter that was asked for, or the first one of the search path.
fn find_python(asked: Option<&str>, env: &[(String, String)]) -> Result<String, Failure> {
    let path = env
        .iter()
        .rev()
        .find(|(name, _)| name == "PATH")
        .map_or(DEFAULT_PATH, |(_, v)| v);
    let find = |name: &str| {
        path.split(':')
            .filter(|dir| !dir.is_empty())
            .map(|dir| format!("{dir}/{name}"))
            .find(|file| rustix::fs::access(file.as_str(), rustix::fs::Access::EXEC_OK).is_ok())
    };
    match asked {
        Some("") => Err(Failure::invalid("python is empty")),
        Some(asked) if asked.contains('/') => Ok(asked.to_owned()),
        Some(asked) => find(asked).ok_or_else(|| {
            Failure::new(Code::Missing, format!("no {asked} in this sandbox"))
                .hint("name the interpreter's path, or install it")
        }),
        None => find("python3").or_else(|| find("python")).ok_or_else(|| {
            Failure::new(Code::Missing, "no Python in this sandbox").hint(
                "use an image with Python 3.8 or later, or run commands instead of Python code",
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_fit_the_buffer_of_a_socket() {
        assert!(SOURCES.iter().map(|s| s.len() + 1).sum::<usize>() < 64 << 10);
        assert!(SOURCES.iter().all(|source| !source.contains('\0')));
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, good) in [("3.8.0", true), ("3.13.0rc1", true), ("3.7.16", false)] {
            assert_eq!(is_supported(version), good, "{version}");
        }
        assert!(is_supported("4.0") && !is_supported("2.7.18") && !is_supported("x"));
    }
}
