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
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a snippet sees its workspace, and works.
pub const WORK: &str = "/work";

/// Seconds that code has when nobody says how many.
pub const TIMEOUT: f64 = 15.0;
/// Seconds that a compiler has.
pub const COMPILE_TIMEOUT: f64 = 60.0;
/// The size of `/tmp`.
pub const TMP: Size = Size(64 << 20);

/// Code to be run in a sandbox of its own, also by the tool `run_code`, in the same words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(example = json!({"language": "python", "code": "print(2 + 2)"})))]
#[serde(deny_unknown_fields)]
pub struct Snippet {
    /// A language or an alias of it, such as py, node or ts.
    pub language: String,
    /// The source of the snippet.
    pub code: String,
    /// Further files by name, beside the code.
    #[serde(default, deserialize_with = "files_once")]
    pub files: BTreeMap<String, Blob>,
    /// What it reads from standard input.
    #[serde(default)]
    pub stdin: Blob,
    /// Its arguments.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 256))]
    pub args: Vec<String>,
    /// Further environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Seconds until it is ended: 15 when absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.001, maximum = 86400))]
    pub timeout_seconds: Option<f64>,
    /// Seconds that its compiler has, where there is one: 60 when absent.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(minimum = 0.001, maximum = 86400))]
    pub compile_timeout_seconds: Option<f64>,
    /// Memory of the whole sandbox, such as 256m.
    #[serde(default)]
    pub memory: Option<Size>,
    /// Whether the workspace is read-only.
    #[serde(default = "yes")]
    pub sandbox: bool,
    /// Whether it may use the network.
    #[serde(default)]
    pub network: bool,
    /// The image to run in, on an engine that has images.
    #[serde(default)]
    pub image: Option<String>,
    /// A folder of the host, seen at /work.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub workspace_root: Option<PathBuf>,
    /// Whether the code may write to that folder: read_only or read_write.
    #[serde(default)]
    pub workspace_access: Access,
    /// Makes /work a private folder that can be written to; so do files and outputs.
    #[serde(default)]
    pub scratch: bool,
    /// Globs below /work, or with /tmp/ before them: files that are answered with.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 32))]
    pub outputs: Vec<String>,
}

fn yes() -> bool {
    true
}

/// Of two files with one name, one would be lost without a word.
fn files_once<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Blob>, D::Error> {
    struct Files;
    impl<'de> Visitor<'de> for Files {
        type Value = BTreeMap<String, Blob>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("files by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut files = BTreeMap::new();
            while let Some((name, content)) = map.next_entry::<String, Blob>()? {
                if files.contains_key(&name) {
                    return Err(A::Error::custom(format!("{name:?} is there twice")));
                }
                files.insert(name, content);
            }
            Ok(files)
        }
    }
    from.deserialize_map(Files)
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
