//! From a snippet to what can run: checked, with its sandbox described.

use super::{COMPILE_TIMEOUT, Snippet, TIMEOUT, WORK};
use crate::languages::{Language, Source, main_class, translate};
use crate::spec::{Access, LimitsSpec, Network, SandboxSpec, Workspace};
use ringfence_proto::{Blob, Failure};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where the code lies where the workspace is somebody else's.
const CODE: &str = "/tmp/code";

/// Most bytes of the code, and of it with all files.
const MOST_CODE: usize = 8 << 20;
const MOST_BYTES: usize = 32 << 20;
const MOST_FILES: usize = 256;
const MOST_ARGS: usize = 256;
const MOST_OUTPUTS: usize = 32;

/// A snippet that was checked.
#[derive(Debug, Clone)]
pub struct Program {
    pub language: &'static Language,
    /// The sandbox that it runs in; a server holds it against its policy.
    pub spec: SandboxSpec,
    pub(super) image: Option<String>,
    /// The folder of the code and its files.
    pub(super) folder: &'static str,
    /// The name of the file that holds the code.
    pub(super) main: String,
    /// What is run of a language that runs classes.
    pub(super) class: String,
    /// All files by name, the code among them.
    pub(super) files: BTreeMap<String, Blob>,
    pub(super) stdin: Blob,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) timeout: Duration,
    pub(super) compile_timeout: Duration,
    pub(super) sandbox: bool,
    pub(super) outputs: Vec<String>,
}

impl Program {
    /// Checks a snippet. `base` is the sandbox as far as the snippet says nothing about it.
    pub fn new(snippet: Snippet, base: SandboxSpec) -> Result<Self, Failure> {
        let language = Language::named(&snippet.language)?;
        snippet.check()?;
        let timeout = seconds("timeout_seconds", snippet.timeout_seconds, TIMEOUT)?;
        let compile_timeout = seconds(
            "compile_timeout_seconds",
            snippet.compile_timeout_seconds,
            COMPILE_TIMEOUT,
        )?;
        let wants_folder =
            snippet.scratch || !snippet.files.is_empty() || !snippet.outputs.is_empty();
        let (workspace, folder) = match snippet.workspace_root {
            Some(path) => {
                let access = match snippet.sandbox {
                    true => snippet.workspace_access,
                    false => Access::ReadWrite,
                };
                (Workspace::Folder { path, access }, CODE)
            }
            None if wants_folder => (Workspace::Memory, WORK),
            None => (Workspace::Empty, CODE),
        };
        let (main, class) = match language.source {
            Source::Java => {
                let found = main_class(&snippet.code);
                (format!("{}.java", found.file), found.class)
            }
            _ => (language.file.to_owned(), String::new()),
        };
        let code = match language.source {
            // Text outside of the tags would be printed; on the same line, so that lines count.
            Source::Php if !has_tags(&snippet.code) => format!("<?php {}", snippet.code),
            _ => snippet.code,
        };
        let mut files = snippet.files;
        if files.insert(main.clone(), code.as_str().into()).is_some() {
            let message = format!("a file can't be named {main}: the code is");
            return Err(Failure::invalid(message));
        }
        for name in files.keys() {
            let folders = name.match_indices('/').map(|(at, _)| &name[..at]);
            if let Some(folder) = folders
                .into_iter()
                .find(|folder| files.contains_key(*folder))
            {
                let message = format!("{folder:?} can't be a file and the folder of {name:?}");
                return Err(Failure::invalid(message));
            }
        }
        let of_base = || base.container.as_ref()?.image.clone();
        let image = snippet.image.or_else(of_base);
        let mut env = base.env.clone();
        env.extend([("HOME".to_owned(), "/tmp".to_owned())]);
        Ok(Self {
            language,
            spec: SandboxSpec {
                workspace,
                env,
                network: match snippet.network {
                    true => Network::Host,
                    false => Network::None,
                },
                limits: LimitsSpec {
                    memory: snippet.memory.or(base.limits.memory),
                    ..base.limits.clone()
                },
                ..base
            },
            image,
            folder,
            main,
            class,
            files,
            stdin: snippet.stdin,
            args: snippet.args,
            env: snippet.env,
            timeout,
            compile_timeout,
            sandbox: snippet.sandbox,
            outputs: snippet.outputs,
        })
    }

