//! `ringfence env`: packages environments, which sandboxes see read-only.

mod build;

use crate::settings;
use clap::{Args, Subcommand};
use ringfence_core::interpreter::Interpreter;
use ringfence_core::plan::check_environment;
use ringfence_core::{Code, Failure, Size};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Written last: a folder without it is not an environment yet.
const MARK: &str = "ringfence-env.json";

/// What the environment `data` holds unless its packages are named.
const DATA: [&str; 19] = [
    "numpy",
    "pandas",
    "scipy",
    "scikit-learn",
    "matplotlib",
    "seaborn",
    "pillow",
    "sympy",
    "requests",
    "openpyxl",
    "xlrd",
    "xlsxwriter",
    "python-dateutil",
    "pytz",
    "beautifulsoup4",
    "lxml",
    "pypdf",
    "python-docx",
    "python-pptx",
];

const EXAMPLES: &str = "\
Examples:
  ringfence env add data
  ringfence env add web --packages requests,beautifulsoup4==4.12.3
  ringfence env ls
  ringfence run --env-name web -c 'import bs4; print(bs4.__version__)'
  ringfence env rm web";

/// Makes and removes packages environments for `run --env-name`
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Env {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Add(Add),
    Ls(Ls),
    Show(Show),
    Rm(Rm),
}

/// Makes an environment with these packages
///
/// Uses uv where it is on the search path, else the interpreter's own venv and pip.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ringfence env add data
  ringfence env add plots --packages numpy,matplotlib --python /usr/bin/python3

`data` without --packages is the set for data work: numpy, pandas, scipy, scikit-learn,
matplotlib, seaborn, pillow, sympy, requests, openpyxl, xlrd, xlsxwriter, python-dateutil, pytz,
beautifulsoup4, lxml, pypdf, python-docx, python-pptx.")]
struct Add {
    /// 1 to 32 lower case letters, digits, `_` and `-`
    name: String,

    /// Packages as pip knows them, with commas between
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    packages: Vec<String>,

    /// The interpreter to build on; the first python3 on the search path when absent
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,

    /// Prints the new environment as one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists the environments
#[derive(Args)]
#[command(after_help = "Examples:\n  ringfence env ls\n  ringfence env ls --json")]
struct Ls {
    /// Prints a JSON list
    #[arg(long)]
    json: bool,
}

/// Shows what an environment holds
#[derive(Args)]
#[command(after_help = "Examples:\n  ringfence env show data")]
struct Show {
    name: String,

    /// Prints one JSON object
    #[arg(long)]
    json: bool,
}

/// Removes an environment
#[derive(Args)]
#[command(after_help = "Examples:\n  ringfence env rm data")]
struct Rm {
    name: String,
}

/// What is known of an environment.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    packages: Vec<String>,
    /// Everything that was installed, as `name==version`.
    #[serde(default)]
    installed: Vec<String>,
    /// The interpreter that it was built on.
    python: PathBuf,
    python_version: String,
    /// Seconds since the epoch.
    created: u64,
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    path: PathBuf,
    #[serde(flatten)]
    mark: &'a Mark,
}

