//! One connection: whether it is in use, and how long it may stand still.

use super::flow::Flows;
use axum::body::{Body, Bytes};
use http::Version;
use http_body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What a connection is doing.
pub(super) struct Activity {
    now: Mutex<Now>,
    flows: Arc<Flows>,
    header_timeout: Duration,
    idle_timeout: Duration,
    /// How long an answer may wait for a client that takes nothing of it.
    patience: Duration,
}

struct Now {
    /// Requests whose answers are not complete.
    requests: usize,
    /// One has come at all.
    begun: bool,
    /// There, bytes between two requests do not have to be the start of one.
    http2: bool,
    /// Of the last answer's end; before the first request, of the connection's start.
    idle_since: Instant,
    /// Of the first byte since then.
    heard: Option<Instant>,
}

/// What is to be done with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Look again then.
    Wait(Instant),
    /// A request began and does not get on.
    Cut,
    /// Nobody asks for anything.
    Idle,
}

impl Activity {
    pub(super) fn new(
        header_timeout: Duration,
        idle_timeout: Duration,
        patience: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            now: Mutex::new(Now {
                requests: 0,
                begun: false,
                http2: false,
                idle_since: Instant::now(),
                heard: None,
            }),
            flows: Arc::default(),
            header_timeout,
            idle_timeout,
            patience,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come; it is under way until what this gives is dropped.
    pub(super) fn begin(self: &Arc<Self>, version: Version) -> UnderWay {
        let mut now = self.lock();
        now.requests += 1;
        now.begun = true;
        now.http2 = version == Version::HTTP_2;
        UnderWay(Arc::clone(self))
    }

    /// The body of an answer: its request is under way until it is through.
    pub(super) fn answer(&self, body: Body, under_way: UnderWay) -> Body {
        let http2 = self.lock().http2;
        match http2 {
            true => self.flows.add(body, under_way),
            // All that a client does not take, it does not take from the connection.
            false => Holding::until_end(body, under_way),
        }
    }

    fn hear(&self) {
        let mut now = self.lock();
        if now.requests == 0 {
            now.heard.get_or_insert_with(Instant::now);
        }
    }

    /// Whether it has served and now waits for more.
    pub(super) fn is_idle(&self) -> bool {
        let now = self.lock();
        now.requests == 0 && now.begun && (now.http2 || now.heard.is_none())
    }

    pub(super) fn has_begun(&self) -> bool {
        self.lock().begun
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.flows.take_back(self.patience);
        let now = self.lock();
        // What it is doing may change at any time, and other timers start then.
        let often = self.header_timeout.min(self.idle_timeout);
        let soon = Instant::now() + often.min(self.patience);
        let (due, verdict) = match now.heard {
            _ if now.requests > 0 => return Verdict::Wait(soon),
            _ if !now.begun => (now.idle_since + self.header_timeout, Verdict::Cut),
            Some(heard) if !now.http2 => (heard + self.header_timeout, Verdict::Cut),
            _ => (now.idle_since + self.idle_timeout, Verdict::Idle),
        };
        match due > Instant::now() {
            true => Verdict::Wait(due.min(soon)),
            false => verdict,
        }
    }
}

/// A request under way.
pub(super) struct UnderWay(Arc<Activity>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut now = self.0.lock();
        now.requests -= 1;
        now.idle_since = Instant::now();
        now.heard = None;
    }
}

/// The body of an answer, with what is held until it is through.
pub(super) struct Holding<T> {
    body: Body,
    _held: T,
}

impl<T: Send + Unpin + 'static> Holding<T> {
    pub(super) fn until_end(body: Body, held: T) -> Body {
        Body::new(Self { body, _held: held })
    }
}

impl<T: Unpin> http_body::Body for Holding<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes to and from a client. One that takes nothing although there is something to say is cut;
/// one that is told nothing may wait for ever.
pub(super) struct Wire<S, T> {
    io: S,
    activity: Arc<Activity>,
    patience: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Given back when the connection is closed, also after it became a WebSocket.
    _place: T,
}

impl<S, T> Wire<S, T> {
    pub(super) fn new(io: S, activity: Arc<Activity>, patience: Duration, place: T) -> Self {
        Self {
            io,
            activity,
            patience,
            stalled: None,
            _place: place,
        }
    }

    /// Fails what has been waiting for too long.
    fn unless_stalled<R>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let patience = self.patience;
        let timer = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin, T: Unpin> AsyncRead for Wire<S, T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.hear();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, T: Unpin> AsyncWrite for Wire<S, T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.unless_stalled(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.unless_stalled(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.unless_stalled(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.unless_stalled(cx, shut)
    }
}
