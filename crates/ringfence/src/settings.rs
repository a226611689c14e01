//! Where things are on this host: the one place that reads the environment.
#![allow(clippy::disallowed_methods)]

use ringfence_core::interpreter::Search;
use std::path::PathBuf;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn folder(name: &str) -> Option<PathBuf> {
    variable(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

fn home() -> PathBuf {
    folder("HOME").unwrap_or_else(|| PathBuf::from("/"))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What lives as long as sandboxes do.
pub(crate) fn state() -> PathBuf {
    folder("RINGFENCE_STATE_DIR").unwrap_or_else(|| {
        if is_root() {
            return PathBuf::from("/var/lib/ringfence");
        }
        folder("XDG_STATE_HOME")
            .unwrap_or_else(|| home().join(".local/state"))
            .join("ringfence")
    })
}

/// What can be made again at any time.
pub(crate) fn cache() -> PathBuf {
    folder("RINGFENCE_CACHE_DIR").unwrap_or_else(|| {
        folder("XDG_CACHE_HOME")
            .unwrap_or_else(|| home().join(".cache"))
            .join("ringfence")
    })
}

/// What a person made and wants to keep: packages environments.
pub(crate) fn data() -> PathBuf {
    folder("RINGFENCE_DATA_DIR").unwrap_or_else(|| {
        folder("XDG_DATA_HOME")
            .unwrap_or_else(|| home().join(".local/share"))
            .join("ringfence")
    })
}

/// Which interpreter the caller means by `python3`.
pub(crate) fn search() -> Search {
    Search {
        path: variable("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".to_owned()),
        pyenv_version: variable("PYENV_VERSION"),
        folder: std::env::current_dir().unwrap_or_default(),
    }
}
