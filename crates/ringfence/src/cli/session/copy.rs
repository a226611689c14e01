//! `ringfence cp`: files and folders, into a session and out of it, as tar streams.

use crate::cli::progress::Transfer;
use crate::client::{self, Body, Client, ServerArgs};
use bytes::Bytes;
use clap::Args;
use http::{Method, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use ringfence_core::{Code, Failure};
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc as blocking;
use tokio::sync::mpsc;

/// Bytes that are moved at a time.
const CHUNK: usize = 128 << 10;

const EXAMPLES: &str = "\
Examples:
  ringfence cp data.csv work:                into the workspace
  ringfence cp ./project work:src            a folder, as /workspace/src
  ringfence cp work:out/chart.png .
  ringfence cp work:. backup                 the whole workspace";

/// Copies files into a sandbox or out of it
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Copy {
    /// A file or folder: PATH here, or SESSION:PATH
    #[arg(value_name = "FROM")]
    from: String,

    /// Where to: SESSION:PATH, or PATH here; into a folder that is there, else under that name
    #[arg(value_name = "TO")]
    to: String,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

/// One side of a copy.
enum Side {
    Here(PathBuf),
    There { session: String, path: String },
}

impl Side {
    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            // `./a:b` is a file here.
            Some((session, path)) if !session.is_empty() && !session.contains('/') => Self::There {
                session: session.to_owned(),
                path: if path.is_empty() { "." } else { path }.to_owned(),
            },
            _ => Self::Here(PathBuf::from(text)),
        }
    }
}

