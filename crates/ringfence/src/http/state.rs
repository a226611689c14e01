//! What every route shares.

use super::audit::Audit;
use super::auth::Gate;
use super::hastekit::Relays;
use super::health::Readiness;
use super::problem::{Answer, Problem};
use super::sessions::Create;
use crate::callback::Callbacks;
use metrics_exporter_prometheus::PrometheusHandle;
use ringfence_core::sessions::Owner;
use ringfence_core::snippet::Runner;
use ringfence_core::{Code, Failure, Session, SessionId, Sessions};
use std::sync::Arc;
use std::time::Instant;

pub(crate) use crate::keys::Scope;

/// Shared by all routes; cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub sessions: Arc<Sessions>,
    pub config: crate::config::Config,
    pub readers: super::readers::Readers,
    pub gate: Gate,
    pub audit: Option<Arc<Audit>>,
    pub metrics: PrometheusHandle,
    pub readiness: Readiness,
    pub callbacks: Callbacks,
    pub relays: Relays,
    pub runner: Arc<Runner>,
}

impl std::ops::Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub scope: Scope,
    /// Absent where no keys are asked for.
    pub owner: Option<Owner>,
    /// The one session that its key opens.
    pub only: Option<SessionId>,
}

impl Caller {
    /// Anybody, where no keys are asked for.
    pub(crate) fn anybody() -> Self {
        Self {
            scope: Scope::Admin,
            owner: None,
            only: None,
        }
    }

    /// Somebody who may only know that the server lives.
    pub(crate) fn nobody() -> Self {
        let owner = Owner {
            // No key has this name, and so no session.
            name: String::new(),
            sessions: Some(0),
            memory: None,
        };
        Self {
            scope: Scope::Use,
            owner: Some(owner),
            only: None,
        }
    }

    /// Somebody with the key of a session.
    pub(crate) fn of_session(session: SessionId) -> Self {
        Self {
            scope: Scope::Use,
            owner: None,
            only: Some(session),
        }
    }

    /// Its name, for those who read what happened.
    pub(crate) fn who(&self) -> &str {
        match (&self.only, &self.owner) {
            (Some(_), _) => "key of the session",
            (None, Some(owner)) => &owner.name,
            (None, None) => "anybody",
        }
    }

    /// Whether no session is hidden from it: whoever uses sessions has their own, whoever looks
    /// after them or only looks sees those of all.
    pub(crate) fn sees_all(&self) -> bool {
        self.only.is_none() && (self.owner.is_none() || self.scope != Scope::Use)
    }

    /// For what goes beyond one session: the key of one is not enough.
    pub(crate) fn may_beyond(&self, scope: Scope) -> Answer<()> {
        match self.only {
            None => self.may(scope),
            Some(_) => Err(Failure::new(Code::Forbidden, "this key opens one session only").into()),
        }
    }

    /// For what concerns a session that [`Self::sees`] allows.
    pub(crate) fn may(&self, scope: Scope) -> Answer<()> {
        if self.scope >= scope {
            return Ok(());
        }
        Err(Failure::new(Code::Forbidden, "the key does not allow this")
            .hint("use a key with a wider scope: `ringfence key add NAME --scope use`")
            .into())
    }

    /// Whether it may know of this session at all.
    pub(crate) fn sees(&self, session: &Session) -> bool {
        match (&self.only, &self.owner) {
            (Some(only), _) => session.id == *only,
            (None, Some(owner)) if session.owner.as_deref() == Some(&owner.name) => true,
            _ => self.sees_all(),
        }
    }
}

/// What a key of the caller's own begins with, in the place of a session's id.
const KEY: &str = "key:";

/// The session that a path means.
pub(crate) fn session_id(caller: &Caller, text: &str) -> Option<SessionId> {
    match text.strip_prefix(KEY) {
        Some(key) => {
            let owner = caller.owner.as_ref().map(|owner| owner.name.as_str());
            Some(SessionId::of_key(owner, key))
        }
        None => SessionId::try_from(text.to_owned()).ok(),
    }
}

impl App {
    /// `listening` is the port of the server, where it has one.
    pub(crate) fn new(
        sessions: Arc<Sessions>,
        runner: Runner,
        config: crate::config::Config,
        gate: Gate,
        audit: Option<Arc<Audit>>,
        metrics: PrometheusHandle,
        listening: Option<u16>,
    ) -> Self {
        let callbacks = Callbacks::new(&config, listening);
        let inner = Arc::new(Inner {
            sessions,
            config,
            readers: super::readers::Readers::default(),
            gate,
            audit,
            metrics,
            readiness: Readiness::default(),
            callbacks,
            relays: Relays::default(),
            runner: Arc::new(runner),
        });
        Self { inner }
    }

    pub(crate) fn max_body(&self) -> usize {
        self.config.http.max_body.0 as usize
    }

    pub(crate) fn backend_name(&self) -> &'static str {
        self.config.backend.name()
    }

    /// The session of this id, if the caller may do that with it. What it may not see is not
    /// there. `key:NAME` is the caller's own session with that key; one that is to be used and is
    /// not there is made.
    pub(crate) async fn session(
        &self,
        caller: &Caller,
        id: &str,
        scope: Scope,
    ) -> Answer<Arc<Session>> {
        let makes = scope >= Scope::Use && caller.only.is_none();
        let key = id.strip_prefix(KEY).filter(|_| makes);
        let failure = match self.known(caller, id, scope).await {
            Ok(session) if key.is_none() => return Ok(session),
            // The one of this key may just have been killed.
            Ok(session) => match session.confirm().await {
                Err(failure) if session.is_closing() => self.lost(&session, failure),
                _ => return Ok(session),
            },
            Err(problem) => problem,
        };
        let missing = failure.failure().code == Code::NotFound;
        match key {
            Some(key) if missing => {
                let new = Create::with_key(key).resolve(self, caller)?;
                let begun = Instant::now();
                let made = self.sessions.create(new).await;
                super::seen::create(made.as_ref().map(|(_, found)| *found), begun.elapsed());
                let (session, _) = made?;
                super::act::about(&session.id);
                Ok(session)
            }
            _ => Err(failure),
        }
    }

    /// The same for what needs a session that is there: none is made.
    pub(crate) async fn known(
        &self,
        caller: &Caller,
        id: &str,
        scope: Scope,
    ) -> Answer<Arc<Session>> {
        caller.may(scope)?;
        let unknown = || {
            let shown: String = id.chars().take(64).collect();
            Problem::from(Failure::new(
                Code::NotFound,
                format!("there is no session {shown}"),
            ))
        };
        let id = session_id(caller, id).ok_or_else(unknown)?;
        let session = self.sessions.get(&id).await?;
        if !caller.sees(&session) {
            return Err(unknown());
        }
        // One that another server made may have tools.
        super::calls::attend(self, &session);
        super::act::about(&session.id);
        Ok(session)
    }

    /// What to tell about a failure of the way to a session: where it turns out to be gone, it is
    /// taken off the list.
    pub(crate) fn lost(&self, session: &Arc<Session>, failure: Failure) -> Problem {
        let epitaph = session.epitaph();
        let gone = session.is_closing() || epitaph.is_some() && !session.is_durable();
        // Of all who ask, one finds out.
        if gone
            && self.sessions.forget(session)
            && let Some(certificate) = &epitaph
        {
            super::seen::death(certificate);
        }
        match epitaph {
            Some(certificate) => Problem::ended(failure, certificate),
            None => failure.into(),
        }
    }
}
