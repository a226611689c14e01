//! A second wall behind the mounts: what may be written, where the kernel has landlock.

use crate::sys;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const IOCTL_DEV: u64 = 1 << 15;

/// The version of landlock that can be used here, 0 where there is none. Version 1 can't allow a
/// file to be moved from one folder to another, which programs do all the time.
pub(crate) fn version() -> i32 {
    match sys::landlock_version() {
        1 => 0,
        version => version,
    }
}

/// Every file-system right that this version knows.
fn all(version: i32) -> u64 {
    match version {
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    }
}

/// Reading everywhere, writing only beneath `writable`, and from version 6 on no signal and no
/// abstract socket out of the sandbox. Absent landlock is no error: it is a second wall.
pub(crate) fn restrict(writable: &[&Path]) -> io::Result<()> {
    let version = version();
    if version < 1 {
        return Ok(());
    }
    let all = all(version);
    let scopes = if version >= 6 { 3 } else { 0 };
    let size = match version {
        ..=3 => 8,
        4..=5 => 16,
        _ => 24,
    };
    let rules = sys::landlock_create(Some(&[all, 0, scopes]), size)?;
    let open = |path: &Path| openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let read = (EXECUTE | READ_FILE | READ_DIR) & all;
    sys::landlock_allow(rules.as_fd(), open(Path::new("/"))?.as_fd(), read)?;
    for path in writable {
        let access = all & !MAKE_CHAR & !MAKE_BLOCK;
        sys::landlock_allow(rules.as_fd(), open(path)?.as_fd(), access)?;
    }
    for path in ["/dev", "/proc"] {
        let access = (WRITE_FILE | IOCTL_DEV) & all;
        sys::landlock_allow(rules.as_fd(), open(Path::new(path))?.as_fd(), access)?;
    }
    sys::landlock_restrict(rules.as_fd())
}
