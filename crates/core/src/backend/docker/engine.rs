//! Where the engine is, and how it is reached.

use crate::hex;
use bollard::errors::Error;
use ringfence_proto::{Code, Failure};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::OnceCell;

/// How long an engine may take to answer at all.
const GREETING: Duration = Duration::from_secs(10);
/// How long any one request may take, in seconds; starting a container on a busy host is the slowest.
const REQUEST: u64 = 60;

/// What of the caller's surroundings decides which engine is meant, as Docker's own tools read it.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// `DOCKER_HOST`
    pub host: Option<String>,
    /// `DOCKER_CONTEXT`
    pub context: Option<String>,
    /// `DOCKER_CERT_PATH`
    pub certificates: Option<PathBuf>,
    /// `DOCKER_TLS_VERIFY`
    pub tls: bool,
    /// Docker's folder of settings, usually `~/.docker`.
    pub config: PathBuf,
}

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    Unix(PathBuf),
    Tcp {
        address: String,
        /// The folder that holds `ca.pem`, `cert.pem` and `key.pem`.
        tls: Option<PathBuf>,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { address, .. } => write!(f, "tcp://{address}"),
        }
    }
}

#[derive(Deserialize)]
struct CurrentContext {
    #[serde(rename = "currentContext")]
    current: Option<String>,
}

#[derive(Deserialize)]
struct ContextMeta {
    #[serde(rename = "Endpoints")]
    endpoints: HashMap<String, ContextEndpoint>,
}

#[derive(Deserialize)]
struct ContextEndpoint {
    #[serde(rename = "Host")]
    host: String,
}

impl Endpoint {
    /// A host, else a context, else the usual socket.
    pub fn find(around: &Surroundings) -> Result<Self, Failure> {
        if let Some(host) = &around.host {
            let usual = || around.config.clone();
            let tls = (around.tls || around.certificates.is_some())
                .then(|| around.certificates.clone().unwrap_or_else(usual));
            return Self::parse(host, tls);
        }
        let context = around.context.clone().or_else(|| {
            let text = std::fs::read(around.config.join("config.json")).ok()?;
            serde_json::from_slice::<CurrentContext>(&text)
                .ok()?
                .current
        });
        match context.filter(|name| name != "default") {
            Some(name) => Self::of_context(&around.config.join("contexts"), &name),
            None => Ok(Self::Unix("/var/run/docker.sock".into())),
        }
    }

    /// `unix:///path`, `tcp://host:port`, `http://host:port` or `https://host:port`.
    pub fn parse(host: &str, tls: Option<PathBuf>) -> Result<Self, Failure> {
        let (scheme, rest) = host.split_once("://").unwrap_or(("", ""));
        match scheme {
            "unix" if rest.starts_with('/') => Ok(Self::Unix(rest.into())),
            "tcp" | "http" | "https" if !rest.is_empty() => Ok(Self::Tcp {
                address: rest.trim_end_matches('/').to_owned(),
                tls,
            }),
            _ => Err(
                Failure::invalid(format!("`{host}` is not where an engine can be reached")).hint(
                    "unix:///path/to/docker.sock or tcp://host:port; for ssh, forward its socket",
                ),
            ),
        }
    }

    fn of_context(contexts: &Path, name: &str) -> Result<Self, Failure> {
        let unknown = |why: &str| {
            Failure::new(
                Code::NotFound,
                format!("cannot use the Docker context `{name}`: {why}"),
            )
            .hint("`docker context ls` lists them; DOCKER_HOST names an engine directly")
        };
        let folder = hex(Sha256::digest(name));
        let meta = std::fs::read(contexts.join("meta").join(&folder).join("meta.json"))
            .map_err(|e| unknown(&e.to_string()))?;
        let meta: ContextMeta =
            serde_json::from_slice(&meta).map_err(|e| unknown(&e.to_string()))?;
        let endpoint = meta
            .endpoints
            .get("docker")
            .ok_or_else(|| unknown("it names no engine"))?;
        let tls = contexts.join("tls").join(&folder).join("docker");
        Self::parse(&endpoint.host, tls.is_dir().then_some(tls))
    }

