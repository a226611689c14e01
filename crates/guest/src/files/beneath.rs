//! The one place where a path that came from outside becomes a descriptor.
//!
//! A [`Root`] is a folder held open. Every path is resolved from it, by the kernel (`openat2`)
//! or by the no-follow walk of [`super::walk`], so that neither `..` nor a link nor a folder
//! that is swapped meanwhile leads out of it.

use super::walk;
use ringfence_proto::{Code, Failure, WORKSPACE};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The kernel takes no longer path, its NUL included.
const PATH_LIMIT: usize = 4096;

/// How often a resolution that a race disturbed is tried again.
pub(super) const RETRIES: usize = 64;

/// How many links one resolution follows; the kernel's own number.
pub(super) const LINKS: usize = 40;

/// Who resolves a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolver {
    /// The kernel, in one call.
    Openat2,
    /// We do, one component at a time: gVisor, old kernels and old seccomp profiles lack openat2.
    Walk,
}

impl Resolver {
    /// Asks the kernel once. Docker's older profiles answer EPERM, not ENOSYS.
    pub(crate) fn detect() -> Self {
        let probe = rustix::fs::openat2(
            rustix::fs::CWD,
            "/",
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        );
        if probe.is_ok() {
            Self::Openat2
        } else {
            Self::Walk
        }
    }
}

/// What a link or a `..` that points out of the root means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// It is refused.
    Beneath,
    /// It is resolved inside, as after a chroot: for the root `/` of the sandbox.
    InRoot,
}

/// Whether links on the way are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    Follow,
    Refuse,
}

/// Whether folders that lead to a place are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parents {
    Make,
    Keep,
}

/// A path that came from outside: its form is checked, and it is relative to a root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuestPath(Vec<u8>);

impl GuestPath {
    fn new(bytes: Vec<u8>) -> Self {
        Self(if bytes.is_empty() {
            b".".to_vec()
        } else {
            bytes
        })
    }

    /// The root itself.
    pub(crate) fn root() -> Self {
        Self(b".".to_vec())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether its names alone, whatever they are, lead above where it starts.
    fn climbs_out(&self) -> bool {
        let mut depth = 0_usize;
        components(&self.0).any(|part| match part {
            b".." => match depth.checked_sub(1) {
                Some(above) => {
                    depth = above;
                    false
                }
                None => true,
            },
            _ => {
                depth += 1;
                false
            }
        })
    }

    /// Without empty and `.` components; `.` when none is left.
    pub(crate) fn clean(&self) -> Vec<u8> {
        let parts: Vec<&[u8]> = components(&self.0).collect();
        if parts.is_empty() {
            b".".to_vec()
        } else {
            parts.join(&b'/')
        }
    }

    /// The folder and the name in it; none for a path that ends in `..` or is the root itself.
    pub(super) fn split(&self) -> Option<(GuestPath, Vec<u8>)> {
        let mut parts: Vec<&[u8]> = components(&self.0).collect();
        let name = parts.pop()?;
        (name != b"..").then(|| (Self::new(parts.join(&b'/')), name.to_vec()))
    }

    /// The path of something below this folder.
    pub(crate) fn join(&self, name: &[u8]) -> Self {
        let folder = self.clean();
        Self(if folder == b"." {
            name.to_vec()
        } else {
            [&folder[..], b"/", name].concat()
        })
    }

    /// For messages and answers.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.clean()).into_owned()
    }
}

/// The components that name something: not the empty ones, not `.`.
pub(super) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
}

/// A name in a folder that is held open: what can be made, replaced or removed there.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dir: OwnedFd,
    pub(crate) name: Vec<u8>,
}

impl Place {
    /// What is there now, links not followed; none when nothing is.
    pub(crate) fn stat(&self) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.dir, &self.name[..], AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Opens what is there, unless it is a link.
    pub(crate) fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, &self.name[..], flags, mode)
    }
}

