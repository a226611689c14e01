//! Functions of the host that code in the sandbox calls.

use crate::{Outcome, Subject, Wrong, holds, same};
use futures_util::StreamExt as _;
use ringfence_core::guest::ToolEvents;
use ringfence_core::proto::{
    Command, ExecRequest, ExecResult, Exit, Tool, ToolCall, ToolEvent, ToolReply, ToolsInfo,
    ToolsRequest,
};
use ringfence_core::{Code, GuestClient};
use std::time::Duration;

async fn register(s: &Subject, names: &[&str], timeout_ms: u64) -> Result<ToolsInfo, Wrong> {
    let tool = |name: &&str| Tool {
        name: (*name).to_owned(),
        doc: format!("Does {name}.\n\"\"\"quoted\"\"\" \\ ü"),
    };
    let request = ToolsRequest {
        tools: names.iter().map(tool).collect(),
        timeout_ms,
    };
    Ok(s.guest.register_tools(&request).await?)
}

async fn next(calls: &mut ToolEvents) -> Result<ToolEvent, Wrong> {
    let event = tokio::time::timeout(Duration::from_secs(20), calls.next()).await;
    let event = event.map_err(|_| Wrong("no event of a call comes".into()))?;
    Ok(event.ok_or_else(|| Wrong("the stream of calls ended".into()))??)
}

async fn next_call(calls: &mut ToolEvents) -> Result<ToolCall, Wrong> {
    match next(calls).await? {
        ToolEvent::Call(call) => Ok(call),
        ToolEvent::Cancelled(id) => Err(Wrong(format!("{id} was cancelled"))),
    }
}

/// Answers every call: `echo` with its input, `fail` with an error.
async fn serve(guest: GuestClient) -> Outcome {
    let mut calls = guest.tool_calls().await?;
    while let Some(event) = calls.next().await {
        if let ToolEvent::Call(call) = event? {
            let reply = ToolReply {
                content: call.input,
                is_error: call.name == "fail",
            };
            guest.reply_tool(&call.id, &reply).await?;
        }
    }
    Ok(())
}

fn text(done: &ExecResult) -> String {
    format!("{}{}", done.stdout.data.text(), done.stderr.data.text())
}

pub(super) async fn tools_are_called_from_python(s: &Subject) -> Outcome {
    // Both run already, and one has its own search path.
    s.python("import sys\nbefore = 1").await?;
    let info = register(s, &["echo", "fail", "größe"], 30_000).await?;
    same!(info.tool_count, 3);
    holds!(info.stub_path.contains("lib"), info.stub_path);
    let serving = tokio::spawn(serve(s.guest.clone()));
    let code = "from _platform_tools import echo, fail, größe, ToolError\n\
        print(echo(a=[1, 2.5, None, True, 'ü\\n'], n=10**40, self={'x': {}}))\n\
        print(echo.__name__, echo.__doc__.splitlines()[0], größe(x=1))\n\
        for bad in (lambda: echo(1), lambda: echo(x={1}), lambda: echo(x=float('nan')),\n\
                    lambda: echo(x='\\ud800')):\n    \
            try: bad()\n    \
            except TypeError as e: print('TypeError', str(e)[:30])\n\
        try: fail(why='so')\n\
        except ToolError as e: print(type(e).__module__, e, e.content)";
    let want = "{'a': [1, 2.5, None, True, 'ü\\n'], 'n': 10000000000000000000000000000000000000000, 'self': {'x': {}}}\n\
        echo Does echo. {'x': 1}\n\
        TypeError echo() takes keyword arguments\n\
        TypeError the arguments of echo() must b\n\
        TypeError the arguments of echo() must b\n\
        TypeError the arguments of echo() must b\n\
        _platform_tools {\"why\": \"so\"} {'why': 'so'}\n";
    same!(text(&s.python(code).await?), want);
    // Scripts of a shell, children of the kernel, and a kernel that starts now.
    let script = "from _platform_tools import echo; print(len(echo(n=1)))";
    let mut request = ExecRequest::new(Command::Shell(format!("python3 -c '{script}'")));
    same!(text(&s.guest.exec(&request).await?), "1\n");
    s.shell("mkdir own; echo 'print(\"own\")' > own/own.py")
        .await?;
    request.command = Command::Shell(format!("python3 -c 'import own; {script}'"));
    request.env.insert("PYTHONPATH".into(), "own".into());
    same!(text(&s.guest.exec(&request).await?), "own\n1\n");
    let child = format!("import os; x = os.system(\"python3 -c '{script}'\")");
    same!(text(&s.python(&child).await?), "1\n");
    let fresh = ringfence_core::proto::RunRequest {
        code: script.into(),
        ..Default::default()
    };
    same!(text(&s.guest.run("fresh", &fresh).await?), "1\n");
    // Many at a time, from threads.
    let threads = "from concurrent.futures import ThreadPoolExecutor\n\
        with ThreadPoolExecutor(16) as pool:\n    \
            print(sum(r['n'] for r in pool.map(lambda n: echo(n=n), range(200))))";
    same!(text(&s.python(threads).await?), "19900\n");
    serving.abort();
    Ok(())
}

