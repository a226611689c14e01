//! `POST /files/move`, `/files/copy` and `/files/mkdir`, and `DELETE /files`.

use super::Cancel;
use super::beneath::{GuestPath, Parents, Place, Root, fail, regular};
use super::list;
use super::place::{Existing, KEPT, Settled, Temp, dress, errno, settle};
use super::remove;
use super::tree::{Options, Tree};
use super::write::check_mode;
use ringfence_proto::{Code, Copy, Entry, Failure, Mkdir, Move, PathQuery};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;

/// Bytes copied between two looks at whether the client is still there.
const PIECE: u64 = 16 << 20;

pub(crate) fn delete(root: &Root, query: &PathQuery) -> Result<(), Failure> {
    let path = root.path(&query.path)?;
    let place = root.place("delete", &path, Parents::Keep)?;
    let fail = |e| root.fail("delete", &path, e);
    let stat = place
        .stat()
        .and_then(|s| s.ok_or(Errno::NOENT))
        .map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return rustix::fs::unlinkat(&place.dir, &place.name[..], AtFlags::empty()).map_err(fail);
    }
    if query.recursive {
        return remove::remove(place.dir.as_fd(), &place.name).map_err(fail);
    }
    rustix::fs::unlinkat(&place.dir, &place.name[..], AtFlags::REMOVEDIR).map_err(|e| match e {
        Errno::NOTEMPTY | Errno::EXIST => {
            let message = format!("cannot delete {}: the folder is not empty", path.shown());
            Failure::new(Code::Conflict, message).hint("delete it with recursive=true")
        }
        e => fail(e),
    })
}

pub(crate) fn mkdir(root: &Root, request: &Mkdir) -> Result<Entry, Failure> {
    check_mode(request.mode)?;
    let path = root.path(&request.path)?;
    root.make_folders(&path, request.mode)
        .map_err(|e| match e {
            Errno::NOTDIR => {
                let message = format!("cannot make {}: a file is in the way", path.shown());
                Failure::new(Code::AlreadyExists, message)
            }
            e => root.fail("make", &path, e),
        })?;
    list::stat(root, &path)
}

pub(crate) fn rename(root: &Root, request: &Move, cancel: &Cancel) -> Result<Entry, Failure> {
    let pair = Pair::find(root, "move", &request.from, &request.to, request.overwrite)?;
    if pair.same() {
        return list::stat(root, &pair.to);
    }
    let from = &pair.from_place;
    match settle(from.dir.as_fd(), &from.name, &pair.to_place, pair.existing) {
        Ok(Settled::Nothing) => {
            // Two links to one file: the kernel calls that done, and leaves both.
            let left = from.stat().map_err(|e| pair.fail(e))?;
            if pair.linked && left.is_some_and(|s| s.st_ino == pair.stat.st_ino) {
                remove::remove(from.dir.as_fd(), &from.name).map_err(|e| pair.fail(e))?;
            }
        }
        Ok(Settled::Old) => {
            remove::remove(from.dir.as_fd(), &from.name).map_err(|e| pair.fail(e))?;
        }
        // Another file system: copied, and only then removed.
        Err(Errno::XDEV) => {
            copy_to(root, &pair, cancel)?;
            remove::remove(from.dir.as_fd(), &from.name).map_err(|e| pair.fail(e))?;
        }
        Err(e) => return Err(pair.fail(e)),
    }
    list::stat(root, &pair.to)
}

pub(crate) fn copy(root: &Root, request: &Copy, cancel: &Cancel) -> Result<Entry, Failure> {
    let pair = Pair::find(root, "copy", &request.from, &request.to, request.overwrite)?;
    if pair.same() {
        return Err(pair.fail(Errno::INVAL));
    }
    copy_to(root, &pair, cancel)?;
    list::stat(root, &pair.to)
}

/// Two places, and what is at the first.
struct Pair {
    what: &'static str,
    from: GuestPath,
    from_place: Place,
    stat: Stat,
    to: GuestPath,
    to_place: Place,
    existing: Existing,
    /// Both are links to one file.
    linked: bool,
}

impl Pair {
    fn find(
        root: &Root,
        what: &'static str,
        from: &str,
        to: &str,
        overwrite: bool,
    ) -> Result<Self, Failure> {
        let (from, to) = (root.path(from)?, root.path(to)?);
        let from_place = root.place(what, &from, Parents::Keep)?;
        let stat = from_place
            .stat()
            .and_then(|s| s.ok_or(Errno::NOENT))
            .map_err(|e| root.fail(what, &from, e))?;
        let folder = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        // Into itself: said before any folder is made. A race past this ends in the kernel's
        // own refusal, or in a copy that leaves itself out.
        let (old, new) = (root.canonical(&from).clean(), root.canonical(&to).clean());
        if folder && new.len() > old.len() && new.starts_with(&old) && new[old.len()] == b'/' {
            let message = format!("cannot {what} {} into itself: {}", from.shown(), to.shown());
            return Err(Failure::invalid(message));
        }
        let to_place = root.place(what, &to, Parents::Make)?;
        let there = to_place.stat().map_err(|e| root.fail(what, &to, e))?;
        if there.is_some() && !overwrite {
            let pair = format!("{} to {}", from.shown(), to.shown());
            return Err(fail(what, &pair, Errno::EXIST).hint("pass overwrite to replace it"));
        }
        let existing = if overwrite {
            Existing::Replace
        } else {
            Existing::Refuse
        };
        let linked = there.is_some_and(|t| (t.st_dev, t.st_ino) == (stat.st_dev, stat.st_ino));
        Ok(Self {
            what,
            from,
            from_place,
            stat,
            to,
            to_place,
            existing,
            linked,
        })
    }

