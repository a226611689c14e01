//! A process that cleans up after another one, however that one ends.

use crate::sys;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

/// What a janitor waits for.
pub struct Gone {
    pipe: OwnedFd,
}

/// How the process that started a janitor parted from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting {
    /// It let go of it, or has ended.
    Silent,
    /// It said that there is nothing to do.
    Dismissed,
}

impl Gone {
    /// Returns when the process that started the janitor is done with it.
    pub fn wait(self) -> Parting {
        loop {
            match rustix::io::read(&self.pipe, &mut [0u8; 1]) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(1) => return Parting::Dismissed,
                _ => {
                    // It lets go before its parent hears of its end, and somebody waits for that.
                    std::thread::sleep(Duration::from_millis(2));
                    return Parting::Silent;
                }
            }
        }
    }
}

/// A janitor, seen from the process that started it: it does its work when this is dropped.
#[derive(Debug)]
pub struct Janitor {
    hold: OwnedFd,
}

impl Janitor {
    /// There is nothing left to do for it.
    pub fn dismiss(self) {
        // A janitor that does not hear it looks for work and finds none.
        let _ = rustix::io::write(&self.hold, b".");
    }
}

/// Starts a process that does `work`, which can wait for the moment when the answer is dropped or
/// this process has ended, be it by SIGKILL. It needs a caller with one thread.
pub fn janitor(work: impl FnOnce(Gone)) -> io::Result<Janitor> {
    let (wait, hold) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    if !sys::fork()? {
        return Ok(Janitor { hold });
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
