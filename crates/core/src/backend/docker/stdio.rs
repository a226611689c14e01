//! The standard streams of a process in a container, as one stream to the guest behind them.

use bollard::container::LogOutput;
use bollard::errors::Error;
use bytes::{Buf as _, Bytes};
use futures_util::{Stream, StreamExt as _};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes that are kept of what a guest complains about.
const COMPLAINT: usize = 2 << 10;

pub(super) struct Stdio {
    output: Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>,
    input: Pin<Box<dyn AsyncWrite + Send>>,
    /// What came and was not read yet.
    rest: Bytes,
    complaint: Vec<u8>,
}

impl Stdio {
    pub(super) fn new(
        output: Pin<Box<dyn Stream<Item = Result<LogOutput, Error>> + Send>>,
        input: Pin<Box<dyn AsyncWrite + Send>>,
    ) -> Self {
        Self {
            output,
            input,
            rest: Bytes::new(),
            complaint: Vec::new(),
        }
    }

    /// Waits for the first that comes, which is read later; false where nothing will.
    pub(super) async fn spoke(&mut self) -> bool {
        let spoke = std::future::poll_fn(|context| self.poll_rest(context)).await;
        spoke.is_ok_and(|any| any)
    }

    /// Has something to be read, unless the end has come.
    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.rest.is_empty() {
            match ready!(self.output.poll_next_unpin(context)) {
                Some(Ok(LogOutput::StdOut { message })) => self.rest = message,
                Some(Ok(LogOutput::StdErr { message })) => {
                    let room = COMPLAINT.saturating_sub(self.complaint.len());
                    self.complaint
                        .extend_from_slice(&message[..room.min(message.len())]);
                }
                Some(Ok(_)) => {
                    let why = "the engine sent what belongs to no stream";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
                }
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                None if self.complaint.is_empty() => return Poll::Ready(Ok(false)),
                None => {
                    let words = String::from_utf8_lossy(&self.complaint).into_owned();
                    return Poll::Ready(Err(io::Error::other(words)));
                }
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Whether nothing will come any more: the process behind it is gone.
    pub(super) fn has_ended(&mut self) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            match self.output.poll_next_unpin(&mut context) {
                Poll::Ready(Some(Ok(LogOutput::StdOut { message }))) => {
                    self.rest = [&self.rest[..], &message[..]].concat().into();
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return true,
                Poll::Pending => return false,
            }
        }
    }
}

impl AsyncRead for Stdio {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(context))?;
        let part = buffer.remaining().min(self.rest.len());
        buffer.put_slice(&self.rest[..part]);
        self.rest.advance(part);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stdio {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.input.as_mut().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.input.as_mut().poll_shutdown(context)
    }
}
