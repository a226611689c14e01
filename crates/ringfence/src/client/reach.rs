//! Where a server is, and a connection to it.

use crate::callback::tls;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use ringfence_core::{Code, Failure};
use rustls::pki_types::ServerName;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use url::Url;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(15);

/// Bytes on their way inside this process.
const BUFFER: usize = 256 << 10;

pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

pub(crate) type Stream = Box<dyn Io>;

#[derive(Clone)]
pub(crate) enum Place {
    Http {
        host: String,
        port: u16,
    },
    Https {
        host: String,
        port: u16,
    },
    Unix(PathBuf),
    /// Inside this process.
    Local(Router),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { host, port } => write!(f, "http://{host}:{port}"),
            Self::Https { host, port } => write!(f, "https://{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Local(_) => f.write_str("the server inside this command"),
        }
    }
}

impl Place {
    pub(crate) fn parse(text: &str) -> Result<Self, Failure> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let wrong = || {
            Failure::invalid(format!("cannot use the server address {text}"))
                .hint("such as http://127.0.0.1:8080, https://sandboxes.example or unix:/run/ringfence.sock")
        };
        let url = Url::parse(text).map_err(|e| wrong().detail(e))?;
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(wrong());
        };
        if !matches!(url.path(), "" | "/" | "/v1" | "/v1/") || !url.username().is_empty() {
            return Err(wrong());
        }
        let host = host.to_owned();
        match url.scheme() {
            "http" => Ok(Self::Http { host, port }),
            "https" => Ok(Self::Https { host, port }),
            _ => Err(wrong()),
        }
    }

    /// What a request says about where it goes.
    pub(super) fn host(&self) -> String {
        match self {
            Self::Http { host, port } | Self::Https { host, port } => format!("{host}:{port}"),
            Self::Unix(_) | Self::Local(_) => "localhost".to_owned(),
        }
    }

    pub(super) async fn connect(&self) -> Result<Stream, Failure> {
        let connected = tokio::time::timeout(CONNECT, self.dial()).await;
        connected.unwrap_or_else(|_| Err(self.unreachable(&"the connection takes too long")))
    }

    fn unreachable(&self, error: &dyn fmt::Display) -> Failure {
        Failure::new(Code::Unavailable, format!("cannot reach {self}"))
            .hint("is the server running? `ringfence serve` starts one")
            .detail(error)
    }

    async fn dial(&self) -> Result<Stream, Failure> {
        let failed = |e: std::io::Error| self.unreachable(&e);
        match self {
            Self::Http { host, port } => {
                let stream = tcp(host, *port).await.map_err(failed)?;
                Ok(Box::new(stream))
            }
            Self::Https { host, port } => {
                let bare = host.trim_matches(['[', ']']).to_owned();
                let name = ServerName::try_from(bare).map_err(|e| self.unreachable(&e))?;
                let stream = tcp(host, *port).await.map_err(failed)?;
                let stream = tls().await?.connect(name, stream).await.map_err(failed)?;
                Ok(Box::new(stream))
            }
            Self::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(failed)?;
                Ok(Box::new(stream))
            }
            Self::Local(router) => {
                let (ours, theirs) = tokio::io::duplex(BUFFER);
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(async move {
                    // One that breaks is seen by its other end.
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection_with_upgrades(TokioIo::new(theirs), service)
                        .await;
                });
                Ok(Box::new(ours))
            }
        }
    }
}

async fn tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        let shown = |text: &str| Place::parse(text).map(|place| place.to_string());
        assert_eq!(
            shown("http://127.0.0.1:8080/").unwrap(),
            "http://127.0.0.1:8080"
        );
        assert_eq!(
            shown("https://box.example").unwrap(),
            "https://box.example:443"
        );
        assert_eq!(shown("unix:/run/x.sock").unwrap(), "unix:/run/x.sock");
        for bad in [
            "",
            "localhost:8080",
            "ftp://x",
            "http://u:p@x",
            "http://x/y",
        ] {
            assert!(Place::parse(bad).is_err(), "{bad}");
        }
    }
}