    /// The files that must be translated before, with the code among them; none where nothing is.
    pub(super) fn to_translate(&self) -> Option<BTreeMap<String, String>> {
        let code = self.files.get(&self.main)?.text();
        let asked = match self.language.source {
            Source::TypeScript => true,
            // Without these it is a script, and has no elements.
            Source::JavaScript => {
                ["import", "export", "await", "</", "/>"]
                    .iter()
                    .any(|word| code.contains(word))
                    || self.files.keys().any(|name| is_translated(name))
            }
            Source::Plain | Source::Java | Source::Php => false,
        };
        let chosen = self
            .files
            .iter()
            .filter(|(name, _)| **name == self.main || is_translated(name))
            .map(|(name, text)| (name.clone(), text.text().into_owned()));
        asked.then(|| chosen.collect())
    }

    /// Whether a network was asked for, of the host or of the engine.
    pub(super) fn has_network(&self) -> bool {
        let own = self
            .spec
            .container
            .as_ref()
            .and_then(|c| c.network.as_deref());
        self.spec.network != Network::None || own.is_some_and(|name| name != "none")
    }

    /// Where the code lies inside.
    pub fn script_path(&self) -> String {
        format!("{}/{}", self.folder, self.main)
    }
}

/// Whether PHP is told where its code begins; XML has signs like that, too.
fn has_tags(code: &str) -> bool {
    let tag = |at: usize| {
        let rest = &code.as_bytes()[at..];
        rest.starts_with(b"<?=")
            || rest
                .get(..5)
                .is_some_and(|t| t.eq_ignore_ascii_case(b"<?php"))
    };
    code.match_indices("<?").any(|(at, _)| tag(at))
}

fn is_translated(name: &str) -> bool {
    translate::translated_name(name).is_some()
}

impl Snippet {
    /// Whether all values are in their ranges; what language it is in is not asked.
    pub fn check(&self) -> Result<(), Failure> {
        seconds("timeout_seconds", self.timeout_seconds, TIMEOUT)?;
        let compile = self.compile_timeout_seconds;
        seconds("compile_timeout_seconds", compile, COMPILE_TIMEOUT)?;
        check(self)
    }
}

fn check(snippet: &Snippet) -> Result<(), Failure> {
    let over = |what: &str, limit: usize| Err(Failure::invalid(format!("{what} over {limit}")));
    if snippet.code.len() > MOST_CODE {
        return over("the code has bytes", MOST_CODE);
    }
    let sizes = snippet.files.values().map(Blob::len);
    if sizes.sum::<usize>() + snippet.code.len() > MOST_BYTES {
        return over("code and files have bytes", MOST_BYTES);
    }
    if snippet.files.len() > MOST_FILES {
        return over("files: there are", MOST_FILES);
    }
    if snippet.args.len() > MOST_ARGS {
        return over("args: there are", MOST_ARGS);
    }
    if snippet.outputs.len() > MOST_OUTPUTS {
        return over("outputs: there are", MOST_OUTPUTS);
    }
    if let Some(bad) = snippet
        .args
        .iter()
        .find(|a| a.contains('\0') || a.len() > 64 << 10)
    {
        let shown: String = bad.chars().take(32).collect();
        let message = format!("an argument is too long or holds a zero byte: {shown:?}");
        return Err(Failure::invalid(message));
    }
    if snippet.scratch && snippet.workspace_root.is_some() {
        return Err(
            Failure::invalid("scratch and workspace_root exclude each other")
                .hint("workspace_access read_write lets the code write to the folder"),
        );
    }
    crate::plan::check_env(&snippet.env)?;
    for name in snippet.files.keys() {
        if !is_inner(name) {
            let message = format!("{name:?} is not a file's name");
            let hint = "use a relative path of at most 255 bytes, without `.` and `..`";
            return Err(Failure::invalid(message).hint(hint));
        }
    }
    for glob in &snippet.outputs {
        let inner = glob.strip_prefix("/tmp/").unwrap_or(glob);
        if !is_inner(inner) {
            let message = format!("{glob:?} is not a glob of outputs");
            let hint = "use one relative to /work, such as `*.png`, or one that begins with /tmp/";
            return Err(Failure::invalid(message).hint(hint));
        }
    }
    Ok(())
}

/// A path that stays below where it starts.
fn is_inner(path: &str) -> bool {
    let part = |part: &str| !matches!(part, "" | "." | "..");
    path.len() <= 255 && !path.chars().any(char::is_control) && path.split('/').all(part)
}

