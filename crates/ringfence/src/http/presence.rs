//! Which servers stand before one state: each holds a lock that all of them can hold.

use ringfence_core::Failure;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Held as long as a server serves; the system lets go of it when the server is killed.
pub(crate) struct Presence {
    file: File,
}

impl Presence {
    pub(crate) fn announce(state: &Path) -> Result<Self, Failure> {
        let path = state.join(".serving");
        let what = || format!("cannot lock {}", path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| Failure::io(what(), &e))?;
        file.lock_shared().map_err(|e| Failure::io(what(), &e))?;
        Ok(Self { file })
    }

    /// Whether no other server is left. One that starts later waits until this is dropped.
    pub(crate) fn is_last(&self) -> bool {
        // Two that leave at once both let go of their share here, so one of them gets it.
        let _ = self.file.unlock();
        self.file.try_lock().is_ok()
    }
}
