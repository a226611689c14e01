//! Connections and routes.

use crate::activity::Activity;
use crate::certificates::OomCounter;
use crate::http::{self, Answer, Request, Response};
use crate::jobs::{self, Jobs};
use crate::tree::Supervisors;
use crate::{daemon, exec, files, repl, tools};
use ::http::Method;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use ringfence_proto::{Code, Failure, Health, PROTOCOL, ProcessLimits};
use std::convert::Infallible;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Requests of one connection at a time.
const STREAMS: u32 = 1024;
/// Bytes of a request's body that are taken before anybody reads it: the input of a command that
/// doesn't read is held here.
const STREAM_WINDOW: u32 = 256 << 10;
/// The most that HTTP/2 knows. It must be more than all streams together can hold, or bodies that
/// nobody reads keep all others from being sent. It is a promise and takes no memory.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const _: () = assert!(STREAMS as u64 * STREAM_WINDOW as u64 <= CONNECTION_WINDOW as u64);

/// How a guest is set up; everything that differs between the places it runs in.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder that commands start in.
    pub workspace: PathBuf,
    /// Whether this process is the init or a subreaper, and owns all that is below it.
    pub init: bool,
    /// The `memory.events` (v2) or `memory.oom_control` (v1) of the sandbox's cgroup.
    pub oom_events: Option<Arc<File>>,
    /// The sandbox's memory limit in bytes, for certificates.
    pub memory_limit: Option<u64>,
    /// Descriptors that each process of a command or kernel may have open, at most.
    pub open_files: Option<u64>,
    /// The kernel as an interpreter has compiled it before, if one has.
    pub kernel: Option<PathBuf>,
    /// Bytes of the largest file that each of them may write.
    pub file_size: Option<u64>,
    /// The environment of commands, before what a request adds.
    pub env: Vec<(String, String)>,
}

impl Config {
    /// At most so many bytes for what is kept of jobs, and a small part of the sandbox's memory:
    /// what the code makes the guest keep must never be what the sandbox ends of.
    pub(crate) fn share(&self, most: u64) -> u64 {
        self.memory_limit.map_or(most, |all| most.min(all / 8))
    }

    /// A guest inside another process: no environment, no limits known.
    pub fn new(workspace: impl Into<PathBuf>) -> Self {
        Self {
            workspace: workspace.into(),
            init: false,
            oom_events: None,
            memory_limit: None,
            open_files: None,
            kernel: None,
            file_size: None,
            env: Vec::new(),
        }
    }
}

/// Whom a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Face {
    /// The host, which may do everything.
    Host,
    /// A client of the HasteKit contract: its routes and no others.
    Daemon,
}

/// The path that the host puts before the routes of the HasteKit contract.
const DAEMON: &str = "/daemon";

/// The state of a guest: everything its connections share.
pub struct Guest {
    pub(crate) config: Config,
    activity: Arc<Activity>,
    pub(crate) files: files::Files,
    pub(crate) jobs: Jobs,
    pub(crate) kernels: repl::Kernels,
    pub(crate) tools: tools::Tools,
    pub(crate) supervisors: Arc<Supervisors>,
    pub(crate) oom: OomCounter,
}

impl Guest {
    pub fn new(config: Config) -> Arc<Self> {
        let activity = Activity::new();
        Arc::new(Self {
            files: files::Files::default(),
            jobs: Jobs::new(Arc::clone(&activity), &config),
            kernels: repl::Kernels::default(),
            tools: tools::Tools::default(),
            supervisors: Supervisors::new(config.init),
            oom: OomCounter::new(config.oom_events.clone()),
            config,
            activity,
        })
    }

    /// What was asked for, within what the sandbox allows.
    pub(crate) fn within_limits(&self, mut asked: ProcessLimits) -> ProcessLimits {
        let both = asked.open_files.into_iter().chain(self.config.open_files);
        asked.open_files = both.min();
        let both = asked.file_size.into_iter().chain(self.config.file_size);
        asked.file_size = both.min();
        asked
    }

