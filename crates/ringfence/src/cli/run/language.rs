//! `ringfence run --language`: a snippet, or many of them.

use super::Run;
use super::asked::is_null;
use super::batch::BatchArgs;
use super::signals::Signals;
use crate::cli::container::{BackendName, shown};
use crate::cli::output::{Sink, unwritten};
use crate::cli::{say_json, terminal, this_program};
use crate::config::ConfigArgs;
use crate::{backends, settings};
use clap::Args;
use ringfence_core::backend::native::Launcher;
use ringfence_core::languages::Language;
use ringfence_core::languages::translate::Translators;
use ringfence_core::proto::{Blob, OUTPUT_LIMIT};
use ringfence_core::snippet::{Outcome, Program, Progress, Runner, Snippet, Stage, Terms, Wires};
use ringfence_core::spec::{SandboxSpec, Workspace};
use ringfence_core::{Backend, Failure, Limits};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Options of code that is not run as a plain Python script or command.
#[derive(Args)]
pub(crate) struct LanguageArgs {
    /// The language of the code, see `ringfence languages`; that of a FILE by its name when absent
    #[arg(short, long, value_name = "NAME", conflicts_with = "tty")]
    pub(super) language: Option<String>,

    /// A further file beside the code, read-write: [NAME=]FILE
    #[arg(
        long = "file",
        value_name = "FILE",
        help_heading = "Languages",
        conflicts_with = "tty"
    )]
    files: Vec<String>,

    /// Files to bring out, such as `*.png`, from /work or with /tmp/ before them
    #[arg(long, value_name = "GLOB", help_heading = "Languages")]
    pub(super) outputs: Vec<String>,

    /// Where files that are brought out are put; with --json they are part of that
    #[arg(
        long,
        value_name = "FOLDER",
        help_heading = "Languages",
        default_value = "."
    )]
    outputs_to: PathBuf,

    /// Seconds that a compiler has [default: 60]
    #[arg(long, value_name = "SECONDS", help_heading = "Languages", value_parser = super::seconds)]
    compile_timeout: Option<f64>,

    /// Makes /work a private folder that can be written to; so do --file and --outputs
    #[arg(long, help_heading = "Languages", conflicts_with_all = ["tty", "workspace"])]
    scratch: bool,

    #[command(flatten)]
    pub(super) batch: BatchArgs,
}

/// Most bytes of a file that is given along.
const MOST: u64 = 32 << 20;

impl Run {
    /// Whether this is for here, and not plain Python or a command.
    pub(super) fn is_language(&self) -> bool {
        let args = &self.language;
        let asks = args.scratch || args.compile_timeout.is_some();
        let files = !args.files.is_empty() || !args.outputs.is_empty();
        if args.language.is_some() || asks || files || args.batch.is_asked() {
            return true;
        }
        let other = |language: &Language| !matches!(language.name, "python" | "bash" | "sh");
        let file = self
            .words
            .first()
            .filter(|_| !self.dashed && self.code.is_none());
        let named = file.and_then(|file| Language::of_file(Path::new(file)));
        named.is_some_and(other) && !self.tty
    }

    pub(super) async fn run_language(
        &self,
        launcher: Option<Launcher>,
    ) -> Result<ExitCode, Failure> {
        if self.dashed {
            return Err(Failure::invalid("a language runs code, not a command")
                .hint("give a FILE or -c CODE, without `--`"));
        }
        let base = self.spec()?;
        let runner = Arc::new(self.runner(&base, launcher)?);
        // From here on a signal must not end us before the sandboxes are removed.
        let mut signals = Signals::listen()?;
        let done = tokio::select! {
            biased;
            signal = signals.next() => Ok(ExitCode::from(128 + signal)),
            done = async {
                match self.language.batch.is_asked() {
                    true => self.many(&runner, &base).await,
                    false => self.one(&runner, base).await,
                }
            } => done,
        };
        runner.finish().await;
        done
    }

