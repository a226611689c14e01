//! Result blocks in the shape of the hosted code execution tool, which clients parse already.
//!
//! Beside the shape's own keys every `content` carries `stdout`, `stderr` and `return_code`, so
//! that a client that reads only those three works with every tool.

mod editor;
mod text;

pub(crate) use editor::picture;
pub use editor::{BadInput, EditorCall};
pub(crate) use text::explain;
pub use text::{Asked, Text, return_code};

use crate::file_id::FileId;
use crate::sessions::SessionId;
use ringfence_proto::{Entry, ExecResult, FileKind, Rich};
use serde_json::{Value, json};

/// Most files that a result names, whatever the guest says.
const FILES: usize = 100;

/// The longest name that Linux takes.
const NAME: usize = 255;

/// The tools that answer in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Code,
    Bash,
    TextEditor,
}

impl Tool {
    pub const ALL: [Self; 3] = [Self::Code, Self::Bash, Self::TextEditor];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Code => "code_execution",
            Self::Bash => "bash_code_execution",
            Self::TextEditor => "text_editor_code_execution",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// The block around a result or an error.
    pub fn block(self, tool_use_id: &str, content: Value) -> Value {
        json!({
            "type": format!("{}_tool_result", self.name()),
            "tool_use_id": tool_use_id,
            "content": content,
        })
    }

    /// What failed was not the code.
    pub fn error(self, code: &str, message: &str) -> Value {
        json!({
            "type": format!("{}_tool_result_error", self.name()),
            "error_code": code,
            "error_message": message,
            "stdout": "",
            "stderr": message,
            "return_code": -1,
        })
    }
}

/// The answer of `code_execution` and `bash_code_execution`. Beside what the shape has: `value`,
/// the last expression's; `results`, every value and figure in all of its forms; `certificate`,
/// where something did not end by itself.
pub fn result(tool: Tool, text: &Text, session: &SessionId, done: &ExecResult) -> Value {
    let mut content = json!({
        "type": format!("{}_result", tool.name()),
        "stdout": text.stdout,
        "stderr": text.stderr,
        "return_code": text.return_code,
        "content": files(tool, session, &done.end.changed),
    });
    if done.end.changed_truncated {
        content["content_truncated"] = json!(true);
    }
    if !done.results.is_empty() {
        content["results"] = json!(done.results);
    }
    if let Some(value) = done.results.iter().rev().find_map(value) {
        content["value"] = json!(value);
    }
    if let Some(certificate) = &done.end.certificate {
        content["certificate"] = json!(certificate);
    }
    content
}

fn value(rich: &Rich) -> Option<&str> {
    let text = (rich.kind == "value").then(|| rich.data.get("text/plain"))?;
    text.map(String::as_str)
}

/// The files that a call made or changed; what is no name of a file in the workspace is left out.
fn files(tool: Tool, session: &SessionId, changed: &[Entry]) -> Vec<Value> {
    changed
        .iter()
        .filter(|entry| entry.kind == FileKind::File)
        .filter(|entry| entry.path.len() <= NAME && !entry.path.contains('/'))
        .filter_map(|entry| {
            let id = FileId::new(session, &entry.path)?;
            Some(json!({
                "type": format!("{}_output", tool.name()),
                "file_id": id.to_string(),
                "filename": entry.path,
                "size_bytes": entry.size,
            }))
        })
        .take(FILES)
        .collect()
}
