//! The end of sessions that nobody uses, that are too old, or that died.

use super::session::Liveliness;
use super::{OnIdle, Session, SessionId, Sessions};
use crate::backend::SandboxState;
use ringfence_proto::Failure;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Why a session was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaped {
    Idle,
    Suspended,
    Expired,
    Dead,
}

impl Reaped {
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Suspended => "suspended",
            Self::Expired => "expired",
            Self::Dead => "dead",
        }
    }
}

/// Sessions that are asked at the same time.
const AT_ONCE: usize = 16;

impl Sessions {
    /// Ends what has to end, whoever made it, and finds what other servers made.
    pub async fn reap(self: &Arc<Self>) -> Result<Vec<(SessionId, Reaped)>, Failure> {
        if let Err(failure) = self.backend.tidy().await {
            tracing::warn!(%failure, detail = failure.detail, "cannot remove what was left");
        }
        let infos = self.backend.list().await?;
        let states: HashMap<_, _> = infos.iter().map(|i| (i.id().clone(), i.state)).collect();
        let mut reaped = Vec::new();
        let mut asked = JoinSet::new();
        for session in self.list().await? {
            let state = states.get(&session.plan.id).copied();
            let sessions = Arc::clone(self);
            if asked.len() >= AT_ONCE
                && let Some(Ok(Some(one))) = asked.join_next().await
            {
                reaped.push(one);
            }
            asked.spawn(async move {
                let why = sessions.verdict(&session, state?).await?;
                if !sessions.still_holds(&session, why).await {
                    return None;
                }
                let ended = match why {
                    Reaped::Suspended => sessions.suspend(&session).await,
                    Reaped::Dead => sessions.bury(&session).await,
                    _ => sessions.remove(&session.id).await,
                };
                match ended {
                    Ok(()) => Some((session.id.clone(), why)),
                    Err(failure) => {
                        tracing::warn!(session = %session.id, why = why.name(), %failure, detail = failure.detail, "cannot end the session");
                        None
                    }
                }
            });
        }
        while let Some(one) = asked.join_next().await {
            if let Ok(Some(one)) = one {
                reaped.push(one);
            }
        }
        Ok(reaped)
    }

    async fn verdict(&self, session: &Arc<Session>, state: SandboxState) -> Option<Reaped> {
        if session.is_expired() {
            return Some(Reaped::Expired);
        }
        match state {
            SandboxState::Suspended => return None,
            SandboxState::Dead if !session.is_durable() => return Some(Reaped::Dead),
            SandboxState::Dead | SandboxState::Running => {}
        }
        let terms = session.terms();
        // With many sessions most are not asked: each once in its timeout, in place of each time.
        if !session.may_be_idle(terms.idle_timeout) {
            return None;
        }
        let silent = session.silent_since();
        let idle = match session.liveliness().await {
            Liveliness::Busy => return None,
            Liveliness::Idle(idle) => idle,
            // Until it became silent, others may have used it; and once is no silence.
            Liveliness::Silent(idle) => idle.min(silent?.elapsed()),
        };
        if idle.as_secs_f64() < terms.idle_timeout {
            return None;
        }
        match terms.on_idle {
            OnIdle::Suspend if session.is_durable() => Some(Reaped::Suspended),
            _ => Some(Reaped::Idle),
        }
    }

    /// Asks the engine again: since it was listed another server may have given its key anew, or
    /// started it again.
    async fn still_holds(&self, session: &Session, why: Reaped) -> bool {
        let Ok(Some(now)) = self.find(&session.id).await else {
            return false;
        };
        session.is_in(&now) && (why != Reaped::Dead || now.state == SandboxState::Dead)
    }
}
