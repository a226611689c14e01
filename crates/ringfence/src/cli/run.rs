//! `ringfence run`: one disposable sandbox.

mod batch;
mod language;

use super::container::{BackendName, ContainerArgs, shown};
use super::output::{Sink, unwritten};
use super::terminal;
use crate::config::ConfigArgs;
use crate::{backends, settings};
use clap::Args;
use futures_util::StreamExt as _;
use ringfence_core::backend::docker::Docker;
use ringfence_core::backend::native::{Launcher, Native};
use ringfence_core::proto::{
    Blob, Cause, Certificate, Command, Event, ExecRequest, Exit, JobEnd, OUTPUT_LIMIT, Stdin,
    WriteQuery,
};
use ringfence_core::spec::{Access, LimitsSpec, MountSpec, Network, SandboxSpec, Workspace};
use ringfence_core::{
    Backend, Code, Control, Enforced, Failure, GuestClient, Hold, Lifetime, Plan, Size, resolve,
};
use serde::Serialize;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The id of the one job in the sandbox.
const JOB: &str = "run";

/// Seconds that code has when nobody says how many. A terminal has as many as its user wants.
const TIMEOUT: f64 = 60.0;

const USAGE: &str = "\
ringfence run [OPTIONS] FILE [ARG]...
       ringfence run [OPTIONS] -c CODE [ARG]...
       ringfence run [OPTIONS] -- COMMAND [ARG]...";

const EXAMPLES: &str = "\
Examples:
  ringfence run -c 'print(2 + 2)'
  ringfence run script.py --input data.csv
  ringfence run --workspace .:rw -- make test
  ringfence run -t -- bash
  ringfence run --language ruby -c 'puts 6 * 7'
  ringfence run main.ts
  ringfence run --jobs 4 --cases tests/ a.py b.go c.rs
  ringfence run --cases cases.jsonl --compare exact --ordered --json main.cpp
  echo 1 2 3 | ringfence run -c 'print(sum(map(int, input().split())))'
  curl -s https://example.com/script.py | ringfence run - one two
  ringfence run --image ringfence/sandbox -c 'import pandas'
  ringfence run --memory 256m --timeout 5 --json -c 'x = [0] * 10**9'

Exit status: that of the code; 124 when it ran out of time, 137 when it ran out of memory,
128 + N when signal N ended it or Ringfence; 64 to 78 when Ringfence itself failed (see
docs/cli.md).";

