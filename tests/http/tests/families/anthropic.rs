use super::Bench;
use ringfence_http_tests::Outcome;
use serde_json::{Value, json};

/// The content of the result block, which is the text too.
async fn content(bench: &Bench, tool: &str, arguments: Value, is_error: bool) -> Outcome<Value> {
    let answer = bench.call(tool, arguments).await?;
    assert_eq!(answer["is_error"], is_error, "{answer}");
    let text: Value = serde_json::from_str(answer["text"].as_str().ok_or("no text")?)?;
    assert_eq!(answer["structured"], text);
    Ok(text)
}

#[tokio::test]
async fn code_and_bash() -> Outcome {
    let bench = Bench::new("anthropic").await?;
    assert_eq!(
        content(
            &bench,
            "code_execution",
            json!({"code": "x = 2\nprint(x)\nx + 2"}),
            false
        )
        .await?,
        json!({"type": "code_execution_result", "stdout": "2", "stderr": "", "return_code": 0,
            "content": [], "value": "4",
            "results": [{"kind": "value", "data": {"text/plain": "4"}}]})
    );
    let failed = content(&bench, "code_execution", json!({"code": "1/0"}), false).await?;
    assert_eq!(failed["return_code"], 1);
    assert!(
        failed["stderr"]
            .as_str()
            .is_some_and(|text| text.ends_with("ZeroDivisionError: division by zero")),
        "{failed}"
    );
    assert_eq!(
        content(
            &bench,
            "bash_code_execution",
            json!({"command": "echo out; echo err >&2; exit 3"}),
            false
        )
        .await?,
        json!({"type": "bash_code_execution_result", "stdout": "out\n", "stderr": "err\n",
            "return_code": 3, "content": []})
    );
    let missing = "is missing: it must be a string";
    bench
        .refused("code_execution", json!({}), "code", missing)
        .await?;
    bench
        .refused(
            "bash_code_execution",
            json!({"command": 1}),
            "command",
            "must be a string, not 1",
        )
        .await
}

#[tokio::test]
async fn editor() -> Outcome {
    let bench = Bench::new("anthropic").await?;
    let tool = "text_editor_code_execution";
    assert_eq!(
        content(
            &bench,
            tool,
            json!({"command": "create", "path": "a.txt", "file_text": "one\ntwo\n"}),
            false
        )
        .await?,
        json!({"type": "text_editor_code_execution_create_result", "is_file_update": false,
            "stdout": "File created: a.txt", "stderr": "", "return_code": 0})
    );
    assert_eq!(
        content(
            &bench,
            tool,
            json!({"command": "view", "path": "a.txt", "view_range": [2, -1]}),
            false
        )
        .await?,
        json!({"type": "text_editor_code_execution_view_result", "file_type": "text",
            "content": "two", "num_lines": 1, "start_line": 2, "total_lines": 2,
            "stdout": "two", "stderr": "", "return_code": 0})
    );
    let missing = content(
        &bench,
        tool,
        json!({"command": "view", "path": "nope"}),
        true,
    )
    .await?;
    assert_eq!(
        missing["type"],
        "text_editor_code_execution_tool_result_error"
    );
    assert_eq!(missing["error_code"], "file_not_found");
    bench
        .refused(
            tool,
            json!({"command": "view"}),
            "path",
            "is missing: it must be a string",
        )
        .await?;
    bench
        .refused(
            tool,
            json!({"command": "create", "path": "x"}),
            "file_text",
            "field required",
        )
        .await?;
    bench
        .refused(
            tool,
            json!({"command": "open", "path": "x"}),
            "command",
            "must be one of view, create, str_replace, insert, undo_edit, not \"open\"",
        )
        .await
}
