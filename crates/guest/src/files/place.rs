//! Puts a finished thing in its place in one step: what is there is the old or the new, whole.

use super::beneath::Place;
use super::remove;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;
use std::fs::File;
use std::hash::{BuildHasher as _, Hasher as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a file hands on of its permissions: nothing becomes setuid or setgid by us, also not in a
/// folder whose own bit is handed down to what is made in it.
pub(crate) const KEPT: u32 = 0o1777;

/// What happens to a thing that is already there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Existing {
    Replace,
    Refuse,
}

/// What a rename left under the old name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    Nothing,
    /// What was at the place before.
    Old,
}

/// A thing under a name of its own in the folder where it will end; dropped, it is removed.
#[derive(Debug)]
pub(crate) struct Temp {
    dir: OwnedFd,
    name: String,
}

impl Temp {
    /// Reserves a name beside a place; nothing is made yet.
    pub(crate) fn beside(place: &Place) -> Result<Self, Errno> {
        let dir = place.dir.try_clone().map_err(errno)?;
        Ok(Self {
            dir,
            name: random_name(),
        })
    }

    /// Makes an empty file beside a place.
    pub(crate) fn file(place: &Place) -> Result<(Self, File), Errno> {
        let temp = Self::beside(place)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let fd = rustix::fs::openat(&temp.dir, &temp.name, flags, mode)?;
        Ok((temp, File::from(fd)))
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn name(&self) -> &[u8] {
        self.name.as_bytes()
    }

    /// Moves it to its place.
    pub(crate) fn settle(self, to: &Place, existing: Existing) -> Result<(), Errno> {
        // Dropped at the end: what was replaced may now be under our name, and goes with it.
        settle(self.dir.as_fd(), self.name.as_bytes(), to, existing).map(|_| ())
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = remove::remove(self.dir.as_fd(), self.name.as_bytes());
    }
}

/// Renames a thing to a place. A folder that is not empty is replaced by swapping the two, and
/// is then found under the old name.
pub(crate) fn settle(
    dir: BorrowedFd<'_>,
    name: &[u8],
    to: &Place,
    existing: Existing,
) -> Result<Settled, Errno> {
    let swap = |flags| rustix::fs::renameat_with(dir, name, &to.dir, &to.name[..], flags);
    match existing {
        Existing::Refuse => match swap(RenameFlags::NOREPLACE) {
            // This file system or kernel doesn't know the flag.
            Err(Errno::INVAL | Errno::NOSYS) => without_noreplace(dir, name, to),
            other => other,
        }
        .map(|()| Settled::Nothing),
        Existing::Replace => match rustix::fs::renameat(dir, name, &to.dir, &to.name[..]) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR | Errno::NOTDIR) => {
                match swap(RenameFlags::EXCHANGE) {
                    Err(Errno::NOSYS) => Err(Errno::NOTEMPTY),
                    other => other.map(|()| Settled::Old),
                }
            }
            other => other.map(|()| Settled::Nothing),
        },
    }
}

/// A link can't replace anything, so for files this is as good; for folders a race is left.
fn without_noreplace(dir: BorrowedFd<'_>, name: &[u8], to: &Place) -> Result<(), Errno> {
    if to.stat()?.is_some() {
        return Err(Errno::EXIST);
    }
    match rustix::fs::linkat(dir, name, &to.dir, &to.name[..], AtFlags::empty()) {
        Ok(()) => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
        Err(Errno::EXIST) => Err(Errno::EXIST),
        Err(_) => rustix::fs::renameat(dir, name, &to.dir, &to.name[..]),
    }
}

/// Gives a new file the owner and permissions of the one it replaces, or those asked for.
pub(crate) fn dress(file: impl AsFd, old: Option<&Stat>, mode: Option<u32>) -> Result<(), Errno> {
    if let Some(old) = old {
        // Only root can; anyone else keeps being the owner, which is all that can be done.
        let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
        let _ = rustix::fs::fchown(&file, Some(uid), Some(gid));
    }
    let mode = mode.or(old.map(|s| s.st_mode & KEPT)).unwrap_or(0o644);
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))
}

/// The error number of an error of the standard library.
pub(crate) fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// Names need only be rare: every use refuses one that is taken.
fn random_name() -> String {
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!(".ringfence-{:016x}.tmp", hasher.finish())
}
