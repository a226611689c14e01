//! The way to a guest: by its pod's address where we can reach it, else through the API server.
//! Both are one stream, which breaks as soon as the cluster says that the pod has ended.

use super::cluster::failed;
use super::{CONTAINER, PORT};
use crate::backend::Io;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{AttachParams, AttachedProcess};
use ringfence_proto::{Certificate, Code, Failure};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// How long a connection may take.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long a guest that has just been started may take to listen.
const STARTING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// What is on its way in either direction through the API server, at most.
const BUFFER: usize = 256 << 10;

/// How guests are reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reach {
    /// By address where we run in the cluster ourselves, else through the API server.
    #[default]
    Auto,
    Address,
    Exec,
}

/// To the port of a guest.
pub(super) async fn by_address(address: &str, secret: &str) -> Result<Box<dyn Io>, Failure> {
    let begun = Instant::now();
    let unreachable = |why: &dyn std::fmt::Display| {
        Failure::new(
            Code::Unavailable,
            format!("cannot reach the sandbox at {address}"),
        )
        .hint("from outside of the cluster, `--kube-reach exec` goes through its API server")
        .detail(why)
    };
    let mut stream = loop {
        let connecting = TcpStream::connect((address, PORT));
        match tokio::time::timeout(CONNECTING, connecting).await {
            Ok(Ok(stream)) => break stream,
            Ok(Err(error))
                if error.kind() == io::ErrorKind::ConnectionRefused
                    && begun.elapsed() < STARTING =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(Err(error)) => return Err(unreachable(&error)),
            Err(_) => return Err(unreachable(&"it does not answer")),
        }
    };
    let _ = stream.set_nodelay(true);
    let said = stream.write_all(secret.as_bytes()).await;
    said.map_err(|e| unreachable(&e))?;
    Ok(Box::new(stream))
}

/// By a process in the pod that is joined to its guest's door.
pub(super) async fn by_exec(
    api: &Api<Pod>,
    pod: &str,
    command: [&str; 3],
    secret: &str,
) -> Result<Box<dyn Io>, Failure> {
    let parameters = AttachParams {
        container: Some(CONTAINER.to_owned()),
        stdin: true,
        stdout: true,
        stderr: false,
        max_stdin_buf_size: Some(BUFFER),
        max_stdout_buf_size: Some(BUFFER),
        ..AttachParams::default()
    };
    let what = || format!("cannot reach the sandbox in pod {pod}");
    let joining = api.exec(pod, command, &parameters);
    let joined = tokio::time::timeout(CONNECTING, joining).await;
    let silent = || Failure::new(Code::Unavailable, format!("{}: no answer", what()));
    let mut process = joined.map_err(|_| silent())?.map_err(|e| match e {
        // The kubelet's refusals are no words of the API server.
        e @ kube::Error::Api(_) => failed(what(), e),
        e => Failure::new(Code::Unavailable, what()).detail(e),
    })?;
    let (Some(input), Some(output)) = (process.stdin(), process.stdout()) else {
        return Err(Failure::new(Code::Internal, what()));
    };
    let mut joined = Joined {
        input,
        output,
        _process: process,
    };
    let said = joined.write_all(secret.as_bytes()).await;
    said.map_err(|e| Failure::new(Code::Unavailable, what()).detail(e))?;
    Ok(Box::new(joined))
}

/// The standard streams of a process in a pod; when this is dropped, it ends.
struct Joined<R, W> {
    input: W,
    output: R,
    _process: AttachedProcess,
}

impl<R: AsyncRead + Unpin, W: Unpin> AsyncRead for Joined<R, W> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_read(context, buffer)
    }
}

impl<R: Unpin, W: AsyncWrite + Unpin> AsyncWrite for Joined<R, W> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.input).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.input).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.input).poll_shutdown(context)
    }
}

/// A stream that ends with the pod at its other end. A node that is gone sends no last word, so
/// the cluster's has to do.
pub(super) struct Mortal {
    io: Box<dyn Io>,
    end: Pin<Box<dyn Future<Output = Option<Arc<Certificate>>> + Send>>,
    /// How the connection ended; the cluster has a moment to say why.
    broken: Option<(io::Result<()>, Pin<Box<tokio::time::Sleep>>)>,
}

/// How long after a connection the reason for its end may come.
const REASON: Duration = Duration::from_secs(3);

impl Mortal {
    pub(super) fn new(io: Box<dyn Io>, mut end: watch::Receiver<Option<Arc<Certificate>>>) -> Self {
        let end = Box::pin(async move {
            let ended = end.wait_for(Option::is_some).await;
            ended.ok().and_then(|end| end.clone())
        });
        Self {
            io,
            end,
            broken: None,
        }
    }
}

impl AsyncRead for Mortal {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &mut *self;
        if me.broken.is_none() {
            // What came before the end is heard to its end.
            let filled = buffer.filled().len();
            match Pin::new(&mut me.io).poll_read(context, buffer) {
                Poll::Ready(Ok(())) if buffer.filled().len() > filled => {
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(done) => {
                    me.broken = Some((done, Box::pin(tokio::time::sleep(REASON))));
                }
                Poll::Pending => {}
            }
        }
        match me.end.as_mut().poll(context) {
            Poll::Ready(certificate) => {
                // It is asked once; from here on there is nothing to wait for.
                me.end = Box::pin(std::future::pending());
                let words = certificate.map_or_else(
                    || "the sandbox was removed".to_owned(),
                    |certificate| certificate.message.clone(),
                );
                Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, words)))
            }
            Poll::Pending => {
                let Some((done, reason)) = &mut me.broken else {
                    return Poll::Pending;
                };
                std::task::ready!(reason.as_mut().poll(context));
                Poll::Ready(std::mem::replace(done, Ok(())))
            }
        }
    }
}

impl AsyncWrite for Mortal {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
