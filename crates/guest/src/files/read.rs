//! `GET /files/content`: a file, or a range of it, as a stream.

use super::beneath::{GuestPath, Root, regular};
use crate::http::{Body, Response};
use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use ringfence_proto::{Failure, ReadQuery};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// Bytes read at a time; a stream holds no more than one such piece.
const CHUNK: u64 = 128 << 10;

/// An open file and the range of it that was asked for.
pub(crate) struct Reading {
    file: Arc<File>,
    /// None where it isn't known before it is read, as in /proc.
    size: Option<u64>,
    offset: u64,
    /// At most this many bytes; exactly, where the size is known.
    length: u64,
}

/// Opens a regular file for reading. A fifo or a device must not make the guest wait.
pub(crate) fn open_regular(root: &Root, what: &str, path: &GuestPath) -> Result<File, Failure> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = root.open(path, flags, Mode::empty()).map_err(|e| match e {
        // A socket can't be opened at all.
        rustix::io::Errno::NXIO => Failure::invalid(format!(
            "cannot {what} {}: it is not a regular file",
            path.shown()
        )),
        e => root.fail(what, path, e),
    })?;
    let stat = rustix::fs::fstat(&fd).map_err(|e| root.fail(what, path, e))?;
    regular(what, &path.shown(), &stat)?;
    Ok(File::from(fd))
}

pub(crate) fn open(root: &Root, query: &ReadQuery) -> Result<Reading, Failure> {
    let path = root.path(&query.path)?;
    let file = open_regular(root, "read", &path)?;
    let fail = |e| Failure::io(format_args!("cannot read {}", path.shown()), &e);
    let size = file.metadata().map_err(fail)?.len();
    // Files of /proc say that they are empty, and are not.
    let unknown = size == 0 && file.read_at(&mut [0], 0).map_err(fail)? > 0;
    if query.offset > size && !unknown {
        let message = format!(
            "cannot read {}: offset {} is out of range, it has {size} bytes",
            path.shown(),
            query.offset
        );
        return Err(Failure::invalid(message));
    }
    let length = query.length.unwrap_or(u64::MAX);
    let (size, length) = match unknown {
        true => (None, length),
        false => (Some(size), length.min(size - query.offset)),
    };
    Ok(Reading {
        file: Arc::new(file),
        size,
        offset: query.offset,
        length,
    })
}

impl Reading {
    /// The answer: its headers now, its bytes as the client takes them.
    pub(crate) fn answer(self) -> Response {
        let (size, length) = (self.size, self.length);
        let mut response = crate::http::with_type("application/octet-stream", self.body());
        if let Some(size) = size {
            let headers = response.headers_mut();
            headers.insert("x-ringfence-size", size.into());
            headers.insert(::http::header::CONTENT_LENGTH, length.into());
        }
        response
    }

    fn body(self) -> Body {
        let known = self.size.is_some();
        let start = (self.file, self.offset, self.length);
        let pieces = stream::unfold(Some(start), move |state| async move {
            let (file, offset, left) = state.filter(|(_, _, left)| *left > 0)?;
            let again = Arc::clone(&file);
            let read = tokio::task::spawn_blocking(move || piece(&again, offset, left)).await;
            match read.map_err(io::Error::other).flatten() {
                Ok(bytes) if bytes.is_empty() && !known => None,
                // The length was promised: ending here in peace would hide the loss.
                Ok(bytes) if bytes.is_empty() => {
                    Some((Err(io::Error::other("the file became shorter")), None))
                }
                Ok(bytes) => {
                    let read = bytes.len() as u64;
                    let next = (file, offset.saturating_add(read), left - read);
                    Some((Ok(Frame::data(bytes)), Some(next)))
                }
                Err(e) => Some((Err(e), None)),
            }
        });
        StreamBody::new(pieces).boxed_unsync()
    }
}

fn piece(file: &File, offset: u64, left: u64) -> io::Result<Bytes> {
    let mut buffer = vec![0; usize::try_from(left.min(CHUNK)).unwrap_or(0)];
    let read = file.read_at(&mut buffer, offset)?;
    buffer.truncate(read);
    Ok(buffer.into())
}