pub(super) async fn tools_are_replaced(s: &Subject) -> Outcome {
    register(s, &["one", "two"], 30_000).await?;
    let both = "import _platform_tools\nprint(sorted(_platform_tools.__all__))\n\
                from _platform_tools import one";
    same!(
        text(&s.python(both).await?),
        "['ToolError', 'one', 'two']\n"
    );
    let before = register(s, &["two"], 30_000).await?;
    let after = "import _platform_tools\nprint(sorted(_platform_tools.__all__))\n\
                 try: one()\nexcept Exception as e: print(type(e).__name__, e)";
    same!(
        text(&s.python(after).await?),
        "['ToolError', 'two']\nToolError there is no tool one\n"
    );
    // Code can break the module, for itself; the next registration mends it.
    s.shell(&format!("rm -r $(dirname $(dirname {}))", before.stub_path))
        .await?;
    same!(
        s.python("import _platform_tools").await?.end.exit,
        Exit::Code(0)
    );
    register(s, &["three"], 30_000).await?;
    let names = "import _platform_tools\nprint(sorted(_platform_tools.__all__))";
    same!(text(&s.python(names).await?), "['ToolError', 'three']\n");
    same!(register(s, &[], 30_000).await?.tool_count, 0);
    for bad in [&["def"][..], &["a b"], &["x", "x"], &["ToolError"]] {
        let failure = register(s, bad, 30_000).await.err();
        holds!(
            failure.is_some_and(|f| f.0.starts_with("invalid_input")),
            bad
        );
    }
    holds!(register(s, &["a"], 999).await.is_err());
    Ok(())
}

pub(super) async fn tool_calls_are_cancelled_with_their_callers(s: &Subject) -> Outcome {
    register(s, &["wait"], 2000).await?;
    let mut calls = s.guest.tool_calls().await?;
    let code = "from _platform_tools import wait\nkept = 1\nwait(n=1)";
    // A timeout of the call interrupts it, and the variables stay.
    let (done, id) = tokio::join!(s.python_within(code, 500), async {
        next_call(&mut calls).await.map(|call| call.id)
    });
    let (done, id) = (done?, id?);
    same!(done.end.exit, Exit::Lost);
    same!(text(&s.python("print(kept)").await?), "1\n");
    holds!(matches!(next(&mut calls).await?, ToolEvent::Cancelled(gone) if gone == id));
    let late = s.guest.reply_tool(&id, &ToolReply::error("late")).await;
    same!(late.err().map(|f| f.code), Some(Code::NotFound));
    // A script that is killed.
    let script = "python3 -c 'from _platform_tools import wait; wait(n=2)'";
    let mut request = ExecRequest::new(Command::Shell(script.into()));
    request.timeout_ms = Some(1500);
    let (done, id) = tokio::join!(s.guest.exec(&request), async {
        next_call(&mut calls).await.map(|call| call.id)
    });
    let (_, id) = (done?, id?);
    holds!(matches!(next(&mut calls).await?, ToolEvent::Cancelled(gone) if gone == id));
    // Its own limit of two seconds.
    let code = "from _platform_tools import wait, ToolError\n\
                try: wait(n=3)\nexcept ToolError as e: print(e)";
    let (done, id) = tokio::join!(s.python(code), async {
        next_call(&mut calls).await.map(|call| call.id)
    });
    same!(text(&done?), "wait did not answer within 2 s\n");
    let id = id?;
    holds!(matches!(next(&mut calls).await?, ToolEvent::Cancelled(gone) if gone == id));
    // The stream being open is no activity.
    tokio::time::sleep(Duration::from_millis(20)).await;
    holds!(s.guest.health().await?.idle_ms >= 15);
    Ok(())
}

pub(super) async fn tool_calls_survive_the_loss_of_a_reader(s: &Subject) -> Outcome {
    register(s, &["ask"], 30_000).await?;
    let own = GuestClient::connect(s.backend.dial(&s.plan.id).await?).await?;
    let mut first = own.tool_calls().await?;
    let code = "from _platform_tools import ask\nprint(ask(q=1))";
    let (done, outcome) = tokio::join!(s.python(code), async {
        let id = next_call(&mut first).await?.id;
        drop((first, own));
        let mut second = s.guest.tool_calls().await?;
        let call = next_call(&mut second).await?;
        same!((&call.id, call.input.get()), (&id, r#"{"q":1}"#));
        let reply = ToolReply::new(&"x".repeat(8 << 20)).map_err(|e| Wrong(e.to_string()))?;
        Ok(s.guest.reply_tool(&id, &reply).await?)
    });
    outcome?;
    same!(done?.stdout.total, (8 << 20) + 1);
    Ok(())
}
