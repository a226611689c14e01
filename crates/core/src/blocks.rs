//! Result blocks in the shape of the hosted code execution tool, which clients parse already.
//!
//! Beside the shape's own keys every `content` carries `stdout`, `stderr` and `return_code`, so
//! that a client that reads only those three works with every tool.

use ringfence_proto::{Cause, Certificate, Ended, ExecResult, Exit, JobEnd, Rich};
use serde_json::{Value, json};

/// The tools that answer in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    Code,
    Bash,
    TextEditor,
}

impl Tool {
    pub const ALL: [Self; 3] = [Self::Code, Self::Bash, Self::TextEditor];

    pub fn name(self) -> &'static str {
        match self {
            Self::Code => "code_execution",
            Self::Bash => "bash_code_execution",
            Self::TextEditor => "text_editor_code_execution",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// The block around a result or an error.
    pub fn block(self, tool_use_id: &str, content: Value) -> Value {
        json!({
            "type": format!("{}_tool_result", self.name()),
            "tool_use_id": tool_use_id,
            "content": content,
        })
    }

    /// What failed was not the code.
    pub fn error(self, code: &str, message: &str) -> Value {
        json!({
            "type": format!("{}_tool_result_error", self.name()),
            "error_code": code,
            "error_message": message,
            "stdout": "",
            "stderr": message,
            "return_code": -1,
        })
    }
}

/// What a command or a REPL call printed, as text, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    pub stdout: String,
    pub stderr: String,
    pub return_code: i32,
}

impl Text {
    pub fn of(tool: Tool, result: &ExecResult, news: Option<&Certificate>) -> Self {
        let mut stdout = shown(&result.stdout.data.0, result.stdout.total);
        let mut stderr = shown(&result.stderr.data.0, result.stderr.total);
        if tool == Tool::Code {
            // What `print` adds is not what was meant.
            for text in [&mut stdout, &mut stderr] {
                if text.ends_with('\n') {
                    text.pop();
                }
            }
        }
        for certificate in news.into_iter().chain(&result.end.certificate) {
            // The cut is told by its own line.
            if certificate.cause != Cause::Output {
                add_line(&mut stderr, &explain(certificate));
            }
        }
        if let Some(shell) = result.end.shell.as_deref().filter(|s| !s.ends_with("bash")) {
            add_line(
                &mut stderr,
                &format!("[there is no bash here: run by {shell}]"),
            );
        }
        Self {
            stdout,
            stderr,
            return_code: return_code(&result.end),
        }
    }
}

/// One number for how something ended: its own, minus a signal's, or -1.
pub fn return_code(end: &JobEnd) -> i32 {
    let timed_out = end
        .certificate
        .as_ref()
        .is_some_and(|c| c.cause == Cause::WallClock);
    match end.exit {
        _ if timed_out => -1,
        Exit::Code(code) => code,
        Exit::Signal(signal) => -signal,
        Exit::Lost => -1,
    }
}

/// The bytes as text; what was cut is counted in a last line.
fn shown(data: &[u8], total: u64) -> String {
    let mut text = String::from_utf8_lossy(data).into_owned();
    let left_out = total.saturating_sub(data.len() as u64);
    if left_out > 0 {
        add_line(&mut text, &format!("[{left_out} bytes left out]"));
    }
    text
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
}

fn explain(certificate: &Certificate) -> String {
    match (certificate.cause, &certificate.limit) {
        (Cause::WallClock, Some(limit)) => {
            // `2 s` in the certificate is `2s` where machines look for it.
            let limit = limit.replace(' ', "");
            let kept = match certificate.ended {
                Ended::Call => "the variables were kept",
                Ended::Kernel => "the variables are lost, files stay",
                _ => "all of its processes were ended, files stay",
            };
            format!("execution timed out after {limit}; {kept}")
        }
        _ => certificate.to_string(),
    }
}

/// The answer of `code_execution` and `bash_code_execution`.
pub fn result(tool: Tool, text: &Text, files: &[Value], results: &[Rich]) -> Value {
    let mut content = json!({
        "type": format!("{}_result", tool.name()),
        "stdout": text.stdout,
        "stderr": text.stderr,
        "return_code": text.return_code,
        "content": files,
    });
    if !results.is_empty() {
        content["results"] = json!(results);
    }
    content
}
