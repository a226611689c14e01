//! A process of this host, told from any later one with the same number.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pid: i32,
    /// Clock ticks from boot to its start.
    started: u64,
    boot: String,
}

impl Process {
    pub(super) fn of(pid: i32) -> Option<Self> {
        Some(Self {
            pid,
            started: start_time(pid)?,
            boot: boot()?.to_owned(),
        })
    }

    /// This one.
    pub(super) fn own() -> Option<Self> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    pub(super) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// Whether it runs, or ran, on this machine since its start.
    pub(super) fn is_of_this_boot(&self) -> bool {
        Some(self.boot.as_str()) == boot()
    }

    /// What to wait for until it is gone; absent where it is.
    pub(super) fn watch(&self) -> Option<OwnedFd> {
        let pidfd = pidfd_open(Pid::from_raw(self.pid)?, PidfdFlags::empty()).ok()?;
        // The descriptor holds whichever process has the number now; only then look who it is.
        self.is_alive().then_some(pidfd)
    }

    /// Kills it, and answers with what to wait for until it is gone.
    pub(super) fn kill(&self) -> Option<OwnedFd> {
        let pidfd = self.watch()?;
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        Some(pidfd)
    }
}

/// Names this boot of the machine; read once, as it stays.
fn boot() -> Option<&'static str> {
    static BOOT: OnceLock<Option<String>> = OnceLock::new();
    let read = || fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    BOOT.get_or_init(|| read().map(|id| id.trim().to_owned()))
        .as_deref()
}

/// Field 22 of `/proc/PID/stat`, for a process that is not a zombie.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, so count from its end.
    let mut rest = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(rest.next()?, "Z" | "X") {
        return None;
    }
    rest.nth(18)?.parse().ok()
}
