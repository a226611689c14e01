//! Who reads which job. One whose last reader has been gone for a while is cancelled; the loss of
//! this server, which only forgets who read, never does that.

use super::state::App;
use ringfence_core::{Code, Session, SessionId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

    /// Whether nobody came since; then the job is forgotten here.
    fn give_up(&self, place: &Place, came: u64) -> bool {
        let mut jobs = self.lock();
        let alone = |seat: &Seat| seat.readers == 0 && seat.came == came;
        jobs.get(place).is_some_and(alone) && jobs.remove(place).is_some()
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

/// Cancels the job after the grace, if nobody came meanwhile.
fn after_grace(app: &App, session: &Arc<Session>, job: String, came: u64) {
    // Without a runtime the server is about to end, which cancels nothing.
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let (app, session) = (app.clone(), Arc::clone(session));
    runtime.spawn(async move {
        tokio::time::sleep(app.config.http.reader_grace).await;
        let place = (session.id.clone(), job);
        if !app.readers.give_up(&place, came) || session.is_closing() {
            return;
        }
        let job = place.1;
        let cancelled = async { session.guest().await?.cancel(&job).await };
        match cancelled.await {
            Ok(()) => tracing::info!(session = %session.id, job, "nobody reads it: cancelled"),
            // It has ended and been forgotten.
            Err(failure) if failure.code == Code::NotFound => {}
            Err(failure) => {
                let detail = failure.detail.as_deref();
                tracing::warn!(session = %session.id, job, detail, "cannot cancel what nobody reads: {failure}");
            }
        }
    });
}
