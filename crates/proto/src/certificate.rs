use serde::{Deserialize, Serialize};
use std::fmt;

/// Why something ended, or was cut, that did not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    WallClock,
    Memory,
    Cpu,
    Processes,
    Disk,
    FileSize,
    Output,
    /// Somebody asked for it: a cancel, an interrupt, a removal.
    Cancelled,
    /// A signal that neither a limit nor a caller of ours sent.
    Killed,
    /// The process crashed: segmentation fault, abort and the like.
    Crashed,
    /// The kernel process left without being asked to (`os._exit`, a broken channel).
    Exited,
    /// The sandbox or its engine went away.
    BackendLost,
}

impl Cause {
    pub fn name(self) -> &'static str {
        match self {
            Self::WallClock => "wall_clock",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Processes => "processes",
            Self::Disk => "disk",
            Self::FileSize => "file_size",
            Self::Output => "output",
            Self::Cancelled => "cancelled",
            Self::Killed => "killed",
            Self::Crashed => "crashed",
            Self::Exited => "exited",
            Self::BackendLost => "backend_lost",
        }
    }
}

/// What the event put an end to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// Output past a limit was dropped; the command itself went on.
    Output,
    /// One call was interrupted; its kernel and variables live on.
    Call,
    /// A command and all of its descendants.
    Command,
    /// A persistent interpreter; the next call gets a fresh one.
    Kernel,
    /// The whole sandbox.
    Sandbox,
}

/// What is still there after the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Survived {
    pub files: bool,
    pub variables: bool,
}

/// The certificate of an end: which limit or event, how far it got, what survived, what next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Certificate {
    pub cause: Cause,
    pub ended: Ended,
    /// One sentence for a person or a model.
    pub message: String,
    /// The limit in words, such as `2 s` or `256 MiB`, where a limit was the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// How far it got against that limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub survived: Survived,
    /// What to do next.
    pub next: String,
}

impl Certificate {
    /// One after which the files are still there; the limit and the signal are added by the caller.
    pub fn new(
        cause: Cause,
        ended: Ended,
        message: impl Into<String>,
        variables: bool,
        next: impl Into<String>,
    ) -> Self {
        Self {
            cause,
            ended,
            message: message.into(),
            limit: None,
            reached: None,
            signal: None,
            survived: Survived {
                files: true,
                variables,
            },
            next: next.into(),
        }
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        if !self.next.is_empty() {
            write!(f, "; {}", self.next)?;
        }
        Ok(())
    }
}
