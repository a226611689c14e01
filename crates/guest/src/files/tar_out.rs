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
use tokio::sync::mpsc;

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
pub(crate) fn body(tree: Tree) -> Body {
    let (sender, receiver) = mpsc::channel(2);
    let guard = CancelOnDrop(Cancel::default());
    let cancel = guard.0.clone();
    tokio::task::spawn_blocking(move || {
        let mut writer = BufWriter::with_capacity(CHUNK, Channel(sender.clone()));
        let packed = pack(tree, &mut writer, &cancel).and_then(|()| writer.flush());
        if let Err(error) = packed {
            let _ = sender.blocking_send(Err(error));
        }
    });
    let pieces = stream::unfold((receiver, guard), |(mut receiver, guard)| async move {
        let piece: io::Result<Bytes> = receiver.recv().await?;
        Some((piece.map(Frame::data), (receiver, guard)))
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
struct Channel(mpsc::Sender<io::Result<Bytes>>);

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .blocking_send(Ok(Bytes::copy_from_slice(bytes)))
            .map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
