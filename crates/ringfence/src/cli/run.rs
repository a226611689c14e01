//! `ringfence run`: one disposable sandbox.

use crate::{embedded, settings};
use bytes::Bytes;
use clap::Args;
use futures_util::StreamExt as _;
use ringfence_core::backend::native::{Config, Launcher, Native};
use ringfence_core::proto::{
    Blob, Cause, Command, Event, ExecRequest, Exit, JobEnd, OUTPUT_LIMIT, Stdin, WriteQuery,
};
use ringfence_core::spec::{Access, LimitsSpec, MountSpec, Network, SandboxSpec, Workspace};
use ringfence_core::{
    Backend as _, Code, Enforced, Failure, GuestClient, Lifetime, Size, guest, resolve,
};
use serde::Serialize;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence run -c 'print(2 + 2)'
  ringfence run script.py --input data.csv
  ringfence run --workspace .:rw -- make test
  echo 1 2 3 | ringfence run -c 'print(sum(map(int, input().split())))'
  ringfence run --memory 256m --timeout 5 --json -c 'x = [0] * 10**9'

Exit status: that of the code; 124 when it ran out of time, 137 when it ran out of memory,
128 + N when signal N ended it; 64 to 78 when Ringfence itself failed (see docs/cli.md).";

/// Runs code in a disposable sandbox.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Run {
    /// Python code to run
    #[arg(short, long, value_name = "CODE", conflicts_with = "file")]
    code: Option<String>,

    /// A script (.py, .sh) and its arguments
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Arguments of the code or script, or after `--` a command with its own
    #[arg(
        value_name = "ARG",
        allow_hyphen_values = true,
        trailing_var_arg = true
    )]
    args: Vec<String>,

    /// Seconds until everything is ended
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: f64,

    /// Memory of the whole sandbox
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    memory: Option<Size>,

    /// Processors, such as 0.5
    #[arg(long, value_name = "N", help_heading = "Limits")]
    cpus: Option<f64>,

    /// Processes at one time
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pids: Option<u64>,

    /// Size of a private workspace
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    workspace_size: Option<Size>,

    /// Size of /tmp
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    tmp_size: Option<Size>,

    /// Size of the largest file
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    file_size: Option<Size>,

    /// Open files of each process
    #[arg(long, value_name = "N", help_heading = "Limits")]
    open_files: Option<u64>,

    /// Seconds of processor time of each process
    #[arg(long, value_name = "SECONDS", help_heading = "Limits")]
    cpu_time: Option<u64>,

    /// Bytes of each output stream; more is counted and dropped
    #[arg(long, value_name = "SIZE", help_heading = "Limits")]
    output: Option<Size>,

    /// A host folder to work in, in place of a private one: FOLDER[:ro|:rw]
    #[arg(short, long, value_name = "FOLDER", help_heading = "Files")]
    workspace: Option<String>,

    /// A host file or folder to see inside: FROM:TO[:ro|:rw]
    #[arg(short, long, value_name = "MOUNT", help_heading = "Files")]
    mount: Vec<String>,

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

    /// `none`, or `host` for the host's own network with everything on it
    #[arg(long, value_name = "NETWORK", default_value = "none", value_parser = ["none", "host"])]
    network: String,

    /// Takes the nearest limit that this host can enforce, and says so, instead of failing
    #[arg(long)]
    prefer: bool,

    /// Prints one JSON object with everything, in place of the output itself
    #[arg(long)]
    json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.001..=86_400.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds from 0.001 to 86400".to_owned()),
    }
}

