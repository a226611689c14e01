//! `ringfence run --jobs` and `--cases`: many snippets, or snippets on many inputs.

use super::Run;
use super::language::bytes_of;
use crate::cli::say;
use clap::Args;
use futures_util::StreamExt as _;
use ringfence_core::Failure;
use ringfence_core::proto::Blob;
use ringfence_core::snippet::{Batch, Case, Compare, Entry, Judged, Outcome, Runner, Verdict};
use ringfence_core::spec::SandboxSpec;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Options of many runs.
#[derive(Args)]
pub(crate) struct BatchArgs {
    /// Takes all words as FILES, runs each, so many at a time, and prints a line for each; exits
    /// with 0 if all were accepted, else with 1
    #[arg(long, value_name = "N", help_heading = "Batches", value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: Option<u16>,

    /// Runs each FILE, or the CODE, on every case: a folder with NAME.in and what must be printed
    /// in NAME.out, or a file with a JSON object in each line: stdin, expected_stdout, name, compare
    #[arg(long, value_name = "FOLDER|FILE", help_heading = "Batches")]
    cases: Option<PathBuf>,

    /// How output is compared with what must be printed: `trimmed`, without white space at the ends
    /// of lines, or `exact` [default: trimmed]
    #[arg(
        long,
        value_name = "HOW",
        help_heading = "Batches",
        requires = "cases",
        value_parser = ["trimmed", "exact"]
    )]
    compare: Option<String>,

    /// Prints results in the order of FILES and cases, not as they finish
    #[arg(long, help_heading = "Batches")]
    ordered: bool,
}

/// A result, for machines.
#[derive(Serialize)]
struct Line<'a> {
    file: &'a str,
    #[serde(flatten)]
    judged: &'a Judged,
}

impl BatchArgs {
    pub(super) fn is_asked(&self) -> bool {
        self.jobs.is_some() || self.cases.is_some() || self.ordered
    }

    fn compare(&self) -> Compare {
        match self.compare.as_deref() {
            Some("exact") => Compare::Exact,
            _ => Compare::Trimmed,
        }
    }

    fn cases(&self) -> Result<Vec<Case>, Failure> {
        let Some(path) = &self.cases else {
            return Ok(Vec::new());
        };
        let what = || format!("cannot read the cases in {}", path.display());
        let found = match path.is_dir() {
            true => folder(path, self.compare()).map_err(|e| Failure::io(what(), &e))?,
            false => lines(&bytes_of(path)?, self.compare())
                .map_err(|e| Failure::invalid(format!("{}: {e}", what())))?,
        };
        if found.is_empty() {
            let hint = "a folder has NAME.in and NAME.out, a file a JSON object in each line, such \
                        as {\"stdin\": \"21\", \"expected_stdout\": \"42\"}";
            return Err(Failure::invalid(format!("{}: there are none", what())).hint(hint));
        }
        Ok(found)
    }
}

/// The cases of a folder, by name. One without input, or without anything to be held against, is
/// one too.
fn folder(folder: &Path, compare: Compare) -> std::io::Result<Vec<Case>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|end| end == "in" || end == "out")
        {
            names.extend(path.file_stem().map(ToOwned::to_owned));
        }
    }
    let read = |name: &std::ffi::OsStr, end: &str| {
        let mut path = folder.join(name).into_os_string();
        path.push(end);
        match fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            read => read.map(|bytes| Some(Blob(bytes))),
        }
    };
    let case = |name: &std::ffi::OsString| -> std::io::Result<Case> {
        Ok(Case {
            name: Some(name.to_string_lossy().into_owned()),
            stdin: read(name, ".in")?.unwrap_or_default(),
            expected_stdout: read(name, ".out")?,
            compare,
        })
    };
    names.iter().map(case).collect()
}

/// The cases of a file, in the order of its lines.
fn lines(text: &[u8], compare: Compare) -> Result<Vec<Case>, String> {
    let text = std::str::from_utf8(text).map_err(|e| format!("it is not UTF-8: {e}"))?;
    let filled = text.lines().enumerate();
    let filled = filled.filter(|(_, line)| !line.trim().is_empty());
    let case = |(at, line): (usize, &str)| -> Result<Case, String> {
        let wrong = |error: serde_json::Error| format!("line {}: {error}", at + 1);
        let mut given: Map<String, Value> = serde_json::from_str(line).map_err(wrong)?;
        given.entry("compare").or_insert_with(|| json!(compare));
        serde_json::from_value(Value::Object(given)).map_err(wrong)
    };
    filled.map(case).collect()
}

