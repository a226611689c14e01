//! The routes as a client sees them, over HTTP/1.1 and HTTP/2.

use super::*;
use crate::server::{Config, Guest};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ringfence_proto::{Code, EditResult, ListResult};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

enum Client {
    One(http1::SendRequest<Body>),
    Two(http2::SendRequest<Body>),
}

struct Answer {
    status: u16,
    headers: ::http::HeaderMap,
    body: hyper::body::Incoming,
}

impl Client {
    async fn connect(guest: &Arc<Guest>, version: u8) -> Self {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(Arc::clone(guest).serve(theirs));
        let io = TokioIo::new(ours);
        if version == 1 {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            Self::One(sender)
        } else {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Self::Two(sender)
        }
    }

    async fn try_send(&mut self, method: &str, uri: &str, body: Body) -> hyper::Result<Answer> {
        let uri = format!("http://guest{uri}");
        let request = ::http::Request::builder()
            .method(method)
            .uri(uri)
            .body(body)
            .unwrap();
        let response = match self {
            Self::One(sender) => sender.send_request(request).await?,
            Self::Two(sender) => sender.send_request(request).await?,
        };
        let (parts, body) = response.into_parts();
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
        })
    }

    async fn send(&mut self, method: &str, uri: &str, body: impl Into<Bytes>) -> Answer {
        let body = Full::new(body.into())
            .map_err(|never| match never {})
            .boxed_unsync();
        self.try_send(method, uri, body).await.unwrap()
    }
}

impl Answer {
    async fn bytes(self) -> Bytes {
        self.body.collect().await.unwrap().to_bytes()
    }

    async fn json<T: serde::de::DeserializeOwned>(self) -> T {
        assert_eq!(self.status, 200);
        serde_json::from_slice(&self.bytes().await).unwrap()
    }

    async fn failure(self) -> Failure {
        let status = self.status;
        let failure: Failure = serde_json::from_slice(&self.bytes().await).unwrap();
        assert_eq!(failure.code.http_status(), status);
        failure
    }
}

fn guest() -> (tempfile::TempDir, Arc<Guest>) {
    let folder = tempfile::tempdir().unwrap();
    let guest = Guest::new(Config::new(folder.path()));
    (folder, guest)
}

fn chunk(number: u64) -> Bytes {
    let words = (0..8192_u64).flat_map(|n| (number * 8192 + n).to_le_bytes());
    words.collect::<Vec<_>>().into()
}