/// Runs code in a disposable sandbox
#[derive(Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct Run {
    /// Code to run, in Python unless --language says otherwise; what follows are its arguments
    #[arg(short, long, value_name = "CODE")]
    code: Option<String>,

    /// A script (by its name's end or its `#!` line) or `-` for code on standard input, and its
    /// arguments; after `--` a command that is there inside
    #[arg(value_name = "FILE", trailing_var_arg = true)]
    pub(super) words: Vec<String>,

    /// Whether `--` stood before the words.
    #[arg(skip)]
    pub(super) dashed: bool,

    #[command(flatten)]
    language: language::LanguageArgs,

    /// Joins this terminal to one inside, for shells and other interactive programs
    #[arg(short, long, conflicts_with = "json")]
    tty: bool,

    /// Seconds until everything is ended [default: 60; with --tty: none]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_negative_numbers = true)]
    timeout: Option<f64>,

    /// Memory of the whole sandbox [default: 1 GiB]
    #[arg(
        long,
        value_name = "SIZE",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    memory: Option<Size>,

    /// Processors, such as 0.5 [default: 1]
    #[arg(
        long,
        value_name = "N",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    cpus: Option<f64>,

    /// Processes at one time [default: 256]
    #[arg(
        long,
        value_name = "N",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    pids: Option<u64>,

    /// Size of a private workspace [default: 512 MiB]
    #[arg(
        long,
        value_name = "SIZE",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    workspace_size: Option<Size>,

    /// Size of /tmp [default: 128 MiB]
    #[arg(
        long,
        value_name = "SIZE",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    tmp_size: Option<Size>,

    /// Size of the largest file [default: 256 MiB]
    #[arg(
        long,
        value_name = "SIZE",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    file_size: Option<Size>,

    /// Open files of each process [default: 1024]
    #[arg(
        long,
        value_name = "N",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    open_files: Option<u64>,

    /// Seconds of processor time of each process
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    cpu_time: Option<u64>,

    /// Bytes of each output stream; more is counted and dropped [default: 1 MiB]
    #[arg(
        long,
        value_name = "SIZE",
        help_heading = "Limits",
        allow_negative_numbers = true
    )]
    output: Option<Size>,

    /// A host folder to work in, in place of a private one, read-only unless `:rw`: FOLDER[:ro|:rw]
    #[arg(short, long, value_name = "FOLDER", help_heading = "Files")]
    workspace: Option<String>,

    /// A host file or folder to see inside, read-only unless `:rw`: FROM:TO[:ro|:rw]
    #[arg(short, long, value_name = "MOUNT", help_heading = "Files")]
    mount: Vec<String>,

    /// A folder that is a skill (with a SKILL.md) or has skills in it, seen read-only at
    /// /sandbox/skills/NAME
    #[arg(long, value_name = "FOLDER", help_heading = "Files")]
    skills: Vec<PathBuf>,

    /// A folder with a whole root file system, in place of the host's
    #[arg(long, value_name = "FOLDER", help_heading = "Files")]
    rootfs: Option<PathBuf>,

    /// The Python interpreter; the first python3 on the search path when absent
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    python: Option<PathBuf>,

    /// A packages environment made by `ringfence env add`
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    env_name: Option<String>,

    /// An environment variable: NAME=VALUE
    #[arg(short, long, value_name = "VARIABLE")]
    env: Vec<String>,

    /// `none`, `host` for the host's own network with everything on it, or with Docker the name
    /// of a network such as `bridge`
    #[arg(long, value_name = "NETWORK", default_value = "none")]
    network: String,

    #[command(flatten)]
    container: ContainerArgs,

    /// Takes the nearest limit that this host can enforce, and says so, instead of failing
    #[arg(long)]
    prefer: bool,

    /// Prints one JSON object with everything, in place of the output itself
    #[arg(long)]
    json: bool,
}

/// The end of a command whose sandbox ended before it could say anything about it.
fn lost(certificate: Certificate, begun: Instant, output: &Sink) -> JobEnd {
    JobEnd {
        stdout_bytes: output.out.total(),
        stderr_bytes: output.err.total(),
        certificate: Some(certificate),
        ..JobEnd::new(Exit::Lost, begun.elapsed())
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.001..=86_400.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds from 0.001 to 86400".to_owned()),
    }
}

/// A path inside, and what to write there.
type Script = (String, Vec<u8>);

/// What runs, and a script to put there before.
struct Job {
    command: Command,
    script: Option<Script>,
    stdin: Stdin,
}

/// A sandbox that was made for this run.
enum Made {
    Native(Box<Native>, Box<Plan>),
    Docker(Arc<Docker>, Box<Plan>),
    Pod(Arc<dyn Backend>, Box<Plan>),
}

/// Whether it failed because this host does not let native sandboxes be made.
fn cannot(failure: &Failure) -> bool {
    failure.code == Code::Unenforceable
}

/// A run that did not come about, for machines.
#[derive(Serialize)]
struct Failed<'a> {
    error: &'a Failure,
}

/// Everything about a run, for machines.
#[derive(Serialize)]
struct Report<'a> {
    exit_code: u8,
    stdout: Blob,
    stderr: Blob,
    truncated: bool,
    #[serde(flatten)]
    end: &'a JobEnd,
    enforced: &'a [Enforced],
}

impl Run {
    pub(crate) fn main(self, launcher: Option<Launcher>) -> Result<ExitCode, Failure> {
        let json = self.json;
        let done = match self.is_language() {
            true => super::block_on(self.run_language(launcher)),
            false => super::block_on(self.run(launcher)),
        };
        match done {
            Err(failure) if json => {
                super::say_json(&Failed { error: &failure })?;
                Ok(ExitCode::from(failure.code.exit_status()))
            }
            done => done,
        }
    }

