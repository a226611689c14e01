//! Where the cluster is, how it is reached, and what its refusals mean.

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use kube::{Client, Error};
use ringfence_proto::{Code, Failure};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tower::ServiceExt as _;

/// How long the API server may take to take a connection, and to answer.
const CONNECTING: Duration = Duration::from_secs(5);
/// How long a request is tried again that an API server could not take.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long each try may take: on a connection that is dead nothing ever comes.
const ANSWER: Duration = Duration::from_secs(10);
/// The first pause between two tries, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Which cluster is meant.
#[derive(Debug, Clone, Default)]
pub struct Endpoint {
    /// A file in place of what `KUBECONFIG` and the home folder say.
    pub kubeconfig: Option<PathBuf>,
    /// A context of that file in place of its current one.
    pub context: Option<String>,
    /// In place of the context's own, or of that which a service account is of.
    pub namespace: Option<String>,
}

/// A cluster that is reached when it is first needed.
pub(super) struct Cluster {
    endpoint: Endpoint,
    reached: OnceCell<Reached>,
}

pub(super) struct Reached {
    pub(super) client: Client,
    pub(super) address: String,
    pub(super) namespace: String,
    /// We run in it ourselves, so addresses of pods can be reached.
    pub(super) inside: bool,
    /// Of the API server, such as (1, 20).
    pub(super) version: (u32, u32),
}

impl Cluster {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            reached: OnceCell::new(),
        }
    }

    pub(super) async fn reach(&self) -> Result<&Reached, Failure> {
        self.reached.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Reached, Failure> {
        let (mut config, inside) = self.config().await?;
        config.connect_timeout = Some(CONNECTING);
        // Each request has its own patience, and a watch must not end by a timeout of reading.
        config.default_retry = false;
        let agent = concat!("ringfence/", env!("CARGO_PKG_VERSION"));
        let agent = http::HeaderValue::from_static(agent);
        config.headers.push((http::header::USER_AGENT, agent));
        let address = config.cluster_url.to_string();
        let unreachable = |why: &dyn fmt::Display| {
            Failure::new(
                Code::Unavailable,
                format!("cannot reach a Kubernetes cluster at {address}"),
            )
            .hint("`kubectl version` tells more; KUBECONFIG names another")
            .detail(why)
        };
        let namespace = self.endpoint.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = client(config).map_err(|e| unreachable(&e))?;
        let asked = tokio::time::timeout(2 * CONNECTING, client.apiserver_version());
        let version = match asked.await {
            Ok(version) => version.map_err(|e| unreachable(&e))?,
            Err(_) => return Err(unreachable(&"it does not answer")),
        };
        Ok(Reached {
            client,
            address,
            namespace,
            inside,
            version: (number(&version.major), number(&version.minor)),
        })
    }

    /// A file, where there is one, else the service account of the pod that we are in.
    async fn config(&self) -> Result<(kube::Config, bool), Failure> {
        let none = |why: &dyn fmt::Display| {
            Failure::new(Code::NotFound, "no Kubernetes cluster is known here")
                .hint("KUBECONFIG names a file that does; in a pod, a service account is enough")
                .detail(why)
        };
        let endpoint = &self.endpoint;
        let options = KubeConfigOptions {
            context: endpoint.context.clone(),
            ..KubeConfigOptions::default()
        };
        let read = match &endpoint.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let by_file = match read {
            Ok(file) => kube::Config::from_custom_kubeconfig(file, &options).await,
            Err(error) => Err(error),
        };
        match by_file {
            Ok(config) => Ok((config, false)),
            Err(error) if endpoint.kubeconfig.is_some() || endpoint.context.is_some() => {
                Err(none(&error))
            }
            Err(_) => match kube::Config::incluster() {
                Ok(config) => Ok((config, true)),
                Err(error) => Err(none(&error)),
            },
        }
    }
}

/// The usual client, but for one thing: its small packets go out at once. A call through
/// `pods/exec` is several, and each would wait until the one before was confirmed.
fn client(config: kube::Config) -> Result<Client, Error> {
    if config.proxy_url.is_some() {
        return Client::try_from(config);
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let mut connector = TimeoutConnector::new(connector);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let executor = TokioExecutor::new();
    let http: hyper_util::client::legacy::Client<_, Body> =
        hyper_util::client::legacy::Builder::new(executor).build(connector);
    let http = http.map_err(tower::BoxError::from);
    // What is added last sees a request first.
    let builder = ClientBuilder::new(http, &config.default_namespace);
    let builder = builder.with_layer(&config.extra_headers_layer()?);
    Ok(match config.auth_layer()? {
        Some(auth) => builder
            .with_layer(&auth)
            .with_layer(&config.base_uri_layer())
            .build(),
        None => builder.with_layer(&config.base_uri_layer()).build(),
    })
}

/// Versions of some vendors end in `+`.
fn number(text: &str) -> u32 {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_default()
}

/// Does a request until the API server has taken it: one that is throttled, that conflicts with
/// another, or for which no API server is there, is tried again with growing pauses.
pub(super) async fn persist<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let begun = Instant::now();
    let mut pause = PAUSE;
    loop {
        let error = match tokio::time::timeout(ANSWER, attempt()).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(error)) => error,
            Err(_) => Error::Service("the API server does not answer".into()),
        };
        let wait = asked_wait(&error).unwrap_or(pause);
        if !is_passing(&error) || begun.elapsed() + wait > PATIENCE {
            return Err(error);
        }
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Whether the same may succeed a little later.
fn is_passing(error: &Error) -> bool {
    match error {
        Error::Api(status) => {
            matches!(status.code, 429 | 500 | 502 | 503 | 504)
                || is_quota_conflict(status)
                || is_new_namespace(status)
        }
        Error::Service(_) | Error::HyperError(_) | Error::ReadEvents(_) => true,
        _ => false,
    }
}

