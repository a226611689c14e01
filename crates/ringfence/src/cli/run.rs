//! `ringfence run`: one disposable sandbox.

mod asked;
mod batch;
mod language;
mod signals;
mod talk;

use super::container::{BackendName, ContainerArgs, shown};
use crate::config::ConfigArgs;
use crate::{backends, settings};
use asked::Job;
use clap::Args;
use ringfence_core::backend::docker::Docker;
use ringfence_core::backend::native::{Launcher, Native};
use ringfence_core::spec::SandboxSpec;
use ringfence_core::{Backend, Code, Control, Failure, Hold, Lifetime, Plan, Size, resolve};
use serde::Serialize;
use signals::Signals;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use talk::explained;

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

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.001..=86_400.0).contains(&value) => Ok(value),
        _ => Err("a number of seconds from 0.001 to 86400".to_owned()),
    }
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
        let done = done.map_err(|failure| explained(failure, cluster.epitaph(&plan.id)));
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
}
