//! Finds the host's Python without running it where that can be avoided: a version manager's shim
//! takes 125 ms to say what its own files say at once.

use ringfence_proto::{Code, Failure};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

/// An interpreter and what it needs besides the system's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interpreter {
    /// Where it is inside: in its installation or its virtual environment, whatever led there.
    pub executable: PathBuf,
    /// Folders outside `/usr`, to be seen at the same place inside. No link leads to them.
    pub folders: Vec<PathBuf>,
    /// Links that lie in none of these folders, and where they lead.
    pub links: Vec<(PathBuf, PathBuf)>,
}

/// A folder of the search path in which `python3` is the interpreter that was chosen, where it has
/// another name or other neighbours.
const ALIASES: &str = "/run/ringfence/bin";

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
    /// base installation that it needs. Folders that only hold a link to it are none of both.
    pub fn at(executable: &Path) -> Result<Self, Failure> {
        let refused = |why: &str| {
            Failure::new(
                Code::Missing,
                format!(
                    "cannot use {} as the interpreter: {why}",
                    executable.display()
                ),
            )
        };
        if !executable.is_absolute() {
            return Err(refused("not an absolute path"));
        }
        let (chain, real) = follow(executable).ok_or_else(|| refused("no such file"))?;
        if !is_executable(&real) {
            return Err(refused("not executable"));
        }
        if is_script(&real) {
            return Err(refused("it is a script that leads to another one"));
        }
        let mut found = Self {
            executable: real.clone(),
            folders: Vec::new(),
            links: Vec::new(),
        };
        let installation = installation(&real).map_err(|(folder, why)| {
            refused(&format!("{} {why}", folder.display()))
                .hint("install Python into a folder of its own, or use the one of the system")
        })?;
        let venv = chain.iter().position(|step| base_of(step).is_some());
        if let Some(at) = venv {
            found.executable.clone_from(&chain[at]);
            let venv = prefix(&chain[at]).unwrap_or(Path::new("/"));
            if is_shared(venv, &passwd()) {
                let why = format!("{} is more than a virtual environment", venv.display());
                return Err(refused(&why));
            }
            found.add(venv);
        } else if let Some(step) = chain.iter().find(|step| found.is_home(step, &installation)) {
            found.executable.clone_from(step);
        }
        found.add(&installation);
        if let Some(at) = venv {
            // What the environment names must lead to the same place as outside.
            let home = base_of(&chain[at]).unwrap_or_default();
            let name = chain[at].file_name().unwrap_or_default();
            for step in chain[at + 1..].iter().chain([&home.join(name)]) {
                found.link(step, &real);
            }
            // Its programs name it by the path that it was made at.
            if let (Some(named), Some(venv)) = (prefix(executable), prefix(&chain[at]))
                && at == 0
                && named != venv
            {
                found.link(named, venv);
            }
        }
        let usual = found.executable.with_file_name("python3");
        if usual.canonicalize().ok() != Some(real) {
            let alias = Path::new(ALIASES).join("python3");
            let to = found.executable.clone();
            found.links.push((alias, to));
        }
        Ok(found)
    }

    /// The folders of the search path in which it is found, first of all others.
    pub fn search_path(&self) -> impl Iterator<Item = &Path> {
        let aliases = Path::new(ALIASES);
        let aliased = self.links.iter().any(|(at, _)| at.starts_with(aliases));
        let own = self.executable.parent();
        aliased.then_some(aliases).into_iter().chain(own)
    }

    fn add(&mut self, folder: &Path) {
        if !in_system(folder) && !self.folders.iter().any(|f| folder.starts_with(f)) {
            self.folders.push(folder.to_owned());
        }
    }

    fn link(&mut self, at: &Path, to: &Path) {
        let clean = |path: &Path| {
            let normal = |c| matches!(c, Component::RootDir | Component::Normal(_));
            path.is_absolute() && path.components().all(normal)
        };
        let there = in_system(at) || self.folders.iter().any(|f| at.starts_with(f));
        if clean(at) && !there && !self.links.iter().any(|(known, _)| known == at) {
            self.links.push((at.to_owned(), to.to_owned()));
        }
    }

    /// Whether a step on the way to the interpreter lies where that does.
    fn is_home(&self, step: &Path, installation: &Path) -> bool {
        step.parent() == self.executable.parent() && prefix(step) == Some(installation)
            || in_system(step) && in_system(&self.executable)
    }
}