/// What runs, and a script to put there before.
struct Job {
    command: Command,
    script: Option<(String, Vec<u8>)>,
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
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| Failure::io("cannot start", &e))?;
        let code = runtime.block_on(self.run());
        // A thread that still reads standard input must not keep the command alive.
        runtime.shutdown_background();
        code
    }

    async fn run(self) -> Result<ExitCode, Failure> {
        let native = Native::new(
            Config {
                state: settings::state(),
                guest: embedded::guest()?,
                environments: settings::data().join("envs"),
                interpreter: self
                    .needs_search()
                    .then(|| settings::search().find())
                    .flatten(),
            },
            Launcher::Inline,
        )?;
        let spec = self.spec()?;
        let job = self.job(&spec)?;
        let plan = resolve(spec, Lifetime::Disposable, &native.offers())?;
        native.create(&plan).await?;
        let done = self.drive(&native, &plan, job).await;
        let removed = native.destroy(&plan.id).await;
        let _ = native.sweep();
        let code = done?;
        removed?;
        Ok(code)
    }

    fn needs_search(&self) -> bool {
        self.python.is_none() && self.env_name.is_none() && self.rootfs.is_none()
    }

    async fn drive(
        &self,
        native: &Native,
        plan: &ringfence_core::Plan,
        job: Job,
    ) -> Result<ExitCode, Failure> {
        let guest = GuestClient::connect(native.dial(&plan.id).await?).await?;
        if let Some((path, bytes)) = job.script {
            let query = WriteQuery {
                root: "/".to_owned(),
                ..WriteQuery::new(path)
            };
            guest.write(&query, bytes).await?;
        }
        let piped = !io::stdin().is_terminal();
        let id = "run".to_owned();
        let mut request = ExecRequest::new(job.command);
        request.timeout_ms = Some((self.timeout * 1000.0) as u64);
        request.output_limit = Some(self.output.map_or(OUTPUT_LIMIT, |size| size.0));
        request.limits.cpu_seconds = self.cpu_time;
        request.id = Some(id.clone());
        request.stdin = if piped { Stdin::Stream } else { Stdin::Empty };
        let mut events = guest.exec_events(&request).await?;
        if piped {
            let guest = guest.clone();
            tokio::spawn(async move {
                // A command that does not read its input is no failure.
                let path = format!("/jobs/{id}/stdin");
                let _ = guest
                    .stream(http::Method::POST, &path, standard_input())
                    .await;
            });
        }
        let limit = request.output_limit.unwrap_or(OUTPUT_LIMIT);
        let mut output = Sink {
            json: self.json,
            limit,
            ..Sink::default()
        };
        let end = loop {
            match events.next().await {
                Some(Ok(Event::Stdout { data, .. })) => output.stdout(&data.0),
                Some(Ok(Event::Stderr { data, .. })) => output.stderr(&data.0),
                Some(Ok(Event::End(end))) => break end,
                Some(Ok(_)) => {}
                Some(Err(failure)) => return Err(failure),
                None => return Err(Failure::new(Code::Unavailable, "the sandbox went away")),
            }
        };
        let code = exit_code(&end);
        if self.json {
            let report = Report {
                exit_code: code,
                truncated: output.out.dropped > 0 || output.err.dropped > 0,
                stdout: Blob(output.out.kept),
                stderr: Blob(output.err.kept),
                end: &end,
                enforced: &plan.enforced,
            };
            let text = serde_json::to_string_pretty(&report)
                .map_err(|e| Failure::new(Code::Internal, "cannot write the result").detail(e))?;
            let _ = writeln!(anstream::stdout(), "{text}");
        } else if let Some(certificate) = &end.certificate {
            let _ = writeln!(
                anstream::stderr(),
                "\x1b[1;33mringfence:\x1b[0m {certificate}"
            );
        }
        Ok(ExitCode::from(code))
    }

    fn spec(&self) -> Result<SandboxSpec, Failure> {
        let mut spec = SandboxSpec {
            rootfs: self.rootfs.as_deref().map(absolute).transpose()?,
            python: self
                .python
                .as_deref()
                .map(absolute_unresolved)
                .transpose()?,
            environment: self.env_name.clone(),
            network: if self.network == "host" {
                Network::Host
            } else {
                Network::None
            },
            prefer: self.prefer,
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
            let (path, access) = access_of(text);
            spec.workspace = Workspace::Folder {
                path: absolute(Path::new(path))?,
                access,
            };
        }
        for text in &self.mount {
            let (rest, access) = access_of(text);
            let (from, to) = rest.split_once(':').ok_or_else(|| {
                Failure::invalid(format!("`{text}` is not a mount")).hint("use FROM:TO[:ro|:rw]")
            })?;
            let from = absolute(Path::new(from))?;
            spec.mounts.push(MountSpec {
                from,
                to: to.into(),
                access,
            });
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
        let python = || vec!["python3".to_owned()];
        if let Some(code) = &self.code {
            let mut argv = python();
            argv.extend(["-c".to_owned(), code.clone()]);
            argv.extend(self.args.iter().cloned());
            return Ok(Job {
                command: Command::Argv(argv),
                script: None,
            });
        }
        let Some(file) = &self.file else {
            if io::stdin().is_terminal() {
                return Err(Failure::invalid("nothing to run")
                    .hint("give a FILE, or -c CODE, or -- COMMAND; see `ringfence run --help`"));
            }
            return Err(
                Failure::invalid("nothing to run").hint("give a FILE, -c CODE or -- COMMAND")
            );
        };
        let (mut argv, path, script) = match interpreter_of(file) {
            None => (vec![file.display().to_string()], None, None),
            Some(program) => {
                let (path, script) = place(file, spec)?;
                (vec![program.to_owned()], Some(path), script)
            }
        };
        argv.extend(path);
        argv.extend(self.args.iter().cloned());
        Ok(Job {
            command: Command::Argv(argv),
            script,
        })
    }
}

