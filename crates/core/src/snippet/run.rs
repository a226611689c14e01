//! Runs programs, each in a sandbox of its own.

use super::gather::{Gathered, gather};
use super::outcome::{Compiled, Outcome, Stage};
use super::program::Program;
use super::sandbox::{Disposable, Removals};
use super::{TMP, WORK, outputs};
use crate::backend::Backend;
use crate::guest::{Body, GuestClient};
use crate::languages::translate::{self, Translators};
use crate::languages::{Language, Places, Step};
use crate::plan::{Lifetime, Limits, Plan, resolve_with};
use crate::size::Size;
use bytes::Bytes;
use ringfence_proto::{
    Blob, Code, Command, ExecRequest, Failure, Stdin, StdinQuery, TarQuery, WriteQuery,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Where what was compiled lies.
const BUILD: &str = "/tmp/build";
/// Most bytes of it.
const MOST_BUILT: usize = 64 << 20;

/// What compilers need at least, besides what the code itself gets.
const COMPILE_MEMORY: Size = Size(1 << 30);
const COMPILE_TMP: Size = Size(512 << 20);
const COMPILE_FILES: u64 = 1024;

/// The id of the one job in a sandbox.
const JOB: &str = "run";

/// What all programs of a runner share.
#[derive(Debug, Clone)]
pub struct Terms {
    /// What brings code to a form that can run.
    pub translators: Arc<Translators>,
    /// The engine's name.
    pub backend: String,
    /// Images in place of the table's, by language.
    pub images: BTreeMap<String, String>,
    /// Where a program has none.
    pub limits: Limits,
    /// Most bytes that are kept of each output stream.
    pub output: u64,
    /// Seconds of processor time of each process.
    pub cpu_seconds: Option<u64>,
}

/// Makes a disposable sandbox for each program.
pub struct Runner {
    backend: Arc<dyn Backend>,
    terms: Terms,
    removals: Removals,
}

/// What is told while a program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    Compiling,
    Stdout(Blob),
    Stderr(Blob),
}

/// What a running program is joined to, besides its outcome.
#[derive(Default)]
pub struct Wires {
    /// Hears of what goes on; when it goes away, the program is ended.
    pub watch: Option<mpsc::Sender<Progress>>,
    /// Opens what is read in place of the snippet's own input. Called when the sandbox is there:
    /// who reads may have a thread for that, and who clones may not.
    pub stdin: Option<fn() -> Body>,
}

/// A program whose code is in the form that runs. Its files are shared by all sandboxes that get
/// them.
pub(super) struct Prepared {
    files: BTreeMap<String, Bytes>,
    main: String,
    mapped: bool,
    built: Option<(Bytes, Compiled)>,
}

impl Runner {
    pub fn new(backend: Arc<dyn Backend>, mut terms: Terms) -> Self {
        terms.limits.tmp = TMP;
        Self {
            backend,
            terms,
            removals: Removals::default(),
        }
    }

    /// Answers when all sandboxes that were used are gone.
    pub async fn finish(&self) {
        self.removals.finish().await;
    }

    /// Runs a program to its end. When the future is dropped, its sandbox is removed.
    pub async fn run(&self, program: &Program, wires: Wires) -> Result<Outcome, Failure> {
        let stdin = program.stdin.clone();
        // A compiler takes long; anything else is ready before the sandbox is.
        let (prepared, sandbox) = match program.language.compile {
            Some(_) => (self.prepare(program, wires.watch.as_ref()).await, None),
            None => {
                let (prepared, sandbox) = tokio::join!(
                    self.prepare(program, wires.watch.as_ref()),
                    self.sandbox(program)
                );
                (prepared, Some(sandbox))
            }
        };
        let prepared = match prepared {
            Ok(Ok(prepared)) => prepared,
            Ok(Err(outcome)) => return Ok(*outcome),
            Err(failure) => return self.without_engine(program, failure),
        };
        let sandbox = match sandbox {
            Some(made) => made,
            None => self.sandbox(program).await,
        };
        match sandbox {
            Ok(sandbox) => {
                self.execute(program, &prepared, sandbox, stdin, wires)
                    .await
            }
            Err(failure) => self.without_engine(program, failure),
        }
    }