impl Run {
    pub(super) async fn many(
        &self,
        runner: &Arc<Runner>,
        base: &SandboxSpec,
    ) -> Result<ExitCode, Failure> {
        let args = &self.language.batch;
        if self.code.is_none() && self.words.is_empty() {
            return Err(Failure::invalid("--jobs and --cases run FILES or CODE")
                .hint("for example: ringfence run --jobs 4 a.py b.rb c.go"));
        }
        if !self.json && !self.language.outputs.is_empty() {
            return Err(Failure::invalid("many runs do not write their --outputs")
                .hint("with --json they are part of each line"));
        }
        let cases: Arc<[Case]> = args.cases()?.into();
        let programs: Vec<_> = match &self.code {
            Some(code) => {
                let language = self.language.language.as_deref().unwrap_or("python");
                let words = self.words.clone();
                vec![self.program(code.clone(), language, words, base.clone())]
            }
            None => {
                let program = |file: &String| {
                    let (code, language) = self.read(Path::new(file))?;
                    self.program(code, &language, Vec::new(), base.clone())
                };
                self.words.iter().map(program).collect()
            }
        };
        let entry = |program| Entry {
            program,
            cases: Arc::clone(&cases),
        };
        let batch = Batch {
            entries: programs.into_iter().map(entry).collect(),
            jobs: args.jobs.map(usize::from),
            ordered: args.ordered,
        };
        let mut results = Box::pin(Arc::clone(runner).batch(batch));
        let (mut accepted, mut all) = (0, 0);
        while let Some(judged) = results.next().await {
            all += 1;
            accepted += usize::from(judged.verdict == Verdict::Accepted);
            let file = match &self.code {
                Some(_) => "-c",
                None => self.words.get(judged.index).map_or("", String::as_str),
            };
            match self.json {
                true => {
                    let judged = &judged;
                    say(serde_json::to_string(&Line { file, judged }).unwrap_or_default());
                }
                false => say(line(file, &judged)),
            }
        }
        if !self.json {
            let _ = writeln!(anstream::stderr(), "{accepted} of {all} accepted");
        }
        Ok(match accepted == all {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

/// One result in a line: verdict, time, memory, file, case, and why where it failed.
fn line(file: &str, result: &Judged) -> String {
    let case = result.name.as_deref().unwrap_or_default();
    let outcome = result.outcome.as_deref();
    let time = outcome.map_or(0, |o| o.duration_ms);
    let memory = outcome.map_or(0, |o| o.peak_memory >> 20);
    let failed = result.error.as_ref().map(ToString::to_string);
    let last = |o: &Outcome| Some(o.stderr.text().trim_end().lines().last()?.to_owned());
    let said = outcome
        .filter(|_| result.verdict != Verdict::Accepted)
        .and_then(|o| o.error.clone().or_else(|| last(o)));
    let why = failed.or(said).unwrap_or_default();
    let line = format!(
        "{:<14} {time:>6} ms {memory:>5} MiB  {file} {case}  {why}",
        result.verdict.name()
    );
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_come_from_lines_and_say_where_one_is_wrong() {
        let text = "{\"stdin\": \"1\", \"expected_stdout\": \"2\"}\n\n{\"name\": \"b\", \"compare\": \"trimmed\"}\n";
        let found = lines(text.as_bytes(), Compare::Exact).unwrap();
        let ways: Vec<_> = found.iter().map(|case| case.compare).collect();
        assert_eq!(ways, [Compare::Exact, Compare::Trimmed]);
        assert_eq!(found[0].expected_stdout, Some("2".into()));
        for (bad, said) in [
            ("{}\n[1]", "line 2: "),
            ("{\"input\": \"1\"}", "line 1: unknown field `input`"),
            ("{\"stdin\": 1}", "line 1: "),
            ("\n{", "line 2: "),
        ] {
            let error = lines(bad.as_bytes(), Compare::Exact).unwrap_err();
            assert!(error.starts_with(said), "{bad}: {error}");
        }
    }

    #[test]
    fn a_case_of_a_folder_has_input_or_output_or_both() {
        let place = tempfile::tempdir().unwrap();
        for (name, text) in [("a.in", "1"), ("a.out", "2"), ("b.in", "3"), ("c.out", "4")] {
            fs::write(place.path().join(name), text).unwrap();
        }
        fs::write(place.path().join("README"), "not a case").unwrap();
        let found = folder(place.path(), Compare::Exact).unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|case| (case.name.as_deref(), &case.stdin, &case.expected_stdout))
            .collect();
        assert_eq!(
            told,
            [
                (Some("a"), &Blob::from("1"), &Some("2".into())),
                (Some("b"), &Blob::from("3"), &None),
                (Some("c"), &Blob::default(), &Some("4".into())),
            ]
        );
    }
}
