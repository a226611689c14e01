//! Sessions: sandboxes with an owner, terms and a way in, alike on every backend.
//!
//! The engine is the database. What a session is, it is by the label and the notes of its sandbox;
//! what is kept here is only a way to reach it. So a server that comes back, or a second one, finds
//! every session that lives, and none of them has to be told of the others.

mod clock;
mod id;
mod quota;
mod reaper;
mod seen;
mod session;
mod tools;

pub use clock::Moment;
pub use id::SessionId;
pub use session::{Liveliness, OnIdle, Session, Terms, Use};

use crate::backend::{Backend, SandboxInfo, SandboxState, progress};
use crate::plan::{Lifetime, Limits, resolve_with};
use crate::random_hex;
use crate::spec::SandboxSpec;
use quota::Making;
use ringfence_proto::{Code, Failure, KernelRequest};
use session::Label;
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

pub use quota::{Owner, Quotas, Room};
pub use reaper::Reaped;
pub use tools::{Listener, Registration};

/// How often, and after what time each, one that another makes or removes is looked at again. The
/// time is drawn anew, so that two who gave way to each other do not meet again.
const TRIES: u32 = 200;
const PAUSE: RangeInclusive<u64> = 25..=75;

/// Longer than any look at what there is takes.
const LONGEST_LOOK: Duration = Duration::from_secs(600);

/// How long what was listed is new enough to refuse somebody.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The kernel that calls run in when they name none.
pub const MAIN: &str = "main";

/// A session as it is asked for.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub owner: Option<Owner>,
    /// The caller's own name for it; one that exists is answered with.
    pub key: Option<String>,
    pub spec: SandboxSpec,
    /// Where the spec has none.
    pub limits: Limits,
    pub terms: Terms,
    /// What its first kernel is started with; without, it has none until one is used.
    pub kernel: Option<KernelRequest>,
}

/// Whether a session was made for this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Made,
    There,
}

