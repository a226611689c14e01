//! `PUT /files/content`: the body goes to a file beside the place, which is then moved there.

use super::beneath::{GuestPath, Parents, Place, Root, fail, regular};
use super::list;
use super::place::{Existing, Temp, dress, errno};
use ringfence_proto::{Code, Entry, Failure, WriteQuery};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

/// A file that is being written; dropped before its end, nothing has changed.
#[derive(Debug)]
pub(crate) struct Writing {
    path: GuestPath,
    place: Place,
    old: Option<Stat>,
    // The file before its name goes, so that a drop closes and removes in that order.
    file: File,
    temp: Temp,
    mode: Option<u32>,
    how: How,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Whole,
    New,
    Append,
}

/// Refuses permission bits that are none.
pub(crate) fn check_mode(mode: Option<u32>) -> Result<(), Failure> {
    match mode {
        Some(mode) if mode > 0o7777 => Err(Failure::invalid(format!(
            "mode {mode} is out of range: 0 to 4095 (0o7777)"
        ))),
        _ => Ok(()),
    }
}

/// Makes everything ready, so that what can be refused is refused before the body comes.
pub(crate) fn begin(root: &Root, query: &WriteQuery) -> Result<Writing, Failure> {
    check_mode(query.mode)?;
    let path = root.path(&query.path)?;
    let how = match (query.create_new, query.append) {
        (true, _) => How::New,
        (false, true) => How::Append,
        (false, false) => How::Whole,
    };
    let place = match how {
        // A link, even one to nothing, is something that exists.
        How::New => root.place("write", &path, Parents::Make)?,
        _ => root.target("write", &path, Parents::Make)?,
    };
    let fail = |e| root.fail("write", &path, e);
    let old = place.stat().map_err(fail)?;
    match &old {
        Some(_) if how == How::New => return Err(fail(Errno::EXIST)),
        Some(old) => regular("write", &path.shown(), old)?,
        None => {}
    }
    let (temp, file) = Temp::file(&place).map_err(fail)?;
    Ok(Writing {
        path,
        place,
        old,
        file,
        temp,
        mode: query.mode,
        how,
    })
}

impl Writing {
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file
            .write_all(bytes)
            .map_err(|e| fail("write", &self.path.shown(), errno(e)))
    }

    /// The body has ended well: the file takes its place.
    pub(crate) fn finish(mut self) -> Result<Entry, Failure> {
        let shown = self.path.shown();
        let fail = |e| fail("write", &shown, e);
        match self.how {
            How::Append => self.append().map_err(fail)?,
            How::Whole | How::New => {
                dress(&self.file, self.old.as_ref(), self.mode).map_err(fail)?;
                let existing = match self.how {
                    How::New => Existing::Refuse,
                    _ => Existing::Replace,
                };
                // A folder that came meanwhile would be swapped away with all that is in it.
                if let Some(now) = self
                    .place
                    .stat()
                    .map_err(fail)?
                    .filter(|_| self.how != How::New)
                {
                    regular("write", &shown, &now)?;
                }
                self.temp.settle(&self.place, existing).map_err(fail)?;
            }
        }
        let Some(stat) = self.place.stat().map_err(fail)? else {
            let message = format!("cannot write {shown}: it was removed meanwhile");
            return Err(Failure::new(Code::Conflict, message));
        };
        Ok(list::entry(&self.path, &stat, None))
    }

    /// Copies what came to the end of the file, whole or not at all.
    fn append(&mut self) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK;
        let fd = self.place.open(flags, Mode::from_raw_mode(0o644))?;
        let mut end = File::from(fd);
        let stat = rustix::fs::fstat(&end)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        if self.old.is_none() || self.mode.is_some() {
            rustix::fs::fchmod(&end, Mode::from_raw_mode(self.mode.unwrap_or(0o644)))?;
        }
        self.file.rewind().map_err(errno)?;
        let mut written = 0;
        let mut copy = || -> std::io::Result<()> {
            let mut buffer = vec![0; 128 << 10];
            loop {
                let read = self.file.read(&mut buffer)?;
                let mut piece = &buffer[..read];
                if read == 0 {
                    return Ok(());
                }
                while !piece.is_empty() {
                    let done = end.write(piece)?;
                    written += done as u64;
                    piece = &piece[done..];
                }
            }
        };
        if let Err(error) = copy() {
            // Taken back only if nobody else has written since.
            let before = u64::try_from(stat.st_size).unwrap_or(0);
            if end
                .metadata()
                .is_ok_and(|now| now.len() == before + written)
            {
                let _ = rustix::fs::ftruncate(&end, before);
            }
            return Err(errno(error));
        }
        Ok(())
    }
}
