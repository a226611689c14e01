//! One session: its sandbox, the way to its guest, and when it was last used.

use super::clock::{Moment, wall};
use super::id::SessionId;
use super::seen::Seen;
use crate::backend::{Backend, Notes, Place, SandboxInfo, SandboxState};
use crate::guest::GuestClient;
use crate::plan::Plan;
use crate::spec::{Access, Workspace};
use ringfence_proto::{Cause, Certificate, Code, Ended, Failure};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The label that makes a sandbox a session.
const LABEL: &str = "ringfence.session";
/// The notes of a session.
const TERMS: &str = "terms";

/// How long a guest may take to be reached, its start after a suspension included.
const REACH: Duration = Duration::from_secs(30);
/// How long a guest may take to say how it is.
const PROBE: Duration = Duration::from_secs(5);

/// What happens to a session that nobody uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnIdle {
    #[default]
    Destroy,
    /// Its processes end, its files stay; the next use starts it again.
    Suspend,
}

/// How long a session may last.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Terms {
    /// Seconds without any use.
    pub idle_timeout: f64,
    /// Seconds in all.
    pub max_lifetime: f64,
    #[serde(default)]
    pub on_idle: OnIdle,
}

/// What a session is, as its engine keeps it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Label {
    pub created: Moment,
    pub owner: Option<String>,
    pub key: Option<String>,
    pub terms: Terms,
}

impl Label {
    pub(super) fn write(&self, plan: &mut Plan) -> Result<(), Failure> {
        let text = serde_json::to_string(self)
            .map_err(|e| Failure::new(Code::Internal, "cannot label a session").detail(e))?;
        plan.labels.insert(LABEL.to_owned(), text);
        Ok(())
    }

    fn read(plan: &Plan) -> Option<Self> {
        serde_json::from_str(plan.labels.get(LABEL)?).ok()
    }
}

/// A session that this server knows.
pub struct Session {
    pub id: SessionId,
    pub plan: Plan,
    pub owner: Option<String>,
    pub key: Option<String>,
    pub created: Moment,
    /// Since when this server knows it.
    pub(super) known_since: Instant,
    backend: Arc<dyn Backend>,
    guest: tokio::sync::Mutex<Option<GuestClient>>,
    /// One change of the notes at a time.
    noting: tokio::sync::Mutex<()>,
    state: Mutex<State>,
    /// One registration of tools at a time.
    registering: tokio::sync::Mutex<()>,
    /// Somebody here listens for calls of tools.
    listening: AtomicBool,
    /// What a model has seen of its files, for those who change them: one change at a time.
    seen: tokio::sync::Mutex<Seen>,
    /// Uses that are under way here.
    uses: AtomicU32,
    closing: watch::Sender<bool>,
    /// Counts the connections to its guest.
    reached: watch::Sender<u32>,
}

struct State {
    notes: Notes,
    terms: Terms,
    last_use: Instant,
    /// The latest moment at which it was active, as its guest said; none before that was asked.
    active: Option<Instant>,
    /// Since when its guest, which alone knows of all uses, does not answer.
    silent: Option<Instant>,
    /// What a caller does not know yet: that variables were lost.
    news: Option<Certificate>,
}

impl State {
    /// The terms are those that were noted last.
    fn keep_terms(&mut self) {
        let noted = self.notes.get(TERMS);
        if let Some(terms) = noted.and_then(|text| serde_json::from_str(text).ok()) {
            self.terms = terms;
        }
    }
}

/// A use under way: while there is one, a session is not idle.
pub struct Use {
    session: Arc<Session>,
}