/// Two were counted at the same time; neither was refused.
fn is_quota_conflict(status: &Status) -> bool {
    status.code == 409 && status.message.contains("resourcequotas")
}

/// A namespace gets its first service account a moment after it was made.
fn is_new_namespace(status: &Status) -> bool {
    status.code == 403 && status.message.contains("error looking up service account")
}

/// What the API server itself wants us to wait.
fn asked_wait(error: &Error) -> Option<Duration> {
    let Error::Api(status) = error else {
        return None;
    };
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// The status that the API server answered with.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// What the cluster said, as a failure: `what` names the operation and the object.
pub(super) fn failed(what: impl fmt::Display, error: Error) -> Failure {
    let status = match error {
        Error::Api(status) => status,
        error => {
            let message = format!("{what}: the cluster's API server does not answer");
            return Failure::new(Code::Unavailable, message).detail(error);
        }
    };
    let said = first_line(&status.message);
    let message = format!("{what}: {said}");
    match status.code {
        403 if said.contains("exceeded quota") => {
            Failure::new(Code::Full, message).hint("the namespace's resource quota holds no more")
        }
        401 | 403 => Failure::new(Code::Forbidden, message)
            .hint("the role of deploy/ has what is needed; `kubectl auth can-i` shows it"),
        400 | 413 | 422 => Failure::new(Code::InvalidInput, message),
        404 => Failure::new(Code::NotFound, message),
        409 => Failure::new(Code::Conflict, message),
        _ => Failure::new(Code::Unavailable, message),
    }
}

/// Enough of a message to understand it.
pub(super) fn first_line(message: &str) -> &str {
    let line = message.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(400) {
        Some((end, _)) => &line[..end],
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn refusal(code: u16, message: &str) -> Error {
        let mut status = Status::failure(message, "");
        status.code = code;
        Error::Api(Box::new(status))
    }

    #[tokio::test(start_paused = true)]
    async fn what_may_pass_is_tried_again() {
        for (code, message, tries) in [
            (429, "slow down", 3),
            (503, "starting", 3),
            (
                409,
                "Operation cannot be fulfilled on resourcequotas \"q\"",
                3,
            ),
            (409, "pods \"a\" already exists", 1),
            (403, "exceeded quota: q", 1),
            (422, "invalid", 1),
        ] {
            let count = AtomicU32::new(0);
            let done = persist(|| async {
                match count.fetch_add(1, Ordering::Relaxed) {
                    0 | 1 => Err(refusal(code, message)),
                    _ => Ok(()),
                }
            })
            .await;
            assert_eq!(count.into_inner(), tries, "{message}");
            assert_eq!(done.is_ok(), tries > 1, "{message}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_tried_for_ever() {
        let refused = persist(|| async { Err::<(), _>(refusal(503, "away")) }).await;
        let silent = persist(std::future::pending::<Result<(), Error>>).await;
        for done in [refused, silent] {
            let failure = failed("cannot list", done.unwrap_err());
            assert_eq!(failure.code, Code::Unavailable);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_or_are_what_the_api_server_asks_for() {
        let pauses = async |asked: u32| {
            let tries = std::sync::Mutex::new(Vec::new());
            let done = persist(|| async {
                tries.lock().unwrap().push(Instant::now());
                let mut status = Status::failure("slow down", "");
                status.code = 429;
                let details = serde_json::json!({"retryAfterSeconds": asked});
                status.details = serde_json::from_value(details).unwrap();
                Err::<(), _>(Error::Api(Box::new(status)))
            });
            assert!(done.await.is_err());
            let tries = tries.into_inner().unwrap();
            let pauses = tries.windows(2).map(|pair| pair[1] - pair[0]);
            pauses.collect::<Vec<_>>()
        };
        let own = pauses(0).await;
        assert!(own.len() > 5 && own.is_sorted(), "{own:?}");
        assert_eq!(own.last(), Some(&LONGEST_PAUSE));
        let asked = pauses(4).await;
        assert_eq!(asked, [Duration::from_secs(4); 3]);
    }

    #[tokio::test]
    async fn small_packets_to_the_api_server_go_out_at_once() {
        use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = client(config).unwrap();
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            let count = stream.read(&mut request).await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
            stream.write_all(answer).await.unwrap();
            assert!(request[..count].starts_with(b"GET /version HTTP/1.1"));
            stream
        };
        let request = http::Request::get("/version").body(Vec::new()).unwrap();
        let (answer, _stream) = tokio::join!(client.request_text(request), serving);
        assert_eq!(answer.unwrap(), "ok");
        // Among all that this process has open, the client's end of the connection.
        let me = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let mut options = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
            let name = entry.unwrap().file_name();
            let number = name.to_str().unwrap().parse().unwrap();
            let Ok(copy) = pidfd_getfd(&me, number, PidfdGetfdFlags::empty()) else {
                continue;
            };
            let peer = rustix::net::getpeername(&copy).ok().flatten();
            let peer = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
            if peer == Some(address) {
                options.push(rustix::net::sockopt::tcp_nodelay(&copy).unwrap());
            }
        }
        assert_eq!(options, [true]);
    }

    #[test]
    fn a_quota_is_told_from_a_right() {
        let quota = failed("cannot make pod a", refusal(403, "exceeded quota: pods"));
        assert_eq!(quota.code, Code::Full);
        assert!(quota.message.contains("exceeded quota"), "{quota}");
        let right = failed("cannot make pod a", refusal(403, "pods is forbidden"));
        assert_eq!(right.code, Code::Forbidden);
    }
}
