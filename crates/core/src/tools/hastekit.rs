//! The tools of HasteKit's sandbox.

use super::shown::{Streams, is_news, shell_status};
use super::{Answer, Args, BadArgument, Done, Effect, Param, Run, Runner, Tool, refused};
use crate::guest::with_query;
use crate::work::Work;
use http::Method;
use ringfence_proto::{
    Cause, Code, Command, ExecRequest, Failure, PathQuery, ReadQuery, WORKSPACE, WriteQuery,
};
use serde_json::json;
use std::time::Duration;

/// How long a call may run.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Its status then, as that of timeout(1).
const TIMED_OUT: i32 = 124;

/// Most bytes of a file that is read whole.
const READ: u64 = 16 << 20;

const FILE_PATH: Param = Param::text(
    "file_path",
    "The file, relative to the workspace or absolute below it.",
);

pub(super) static TOOLS: &[Tool] = &[
    Tool {
        name: "execute_bash_commands",
        about: "Run shell commands in the sandbox and return JSON: stdout, stderr, exit_code, \
            duration_ms, and cwd, the folder that the shell ended in. Use it for anything a \
            command line can do; files stay for later calls. After 60 seconds everything that was \
            started is ended and exit_code is 124. \
            Example: {\"code\": \"cd data && head -3 sales.csv\"}",
        params: &[
            Param::text("code", "What `/bin/sh -c` runs."),
            Param::text(
                "workdir",
                "The folder to begin in, such as the cwd of the call before.",
            )
            .or(WORKSPACE),
        ],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(execute(on, args))),
    },
    Tool {
        name: "read_file",
        about: "Read a text file of the workspace and return JSON with its path and content. Use \
            it to look at what commands wrote. Files over 16 MiB and files that are no text are \
            refused: look at parts of them with execute_bash_commands. \
            Example: {\"file_path\": \"report.md\"}",
        params: &[FILE_PATH],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(read_file(on, args))),
    },
    Tool {
        name: "write_file",
        about: "Write a text file into the workspace, over one that is there; folders above it are \
            made. Use it in place of echo and heredocs, which need quoting. \
            Example: {\"file_path\": \"src/app.py\", \"content\": \"print(1)\\n\"}",
        params: &[
            FILE_PATH,
            Param::text("content", "The whole text of the file."),
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(write_file(on, args))),
    },
    Tool {
        name: "delete_file",
        about: "Delete a file of the workspace. A folder is deleted only when it is empty: for \
            whole folders use rm -r with execute_bash_commands. It can't be undone. \
            Example: {\"file_path\": \"tmp/old.csv\"}",
        params: &[FILE_PATH],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(delete_file(on, args))),
    },
];

async fn execute(on: &dyn Runner, args: Args) -> Done {
    let code = args.text("code");
    if code.contains('\0') {
        return Err(BadArgument::value("code", "must have no null bytes").into());
    }
    let limits = on.limits();
    let mut request = ExecRequest::new(Command::Sh(code.to_owned()));
    request.cwd = Some(args.text("workdir").to_owned());
    request.timeout_ms = Some(TIMEOUT.as_millis() as u64);
    request.output_limit = Some(limits.output);
    request.limits.cpu_seconds = Some(limits.cpu_seconds);
    let done = match on.run(Work::Exec(request)).await {
        Ok(done) => done,
        // The folder is not there.
        Err(failure) if failure.code == Code::InvalidInput => return refused(failure),
        Err(failure) => return Err(failure.into()),
    };
    let guest = on.session().guest().await?;
    let streams = Streams::of(&guest, &done, |_, bytes, _| {
        format!("[{bytes} bytes left out: write long output to a file and read parts of it]")
    });
    let mut streams = streams.await;
    let certificate = done.end.certificate.as_ref();
    let late = certificate.is_some_and(|c| c.cause == Cause::WallClock);
    if let Some(certificate) = certificate.filter(|c| is_news(c)) {
        if !streams.stderr.is_empty() && !streams.stderr.ends_with('\n') {
            streams.stderr.push('\n');
        }
        streams.stderr += &match late {
            true => format!("timed out after {} seconds\n", TIMEOUT.as_secs()),
            false => format!("{certificate}\n"),
        };
    }
    let exit_code = match late {
        true => TIMED_OUT,
        false => shell_status(&done.end),
    };
    Ok(Answer::data(json!({
        "stdout": streams.stdout,
        "stderr": streams.stderr,
        "exit_code": exit_code,
        "duration_ms": done.end.duration_ms,
        "cwd": done.end.cwd.as_deref().unwrap_or(args.text("workdir")),
    })))
}

async fn read_file(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("file_path");
    let query = ReadQuery {
        length: Some(READ + 1),
        ..ReadQuery::new(path)
    };
    let guest = on.session().guest().await?;
    let bytes = match guest.read(&query).await {
        Ok(bytes) if bytes.len() as u64 > READ => {
            let message = format!("cannot read {path}: it is over {READ} bytes");
            return refused(Failure::new(Code::TooLarge, message));
        }
        Ok(bytes) => bytes,
        Err(failure) => return refused(failure),
    };
    match std::str::from_utf8(&bytes) {
        Ok(content) => Ok(Answer::data(json!({"path": path, "content": content}))),
        Err(_) => refused(Failure::invalid(format!(
            "cannot read {path}: it is not UTF-8 text"
        ))),
    }
}

async fn write_file(on: &dyn Runner, args: Args) -> Done {
    let path = args.text("file_path");
    let guest = on.session().guest().await?;
    let content = args.text("content").to_owned();
    match guest.write(&WriteQuery::new(path), content).await {
        Ok(_) => Ok(Answer::text(format!("Written successfully to {path}"))),
        Err(failure) => refused(failure),
    }
}

async fn delete_file(on: &dyn Runner, args: Args) -> Done {
    let guest = on.session().guest().await?;
    let path = with_query("/files", &PathQuery::new(args.text("file_path")))?;
    match guest.tell(Method::DELETE, &path, &()).await {
        Ok(()) => Ok(Answer::text("Deleted successfully")),
        Err(failure) => refused(failure),
    }
}
