//! Who asks: keys on the wire, and the door of a server that asks for none.

use super::limits::{Counted, Rate, Rates, too_often};
use super::problem::{Answer, Problem};
use super::serve::Peer;
use super::state::{App, Caller};
use crate::config::{Auth, Config, Listen};
use crate::keys::{Key, KeyStore, SessionKeys};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, HeaderValue, Uri, header};
use ringfence_core::sessions::Owner;
use ringfence_core::{Code, Failure, SessionId, Sessions};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a WebSocket's client that can't set headers puts before a key, as a subprotocol.
const SUBPROTOCOL_KEY: &str = "ringfence.key.";

/// Whom a server lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// Everybody, as somebody said in so many words.
    Open,
    /// Everybody on this machine, until there are keys.
    Local,
    /// Those with keys.
    Keys,
}

pub(crate) struct Gate {
    keys: KeyStore,
    session_keys: SessionKeys,
    door: Door,
    /// Only programs of this machine get here, browsers among them.
    loopback: bool,
    /// There were keys. Removing the last one must not open the door.
    locked: AtomicBool,
    rates: Rates,
    rate: Option<Rate>,
    burst: Option<u64>,
}

impl Gate {
    /// Fails where anybody on the network could come in and nobody said so.
    pub(crate) fn new(config: &Config) -> Result<Self, Failure> {
        let keys = KeyStore::open(&config.state_dir, |failure| {
            tracing::error!(
                detail = failure.detail,
                "the keys stay as they were: {failure}"
            );
        })?;
        let (loopback, local) = match &config.listen {
            Listen::Tcp(address) => {
                let loopback = address.ip().to_canonical().is_loopback();
                (loopback, loopback)
            }
            Listen::Unix(_) => (false, true),
        };
        let door = match config.auth {
            Auth::Off => Door::Open,
            Auth::Keys if local => Door::Local,
            Auth::Keys => Door::Keys,
        };
        let locked = !keys.keys().is_empty();
        if door == Door::Keys && !locked {
            let Listen::Tcp(address) = &config.listen else {
                return Err(Failure::new(Code::Internal, "a socket that is not local"));
            };
            return Err(Failure::new(
                Code::Forbidden,
                format!("cannot serve on {address} without keys: anybody there could run code"),
            )
            .hint("make a key with `ringfence key add NAME`, or say --no-auth"));
        }
        let http = &config.http;
        Ok(Self {
            keys,
            session_keys: SessionKeys::open(&config.state_dir)?,
            door,
            loopback,
            locked: AtomicBool::new(locked),
            rates: Rates::default(),
            rate: Rate::new(http.requests_per_second, http.burst),
            burst: http.burst,
        })
    }

    /// The key that opens this session and nothing else.
    pub(crate) fn session_key(&self, session: &SessionId) -> String {
        self.session_keys.of(session)
    }

    fn needs_key(&self) -> bool {
        match self.door {
            Door::Open => false,
            Door::Keys => true,
            Door::Local => {
                if !self.keys.keys().is_empty() {
                    self.locked.store(true, Ordering::Release);
                }
                self.locked.load(Ordering::Acquire)
            }
        }
    }

