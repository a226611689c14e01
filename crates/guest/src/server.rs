//! Connections and routes.

use crate::http::{self, Answer, Request, Response};
use crate::files;
use ::http::Method;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ringfence_proto::{Code, Failure, Health, PROTOCOL};
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};

/// How a guest is set up; everything that differs between the places it runs in.
#[derive(Debug, Clone)]
pub struct Config {
    /// The folder that commands start in.
    pub workspace: PathBuf,
}

/// The state of a guest: everything its connections share.
pub struct Guest {
    pub(crate) config: Config,
    pub(crate) files: files::Files,
}

impl Guest {
    pub fn new(config: Config) -> Arc<Self> {
        Arc::new(Self { config, files: files::Files::default() })
    }

    /// Speaks HTTP/1.1 or HTTP/2 on one stream until it ends.
    pub async fn serve(self: Arc<Self>, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = hyper::service::service_fn(move |request| {
            let guest = Arc::clone(&self);
            async move { Ok::<_, Infallible>(guest.answer(request).await) }
        });
        let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        builder
            .http2()
            .initial_stream_window_size(1 << 20)
            .initial_connection_window_size(4 << 20)
            .max_concurrent_streams(1024);
        // A stream that breaks ends its connection and nothing else.
        let _ = builder.serve_connection(TokioIo::new(io), service).await;
    }

    async fn answer(self: Arc<Self>, request: Request) -> Response {
        match self.route(request).await {
            Ok(response) => response,
            Err(failure) => http::failed(&failure),
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
                jobs: 0,
                kernels: 0,
            }),
            (_, ["files", rest @ ..]) => files::route(&self, request, rest).await,
            _ => Err(Failure::new(Code::NotFound, format!("no such route: {path}"))),
        }
    }
}
