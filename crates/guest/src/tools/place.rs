//! Where the module, the list of tools and the socket are, inside the sandbox.
//!
//! Code of the sandbox can do to them what it likes: it fools only itself, and the next
//! installation makes what is missing anew.

use ringfence_proto::{Failure, Tool};
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

const MODULE: &str = include_str!("../../kernel/_platform_tools.py");

/// Folders that are tried: the first that can be written to, which with a read-only root is often
/// one in memory. The workspace comes last.
const WRITABLE: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];

/// A folder of our own; gone when this is dropped.
pub(super) struct Place {
    folder: PathBuf,
    lib: String,
}

impl Place {
    /// Makes a new one, in the first folder that lets us.
    pub(super) fn make(workspace: &Path, tools: &[Tool]) -> Result<(Self, UnixListener), Failure> {
        let mut first = None;
        for base in WRITABLE.map(Path::new).into_iter().chain([workspace]) {
            match Self::make_in(base, tools) {
                Ok(made) => return Ok(made),
                Err(e) => {
                    first.get_or_insert((base.to_owned(), e));
                }
            }
        }
        let (base, error) = first.unwrap_or_else(|| (PathBuf::new(), io::Error::other("nowhere")));
        let what = format!("cannot install the tools in {}", base.display());
        Err(Failure::io(what, &error).hint("make /tmp writable, or free some space there"))
    }

    fn make_in(base: &Path, tools: &[Tool]) -> io::Result<(Self, UnixListener)> {
        let place = Self::new_folder(base)?;
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700).create(&place.lib)?;
        place.write_module()?;
        place.write_list(tools)?;
        let listener = UnixListener::bind(place.socket())?;
        listener.set_nonblocking(true)?;
        Ok((place, listener))
    }

    fn new_folder(base: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        // The name is in the way only where a guest before this one left it, or code is hostile.
        for _ in 0..100 {
            let count = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!(".ringfence-{}-{count}", std::process::id());
            let folder = base.join(name);
            let lib = folder.join("lib");
            let Some(lib) = lib.to_str().filter(|lib| !lib.contains(':')) else {
                return Err(io::ErrorKind::InvalidFilename.into());
            };
            let lib = lib.to_owned();
            match builder.create(&folder) {
                Ok(()) => return Ok(Self { folder, lib }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Writes the new list; whether all that belongs here is here.
    pub(super) fn renew(&self, tools: &[Tool]) -> bool {
        let socket = fs::symlink_metadata(self.socket());
        socket.is_ok_and(|socket| socket.file_type().is_socket())
            && self.write_module().is_ok()
            && self.write_list(tools).is_ok()
    }

    fn write_module(&self) -> io::Result<()> {
        let path = PathBuf::from(self.stub());
        // Written once: Python's own copy of a module is out of date only by size or second.
        if fs::read(&path).is_ok_and(|text| text == MODULE.as_bytes()) {
            return Ok(());
        }
        write(&path, MODULE.as_bytes())
    }

    fn write_list(&self, tools: &[Tool]) -> io::Result<()> {
        write(&self.list(), &serde_json::to_vec(tools)?)
    }

    /// The folder that Python must search.
    pub(super) fn lib(&self) -> &str {
        &self.lib
    }

    pub(super) fn stub(&self) -> String {
        format!("{}/_platform_tools.py", self.lib)
    }

    fn list(&self) -> PathBuf {
        self.folder.join("tools.json")
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }
}

/// Puts a new file in the place of what is there, so that nobody reads half of it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    fs::rename(&new, path)
}

impl Drop for Place {
    fn drop(&mut self) {
        let cache = Path::new(&self.lib).join("__pycache__");
        // Few, however many code has put there.
        for file in fs::read_dir(&cache)
            .into_iter()
            .flatten()
            .flatten()
            .take(16)
        {
            let _ = fs::remove_file(file.path());
        }
        for file in [self.socket(), self.list(), self.stub().into()] {
            let _ = fs::remove_file(file);
        }
        for folder in [&cache, Path::new(&self.lib), &self.folder] {
            let _ = fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_mends_itself_and_leaves_nothing() {
        let base = tempfile::tempdir().unwrap();
        let tools = [Tool {
            name: "f".to_owned(),
            doc: "x".to_owned(),
        }];
        let (place, _listener) = Place::make_in(base.path(), &tools).unwrap();
        assert!(place.stub().contains("lib"));
        assert!(place.renew(&[]));
        assert_eq!(fs::read_to_string(place.list()).unwrap(), "[]");
        fs::write(place.stub(), "raise SystemExit").unwrap();
        assert!(place.renew(&tools));
        assert_eq!(fs::read_to_string(place.stub()).unwrap(), MODULE);
        // A link in the place of a file is replaced and not followed.
        let victim = base.path().join("victim");
        fs::write(&victim, "stays").unwrap();
        fs::remove_file(place.list()).unwrap();
        for name in ["tools.json", "tools.new"] {
            std::os::unix::fs::symlink(&victim, place.folder.join(name)).unwrap();
        }
        assert!(place.renew(&tools));
        assert_eq!(fs::read_to_string(&victim).unwrap(), "stays");
        fs::remove_file(&victim).unwrap();
        fs::remove_file(place.socket()).unwrap();
        assert!(!place.renew(&tools));
        drop(place);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_named() {
        let nowhere = Path::new("/proc/no/such/folder");
        assert!(Place::make_in(nowhere, &[]).is_err());
    }
}
