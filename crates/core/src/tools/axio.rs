//! The six tools of axio's sandbox, with its names, defaults and answers.

use super::files::{absolute, at, name, permissions, quoted};
use super::shown::{Streams, is_news, shell_status};
use super::{Answer, Args, BadArgument, Done, Effect, Param, Run, Runner, Tool, refused};
use crate::work::Work;
use crate::{hex, random_hex};
use ringfence_proto::{
    Cause, Command, Edit, EditRequest, EditResult, Entry, ExecRequest, FileKind, ListResult,
    PathQuery, ReadQuery, Stdin, WriteQuery,
};
use std::time::{Duration, SystemTime};

const CWD: Param = Param::text("cwd", "Folder to run in, relative to /workspace.").or(".");
const STDIN: Param = Param::text("stdin", "Text for standard input.").optional();
const TIMEOUT: Param = Param::seconds(
    "timeout",
    5,
    "Seconds until everything it started is ended.",
);
const MODE: Param =
    Param::integer("mode", (0, 0o7777), "Permission bits, as a decimal number.").or_integer(0o644);
const FILE_PATH: Param =
    Param::text("file_path", "The file, absolute or relative to /workspace.").also(&["path"]);
const LINE: (i64, i64) = (1, i64::MAX);

/// Most bytes of a file that is read whole.
const READ: u64 = 16 << 20;

pub(super) static TOOLS: &[Tool] = &[
    Tool {
        name: "shell",
        about: "Run a shell command and return its output. Use for git, build tools, grep, tests, \
            or any command. Output to stderr follows a line [stderr], a non-zero status follows as \
            [exit code: N]. There is no terminal: avoid interactive commands, and give long ones a \
            longer timeout. Example: {\"command\": \"ls -la && wc -l *.csv\", \"timeout\": 20}",
        params: &[
            Param::text("command", "What `sh -c` runs."),
            TIMEOUT,
            CWD,
            STDIN,
        ],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(shell(on, args))),
    },
    Tool {
        name: "write_file",
        about: "Create or overwrite a file with the given content. Folders above it are made. Use \
            this for new files or full rewrites; for a part of a file prefer patch_file. \
            Example: {\"file_path\": \"src/main.py\", \"content\": \"print(1)\\n\"}",
        params: &[
            FILE_PATH,
            Param::text("content", "The whole text of the file."),
            MODE,
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(write_file(on, args))),
    },
    Tool {
        name: "read_file",
        about: "Read a file: text as text, anything else as hexadecimal. Lines count from 1, and \
            end_line is included. Ask for line_numbers before you use patch_file. What is longer \
            than max_chars is cut. \
            Example: {\"filename\": \"a.py\", \"start_line\": 10, \"end_line\": 20, \"line_numbers\": true}",
        params: &[
            Param::text("filename", "The file, absolute or relative to /workspace.")
                .also(&["path"]),
            Param::integer("max_chars", (0, 1 << 30), "Most characters of the answer.")
                .or_integer(32_768),
            Param::flag("binary_as_hex", true, "Whether to show what is no text."),
            Param::integer("start_line", LINE, "The first line to read.").optional(),
            Param::integer("end_line", LINE, "The last line to read.").optional(),
            Param::flag(
                "line_numbers",
                false,
                "Whether lines begin with their number and a tab.",
            ),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(read_file(on, args))),
    },
    Tool {
        name: "list_files",
        about: "List a folder: permissions, size, time of the last change (UTC) and name of each \
            entry, folders first and with a trailing slash. Use this to look around before you \
            read or change files. It does not go into subfolders. Example: {\"directory\": \"src\"}",
        params: &[Param::text(
            "directory",
            "The folder, absolute or relative to /workspace.",
        )
        .or(".")
        .also(&["path"])],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(list_files(on, args))),
    },
    Tool {
        name: "run_python",
        about: "Run Python code in a process of its own and return what it prints. Use for \
            calculations, data and small scripts: print what you want to see. Variables do not \
            stay for the next call, files do. Tracebacks and a non-zero status are part of the \
            answer. Example: {\"code\": \"print(sum(range(10)))\"}",
        params: &[
            Param::text("code", "The Python source."),
            CWD,
            TIMEOUT,
            STDIN,
        ],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(run_python(on, args))),
    },
    Tool {
        name: "patch_file",
        about: "Replace a range of lines in a file that is there. Lines count from 1 and both ends \
            are included: from_line 2 and to_line 4 replaces lines 2, 3 and 4. To insert without \
            removing anything, to_line is from_line - 1. Read the file with line_numbers first. \
            Example: {\"file_path\": \"a.py\", \"from_line\": 2, \"to_line\": 2, \"content\": \"x = 1\\n\"}",
        params: &[
            FILE_PATH,
            Param::integer("from_line", LINE, "The first line to replace."),
            Param::integer("to_line", (0, i64::MAX), "The last line to replace."),
            Param::text("content", "The lines in their place."),
            MODE,
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(patch_file(on, args))),
    },
];

