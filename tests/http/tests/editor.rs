//! `text_editor_code_execution`, every line of its contract.

use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};

struct Editor {
    server: Server,
    id: String,
}

impl Editor {
    async fn start() -> Outcome<Self> {
        let server = Server::start(&[])?;
        let id = server.session().await?;
        Ok(Self { server, id })
    }

    async fn call(&self, input: Value) -> Outcome<Value> {
        self.server
            .tool(&self.id, "text_editor_code_execution", &input)
            .await
    }

    /// A call that works, and what it says.
    async fn works(&self, input: Value) -> Outcome<(Value, String)> {
        let content = self.call(input).await?;
        if content["return_code"] != 0 || content["stderr"] != "" {
            return Err(format!("failed: {content}").into());
        }
        let said = content["stdout"].as_str().ok_or("no stdout")?.to_owned();
        Ok((content, said))
    }

    /// A call that fails, its error code and its reason.
    async fn fails(&self, input: Value) -> Outcome<(String, String)> {
        let content = self.call(input.clone()).await?;
        let kind = "text_editor_code_execution_tool_result_error";
        if content["return_code"] != 1 || content["type"] != kind || content["stdout"] != "" {
            return Err(format!("{input} did not fail: {content}").into());
        }
        let said = content["stderr"].as_str().unwrap_or_default();
        let reason = said.strip_prefix("text_editor: ").ok_or("no reason")?;
        assert_eq!(content["error_message"], reason);
        let code = content["error_code"].as_str().unwrap_or_default();
        Ok((code.to_owned(), reason.to_owned()))
    }

    async fn text(&self, path: &str) -> Outcome<String> {
        let shown = self.server.bash(&self.id, &format!("cat {path}")).await?;
        Ok(shown["stdout"].as_str().unwrap_or_default().to_owned())
    }

    async fn make(&self, path: &str, text: &str) -> Outcome {
        let input = json!({"command": "create", "path": path, "file_text": text});
        self.works(input).await.map(drop)
    }
}

#[tokio::test]
async fn create_makes_a_file_and_its_folders_once() -> Outcome {
    let editor = Editor::start().await?;
    let input = json!({"command": "create", "path": "a/b/n.md", "file_text": "# Hi\n"});
    let (content, said) = editor.works(input.clone()).await?;
    assert_eq!(said, "File created: a/b/n.md");
    assert_eq!(content["type"], "text_editor_code_execution_create_result");
    assert_eq!(content["is_file_update"], false);
    assert_eq!(editor.text("a/b/n.md").await?, "# Hi\n");
    let (code, reason) = editor.fails(input).await?;
    assert_eq!(code, "invalid_tool_input");
    assert!(reason.contains("already exists"), "{reason}");
    let folder = json!({"command": "create", "path": "a/b", "file_text": ""});
    assert!(editor.fails(folder).await?.1.contains("already exists"));
    let inside = json!({"command": "create", "path": "/workspace/x", "file_text": ""});
    assert_eq!(editor.works(inside).await?.1, "File created: /workspace/x");
    Ok(())
}

#[tokio::test]
async fn view_shows_a_file_or_its_lines() -> Outcome {
    let editor = Editor::start().await?;
    editor
        .make("f", "line1\nline2\nline3\nline4\nline5\n")
        .await?;
    let (content, said) = editor
        .works(json!({"command": "view", "path": "f"}))
        .await?;
    assert_eq!(said, "line1\nline2\nline3\nline4\nline5\n");
    assert_eq!(content["content"], said);
    assert_eq!(content["type"], "text_editor_code_execution_view_result");
    assert_eq!(content["file_type"], "text");
    let lines = |c: &Value| {
        (
            c["start_line"].clone(),
            c["num_lines"].clone(),
            c["total_lines"].clone(),
        )
    };
    assert_eq!(lines(&content), (json!(1), json!(5), json!(5)));
    let range = |range: Value| json!({"command": "view", "path": "f", "view_range": range});
    let (content, said) = editor.works(range(json!([2, 4]))).await?;
    assert_eq!(said, "line2\nline3\nline4");
    assert_eq!(lines(&content), (json!(2), json!(3), json!(5)));
    assert_eq!(editor.works(range(json!([4, -1]))).await?.1, "line4\nline5");
    assert_eq!(editor.works(range(json!([5, 99]))).await?.1, "line5");
    for odd in [json!([6, 7]), json!([0, 1]), json!([3, 2])] {
        let (code, reason) = editor.fails(range(odd)).await?;
        assert_eq!(code, "invalid_tool_input");
        assert!(reason.contains("out of range"), "{reason}");
    }
    let (code, reason) = editor
        .fails(json!({"command": "view", "path": "none"}))
        .await?;
    assert_eq!(code, "file_not_found");
    assert!(reason.contains("not found"), "{reason}");
    Ok(())
}

