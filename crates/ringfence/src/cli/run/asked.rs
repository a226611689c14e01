//! What was asked for: the sandbox, and what runs in it.

use super::Run;
use crate::cli::env;
use ringfence_core::Failure;
use ringfence_core::proto::{Command, Stdin};
use ringfence_core::spec::{Access, LimitsSpec, MountSpec, Network, SandboxSpec, Workspace};
use std::io::{self, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

/// A path inside, and what to write there.
pub(super) type Script = (String, Vec<u8>);

/// What runs, and a script to put there before.
pub(super) struct Job {
    pub(super) command: Command,
    pub(super) script: Option<Script>,
    pub(super) stdin: Stdin,
}

impl Run {
    fn environment(&self) -> Result<Option<String>, Failure> {
        if let Some(name) = &self.env_name {
            env::finished(name)?;
        }
        Ok(self.env_name.clone())
    }

    pub(super) fn spec(&self) -> Result<SandboxSpec, Failure> {
        let mut spec = SandboxSpec {
            rootfs: self.rootfs.as_deref().map(absolute).transpose()?,
            python: self
                .python
                .as_deref()
                .map(absolute_unresolved)
                .transpose()?,
            environment: self.environment()?,
            network: if self.network == "host" {
                Network::Host
            } else {
                Network::None
            },
            prefer: self.prefer,
            container: self.container.spec(&self.network)?,
            limits: LimitsSpec {
                memory: self.memory,
                cpus: self.cpus,
                pids: self.pids,
                workspace: self.workspace_size,
                tmp: self.tmp_size,
                file_size: self.file_size,
                open_files: self.open_files,
            },
            ..SandboxSpec::default()
        };
        if let Some(text) = &self.workspace {
            let (path, access) = match text.rsplit_once(':') {
                Some((path, mode)) if !Path::new(text).exists() => (path, access(mode)?),
                _ => (text.as_str(), Access::ReadOnly),
            };
            let path = absolute(Path::new(path))?;
            spec.workspace = Workspace::Folder { path, access };
        }
        for text in &self.mount {
            let parts: Vec<&str> = text.split(':').collect();
            let (from, to, access) = match parts.as_slice() {
                [from, to] => (from, to, Access::ReadOnly),
                [from, to, mode] => (from, to, access(mode)?),
                _ => {
                    return Err(Failure::invalid(format!("`{text}` is not a mount"))
                        .hint("use FROM:TO[:ro|:rw]"));
                }
            };
            let from = absolute(Path::new(from))?;
            spec.mounts.push(MountSpec {
                from,
                to: to.into(),
                access,
            });
        }
        for folder in &self.skills {
            spec.skills.push(absolute(folder)?);
        }
        for text in &self.env {
            let (name, value) = text.split_once('=').ok_or_else(|| {
                Failure::invalid(format!("`{text}` is not a variable")).hint("use NAME=VALUE")
            })?;
            spec.env.insert(name.to_owned(), value.to_owned());
        }
        Ok(spec)
    }

    /// What runs: code, a script, or a command of its own.
    pub(super) fn job(&self, spec: &SandboxSpec) -> Result<Job, Failure> {
        let stdin = if io::stdin().is_terminal() || is_null(&io::stdin()) {
            Stdin::Empty
        } else {
            Stdin::Stream
        };
        let job = |start: &[&str], rest: &[String], script| Job {
            command: Command::Argv(
                start
                    .iter()
                    .map(|word| (*word).to_owned())
                    .chain(rest.iter().cloned())
                    .collect(),
            ),
            script,
            stdin: stdin.clone(),
        };
        if let Some(code) = &self.code {
            return Ok(job(&["python3", "-c", code], &self.words, None));
        }
        match self.words.as_slice() {
            [] => Err(Failure::invalid("nothing to run").hint(
                "give a FILE, `-` for code on standard input, -c CODE, or -- COMMAND; \
                 see `ringfence run --help`",
            )),
            command if self.dashed => Ok(job(&[], command, None)),
            [dash, ..] if dash == "-" && self.tty => Err(Failure::invalid(
                "code can't come from a terminal that is joined to one inside",
            )
            .hint("give the code as a FILE or with -c")),
            [dash, args @ ..] if dash == "-" => Ok(Job {
                stdin: Stdin::Stream,
                ..job(&["python3", "-"], args, None)
            }),
            [file, args @ ..] => {
                let file = Path::new(file);
                let program = program_for(file)?;
                let (path, script) = place(file, spec)?;
                Ok(job(&[&program, &path], args, script))
            }
        }
    }
}

/// Whether this is `/dev/null`, of which nothing needs to be carried inside.
pub(super) fn is_null(input: &impl std::os::fd::AsFd) -> bool {
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::fstat(input).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == null
    })
}

/// The program that runs a script, by its name or its first line.
fn program_for(file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    let command = || format!("to run a command that is there inside: ringfence run -- {shown} …");
    let mut start = Vec::new();
    let read = std::fs::File::open(file).and_then(|f| f.take(256).read_to_end(&mut start));
    if let Err(error) = read {
        let failure = Failure::io(format!("cannot read {shown}"), &error);
        // A bare word is more likely meant as a command than as a file.
        let bare = file.extension().is_none() && error.kind() == io::ErrorKind::NotFound;
        return Err(if bare {
            failure.hint(command())
        } else {
            failure
        });
    }
    match file.extension().and_then(|e| e.to_str()) {
        Some("py") => return Ok("python3".to_owned()),
        Some("sh" | "bash") => return Ok("bash".to_owned()),
        _ => {}
    }
    let line = start.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line
        .strip_prefix("#!")
        .unwrap_or("")
        .split_ascii_whitespace()
        .filter(|word| !word.starts_with('-'))
        .map(|word| word.rsplit('/').next().unwrap_or(word))
        .skip_while(|word| *word == "env");
    match words.next() {
        Some(word) if word.starts_with("python") => Ok("python3".to_owned()),
        Some(word) => Ok(word.to_owned()),
        None => Err(Failure::invalid(format!(
            "{shown} is no script: neither .py nor .sh, and no `#!` line"
        ))
        .hint(command())),
    }
}

/// Where a script is inside: in the mounted workspace if it lies there, else copied to /tmp.
fn place(file: &Path, spec: &SandboxSpec) -> Result<(String, Option<Script>), Failure> {
    let what = || format!("cannot read {}", file.display());
    let real = file.canonicalize().map_err(|e| Failure::io(what(), &e))?;
    if let Workspace::Folder { path, .. } = &spec.workspace
        && let Ok(below) = real.strip_prefix(path)
    {
        return Ok((
            Path::new("/workspace").join(below).display().to_string(),
            None,
        ));
    }
    let bytes = std::fs::read(&real).map_err(|e| Failure::io(what(), &e))?;
    let name = real
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let path = format!("/tmp/{name}");
    Ok((path.clone(), Some((path, bytes))))
}

fn access(mode: &str) -> Result<Access, Failure> {
    match mode {
        "rw" => Ok(Access::ReadWrite),
        "ro" => Ok(Access::ReadOnly),
        _ => Err(Failure::invalid(format!("`{mode}` is neither ro nor rw"))),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    path.canonicalize()
        .map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}

/// An interpreter's path means something by where it lies, so its links stay.
fn absolute_unresolved(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}
