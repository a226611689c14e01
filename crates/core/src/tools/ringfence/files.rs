//! The file tools.

use crate::shortened::{HEAD, TAIL};
use crate::tools::files::{absolute, at};
use crate::tools::shown::image_of;
use crate::tools::{Answer, Args, BadArgument, Done, Runner, refused};
use ringfence_proto::{
    Code, Edit, EditRequest, EditResult, Entry, Failure, FileKind, GlobRequest, GlobResult,
    GrepMode, GrepRequest, GrepResult, ListResult, PathQuery, ReadQuery, WORKSPACE,
};

/// Most bytes of a file that is looked at.
const READ: u64 = 16 << 20;
/// Most bytes of text that are shown of one file.
const SHOWN: usize = (HEAD + TAIL) as usize;
const ENTRIES: usize = 500;
const LINES: u32 = 200;
/// Most lines of a change that are shown.
const HUNK: usize = 200;

/// The root that paths are shown relative to, and the path below it: the workspace where that is
/// meant, else the whole sandbox.
fn place(path: &str) -> (&'static str, String) {
    let path = absolute(path);
    let inside = path
        .strip_prefix(WORKSPACE)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    match inside {
        true => (WORKSPACE, path),
        false => ("/", path),
    }
}

/// A path of an answer, as it can be given back.
fn shown<'a>(root: &str, path: &'a str) -> std::borrow::Cow<'a, str> {
    match root {
        WORKSPACE => path.into(),
        _ => format!("/{path}").into(),
    }
}

pub(super) async fn read(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("path");
    let whole = absolute(path);
    let query = ReadQuery {
        root: "/".to_owned(),
        length: Some(READ + 1),
        ..ReadQuery::new(&whole)
    };
    let guest = on.session().guest().await?;
    let bytes = match guest.read(&query).await {
        Ok(bytes) => bytes,
        Err(failure) => return refused(at(&whole, failure)),
    };
    if let Some(image) = image_of(&bytes) {
        let text = format!("[{path}: an image of {} bytes]", bytes.len());
        return Ok(Answer::text(text).and([image]));
    }
    if bytes.len() as u64 > READ {
        let message = format!("cannot read {path}: it is over {READ} bytes");
        let failure = Failure::new(Code::TooLarge, message);
        return refused(failure.hint("look at a part of it with bash or python"));
    }
    let Ok(text) = std::str::from_utf8(&bytes) else {
        let failure = Failure::invalid(format!("cannot show {path}: it is not text"));
        return refused(failure.hint("look at it with python"));
    };
    numbered(path, text, args.lines("lines"))
}

/// Lines with their numbers, as many as there is room for.
fn numbered(path: &str, text: &str, asked: Option<(i64, i64)>) -> Done {
    let total = text.split_inclusive('\n').count();
    if total == 0 {
        return Ok(Answer::text(format!("[{path} is empty]")));
    }
    let (first, last) = asked.unwrap_or((1, -1));
    let last = if last == -1 { i64::MAX } else { last };
    let (Ok(first), Ok(last)) = (usize::try_from(first), usize::try_from(last)) else {
        let message = "must be line numbers from 1 on; -1 is the end";
        return Err(BadArgument::value("lines", message).into());
    };
    if first == 0 || first > total || last < first {
        let message = format!("must be a range within the {total} lines of {path}");
        return Err(BadArgument::value("lines", message).into());
    }
    let last = last.min(total);
    let mut shown = String::new();
    let mut next = first;
    for line in text
        .split_inclusive('\n')
        .skip(first - 1)
        .take(last + 1 - first)
    {
        let line = line.strip_suffix('\n').unwrap_or(line);
        if !shown.is_empty() && shown.len() + line.len() > SHOWN {
            break;
        }
        // One line can be longer than all that is shown.
        let cut = line.floor_char_boundary(SHOWN);
        shown += &format!("{next:>6}\t{}\n", &line[..cut]);
        if cut < line.len() {
            shown += &format!("[{} bytes of line {next} left out]\n", line.len() - cut);
        }
        next += 1;
    }
    if next <= total && (next <= last || asked.is_none()) {
        let until = (next + (next - first).max(1) - 1).min(total);
        shown += &format!(
            "[lines {first} to {} of {total}: read on with lines=[{next}, {until}]]",
            next - 1
        );
    }
    Ok(Answer::text(shown.trim_end_matches('\n')))
}

pub(super) async fn write(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("path");
    let text = args.text("content").to_owned();
    match change(on, path, Edit::Write { text }).await? {
        Ok(done) => {
            let lines = match done.total_lines {
                1 => "1 line".to_owned(),
                lines => format!("{lines} lines"),
            };
            let verb = if done.existed { "replaced" } else { "created" };
            Ok(Answer::text(format!(
                "{path} {verb}: {lines}, {} bytes",
                done.size
            )))
        }
        // For the guest it is an edit.
        Err(failure) => refused(Failure {
            message: failure.message.replacen("cannot edit", "cannot write", 1),
            ..failure
        }),
    }
}

pub(super) async fn edit(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("path");
    let edit = Edit::StrReplace {
        old: args.text("old").to_owned(),
        new: args.text("new").to_owned(),
        all: args.flag("all"),
    };
    let done = match change(on, path, edit).await? {
        Ok(done) => done,
        Err(failure) => return refused(failure),
    };
    let Some(hunk) = done.hunk else {
        return Ok(Answer::text(format!(
            "{path} is as it was: old and new are the same"
        )));
    };
    let mut text = format!(
        "{path} edited:\n@@ -{},{} +{},{} @@",
        hunk.old_start, hunk.old_lines, hunk.new_start, hunk.new_lines
    );
    for line in hunk.lines.iter().take(HUNK) {
        let cut = line.floor_char_boundary(1000);
        text += &format!("\n{}", &line[..cut]);
    }
    let all = hunk.old_lines.saturating_add(hunk.new_lines);
    if all > HUNK as u64 {
        text += &format!("\n[{} more lines of this change]", all - HUNK as u64);
    }
    Ok(Answer::text(text))
}

