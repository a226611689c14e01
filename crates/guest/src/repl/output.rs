//! What a kernel and its children print: to the running call, or kept for the next one.

use crate::input::Channel;
use crate::jobs::{Job, Stream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of each stream that are kept while no call runs.
const BETWEEN_LIMIT: usize = 256 << 10;
/// Most bytes that a pipe can hold, so most that were printed before a call's end and not read.
const PIPE_LIMIT: usize = 1 << 20;

/// The two pipes of a kernel.
pub(crate) struct Outputs {
    stdout: Channel,
    stderr: Channel,
    /// Also keeps a reader's bytes together with their place in the log.
    sink: Mutex<Sink>,
}

struct Sink {
    job: Option<Arc<Job>>,
    between: [Between; 2],
    scratch: Box<[u8]>,
}

/// What was printed while no call ran.
#[derive(Default)]
struct Between {
    bytes: Vec<u8>,
    dropped: u64,
}

/// What one reading of a pipe came to.
#[derive(PartialEq, Eq)]
enum Drained {
    Empty,
    Full,
    Ended,
}

impl Outputs {
    pub(crate) fn new(stdout: Channel, stderr: Channel) -> Arc<Self> {
        let sink = Sink {
            job: None,
            between: Default::default(),
            scratch: vec![0; 64 << 10].into_boxed_slice(),
        };
        Arc::new(Self {
            stdout,
            stderr,
            sink: Mutex::new(sink),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Sink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel(&self, stream: Stream) -> &Channel {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    /// Reads both pipes until they end; meant for a task of its own.
    pub(crate) async fn pump(&self) {
        tokio::join!(self.pump_one(Stream::Stdout), self.pump_one(Stream::Stderr));
    }

    async fn pump_one(&self, stream: Stream) {
        loop {
            let Ok(mut ready) = self.channel(stream).readable().await else {
                return;
            };
            match self.drain_one(stream, 64 << 10) {
                Drained::Empty => ready.clear_ready(),
                Drained::Full => tokio::task::yield_now().await,
                Drained::Ended => return,
            }
        }
    }

    /// Reads what is in the pipe, at most about `most` bytes.
    fn drain_one(&self, stream: Stream, most: usize) -> Drained {
        let mut sink = self.lock();
        let sink = &mut *sink;
        let mut count = 0;
        while count < most {
            match rustix::io::read(self.channel(stream).get_ref(), &mut *sink.scratch) {
                Ok(0) => return Drained::Ended,
                Ok(n) => {
                    count += n;
                    match &sink.job {
                        Some(job) => job.push(stream, &sink.scratch[..n]),
                        None => sink.between[stream as usize].push(&sink.scratch[..n]),
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Drained::Empty,
                Err(_) => return Drained::Ended,
            }
        }
        Drained::Full
    }

    /// From here on output is of this call, after what came since the last.
    pub(crate) fn begin(&self, job: &Arc<Job>) {
        let mut sink = self.lock();
        for stream in [Stream::Stdout, Stream::Stderr] {
            let between = std::mem::take(&mut sink.between[stream as usize]);
            if !between.bytes.is_empty() {
                job.push(stream, &between.bytes);
            }
            if between.dropped > 0 {
                let note = format!(
                    "\n[{} bytes printed between calls left out]\n",
                    between.dropped
                );
                job.push(stream, note.as_bytes());
            }
        }
        sink.job = Some(Arc::clone(job));
    }

    /// Reads all that was printed up to now; what comes later is the next call's.
    pub(crate) fn end(&self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            self.drain_one(stream, PIPE_LIMIT);
        }
        self.lock().job = None;
    }

    /// The end of what was printed on stderr while no call ran, for the failure of a start.
    pub(crate) fn last_words(&self) -> String {
        self.drain_one(Stream::Stderr, PIPE_LIMIT);
        let sink = self.lock();
        let bytes = &sink.between[Stream::Stderr as usize].bytes;
        let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]);
        text.trim().to_owned()
    }
}

impl Between {
    fn push(&mut self, bytes: &[u8]) {
        let room = (BETWEEN_LIMIT - self.bytes.len()).min(bytes.len());
        self.bytes.extend_from_slice(&bytes[..room]);
        self.dropped += (bytes.len() - room) as u64;
    }
}
