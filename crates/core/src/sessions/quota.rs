//! How many sessions there may be, and how much memory they may hold.

use super::{Session, SessionId, Sessions, locked};
use crate::size::Size;
use ringfence_proto::{Code, Failure};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Limits over all sessions.
#[derive(Debug, Clone)]
pub struct Quotas {
    pub sessions: usize,
    /// Of one owner, unless the owner has a limit of its own.
    pub per_owner: Option<usize>,
    /// Sum of the memory limits of all sessions.
    pub memory: Option<Size>,
}

/// Who a session belongs to, and what it may have.
#[derive(Debug, Clone)]
pub struct Owner {
    pub name: String,
    pub sessions: Option<usize>,
    pub memory: Option<Size>,
}

/// What counts and is not on the list: sessions that are being made, and sandboxes that nobody
/// keeps.
#[derive(Default)]
pub(super) struct Making {
    now: Mutex<Vec<Made>>,
}

struct Made {
    number: u64,
    /// None of what nobody keeps.
    session: Option<SessionId>,
    owner: Option<String>,
    memory: Size,
}

impl Making {
    /// Whether this session is being made.
    pub(super) fn has(&self, id: &SessionId) -> bool {
        let now = locked(&self.now);
        now.iter().any(|made| made.session.as_ref() == Some(id))
    }
}

/// Room for one sandbox, until this is dropped.
pub struct Room {
    making: Arc<Making>,
    number: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut now = locked(&self.making.now);
        now.retain(|made| made.number != self.number);
    }
}

impl Sessions {
    /// Takes room for one more sandbox, which nobody keeps.
    pub fn room(&self, owner: Option<&Owner>, memory: Size) -> Result<Room, Failure> {
        self.room_for(None, owner, memory)
    }

    /// Takes room for one more: a session, until it is on the list, or a sandbox that nobody keeps.
    pub(super) fn room_for(
        &self,
        session: Option<&SessionId>,
        owner: Option<&Owner>,
        memory: Size,
    ) -> Result<Room, Failure> {
        let mut making = locked(&self.making.now);
        let live = locked(&self.live);
        let name = owner.map(|owner| owner.name.as_str());
        let mut all = Count::default();
        let mut own = Count::default();
        // Whoever lists all that there is may have come upon one that is being made.
        let unlisted = making.iter().filter(|made| {
            let session = made.session.as_ref();
            !session.is_some_and(|id| live.contains_key(id))
        });
        let each = live
            .values()
            .map(|s| (s.owner.as_deref(), s.plan.limits.memory))
            .chain(unlisted.map(|made| (made.owner.as_deref(), made.memory)));
        for (of, memory) in each {
            all.add(memory);
            if of == name {
                own.add(memory);
            }
        }
        drop(live);
        let quotas = &self.quotas;
        all.check(Some(quotas.sessions), quotas.memory, memory, Code::Full, "")?;
        if let Some(owner) = owner {
            let sessions = owner.sessions.or(quotas.per_owner);
            all_of(owner, own, sessions, memory)?;
        }
        let number = making.last().map_or(0, |made| made.number + 1);
        making.push(Made {
            number,
            session: session.cloned(),
            owner: name.map(str::to_owned),
            memory,
        });
        Ok(Room {
            making: Arc::clone(&self.making),
            number,
        })
    }
}

fn all_of(owner: &Owner, own: Count, sessions: Option<usize>, more: Size) -> Result<(), Failure> {
    let whose = format!(" of key {}", owner.name);
    own.check(sessions, owner.memory, more, Code::TooMany, &whose)
}

#[derive(Default, Clone, Copy)]
struct Count {
    sessions: usize,
    memory: u64,
}

impl Count {
    fn add(&mut self, memory: Size) {
        self.sessions += 1;
        self.memory = self.memory.saturating_add(memory.0);
    }

    fn check(
        self,
        sessions: Option<usize>,
        memory: Option<Size>,
        more: Size,
        code: Code,
        whose: &str,
    ) -> Result<(), Failure> {
        const HINT: &str =
            "delete sessions that are no longer needed, or wait for snippets that run";
        if let Some(most) = sessions.filter(|most| self.sessions >= *most) {
            let message = format!("too many sessions: there are {most}{whose} already");
            return Err(Failure::new(code, message).hint(HINT));
        }
        if let Some(most) = memory.filter(|most| self.memory.saturating_add(more.0) > most.0) {
            let message = format!("too much memory: sessions{whose} may have {most} in all");
            return Err(Failure::new(code, message).hint(HINT));
        }
        Ok(())
    }
}

/// Live sessions by owner, for those who watch.
impl Sessions {
    pub fn by_owner(&self) -> HashMap<Option<String>, usize> {
        let live: Vec<(SessionId, Arc<Session>)> = locked(&self.live)
            .iter()
            .map(|(id, session)| (id.clone(), Arc::clone(session)))
            .collect();
        let mut counts = HashMap::new();
        for (_, session) in live {
            *counts.entry(session.owner.clone()).or_insert(0) += 1;
        }
        counts
    }
}
