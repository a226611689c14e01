//! Many programs, or one on many inputs: each in a sandbox of its own, so many at a time as the
//! machine has processors.

use super::outcome::Outcome;
use super::program::Program;
use super::run::{Prepared, Runner, Wires};
use futures_util::{Stream, StreamExt as _, stream};
use ringfence_proto::{Blob, Failure};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How what a program printed is held against what it should have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Compare {
    /// Without white space at the ends of lines and of the whole.
    #[default]
    Trimmed,
    /// Byte by byte.
    Exact,
}

/// One input, and what should come of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Case {
    /// The caller's own name for it.
    pub name: Option<String>,
    pub stdin: Blob,
    pub expected_stdout: Option<Blob>,
    pub compare: Compare,
}

/// What is said about a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It ended well, and printed what was expected, if anything was.
    Accepted,
    WrongAnswer,
    RuntimeError,
    TimeLimit,
    MemoryLimit,
    OutputLimit,
    CompileError,
    /// Ringfence could not run it: see `error`.
    NotRun,
}

/// A program with its inputs; without any it is run once, on its own.
#[derive(Debug, Clone)]
pub struct Entry {
    pub program: Result<Program, Failure>,
    /// The programs of a batch share them.
    pub cases: Arc<[Case]>,
}

/// Programs to be run.
#[derive(Debug, Clone)]
pub struct Batch {
    pub entries: Vec<Entry>,
    /// At one time; as many as the machine has processors when absent.
    pub jobs: Option<usize>,
    /// Results come in the order of the entries, not as they finish.
    pub ordered: bool,
}

/// What came of one program on one input.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Judged {
    /// Which of the entries.
    pub index: usize,
    /// Which of its cases, where it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub case: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Box<Outcome>>,
    /// Why it was not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

impl Judged {
    /// Leaves out what the program said and made where there is no room for it among the results
    /// that are kept together.
    pub fn fit(&mut self, room: &mut usize) {
        let Some(outcome) = &mut self.outcome else {
            return;
        };
        let files = outcome
            .outputs
            .iter()
            .filter_map(|file| file.content.as_ref());
        let compiled = outcome.compile.iter().flat_map(|c| [&c.stdout, &c.stderr]);
        let said = [&outcome.stdout, &outcome.stderr].into_iter();
        let all = said.chain(files).chain(compiled).map(Blob::len);
        let size = all.sum::<usize>() + outcome.text.len();
        if let Some(left) = room.checked_sub(size) {
            *room = left;
            return;
        }
        outcome.stdout_truncated |= !outcome.stdout.is_empty();
        outcome.stderr_truncated |= !outcome.stderr.is_empty();
        (outcome.stdout, outcome.stderr) = Default::default();
        for file in &mut outcome.outputs {
            file.content = None;
        }
        if let Some(compiled) = &mut outcome.compile {
            (compiled.stdout, compiled.stderr) = Default::default();
        }
        let note = "left out: the results of this batch are too large to be answered with at once";
        outcome.notes.push(format!("output {note}; ask for events"));
        outcome.text = format!("exit_code: {}\noutput {note}", outcome.exit_code);
    }
}

impl Compare {
    fn same(self, printed: &[u8], expected: &[u8]) -> bool {
        match self {
            Self::Exact => printed == expected,
            Self::Trimmed => trimmed(printed).eq(trimmed(expected)),
        }
    }
}

/// The lines without white space at their ends, and without empty ones at the end.
fn trimmed(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = text.trim_ascii_end().split(|byte| *byte == b'\n');
    lines.map(<[u8]>::trim_ascii_end)
}

impl Verdict {
    pub fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::WrongAnswer => "wrong_answer",
            Self::RuntimeError => "runtime_error",
            Self::TimeLimit => "time_limit",
            Self::MemoryLimit => "memory_limit",
            Self::OutputLimit => "output_limit",
            Self::CompileError => "compile_error",
            Self::NotRun => "not_run",
        }
    }

    fn of(outcome: &Outcome, case: Option<&Case>) -> Self {
        use super::outcome::Stage;
        use ringfence_proto::Cause;
        match outcome.stage {
            Stage::Start => return Self::NotRun,
            Stage::Compile => return Self::CompileError,
            Stage::Run => {}
        }
        match outcome.certificate.as_ref().map(|c| c.cause) {
            Some(Cause::WallClock | Cause::Cpu) => return Self::TimeLimit,
            Some(Cause::Memory) => return Self::MemoryLimit,
            _ if outcome.stdout_truncated => return Self::OutputLimit,
            _ if !outcome.ok => return Self::RuntimeError,
            _ => {}
        }
        let expected = case.and_then(|case| Some((case, case.expected_stdout.as_ref()?)));
        match expected {
            Some((case, expected)) if !case.compare.same(&outcome.stdout.0, &expected.0) => {
                Self::WrongAnswer
            }
            _ => Self::Accepted,
        }
    }
}

impl Batch {
    /// How many run at one time: as many as the machine has processors, where nobody said.
    pub fn at_once(&self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or_else(processors).max(1)
    }
}

