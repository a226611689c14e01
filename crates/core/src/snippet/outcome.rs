use super::gather::Gathered;
use super::outputs::OutputFile;
use super::program::Program;
use crate::languages::Language;
use crate::shortened::shortened;
use crate::spec::Workspace;
use ringfence_proto::{Blob, Cause, Certificate};
use serde::Serialize;

/// Where a snippet came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// There was no sandbox: see `error`.
    Start,
    /// The compiler, or what translates, did not take it.
    Compile,
    Run,
}

/// What a compiler said about code that then ran.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Compiled {
    pub duration_ms: u64,
    pub peak_memory: u64,
    pub stdout: Blob,
    pub stderr: Blob,
}

/// What came of a snippet.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Outcome {
    /// It ended by itself, with exit code 0.
    pub ok: bool,
    /// For a person or a model: exit code, stdout, stderr and notes; long output without its middle.
    pub text: String,
    pub language: &'static str,
    pub supported_languages: Vec<&'static str>,
    /// 124 when it ran out of time, 137 when it ran out of memory, 128 + N after signal N.
    pub exit_code: i32,
    pub stdout: Blob,
    pub stderr: Blob,
    /// Where the code lay inside.
    pub script_path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_root: Option<String>,
    pub sandbox: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_image: Option<String>,
    pub sandbox_network: bool,
    /// The engine that made the sandbox.
    pub backend: String,
    pub stage: Stage,
    pub duration_ms: u64,
    pub cpu_ms: u64,
    /// Bytes of its largest process.
    pub peak_memory: u64,
    /// There was more output than is shown.
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compile: Option<Compiled>,
    /// Why it ended, where it did not end by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<OutputFile>,
    /// What was done otherwise than asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why there was no sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Exit codes of what has none of its own.
const REFUSED: i32 = 1;
const NO_SANDBOX: i32 = 125;

impl Outcome {
    fn blank(program: &Program, backend: &str, image: Option<&str>, stage: Stage) -> Self {
        let workspace_root = match &program.spec.workspace {
            Workspace::Folder { path, .. } => Some(path.display().to_string()),
            _ => None,
        };
        Self {
            ok: false,
            text: String::new(),
            language: program.language.name,
            supported_languages: Language::names(),
            exit_code: 0,
            stdout: Blob::default(),
            stderr: Blob::default(),
            script_path: program.script_path(),
            workspace_root,
            sandbox: program.sandbox,
            sandbox_image: image.map(str::to_owned),
            sandbox_network: program.has_network(),
            backend: backend.to_owned(),
            stage,
            duration_ms: 0,
            cpu_ms: 0,
            peak_memory: 0,
            stdout_truncated: false,
            stderr_truncated: false,
            compile: None,
            certificate: None,
            outputs: Vec::new(),
            notes: Vec::new(),
            error: None,
        }
    }

    /// Of what ran, or of a compiler that refused.
    pub(super) fn ended(
        program: &Program,
        backend: &str,
        image: Option<&str>,
        stage: Stage,
        gathered: Gathered,
    ) -> Self {
        let end = gathered.end;
        let exit_code = i32::from(end.status());
        // Output that was cut ends nothing.
        let cut_short = end
            .certificate
            .as_ref()
            .is_some_and(|c| c.cause != Cause::Output);
        Self {
            ok: exit_code == 0 && !cut_short && stage == Stage::Run,
            exit_code,
            stdout_truncated: gathered.stdout.is_cut(),
            stderr_truncated: gathered.stderr.is_cut(),
            stdout: Blob(gathered.stdout.kept),
            stderr: Blob(gathered.stderr.kept),
            duration_ms: end.duration_ms,
            cpu_ms: end.cpu_ms,
            peak_memory: end.peak_memory,
            certificate: end.certificate,
            ..Self::blank(program, backend, image, stage)
        }
    }

    /// Of code that could not be translated.
    pub(super) fn refused(
        program: &Program,
        backend: &str,
        image: Option<&str>,
        stderr: String,
    ) -> Self {
        Self {
            exit_code: REFUSED,
            stderr: Blob(stderr.into_bytes()),
            ..Self::blank(program, backend, image, Stage::Compile)
        }
    }

    /// Of an engine that gave no sandbox: the contract's answer.
    pub(super) fn no_engine(
        program: &Program,
        backend: &str,
        image: Option<&str>,
        error: String,
    ) -> Self {
        Self {
            exit_code: NO_SANDBOX,
            text: format!("Error: {error}"),
            error: Some(error),
            ..Self::blank(program, backend, image, Stage::Start)
        }
    }

    /// With the contract's text, from everything else that is known by now.
    pub(super) fn told(mut self) -> Self {
        let shown = |stream: &Blob| {
            shortened(stream.text().trim_end(), |bytes| {
                format!("[{bytes} bytes left out: print less, or the part that matters]")
            })
        };
        let (stdout, stderr) = (shown(&self.stdout), shown(&self.stderr));
        let code = self.exit_code;
        let text = format!("exit_code: {code}\nstdout:\n{stdout}\nstderr:\n{stderr}");
        self.text = text.trim_end().to_owned();
        for note in &self.notes {
            self.text += &format!("\nnote: {note}");
        }
        for OutputFile { path, size, .. } in &self.outputs {
            let path = path.replace(char::is_control, "?");
            self.text += &format!("\noutput: {path} ({size} bytes)");
        }
        self
    }
}
