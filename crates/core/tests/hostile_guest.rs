//! A guest that has been taken over: it says anything, at any length, or nothing at all. The client
//! must answer with a failure, soon, and keep no more than its limits.
#![allow(clippy::unwrap_used)]

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::Response;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use ringfence_core::proto::{Command, Event, ExecRequest};
use ringfence_core::{Code, Failure, GuestClient};
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

fn whole(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// The same piece again and again, without end or this many times.
fn repeated(piece: Bytes, times: usize) -> Body {
    let pieces = futures_util::stream::iter(0..times).map(move |_| Ok(Frame::data(piece.clone())));
    StreamBody::new(pieces).boxed_unsync()
}

/// Megabytes of one line, counted as they are taken.
fn counted(sent: Arc<AtomicUsize>, times: usize) -> Body {
    let piece = Bytes::from(vec![b'x'; 1 << 20]);
    let pieces = futures_util::stream::iter(0..times).map(move |_| {
        sent.fetch_add(1, Ordering::Relaxed);
        Ok(Frame::data(piece.clone()))
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// A client of such a guest. Whatever is found out with it was said by the guest: one that was
/// never asked anything fails the test.
struct Client {
    client: GuestClient,
    /// How many requests the guest has answered.
    asked: Arc<AtomicUsize>,
}

impl Client {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Deref for Client {
    type Target = GuestClient;

    fn deref(&self) -> &GuestClient {
        &self.client
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_ne!(self.asked(), 0, "the guest was not asked");
        }
    }
}

/// A client of a guest that gives every request this answer.
async fn client_of(answer: impl Fn() -> Response<Body> + Clone + Send + Sync + 'static) -> Client {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let service = hyper::service::service_fn(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let answer = answer.clone();
        async move { Ok::<_, Infallible>(answer()) }
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(theirs), service);
    tokio::spawn(serving);
    let client = GuestClient::connect(Box::new(ours)).await.unwrap();
    Client { client, asked }
}

fn request() -> ExecRequest {
    let mut request = ExecRequest::new(Command::Argv(vec!["true".to_owned()]));
    request.timeout_ms = Some(1000);
    request
}

/// All events until the stream ends, which it must.
async fn events(client: &Client) -> Result<Vec<Event>, Failure> {
    let mut stream = client.exec_events(&request()).await?;
    let mut all = Vec::new();
    while let Some(event) = stream.next().await {
        all.push(event?);
    }
    Ok(all)
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(Duration::from_secs(60), work).await })
        .expect("the client hangs")
}

/// Runs with a clock that jumps to the next timer when there is nothing to do.
fn run_fast<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(async { tokio::time::timeout(Duration::from_secs(3600), work).await })
        .expect("the client waits for ever")
}

const END: &str = r#"{"end":{"exit":{"code":0},"duration_ms":1,"cpu_ms":1,"peak_memory":1,"left_running":0,"stdout_bytes":0,"stderr_bytes":0}}"#;

