//! The way in for those who come later, where an engine can start a process inside but lends no
//! socket: an abstract socket, which nothing inside can remove or take over while this lives. Code
//! inside can reach it too, so who comes in must first say a secret that only the host knows.

use crate::stdio::Stdio;
use ringfence_guest::Guest;
use ringfence_proto::SECRET_LENGTH;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};

type Secret = [u8; SECRET_LENGTH];

/// How long a caller may take to say the secret.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Door {
    listener: UnixListener,
    secret: Secret,
}

impl Door {
    /// Opens a door to which the next bytes of this stream are the secret.
    pub(crate) async fn open(name: &str, first: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let listener = StdListener::bind_addr(&address(name)?)?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let mut secret = [0; SECRET_LENGTH];
        first.read_exact(&mut secret).await?;
        Ok(Self { listener, secret })
    }

    pub(crate) async fn serve(self, guest: Arc<Guest>) {
        let secret = self.secret;
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(admit(stream, secret, Arc::clone(&guest)))),
                // Out of descriptors or memory: others must end first.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

async fn admit(mut stream: UnixStream, secret: Secret, guest: Arc<Guest>) {
    let mut said = [0; SECRET_LENGTH];
    let heard = tokio::time::timeout(PATIENCE, stream.read_exact(&mut said)).await;
    if matches!(heard, Ok(Ok(_))) && is_same(&said, &secret) {
        guest.serve(stream).await;
    }
}

/// Compares without telling by the time it takes how much of it was right.
fn is_same(said: &Secret, secret: &Secret) -> bool {
    let differing = said.iter().zip(secret).map(|(a, b)| a ^ b);
    std::hint::black_box(differing.fold(0, |all, bits| all | bits)) == 0
}

/// Joins standard input and output to a door; the caller says the secret.
pub(crate) async fn relay(name: &str) -> io::Result<()> {
    let door = StdStream::connect_addr(&address(name)?)?;
    door.set_nonblocking(true)?;
    let mut door = UnixStream::from_std(door)?;
    let mut stdio = Stdio::new()?;
    copy_bidirectional(&mut stdio, &mut door).await.map(drop)
}

fn address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ringfence/{name}"))
}
