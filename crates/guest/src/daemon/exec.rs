//! `POST /exec/bash` and `POST /exec/python`.

use crate::checks::TIMEOUT_MS_MAX;
use crate::exec;
use crate::http::{self, Answer, Request};
use crate::server::Guest;
use ringfence_proto::{Cause, Command, ExecRequest, ExecResult, Exit, Failure, Output, Stdin};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Seconds of a command that names no timeout.
const TIMEOUT: f64 = 60.0;

/// The exit code of a command whose time was up, as of `timeout(1)`.
const TIMED_OUT: i32 = 124;

/// What the contract's clients send. They write out what they leave open as null, zero or an
/// empty string, so all of these mean the same.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ask {
    command: Option<String>,
    args: Option<Vec<String>>,
    script: Option<String>,
    timeout_seconds: Option<f64>,
    workdir: Option<String>,
    env: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Serialize)]
struct Done {
    stdout: String,
    stderr: String,
    exit_code: i32,
    duration_ms: u64,
    /// Where the next command can go on.
    cwd: String,
}

fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

pub(super) async fn bash(guest: &Arc<Guest>, request: Request) -> Answer {
    let mut ask: Ask = http::body(request).await?;
    let text = given(ask.command.take()).or_else(|| given(ask.script.take()));
    let mut exec = ExecRequest::new(Command::Sh(text.ok_or_else(nothing_to_run)?));
    exec.args = ask.args.take().unwrap_or_default();
    run(guest, ask, exec).await
}

/// The source goes in on standard input, where it may be of any length.
pub(super) async fn python(guest: &Arc<Guest>, request: Request) -> Answer {
    let mut ask: Ask = http::body(request).await?;
    let source = given(ask.script.take()).or_else(|| given(ask.command.take()));
    let mut argv = vec!["python3".to_owned(), "-".to_owned()];
    argv.extend(ask.args.take().unwrap_or_default());
    let mut exec = ExecRequest::new(Command::Argv(argv));
    exec.stdin = Stdin::Bytes(source.ok_or_else(nothing_to_run)?.into_bytes().into());
    run(guest, ask, exec).await
}

fn nothing_to_run() -> Failure {
    Failure::invalid("there is nothing to run: give `command` or `script`")
}

async fn run(guest: &Arc<Guest>, ask: Ask, mut exec: ExecRequest) -> Answer {
    exec.timeout_ms = Some(timeout(ask.timeout_seconds)?);
    exec.cwd = given(ask.workdir);
    exec.env = ask.env.unwrap_or_default();
    let started_in = exec::folder(&guest.config.workspace, exec.cwd.as_deref())?;
    http::json(&done(exec::to_end(guest, exec).await?, started_in))
}

fn timeout(seconds: Option<f64>) -> Result<u64, Failure> {
    let seconds = seconds.filter(|seconds| *seconds != 0.0).unwrap_or(TIMEOUT);
    let most = TIMEOUT_MS_MAX as f64 / 1000.0;
    match seconds > 0.0 && seconds <= most {
        true => Ok((seconds * 1000.0).ceil() as u64),
        false => Err(Failure::invalid(format!(
            "timeout_seconds is {seconds}: it must be over 0 and at most {most}"
        ))),
    }
}

/// A result in the words of the contract: what it has no field for is told on standard error.
fn done(result: ExecResult, started_in: String) -> Done {
    let end = result.end;
    let cause = end
        .certificate
        .as_ref()
        .map(|certificate| certificate.cause);
    let exit_code = match end.exit {
        _ if cause == Some(Cause::WallClock) => TIMED_OUT,
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
        Exit::Lost => 1,
    };
    let mut stderr = text(&result.stderr);
    if let Some(certificate) = end.certificate {
        if !stderr.is_empty() && !stderr.ends_with('\n') {
            stderr.push('\n');
        }
        stderr.push_str(&certificate.message);
        stderr.push('\n');
    }
    Done {
        stdout: text(&result.stdout),
        stderr,
        exit_code,
        duration_ms: end.duration_ms,
        cwd: end.cwd.unwrap_or(started_in),
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.data.0).into_owned()
}