impl Env {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        match self.verb {
            Verb::Add(add) => add.main(),
            Verb::Ls(ls) => ls.main(),
            Verb::Show(show) => show.main(),
            Verb::Rm(rm) => rm.main(),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Add {
    fn main(self) -> Result<(), Failure> {
        let folder = folder_of(&self.name)?;
        let packages = self.packages()?;
        let interpreter = match &self.python {
            Some(python) => {
                let python = std::path::absolute(python)
                    .map_err(|e| Failure::io(format!("cannot use {}", python.display()), &e))?;
                Interpreter::at(&python)?
            }
            None => settings::search().find().ok_or_else(|| {
                Failure::new(Code::Missing, "there is no python3 on the search path")
                    .hint("install python3, or name one with --python")
            })?,
        };
        // Sandboxes of root see it as another user, whatever mask the caller has.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let lock = Lock::take(&self.name)?;
        if folder.join(MARK).exists() {
            return Err(Failure::new(
                Code::AlreadyExists,
                format!("there is an environment `{}` already", self.name),
            )
            .hint(format!("`ringfence env rm {}` removes it", self.name)));
        }
        remove_folder(&folder)?;
        let made = build::build(&folder, &interpreter.executable, &packages);
        if made.is_err() {
            // What can't be removed now is removed by the next attempt.
            let _ = remove_folder(&folder);
        }
        let (python_version, installed) = made?;
        let mark = Mark {
            packages,
            installed,
            python: interpreter.executable,
            python_version,
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs(),
        };
        write_mark(&folder, &mark)?;
        drop(lock);
        let name = &self.name;
        if self.json {
            return super::say_json(&Entry {
                name,
                path: folder,
                mark: &mark,
            });
        }
        super::say(format_args!(
            "environment `{name}` is ready: Python {}, {} packages",
            mark.python_version,
            mark.installed.len()
        ));
        super::say(format_args!("try: ringfence run --env-name {name} -c '…'"));
        Ok(())
    }

    fn packages(&self) -> Result<Vec<String>, Failure> {
        let named: Vec<String> = self
            .packages
            .iter()
            .map(|p| p.trim().to_owned())
            .filter(|p| !p.is_empty())
            .collect();
        for package in &named {
            // What starts with a dash would be an option of the installer.
            let good = |c: char| c.is_ascii_alphanumeric() || "._-[]=<>!~+*@:/# ".contains(c);
            if !package.starts_with(|c: char| c.is_ascii_alphanumeric())
                || !package.chars().all(good)
            {
                return Err(Failure::invalid(format!("`{package}` is not a package"))
                    .hint("use names as pip knows them, such as numpy or pandas==2.2.0"));
            }
        }
        match (named.is_empty(), self.name.as_str()) {
            (false, _) => Ok(named),
            (true, "data") => Ok(DATA.map(str::to_owned).to_vec()),
            (true, _) => Err(Failure::invalid("no packages are named")
                .hint("give --packages numpy,pandas,… (only `data` has a set of its own)")),
        }
    }
}

impl Ls {
    fn main(self) -> Result<(), Failure> {
        let all = all()?;
        if self.json {
            let entries: Vec<Entry<'_>> = all
                .iter()
                .map(|(name, mark)| Entry {
                    name,
                    path: settings::environments().join(name),
                    mark,
                })
                .collect();
            return super::say_json(&entries);
        }
        for (name, mark) in &all {
            super::say(format_args!(
                "{name:<16} Python {:<8} {}",
                mark.python_version,
                shortened(&mark.packages.join(", "))
            ));
        }
        if all.is_empty() {
            super::say("there are no environments; `ringfence env add data` makes one");
        }
        Ok(())
    }
}

impl Show {
    fn main(self) -> Result<(), Failure> {
        let path = finished(&self.name)?;
        let mark = read_mark(&path)
            .ok_or_else(|| Failure::new(Code::Internal, format!("cannot read {MARK}")))?;
        if self.json {
            return super::say_json(&Entry {
                name: &self.name,
                path,
                mark: &mark,
            });
        }
        super::say(format_args!("name      {}", self.name));
        super::say(format_args!("folder    {}", path.display()));
        super::say(format_args!("size      {}", Size(size_of(&path))));
        super::say(format_args!(
            "python    {} ({})",
            mark.python_version,
            mark.python.display()
        ));
        super::say(format_args!("made      {}", ago(mark.created)));
        super::say(format_args!("packages  {}", mark.packages.join(", ")));
        for package in &mark.installed {
            super::say(format_args!("          {package}"));
        }
        Ok(())
    }
}

impl Rm {
    fn main(self) -> Result<(), Failure> {
        let folder = folder_of(&self.name)?;
        if !folder.exists() {
            return Err(missing(&self.name));
        }
        let _lock = Lock::take(&self.name)?;
        // Without its mark it is no environment, so a removal that is cut off leaves none.
        let _ = fs::remove_file(folder.join(MARK));
        remove_folder(&folder)?;
        super::say(format_args!("removed environment `{}`", self.name));
        Ok(())
    }
}

/// The folder of an environment that is ready for use.
pub(crate) fn finished(name: &str) -> Result<PathBuf, Failure> {
    let folder = folder_of(name)?;
    if folder.join(MARK).is_file() {
        return Ok(folder);
    }
    Err(missing(name))
}

/// Removes environments whose making was cut off, and says which.
pub(crate) fn remove_unfinished() -> Result<Vec<String>, Failure> {
    let mut removed = Vec::new();
    for name in names()? {
        let folder = settings::environments().join(&name);
        if folder.join(MARK).exists() {
            continue;
        }
        // One that is locked is being made.
        if let Ok(_lock) = Lock::take(&name) {
            remove_folder(&folder)?;
            removed.push(name);
        }
    }
    Ok(removed)
}

fn missing(name: &str) -> Failure {
    Failure::new(Code::NotFound, format!("there is no environment `{name}`")).hint(format!(
        "`ringfence env ls` lists them, `ringfence env add {name} --packages …` makes it"
    ))
}

fn is_name(name: &str) -> bool {
    check_environment(name).is_ok()
}

fn folder_of(name: &str) -> Result<PathBuf, Failure> {
    check_environment(name)?;
    Ok(settings::environments().join(name))
}

fn names() -> Result<Vec<String>, Failure> {
    let root = settings::environments();
    let entries = match fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Failure::io(format!("cannot read {}", root.display()), &e)),
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| is_name(name))
        .collect();
    names.sort();
    Ok(names)
}

