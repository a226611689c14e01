//! The talk with the guest: from the start of what runs to its end, and what is told about it.

use super::asked::Job;
use super::{Run, TIMEOUT};
use crate::cli::output::{Sink, unwritten};
use crate::cli::{say_json, terminal};
use futures_util::StreamExt as _;
use ringfence_core::proto::{
    Blob, Cause, Certificate, Event, ExecRequest, Exit, JobEnd, OUTPUT_LIMIT, Stdin, WriteQuery,
};
use ringfence_core::{Backend, Code, Enforced, Failure, GuestClient, Plan};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The id of the one job in the sandbox.
const JOB: &str = "run";

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

/// The end of a command whose sandbox ended before it could say anything about it.
fn lost(certificate: Certificate, begun: Instant, output: &Sink) -> JobEnd {
    JobEnd {
        stdout_bytes: output.out.total(),
        stderr_bytes: output.err.total(),
        certificate: Some(certificate),
        ..JobEnd::new(Exit::Lost, begun.elapsed())
    }
}

/// A failure as what is known of its sandbox's end explains it.
pub(super) fn explained(failure: Failure, why: Option<Certificate>) -> Failure {
    match why {
        Some(certificate) => Failure::new(failure.code, certificate.message)
            .hint(certificate.next)
            .detail(failure),
        None => failure,
    }
}

impl Run {
    pub(super) async fn drive(
        &self,
        backend: &dyn Backend,
        plan: &Plan,
        job: Job,
        started: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<ExitCode, Failure> {
        match self.talk(backend, plan, job, started).await {
            Err(failure) if failure.code == Code::Unavailable => {
                Err(explained(failure, backend.autopsy(&plan.id).await))
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
            say_json(&Report {
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

    pub(super) fn tell(&self, certificate: Option<&Certificate>) {
        if let Some(certificate) = certificate {
            let _ = writeln!(
                anstream::stderr(),
                "\x1b[1;33mringfence:\x1b[0m {certificate}"
            );
        }
    }
}
