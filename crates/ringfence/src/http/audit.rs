//! The record of who did what: a file to which lines are added and nothing else.
//!
//! Code does not start before its line is in the file, and while lines can't be written nothing
//! that belongs into the file is done. What was under way when that began is owed, and written as
//! soon as it can be.

use super::act::{Act, Said};
use super::problem::Problem;
use super::state::App;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::Method;
use ringfence_core::{Code, Failure};
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// A terminal, whatever runs in it.
pub(super) const TERMINAL: &str = "terminal";

/// Lines that are kept while they can't be written.
const OWED: usize = 10_000;

pub(crate) struct Audit {
    path: PathBuf,
    with_code: bool,
    log: Mutex<Log>,
}

struct Log {
    file: Option<File>,
    owed: VecDeque<Vec<u8>>,
    /// The last write ended in the middle of a line.
    torn: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    event: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    request: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sha256: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ms: Option<f64>,
}

impl Audit {
    /// Opens the file and adds a line, so that one that can't be written is known at once.
    pub(crate) fn open(config: &crate::config::Audit) -> Result<Option<Self>, Failure> {
        let Some(path) = config.file.clone() else {
            return Ok(None);
        };
        let audit = Self {
            path,
            with_code: config.code,
            log: Mutex::new(Log {
                file: None,
                owed: VecDeque::new(),
                torn: false,
            }),
        };
        audit.write(audit.line("start of server", "", &Said::default(), None))?;
        Ok(Some(audit))
    }

    fn line(&self, event: &'static str, request: &str, said: &Said, ms: Option<f64>) -> Vec<u8> {
        let line = Line {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            event,
            request,
            key: &said.who,
            session: said.session.as_deref(),
            kind: said.kind,
            sha256: said.sha256.as_deref(),
            code: said.code.as_deref().filter(|_| self.with_code),
            outcome: said.outcome,
            status: said.status,
            ms,
        };
        // Words and numbers can always be written as JSON.
        let mut bytes = serde_json::to_vec(&line).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Before code runs.
    pub(super) fn begin(&self, act: &Act, said: &Said) -> Result<(), Failure> {
        self.write(self.line("start", &act.request, said, None))
    }

    /// After whatever it was.
    pub(super) fn end(&self, act: &Act, said: &Said) {
        let ms = act.begun.elapsed().as_secs_f64() * 1000.0;
        let ms = Some((ms * 1000.0).round() / 1000.0);
        let line = self.line("end", &act.request, said, ms);
        if let Err(failure) = self.write(line.clone()) {
            tracing::error!(detail = failure.detail, "{failure}");
            let mut log = self.lock();
            if log.owed.len() < OWED {
                log.owed.push_back(line);
            } else {
                tracing::error!(line = %String::from_utf8_lossy(&line), "lost a line of the audit file");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, line: Vec<u8>) -> Result<(), Failure> {
        let mut log = self.lock();
        log.pay(&self.path)
            .and_then(|()| log.write(&self.path, &line))
            .map_err(|error| self.failed(&error))
    }

    /// Fails while lines are owed that can't be written, or the file can't be opened.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let mut log = self.lock();
        log.pay(&self.path)
            .and_then(|()| log.open(&self.path))
            .map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        super::seen::audit_error();
        Failure::new(Code::Unavailable, "cannot write the audit file")
            .hint("what is not recorded is not done; whoever runs the server can mend it")
            .detail(format!("{}: {error}", self.path.display()))
    }

    /// Opens the file anew, as after it was moved away.
    pub(crate) fn reopen(&self) {
        self.lock().file = None;
    }
}

impl Log {
    fn pay(&mut self, path: &PathBuf) -> io::Result<()> {
        while let Some(line) = self.owed.pop_front() {
            if let Err(error) = self.write(path, &line) {
                self.owed.push_front(line);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Sees to it that the file is open which has the name now.
    fn open(&mut self, path: &PathBuf) -> io::Result<()> {
        if let (Some(file), Ok(there)) = (&self.file, std::fs::metadata(path)) {
            let ours = file.metadata()?;
            if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
                return Ok(());
            }
        }
        let mut options = OpenOptions::new();
        self.file = Some(options.append(true).create(true).mode(0o600).open(path)?);
        self.torn = false;
        Ok(())
    }

    fn write(&mut self, path: &PathBuf, line: &[u8]) -> io::Result<()> {
        self.open(path)?;
        let Some(file) = &mut self.file else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if self.torn {
            file.write_all(b"\n")?;
            self.torn = false;
        }
        // One write, so that lines of several servers don't mix.
        let written = loop {
            match file.write(line) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                written => break written?,
            }
        };
        if written == line.len() {
            return Ok(());
        }
        self.torn = true;
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// The kind of what a route does; nothing for those that only look.
fn kind(method: &Method, route: &str) -> Option<&'static str> {
    let route = route.strip_prefix("/v1").unwrap_or(route);
    let below = route.strip_prefix("/sessions/{session}");
    Some(match (method.as_str(), below, route) {
        // Each call in it is an act of its own.
        (_, None, "/mcp") => return None,
        ("POST", None, "/sessions" | "/api/sandbox") => "create",
        ("DELETE", None, "/api/sandbox/{session_id}") => "delete",
        ("POST", None, "/exec/bash" | "/exec/python") => "exec",
        ("POST", None, "/files/{*path}") => "upload",
        ("GET", None, "/files/{*path}") => "download",
        ("DELETE", None, "/files/{*path}") => "delete_files",
        ("DELETE", Some(""), _) => "delete",
        ("PATCH", Some(""), _) => "change",
        ("POST", Some("/suspend"), _) => "suspend",
        ("POST", Some("/exec"), _) => "exec",
        ("POST", Some("/programmatic-tools/register"), _) => "register_tools",
        ("POST", Some(rest), _) if rest.starts_with("/tools/") => "tool",
        ("POST", Some("/files"), _) | ("PUT", Some("/tar"), _) => "upload",
        ("GET", Some("/files" | "/tar"), _) | ("GET", None, "/files/{file_id}/content") => {
            "download"
        }
        ("DELETE", Some("/files"), _) | ("DELETE", None, "/files/{file_id}") => "delete_files",
        ("POST", Some("/files/glob" | "/files/grep"), _) => return None,
        ("POST", Some(rest), _) if rest.starts_with("/files/") => "change_files",
        ("POST" | "DELETE", Some(rest), _) if rest.starts_with("/jobs") => "job",
        ("GET", Some(rest), _) if rest.ends_with("/pty") => TERMINAL,
        (_, Some(rest), _) if rest.ends_with("/interrupt") => "interrupt",
        ("PUT" | "DELETE", Some(rest), _) if rest.starts_with("/kernels") => "kernel",
        ("GET" | "HEAD" | "OPTIONS", _, _) => return None,
        _ => "other",
    })
}

/// Knows what a route does, and refuses it while that can't be recorded.
pub(crate) async fn record(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(act) = request.extensions().get::<Arc<Act>>().cloned() else {
        return next.run(request).await;
    };
    let route = request.extensions().get::<MatchedPath>();
    if let Some(kind) = route.and_then(|route| kind(request.method(), route.as_str())) {
        act.is(kind);
        if let Some(audit) = &app.audit
            && let Err(failure) = audit.check()
        {
            return Problem::from(failure).into_response();
        }
    }
    let answer = next.run(request).await;
    // Whatever the route made of it.
    match act.refused() {
        Some(failure) => Problem::from(failure).into_response(),
        None => answer,
    }
}