fn all() -> Result<Vec<(String, Mark)>, Failure> {
    let root = settings::environments();
    Ok(names()?
        .into_iter()
        .filter_map(|name| {
            let mark = read_mark(&root.join(&name))?;
            Some((name, mark))
        })
        .collect())
}

fn read_mark(folder: &Path) -> Option<Mark> {
    serde_json::from_slice(&fs::read(folder.join(MARK)).ok()?).ok()
}

fn write_mark(folder: &Path, mark: &Mark) -> Result<(), Failure> {
    let path = folder.join(MARK);
    let new = path.with_extension("new");
    serde_json::to_vec_pretty(mark)
        .map_err(io::Error::other)
        .and_then(|bytes| fs::write(&new, bytes))
        .and_then(|()| fs::rename(&new, &path))
        .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))
}

fn remove_folder(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::io(
            format!("cannot remove {}", folder.display()),
            &e,
        )),
        _ => Ok(()),
    }
}

/// Held by whoever makes or removes an environment; let go when that process ends.
struct Lock {
    _file: fs::File,
}

impl Lock {
    fn take(name: &str) -> Result<Self, Failure> {
        let root = settings::environments();
        let path = root.join(format!(".{name}.lock"));
        let what = || format!("cannot lock {}", path.display());
        let file = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&root)
            .and_then(|()| {
                fs::OpenOptions::new()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .open(&path)
            })
            .map_err(|e| Failure::io(what(), &e))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::new(
                Code::Conflict,
                format!("another process is working on the environment `{name}`"),
            )
            .hint("wait for it to end")),
            Err(e) => Err(Failure::io(what(), &e.into())),
        }
    }
}

fn size_of(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    if !metadata.is_dir() {
        return metadata.blocks() * 512;
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size_of(&entry.path())).sum()
}

pub(super) fn ago(created: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_secs(created);
    let seconds = then.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds} seconds ago"),
        120..7200 => format!("{} minutes ago", seconds / 60),
        7200..172_800 => format!("{} hours ago", seconds / 3600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_folder() {
        for good in ["a", "data", "3d", "a_b-c", &"x".repeat(32)] {
            assert!(is_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "a/b",
            "../a",
            "A",
            "-a",
            "_a",
            "ä",
            &"x".repeat(33),
        ] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn packages_are_no_options() {
        let add = |list: &[&str]| {
            let packages = list.iter().map(|p| (*p).to_owned()).collect();
            let (python, json) = (None, false);
            Add {
                name: "x".into(),
                packages,
                python,
                json,
            }
            .packages()
        };
        assert!(add(&["numpy", "pandas==2.2.0", "uvicorn[standard]"]).is_ok());
        for bad in ["--index-url", "-e", ".", "a;b", "/etc"] {
            assert!(add(&[bad]).is_err(), "{bad}");
        }
        assert!(add(&[]).is_err());
    }
}
