//! What a running command says, as far as it is kept.

use super::run::Progress;
use crate::guest::Events;
use futures_util::StreamExt as _;
use ringfence_proto::{Blob, Cause, Certificate, Code, Ended, Event, Exit, Failure, JobEnd};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// One stream: what is kept of it, and how much it was.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) kept: Vec<u8>,
    total: u64,
}

impl Stream {
    /// Keeps what is within the limit, and gives that.
    fn take<'a>(&mut self, bytes: &'a [u8], limit: u64) -> &'a [u8] {
        let room = limit.saturating_sub(self.kept.len() as u64);
        let part = &bytes[..room.min(bytes.len() as u64) as usize];
        self.kept.extend_from_slice(part);
        self.total += bytes.len() as u64;
        part
    }

    pub(super) fn is_cut(&self) -> bool {
        self.total > self.kept.len() as u64
    }
}

/// A command that ended.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) stdout: Stream,
    pub(super) stderr: Stream,
    pub(super) end: JobEnd,
}

/// Reads a command to its end, and passes its output on to whoever watches. A sandbox that breaks
/// off is an end too: what came before is kept.
pub(super) async fn gather(
    mut events: Events,
    limit: u64,
    timeout: Duration,
    watch: Option<&mpsc::Sender<Progress>>,
) -> Result<Gathered, Failure> {
    let begun = Instant::now();
    let (mut stdout, mut stderr) = (Stream::default(), Stream::default());
    let end = loop {
        match events.next().await {
            Some(Ok(Event::Stdout { data, .. })) => {
                let part = stdout.take(&data.0, limit);
                tell(watch, Progress::Stdout, part).await?;
            }
            Some(Ok(Event::Stderr { data, .. })) => {
                let part = stderr.take(&data.0, limit);
                tell(watch, Progress::Stderr, part).await?;
            }
            Some(Ok(Event::End(end))) => break end,
            Some(Ok(_)) => {}
            Some(Err(failure)) => break broken(&failure, begun, timeout),
            None => {
                let failure = Failure::new(Code::Unavailable, "the sandbox went away");
                break broken(&failure, begun, timeout);
            }
        }
    };
    Ok(Gathered {
        stdout,
        stderr,
        end,
    })
}

async fn tell(
    watch: Option<&mpsc::Sender<Progress>>,
    progress: fn(Blob) -> Progress,
    part: &[u8],
) -> Result<(), Failure> {
    let Some(watch) = watch.filter(|_| !part.is_empty()) else {
        return Ok(());
    };
    let gone = |_| Failure::new(Code::Unavailable, "whoever watched has gone");
    watch
        .send(progress(Blob(part.to_vec())))
        .await
        .map_err(gone)
}

/// The end of a command whose sandbox did not tell it.
fn broken(failure: &Failure, begun: Instant, timeout: Duration) -> JobEnd {
    let late = failure.code == Code::DeadlineExceeded;
    let (cause, message) = match late {
        true => (
            Cause::WallClock,
            "the time limit was reached, and the sandbox did not say so",
        ),
        false => (
            Cause::BackendLost,
            "the sandbox ended while the code ran in it",
        ),
    };
    let next = "run it again; if it happens again, give it more memory or less to do";
    let mut certificate = Certificate::new(cause, Ended::Sandbox, message, false, next);
    certificate.survived.files = false;
    certificate.limit = late.then(|| format!("{} s", timeout.as_secs_f64()));
    JobEnd {
        certificate: Some(certificate),
        ..JobEnd::new(Exit::Lost, begun.elapsed())
    }
}