/// A folder held open, beneath which paths are resolved.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    /// The name that the caller chose, for messages.
    label: String,
    /// The absolute paths that this folder is known by.
    names: Vec<Vec<u8>>,
    scope: Scope,
    resolver: Resolver,
}

impl Root {
    /// Opens the root that a caller chose. The workspace has one name on the wire, wherever it
    /// really is.
    pub(crate) fn choose(
        name: &str,
        workspace: &Path,
        resolver: Resolver,
    ) -> Result<Self, Failure> {
        check_form(name.as_bytes())?;
        if !name.starts_with('/') || components(name.as_bytes()).any(|part| part == b"..") {
            let message = format!("bad root {name:?}: it must be an absolute path without `..`");
            return Err(Failure::invalid(message));
        }
        let mut names = vec![absolute(name.as_bytes())];
        if names[0] == WORKSPACE.as_bytes() {
            names.push(absolute(workspace.as_os_str().as_bytes()));
        }
        let opened = names.last().map_or(&b"/"[..], |n| &n[..]);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(opened, flags, Mode::empty()).map_err(|e| {
            Failure::io(
                format_args!("cannot open root {name}"),
                &std::io::Error::from(e),
            )
        })?;
        let scope = if names[0] == b"/" {
            Scope::InRoot
        } else {
            Scope::Beneath
        };
        // Links inside a root are often absolute, and then name it as the kernel does.
        let real = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        if let Ok(real) = std::fs::read_link(real)
            && real.is_absolute()
        {
            names.push(absolute(real.as_os_str().as_bytes()));
        }
        names.dedup();
        let label = String::from_utf8_lossy(&names[0]).into_owned();
        Ok(Self {
            fd,
            label,
            names,
            scope,
            resolver,
        })
    }

