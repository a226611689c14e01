use crate::{Blob, Cause, Certificate, Entry, Rich};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// A program and its arguments, looked up on the search path of its environment.
    Argv(Vec<String>),
    /// A string for `/bin/bash -c`, or `/bin/sh -c` where there is no bash.
    Shell(String),
    /// A string for `/bin/sh -c`, always.
    Sh(String),
}

/// What the command reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// End of file at once.
    #[default]
    Empty,
    Bytes(Blob),
    /// What is sent to `/jobs/{id}/stdin`, until that body ends.
    Stream,
}

/// Limits that one process or call has of its own, inside those of the sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessLimits {
    pub cpu_seconds: Option<u64>,
    /// Bytes of data segment, the weaker form of a memory limit (RLIMIT_DATA).
    pub data: Option<u64>,
    pub file_size: Option<u64>,
    pub open_files: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PtySize {
    pub rows: u16,
    pub cols: u16,
}

/// What happens to a job when the connection that started it goes away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDisconnect {
    #[default]
    Cancel,
    Keep,
}

/// `POST /exec` (runs to its end) and `POST /jobs` (starts and answers at once).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    pub command: Command,
    /// Further arguments; of a shell string, its positional parameters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Added to the guest's own environment for commands.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default)]
    pub stdin: Stdin,
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub output_limit: Option<u64>,
    #[serde(default)]
    pub limits: ProcessLimits,
    #[serde(default)]
    pub pty: Option<PtySize>,
    /// Chosen by the caller, so that a lost answer can be fetched again; else made here.
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub on_disconnect: OnDisconnect,
    /// Nobody has to follow it; told again to whoever asks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// Forgotten once its result was answered with and nothing was cut from that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
    /// Whether the end says which files of the workspace were made or changed meanwhile.
    #[serde(default)]
    pub report_files: bool,
}

impl ExecRequest {
    pub fn new(command: Command) -> Self {
        Self {
            command,
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
            stdin: Stdin::Empty,
            timeout_ms: None,
            output_limit: None,
            limits: ProcessLimits::default(),
            pty: None,
            id: None,
            on_disconnect: OnDisconnect::Cancel,
            detached: false,
            transient: false,
            report_files: false,
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// Left by itself with this status. A REPL call: 0, 1 after an exception, or `sys.exit`'s.
    Code(i32),
    /// Ended by this signal.
    Signal(i32),
    /// It has no status of its own: see the certificate.
    Lost,
}

/// The end of a job: everything but its output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobEnd {
    pub exit: Exit,
    pub duration_ms: u64,
    /// User and system time of the command and the children it waited for.
    pub cpu_ms: u64,
    /// Peak resident bytes of its largest process.
    pub peak_memory: u64,
    /// The folder a shell string ended in, where the shell could say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The shell that ran a shell string, such as `/bin/bash`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Descendants that were left running in the background when the command itself ended.
    #[serde(default)]
    pub left_running: u32,
    /// Bytes that each stream produced in all.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    /// With `report_files`: the regular files directly in the workspace, hidden ones left out,
    /// that were made or changed between the start and the end, by whomever; sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<Entry>,
    /// There may be more of them: over 100, or the folder has over 2,000 entries.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed_truncated: bool,
}

impl JobEnd {
    /// An end of which nothing else is known.
    pub fn new(exit: Exit, duration: Duration) -> Self {
        Self {
            exit,
            duration_ms: duration.as_millis() as u64,
            cpu_ms: 0,
            peak_memory: 0,
            cwd: None,
            shell: None,
            left_running: 0,
            stdout_bytes: 0,
            stderr_bytes: 0,
            certificate: None,
            changed: Vec::new(),
            changed_truncated: false,
        }
    }

