//! What the request at hand does, for those who watch: handlers say it in a line, wherever they
//! are, and the log, the metrics, the audit file and the trace have it.

use super::audit::{self, Audit};
use super::seen;
use super::state::{App, Caller};
use ringfence_core::proto::{Certificate, Exit, JobEnd};
use ringfence_core::{Failure, SessionId, hex};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

tokio::task_local! {
    static NOW: Arc<Act>;
}

/// What one request does.
pub(crate) struct Act {
    pub request: String,
    pub begun: Instant,
    pub trace: tracing::Span,
    audit: Option<Arc<Audit>>,
    said: Mutex<Said>,
}

#[derive(Default, Clone)]
pub(super) struct Said {
    pub who: String,
    pub session: Option<String>,
    /// What kind of act it is; unset for what is only looking.
    pub kind: Option<&'static str>,
    /// It runs code: its line is in the audit file before it does.
    pub runs: bool,
    pub sha256: Option<String>,
    pub code: Option<String>,
    pub outcome: Option<&'static str>,
    pub status: Option<u16>,
    /// The outcome is told by somebody who lives longer than the handler.
    later: bool,
    refused: Option<Failure>,
    told: bool,
}

/// Hexadecimal SHA-256, as the audit file has it.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

impl Act {
    pub(super) fn new(
        request: String,
        trace: tracing::Span,
        audit: Option<Arc<Audit>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            request,
            begun: Instant::now(),
            trace,
            audit,
            said: Mutex::default(),
        })
    }

    /// Runs something as this act.
    pub(super) async fn during<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        NOW.scope(self, work).await
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn said(&self) -> Said {
        self.lock().clone()
    }

    /// It is answered; unless somebody goes on with it, that is the end.
    pub(super) fn answered(&self, status: u16, outcome: &'static str) {
        let mut said = self.lock();
        said.status = Some(status);
        if !said.later {
            said.outcome.get_or_insert(outcome);
        }
    }

    /// The session that its path names.
    pub(super) fn names(&self, session: &SessionId) {
        self.trace.record("session", session.as_str());
        self.lock().session = Some(session.to_string());
    }

    /// Why it was not done, where it could not be recorded.
    pub(super) fn refused(&self) -> Option<Failure> {
        self.lock().refused.clone()
    }

    /// Adds the kind that a route stands for, where the handler said nothing better.
    pub(super) fn is(&self, kind: &'static str) {
        self.lock().kind.get_or_insert(kind);
    }

    /// A command, a call or a job came to its end.
    pub(crate) fn ended(&self, end: Result<&JobEnd, &Failure>) {
        match end {
            Ok(end) => self.finished(outcome(end), end.certificate.as_ref()),
            Err(failure) => self.finished(failure.code.name(), None),
        }
    }

    /// The same in a word.
    pub(crate) fn finished(&self, outcome: &'static str, certificate: Option<&Certificate>) {
        if let Some(certificate) = certificate {
            seen::death(certificate);
        }
        let mut said = self.lock();
        said.outcome = Some(outcome);
        if said.runs {
            seen::exec(said.kind.unwrap_or("other"), outcome, self.begun.elapsed());
        }
    }

    fn tell(&self) {
        let said = {
            let mut said = self.lock();
            if std::mem::replace(&mut said.told, true) {
                return;
            }
            // Whoever went on with it went away before the end.
            said.outcome.get_or_insert("left");
            said.clone()
        };
        if let (Some(audit), Some(_)) = (&self.audit, said.kind) {
            audit.end(self, &said);
        }
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        self.tell();
    }
}

/// How something ended, in a word.
fn outcome(end: &JobEnd) -> &'static str {
    match (&end.certificate, &end.exit) {
        // What was cut short went on to its end.
        (
            Some(Certificate {
                ended: ringfence_core::proto::Ended::Output,
                ..
            })
            | None,
            exit,
        ) => match exit {
            Exit::Code(0) => "ok",
            _ => "failed",
        },
        (Some(certificate), _) => certificate.cause.name(),
    }
}

/// Does something for a caller that is an act of its own, though it came with others in a request
/// or with none, such as a call over MCP. Refused while it can't be recorded; `word` says how it
/// ended, where nobody else does.
pub(crate) async fn apart<T, E: From<Failure>>(
    app: &App,
    within: Option<&Arc<Act>>,
    (caller, kind): (&Caller, &'static str),
    work: impl Future<Output = Result<T, E>>,
    word: impl FnOnce(&Result<T, E>) -> &'static str,
) -> Result<T, E> {
    let (request, trace) = match within {
        Some(act) => (act.request.clone(), act.trace.clone()),
        None => (String::new(), tracing::Span::none()),
    };
    let act = Act::new(request, trace, app.audit.clone());
    act.is(kind);
    act.lock().who = caller.who().to_owned();
    let done = match app.audit.as_ref().map_or(Ok(()), |audit| audit.check()) {
        Ok(()) => Arc::clone(&act).during(work).await,
        Err(failure) => Err(failure.into()),
    };
    // Whatever was made of it.
    let done = match act.refused() {
        Some(failure) => Err(failure.into()),
        None => done,
    };
    act.lock().outcome.get_or_insert(word(&done));
    done
}

fn now<T>(say: impl FnOnce(&Arc<Act>) -> T) -> Option<T> {
    NOW.try_with(say).ok()
}

pub(super) fn by(caller: &Caller) {
    now(|act| act.lock().who = caller.who().to_owned());
}

/// The session that it is about.
pub(crate) fn about(session: &SessionId) {
    now(|act| act.names(session));
}

/// It is about to run this code, or this command: an error where that can't be recorded.
pub(crate) fn runs(kind: &'static str, code: &str) -> Result<(), Failure> {
    now(|act| {
        act.trace.record("kind", kind);
        // Nobody else wants to know which code it is.
        let audit = act.audit.as_ref();
        let said = {
            let mut said = act.lock();
            // What is typed into a terminal is more than the command that it starts with.
            if said.kind != Some(audit::TERMINAL) {
                said.kind = Some(kind);
            }
            said.runs = true;
            said.sha256 = audit.map(|_| sha256(code.as_bytes()));
            said.code = audit.map(|_| code.to_owned());
            said.clone()
        };
        match audit {
            Some(audit) => audit.begin(act, &said).inspect_err(|failure| {
                act.lock().refused = Some(failure.clone());
            }),
            None => Ok(()),
        }
    })
    .unwrap_or(Ok(()))
}

/// It writes this text, which is no code.
pub(super) fn writes(text: &str) {
    now(|act| act.lock().sha256 = act.audit.as_ref().map(|_| sha256(text.as_bytes())));
}

/// What was to be ended or removed was not there.
pub(super) fn found_nothing() {
    finished(ringfence_core::Code::NotFound.name(), None);
}

/// The hash of what was uploaded.
pub(crate) fn hashed(content: Sha256) {
    now(|act| act.lock().sha256 = Some(hex(content.finalize())));
}

/// A command or a call came to its end, or didn't get there.
pub(crate) fn ended(end: Result<&JobEnd, &Failure>) {
    now(|act| act.ended(end));
}

/// The same in a word, for what is no command of a session.
pub(crate) fn finished(outcome: &'static str, certificate: Option<&Certificate>) {
    now(|act| act.finished(outcome, certificate));
}

/// The act itself, for whoever goes on with it after the answer has begun, such as a stream of
/// events: it is over when this is dropped.
pub(crate) fn later() -> Option<Arc<Act>> {
    now(|act| {
        act.lock().later = true;
        Arc::clone(act)
    })
}
