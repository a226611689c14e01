//! The file that holds the keys: read whole, and replaced whole under a lock.

use super::{Key, Keys, NewKey};
use ringfence_core::{Code, Failure};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Names in the state folder. Each has a dot, so that it can't be the id of a sandbox.
const KEYS: &str = "keys.json";
const LOCK: &str = "keys.lock";
const NEW: &str = "keys.json.new";

/// Where the keys of a server are.
pub(crate) fn path(state: &Path) -> PathBuf {
    state.join(KEYS)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    keys: Vec<Key>,
}

/// What tells one version of a file from the next without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// The keys and which version of the file they are; nothing where there is no file.
pub(super) fn read(path: &Path) -> Result<Option<(Keys, Stamp)>, Failure> {
    let what = || format!("cannot read the keys in {}", path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Failure::io(what(), &e)),
    };
    let metadata = file.metadata().map_err(|e| Failure::io(what(), &e))?;
    if metadata.mode() & 0o022 != 0 {
        return Err(Failure::new(
            Code::Forbidden,
            format!("{}: others than its owner may write to it", what()),
        )
        .hint(format!("see who did, then: chmod 600 {}", path.display())));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|e| Failure::io(what(), &e))?;
    let keys = serde_json::from_slice::<Content>(&bytes)
        .map_err(|e| e.to_string())
        .and_then(|content| Keys::new(content.keys))
        .map_err(|e| {
            Failure::new(Code::Internal, format!("{}: {e}", what()))
                .hint("mend it, or remove it and make new keys")
        })?;
    Ok(Some((keys, Stamp::of(&metadata))))
}

/// Makes a key, and answers with the key itself, for the only time.
pub(crate) fn add(state: &Path, new: NewKey) -> Result<(String, Key), Failure> {
    super::check_name(&new.name)?;
    edit(state, |keys| {
        if keys.iter().any(|key| key.name == new.name) {
            return Err(Failure::new(
                Code::AlreadyExists,
                format!("there is a key `{}` already", new.name),
            )
            .hint(format!("`ringfence key rm {}` removes it", new.name)));
        }
        let (secret, key) = new.make()?;
        keys.push(key.clone());
        Ok((secret, key))
    })
}

/// Removes a key: from then on it opens nothing.
pub(crate) fn remove(state: &Path, name: &str) -> Result<(), Failure> {
    edit(state, |keys| {
        if let Some(at) = keys.iter().position(|key| key.name == name) {
            keys.remove(at);
            return Ok(());
        }
        let names = keys.iter().map(|key| key.name.as_str());
        let hint = match crate::config::nearest(name, names) {
            Some(meant) => format!("did you mean `{meant}`? `ringfence key ls` lists them"),
            None => "`ringfence key ls` lists them".to_owned(),
        };
        Err(Failure::new(Code::NotFound, format!("there is no key `{name}`")).hint(hint))
    })
}

/// Changes the keys while nobody else does.
fn edit<T>(
    state: &Path,
    change: impl FnOnce(&mut Vec<Key>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let what = |verb: &str, name: &str| format!("cannot {verb} {}", state.join(name).display());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)
        .map_err(|e| Failure::io(format!("cannot make {}", state.display()), &e))?;
    // The file itself is replaced, so a lock on it would be one on its past.
    let lock = private(state, LOCK, OpenOptions::new().create(true).truncate(false))
        .map_err(|e| Failure::io(what("make", LOCK), &e))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
        .map_err(|e| Failure::io(what("lock", LOCK), &e.into()))?;
    let mut keys: Vec<Key> = Keys::load(&path(state))?.iter().cloned().collect();
    let done = change(&mut keys)?;
    replace(state, &Content { keys }).map_err(|e| Failure::io(what("write", KEYS), &e))?;
    Ok(done)
}

/// Whoever reads sees the old file or the new one, also when the machine stops in between.
fn replace(state: &Path, content: &Content) -> io::Result<()> {
    let new = state.join(NEW);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = private(state, NEW, OpenOptions::new().create_new(true))?;
    file.write_all(&serde_json::to_vec_pretty(content)?)?;
    file.sync_all()?;
    fs::rename(&new, path(state))?;
    File::open(state)?.sync_all()
}

/// Opens a file that only the owner of the state folder can read: root may make keys for a server
/// that runs as somebody else.
pub(super) fn private(state: &Path, name: &str, how: &mut OpenOptions) -> io::Result<File> {
    let file = how.write(true).mode(0o600).open(state.join(name))?;
    if crate::settings::is_root() {
        let owner = fs::metadata(state)?;
        std::os::unix::fs::fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(file)
}