fn seconds(name: &str, asked: Option<f64>, default: f64) -> Result<Duration, Failure> {
    let value = asked.unwrap_or(default);
    if (0.001..=86_400.0).contains(&value) {
        return Ok(Duration::from_secs_f64(value));
    }
    let message = format!("{name} is {value}: it must be between 0.001 and 86400");
    Err(Failure::invalid(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut Snippet)) -> Result<Program, Failure> {
        let mut snippet = Snippet::new("py", "print(1)");
        change(&mut snippet);
        Program::new(snippet, SandboxSpec::default())
    }

    #[test]
    fn bad_values_are_refused() {
        type Change = fn(&mut Snippet);
        let bad: &[Change] = &[
            |s| s.timeout_seconds = Some(0.0),
            |s| s.timeout_seconds = Some(f64::NAN),
            |s| s.compile_timeout_seconds = Some(1e9),
            |s| s.code = "x".repeat(MOST_CODE + 1),
            |s| s.args = vec!["a\0b".into()],
            |s| (s.scratch, s.workspace_root) = (true, Some("/srv".into())),
            |s| s.args = vec![String::new(); MOST_ARGS + 1],
            |s| s.outputs = vec!["../x".into()],
            |s| s.outputs = vec!["/etc/passwd".into()],
            |s| s.outputs = vec!["/tmp/../etc/passwd".into()],
            |s| drop(s.env.insert("A=B".into(), "c".into())),
            |s| drop(s.files.insert("main.py".into(), "x".into())),
            |s| drop(s.files.insert("main.py/x".into(), "x".into())),
            |s| {
                s.files
                    .extend(["a", "a/b/c"].map(|name| (name.into(), "x".into())))
            },
            |s| drop(s.files.insert("/a".into(), "x".into())),
            |s| drop(s.files.insert("a/../b".into(), "x".into())),
            |s| drop(s.files.insert(String::new(), "x".into())),
        ];
        for (at, change) in bad.iter().enumerate() {
            assert!(checked(*change).is_err(), "{at}");
        }
        assert!(checked(|_| {}).is_ok());
    }

    #[test]
    fn the_workspace_is_as_tight_as_can_be() {
        let plain = checked(|_| {}).unwrap();
        assert_eq!(plain.spec.workspace, Workspace::Empty);
        assert_eq!(plain.script_path(), "/tmp/code/main.py");
        let private = checked(|s| s.outputs = vec!["*.png".into()]).unwrap();
        assert_eq!(private.spec.workspace, Workspace::Memory);
        assert_eq!(private.script_path(), "/work/main.py");
        let folder = |sandbox| {
            checked(|s| {
                s.workspace_root = Some("/srv/x".into());
                s.sandbox = sandbox;
            })
        };
        for (sandbox, access) in [(true, Access::ReadOnly), (false, Access::ReadWrite)] {
            let path = "/srv/x".into();
            let expected = Workspace::Folder { path, access };
            assert_eq!(folder(sandbox).unwrap().spec.workspace, expected);
        }
    }

    #[test]
    fn php_gets_the_tag_that_it_lacks() {
        let code = |code: &str| {
            let program = Program::new(Snippet::new("php", code), SandboxSpec::default()).unwrap();
            program.files["main.php"].text().into_owned()
        };
        assert_eq!(code("echo 1;"), "<?php echo 1;");
        assert_eq!(
            code("echo '<?xml version=\"1.0\"?>';"),
            "<?php echo '<?xml version=\"1.0\"?>';"
        );
        for tagged in [
            "<?php echo 1;",
            "<?PHP echo 1;",
            "a <?= 1 ?>",
            "x\n<?php echo 1; ?>",
        ] {
            assert_eq!(code(tagged), tagged);
        }
    }

    #[test]
    fn javascript_is_looked_at_only_where_it_may_be_a_module() {
        let asks = |language: &str, code: &str| {
            let program = Program::new(Snippet::new(language, code), SandboxSpec::default());
            program.unwrap().to_translate().is_some()
        };
        assert!(!asks("js", "console.log(1)"));
        assert!(asks("js", "import 'fs'"));
        assert!(asks("js", "show(<b>x</b>)"));
        assert!(asks("js", "show(<br/>)"));
        assert!(asks("ts", "console.log(1)"));
        assert!(!asks("python", "import os"));
    }
}