async fn shell(on: &dyn Runner, args: Args) -> Done {
    let folder = quoted(&absolute(args.text("cwd")));
    let command = format!("cd {folder} && {}", args.text("command"));
    run(on, &args, command).await
}

async fn run_python(on: &dyn Runner, args: Args) -> Done {
    let script = format!("/tmp/.axio_{}.py", random_hex::<16>()?);
    let query = WriteQuery {
        root: "/".to_owned(),
        ..WriteQuery::new(&script)
    };
    let guest = on.session().guest().await?;
    if let Err(failure) = guest.write(&query, args.text("code").to_owned()).await {
        return refused(failure);
    }
    let folder = quoted(&absolute(args.text("cwd")));
    let command = format!("cd {folder} && python3 {script}; _rc=$?; rm -f {script}; exit $_rc");
    run(on, &args, command).await
}

async fn run(on: &dyn Runner, args: &Args, command: String) -> Done {
    if command.contains('\0') {
        return Err(BadArgument::value("command", "must have no null bytes").into());
    }
    let limits = on.limits();
    let mut request = ExecRequest::new(Command::Sh(command));
    request.timeout_ms = Some(args.seconds("timeout").as_millis() as u64);
    request.output_limit = Some(limits.output);
    request.limits.cpu_seconds = Some(limits.cpu_seconds);
    if let Some(text) = args.maybe_text("stdin") {
        request.stdin = Stdin::Bytes(text.as_bytes().to_vec().into());
    }
    let done = on.run(Work::Exec(request)).await?;
    let certificate = done.end.certificate.as_ref();
    if certificate.is_some_and(|c| c.cause == Cause::WallClock) {
        let timeout = args.number("timeout");
        return Ok(Answer::text(format!("[timeout after {timeout}s]")));
    }
    let guest = on.session().guest().await?;
    let streams = Streams::of(&guest, &done, |_, bytes, _| {
        format!("[{bytes} bytes left out: write long output to a file and read parts of it]")
    });
    let streams = streams.await;
    let mut text = streams.stdout;
    if !streams.stderr.is_empty() {
        text += "\n[stderr]\n";
        text += &streams.stderr;
    }
    let status = shell_status(&done.end);
    if status != 0 {
        text += &format!("\n[exit code: {status}]");
    }
    if let Some(certificate) = certificate.filter(|c| is_news(c)) {
        text += &format!("\n[{certificate}]");
    }
    let text = text.trim();
    Ok(Answer::text(if text.is_empty() {
        "(no output)"
    } else {
        text
    }))
}

async fn write_file(on: &dyn Runner, args: Args) -> Done {
    let path = absolute(args.text("file_path"));
    let content = args.text("content");
    let query = WriteQuery {
        root: "/".to_owned(),
        mode: Some(args.integer("mode") as u32),
        ..WriteQuery::new(&path)
    };
    let guest = on.session().guest().await?;
    match guest.write(&query, content.to_owned()).await {
        Ok(_) => Ok(Answer::text(format!(
            "Wrote {} bytes to {path}",
            content.len()
        ))),
        Err(failure) => refused(at(&path, failure)),
    }
}