    /// Paths mean the same to this engine as to us.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

/// An engine that is reached when it is first needed.
pub(super) struct Engine {
    pub(super) endpoint: Endpoint,
    client: OnceCell<bollard::Docker>,
}

impl Engine {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            client: OnceCell::new(),
        }
    }

    pub(super) async fn client(&self) -> Result<&bollard::Docker, Failure> {
        self.client.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<bollard::Docker, Failure> {
        let version = bollard::API_DEFAULT_VERSION;
        let client = match &self.endpoint {
            Endpoint::Unix(path) => {
                bollard::Docker::connect_with_unix(&path.to_string_lossy(), REQUEST, version)
            }
            Endpoint::Tcp { address, tls: None } => {
                bollard::Docker::connect_with_http(address, REQUEST, version)
            }
            Endpoint::Tcp {
                address,
                tls: Some(folder),
            } => bollard::Docker::connect_with_ssl(
                address,
                &folder.join("key.pem"),
                &folder.join("cert.pem"),
                &folder.join("ca.pem"),
                REQUEST,
                version,
            ),
        }
        .map_err(|e| self.unreachable(&e))?;
        // Paths of this client name no version, so every engine answers by its own.
        match tokio::time::timeout(GREETING, client.ping()).await {
            Ok(Ok(_)) => Ok(client),
            Ok(Err(error)) => Err(self.unreachable(&error)),
            Err(_) => Err(self.unreachable(&Error::RequestTimeoutError)),
        }
    }

    /// Whether there is no engine at all, in place of one that can't be used.
    pub(super) fn is_absent(&self) -> bool {
        match &self.endpoint {
            Endpoint::Unix(path) => path.try_exists().is_ok_and(|there| !there),
            Endpoint::Tcp { .. } => false,
        }
    }

    /// Why there is no way to it, and what to do.
    fn unreachable(&self, error: &Error) -> Failure {
        const OTHER: &str = "name another with DOCKER_HOST or `docker context use`";
        let endpoint = &self.endpoint;
        let failure = |why: &str, hint: String| {
            let message = format!("cannot reach the Docker engine at {endpoint}: {why}");
            Failure::new(Code::Unavailable, message)
                .hint(hint)
                .detail(error)
        };
        if self.is_absent() {
            let message = format!("there is no Docker engine at {endpoint}");
            return Failure::new(Code::Unavailable, message)
                .hint(format!("install Docker and start it, or {OTHER}"))
                .detail(error);
        }
        let tls = match endpoint {
            Endpoint::Tcp { tls, .. } => tls.as_ref(),
            Endpoint::Unix(_) => None,
        };
        match (error, cause(error)) {
            (_, Some(ErrorKind::PermissionDenied)) => failure(
                "permission denied",
                format!("join its group (`usermod -aG docker USER`, then log in anew), or {OTHER}"),
            ),
            (_, Some(ErrorKind::ConnectionRefused)) => failure(
                "nothing listens there",
                format!("start it (`systemctl start docker`), or {OTHER}"),
            ),
            (Error::RequestTimeoutError, _) => {
                failure("it does not answer", format!("start it anew, or {OTHER}"))
            }
            (Error::DockerResponseServerError { message, .. }, _) if message.contains("HTTPS") => {
                failure(
                    "it wants TLS",
                    "set DOCKER_TLS_VERIFY=1, and DOCKER_CERT_PATH to the folder with ca.pem, \
                     cert.pem and key.pem"
                        .to_owned(),
                )
            }
            (Error::DockerResponseServerError { message, .. }, _) => {
                failure(first_line(message), format!("ask who runs it, or {OTHER}"))
            }
            _ => match tls {
                Some(folder) => failure(
                    "TLS failed",
                    format!(
                        "check ca.pem, cert.pem and key.pem in {} (DOCKER_CERT_PATH)",
                        folder.display()
                    ),
                ),
                None => failure("it does not answer as one", format!("start it, or {OTHER}")),
            },
        }
    }
}

/// What the system said, below all that wraps it.
fn cause(error: &Error) -> Option<ErrorKind> {
    // This one passes its own cause off as another's.
    if let Error::IOError { err } = error {
        return Some(err.kind());
    }
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            return Some(io.kind());
        }
        next = error.source();
    }
    None
}

/// The status that the engine answered with.
pub(super) fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// Podman mounts files in memory, with fewer options than Docker.
pub(super) fn knows_fewer_options(error: &Error) -> bool {
    matches!(error, Error::DockerResponseServerError { message, .. } if message.contains("unknown mount option"))
}

/// An answer that is no failure where something may be gone already.
pub(super) fn unless_gone(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(error) if status(&error) == Some(404) => Ok(()),
        other => other,
    }
}

