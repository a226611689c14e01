//! The words spoken between the host and the guest: requests, results, events, failures.
//!
//! Nothing here does I/O. Every type that travels is plain data; the host treats whatever
//! arrives from a guest as hostile and checks it again where it matters.

mod blob;
mod certificate;
mod exec;
mod failure;
mod files;
mod kernel;
mod tools;

pub use blob::Blob;
pub use certificate::{Cause, Certificate, Ended, Survived};
pub use exec::{
    Command, Event, ExecRequest, ExecResult, Exit, JobEnd, JobInfo, JobState, OnDisconnect, Output,
    OutputQuery, ProcessLimits, PtySize, SignalRequest, Stdin, StdinQuery, WaitQuery, signal_name,
    signal_number,
};
pub use failure::{Code, Failure};
pub use files::{
    Copy, Edit, EditRequest, EditResult, Entry, FileKind, GlobRequest, GlobResult, GrepFile,
    GrepLine, GrepMode, GrepRequest, GrepResult, Hunk, ListResult, Mkdir, Move, PathQuery,
    ReadQuery, TarQuery, WriteQuery,
};
pub use kernel::{KernelInfo, KernelRequest, Rich, RunRequest};
pub use tools::{
    TOOL_CALLS, TOOL_INPUT_LIMIT, TOOL_REPLY_LIMIT, TOOLS, Tool, ToolCall, ToolEvent, ToolReply,
    ToolsInfo, ToolsRequest,
};

use serde::{Deserialize, Serialize};

/// The version of this protocol; a host and a guest with different numbers do not talk.
pub const PROTOCOL: u32 = 2;

/// Folder inside every sandbox where the session's files live.
pub const WORKSPACE: &str = "/workspace";

/// Bytes of the secret that opens the door of a guest; the first that its standard input brings.
pub const SECRET_LENGTH: usize = 64;

/// Default number of bytes of each output stream that a result carries inline.
pub const OUTPUT_LIMIT: u64 = 1 << 20;

/// Most bytes of each output stream that may be asked for inline.
pub const OUTPUT_LIMIT_MAX: u64 = 64 << 20;

/// Most bytes of each output stream that the guest keeps for later reading, the inline ones
/// included: the first `output_limit` bytes, and a ring of this size for the latest ones.
pub const OUTPUT_RING: u64 = 4 << 20;

/// Most bytes of a JSON request body that the guest reads.
pub const BODY_LIMIT: usize = 32 << 20;

/// Answer of `GET /health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    pub status: String,
    pub protocol: u32,
    pub version: String,
    /// Process id of the guest in its own pid namespace; 1 where it is the init.
    pub pid: u32,
    pub jobs: u32,
    pub kernels: u32,
    /// Milliseconds since the last request or job ended; 0 while one goes on. `GET /health` itself
    /// never counts, so that whoever watches does not keep what it watches awake.
    pub idle_ms: u64,
}
