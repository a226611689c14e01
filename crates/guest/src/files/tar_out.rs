//! `GET /files/tar`: a folder as an archive, made as the client takes it.

use super::Cancel;
use super::CancelOnDrop;
use super::beneath::Root;
use super::tree::{Node, Options, Tree};
use crate::http::Body;
use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use ringfence_proto::{Failure, TarQuery};
use rustix::fs::{FileType, OFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{
    self,
    error::{SendTimeoutError, TrySendError},
};

const CHUNK: usize = 128 << 10;

/// Finds the folder, so that one that isn't there is a failure and not a broken archive.
pub(crate) fn open(root: &Root, query: &TarQuery) -> Result<Tree, Failure> {
    let path = root.path(&query.path)?;
    Tree::new(
        root,
        "pack",
        &path,
        Options {
            lenient: false,
            ..Options::default()
        },
    )
}

/// The archive; a failure on the way breaks the stream off, so that nobody takes it for whole.
/// `held` is dropped when the thread that packs is free again; a client that takes nothing for
/// as long as `idle` gets no more.
pub(crate) fn body<T: Send + 'static>(tree: Tree, idle: Duration, held: T) -> Body {
    let (sender, receiver) = mpsc::channel(2);
    let runtime = Handle::current();
    let guard = CancelOnDrop(Cancel::default());
    let cancel = guard.0.clone();
    tokio::task::spawn_blocking(move || {
        let _held = held;
        let mut channel = Channel {
            sender,
            runtime,
            idle,
            given_up: false,
        };
        let mut writer = BufWriter::with_capacity(CHUNK, channel.clone());
        let packed = pack(tree, &mut writer, &cancel).and_then(|()| writer.flush());
        let last = match packed {
            Ok(()) => Ok(Bytes::new()),
            // Nobody takes the failure either: the end of the channel says enough.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                drop(writer.into_parts());
                return;
            }
            Err(error) => {
                // What is left in the buffer would be tried again.
                drop(writer.into_parts());
                Err(error)
            }
        };
        let _ = channel.send(last);
    });
    // An empty piece says that the archive is whole; a channel that just ends says that it isn't.
    let pieces = stream::unfold(Some((receiver, guard)), |state| async move {
        let (mut receiver, guard) = state?;
        match receiver.recv().await {
            Some(Ok(piece)) if piece.is_empty() => None,
            Some(Ok(piece)) => Some((Ok(Frame::data(piece)), Some((receiver, guard)))),
            Some(Err(error)) => Some((Err(error), None)),
            None => Some((Err(io::ErrorKind::TimedOut.into()), None)),
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

/// Writes the archive of a folder.
pub(crate) fn pack(mut tree: Tree, to: &mut impl Write, cancel: &Cancel) -> io::Result<()> {
    let mut archive = tar::Builder::new(to);
    while let Some(node) = tree.next(cancel).map_err(io::Error::other)? {
        let path = Path::new(OsStr::from_bytes(&node.path));
        let mut header = header(&node);
        match node.kind() {
            FileType::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                archive.append_data(&mut header, path.join(""), io::empty())?;
            }
            FileType::Symlink => {
                header.set_entry_type(tar::EntryType::Symlink);
                let link = OsStr::from_bytes(node.target.as_deref().unwrap_or(b"."));
                archive.append_link(&mut header, path, link)?;
            }
            FileType::RegularFile => {
                let file = match tree.open(&node, OFlags::RDONLY | OFlags::NONBLOCK) {
                    Ok(fd) => File::from(fd),
                    // Gone since it was listed.
                    Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => continue,
                    Err(e) => return Err(e.into()),
                };
                let metadata = file.metadata()?;
                if !metadata.is_file() {
                    continue;
                }
                header.set_size(metadata.len());
                let exact = Exact {
                    file,
                    left: metadata.len(),
                    cancel,
                };
                archive.append_data(&mut header, path, exact)?;
            }
            // Sockets, fifos and devices have nothing that an archive could hold.
            _ => {}
        }
    }
    archive.finish()
}

fn header(node: &Node) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(node.stat.st_mode & 0o7777);
    header.set_uid(node.stat.st_uid.into());
    header.set_gid(node.stat.st_gid.into());
    header.set_mtime(u64::try_from(node.stat.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}

/// As many bytes as the header says: more that came since are left out, fewer are an error.
struct Exact<'a> {
    file: File,
    left: u64,
    cancel: &'a Cancel,
}

impl Read for Exact<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.cancel.check().map_err(io::Error::other)?;
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let read = self.file.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            return Err(io::Error::other(
                "a file became shorter while it was packed",
            ));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Hands pieces to the connection, and waits while the client is slow.
#[derive(Clone)]
struct Channel {
    sender: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    idle: Duration,
    /// The client was waited for long enough.
    given_up: bool,
}

impl Channel {
    fn send(&mut self, piece: io::Result<Bytes>) -> io::Result<()> {
        if self.given_up {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // Where there is room nobody has to be waited for.
        let piece = match self.sender.try_send(piece) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(io::ErrorKind::BrokenPipe.into()),
            Err(TrySendError::Full(piece)) => piece,
        };
        let sent = self
            .runtime
            .block_on(self.sender.send_timeout(piece, self.idle));
        sent.map_err(|e| match e {
            SendTimeoutError::Timeout(_) => {
                self.given_up = true;
                io::ErrorKind::TimedOut.into()
            }
            SendTimeoutError::Closed(_) => io::ErrorKind::BrokenPipe.into(),
        })
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !bytes.is_empty() {
            self.send(Ok(Bytes::copy_from_slice(bytes)))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
