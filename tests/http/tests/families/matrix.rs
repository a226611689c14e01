//! Every tool of every family, with its exact answer: for success, for failure, for arguments that
//! are wrong and for a timeout; over HTTP and over MCP. What else a tool does is tried with its
//! family.

use super::Bench;
use super::late::RUN;
use ringfence_http_tests::mcp::rpc;
use ringfence_http_tests::{Outcome, until};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A tool, its arguments, and the text of the answer. What is JSON is compared as such; `JOB` is the id of a job that has printed `hi` and runs.
type Row = (&'static str, Value, &'static str);

/// Calls of a family that succeed, that fail, and that are refused, in this order.
struct Rows {
    family: &'static str,
    succeed: Vec<Row>,
    /// The code did, or what was asked for is not there.
    fail: Vec<Row>,
    /// The text is that of MCP; over HTTP its parts are apart.
    refused: Vec<Row>,
}

fn rows() -> [Rows; 6] {
    [
        Rows {
            family: "ringfence",
            succeed: vec![
                (
                    "python",
                    json!({"code": "print('hi')\n6 * 7"}),
                    "hi\n[value] 42",
                ),
                ("bash", json!({"command": "echo hi"}), "hi"),
                (
                    "read_output",
                    json!({"job": "JOB"}),
                    "hi\n[JOB: it runs; this is the end of stdout at offset 3]",
                ),
                ("stop", json!({"job": "JOB"}), "[JOB was stopped]"),
                (
                    "write_file",
                    json!({"path": "a/b.txt", "content": "one\ntwo\n"}),
                    "a/b.txt created: 2 lines, 8 bytes",
                ),
                (
                    "read_file",
                    json!({"path": "a/b.txt"}),
                    "     1\tone\n     2\ttwo",
                ),
                (
                    "edit_file",
                    json!({"path": "a/b.txt", "old": "two", "new": "2"}),
                    "a/b.txt edited:\n@@ -2,1 +2,1 @@\n-two\n+2",
                ),
                ("list_files", json!({}), "a/\na/b.txt (6 bytes)"),
                ("search", json!({"pattern": "^o"}), "a/b.txt:1: one"),
            ],
            fail: vec![
                (
                    "python",
                    json!({"code": "raise SystemExit('no')"}),
                    "[stderr]\nno\n[exit status 1]",
                ),
                (
                    "bash",
                    json!({"command": "echo no >&2; exit 3"}),
                    "[stderr]\nno\n[exit status 3]",
                ),
                (
                    "read_output",
                    json!({"job": "job_none"}),
                    "Error: no such job: job_none",
                ),
                (
                    "stop",
                    json!({"job": "job_none"}),
                    "Error: no such job: job_none",
                ),
                (
                    "write_file",
                    json!({"path": "a", "content": ""}),
                    "Error: cannot write a: it is a folder",
                ),
                (
                    "read_file",
                    json!({"path": "none"}),
                    "Error: cannot read /workspace/none: not found",
                ),
                (
                    "edit_file",
                    json!({"path": "none", "old": "a", "new": "b"}),
                    "Error: cannot edit none: not found",
                ),
                (
                    "list_files",
                    json!({"path": "none"}),
                    "Error: cannot list none: not found",
                ),
                (
                    "search",
                    json!({"pattern": "x", "path": "none"}),
                    "Error: cannot stat none: not found",
                ),
            ],
            refused: vec![
                (
                    "python",
                    json!({}),
                    "the argument code is missing: it must be a string",
                ),
                (
                    "bash",
                    json!({}),
                    "the argument command is missing: it must be a string",
                ),
                (
                    "read_output",
                    json!({}),
                    "the argument job is missing: it must be a string",
                ),
                (
                    "stop",
                    json!({"job": 1}),
                    "the argument job must be a string, not 1",
                ),
                (
                    "write_file",
                    json!({"path": "x"}),
                    "the argument content is missing: it must be a string",
                ),
                (
                    "read_file",
                    json!({"path": "a/b.txt", "lines": [9, 9]}),
                    "the argument lines must be a range within the 2 lines of a/b.txt",
                ),
                (
                    "edit_file",
                    json!({"path": "x", "old": "a"}),
                    "the argument new is missing: it must be a string",
                ),
                (
                    "list_files",
                    json!({"depth": 0}),
                    "the argument depth must be a whole number from 1 to 64, not 0",
                ),
                (
                    "search",
                    json!({}),
                    "the argument pattern is missing: it must be a string",
                ),
            ],
        },
        Rows {
            family: "axio",
            succeed: vec![
                ("shell", json!({"command": "mkdir e; echo hi"}), "hi"),
                ("run_python", json!({"code": "print(6 * 7)"}), "42"),
                (
                    "write_file",
                    json!({"file_path": "a/b.txt", "content": "one\ntwo\n"}),
                    "Wrote 8 bytes to /workspace/a/b.txt",
                ),
                ("read_file", json!({"filename": "a/b.txt"}), "one\ntwo\n"),
                (
                    "patch_file",
                    json!({"file_path": "a/b.txt", "from_line": 2, "to_line": 2, "content": "2"}),
                    "2 lines written to /workspace/a/b.txt",
                ),
                ("list_files", json!({"directory": "e"}), "(empty directory)"),
            ],
            fail: vec![
                (
                    "shell",
                    json!({"command": "echo no >&2; exit 3"}),
                    "[stderr]\nno\n\n[exit code: 3]",
                ),
                (
                    "run_python",
                    json!({"code": "raise SystemExit('no')"}),
                    "[stderr]\nno\n\n[exit code: 1]",
                ),
                (
                    "write_file",
                    json!({"file_path": "a", "content": ""}),
                    "Error: cannot write /workspace/a: it is a folder",
                ),
                (
                    "read_file",
                    json!({"filename": "none"}),
                    "Error: cannot read /workspace/none: not found",
                ),
                (
                    "patch_file",
                    json!({"file_path": "none", "from_line": 1, "to_line": 1, "content": ""}),
                    "Error: cannot edit /workspace/none: not found",
                ),
                (
                    "list_files",
                    json!({"directory": "none"}),
                    "Error: cannot list /workspace/none: not found",
                ),
            ],
            refused: vec![
                (
                    "shell",
                    json!({}),
                    "the argument command is missing: it must be a string",
                ),
                (
                    "run_python",
                    json!({}),
                    "the argument code is missing: it must be a string",
                ),
                (
                    "write_file",
                    json!({"file_path": "x", "content": "", "mode": -1}),
                    "the argument mode must be a whole number from 0 to 4095, not -1",
                ),
                (
                    "read_file",
                    json!({}),
                    "the argument filename is missing: it must be a string",
                ),
                (
                    "patch_file",
                    json!({"file_path": "x", "from_line": 3, "to_line": 1, "content": ""}),
                    "the argument to_line must be at least from_line - 1, which is 2",
                ),
                (
                    "list_files",
                    json!({"directory": 1}),
                    "the argument directory must be a string, not 1",
                ),
            ],
        },
        Rows {
            family: "haiku",
            succeed: vec![
                ("execute", json!({"command": "echo hi"}), "hi\n"),
                (
                    "write_file",
                    json!({"path": "a/b.txt", "content": "one\ntwo\n"}),
                    "Wrote 2 lines to a/b.txt",
                ),
                (
                    "read_file",
                    json!({"path": "a/b.txt"}),
                    "     1\tone\n     2\ttwo",
                ),
                (
                    "edit_file",
                    json!({"path": "a/b.txt", "old_string": "two", "new_string": "2"}),
                    "Edited a/b.txt: replaced 1 occurrence(s)",
                ),
                (
                    "ls",
                    json!({"path": "a"}),
                    "Contents of a:\n  b.txt (6 bytes)",
                ),
                (
                    "glob",
                    json!({"pattern": "*.txt"}),
                    "Found 1 file(s) matching '*.txt':\n  a/b.txt",
                ),
                (
                    "grep",
                    json!({"pattern": "o", "path": "a", "output_mode": "content"}),
                    "Matches for 'o':\n  a/b.txt:1: one",
                ),
            ],
            fail: vec![
                (
                    "execute",
                    json!({"command": "echo no >&2; exit 3"}),
                    "Command failed (exit code 3):\nno\n",
                ),
                (
                    "write_file",
                    json!({"path": "a", "content": ""}),
                    "Error: Failed to write 'a': cannot write /workspace/a: it is a folder",
                ),
                (
                    "read_file",
                    json!({"path": "none"}),
                    "Error: File 'none' not found",
                ),
                (
                    "edit_file",
                    json!({"path": "a/b.txt", "old_string": "none", "new_string": ""}),
                    "Error: String 'none' not found in file",
                ),
                (
                    "ls",
                    json!({"path": "none"}),
                    "Directory 'none' is empty or does not exist",
                ),
                (
                    "glob",
                    json!({"pattern": "*", "path": "none"}),
                    "No files matching '*' in none",
                ),
                (
                    "grep",
                    json!({"pattern": "x", "path": "none"}),
                    "Error: grep: none: No such file or directory\n",
                ),
            ],
            refused: vec![
                (
                    "execute",
                    json!({}),
                    "the argument command is missing: it must be a string",
                ),
                (
                    "write_file",
                    json!({"path": "x"}),
                    "the argument content is missing: it must be a string",
                ),
                (
                    "read_file",
                    json!({"path": "x", "offset": -1}),
                    "the argument offset must be a whole number of at least 0, not -1",
                ),
                (
                    "edit_file",
                    json!({"path": "x", "old_string": "a"}),
                    "the argument new_string is missing: it must be a string",
                ),
                (
                    "ls",
                    json!({"path": 1}),
                    "the argument path must be a string, not 1",
                ),
                (
                    "glob",
                    json!({}),
                    "the argument pattern is missing: it must be a string",
                ),
                (
                    "grep",
                    json!({"pattern": "x", "output_mode": "all"}),
                    "the argument output_mode must be one of content, files_with_matches, count, \
                     not \"all\"",
                ),
            ],
        },
        Rows {
            family: "hastekit",
            succeed: vec![
                (
                    "execute_bash_commands",
                    json!({"code": "echo hi"}),
                    r#"{"stdout": "hi\n", "stderr": "", "exit_code": 0, "cwd": "/workspace"}"#,
                ),
                (
                    "write_file",
                    json!({"file_path": "a/b.txt", "content": "one\n"}),
                    "Written successfully to a/b.txt",
                ),
                (
                    "read_file",
                    json!({"file_path": "a/b.txt"}),
                    r#"{"path": "a/b.txt", "content": "one\n"}"#,
                ),
                (
                    "delete_file",
                    json!({"file_path": "a/b.txt"}),
                    "Deleted successfully",
                ),
            ],
            fail: vec![
                (
                    "execute_bash_commands",
                    json!({"code": "echo no >&2; exit 3"}),
                    r#"{"stdout": "", "stderr": "no\n", "exit_code": 3, "cwd": "/workspace"}"#,
                ),
                (
                    "write_file",
                    json!({"file_path": "a", "content": ""}),
                    "Error: cannot write a: it is a folder",
                ),
                (
                    "read_file",
                    json!({"file_path": "none"}),
                    "Error: cannot read none: not found",
                ),
                (
                    "delete_file",
                    json!({"file_path": "none"}),
                    "Error: cannot delete none: not found",
                ),
            ],
            refused: vec![
                (
                    "execute_bash_commands",
                    json!({}),
                    "the argument code is missing: it must be a string",
                ),
                (
                    "write_file",
                    json!({"file_path": "x"}),
                    "the argument content is missing: it must be a string",
                ),
                (
                    "read_file",
                    json!({"file_path": 1}),
                    "the argument file_path must be a string, not 1",
                ),
                (
                    "delete_file",
                    json!({}),
                    "the argument file_path is missing: it must be a string",
                ),
            ],
        },
        Rows {
            family: "anthropic",
            succeed: vec![
                (
                    "code_execution",
                    json!({"code": "print(6 * 7)"}),
                    r#"{"type": "code_execution_result", "stdout": "42", "stderr": "",
                        "return_code": 0, "content": []}"#,
                ),
                (
                    "bash_code_execution",
                    json!({"command": "echo hi"}),
                    r#"{"type": "bash_code_execution_result", "stdout": "hi\n", "stderr": "",
                        "return_code": 0, "content": []}"#,
                ),
                (
                    "text_editor_code_execution",
                    json!({"command": "create", "path": "a.txt", "file_text": "one\n"}),
                    r#"{"type": "text_editor_code_execution_create_result",
                        "is_file_update": false, "stdout": "File created: a.txt", "stderr": "",
                        "return_code": 0}"#,
                ),
            ],
            fail: vec![
                (
                    "code_execution",
                    json!({"code": "raise SystemExit('no')"}),
                    r#"{"type": "code_execution_result", "stdout": "", "stderr": "no",
                        "return_code": 1, "content": []}"#,
                ),
                (
                    "bash_code_execution",
                    json!({"command": "echo no >&2; exit 3"}),
                    r#"{"type": "bash_code_execution_result", "stdout": "", "stderr": "no\n",
                        "return_code": 3, "content": []}"#,
                ),
                (
                    "text_editor_code_execution",
                    json!({"command": "view", "path": "none"}),
                    r#"{"type": "text_editor_code_execution_tool_result_error",
                        "error_code": "file_not_found", "error_message": "cannot read none: not found",
                        "stdout": "", "stderr": "text_editor: cannot read none: not found",
                        "return_code": 1}"#,
                ),
            ],
            refused: vec![
                (
                    "code_execution",
                    json!({}),
                    "the argument code is missing: it must be a string",
                ),
                (
                    "bash_code_execution",
                    json!({"command": 1}),
                    "the argument command must be a string, not 1",
                ),
                (
                    "text_editor_code_execution",
                    json!({"command": "create", "path": "x"}),
                    "the argument file_text field required",
                ),
            ],
        },
        Rows {
            family: "shipit",
            succeed: vec![(
                "run_code",
                json!({"language": "py", "code": "print(6 * 7)"}),
                "exit_code: 0\nstdout:\n42\nstderr:",
            )],
            fail: vec![(
                "run_code",
                json!({"language": "sh", "code": "echo no >&2; exit 3"}),
                "exit_code: 3\nstdout:\n\nstderr:\nno",
            )],
            refused: vec![(
                "run_code",
                json!({"language": "py"}),
                "the argument code is missing: it must be a string",
            )],
        },
    ]
}

