use super::Bench;
use ringfence_http_tests::Outcome;
use serde_json::{Value, json};

/// The id of the job that a text names.
fn job(text: &str) -> Outcome<&str> {
    let at = text.find("job_").ok_or("no job")?;
    let end = text[at + 4..].find(|c: char| !c.is_ascii_hexdigit());
    Ok(end.map_or(&text[at..], |end| &text[at..at + 4 + end]))
}

#[tokio::test]
async fn python() -> Outcome {
    let tools = Bench::new("ringfence").await?;
    let run = |code: &str| tools.text("python", json!({"code": code}));
    assert_eq!(run("x = 2\nprint('hi')\nx + 2").await?, "hi\n[value] 4");
    assert_eq!(run("x").await?, "[value] 2");
    assert_eq!(run("y = 1").await?, "(no output)");
    assert_eq!(run("'a\\nb'.splitlines()\nprint()").await?, "(no output)");
    assert_eq!(
        run("open('a.txt', 'w').write('12345')").await?,
        "[value] 5\n[files written: a.txt (5 bytes)]"
    );
    assert_eq!(
        run("import sys\nprint('e', file=sys.stderr)\nsys.exit(3)").await?,
        "[stderr]\ne\n[exit status 3]"
    );
    let failed = run("1/0").await?;
    assert!(
        failed.starts_with("[stderr]\nTraceback (most recent call last):\n"),
        "{failed}"
    );
    assert!(
        failed.ends_with("ZeroDivisionError: division by zero\n[exit status 1]"),
        "{failed}"
    );
    let late = tools
        .text("python", json!({"code": "while True: pass", "timeout": 1}))
        .await?;
    assert!(
        late.ends_with(
            "[execution timed out after 1s; it was interrupted, the variables are kept]"
        ),
        "{late}"
    );
    assert_eq!(run("x").await?, "[value] 2");
    let died = run("import os; os._exit(7)").await?;
    assert!(died.contains("exited unexpectedly"), "{died}");
    let missing = "is missing: it must be a string";
    tools.refused("python", json!({}), "code", missing).await?;
    tools
        .refused(
            "python",
            json!({"code": "1", "timeout": -1}),
            "timeout",
            "must be a number of seconds above 0 and up to 86400, not -1",
        )
        .await?;
    tools
        .refused(
            "python",
            json!({"code": "1", "language": "r"}),
            "language",
            "is not known: there are code, timeout",
        )
        .await
}

#[tokio::test]
async fn images_come_back_as_images() -> Outcome {
    // The smallest picture there is.
    const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let tools = Bench::new("ringfence").await?;
    let code = format!(
        "import base64\nraw = base64.b64decode('{PNG}')\nopen('dot.png', 'wb').write(raw)\n\
         class Dot:\n    def _repr_png_(self): return raw\nDot()"
    );
    let answer = tools.call("python", json!({"code": code})).await?;
    let image = json!({"type": "image", "media_type": "image/png", "data": PNG});
    assert_eq!(answer["content"][1], image, "{answer}");
    let answer = tools.call("read_file", json!({"path": "dot.png"})).await?;
    assert_eq!(
        answer["content"],
        json!([{"type": "text", "text": "[dot.png: an image of 70 bytes]"}, image])
    );
    // Not everything that says so is one.
    let code = "class Odd:\n    def _repr_png_(self): return b'<script>'\n    \
        def __repr__(self): return 'odd'\nOdd()";
    let answer = tools.call("python", json!({"code": code})).await?;
    let images = |answer: &Value| answer["content"].as_array().map(Vec::len);
    assert_eq!(images(&answer), Some(1), "{answer}");
    Ok(())
}

#[tokio::test]
async fn bash() -> Outcome {
    let tools = Bench::new("ringfence").await?;
    let run = |command: &str| tools.text("bash", json!({"command": command}));
    assert_eq!(run("echo hi").await?, "hi");
    assert_eq!(run("true").await?, "(no output)");
    assert_eq!(
        run("echo out; echo err >&2; exit 3").await?,
        "out\n[stderr]\nerr\n[exit status 3]"
    );
    assert_eq!(
        run("kill -9 $$").await?,
        "[the command was killed by SIGKILL; look for what sent the signal: the command itself or \
         another of this sandbox]"
    );
    assert_eq!(
        run("cd /tmp; echo 1 > /workspace/made; pwd").await?,
        "/tmp\n[files written: made (2 bytes)]"
    );
    assert_eq!(
        tools
            .text("bash", json!({"command": "echo x; sleep 60", "timeout": 1}))
            .await?,
        "x\n[execution timed out after 1s; all of its processes were ended, files stay]"
    );
    tools
        .refused(
            "bash",
            json!({"command": "a\u{0}b"}),
            "command",
            "must have no null bytes",
        )
        .await?;
    tools
        .refused(
            "bash",
            json!({"command": "x", "background": "yes"}),
            "background",
            "must be true or false, not \"yes\"",
        )
        .await
}

