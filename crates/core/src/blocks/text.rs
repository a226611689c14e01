//! Output as text: newlines, cuts, and how a call ended, in words.

use super::Tool;
use ringfence_proto::{Cause, Certificate, Ended, ExecResult, Exit, JobEnd};
use std::time::Duration;

/// What a command or a REPL call printed, as text, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    pub stdout: String,
    pub stderr: String,
    pub return_code: i32,
}

/// What the caller asked for, which no guest is believed about.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub timeout: Duration,
    /// Bytes of each stream.
    pub output: u64,
}

impl Text {
    /// `news` is what happened to the session since the last call.
    pub fn of(tool: Tool, asked: Asked, done: &ExecResult, news: Option<&Certificate>) -> Self {
        let mut stdout = shown(&done.stdout.data.0, done.stdout.total, asked.output);
        let mut stderr = shown(&done.stderr.data.0, done.stderr.total, asked.output);
        if tool == Tool::Code {
            // What `print` adds is not what was meant.
            for text in [&mut stdout, &mut stderr] {
                if text.ends_with('\n') {
                    text.pop();
                }
            }
        }
        for certificate in news.into_iter().chain(&done.end.certificate) {
            // The cut is told by its own line.
            if certificate.ended != Ended::Output {
                add_line(&mut stderr, &explain(certificate, asked.timeout));
            }
        }
        if let Some(shell) = done.end.shell.as_deref().filter(|s| !s.ends_with("bash")) {
            add_line(
                &mut stderr,
                &format!("[there is no bash here: run by {shell}]"),
            );
        }
        Self {
            stdout,
            stderr,
            return_code: return_code(&done.end),
        }
    }
}

/// One number for how something ended: its own, minus a signal's, or -1.
pub fn return_code(end: &JobEnd) -> i32 {
    let cause = end.certificate.as_ref().map(|c| c.cause);
    match end.exit {
        _ if cause == Some(Cause::WallClock) => -1,
        Exit::Code(code) => code,
        Exit::Signal(signal) => signal.saturating_neg(),
        Exit::Lost => -1,
    }
}

/// The bytes as text; what was cut is counted in a last line.
fn shown(data: &[u8], total: u64, limit: u64) -> String {
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut data = data.get(..most).unwrap_or(data);
    // A character that the cut went through is left out, not replaced.
    if total > data.len() as u64
        && let Err(e) = std::str::from_utf8(data)
        && e.error_len().is_none()
    {
        data = &data[..e.valid_up_to()];
    }
    let mut text = String::from_utf8_lossy(data).into_owned();
    let left_out = total.saturating_sub(data.len() as u64);
    if left_out > 0 {
        add_line(&mut text, &left_out_line(left_out));
    }
    text
}

pub(super) fn left_out_line(bytes: u64) -> String {
    format!("[{bytes} bytes left out]")
}

pub(super) fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(line);
}

pub(crate) fn explain(certificate: &Certificate, timeout: Duration) -> String {
    let kernel = certificate.ended == Ended::Kernel;
    match certificate.cause {
        Cause::WallClock => {
            let kept = match certificate.ended {
                Ended::Call => "it was interrupted, the variables are kept",
                Ended::Kernel => {
                    "it could not be interrupted, so its interpreter was replaced: \
                     the variables are lost, files stay"
                }
                _ => "all of its processes were ended, files stay",
            };
            let seconds = timeout.as_secs_f64();
            format!("execution timed out after {seconds}s; {kept}")
        }
        // The words that clients look for, where no limit was the cause.
        Cause::Crashed | Cause::Killed | Cause::Exited
            if kernel && !certificate.message.contains("exited unexpectedly") =>
        {
            format!("the interpreter exited unexpectedly: {certificate}")
        }
        _ => certificate.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_proto::Output;

    fn asked() -> Asked {
        Asked {
            timeout: Duration::from_millis(2500),
            output: 10,
        }
    }

    fn done(stdout: &[u8], total: u64, exit: Exit) -> ExecResult {
        let output = |data: &[u8], total| Output {
            data: data.to_vec().into(),
            total,
        };
        ExecResult {
            id: "j".to_owned(),
            stdout: output(stdout, total),
            stderr: output(b"", 0),
            results: Vec::new(),
            end: JobEnd {
                stdout_bytes: total,
                ..JobEnd::new(exit, std::time::Duration::ZERO)
            },
        }
    }

    #[test]
    fn one_newline_of_code_is_removed_and_none_of_bash() {
        let both = done(b"a\n\n", 3, Exit::Code(0));
        assert_eq!(Text::of(Tool::Code, asked(), &both, None).stdout, "a\n");
        assert_eq!(Text::of(Tool::Bash, asked(), &both, None).stdout, "a\n\n");
    }

    #[test]
    fn a_cut_is_counted_in_whole_characters_and_no_guest_makes_it_longer() {
        let cut = done("123456789\u{e9}".as_bytes(), 20, Exit::Code(0));
        let text = Text::of(Tool::Bash, asked(), &cut, None);
        assert_eq!(text.stdout, "123456789\n[11 bytes left out]");
        // Bytes that are no text at all are replaced, as everywhere.
        let odd = done(b"a\xff", 2, Exit::Code(0));
        assert_eq!(
            Text::of(Tool::Bash, asked(), &odd, None).stdout,
            "a\u{fffd}"
        );
    }

    #[test]
    fn ends_have_numbers() {
        let of = |tool, exit| Text::of(tool, asked(), &done(b"", 0, exit), None).return_code;
        assert_eq!(of(Tool::Bash, Exit::Signal(9)), -9);
        assert_eq!(of(Tool::Bash, Exit::Signal(i32::MIN)), i32::MAX);
        assert_eq!(of(Tool::Code, Exit::Lost), -1);
        assert_eq!(of(Tool::Code, Exit::Code(3)), 3);
    }

    #[test]
    fn a_timeout_names_the_limit_that_was_asked_for() {
        let mut late = done(b"", 0, Exit::Lost);
        late.end.certificate = Some(Certificate::new(
            Cause::WallClock,
            Ended::Call,
            "whatever a guest says",
            true,
            "",
        ));
        let text = Text::of(Tool::Code, asked(), &late, None);
        assert!(
            text.stderr.contains("timed out after 2.5s"),
            "{}",
            text.stderr
        );
        assert!(text.stderr.contains("variables are kept"));
        assert_eq!(text.return_code, -1);
    }

    #[test]
    fn a_shell_that_is_no_bash_is_named() {
        let mut done = done(b"", 0, Exit::Code(0));
        done.end.shell = Some("/bin/bash".to_owned());
        assert_eq!(Text::of(Tool::Bash, asked(), &done, None).stderr, "");
        done.end.shell = Some("/bin/sh".to_owned());
        assert!(
            Text::of(Tool::Bash, asked(), &done, None)
                .stderr
                .contains("/bin/sh")
        );
    }

    #[test]
    fn a_crash_is_an_unexpected_exit() {
        let mut crash = done(b"x\n", 2, Exit::Lost);
        let message = "the interpreter crashed with SIGSEGV: the variables are lost";
        let certificate = Certificate::new(Cause::Crashed, Ended::Kernel, message, false, "");
        crash.end.certificate = Some(certificate);
        let text = Text::of(Tool::Code, asked(), &crash, None);
        assert!(text.stderr.contains("exited unexpectedly") && text.stderr.contains("SIGSEGV"));
    }
}
