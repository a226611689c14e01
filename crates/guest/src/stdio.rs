//! Standard input and output as one stream.

use ringfence_guest::nonblocking;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(crate) struct Stdio {
    input: AsyncFd<OwnedFd>,
    output: AsyncFd<OwnedFd>,
}

impl Stdio {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            input: nonblocking(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?)?,
            output: nonblocking(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?)?,
        })
    }
}

pub(crate) fn read(fd: &OwnedFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(fd, buffer)?)
}

impl AsyncRead for Stdio {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.input.poll_read_ready(context))?;
            let result = guard.try_io(|fd| read(fd.get_ref(), buffer.initialize_unfilled()));
            if let Ok(result) = result {
                buffer.advance(result?);
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Stdio {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.output.poll_write_ready(context))?;
            let result = guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?));
            if let Ok(result) = result {
                return Poll::Ready(result);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
