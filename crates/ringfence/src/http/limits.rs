//! How much a request may bring, how slowly, and how often.

use super::problem::Problem;
use super::serve::MOST_HEADERS;
use super::state::App;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, StatusCode, header};
use http_body::{Frame, SizeHint};
use ringfence_core::{Code, Failure};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::time::Sleep;

/// What the parts of an upload take besides the file.
const AROUND: u64 = 1 << 20;

const FINE: u8 = 0;
const STALLED: u8 = 1;
const TOO_LARGE: u8 = 2;

/// A request's body, cut off when it stands still or goes on for too long. Whoever reads it sees
/// an error; what the client is told is decided in [`guard`], once for all routes.
struct Bounded {
    body: Body,
    patience: Duration,
    left: u64,
    timer: Option<Pin<Box<Sleep>>>,
    fate: Arc<AtomicU8>,
}

impl Bounded {
    fn fail(
        &self,
        fate: u8,
        error: std::io::ErrorKind,
    ) -> Option<Result<Frame<Bytes>, axum::Error>> {
        self.fate.store(fate, Ordering::Release);
        Some(Err(axum::Error::new(std::io::Error::from(error))))
    }
}

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let patience = self.patience;
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
            ready!(timer.as_mut().poll(cx));
            return Poll::Ready(self.fail(STALLED, std::io::ErrorKind::TimedOut));
        };
        self.timer = None;
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            match self.left.checked_sub(data.len() as u64) {
                Some(left) => self.left = left,
                None => {
                    let error = std::io::ErrorKind::FileTooLarge;
                    return Poll::Ready(self.fail(TOO_LARGE, error));
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Holds a request to its limits, whatever route it is for.
pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let http = &app.config.http;
    // HTTP/1.1 has counted them before.
    if request.headers().len() > MOST_HEADERS {
        let message = format!("the request has over {MOST_HEADERS} headers");
        return Problem::from(Failure::new(Code::TooLarge, message))
            .with_status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
            .into_response();
    }
    let most = http
        .max_body
        .0
        // Uploads count for themselves, and hear out as much again as they take: many clients
        // read no answer before they have sent everything.
        .max(http.max_upload.0.saturating_mul(2).saturating_add(AROUND));
    let fate = Arc::new(AtomicU8::new(FINE));
    let request = request.map(|body| {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        Body::new(Bounded {
            body,
            patience: http.body_timeout,
            left: most,
            timer: None,
            fate: Arc::clone(&fate),
        })
    });
    let answer = next.run(request).await;
    let failure = match fate.load(Ordering::Acquire) {
        // It was answered without what was missing.
        _ if answer.status().is_success() => return answer,
        STALLED => {
            let seconds = http.body_timeout.as_secs_f64();
            let message = format!("nothing more of the body came for {seconds} s");
            Problem::from(Failure::new(Code::DeadlineExceeded, message))
                .with_status(StatusCode::REQUEST_TIMEOUT)
        }
        TOO_LARGE => Failure::new(Code::TooLarge, format!("the body is over {most} bytes")).into(),
        _ => return answer,
    };
    let mut answer = failure.into_response();
    // The rest of the body would be taken for the next request.
    let close = HeaderValue::from_static("close");
    answer.headers_mut().insert(header::CONNECTION, close);
    answer
}

/// Whose requests are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Counted {
    Key(String),
    Session(String),
    Peer(Option<IpAddr>),
    /// Where too many are counted one by one.
    Others,
}

impl Counted {
    /// Whoever has an address of IPv6 has 2^64 of them.
    pub(crate) fn peer(address: Option<IpAddr>) -> Self {
        Self::Peer(address.map(|address| match address {
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 => v4,
        }))
    }
}

/// Requests in a second, and how many may come at once before that counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rate {
    pub per_second: f64,
    pub burst: f64,
}

impl Rate {
    /// None where there is no limit.
    pub(crate) fn new(per_second: f64, burst: Option<u64>) -> Option<Self> {
        let burst = burst.map_or(per_second.ceil(), |n| n as f64).max(1.0);
        (per_second > 0.0).then_some(Self { per_second, burst })
    }
}

/// How many requests somebody has left.
struct Bucket {
    tokens: f64,
    filled: Instant,
    rate: Rate,
}

impl Bucket {
    fn level(&self, now: Instant) -> f64 {
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        (self.tokens + since * self.rate.per_second).min(self.rate.burst)
    }
}

/// A token bucket for each caller.
#[derive(Default)]
pub(crate) struct Rates {
    buckets: Mutex<HashMap<Counted, Bucket>>,
}

/// Buckets at one time: addresses cost an attacker little.
const BUCKETS: usize = 50_000;

impl Rates {
    /// Takes one request, or says how long to wait for the next.
    pub(crate) fn take(&self, who: Counted, rate: Rate) -> Result<(), Duration> {
        self.take_at(who, rate, Instant::now())
    }

    fn take_at(&self, mut who: Counted, rate: Rate, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS && !buckets.contains_key(&who) {
            // A full one is as good as none.
            buckets.retain(|_, bucket| bucket.level(now) < bucket.rate.burst);
            if buckets.len() >= BUCKETS {
                who = Counted::Others;
            }
        }
        let bucket = buckets.entry(who).or_insert(Bucket {
            tokens: rate.burst,
            filled: now,
            rate,
        });
        let level = bucket.level(now);
        bucket.rate = rate;
        bucket.filled = now;
        bucket.tokens = level.min(rate.burst);
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        let missing = (1.0 - bucket.tokens) / rate.per_second;
        Err(Duration::from_secs_f64(missing))
    }
}

/// Tells a caller to come back later.
pub(crate) fn too_often(wait: Duration) -> Response {
    let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
    let failure =
        Failure::new(Code::TooMany, "too many requests").hint(format!("try again in {seconds} s"));
    let mut answer = Problem::from(failure).into_response();
    answer
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_empties_and_fills() {
        let rates = Rates::default();
        let rate = Rate::new(2.0, Some(3)).unwrap();
        let start = Instant::now();
        let take = |ms| {
            let who = Counted::Key("k".to_owned());
            rates.take_at(who, rate, start + Duration::from_millis(ms))
        };
        assert!((0..3).all(|_| take(0).is_ok()));
        assert_eq!(take(0), Err(Duration::from_millis(500)));
        assert_eq!(take(250), Err(Duration::from_millis(250)));
        assert_eq!(take(500), Ok(()));
        assert!(
            (0..3).all(|_| take(60_000).is_ok()),
            "and no more than it holds"
        );
        assert!(take(60_000).is_err());
        let other = Counted::Key("other".to_owned());
        assert!(rates.take_at(other, rate, start).is_ok());
    }

    #[test]
    fn many_addresses_do_not_fill_the_memory() {
        let rates = Rates::default();
        let rate = Rate::new(0.001, Some(1)).unwrap();
        let start = Instant::now();
        for n in 0..BUCKETS as u32 + 10 {
            let who = Counted::peer(Some(IpAddr::from(n.to_be_bytes())));
            let _ = rates.take_at(who, rate, start);
        }
        assert!(rates.buckets.lock().unwrap().len() <= BUCKETS + 1);
        let known = Counted::peer(Some(IpAddr::from([0, 0, 0, 1])));
        assert!(rates.take_at(known, rate, start).is_err());
    }

    #[test]
    fn an_ipv6_network_is_one_caller() {
        let peer = |text: &str| Counted::peer(Some(text.parse().unwrap()));
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_ne!(peer("10.0.0.1"), peer("10.0.0.2"));
    }
}
