//! Who reads which job. One whose last reader has been gone for a while is cancelled, unless the
//! guest knows of one that came by another server; the loss of this server, which only forgets who
//! read, never does that.

use super::state::{App, Caller, Scope};
use ringfence_core::proto::JobState;
use ringfence_core::{Code, Failure, Session, SessionId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The shortest time between two looks at a job that others read.
const AT_LEAST: Duration = Duration::from_millis(100);

type Place = (SessionId, String);

/// The jobs that somebody reads, or has read a moment ago.
#[derive(Default)]
pub(crate) struct Readers {
    jobs: Mutex<HashMap<Place, Seat>>,
}

#[derive(Default)]
struct Seat {
    readers: usize,
    /// Counts those who came: whoever waits for the end of the grace sees that somebody did.
    came: u64,
}

impl Readers {
    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Seat>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody came since.
    fn is_alone(&self, place: &Place, came: u64) -> bool {
        let alone = |seat: &Seat| seat.readers == 0 && seat.came == came;
        self.lock().get(place).is_some_and(alone)
    }

    /// Forgets the job, unless somebody came since.
    fn give_up(&self, place: &Place, came: u64) {
        let mut jobs = self.lock();
        if jobs.get(place).is_some_and(|seat| seat.came == came) {
            jobs.remove(place);
        }
    }
}

/// Whether a job that nobody reads is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unread {
    Cancel,
    Leave,
}

impl Unread {
    pub(crate) fn of(detached: bool) -> Self {
        match detached {
            true => Self::Leave,
            false => Self::Cancel,
        }
    }
}

/// A reader of a job. When the last one is dropped before the end, the grace begins.
pub(crate) struct Reader {
    app: App,
    session: Arc<Session>,
    job: String,
    unread: Unread,
}

impl Reader {
    pub(crate) fn new(app: &App, session: &Arc<Session>, job: &str, unread: Unread) -> Self {
        let place = (session.id.clone(), job.to_owned());
        let mut jobs = app.readers.lock();
        let seat = jobs.entry(place).or_default();
        seat.readers += 1;
        seat.came += 1;
        drop(jobs);
        Self {
            app: app.clone(),
            session: Arc::clone(session),
            job: job.to_owned(),
            unread,
        }
    }

    /// Somebody who joins a job that runs. Whoever may only look decides nothing about it, neither
    /// by coming nor by going, and is none.
    pub(crate) fn joining(
        app: &App,
        caller: &Caller,
        session: &Arc<Session>,
        job: &str,
        unread: Unread,
    ) -> Option<Self> {
        (caller.scope > Scope::Read).then(|| Self::new(app, session, job, unread))
    }

    pub(crate) fn set_unread(&mut self, unread: Unread) {
        self.unread = unread;
    }

    /// It has read the end, or there is nothing to read.
    pub(crate) fn finish(mut self) {
        self.unread = Unread::Leave;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let place = (self.session.id.clone(), std::mem::take(&mut self.job));
        let mut jobs = self.app.readers.lock();
        let Some(seat) = jobs.get_mut(&place) else {
            return;
        };
        seat.readers = seat.readers.saturating_sub(1);
        if seat.readers > 0 {
            return;
        }
        if self.unread == Unread::Leave {
            jobs.remove(&place);
            return;
        }
        let came = seat.came;
        drop(jobs);
        after_grace(&self.app, &self.session, place.1, came);
    }
}

impl App {
    /// Says that somebody still cares for a job without reading it to its end: a grace that runs
    /// begins anew.
    pub(crate) fn touch(&self, session: &Arc<Session>, job: &str) {
        let place = (session.id.clone(), job.to_owned());
        let mut jobs = self.readers.lock();
        let Some(seat) = jobs.get_mut(&place).filter(|seat| seat.readers == 0) else {
            return;
        };
        seat.came += 1;
        let came = seat.came;
        drop(jobs);
        after_grace(self, session, place.1, came);
    }
}

/// Cancels the job after the grace, if nobody came meanwhile, here or elsewhere.
fn after_grace(app: &App, session: &Arc<Session>, job: String, came: u64) {
    // Without a runtime the server is about to end, which cancels nothing.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let (app, session) = (app.clone(), Arc::clone(session));
    runtime.spawn(async move {
        let grace = app.config.http.reader_grace;
        let place = (session.id.clone(), job);
        let mut next = Some(grace);
        while let Some(wait) = next {
            tokio::time::sleep(wait).await;
            if !app.readers.is_alone(&place, came) {
                return;
            }
            next = match session.is_closing() {
                true => None,
                false => cancel_unread(&session, &place.1, grace).await,
            };
            if next.is_some() {
                tracing::debug!(session = %session.id, job = place.1, "somebody reads it");
            }
        }
        app.readers.give_up(&place, came);
    });
}

/// Cancels a job that nobody has read for the grace, by whichever server; answers with when to look
/// again if somebody did.
async fn cancel_unread(session: &Session, job: &str, grace: Duration) -> Option<Duration> {
    let looked = async {
        let guest = session.running_guest().await?;
        let info = guest.job(job).await?;
        if info.state != JobState::Running {
            return Ok(None);
        }
        // The guest may not have seen our own reader go yet.
        if info.readers > 0 {
            return Ok(Some(grace.max(AT_LEAST)));
        }
        let unread = Duration::from_millis(info.unread_ms);
        if unread < grace {
            return Ok(Some(grace - unread));
        }
        guest.cancel(job).await?;
        tracing::info!(session = %session.id, job, "nobody reads it: cancelled");
        Ok(None)
    };
    let looked: Result<_, Failure> = looked.await;
    match looked {
        Ok(next) => next,
        // It has ended and been forgotten.
        Err(failure) if failure.code == Code::NotFound => None,
        Err(failure) => {
            let detail = failure.detail.as_deref();
            tracing::warn!(session = %session.id, job, detail, "cannot cancel what nobody reads: {failure}");
            None
        }
    }
}
