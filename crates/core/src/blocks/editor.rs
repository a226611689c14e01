//! `text_editor_code_execution`: the editor tool over a guest's files.

use super::Tool;
use super::text::{add_line, left_out_line};
use crate::guest::GuestClient;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_proto::{
    Code, Edit, EditRequest, EditResult, Failure, PathQuery, ReadQuery, WORKSPACE, WriteQuery,
};
use serde_json::{Map, Value, json};

/// A file longer than this is not viewed: it would have to be held whole.
const VIEW_LIMIT: u64 = 16 << 20;

/// Levels of a folder that are shown.
const LEVELS: u32 = 2;

/// One call of the editor, its input checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EditorCall {
    path: String,
    command: Command,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Command {
    View { range: Option<(i64, i64)> },
    Create { text: String },
    Replace { old: String, new: String },
    Insert { line: i64, text: String },
    Undo,
}

/// What is wrong with the input, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadInput {
    pub field: &'static str,
    pub message: String,
    /// `missing`, `string_type` and the like, as in the lists of a 422.
    pub kind: &'static str,
}

impl BadInput {
    fn new(field: &'static str, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            field,
            message,
            kind,
        }
    }
}

/// The input of a call; null is as good as absent.
struct Input<'a>(&'a Map<String, Value>);

impl Input<'_> {
    fn get(&self, field: &str) -> Option<&Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    fn text(&self, field: &'static str) -> Result<Option<String>, BadInput> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(BadInput::new(field, "string_type", "must be a string")),
        }
    }

    fn need(&self, field: &'static str) -> Result<String, BadInput> {
        self.text(field)?
            .ok_or_else(|| BadInput::new(field, "missing", "field required"))
    }

    fn range(&self) -> Result<Option<(i64, i64)>, BadInput> {
        let field = "view_range";
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        let two = value.as_array().map(Vec::as_slice);
        match two {
            Some([first, last]) => match (whole(first), whole(last)) {
                (Some(first), Some(last)) => Ok(Some((first, last))),
                _ => Err(BadInput::new(
                    field,
                    "int_type",
                    "must be two whole numbers",
                )),
            },
            _ => Err(BadInput::new(
                field,
                "list_type",
                "must be a list of two numbers",
            )),
        }
    }
}

/// A whole number, also one that was written as `2.0`.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
    })
}

impl EditorCall {
    /// The text that it puts into the file.
    pub fn text(&self) -> Option<&str> {
        match &self.command {
            Command::Create { text } | Command::Insert { text, .. } => Some(text),
            Command::Replace { new, .. } => Some(new),
            Command::View { .. } | Command::Undo => None,
        }
    }

    pub fn parse(input: &Map<String, Value>) -> Result<Self, BadInput> {
        let input = Input(input);
        let command = input.need("command")?;
        let known = ["view", "create", "str_replace", "insert", "undo_edit"];
        if !known.contains(&command.as_str()) {
            let message = format!("no such command: must be one of {}", known.join(", "));
            return Err(BadInput::new("command", "enum", message));
        }
        let path = input.need("path")?;
        if path.is_empty() {
            return Err(BadInput::new(
                "path",
                "string_too_short",
                "must not be empty",
            ));
        }
        let command = match command.as_str() {
            "view" => Command::View {
                range: input.range()?,
            },
            "create" => Command::Create {
                text: input.need("file_text")?,
            },
            "str_replace" => Command::Replace {
                old: input.need("old_str")?,
                new: input.text("new_str")?.unwrap_or_default(),
            },
            "insert" => {
                let missing = || BadInput::new("insert_line", "missing", "field required");
                let line = input.get("insert_line").ok_or_else(missing)?;
                let odd = || BadInput::new("insert_line", "int_type", "must be a whole number");
                let line = whole(line).ok_or_else(odd)?;
                // Later versions of the hosted tool call it so.
                let text = match input.text("insert_text")? {
                    Some(text) => text,
                    None => input.need("new_str")?,
                };
                Command::Insert { line, text }
            }
            _ => Command::Undo,
        };
        Ok(Self { path, command })
    }

    /// Whether it changes anything.
    pub fn writes(&self) -> bool {
        !matches!(self.command, Command::View { .. })
    }

