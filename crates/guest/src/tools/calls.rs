//! The calls that wait: each is offered to one stream at a time, until it is answered or whoever
//! called has gone.

use bytes::Bytes;
use ringfence_proto::{Code, Failure, TOOL_CALLS, ToolCall, ToolEvent};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// All calls, and the streams that hand them to the host.
pub(super) struct Calls {
    /// The beginning of every id, so that no two guests use the same.
    prefix: String,
    state: Mutex<State>,
    /// Counts what has happened, for streams that wait.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    names: HashSet<String>,
    timeout: Duration,
    open: BTreeMap<u64, Open>,
    calls_made: u64,
    /// For each stream, the calls that it was given and that nobody waits for any more. Not more
    /// than calls can be open: a stream is given a new one only when it was told of all of these.
    streams: BTreeMap<u64, Vec<u64>>,
    streams_made: u64,
}

/// A call that somebody waits for.
struct Open {
    name: String,
    input: Box<RawValue>,
    /// Taken when it was answered.
    reply: Option<oneshot::Sender<Bytes>>,
    taken_by: Option<u64>,
}

impl Default for Calls {
    fn default() -> Self {
        // Enough to tell guests apart; nobody gains by guessing it.
        let random = RandomState::new().hash_one(()) as u32;
        Self {
            prefix: format!("call_{random:08x}_"),
            state: Mutex::default(),
            changed: watch::channel(0).0,
        }
    }
}

impl Calls {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        self.changed
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// From now on these can be called.
    pub(super) fn allow(&self, names: HashSet<String>, timeout: Duration) {
        let mut state = self.lock();
        state.names = names;
        state.timeout = timeout;
    }

    /// Makes a call, or says why not. Ends when the answer is dropped.
    pub(super) fn begin(
        self: &Arc<Self>,
        name: &str,
        input: Box<RawValue>,
    ) -> Result<Waiting, String> {
        let mut state = self.lock();
        if !state.names.contains(name) {
            let shown: String = name.chars().take(64).collect();
            return Err(format!("there is no tool {shown}"));
        }
        if state.open.len() >= TOOL_CALLS {
            return Err(format!(
                "{TOOL_CALLS} calls of tools wait already: wait for some of them"
            ));
        }
        state.calls_made += 1;
        let (number, timeout) = (state.calls_made, state.timeout);
        let (sender, reply) = oneshot::channel();
        let open = Open {
            name: name.to_owned(),
            input,
            reply: Some(sender),
            taken_by: None,
        };
        state.open.insert(number, open);
        drop(state);
        self.tell();
        Ok(Waiting {
            calls: Arc::clone(self),
            number,
            reply,
            timeout,
        })
    }

    /// Delivers a reply.
    pub(super) fn reply(&self, id: &str, reply: Bytes) -> Result<(), Failure> {
        let number = id.strip_prefix(&self.prefix).and_then(|n| n.parse().ok());
        let sender = number.and_then(|number: u64| self.lock().open.get_mut(&number)?.reply.take());
        match sender.map(|sender| sender.send(reply)) {
            Some(Ok(())) => Ok(()),
            _ => Err(Failure::new(
                Code::NotFound,
                format!(
                    "no call {} waits for a reply",
                    id.chars().take(64).collect::<String>()
                ),
            )
            .hint("it was answered, was cancelled, or has timed out")),
        }
    }

    /// A stream that is given calls until it is dropped.
    pub(super) fn stream(self: &Arc<Self>) -> Stream {
        let mut state = self.lock();
        state.streams_made += 1;
        let number = state.streams_made;
        state.streams.insert(number, Vec::new());
        Stream {
            calls: Arc::clone(self),
            number,
            changed: self.changed.subscribe(),
        }
    }

    /// What this stream is to be told next.
    fn next(&self, stream: u64) -> Option<ToolEvent> {
        let mut state = self.lock();
        let id = |number: u64| format!("{}{number}", self.prefix);
        if let Some(number) = state.streams.get_mut(&stream)?.pop() {
            return Some(ToolEvent::Cancelled(id(number)));
        }
        let free = |open: &Open| open.taken_by.is_none() && open.reply.is_some();
        let (number, open) = state.open.iter_mut().find(|(_, open)| free(open))?;
        open.taken_by = Some(stream);
        Some(ToolEvent::Call(ToolCall {
            id: id(*number),
            name: open.name.clone(),
            input: open.input.clone(),
        }))
    }
}