impl Drop for Use {
    fn drop(&mut self) {
        self.session.lock().last_use = Instant::now();
        self.session.uses.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How a session is, as far as its guest says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Liveliness {
    Busy,
    Idle(Duration),
    /// The guest did not answer; what this server itself saw last is so long ago.
    Silent(Duration),
}

impl Session {
    /// The session that a sandbox holds; none for other sandboxes.
    pub(super) fn of(info: SandboxInfo, backend: &Arc<dyn Backend>) -> Option<Arc<Self>> {
        let id = SessionId::of_sandbox(info.id())?;
        let label = Label::read(&info.plan)?;
        let noted = info.notes.get(TERMS);
        let terms = noted.and_then(|text| serde_json::from_str(text).ok());
        let mut plan = info.plan;
        plan.labels.remove(LABEL);
        Some(Arc::new(Self {
            id,
            plan,
            owner: label.owner,
            key: label.key,
            created: label.created,
            known_since: Instant::now(),
            backend: Arc::clone(backend),
            guest: tokio::sync::Mutex::new(None),
            noting: tokio::sync::Mutex::new(()),
            state: Mutex::new(State {
                notes: info.notes,
                terms: terms.unwrap_or(label.terms),
                last_use: Instant::now(),
                active: None,
                silent: None,
                news: None,
            }),
            registering: tokio::sync::Mutex::new(()),
            listening: AtomicBool::new(false),
            seen: tokio::sync::Mutex::default(),
            uses: AtomicU32::new(0),
            closing: watch::channel(false).0,
            reached: watch::channel(0).0,
        }))
    }

    /// Whether this is its own sandbox, and not that of a later session with its key.
    pub(super) fn is_in(&self, info: &SandboxInfo) -> bool {
        Label::read(&info.plan).is_some_and(|label| label.created == self.created)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn terms(&self) -> Terms {
        self.lock().terms
    }

    /// Counts as activity until it is dropped.
    pub fn begin(self: &Arc<Self>) -> Use {
        self.uses.fetch_add(1, Ordering::AcqRel);
        Use {
            session: Arc::clone(self),
        }
    }

    /// Something that was noted about it before, such as the tools it may call.
    pub fn note(&self, name: &str) -> Option<String> {
        self.lock().notes.get(name).cloned()
    }

    pub(super) fn with_note<T>(&self, name: &str, look: impl FnOnce(Option<&str>) -> T) -> T {
        look(self.lock().notes.get(name).map(String::as_str))
    }

    /// Takes over what other servers noted since.
    pub(super) async fn look(&self) -> Result<(), Failure> {
        let _one = self.noting.lock().await;
        match self.backend.find(&self.plan.id).await? {
            Some(info) => self.refresh(&info),
            None => return Err(self.gone()),
        }
        Ok(())
    }

    /// Notes something where every server finds it.
    pub async fn set_note(&self, name: &str, value: String) -> Result<(), Failure> {
        self.noted(name, || Ok(value)).await
    }

    /// Changes its terms, as they are by now, whoever set them.
    pub async fn change_terms(&self, change: impl FnOnce(&mut Terms)) -> Result<(), Failure> {
        let changed = || {
            let mut terms = self.terms();
            change(&mut terms);
            serde_json::to_string(&terms)
                .map_err(|e| Failure::new(Code::Internal, "cannot note the timeouts").detail(e))
        };
        self.noted(TERMS, changed).await
    }

    /// Notes something that may depend on what others noted before.
    async fn noted(
        &self,
        name: &str,
        value: impl FnOnce() -> Result<String, Failure>,
    ) -> Result<(), Failure> {
        let _one = self.noting.lock().await;
        let found = self.backend.find(&self.plan.id).await?;
        let Some(info) = found.filter(|info| self.is_in(info)) else {
            return Err(self.gone());
        };
        self.refresh(&info);
        let value = value()?;
        self.backend.annotate(&self.plan.id, name, &value).await?;
        let mut state = self.lock();
        state.notes.insert(name.to_owned(), value);
        state.keep_terms();
        Ok(())
    }

    /// Takes over what another server noted.
    pub(super) fn refresh(&self, info: &SandboxInfo) {
        let mut state = self.lock();
        if state.notes != info.notes {
            state.notes.clone_from(&info.notes);
            state.keep_terms();
        }
    }

    /// What happened since the last call that the caller has to know.
    pub fn news(&self) -> Option<Certificate> {
        self.lock().news.clone()
    }

    /// The same, for whoever tells it.
    pub fn take_news(&self) -> Option<Certificate> {
        self.lock().news.take()
    }

    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits for its end.
    pub async fn closed(&self) {
        // The sender is ours, so it lives.
        let _ = self.closing.subscribe().wait_for(|closing| *closing).await;
    }

    /// Changes when its guest is reached anew, which may be one that was started again.
    pub fn reached(&self) -> watch::Receiver<u32> {
        self.reached.subscribe()
    }

    pub(crate) async fn seen(&self) -> tokio::sync::MutexGuard<'_, Seen> {
        self.seen.lock().await
    }

    pub(super) async fn registering(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.registering.lock().await
    }

    /// Says whether somebody listens, and answers with what was so before.
    pub(super) fn set_listening(&self, listening: bool) -> bool {
        self.listening.swap(listening, Ordering::AcqRel)
    }

    pub fn is_expired(&self) -> bool {
        self.created.age().as_secs_f64() >= self.terms().max_lifetime
    }

    /// There is nothing to reach any more, now or ever.
    fn gone(&self) -> Failure {
        self.close();
        let id = &self.id;
        match self.epitaph() {
            Some(certificate) => {
                let message = format!("session {id} has ended: {}", certificate.message);
                Failure::new(Code::NotFound, message).hint(certificate.next)
            }
            None => Failure::new(Code::NotFound, format!("session {id} has ended")),
        }
    }

    /// Where its sandbox is, where its engine has names and addresses for others.
    pub async fn place(&self) -> Result<Option<Place>, Failure> {
        self.backend.place(&self.plan.id).await
    }

    /// Why its sandbox ended, where its engine says so.
    pub fn epitaph(&self) -> Option<Certificate> {
        self.backend.epitaph(&self.plan.id)
    }

    /// The way to its guest. A suspended session is started again.
    pub async fn guest(&self) -> Result<GuestClient, Failure> {
        let mut slot = self.guest.lock().await;
        if let Some(guest) = slot.as_ref().filter(|guest| !guest.is_closed()) {
            return Ok(guest.clone());
        }
        *slot = None;
        let guest = self.attach(self.reach()).await?;
        *slot = Some(guest.clone());
        Ok(guest)
    }

    /// Makes sure that it is there. One whose guest was killed looks alive until its connection is
    /// seen to end, so the guest is asked; one that died with its files is closing afterwards.
    pub async fn confirm(&self) -> Result<(), Failure> {
        let until = Instant::now() + PROBE;
        while Instant::now() < until {
            let guest = self.guest().await?;
            match tokio::time::timeout(PROBE, guest.health()).await {
                // The socket of one that is about to end may still be open.
                Ok(Err(_)) => *self.guest.lock().await = None,
                Ok(Ok(_)) | Err(_) => return Ok(()),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It is slow, or says what no guest of ours says; it is there.
        Ok(())
    }

    /// The way to its guest if that runs: a suspended session stays so.
    pub async fn running_guest(&self) -> Result<GuestClient, Failure> {
        let mut slot = self.guest.lock().await;
        if let Some(guest) = slot.as_ref().filter(|guest| !guest.is_closed()) {
            return Ok(guest.clone());
        }
        *slot = None;
        let dialled = async { GuestClient::connect(self.backend.dial(&self.plan.id).await?).await };
        let guest = self.attach(dialled).await?;
        *slot = Some(guest.clone());
        Ok(guest)
    }

    /// A new connection, ready for use.
    async fn attach(
        &self,
        reach: impl Future<Output = Result<GuestClient, Failure>>,
    ) -> Result<GuestClient, Failure> {
        let ready = async {
            let guest = reach.await?;
            self.restore_tools(&guest).await;
            Ok(guest)
        };
        let guest = tokio::time::timeout(REACH, ready).await.map_err(|_| {
            let message = format!("session {} can't be reached", self.id);
            Failure::new(Code::Unavailable, message)
        })??;
        self.reached
            .send_modify(|count| *count = count.wrapping_add(1));
        Ok(guest)
    }

    /// Ends its processes and keeps its files.
    pub(super) async fn suspend(&self) -> Result<(), Failure> {
        // Nobody reaches it half way.
        let mut slot = self.guest.lock().await;
        *slot = None;
        self.backend.suspend(&self.plan.id).await
    }

    async fn reach(&self) -> Result<GuestClient, Failure> {
        let id = &self.plan.id;
        let mut pause = Duration::from_millis(1);
        loop {
            if self.is_closing() {
                return Err(self.gone());
            }
            let failure = match self.backend.dial(id).await {
                Ok(io) => return GuestClient::connect(io).await,
                Err(failure) => failure,
            };
            let found = self.backend.find(id).await?;
            let Some(info) = found.filter(|info| self.is_in(info)) else {
                return Err(self.gone());
            };
            self.refresh(&info);
            match info.state {
                // It is being started, by us or by another server.
                SandboxState::Running => {
                    if failure.code == Code::NoSpace {
                        return Err(failure);
                    }
                }
                SandboxState::Suspended => self.resume(&info).await?,
                SandboxState::Dead if self.is_durable() => {
                    if let Err(failure) = self.backend.suspend(id).await {
                        // Somebody may have removed it meanwhile.
                        return Err(match self.backend.find(id).await? {
                            Some(_) => failure,
                            None => self.gone(),
                        });
                    }
                    self.resume(&info).await?;
                }
                SandboxState::Dead => {
                    let gone = self.gone();
                    return Err(match gone.hint {
                        Some(_) => gone,
                        None => gone.hint("its sandbox was killed, and its files were in memory"),
                    });
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    async fn resume(&self, info: &SandboxInfo) -> Result<(), Failure> {
        match self.backend.create(&info.plan).await {
            Ok(_) => {
                let message = "the session was started again; its variables are lost";
                let mut certificate = Certificate::new(
                    Cause::BackendLost,
                    Ended::Sandbox,
                    message,
                    false,
                    "run again what the variables came from",
                );
                certificate.survived.files = true;
                self.lock().news = Some(certificate);
                Ok(())
            }
            // Another one was faster.
            Err(failure) if failure.code == Code::AlreadyExists => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Its files outlive its processes.
    pub fn is_durable(&self) -> bool {
        matches!(
            self.plan.workspace,
            Workspace::Disk
                | Workspace::Folder {
                    access: Access::ReadWrite,
                    ..
                }
        )
    }

    /// Whether it can have been idle for so long, by what is known without asking its guest.
    pub(super) fn may_be_idle(&self, timeout: f64) -> bool {
        let active = self.lock().active;
        active.is_none_or(|when| when.elapsed().as_secs_f64() >= timeout)
    }

    /// Asks the guest, which knows of every server's uses.
    pub async fn liveliness(&self) -> Liveliness {
        let said = self.ask().await;
        let ago = match said {
            Liveliness::Busy => Duration::ZERO,
            Liveliness::Idle(ago) => ago,
            Liveliness::Silent(_) => {
                self.lock().silent.get_or_insert_with(Instant::now);
                return said;
            }
        };
        // Another answer may be newer.
        let active = Instant::now().checked_sub(ago);
        let mut state = self.lock();
        state.active = state.active.max(active);
        state.silent = None;
        said
    }

    /// Since when its guest has not answered whenever it was asked.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        self.lock().silent
    }

    async fn ask(&self) -> Liveliness {
        if self.uses.load(Ordering::Acquire) > 0 {
            return Liveliness::Busy;
        }
        let seen = self.lock().last_use.elapsed();
        let health = async {
            let guest = match self.guest.try_lock() {
                Ok(slot) if slot.as_ref().is_some_and(|guest| !guest.is_closed()) => slot.clone(),
                _ => None,
            };
            let guest = match guest {
                Some(guest) => guest,
                None => GuestClient::connect(self.backend.dial(&self.plan.id).await?).await?,
            };
            guest.health().await
        };
        match tokio::time::timeout(PROBE, health).await {
            Ok(Ok(health)) if health.jobs > 0 => Liveliness::Busy,
            // What it says can only make it live as long as it could by running something.
            Ok(Ok(health)) => Liveliness::Idle(Duration::from_millis(health.idle_ms)),
            _ => Liveliness::Silent(seen),
        }
    }

    /// When it was last used, in seconds since the epoch.
    pub async fn last_activity(&self) -> f64 {
        match self.liveliness().await {
            Liveliness::Busy => wall(),
            Liveliness::Idle(ago) | Liveliness::Silent(ago) => {
                (wall() - ago.as_secs_f64()).max(self.created.wall)
            }
        }
    }
}
