//! Languages are data: a row says how code of a language is kept, compiled and run, in which image,
//! and what a native host needs for it.

mod java;
mod table;
pub mod translate;
mod typescript;

pub use java::main_class;
pub use table::LANGUAGES;

use crate::near::nearest;
use ringfence_proto::Failure;
use std::path::{Path, PathBuf};

/// One language: a row of [`LANGUAGES`].
#[derive(Debug, PartialEq, Eq)]
pub struct Language {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    /// The name of the file that holds the code.
    pub file: &'static str,
    pub source: Source,
    /// What makes a program of it, in a sandbox of its own.
    pub compile: Option<Step>,
    /// What runs it: the first whose program is there. See [`Places`].
    pub run: &'static [Step],
    /// The image that it runs in where none is named.
    pub image: &'static str,
    /// Names below `/etc` without which it does not run on a native host.
    pub etc: &'static [&'static str],
    pub env: &'static [(&'static str, &'static str)],
    /// What brings it to a native host: a package of Debian.
    pub package: &'static str,
}

/// How the code comes to the form that its program takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// As it is.
    Plain,
    /// JavaScript, which is a module or a script.
    JavaScript,
    /// Types are taken out before.
    TypeScript,
    /// The file has the name of its class.
    Java,
    /// Code stands between tags.
    Php,
}

/// What a command line leaves open, in braces.
#[derive(Debug, Clone)]
pub struct Places<'a> {
    /// The code.
    pub file: String,
    /// The code and all files of its kind; several words.
    pub sources: Vec<String>,
    /// The folder of what was compiled.
    pub build: &'a str,
    /// The class that has a `main`.
    pub main: &'a str,
    /// Whether what runs was translated, and carries maps to what was written.
    pub mapped: bool,
}

/// A command line.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    pub argv: &'static [&'static str],
    /// It is another program than the language says, and that is told.
    pub stand_in: bool,
}

impl Step {
    pub fn program(&self) -> &'static str {
        self.argv.first().copied().unwrap_or_default()
    }

    /// The words, with the places filled in.
    pub fn words(&self, places: &Places<'_>) -> Vec<String> {
        let fill = |word: &&str| match *word {
            "{sources}" => places.sources.clone(),
            "{main}" => vec![places.main.to_owned()],
            "{maps}" if places.mapped => vec!["--enable-source-maps".to_owned()],
            "{maps}" => Vec::new(),
            word => {
                let word = word.replace("{file}", &places.file);
                vec![word.replace("{build}", places.build)]
            }
        };
        self.argv.iter().flat_map(fill).collect()
    }
}

impl Language {
    /// The language of this name or alias, in any case and with spaces around it.
    pub fn named(name: &str) -> Result<&'static Self, Failure> {
        let lower = name.trim().to_ascii_lowercase();
        let found = LANGUAGES
            .iter()
            .find(|l| l.name == lower || l.aliases.contains(&lower.as_str()));
        found.ok_or_else(|| unknown(name, &lower))
    }

    /// The language of a file, by the end of its name.
    pub fn of_file(path: &Path) -> Option<&'static Self> {
        let end = path.extension()?.to_str()?.to_ascii_lowercase();
        let other = match end.as_str() {
            "mjs" | "cjs" | "jsx" => "javascript",
            "mts" | "cts" | "tsx" => "typescript",
            "cc" | "cxx" => "c++",
            _ => "",
        };
        LANGUAGES.iter().find(|l| {
            let own = l.file.rsplit_once('.').map_or("", |(_, end)| end);
            l.name == other || own.eq_ignore_ascii_case(&end)
        })
    }

    /// The names of all, in the order of the table.
    pub fn names() -> Vec<&'static str> {
        LANGUAGES.iter().map(|language| language.name).collect()
    }

    /// The programs without which it can't be run: of each, one of those named.
    fn needs(&self) -> Vec<Vec<&'static str>> {
        let compiler = self.compile.iter().map(|step| vec![step.program()]);
        let inside = |program: &&str| !program.starts_with('{');
        let runners: Vec<_> = self.run.iter().filter(|s| !s.stand_in).collect();
        let runners = runners.iter().map(|s| s.program()).filter(inside).collect();
        compiler
            .chain([runners])
            .filter(|programs: &Vec<_>| !programs.is_empty())
            .collect()
    }

    /// Where the program is that a native sandbox would run it with, or compile it; absent where
    /// something is missing.
    pub fn on_host(&self, search: &[&Path]) -> Option<PathBuf> {
        let mut first = None;
        for programs in self.needs() {
            let found = search.iter().find_map(|folder| {
                let there = programs.iter().map(|p| folder.join(p));
                there.into_iter().find(|path| is_seen(folder, path))
            });
            first = first.or(Some(found?));
        }
        first
    }
}

