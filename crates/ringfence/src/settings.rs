//! Where things are on this host: the one place that reads the environment.
#![allow(clippy::disallowed_methods)]

use ringfence_core::backend::docker::Surroundings;
use ringfence_core::interpreter::Search;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// An environment variable that Ringfence reads. `docs/env.md` is made from [`ALL`].
#[cfg_attr(not(test), expect(dead_code, reason = "its words are for the docs"))]
pub(crate) struct Variable {
    pub name: &'static str,
    pub meaning: &'static str,
    pub default: &'static str,
}

const STATE_DIR: Variable = Variable {
    name: "RINGFENCE_STATE_DIR",
    meaning: "folder that holds a folder per sandbox, for as long as the sandbox lives",
    default: "`/var/lib/ringfence` for root, else `ringfence` below `XDG_STATE_HOME`",
};
const CACHE_DIR: Variable = Variable {
    name: "RINGFENCE_CACHE_DIR",
    meaning: "folder for what can be made again at any time, such as the unpacked guest",
    default: "`/var/cache/ringfence` for root, else `ringfence` below `XDG_CACHE_HOME`",
};
const DATA_DIR: Variable = Variable {
    name: "RINGFENCE_DATA_DIR",
    meaning: "folder for what a person made and wants to keep: packages environments",
    default: "`ringfence` below `XDG_DATA_HOME`",
};
pub(crate) const CONFIG: Variable = Variable {
    name: "RINGFENCE_CONFIG",
    meaning: "file of settings for `serve`, `config` and `key`; see [config.md](config.md)",
    default: "`/etc/ringfence/config.toml` for root, else `ringfence/config.toml` below `XDG_CONFIG_HOME`, if it is there",
};
const URL: Variable = Variable {
    name: "RINGFENCE_URL",
    meaning: "the server that `new`, `ls`, `exec`, `shell`, `cp`, `logs` and `rm` talk to",
    default: "a server inside the command itself",
};
const API_KEY: Variable = Variable {
    name: "RINGFENCE_API_KEY",
    meaning: "the key that is shown to that server",
    default: "none",
};
const STATE_HOME: Variable = Variable {
    name: "XDG_STATE_HOME",
    meaning: "the user's folder for state; not looked at for root",
    default: "`~/.local/state`",
};
const CACHE_HOME: Variable = Variable {
    name: "XDG_CACHE_HOME",
    meaning: "the user's folder for caches; not looked at for root",
    default: "`~/.cache`",
};
const DATA_HOME: Variable = Variable {
    name: "XDG_DATA_HOME",
    meaning: "the user's folder for data",
    default: "`~/.local/share`",
};
const CONFIG_HOME: Variable = Variable {
    name: "XDG_CONFIG_HOME",
    meaning: "the user's folder for configuration; not looked at for root",
    default: "`~/.config`",
};
const HOME: Variable = Variable {
    name: "HOME",
    meaning: "the user's home, where the folders above are",
    default: "`/`",
};
const PATH: Variable = Variable {
    name: "PATH",
    meaning: "where `python3` and `uv` are looked for",
    default: "`/usr/local/bin:/usr/bin:/bin`",
};
const PYENV_VERSION: Variable = Variable {
    name: "PYENV_VERSION",
    meaning: "the interpreter that a pyenv shim leads to",
    default: "what pyenv's own files say",
};
const TERM: Variable = Variable {
    name: "TERM",
    meaning: "kind of the terminal, handed on by `run --tty`",
    default: "`xterm-256color`",
};
const KUBECONFIG: Variable = Variable {
    name: "KUBECONFIG",
    meaning: "configuration of a cluster, for `--backend kubernetes`; in a pod, its service account does",
    default: "`~/.kube/config`",
};
const DOCKER_HOST: Variable = Variable {
    name: "DOCKER_HOST",
    meaning: "the Docker engine: `unix:///path` or `tcp://host:port`",
    default: "that of the current context, else `unix:///var/run/docker.sock`",
};
const DOCKER_CONTEXT: Variable = Variable {
    name: "DOCKER_CONTEXT",
    meaning: "the Docker context that names the engine",
    default: "what `docker context use` chose",
};
const DOCKER_CERT_PATH: Variable = Variable {
    name: "DOCKER_CERT_PATH",
    meaning: "folder with `ca.pem`, `cert.pem` and `key.pem` for an engine behind TLS",
    default: "Docker's folder of settings",
};
const DOCKER_TLS_VERIFY: Variable = Variable {
    name: "DOCKER_TLS_VERIFY",
    meaning: "speaks TLS to the engine when it is set to anything",
    default: "plain unless `DOCKER_CERT_PATH` is set",
};
const DOCKER_CONFIG: Variable = Variable {
    name: "DOCKER_CONFIG",
    meaning: "Docker's folder of settings: contexts and credentials for registries",
    default: "`~/.docker`",
};
/// Read by the library that writes colours, and so listed only.
const NO_COLOR: Variable = Variable {
    name: "NO_COLOR",
    meaning: "no colours, also on a terminal, when it is set to anything",
    default: "colours on a terminal only",
};

