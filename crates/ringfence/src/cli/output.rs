//! Where the output of a run goes.

use ringfence_core::Failure;
use std::io;
use std::process::ExitCode;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Where the output goes: on as it comes, or kept for the report.
pub(super) struct Sink {
    json: bool,
    limit: u64,
    pub(super) out: Stream,
    pub(super) err: Stream,
    // Written by another thread, so that a reader that stands still can't keep us from a signal.
    stdout: tokio::io::Stdout,
    stderr: tokio::io::Stderr,
}

/// One stream: what is kept of it, and how much.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) kept: Vec<u8>,
    passed: u64,
    pub(super) dropped: u64,
}

impl Stream {
    /// Bytes that came, within the limit and over it.
    pub(super) fn total(&self) -> u64 {
        self.passed + self.dropped
    }

    /// The part of `bytes` that is within the limit.
    fn take<'a>(&mut self, bytes: &'a [u8], limit: u64) -> &'a [u8] {
        let room = limit.saturating_sub(self.passed).min(bytes.len() as u64);
        self.passed += room;
        self.dropped += bytes.len() as u64 - room;
        &bytes[..room as usize]
    }
}

impl Sink {
    pub(super) fn new(json: bool, limit: u64) -> Self {
        Self {
            json,
            limit,
            out: Stream::default(),
            err: Stream::default(),
            stdout: tokio::io::stdout(),
            stderr: tokio::io::stderr(),
        }
    }

    pub(super) async fn stdout(&mut self, bytes: &[u8]) -> io::Result<()> {
        let part = self.out.take(bytes, self.limit);
        if self.json {
            self.out.kept.extend_from_slice(part);
        } else {
            let rest = pass_on_at_once(io::stdout(), part)?;
            pass_on(&mut self.stdout, rest).await?;
        }
        Ok(())
    }

    pub(super) async fn stderr(&mut self, bytes: &[u8]) -> io::Result<()> {
        let part = self.err.take(bytes, self.limit);
        if self.json {
            self.err.kept.extend_from_slice(part);
        } else {
            let rest = pass_on_at_once(io::stderr(), part)?;
            pass_on(&mut self.stderr, rest).await?;
        }
        Ok(())
    }
}

/// Writes as much as surely doesn't block, and gives back the rest: a thread that may block costs
/// more than a short output does.
fn pass_on_at_once(to: impl std::os::fd::AsFd, bytes: &[u8]) -> io::Result<&[u8]> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    // What a pipe takes whole when it says that it takes anything.
    const WHOLE: usize = 4096;
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut ready = [PollFd::new(&to, PollFlags::OUT)];
    if bytes.len() > WHOLE || !matches!(poll(&mut ready, Some(&now)), Ok(1..)) {
        return Ok(bytes);
    }
    let written = rustix::io::write(&to, bytes)?;
    Ok(bytes.get(written..).unwrap_or_default())
}

pub(super) async fn pass_on(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    to.write_all(bytes).await?;
    to.flush().await
}

/// Output that nobody takes ends the run: as a pipe would end any program, or with what is wrong.
pub(super) fn unwritten(error: &io::Error) -> Result<ExitCode, Failure> {
    const BROKEN_PIPE: u8 = 128 + 13;
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(ExitCode::from(BROKEN_PIPE)),
        _ => Err(Failure::io("cannot write the output", error)),
    }
}