    /// Runs one that was prepared, with this input.
    pub(super) async fn run_prepared(
        &self,
        program: &Program,
        prepared: &Prepared,
        stdin: Blob,
    ) -> Result<Outcome, Failure> {
        let sandbox = match self.sandbox(program).await {
            Ok(sandbox) => sandbox,
            Err(failure) => return self.without_engine(program, failure),
        };
        self.execute(program, prepared, sandbox, stdin, Wires::default())
            .await
    }

    /// The most memory that the sandbox of a program has: its compiler's or its own.
    pub fn memory(&self, program: &Program) -> Size {
        let usual = self.terms.limits.memory;
        let own = program.spec.limits.memory.unwrap_or(usual);
        match program.language.compile {
            Some(_) => own.max(usual).max(COMPILE_MEMORY),
            None => own,
        }
    }

    /// An engine that is not there, or can't be used, is an outcome; anything else a failure.
    pub(super) fn without_engine(
        &self,
        program: &Program,
        failure: Failure,
    ) -> Result<Outcome, Failure> {
        let backend = &self.terms.backend;
        if backend == "native" || failure.code != Code::Unavailable {
            return Err(failure);
        }
        let way_out = failure.hint.iter().map(|hint| format!("; {hint}"));
        let why = format!("{failure}{}", way_out.collect::<String>());
        let error = match self.backend.is_absent() {
            true => format!(
                "{backend} is not installed or not on PATH. Install Docker Desktop or call the \
                 tool without sandbox=true. ({why})"
            ),
            false => why,
        };
        Ok(Outcome::no_engine(
            program,
            backend,
            self.image(program),
            error,
        ))
    }

    /// The image that a program runs in, on an engine that has images.
    fn image<'a>(&'a self, program: &'a Program) -> Option<&'a str> {
        if self.terms.backend == "native" {
            return None;
        }
        let set = || self.terms.images.get(program.language.name);
        let image = program.image.as_ref().or_else(set);
        Some(image.map_or(program.language.image, String::as_str))
    }

