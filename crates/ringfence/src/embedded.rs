//! The guest that this program carries, unpacked once into the cache.

use crate::settings;
use ringfence_core::Failure;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

static GUEST: &[u8] = include_bytes!(env!("RINGFENCE_GUEST_FILE"));
const HASH: &str = env!("RINGFENCE_GUEST_HASH");

/// The guest as a file that only this user can have written.
pub(crate) fn guest() -> Result<PathBuf, Failure> {
    let folder = settings::cache();
    let path = folder.join(format!("guest-{HASH}"));
    if is_ours(&path) {
        return Ok(path);
    }
    unpack(&folder, &path)
        .map_err(|e| Failure::io(format!("cannot unpack the guest to {}", path.display()), &e))?;
    Ok(path)
}

fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| {
        m.is_file()
            && m.len() == GUEST.len() as u64
            && m.uid() == rustix::process::geteuid().as_raw()
            && m.mode() & 0o7777 == 0o555
    })
}

fn unpack(folder: &Path, path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let new = folder.join(format!("guest-{HASH}.{}", std::process::id()));
    let _ = fs::remove_file(&new);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o555)
        .open(&new)?;
    file.write_all(GUEST)?;
    // The mask of the caller may have taken bits away.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o555))?;
    drop(file);
    fs::rename(&new, path)
}
