//! The keys of a running server, which follow their file.

use super::file::{self, Stamp};
use super::{Key, Keys, now};
use ringfence_core::Failure;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a key that was removed can still open something.
const EVERY: Duration = Duration::from_secs(1);

type Complain = Box<dyn Fn(&Failure) + Send + Sync>;

/// Keys that are read again when their file has changed. A file that can't be read leaves the last
/// good keys in force: a slip in an editor must not lock everybody out.
pub(crate) struct KeyStore {
    path: PathBuf,
    every: Duration,
    complain: Complain,
    state: Mutex<State>,
}

struct State {
    keys: Arc<Keys>,
    /// The version that these keys are of; none where there was no file.
    stamp: Option<Stamp>,
    /// The version that was complained of.
    spoilt: Option<Option<Stamp>>,
    looked: Instant,
}

impl KeyStore {
    /// Reads the keys in a state folder, and fails where that can't be done; later failures go to
    /// `complain`, once for each version of the file.
    pub(crate) fn open(
        state_dir: &Path,
        complain: impl Fn(&Failure) + Send + Sync + 'static,
    ) -> Result<Self, Failure> {
        Self::open_with(state_dir, EVERY, Box::new(complain))
    }

    pub(super) fn open_with(
        state_dir: &Path,
        every: Duration,
        complain: Complain,
    ) -> Result<Self, Failure> {
        let path = file::path(state_dir);
        let (keys, stamp) = file::read(&path)?.unzip();
        Ok(Self {
            path,
            every,
            complain,
            state: Mutex::new(State {
                keys: Arc::new(keys.unwrap_or_default()),
                stamp,
                spoilt: None,
                looked: Instant::now(),
            }),
        })
    }

    /// The key that somebody shows, unless it has expired or was removed.
    pub(crate) fn find(&self, presented: &str) -> Option<Arc<Key>> {
        self.keys().find_at(presented, now()).cloned()
    }

    /// The key of this name, unless it has expired or was removed.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Key>> {
        self.keys().named_at(name, now()).cloned()
    }

    /// The keys now: at most once in a second a look at the file, and no reading unless it changed.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= self.every {
            state.looked = Instant::now();
            self.follow(&mut state);
        }
        state.keys.clone()
    }

    /// What can't be read is tried again at each look: it may have been for want of a descriptor,
    /// and then a key that was removed must not stay for ever.
    fn follow(&self, state: &mut State) {
        let metadata = std::fs::metadata(&self.path).ok();
        let stamp = metadata.as_ref().map(Stamp::of);
        if stamp.is_some() && stamp == state.stamp {
            return;
        }
        match file::read(&self.path).map(Option::unzip) {
            Ok((keys, stamp)) => {
                state.keys = Arc::new(keys.unwrap_or_default());
                state.stamp = stamp;
                state.spoilt = None;
            }
            Err(failure) if state.spoilt != Some(stamp) => {
                state.spoilt = Some(stamp);
                (self.complain)(&failure);
            }
            Err(_) => {}
        }
    }
}