impl Runner {
    /// Runs a batch. What one entry does harms no other; when the stream is dropped, what runs is
    /// ended.
    pub fn batch(self: Arc<Self>, batch: Batch) -> impl Stream<Item = Judged> + Send {
        let jobs = batch.at_once();
        let ordered = batch.ordered;
        let works = self.works(batch.entries);
        let works = stream::iter(works.into_iter().map(Work::run));
        match ordered {
            true => works.buffered(jobs).left_stream(),
            false => works.buffer_unordered(jobs).right_stream(),
        }
    }

    fn works(self: &Arc<Self>, entries: Vec<Entry>) -> Vec<Work> {
        let mut works = Vec::new();
        for (index, Entry { program, cases }) in entries.into_iter().enumerate() {
            let count = cases.len();
            let shared = Arc::new(Shared {
                runner: Arc::clone(self),
                program,
                cases,
                prepared: tokio::sync::OnceCell::new(),
            });
            if count == 0 {
                works.push(Work::new(&shared, index, None));
            }
            works.extend((0..count).map(|case| Work::new(&shared, index, Some(case))));
        }
        works
    }
}

/// A program that several cases share: it is prepared once, by the first of them.
struct Shared {
    runner: Arc<Runner>,
    program: Result<Program, Failure>,
    cases: Arc<[Case]>,
    prepared: tokio::sync::OnceCell<Result<Result<Prepared, Box<Outcome>>, Failure>>,
}

struct Work {
    shared: Arc<Shared>,
    index: usize,
    /// Which of the shared cases.
    case: Option<usize>,
}

impl Work {
    fn new(shared: &Arc<Shared>, index: usize, case: Option<usize>) -> Self {
        Self {
            shared: Arc::clone(shared),
            index,
            case,
        }
    }

    fn case(&self) -> Option<&Case> {
        self.shared.cases.get(self.case?)
    }

    async fn run(self) -> Judged {
        let done = self.outcome().await;
        let case = self.case();
        let verdict = match &done {
            Ok(outcome) => Verdict::of(outcome, case),
            Err(_) => Verdict::NotRun,
        };
        let (outcome, error) = match done {
            Ok(outcome) => (Some(Box::new(outcome)), None),
            Err(failure) => (None, Some(failure)),
        };
        Judged {
            index: self.index,
            case: self.case,
            name: case.and_then(|case| case.name.clone()),
            verdict,
            outcome,
            error,
        }
    }

    async fn outcome(&self) -> Result<Outcome, Failure> {
        let Shared {
            runner,
            program,
            prepared,
            ..
        } = &*self.shared;
        let program = program.as_ref().map_err(Clone::clone)?;
        let Some(case) = self.case() else {
            return runner.run(program, Wires::default()).await;
        };
        let prepared = prepared.get_or_init(|| runner.prepare(program, None)).await;
        match prepared {
            Ok(Ok(prepared)) => {
                let stdin = case.stdin.clone();
                runner.run_prepared(program, prepared, stdin).await
            }
            Ok(Err(refused)) => Ok((**refused).clone()),
            Err(failure) => runner.without_engine(program, failure.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_do_not_fit_lose_their_output() {
        use crate::snippet::{OutputFile, Snippet};
        let program = Program::new(Snippet::new("py", ""), Default::default()).unwrap();
        let why = Failure::invalid("no");
        let file = OutputFile {
            path: "a".to_owned(),
            size: 10,
            content: Some(vec![0; 10].into()),
        };
        let outcome = Outcome {
            stdout: vec![b'x'; 100].into(),
            text: String::new(),
            outputs: vec![file],
            ..Outcome::no_engine(&program, "native", None, why.to_string())
        };
        let judged = Judged {
            index: 0,
            case: None,
            name: None,
            verdict: Verdict::Accepted,
            outcome: Some(Box::new(outcome)),
            error: None,
        };
        let (mut fits, mut cut) = (judged.clone(), judged.clone());
        let mut room = 120;
        fits.fit(&mut room);
        assert_eq!((&fits, room), (&judged, 10));
        cut.fit(&mut room);
        let outcome = cut.outcome.unwrap();
        assert!(outcome.stdout.is_empty() && outcome.stdout_truncated);
        assert!(!outcome.stderr_truncated, "there was none");
        assert!(outcome.outputs[0].content.is_none() && !outcome.notes.is_empty());
        assert_eq!((cut.verdict, room), (Verdict::Accepted, 10));
    }

    #[test]
    fn trimmed_forgives_white_space_and_exact_does_not() {
        for (printed, expected, trimmed) in [
            ("1\n2\n", "1\n2", true),
            ("1 \r\n2\n\n", "1\n2\n", true),
            ("1\n\n2", "1\n2", false),
            (" 1", "1", false),
            ("", "\n", true),
        ] {
            let (a, b) = (printed.as_bytes(), expected.as_bytes());
            assert_eq!(Compare::Trimmed.same(a, b), trimmed, "{printed:?}");
            assert!(!Compare::Exact.same(a, b), "{printed:?}");
            assert!(Compare::Exact.same(a, a), "{printed:?}");
        }
    }
}