    /// The content of its block; a command that failed has one too. What is left is a failure of
    /// the way to the guest. No text is longer than `limit` bytes.
    pub async fn run(&self, guest: &GuestClient, limit: u64) -> Result<Value, Failure> {
        let done = match &self.command {
            Command::View { range } => self.view(guest, *range, limit).await,
            Command::Create { text } => self.create(guest, text).await,
            Command::Replace { old, new } => {
                let edit = Edit::StrReplace {
                    old: old.clone(),
                    new: new.clone(),
                    all: false,
                };
                self.edit(guest, edit, "Edited").await
            }
            Command::Insert { line, text } => match u64::try_from(*line) {
                Ok(after) => {
                    let text = text.clone();
                    let edit = Edit::Insert { after, text };
                    self.edit(guest, edit, "Inserted into").await
                }
                Err(_) => Err(self.out_of_range(&format!("line {line}"), "edit")),
            },
            Command::Undo => self.edit(guest, Edit::Undo, "Reverted").await,
        };
        done.or_else(failed)
    }

    fn out_of_range(&self, what: &str, verb: &str) -> Failure {
        Failure::invalid(format!(
            "cannot {verb} {}: {what} is out of range",
            self.path
        ))
    }

    /// A new file is no edit: there is nothing to take back.
    async fn create(&self, guest: &GuestClient, text: &str) -> Result<Value, Failure> {
        let query = WriteQuery {
            create_new: true,
            ..WriteQuery::new(&self.path)
        };
        guest.write(&query, text.to_owned()).await?;
        let shape = json!({"is_file_update": false});
        Ok(content(
            "create_result",
            shape,
            format!("File created: {}", self.path),
        ))
    }

    async fn edit(&self, guest: &GuestClient, edit: Edit, did: &str) -> Result<Value, Failure> {
        let request = EditRequest {
            root: WORKSPACE.to_owned(),
            path: self.path.clone(),
            edit,
            mode: None,
        };
        let done: EditResult = guest.post("/files/edit", &request).await?;
        // An edit that changed nothing has no lines.
        let shape = match done.hunk {
            Some(hunk) => json!({
                "old_start": hunk.old_start,
                "old_lines": hunk.old_lines,
                "new_start": hunk.new_start,
                "new_lines": hunk.new_lines,
                "lines": hunk.lines,
            }),
            None => json!({
                "old_start": null,
                "old_lines": null,
                "new_start": null,
                "new_lines": null,
                "lines": [],
            }),
        };
        Ok(content(
            "str_replace_result",
            shape,
            format!("{did} {}", self.path),
        ))
    }

    async fn view(
        &self,
        guest: &GuestClient,
        range: Option<(i64, i64)>,
        limit: u64,
    ) -> Result<Value, Failure> {
        let query = ReadQuery {
            length: Some(VIEW_LIMIT + 1),
            ..ReadQuery::new(&self.path)
        };
        let bytes = match guest.read(&query).await {
            Ok(bytes) => bytes,
            // Most likely a folder.
            Err(failure) if failure.code == Code::InvalidInput => {
                return match self.view_folder(guest, limit).await {
                    Err(other) if other.code == Code::InvalidInput => Err(failure),
                    shown => shown,
                };
            }
            Err(failure) => return Err(failure),
        };
        if bytes.len() as u64 > VIEW_LIMIT {
            let message = format!(
                "cannot view {}: it is over {VIEW_LIMIT} bytes; look at a part of it with bash",
                self.path
            );
            return Err(Failure::new(Code::TooLarge, message));
        }
        if let Some((file_type, media)) = picture(&bytes) {
            let note = format!("[{media}, {} bytes]", bytes.len());
            let shape = json!({"file_type": file_type, "content": STANDARD.encode(&bytes)});
            return Ok(content("view_result", shape, note));
        }
        self.view_text(&String::from_utf8_lossy(&bytes), range, limit)
    }

