//! Answers over HTTP/2. There a client says how much of each answer it has room for, and one that
//! never says so would hold its request for ever, though the connection itself gets on. An answer
//! that has something to say and is not asked for it is taken back.

use super::connection::UnderWay;
use axum::body::{Body, Bytes};
use http_body::{Body as _, Frame, SizeHint};
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes that are handed over at one time: a client has its whole patience for each.
const PIECE: usize = 16 << 10;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answers of one connection that are on their way.
#[derive(Default)]
pub(super) struct Flows {
    all: Mutex<(u64, HashMap<u64, Arc<Flow>>)>,
}

/// One of them; nothing once it was taken back.
struct Flow(Mutex<Option<Sending>>);

struct Sending {
    body: Body,
    /// What came of it and is yet to be handed over.
    rest: Bytes,
    /// Since when there is something that nobody asks for; unset while the body has nothing to say.
    since: Option<Instant>,
    _under_way: UnderWay,
}

impl Flows {
    /// The same body, which can be taken back.
    pub(super) fn add(self: &Arc<Self>, body: Body, under_way: UnderWay) -> Body {
        let flow = Arc::new(Flow(Mutex::new(Some(Sending {
            body,
            rest: Bytes::new(),
            since: Some(Instant::now()),
            _under_way: under_way,
        }))));
        let mut all = locked(&self.all);
        let number = all.0;
        all.0 += 1;
        all.1.insert(number, Arc::clone(&flow));
        drop(all);
        Body::new(Flowing {
            flow,
            number,
            flows: Arc::clone(self),
        })
    }

    /// Takes those back that nobody has asked for in this time, with all that they hold.
    pub(super) fn take_back(&self, patience: Duration) {
        let all: Vec<Arc<Flow>> = locked(&self.all).1.values().cloned().collect();
        for flow in all {
            let mut now = locked(&flow.0);
            let since = now.as_ref().and_then(|sending| sending.since);
            let sending = match since.is_some_and(|since| since.elapsed() >= patience) {
                true => now.take(),
                false => None,
            };
            drop(now);
            if sending.is_some() {
                tracing::debug!("an answer that nobody takes is taken back");
            }
        }
    }
}

/// What the connection sees of an answer.
struct Flowing {
    flow: Arc<Flow>,
    number: u64,
    flows: Arc<Flows>,
}

impl Drop for Flowing {
    fn drop(&mut self) {
        locked(&self.flows.all).1.remove(&self.number);
    }
}

impl Sending {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            self.since = None;
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        self.since = Some(Instant::now());
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl http_body::Body for Flowing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match &mut *locked(&self.flow.0) {
            Some(sending) => sending.poll(cx),
            None => {
                let late = io::Error::from(io::ErrorKind::TimedOut);
                Poll::Ready(Some(Err(axum::Error::new(late))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let now = locked(&self.flow.0);
        let done = |sending: &Sending| sending.rest.is_empty() && sending.body.is_end_stream();
        now.as_ref().is_some_and(done)
    }

    fn size_hint(&self) -> SizeHint {
        let now = locked(&self.flow.0);
        let Some(sending) = &*now else {
            return SizeHint::new();
        };
        let (of_body, rest) = (sending.body.size_hint(), sending.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower() + rest);
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::Activity;
    use super::*;
    use futures_util::FutureExt as _;
    use http::Version;
    use http_body_util::BodyExt as _;

    const LONG: Duration = Duration::from_secs(3600);

    fn flowing(body: Body, patience: Duration) -> (Arc<Activity>, Body) {
        let activity = Activity::new(LONG, LONG, patience);
        let under_way = activity.begin(Version::HTTP_2);
        let body = activity.answer(body, under_way);
        (activity, body)
    }

    #[tokio::test]
    async fn what_nobody_takes_is_taken_back() {
        for (patience, taken_back) in [(LONG, false), (Duration::ZERO, true)] {
            let (activity, mut body) = flowing(Body::from(vec![7; 3 * PIECE / 2]), patience);
            let hint = http_body::Body::size_hint(&body);
            assert_eq!(hint.exact(), Some(3 * PIECE as u64 / 2));
            let first = body.frame().await.unwrap().unwrap();
            assert_eq!(first.into_data().unwrap().len(), PIECE);
            activity.verdict();
            assert_eq!(activity.is_idle(), taken_back, "what it held is free");
            assert_eq!(body.frame().await.unwrap().is_err(), taken_back);
        }
    }

    #[tokio::test]
    async fn what_has_nothing_to_say_may_wait() {
        let stream = futures_util::stream::pending::<Result<Bytes, io::Error>>();
        let (activity, mut body) = flowing(Body::from_stream(stream), Duration::ZERO);
        for _ in 0..2 {
            assert!(body.frame().now_or_never().is_none());
            activity.verdict();
            assert!(!activity.is_idle());
        }
    }

    #[tokio::test]
    async fn a_whole_answer_comes_in_pieces() {
        let sent: Vec<u8> = (0..5 * PIECE / 2).map(|n| n as u8).collect();
        let (activity, body) = flowing(Body::from(sent.clone()), LONG);
        assert_eq!(body.collect().await.unwrap().to_bytes(), sent);
        assert!(activity.is_idle());
    }
}
