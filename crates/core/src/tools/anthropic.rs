//! The tools of the hosted code execution tool; their answers are its result contents.

use super::shown::images;
use super::{Answer, Args, BadArgument, Done, Effect, Param, Run, Runner, Tool};
use crate::blocks::{self, Asked, BadInput, EditorCall, Text};
use crate::sessions::MAIN;
use crate::work::Work;
use ringfence_proto::{Command, ExecRequest, RunRequest};
use std::time::Duration;

/// How long a call may run.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) static TOOLS: &[Tool] = &[
    Tool {
        name: blocks::Tool::Code.name(),
        about: "Run Python code in a session that keeps variables, imports and files from call to \
            call. The value of the last expression and figures are results, as in a notebook. \
            Files written to the working folder are listed in the answer. There is no network by \
            default, and a call may take 30 seconds. Example: {\"code\": \"x = 2\\nx + 2\"}",
        params: &[Param::text("code", "The Python source.")],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(code(on, args))),
    },
    Tool {
        name: blocks::Tool::Bash.name(),
        about: "Run a shell command in the sandbox: programs, pipes, files. Each call has a shell \
            of its own, so folders and variables do not stay, files do. A call may take 30 \
            seconds; then everything it started is ended. \
            Example: {\"command\": \"grep -rn TODO src | head\"}",
        params: &[Param::text("command", "What bash runs.")],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(bash(on, args))),
    },
    Tool {
        name: blocks::Tool::TextEditor.name(),
        about: "View, create and change text files. view shows a file, a part of it, or a folder; \
            create makes a new file; str_replace replaces a text that occurs exactly once; insert \
            adds lines after insert_line; undo_edit takes the last change back. Look at a file \
            before you change it. Example: {\"command\": \"str_replace\", \"path\": \"a.py\", \
            \"old_str\": \"x = 1\", \"new_str\": \"x = 2\"}",
        params: &[
            Param::choice(
                "command",
                &["view", "create", "str_replace", "insert", "undo_edit"],
                "What to do.",
            ),
            Param::text(
                "path",
                "The file or folder, relative to the working folder.",
            ),
            Param::text("file_text", "The text of the file to create.").optional(),
            Param::text(
                "old_str",
                "The text to replace; it must occur exactly once.",
            )
            .optional(),
            Param::text("new_str", "The text in its place, or to insert.").optional(),
            Param::text("insert_text", "The text to insert.").optional(),
            Param::integer(
                "insert_line",
                (0, i64::MAX),
                "The line to insert after; 0 is the top.",
            )
            .optional(),
            Param::lines(
                "view_range",
                "The first and the last line to view; -1 is the end.",
            ),
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(editor(on, args))),
    },
];

fn asked(on: &dyn Runner) -> Asked {
    Asked {
        timeout: TIMEOUT,
        output: on.limits().output,
    }
}

async fn code(on: &dyn Runner, args: Args) -> Done {
    let limits = on.limits();
    let request = RunRequest {
        code: args.text("code").to_owned(),
        timeout_ms: Some(TIMEOUT.as_millis() as u64),
        output_limit: Some(limits.output),
        cpu_seconds: Some(limits.cpu_seconds),
        report_files: true,
        ..RunRequest::default()
    };
    let kernel = MAIN.to_owned();
    run(on, blocks::Tool::Code, Work::Run { kernel, request }).await
}

async fn bash(on: &dyn Runner, args: Args) -> Done {
    let command = args.text("command");
    if command.contains('\0') {
        return Err(BadArgument::value("command", "must have no null bytes").into());
    }
    let limits = on.limits();
    let mut request = ExecRequest::new(Command::Shell(command.to_owned()));
    request.timeout_ms = Some(TIMEOUT.as_millis() as u64);
    request.output_limit = Some(limits.output);
    request.limits.cpu_seconds = Some(limits.cpu_seconds);
    request.report_files = true;
    run(on, blocks::Tool::Bash, Work::Exec(request)).await
}

async fn run(on: &dyn Runner, tool: blocks::Tool, work: Work) -> Done {
    let done = on.run(work).await?;
    let session = on.session();
    let text = Text::of(tool, asked(on), &done, session.take_news().as_ref());
    let content = blocks::result(tool, &text, &session.id, &done);
    Ok(Answer::data(content).and(images(&done.results)))
}

async fn editor(on: &dyn Runner, args: Args) -> Done {
    let call = EditorCall::parse(args.map()).map_err(|bad: BadInput| BadArgument {
        name: bad.field.to_owned(),
        message: bad.message,
        kind: bad.kind,
    })?;
    let guest = on.session().guest().await?;
    let content = call.run(&guest, asked(on).output).await?;
    let is_error = content["type"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("_error"));
    Ok(Answer {
        is_error,
        ..Answer::data(content)
    })
}
