//! The guest that this program carries, unpacked once into the cache.

use crate::settings;
use ringfence_core::Failure;
use ringfence_core::backend::native::Launcher;
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
    unpack(&folder, &path).map_err(|e| {
        Failure::io(format!("cannot unpack the guest to {}", path.display()), &e)
            .hint("RINGFENCE_CACHE_DIR and RINGFENCE_STATE_DIR name other folders")
    })?;
    Ok(path)
}

/// The guest as it is carried.
pub(crate) fn bytes() -> &'static [u8] {
    GUEST
}

/// A launcher, if it can be started right away; whoever needs one and got none starts it later,
/// and says what is in the way.
pub(crate) fn launcher() -> Option<Launcher> {
    let path = settings::cache().join(format!("guest-{HASH}"));
    is_ours(&path)
        .then(|| Launcher::start(&path).ok())
        .flatten()
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

/// Removes guests of other versions with what lies beside them, and what was cut off.
pub(crate) fn remove_old() -> Result<Vec<PathBuf>, Failure> {
    /// Longer than any unpacking takes.
    const STALE: std::time::Duration = std::time::Duration::from_secs(60);
    let folder = settings::cache();
    let failed = |path: &Path, e: &io::Error| {
        Failure::io(format!("cannot remove guests in {}", path.display()), e)
    };
    let current = format!("guest-{HASH}");
    let compiled = format!("{current}.kernel-");
    let mut removed = Vec::new();
    for entry in fs::read_dir(&folder).map_err(|e| failed(&folder, &e))? {
        let path = entry.map_err(|e| failed(&folder, &e))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        let is_guest = name.strip_prefix("guest-").is_some_and(|rest| {
            rest.len() >= 16 && rest.bytes().take(16).all(|b| b.is_ascii_hexdigit())
        });
        // One with a suffix may be in the middle of its unpacking.
        let in_work = name.contains('.')
            && fs::symlink_metadata(&path)
                .and_then(|m| m.modified())
                .is_ok_and(|m| m.elapsed().is_ok_and(|age| age < STALE));
        // A guest has beside it what interpreters made of its kernel; the unfinished has an ending.
        let is_current = name == current
            || name
                .strip_prefix(&compiled)
                .is_some_and(|rest| !rest.contains('.'));
        if is_guest && !is_current && !in_work {
            fs::remove_file(&path).map_err(|e| failed(&path, &e))?;
            removed.push(path);
        }
    }
    removed.sort();
    Ok(removed)
}
