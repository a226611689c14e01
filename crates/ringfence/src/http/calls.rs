//! Calls of tools on their way from a session to its callback and back. Each server listens to the
//! sessions that it knows; the guest gives each call to one of them.

use super::act::sha256;
use super::seen;
use super::state::App;
use crate::callback::{Call, Missed};
use futures_util::StreamExt as _;
use ringfence_core::guest::ToolEvents;
use ringfence_core::proto::{TOOL_CALLS, TOOL_INPUT_LIMIT, ToolCall, ToolEvent, ToolReply};
use ringfence_core::sessions::Listener;
use ringfence_core::{Code, Failure, GuestClient, Session};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

/// How long to wait before a guest that is not there is asked for again.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// Calls that a guest may have given us: those that run, and those whose reply is on its way.
const GIVEN: usize = 2 * TOOL_CALLS;

/// Sees to it that calls of this session are carried out, if it has tools.
pub(crate) fn attend(app: &App, session: &Arc<Session>) {
    if let Some(listener) = session.listen() {
        tokio::spawn(listen(app.clone(), listener));
    }
}

/// The same for all sessions that this server knows.
pub(crate) fn attend_all(app: &App) {
    for session in app.sessions.known() {
        attend(app, &session);
    }
}

/// Listens until the session has ended.
async fn listen(app: App, listener: Listener) {
    let session = listener.session();
    let mut pause = SHORTEST;
    while !session.is_closing() {
        let begun = Instant::now();
        let ended = tokio::select! {
            () = session.closed() => return,
            ended = attend_guest(&app, session) => ended,
        };
        tracing::debug!(session = %session.id, failure = %ended, "calls of tools are not heard");
        if begun.elapsed() > LONGEST {
            pause = SHORTEST;
        }
        // It may have gone for good, be suspended, or be started by another server.
        let mut reached = session.reached();
        tokio::select! {
            () = session.closed() => return,
            _ = reached.changed() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST);
    }
}

/// Serves the calls of a guest until its stream ends. Then every call that runs is over: the guest
/// gives it to whoever listens next.
async fn attend_guest(app: &App, session: &Arc<Session>) -> Failure {
    let opened = async {
        let guest = session.running_guest().await?;
        let events = guest.tool_calls().await?;
        Ok((guest, events))
    };
    match opened.await {
        Ok((guest, events)) => serve(app, session, &guest, events).await,
        Err(failure) => failure,
    }
}

async fn serve(
    app: &App,
    session: &Arc<Session>,
    guest: &GuestClient,
    mut events: ToolEvents,
) -> Failure {
    let places = Arc::new(Semaphore::new(TOOL_CALLS));
    let mut running: HashMap<String, AbortHandle> = HashMap::new();
    let mut tasks = JoinSet::new();
    let odd = |what: &str| Failure::new(Code::Unavailable, format!("the sandbox sent {what}"));
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            Some(_) = tasks.join_next() => {
                running.retain(|_, task| !task.is_finished());
                continue;
            }
        };
        match event {
            Some(Ok(ToolEvent::Call(call))) => {
                if running.len() >= GIVEN {
                    return odd("more calls than it may");
                }
                if running.contains_key(&call.id) {
                    return odd("the same call twice");
                }
                let id = call.id.clone();
                let (app, session, guest) = (app.clone(), Arc::clone(session), guest.clone());
                let places = Arc::clone(&places);
                let task = tasks.spawn(async move {
                    let _use = session.begin();
                    let _place = places.acquire().await;
                    let counted = Counted::default();
                    let reply = carry_out(&app, &session, &call, counted).await;
                    // Where nobody waits for it any more, it is for nobody.
                    let _ = guest.reply_tool(&call.id, &reply).await;
                });
                running.insert(id, task);
            }
            Some(Ok(ToolEvent::Cancelled(id))) => {
                if let Some(task) = running.remove(&id) {
                    task.abort();
                }
            }
            Some(Err(failure)) => return failure,
            None => return odd("no end"),
        }
    }
}

/// Counts a call by its outcome, also one that was cut short.
struct Counted {
    outcome: &'static str,
}

impl Default for Counted {
    fn default() -> Self {
        Self {
            outcome: "cancelled",
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        seen::tool_call(self.outcome);
    }
}

/// The reply to a call, whatever comes of it.
async fn carry_out(
    app: &App,
    session: &Arc<Session>,
    call: &ToolCall,
    mut counted: Counted,
) -> ToolReply {
    match ask(app, session, call).await {
        Ok(reply) => {
            counted.outcome = if reply.is_error { "error" } else { "ok" };
            reply
        }
        Err(missed) => {
            counted.outcome = missed.outcome;
            tracing::warn!(
                session = %session.id,
                outcome = missed.outcome,
                detail = missed.detail,
                "a call of a tool failed: {}",
                missed.message
            );
            ToolReply::error(&missed.message)
        }
    }
}

async fn ask(app: &App, session: &Arc<Session>, call: &ToolCall) -> Result<ToolReply, Missed> {
    let input = call.input.get();
    if input.len() > TOOL_INPUT_LIMIT {
        let message = format!("the input is over {TOOL_INPUT_LIMIT} bytes of JSON");
        return Err(Missed::new("refused", message));
    }
    if !input.starts_with('{') {
        return Err(Missed::new("refused", "the input is not an object"));
    }
    // What another server registered holds from the next call on.
    let registered = session
        .tools()
        .await
        .map_err(|_| Missed::new("refused", "the tools of the session can't be read"))?;
    let to = registered.filter(|to| to.has(&call.name)).ok_or_else(|| {
        let shown: String = call.name.chars().take(64).collect();
        Missed::new("refused", format!("there is no tool {shown}"))
    })?;
    let request = Call {
        call_id: call_id(session, call),
        name: &call.name,
        input: &call.input,
    };
    app.callbacks.call(&to, &request).await
}

/// An id that the sandbox can't choose. It is the same when a call is given to the next server
/// because the one before was killed, so that a callback can know what it has done already.
fn call_id(session: &Session, call: &ToolCall) -> String {
    let parts = [session.id.as_str(), &call.id, &call.name, call.input.get()];
    let whole = sha256(parts.join("\0").as_bytes());
    format!("call_{}", whole.get(..32).unwrap_or(&whole))
}
