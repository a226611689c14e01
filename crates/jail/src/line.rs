//! A line between two processes of ours.

use crate::launch::out_of_the_way;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// One end of a line; each message is one byte, and may carry a descriptor.
#[derive(Debug)]
pub(crate) struct Line(OwnedFd);

impl Line {
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (one, other) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self(out_of_the_way(one)?), Self(out_of_the_way(other)?)))
    }

    pub(crate) fn send(&self, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        sendmsg(
            &self.0,
            &[io::IoSlice::new(&[1])],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// The next message; an error when the other side has ended.
    pub(crate) fn receive(&self) -> io::Result<Option<OwnedFd>> {
        use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0u8; 1];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(
            &self.0,
            &mut [io::IoSliceMut::new(&mut byte)],
            &mut ancillary,
            flags,
        )?;
        if got.bytes == 0 {
            return Err(io::Error::from_raw_os_error(libc::EPIPE));
        }
        Ok(ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        }))
    }

    /// The descriptor that the next message carries.
    pub(crate) fn receive_descriptor(&self) -> io::Result<OwnedFd> {
        let none = io::Error::from_raw_os_error(libc::EPROTO);
        self.receive()?.ok_or(none)
    }

    /// Waits until there is a message, the other side has ended, or the time is over.
    pub(crate) fn wait(&self, most: Duration) {
        is_ready_within(&self.0, PollFlags::IN | PollFlags::HUP, most);
    }

    /// Whether the other side has ended.
    pub(crate) fn has_ended(&self) -> bool {
        is_ready(&self.0, PollFlags::HUP)
    }
}

impl From<OwnedFd> for Line {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Line> for OwnedFd {
    fn from(line: Line) -> Self {
        line.0
    }
}

/// Whether one of these events is there now.
pub(crate) fn is_ready(fd: &OwnedFd, events: PollFlags) -> bool {
    is_ready_within(fd, events, Duration::ZERO)
}

/// Whether one of these events comes in time; a signal may end the waiting.
fn is_ready_within(fd: &OwnedFd, events: PollFlags, most: Duration) -> bool {
    let most = Timespec::try_from(most).ok();
    matches!(poll(&mut [PollFd::new(fd, events)], most.as_ref()), Ok(1..))
}