    fn view_text(
        &self,
        text: &str,
        range: Option<(i64, i64)>,
        limit: u64,
    ) -> Result<Value, Failure> {
        let total = text.split_inclusive('\n').count();
        let (start, text) = match range {
            None => (1, text),
            Some((first, last)) => {
                let odd = || {
                    let what = format!("view_range [{first}, {last}]");
                    let mut failure = self.out_of_range(&what, "view");
                    failure.message += &format!(", it has {total} lines");
                    failure
                };
                let last = if last == -1 { i64::MAX } else { last };
                let start = usize::try_from(first).map_err(|_| odd())?;
                let end = usize::try_from(last).map_err(|_| odd())?.min(total);
                // An empty file has a first line to look at, with nothing on it.
                if start == 0 || start > total.max(1) || last < first {
                    return Err(odd());
                }
                (start, lines(text, start, end))
            }
        };
        let (shown, left_out) = cut(text, limit);
        let count = shown.split_inclusive('\n').count();
        let mut shown = shown.to_owned();
        if left_out > 0 {
            add_line(&mut shown, &left_out_line(left_out));
        }
        let shape = json!({
            "file_type": "text",
            "content": shown,
            "num_lines": count,
            "start_line": start,
            "total_lines": total,
        });
        Ok(content("view_result", shape, shown))
    }

    /// Paths from the folder on, one a line.
    async fn view_folder(&self, guest: &GuestClient, limit: u64) -> Result<Value, Failure> {
        let query = PathQuery {
            recursive: true,
            depth: Some(LEVELS),
            ..PathQuery::new(&self.path)
        };
        let list: ringfence_proto::ListResult = guest.get("/files/list", &query).await?;
        let folder = below(&self.path);
        let mut paths: Vec<&str> = list
            .entries
            .iter()
            .map(|entry| {
                let inner = entry.path.strip_prefix(folder.as_str());
                inner.map_or(entry.path.as_str(), |rest| rest.trim_start_matches('/'))
            })
            .collect();
        // A folder before what is in it, and that before the folder's neighbours.
        paths.sort_by(|a, b| a.split('/').cmp(b.split('/')));
        let text = paths.join("\n");
        let (shown, left_out) = cut(&text, limit);
        let count = shown.split_inclusive('\n').count();
        let mut shown = shown.to_owned();
        if left_out > 0 {
            add_line(&mut shown, &left_out_line(left_out));
        } else if list.truncated {
            add_line(&mut shown, "[there is more: not everything is shown]");
        }
        let shape = json!({
            "file_type": "text",
            "content": shown,
            "num_lines": count,
            "start_line": 1,
            "total_lines": paths.len(),
        });
        Ok(content("view_result", shape, shown))
    }
}

/// The folder as the guest shows it in front of what is in it; empty for the workspace.
fn below(path: &str) -> String {
    let inner = path.strip_prefix(WORKSPACE).unwrap_or(path);
    let parts = inner
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    parts.collect::<Vec<_>>().join("/")
}

/// The lines `start` to `end`, 1-indexed and inclusive, without the last one's end.
fn lines(text: &str, start: usize, end: usize) -> &str {
    let length = |count| text.split_inclusive('\n').take(count).map(str::len).sum();
    let (from, to): (usize, usize) = (length(start - 1), length(end));
    let part = text.get(from..to).unwrap_or("");
    part.strip_suffix('\n').unwrap_or(part)
}

/// At most `limit` bytes of a text, in whole characters, and how many were left out.
fn cut(text: &str, limit: u64) -> (&str, u64) {
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let shown = &text[..text.floor_char_boundary(most)];
    (shown, (text.len() - shown.len()) as u64)
}

/// What the block can carry beside text, told by how it begins.
pub(crate) fn picture(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(("image", "image/png")),
        [0xff, 0xd8, 0xff, ..] => Some(("image", "image/jpeg")),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some(("image", "image/gif")),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Some(("image", "image/webp")),
        [b'%', b'P', b'D', b'F', b'-', ..] => Some(("pdf", "application/pdf")),
        _ => None,
    }
}

fn content(kind: &str, shape: Value, stdout: String) -> Value {
    let mut content = shape;
    content["type"] = json!(format!("{}_{kind}", Tool::TextEditor.name()));
    content["stdout"] = json!(stdout);
    content["stderr"] = json!("");
    content["return_code"] = json!(0);
    content
}