/// The program for a script, by its name; anything else is a command.
fn interpreter_of(file: &Path) -> Option<&'static str> {
    match file.extension()?.to_str()? {
        "py" => Some("python3"),
        "sh" | "bash" => Some("bash"),
        _ => None,
    }
}

/// Where a script is inside: in the mounted workspace if it lies there, else copied to /tmp.
fn place(file: &Path, spec: &SandboxSpec) -> Result<(String, Option<(String, Vec<u8>)>), Failure> {
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

fn access_of(text: &str) -> (&str, Access) {
    match text.rsplit_once(':') {
        Some((rest, "rw")) => (rest, Access::ReadWrite),
        Some((rest, "ro")) => (rest, Access::ReadOnly),
        _ => (text, Access::ReadOnly),
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

/// Standard input as a body, read by a thread.
fn standard_input() -> guest::Body {
    use http_body_util::{BodyExt as _, StreamBody};
    let (sender, receiver) = tokio::sync::mpsc::channel::<io::Result<Bytes>>(4);
    std::thread::spawn(move || {
        let mut buffer = vec![0u8; 64 << 10];
        let mut stdin = io::stdin().lock();
        loop {
            let read = match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(read) => Ok(Bytes::copy_from_slice(&buffer[..read])),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => Err(e),
            };
            if sender.blocking_send(read).is_err() {
                return;
            }
        }
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        let item = receiver.recv().await?;
        Some((item.map(hyper::body::Frame::data), receiver))
    });
    StreamBody::new(stream).boxed_unsync()
}

/// Where the output goes: on as it comes, or kept for the report.
#[derive(Default)]
struct Sink {
    json: bool,
    limit: u64,
    out: Stream,
    err: Stream,
}

#[derive(Default)]
struct Stream {
    kept: Vec<u8>,
    passed: u64,
    dropped: u64,
}

impl Stream {
    /// The part of `bytes` that is within the limit.
    fn take<'a>(&mut self, bytes: &'a [u8], limit: u64) -> &'a [u8] {
        let room = limit.saturating_sub(self.passed).min(bytes.len() as u64);
        self.passed += room;
        self.dropped += bytes.len() as u64 - room;
        &bytes[..room as usize]
    }
}

impl Sink {
    fn stdout(&mut self, bytes: &[u8]) {
        let part = self.out.take(bytes, self.limit);
        if self.json {
            self.out.kept.extend_from_slice(part);
        } else {
            pass_on(&mut io::stdout().lock(), part);
        }
    }

    fn stderr(&mut self, bytes: &[u8]) {
        let part = self.err.take(bytes, self.limit);
        if self.json {
            self.err.kept.extend_from_slice(part);
        } else {
            pass_on(&mut io::stderr().lock(), part);
        }
    }
}

/// A reader that went away does not change what the code does or its exit status.
fn pass_on(to: &mut impl io::Write, bytes: &[u8]) {
    let _ = to.write_all(bytes).and_then(|()| to.flush());
}

fn exit_code(end: &JobEnd) -> u8 {
    match (end.certificate.as_ref().map(|c| c.cause), end.exit) {
        (Some(Cause::WallClock), _) => 124,
        (Some(Cause::Memory), _) => 137,
        (_, Exit::Code(code)) => code as u8,
        (_, Exit::Signal(signal)) => 128u8.saturating_add(signal as u8),
        (_, Exit::Lost) => 70,
    }
}
