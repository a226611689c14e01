//! `ringfence doctor`: what this machine can enforce, each proved by trying it.

#[cfg(feature = "kubernetes")]
mod cluster;
mod diagnose;
mod isolation;
mod limits;
mod probe;

#[cfg(not(feature = "kubernetes"))]
use crate::backends;
use crate::config::{BackendChoice, Config, ConfigArgs};
use crate::{embedded, settings};
use clap::{Args, ValueEnum};
use probe::Sandbox;
use ringfence_core::backend::native::{self, Native};
use ringfence_core::{Code, Failure, SandboxSpec};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence doctor
  ringfence doctor --json | jq .sound
  KUBECONFIG=… ringfence doctor --backend kubernetes     # makes pods, tries them, removes them

Each wall is tried: the same probe must succeed outside and fail inside, so that a broken probe
does not look like a strong sandbox. Exit status: 0 if the default sandbox is sound, else 78.";

/// Shows what this machine can enforce, proves it, and says how to fix what is missing
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    /// Prints one JSON object
    #[arg(long)]
    json: bool,

    /// Examines this one: native or kubernetes; by default the configured one, else native
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    backend: Option<Examined>,
}

/// What can be examined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Examined {
    Native,
    Kubernetes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// It holds.
    Held,
    /// It holds in a weaker form, or could not be proved, or is a second wall that is missing.
    Weak,
    /// It does not hold: the default sandbox is not sound.
    Missing,
    /// Good to know, and of no consequence for soundness.
    Note,
}

/// One line of the answer.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// By what, or in which form.
    means: String,
    /// What was tried, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    proof: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn new(name: &'static str, state: State, means: impl Into<String>) -> Self {
        Self {
            name,
            state,
            means: means.into(),
            proof: None,
            fix: None,
        }
    }

    fn proof(mut self, proof: impl Into<String>) -> Self {
        self.proof = Some(proof.into());
        self
    }

    fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

#[derive(Serialize)]
struct Answer {
    backend: Examined,
    sound: bool,
    summary: String,
    checks: Vec<Check>,
}

impl Doctor {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let config = ConfigArgs::default().load()?.config;
        let backend = self.backend.unwrap_or(match config.backend {
            BackendChoice::Kubernetes => Examined::Kubernetes,
            _ => Examined::Native,
        });
        let checks = super::block_on(async {
            match backend {
                Examined::Native => examine(&config).await,
                #[cfg(feature = "kubernetes")]
                Examined::Kubernetes => cluster::examine(&config).await,
                #[cfg(not(feature = "kubernetes"))]
                Examined::Kubernetes => backends::kubernetes(&config).map(|_| Vec::new()),
            }
        })?;
        let answer = Answer {
            backend,
            sound: checks.iter().all(|c| c.state != State::Missing),
            summary: summary(&checks),
            checks,
        };
        if self.json {
            super::say_json(&answer)?;
        } else {
            // A reader that went away is no failure.
            let _ = print(&answer);
        }
        Ok(ExitCode::from(match answer.sound {
            true => 0,
            false => Code::Unenforceable.exit_status(),
        }))
    }
}

async fn examine(config: &Config) -> Result<Vec<Check>, Failure> {
    let interpreter = settings::search().find();
    let native = native::Config {
        state: settings::state(),
        guest: embedded::guest()?,
        environments: settings::environments(),
        interpreter: interpreter.clone(),
    };
    let native = Native::new(native)?;
    let mut checks = vec![diagnose::kernel()];
    match Sandbox::make(&native, SandboxSpec::default()).await {
        Ok(sandbox) => {
            let seen = isolation::examine(&sandbox, interpreter.as_ref()).await;
            sandbox.remove().await?;
            checks.extend(seen?);
            checks.extend(limits::examine(&native).await?);
        }
        Err(failure) => checks.extend(diagnose::no_sandbox(&failure)),
    }
    checks.extend(diagnose::other_backends(config).await);
    Ok(checks)
}

fn summary(checks: &[Check]) -> String {
    let names = |state| {
        let names: Vec<_> = checks
            .iter()
            .filter(|c| c.state == state)
            .map(|c| c.name)
            .collect();
        names.join(", ")
    };
    match (names(State::Missing), names(State::Weak)) {
        (missing, _) if !missing.is_empty() => {
            format!("The default sandbox is not sound: {missing}.")
        }
        (_, weak) if !weak.is_empty() => {
            format!("The default sandbox is sound. Weaker than it could be: {weak}.")
        }
        _ => "The default sandbox is sound.".to_owned(),
    }
}

fn print(answer: &Answer) -> std::io::Result<()> {
    let mut out = anstream::stdout().lock();
    writeln!(
        out,
        "ringfence {}, {} backend, {}\n",
        env!("CARGO_PKG_VERSION"),
        match answer.backend {
            Examined::Native => "native",
            Examined::Kubernetes => "kubernetes",
        },
        if settings::is_root() {
            "as root"
        } else {
            "as an ordinary user"
        }
    )?;
    let width = answer.checks.iter().map(|c| c.name.len()).max();
    let width = width.unwrap_or(0);
    for check in &answer.checks {
        let mark = match check.state {
            State::Held => "\x1b[32m✓\x1b[0m",
            State::Weak => "\x1b[33m!\x1b[0m",
            State::Missing => "\x1b[31m✗\x1b[0m",
            State::Note => "\x1b[2m·\x1b[0m",
        };
        writeln!(out, "{mark} {:width$}  {}", check.name, check.means)?;
        if let Some(proof) = &check.proof {
            writeln!(out, "  {:width$}  \x1b[2m{proof}\x1b[0m", "")?;
        }
        if let Some(fix) = &check.fix {
            writeln!(out, "  {:width$}  \x1b[36mfix:\x1b[0m {fix}", "")?;
        }
    }
    writeln!(out, "\n\x1b[1m{}\x1b[0m", answer.summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_what_is_missing_before_what_is_weak() {
        let held = || Check::new("files", State::Held, "");
        let weak = || Check::new("memory", State::Weak, "");
        let missing = || Check::new("network", State::Missing, "");
        assert_eq!(summary(&[held()]), "The default sandbox is sound.");
        assert_eq!(
            summary(&[held(), weak()]),
            "The default sandbox is sound. Weaker than it could be: memory."
        );
        assert_eq!(
            summary(&[held(), weak(), missing()]),
            "The default sandbox is not sound: network."
        );
    }
}
