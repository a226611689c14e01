//! What becomes of a call when the sandbox does not answer: every tool of every family that runs
//! nothing, and so has no timeout of its own.

use super::Bench;
use ringfence_http_tests::Outcome;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Those that run code; their timeouts are tried with the rest of their family.
pub(super) const RUN: [(&str, &str); 9] = [
    ("ringfence", "python"),
    ("ringfence", "bash"),
    ("axio", "shell"),
    ("axio", "run_python"),
    ("haiku", "execute"),
    ("hastekit", "execute_bash_commands"),
    ("anthropic", "code_execution"),
    ("anthropic", "bash_code_execution"),
    ("shipit", "run_code"),
];

fn calls() -> Vec<(&'static str, &'static str, Value)> {
    let edit = json!({"path": "a", "old": "a", "new": "b"});
    let patch = json!({"file_path": "a", "from_line": 1, "to_line": 1, "content": ""});
    let replace = json!({"path": "a", "old_string": "a", "new_string": "b"});
    vec![
        ("ringfence", "read_output", json!({"job": "job_1"})),
        ("ringfence", "stop", json!({"job": "job_1"})),
        ("ringfence", "read_file", json!({"path": "a"})),
        (
            "ringfence",
            "write_file",
            json!({"path": "a", "content": ""}),
        ),
        ("ringfence", "edit_file", edit),
        ("ringfence", "list_files", json!({})),
        ("ringfence", "search", json!({"pattern": "a"})),
        (
            "axio",
            "write_file",
            json!({"file_path": "a", "content": ""}),
        ),
        ("axio", "read_file", json!({"filename": "a"})),
        ("axio", "list_files", json!({})),
        ("axio", "patch_file", patch),
        ("haiku", "ls", json!({})),
        ("haiku", "read_file", json!({"path": "a"})),
        ("haiku", "write_file", json!({"path": "a", "content": ""})),
        ("haiku", "edit_file", replace),
        ("haiku", "glob", json!({"pattern": "*"})),
        ("haiku", "grep", json!({"pattern": "a"})),
        ("hastekit", "read_file", json!({"file_path": "a"})),
        (
            "hastekit",
            "write_file",
            json!({"file_path": "a", "content": ""}),
        ),
        ("hastekit", "delete_file", json!({"file_path": "a"})),
        (
            "anthropic",
            "text_editor_code_execution",
            json!({"command": "view", "path": "a"}),
        ),
    ]
}

/// A guest that is stopped, until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn stop(bench: &Bench) -> Outcome<Self> {
        let folder = bench.server.state.join(bench.session.replace('_', "-"));
        let text = std::fs::read_to_string(folder.join("process.json"))?;
        let process: Value = serde_json::from_str(&text)?;
        let pid = process["pid"]
            .as_i64()
            .and_then(|pid| Pid::from_raw(pid as i32));
        let pid = pid.ok_or("no process")?;
        kill_process(pid, Signal::STOP)?;
        Ok(Self(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[tokio::test]
async fn who_waits_for_a_sandbox_that_stands_still_is_told() -> Outcome {
    let bench = Bench::new("ringfence").await?;
    let calls = calls();
    let mut known: Vec<(String, String)> = Vec::new();
    for family in [
        "ringfence",
        "axio",
        "haiku",
        "hastekit",
        "anthropic",
        "shipit",
    ] {
        let (_, list) = bench.server.get(&format!("/tools?family={family}")).await?;
        for tool in list["tools"].as_array().ok_or("no tools")? {
            let name = tool["name"].as_str().ok_or("no name")?;
            known.push((family.to_owned(), name.to_owned()));
        }
    }
    // Nothing is left out.
    let tried = calls.iter().map(|(family, tool, _)| (*family, *tool));
    let mut tried: Vec<(String, String)> = tried
        .chain(RUN)
        .map(|(family, tool)| (family.to_owned(), tool.to_owned()))
        .collect();
    tried.sort();
    known.sort();
    assert_eq!(tried, known);
    let stopped = Stopped::stop(&bench)?;
    let all = calls.iter().map(async |(family, tool, arguments)| {
        let path = format!("/sessions/{}/tools/{tool}?family={family}", bench.session);
        let (status, answer) = bench.server.post(&path, arguments).await?;
        Outcome::Ok((family, tool, status, answer))
    });
    let all = futures_util::future::try_join_all(all).await?;
    for (family, tool, status, answer) in all {
        assert_eq!(
            (status, &answer["is_error"]),
            (200, &json!(true)),
            "{answer}"
        );
        let message = format!(
            "{tool} was given up: the sandbox did not answer in time; ask for less at once, or try \
             again"
        );
        if *family == "anthropic" {
            let error = json!({"type": "text_editor_code_execution_tool_result_error",
                "error_code": "execution_time_exceeded", "error_message": message,
                "stdout": "", "stderr": message, "return_code": -1});
            assert_eq!(answer["structured"], error, "{answer}");
        } else {
            assert_eq!(answer["text"], format!("Error: {message}"), "{family}");
        }
    }
    drop(stopped);
    // Nothing was lost by it.
    let again = bench.text("bash", json!({"command": "echo hi"})).await?;
    // What was given up may be done all the same, and then the answer tells of the file.
    assert!(again.starts_with("hi"), "{again}");
    Ok(())
}
