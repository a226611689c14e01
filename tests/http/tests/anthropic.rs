//! What we answer, read by a client that we did not write: the `anthropic` package.

use ringfence_http_tests::{Outcome, Server, python};
use serde_json::{Value, json};
use std::process::Stdio;
use tokio::io::AsyncWriteExt as _;

/// Runs a script with this as its input, and gives what it printed.
async fn script(text: &str, args: &[&str], input: &Value) -> Outcome<String> {
    let mut child = tokio::process::Command::new(python()?)
        .args(["-c", text])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    stdin.write_all(&serde_json::to_vec(input)?).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Reads each block with the package's own types, once by its class and once among all blocks of
/// a message, and says which variant its content was taken for.
const READ_BLOCKS: &str = r#"
import json, sys
from pydantic import TypeAdapter
from anthropic.types import beta
any_block = TypeAdapter(beta.BetaContentBlock)
for block, kind, variant in json.load(sys.stdin):
    read = TypeAdapter(getattr(beta, kind)).validate_python(block, strict=True)
    content = type(read.content).__name__
    assert content == variant, f"{block} was taken for {content}, not {variant}"
    among = any_block.validate_python(block)
    assert type(among).__name__ == kind, f"{block} was taken for {type(among).__name__}"
    assert type(among.content).__name__ == variant, f"{block}: {among}"
    back = json.loads(read.to_json())
    assert back["content"]["return_code"] == block["content"]["return_code"]
    print(content)
"#;

async fn block(server: &Server, id: &str, tool: &str, input: Value) -> Outcome<Value> {
    let body = json!({"tool": tool, "input": input, "timeout_seconds": 1});
    let (status, answer) = server.post(&format!("/sessions/{id}/exec"), &body).await?;
    match status {
        200 => Ok(answer["result_block"].clone()),
        _ => Err(format!("{body}: {status} {answer}").into()),
    }
}

#[tokio::test]
async fn every_block_is_of_the_packages_types() -> Outcome {
    let server = Server::start(&[])?;
    let id = &server.session().await?;
    let (code, bash) = ("code_execution", "bash_code_execution");
    let editor = "text_editor_code_execution";
    let mut blocks = Vec::new();
    let classes = |tool| match tool {
        "code_execution" => (
            "BetaCodeExecutionToolResultBlock",
            "BetaCodeExecutionResultBlock",
        ),
        _ => (
            "BetaBashCodeExecutionToolResultBlock",
            "BetaBashCodeExecutionResultBlock",
        ),
    };
    for (tool, input) in [
        (
            code,
            json!({"code": "open('made.txt', 'w').write('x')\n1 + 1"}),
        ),
        (code, json!({"code": "1 / 0"})),
        (code, json!({"code": "while True: pass"})),
        (code, json!({"code": "import os; os._exit(1)"})),
        (
            code,
            json!({"code": "class P:\n    def _repr_png_(self): return b'x'\nP()"}),
        ),
        (
            bash,
            json!({"command": "echo x > also.txt; echo out; echo err >&2; exit 3"}),
        ),
        (bash, json!({"command": "kill -9 $$"})),
        (bash, json!({"command": "sleep 60"})),
    ] {
        let (kind, variant) = classes(tool);
        blocks.push(json!([
            block(&server, id, tool, input).await?,
            kind,
            variant
        ]));
    }
    let made: Vec<_> = blocks
        .iter()
        .filter(|b| b[0]["content"]["content"][0].is_object())
        .collect();
    assert_eq!(made.len(), 2, "{blocks:?}");
    server
        .bash(
            id,
            "printf '\\x89PNG\\r\\n\\x1a\\n' > p.png; printf '%%PDF-1' > d.pdf",
        )
        .await?;
    let of = |kind: &str| format!("BetaTextEditorCodeExecution{kind}");
    for (input, variant) in [
        (
            json!({"command": "create", "path": "t", "file_text": "a\nb\n"}),
            "CreateResultBlock",
        ),
        (json!({"command": "view", "path": "t"}), "ViewResultBlock"),
        (
            json!({"command": "view", "path": "t", "view_range": [1, -1]}),
            "ViewResultBlock",
        ),
        (json!({"command": "view", "path": "."}), "ViewResultBlock"),
        (
            json!({"command": "view", "path": "p.png"}),
            "ViewResultBlock",
        ),
        (
            json!({"command": "view", "path": "d.pdf"}),
            "ViewResultBlock",
        ),
        (
            json!({"command": "str_replace", "path": "t", "old_str": "a", "new_str": "c"}),
            "StrReplaceResultBlock",
        ),
        (
            json!({"command": "str_replace", "path": "t", "old_str": "c", "new_str": "c"}),
            "StrReplaceResultBlock",
        ),
        (
            json!({"command": "insert", "path": "t", "insert_line": 0, "new_str": "z"}),
            "StrReplaceResultBlock",
        ),
        (
            json!({"command": "undo_edit", "path": "t"}),
            "StrReplaceResultBlock",
        ),
        (
            json!({"command": "view", "path": "none"}),
            "ToolResultError",
        ),
        (
            json!({"command": "create", "path": "t", "file_text": ""}),
            "ToolResultError",
        ),
        (
            json!({"command": "view", "path": "/etc"}),
            "ToolResultError",
        ),
    ] {
        let block = block(&server, id, editor, input).await?;
        blocks.push(json!([block, of("ToolResultBlock"), of(variant)]));
    }
    let read = script(READ_BLOCKS, &[], &json!(blocks)).await?;
    assert_eq!(read.lines().count(), blocks.len());
    Ok(())
}

/// Waits until a file says that code has begun.
async fn begun(server: &Server, id: &str, name: &str) -> Outcome {
    loop {
        let (status, _) = server
            .get(&format!("/sessions/{id}/files/stat?path={name}"))
            .await?;
        match status {
            200 => return Ok(()),
            404 => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            _ => return Err(format!("{name}: {status}").into()),
        }
    }
}

#[tokio::test]
async fn failures_that_are_not_the_codes_are_of_the_packages_types_too() -> Outcome {
    let server = Server::start(&[])?;
    let mut blocks = Vec::new();
    for (tool, input, class) in [
        (
            "code_execution",
            json!({"code": "open('on', 'w').close()\nimport time; time.sleep(60)"}),
            "BetaCodeExecution",
        ),
        (
            "bash_code_execution",
            json!({"command": "touch on; sleep 60"}),
            "BetaBashCodeExecution",
        ),
    ] {
        let id = server.session().await?;
        let body = json!({"tool": tool, "input": input});
        let route = format!("/sessions/{id}/exec");
        let call = server.post(&route, &body);
        let end = async {
            begun(&server, &id, "on").await?;
            server.ask("DELETE", &format!("/sessions/{id}"), None).await
        };
        let (answer, ended) = tokio::join!(call, end);
        assert_eq!(ended?.0, 204);
        let (status, answer) = answer?;
        assert_eq!(status, 200, "{answer}");
        let content = &answer["result_block"]["content"];
        assert_eq!(content["error_code"], "unavailable", "{answer}");
        assert_eq!(
            (&content["stdout"], &content["return_code"]),
            (&json!(""), &json!(-1))
        );
        let (kind, variant) = (
            format!("{class}ToolResultBlock"),
            format!("{class}ToolResultError"),
        );
        blocks.push(json!([answer["result_block"], kind, variant]));
    }
    script(READ_BLOCKS, &[], &json!(blocks)).await?;
    Ok(())
}

const USE_FILES: &str = r#"
import json, sys, anthropic
blocks = json.load(sys.stdin)
client = anthropic.Anthropic(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
for block in blocks:
    (output,) = block["content"]["content"]
    about = client.beta.files.retrieve_metadata(output["file_id"])
    assert about.id == output["file_id"] and about.type == "file", about
    assert about.filename == output["filename"] == "table.csv", about
    assert about.mime_type == "text/csv" and about.size_bytes == 8, about
    assert about.downloadable and about.created_at.year >= 2024, about
    assert about.scope.type == "session", about
    assert client.beta.files.download(output["file_id"]).read() == b"a,b\n1,2\n"
    gone = client.beta.files.delete(output["file_id"])
    assert gone.id == output["file_id"] and gone.type == "file_deleted", gone
    for ask in (client.beta.files.retrieve_metadata, client.beta.files.download, client.beta.files.delete):
        try:
            ask(output["file_id"])
        except anthropic.NotFoundError:
            continue
        raise AssertionError("a deleted file was there")
print("done")
"#;

#[tokio::test]
async fn files_are_had_and_deleted_with_the_packages_client() -> Outcome {
    let server = Server::start(&[])?;
    let mut blocks = Vec::new();
    for (tool, input) in [
        (
            "code_execution",
            json!({"code": "open('table.csv', 'w').write('a,b\\n1,2\\n')"}),
        ),
        (
            "bash_code_execution",
            json!({"command": "printf 'a,b\\n1,2\\n' > table.csv"}),
        ),
    ] {
        let id = server.session().await?;
        blocks.push(block(&server, &id, tool, input).await?);
    }
    let done = script(USE_FILES, &[&server.url, "x"], &json!(blocks)).await?;
    assert_eq!(done, "done\n");
    Ok(())
}
