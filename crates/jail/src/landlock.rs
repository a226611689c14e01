//! A second wall behind the mounts: what may be written, where the kernel has landlock.

use crate::sys;
use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// What can be done to a file that is no folder; the kernel refuses a rule that says more.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

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

/// The rights over something that may be written to.
fn written(kind: FileType, all: u64) -> u64 {
    match kind {
        FileType::Directory => all & !MAKE_CHAR & !MAKE_BLOCK,
        _ => all & OF_FILES,
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
        let file = open(path)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        let access = written(kind, all);
        sys::landlock_allow(rules.as_fd(), file.as_fd(), access)?;
    }
    for path in ["/dev", "/proc"] {
        let access = (WRITE_FILE | IOCTL_DEV) & all;
        sys::landlock_allow(rules.as_fd(), open(Path::new(path))?.as_fd(), access)?;
    }
    sys::landlock_restrict(rules.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_no_rights_of_folders() {
        let makes = READ_DIR | 0b1_1111_1111 << 4;
        for version in 2..=6 {
            let file = written(FileType::RegularFile, all(version));
            assert_eq!(file & makes, 0, "{version}");
            assert_eq!(file & WRITE_FILE, WRITE_FILE);
            assert_eq!(file & !all(version), 0);
            let folder = written(FileType::Directory, all(version));
            assert_eq!(folder & (MAKE_CHAR | MAKE_BLOCK), 0);
            assert_eq!(folder & READ_DIR, READ_DIR);
        }
    }
}