    fn runner(&self, base: &SandboxSpec, launcher: Option<Launcher>) -> Result<Runner, Failure> {
        let choice = match self.container.backend {
            BackendName::Auto if base.container.is_some() => BackendName::Docker,
            choice => choice,
        };
        let (backend, name): (Arc<dyn Backend>, _) = match choice {
            BackendName::Docker => {
                let listener = (!self.json).then(shown);
                let docker = backends::docker(settings::state(), backends::IMAGE, listener, 0)?;
                (docker, "docker")
            }
            BackendName::Kubernetes => {
                let config = ConfigArgs::default().load()?.config;
                (backends::kubernetes(&config)?, "kubernetes")
            }
            BackendName::Auto | BackendName::Native => (Arc::new(self.native(launcher)?), "native"),
        };
        let terms = Terms {
            translators: Translators::new(this_program()?, false),
            backend: name.to_owned(),
            images: BTreeMap::new(),
            limits: Limits::default(),
            output: self.output.map_or(OUTPUT_LIMIT, |size| size.0),
            cpu_seconds: self.cpu_time,
        };
        Ok(Runner::new(backend, terms))
    }

    async fn one(&self, runner: &Runner, base: SandboxSpec) -> Result<ExitCode, Failure> {
        let (code, language, args) = self.code()?;
        let program = self.program(code, &language, args, base)?;
        // Code that was read from there has taken it.
        let taken = self.code.is_none() && self.words.first().is_some_and(|word| word == "-");
        let has_input = !taken && !io::stdin().is_terminal() && !is_null(&io::stdin());
        let (watch, mut progress) = mpsc::channel(16);
        let wires = Wires {
            watch: Some(watch),
            stdin: has_input.then_some(terminal::standard_input),
        };
        let limit = self.output.map_or(OUTPUT_LIMIT, |size| size.0);
        let mut sink = Sink::new(self.json, limit);
        let running = runner.run(&program, wires);
        tokio::pin!(running);
        let mut done = None;
        loop {
            let told = tokio::select! {
                biased;
                told = progress.recv() => told,
                outcome = &mut running, if done.is_none() => {
                    done = Some(outcome?);
                    continue;
                }
            };
            let written = match told {
                Some(Progress::Stdout(data)) => sink.stdout(&data.0).await,
                Some(Progress::Stderr(data)) => sink.stderr(&data.0).await,
                Some(Progress::Compiling) => Ok(()),
                None => match done.take() {
                    Some(outcome) => return self.told(&outcome),
                    None => {
                        done = Some((&mut running).await?);
                        Ok(())
                    }
                },
            };
            if let Err(error) = written {
                return unwritten(&error);
            }
        }
    }

    /// Shows what came of it, beyond the output that was passed on.
    fn told(&self, outcome: &Outcome) -> Result<ExitCode, Failure> {
        if self.json {
            say_json(outcome)?;
            return Ok(ExitCode::from(outcome.exit_code as u8));
        }
        let mut stderr = anstream::stderr().lock();
        if outcome.stage == Stage::Compile {
            let _ = writeln!(
                stderr,
                "{}{}",
                outcome.stdout.text(),
                outcome.stderr.text().trim_end()
            );
        }
        for note in outcome.notes.iter().chain(&outcome.error) {
            let _ = writeln!(stderr, "ringfence: {note}");
        }
        drop(stderr);
        self.tell(outcome.certificate.as_ref());
        for file in &outcome.outputs {
            self.bring_out(&file.path, file.content.as_ref())?;
        }
        Ok(ExitCode::from(outcome.exit_code as u8))
    }

