//! The verbs for sessions, one file each: they talk to a server that runs, or to one inside the
//! command itself.

mod copy;
mod exec;
mod list;
mod logs;
mod new;
mod remove;
mod shell;

pub(super) use copy::Copy;
pub(super) use exec::Exec;
pub(super) use list::List;
pub(super) use logs::Logs;
pub(super) use new::New;
pub(super) use remove::Remove;
pub(super) use shell::Shell;

use crate::client::Event;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::{Code, Failure};
use serde_json::Value;
use std::process::ExitCode;

/// The bytes of an event of output.
fn bytes(data: &Value) -> Vec<u8> {
    match (data["text"].as_str(), data["base64"].as_str()) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, Some(encoded)) => STANDARD.decode(encoded).unwrap_or_default(),
        (None, None) => Vec::new(),
    }
}

/// Writes the output of a job as it comes.
struct Passed {
    stdout: tokio::io::Stdout,
    stderr: tokio::io::Stderr,
}

impl Passed {
    fn new() -> Self {
        Self {
            stdout: tokio::io::stdout(),
            stderr: tokio::io::stderr(),
        }
    }

    /// Gives the end of the job when that is what came.
    async fn take(&mut self, event: Event) -> Result<Option<Value>, Failure> {
        let written = match event.name.as_str() {
            "stdout" => super::output::pass_on(&mut self.stdout, &bytes(&event.data)).await,
            "stderr" => super::output::pass_on(&mut self.stderr, &bytes(&event.data)).await,
            "result" => match event.data["data"]["text/plain"].as_str() {
                Some(text) => {
                    let line = format!("{text}\n");
                    super::output::pass_on(&mut self.stdout, line.as_bytes()).await
                }
                None => Ok(()),
            },
            "done" => return Ok(Some(event.data)),
            "failure" => {
                let message = event.data["detail"].as_str().unwrap_or("it broke off");
                return Err(Failure::new(Code::Unavailable, message));
            }
            _ => Ok(()),
        };
        super::written(written);
        Ok(None)
    }
}

/// What the command ends with: the status of the job, as `ringfence run` has it.
fn status(end: &Value) -> ExitCode {
    let cause = end["certificate"]["cause"].as_str();
    let code = match (cause, end["return_code"].as_i64()) {
        (Some("wall_clock"), _) => 124,
        (Some("memory"), _) => 137,
        (_, Some(code @ 0..=255)) => code as u8,
        (_, Some(signal @ -64..=-2)) => 128 + signal.unsigned_abs() as u8,
        _ => 1,
    };
    ExitCode::from(code)
}

/// Says why a job did not end by itself.
fn explain(end: &Value) {
    let certificate = &end["certificate"];
    let Some(message) = certificate["message"].as_str() else {
        return;
    };
    if certificate["ended"] == "output" {
        return;
    }
    let mut stderr = anstream::stderr().lock();
    let _ = std::io::Write::write_fmt(
        &mut stderr,
        format_args!("\x1b[1;33mended:\x1b[0m {message}\n"),
    );
}
