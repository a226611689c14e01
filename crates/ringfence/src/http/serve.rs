//! Connections: accepted, bounded, cut when they stand still, drained at the end.

use super::connection::{Activity, Verdict, Wire};
use crate::config::{Http, Listen};
use axum::Router;
use axum::body::Body;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use ringfence_core::Failure;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tower::Service as _;

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
                if is_left_over(path) {
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

    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
            Self::Unix(_) => None,
        }
    }

    async fn accept(&self) -> io::Result<(Box<dyn Connection>, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // Answers are small, and each one is waited for.
                let _ = stream.set_nodelay(true);
                // A peer that lost its power says nothing; one that waits for events doesn't either.
                let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
                let _ = rustix::net::sockopt::set_tcp_keepidle(&stream, Duration::from_secs(60));
                Ok((Box::new(stream), Peer(Some(address.ip().to_canonical()))))
            }
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), Peer(None))),
        }
    }
}

/// A socket that a killed server left: nobody answers there.
fn is_left_over(path: &Path) -> bool {
    let there = std::fs::symlink_metadata(path);
    there.is_ok_and(|there| there.file_type().is_socket())
        && std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Who is at the other end, as far as the network knows; nobody in particular behind a socket in
/// the file system.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub Option<IpAddr>);

/// Headers of a request.
pub(super) const MOST_HEADERS: usize = 100;

/// A place among the connections there may be.
struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Place {
    fn new(permit: OwnedSemaphorePermit) -> Self {
        super::seen::connections(1.0);
        Self { _permit: permit }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        super::seen::connections(-1.0);
    }
}

/// Shared by all connections.
struct Server {
    builder: Builder<TokioExecutor>,
    router: Router,
    http: Http,
    stop: watch::Receiver<bool>,
    /// Others wait for a place: whoever has nothing to ask goes.
    crowd: Notify,
    /// Goes with the last connection.
    _all: mpsc::Sender<()>,
}

/// Serves until `stop`, then lets what runs come to its end.
pub(crate) async fn serve(
    http: &Http,
    listener: Listener,
    router: Router,
    stop: impl Future<Output = ()>,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        // This one also counts while nothing is asked for; ours knows the difference.
        .header_read_timeout(None)
        .max_headers(MOST_HEADERS)
        .max_buf_size((http.max_headers.0 as usize).max(8192));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(http.max_headers.0 as u32)
        .max_concurrent_streams(256)
        .keep_alive_interval(Duration::from_secs(20));
    let (stopping, stopped) = watch::channel(false);
    let (all, mut ended) = mpsc::channel::<()>(1);
    let server = Arc::new(Server {
        builder,
        router,
        http: http.clone(),
        stop: stopped,
        crowd: Notify::new(),
        _all: all,
    });
    tokio::select! {
        () = stop => {}
        () = server.accept(&listener) => {}
    }
    drop(listener);
    let _ = stopping.send(true);
    drop(server);
    // Nothing is ever sent: this waits until every connection has let go.
    if tokio::time::timeout(http.drain, ended.recv())
        .await
        .is_err()
    {
        tracing::warn!("some requests did not end in time and are cut off");
    }
}

impl Server {
    async fn accept(self: &Arc<Self>, listener: &Listener) {
        let places = Arc::new(Semaphore::new(self.http.max_connections as usize));
        loop {
            let Some(permit) = self.place(&places).await else {
                return;
            };
            match listener.accept().await {
                Ok((io, peer)) => {
                    let server = Arc::clone(self);
                    tokio::spawn(async move { server.attend(io, peer, Place::new(permit)).await });
                }
                Err(error) => {
                    // Out of descriptors, most likely: those who wait are served as others go.
                    tracing::warn!(%error, "cannot accept a connection");
                    self.crowd.notify_waiters();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Those for whom there is no place wait where they are: the system queues them.
    async fn place(&self, places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        loop {
            if places.available_permits() == 0 {
                self.crowd.notify_waiters();
            }
            let place = Arc::clone(places).acquire_owned();
            if let Ok(place) = tokio::time::timeout(Duration::from_secs(1), place).await {
                return place.ok();
            }
        }
    }

    async fn attend(&self, io: Box<dyn Connection>, peer: Peer, place: Place) {
        let http = &self.http;
        let patience = http.body_timeout;
        let activity = Activity::new(http.header_timeout, http.connection_idle, patience);
        let wire = Wire::new(io, Arc::clone(&activity), patience, place);
        let connection = self.builder.serve_connection_with_upgrades(
            TokioIo::new(wire),
            service_fn(|request| {
                let under_way = activity.begin(request.version());
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(peer);
                let answer = self.router.clone().call(request);
                let activity = Arc::clone(&activity);
                async move {
                    let answer = answer.await?;
                    Ok::<_, Infallible>(answer.map(|body| activity.answer(body, under_way)))
                }
            }),
        );
        let mut connection = pin!(connection);
        let mut stop = self.stop.clone();
        let mut closing = false;
        loop {
            let look = match activity.verdict() {
                Verdict::Wait(until) => until,
                Verdict::Idle if !closing => {
                    connection.as_mut().graceful_shutdown();
                    closing = true;
                    tokio::time::Instant::now() + http.header_timeout
                }
                Verdict::Cut | Verdict::Idle => return,
            };
            tokio::select! {
                // One that breaks ends itself and nothing else.
                _ = connection.as_mut() => return,
                () = tokio::time::sleep_until(look) => {}
                _ = stop.wait_for(|stop| *stop), if !closing => {
                    if !activity.has_begun() {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                    closing = true;
                }
                () = self.crowd.notified(), if !closing => {
                    if activity.is_idle() {
                        connection.as_mut().graceful_shutdown();
                        closing = true;
                    }
                }
            }
        }
    }
}
