//! Jobs that are started and waited for, so that neither a broken connection to the guest nor a
//! caller that goes away decides what becomes of them: see [`super::readers`].

use super::act::{self, Act};
use super::problem::Problem;
use super::readers::{Reader, Unread};
use super::state::App;
use ringfence_core::proto::{ExecResult, JobInfo, JobState, WaitQuery};
use ringfence_core::{Code, Failure, Session, Work};
use std::sync::Arc;

/// How long one question after the end of a job waits for it.
const WAIT_MS: u64 = 300_000;

/// Whether a job was started for this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    New,
    /// One with this id was there: the request had been sent before.
    Again,
}

impl App {
    /// Runs a call or a command of the contract to its end.
    pub(crate) async fn run(
        &self,
        session: &Arc<Session>,
        mut work: Work,
    ) -> Result<ExecResult, Failure> {
        work.set_transient();
        let job = work.name()?;
        self.run_named(session, &work, job).await
    }

    /// Runs named work to its end: one round trip when all is well.
    pub(crate) async fn run_named(
        &self,
        session: &Arc<Session>,
        work: &Work,
        job: String,
    ) -> Result<ExecResult, Failure> {
        let reader = Reader::new(self, session, &job, Unread::of(work.is_detached()));
        let result = self.run_or_join(session, work, &job).await;
        // Also after a failure: then it has not begun, or can't be reached.
        reader.finish();
        result.map(|result| ExecResult { id: job, ..result })
    }

    async fn run_or_join(
        &self,
        session: &Arc<Session>,
        work: &Work,
        job: &str,
    ) -> Result<ExecResult, Failure> {
        let (kind, words) = work.words();
        act::runs(kind, &words)?;
        let done = self.run_noted(session, work, job).await;
        act::ended(done.as_ref().map(|result| &result.end));
        done
    }

    async fn run_noted(
        &self,
        session: &Arc<Session>,
        work: &Work,
        job: &str,
    ) -> Result<ExecResult, Failure> {
        let guest = session.guest().await?;
        let failure = match work.whole(&guest).await {
            Ok(result) => return Ok(result),
            Err(failure) => failure,
        };
        match failure.code {
            Code::AlreadyExists => {
                same(work, &guest.job(job).await?)?;
                result(session, job).await
            }
            Code::Unavailable if !session.is_closing() => {
                // A sandbox that was killed looks alive for a moment.
                let there = session.confirm().await.is_ok();
                match there && guest.is_closed() {
                    // The way broke; if the sandbox lives, so does the job.
                    true => result(session, job).await.map_err(|_| failure),
                    false => Err(failure),
                }
            }
            _ => Err(failure),
        }
    }

    /// Starts named work and answers when it runs or waits for its turn.
    pub(crate) async fn start(
        &self,
        session: &Arc<Session>,
        work: &Work,
        job: &str,
    ) -> Result<(JobInfo, Start), Failure> {
        let (kind, words) = work.words();
        act::runs(kind, &words)?;
        let guest = session.guest().await?;
        match work.start(&guest).await {
            Ok(info) => Ok((info, Start::New)),
            Err(failure) if failure.code == Code::AlreadyExists => {
                let info = guest.job(job).await?;
                same(work, &info)?;
                Ok((info, Start::Again))
            }
            Err(failure) => Err(failure),
        }
    }
}

/// What to tell about a failure while something ran in a session.
pub(crate) fn broken(app: &App, session: &Arc<Session>, failure: Failure) -> Problem {
    let failure = match session.is_closing() {
        true => ended(session, failure),
        false => failure,
    };
    app.lost(session, failure)
}

/// A failure that came of the session's end says so.
fn ended(session: &Session, failure: Failure) -> Failure {
    match failure.code {
        Code::Unavailable | Code::NotFound => {
            let message = format!("session {} was ended while this ran", session.id);
            Failure::new(Code::NotFound, message).detail(failure)
        }
        _ => failure,
    }
}

fn same(work: &Work, info: &JobInfo) -> Result<(), Failure> {
    if work.is(info) {
        return Ok(());
    }
    let message = format!("job {} exists already and is another one", info.id);
    Err(Failure::new(Code::AlreadyExists, message).hint("choose another id"))
}

/// Waits for the end of a detached job, for those who watch: it goes on without us, and what ends
/// after this server is not told.
pub(crate) async fn seen_to_end(session: Arc<Session>, job: String, act: Arc<Act>) {
    let query = WaitQuery {
        timeout_ms: Some(WAIT_MS),
    };
    loop {
        let waited = async { session.running_guest().await?.wait(&job, &query).await };
        match waited.await.map(|info| info.state) {
            Ok(JobState::Ended(end)) => return act.ended(Ok(&end)),
            Ok(_) => {}
            Err(failure) => return act.ended(Err(&failure)),
        }
    }
}

/// Waits for the end of a job that runs already.
pub(crate) async fn result(session: &Arc<Session>, job: &str) -> Result<ExecResult, Failure> {
    let query = WaitQuery {
        timeout_ms: Some(WAIT_MS),
    };
    loop {
        let guest = session.guest().await?;
        let info = guest.wait(job, &query).await?;
        if matches!(info.state, JobState::Ended(_)) {
            return guest.result(job, None).await;
        }
    }
}
