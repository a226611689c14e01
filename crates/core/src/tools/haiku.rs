//! The console tools of the haiku sandbox skill. Their answers are, word for word, those of the
//! `ConsoleToolset` of the package pydantic-ai-backend; a test compares them with the real one.
//! Where that runs `find` and `grep`, so do these: patterns mean what they mean there.

use super::files::{absolute, at, name, quoted};
use super::shown::shell_status;
use super::{Answer, Args, BadArgument, Done, Effect, Param, Run, Runner, Tool, told};
use crate::work::Work;
use bytes::Bytes;
use ringfence_proto::{
    Cause, Code, Command, Entry, ExecRequest, ExecResult, Failure, FileKind, ListResult, PathQuery,
    ReadQuery, WriteQuery,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// Bytes of a command's output that are answered with.
const OUTPUT: usize = 100_000;
/// Bytes that a search may print.
const SEARCH_OUTPUT: u64 = 8 << 20;
const SEARCH_TIMEOUT: Duration = Duration::from_secs(120);
/// The status of a command that ran out of time.
const TIMED_OUT: i32 = 124;
/// Bytes of a file that is read whole.
const READ: u64 = 8 << 20;
/// Files that `glob` names, and files or lines that `grep` does.
const GLOB_SHOWN: usize = 100;
const GREP_SHOWN: usize = 50;
/// Characters of a line that `grep` shows.
const LINE_SHOWN: usize = 100;

pub(super) static TOOLS: &[Tool] = &[
    Tool {
        name: "ls",
        about: "List the files and folders in a folder, folders first, files with their size. Use \
            it to look around before you read or change anything. It does not go into subfolders: \
            use glob for that. Example: {\"path\": \"src\"}",
        params: &[Param::text("path", "The folder; the working folder when absent.").or(".")],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(ls(on, args))),
    },
    Tool {
        name: "read_file",
        about: "Read a text file, each line with its number. Read a file before you edit it. Long \
            files are read in parts: offset is the number of lines to skip, limit how many to \
            show. Example: {\"path\": \"src/app.py\", \"offset\": 200, \"limit\": 100}",
        params: &[
            Param::text("path", "The file, absolute or relative."),
            Param::integer("offset", (0, i64::MAX), "Lines to skip.").or_integer(0),
            Param::integer("limit", (0, i64::MAX), "Most lines to show.").or_integer(2000),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(read_file(on, args))),
    },
    Tool {
        name: "write_file",
        about: "Write a whole file, over one that is there; folders above it are made. Use it for \
            new files and full rewrites, and edit_file for everything smaller. \
            Example: {\"path\": \"notes.md\", \"content\": \"# Notes\\n\"}",
        params: &[
            Param::text("path", "The file, absolute or relative."),
            Param::text("content", "The whole text of the file."),
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(write_file(on, args))),
    },
    Tool {
        name: "edit_file",
        about: "Replace a text in a file. old_string must match exactly, with its spaces and line \
            ends, and occur once, unless replace_all is true: add lines around it until it is \
            unique. Example: {\"path\": \"a.py\", \"old_string\": \"x = 1\", \"new_string\": \"x = 2\"}",
        params: &[
            Param::text("path", "The file, absolute or relative."),
            Param::text("old_string", "The text to replace."),
            Param::text("new_string", "The text in its place."),
            Param::flag("replace_all", false, "Whether to replace every occurrence."),
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(edit_file(on, args))),
    },
    Tool {
        name: "glob",
        about: "Find files by a pattern of their names, at any depth below a folder. The answer \
            names at most 100 of them and counts the rest. Use it to find files by name, and grep \
            to find them by what is in them. Example: {\"pattern\": \"*.py\", \"path\": \"src\"}",
        params: &[
            Param::text("pattern", "Such as *.py or src/*.csv."),
            Param::text("path", "The folder to search below.").or("."),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(glob(on, args))),
    },
    Tool {
        name: "grep",
        about: "Search files for a pattern, as grep -r does. output_mode files_with_matches names \
            the files, content shows the lines with their numbers, count counts them; at most 50 \
            are shown. Example: {\"pattern\": \"def main\", \"glob_pattern\": \"*.py\", \
            \"output_mode\": \"content\"}",
        params: &[
            Param::text("pattern", "A basic regular expression."),
            Param::text(
                "path",
                "The file or folder; the working folder when absent.",
            )
            .optional(),
            Param::text(
                "glob_pattern",
                "Only files whose names match, such as *.py.",
            )
            .optional(),
            Param::choice(
                "output_mode",
                &["content", "files_with_matches", "count"],
                "What to show.",
            )
            .or("files_with_matches"),
            Param::flag("ignore_hidden", true, "Whether to leave out hidden files."),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(grep(on, args))),
    },
    Tool {
        name: "execute",
        about: "Run a shell command in the working folder and return what it prints, stderr after \
            stdout. Use it for programs, tests and Python scripts; for files the other tools are \
            better. Give long commands a longer timeout. Output is cut at 100,000 bytes. \
            Example: {\"command\": \"python3 analyse.py\", \"timeout\": 300}",
        params: &[
            Param::text("command", "What `sh -c` runs."),
            Param::integer("timeout", (1, 86_400), "Seconds that it may take.").or_integer(120),
        ],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(execute(on, args))),
    },
];