#[tokio::test]
async fn view_shows_two_levels_of_a_folder_sorted() -> Outcome {
    let editor = Editor::start().await?;
    let make = "mkdir -p z/y/x b; touch z/y/deep z/two b.txt b/in .hidden a";
    editor.server.bash(&editor.id, make).await?;
    let (content, said) = editor
        .works(json!({"command": "view", "path": "."}))
        .await?;
    assert_eq!(said, ".hidden\na\nb\nb/in\nb.txt\nz\nz/two\nz/y");
    assert_eq!(content["content"], said);
    assert_eq!(content["file_type"], "text");
    for path in ["z", "/workspace/z/", "./z"] {
        let (_, said) = editor
            .works(json!({"command": "view", "path": path}))
            .await?;
        assert_eq!(said, "two\ny\ny/deep\ny/x", "{path}");
    }
    assert_eq!(
        editor
            .works(json!({"command": "view", "path": "z/y/x"}))
            .await?
            .1,
        ""
    );
    Ok(())
}

#[tokio::test]
async fn view_carries_pictures_and_bytes_that_are_no_text() -> Outcome {
    let editor = Editor::start().await?;
    let make = "printf '\\x89PNG\\r\\n\\x1a\\nrest' > p.png; printf '%%PDF-1.7 x' > d.pdf; \
                printf 'a\\xffb\\n' > odd; truncate -s 200M sparse; mkfifo fifo; seq 1 400000 > long";
    editor.server.bash(&editor.id, make).await?;
    let view = |path: &str| json!({"command": "view", "path": path});
    let (content, said) = editor.works(view("p.png")).await?;
    assert_eq!(
        (&content["file_type"], said.as_str()),
        (&json!("image"), "[image/png, 12 bytes]")
    );
    assert_eq!(content["content"], "iVBORw0KGgpyZXN0");
    assert_eq!(editor.works(view("d.pdf")).await?.0["file_type"], "pdf");
    assert_eq!(editor.works(view("odd")).await?.1, "a\u{fffd}b\n");
    assert!(
        editor
            .fails(view("sparse"))
            .await?
            .1
            .contains("over 16777216 bytes")
    );
    assert!(
        editor
            .fails(view("fifo"))
            .await?
            .1
            .contains("not a regular file")
    );
    // Past the limit of output it is cut, and says so; a range shows the rest.
    let (_, said) = editor.works(view("long")).await?;
    assert!(
        said.ends_with(" bytes left out]") && said.len() < 1_048_700,
        "{}",
        said.len()
    );
    let last = json!({"command": "view", "path": "long", "view_range": [399_999, -1]});
    assert_eq!(editor.works(last).await?.1, "399999\n400000");
    Ok(())
}

#[tokio::test]
async fn str_replace_wants_one_place() -> Outcome {
    let editor = Editor::start().await?;
    editor
        .make("x.py", "def f():\n    return 1\n# end\n# end\n")
        .await?;
    let replace = |old: &str, new: &str| json!({"command": "str_replace", "path": "x.py", "old_str": old, "new_str": new});
    let (content, said) = editor.works(replace("return 1", "return 42")).await?;
    assert_eq!(said, "Edited x.py");
    assert_eq!(
        content["type"],
        "text_editor_code_execution_str_replace_result"
    );
    for key in ["old_start", "new_start"] {
        assert_eq!(content[key], 2, "{key}");
    }
    for key in ["old_lines", "new_lines"] {
        assert_eq!(content[key], 1, "{key}");
    }
    assert_eq!(content["lines"], json!(["-    return 1", "+    return 42"]));
    let (code, reason) = editor.fails(replace("# end", "")).await?;
    assert_eq!(code, "invalid_tool_input");
    assert!(
        reason.contains("must be unique") && reason.contains(" 2 times"),
        "{reason}"
    );
    let (code, reason) = editor.fails(replace("missing", "")).await?;
    assert_eq!(code, "invalid_tool_input");
    assert!(
        reason.contains("not found") && reason.contains("0 occurrences"),
        "{reason}"
    );
    let mut other = replace("a", "b");
    other["path"] = json!("none");
    let (code, reason) = editor.fails(other).await?;
    assert_eq!(code, "file_not_found");
    assert!(reason.contains("not found"), "{reason}");
    assert_eq!(
        editor.text("x.py").await?,
        "def f():\n    return 42\n# end\n# end\n"
    );
    // What changes nothing is no error.
    let (content, _) = editor.works(replace("42", "42")).await?;
    assert_eq!(content["lines"], json!([]));
    Ok(())
}

