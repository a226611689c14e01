//! What happens in a job, as a stream for whoever follows it.

use super::{Job, NDJSON, Stream, Tie};
use crate::http::{self, Body, Response};
use crate::log::Read;
use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use ringfence_proto::{Event, JobEnd, OutputQuery};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// Most bytes of one event.
const CHUNK: usize = 64 << 10;

/// Counts as a reader of a job until it is dropped. A server that lost its own asks whether others
/// have one.
pub(super) struct Reading(Arc<Job>);

impl Reading {
    pub(super) fn begin(job: &Arc<Job>) -> Self {
        job.lock().readers += 1;
        Self(Arc::clone(job))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.readers = state.readers.saturating_sub(1);
        state.read = Instant::now();
    }
}

/// A reader of a job's events.
struct Follower {
    job: Arc<Job>,
    changed: watch::Receiver<u64>,
    at: OutputQuery,
    phase: Phase,
    _reading: Option<Reading>,
    /// Held until the last event was taken.
    _tie: Option<Tie>,
}

#[derive(PartialEq, Eq)]
enum Phase {
    First,
    Middle,
    Over,
}

/// The events of a job as lines of JSON.
pub(super) fn events(job: Arc<Job>, at: OutputQuery, tie: Option<Tie>) -> Response {
    let changed = job.changed.subscribe();
    let reading = at.follow.then(|| Reading::begin(&job));
    let follower = Follower {
        job,
        changed,
        at,
        phase: Phase::First,
        _reading: reading,
        _tie: tie,
    };
    let lines = stream::unfold(follower, async |mut follower| {
        let bytes = follower.next().await?;
        Some((Ok(Frame::data(bytes)), follower))
    });
    http::with_type(NDJSON, body(lines))
}

fn body<S>(frames: S) -> Body
where
    S: stream::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + 'static,
{
    StreamBody::new(frames).boxed_unsync()
}

impl Follower {
    /// The next lines; none after the last.
    async fn next(&mut self) -> Option<Bytes> {
        match self.phase {
            Phase::First => {
                self.phase = Phase::Middle;
                return Some(line(&Event::Started {
                    id: self.job.id.clone(),
                    detached: self.job.detached,
                }));
            }
            Phase::Over => return None,
            Phase::Middle => {}
        }
        loop {
            self.changed.borrow_and_update();
            let (events, end) = self.collect();
            let mut lines = Vec::new();
            for event in &events {
                lines.extend_from_slice(&line(event));
            }
            if !lines.is_empty() {
                return Some(lines.into());
            }
            if let Some(end) = end {
                self.phase = Phase::Over;
                return Some(line(&Event::End(end)));
            }
            if !self.at.follow || self.changed.changed().await.is_err() {
                return None;
            }
        }
    }

    /// What is new on each stream, at most one chunk of each, and the end if there is one.
    fn collect(&mut self) -> (Vec<Event>, Option<JobEnd>) {
        let state = self.job.lock();
        let mut events = Vec::new();
        let end = state.end.as_ref().map(|(end, _)| end.clone());
        let last = end.is_some() || !self.at.follow;
        for (stream, log, at) in [
            (Stream::Stdout, &state.stdout, &mut self.at.stdout),
            (Stream::Stderr, &state.stderr, &mut self.at.stderr),
        ] {
            match log.read(*at, CHUNK) {
                Read::Chunk(mut data) => {
                    let more = *at + (data.len() as u64) < log.total();
                    cut_at_character(&mut data, last && !more);
                    if data.is_empty() {
                        continue;
                    }
                    let offset = *at;
                    *at += data.len() as u64;
                    let data = data.into();
                    events.push(match stream {
                        Stream::Stdout => Event::Stdout { offset, data },
                        Stream::Stderr => Event::Stderr { offset, data },
                    });
                }
                Read::Skipped { to } => {
                    let stream = match stream {
                        Stream::Stdout => "stdout",
                        Stream::Stderr => "stderr",
                    };
                    events.push(Event::Skipped {
                        stream: stream.to_owned(),
                        from: *at,
                        to,
                    });
                    *at = to;
                }
            }
        }
        while let Some(rich) = state.results.get(self.at.results as usize) {
            events.push(Event::Result {
                index: self.at.results,
                rich: rich.clone(),
            });
            self.at.results += 1;
        }
        (events, end)
    }
}

/// Leaves the start of a character that is not yet whole for the next event, so that text stays
/// text. `last` when nothing more will come.
fn cut_at_character(data: &mut Vec<u8>, last: bool) {
    if last {
        return;
    }
    if let Err(error) = std::str::from_utf8(data)
        && error.error_len().is_none()
    {
        data.truncate(error.valid_up_to());
    }
}

fn line(event: &Event) -> Bytes {
    let mut bytes = serde_json::to_vec(event).unwrap_or_default();
    bytes.push(b'\n');
    bytes.into()
}

/// The bytes of standard output from `at` on until the end, for terminals; gaps are jumped over.
pub(crate) fn raw_output<T: Send + 'static>(job: Arc<Job>, at: u64, held: T) -> Body {
    let changed = job.changed.subscribe();
    body(stream::unfold(
        (job, changed, at, held),
        async |(job, mut changed, mut at, held)| {
            loop {
                changed.borrow_and_update();
                let (read, ended) = {
                    let state = job.lock();
                    (state.stdout.read(at, CHUNK), state.end.is_some())
                };
                match read {
                    Read::Skipped { to } => at = to,
                    Read::Chunk(data) if !data.is_empty() => {
                        at += data.len() as u64;
                        return Some((Ok(Frame::data(data.into())), (job, changed, at, held)));
                    }
                    Read::Chunk(_) if ended => return None,
                    Read::Chunk(_) => changed.changed().await.ok()?,
                }
            }
        },
    ))
}