#[tokio::test]
async fn large_files_stream() {
    const CHUNKS: u64 = 512; // of 64 KiB
    for version in [1, 2] {
        let (folder, guest) = guest();
        let mut client = Client::connect(&guest, version).await;
        let pieces = stream::iter(0..CHUNKS).map(|n| Ok(Frame::data(chunk(n))));
        let body = StreamBody::new(pieces).boxed_unsync();
        let uri = "/files/content?path=a%2Fbig%20file&mode=384";
        let answer = client.try_send("PUT", uri, body).await.unwrap();
        let entry: Entry = answer.json().await;
        assert_eq!((entry.size, entry.mode), (CHUNKS << 16, 0o600));
        let mut written = vec![0; 1 << 16];
        let file = fs::File::open(folder.path().join("a/big file")).unwrap();
        file.read_exact_at(&mut written, 300 << 16).unwrap();
        assert_eq!(written, chunk(300));

        let mut answer = client
            .send("GET", "/files/content?path=a/big%20file", "")
            .await;
        assert_eq!(answer.headers["content-length"], (CHUNKS << 16).to_string());
        assert_eq!(
            answer.headers["x-ringfence-size"],
            (CHUNKS << 16).to_string()
        );
        let (mut got, mut at) = (Vec::new(), 0);
        while let Some(frame) = answer.body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(data.len() <= 256 << 10);
            got.extend_from_slice(&data);
            while got.len() >= 1 << 16 {
                assert!(got[..1 << 16] == chunk(at));
                got.drain(..1 << 16);
                at += 1;
            }
        }
        assert_eq!((at, got.len()), (CHUNKS, 0));

        let range = "/files/content?path=a/big%20file&offset=65544&length=16";
        let answer = client.send("GET", range, "").await;
        assert_eq!(answer.headers["content-length"], "16");
        assert_eq!(
            answer.headers["x-ringfence-size"],
            (CHUNKS << 16).to_string()
        );
        assert_eq!(answer.bytes().await, chunk(1).slice(8..24));
        let end = format!(
            "/files/content?path=a/big%20file&offset={}",
            (CHUNKS << 16) - 3
        );
        assert_eq!(client.send("GET", &end, "").await.bytes().await.len(), 3);
        let at_end = format!("/files/content?path=a/big%20file&offset={}", CHUNKS << 16);
        assert!(
            client
                .send("GET", &at_end, "")
                .await
                .bytes()
                .await
                .is_empty()
        );
        let past = format!(
            "/files/content?path=a/big%20file&offset={}",
            (CHUNKS << 16) + 1
        );
        assert_eq!(
            client.send("GET", &past, "").await.failure().await.code,
            Code::InvalidInput
        );
        let zero = "/files/content?path=a/big%20file&length=0";
        assert!(client.send("GET", zero, "").await.bytes().await.is_empty());
        let proc = "/files/content?root=/&path=/proc/self/status";
        assert!(
            client
                .send("GET", proc, "")
                .await
                .bytes()
                .await
                .starts_with(b"Name:")
        );
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_changes_nothing() {
    for version in [1, 2] {
        let (folder, guest) = guest();
        fs::write(folder.path().join("file"), "old").unwrap();
        for uri in [
            "/files/content?path=file",
            "/files/content?path=file&append=true",
        ] {
            let mut client = Client::connect(&guest, version).await;
            // The guest has taken the first piece and begun a file when the second one fails.
            let (sent, wait) = tokio::sync::oneshot::channel();
            let path = folder.path().to_owned();
            let first = stream::once(async { Ok(Frame::data(Bytes::from(vec![b'x'; 1 << 20]))) });
            let second = stream::once(async move {
                let _ = wait.await;
                Err(std::io::Error::other("gone"))
            });
            let body = StreamBody::new(first.chain(second)).boxed_unsync();
            let begun = async {
                while fs::read_dir(&path).unwrap().count() == 1 {
                    tokio::task::yield_now().await;
                }
                let _ = sent.send(());
            };
            let (answer, ()) = tokio::join!(client.try_send("PUT", uri, body), begun);
            if let Ok(answer) = answer {
                assert_ne!(answer.status, 200);
            }
            drop(client);
            while fs::read_dir(&path).unwrap().count() > 1 {
                tokio::task::yield_now().await;
            }
            assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "old");
        }
    }
}

#[tokio::test]
async fn folders_travel_as_archives() {
    for version in [1, 2] {
        let (folder, guest) = guest();
        let mut client = Client::connect(&guest, version).await;
        let big = "x".repeat(3 << 20);
        fs::create_dir_all(folder.path().join("from/deep")).unwrap();
        fs::write(folder.path().join("from/deep/big"), &big).unwrap();
        std::os::unix::fs::symlink("deep/big", folder.path().join("from/link")).unwrap();
        let answer = client.send("GET", "/files/tar?path=from", "").await;
        assert_eq!(answer.headers["content-type"], "application/x-tar");
        let archive = answer.bytes().await;
        let answer = client
            .send("PUT", "/files/tar?path=to", archive.clone())
            .await;
        assert_eq!(answer.status, 204);
        assert_eq!(
            fs::read_to_string(folder.path().join("to/link")).unwrap(),
            big
        );

        let half = archive.slice(..archive.len() / 2);
        let failure = client
            .send("PUT", "/files/tar?path=half", half)
            .await
            .failure()
            .await;
        assert!(failure.message.contains("ended early"), "{failure}");
        assert!(!folder.path().join("half/deep/big").exists());

        let mut client = Client::connect(&guest, version).await;
        // Broken off where an entry ends: only the body says that there was more.
        let cut = archive.slice(..512);
        let pieces = [Ok(Frame::data(cut)), Err(std::io::Error::other("gone"))];
        let body = StreamBody::new(stream::iter(pieces)).boxed_unsync();
        let answer = client.try_send("PUT", "/files/tar?path=cut", body).await;
        assert!(answer.is_err() || answer.is_ok_and(|a| a.status != 204));
        let failure = client_failure(&guest, "GET", "/files/tar?path=none").await;
        assert_eq!(failure.code, Code::NotFound);
    }
}