pub struct Sessions {
    backend: Arc<dyn Backend>,
    quotas: Quotas,
    live: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// When those that were removed here went off the list; locked after it.
    gone: Mutex<HashMap<SessionId, Instant>>,
    /// When the engine was last asked for all that there is.
    looked: Mutex<Option<Instant>>,
    making: Arc<Making>,
    /// Those who want the same key wait for each other here.
    keys: Mutex<HashMap<SessionId, Weak<tokio::sync::Mutex<()>>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sessions {
    pub fn new(backend: Arc<dyn Backend>, quotas: Quotas) -> Arc<Self> {
        Arc::new(Self {
            backend,
            quotas,
            live: Mutex::default(),
            gone: Mutex::default(),
            looked: Mutex::default(),
            making: Arc::default(),
            keys: Mutex::default(),
        })
    }

    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Those that this server knows.
    pub fn known(&self) -> Vec<Arc<Session>> {
        locked(&self.live).values().cloned().collect()
    }

    /// How many this server knows.
    pub fn count(&self) -> usize {
        locked(&self.live).len()
    }

    /// Makes a session, or answers with the one that has its key. Goes on when the caller goes
    /// away; then one that nobody can name is removed again.
    pub async fn create(
        self: &Arc<Self>,
        new: NewSession,
    ) -> Result<(Arc<Session>, Found), Failure> {
        let (done, answer) = tokio::sync::oneshot::channel();
        let sessions = Arc::clone(self);
        let listener = progress::listener();
        tokio::spawn(async move {
            let named = new.key.is_some();
            let making = Box::pin(sessions.create_or_find(new));
            let made = progress::heard_by(listener, making).await;
            if let Err(Ok((session, Found::Made))) = done.send(made)
                && !named
            {
                // What could not be removed is idle, and goes with the next that are.
                let _ = sessions.remove(&session.id).await;
            }
        });
        answer
            .await
            .map_err(|e| Failure::new(Code::Internal, "the creation broke off").detail(e))?
    }

    async fn create_or_find(&self, new: NewSession) -> Result<(Arc<Session>, Found), Failure> {
        let Some(key) = &new.key else {
            let id = SessionId::random()?;
            return Ok((self.make(id, new).await?, Found::Made));
        };
        check_key(key)?;
        let owner = new.owner.as_ref().map(|owner| owner.name.as_str());
        let id = SessionId::of_key(owner, key);
        let turn = self.turn(&id);
        let _turn = turn.lock().await;
        for _ in 0..TRIES {
            match self.get(&id).await {
                // Another server may be making it; it is ready when its guest answers.
                Ok(session) => match session.confirm().await {
                    Ok(()) => return Ok((session, Found::There)),
                    // It died and left nothing: its key is free for a new one.
                    Err(_) if session.is_closing() => self.bury(&session).await?,
                    Err(failure) => return Err(failure),
                },
                Err(failure) if failure.code != Code::NotFound => return Err(failure),
                Err(_) => {}
            }
            match self.make(id.clone(), new.clone()).await {
                Ok(session) => return Ok((session, Found::Made)),
                // Another server was faster, or the last one of this key is still on its way out.
                Err(failure) if failure.code == Code::AlreadyExists => pause().await,
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::new(
            Code::Unavailable,
            format!("session {id} is being made or removed by another, which does not finish"),
        ))
    }

    fn turn(&self, id: &SessionId) -> Arc<tokio::sync::Mutex<()>> {
        let mut keys = locked(&self.keys);
        if let Some(turn) = keys.get(id).and_then(Weak::upgrade) {
            return turn;
        }
        keys.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        keys.insert(id.clone(), Arc::downgrade(&turn));
        turn
    }

    async fn make(&self, id: SessionId, new: NewSession) -> Result<Arc<Session>, Failure> {
        if let Some(name) = new.spec.labels.keys().find(|l| l.starts_with("ringfence.")) {
            return Err(Failure::invalid(format!("label `{name}` is reserved")));
        }
        let guarantees = self.backend.guarantees().await?;
        let mut plan = resolve_with(new.spec, Lifetime::Kept, &guarantees, &new.limits)?;
        plan.id = id.sandbox();
        let label = Label {
            created: Moment::now(),
            owner: new.owner.as_ref().map(|owner| owner.name.clone()),
            key: new.key,
            terms: new.terms,
        };
        label.write(&mut plan)?;
        let room = || self.room_for(Some(&id), new.owner.as_ref(), plan.limits.memory);
        let _room = match room() {
            // Another server may have removed some of those that are in the way.
            Err(failure) if self.may_look() => {
                self.list().await.map_err(|_| failure)?;
                room()?
            }
            room => room?,
        };
        let begun = Instant::now();
        let info = match self.backend.create(&plan).await {
            Err(failure) if self.was_removed(&id, begun) => {
                return Err(removed_meanwhile(&id, failure));
            }
            made => made?,
        };
        let session = Session::of(info, &self.backend)
            .ok_or_else(|| Failure::new(Code::Internal, "a session was made and not known"))?;
        let started = async {
            let guest = session.guest().await?;
            let Some(kernel) = &new.kernel else {
                return Ok(());
            };
            match guest.start_kernel(MAIN, kernel).await {
                // An image without Python still runs everything else.
                Err(failure) if failure.code == Code::Missing => Ok(()),
                started => started.map(drop),
            }
        };
        if let Err(failure) = started.await {
            session.close();
            let left = self.find(&session.id).await;
            if let Ok(left) = left
                && !left.is_some_and(|info| session.is_in(&info))
            {
                // Others took it away, as servers do that make the same one.
                return Err(removed_meanwhile(&session.id, failure));
            }
            let _ = self.backend.destroy(&session.plan.id).await;
            // Whoever listed all that there is may have come upon it.
            self.strike(&session.id);
            return Err(failure);
        }
        locked(&self.live).insert(session.id.clone(), Arc::clone(&session));
        Ok(session)
    }

    /// Has what this session would need made ready, where the backend can.
    pub async fn prepare(&self, spec: SandboxSpec, limits: &Limits) -> Result<(), Failure> {
        let guarantees = self.backend.guarantees().await?;
        let plan = resolve_with(spec, Lifetime::Kept, &guarantees, limits)?;
        self.backend.prepare(&plan);
        Ok(())
    }

    /// A session by its id, also one that another server made.
    pub async fn get(&self, id: &SessionId) -> Result<Arc<Session>, Failure> {
        if let Some(session) = locked(&self.live).get(id) {
            // One that is on its way out is listed until it is gone, so that nobody finds it again.
            return match session.is_closing() {
                true => Err(unknown(id)),
                false => Ok(Arc::clone(session)),
            };
        }
        let begun = Instant::now();
        let found = self.find(id).await?;
        match found.and_then(|info| Session::of(info, &self.backend)) {
            Some(session) => self.adopt(session, begun).ok_or_else(|| unknown(id)),
            None => Err(unknown(id)),
        }
    }

    /// One that is on its way out.
    pub fn leaving(&self, id: &SessionId) -> Option<Arc<Session>> {
        let live = locked(&self.live);
        live.get(id).filter(|session| session.is_closing()).cloned()
    }

    /// Asks the engine.
    async fn find(&self, id: &SessionId) -> Result<Option<SandboxInfo>, Failure> {
        match self.backend.find(&id.sandbox()).await {
            // Nobody knows whether it is there.
            Err(failure) if failure.code == Code::Unavailable => Err(failure),
            // One that is being made right now has nothing to read yet.
            Err(_) => Ok(None),
            found => found,
        }
    }

    /// Puts a session on the list that was found by a look which began then; none if it was
    /// removed since.
    fn adopt(&self, session: Arc<Session>, begun: Instant) -> Option<Arc<Session>> {
        let mut live = locked(&self.live);
        if self.was_removed(&session.id, begun) {
            return None;
        }
        Some(Arc::clone(
            live.entry(session.id.clone()).or_insert(session),
        ))
    }

    /// Whether somebody here removed it since then.
    fn was_removed(&self, id: &SessionId, begun: Instant) -> bool {
        let gone = locked(&self.gone);
        gone.get(id).is_some_and(|at| *at >= begun)
    }

    /// Takes a session that was removed off the list, and nobody who looked before puts it there
    /// again.
    fn strike(&self, id: &SessionId) {
        let mut live = locked(&self.live);
        locked(&self.gone).insert(id.clone(), Instant::now());
        live.remove(id);
    }

    /// Takes a session that turned out to be gone off the list, and says whether it was there.
    pub fn forget(&self, session: &Arc<Session>) -> bool {
        let mut live = locked(&self.live);
        let there = live
            .get(&session.id)
            .is_some_and(|known| Arc::ptr_eq(known, session));
        if there {
            live.remove(&session.id);
        }
        drop(live);
        session.close();
        there
    }

    /// Whether nobody has listed all for a moment: a crowd that is refused must not do it each time.
    fn may_look(&self) -> bool {
        locked(&self.looked).is_none_or(|at| at.elapsed() > LOOK_AGAIN)
    }

    /// Every session there is, whoever made it, by id.
    pub async fn list(&self) -> Result<Vec<Arc<Session>>, Failure> {
        let mut all = Vec::new();
        let mut known = HashSet::new();
        let begun = Instant::now();
        *locked(&self.looked) = Some(begun);
        for info in self.backend.list().await? {
            let Some(id) = SessionId::of_sandbox(info.id()) else {
                continue;
            };
            let seen = locked(&self.live).get(&id).cloned();
            let seen = seen.filter(|session| {
                // Of two with one key the later one counts.
                let current = session.is_in(&info) || session.known_since >= begun;
                if !current {
                    self.forget(session);
                }
                current
            });
            let session = match seen {
                Some(session) => {
                    if session.is_in(&info) {
                        session.refresh(&info);
                    }
                    Some(session)
                }
                None => {
                    let dead = info.state == SandboxState::Dead;
                    match Session::of(info, &self.backend) {
                        // It is about to be buried.
                        Some(session) if dead && !session.is_durable() => Some(session),
                        session => session.and_then(|session| self.adopt(session, begun)),
                    }
                }
            };
            if let Some(session) = session {
                known.insert(id);
                if !session.is_closing() {
                    all.push(session);
                }
            }
        }
        // What another server removed; what was made since the list was read is not on it. A list
        // may lack one that could not be looked at, and whoever uses that must not lose it.
        let mut missing = self.known();
        missing.retain(|session| !known.contains(&session.id) && session.known_since < begun);
        for session in missing {
            match self.find(&session.id).await {
                Ok(Some(info)) if session.is_in(&info) => {}
                Ok(_) => drop(self.forget(&session)),
                Err(_) => {}
            }
        }
        locked(&self.gone).retain(|_, at| at.elapsed() < LONGEST_LOOK);
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// Ends a session: when this answers, its processes, files and memory are gone. One that is
    /// not there is no failure.
    pub async fn remove(&self, id: &SessionId) -> Result<(), Failure> {
        let session = self.get(id).await.ok();
        let known = session.is_some() || self.leaving(id).is_some() || self.making.has(id);
        if let Some(session) = session {
            session.close();
        }
        let destroyed = self.backend.destroy(&id.sandbox()).await;
        // One that did not go is found again, and is tried again. Also where somebody who listed
        // all has missed it meanwhile: an older list may have it.
        if known {
            self.strike(id);
        }
        destroyed
    }

    /// Removes what is left of a session that died. Another server may have made the next one of
    /// its key by now, which stays.
    pub(super) async fn bury(&self, session: &Arc<Session>) -> Result<(), Failure> {
        let buried = self.backend.bury(&session.plan.id).await;
        self.forget(session);
        buried
    }

    /// Frees the processes and the memory of a session and keeps its files.
    pub async fn suspend(&self, session: &Session) -> Result<(), Failure> {
        session.suspend().await
    }
}

async fn pause() {
    let (from, to) = (*PAUSE.start(), *PAUSE.end());
    // Without any chance they are all alike, which is no worse than a fixed time.
    let drawn = random_hex::<4>().ok();
    let drawn = drawn.and_then(|hex| u64::from_str_radix(&hex, 16).ok());
    let time = from + drawn.unwrap_or_default() % (to - from + 1);
    tokio::time::sleep(Duration::from_millis(time)).await;
}

/// It is to be made again.
fn removed_meanwhile(id: &SessionId, why: Failure) -> Failure {
    let message = format!("session {id} was removed while it was made");
    Failure::new(Code::AlreadyExists, message).detail(why)
}

fn unknown(id: &SessionId) -> Failure {
    Failure::new(Code::NotFound, format!("there is no session {id}"))
}

fn check_key(key: &str) -> Result<(), Failure> {
    const LONGEST: usize = 256;
    if (1..=LONGEST).contains(&key.len()) && !key.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "a session's key has 1 to {LONGEST} bytes and no control characters"
    )))
}
