//! `PUT /files/tar`: unpacks an archive into a folder. The archive is hostile: every name is
//! resolved beneath the folder, and what it says about itself is held to limits.

use super::beneath::{GuestPath, Parents, Place, Root, Scope, components, fail, relative};
use super::place::{Existing, Temp, errno};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use ringfence_proto::{Code, Failure, TarQuery};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::io::{self, Read};
use std::time::Duration;
use tar::{EntryType, Header};
use tokio::sync::mpsc;

const BLOCK: u64 = 512;

/// Most bytes of a long name or of extended headers; the tar crate's own reader has no limit.
const EXTENSION_LIMIT: u64 = 1 << 20;

/// Folders whose permissions wait for the end, as we could not write into them before.
const CLOSED_LIMIT: usize = 10_000;

/// The end that takes the body of a request.
pub(crate) struct Feed(mpsc::Sender<io::Result<Bytes>>);

/// The end that the archive is read from.
pub(crate) struct Pipe {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
    /// The body ended, and ended well.
    ended: bool,
}

pub(crate) fn pipe() -> (Feed, Pipe) {
    let (sender, receiver) = mpsc::channel(4);
    (
        Feed(sender),
        Pipe {
            receiver,
            piece: Bytes::new(),
            ended: false,
        },
    )
}

impl Feed {
    /// Hands on a body until it ends, nothing comes for too long, or nobody reads any more.
    pub(crate) async fn send_all<B>(self, mut body: B, idle: Duration)
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        loop {
            let piece = match tokio::time::timeout(idle, body.frame()).await {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => Ok(data),
                    _ => continue,
                },
                Ok(Some(Err(e))) => Err(io::Error::other(e)),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("nothing came for {} s", idle.as_secs()),
                )),
            };
            let broken = piece.is_err();
            if self.0.send(piece).await.is_err() || broken {
                return;
            }
        }
        // An empty piece says that the body ended as it should. When the request is dropped
        // instead, the channel just closes.
        let _ = self.0.send(Ok(Bytes::new())).await;
    }
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            if self.ended {
                return Ok(0);
            }
            match self.receiver.blocking_recv() {
                Some(Ok(piece)) => {
                    self.ended = piece.is_empty();
                    self.piece = piece;
                }
                Some(Err(error)) => return Err(error),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let read = buffer.len().min(self.piece.len());
        buffer[..read].copy_from_slice(&self.piece.split_to(read));
        Ok(read)
    }
}

