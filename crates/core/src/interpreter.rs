//! Finds the host's Python without running it where that can be avoided: a version manager's shim
//! takes 125 ms to say what its own files say at once.

use ringfence_proto::{Code, Failure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// An interpreter and the folders it needs besides the system's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    pub executable: PathBuf,
    /// Folders outside `/usr`, to be seen at the same place inside.
    pub folders: Vec<PathBuf>,
}

/// What of the caller's environment decides which interpreter is meant.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// The value of `PATH`.
    pub path: String,
    /// `PYENV_VERSION`, which goes before pyenv's files.
    pub pyenv_version: Option<String>,
    /// Where `.python-version` files are looked for, upwards.
    pub folder: PathBuf,
}

impl Search {
    /// The first `python3`, or `python`, of the search path that is or leads to an interpreter.
    pub fn find(&self) -> Option<Interpreter> {
        for name in ["python3", "python"] {
            for folder in self.path.split(':').filter(|f| f.starts_with('/')) {
                let candidate = Path::new(folder).join(name);
                if !is_executable(&candidate) {
                    continue;
                }
                let found = if is_script(&candidate) {
                    self.behind_shim(&candidate)
                } else {
                    Interpreter::at(&candidate).ok()
                };
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Where a pyenv shim would lead, read from pyenv's own files.
    fn behind_shim(&self, shim: &Path) -> Option<Interpreter> {
        let root = shim.parent()?.parent()?;
        let versions = root.join("versions");
        let chosen = self
            .pyenv_version
            .clone()
            .or_else(|| {
                self.folder
                    .ancestors()
                    .find_map(|f| fs::read_to_string(f.join(".python-version")).ok())
            })
            .or_else(|| fs::read_to_string(root.join("version")).ok())?;
        chosen
            .split([':', '\n', ' '])
            .map(str::trim)
            .filter(|v| !v.is_empty())
            .find_map(|version| {
                if version == "system" || version.contains('/') {
                    return None;
                }
                let name = shim.file_name()?;
                Interpreter::at(&versions.join(version).join("bin").join(name)).ok()
            })
    }
}

impl Interpreter {
    /// The interpreter at this path, with the installation and, for a virtual environment, the
    /// base installation that it needs.
    pub fn at(executable: &Path) -> Result<Self, Failure> {
        let missing = |why: &str| {
            Failure::new(
                Code::Missing,
                format!(
                    "cannot use {} as the interpreter: {why}",
                    executable.display()
                ),
            )
        };
        if !executable.is_absolute() {
            return Err(missing("not an absolute path"));
        }
        let real = executable
            .canonicalize()
            .map_err(|_| missing("no such file"))?;
        if !is_executable(&real) {
            return Err(missing("not executable"));
        }
        if is_script(&real) {
            return Err(missing("it is a script that leads to another one"));
        }
        let mut folders = Vec::new();
        let mut add = |folder: Option<&Path>| {
            if let Some(folder) = folder
                && !in_system(folder)
                && folder.components().count() > 1
                && !folders.iter().any(|f: &PathBuf| folder.starts_with(f))
            {
                folders.push(folder.to_owned());
            }
        };
        let prefix = |path: &Path| path.parent().and_then(Path::parent).map(Path::to_owned);
        // Each link on the way may lie in a folder of its own.
        let mut at = executable.to_owned();
        for _ in 0..16 {
            let here = prefix(&at);
            add(here.as_deref());
            if let Some(here) = &here
                && let Some(home) = base_of(here)
            {
                add(prefix(&home.join("python3")).as_deref());
            }
            match fs::read_link(&at) {
                Ok(target) => at = at.parent().unwrap_or(Path::new("/")).join(target),
                Err(_) => break,
            }
        }
        if real.starts_with("/nix/store") {
            add(Some(Path::new("/nix/store")));
        }
        add(prefix(&real).as_deref());
        Ok(Self {
            executable: executable.to_owned(),
            folders,
        })
    }
}

/// The folder that a virtual environment's `pyvenv.cfg` names as its home.
fn base_of(prefix: &Path) -> Option<PathBuf> {
    let config = fs::read_to_string(prefix.join("pyvenv.cfg")).ok()?;
    config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "home").then(|| PathBuf::from(value.trim()))
    })
}

/// What every native sandbox has of the host already.
fn in_system(path: &Path) -> bool {
    ["/usr", "/bin", "/lib", "/lib64", "/sbin"]
        .iter()
        .any(|s| path.starts_with(s))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn is_script(path: &Path) -> bool {
    let mut start = [0u8; 2];
    let read =
        fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut start));
    read.is_ok() && start == *b"#!"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn program(path: &Path, bytes: &[u8]) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_pyenv_shim_leads_to_the_version_in_force() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("pyenv");
        program(&root.join("shims/python3"), b"#!/bin/sh\n");
        for version in ["3.9.1", "3.12.0"] {
            program(
                &root.join(format!("versions/{version}/bin/python3")),
                b"\x7fELF",
            );
        }
        fs::write(root.join("version"), "3.12.0\n").unwrap();
        let mut search = Search {
            path: root.join("shims").display().to_string(),
            pyenv_version: None,
            folder: home.path().to_owned(),
        };
        let found = search.find().unwrap();
        assert_eq!(found.executable, root.join("versions/3.12.0/bin/python3"));
        assert_eq!(found.folders, [root.join("versions/3.12.0")]);
        fs::write(home.path().join(".python-version"), "3.9.1\n").unwrap();
        assert!(
            search
                .find()
                .unwrap()
                .executable
                .ends_with("3.9.1/bin/python3")
        );
        search.pyenv_version = Some("3.12.0".into());
        assert!(
            search
                .find()
                .unwrap()
                .executable
                .ends_with("3.12.0/bin/python3")
        );
        search.pyenv_version = Some("../../etc".into());
        assert!(search.find().is_none());
    }

    #[test]
    fn a_virtual_environment_brings_its_base() {
        let home = tempfile::tempdir().unwrap();
        let base = home.path().join("base/bin/python3");
        program(&base, b"\x7fELF");
        let venv = home.path().join("venv");
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(&base, venv.join("bin/python3")).unwrap();
        let config = format!("home = {}\n", base.parent().unwrap().display());
        fs::write(venv.join("pyvenv.cfg"), config).unwrap();
        let found = Interpreter::at(&venv.join("bin/python3")).unwrap();
        assert_eq!(found.folders, [venv, home.path().join("base")]);
    }

    #[test]
    fn what_is_no_interpreter_is_refused() {
        let home = tempfile::tempdir().unwrap();
        for bad in ["relative", "/no/such/file", home.path().to_str().unwrap()] {
            assert!(Interpreter::at(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