    /// Brings the code to the form that runs: an outcome where it can't be.
    pub(super) async fn prepare(
        &self,
        program: &Program,
        watch: Option<&mpsc::Sender<Progress>>,
    ) -> Result<Result<Prepared, Box<Outcome>>, Failure> {
        let mut prepared = Prepared {
            files: program
                .files
                .iter()
                .map(|(name, content)| (name.clone(), Bytes::copy_from_slice(&content.0)))
                .collect(),
            main: program.main.clone(),
            mapped: false,
            built: None,
        };
        if let Some(files) = program.to_translate() {
            let translators = &self.terms.translators;
            match translators.translate(&program.main, files).await? {
                Ok(translation) => prepared.take(translation),
                Err(faults) => {
                    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
                    let (backend, image) = (&self.terms.backend, self.image(program));
                    let refused = Outcome::refused(program, backend, image, lines.join("\n"));
                    return Ok(Err(Box::new(refused.told())));
                }
            }
        }
        if let Some(step) = &program.language.compile {
            if let Some(watch) = watch {
                // Nobody who watches is told by the output.
                let _ = watch.send(Progress::Compiling).await;
            }
            match self.compile(program, &prepared, step).await? {
                Ok(built) => prepared.built = Some(built),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        Ok(Ok(prepared))
    }

    /// Compiles in a sandbox of its own, and brings what came of it out as an archive. Nobody but
    /// the next sandbox unpacks that.
    async fn compile(
        &self,
        program: &Program,
        prepared: &Prepared,
        step: &Step,
    ) -> Result<Result<(Bytes, Compiled), Box<Outcome>>, Failure> {
        let mut limits = self.terms.limits.clone();
        limits.memory = limits.memory.max(COMPILE_MEMORY);
        limits.tmp = COMPILE_TMP;
        limits.open_files = limits.open_files.max(COMPILE_FILES);
        let mut spec = program.spec.clone();
        // Those that were asked for are the code's.
        spec.limits.memory = None;
        spec.network = crate::spec::Network::None;
        let plan = self.plan(program, spec, &limits).await?;
        let sandbox = Disposable::make(&self.backend, &self.removals, plan).await?;
        let guest = &sandbox.guest;
        put(guest, program.folder, prepared.needed()).await?;
        let folder = ringfence_proto::Mkdir {
            root: "/".to_owned(),
            path: BUILD.to_owned(),
            mode: None,
        };
        let _: ringfence_proto::Entry = guest.post("/files/mkdir", &folder).await?;
        let mut request = ExecRequest::new(Command::Argv(step.words(&prepared.places(program))));
        request.env = environment(program.language);
        request.cwd = Some(program.folder.to_owned());
        request.timeout_ms = Some(program.compile_timeout.as_millis() as u64);
        request.output_limit = Some(self.terms.output);
        let events = guest
            .exec_events(&request)
            .await
            .map_err(|failure| self.missing(program, failure))?;
        let done = gather(events, self.terms.output, program.compile_timeout, None).await?;
        if done.end.status() != 0 {
            let (backend, image) = (&self.terms.backend, self.image(program));
            let outcome = Outcome::ended(program, backend, image, Stage::Compile, done);
            return Ok(Err(Box::new(outcome.told())));
        }
        let built = guest.pack(&built(), MOST_BUILT).await?;
        Ok(Ok((built, Compiled::of(done))))
    }

    async fn plan(
        &self,
        program: &Program,
        mut spec: crate::spec::SandboxSpec,
        limits: &Limits,
    ) -> Result<Plan, Failure> {
        let guarantees = self.backend.guarantees().await?;
        spec.workdir = Some(WORK.into());
        if let Some(image) = self.image(program) {
            // The interpreter is the image's.
            (spec.python, spec.environment) = (None, None);
            spec.container.get_or_insert_default().image = Some(image.to_owned());
        }
        let mut plan = resolve_with(spec, Lifetime::Disposable, &guarantees, limits)?;
        let names = program.language.etc.iter();
        plan.etc = Some(names.map(|name| (*name).to_owned()).collect());
        Ok(plan)
    }

    async fn sandbox(&self, program: &Program) -> Result<Disposable, Failure> {
        let spec = program.spec.clone();
        let plan = self.plan(program, spec, &self.terms.limits).await?;
        Disposable::make(&self.backend, &self.removals, plan).await
    }

    async fn execute(
        &self,
        program: &Program,
        prepared: &Prepared,
        sandbox: Disposable,
        stdin: Blob,
        wires: Wires,
    ) -> Result<Outcome, Failure> {
        let guest = &sandbox.guest;
        if let Some((archive, _)) = &prepared.built {
            guest.unpack(&built(), archive.clone()).await?;
        }
        put(guest, program.folder, prepared.needed()).await?;
        let mut request = ExecRequest::new(Command::Argv(Vec::new()));
        request.id = Some(JOB.to_owned());
        request.env = environment(program.language);
        request.env.extend(program.env.clone());
        request.cwd = Some(WORK.to_owned());
        request.timeout_ms = Some(program.timeout.as_millis() as u64);
        request.output_limit = Some(self.terms.output);
        request.limits.cpu_seconds = self.terms.cpu_seconds;
        request.stdin = match (&wires.stdin, stdin.is_empty()) {
            (Some(_), _) => Stdin::Stream,
            (None, true) => Stdin::Empty,
            (None, false) => Stdin::Bytes(stdin),
        };
        let mut notes = Vec::new();
        let events = self
            .start(program, prepared, guest, &mut request, &mut notes)
            .await?;
        if let Some(open) = wires.stdin {
            let (guest, body) = (guest.clone(), open());
            tokio::spawn(async move {
                // Code that does not read its input is no failure.
                let _ = guest.stdin(JOB, &StdinQuery::default(), body).await;
            });
        }
        let watch = wires.watch.as_ref();
        let gathered = gather(events, self.terms.output, program.timeout, watch).await?;
        let outputs = match program.outputs.is_empty() {
            true => Vec::new(),
            false => match outputs::collect(guest, &program.outputs).await {
                Ok(files) => files,
                Err(failure) => {
                    notes.push(format!("outputs could not be collected: {failure}"));
                    Vec::new()
                }
            },
        };
        let (backend, image) = (&self.terms.backend, self.image(program));
        let compile = prepared
            .built
            .as_ref()
            .map(|(_, compiled)| compiled.clone());
        Ok(Outcome {
            outputs,
            notes,
            compile,
            ..Outcome::ended(program, backend, image, Stage::Run, gathered)
        }
        .told())
    }

    /// Starts the first of the language's programs that is there.
    async fn start(
        &self,
        program: &Program,
        prepared: &Prepared,
        guest: &GuestClient,
        request: &mut ExecRequest,
        notes: &mut Vec<String>,
    ) -> Result<crate::guest::Events, Failure> {
        let mut last = None;
        for step in program.language.run {
            let mut words = step.words(&prepared.places(program));
            words.extend(program.args.iter().cloned());
            request.command = Command::Argv(words);
            match guest.exec_events(request).await {
                Ok(events) => {
                    if step.stand_in {
                        let (name, other) = (program.language.name, step.program());
                        notes.push(format!("there is no {name} here: {other} ran it"));
                    }
                    return Ok(events);
                }
                Err(failure) if failure.code == Code::Missing => last = Some(failure),
                Err(failure) => return Err(failure),
            }
        }
        let none = || Failure::new(Code::Missing, "nothing runs it");
        Err(self.missing(program, last.unwrap_or_else(none)))
    }

    /// A language that is not in the sandbox, and how to get it there.
    fn missing(&self, program: &Program, failure: Failure) -> Failure {
        if failure.code != Code::Missing {
            return failure;
        }
        let Language { name, package, .. } = program.language;
        let message = format!("cannot run {name}: it is not in the sandbox");
        let hint = match self.image(program) {
            None => format!("install it on this host, on Debian: apt-get install {package}"),
            Some(image) => format!("{image} does not have it; name an image that does"),
        };
        Failure::new(Code::Missing, message)
            .hint(hint)
            .detail(failure)
    }
}

impl Prepared {
    fn take(&mut self, translation: translate::Translation) {
        self.mapped = !translation.files.is_empty();
        for (name, code) in translation.files {
            self.files.insert(name, code.into_bytes().into());
        }
        if let Some(main) = translate::translated_name(&self.main) {
            self.files.remove(&self.main);
            self.main = main;
        }
        if translation.module {
            let package = r#"{"type":"module"}"#;
            let name = "package.json".to_owned();
            let file = self.files.entry(name);
            file.or_insert(Bytes::from_static(package.as_bytes()));
        }
    }

    fn places<'a>(&self, program: &'a Program) -> Places<'a> {
        let inside = |name: &String| format!("{}/{name}", program.folder);
        let end = |name: &str| name.rsplit_once('.').map(|(_, end)| end.to_owned());
        let alike = |name: &&String| end(name) == end(&self.main);
        Places {
            file: inside(&self.main),
            sources: self.files.keys().filter(alike).map(inside).collect(),
            build: BUILD,
            main: &program.class,
            mapped: self.mapped,
        }
    }