/// The lines of a text as Python's `splitlines` sees them.
fn lines(text: &str) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut found = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(at) = rest.find(is_end) else {
            found.push(rest);
            break;
        };
        found.push(&rest[..at]);
        let end = match rest[at..].starts_with("\r\n") {
            true => 2,
            false => rest[at..].chars().next().map_or(1, char::len_utf8),
        };
        rest = &rest[at + end..];
    }
    found
}

async fn ls(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("path");
    let query = PathQuery {
        root: "/".to_owned(),
        ..PathQuery::new(absolute(path))
    };
    let guest = on.session().guest().await?;
    let listed: Result<ListResult, Failure> = guest.get("/files/list", &query).await;
    let mut entries = match listed {
        Ok(list) => list.entries,
        // What is no folder has no entries.
        Err(failure) => told(failure).map(|_| Vec::new())?,
    };
    if entries.is_empty() {
        let text = format!("Directory '{path}' is empty or does not exist");
        return Ok(Answer::text(text));
    }
    let key = |entry: &Entry| {
        let last = name(&entry.path).to_owned();
        (entry.kind != FileKind::Folder, last)
    };
    entries.sort_by_key(key);
    let mut text = format!("Contents of {path}:");
    for entry in &entries {
        text += &match entry.kind {
            FileKind::Folder => format!("\n  {}/", name(&entry.path)),
            _ => format!("\n  {} ({} bytes)", name(&entry.path), entry.size),
        };
    }
    Ok(Answer::text(text))
}

/// A whole text file, as it is and as text; an error in the toolset's words where there is none.
async fn text_of(on: &dyn Runner, path: &str) -> Result<Result<(Bytes, String), NoText>, Failure> {
    let path = absolute(path);
    let query = ReadQuery {
        root: "/".to_owned(),
        length: Some(READ + 1),
        ..ReadQuery::new(&path)
    };
    let guest = on.session().guest().await?;
    let bytes = match guest.read(&query).await {
        Ok(bytes) if bytes.len() as u64 > READ => {
            let message = format!(
                "File exceeds the {READ}-byte read limit. Read a slice with execute() instead, \
                 e.g. \"sed -n '1,200p' <path>\"."
            );
            return Ok(Err(NoText::Unreadable(message)));
        }
        Ok(bytes) => bytes,
        Err(failure) if failure.code == Code::NotFound => {
            return Ok(Err(NoText::Missing));
        }
        Err(failure) => return told(at(&path, failure)).map(|why| Err(NoText::Unreadable(why))),
    };
    let text = String::from_utf8_lossy(&bytes);
    let odd = text.matches('\u{fffd}').count();
    match odd < (text.chars().count() / 100).max(2) {
        true => {
            let text = text.into_owned();
            Ok(Ok((bytes, text)))
        }
        false => Ok(Err(NoText::Binary)),
    }
}