    /// Kills every process below this one, and comes back when all of them are gone.
    pub async fn kill_everything(&self) {
        self.supervisors.kill_everything().await;
    }

    /// Collects orphans from now on, for an init. Needs a runtime.
    pub fn start_reaper(&self) {
        self.supervisors.start_reaper();
    }

    /// Comes back when nothing has gone on for so long.
    pub async fn idle_for(&self, limit: Duration) {
        while let Some(left) = limit
            .checked_sub(self.activity.idle())
            .filter(|l| !l.is_zero())
        {
            tokio::time::sleep(left).await;
        }
    }

    /// Speaks HTTP/1.1 or HTTP/2 with the host on one stream until it ends.
    pub async fn serve(self: Arc<Self>, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        self.speak(Face::Host, io, Builder::new(TokioExecutor::new()))
            .await;
    }

    /// Speaks HTTP/2 alone and so first: who listens hears that somebody is there.
    pub(crate) async fn greet(
        self: Arc<Self>,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) {
        let builder = Builder::new(TokioExecutor::new()).http2_only();
        self.speak(Face::Host, io, builder).await;
    }

    /// The same with a client of the HasteKit contract.
    pub async fn serve_daemon(
        self: Arc<Self>,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) {
        self.speak(Face::Daemon, io, Builder::new(TokioExecutor::new()))
            .await;
    }

    async fn speak(
        self: Arc<Self>,
        face: Face,
        io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        mut builder: Builder<TokioExecutor>,
    ) {
        let service = hyper::service::service_fn(move |request| {
            let guest = Arc::clone(&self);
            async move { Ok::<_, Infallible>(guest.answer(face, request).await) }
        });
        builder
            .http2()
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS);
        // A stream that breaks ends its connection and nothing else.
        let _ = builder.serve_connection(TokioIo::new(io), service).await;
    }

    async fn answer(self: Arc<Self>, face: Face, request: Request) -> Response {
        let active = counts(&request).then(|| self.activity.begin());
        let path = request.uri().path().to_owned();
        let theirs = match face {
            Face::Daemon => Some(path.as_str()),
            Face::Host => path
                .strip_prefix(DAEMON)
                .filter(|rest| rest.starts_with('/')),
        };
        let answer = match theirs {
            Some(path) => daemon::route(&self, request, path).await,
            None => self.route(request).await,
        };
        let response = match answer {
            Ok(response) => response,
            Err(failure) => http::failed(&failure),
        };
        match active {
            Some(active) => active.until_sent(response),
            None => response,
        }
    }

    async fn route(self: Arc<Self>, request: Request) -> Answer {
        let path = request.uri().path().to_owned();
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (request.method(), segments.as_slice()) {
            (&Method::GET, ["health"]) => http::json(&Health {
                status: "ok".to_owned(),
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                jobs: self.jobs.running(),
                kernels: self.kernels.count(),
                idle_ms: self.activity.idle().as_millis() as u64,
            }),
            (&Method::POST, ["exec"]) => exec::run(&self, request).await,
            (_, ["jobs", rest @ ..]) => jobs::route(&self, request, rest).await,
            (_, ["kernels", rest @ ..]) => repl::route(&self, request, rest).await,
            (_, ["files", rest @ ..]) => files::route(&self, request, rest).await,
            (_, ["tools", rest @ ..]) => tools::route(&self, request, rest).await,
            _ => Err(Failure::new(
                Code::NotFound,
                format!("no such route: {path}"),
            )),
        }
    }
}

/// Whether a request is a sign that somebody uses the sandbox: not where somebody only watches,
/// or waits for what the sandbox may want.
fn counts(request: &Request) -> bool {
    let path = request.uri().path().trim_matches('/');
    let watches = matches!(path, "health" | "daemon/health" | "tools/calls");
    request.method() != Method::GET || !watches
}
