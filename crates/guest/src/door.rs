//! The way in where an engine lends no socket: an abstract socket, which nothing inside can remove
//! or take over while this lives, and a port where the host can reach the sandbox's address. Code
//! inside can reach both too, so who comes in must first say a secret that only the host knows.

use crate::Guest;
use crate::stdio::Stdio;
use ringfence_proto::SECRET_LENGTH;
use sha2::{Digest as _, Sha256};
use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What a secret is known by. It may be seen: nobody finds the secret from it.
pub(crate) type Digest = [u8; 32];

/// How long a caller may take to say the secret.
const PATIENCE: Duration = Duration::from_secs(10);

/// Callers at a time who have not said it. When another comes, who has waited longest goes: a crowd
/// takes no descriptors from the guest, and keeps out nobody who says it at once.
const STRANGERS: usize = 64;

pub(crate) struct Door {
    listener: UnixListener,
    port: Option<TcpListener>,
    digest: Digest,
    /// Who is inside now.
    visitors: watch::Sender<usize>,
}

/// The secret in hexadecimal digits of its digest, as a command line has it.
pub(crate) fn digest(text: &str) -> Option<Digest> {
    let mut digest = [0; 32];
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (byte, at) in digest.iter_mut().zip((0..text.len()).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(digest)
}

impl Door {
    /// Opens a door to which the next bytes of this stream are the secret.
    pub(crate) async fn open(name: &str, first: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        // Whoever comes before the secret is known waits.
        let listener = listen(name)?;
        let mut secret = [0; SECRET_LENGTH];
        first.read_exact(&mut secret).await?;
        Self::with(listener, Sha256::digest(secret).into(), None)
    }

    /// Opens a door for those who know the secret that has this digest, at a port too.
    pub(crate) fn known(
        name: &str,
        digest: Digest,
        port: Option<StdTcpListener>,
    ) -> io::Result<Self> {
        Self::with(listen(name)?, digest, port)
    }

    fn with(
        listener: UnixListener,
        digest: Digest,
        port: Option<StdTcpListener>,
    ) -> io::Result<Self> {
        let port = match port {
            None => None,
            Some(port) => {
                port.set_nonblocking(true)?;
                Some(TcpListener::from_std(port)?)
            }
        };
        Ok(Self {
            listener,
            port,
            digest,
            visitors: watch::channel(0).0,
        })
    }

    /// Changes with every visitor who comes or goes.
    pub(crate) fn visitors(&self) -> watch::Receiver<usize> {
        self.visitors.subscribe()
    }

    pub(crate) async fn serve(self, guest: Arc<Guest>) {
        let mut strangers: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let at_port = async {
                match &self.port {
                    Some(port) => port.accept().await,
                    None => pending().await,
                }
            };
            let came: io::Result<Box<dyn Stream>> = tokio::select! {
                came = self.listener.accept() => came.map(|(stream, _)| Box::new(stream) as _),
                came = at_port => came.map(|(stream, _)| {
                    let _ = stream.set_nodelay(true);
                    Box::new(stream) as _
                }),
            };
            match came {
                Ok(stream) => {
                    let (guest, visitors) = (Arc::clone(&guest), self.visitors.clone());
                    let stranger = tokio::spawn(admit(stream, self.digest, guest, visitors));
                    strangers.retain(|stranger| !stranger.is_finished());
                    if strangers.len() == STRANGERS
                        && let Some(longest) = strangers.pop_front()
                    {
                        longest.abort();
                    }
                    strangers.push_back(stranger.abort_handle());
                }
                // Out of descriptors or memory: others must end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&address(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Comes back when nobody has been inside for so long.
pub(crate) async fn alone(mut visitors: watch::Receiver<usize>, limit: Duration) {
    loop {
        let somebody = visitors.wait_for(|count| *count > 0);
        if tokio::time::timeout(limit, somebody).await.is_err() {
            return;
        }
        let _ = visitors.wait_for(|count| *count == 0).await;
    }
}

async fn admit(
    mut stream: Box<dyn Stream>,
    digest: Digest,
    guest: Arc<Guest>,
    visitors: watch::Sender<usize>,
) {
    let mut said = [0; SECRET_LENGTH];
    let heard = tokio::time::timeout(PATIENCE, stream.read_exact(&mut said)).await;
    if matches!(heard, Ok(Ok(_))) && is_same(&Sha256::digest(said).into(), &digest) {
        tokio::spawn(async move {
            visitors.send_modify(|count| *count += 1);
            guest.serve(stream).await;
            visitors.send_modify(|count| *count -= 1);
        });
    }
}

/// Compares without telling by the time it takes how much of it was right.
fn is_same(said: &Digest, known: &Digest) -> bool {
    let differing = said.iter().zip(known).map(|(a, b)| a ^ b);
    std::hint::black_box(differing.fold(0, |all, bits| all | bits)) == 0
}

/// Joins standard input and output to a door; the caller says the secret.
pub(crate) async fn relay(name: &str) -> io::Result<()> {
    let begun = std::time::Instant::now();
    let door = loop {
        match StdStream::connect_addr(&address(name)?) {
            // A guest that has only just been started opens it in a moment.
            Err(_) if begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            connected => break connected?,
        }
    };
    door.set_nonblocking(true)?;
    let mut door = UnixStream::from_std(door)?;
    let mut stdio = Stdio::new()?;
    copy_bidirectional(&mut stdio, &mut door).await.map(drop)
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ringfence/{name}"))
}