    /// A folder below this root as a root of its own, out of which nothing leads.
    pub(crate) fn enter(&self, path: &GuestPath) -> Result<Self, Errno> {
        let fd = self.open(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(self.over(fd))
    }

    /// A folder that is already open as a root of its own.
    pub(crate) fn over(&self, fd: OwnedFd) -> Self {
        Self {
            fd,
            label: self.label.clone(),
            names: Vec::new(),
            scope: Scope::Beneath,
            resolver: self.resolver,
        }
    }

    /// The name that the caller chose.
    pub(crate) fn name(&self) -> &str {
        &self.label
    }

    pub(super) fn scope(&self) -> Scope {
        self.scope
    }

    /// Checks a path from outside and makes it relative to this root.
    pub(crate) fn path(&self, raw: &str) -> Result<GuestPath, Failure> {
        check_form(raw.as_bytes())?;
        if !raw.starts_with('/') {
            return Ok(GuestPath::new(raw.as_bytes().to_vec()));
        }
        match self.below(raw.as_bytes()) {
            Some(rest) => Ok(GuestPath::new(rest)),
            None => Err(self.escape("use", raw)),
        }
    }

    /// The rest of an absolute path that is lexically below this root.
    pub(super) fn below(&self, path: &[u8]) -> Option<Vec<u8>> {
        self.names.iter().find_map(|name| {
            let mut parts = components(path);
            if components(name).any(|part| parts.next() != Some(part)) {
                return None;
            }
            let mut rest = parts.collect::<Vec<_>>().join(&b'/');
            if path.ends_with(b"/") && !rest.is_empty() {
                rest.push(b'/');
            }
            Some(if rest.is_empty() { b".".to_vec() } else { rest })
        })
    }

    /// Opens what a path names; links that stay inside are followed, but not a last one when
    /// `flags` has `NOFOLLOW`. `EXDEV` says that the path leaves the root.
    pub(crate) fn open(
        &self,
        path: &GuestPath,
        flags: OFlags,
        mode: Mode,
    ) -> Result<OwnedFd, Errno> {
        self.open_links(path, flags, mode, Links::Follow)
    }

    /// As [`Root::open`], with a say in links on the way.
    pub(crate) fn open_links(
        &self,
        path: &GuestPath,
        flags: OFlags,
        mode: Mode,
        links: Links,
    ) -> Result<OwnedFd, Errno> {
        let mut flags = flags | OFlags::CLOEXEC;
        if links == Links::Refuse {
            flags |= OFlags::NOFOLLOW;
        }
        if self.resolver == Resolver::Openat2 {
            let scope = match self.scope {
                Scope::Beneath => ResolveFlags::BENEATH,
                Scope::InRoot => ResolveFlags::IN_ROOT,
            };
            let mut resolve = ResolveFlags::NO_MAGICLINKS | scope;
            if links == Links::Refuse {
                resolve |= ResolveFlags::NO_SYMLINKS;
            }
            let creates = flags.intersects(OFlags::CREATE);
            let mode = if creates { mode } else { Mode::empty() };
            for _ in 0..RETRIES {
                match rustix::fs::openat2(&self.fd, path.bytes(), flags, mode, resolve) {
                    // EAGAIN: something was renamed meanwhile, and the kernel isn't sure.
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    // The walk knows one case more, an absolute link that names a thing in here.
                    Err(Errno::XDEV | Errno::LOOP) if links == Links::Follow => break,
                    other => return other,
                }
            }
        }
        walk::open(self, path.bytes(), flags, mode, links)
    }

    /// The folder and name that a path stands for; a last link is not followed.
    pub(crate) fn place(
        &self,
        what: &str,
        path: &GuestPath,
        parents: Parents,
    ) -> Result<Place, Failure> {
        let Some((folder, name)) = path.split() else {
            let message = match path.clean().as_slice() {
                b"." => format!("cannot {what} {}: it is the root itself", self.name()),
                _ => format!("cannot {what} {}: it must end in a name", path.shown()),
            };
            return Err(Failure::invalid(message));
        };
        let dir = match parents {
            Parents::Make => self.make_folders(&folder, None),
            Parents::Keep => self.open(&folder, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()),
        };
        Ok(Place {
            dir: dir.map_err(|e| self.fail(what, path, e))?,
            name,
        })
    }

    /// As [`Root::place`], but a last link that stays inside is followed to what it names, which
    /// need not exist.
    pub(crate) fn target(
        &self,
        what: &str,
        path: &GuestPath,
        parents: Parents,
    ) -> Result<Place, Failure> {
        let mut place = self.place(what, path, parents)?;
        let mut at = path.clone();
        for _ in 0..LINKS {
            let link = match rustix::fs::readlinkat(&place.dir, &place.name[..], Vec::new()) {
                Ok(link) => link.into_bytes(),
                Err(Errno::INVAL | Errno::NOENT) => return Ok(place),
                Err(e) => return Err(self.fail(what, path, e)),
            };
            at = match (link.first(), self.scope) {
                (Some(b'/'), Scope::InRoot) => GuestPath::new(link),
                (Some(b'/'), Scope::Beneath) => match self.below(&link) {
                    Some(rest) => GuestPath::new(rest),
                    None => return Err(self.escape(what, &path.shown())),
                },
                _ => match at.split() {
                    Some((folder, _)) => folder.join(&link),
                    None => GuestPath::new(link),
                },
            };
            place = self.place(what, &at, Parents::Keep)?;
        }
        Err(self.fail(what, path, Errno::LOOP))
    }

    /// Opens a folder, made with those that lead to it where they are missing.
    pub(crate) fn make_folders(
        &self,
        path: &GuestPath,
        mode: Option<u32>,
    ) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.open(path, flags, Mode::empty()) {
            // Said before any folder on the way is made.
            Err(Errno::NOENT) if self.scope == Scope::Beneath && path.climbs_out() => {
                return Err(Errno::XDEV);
            }
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let mut at = GuestPath::root();
        let mut dir = self.open(&at, flags, Mode::empty())?;
        let parts: Vec<&[u8]> = components(path.bytes()).collect();
        for (index, part) in parts.iter().enumerate() {
            at = at.join(part);
            let next = match self.open(&at, flags, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&dir, *part, Mode::from_raw_mode(0o755)) {
                        Err(Errno::EXIST) | Ok(()) => {}
                        Err(e) => return Err(e),
                    }
                    if let Some(mode) = mode.filter(|_| index + 1 == parts.len()) {
                        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let made = rustix::fs::openat(&dir, *part, flags, Mode::empty())?;
                        rustix::fs::fchmod(made, Mode::from_raw_mode(mode))?;
                    }
                    self.open(&at, flags, Mode::empty())?
                }
                other => other?,
            };
            dir = next;
        }
        Ok(dir)
    }

    /// The path without links, `.` and `..`: a name for a thing, not a way to open it.
    pub(crate) fn canonical(&self, path: &GuestPath) -> GuestPath {
        walk::canonical(self, path.bytes())
            .map(GuestPath::new)
            .unwrap_or_else(|_| GuestPath::new(path.clean()))
    }

    /// A failed operation on a path, in words.
    pub(crate) fn fail(&self, what: &str, path: &GuestPath, error: Errno) -> Failure {
        let shown = path.shown();
        // What is missing on a way out does not make it a way to something missing.
        let out = || self.scope == Scope::Beneath && path.climbs_out();
        if error == Errno::XDEV || (error == Errno::NOENT && out()) {
            return self.escape(what, &shown);
        }
        fail(what, &shown, error)
    }

    fn escape(&self, what: &str, shown: &str) -> Failure {
        let message = format!(
            "cannot {what} {shown}: it escapes workspace {}",
            self.name()
        );
        Failure::new(Code::Forbidden, message)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A failed operation on something that was already found.
pub(crate) fn fail(what: &str, shown: &str, error: Errno) -> Failure {
    let code = match error {
        Errno::NOENT => {
            return Failure::new(Code::NotFound, format!("cannot {what} {shown}: not found"));
        }
        Errno::EXIST => {
            let message = format!("cannot {what} {shown}: it already exists");
            return Failure::new(Code::AlreadyExists, message);
        }
        Errno::BUSY | Errno::TXTBSY | Errno::NOTEMPTY => Some(Code::Conflict),
        Errno::LOOP | Errno::NXIO => Some(Code::InvalidInput),
        Errno::MFILE | Errno::NFILE | Errno::AGAIN => Some(Code::Unavailable),
        _ => None,
    };
    let mut failure = Failure::io(
        format_args!("cannot {what} {shown}"),
        &std::io::Error::from(error),
    );
    if let Some(code) = code {
        failure.code = code;
    }
    failure
}

/// Refuses a thing that is no regular file, in words.
pub(crate) fn regular(what: &str, shown: &str, stat: &Stat) -> Result<(), Failure> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Failure::invalid(format!(
            "cannot {what} {shown}: it is a folder"
        ))),
        _ => Err(Failure::invalid(format!(
            "cannot {what} {shown}: it is not a regular file"
        ))),
    }
}

fn check_form(raw: &[u8]) -> Result<(), Failure> {
    if raw.is_empty() {
        return Err(Failure::invalid("the path is empty"));
    }
    if raw.contains(&0) {
        return Err(Failure::invalid("the path has a NUL byte"));
    }
    if raw.len() >= PATH_LIMIT {
        let message = format!(
            "the path is too long: {} of {} bytes",
            raw.len(),
            PATH_LIMIT - 1
        );
        return Err(Failure::invalid(message));
    }
    Ok(())
}

/// A path below a root, from bytes that need not be UTF-8 (a name in an archive).
pub(crate) fn relative(raw: &[u8]) -> Result<GuestPath, Failure> {
    check_form(raw)?;
    Ok(GuestPath::new(raw.to_vec()))
}

fn absolute(path: &[u8]) -> Vec<u8> {
    [b"/", &components(path).collect::<Vec<_>>().join(&b'/')[..]].concat()
}
