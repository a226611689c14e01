//! Notes in the state folder, which several servers write.

use super::Notes;
use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

const NOTES: &str = "notes.json";
const LOCK: &str = "notes.lock";

/// What is noted in the folder of a sandbox.
pub(super) fn read(folder: &Path) -> Notes {
    let bytes = fs::read(folder.join(NOTES)).ok();
    bytes
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Sets one note. Others may set theirs at the same moment, so it is one at a time.
pub(super) fn set(folder: &Path, name: &str, value: &str) -> io::Result<()> {
    let lock = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(LOCK))?;
    lock.lock()?;
    let mut notes = read(folder);
    notes.insert(name.to_owned(), value.to_owned());
    let new = folder.join("notes.new");
    fs::write(&new, serde_json::to_vec(&notes)?)?;
    fs::rename(new, folder.join(NOTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_note_at_the_same_time_take_nothing_from_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let note = |who: usize| {
            for number in 0..50 {
                set(folder.path(), &format!("{who}.{number}"), "kept").unwrap();
            }
        };
        std::thread::scope(|scope| {
            for who in 0..4 {
                scope.spawn(move || note(who));
            }
        });
        assert_eq!(read(folder.path()).len(), 200);
    }
}