/// An edit; inside, what the file is to blame for.
async fn change(
    on: &dyn Runner,
    path: &str,
    edit: Edit,
) -> Result<Result<EditResult, Failure>, Failure> {
    let (root, path) = place(path);
    let request = EditRequest {
        root: root.to_owned(),
        path,
        edit,
        mode: None,
    };
    Ok(on
        .session()
        .guest()
        .await?
        .post("/files/edit", &request)
        .await)
}

pub(super) async fn list(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("path");
    let (root, below) = place(path);
    let guest = on.session().guest().await?;
    let found = match args.maybe_text("pattern") {
        Some(pattern) => {
            let request = GlobRequest {
                root: root.to_owned(),
                path: below,
                pattern: pattern.to_owned(),
                hidden: false,
                gitignore: false,
                limit: Some(ENTRIES as u32),
            };
            let found: Result<GlobResult, _> = guest.post("/files/glob", &request).await;
            found.map(|found| (found.entries, found.truncated))
        }
        None => {
            let query = PathQuery {
                root: root.to_owned(),
                path: below,
                recursive: true,
                depth: u32::try_from(args.integer("depth")).ok(),
            };
            let found: Result<ListResult, _> = guest.get("/files/list", &query).await;
            found.map(|found| (found.entries, found.truncated))
        }
    };
    let (entries, truncated) = match found {
        Ok(found) => found,
        Err(failure) => return refused(failure),
    };
    let hidden = |entry: &&Entry| {
        let own = entry
            .path
            .split('/')
            .any(|part| part.starts_with('.') && part.len() > 1);
        args.maybe_text("pattern").is_some() || !own
    };
    let mut lines: Vec<String> = entries
        .iter()
        .filter(hidden)
        .map(|entry| {
            let path = shown(root, &entry.path);
            match (entry.kind, &entry.target) {
                (FileKind::Folder, _) => format!("{path}/"),
                (FileKind::Symlink, Some(target)) => format!("{path} -> {target}"),
                _ => format!("{path} ({} bytes)", entry.size),
            }
        })
        .collect();
    let more = truncated || lines.len() > ENTRIES;
    lines.truncate(ENTRIES);
    if more {
        lines.push("[there is more: narrow it by path or pattern]".to_owned());
    }
    Ok(Answer::text(
        match (lines.is_empty(), args.maybe_text("pattern")) {
            (false, _) => lines.join("\n"),
            (true, Some(pattern)) => format!("[nothing in {path} matches {pattern}]"),
            (true, None) => format!("[{path} is empty]"),
        },
    ))
}

pub(super) async fn search(on: &dyn Runner, args: Args) -> Done {
    let pattern = args.text("pattern");
    let (root, path) = place(args.text("path"));
    let context = u32::try_from(args.integer("context")).unwrap_or_default();
    let request = GrepRequest {
        root: root.to_owned(),
        path,
        pattern: pattern.to_owned(),
        ignore_case: args.flag("ignore_case"),
        fixed: false,
        glob: args.maybe_text("glob").map(str::to_owned),
        hidden: false,
        gitignore: true,
        mode: GrepMode::Content,
        context,
        limit: Some(LINES),
    };
    let guest = on.session().guest().await?;
    let found: Result<GrepResult, _> = guest.post("/files/grep", &request).await;
    let found = match found {
        Ok(found) => found,
        Err(failure) => return refused(failure),
    };
    let mut text = String::new();
    for file in &found.files {
        for line in &file.lines {
            let sign = if line.matched { ':' } else { '-' };
            let cut = line.text.floor_char_boundary(300);
            let path = shown(root, &file.path);
            text += &format!("{path}{sign}{}{sign} {}\n", line.number, &line.text[..cut]);
        }
    }
    if text.is_empty() {
        return Ok(Answer::text(format!("[no line matches {pattern}]")));
    }
    if found.truncated || text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text += "\n[there is more: narrow it by path or glob]";
    }
    Ok(Answer::text(text.trim_end_matches('\n')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_lines(text: &str, asked: Option<(i64, i64)>) -> String {
        numbered("a", text, asked).unwrap().words()
    }

    #[test]
    fn parts_of_a_file_say_how_to_read_on() {
        assert_eq!(shown_lines("x\ny\n", None), "     1\tx\n     2\ty");
        assert_eq!(shown_lines("x\ny\n", Some((2, -1))), "     2\ty");
        assert_eq!(shown_lines("", None), "[a is empty]");
        let long = format!("{}\n", "x".repeat(9_999)).repeat(5);
        let text = shown_lines(&long, None);
        assert!(
            text.ends_with("[lines 1 to 2 of 5: read on with lines=[3, 4]]"),
            "{}",
            text.len()
        );
        // What was asked for and is whole needs no note.
        assert!(shown_lines(&long, Some((4, 5))).ends_with('x'));
        assert!(numbered("a", "x", Some((2, 3))).is_err());
        assert!(numbered("a", "x", Some((-2, 3))).is_err());
        let one = "y".repeat(40_000);
        assert!(shown_lines(&one, None).ends_with("[10000 bytes of line 1 left out]"));
    }
}
