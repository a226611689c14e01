//! What a person types. One file per verb.

mod after;
mod completions;
mod config;
mod container;
#[cfg(test)]
mod docs;
mod doctor;
mod env;
mod gc;
mod guest;
mod key;
mod languages;
mod man;
mod mcp;
mod output;
mod progress;
mod run;
mod serve;
mod session;
mod skills;
mod terminal;
mod tools;
mod translate;

pub(crate) use languages::{Known, known as known_languages};
pub(crate) use serve::{backend as serve_backend, runner as serve_runner};

use crate::embedded;
use clap::{CommandFactory as _, Parser, Subcommand};
use ringfence_core::{Code, Failure};
use serde::Serialize;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::OnceLock;

const EXAMPLES: &str = "\
Examples:
  ringfence run -c 'print(2 + 2)'     runs code in a sandbox and prints 4
  ringfence run -t -- bash            a shell in a sandbox
  ringfence doctor                    what this machine can enforce, proved
  ringfence env add data              packages for data work, for `run --env-name data`";

/// Gives every AI agent a computer of its own: runs code that can't hurt anything outside.
#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Run(Box<run::Run>),
    Serve(serve::Serve),
    New(session::New),
    #[command(name = "ls")]
    List(session::List),
    Exec(session::Exec),
    Shell(session::Shell),
    #[command(name = "cp")]
    Copy(session::Copy),
    Logs(session::Logs),
    #[command(name = "rm")]
    Remove(session::Remove),
    Doctor(doctor::Doctor),
    Env(env::Env),
    Config(config::Config),
    Key(key::Key),
    Mcp(mcp::Mcp),
    Tools(tools::Tools),
    Skills(skills::Skills),
    Languages(languages::Languages),
    Gc(gc::Gc),
    Completions(completions::Completions),
    Man(man::Man),
    Guest(guest::Guest),
}

/// The whole command line, for what is made from it.
fn command() -> clap::Command {
    Cli::command()
}

/// Parses the words of a command line, the first of which is our own name.
fn parse(words: &[OsString]) -> Result<Cli, clap::Error> {
    let mut cli = Cli::try_parse_from(words)?;
    if let Verb::Run(run) = &mut cli.verb {
        // What follows the options is the rest of the line as it is; clap does not say whether a
        // `--` stood before it.
        let before = words.len().checked_sub(run.words.len() + 1);
        run.dashed = before.is_some_and(|at| words[at] == "--");
    }
    Ok(cli)
}

pub(crate) fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if let Some(done) = translate::main(&words) {
        return done;
    }
    // It starts on the other processor meanwhile; a container needs none.
    let contained = words
        .iter()
        .any(|word| word == "--image" || word == "docker");
    let launcher = match words.get(1) {
        Some(verb) if verb == "run" && !contained => embedded::launcher(),
        _ => None,
    };
    let cli = match parse(&words) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            // Help and version are no failures; a wrong command line is one like any other.
            return ExitCode::from(match error.use_stderr() {
                true => Code::InvalidInput.exit_status(),
                false => 0,
            });
        }
    };
    let done = match cli.verb {
        Verb::Run(run) => run.main(launcher),
        Verb::Serve(serve) => serve.main(),
        Verb::New(new) => new.main(),
        Verb::List(list) => list.main(),
        Verb::Exec(exec) => exec.main(),
        Verb::Shell(shell) => shell.main(),
        Verb::Copy(copy) => copy.main(),
        Verb::Logs(logs) => logs.main(),
        Verb::Remove(remove) => remove.main(),
        Verb::Doctor(doctor) => doctor.main(),
        Verb::Env(env) => env.main(),
        Verb::Config(config) => config.main(),
        Verb::Key(key) => key.main(),
        Verb::Mcp(mcp) => mcp.main(),
        Verb::Tools(tools) => tools.main(),
        Verb::Skills(skills) => skills.main(),
        Verb::Languages(languages) => languages.main(),
        Verb::Gc(gc) => gc.main(),
        Verb::Completions(completions) => completions.main(),
        Verb::Man(man) => man.main(),
        Verb::Guest(guest) => guest.main(),
    };
    let code = done.unwrap_or_else(|failure| report(&failure));
    UNWRITTEN.get().map_or(code, report)
}

/// Prints a failure once, with its hint, and gives its exit status.
fn report(failure: &Failure) -> ExitCode {
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

/// Prints a line; a reader that went away is no failure.
fn say(line: impl std::fmt::Display) {
    written(writeln!(anstream::stdout().lock(), "{line}"));
}

/// Writes a whole text that was made before.
fn pass(text: &[u8]) {
    let mut out = io::stdout().lock();
    written(out.write_all(text).and_then(|()| out.flush()));
}

/// The first thing that went wrong in writing to standard output; told when all else is done.
static UNWRITTEN: OnceLock<Failure> = OnceLock::new();

/// Notes output that could not be written. A reader that has seen enough is no failure.
fn written(result: io::Result<()>) {
    if let Err(error) = result
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        let _ = UNWRITTEN.set(Failure::io("cannot write the output", &error));
    }
}

/// Prints something for machines.
fn say_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Failure::new(Code::Internal, "cannot write the result").detail(e))?;
    say(text);
    Ok(())
}

/// Our own executable, which is also what launches and what translates.
fn this_program() -> Result<std::path::PathBuf, Failure> {
    std::env::current_exe().map_err(|e| Failure::io("cannot find this program", &e))
}

/// Runs a verb that talks to sandboxes. One thread: the one that clones must be the only one.
fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::io("cannot start", &e))?;
    let done = runtime.block_on(work);
    // A thread that still reads standard input must not keep the command alive.
    runtime.shutdown_background();
    done
}
