//! What is to run in a session: a call in a kernel, or a command. Either becomes a job.

use crate::guest::GuestClient;
use crate::random_hex;
use ringfence_proto::{
    Command, ExecRequest, ExecResult, Failure, JobInfo, OnDisconnect, RunRequest,
};
use std::borrow::Cow;

/// A call in a kernel, or a command.
#[derive(Debug, Clone)]
pub enum Work {
    Run { kernel: String, request: RunRequest },
    Exec(ExecRequest),
}

impl Work {
    /// Gives the job an id that this side knows, so that it can be found again whatever happens.
    pub fn name(&mut self) -> Result<String, Failure> {
        let (id, on_disconnect, transient) = match self {
            Self::Run { request, .. } => (
                &mut request.id,
                &mut request.on_disconnect,
                &mut request.transient,
            ),
            Self::Exec(request) => (
                &mut request.id,
                &mut request.on_disconnect,
                &mut request.transient,
            ),
        };
        *on_disconnect = OnDisconnect::Keep;
        if let Some(id) = id {
            *transient = false;
            return Ok(id.clone());
        }
        let made = format!("job_{}", random_hex::<12>()?);
        *id = Some(made.clone());
        Ok(made)
    }

    /// Forgets the job once a whole result was answered with: nobody has its name.
    pub fn set_transient(&mut self) {
        match self {
            Self::Run { request, .. } => request.transient = request.id.is_none(),
            Self::Exec(request) => request.transient = request.id.is_none(),
        }
    }

    pub fn is_detached(&self) -> bool {
        match self {
            Self::Run { request, .. } => request.detached,
            Self::Exec(request) => request.detached,
        }
    }

    /// Runs it to its end.
    pub async fn whole(&self, guest: &GuestClient) -> Result<ExecResult, Failure> {
        match self {
            Self::Run { kernel, request } => guest.run(kernel, request).await,
            Self::Exec(request) => guest.exec(request).await,
        }
    }

    /// Answers while it runs, or waits for its turn.
    pub async fn start(&self, guest: &GuestClient) -> Result<JobInfo, Failure> {
        match self {
            Self::Run { kernel, request } => guest.start_run(kernel, request).await,
            Self::Exec(request) => guest.start(request).await,
        }
    }

    /// What kind of work it is, and what is to run.
    pub fn words(&self) -> (&'static str, Cow<'_, str>) {
        match self {
            Self::Run { request, .. } => ("code", Cow::Borrowed(&request.code)),
            Self::Exec(request) => match &request.command {
                Command::Argv(argv) => ("command", Cow::Owned(argv.join(" "))),
                Command::Shell(text) | Command::Sh(text) => ("bash", Cow::Borrowed(text)),
            },
        }
    }

    /// Whether a job that is there can be this one. The guest knows the beginning of its words.
    pub fn is(&self, info: &JobInfo) -> bool {
        let (_, words) = self.words();
        let kernel = match self {
            Self::Run { kernel, .. } => Some(kernel),
            Self::Exec(_) => None,
        };
        let same = match info.command.strip_suffix('…') {
            Some(start) => words.starts_with(start),
            None => *words == info.command,
        };
        same && info.kernel.as_ref() == kernel
    }
}