#[tokio::test]
async fn long_output_is_shortened_in_the_middle_and_can_be_read() -> Outcome {
    let tools = Bench::new("ringfence").await?;
    let command = "seq 100000";
    let text = tools.text("bash", json!({"command": command})).await?;
    let all: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let id = job(&text)?;
    let left_out = all.len() - 30_000;
    assert_eq!(
        text,
        format!(
            "{}\n[{left_out} bytes left out: read_output with job={id}, stream=stdout, \
             offset=20000 shows them]\n{}",
            all[..20_000].trim_end_matches('\n'),
            all[all.len() - 10_000..].trim_end_matches('\n')
        )
    );
    let part = tools
        .text("read_output", json!({"job": id, "offset": 20_000}))
        .await?;
    let total = all.len();
    assert!(
        part.starts_with(&all[20_000..50_000]) && part.ends_with(&format!(
            "[{id}: it ended with exit status 0; stdout goes on at offset 50000, it has {total} bytes]"
        )),
        "{part}"
    );
    Ok(())
}

#[tokio::test]
async fn what_runs_in_the_background_is_read_and_stopped() -> Outcome {
    let tools = Bench::new("ringfence").await?;
    let command = "echo one; echo two >&2; sleep 600";
    let started = tools
        .text("bash", json!({"command": command, "background": true}))
        .await?;
    let id = job(&started)?;
    assert_eq!(
        started,
        format!("[{id} runs in the background: read_output shows what it prints, stop ends it]")
    );
    ringfence_http_tests::until(async || {
        let text = tools.text("read_output", json!({"job": id})).await?;
        let done = format!("one\n[{id}: it runs; this is the end of stdout at offset 4]");
        Ok((text == done).then_some(()))
    })
    .await?;
    ringfence_http_tests::until(async || {
        let stderr = json!({"job": id, "stream": "stderr"});
        let text = tools.text("read_output", stderr).await?;
        let done = format!("two\n[{id}: it runs; this is the end of stderr at offset 4]");
        Ok((text == done).then_some(()))
    })
    .await?;
    assert_eq!(
        tools.text("stop", json!({"job": id})).await?,
        format!("[{id} was stopped]")
    );
    ringfence_http_tests::until(async || {
        let text = tools
            .text("read_output", json!({"job": id, "offset": 4}))
            .await?;
        let done =
            format!("[{id}: it was ended by SIGKILL; this is the end of stdout at offset 4]");
        Ok((text == done).then_some(()))
    })
    .await?;
    for tool in ["read_output", "stop"] {
        assert_eq!(
            tools.error(tool, json!({"job": "job_nope"})).await?,
            "Error: no such job: job_nope"
        );
        tools
            .refused(
                tool,
                json!({"job": "../x"}),
                "job",
                "must be the id of a job, such as job_1f0c",
            )
            .await?;
    }
    tools
        .refused(
            "read_output",
            json!({"job": id, "stream": "both"}),
            "stream",
            "must be one of stdout, stderr, not \"both\"",
        )
        .await
}

