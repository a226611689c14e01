//! Fewer, larger writes: a request's head and its body are written by two tasks, and each write
//! would wake the guest on its own.

use crate::backend::Io;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that are held back at most.
const ROOM: usize = 64 << 10;

/// A stream that holds back what is written until it is flushed and every task that was ready then
/// had its turn.
pub(super) struct Gather {
    io: Box<dyn Io>,
    held: Vec<u8>,
    /// Of what is held, this much has been written.
    written: usize,
    /// A flush has waited for the others.
    waited: bool,
}

impl Gather {
    pub(super) fn new(io: Box<dyn Io>) -> Self {
        Self {
            io,
            held: Vec::new(),
            written: 0,
            waited: false,
        }
    }

    fn poll_empty(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.held.len() {
            let rest = &self.held[self.written..];
            match ready!(Pin::new(&mut self.io).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.held.clear();
        self.written = 0;
        self.waited = false;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Gather {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.held.len() >= ROOM {
            ready!(self.poll_empty(cx))?;
        }
        let count = bytes.len().min(ROOM - self.held.len());
        self.held.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.held.is_empty() && !self.waited {
            self.waited = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        ready!(self.poll_empty(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_empty(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl AsyncRead for Gather {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn nothing_is_lost_however_it_is_written() {
        for piece in [1, 7, 4096, ROOM - 1, ROOM, ROOM + 1, 3 * ROOM] {
            let (ours, mut theirs) = tokio::io::duplex(1000);
            let bytes: Vec<u8> = (0..4 * ROOM).map(|n| (n % 251) as u8).collect();
            let sent = bytes.clone();
            let writer = tokio::spawn(async move {
                let mut gather = Gather::new(Box::new(ours));
                for (number, piece) in sent.chunks(piece).enumerate() {
                    gather.write_all(piece).await.unwrap();
                    if number % 3 == 0 {
                        gather.flush().await.unwrap();
                    }
                }
                gather.shutdown().await.unwrap();
            });
            let mut got = Vec::new();
            theirs.read_to_end(&mut got).await.unwrap();
            writer.await.unwrap();
            assert!(got == bytes, "in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn what_is_written_while_a_flush_waits_goes_with_it() {
        let (ours, mut theirs) = tokio::io::duplex(1000);
        let mut gather = Gather::new(Box::new(ours));
        gather.write_all(b"head").await.unwrap();
        std::future::poll_fn(|cx| {
            assert!(Pin::new(&mut gather).poll_flush(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        gather.write_all(b" and body").await.unwrap();
        gather.flush().await.unwrap();
        let mut got = [0; 100];
        let count = theirs.read(&mut got).await.unwrap();
        assert_eq!(&got[..count], b"head and body");
    }
}