    async fn run(self, launcher: Option<Launcher>) -> Result<ExitCode, Failure> {
        if self.tty && !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Err(Failure::invalid(
                "cannot use --tty: standard input and output are not a terminal",
            )
            .hint("leave out --tty"));
        }
        let spec = self.spec()?;
        let job = self.job(&spec)?;
        // From here on a signal must not end us before the sandbox is removed.
        let mut signals = Signals::listen()?;
        match self.make(spec, launcher).await? {
            Made::Pod(cluster, plan) => {
                self.tell_weaker(&plan);
                self.run_in_pod(&*cluster, &plan, job, &mut signals).await
            }
            Made::Native(native, plan) => {
                let done = self.run_native(&native, &plan, job, &mut signals).await;
                // What it holds is let go by the end of this process. Whoever that wakes would
                // take the processor from us before.
                std::mem::forget(native);
                done
            }
            Made::Docker(docker, plan) => {
                self.tell_weaker(&plan);
                // The engine removes it when the connection to it ends, be it by our death.
                tokio::select! {
                    biased;
                    signal = signals.next() => Ok(ExitCode::from(128 + signal)),
                    done = self.drive(&*docker, &plan, job, || Ok(())) => done,
                }
            }
        }
    }

    /// A pod outlives its maker for a while, so it is removed whatever happens.
    async fn run_in_pod(
        &self,
        cluster: &dyn Backend,
        plan: &Plan,
        job: Job,
        signals: &mut Signals,
    ) -> Result<ExitCode, Failure> {
        let done = tokio::select! {
            biased;
            signal = signals.next() => Ok(ExitCode::from(128 + signal)),
            done = self.drive(cluster, plan, job, || Ok(())) => done,
        };
        let done = done.map_err(|failure| match cluster.epitaph(&plan.id) {
            Some(certificate) => Failure::new(failure.code, certificate.message)
                .hint(certificate.next)
                .detail(failure),
            None => failure,
        });
        cluster.destroy(&plan.id).await?;
        done
    }

    /// Makes the sandbox where it is to be: natively, unless that can't be or is not wanted.
    async fn make(&self, spec: SandboxSpec, launcher: Option<Launcher>) -> Result<Made, Failure> {
        let choice = match self.container.backend {
            BackendName::Auto if spec.container.is_some() => BackendName::Docker,
            choice => choice,
        };
        if choice == BackendName::Kubernetes {
            return self.make_pod(spec).await;
        }
        if choice != BackendName::Docker {
            let made = self.make_native(spec.clone(), launcher).await;
            match made {
                Err(failure) if choice == BackendName::Auto && cannot(&failure) => {
                    if let Ok(made) = self.make_docker(spec).await {
                        let words = "ringfence: native sandboxes can't be made here, so this runs \
                                     in Docker (`ringfence doctor` says why)";
                        let _ = writeln!(anstream::stderr(), "{words}");
                        return Ok(made);
                    }
                    return Err(failure);
                }
                made => return made,
            }
        }
        self.make_docker(spec).await
    }

    async fn make_native(
        &self,
        spec: SandboxSpec,
        launcher: Option<Launcher>,
    ) -> Result<Made, Failure> {
        let native = self.native(launcher)?;
        let plan = resolve(spec, Lifetime::Disposable, &native.offers())?;
        native.create(&plan).await?;
        Ok(Made::Native(Box::new(native), Box::new(plan)))
    }

    async fn make_docker(&self, spec: SandboxSpec) -> Result<Made, Failure> {
        let listener = (!self.json).then(shown);
        let docker = backends::docker(settings::state(), backends::IMAGE, listener, 0)?;
        let plan = resolve(spec, Lifetime::Disposable, &docker.guarantees().await?)?;
        docker.create(&plan).await?;
        Ok(Made::Docker(docker, Box::new(plan)))
    }

    async fn make_pod(&self, spec: SandboxSpec) -> Result<Made, Failure> {
        let config = ConfigArgs::default().load()?.config;
        let cluster = backends::kubernetes(&config)?;
        let plan = resolve(spec, Lifetime::Disposable, &cluster.guarantees().await?)?;
        cluster.create(&plan).await?;
        Ok(Made::Pod(cluster, Box::new(plan)))
    }

    async fn run_native(
        &self,
        native: &Native,
        plan: &Plan,
        job: Job,
        signals: &mut Signals,
    ) -> Result<ExitCode, Failure> {
        self.tell_weaker(plan);
        let mut janitor = None;
        // While the code starts, and before there is a second thread here.
        let mind = || {
            janitor = Some(native.mind(&plan.id)?);
            Ok(())
        };
        let done = tokio::select! {
            biased;
            signal = signals.next() => Ok(ExitCode::from(128 + signal)),
            done = self.drive(native, plan, job, mind) => done,
        };
        if janitor.is_none() {
            let removed = native.destroy(&plan.id).await;
            // What does not go at once is left to `ringfence gc`.
            let _ = native.sweep(Duration::ZERO);
            if done.is_ok() {
                removed?;
            }
        }
        // Held until this process has ended, see above.
        std::mem::forget(janitor);
        done
    }

    fn native(&self, launcher: Option<Launcher>) -> Result<Native, Failure> {
        let search = self.needs_search();
        let interpreter = search.then(|| settings::search().find()).flatten();
        backends::native(settings::state(), interpreter, launcher)
    }

    fn needs_search(&self) -> bool {
        self.python.is_none() && self.env_name.is_none() && self.rootfs.is_none()
    }

    async fn drive(
        &self,
        backend: &dyn Backend,
        plan: &Plan,
        job: Job,
        started: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        match self.talk(backend, plan, job, started).await {
            Err(failure) if failure.code == Code::Unavailable => {
                Err(match backend.autopsy(&plan.id).await {
                    Some(certificate) => Failure::new(failure.code, certificate.message)
                        .hint(certificate.next)
                        .detail(failure),
                    None => failure,
                })
            }
            done => done,
        }
    }

    async fn talk(
        &self,
        backend: &dyn Backend,
        plan: &Plan,
        job: Job,
        started: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        let guest = GuestClient::connect(backend.dial(&plan.id).await?).await?;
        if let Some((path, bytes)) = job.script {
            let query = WriteQuery {
                root: "/".to_owned(),
                ..WriteQuery::new(path)
            };
            guest.write(&query, bytes).await?;
        }
        let mut request = ExecRequest::new(job.command);
        request.id = Some(JOB.to_owned());
        request.limits.cpu_seconds = self.cpu_time;
        let timeout = self.timeout.or((!self.tty).then_some(TIMEOUT));
        request.timeout_ms = timeout.map(|seconds| (seconds * 1000.0) as u64);
        if self.tty {
            // The guest keeps the limit; one that does not is not waited for.
            let limit = timeout.map_or(Duration::MAX, |s| Duration::from_secs_f64(s + 15.0));
            let joined = tokio::time::timeout(limit, terminal::join(&guest, request)).await;
            let late = || Failure::new(Code::DeadlineExceeded, "the sandbox did not end in time");
            let end = joined.map_err(|_| late())??;
            // What a terminal has shown was seen: nothing of it was dropped.
            self.tell(end.certificate.iter().find(|c| c.cause != Cause::Output));
            return Ok(ExitCode::from(end.status()));
        }
        let limit = self.output.map_or(OUTPUT_LIMIT, |size| size.0);
        request.output_limit = Some(limit);
        request.stdin = job.stdin;
        let mut events = guest.exec_events(&request).await?;
        started()?;
        if request.stdin == Stdin::Stream {
            let guest = guest.clone();
            tokio::spawn(async move {
                // A command that does not read its input is no failure.
                let path = format!("/jobs/{JOB}/stdin");
                let body = terminal::standard_input();
                let _ = guest.stream(http::Method::POST, &path, body).await;
            });
        }
        let mut output = Sink::new(self.json, limit);
        let begun = Instant::now();
        let end = loop {
            match events.next().await {
                Some(Ok(Event::Stdout { data, .. })) => {
                    if let Err(error) = output.stdout(&data.0).await {
                        return unwritten(&error);
                    }
                }
                Some(Ok(Event::Stderr { data, .. })) => {
                    if let Err(error) = output.stderr(&data.0).await {
                        return unwritten(&error);
                    }
                }
                Some(Ok(Event::End(end))) => break end,
                Some(Ok(_)) => {}
                broken => {
                    let gone = || Failure::new(Code::Unavailable, "the sandbox went away");
                    let failure = broken.and_then(Result::err).unwrap_or_else(gone);
                    match backend.autopsy(&plan.id).await {
                        Some(certificate) => break lost(certificate, begun, &output),
                        None => return Err(failure),
                    }
                }
            }
        };
        let code = end.status();
        if self.json {
            super::say_json(&Report {
                exit_code: code,
                truncated: output.out.dropped > 0 || output.err.dropped > 0,
                stdout: Blob(output.out.kept),
                stderr: Blob(output.err.kept),
                end: &end,
                enforced: &plan.enforced,
            })?;
        } else {
            self.tell(end.certificate.as_ref());
        }
        Ok(ExitCode::from(code))
    }

    /// Says which of the limits that were asked for hold in a weaker form, or not at all.
    fn tell_weaker(&self, plan: &Plan) {
        let asked = [
            (Control::Memory, self.memory.is_some()),
            (Control::Cpus, self.cpus.is_some()),
            (Control::Pids, self.pids.is_some()),
        ];
        for row in plan.enforced.iter().filter(|_| !self.json) {
            let how = match row.hold {
                Hold::Sandbox => continue,
                Hold::Process => "limited for each process only",
                Hold::None => "not limited",
            };
            if asked.contains(&(row.control, true)) {
                let (name, by) = (row.control.name(), &row.by);
                let _ = writeln!(anstream::stderr(), "ringfence: {name}: {how} ({by})");
            }
        }
    }

    fn tell(&self, certificate: Option<&Certificate>) {
        if let Some(certificate) = certificate {
            let _ = writeln!(
                anstream::stderr(),
                "\x1b[1;33mringfence:\x1b[0m {certificate}"
            );
        }
    }

    fn environment(&self) -> Result<Option<String>, Failure> {
        if let Some(name) = &self.env_name {
            super::env::finished(name)?;
        }
        Ok(self.env_name.clone())
    }

    fn spec(&self) -> Result<SandboxSpec, Failure> {
        let mut spec = SandboxSpec {
            rootfs: self.rootfs.as_deref().map(absolute).transpose()?,
            python: self
                .python
                .as_deref()
                .map(absolute_unresolved)
                .transpose()?,
            environment: self.environment()?,
            network: if self.network == "host" {
                Network::Host
            } else {
                Network::None
            },
            prefer: self.prefer,
            container: self.container.spec(&self.network)?,
            limits: LimitsSpec {
                memory: self.memory,
                cpus: self.cpus,
                pids: self.pids,
                workspace: self.workspace_size,
                tmp: self.tmp_size,
                file_size: self.file_size,
                open_files: self.open_files,
            },
            ..SandboxSpec::default()
        };
        if let Some(text) = &self.workspace {
            let (path, access) = match text.rsplit_once(':') {
                Some((path, mode)) if !Path::new(text).exists() => (path, access(mode)?),
                _ => (text.as_str(), Access::ReadOnly),
            };
            let path = absolute(Path::new(path))?;
            spec.workspace = Workspace::Folder { path, access };
        }
        for text in &self.mount {
            let parts: Vec<&str> = text.split(':').collect();
            let (from, to, access) = match parts.as_slice() {
                [from, to] => (from, to, Access::ReadOnly),
                [from, to, mode] => (from, to, access(mode)?),
                _ => {
                    return Err(Failure::invalid(format!("`{text}` is not a mount"))
                        .hint("use FROM:TO[:ro|:rw]"));
                }
            };
            let from = absolute(Path::new(from))?;
            spec.mounts.push(MountSpec {
                from,
                to: to.into(),
                access,
            });
        }
        for folder in &self.skills {
            spec.skills.push(absolute(folder)?);
        }
        for text in &self.env {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                Failure::invalid(format!("`{text}` is not a variable")).hint("use NAME=VALUE")
            })?;
            spec.env.insert(name.to_owned(), value.to_owned());
        }
        Ok(spec)
    }

    /// What runs: code, a script, or a command of its own.
    fn job(&self, spec: &SandboxSpec) -> Result<Job, Failure> {
        let stdin = if io::stdin().is_terminal() || is_null(&io::stdin()) {
            Stdin::Empty
        } else {
            Stdin::Stream
        };
        let job = |start: &[&str], rest: &[String], script| Job {
            command: Command::Argv(
                start
                    .iter()
                    .map(|word| (*word).to_owned())
                    .chain(rest.iter().cloned())
                    .collect(),
            ),
            script,
            stdin: stdin.clone(),
        };
        if let Some(code) = &self.code {
            return Ok(job(&["python3", "-c", code], &self.words, None));
        }
        match self.words.as_slice() {
            [] => Err(Failure::invalid("nothing to run").hint(
                "give a FILE, `-` for code on standard input, -c CODE, or -- COMMAND; \
                 see `ringfence run --help`",
            )),
            command if self.dashed => Ok(job(&[], command, None)),
            [dash, ..] if dash == "-" && self.tty => Err(Failure::invalid(
                "code can't come from a terminal that is joined to one inside",
            )
            .hint("give the code as a FILE or with -c")),
            [dash, args @ ..] if dash == "-" => Ok(Job {
                stdin: Stdin::Stream,
                ..job(&["python3", "-"], args, None)
            }),
            [file, args @ ..] => {
                let file = Path::new(file);
                let program = program_for(file)?;
                let (path, script) = place(file, spec)?;
                Ok(job(&[&program, &path], args, script))
            }
        }
    }
}