async fn read_file(on: &dyn Runner, args: Args) -> Done {
    let path = absolute(args.text("filename"));
    let query = ReadQuery {
        root: "/".to_owned(),
        length: Some(READ),
        ..ReadQuery::new(&path)
    };
    let guest = on.session().guest().await?;
    let bytes = match guest.read(&query).await {
        Ok(bytes) => bytes,
        Err(failure) => return refused(at(&path, failure)),
    };
    let most = args.integer("max_chars") as usize;
    let Ok(text) = std::str::from_utf8(&bytes) else {
        if !args.flag("binary_as_hex") {
            return Ok(Answer::error(format!("Error: {path} is not UTF-8 text")));
        }
        let shown = hex(&bytes[..most.min(bytes.len())]);
        return Ok(Answer::text(format!("Encoded binary data HEX: {shown}")));
    };
    let start = args.maybe_integer("start_line").unwrap_or(1) as usize;
    let end = args
        .maybe_integer("end_line")
        .map_or(usize::MAX, |line| line as usize);
    let numbers = args.flag("line_numbers");
    let mut shown = String::new();
    let lines = text.split_inclusive('\n').zip(1..);
    for (line, number) in lines
        .skip(start - 1)
        .take(end.saturating_add(1).saturating_sub(start))
    {
        if numbers {
            shown += &format!("{number}\t");
        }
        shown += line;
    }
    if let Some((cut, _)) = shown.char_indices().nth(most) {
        shown.truncate(cut);
        shown += "\n...[truncated]";
    }
    Ok(Answer::text(shown))
}

async fn list_files(on: &dyn Runner, args: Args) -> Done {
    let path = absolute(args.text("directory"));
    let query = PathQuery {
        root: "/".to_owned(),
        ..PathQuery::new(&path)
    };
    let guest = on.session().guest().await?;
    let listed: Result<ListResult, _> = guest.get("/files/list", &query).await;
    let mut entries = match listed {
        Ok(list) => list.entries,
        Err(failure) => return refused(at(&path, failure)),
    };
    entries.sort_by(|a, b| {
        let key = |entry: &Entry| (entry.kind != FileKind::Folder, entry.path.clone());
        key(a).cmp(&key(b))
    });
    let lines: Vec<String> = entries.iter().map(line).collect();
    Ok(Answer::text(match lines.is_empty() {
        true => "(empty directory)".to_owned(),
        false => lines.join("\n"),
    }))
}

fn line(entry: &Entry) -> String {
    let (size, slash) = match entry.kind {
        FileKind::File => (entry.size, ""),
        FileKind::Folder => (0, "/"),
        FileKind::Symlink | FileKind::Other => (0, ""),
    };
    let mode = permissions(entry);
    let when = month_day_time(entry.modified);
    format!("{mode} {size:>8} {when} {}{slash}", name(&entry.path))
}

/// Such as `Mar 01 13:05`, in UTC.
fn month_day_time(seconds: f64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    // Beyond that there is no year with four digits.
    let seconds = seconds.clamp(0.0, 253_402_300_799.0);
    let moment = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
    let text = humantime::format_rfc3339_seconds(moment).to_string();
    // 2026-03-01T13:05:00Z
    let month = text
        .get(5..7)
        .and_then(|month| month.parse::<usize>().ok())
        .and_then(|month| MONTHS.get(month - 1));
    let part = |range| text.get(range).unwrap_or_default();
    format!(
        "{} {} {}",
        month.unwrap_or(&"Jan"),
        part(8..10),
        part(11..16)
    )
}

async fn patch_file(on: &dyn Runner, args: Args) -> Done {
    let (from, to) = (args.integer("from_line"), args.integer("to_line"));
    if to < from - 1 {
        let message = format!("must be at least from_line - 1, which is {}", from - 1);
        return Err(BadArgument::value("to_line", message).into());
    }
    let path = absolute(args.text("file_path"));
    let request = EditRequest {
        root: "/".to_owned(),
        path: path.clone(),
        edit: Edit::ReplaceLines {
            from: from as u64,
            to: to as u64,
            text: args.text("content").to_owned(),
        },
        mode: Some(args.integer("mode") as u32),
    };
    let guest = on.session().guest().await?;
    let edited: Result<EditResult, _> = guest.post("/files/edit", &request).await;
    match edited {
        Ok(done) => Ok(Answer::text(format!(
            "{} lines written to {path}",
            done.total_lines
        ))),
        Err(failure) => refused(at(&path, failure)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        assert_eq!(month_day_time(1_772_370_300.9), "Mar 01 13:05");
        assert_eq!(month_day_time(-1.0), "Jan 01 00:00");
        assert_eq!(month_day_time(f64::MAX), "Dec 31 23:59");
    }
}