    /// Who has shown one of these.
    async fn known(&self, sessions: &Sessions, shown: &[String]) -> Result<Option<Known>, Failure> {
        for shown in shown {
            if let Some(key) = self.keys.find(shown) {
                return Ok(Some(self.with_key(&key, None)));
            }
            if let Some(session) = self.session_keys.session(shown)
                && let Some(known) = self.with_session(sessions, session).await?
            {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// Somebody with a key, or with the key of a session that was made with it: both are counted
    /// together.
    fn with_key(&self, key: &Key, only: Option<SessionId>) -> Known {
        let rate = key.rate.map(|rate| Rate::new(rate, self.burst));
        Known {
            caller: match only {
                Some(session) => Caller::of_session(session),
                None => Caller {
                    scope: key.scope,
                    owner: Some(Owner {
                        name: key.name.clone(),
                        sessions: key.max_sessions.map(|n| n as usize),
                        memory: key.max_memory,
                    }),
                    only: None,
                },
            },
            counted: Some(Counted::Key(key.name.clone())),
            rate: rate.unwrap_or(self.rate),
        }
    }

    /// Somebody with the key of a session. It ends with the key that made the session; one that was
    /// made without a key has nothing that it could end with.
    async fn with_session(
        &self,
        sessions: &Sessions,
        id: SessionId,
    ) -> Result<Option<Known>, Failure> {
        let owner = match sessions.get(&id).await {
            Ok(session) => session.owner.clone(),
            // They are told so, and count as those who have no key.
            Err(failure) if failure.code == Code::NotFound => {
                return Ok(Some(Known {
                    caller: Caller::of_session(id),
                    counted: None,
                    rate: self.rate,
                }));
            }
            Err(failure) => return Err(failure),
        };
        let Some(owner) = owner else {
            return Ok(Some(Known {
                counted: Some(Counted::Session(id.to_string())),
                caller: Caller::of_session(id),
                rate: self.rate,
            }));
        };
        let key = self.keys.named(&owner);
        Ok(key.map(|key| self.with_key(&key, Some(id))))
    }
}

/// Somebody who has shown a key.
struct Known {
    caller: Caller,
    /// By what its requests are counted; by its address where there is nothing else.
    counted: Option<Counted>,
    rate: Option<Rate>,
}

/// Finds out who asks, before anything else.
pub(crate) async fn authenticate(
    State(app): State<App>,
    mut request: Request,
    next: Next,
) -> Response {
    let offered = take_subprotocol(request.headers_mut());
    let gate = &app.gate;
    let path = request.uri().path();
    let caller = if super::openapi::OPEN.contains(&path.strip_prefix("/v1").unwrap_or(path)) {
        Caller::nobody()
    } else {
        let needs_key = gate.needs_key();
        if !needs_key && let Err(problem) = check_browser(gate.loopback, &request) {
            return problem.into_response();
        }
        let peer = request.extensions().get::<Peer>().and_then(|peer| peer.0);
        let shown = needs_key.then(|| shown(request.headers(), offered));
        match admit(&app, peer, shown).await {
            Ok(caller) => caller,
            Err(refusal) => return *refusal,
        }
    };
    super::act::by(&caller);
    request.extensions_mut().insert(caller);
    next.run(request).await
}

/// Counts a request, and lets those in who have shown a key; everybody where none is needed.
async fn admit(
    app: &App,
    peer: Option<IpAddr>,
    shown: Option<Vec<String>>,
) -> Result<Caller, Box<Response>> {
    let gate = &app.gate;
    let known = match &shown {
        Some(shown) => gate.known(&app.sessions, shown).await,
        None => Ok(None),
    };
    let known = known.map_err(|failure| Box::new(Problem::from(failure).into_response()))?;
    let (caller, counted, rate) = match known {
        Some(known) => (Some(known.caller), known.counted, known.rate),
        None if shown.is_some() => (None, None, gate.rate),
        None => (Some(Caller::anybody()), None, gate.rate),
    };
    if let Some(rate) = rate
        && let Err(wait) = gate
            .rates
            .take(counted.unwrap_or_else(|| Counted::peer(peer)), rate)
    {
        return Err(Box::new(too_often(wait)));
    }
    caller.ok_or_else(|| Box::new(unknown()))
}

/// The same for every key that opens nothing, and for none.
fn unknown() -> Response {
    let failure = Failure::new(Code::Unauthenticated, "a key is needed")
        .hint("send `Authorization: Bearer KEY`; `ringfence key add NAME` makes one");
    let mut answer = Problem::from(failure).into_response();
    let challenge = HeaderValue::from_static("Bearer realm=\"ringfence\"");
    answer
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, challenge);
    answer
}

/// The keys that a request shows.
fn shown(headers: &HeaderMap, offered: Option<String>) -> Vec<String> {
    let bearer = headers
        .get_all(header::AUTHORIZATION)
        .iter()
        .filter_map(|value| {
            let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
        });
    let api_key = headers.get_all("x-api-key").iter();
    let api_key = api_key.filter_map(|value| value.to_str().ok());
    let mut shown: Vec<String> = bearer.chain(api_key).map(str::to_owned).collect();
    shown.extend(offered);
    shown.truncate(4);
    shown
}

/// Takes keys out of the subprotocols of a WebSocket, so that none is answered with.
fn take_subprotocol(headers: &mut HeaderMap) -> Option<String> {
    let upgrade = headers.get(header::UPGRADE)?.to_str().ok()?;
    if !upgrade.eq_ignore_ascii_case("websocket") {
        return None;
    }
    let lines = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let all: Vec<String> = lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
        .map(|one| one.trim().to_owned())
        .collect();
    let (keys, others): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|one| one.starts_with(SUBPROTOCOL_KEY));
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if let Ok(value) = HeaderValue::try_from(others.join(", "))
        && !others.is_empty()
    {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    let key = keys
        .first()
        .and_then(|key| key.strip_prefix(SUBPROTOCOL_KEY));
    key.map(str::to_owned)
}

/// Where no key is needed, a web page in the user's browser is the attacker: it must not get here
/// under a name that its owner points at us, nor from another site.
pub(super) fn check_browser(loopback: bool, request: &Request) -> Answer<()> {
    let refused = |what: &str| {
        Err(Failure::new(Code::Forbidden, what)
            .hint("with a key this is allowed: `ringfence key add NAME`")
            .into())
    };
    let host = host(request.uri(), request.headers());
    if loopback && !host.is_some_and(is_literal) {
        return refused(
            "requests without a key must name this server by an address or as localhost",
        );
    }
    for origin in request.headers().get_all(header::ORIGIN) {
        let authority = origin.to_str().ok().and_then(|text| {
            let rest = text.strip_prefix("http://");
            rest.or_else(|| text.strip_prefix("https://"))
        });
        let same = match (authority, host) {
            (Some(authority), Some(host)) => authority.eq_ignore_ascii_case(host),
            _ => false,
        };
        if !same {
            return refused("requests without a key must not come from other web sites");
        }
    }
    Ok(())
}

/// The name and port under which a client knows us.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let mut named = headers.get_all(header::HOST).iter();
    match (uri.authority(), named.next(), named.next()) {
        (Some(authority), None, None) => Some(authority.as_str()),
        (_, Some(host), None) => host.to_str().ok(),
        _ => None,
    }
}

/// An address, or the name that means this machine everywhere.
fn is_literal(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_literal() {
        for good in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:80",
            "10.1.2.3:1",
        ] {
            assert!(is_literal(good), "{good}");
        }
        for bad in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            "[evil]:80",
            "127.1",
        ] {
            assert!(!is_literal(bad), "{bad}");
        }
    }
}
