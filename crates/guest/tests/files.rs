//! File routes of a real guest, whose threads are few.
#![allow(clippy::unwrap_used, reason = "a test that fails here has failed")]
mod support;

use bytes::Bytes;
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use ringfence_proto::{Code, Failure};
use serde_json::Value;
use std::sync::Arc;
use support::{Guest, PATIENCE, channel, full};

/// The header of a file of 1 MiB, and the start of it.
fn start_of_an_archive(name: &str) -> Bytes {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_size(1 << 20);
    header.set_mode(0o644);
    header.set_cksum();
    [header.as_bytes(), &[b'x'; 512][..]].concat().into()
}

#[tokio::test]
async fn stalled_archives_leave_the_other_routes_alone() {
    let guest = Guest::start().await;
    let client = Arc::new(guest.connect().await);
    let mut stalled = Vec::new();
    // Four at work and eight that wait.
    for i in 0..12 {
        let (sender, body) = channel();
        let start = start_of_an_archive(&format!("file{i}"));
        sender.send(start).await.unwrap();
        let client = Arc::clone(&client);
        let upload = tokio::spawn(async move {
            let answer = client.send(Method::PUT, "/files/tar?path=in", None, body);
            answer.await.status()
        });
        stalled.push((sender, upload));
    }
    // All of them are on their way before the next, which is one too many.
    tokio::task::yield_now().await;
    let one_more = client.send(Method::PUT, "/files/tar?path=in", None, full(Bytes::new()));
    let refused = tokio::time::timeout(PATIENCE, one_more).await.unwrap();
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let failure: Failure = serde_json::from_slice(&body).unwrap();
    assert_eq!(failure.code, Code::TooMany);

    std::fs::write(guest.workspace().join("file"), "text").unwrap();
    let stat = client.get::<Value>("/files/stat?path=file");
    let stat = tokio::time::timeout(PATIENCE, stat).await.unwrap();
    assert_eq!(stat["size"], 4);

    // Each gets its turn.
    for (i, (sender, upload)) in stalled.into_iter().enumerate() {
        sender
            .send(vec![b'x'; (1 << 20) - 512].into())
            .await
            .unwrap();
        drop(sender);
        let status = tokio::time::timeout(PATIENCE, upload).await.unwrap();
        assert_eq!(status.unwrap(), StatusCode::NO_CONTENT);
        let file = guest.workspace().join(format!("in/file{i}"));
        assert_eq!(std::fs::metadata(file).unwrap().len(), 1 << 20);
    }
}
