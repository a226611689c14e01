//! The answers are compared with those of the real `ConsoleToolset`, which works on a folder of
//! the host with the same files.

use super::Bench;
use ringfence_http_tests::{Outcome, python};
use serde_json::{Value, json};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Lets an agent make these calls and prints what it was told. There are no retries, so that what
/// is asked of a model again is an answer.
const CONSOLE: &str = r#"
import json, sys
from pydantic_ai import Agent
from pydantic_ai.capabilities import LocalWorkspace
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits
from pydantic_ai_backends import ConsoleToolset

calls = json.load(sys.stdin)
def model(messages, info):
    told = [p.content for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
    if len(told) == len(calls):
        print(json.dumps(told))
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart(*calls[len(told)])])
tools = ConsoleToolset(require_execute_approval=False, max_retries=0)
agent = Agent(FunctionModel(model), capabilities=[LocalWorkspace(sys.argv[1])], toolsets=[tools])
agent.run_sync("go", usage_limits=UsageLimits(request_limit=None))
"#;

fn console(calls: &Value) -> Outcome<Vec<String>> {
    let folder = tempfile::tempdir()?;
    let mut child = Command::new(python()?)
        .args(["-c", CONSOLE])
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().ok_or("no stdin")?;
    stdin.write_all(&serde_json::to_vec(calls)?)?;
    drop(stdin);
    let output = child.wait_with_output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[tokio::test]
async fn the_answers_are_those_of_the_real_toolset() -> Outcome {
    let many: String = (0..120)
        .map(|n| format!("echo x{n} > m/{n}.log; "))
        .collect();
    let calls = json!([
        ["ls", {}],
        ["ls", {"path": "nope"}],
        ["write_file", {"path": "a/b.txt", "content": "one\ntwo\nthree\n"}],
        ["write_file", {"path": "a/c.md", "content": "no end"}],
        ["write_file", {"path": "empty", "content": ""}],
        ["write_file", {"path": ".hidden/x.txt", "content": "one\n"}],
        ["ls", {"path": "."}],
        ["ls", {"path": "a"}],
        ["ls", {"path": "a/b.txt"}],
        ["read_file", {"path": "a/b.txt"}],
        ["read_file", {"path": "a/b.txt", "offset": 1, "limit": 1}],
        ["read_file", {"path": "a/b.txt", "offset": 7}],
        ["read_file", {"path": "empty"}],
        ["read_file", {"path": "nope"}],
        ["edit_file", {"path": "a/b.txt", "old_string": "two", "new_string": "2\n2"}],
        ["edit_file", {"path": "a/b.txt", "old_string": "e", "new_string": "E"}],
        ["edit_file", {"path": "a/b.txt", "old_string": "e", "new_string": "E", "replace_all": true}],
        ["edit_file", {"path": "a/b.txt", "old_string": "nope", "new_string": ""}],
        ["edit_file", {"path": "nope", "old_string": "a", "new_string": "b"}],
        ["read_file", {"path": "a/b.txt"}],
        // What changed behind the model's back has to be read again; what it never saw has not.
        ["execute", {"command": "echo more >> a/b.txt; echo new > a/n.txt"}],
        ["edit_file", {"path": "a/b.txt", "old_string": "more", "new_string": "less"}],
        ["read_file", {"path": "a/b.txt", "limit": 1}],
        ["edit_file", {"path": "a/b.txt", "old_string": "more", "new_string": "less"}],
        ["edit_file", {"path": "a/b.txt", "old_string": "less", "new_string": "least"}],
        ["edit_file", {"path": "a/n.txt", "old_string": "new", "new_string": "old"}],
        ["write_file", {"path": "a/n.txt", "content": "whole\n"}],
        ["edit_file", {"path": "a/n.txt", "old_string": "whole", "new_string": "part"}],
        ["execute", {"command": "rm a/n.txt"}],
        ["edit_file", {"path": "a/n.txt", "old_string": "part", "new_string": "x"}],
        ["glob", {"pattern": "*.txt"}],
        ["glob", {"pattern": "**/*.md"}],
        ["glob", {"pattern": "*.md", "path": "a"}],
        ["glob", {"pattern": "*.nope"}],
        ["grep", {"pattern": "on[eE]"}],
        ["grep", {"pattern": "on[eE]", "ignore_hidden": false}],
        ["grep", {"pattern": "on[eE]", "output_mode": "content"}],
        ["grep", {"pattern": "on[eE]", "output_mode": "count", "path": "a/b.txt"}],
        ["grep", {"pattern": "e", "glob_pattern": "*.md", "output_mode": "content"}],
        ["grep", {"pattern": "don't", "path": "a"}],
        ["grep", {"pattern": "[", "path": "a"}],
        ["execute", {"command": "echo out; echo err >&2"}],
        ["execute", {"command": "true"}],
        ["execute", {"command": "echo out; echo err >&2; exit 3"}],
        ["execute", {"command": "echo before; sleep 60", "timeout": 1}],
        ["execute", {"command": "yes | head -c 150000"}],
        ["execute", {"command": format!("mkdir m; {many}")}],
        ["glob", {"pattern": "*.log"}],
        ["grep", {"pattern": "x", "glob_pattern": "*.log"}],
        ["execute", {"command": "head -c 3000 /bin/sh > bin"}],
        ["read_file", {"path": "bin"}],
    ]);
    let expected = console(&calls)?;
    let ours = Bench::new("haiku").await?;
    let calls = calls.as_array().ok_or("no calls")?;
    assert_eq!(expected.len(), calls.len());
    for (call, expected) in calls.iter().zip(&expected) {
        let tool = call[0].as_str().ok_or("no tool")?;
        let answer = ours.call(tool, call[1].clone()).await?;
        assert_eq!(answer["text"], json!(expected), "{call}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_refused() -> Outcome {
    let haiku = Bench::new("haiku").await?;
    for (tool, argument) in [
        ("ls", "path"),
        ("read_file", "path"),
        ("write_file", "path"),
        ("edit_file", "path"),
        ("glob", "pattern"),
        ("grep", "pattern"),
        ("execute", "command"),
    ] {
        let message = "must be a string, not 1";
        haiku
            .refused(tool, json!({argument: 1}), argument, message)
            .await?;
    }
    haiku
        .refused(
            "grep",
            json!({"pattern": "x", "output_mode": "all"}),
            "output_mode",
            "must be one of content, files_with_matches, count, not \"all\"",
        )
        .await?;
    haiku
        .refused(
            "execute",
            json!({"command": "x", "timeout": 0}),
            "timeout",
            "must be a whole number from 1 to 86400, not 0",
        )
        .await?;
    assert_eq!(
        haiku
            .error("read_file", json!({"path": "/workspace"}))
            .await?,
        "Error: cannot read /workspace: it is a folder"
    );
    Ok(())
}
