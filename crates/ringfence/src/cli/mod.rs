//! What a person types. One file per verb.

mod launcher;
mod run;

use clap::{Parser, Subcommand};
use ringfence_core::Failure;
use std::io::Write as _;
use std::process::ExitCode;

/// Gives every AI agent a computer of its own: runs code that can't hurt anything outside.
#[derive(Parser)]
#[command(name = "ringfence", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(Box<run::Run>),
    Launcher(launcher::Launcher),
}

pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.verb {
        Verb::Run(run) => run.main(),
        Verb::Launcher(launcher) => launcher.main(),
    };
    done.unwrap_or_else(|failure| report(&failure))
}

/// Prints a failure once, with its hint, and gives its exit status.
pub(crate) fn report(failure: &Failure) -> ExitCode {
    let mut stderr = anstream::stderr().lock();
    let _ = writeln!(stderr, "\x1b[1;31merror:\x1b[0m {failure}");
    if let Some(hint) = &failure.hint {
        let _ = writeln!(stderr, "\x1b[1;36mhint:\x1b[0m {hint}");
    }
    if let Some(detail) = &failure.detail {
        let _ = writeln!(stderr, "\x1b[2mdetail: {}\x1b[0m", detail.trim_end());
    }
    ExitCode::from(failure.code.exit_status())
}
