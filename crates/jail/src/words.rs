//! Last words of a child that could not become a sandbox.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Where in its making a sandbox failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Prepare,
    Cgroup,
    Namespaces,
    Identity,
    Mounts,
    Root,
    Network,
    Limits,
    Capabilities,
    Landlock,
    Seccomp,
}

impl Stage {
    fn words(self) -> &'static str {
        match self {
            Self::Prepare => "prepare the sandbox",
            Self::Cgroup => "set up the cgroup",
            Self::Namespaces => "make namespaces",
            Self::Identity => "map users",
            Self::Mounts => "set up mounts",
            Self::Root => "change the root",
            Self::Network => "set up the network",
            Self::Limits => "set limits",
            Self::Capabilities => "drop capabilities",
            Self::Landlock => "install landlock",
            Self::Seccomp => "install seccomp",
        }
    }
}

/// Stage, object and errno of the step that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastWords {
    pub stage: Stage,
    pub object: String,
    pub errno: i32,
}

impl LastWords {
    pub(crate) fn new(stage: Stage, object: impl fmt::Display, error: &io::Error) -> Self {
        Self {
            stage,
            object: object.to_string(),
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// The system's error, to look at its kind.
    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

impl fmt::Display for LastWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {}", self.stage.words(), self.object)?;
        if self.errno != 0 {
            let text = self.error().to_string().to_lowercase();
            write!(f, ": {}", text.split(" (os error").next().unwrap_or(&text))?;
        }
        Ok(())
    }
}

impl std::error::Error for LastWords {}

/// Adds the stage and the object to a system call's result.
pub(crate) trait Context<T> {
    fn at(self, stage: Stage, object: impl fmt::Display) -> Result<T, LastWords>;
}

impl<T> Context<T> for io::Result<T> {
    fn at(self, stage: Stage, object: impl fmt::Display) -> Result<T, LastWords> {
        self.map_err(|error| LastWords::new(stage, object, &error))
    }
}

impl<T> Context<T> for Result<T, rustix::io::Errno> {
    fn at(self, stage: Stage, object: impl fmt::Display) -> Result<T, LastWords> {
        self.map_err(|errno| LastWords::new(stage, object, &errno.into()))
    }
}
