//! Goes through a folder and what is below it. No link is followed: each folder is opened from
//! the one at the top, with links refused, so that nothing swapped in meanwhile leads out, and
//! few descriptors are held however deep it goes.

use super::Cancel;
use super::beneath::{GuestPath, Links, Root, relative};
use super::ignored::Ignored;
use super::list::link_text;
use ringfence_proto::{Code, Failure};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Entries of a folder that are read, sorted and held at a time.
const BATCH: usize = 16_384;

/// File systems whose files are no files: reading all of them never ends, or does something.
const MAGIC: [u64; 8] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
];

/// What a tree leaves out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Levels below the top folder.
    pub(crate) depth: u32,
    /// Names that start with a dot are shown.
    pub(crate) hidden: bool,
    pub(crate) gitignore: bool,
    /// A folder that can't be read is left out, and `truncated` is set; else it is a failure.
    pub(crate) lenient: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            depth: u32::MAX,
            hidden: true,
            gitignore: false,
            lenient: true,
        }
    }
}

/// A thing below the top folder.
#[derive(Debug)]
pub(crate) struct Node {
    /// Relative to the top folder.
    pub(crate) path: Vec<u8>,
    pub(crate) stat: Stat,
    /// Where a link points.
    pub(crate) target: Option<Vec<u8>>,
}

impl Node {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

struct Folder {
    path: Vec<u8>,
    depth: u32,
    ignored: Option<Arc<Ignored>>,
}

enum Step {
    Show(Box<Node>, u32, Option<Arc<Ignored>>),
    Enter(Folder),
    /// A folder with more entries than a batch.
    Continue(Folder, Dir),
}

/// The things below a folder, one at a time, each folder before what is in it.
pub(crate) struct Tree {
    top: Root,
    /// The top folder, as the caller named it.
    at: GuestPath,
    what: &'static str,
    options: Options,
    device: u64,
    pending: Vec<Step>,
    /// Something was left out that the caller did not ask to leave out.
    pub(crate) truncated: bool,
}

impl Tree {
    pub(crate) fn new(
        root: &Root,
        what: &'static str,
        path: &GuestPath,
        options: Options,
    ) -> Result<Self, Failure> {
        let fail = |e| match e {
            Errno::NOTDIR => Failure::invalid(format!(
                "cannot {what} {}: it is not a folder",
                path.shown()
            )),
            e => root.fail(what, path, e),
        };
        let top = root.enter(path).map_err(fail)?;
        let device = rustix::fs::fstat(&top).map_err(fail)?.st_dev;
        let ignored = options.gitignore.then(|| Ignored::above(root, path));
        let mut tree = Self {
            top,
            at: path.clone(),
            what,
            options,
            device,
            pending: Vec::new(),
            truncated: false,
        };
        // The top folder is opened now, so that one that can't be read is a failure at once.
        let folder = Folder {
            path: Vec::new(),
            depth: 0,
            ignored,
        };
        let dir = tree.open_folder(&folder).map_err(fail)?;
        if let Some(dir) = dir {
            tree.read(folder, dir).map_err(fail)?;
        }
        Ok(tree)
    }

    /// Opens a thing that was shown, unless it has become a link.
    pub(crate) fn open(&self, node: &Node, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = relative(&node.path).map_err(|_| Errno::NAMETOOLONG)?;
        self.top
            .open_links(&path, flags, Mode::empty(), Links::Refuse)
    }

    /// The path of a thing from the root that the caller chose.
    pub(crate) fn shown(&self, node: &Node) -> String {
        self.at.join(&node.path).shown()
    }

    pub(crate) fn next(&mut self, cancel: &Cancel) -> Result<Option<Node>, Failure> {
        while let Some(step) = self.pending.pop() {
            cancel.check()?;
            let (folder, dir) = match step {
                Step::Show(node, depth, ignored) => {
                    if node.kind() == FileType::Directory && depth < self.options.depth {
                        let path = node.path.clone();
                        self.pending.push(Step::Enter(Folder {
                            path,
                            depth,
                            ignored,
                        }));
                    }
                    return Ok(Some(*node));
                }
                Step::Enter(folder) => match self.open_folder(&folder) {
                    Ok(Some(dir)) => (folder, dir),
                    Ok(None) => continue,
                    Err(e) => {
                        self.unreadable(&folder.path, e)?;
                        continue;
                    }
                },
                Step::Continue(folder, dir) => (folder, dir),
            };
            let path = folder.path.clone();
            if let Err(e) = self.read(folder, dir) {
                self.unreadable(&path, e)?;
            }
        }
        Ok(None)
    }

    fn unreadable(&mut self, path: &[u8], error: Errno) -> Result<(), Failure> {
        match error {
            // It is gone, or a link or a file now.
            Errno::NOENT | Errno::LOOP | Errno::NOTDIR => Ok(()),
            _ if self.options.lenient => {
                self.truncated = true;
                Ok(())
            }
            e => {
                let shown = self.at.join(path).shown();
                Err(super::beneath::fail(self.what, &shown, e))
            }
        }
    }

    /// None for the top of a file system of no files.
    fn open_folder(&self, folder: &Folder) -> Result<Option<Dir>, Errno> {
        let path = match folder.path.as_slice() {
            [] => GuestPath::root(),
            path => relative(path).map_err(|_| Errno::NAMETOOLONG)?,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let fd = self
            .top
            .open_links(&path, flags, Mode::empty(), Links::Refuse)?;
        if rustix::fs::fstat(&fd)?.st_dev != self.device {
            let magic = rustix::fs::fstatfs(&fd)?.f_type as u64;
            if MAGIC.contains(&magic) {
                return Ok(None);
            }
        }
        Dir::new(fd).map(Some)
    }

    /// Reads the next batch of a folder into what is pending.
    fn read(&mut self, mut folder: Folder, mut dir: Dir) -> Result<(), Errno> {
        if let Some(above) = folder.ignored.take() {
            let fd = dir.fd()?;
            folder.ignored = Some(Ignored::with(
                above,
                fd,
                &self.at.join(&folder.path).clean(),
            ));
        }
        let mut names = Vec::new();
        let mut more = false;
        while let Some(entry) = dir.read() {
            let name = entry?.file_name().to_bytes().to_vec();
            if name == b"." || name == b".." || (!self.options.hidden && name[0] == b'.') {
                continue;
            }
            names.push(name);
            if names.len() == BATCH {
                more = true;
                break;
            }
        }
        names.sort_unstable();
        let mut shown = Vec::with_capacity(names.len());
        for name in names {
            let fd = dir.fd()?;
            let stat = match rustix::fs::statat(fd, &name[..], AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(e) => return Err(e),
            };
            let kind = FileType::from_raw_mode(stat.st_mode);
            let path = match folder.path.as_slice() {
                [] => name.clone(),
                above => [above, b"/", &name[..]].concat(),
            };
            if let Some(ignored) = &folder.ignored {
                let whole = self.at.join(&path).clean();
                if ignored.matches(&name, &whole, kind == FileType::Directory) {
                    continue;
                }
            }
            let target = (kind == FileType::Symlink)
                .then(|| link_text(fd, &name))
                .flatten();
            let node = Box::new(Node { path, stat, target });
            shown.push(Step::Show(node, folder.depth + 1, folder.ignored.clone()));
        }
        if more {
            self.pending.push(Step::Continue(folder, dir));
        }
        self.pending.extend(shown.into_iter().rev());
        Ok(())
    }
}

/// The failure of a request whose client has gone.
pub(crate) fn cancelled() -> Failure {
    Failure::new(Code::Unavailable, "the client went away")
}