#[tokio::test]
async fn insert_goes_after_a_line() -> Outcome {
    let editor = Editor::start().await?;
    editor.make("x", "one\ntwo").await?;
    let insert = |line: i64, text: &str| json!({"command": "insert", "path": "x", "insert_line": line, "new_str": text});
    let (content, said) = editor.works(insert(1, "mid")).await?;
    assert_eq!(said, "Inserted into x");
    assert_eq!(
        content["type"],
        "text_editor_code_execution_str_replace_result"
    );
    assert_eq!(
        (&content["new_start"], &content["lines"]),
        (&json!(2), &json!(["+mid"]))
    );
    editor.works(insert(0, "top\n")).await?;
    editor.works(insert(4, "end")).await?;
    assert_eq!(editor.text("x").await?, "top\none\nmid\ntwo\nend\n");
    for line in [6, -1, i64::MIN] {
        let (code, reason) = editor.fails(insert(line, "x")).await?;
        assert_eq!(code, "invalid_tool_input");
        assert!(reason.contains("out of range"), "{reason}");
    }
    Ok(())
}

#[tokio::test]
async fn undo_takes_edits_back_again_and_again() -> Outcome {
    let editor = Editor::start().await?;
    editor.make("x", "a\n").await?;
    let undo = json!({"command": "undo_edit", "path": "x"});
    let nothing = |reason: String| assert!(reason.contains("no edits to undo"), "{reason}");
    nothing(editor.fails(undo.clone()).await?.1);
    for (old, new) in [("a", "b"), ("b", "c")] {
        let input = json!({"command": "str_replace", "path": "x", "old_str": old, "new_str": new});
        editor.works(input).await?;
    }
    editor
        .works(json!({"command": "insert", "path": "x", "insert_line": 0, "new_str": "t"}))
        .await?;
    for text in ["c\n", "b\n", "a\n"] {
        let (content, said) = editor.works(undo.clone()).await?;
        assert_eq!(said, "Reverted x");
        assert_eq!(
            content["type"],
            "text_editor_code_execution_str_replace_result"
        );
        assert_eq!(editor.text("x").await?, text);
    }
    let (code, reason) = editor.fails(undo).await?;
    assert_eq!(code, "invalid_tool_input");
    nothing(reason);
    // Another session's edits are its own.
    let other = editor.server.session().await?;
    let input = json!({"command": "undo_edit", "path": "x"});
    let content = editor
        .server
        .tool(&other, "text_editor_code_execution", &input)
        .await?;
    assert_eq!(content["return_code"], 1);
    Ok(())
}

#[tokio::test]
async fn paths_are_inside_the_workspace() -> Outcome {
    let editor = Editor::start().await?;
    editor
        .server
        .bash(&editor.id, "ln -s /etc out; ln -s /etc/passwd pw")
        .await?;
    for path in [
        "/etc/passwd",
        "../etc/passwd",
        "a/../../x",
        "out/passwd",
        "pw",
        "/",
        "..",
    ] {
        for more in [
            json!({"command": "view"}),
            json!({"command": "str_replace", "old_str": "root", "new_str": "x"}),
            json!({"command": "insert", "insert_line": 0, "new_str": "x"}),
        ] {
            let mut input = more;
            input["path"] = json!(path);
            let (code, reason) = editor.fails(input.clone()).await?;
            assert_eq!(code, "invalid_tool_input", "{input}");
            let folder = ["/", ".."].contains(&path) && input["command"] != "view";
            assert!(
                folder || reason.contains("escapes workspace"),
                "{input}: {reason}"
            );
        }
    }
    for path in ["/tmp/x", "../x", "a/../../x", "out/x"] {
        let input = json!({"command": "create", "path": path, "file_text": ""});
        assert!(
            editor.fails(input).await?.1.contains("escapes workspace"),
            "{path}"
        );
    }
    for path in ["a\0b".to_owned(), "x".repeat(300), "x/".repeat(3000)] {
        let input = json!({"command": "create", "path": path, "file_text": ""});
        assert_eq!(editor.fails(input).await?.0, "invalid_tool_input");
    }
    Ok(())
}

#[tokio::test]
async fn input_that_is_wrong_is_said_with_its_place() -> Outcome {
    let editor = Editor::start().await?;
    let route = format!("/sessions/{}/exec", editor.id);
    for (input, field, kind) in [
        (json!({"command": "view"}), "path", "missing"),
        (json!({"path": "a"}), "command", "missing"),
        (json!({"command": "remove", "path": "a"}), "command", "enum"),
        (json!({"command": "view", "path": 1}), "path", "string_type"),
        (
            json!({"command": "view", "path": "a", "view_range": "1-2"}),
            "view_range",
            "list_type",
        ),
        (
            json!({"command": "create", "path": "a"}),
            "file_text",
            "missing",
        ),
        (
            json!({"command": "create", "path": "a", "file_text": 1}),
            "file_text",
            "string_type",
        ),
        (
            json!({"command": "insert", "path": "a", "new_str": ""}),
            "insert_line",
            "missing",
        ),
    ] {
        let body = json!({"tool": "text_editor_code_execution", "input": input});
        let (status, said) = editor.server.post(&route, &body).await?;
        assert_eq!(status, 422, "{input}");
        let fault = &said["detail"][0];
        assert_eq!(fault["loc"], json!(["body", "input", field]), "{said}");
        assert_eq!(fault["type"], kind, "{said}");
    }
    Ok(())
}