enum NoText {
    Missing,
    Binary,
    Unreadable(String),
}

async fn read_file(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("path");
    let mut seen = on.session().seen().await;
    let (bytes, text) = match text_of(on, path).await? {
        Ok(found) => found,
        Err(NoText::Missing) => {
            return Ok(Answer::error(format!("Error: File '{path}' not found")));
        }
        Err(NoText::Binary) => return Ok(Answer::error("[Error: [Binary File]]")),
        Err(NoText::Unreadable(why)) => return Ok(Answer::error(format!("Error: {why}"))),
    };
    let lines = lines(&text);
    let (offset, limit) = (args.integer("offset"), args.integer("limit"));
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    if start >= lines.len() && !lines.is_empty() {
        return Ok(Answer::error(format!(
            "Error: Offset {offset} exceeds file length ({} lines)",
            lines.len()
        )));
    }
    seen.note(path, &bytes);
    let end = start.saturating_add(usize::try_from(limit).unwrap_or(usize::MAX));
    let end = end.min(lines.len());
    let numbered: Vec<String> = (start..end)
        .map(|at| format!("{:>6}\t{}", at + 1, lines[at]))
        .collect();
    let mut text = numbered.join("\n");
    if end < lines.len() {
        text += &format!("\n\n... ({} more lines)", lines.len() - end);
    }
    Ok(Answer::text(text))
}

/// Writes a file; an error in the toolset's words where that can't be done.
async fn write(
    on: &dyn Runner,
    path: &str,
    content: String,
) -> Result<Result<(), String>, Failure> {
    let whole = absolute(path);
    let query = WriteQuery {
        root: "/".to_owned(),
        ..WriteQuery::new(&whole)
    };
    let guest = on.session().guest().await?;
    match guest.write(&query, content).await {
        Ok(_) => Ok(Ok(())),
        Err(failure) => {
            let why = told(at(&whole, failure));
            why.map(|why| Err(format!("Error: Failed to write '{path}': {why}")))
        }
    }
}

async fn write_file(on: &dyn Runner, args: Args) -> Done {
    let (path, content) = (args.text("path"), args.text("content"));
    let mut seen = on.session().seen().await;
    Ok(match write(on, path, content.to_owned()).await? {
        Ok(()) => {
            seen.note(path, content.as_bytes());
            Answer::text(format!("Wrote {} lines to {path}", lines(content).len()))
        }
        Err(why) => Answer::error(why),
    })
}

async fn edit_file(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("path");
    // Two edits at a time would lose one of them.
    let mut seen = on.session().seen().await;
    let (bytes, text) = match text_of(on, path).await? {
        Ok(found) => found,
        Err(NoText::Missing) if seen.is_other(path, b"") => return Ok(stale(path)),
        Err(NoText::Missing) => {
            return Ok(Answer::error(format!("Error: File '{path}' not found")));
        }
        Err(NoText::Binary) => return Ok(Answer::error("Error: [Binary File]")),
        Err(NoText::Unreadable(why)) => {
            return Ok(Answer::error(format!("Error: Failed to edit file: {why}")));
        }
    };
    if seen.is_other(path, &bytes) {
        return Ok(stale(path));
    }
    let (old, new) = (args.text("old_string"), args.text("new_string"));
    let all = args.flag("replace_all");
    let found = text.matches(old).count();
    if found == 0 {
        let why = format!("Error: String '{old}' not found in file");
        return Ok(Answer::error(why));
    }
    if found > 1 && !all {
        return Ok(Answer::error(format!(
            "Error: String '{old}' found {found} times. Use replace_all=True to replace all, or \
             provide more context."
        )));
    }
    let text = text.replace(old, new);
    Ok(match write(on, path, text.clone()).await? {
        Ok(()) => {
            seen.note(path, text.as_bytes());
            Answer::text(format!("Edited {path}: replaced {found} occurrence(s)"))
        }
        Err(why) => Answer::error(why),
    })
}

