//! What the file routes of our own take and answer with. Paths are below the workspace.

use ringfence_core::proto::{self, WORKSPACE};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

fn root() -> String {
    WORKSPACE.to_owned()
}

fn dot() -> String {
    ".".to_owned()
}

/// Which file or folder.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StatQuery {
    /// Below the workspace.
    pub path: String,
}

/// What to delete.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DeleteQuery {
    /// Below the workspace.
    pub path: String,
    /// A folder with all that is in it.
    #[serde(default)]
    pub recursive: bool,
}

/// Which folder, and how far down.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TreeQuery {
    /// Below the workspace.
    #[serde(default = "dot")]
    pub path: String,
    /// With what is in its folders.
    #[serde(default)]
    pub recursive: bool,
    /// So many levels; only with `recursive`.
    #[param(minimum = 1, maximum = 4096)]
    pub depth: Option<u32>,
}

/// What a thing is.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    File,
    Folder,
    Symlink,
    Other,
}

/// A file, folder or link, as it is; links are not followed.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EntryObject {
    path: String,
    kind: Kind,
    size_bytes: u64,
    /// Permission bits.
    mode: u32,
    /// Seconds since the epoch.
    modified_at: f64,
    /// Where a link points.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<proto::Entry> for EntryObject {
    fn from(entry: proto::Entry) -> Self {
        Self {
            path: entry.path,
            kind: match entry.kind {
                proto::FileKind::File => Kind::File,
                proto::FileKind::Folder => Kind::Folder,
                proto::FileKind::Symlink => Kind::Symlink,
                proto::FileKind::Other => Kind::Other,
            },
            size_bytes: entry.size,
            mode: entry.mode,
            modified_at: entry.modified,
            target: entry.target,
        }
    }
}

/// Files, folders and links, sorted by path.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Entries {
    entries: Vec<EntryObject>,
    /// There are more than are listed in one answer.
    truncated: bool,
}

impl Entries {
    pub(super) fn of(entries: Vec<proto::Entry>, truncated: bool) -> Self {
        Self {
            entries: entries.into_iter().map(EntryObject::from).collect(),
            truncated,
        }
    }
}

/// From where to where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FromTo {
    from: String,
    to: String,
    /// Replaces what is there; else that is a conflict.
    #[serde(default)]
    overwrite: bool,
}

impl From<FromTo> for proto::Move {
    fn from(ask: FromTo) -> Self {
        Self {
            root: root(),
            from: ask.from,
            to: ask.to,
            overwrite: ask.overwrite,
        }
    }
}

impl From<FromTo> for proto::Copy {
    fn from(ask: FromTo) -> Self {
        Self {
            root: root(),
            from: ask.from,
            to: ask.to,
            overwrite: ask.overwrite,
        }
    }
}

/// A folder to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MkdirBody {
    path: String,
    /// Permission bits.
    #[schema(maximum = 4095)]
    mode: Option<u32>,
}

impl From<MkdirBody> for proto::Mkdir {
    fn from(ask: MkdirBody) -> Self {
        Self {
            root: root(),
            path: ask.path,
            mode: ask.mode,
        }
    }
}

/// Which paths to find.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GlobBody {
    /// `*` stays in a folder, `**` crosses them.
    pattern: String,
    /// The folder to look below.
    #[serde(default = "dot")]
    path: String,
    /// With names that begin with a dot.
    #[serde(default)]
    hidden: bool,
    /// Without what `.gitignore` files name.
    #[serde(default)]
    gitignore: bool,
    /// At most so many.
    #[schema(minimum = 1)]
    limit: Option<u32>,
}

impl From<GlobBody> for proto::GlobRequest {
    fn from(ask: GlobBody) -> Self {
        Self {
            root: root(),
            path: ask.path,
            pattern: ask.pattern,
            hidden: ask.hidden,
            gitignore: ask.gitignore,
            limit: ask.limit,
        }
    }
}

/// What a search answers with.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GrepMode {
    /// Files and their lines.
    #[default]
    Content,
    /// Only the files.
    Files,
    /// Files and how many of their lines match.
    Count,
}