#[test]
fn an_honest_answer_is_read() {
    let text = format!("{}\n{END}\n", r#"{"started":{"id":"x"}}"#);
    let all = run(async move {
        let client = client_of(move || Response::new(whole(text.clone()))).await;
        events(&client).await
    });
    assert_eq!(all.unwrap().len(), 2);
}

#[test]
fn nothing_after_the_end_counts() {
    let text = format!("{END}\n{END}\nrubbish\n");
    let all = run(async move {
        let client = client_of(move || Response::new(whole(text.clone()))).await;
        events(&client).await
    });
    assert_eq!(all.unwrap().len(), 1);
}

#[test]
fn a_stream_that_ends_early_is_a_failure() {
    let failure = run(async {
        let client = client_of(|| Response::new(whole("{\"started\":{\"id\":\"x\"}}\n"))).await;
        events(&client).await.unwrap_err()
    });
    assert_eq!(failure.code, Code::Unavailable);
}

#[test]
fn a_line_without_end_is_cut_at_the_limit() {
    let sent = Arc::new(AtomicUsize::new(0));
    let failure = run({
        let sent = Arc::clone(&sent);
        async move {
            let client = client_of(move || Response::new(counted(Arc::clone(&sent), 100))).await;
            events(&client).await.unwrap_err()
        }
    });
    assert_eq!(failure.code, Code::Unavailable);
    // 32 of them are the limit; the rest is on its way.
    let sent = sent.load(Ordering::Relaxed);
    assert!((32..60).contains(&sent), "{sent} of 100 MB were taken");
}

#[test]
fn an_answer_without_end_is_cut_at_the_limit() {
    let failure = run(async {
        let piece = Bytes::from(vec![b' '; 1 << 20]);
        let client = client_of(move || Response::new(repeated(piece.clone(), 100_000))).await;
        client.exec(&request()).await.unwrap_err()
    });
    assert_eq!(failure.code, Code::Unavailable);
}

#[test]
fn a_failure_without_end_is_cut_at_the_limit() {
    let failure = run(async {
        let piece = Bytes::from(vec![b'['; 1 << 20]);
        let client = client_of(move || {
            let mut response = Response::new(repeated(piece.clone(), 100_000));
            *response.status_mut() = http::StatusCode::IM_A_TEAPOT;
            response
        })
        .await;
        client.exec(&request()).await.unwrap_err()
    });
    assert_eq!(failure.code, Code::Unavailable);
}

#[test]
fn events_without_end_stop_at_the_deadline() {
    // Real time: the guest always has something to say, so the clock would never jump.
    let failure = run(async {
        let piece = Bytes::from("{\"started\":{\"id\":\"x\"}}\n".repeat(1000));
        let client = client_of(move || Response::new(repeated(piece.clone(), usize::MAX))).await;
        let mut stream = client.exec_events(&request()).await.unwrap();
        let mut count = 0u64;
        loop {
            match stream.next().await.unwrap() {
                Ok(_) => count += 1,
                Err(failure) => break failure,
            }
            if count.is_multiple_of(10_000) {
                tokio::task::yield_now().await;
            }
        }
    });
    assert_eq!(failure.code, Code::DeadlineExceeded);
}

#[test]
fn a_guest_that_answers_pings_but_no_request_is_a_failure() {
    let failures = run_fast(async {
        let client = client_of(|| Response::new(pending())).await;
        let mut stream = client.exec_events(&request()).await.unwrap();
        let streamed = stream.next().await.unwrap().unwrap_err();
        let buffered = client.exec(&request()).await.unwrap_err();
        let health = client.health().await.unwrap_err();
        assert_eq!(client.asked(), 3);
        [streamed, buffered, health]
    });
    for failure in failures {
        assert_eq!(failure.code, Code::DeadlineExceeded, "{failure:?}");
    }
}

fn pending() -> Body {
    StreamBody::new(futures_util::stream::pending()).boxed_unsync()
}

#[test]
fn a_guest_that_says_nothing_at_all_is_lost() {
    let failure = run_fast(async {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let client = GuestClient::connect(Box::new(ours)).await.unwrap();
        // A request without a deadline of its own.
        let mut request = request();
        request.timeout_ms = None;
        let failure = client.exec(&request).await.unwrap_err();
        // It has heard the client.
        let heard = theirs.read_buf(&mut Vec::with_capacity(1024)).await;
        assert_ne!(heard.unwrap(), 0);
        failure
    });
    assert_eq!(failure.code, Code::Unavailable, "{failure:?}");
}

#[test]
fn a_guest_that_hangs_up_is_lost() {
    let failure = run(async {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        match GuestClient::connect(Box::new(ours)).await {
            Ok(client) => client.exec(&request()).await.unwrap_err(),
            Err(failure) => failure,
        }
    });
    assert_eq!(failure.code, Code::Unavailable);
}

/// Bytes where HTTP/2 should be: the client's answer, whatever it is, comes and is a failure.
fn raw(bytes: Vec<u8>) -> Failure {
    run(async move {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let guest = tokio::spawn(async move {
            let _ = theirs.write_all(&bytes).await;
            // Hangs up when the client has sent a little, not at once.
            theirs.read_buf(&mut Vec::with_capacity(1024)).await
        });
        let failure = match GuestClient::connect(Box::new(ours)).await {
            Ok(client) => client.exec(&request()).await.unwrap_err(),
            Err(failure) => failure,
        };
        assert_ne!(guest.await.unwrap().unwrap(), 0, "the guest heard nothing");
        failure
    })
}

/// JSON that is nearly what is expected: right names, wrong types.
fn nearly() -> impl Strategy<Value = String> {
    let names = prop::sample::select(vec![
        "end",
        "stdout",
        "stderr",
        "started",
        "skipped",
        "result",
        "exit",
        "code",
        "offset",
        "data",
        "id",
        "base64",
        "certificate",
        "x",
    ]);
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("1e999".to_owned()),
        Just("-1".to_owned()),
        Just("18446744073709551616".to_owned()),
        Just("\"\\ud800\"".to_owned()),
        Just("\"not base64\"".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        names.clone().prop_map(|n| format!("\"{n}\"")),
    ];
    leaf.prop_recursive(6, 40, 5, move |inner| {
        let field = (names.clone(), inner.clone()).prop_map(|(n, v)| format!("\"{n}\":{v}"));
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|v| format!("[{}]", v.join(","))),
            prop::collection::vec(field, 0..5).prop_map(|v| format!("{{{}}}", v.join(","))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_for_events(bytes in prop::collection::vec(any::<u8>(), 0..4096), status in 100u16..1000) {
        let end = run(async move {
            let client = client_of(move || {
                let mut response = Response::new(whole(bytes.clone()));
                // Informational ones can't be sent as an answer.
                *response.status_mut() =
                    http::StatusCode::from_u16(status.max(200)).unwrap();
                response
            })
            .await;
            events(&client).await
        });
        prop_assert!(end.is_err());
    }

    #[test]
    fn nearly_right_events(lines in prop::collection::vec(nearly(), 1..8)) {
        let text = format!("{}\n", lines.join("\n"));
        let end = run(async move {
            let client = client_of(move || Response::new(whole(text.clone()))).await;
            events(&client).await
        });
        prop_assert!(end.is_err());
    }

    #[test]
    fn garbage_for_calls_of_tools(bytes in prop::collection::vec(any::<u8>(), 0..4096), nearly in nearly()) {
        for answer in [bytes, format!("{nearly}\n").into_bytes()] {
            let end = run(async move {
                let client = client_of(move || Response::new(whole(answer.clone()))).await;
                let mut calls = client.tool_calls().await?;
                while let Some(call) = calls.next().await {
                    call?;
                }
                Ok::<_, Failure>(())
            });
            prop_assert!(end.is_err());
        }
    }

    #[test]
    fn nearly_right_answers(text in nearly()) {
        let end = run(async move {
            let client = client_of(move || Response::new(whole(text.clone()))).await;
            (client.exec(&request()).await.is_err(), client.health().await.is_err())
        });
        prop_assert_eq!(end, (true, true));
    }

    #[test]
    fn deep_nesting(depth in 100usize..200_000, open in prop::sample::select(vec!["[", "{\"end\":"])) {
        let text = format!("{}\n", open.repeat(depth));
        let end = run(async move {
            let client = client_of(move || Response::new(whole(text.clone()))).await;
            events(&client).await
        });
        prop_assert!(end.is_err());
    }

    #[test]
    fn garbage_for_http(mut bytes in prop::collection::vec(any::<u8>(), 0..2048), framed in any::<bool>()) {
        if framed {
            // An empty SETTINGS frame first, so that what follows is taken for frames.
            let mut start = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
            start.append(&mut bytes);
            bytes = start;
        }
        raw(bytes);
    }
}