#[tokio::test]
async fn files() -> Outcome {
    let tools = Bench::new("ringfence").await?;
    let ok = |tool, arguments| tools.text(tool, arguments);
    let bad = |tool, arguments| tools.error(tool, arguments);
    assert_eq!(
        ok(
            "write_file",
            json!({"path": "a/b.py", "content": "x = 1\ny = 1\n"})
        )
        .await?,
        "a/b.py created: 2 lines, 12 bytes"
    );
    assert_eq!(
        ok("write_file", json!({"path": "/tmp/c", "content": "one"})).await?,
        "/tmp/c created: 1 line, 3 bytes"
    );
    assert_eq!(
        ok("write_file", json!({"path": "/tmp/c", "content": ""})).await?,
        "/tmp/c replaced: 0 lines, 0 bytes"
    );
    assert_eq!(
        ok("read_file", json!({"path": "a/b.py"})).await?,
        "     1\tx = 1\n     2\ty = 1"
    );
    assert_eq!(
        ok("read_file", json!({"path": "a/b.py", "lines": [2, 2]})).await?,
        "     2\ty = 1"
    );
    assert_eq!(
        ok("read_file", json!({"path": "/tmp/c"})).await?,
        "[/tmp/c is empty]"
    );
    assert_eq!(
        bad("read_file", json!({"path": "nope"})).await?,
        "Error: cannot read /workspace/nope: not found"
    );
    assert_eq!(
        ok(
            "edit_file",
            json!({"path": "a/b.py", "old": "x = 1", "new": "x = 2"})
        )
        .await?,
        "a/b.py edited:\n@@ -1,1 +1,1 @@\n-x = 1\n+x = 2"
    );
    assert_eq!(
        ok(
            "edit_file",
            json!({"path": "a/b.py", "old": " = ", "new": "=", "all": true})
        )
        .await?,
        "a/b.py edited:\n@@ -1,2 +1,2 @@\n-x = 2\n-y = 1\n+x=2\n+y=1"
    );
    assert_eq!(
        ok(
            "edit_file",
            json!({"path": "a/b.py", "old": "x", "new": "x"})
        )
        .await?,
        "a/b.py is as it was: old and new are the same"
    );
    assert_eq!(
        bad(
            "edit_file",
            json!({"path": "a/b.py", "old": "=", "new": ""})
        )
        .await?,
        "Error: cannot edit a/b.py: the old text occurs 2 times, and must be unique; add lines \
         around it, or replace all"
    );
    assert_eq!(
        bad("edit_file", json!({"path": "nope", "old": "a", "new": "b"})).await?,
        "Error: cannot edit nope: not found"
    );
    ok(
        "bash",
        json!({"command": "touch .hidden; ln -s a/b.py link; printf '\\377' > bin"}),
    )
    .await?;
    assert_eq!(
        ok("list_files", json!({})).await?,
        "a/\na/b.py (8 bytes)\nbin (1 bytes)\nlink -> a/b.py"
    );
    assert_eq!(
        ok("list_files", json!({"pattern": "**/*.py"})).await?,
        "a/b.py (8 bytes)"
    );
    assert_eq!(
        ok("list_files", json!({"path": "a", "pattern": "*.rs"})).await?,
        "[nothing in a matches *.rs]"
    );
    assert_eq!(
        ok(
            "list_files",
            json!({"path": "/tmp", "depth": 1, "pattern": "c"})
        )
        .await?,
        "/tmp/c (0 bytes)"
    );
    assert_eq!(
        bad("list_files", json!({"path": "nope"})).await?,
        "Error: cannot list nope: not found"
    );
    assert_eq!(
        bad("read_file", json!({"path": "bin"})).await?,
        "Error: cannot show bin: it is not text; look at it with python"
    );
    assert_eq!(
        ok(
            "search",
            json!({"pattern": "^X=\\d", "ignore_case": true, "context": 1})
        )
        .await?,
        "a/b.py:1: x=2\na/b.py-2- y=1"
    );
    assert_eq!(
        ok("search", json!({"pattern": "nope", "glob": "**/*.py"})).await?,
        "[no line matches nope]"
    );
    let odd = bad("search", json!({"pattern": "("})).await?;
    assert!(odd.starts_with("Error: bad pattern: "), "{odd}");
    for (tool, arguments, name, message) in [
        (
            "read_file",
            json!({"path": "a/b.py", "lines": [3, 4]}),
            "lines",
            "must be a range within the 2 lines of a/b.py",
        ),
        (
            "read_file",
            json!({"path": "a/b.py", "lines": "1-2"}),
            "lines",
            "must be a list of two whole numbers, not \"1-2\"",
        ),
        (
            "write_file",
            json!({"path": "x"}),
            "content",
            "is missing: it must be a string",
        ),
        (
            "edit_file",
            json!({"path": "x", "old": "a"}),
            "new",
            "is missing: it must be a string",
        ),
        (
            "list_files",
            json!({"depth": 65}),
            "depth",
            "must be a whole number from 1 to 64, not 65",
        ),
        (
            "search",
            json!({}),
            "pattern",
            "is missing: it must be a string",
        ),
    ] {
        tools.refused(tool, arguments, name, message).await?;
    }
    Ok(())
}