async fn client_failure(guest: &Arc<Guest>, method: &str, uri: &str) -> Failure {
    Client::connect(guest, 2)
        .await
        .send(method, uri, "")
        .await
        .failure()
        .await
}

#[tokio::test]
async fn the_other_routes_answer() {
    let (folder, guest) = guest();
    let mut client = Client::connect(&guest, 2).await;
    let create = r#"{"path":"f","edit":{"create":{"text":"one\n"}}}"#;
    let made: EditResult = client
        .send("POST", "/files/edit", create)
        .await
        .json()
        .await;
    assert!(!made.existed);
    let copy = r#"{"from":"f","to":"g/h"}"#;
    let entry: Entry = client.send("POST", "/files/copy", copy).await.json().await;
    assert_eq!(entry.path, "g/h");
    let moved = r#"{"from":"f","to":"/workspace/i"}"#;
    let entry: Entry = client.send("POST", "/files/move", moved).await.json().await;
    assert_eq!(entry.path, "i");
    let entry: Entry = client
        .send("POST", "/files/mkdir", r#"{"path":"j/k"}"#)
        .await
        .json()
        .await;
    assert_eq!(entry.path, "j/k");
    let list: ListResult = client
        .send("GET", "/files/list?recursive=true", "")
        .await
        .json()
        .await;
    let paths: Vec<_> = list.entries.into_iter().map(|e| e.path).collect();
    assert_eq!(paths, ["g", "g/h", "i", "j", "j/k"]);
    let stat: Entry = client
        .send("GET", "/files/stat?path=i", "")
        .await
        .json()
        .await;
    assert_eq!(stat.size, 4);
    let glob = r#"{"pattern":"**/h"}"#;
    let found: ringfence_proto::GlobResult =
        client.send("POST", "/files/glob", glob).await.json().await;
    assert_eq!(found.entries.len(), 1);
    let grep = r#"{"pattern":"^one$"}"#;
    let found: ringfence_proto::GrepResult =
        client.send("POST", "/files/grep", grep).await.json().await;
    assert_eq!(found.files.len(), 2);
    assert_eq!(
        client
            .send("DELETE", "/files?path=g&recursive=true", "")
            .await
            .status,
        204
    );
    assert!(!folder.path().join("g").exists());

    for (method, uri, code) in [
        ("GET", "/files/content?path=../x", Code::Forbidden),
        ("GET", "/files/content?path=none", Code::NotFound),
        ("GET", "/files/content", Code::InvalidInput),
        (
            "GET",
            "/files/content?path=i&colour=red",
            Code::InvalidInput,
        ),
        ("GET", "/files/content?path=i&offset=-1", Code::InvalidInput),
        ("GET", "/files/content?path=i&root=/none", Code::NotFound),
        ("GET", "/files/nothing", Code::NotFound),
        ("DELETE", "/files", Code::InvalidInput),
        ("POST", "/files/edit", Code::InvalidInput),
        ("PUT", "/files/content?path=/etc/passwd", Code::Forbidden),
    ] {
        let failure = client_failure(&guest, method, uri).await;
        assert_eq!(failure.code, code, "{method} {uri}: {failure}");
    }
}
