use serde::{Deserialize, Serialize};

fn default_root() -> String {
    crate::WORKSPACE.to_owned()
}

fn dot() -> String {
    ".".to_owned()
}

fn yes() -> bool {
    true
}

/// `GET /files/stat`, `GET /files/list`, `DELETE /files`. `path` is resolved beneath `root`: a
/// relative one from it, an absolute one must name something below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathQuery {
    #[serde(default = "default_root")]
    pub root: String,
    #[serde(default = "dot")]
    pub path: String,
    /// `DELETE`: a folder with what is in it. `list`: everything below, `depth` levels.
    #[serde(default)]
    pub recursive: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub depth: Option<u32>,
}

impl PathQuery {
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            root: default_root(),
            path: path.into(),
            recursive: false,
            depth: None,
        }
    }
}

/// `GET /files/content`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadQuery {
    #[serde(default = "default_root")]
    pub root: String,
    pub path: String,
    #[serde(default)]
    pub offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
}

impl ReadQuery {
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            root: default_root(),
            path: path.into(),
            offset: 0,
            length: None,
        }
    }
}

/// `PUT /files/content`: atomic unless `append`; parents are made. Answers with the [`Entry`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteQuery {
    #[serde(default = "default_root")]
    pub root: String,
    pub path: String,
    /// Permission bits in decimal, at most 0o7777; an existing file keeps its own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    #[serde(default)]
    pub append: bool,
    /// Refuses to replace an existing file.
    #[serde(default)]
    pub create_new: bool,
}

impl WriteQuery {
    pub fn new(path: impl Into<String>) -> Self {
        Self {
            root: default_root(),
            path: path.into(),
            mode: None,
            append: false,
            create_new: false,
        }
    }
}

/// `GET /files/tar` (out) and `PUT /files/tar` (in) of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TarQuery {
    #[serde(default = "default_root")]
    pub root: String,
    #[serde(default = "dot")]
    pub path: String,
}

/// `POST /files/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Move {
    #[serde(default = "default_root")]
    pub root: String,
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub overwrite: bool,
}

/// `POST /files/copy`: a file, or a folder with what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Copy {
    #[serde(default = "default_root")]
    pub root: String,
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub overwrite: bool,
}

/// `POST /files/mkdir`: parents are made; an existing folder is no error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mkdir {
    #[serde(default = "default_root")]
    pub root: String,
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Folder,
    Symlink,
    Other,
}

/// A file, folder or link, as it is; links are not followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Entry {
    /// Relative to the root that the caller chose; `.` for the root itself.
    pub path: String,
    pub kind: FileKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Seconds since the epoch.
    pub modified: f64,
    pub uid: u32,
    pub gid: u32,
    /// Where a link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Answer of `GET /files/list`, sorted by path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ListResult {
    pub entries: Vec<Entry>,
    /// There were more than the guest lists in one answer (10,000).
    pub truncated: bool,
}

/// `POST /files/glob`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobRequest {
    #[serde(default = "default_root")]
    pub root: String,
    /// Below this folder.
    #[serde(default = "dot")]
    pub path: String,
    /// `*` stays in a folder, `**` crosses them; matched against the path below `path`.
    pub pattern: String,
    #[serde(default)]
    pub hidden: bool,
    /// Leaves out what `.gitignore` files name.
    #[serde(default)]
    pub gitignore: bool,
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GlobResult {
    /// Sorted by path; paths are relative to the root.
    pub entries: Vec<Entry>,
    pub truncated: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrepMode {
    #[default]
    Content,
    Files,
    Count,
}

/// `POST /files/grep`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrepRequest {
    #[serde(default = "default_root")]
    pub root: String,
    /// A folder to search below, or one file.
    #[serde(default = "dot")]
    pub path: String,
    /// A regular expression of Rust's `regex` crate.
    pub pattern: String,
    #[serde(default)]
    pub ignore_case: bool,
    /// Takes the pattern literally.
    #[serde(default)]
    pub fixed: bool,
    /// Only files whose path below `path` matches.
    #[serde(default)]
    pub glob: Option<String>,
    #[serde(default)]
    pub hidden: bool,
    #[serde(default)]
    pub gitignore: bool,
    #[serde(default)]
    pub mode: GrepMode,
    /// Lines before and after each match.
    #[serde(default)]
    pub context: u32,
    /// Most lines (or files) in the answer; 1,000 when absent, 100,000 at most.
    #[serde(default)]
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepLine {
    pub number: u64,
    /// Without its line end; cut at 2,000 bytes; not UTF-8 is replaced.
    pub text: String,
    /// False for a line of context.
    #[serde(default = "yes")]
    pub matched: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepFile {
    pub path: String,
    /// Matching lines in this file.
    pub count: u64,
    /// Empty unless the mode is `content`.
    #[serde(default)]
    pub lines: Vec<GrepLine>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrepResult {
    /// Sorted by path.
    pub files: Vec<GrepFile>,
    pub truncated: bool,
}

/// One change to a text file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Edit {
    /// Makes a file with this text; it must not exist.
    Create { text: String },
    /// Writes a whole text, over an existing file too.
    Write { text: String },
    /// `old` must occur exactly once, unless `all`.
    StrReplace {
        old: String,
        new: String,
        #[serde(default)]
        all: bool,
    },
    /// After line `after`; 0 is the top. A missing final newline is added.
    Insert { after: u64, text: String },
    /// Replaces lines `from` to `to`, 1-indexed and inclusive; `to = from - 1` inserts.
    ReplaceLines { from: u64, to: u64, text: String },
    /// Applies a unified diff of this one file.
    Patch { diff: String },
    /// Takes back the last edit made here to this file; again and again.
    Undo,
}

/// `POST /files/edit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    #[serde(default = "default_root")]
    pub root: String,
    pub path: String,
    pub edit: Edit,
    #[serde(default)]
    pub mode: Option<u32>,
}

/// The lines that an edit changed, 1-indexed, as in a unified diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hunk {
    pub old_start: u64,
    pub old_lines: u64,
    pub new_start: u64,
    pub new_lines: u64,
    /// Each with its sign: `-old`, `+new`; the first 10,000 of them.
    pub lines: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditResult {
    /// The path as resolved below the root.
    pub path: String,
    /// It existed before this edit.
    pub existed: bool,
    /// Bytes and lines of the file after the edit.
    pub size: u64,
    pub total_lines: u64,
    /// One hunk that spans every changed line; absent when nothing changed.
    pub hunk: Option<Hunk>,
}