/// Where a call is made from.
#[derive(Debug, Clone, Copy)]
enum Face {
    Http,
    Mcp,
}

/// The text of an answer, and whether it is an error.
async fn told(face: Face, bench: &Bench, tool: &str, arguments: &Value) -> Outcome<(String, bool)> {
    let answer = match face {
        Face::Http => match bench.ask(tool, arguments.clone()).await? {
            (200, answer) => {
                let text = answer["text"].as_str().ok_or("no text")?.to_owned();
                return Ok((text, answer["is_error"] == true));
            }
            (422, said) => {
                let fault = &said["detail"][0];
                let words = ["/loc/1", "/msg"].map(|part| fault.pointer(part)?.as_str());
                let [Some(name), Some(message)] = words else {
                    return Err(format!("{said}").into());
                };
                return Ok((format!("Error: the argument {name} {message}"), true));
            }
            (status, said) => return Err(format!("{tool}: {status} {said}").into()),
        },
        Face::Mcp => {
            let path = format!("/mcp?family={}&session={}", bench.family, bench.session);
            let params = json!({"name": tool, "arguments": arguments});
            rpc(&bench.server, None, &path, "tools/call", params).await?
        }
    };
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str();
    let text = text.ok_or_else(|| format!("{tool}: {answer}"))?;
    Ok((text.to_owned(), result["isError"] == true))
}

