//! Whether anybody uses this sandbox: requests and jobs, and how long ago the last of them ended.

use crate::http::{Body, Response};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Counts what goes on.
pub(crate) struct Activity {
    state: Mutex<State>,
}

struct State {
    active: usize,
    /// When the last of them ended; at first, when the guest started.
    since: Instant,
}

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                active: 0,
                since: Instant::now(),
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that something goes on until what this answers is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Active {
        self.lock().active += 1;
        Active(Arc::clone(self))
    }

    /// How long nothing has gone on.
    pub(crate) fn idle(&self) -> Duration {
        let state = self.lock();
        match state.active {
            0 => state.since.elapsed(),
            _ => Duration::ZERO,
        }
    }
}

/// A request or a job that goes on.
pub(crate) struct Active(Arc<Activity>);

impl Drop for Active {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.active -= 1;
        state.since = Instant::now();
    }
}

impl Active {
    /// Lets a request go on until its answer was sent, or whoever reads it has gone.
    pub(crate) fn until_sent(self, answer: Response) -> Response {
        answer.map(|body| {
            Held {
                body,
                _active: self,
            }
            .boxed_unsync()
        })
    }
}

/// A body that keeps its request going.
struct Held {
    body: Body,
    _active: Active,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_is_not_idle() {
        let activity = Activity::new();
        let (one, two) = (activity.begin(), activity.begin());
        drop(one);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(activity.idle(), Duration::ZERO);
        drop(two);
        std::thread::sleep(Duration::from_millis(2));
        assert!(activity.idle() >= Duration::from_millis(2));
    }
}
