//! A process that cleans up after another one, however that one ends.

use crate::sys;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// What a janitor waits for.
pub struct Gone {
    pipe: OwnedFd,
}

impl Gone {
    /// Returns when the process that started the janitor has let go of it or has ended.
    pub fn wait(self) {
        while rustix::io::read(&self.pipe, &mut [0u8; 1]) == Err(rustix::io::Errno::INTR) {}
    }
}

/// Starts a process that does `work`, which can wait for the moment when the answer is dropped or
/// this process has ended, be it by SIGKILL. It needs a caller with one thread.
pub fn janitor(work: impl FnOnce(Gone)) -> io::Result<OwnedFd> {
    let (wait, hold) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    if !sys::fork()? {
        return Ok(hold);
    }
    drop(hold);
    // Whoever waits for the end of our output, or for a signal to our group to take effect, waits
    // for the other process only.
    let _ = rustix::process::setsid();
    if let Ok(null) = openat(
        CWD,
        "/dev/null",
        OFlags::RDWR | OFlags::CLOEXEC,
        Mode::empty(),
    ) {
        for fd in 0..3 {
            let _ = sys::place(null.as_raw_fd(), fd);
        }
    }
    // A panic must not go on in a copy of the caller.
    let work = std::panic::AssertUnwindSafe(|| work(Gone { pipe: wait }));
    let _ = std::panic::catch_unwind(work);
    sys::exit_now(0)
}
