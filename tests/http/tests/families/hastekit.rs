use super::Bench;
use ringfence_http_tests::Outcome;
use serde_json::{Value, json};

/// The answer as data, which is its text too; how long it took is not the same twice.
async fn execute(hastekit: &Bench, arguments: Value) -> Outcome<Value> {
    let answer = hastekit.call("execute_bash_commands", arguments).await?;
    let text: Value = serde_json::from_str(answer["text"].as_str().ok_or("no text")?)?;
    let mut data = answer["structured"].clone();
    assert_eq!(data, text);
    let took = data
        .as_object_mut()
        .and_then(|data| data.remove("duration_ms"));
    assert!(took.is_some_and(|took| took.is_u64()), "{answer}");
    Ok(data)
}

#[tokio::test]
async fn execute_bash_commands() -> Outcome {
    let hastekit = Bench::new("hastekit").await?;
    assert_eq!(
        execute(
            &hastekit,
            json!({"code": "mkdir a; cd a; echo out; echo err >&2; exit 3"})
        )
        .await?,
        json!({"stdout": "out\n", "stderr": "err\n", "exit_code": 3, "cwd": "/workspace/a"})
    );
    assert_eq!(
        execute(&hastekit, json!({"code": "pwd", "workdir": "/workspace/a"})).await?,
        json!({"stdout": "/workspace/a\n", "stderr": "", "exit_code": 0, "cwd": "/workspace/a"})
    );
    let missing = "is missing: it must be a string";
    hastekit
        .refused("execute_bash_commands", json!({}), "code", missing)
        .await?;
    hastekit
        .refused(
            "execute_bash_commands",
            json!({"code": {}}),
            "code",
            "must be a string, not an object",
        )
        .await
}

#[tokio::test]
async fn files() -> Outcome {
    let hastekit = Bench::new("hastekit").await?;
    assert_eq!(
        hastekit
            .text(
                "write_file",
                json!({"file_path": "a/b.txt", "content": "é\n"})
            )
            .await?,
        "Written successfully to a/b.txt"
    );
    let answer = hastekit
        .call("read_file", json!({"file_path": "/workspace/a/b.txt"}))
        .await?;
    let expected = json!({"path": "/workspace/a/b.txt", "content": "é\n"});
    assert_eq!(answer["structured"], expected);
    assert_eq!(answer["text"], expected.to_string());
    assert_eq!(
        hastekit
            .text("delete_file", json!({"file_path": "a/b.txt"}))
            .await?,
        "Deleted successfully"
    );
    for (tool, arguments, said) in [
        (
            "read_file",
            json!({"file_path": "a/b.txt"}),
            "Error: cannot read a/b.txt: not found",
        ),
        (
            "delete_file",
            json!({"file_path": "a/b.txt"}),
            "Error: cannot delete a/b.txt: not found",
        ),
        (
            "write_file",
            json!({"file_path": "a", "content": ""}),
            "Error: cannot write a: it is a folder",
        ),
        (
            "read_file",
            json!({"file_path": "/etc/passwd"}),
            "Error: cannot use /etc/passwd: it escapes workspace /workspace",
        ),
    ] {
        assert_eq!(hastekit.error(tool, arguments).await?, said);
    }
    for tool in ["read_file", "delete_file", "write_file"] {
        hastekit
            .refused(
                tool,
                json!({"file_path": 1}),
                "file_path",
                "must be a string, not 1",
            )
            .await?;
    }
    Ok(())
}