    /// Writes a file that came out. Its name was chosen inside: only its last part counts, and
    /// nothing that is there is written over.
    fn bring_out(&self, path: &str, content: Option<&Blob>) -> Result<(), Failure> {
        let name = Path::new(path).file_name().unwrap_or_default();
        let to = self.language.outputs_to.join(name);
        let what = || format!("cannot write {}", to.display());
        let Some(content) = content else {
            let _ = writeln!(
                anstream::stderr(),
                "ringfence: {path} is too large to be brought out"
            );
            return Ok(());
        };
        fs::File::create_new(&to)
            .and_then(|mut file| file.write_all(&content.0))
            .map_err(|e| Failure::io(what(), &e))
    }

    /// The code, its language, and its arguments.
    fn code(&self) -> Result<(String, String, Vec<String>), Failure> {
        let named = self.language.language.clone();
        let python = || "python".to_owned();
        if let Some(code) = &self.code {
            let language = named.unwrap_or_else(python);
            return Ok((code.clone(), language, self.words.clone()));
        }
        let Some((file, args)) = self.words.split_first() else {
            return Err(Failure::invalid("nothing to run")
                .hint("give a FILE, `-` for code on standard input, or -c CODE"));
        };
        if file == "-" {
            let mut code = String::new();
            io::stdin()
                .take(MOST)
                .read_to_string(&mut code)
                .map_err(|e| Failure::io("cannot read the code from standard input", &e))?;
            return Ok((code, named.unwrap_or_else(python), args.to_vec()));
        }
        let (code, language) = self.read(Path::new(file))?;
        Ok((code, language, args.to_vec()))
    }

    /// A file with code, and the language it is in.
    pub(super) fn read(&self, file: &Path) -> Result<(String, String), Failure> {
        let shown = file.display();
        let language = match &self.language.language {
            Some(name) => name.clone(),
            None => Language::of_file(file)
                .ok_or_else(|| {
                    Failure::invalid(format!("cannot tell the language of {shown}"))
                        .hint("name it with --language; `ringfence languages` lists them")
                })?
                .name
                .to_owned(),
        };
        let code = String::from_utf8(bytes_of(file)?)
            .map_err(|e| Failure::invalid(format!("{shown} is not UTF-8: {e}")))?;
        Ok((code, language))
    }

    pub(super) fn program(
        &self,
        code: String,
        language: &str,
        args: Vec<String>,
        mut base: SandboxSpec,
    ) -> Result<Program, Failure> {
        let mut snippet = Snippet::new(language, code);
        snippet.args = args;
        snippet.timeout_seconds = Some(self.timeout.unwrap_or(super::TIMEOUT));
        snippet.compile_timeout_seconds = self.language.compile_timeout;
        snippet.network = self.network == "host";
        snippet.scratch = self.language.scratch;
        snippet.outputs.clone_from(&self.language.outputs);
        snippet.env = std::mem::take(&mut base.env);
        if let Workspace::Folder { path, access } = &base.workspace {
            snippet.workspace_root = Some(path.clone());
            snippet.workspace_access = *access;
        }
        for text in &self.language.files {
            let (name, file) = match text.split_once('=') {
                Some((name, file)) => (name.to_owned(), Path::new(file)),
                None => {
                    let name = Path::new(text).file_name().unwrap_or_default();
                    (name.to_string_lossy().into_owned(), Path::new(text))
                }
            };
            let content = Blob(bytes_of(file)?);
            if snippet.files.insert(name.clone(), content).is_some() {
                return Err(Failure::invalid(format!("--file: {name:?} is there twice"))
                    .hint("give one of them another name: --file NAME=FILE"));
            }
        }
        Program::new(snippet, base)
    }
}

pub(super) fn bytes_of(file: &Path) -> Result<Vec<u8>, Failure> {
    let what = || format!("cannot read {}", file.display());
    let mut bytes = Vec::new();
    fs::File::open(file)
        .and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes))
        .map_err(|e| Failure::io(what(), &e))?;
    if bytes.len() as u64 > MOST {
        let message = format!("{}: it is over {MOST} bytes", what());
        return Err(Failure::new(ringfence_core::Code::TooLarge, message));
    }
    Ok(bytes)
}
