//! Calls of tools, carried out: one request to the callback of a session for each. Code in the
//! sandbox chooses what is sent and never where to; whoever registers chooses where to, within the
//! rules, which are looked at for every request.

mod address;
mod target;
mod wire;

pub(crate) use target::Target;
pub(crate) use wire::tls;

use crate::config::{CallbackRule, Config};
use address::is_here;
use ringfence_core::proto::{TOOL_REPLY_LIMIT, ToolReply};
use ringfence_core::sessions::Registration;
use ringfence_core::{Code, Failure};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;
use tokio::sync::{OnceCell, Semaphore};
use tokio_rustls::TlsConnector;

/// Requests at one time, of all sessions.
const AT_ONCE: usize = 1024;

/// How long a name may take to be looked up when it is registered; a callback that can't be found
/// now may be there later.
const LOOKUP: Duration = Duration::from_secs(5);

/// Most bytes around the content of a reply.
const FRAMING: usize = 64;

/// Carries out calls.
pub(crate) struct Callbacks {
    rules: Vec<CallbackRule>,
    /// Ports of this host at which servers like this one and their sandboxes are reached.
    own: Vec<RangeInclusive<u16>>,
    places: Semaphore,
    tls: OnceCell<TlsConnector>,
}

/// What is sent.
#[derive(Serialize)]
pub(crate) struct Call<'a> {
    pub call_id: String,
    pub name: &'a str,
    pub input: &'a RawValue,
}

/// What comes back; what else is in it is for others.
#[derive(Deserialize)]
struct Reply {
    #[serde(default)]
    content: Option<Box<RawValue>>,
    #[serde(default)]
    is_error: Option<bool>,
}

/// A call without a reply.
#[derive(Debug)]
pub(crate) struct Missed {
    /// For those who count.
    pub outcome: &'static str,
    /// For the code that called: it names no place.
    pub message: String,
    /// For the log only.
    pub detail: Option<String>,
}

impl Missed {
    pub(crate) fn new(outcome: &'static str, message: impl Into<String>) -> Self {
        Self {
            outcome,
            message: message.into(),
            detail: None,
        }
    }

    fn detail(mut self, detail: impl std::fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }
}

impl Callbacks {
    /// `listening` is the port at which this server itself is reached, if any. Those of sandboxes
    /// are denied as a range: other servers on the same state have theirs in it too.
    pub(crate) fn new(config: &Config, listening: Option<u16>) -> Self {
        let relays = config
            .hastekit
            .enabled
            .then(|| config.hastekit.ports.range());
        let listening = listening.map(|port| port..=port);
        Self {
            rules: config.policy.callbacks.clone(),
            own: listening.into_iter().chain(relays).collect(),
            places: Semaphore::new(AT_ONCE),
            tls: OnceCell::new(),
        }
    }

    /// Whether this may be registered. Names are looked up again for every call.
    pub(crate) async fn allow(&self, target: &Target) -> Result<(), Failure> {
        let found = tokio::time::timeout(LOOKUP, lookup(target)).await;
        let addresses = found.ok().and_then(Result::ok).unwrap_or_default();
        self.spare_ours(target, &addresses)?;
        if addresses.is_empty() && target.depends_on_addresses(&self.rules) {
            // Its addresses decide, and are not known yet.
            return Ok(());
        }
        target.check(&self.rules, &addresses)
    }

    /// Makes one request, within the time that was registered.
    pub(crate) async fn call(
        &self,
        to: &Registration,
        call: &Call<'_>,
    ) -> Result<ToolReply, Missed> {
        let body = serde_json::to_vec(call)
            .map_err(|e| Missed::new("refused", "the call can't be written").detail(e))?;
        let work = async {
            let _place = self.places.acquire().await;
            let target = Target::parse(&to.callback_url).map_err(not_allowed)?;
            let addresses = self.addresses(&target).await?;
            let stream = self.connect(&target, &addresses).await?;
            wire::post(stream, &target, &to.token, body.into()).await
        };
        let bytes = tokio::time::timeout(to.timeout(), work)
            .await
            .unwrap_or_else(|_| {
                let seconds = to.timeout().as_secs_f64();
                let message = format!("{} did not answer within {seconds} s", call.name);
                Err(Missed::new("timeout", message))
            })?;
        read(&bytes)
    }

    /// The addresses of a target, each of them checked: what is connected to is one of these, and
    /// a name is not looked up a second time.
    async fn addresses(&self, target: &Target) -> Result<Vec<SocketAddr>, Missed> {
        let addresses = lookup(target).await.map_err(|e| {
            Missed::new("unreachable", "the host of the callback is not known").detail(e)
        })?;
        if addresses.is_empty() {
            let message = "the host of the callback has no address";
            return Err(Missed::new("unreachable", message));
        }
        self.spare_ours(target, &addresses).map_err(not_allowed)?;
        target.check(&self.rules, &addresses).map_err(not_allowed)?;
        Ok(addresses)
    }