/// Whether this is `/dev/null`, of which nothing needs to be carried inside.
fn is_null(input: &impl std::os::fd::AsFd) -> bool {
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::fstat(input).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == null
    })
}

/// The program that runs a script, by its name or its first line.
fn program_for(file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    let command = || format!("to run a command that is there inside: ringfence run -- {shown} …");
    let mut start = Vec::new();
    let read = std::fs::File::open(file).and_then(|f| f.take(256).read_to_end(&mut start));
    if let Err(error) = read {
        let failure = Failure::io(format!("cannot read {shown}"), &error);
        // A bare word is more likely meant as a command than as a file.
        let bare = file.extension().is_none() && error.kind() == io::ErrorKind::NotFound;
        return Err(if bare {
            failure.hint(command())
        } else {
            failure
        });
    }
    match file.extension().and_then(|e| e.to_str()) {
        Some("py") => return Ok("python3".to_owned()),
        Some("sh" | "bash") => return Ok("bash".to_owned()),
        _ => {}
    }
    let line = start.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line
        .strip_prefix("#!")
        .unwrap_or("")
        .split_ascii_whitespace()
        .filter(|word| !word.starts_with('-'))
        .map(|word| word.rsplit('/').next().unwrap_or(word))
        .skip_while(|word| *word == "env");
    match words.next() {
        Some(word) if word.starts_with("python") => Ok("python3".to_owned()),
        Some(word) => Ok(word.to_owned()),
        None => Err(Failure::invalid(format!(
            "{shown} is no script: neither .py nor .sh, and no `#!` line"
        ))
        .hint(command())),
    }
}