/// Whether a native sandbox finds a program there: links may lead out of what it sees.
fn is_seen(folder: &Path, path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let Ok(real) = path.canonicalize() else {
        return false;
    };
    let inside = |root: &Path| root.canonicalize().is_ok_and(|root| real.starts_with(root));
    let program = |m: std::fs::Metadata| m.is_file() && m.permissions().mode() & 0o111 != 0;
    (inside(folder) || inside(Path::new("/usr"))) && real.metadata().is_ok_and(program)
}

/// Where a native sandbox looks for programs.
pub const SEARCH: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

fn unknown(name: &str, lower: &str) -> Failure {
    let shown: String = name.chars().take(64).collect();
    let known = Language::names().join(", ");
    let message = format!("unsupported language `{shown}`: the known ones are {known}");
    let words = LANGUAGES
        .iter()
        .flat_map(|l| std::iter::once(l.name).chain(l.aliases.iter().copied()));
    // Some names have one letter, to which any other is near.
    match nearest(lower, words).filter(|_| lower.len() > 1) {
        Some(near) => Failure::invalid(message).hint(format!("did you mean `{near}`?")),
        None => Failure::invalid(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_aliases_are_unique() {
        let mut seen = BTreeSet::new();
        for language in LANGUAGES {
            for name in std::iter::once(&language.name).chain(language.aliases) {
                assert!(seen.insert(*name), "{name}");
                assert_eq!(Language::named(&name.to_uppercase()).unwrap(), language);
            }
        }
    }

    #[test]
    fn an_unknown_language_is_told_the_known_ones_and_the_nearest() {
        let failure = Language::named("pyhton").unwrap_err();
        assert!(failure.message.contains("python, javascript"), "{failure}");
        assert_eq!(failure.hint.as_deref(), Some("did you mean `python`?"));
        for far in ["cobol", "x", ""] {
            assert_eq!(Language::named(far).unwrap_err().hint, None, "{far}");
        }
    }

    #[test]
    fn a_file_says_its_language() {
        for (file, name) in [
            ("a.py", "python"),
            ("a.mjs", "javascript"),
            ("a.tsx", "typescript"),
            ("A.JAVA", "java"),
            ("a.cpp", "c++"),
            ("a.cc", "c++"),
            ("a.c", "c"),
            ("a.R", "r"),
        ] {
            let found = Language::of_file(Path::new(file)).map(|l| l.name);
            assert_eq!(found, Some(name), "{file}");
        }
        assert_eq!(Language::of_file(Path::new("a.txt")), None);
        assert_eq!(Language::of_file(Path::new("Makefile")), None);
    }

    #[test]
    fn what_compiles_and_what_runs_must_both_be_there() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let (host, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let java = Language::named("java").unwrap();
        let make = |path: &Path| {
            std::fs::write(path, "").unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        make(&host.path().join("java"));
        assert_eq!(java.on_host(&[host.path()]), None);
        // A link to what is not there inside is none.
        let javac = host.path().join("javac");
        make(&elsewhere.path().join("javac"));
        symlink(elsewhere.path().join("javac"), &javac).unwrap();
        assert_eq!(java.on_host(&[host.path()]), None);
        std::fs::remove_file(&javac).unwrap();
        make(&javac);
        assert_eq!(java.on_host(&[host.path()]), Some(javac));
    }
}
