//! Every tool of every family: its exact answer for success, failure, a timeout and arguments that
//! are wrong. One file per family.

mod anthropic;
mod axio;
mod haiku;
mod hastekit;
mod late;
mod matrix;
mod ringfence;
mod shipit;

use ringfence_http_tests::{Outcome, Server};
use serde_json::{Value, json};

/// A server with one session, and the family that is tried on it.
struct Bench {
    server: Server,
    session: String,
    family: &'static str,
}

impl Bench {
    async fn new(family: &'static str) -> Outcome<Self> {
        let server = Server::start(&[])?;
        let session = server.session().await?;
        Ok(Self {
            server,
            session,
            family,
        })
    }

    async fn ask(&self, tool: &str, arguments: Value) -> Outcome<(u16, Value)> {
        let (session, family) = (&self.session, self.family);
        let path = format!("/sessions/{session}/tools/{tool}?family={family}");
        self.server.post(&path, &arguments).await
    }

    /// The answer of a call that has one.
    async fn call(&self, tool: &str, arguments: Value) -> Outcome<Value> {
        match self.ask(tool, arguments).await? {
            (200, answer) => Ok(answer),
            (status, said) => Err(format!("{tool}: {status} {said}").into()),
        }
    }

    /// The text of an answer that is no error.
    async fn text(&self, tool: &str, arguments: Value) -> Outcome<String> {
        let answer = self.call(tool, arguments).await?;
        assert_eq!(answer["is_error"], false, "{answer}");
        Ok(answer["text"].as_str().ok_or("no text")?.to_owned())
    }

    /// The text of an answer that is one.
    async fn error(&self, tool: &str, arguments: Value) -> Outcome<String> {
        let answer = self.call(tool, arguments).await?;
        assert_eq!(answer["is_error"], true, "{answer}");
        Ok(answer["text"].as_str().ok_or("no text")?.to_owned())
    }

    /// A call is refused, and says which argument is wrong and what it must be.
    async fn refused(&self, tool: &str, arguments: Value, name: &str, message: &str) -> Outcome {
        let (status, said) = self.ask(tool, arguments).await?;
        assert_eq!(status, 422, "{said}");
        let fault = &said["detail"][0];
        assert_eq!(fault["loc"], json!(["body", name]), "{said}");
        assert_eq!(fault["msg"], message, "{said}");
        Ok(())
    }
}

#[tokio::test]
async fn the_registry_is_told_in_three_formats() -> Outcome {
    let server = Server::start(&[])?;
    let all = [
        (
            "ringfence",
            "python bash read_output stop read_file write_file edit_file list_files search",
        ),
        (
            "axio",
            "shell write_file read_file list_files run_python patch_file",
        ),
        (
            "haiku",
            "ls read_file write_file edit_file glob grep execute",
        ),
        (
            "hastekit",
            "execute_bash_commands read_file write_file delete_file",
        ),
        (
            "anthropic",
            "code_execution bash_code_execution text_editor_code_execution",
        ),
        ("shipit", "run_code"),
    ];
    for (family, names) in all {
        for (format, name, schema) in [
            ("mcp", "/name", "/inputSchema"),
            ("openai", "/function/name", "/function/parameters"),
            ("anthropic", "/name", "/input_schema"),
        ] {
            let path = format!("/tools?family={family}&format={format}");
            let (status, list) = server.get(&path).await?;
            assert_eq!((status, &list["family"]), (200, &json!(family)));
            let tools = list["tools"].as_array().ok_or("no tools")?;
            let told: Vec<_> = tools
                .iter()
                .filter_map(|tool| tool.pointer(name)?.as_str())
                .collect();
            assert_eq!(told.join(" "), names);
            for tool in tools {
                assert_eq!(tool.pointer(schema).ok_or("no schema")?["type"], "object");
            }
        }
    }
    assert_eq!(server.get("/tools").await?.1["family"], "ringfence");
    let (status, said) = server.get("/tools?family=nope").await?;
    assert_eq!(status, 422);
    assert_eq!(said["detail"][0]["loc"], json!(["query", "family"]));
    let (status, said) = server.get("/tools?format=nope").await?;
    assert_eq!(status, 422);
    assert_eq!(
        said["detail"][0]["msg"],
        "must be one of mcp, openai, anthropic"
    );
    Ok(())
}

#[tokio::test]
async fn a_call_needs_a_tool_a_session_and_an_object() -> Outcome {
    let bench = Bench::new("axio").await?;
    let (status, said) = bench.ask("python", json!({})).await?;
    assert_eq!(status, 404);
    assert_eq!(said["detail"], "the family axio has no tool python");
    assert_eq!(
        said["hint"],
        "it has shell, write_file, read_file, list_files, run_python, patch_file"
    );
    let (status, _) = bench.ask("shell", json!([1])).await?;
    assert_eq!(status, 422);
    let path = "/sessions/sbx_00000000000000000000000000000000/tools/bash";
    let (status, _) = bench.server.post(path, &json!({"command": "true"})).await?;
    assert_eq!(status, 404);
    // A session of the caller's own name is made by its first call.
    let (status, answer) = bench
        .server
        .post(
            "/v1/sessions/key:mine/tools/bash",
            &json!({"command": "echo hi"}),
        )
        .await?;
    assert_eq!((status, &answer["text"]), (200, &json!("hi")));
    Ok(())
}