    /// The exit status that a shell would show: 124 when it ran out of time, 137 when it ran out
    /// of memory, 128 + N when signal N ended it.
    pub fn status(&self) -> u8 {
        match (self.certificate.as_ref().map(|c| c.cause), self.exit) {
            (Some(Cause::WallClock), _) => 124,
            (Some(Cause::Memory), _) => 137,
            (_, Exit::Code(code)) => code as u8,
            (_, Exit::Signal(signal)) => 128u8.saturating_add(signal as u8),
            (_, Exit::Lost) => 70,
        }
    }
}

/// One output stream of a finished job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    pub data: Blob,
    /// Bytes produced in all; more than `data` holds when the limit cut it.
    pub total: u64,
}

/// The buffered answer of `POST /exec` and of `POST /kernels/{name}/run`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecResult {
    pub id: String,
    pub stdout: Output,
    pub stderr: Output,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<Rich>,
    #[serde(flatten)]
    pub end: JobEnd,
}

/// One line of a streamed job (`application/x-ndjson`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// First line: the job's id, and whether nobody has to follow it.
    Started {
        id: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        detached: bool,
    },
    Stdout {
        offset: u64,
        data: Blob,
    },
    Stderr {
        offset: u64,
        data: Blob,
    },
    /// The reader asked for bytes that the ring no longer holds.
    Skipped {
        stream: String,
        from: u64,
        to: u64,
    },
    Result {
        index: u32,
        rich: Rich,
    },
    /// Last line.
    End(JobEnd),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Ended(Box<JobEnd>),
}

/// A job: an exec or a REPL call, running or ended and not yet removed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobInfo {
    pub id: String,
    /// The command in words, shortened.
    pub command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Process id in the sandbox, of the command itself.
    pub pid: i32,
    pub started_ms_ago: u64,
    /// Nobody has to follow it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
    /// It runs in a terminal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pty: bool,
    pub state: JobState,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Those who follow it or wait for it now, by whichever server.
    #[serde(default)]
    pub readers: u32,
    /// Since the last of them went, or since its start.
    #[serde(default = "for_ever")]
    pub unread_ms: u64,
}

/// A guest that does not know who reads has heard of nobody.
fn for_ever() -> u64 {
    u64::MAX
}

/// `GET /jobs/{id}/events`: everything from these positions on; with `follow`, until the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputQuery {
    pub stdout: u64,
    pub stderr: u64,
    pub results: u32,
    pub follow: bool,
}

/// `GET /jobs/{id}/wait`: answers when the job has ended, or with its state after `timeout_ms`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WaitQuery {
    pub timeout_ms: Option<u64>,
}

/// `POST /jobs/{id}/stdin`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StdinQuery {
    /// Whether the end of the body is the end of the input; never that of a terminal's.
    pub end: bool,
}

impl Default for StdinQuery {
    fn default() -> Self {
        Self { end: true }
    }
}

/// `POST /jobs/{id}/signal`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// A number, or a name such as `TERM` or `SIGTERM`.
    pub signal: String,
    /// To every process of the job, not only to the command itself.
    #[serde(default)]
    pub all: bool,
}

const SIGNALS: [(&str, i32); 31] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("PWR", 30),
    ("SYS", 31),
];

/// The name of a Linux signal, such as `SIGKILL`.
pub fn signal_name(number: i32) -> String {
    match SIGNALS.iter().find(|(_, n)| *n == number) {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

/// The number of a signal given as `9`, `KILL` or `SIGKILL`, in any case.
pub fn signal_number(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNALS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal_number("sigterm"), Some(15));
        assert_eq!(signal_number("9"), Some(9));
        assert_eq!(signal_number("65"), None);
        assert_eq!(signal_number("0"), None);
        assert_eq!(signal_number("NOPE"), None);
        assert_eq!(signal_name(11), "SIGSEGV");
    }

    #[test]
    fn requests_refuse_unknown_fields() {
        let good = r#"{"command":{"argv":["true"]}}"#;
        assert!(serde_json::from_str::<ExecRequest>(good).is_ok());
        let bad = r#"{"command":{"argv":["true"]},"comand":1}"#;
        assert!(serde_json::from_str::<ExecRequest>(bad).is_err());
    }
}
