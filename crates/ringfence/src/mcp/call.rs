//! One call of a tool: it tells how it goes, and ends what it runs when nobody waits any more.

use super::Server;
use crate::http::{Caller, Scope, SessionRunner, SnippetRunner};
use ringfence_core::tools::{Answer, Family, Refusal, Tool};
use ringfence_core::{Failure, Session};
use rmcp::model::{JsonObject, ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// How often a client is told that something still runs.
const EVERY: Duration = Duration::from_secs(1);

/// Tells a client that asked for it how a call goes.
pub(super) struct Watch {
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
}

impl Watch {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        Self {
            peer: context.peer.clone(),
            token: context.meta.get_progress_token(),
        }
    }

    /// Never ends. What runs in a session can be asked how much it has printed.
    async fn tell(&self, inside: Option<(&SessionRunner, &Session)>) {
        let Some(token) = &self.token else {
            return std::future::pending().await;
        };
        let begun = Instant::now();
        let mut ticks = tokio::time::interval_at(begun + EVERY, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let seconds = begun.elapsed().as_secs();
            let mut message = format!("running for {seconds} s");
            if let Some((runner, session)) = inside
                && let Some(bytes) = printed(runner, session).await
            {
                message += &format!(", {bytes} bytes of output");
            }
            let mut progress = ProgressNotificationParam::new(token.clone(), seconds as f64);
            progress.message = Some(message);
            // A client that is gone is seen by others.
            let _ = self.peer.notify_progress(progress).await;
        }
    }
}

async fn printed(runner: &SessionRunner, session: &Session) -> Option<u64> {
    let job = runner.job()?;
    let info = session.guest().await.ok()?.job(&job).await.ok()?;
    Some(info.stdout_bytes.saturating_add(info.stderr_bytes))
}

impl Server {
    /// Without the id of a session, a tool that needs none.
    pub(super) async fn call(
        &self,
        caller: &Caller,
        id: Option<&str>,
        (family, tool): (Family, &Tool),
        arguments: JsonObject,
        watch: Watch,
    ) -> Result<Answer, Refusal> {
        let Some(id) = id else {
            let runner = SnippetRunner::new(&self.app, caller);
            return tokio::select! {
                answer = family.call_apart(tool, &runner, arguments) => answer,
                () = watch.tell(None) => unreachable!("it never ends"),
            };
        };
        let session = self.app.session(caller, id, Scope::Use).await;
        let session = session.map_err(|problem| problem.failure().clone())?;
        let _use = session.begin();
        let runner = SessionRunner::killing(&self.app, &session, caller);
        let called = family.call(tool, &runner, arguments);
        let answer = tokio::select! {
            answer = called => answer,
            () = watch.tell(Some((&runner, &session))) => unreachable!("it never ends"),
        };
        answer.map_err(|refusal| match refusal {
            Refusal::Failure(failure) => Refusal::Failure(self.lost(&session, failure)),
            argument => argument,
        })
    }

    pub(super) fn lost(&self, session: &Arc<Session>, failure: Failure) -> Failure {
        self.app.lost(session, failure).failure().clone()
    }
}