    /// What must lie in the sandbox: of what was compiled, all but the code.
    fn needed(&self) -> impl Iterator<Item = (&String, &Bytes)> {
        let compiled = self.built.is_some();
        let needed = move |file: &(&String, &Bytes)| !compiled || *file.0 != self.main;
        self.files.iter().filter(needed)
    }
}

impl Compiled {
    fn of(done: Gathered) -> Self {
        Self {
            duration_ms: done.end.duration_ms,
            peak_memory: done.end.peak_memory,
            stdout: Blob(done.stdout.kept),
            stderr: Blob(done.stderr.kept),
        }
    }
}

fn built() -> TarQuery {
    TarQuery {
        root: "/".to_owned(),
        path: BUILD.to_owned(),
    }
}

fn environment(language: &Language) -> BTreeMap<String, String> {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    language.env.iter().map(own).collect()
}

/// Writes files below a folder.
async fn put<'a>(
    guest: &GuestClient,
    folder: &str,
    files: impl Iterator<Item = (&'a String, &'a Bytes)>,
) -> Result<(), Failure> {
    for (name, content) in files {
        let query = WriteQuery {
            root: "/".to_owned(),
            ..WriteQuery::new(format!("{folder}/{name}"))
        };
        guest.write(&query, content.clone()).await?;
    }
    Ok(())
}