/// A file is not what the model has seen.
fn stale(path: &str) -> Answer {
    Answer::error(format!(
        "Error: '{path}' changed since you last read it. Read it again before editing so your \
         change applies to the current contents."
    ))
}

async fn run(
    on: &dyn Runner,
    command: String,
    timeout: Duration,
    output: u64,
) -> Result<ExecResult, Failure> {
    let mut request = ExecRequest::new(Command::Sh(command));
    request.timeout_ms = Some(timeout.as_millis() as u64);
    request.output_limit = Some(output);
    request.limits.cpu_seconds = Some(on.limits().cpu_seconds);
    on.run(Work::Exec(request)).await
}

/// What a search printed, and its status.
async fn search(on: &dyn Runner, command: String) -> Result<(String, i32), super::Refusal> {
    if command.contains('\0') {
        return Err(BadArgument::value("pattern", "must have no null bytes").into());
    }
    let done = run(on, command, SEARCH_TIMEOUT, SEARCH_OUTPUT).await?;
    let mut text = String::from_utf8_lossy(&done.stdout.data.0).into_owned();
    text += &String::from_utf8_lossy(&done.stderr.data.0);
    Ok((text, shell_status(&done.end)))
}

async fn glob(on: &dyn Runner, args: Args) -> Done {
    let (pattern, path) = (args.text("pattern"), args.text("path"));
    // All of these mean the working folder.
    let root = match path.trim() {
        "" | "/" | "." => ".",
        _ => path,
    };
    let anywhere = pattern.strip_prefix("**/").unwrap_or(pattern);
    let command = format!(
        "find {} -path {} -type f 2>/dev/null",
        quoted(root),
        quoted(&format!("*/{anywhere}"))
    );
    let (printed, status) = search(on, command).await?;
    let mut paths: Vec<&str> = match status {
        0 => lines(&printed),
        _ => Vec::new(),
    };
    // The toolset's paths have lost the `./` that `find` prints.
    for path in &mut paths {
        *path = path.strip_prefix("./").unwrap_or(path);
    }
    paths.sort_unstable();
    if paths.is_empty() {
        let text = format!("No files matching '{pattern}' in {path}");
        return Ok(Answer::text(text));
    }
    let head = format!("Found {} file(s) matching '{pattern}':", paths.len());
    Ok(Answer::text(list(head, &paths, GLOB_SHOWN, "more")))
}

/// A heading with at most so many items, and how many there are besides.
fn list(mut text: String, items: &[impl std::fmt::Display], most: usize, noun: &str) -> String {
    for item in items.iter().take(most) {
        text += &format!("\n  {item}");
    }
    if items.len() > most {
        text += &format!("\n  ... and {} {noun}", items.len() - most);
    }
    text
}

struct Match<'a> {
    path: &'a str,
    number: u64,
    line: &'a str,
}