    /// One name in one folder, twice.
    fn same(&self) -> bool {
        let folder = |p: &Place| rustix::fs::fstat(&p.dir).map(|s| (s.st_dev, s.st_ino)).ok();
        self.from_place.name == self.to_place.name
            && folder(&self.from_place) == folder(&self.to_place)
    }

    fn fail(&self, error: Errno) -> Failure {
        fail(
            self.what,
            &format!("{} to {}", self.from.shown(), self.to.shown()),
            error,
        )
    }
}

/// Copies beside the second place, then moves it there: no half copy is ever seen.
fn copy_to(root: &Root, pair: &Pair, cancel: &Cancel) -> Result<(), Failure> {
    let fail = |e| pair.fail(e);
    let temp = match FileType::from_raw_mode(pair.stat.st_mode) {
        FileType::Directory => copy_folder(root, pair, cancel)?,
        FileType::Symlink => {
            let temp = Temp::beside(&pair.to_place).map_err(fail)?;
            let link = list::link_text(&pair.from_place.dir, &pair.from_place.name)
                .ok_or_else(|| fail(Errno::NOENT))?;
            rustix::fs::symlinkat(&link[..], temp.dir(), temp.name()).map_err(fail)?;
            temp
        }
        _ => {
            regular(pair.what, &pair.from.shown(), &pair.stat)?;
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let from = pair.from_place.open(flags, Mode::empty()).map_err(fail)?;
            let (temp, file) = Temp::file(&pair.to_place).map_err(fail)?;
            copy_file(File::from(from), &file, cancel).map_err(fail)?;
            temp
        }
    };
    temp.settle(&pair.to_place, pair.existing).map_err(fail)
}

/// Copies bytes and permissions.
fn copy_file(from: File, to: &File, cancel: &Cancel) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(&from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // In pieces, so that a client that goes away ends a long copy; std::io::copy lets the kernel
    // copy, or share, where it can.
    while std::io::copy(&mut (&from).take(PIECE), &mut &*to).map_err(errno)? > 0 {
        if cancel.check().is_err() {
            return Err(Errno::CANCELED);
        }
    }
    dress(to, None, Some(stat.st_mode & KEPT))
}

fn copy_folder(root: &Root, pair: &Pair, cancel: &Cancel) -> Result<Temp, Failure> {
    let temp = Temp::beside(&pair.to_place).map_err(|e| pair.fail(e))?;
    let fail = |e| pair.fail(e);
    // Open to us until all is in it; the real permissions come last.
    rustix::fs::mkdirat(temp.dir(), temp.name(), Mode::from_raw_mode(0o700)).map_err(fail)?;
    let top = Place {
        dir: temp
            .dir()
            .try_clone_to_owned()
            .map_err(errno)
            .map_err(fail)?,
        name: temp.name().to_vec(),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let top = top.open(flags, Mode::empty()).map_err(fail)?;
    let own = rustix::fs::fstat(&top)
        .map(|s| (s.st_dev, s.st_ino))
        .map_err(fail)?;
    let made = root.over(top);
    let options = Options {
        lenient: false,
        ..Options::default()
    };
    let mut tree = Tree::new(root, pair.what, &pair.from, options)?;
    let mut modes = vec![(GuestPath::root(), pair.stat.st_mode & KEPT)];
    let mut own_prefix: Option<Vec<u8>> = None;
    while let Some(node) = tree.next(cancel)? {
        // The copy itself, when a race put it in what is copied.
        if (node.stat.st_dev, node.stat.st_ino) == own {
            own_prefix = Some([&node.path[..], b"/"].concat());
            continue;
        }
        if own_prefix
            .as_ref()
            .is_some_and(|p| node.path.starts_with(p))
        {
            continue;
        }
        let path = super::beneath::relative(&node.path)?;
        let place = made.place(pair.what, &path, Parents::Keep)?;
        match node.kind() {
            FileType::Directory => {
                rustix::fs::mkdirat(&place.dir, &place.name[..], Mode::from_raw_mode(0o700))
                    .map_err(fail)?;
                modes.push((path, node.stat.st_mode & KEPT));
            }
            FileType::Symlink => {
                let link = node.target.as_deref().unwrap_or(b".");
                rustix::fs::symlinkat(link, &place.dir, &place.name[..]).map_err(fail)?;
            }
            _ => {
                regular(pair.what, &tree.shown(&node), &node.stat)?;
                let from = match tree.open(&node, OFlags::RDONLY | OFlags::NONBLOCK) {
                    Ok(fd) => fd,
                    Err(Errno::NOENT) => continue,
                    Err(e) => return Err(super::beneath::fail(pair.what, &tree.shown(&node), e)),
                };
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let to = place
                    .open(flags, Mode::from_raw_mode(0o600))
                    .map_err(fail)?;
                copy_file(File::from(from), &File::from(to), cancel).map_err(fail)?;
            }
        }
    }
    // From the deepest up, so that a folder we may not enter is closed last.
    for (path, mode) in modes.into_iter().rev() {
        let folder = made.open(&path, flags, Mode::empty()).map_err(fail)?;
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)).map_err(fail)?;
    }
    Ok(temp)
}
