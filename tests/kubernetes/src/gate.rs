//! A way to the API server that a test can shut: it passes bytes on at a port of its own.

use crate::cluster::{Outcome, kubeconfig};
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Connections break, and new ones too.
    Shut,
    /// Nothing comes through, and nobody says so.
    Silent,
}

pub struct Gate {
    way: watch::Sender<Way>,
    folder: TempDir,
}

impl Gate {
    /// One that is open.
    pub async fn new() -> Outcome<Self> {
        let text = std::fs::read_to_string(kubeconfig()?)?;
        let (_, rest) = text.split_once("https://").ok_or("no address")?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !".:-".contains(c));
        let server = &rest[..end.unwrap_or(rest.len())];
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let own = listener.local_addr()?.to_string();
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("config"), text.replace(server, &own))?;
        let (way, state) = watch::channel(Way::Open);
        let server = server.to_owned();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(join(stream, server.clone(), state.clone()));
            }
        });
        Ok(Self { way, folder })
    }

    /// For who is to go through here.
    pub fn kubeconfig(&self) -> PathBuf {
        Path::join(self.folder.path(), "config")
    }

    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn join(stream: TcpStream, server: String, mut way: watch::Receiver<Way>) -> Outcome {
    pass(&mut way).await?;
    let (reader, writer) = stream.into_split();
    let (their_reader, their_writer) = TcpStream::connect(server).await?.into_split();
    let mut shut = way.clone();
    tokio::select! {
        done = copy(reader, their_writer, way.clone()) => done,
        done = copy(their_reader, writer, way) => done,
        _ = shut.wait_for(|way| *way == Way::Shut) => Ok(()),
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut way: watch::Receiver<Way>,
) -> Outcome {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = from.read(&mut buffer).await?;
        pass(&mut way).await?;
        to.write_all(&buffer[..count]).await?;
        if count == 0 {
            return Ok(());
        }
    }
}

/// Waits while the way is silent.
async fn pass(way: &mut watch::Receiver<Way>) -> Outcome {
    match *way.wait_for(|way| *way != Way::Silent).await? {
        Way::Shut => Err("shut".into()),
        _ => Ok(()),
    }
}