async fn grep(on: &dyn Runner, args: Args) -> Done {
    let pattern = args.text("pattern");
    let root = args
        .maybe_text("path")
        .filter(|path| !path.is_empty())
        .unwrap_or(".");
    let hidden = args.flag("ignore_hidden");
    let mut command = "grep -rnH".to_owned();
    if hidden {
        command += " --exclude-dir='.[!./]*' --exclude-dir='*/.[!.]*'";
    }
    if let Some(only) = args
        .maybe_text("glob_pattern")
        .filter(|glob| !glob.is_empty())
    {
        command += &format!(" --include={}", quoted(only));
    }
    command += &format!(" -e {} {}", quoted(pattern), quoted(root));
    let (printed, status) = search(on, command).await?;
    if status > 1 {
        return Ok(Answer::error(format!("Error: {printed}")));
    }
    let matches: Vec<Match<'_>> = match status {
        0 => printed.trim().split('\n').filter_map(found).collect(),
        _ => Vec::new(),
    };
    let matches: Vec<&Match<'_>> = matches
        .iter()
        .filter(|found| !hidden || !is_hidden(found.path, root))
        .collect();
    if matches.is_empty() {
        return Ok(Answer::text(format!("No matches for '{pattern}'")));
    }
    Ok(Answer::text(match args.text("output_mode") {
        "count" => format!("Found {} match(es) for '{pattern}'", matches.len()),
        "content" => {
            let shown: Vec<String> = matches
                .iter()
                .map(|found| {
                    let line: String = found.line.chars().take(LINE_SHOWN).collect();
                    format!("{}:{}: {line}", found.path, found.number)
                })
                .collect();
            let head = format!("Matches for '{pattern}':");
            list(head, &shown, GREP_SHOWN, "more matches")
        }
        _ => {
            let files: BTreeSet<&str> = matches.iter().map(|found| found.path).collect();
            let files: Vec<&str> = files.into_iter().collect();
            let head = format!("Files containing '{pattern}':");
            list(head, &files, GREP_SHOWN, "more files")
        }
    }))
}

fn found(line: &str) -> Option<Match<'_>> {
    let mut parts = line.splitn(3, ':');
    let (path, number, line) = (parts.next()?, parts.next()?, parts.next()?);
    let number = number.parse().ok()?;
    Some(Match { path, number, line })
}

/// Whether a match is in something hidden below the folder that was searched.
fn is_hidden(path: &str, root: &str) -> bool {
    let root = match root.trim_end_matches('/') {
        "" => "/",
        root => root,
    };
    let below = path.strip_prefix(root).unwrap_or(path);
    let mut parts = below.split('/');
    parts.any(|part| part.starts_with('.') && part != "." && part != "..")
}

async fn execute(on: &dyn Runner, args: Args) -> Done {
    let command = args.text("command");
    if command.contains('\0') {
        return Err(BadArgument::value("command", "must have no null bytes").into());
    }
    let timeout = Duration::from_secs(args.integer("timeout").unsigned_abs());
    let done = run(on, command.to_owned(), timeout, OUTPUT as u64 + 1).await?;
    let mut bytes = done.stdout.data.0.clone();
    bytes.extend_from_slice(&done.stderr.data.0);
    let cut = bytes.len() > OUTPUT;
    let mut output = String::from_utf8_lossy(&bytes).into_owned();
    if cut {
        output.truncate(output.floor_char_boundary(OUTPUT));
    }
    let certificate = done.end.certificate.as_ref();
    let late = certificate.is_some_and(|c| c.cause == Cause::WallClock);
    if late {
        let text = format!("Error: Command timed out\n{output}");
        let text = text.trim_end_matches('\n');
        return Ok(Answer::text(format!(
            "Command failed (exit code {TIMED_OUT}):\n{text}"
        )));
    }
    if cut {
        output += "\n\n... (output truncated)";
    }
    let status = shell_status(&done.end);
    Ok(Answer::text(match status {
        0 => output,
        _ => format!("Command failed (exit code {status}):\n{output}"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_pythons_do() {
        assert_eq!(
            lines("a\r\nb\rc\n\nd\u{2028}e"),
            ["a", "b", "c", "", "d", "e"]
        );
        assert_eq!(lines("a\n"), ["a"]);
        assert_eq!(lines("\n"), [""]);
        assert!(lines("").is_empty());
    }

    #[test]
    fn hidden_is_measured_from_the_root() {
        assert!(is_hidden("./.git/config", "."));
        assert!(!is_hidden("./a/b", "."));
        assert!(!is_hidden(".github/x", ".github"));
        assert!(is_hidden("src/.x/y", "src/"));
    }
}
