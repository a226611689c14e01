//! `POST /files/edit`: reads a text, changes it, writes it back whole, and remembers what it was.

use super::beneath::{GuestPath, Parents, Place, Root, fail, regular};
use super::history::{History, Key, Past};
use super::place::{Existing, KEPT, Temp, dress};
use super::text::{self, TEXT_LIMIT};
use super::write::check_mode;
use ringfence_proto::{Code, Edit, EditRequest, EditResult, Failure};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::{Mutex, PoisonError};

pub(crate) fn edit(
    history: &Mutex<History>,
    root: &Root,
    request: &EditRequest,
) -> Result<EditResult, Failure> {
    check_mode(request.mode)?;
    let path = root.path(&request.path)?;
    // A panic in another edit left the history as it was between two calls: still good.
    let mut history = history.lock().unwrap_or_else(PoisonError::into_inner);
    match &request.edit {
        Edit::Undo => undo(&mut history, root, &path),
        edit => change(&mut history, root, &path, edit, request.mode),
    }
}

fn change(
    history: &mut History,
    root: &Root,
    path: &GuestPath,
    edit: &Edit,
    mode: Option<u32>,
) -> Result<EditResult, Failure> {
    let shown = path.shown();
    let (place, existing) = match edit {
        // A link, even one to nothing, is something that exists.
        Edit::Create { .. } => {
            let place = root.place("create", path, Parents::Make)?;
            if place
                .stat()
                .map_err(|e| root.fail("create", path, e))?
                .is_some()
            {
                let message = format!("cannot create {shown}: it already exists");
                return Err(Failure::new(Code::AlreadyExists, message));
            }
            (place, Existing::Refuse)
        }
        Edit::Write { .. } => (root.target("edit", path, Parents::Make)?, Existing::Replace),
        _ => (root.target("edit", path, Parents::Keep)?, Existing::Replace),
    };
    let file = Old::open(&place, path)?;
    let old = match (edit, &file) {
        // What is written over need not be text.
        (Edit::Write { .. }, _) | (_, None) => None,
        (_, Some(file)) => Some(file.text(path)?),
    };
    let new = text::apply(&shown, edit, old)?;
    let key = key(root, path);
    put(
        &place,
        path,
        file.as_ref().map(|f| &f.stat),
        mode,
        new.as_bytes(),
        existing,
    )?;
    let answer = result(
        &key,
        file.as_ref().map(|f| &f.bytes[..]),
        Some(new.as_bytes()),
    );
    let mode = file.as_ref().map(|f| f.stat.st_mode & KEPT);
    history.push(
        key,
        Past {
            bytes: file.map(|f| f.bytes),
            mode,
        },
    );
    Ok(answer)
}

fn undo(history: &mut History, root: &Root, path: &GuestPath) -> Result<EditResult, Failure> {
    let key = key(root, path);
    let Some(past) = history.last(&key) else {
        let message = format!(
            "cannot undo in {}: there are no edits to undo",
            path.shown()
        );
        return Err(Failure::new(Code::Conflict, message));
    };
    let place = match &past.bytes {
        Some(_) => root.target("undo", path, Parents::Make)?,
        None => root.place("undo", path, Parents::Keep)?,
    };
    // Whatever it has become since, what was before the edit comes back.
    let file = Old::open(&place, path)?;
    match &past.bytes {
        Some(bytes) => {
            let old = file.as_ref().map(|f| &f.stat);
            put(&place, path, old, past.mode, bytes, Existing::Replace)?;
        }
        None if file.is_some() => {
            rustix::fs::unlinkat(&place.dir, &place.name[..], AtFlags::empty())
                .map_err(|e| root.fail("undo", path, e))?;
        }
        None => {}
    }
    let answer = result(
        &key,
        file.as_ref().map(|f| &f.bytes[..]),
        past.bytes.as_deref(),
    );
    history.pop(&key);
    Ok(answer)
}

/// The name under which a file's past is kept: links and `..` taken out, so that two ways to
/// name a file share it.
fn key(root: &Root, path: &GuestPath) -> Key {
    (root.name().to_owned(), root.canonical(path).clean())
}

fn result(key: &Key, old: Option<&[u8]>, new: Option<&[u8]>) -> EditResult {
    let existed = old.is_some();
    let (old, new) = (old.unwrap_or(b""), new.unwrap_or(b""));
    let text = String::from_utf8_lossy(new);
    EditResult {
        path: String::from_utf8_lossy(&key.1).into_owned(),
        existed,
        size: new.len() as u64,
        total_lines: text::count_lines(&text),
        hunk: text::hunk(&String::from_utf8_lossy(old), &text),
    }
}

/// A file as it is before an edit.
struct Old {
    bytes: Vec<u8>,
    stat: Stat,
}

impl Old {
    /// None where there is nothing.
    fn open(place: &Place, path: &GuestPath) -> Result<Option<Self>, Failure> {
        let shown = path.shown();
        let fail = |e| fail("edit", &shown, e);
        let Some(stat) = place.stat().map_err(fail)? else {
            return Ok(None);
        };
        regular("edit", &shown, &stat)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = place.open(flags, Mode::empty()).map_err(fail)?;
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        regular("edit", &shown, &stat)?;
        let mut bytes = Vec::new();
        File::from(fd)
            .take(TEXT_LIMIT as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|e| Failure::io(format_args!("cannot edit {shown}"), &e))?;
        if bytes.len() > TEXT_LIMIT {
            let size = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
            return Err(text::too_large(&shown, size.max(bytes.len())));
        }
        Ok(Some(Self { bytes, stat }))
    }

    fn text(&self, path: &GuestPath) -> Result<&str, Failure> {
        std::str::from_utf8(&self.bytes).map_err(|e| {
            let (shown, at) = (path.shown(), e.valid_up_to());
            let message = format!("cannot edit {shown}: it is not UTF-8 text (byte {at})");
            Failure::invalid(message).hint("write the whole file instead")
        })
    }
}

fn put(
    place: &Place,
    path: &GuestPath,
    old: Option<&Stat>,
    mode: Option<u32>,
    bytes: &[u8],
    existing: Existing,
) -> Result<(), Failure> {
    let shown = path.shown();
    let fail = |e| fail("edit", &shown, e);
    let (temp, mut file) = Temp::file(place).map_err(fail)?;
    file.write_all(bytes)
        .map_err(|e| Failure::io(format_args!("cannot edit {shown}"), &e))?;
    dress(&file, old, mode).map_err(fail)?;
    drop(file);
    temp.settle(place, existing).map_err(fail)
}