/// What the engine said, as a failure: `what` names the operation and the object.
pub(super) fn failed(what: impl fmt::Display, error: Error) -> Failure {
    match error {
        Error::DockerResponseServerError {
            status_code,
            message,
        } => {
            let code = match status_code {
                _ if message.contains("no space left on device") => Code::NoSpace,
                400 if is_missing_source(&message) => Code::NotFound,
                400 => Code::InvalidInput,
                401 | 403 => Code::Forbidden,
                404 => Code::NotFound,
                409 => Code::Conflict,
                501 => Code::Unenforceable,
                _ => Code::Unavailable,
            };
            Failure::new(code, format!("{what}: {}", first_line(&message)))
        }
        Error::RequestTimeoutError => Failure::new(
            Code::Unavailable,
            format!("{what}: the engine does not answer"),
        ),
        error => Failure::new(Code::Unavailable, format!("{what}: the engine went away"))
            .hint("start it again, or name another with DOCKER_HOST or `docker context use`")
            .detail(error),
    }
}

/// A folder of the host that is to be mounted and is not there.
fn is_missing_source(message: &str) -> bool {
    message.contains("bind source path does not exist")
}

/// Enough of a message to understand it.
fn first_line(message: &str) -> &str {
    let line = message.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(400) {
        Some((end, _)) => &line[..end],
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_refuses_is_not_one_that_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let engine = Engine::new(Endpoint::Unix(socket.clone()));
        let io = |kind: ErrorKind| Error::IOError { err: kind.into() };
        let failure = engine.unreachable(&io(ErrorKind::NotFound));
        assert!(
            failure
                .message
                .starts_with("there is no Docker engine at unix:///")
        );
        assert!(engine.is_absent());
        std::fs::write(&socket, "").unwrap();
        assert!(!engine.is_absent());
        for (error, why, way_out) in [
            (
                io(ErrorKind::PermissionDenied),
                "permission denied",
                "usermod",
            ),
            (
                io(ErrorKind::ConnectionRefused),
                "nothing listens there",
                "systemctl start",
            ),
            (
                Error::RequestTimeoutError,
                "it does not answer",
                "start it anew",
            ),
        ] {
            let failure = engine.unreachable(&error);
            let message = format!(
                "cannot reach the Docker engine at {}: {why}",
                engine.endpoint
            );
            assert_eq!(failure.message, message);
            assert!(failure.hint.unwrap().contains(way_out), "{why}");
        }
    }

    #[test]
    fn a_host_goes_before_a_context_and_that_before_the_usual_socket() {
        let folder = tempfile::tempdir().unwrap();
        let mut around = Surroundings {
            config: folder.path().to_owned(),
            ..Surroundings::default()
        };
        assert_eq!(
            Endpoint::find(&around).unwrap(),
            Endpoint::Unix("/var/run/docker.sock".into())
        );
        let hash = hex(Sha256::digest("far"));
        let meta = folder.path().join("contexts/meta").join(&hash);
        let tls = folder
            .path()
            .join("contexts/tls")
            .join(&hash)
            .join("docker");
        std::fs::create_dir_all(&meta).unwrap();
        std::fs::create_dir_all(&tls).unwrap();
        let text = r#"{"Name":"far","Metadata":{},"Endpoints":{"docker":{"Host":"tcp://far:2376","SkipTLSVerify":false}}}"#;
        std::fs::write(meta.join("meta.json"), text).unwrap();
        std::fs::write(
            folder.path().join("config.json"),
            r#"{"currentContext":"far"}"#,
        )
        .unwrap();
        let far = Endpoint::Tcp {
            address: "far:2376".into(),
            tls: Some(tls),
        };
        assert_eq!(Endpoint::find(&around).unwrap(), far);
        around.context = Some("nowhere".into());
        assert_eq!(Endpoint::find(&around).unwrap_err().code, Code::NotFound);
        around.host = Some("unix:///run/other.sock".into());
        assert_eq!(
            Endpoint::find(&around).unwrap(),
            Endpoint::Unix("/run/other.sock".into())
        );
        around.host = Some("tcp://near:2376".into());
        around.tls = true;
        let near = Endpoint::Tcp {
            address: "near:2376".into(),
            tls: Some(folder.path().to_owned()),
        };
        assert_eq!(Endpoint::find(&around).unwrap(), near);
        for bad in ["", "near", "ssh://near", "unix://relative", "tcp://"] {
            around.host = Some(bad.into());
            assert_eq!(
                Endpoint::find(&around).unwrap_err().code,
                Code::InvalidInput,
                "{bad}"
            );
        }
    }
}
