//! Snippets: code in some language, run in a disposable sandbox. What is asked for is a
//! [`Snippet`], what was checked and can run is a [`Program`], what came of it an [`Outcome`].

mod batch;
mod gather;
mod outcome;
mod outputs;
mod program;
mod run;
mod sandbox;

pub use batch::{Batch, Case, Compare, Entry, Judged, Verdict};
pub use outcome::{Compiled, Outcome, Stage};
pub use outputs::OutputFile;
pub use program::Program;
pub use run::{Progress, Runner, Terms, Wires};

use crate::size::Size;
use crate::spec::Access;
use ringfence_proto::Blob;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where a snippet sees its workspace, and works.
pub const WORK: &str = "/work";

/// Seconds that code has when nobody says how many.
pub const TIMEOUT: f64 = 15.0;
/// Seconds that a compiler has.
pub const COMPILE_TIMEOUT: f64 = 60.0;
/// The size of `/tmp`.
pub const TMP: Size = Size(64 << 20);

/// Code to be run in a sandbox of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"language": "python", "code": "print(2 + 2)"})))]
#[serde(deny_unknown_fields)]
pub struct Snippet {
    /// A name or an alias: `GET /languages` lists them.
    pub language: String,
    pub code: String,
    /// Further files by name, beside the code.
    #[serde(default)]
    pub files: BTreeMap<String, Blob>,
    #[serde(default)]
    pub stdin: Blob,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 256))]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// 15 when absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.001, maximum = 86400))]
    pub timeout_seconds: Option<f64>,
    /// Of the compiler, where there is one: 60 when absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.001, maximum = 86400))]
    pub compile_timeout_seconds: Option<f64>,
    /// Of the whole sandbox, such as `256m`.
    #[serde(default)]
    pub memory: Option<Size>,
    /// `false` lets the code write to its workspace.
    #[serde(default = "yes")]
    pub sandbox: bool,
    #[serde(default)]
    pub network: bool,
    /// The image to run in, on an engine that has images.
    #[serde(default)]
    pub image: Option<String>,
    /// A folder of the host, seen at `/work`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub workspace_root: Option<PathBuf>,
    #[serde(default)]
    pub workspace_access: Access,
    /// Makes `/work` a private folder that can be written to; so do `files` and `outputs`.
    #[serde(default)]
    pub scratch: bool,
    /// Globs below `/work`, or with `/tmp/` before them: files that are answered with.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 32))]
    pub outputs: Vec<String>,
}

fn yes() -> bool {
    true
}

impl Snippet {
    pub fn new(language: impl Into<String>, code: impl Into<String>) -> Self {
        Self {
            language: language.into(),
            code: code.into(),
            files: BTreeMap::new(),
            stdin: Blob::default(),
            args: Vec::new(),
            env: BTreeMap::new(),
            timeout_seconds: None,
            compile_timeout_seconds: None,
            memory: None,
            sandbox: true,
            network: false,
            image: None,
            workspace_root: None,
            workspace_access: Access::ReadOnly,
            scratch: false,
            outputs: Vec::new(),
        }
    }
}