pub(crate) fn unpack(root: &Root, query: &TarQuery, from: impl Read) -> Result<(), Failure> {
    let path = root.path(&query.path)?;
    root.make_folders(&path, None)
        .map_err(|e| root.fail("unpack into", &path, e))?;
    let folder = root
        .enter(&path)
        .map_err(|e| root.fail("unpack into", &path, e))?;
    let mut unpacking = Unpacking {
        folder,
        in_root: root.scope() == Scope::InRoot,
        depth: components(&root.canonical(&path).clean()).count(),
        closed: Vec::new(),
    };
    let mut archive = Archive {
        from,
        global: Extensions::default(),
    };
    let unpacked = loop {
        match archive.next() {
            Ok(Some(entry)) => {
                if let Err(failure) = unpacking.entry(&entry, &mut archive) {
                    break Err(failure);
                }
            }
            Ok(None) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    unpacking.close();
    unpacked?;
    // What follows the archive is padding; a body that breaks off there broke off all the same.
    io::copy(&mut archive.from, &mut io::sink()).map_err(ended_early)?;
    Ok(())
}

fn ended_early(error: io::Error) -> Failure {
    Failure::invalid("cannot unpack: the archive ended early").detail(error)
}

/// What an entry's extended headers say.
#[derive(Debug, Clone, Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

struct Entry {
    name: Vec<u8>,
    link: Vec<u8>,
    kind: EntryType,
    size: u64,
    mode: u32,
    modified: Option<i64>,
}

/// The headers of an archive, one after the other, in bounded memory.
struct Archive<R> {
    from: R,
    global: Extensions,
}

impl<R: Read> Archive<R> {
    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        let mut extensions = self.global.clone();
        loop {
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let kind = header.entry_type();
            let size = header.entry_size().map_err(bad_header)?;
            match kind {
                EntryType::GNULongName => extensions.path = Some(self.text(size)?),
                EntryType::GNULongLink => extensions.link = Some(self.text(size)?),
                EntryType::XHeader => pax(&self.extension(size)?, &mut extensions)?,
                EntryType::XGlobalHeader => {
                    let data = self.extension(size)?;
                    pax(&data, &mut self.global)?;
                    pax(&data, &mut extensions)?;
                }
                _ => {
                    let link = header.link_name_bytes().map(std::borrow::Cow::into_owned);
                    let size = extensions.size.unwrap_or(size);
                    let name = extensions
                        .path
                        .unwrap_or_else(|| header.path_bytes().into_owned());
                    // The oldest archives have no type for folders.
                    let kind = match kind {
                        EntryType::Regular if name.ends_with(b"/") => EntryType::Directory,
                        kind => kind,
                    };
                    return Ok(Some(Entry {
                        name,
                        link: extensions.link.or(link).unwrap_or_default(),
                        kind,
                        size: if kind.is_file() || kind.is_contiguous() {
                            size
                        } else {
                            0
                        },
                        mode: header.mode().map_err(bad_header)? & 0o777,
                        modified: header.mtime().ok().and_then(|m| i64::try_from(m).ok()),
                    }));
                }
            }
        }
    }

    /// The next header, none at the end.
    fn header(&mut self) -> Result<Option<Header>, Failure> {
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let mut read = 0;
        while read < block.len() {
            match self.from.read(&mut block[read..]).map_err(ended_early)? {
                0 if read == 0 => return Ok(None),
                0 => return Err(ended_early(io::ErrorKind::UnexpectedEof.into())),
                n => read += n,
            }
        }
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum: u32 = block[..148]
            .iter()
            .chain(&block[156..])
            .map(|b| u32::from(*b))
            .sum::<u32>()
            + 8 * 32;
        if header.cksum().ok() != Some(sum) {
            return Err(Failure::invalid("cannot unpack: this is not a tar archive")
                .hint("a compressed archive has to be decompressed first"));
        }
        Ok(Some(header))
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, Failure> {
        if size > EXTENSION_LIMIT {
            let message =
                format!("cannot unpack: an extended header is over {EXTENSION_LIMIT} bytes");
            return Err(Failure::new(Code::TooLarge, message));
        }
        let mut data = Vec::new();
        self.data(size, |piece| {
            data.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(data)
    }

    /// A long name; it ends at its NUL.
    fn text(&mut self, size: u64) -> Result<Vec<u8>, Failure> {
        let mut text = self.extension(size)?;
        if let Some(end) = text.iter().position(|b| *b == 0) {
            text.truncate(end);
        }
        Ok(text)
    }

    /// Hands on the data of an entry, and skips the padding after it.
    fn data(
        &mut self,
        size: u64,
        mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut buffer = vec![0; 64 << 10];
        let mut left = size;
        while left > 0 {
            let most = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            match self.from.read(&mut buffer[..most]).map_err(ended_early)? {
                0 => return Err(ended_early(io::ErrorKind::UnexpectedEof.into())),
                read => {
                    take(&buffer[..read])?;
                    left -= read as u64;
                }
            }
        }
        let padding = usize::try_from((BLOCK - size % BLOCK) % BLOCK).unwrap_or(0);
        self.from
            .read_exact(&mut buffer[..padding])
            .map_err(ended_early)
    }
}

fn bad_header(error: io::Error) -> Failure {
    Failure::invalid("cannot unpack: a header of the archive is damaged").detail(error)
}

fn pax(data: &[u8], into: &mut Extensions) -> Result<(), Failure> {
    for extension in tar::PaxExtensions::new(data) {
        let extension = extension.map_err(bad_header)?;
        let value = extension.value_bytes();
        match extension.key_bytes() {
            b"path" => into.path = Some(value.to_vec()),
            b"linkpath" => into.link = Some(value.to_vec()),
            b"size" => {
                let size = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok());
                let size = size.ok_or_else(|| bad_header(io::ErrorKind::InvalidData.into()))?;
                into.size = Some(size);
            }
            key if key.starts_with(b"GNU.sparse") => {
                return Err(Failure::invalid(
                    "cannot unpack: sparse files are not supported",
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

struct Unpacking {
    folder: Root,
    in_root: bool,
    /// Levels from the caller's root to the folder: how far up a link in it may point.
    depth: usize,
    closed: Vec<(GuestPath, u32)>,
}

impl Unpacking {
    fn entry(&mut self, entry: &Entry, archive: &mut Archive<impl Read>) -> Result<(), Failure> {
        let path = self.name(&entry.name)?;
        let shown = path.shown();
        let fail = |e| fail("unpack", &shown, e);
        if path.clean() == b"." {
            return archive.data(entry.size, |_| Ok(()));
        }
        match entry.kind {
            EntryType::Directory => self.make_folder(&path, entry.mode),
            EntryType::Regular | EntryType::Continuous => {
                let place = self.folder.place("unpack", &path, Parents::Make)?;
                self.refuse_folder(&place, &shown)?;
                let (temp, mut file) = Temp::file(&place).map_err(fail)?;
                archive.data(entry.size, |piece| {
                    io::Write::write_all(&mut file, piece).map_err(|e| fail(errno(e)))
                })?;
                rustix::fs::fchmod(&file, Mode::from_raw_mode(entry.mode)).map_err(fail)?;
                if let Some(seconds) = entry.modified {
                    let time = Timespec {
                        tv_sec: seconds,
                        tv_nsec: 0,
                    };
                    let times = Timestamps {
                        last_access: time,
                        last_modification: time,
                    };
                    // A time that the file system can't hold is no reason to lose the file.
                    let _ = rustix::fs::futimens(&file, &times);
                }
                drop(file);
                temp.settle(&place, Existing::Replace).map_err(fail)
            }
            EntryType::Symlink => {
                self.check_link(&path, &entry.link)?;
                let place = self.folder.place("unpack", &path, Parents::Make)?;
                self.refuse_folder(&place, &shown)?;
                let temp = Temp::beside(&place).map_err(fail)?;
                rustix::fs::symlinkat(&entry.link[..], temp.dir(), temp.name()).map_err(fail)?;
                temp.settle(&place, Existing::Replace).map_err(fail)
            }
            EntryType::Link => {
                let target = self.name(&entry.link)?;
                let target = self.folder.place("unpack", &target, Parents::Keep)?;
                let place = self.folder.place("unpack", &path, Parents::Make)?;
                self.refuse_folder(&place, &shown)?;
                let temp = Temp::beside(&place).map_err(fail)?;
                // No flag: a link as the target is linked itself, not what it points to.
                let flags = AtFlags::empty();
                rustix::fs::linkat(
                    &target.dir,
                    &target.name[..],
                    temp.dir(),
                    temp.name(),
                    flags,
                )
                .map_err(fail)?;
                temp.settle(&place, Existing::Replace).map_err(fail)
            }
            EntryType::Fifo | EntryType::Char | EntryType::Block => Err(Failure::invalid(format!(
                "cannot unpack {shown}: it is a device or a fifo"
            ))),
            EntryType::GNUSparse => Err(Failure::invalid(format!(
                "cannot unpack {shown}: it is a sparse file"
            ))),
            kind => {
                let kind = char::from(kind.as_byte());
                let message =
                    format!("cannot unpack {shown}: entries of type {kind:?} are not known");
                Err(Failure::invalid(message))
            }
        }
    }

    /// A name in the archive as a path; absolute ones and `..` are refused, not repaired.
    fn name(&self, name: &[u8]) -> Result<GuestPath, Failure> {
        let path = relative(name)?;
        if name.starts_with(b"/") || components(name).any(|part| part == b"..") {
            return Err(self.escape(name));
        }
        Ok(path)
    }

    fn escape(&self, name: &[u8]) -> Failure {
        let shown = String::from_utf8_lossy(name);
        let message = format!(
            "cannot unpack {shown}: it escapes workspace {}",
            self.folder.name()
        );
        Failure::new(Code::Forbidden, message)
    }

    /// A link is made as it is, if what it says stays beneath the root.
    fn check_link(&self, path: &GuestPath, link: &[u8]) -> Result<(), Failure> {
        relative(link)?;
        if self.in_root {
            return Ok(());
        }
        let mut depth = self.depth + components(&path.clean()).count().saturating_sub(1);
        for part in components(link) {
            match (part, depth.checked_sub(1)) {
                (b"..", None) => return Err(self.escape(&path.clean())),
                (b"..", Some(up)) => depth = up,
                _ => depth += 1,
            }
        }
        if link.starts_with(b"/") {
            Err(self.escape(&path.clean()))
        } else {
            Ok(())
        }
    }

    /// A rename would swap a folder away with all that is in it.
    fn refuse_folder(&self, place: &Place, shown: &str) -> Result<(), Failure> {
        match place.stat().map_err(|e| fail("unpack", shown, e))? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                Err(Failure::new(
                    Code::Conflict,
                    format!("cannot unpack {shown}: a folder is in the way"),
                ))
            }
            _ => Ok(()),
        }
    }

    fn make_folder(&mut self, path: &GuestPath, mode: u32) -> Result<(), Failure> {
        let open = mode | 0o700;
        self.folder
            .make_folders(path, Some(open))
            .map_err(|e| self.folder.fail("unpack", path, e))?;
        if open != mode && self.closed.len() < CLOSED_LIMIT {
            self.closed.push((path.clone(), mode));
        }
        Ok(())
    }

    /// Gives folders that we may not write into their permissions, now that all is in them.
    fn close(&mut self) {
        for (path, mode) in self.closed.drain(..).rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let opened: Result<_, Errno> = self.folder.open(&path, flags, Mode::empty());
            if let Ok(fd) = opened {
                let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
            }
        }
    }
}
