//! Which files at the top of the workspace were made or changed while a job ran.
//!
//! Two looks at one folder: a handful of system calls each, because a REPL call takes no longer
//! than a few hundred microseconds in all.

use super::list::entry_at;
use ringfence_proto::Entry;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Entries of a folder that are looked at, whatever they are.
const LOOKED_AT: usize = 2000;
/// Entries that are looked at right here; a larger folder is left to a thread.
const AT_ONCE: usize = 256;
/// Most files that are named.
const NAMED: usize = 100;
/// The longest tick of a kernel's clock, and a little.
const TICK: Duration = Duration::from_millis(12);

/// What tells one state of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: i64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: stat.st_size,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }
}

/// The files of a folder; links, hidden ones, and names that are no text are left out.
struct Look {
    files: Vec<(String, Stat)>,
    /// Whether all of the folder was looked at.
    whole: bool,
}

fn look(folder: &Path, most: usize) -> Look {
    let mut found = Look {
        files: Vec::new(),
        whole: true,
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // A folder that code has taken away has no files.
    let Ok(dir) = rustix::fs::open(folder, flags, Mode::empty()) else {
        return found;
    };
    let mut buffer = Vec::with_capacity(16 << 10);
    let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
    let mut count = 0;
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        count += 1;
        if count > most {
            found.whole = false;
            break;
        }
        let maybe_file = matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown);
        let Some(text) = name.to_str().ok().filter(|n| !n.starts_with('.')) else {
            continue;
        };
        if maybe_file
            && let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        {
            found.files.push((text.to_owned(), stat));
        }
    }
    found
}

async fn look_in_turn(folder: &Path) -> Look {
    let found = look(folder, AT_ONCE);
    if found.whole {
        return found;
    }
    let folder = folder.to_owned();
    let large = tokio::task::spawn_blocking(move || look(&folder, LOOKED_AT)).await;
    large.unwrap_or(found)
}

/// The time that a file would get now: that of the last tick.
fn now() -> (i64, i64) {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::RealtimeCoarse);
    (tv_sec, tv_nsec)
}

/// How the workspace was before a job.
pub(crate) struct Before {
    folder: PathBuf,
    files: HashMap<String, Stamp>,
    whole: bool,
    begun: (i64, i64),
}

impl Before {
    pub(crate) async fn look(folder: &Path) -> Self {
        let found = look_in_turn(folder).await;
        let files: HashMap<String, Stamp> = found
            .files
            .into_iter()
            .map(|(name, stat)| (name, Stamp::of(&stat)))
            .collect();
        // A file that changes twice in one tick has the same times after both. What was written
        // a moment ago is given a time of its own by waiting for the next tick.
        let newest = files.values().map(|stamp| stamp.changed).max();
        let settled = async {
            while newest >= Some(now()) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Times that come from another clock may be far off.
        let _ = tokio::time::timeout(TICK, settled).await;
        Self {
            folder: folder.to_owned(),
            files,
            whole: found.whole,
            begun: now(),
        }
    }

    /// The files that are not as they were, sorted, and whether there may be more.
    pub(crate) async fn changed(self) -> (Vec<Entry>, bool) {
        let found = look_in_turn(&self.folder).await;
        let mut changed: Vec<_> = found
            .files
            .into_iter()
            .filter(|(name, stat)| match self.files.get(name) {
                Some(before) => *before != Stamp::of(stat),
                // Of a folder that was not seen whole only the time tells what is new.
                None => self.whole || Stamp::of(stat).changed >= self.begun,
            })
            .collect();
        changed.sort_by(|a, b| a.0.cmp(&b.0));
        let more = !found.whole || changed.len() > NAMED;
        changed.truncate(NAMED);
        let entry = |(name, stat)| entry_at(name, &stat, None);
        (changed.into_iter().map(entry).collect(), more)
    }
}
