//! The one tool of shipit: a snippet in a disposable sandbox.

use super::{Answer, Args, Done, Effect, Param, Run, Snippets, Tool, refused};
use crate::snippet::Snippet;
use ringfence_proto::{Code, Failure};
use serde_json::json;

pub(super) static TOOLS: &[Tool] = &[Tool {
    name: "run_code",
    about: "Run a snippet in a sandbox of its own that is gone afterwards: python, javascript, \
        typescript, ruby, php, perl, lua, r, bash, sh, zsh and more. Use it to try code in any \
        language; nothing stays for the next call but files that outputs names, which come back \
        as data. Without sandbox the workspace can be written to. There is no network unless you ask for it and the server allows it. On a timeout \
        exit_code is 124. Example: {\"language\": \"python\", \"code\": \"print(6 * 7)\"}",
    // Those of a `Snippet`: one that it does not have would be refused.
    params: &[
        Param::text(
            "language",
            "A language or an alias of it, such as py, node or ts.",
        ),
        Param::text("code", "The source of the snippet."),
        Param::files("files", "Further files by name, beside the code."),
        Param::bytes("stdin", "What it reads from standard input."),
        Param::texts("args", 256, "Its arguments."),
        Param::variables("env", "Further environment variables."),
        Param::seconds(
            "timeout_seconds",
            15,
            "Seconds until it is ended: 15 when absent.",
        ),
        Param::seconds(
            "compile_timeout_seconds",
            60,
            "Seconds that its compiler has, where there is one: 60 when absent.",
        ),
        Param::text("memory", "Memory of the whole sandbox, such as 256m.").optional(),
        Param::flag("sandbox", false, "Whether the workspace is read-only."),
        Param::flag("network", false, "Whether it may use the network."),
        Param::text(
            "image",
            "The image to run in, on an engine that has images.",
        )
        .optional(),
        Param::text("workspace_root", "A folder of the host, seen at /work.").optional(),
        Param::choice(
            "workspace_access",
            &["read_only", "read_write"],
            "Whether the code may write to that folder: read_only or read_write.",
        )
        .optional(),
        Param::flag(
            "scratch",
            false,
            "Makes /work a private folder that can be written to; so do files and outputs.",
        ),
        Param::texts(
            "outputs",
            32,
            "Globs below /work, or with /tmp/ before them: files that are answered with.",
        ),
    ],
    effect: Effect::Runs,
    run: Run::Apart(|on, args| Box::pin(run_code(on, args))),
}];

async fn run_code(on: &dyn Snippets, args: Args) -> Done {
    let snippet: Snippet = match serde_json::from_value(args.map().clone().into()) {
        Ok(snippet) => snippet,
        Err(error) => return refused(Failure::invalid(error.to_string())),
    };
    let outcome = match on.snippet(snippet).await {
        Ok(outcome) => outcome,
        // A language that is not known, or not here.
        Err(failure) if failure.code == Code::Missing => {
            return refused(Failure {
                code: Code::InvalidInput,
                ..failure
            });
        }
        Err(failure) => return refused(failure),
    };
    Ok(Answer {
        is_error: outcome.error.is_some(),
        structured: Some(json!(outcome)),
        ..Answer::text(outcome.text)
    })
}