/// As it is compared: how long something took is not the same twice, in certificates neither.
fn plain(text: &str) -> Value {
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(mut object)) => {
            object.remove("duration_ms");
            object.remove("certificate");
            Value::Object(object)
        }
        _ => json!(text),
    }
}

/// A job of the session that has printed `hi` and runs.
async fn job(bench: &Bench) -> Outcome<String> {
    let path = format!("/sessions/{}/jobs", bench.session);
    let body = json!({"command": "echo hi; sleep 600", "detach": true});
    let (status, job) = bench.server.post(&path, &body).await?;
    let id = job["job_id"]
        .as_str()
        .ok_or_else(|| format!("{status} {job}"))?;
    until(async || {
        let (_, job) = bench.server.get(&format!("{path}/{id}")).await?;
        Ok((job["stdout_bytes"] == 3).then_some(()))
    })
    .await?;
    Ok(id.to_owned())
}

/// The tools that these rows are about.
fn names(rows: &[Row]) -> BTreeSet<&'static str> {
    rows.iter().map(|(tool, ..)| *tool).collect()
}

async fn every_answer(face: Face) -> Outcome {
    for rows in rows() {
        let bench = Bench::new(rows.family).await?;
        // Nothing is left out.
        let (_, list) = bench
            .server
            .get(&format!("/tools?family={}", rows.family))
            .await?;
        let list = list["tools"].as_array().ok_or("no tools")?;
        let known: BTreeSet<&str> = list
            .iter()
            .filter_map(|tool| tool["name"].as_str())
            .collect();
        for some in [&rows.succeed, &rows.fail, &rows.refused] {
            assert_eq!(names(some), known, "{}", rows.family);
        }
        let job = match rows.family {
            "ringfence" => job(&bench).await?,
            _ => String::new(),
        };
        let named = |text: &str| text.replace("JOB", &job);
        for (tool, arguments, expected) in rows.succeed.iter().chain(&rows.fail) {
            let arguments = serde_json::from_str(&named(&arguments.to_string()))?;
            let (text, is_error) = told(face, &bench, tool, &arguments).await?;
            let expected = named(expected);
            assert_eq!(
                plain(&text),
                plain(&expected),
                "{face:?} {tool} {arguments}"
            );
            let marked = expected.starts_with("Error: ") || expected.contains("result_error");
            assert_eq!(is_error, marked, "{face:?} {tool}: {text}");
        }
        for (tool, arguments, expected) in &rows.refused {
            let said = told(face, &bench, tool, arguments).await?;
            let expected = (format!("Error: {expected}"), true);
            assert_eq!(said, expected, "{face:?} {tool} {arguments}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_answer_over_http() -> Outcome {
    every_answer(Face::Http).await
}

#[tokio::test]
async fn every_answer_over_mcp() -> Outcome {
    every_answer(Face::Mcp).await
}

/// Of those that run code; the others wait for the sandbox alone, see `late.rs`.
#[tokio::test]
async fn every_timeout() -> Outcome {
    let forever = "print('x', flush=True)\nwhile True: pass";
    let sleep = "echo x; sleep 600";
    let all: Vec<(&str, Row)> = vec![
        (
            "ringfence",
            (
                "python",
                json!({"code": "while True: pass", "timeout": 1}),
                "[stderr]\nTraceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\n    \
                 while True: pass\nKeyboardInterrupt\n[execution timed out after 1s; it was interrupted, the variables are kept]",
            ),
        ),
        (
            "ringfence",
            (
                "bash",
                json!({"command": sleep, "timeout": 1}),
                "x\n[execution timed out after 1s; all of its processes were ended, files stay]",
            ),
        ),
        (
            "axio",
            (
                "shell",
                json!({"command": sleep, "timeout": 1}),
                "[timeout after 1s]",
            ),
        ),
        (
            "axio",
            (
                "run_python",
                json!({"code": forever, "timeout": 1}),
                "[timeout after 1s]",
            ),
        ),
        (
            "haiku",
            (
                "execute",
                json!({"command": sleep, "timeout": 1}),
                "Command failed (exit code 124):\nError: Command timed out\nx",
            ),
        ),
        (
            "hastekit",
            (
                "execute_bash_commands",
                json!({"code": sleep}),
                r#"{"stdout": "x\n", "stderr": "timed out after 60 seconds\n", "exit_code": 124,
                    "cwd": "/workspace"}"#,
            ),
        ),
        (
            "anthropic",
            (
                "code_execution",
                json!({"code": "while True: pass"}),
                r#"{"type": "code_execution_result", "stdout": "",
                    "stderr": "Traceback (most recent call last):\n  File \"<cell 1>\", line 1, in <module>\n    while True: pass\nKeyboardInterrupt\nexecution timed out after 30s; it was interrupted, the variables are kept",
                    "return_code": -1, "content": []}"#,
            ),
        ),
        (
            "anthropic",
            (
                "bash_code_execution",
                json!({"command": sleep}),
                r#"{"type": "bash_code_execution_result", "stdout": "x\n",
                    "stderr": "execution timed out after 30s; all of its processes were ended, files stay",
                    "return_code": -1, "content": []}"#,
            ),
        ),
        (
            "shipit",
            (
                "run_code",
                json!({"language": "sh", "code": sleep, "timeout_seconds": 1}),
                "exit_code: 124\nstdout:\nx\nstderr:",
            ),
        ),
    ];
    let tried: Vec<(&str, &str)> = all.iter().map(|(family, row)| (*family, row.0)).collect();
    assert_eq!(tried, RUN, "nothing is left out");
    // Some have no timeout but their own, so all of them wait together.
    let all = all
        .iter()
        .map(async |(family, (tool, arguments, expected))| {
            let bench = Bench::new(family).await?;
            let (text, is_error) = told(Face::Http, &bench, tool, arguments).await?;
            assert_eq!(plain(&text), plain(expected), "{family} {tool}");
            assert!(!is_error, "{family} {tool}");
            Outcome::Ok(())
        });
    futures_util::future::try_join_all(all).await?;
    Ok(())
}
