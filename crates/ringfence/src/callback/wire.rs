//! One HTTP/1.1 request on a connection of its own. No proxy is asked, no redirect followed, no
//! name looked up: where it goes was decided before.

use super::target::Target;
use super::{Missed, too_large};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper_util::rt::TokioIo;
use ringfence_core::proto::TOOL_REPLY_LIMIT;
use ringfence_core::{Code, Failure};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use url::{Host, Position};

/// How long a connection to one of several addresses may take, and what makes it secure.
const CONNECT: Duration = Duration::from_secs(10);

/// Most bytes of the headers of a reply.
const HEADERS: usize = 64 << 10;

const AGENT: &str = concat!("ringfence/", env!("CARGO_PKG_VERSION"));

pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

pub(super) type Stream = Box<dyn Io>;

fn unreachable(message: &str, detail: impl std::fmt::Display) -> Missed {
    Missed::new(
        "unreachable",
        format!("cannot reach the callback: {message}"),
    )
    .detail(detail)
}

/// Connects to the first of these that answers.
pub(super) async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Missed> {
    let mut last = unreachable("no address", "");
    for address in addresses {
        match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => {
                let why = match error.kind() {
                    std::io::ErrorKind::ConnectionRefused => "connection refused",
                    _ => "no connection",
                };
                last = unreachable(why, error);
            }
            Err(_) => last = unreachable("no answer", "the connection takes too long"),
        }
    }
    Err(last)
}

/// What this host trusts. Read once, when it is first needed.
pub(crate) async fn tls() -> Result<TlsConnector, Failure> {
    let failed = |what: &str| {
        Failure::new(
            Code::Unavailable,
            format!("cannot use certificates: {what}"),
        )
        .hint("install the system's certificates, or name a file with SSL_CERT_FILE")
    };
    let loaded = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs)
        .await
        .map_err(|e| failed("reading them broke off").detail(e))?;
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(loaded.certs);
    if good == 0 {
        let errors: Vec<_> = loaded.errors.iter().map(ToString::to_string).collect();
        return Err(failed("there are none").detail(errors.join("; ")));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| failed("no common version").detail(e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(super) async fn secure(
    tls: &TlsConnector,
    target: &Target,
    stream: TcpStream,
) -> Result<Stream, Missed> {
    let name = match &target.host {
        Host::Domain(name) => ServerName::try_from(name.clone()),
        Host::Ipv4(address) => Ok(ServerName::from(std::net::IpAddr::V4(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(std::net::IpAddr::V6(*address))),
    };
    let name = name.map_err(|e| unreachable("no name for a certificate", e))?;
    let stream = tokio::time::timeout(CONNECT, tls.connect(name, stream))
        .await
        .map_err(|_| unreachable("no answer", "the secure connection takes too long"))?
        .map_err(|e| unreachable("no secure connection", e))?;
    Ok(Box::new(stream))
}

/// Sends one request and reads the reply. Ends with the connection when it is dropped.
pub(super) async fn post(
    stream: Stream,
    target: &Target,
    token: &str,
    body: Bytes,
) -> Result<Bytes, Missed> {
    let request = request(target, token, body)?;
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(HEADERS)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| unreachable("the connection broke off", e))?;
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let reply = sender
        .send_request(request)
        .await
        .map_err(|e| unreachable("the connection broke off", e))?;
    let status = reply.status();
    if !status.is_success() {
        // What it says may be for others than code in a sandbox.
        let more = match status.is_redirection() {
            true => ", and redirects are not followed",
            false => "",
        };
        let message = format!(
            "the callback answered with status {}{more}",
            status.as_u16()
        );
        return Err(Missed::new("status", message));
    }
    let body = Limited::new(reply.into_body(), TOOL_REPLY_LIMIT);
    let read = body.collect().await.map_err(|e| {
        if e.is::<LengthLimitError>() {
            return too_large();
        }
        Missed::new("unreachable", "the callback's reply broke off").detail(e)
    })?;
    Ok(read.to_bytes())
}

fn request(target: &Target, token: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Missed> {
    let failed = |e: http::Error| Missed::new("refused", "the call can't be written").detail(e);
    let mut bearer =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|e| failed(e.into()))?;
    bearer.set_sensitive(true);
    let host = &target.url[Position::BeforeHost..Position::AfterPort];
    Request::post(&target.url[Position::BeforePath..Position::AfterQuery])
        .header(HOST, host)
        .header(AUTHORIZATION, bearer)
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json")
        .header(USER_AGENT, AGENT)
        .body(Full::new(body))
        .map_err(failed)
}
