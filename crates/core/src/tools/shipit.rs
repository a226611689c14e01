//! The one tool of shipit: a snippet in a disposable sandbox.

use super::{Answer, Args, Done, Effect, Param, Run, Snippets, Tool, refused};
use crate::snippet::Snippet;
use ringfence_proto::{Code, Failure};
use serde_json::json;

pub(super) static TOOLS: &[Tool] = &[Tool {
    name: "run_code",
    about: "Run a snippet in a sandbox of its own that is gone afterwards: python, javascript, \
        typescript, ruby, php, perl, lua, r, bash, sh, zsh and more. Use it to try code in any \
        language; nothing stays for the next call. Without sandbox the workspace can be written \
        to. There is no network unless you ask for it and the server allows it. On a timeout \
        exit_code is 124. Example: {\"language\": \"python\", \"code\": \"print(6 * 7)\"}",
    params: &[
        Param::text(
            "language",
            "A language or an alias of it, such as py, node or ts.",
        ),
        Param::text("code", "The source of the snippet."),
        Param::seconds("timeout_seconds", 15, "Seconds until it is ended."),
        Param::flag("sandbox", false, "Whether the workspace is read-only."),
        Param::flag("network", false, "Whether it may use the network."),
        Param::text(
            "image",
            "The image to run in, on an engine that has images.",
        )
        .optional(),
        Param::text("workspace_root", "A folder of the host, seen at /work.").optional(),
    ],
    effect: Effect::Runs,
    run: Run::Apart(|on, args| Box::pin(run_code(on, args))),
}];

async fn run_code(on: &dyn Snippets, args: Args) -> Done {
    let mut snippet = Snippet::new(args.text("language"), args.text("code"));
    snippet.timeout_seconds = Some(args.seconds("timeout_seconds").as_secs_f64());
    snippet.sandbox = args.flag("sandbox");
    snippet.network = args.flag("network");
    snippet.image = args.maybe_text("image").map(str::to_owned);
    snippet.workspace_root = args.maybe_text("workspace_root").map(Into::into);
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
