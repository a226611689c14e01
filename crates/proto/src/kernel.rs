use crate::exec::ProcessLimits;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `PUT /kernels/{name}`: starts a persistent interpreter, or answers with the living one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KernelRequest {
    /// The interpreter; `python3`, then `python` of the search path when absent.
    pub python: Option<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub limits: ProcessLimits,
}

/// A persistent interpreter of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    pub name: String,
    /// Counts starts: a number that grows means that variables were lost in between.
    pub generation: u32,
    pub python: String,
    pub version: String,
    pub busy: bool,
}

/// `POST /kernels/{name}/run`: one call in a persistent interpreter, started when absent.
/// `POST /kernels/{name}/jobs`: the same, answered with its [`crate::JobInfo`] while it waits or runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunRequest {
    pub code: String,
    /// Chosen by the caller, so that a lost answer can be fetched again; else made here.
    pub id: Option<String>,
    pub timeout_ms: Option<u64>,
    /// Bytes of each stream carried inline; the rest is counted and kept in the ring.
    pub output_limit: Option<u64>,
    /// Seconds of processor time for this call.
    pub cpu_seconds: Option<u64>,
    pub on_disconnect: crate::OnDisconnect,
    /// Nobody has to follow it; told again to whoever asks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// Forgotten once its result was answered with and nothing was cut from that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// Whether the end says which files of the workspace were made or changed meanwhile.
    pub report_files: bool,
}

/// A value with one or more representations, as in a notebook.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Rich {
    /// `value` for the last expression, `display` for figures and displayed objects.
    pub kind: String,
    /// By media type; text types as text, others base64.
    pub data: BTreeMap<String, String>,
}
