//! The socket inside the sandbox, and whoever calls there. All of them are hostile until proven
//! otherwise: everything is bounded in size, number and time, and nothing that one of them does
//! keeps the others waiting.
//!
//! One connection is one call: u32 length (little endian) and JSON `{"name", "input"}`; the reply
//! is JSON `{"content", "is_error"}` and the end of the stream. A caller that closes has gone.

use super::calls::Calls;
use bytes::Bytes;
use ringfence_proto::{TOOL_INPUT_LIMIT, ToolReply};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// Connections at a time: more than calls, so that some that say nothing are in nobody's way.
const CONNECTIONS: usize = 128;
/// How long a caller may take to say what it calls, and to take the reply.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const REPLY_LIMIT: Duration = Duration::from_secs(60);
/// Bytes around the input.
const FRAMING: usize = 4096;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Called {
    name: String,
    input: Box<RawValue>,
}

/// Why a caller gets no reply of the host's.
enum Refused {
    /// It is not there any more.
    Gone,
    Because(String),
}

/// Takes calls for as long as there is a listener.
pub(super) async fn accept(listener: UnixListener, calls: Arc<Calls>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match Arc::clone(&connections).try_acquire_owned() {
                Ok(permit) => {
                    let calls = Arc::clone(&calls);
                    tokio::spawn(async move {
                        serve(stream, &calls).await;
                        drop(permit);
                    });
                }
                Err(_) => {
                    // What a new socket takes without waiting.
                    let _ = stream.try_write(&refusal(&format!(
                        "{CONNECTIONS} callers of tools are connected already"
                    )));
                }
            },
            // Out of descriptors or memory: others must end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        // Code can connect as fast as this accepts.
        tokio::task::yield_now().await;
    }
}

fn refusal(message: &str) -> Bytes {
    let reply = ToolReply::error(message);
    serde_json::to_vec(&reply).unwrap_or_default().into()
}

/// One call.
async fn serve(mut stream: UnixStream, calls: &Arc<Calls>) {
    let called = match tokio::time::timeout(REQUEST_LIMIT, request(&mut stream)).await {
        Ok(called) => called,
        Err(_) => Err(Refused::Because(
            "the call took too long to arrive".to_owned(),
        )),
    };
    let waiting = called.and_then(|called| {
        let waiting = calls.begin(&called.name, called.input);
        Ok((called.name, waiting.map_err(Refused::Because)?))
    });
    // Held until the reply is written: it may be large, and counts until then.
    let mut held = None;
    let reply = match waiting {
        Ok((name, waiting)) => {
            let waiting = held.insert(waiting);
            tokio::select! {
                reply = &mut waiting.reply => match reply {
                    Ok(reply) => reply,
                    Err(_) => return,
                },
                // Nothing is said after the call: this is its end, or nonsense.
                _ = stream.read_u8() => return,
                () = tokio::time::sleep(waiting.timeout) => {
                    let seconds = waiting.timeout.as_secs_f64();
                    // The host hears of it now, not when the reply was taken.
                    held = None;
                    refusal(&format!("{name} did not answer within {seconds} s"))
                }
            }
        }
        Err(Refused::Because(message)) => refusal(&message),
        Err(Refused::Gone) => return,
    };
    // A caller that takes nothing is left alone with that.
    let _ = tokio::time::timeout(REPLY_LIMIT, async {
        stream.write_all(&reply).await?;
        stream.shutdown().await
    })
    .await;
    drop(held);
}

/// Reads what is called.
async fn request(stream: &mut UnixStream) -> Result<Called, Refused> {
    let gone = |_| Refused::Gone;
    let length = stream.read_u32_le().await.map_err(gone)? as usize;
    let too_large = || {
        Refused::Because(format!(
            "the input is over {TOOL_INPUT_LIMIT} bytes of JSON"
        ))
    };
    if length > TOOL_INPUT_LIMIT + FRAMING {
        return Err(too_large());
    }
    // Grows with what comes, not with what is announced.
    let mut bytes = Vec::new();
    let mut rest = stream.take(length as u64);
    rest.read_to_end(&mut bytes).await.map_err(gone)?;
    if bytes.len() < length {
        return Err(Refused::Gone);
    }
    // A line end in JSON is never part of a string, and would end the line of the host's stream.
    for byte in &mut bytes {
        if matches!(byte, b'\n' | b'\r') {
            *byte = b' ';
        }
    }
    let called: Called = serde_json::from_slice(&bytes)
        .map_err(|e| Refused::Because(format!("the call can't be read: {e}")))?;
    if called.input.get().len() > TOOL_INPUT_LIMIT {
        return Err(too_large());
    }
    if !called.input.get().starts_with('{') {
        return Err(Refused::Because("the input is not an object".to_owned()));
    }
    Ok(called)
}