/// What to look for in texts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrepBody {
    /// A regular expression.
    pattern: String,
    /// The folder to look below, or one file.
    #[serde(default = "dot")]
    path: String,
    #[serde(default)]
    ignore_case: bool,
    /// Takes the pattern as it is, not as an expression.
    #[serde(default)]
    fixed: bool,
    /// Only files whose path below `path` matches.
    glob: Option<String>,
    /// With names that begin with a dot.
    #[serde(default)]
    hidden: bool,
    /// Without what `.gitignore` files name.
    #[serde(default)]
    gitignore: bool,
    #[serde(default)]
    mode: GrepMode,
    /// Lines before and after each match.
    #[serde(default)]
    context: u32,
    /// At most so many lines or files.
    #[schema(minimum = 1, maximum = 100_000)]
    limit: Option<u32>,
}

impl From<GrepBody> for proto::GrepRequest {
    fn from(ask: GrepBody) -> Self {
        Self {
            root: root(),
            path: ask.path,
            pattern: ask.pattern,
            ignore_case: ask.ignore_case,
            fixed: ask.fixed,
            glob: ask.glob,
            hidden: ask.hidden,
            gitignore: ask.gitignore,
            mode: match ask.mode {
                GrepMode::Content => proto::GrepMode::Content,
                GrepMode::Files => proto::GrepMode::Files,
                GrepMode::Count => proto::GrepMode::Count,
            },
            context: ask.context,
            limit: ask.limit,
        }
    }
}

/// A line that was found, or is near one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoundLine {
    number: u64,
    text: String,
    /// False for a line of context.
    matched: bool,
}

/// A file with lines that were found.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FoundFile {
    path: String,
    /// Lines that match.
    count: u64,
    lines: Vec<FoundLine>,
}

/// What was found, sorted by path.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Found {
    files: Vec<FoundFile>,
    truncated: bool,
}

impl From<proto::GrepResult> for Found {
    fn from(result: proto::GrepResult) -> Self {
        let line = |line: proto::GrepLine| FoundLine {
            number: line.number,
            text: line.text,
            matched: line.matched,
        };
        let file = |file: proto::GrepFile| FoundFile {
            path: file.path,
            count: file.count,
            lines: file.lines.into_iter().map(line).collect(),
        };
        Self {
            files: result.files.into_iter().map(file).collect(),
            truncated: result.truncated,
        }
    }
}

/// One change to a text.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Edit {
    /// Makes a file; it must not exist.
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
    /// After line `after`; 0 is the top.
    Insert { after: u64, text: String },
    /// Lines `from` to `to`, the first is 1; `to = from - 1` inserts.
    ReplaceLines { from: u64, to: u64, text: String },
    /// A unified diff of this one file.
    Patch { diff: String },
    /// Takes back the last edit of this file.
    Undo,
}

impl From<Edit> for proto::Edit {
    fn from(edit: Edit) -> Self {
        match edit {
            Edit::Create { text } => Self::Create { text },
            Edit::Write { text } => Self::Write { text },
            Edit::StrReplace { old, new, all } => Self::StrReplace { old, new, all },
            Edit::Insert { after, text } => Self::Insert { after, text },
            Edit::ReplaceLines { from, to, text } => Self::ReplaceLines { from, to, text },
            Edit::Patch { diff } => Self::Patch { diff },
            Edit::Undo => Self::Undo,
        }
    }
}

/// An edit of a file.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditBody {
    path: String,
    edit: Edit,
    /// Permission bits of the file.
    #[schema(maximum = 4095)]
    mode: Option<u32>,
}

impl From<EditBody> for proto::EditRequest {
    fn from(ask: EditBody) -> Self {
        Self {
            root: root(),
            path: ask.path,
            edit: ask.edit.into(),
            mode: ask.mode,
        }
    }
}

/// The lines that changed, as in a unified diff.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Hunk {
    old_start: u64,
    old_lines: u64,
    new_start: u64,
    new_lines: u64,
    /// Each with its sign: `-old`, `+new`.
    lines: Vec<String>,
}

/// A file after an edit.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Edited {
    path: String,
    /// It was there before.
    existed: bool,
    size_bytes: u64,
    total_lines: u64,
    /// Absent when nothing changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    hunk: Option<Hunk>,
}

impl From<proto::EditResult> for Edited {
    fn from(result: proto::EditResult) -> Self {
        Self {
            path: result.path,
            existed: result.existed,
            size_bytes: result.size,
            total_lines: result.total_lines,
            hunk: result.hunk.map(|hunk| Hunk {
                old_start: hunk.old_start,
                old_lines: hunk.old_lines,
                new_start: hunk.new_start,
                new_lines: hunk.new_lines,
                lines: hunk.lines,
            }),
        }
    }
}
