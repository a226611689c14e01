//! A real guest process, and a client that speaks to it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each test program uses a part"
)]

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, combinators::BoxBody};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ringfence_proto::{Event, ExecResult, Failure, JobInfo};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub type Body = BoxBody<Bytes, Infallible>;

/// The longest that a test waits for a state.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Guest {
    pub process: Child,
    pub folder: tempfile::TempDir,
}

impl Guest {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    pub async fn start_with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("work");
        std::fs::create_dir(&workspace).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_ringfence-guest"))
            .arg("--listen")
            .arg(folder.path().join("socket"))
            .arg("--workspace")
            .arg(&workspace)
            .args(arguments)
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .spawn()
            .unwrap();
        let guest = Self { process, folder };
        until("the guest listens", || {
            // The file is there a moment before anybody listens.
            std::os::unix::net::UnixStream::connect(guest.folder.path().join("socket")).is_ok()
        })
        .await;
        guest
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    pub async fn connect(&self) -> Client {
        let stream = loop {
            // It exists a moment before it listens.
            match tokio::net::UnixStream::connect(self.socket()).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                .await
                .unwrap();
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Client { sender, task }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(5);
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub struct Client {
    pub sender: SendRequest<Body>,
    task: tokio::task::JoinHandle<()>,
}

impl Client {
    /// Closes the connection as a client that dies does.
    pub fn hang_up(self) {
        self.task.abort();
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        accept: Option<&str>,
        body: Body,
    ) -> http::Response<Incoming> {
        let mut sender = self.sender.clone();
        let mut request = Request::builder()
            .method(method)
            .uri(format!("http://guest{path}"));
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        sender
            .send_request(request.body(body).unwrap())
            .await
            .unwrap()
    }

    pub async fn call(&self, method: Method, path: &str, body: &Value) -> (StatusCode, Bytes) {
        let body = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let response = self.send(method, path, None, full(body)).await;
        let status = response.status();
        (
            status,
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    }

    pub async fn get<T: serde::de::DeserializeOwned>(&self, path: &str) -> T {
        let (status, body) = self.call(Method::GET, path, &Value::Null).await;
        assert!(
            status.is_success(),
            "{path}: {}",
            String::from_utf8_lossy(&body)
        );
        serde_json::from_slice(&body).unwrap()
    }

    pub async fn try_post(&self, path: &str, body: Value) -> Result<Bytes, Failure> {
        let (status, body) = self.call(Method::POST, path, &body).await;
        if status.is_success() {
            return Ok(body);
        }
        let failure: Failure = serde_json::from_slice(&body).unwrap();
        assert_eq!(failure.code.http_status(), status.as_u16());
        Err(failure)
    }

    pub async fn exec(&self, request: Value) -> ExecResult {
        serde_json::from_slice(&self.try_post("/exec", request).await.unwrap()).unwrap()
    }

    pub async fn refused(&self, request: Value) -> Failure {
        self.try_post("/exec", request).await.unwrap_err()
    }

    /// Runs a shell string.
    pub async fn shell(&self, text: &str) -> ExecResult {
        self.exec(json!({"command": {"shell": text}})).await
    }

    pub async fn job(&self, request: Value) -> JobInfo {
        serde_json::from_slice(&self.try_post("/jobs", request).await.unwrap()).unwrap()
    }

    pub async fn wait(&self, id: &str) -> JobInfo {
        self.get(&format!("/jobs/{id}/wait")).await
    }

    pub async fn result(&self, id: &str) -> ExecResult {
        self.wait(id).await;
        self.get(&format!("/jobs/{id}/result")).await
    }

    pub async fn delete(&self, id: &str) -> StatusCode {
        self.call(Method::DELETE, &format!("/jobs/{id}"), &Value::Null)
            .await
            .0
    }

    pub async fn events(&self, path: &str) -> Events {
        let response = self.send(Method::GET, path, None, full(Bytes::new())).await;
        assert!(response.status().is_success());
        Events {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }

    pub async fn exec_events(&self, request: Value) -> Events {
        let body = full(request.to_string().into());
        let response = self
            .send(Method::POST, "/exec", Some("application/x-ndjson"), body)
            .await;
        assert!(response.status().is_success());
        Events {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }
}

pub fn full(bytes: Bytes) -> Body {
    Full::new(bytes).boxed()
}

/// A body that is written while it is being sent.
pub fn channel() -> (tokio::sync::mpsc::Sender<Bytes>, Body) {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(4);
    let stream = futures_util::stream::unfold(receiver, async |mut receiver| {
        let bytes = receiver.recv().await?;
        Some((
            Ok::<_, Infallible>(hyper::body::Frame::data(bytes)),
            receiver,
        ))
    });
    // The stream is Send but not Sync, which a boxed body must be.
    (
        sender,
        BoxBody::new(http_body_util::StreamBody::new(SyncStream(Box::pin(
            stream,
        )))),
    )
}

struct SyncStream<S>(S);

impl<S: futures_util::Stream + Unpin> futures_util::Stream for SyncStream<S> {
    type Item = S::Item;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<S::Item>> {
        std::pin::Pin::new(&mut self.0).poll_next(context)
    }
}

pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Events {
    pub fn new(response: http::Response<Incoming>) -> Self {
        assert!(response.status().is_success());
        Self {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }

    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }

    pub async fn all(mut self) -> Vec<Event> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

/// Waits for a state.
pub async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < deadline, "waited too long: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// An argument of `sleep` that no other process has.
pub fn marker() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("987.{:07}{n:04}", std::process::id())
}

/// Living processes that have this argument.
pub fn with_argument(argument: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(line) = std::fs::read(format!("/proc/{pid}/cmdline")) else {
            continue;
        };
        if line
            .split(|b| *b == 0)
            .any(|word| word == argument.as_bytes())
        {
            found.push(pid);
        }
    }
    found
}

/// Bytes of memory that a process has for itself.
pub fn private_memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    text.lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}