/// Every variable that is read but for those of settings, in the order of the documentation.
pub(crate) const ALL: [&Variable; 21] = [
    &STATE_DIR,
    &CACHE_DIR,
    &DATA_DIR,
    &CONFIG,
    &URL,
    &API_KEY,
    &STATE_HOME,
    &CACHE_HOME,
    &DATA_HOME,
    &CONFIG_HOME,
    &HOME,
    &PATH,
    &PYENV_VERSION,
    &TERM,
    &KUBECONFIG,
    &DOCKER_HOST,
    &DOCKER_CONTEXT,
    &DOCKER_CERT_PATH,
    &DOCKER_TLS_VERIFY,
    &DOCKER_CONFIG,
    &NO_COLOR,
];

impl Variable {
    fn text(&self) -> Option<String> {
        std::env::var(self.name)
            .ok()
            .filter(|value| !value.is_empty())
    }

    /// A relative folder would mean another one in each working folder, so it counts as unset.
    fn folder(&self) -> Option<PathBuf> {
        self.text()
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    }
}

fn home() -> PathBuf {
    HOME.folder().unwrap_or_else(|| PathBuf::from("/"))
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What lives as long as sandboxes do.
pub(crate) fn state() -> PathBuf {
    STATE_DIR.folder().unwrap_or_else(usual_state)
}

/// Where state is when nobody says otherwise.
pub(crate) fn usual_state() -> PathBuf {
    if is_root() {
        return PathBuf::from("/var/lib/ringfence");
    }
    STATE_HOME
        .folder()
        .unwrap_or_else(|| home().join(".local/state"))
        .join("ringfence")
}

/// Where the file of settings is when nobody says otherwise.
pub(crate) fn usual_config_file() -> PathBuf {
    if is_root() {
        return PathBuf::from("/etc/ringfence/config.toml");
    }
    CONFIG_HOME
        .folder()
        .unwrap_or_else(|| home().join(".config"))
        .join("ringfence/config.toml")
}

/// The environment as it was at one moment, so that settings are read from one and the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment(BTreeMap<String, OsString>);

impl Environment {
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        let value = self.0.get(name).map(OsString::as_os_str);
        value.filter(|value| !value.is_empty())
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(all: I) -> Self {
        let all = all.into_iter();
        Self(
            all.map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

/// Our environment now.
pub(crate) fn environment() -> Environment {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .collect()
}

/// What can be made again at any time.
pub(crate) fn cache() -> PathBuf {
    CACHE_DIR.folder().unwrap_or_else(|| {
        if is_root() {
            return PathBuf::from("/var/cache/ringfence");
        }
        let caches = CACHE_HOME.folder().unwrap_or_else(|| home().join(".cache"));
        caches.join("ringfence")
    })
}

/// What a person made and wants to keep.
pub(crate) fn data() -> PathBuf {
    DATA_DIR.folder().unwrap_or_else(|| {
        DATA_HOME
            .folder()
            .unwrap_or_else(|| home().join(".local/share"))
            .join("ringfence")
    })
}

/// Packages environments, a folder each.
pub(crate) fn environments() -> PathBuf {
    data().join("envs")
}

fn path() -> String {
    PATH.text()
        .unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".to_owned())
}

/// Which interpreter the caller means by `python3`.
pub(crate) fn search() -> Search {
    Search {
        path: path(),
        pyenv_version: PYENV_VERSION.text(),
        folder: std::env::current_dir().unwrap_or_default(),
    }
}

/// A program of the search path.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    path()
        .split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| PathBuf::from(folder).join(name))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
}

/// The server that verbs talk to.
pub(crate) fn server_url() -> Option<String> {
    URL.text()
}

/// What is shown to it.
pub(crate) fn api_key() -> Option<String> {
    API_KEY.text()
}

/// The user's home, and where programs keep their configuration.
pub(crate) fn home_and_config() -> (PathBuf, PathBuf) {
    let config = CONFIG_HOME
        .folder()
        .unwrap_or_else(|| home().join(".config"));
    (home(), config)
}

/// The kind of the terminal that we are on.
pub(crate) fn terminal() -> Option<String> {
    TERM.text()
}

/// The configuration of a cluster, where there is one.
pub(crate) fn cluster() -> Option<PathBuf> {
    let named = KUBECONFIG
        .text()
        .and_then(|text| text.split(':').next().map(PathBuf::from));
    let file = named.unwrap_or_else(|| home().join(".kube/config"));
    let in_cluster = PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/token");
    [file, in_cluster].into_iter().find(|file| file.is_file())
}

/// Which Docker engine the caller means.
pub(crate) fn docker() -> Surroundings {
    Surroundings {
        host: DOCKER_HOST.text(),
        context: DOCKER_CONTEXT.text(),
        certificates: DOCKER_CERT_PATH.folder(),
        tls: DOCKER_TLS_VERIFY.text().is_some(),
        config: DOCKER_CONFIG
            .folder()
            .unwrap_or_else(|| home().join(".docker")),
    }
}

/// The names of everything in our own environment, which must not be seen inside a sandbox.
pub(crate) fn names() -> Vec<String> {
    std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .collect()
}

/// Whether the tests of generated files shall write them.
#[cfg(test)]
pub(crate) fn update_docs() -> bool {
    std::env::var_os("UPDATE_DOCS").is_some()
}