impl Copy {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let (from, to) = (Side::parse(&self.from), Side::parse(&self.to));
        let bytes = match (from, to) {
            (Side::Here(from), Side::There { session, path }) => self
                .server
                .with(async |client| upload(&client, &from, &session, &path).await)?,
            (Side::There { session, path }, Side::Here(to)) => self
                .server
                .with(async |client| download(&client, &session, &path, &to).await)?,
            _ => {
                let message = "one side is here and the other is SESSION:PATH";
                return Err(Failure::invalid(message).hint("such as `ringfence cp a.txt work:`"));
            }
        };
        if self.json {
            crate::cli::say_json(&json!({"from": self.from, "to": self.to, "bytes": bytes}))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What is at a path of a session.
async fn kind(client: &Client, session: &str, path: &str) -> Result<Option<String>, Failure> {
    let path = format!("{session}/files/stat?path={}", client::segment(path));
    match client.get::<Value>(&path).await {
        Ok(entry) => Ok(entry["kind"].as_str().map(str::to_owned)),
        Err(failure) if failure.code == Code::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

async fn upload(client: &Client, from: &Path, session: &str, to: &str) -> Result<u64, Failure> {
    let failed = |e: &io::Error| Failure::io(format!("cannot read {}", from.display()), e);
    let whole = fs::canonicalize(from).map_err(|e| failed(&e))?;
    let name = whole
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let session = client::session(session);
    // The first use of a name makes its session.
    let made: Value = client
        .ask(
            Method::POST,
            &format!("{session}/files/mkdir"),
            Some(&json!({"path": "."})),
        )
        .await?;
    drop(made);
    let into = kind(client, &session, to).await?.as_deref() == Some("folder");
    let (folder, name) = match (into, to.trim_end_matches('/').rsplit_once('/')) {
        (true, _) => (to.to_owned(), name),
        (false, Some((folder, name))) => (folder.to_owned(), name.to_owned()),
        (false, None) => (".".to_owned(), to.to_owned()),
    };
    let folder = if folder.is_empty() {
        "/".to_owned()
    } else {
        folder
    };
    let body = json!({"path": folder});
    let _: Value = client
        .ask(Method::POST, &format!("{session}/files/mkdir"), Some(&body))
        .await?;
    let progress = Transfer::new(&format!("to {to}"), size(&whole));
    let (stream, counted) = packed(whole, name, progress);
    let path = format!("{session}/tar?path={}", client::segment(&folder));
    let kind = [(header::CONTENT_TYPE, "application/x-tar")];
    client.send(Method::PUT, &path, &kind, stream).await?;
    counted.recv().unwrap_or(Ok(0)).map_err(|e| failed(&e))
}

/// The bytes of a file, or of all files below a folder; those that can't be read count nothing.
fn size(path: &Path) -> u64 {
    let Ok(about) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !about.is_dir() {
        return about.len();
    }
    let entries = fs::read_dir(path).into_iter().flatten();
    entries
        .filter_map(Result::ok)
        .map(|entry| size(&entry.path()))
        .sum()
}

/// A file or folder as an archive, written by a thread, and how many bytes that were in the end.
fn packed(
    path: PathBuf,
    name: String,
    progress: Transfer,
) -> (Body, blocking::Receiver<io::Result<u64>>) {
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(4);
    let (done, counted) = blocking::channel();
    std::thread::spawn(move || {
        let mut archive = tar::Builder::new(Sending {
            sender: sender.clone(),
            progress,
            bytes: 0,
        });
        archive.follow_symlinks(false);
        let written = match path.is_dir() {
            true => archive.append_dir_all(&name, &path),
            false => archive.append_path_with_name(&path, &name),
        };
        let written = written.and_then(|()| archive.into_inner());
        if let Err(error) = &written {
            // The other side must not take a part for the whole.
            let _ = sender.blocking_send(Err(io::Error::other(error.to_string())));
        }
        let _ = done.send(written.map(|sent| sent.bytes));
    });
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async {
        let item = receiver.recv().await?;
        Some((item.map(Frame::data), receiver))
    });
    (StreamBody::new(stream).boxed_unsync(), counted)
}

struct Sending {
    sender: mpsc::Sender<io::Result<Bytes>>,
    progress: Transfer,
    bytes: u64,
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = &bytes[..bytes.len().min(CHUNK)];
        let sent = self.sender.blocking_send(Ok(Bytes::copy_from_slice(part)));
        sent.map_err(|_| io::ErrorKind::BrokenPipe)?;
        self.bytes += part.len() as u64;
        self.progress.at(self.bytes);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn download(client: &Client, session: &str, from: &str, to: &Path) -> Result<u64, Failure> {
    let session = client::session(session);
    let there = kind(client, &session, from).await?.ok_or_else(|| {
        Failure::new(
            Code::NotFound,
            format!("cannot copy {from}: it is not there"),
        )
    })?;
    let name = from
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(from);
    let into = to.is_dir() && !matches!(name, "." | "..");
    let target = if into { to.join(name) } else { to.to_owned() };
    let failed = |e: io::Error| Failure::io(format!("cannot write {}", target.display()), &e);
    let path = client::segment(from);
    if there != "folder" {
        let progress = Transfer::new(&format!("from {from}"), 0);
        let path = format!("{session}/files?path={path}");
        let answer = client
            .send(Method::GET, &path, &[], client::empty())
            .await?;
        let mut file = fs::File::create(&target).map_err(failed)?;
        return received(answer, progress, |bytes| file.write_all(bytes))
            .await?
            .map_err(failed);
    }
    fs::create_dir_all(&target).map_err(failed)?;
    let progress = Transfer::new(&format!("from {from}"), 0);
    let path = format!("{session}/tar?path={path}");
    let answer = client
        .send(Method::GET, &path, &[], client::empty())
        .await?;
    let (sender, receiver) = blocking::sync_channel::<Vec<u8>>(4);
    let folder = target.clone();
    let unpacked = std::thread::spawn(move || unpack(Receiving::new(receiver), &folder));
    let got = received(answer, progress, |bytes| {
        // Whoever unpacks says itself why it has stopped.
        let _ = sender.send(bytes.to_vec());
        Ok(())
    })
    .await;
    drop(sender);
    let unpacked = unpacked
        .join()
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    let bytes = got?.map_err(failed)?;
    unpacked.map_err(failed)?;
    Ok(bytes)
}

/// Hands on a body as it comes, and counts it.
async fn received(
    answer: http::Response<hyper::body::Incoming>,
    mut progress: Transfer,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<io::Result<u64>, Failure> {
    let mut body = answer.into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|e| Failure::new(Code::Unavailable, "the copy broke off").detail(e))?;
        if let Ok(data) = frame.into_data() {
            if let Err(error) = take(&data) {
                return Ok(Err(error));
            }
            bytes += data.len() as u64;
            progress.at(bytes);
        }
    }
    Ok(Ok(bytes))
}

/// The archive was made in a sandbox: nothing of it lands outside of the folder, and nothing but
/// files, folders and links is made.
fn unpack(archive: impl Read, folder: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_file() || kind.is_dir() || kind.is_symlink() {
            entry.set_preserve_permissions(false);
            entry.unpack_in(folder)?;
        }
    }
    Ok(())
}

struct Receiving {
    receiver: blocking::Receiver<Vec<u8>>,
    held: io::Cursor<Vec<u8>>,
}

impl Receiving {
    fn new(receiver: blocking::Receiver<Vec<u8>>) -> Self {
        Self {
            receiver,
            held: io::Cursor::default(),
        }
    }
}

impl Read for Receiving {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.held.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match self.receiver.recv() {
                Ok(bytes) => self.held = io::Cursor::new(bytes),
                Err(_) => return Ok(0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart() {
        assert!(matches!(Side::parse("./a:b"), Side::Here(_)));
        assert!(matches!(Side::parse("a"), Side::Here(_)));
        assert!(matches!(Side::parse("work:"), Side::There { path, .. } if path == "."));
        assert!(matches!(Side::parse("work:/tmp/x"), Side::There { path, .. } if path == "/tmp/x"));
    }

    #[test]
    fn a_hostile_archive_stays_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("in");
        fs::create_dir(&inside).unwrap();
        let mut archive = tar::Builder::new(Vec::new());
        let mut add = |name: &str, kind: tar::EntryType, link: &str| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_mode(0o644);
            header.set_size(0);
            // `set_path` would refuse what an attacker writes.
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.as_gnu_mut().unwrap().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_cksum();
            archive.append(&header, io::empty()).unwrap();
        };
        add("../escaped", tar::EntryType::Regular, "");
        add("link", tar::EntryType::Symlink, "..");
        add("link/escaped", tar::EntryType::Regular, "");
        add("fifo", tar::EntryType::Fifo, "");
        add("good", tar::EntryType::Regular, "");
        let bytes = archive.into_inner().unwrap();
        let _ = unpack(&bytes[..], &inside);
        assert!(!folder.path().join("escaped").exists());
        assert!(!inside.join("fifo").exists());
    }
}