/// A command that failed, as an error block; what the file is not to blame for stays a failure.
fn failed(failure: Failure) -> Result<Value, Failure> {
    let code = match failure.code {
        Code::NotFound => "file_not_found",
        Code::InvalidInput
        | Code::AlreadyExists
        | Code::Forbidden
        | Code::Conflict
        | Code::TooLarge
        | Code::NoSpace => "invalid_tool_input",
        _ => return Err(failure),
    };
    let mut content = Tool::TextEditor.error(code, &failure.message);
    content["stderr"] = json!(format!("text_editor: {}", failure.message));
    content["return_code"] = json!(1);
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: Value) -> Result<EditorCall, BadInput> {
        EditorCall::parse(input.as_object().unwrap())
    }

    fn fault(input: Value) -> (&'static str, &'static str) {
        let bad = parse(input).unwrap_err();
        (bad.field, bad.kind)
    }

    #[test]
    fn input_is_checked_where_it_is_wrong() {
        assert_eq!(fault(json!({})), ("command", "missing"));
        assert_eq!(fault(json!({"command": "rm"})), ("command", "enum"));
        assert_eq!(fault(json!({"command": 1})), ("command", "string_type"));
        assert_eq!(fault(json!({"command": "view"})), ("path", "missing"));
        let of = |more: Value| {
            let mut input = json!({"path": "a"});
            input
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            fault(input)
        };
        assert_eq!(of(json!({"command": "view", "path": ""})).0, "path");
        assert_eq!(
            of(json!({"command": "view", "view_range": [1]})).0,
            "view_range"
        );
        assert_eq!(
            of(json!({"command": "view", "view_range": [1, "x"]})).0,
            "view_range"
        );
        assert_eq!(of(json!({"command": "create"})), ("file_text", "missing"));
        assert_eq!(
            of(json!({"command": "str_replace"})),
            ("old_str", "missing")
        );
        assert_eq!(
            of(json!({"command": "insert", "new_str": ""})),
            ("insert_line", "missing")
        );
        let half = json!({"command": "insert", "insert_line": 1.5, "new_str": ""});
        assert_eq!(of(half), ("insert_line", "int_type"));
        assert_eq!(
            of(json!({"command": "insert", "insert_line": 1})),
            ("new_str", "missing")
        );
    }

    #[test]
    fn null_is_absent_and_new_text_may_be() {
        let view = json!({"command": "view", "path": "a", "view_range": null, "file_text": null});
        assert_eq!(parse(view).unwrap().command, Command::View { range: None });
        let cut = json!({"command": "str_replace", "path": "a", "old_str": "x"});
        assert!(parse(cut).unwrap().writes());
    }

    fn view(text: &str, range: Option<(i64, i64)>) -> Result<Value, Failure> {
        let input = json!({"command": "view", "path": "a"});
        parse(input).unwrap().view_text(text, range, 1000)
    }

    #[test]
    fn ranges_are_inclusive_and_end_where_the_file_does() {
        let text = "a\nb\nc\n";
        let of = |range| view(text, Some(range)).map(|v| v["content"].as_str().unwrap().to_owned());
        assert_eq!(of((2, 3)).unwrap(), "b\nc");
        assert_eq!(of((2, -1)).unwrap(), "b\nc");
        assert_eq!(of((3, 99)).unwrap(), "c");
        assert_eq!(of((1, 1)).unwrap(), "a");
        for odd in [(0, 2), (4, 5), (3, 2), (-3, 1), (2, -2)] {
            let failure = of(odd).unwrap_err();
            assert!(failure.message.contains("out of range"), "{failure}");
        }
        let whole = view(text, None).unwrap();
        assert_eq!(
            (&whole["content"], &whole["total_lines"]),
            (&json!(text), &json!(3))
        );
        let part = view(text, Some((2, 3))).unwrap();
        assert_eq!(
            (&part["num_lines"], &part["start_line"]),
            (&json!(2), &json!(2))
        );
        assert_eq!(view("", Some((1, -1))).unwrap()["content"], "");
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(cut("a\u{e9}b", 2), ("a", 3));
        assert_eq!(cut("abc", 3), ("abc", 0));
    }

    #[test]
    fn folders_are_named_as_guests_name_them() {
        for (path, folder) in [
            (".", ""),
            ("/workspace", ""),
            ("./a//b/", "a/b"),
            ("a/..", "a/.."),
        ] {
            assert_eq!(below(path), folder, "{path}");
        }
    }
}