/// A call that was made.
pub(super) struct Waiting {
    calls: Arc<Calls>,
    number: u64,
    pub(super) reply: oneshot::Receiver<Bytes>,
    pub(super) timeout: Duration,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.calls.lock();
        let Some(open) = state.open.remove(&self.number) else {
            return;
        };
        if let (Some(stream), Some(_)) = (open.taken_by, open.reply)
            && let Some(cancelled) = state.streams.get_mut(&stream)
        {
            cancelled.push(self.number);
            drop(state);
            self.calls.tell();
        }
    }
}

/// Gives calls to one reader.
pub(super) struct Stream {
    calls: Arc<Calls>,
    number: u64,
    changed: watch::Receiver<u64>,
}

impl Stream {
    /// Waits for the next event; a line of JSON.
    pub(super) async fn next(&mut self) -> Bytes {
        loop {
            self.changed.borrow_and_update();
            if let Some(event) = self.calls.next(self.number) {
                let mut line = serde_json::to_vec(&event).unwrap_or_default();
                line.push(b'\n');
                return line.into();
            }
            // The sender lives as long as this.
            let _ = self.changed.changed().await;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.calls.lock();
        state.streams.remove(&self.number);
        for open in state.open.values_mut() {
            if open.taken_by == Some(self.number) {
                open.taken_by = None;
            }
        }
        drop(state);
        self.calls.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls() -> Arc<Calls> {
        let calls = Arc::new(Calls::default());
        calls.allow(["f".to_owned()].into(), Duration::from_secs(1));
        calls
    }

    fn call(calls: &Arc<Calls>, input: &str) -> Result<Waiting, String> {
        calls.begin("f", RawValue::from_string(input.to_owned()).unwrap())
    }

    async fn event(stream: &mut Stream) -> ToolEvent {
        let line = stream.next().await;
        assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
        serde_json::from_slice(&line).unwrap()
    }

    async fn called(stream: &mut Stream) -> (String, String) {
        match event(stream).await {
            ToolEvent::Call(call) => (call.id, call.input.get().to_owned()),
            ToolEvent::Cancelled(id) => panic!("{id} was cancelled"),
        }
    }

    #[tokio::test]
    async fn a_call_goes_to_one_stream_and_to_the_next_when_that_ends() {
        let calls = calls();
        let (mut one, mut two) = (calls.stream(), calls.stream());
        let mut waiting = call(&calls, "{}").unwrap();
        let (id, _) = called(&mut one).await;
        assert!(calls.next(two.number).is_none());
        drop(one);
        assert_eq!(called(&mut two).await.0, id);
        calls.reply(&id, Bytes::from("1")).unwrap();
        assert_eq!((&mut waiting.reply).await.unwrap(), "1");
        // Answered once, offered no more, and its end is no cancellation.
        assert_eq!(
            calls.reply(&id, Bytes::new()).unwrap_err().code,
            Code::NotFound
        );
        let mut three = calls.stream();
        drop(two);
        assert!(calls.next(three.number).is_none());
        drop(waiting);
        assert!(calls.next(three.number).is_none());
        let _next = call(&calls, r#"{"a":1}"#).unwrap();
        assert_eq!(called(&mut three).await.1, r#"{"a":1}"#);
    }

    #[tokio::test]
    async fn only_the_stream_that_was_given_a_call_hears_that_it_is_cancelled() {
        let calls = calls();
        let (mut one, two) = (calls.stream(), calls.stream());
        let (first, second) = (call(&calls, "{}").unwrap(), call(&calls, "{}").unwrap());
        let (id, _) = called(&mut one).await;
        drop((first, second));
        assert!(matches!(event(&mut one).await, ToolEvent::Cancelled(gone) if gone == id));
        assert!(calls.next(one.number).is_none() && calls.next(two.number).is_none());
        assert!(calls.reply(&id, Bytes::new()).is_err());
        for odd in ["", "call_", "x", "call_00000000_1", &"9".repeat(1000)] {
            assert!(calls.reply(odd, Bytes::new()).is_err());
        }
    }

    #[tokio::test]
    async fn calls_are_counted_and_names_known() {
        let calls = calls();
        let mut all: Vec<_> = (0..TOOL_CALLS)
            .map(|_| call(&calls, "{}").unwrap())
            .collect();
        assert!(call(&calls, "{}").is_err_and(|e| e.contains("64")));
        all.pop();
        assert!(call(&calls, "{}").is_ok());
        let unknown = calls.begin("g", RawValue::NULL.to_owned());
        assert!(unknown.is_err_and(|e| e.contains("no tool g")));
    }
}