/// Where a script is inside: in the mounted workspace if it lies there, else copied to /tmp.
fn place(file: &Path, spec: &SandboxSpec) -> Result<(String, Option<Script>), Failure> {
    let what = || format!("cannot read {}", file.display());
    let real = file.canonicalize().map_err(|e| Failure::io(what(), &e))?;
    if let Workspace::Folder { path, .. } = &spec.workspace
        && let Ok(below) = real.strip_prefix(path)
    {
        return Ok((
            Path::new("/workspace").join(below).display().to_string(),
            None,
        ));
    }
    let bytes = std::fs::read(&real).map_err(|e| Failure::io(what(), &e))?;
    let name = real
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let path = format!("/tmp/{name}");
    Ok((path.clone(), Some((path, bytes))))
}

fn access(mode: &str) -> Result<Access, Failure> {
    match mode {
        "rw" => Ok(Access::ReadWrite),
        "ro" => Ok(Access::ReadOnly),
        _ => Err(Failure::invalid(format!("`{mode}` is neither ro nor rw"))),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}

/// An interpreter's path means something by where it lies, so its links stay.
fn absolute_unresolved(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}

/// What asks us to end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let on = |kind| signal(kind).map_err(|e| Failure::io("cannot listen for signals", &e));
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
            _ = self.hangup.recv() => 1,
        }
    }
}