/// The links from here to a file, each with the folder that it really lies in, and the file.
fn follow(path: &Path) -> Option<(Vec<PathBuf>, PathBuf)> {
    let resolved = |path: &Path| {
        let folder = path.parent()?.canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    let mut at = resolved(path)?;
    let mut chain = Vec::new();
    // As many as the kernel follows.
    for _ in 0..40 {
        chain.push(at.clone());
        match fs::read_link(&at) {
            Ok(target) => at = resolved(&at.parent()?.join(target))?,
            Err(_) => return at.exists().then_some((chain, at)),
        }
    }
    None
}

/// The folder that holds `bin` with this program.
fn prefix(program: &Path) -> Option<&Path> {
    program.parent().and_then(Path::parent)
}

/// The folder that an interpreter was installed into; or the one that can't be that, and why.
fn installation(real: &Path) -> Result<PathBuf, (PathBuf, &'static str)> {
    let store = Path::new("/nix/store");
    if real.starts_with(store) {
        return Ok(store.to_owned());
    }
    let prefix = prefix(real).unwrap_or(Path::new("/"));
    if in_system(real) {
        return Ok(prefix.to_owned());
    }
    // Programs of Homebrew need each other's libraries, by links beside the cellar.
    let cellar = prefix.ancestors().find(|f| f.ends_with("Cellar"));
    let folder = cellar.and_then(Path::parent).unwrap_or(prefix);
    if is_shared(folder, &passwd()) {
        return Err((folder.to_owned(), "holds more than Python"));
    }
    if !has_library(prefix) {
        return Err((folder.to_owned(), "has no library of Python"));
    }
    Ok(folder.to_owned())
}

fn has_library(prefix: &Path) -> bool {
    let library = |name: &str| name.starts_with("python") || name.starts_with("pypy");
    prefix.join("lib-python").is_dir()
        || ["lib", "lib64"].iter().any(|folder| {
            let entries = fs::read_dir(prefix.join(folder)).into_iter().flatten();
            let mut names = entries.flatten().map(|entry| entry.file_name());
            names.any(|name| name.to_str().is_some_and(library))
        })
}

fn passwd() -> String {
    fs::read_to_string("/etc/passwd").unwrap_or_default()
}

/// Whether a folder is, or holds, what belongs to a person or to the machine: whatever is installed
/// there, it is not given to a sandbox as a whole.
fn is_shared(folder: &Path, passwd: &str) -> bool {
    let machine = ["/etc", "/proc", "/sys", "/dev", "/run", "/boot"];
    let many = ["/home", "/var", "/mnt", "/media"];
    let mut homes = passwd.lines().filter_map(|line| line.split(':').nth(5));
    // The root, and what lies directly below it.
    folder.components().count() <= 2
        || machine.iter().any(|m| folder.starts_with(m))
        || many.iter().any(|m| folder.parent() == Some(Path::new(m)))
        || folder.ends_with(".local")
        || homes.any(|home| home.len() > 1 && Path::new(home).starts_with(folder))
}

/// The folder that the `pyvenv.cfg` of a virtual environment with this program names as its home.
fn base_of(program: &Path) -> Option<PathBuf> {
    let config = fs::read_to_string(prefix(program)?.join("pyvenv.cfg")).ok()?;
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

    /// An installation of Python in a folder.
    fn install(prefix: &Path) -> PathBuf {
        fs::create_dir_all(prefix.join("lib/python3.12")).unwrap();
        let real = prefix.join("bin/python3.12");
        program(&real, b"\x7fELF");
        symlink("python3.12", prefix.join("bin/python3")).unwrap();
        real
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    #[test]
    fn a_pyenv_shim_leads_to_the_version_in_force() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().join("pyenv");
        program(&root.join("shims/python3"), b"#!/bin/sh\n");
        for version in ["3.9.1", "3.12.0"] {
            install(&root.join("versions").join(version));
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
        let (_held, home) = folder();
        let base = install(&home.join("base"));
        let venv = home.join("venv");
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(&base, venv.join("bin/python3")).unwrap();
        let config = format!("home = {}\n", base.parent().unwrap().display());
        fs::write(venv.join("pyvenv.cfg"), config).unwrap();
        let found = Interpreter::at(&venv.join("bin/python3")).unwrap();
        assert_eq!(found.folders, [venv.clone(), home.join("base")]);
        assert_eq!(found.executable, venv.join("bin/python3"));
        assert_eq!(found.links, []);
        // By way of another name of its folder, which its programs may use.
        symlink(&venv, home.join("other")).unwrap();
        let found = Interpreter::at(&home.join("other/bin/python3")).unwrap();
        assert_eq!(found.folders, [venv.clone(), home.join("base")]);
        assert_eq!(found.links, [(home.join("other"), venv)]);
    }

    #[test]
    fn the_folder_of_a_link_stays_outside() {
        let (_held, home) = folder();
        let real = install(&home.join("opt/python"));
        let bin = home.join("person/bin");
        fs::create_dir_all(&bin).unwrap();
        symlink(&real, bin.join("python3")).unwrap();
        let found = Interpreter::at(&bin.join("python3")).unwrap();
        assert_eq!(found.folders, [home.join("opt/python")]);
        assert_eq!(found.executable, real);

        // An environment that was made by way of the link leads through it.
        let venv = home.join("venv");
        fs::create_dir_all(venv.join("bin")).unwrap();
        symlink(bin.join("python3"), venv.join("bin/python3")).unwrap();
        fs::write(
            venv.join("pyvenv.cfg"),
            format!("home = {}\n", bin.display()),
        )
        .unwrap();
        let found = Interpreter::at(&venv.join("bin/python3")).unwrap();
        assert_eq!(found.folders, [venv, home.join("opt/python")]);
        assert_eq!(found.links, [(bin.join("python3"), real)]);
    }

    #[test]
    fn one_of_another_name_is_python3_inside() {
        let (_held, home) = folder();
        let real = install(&home.join("python"));
        fs::remove_file(home.join("python/bin/python3")).unwrap();
        let found = Interpreter::at(&real).unwrap();
        let alias = Path::new(ALIASES).join("python3");
        assert_eq!(found.links, [(alias, real.clone())]);
        let path: Vec<_> = found.search_path().collect();
        assert_eq!(path, [Path::new(ALIASES), real.parent().unwrap()]);
    }

    #[test]
    fn only_an_installation_is_one() {
        let (_held, home) = folder();
        let real = home.join("person/bin/python3");
        program(&real, b"\x7fELF");
        let failure = Interpreter::at(&real).unwrap_err();
        assert!(failure.message.contains("no library"), "{failure}");
        install(&home.join("person/.local"));
        let failure = Interpreter::at(&home.join("person/.local/bin/python3")).unwrap_err();
        assert!(failure.message.contains("holds more"), "{failure}");
        assert!(failure.hint.is_some());
        let passwd = "root:x:0:0:root:/root:/bin/sh\nann:x:1:1::/data/people/ann:/bin/sh\n";
        for (folder, shared) in [
            ("/", true),
            ("/root", true),
            ("/opt", true),
            ("/home/ann", true),
            ("/var/lib", true),
            ("/etc/python", true),
            ("/data/people", true),
            ("/data/people/ann", true),
            ("/data/people/ann/.local", true),
            ("/opt/python", false),
            ("/home/ann/miniconda3", false),
            ("/data/people/ann/python", false),
            ("/var/lib/tools/python", false),
        ] {
            assert_eq!(is_shared(Path::new(folder), passwd), shared, "{folder}");
        }
    }

    #[test]
    fn what_is_no_interpreter_is_refused() {
        let home = tempfile::tempdir().unwrap();
        for bad in ["relative", "/no/such/file", home.path().to_str().unwrap()] {
            assert!(Interpreter::at(Path::new(bad)).is_err(), "{bad}");
        }
    }
}
