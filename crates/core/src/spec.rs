//! What was asked for. Nothing after [`crate::plan::resolve`] looks at it.

use crate::container::ContainerSpec;
use crate::size::Size;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A sandbox as a caller describes it; whatever is absent gets the tightest default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSpec {
    /// A folder that holds a whole root file system, in place of the host's own system.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub rootfs: Option<PathBuf>,
    /// The Python interpreter; the host's `python3` when absent.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub python: Option<PathBuf>,
    /// A packages environment made by `ringfence env add`.
    pub environment: Option<String>,
    pub workspace: Workspace,
    /// Where the workspace is inside, and commands start; `/workspace` when absent.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub workdir: Option<PathBuf>,
    pub mounts: Vec<MountSpec>,
    /// Folders of the host that are skills or have skills in them: each is seen read-only at
    /// `/sandbox/skills/NAME`.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<String>))]
    pub skills: Vec<PathBuf>,
    pub env: BTreeMap<String, String>,
    pub network: Network,
    pub limits: LimitsSpec,
    /// Takes the nearest that can be enforced here, and says so, where the default is to refuse.
    pub prefer: bool,
    pub labels: BTreeMap<String, String>,
    /// Options of a container, for the backends that make one.
    pub container: Option<ContainerSpec>,
}

/// Where the session's files live.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Workspace {
    /// Private and empty: in memory for a disposable sandbox, on disk for one that is kept.
    #[default]
    Fresh,
    /// Private and empty, in memory.
    Memory,
    /// Private and empty, on disk.
    Disk,
    /// Empty, and nothing can be put there.
    Empty,
    /// A folder of the host.
    Folder {
        #[cfg_attr(feature = "openapi", schema(value_type = String))]
        path: PathBuf,
        access: Access,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Access {
    #[default]
    #[serde(alias = "ro")]
    ReadOnly,
    #[serde(alias = "rw")]
    ReadWrite,
}

/// A file or folder of the host, seen inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MountSpec {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub from: PathBuf,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub to: PathBuf,
    #[serde(default)]
    pub access: Access,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Only loopback, inside the sandbox.
    #[default]
    None,
    /// The host's own network, with everything on it.
    Host,
}

/// Limits as asked for. One that is given must be enforced for the whole sandbox, or creation
/// fails; one that is absent gets a default, held by the best means there is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct LimitsSpec {
    pub memory: Option<Size>,
    pub cpus: Option<f64>,
    pub pids: Option<u64>,
    pub workspace: Option<Size>,
    pub tmp: Option<Size>,
    pub file_size: Option<Size>,
    pub open_files: Option<u64>,
}
