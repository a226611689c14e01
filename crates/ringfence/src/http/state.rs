//! What every route shares.

use super::problem::{Answer, Problem};
use ringfence_core::sessions::Owner;
use ringfence_core::{Code, Failure, Session, SessionId, Sessions};
use std::sync::Arc;

/// Shared by all routes; cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub sessions: Arc<Sessions>,
    pub config: crate::config::Config,
    pub readers: super::readers::Readers,
}

impl std::ops::Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.inner
    }
}

/// What a caller may do. A higher one may do what a lower one may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Read,
    Use,
    Admin,
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

    /// For what concerns no session, or a session that [`Self::sees`] allows.
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
            (None, None) => true,
            (None, Some(owner)) => {
                self.scope == Scope::Admin || session.owner.as_deref() == Some(&owner.name)
            }
        }
    }
}

impl App {
    pub(crate) fn new(sessions: Arc<Sessions>, config: crate::config::Config) -> Self {
        let inner = Arc::new(Inner {
            sessions,
            config,
            readers: super::readers::Readers::default(),
        });
        Self { inner }
    }

    pub(crate) fn max_body(&self) -> usize {
        self.config.http.max_body.0 as usize
    }

    /// The session of this id, if the caller may do that with it. What it may not see is not
    /// there.
    pub(crate) async fn session(
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
        let id = SessionId::try_from(id.to_owned()).map_err(|_| unknown())?;
        let session = self.sessions.get(&id).await?;
        if !caller.sees(&session) {
            return Err(unknown());
        }
        Ok(session)
    }

    /// What to tell about a failure of the way to a session: where it turns out to be gone, it is
    /// taken off the list.
    pub(crate) fn lost(&self, session: &Arc<Session>, failure: Failure) -> Problem {
        if session.is_closing() {
            self.sessions.forget(session);
        }
        failure.into()
    }
}

/// Finds out who asks, before anything else.
pub(crate) async fn authenticate(
    axum::extract::State(_app): axum::extract::State<App>,
    mut request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    request.extensions_mut().insert(Caller::anybody());
    next.run(request).await
}
