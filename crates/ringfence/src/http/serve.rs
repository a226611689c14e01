//! Connections: accepted, bounded, cut when they stand still, drained at the end.

use super::App;
use crate::config::Listen;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use ringfence_core::Failure;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

/// Where connections come from.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

impl Listener {
    pub(crate) async fn bind(listen: &Listen) -> Result<Self, Failure> {
        match listen {
            Listen::Tcp(address) => TcpListener::bind(address)
                .await
                .map(Self::Tcp)
                .map_err(|e| Failure::io(format!("cannot listen on {address}"), &e)),
            Listen::Unix(path) => {
                let what = || format!("cannot listen on {}", path.display());
                // A socket that a killed server left; one that is in use answers.
                if std::os::unix::net::UnixStream::connect(path).is_err() {
                    let _ = std::fs::remove_file(path);
                }
                UnixListener::bind(path)
                    .map(Self::Unix)
                    .map_err(|e| Failure::io(what(), &e))
            }
        }
    }

    /// The address that was bound, with the port that was chosen.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| "?".to_owned(), |a| format!("http://{a}")),
            Self::Unix(listener) => listener
                .local_addr()
                .ok()
                .and_then(|a| Some(format!("unix:{}", a.as_pathname()?.display())))
                .unwrap_or_else(|| "unix".to_owned()),
        }
    }

    async fn accept(&self) -> std::io::Result<Box<dyn Connection>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Answers are small, and each one is waited for.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Serves until `stop`, then lets what runs come to its end.
pub(crate) async fn serve(
    app: &App,
    listener: Listener,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let http = &app.config.http;
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(http.header_timeout)
        .max_buf_size((http.max_headers.0 as usize).max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(http.max_headers.0 as u32)
        .max_concurrent_streams(256)
        .keep_alive_interval(Duration::from_secs(20));
    let connections = Arc::new(Semaphore::new(http.max_connections as usize));
    let graceful = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let place = tokio::select! {
            () = &mut stop => break,
            place = Arc::clone(&connections).acquire_owned() => place,
        };
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        let io = match accepted {
            Ok(io) => io,
            Err(error) => {
                // Out of descriptors, most likely: those who wait are served as others go.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(io), service);
        let connection = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            // One that breaks ends itself and nothing else.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let drained = tokio::time::timeout(http.drain, graceful.shutdown()).await;
    if drained.is_err() {
        tracing::warn!("some requests did not end in time and are cut off");
    }
}