    /// Fails where this server or a sandbox would be called: what asks there comes from this host,
    /// and sandboxes of HasteKit believe whoever reaches them. No rule allows that.
    fn spare_ours(&self, target: &Target, addresses: &[SocketAddr]) -> Result<(), Failure> {
        let ours = |port: u16| self.own.iter().any(|ports| ports.contains(&port));
        if !ours(target.port) || !addresses.iter().any(|address| is_here(address.ip())) {
            return Ok(());
        }
        let message = format!(
            "callbacks to {} are not allowed: this server or its sandboxes are there",
            target.shown()
        );
        Err(Failure::new(Code::Forbidden, message)
            .hint("let the callback listen at another port, outside of hastekit.ports"))
    }

    async fn connect(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
    ) -> Result<wire::Stream, Missed> {
        let stream = wire::connect(addresses).await?;
        if !target.secure {
            return Ok(Box::new(stream));
        }
        let tls = self.tls.get_or_try_init(wire::tls).await.map_err(|e| {
            tracing::error!(
                detail = e.detail,
                hint = e.hint,
                "callbacks over TLS are not possible: {e}"
            );
            Missed::new("unreachable", "the server can't make secure connections")
        })?;
        wire::secure(tls, target, stream).await
    }
}

fn not_allowed(failure: Failure) -> Missed {
    Missed::new("refused", "the callback is not allowed by the server").detail(failure)
}

async fn lookup(target: &Target) -> std::io::Result<Vec<SocketAddr>> {
    match target.name() {
        Err(address) => Ok(vec![SocketAddr::new(address, target.port)]),
        Ok(name) => Ok(tokio::net::lookup_host((name, target.port))
            .await?
            .collect()),
    }
}

fn read(bytes: &[u8]) -> Result<ToolReply, Missed> {
    let bad = |why: String| {
        let message = "the callback's reply is not a JSON object with content and is_error";
        Missed::new("invalid", message).detail(why)
    };
    // A list of the fields in their order would be read too.
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return Err(bad("no object".to_owned()));
    }
    // What it says instead may be secret.
    let reply: Reply = serde_json::from_slice(bytes)
        .map_err(|e| bad(format!("{:?} in column {}", e.classify(), e.column())))?;
    let content = reply.content.unwrap_or_else(|| RawValue::NULL.to_owned());
    if content.get().len() + FRAMING > TOOL_REPLY_LIMIT {
        return Err(too_large());
    }
    Ok(ToolReply {
        content,
        is_error: reply.is_error.unwrap_or(false),
    })
}

fn too_large() -> Missed {
    let message = format!("the callback's reply is over {TOOL_REPLY_LIMIT} bytes");
    Missed::new("too_large", message)
}

/// Checks what is registered, as far as this server's rules go.
pub(crate) fn token(token: &str) -> Result<(), Failure> {
    const LONGEST: usize = 8192;
    let wrong = |what: &str| Err(Failure::new(Code::InvalidInput, format!("token {what}")));
    if token.is_empty() {
        return wrong("is empty");
    }
    if token.len() > LONGEST {
        return wrong(&format!("is over {LONGEST} bytes"));
    }
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        return wrong("has characters that a header can't carry");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_objects() {
        for (text, content, is_error) in [
            (
                r#"{"content":{"a":1e400},"is_error":false}"#,
                r#"{"a":1e400}"#,
                false,
            ),
            (
                r#"{"content":"no","is_error":true,"more":1}"#,
                r#""no""#,
                true,
            ),
            (r#"{"content":null,"is_error":null}"#, "null", false),
            ("{}", "null", false),
        ] {
            let reply = read(text.as_bytes()).unwrap();
            assert_eq!(
                (reply.content.get(), reply.is_error),
                (content, is_error),
                "{text}"
            );
        }
        for bad in [
            "",
            "x",
            "[]",
            "1",
            "\"a\"",
            r#"{"content":}"#,
            r#"{"content":1}x"#,
            r#"{"is_error":"no"}"#,
        ] {
            assert_eq!(
                read(bad.as_bytes()).unwrap_err().outcome,
                "invalid",
                "{bad}"
            );
        }
    }

    #[test]
    fn tokens_fit_into_a_header() {
        token("a.B-1_~+/=").unwrap();
        for bad in ["", "a b", "a\r\nX: y", "ü", "a\0", &"x".repeat(9000)] {
            assert!(token(bad).is_err(), "{bad}");
        }
    }
}
