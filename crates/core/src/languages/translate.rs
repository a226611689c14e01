//! Asks for translations. What is parsed is hostile text, so a process of its own does it, which
//! can open nothing, gets little memory and time, and is ended with whoever asked.

use super::typescript;
use ringfence_proto::{Code, Failure};
use rustix::process::{Resource, Rlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;

/// The verb of our program that translates.
pub const VERB: &str = "translate";

/// Most bytes of all files together, and of the answer.
const LONGEST: u64 = 8 << 20;
const LONGEST_ANSWER: u64 = 64 << 20;

/// Bytes of address space and seconds of a translation.
const MEMORY: u64 = 1 << 30;
const SECONDS: u64 = 10;

/// How long after a translation the next translator is started.
const REST: Duration = Duration::from_millis(30);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ask {
    main: String,
    files: BTreeMap<String, String>,
}

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Translation {
    /// The main file is a module of JavaScript, not a script.
    pub module: bool,
    /// By their new names.
    pub files: BTreeMap<String, String>,
}

/// Something that can't be translated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub file: String,
    /// From 1, as columns.
    pub line: u32,
    pub column: u32,
    pub message: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            file,
            line,
            column,
            message,
        } = self;
        write!(f, "{file}:{line}:{column}: error: {message}")
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Done(Translation),
    Refused(Vec<Fault>),
}

/// The name that a file has as JavaScript, where it is not that already.
pub fn translated_name(name: &str) -> Option<String> {
    typescript::translated_name(name)
}

/// Starts a translator for each translation.
#[derive(Debug)]
pub struct Translators {
    /// Our own executable.
    program: PathBuf,
    /// Whether one waits for the next translation, once there was a first.
    spare: bool,
    waiting: Mutex<Option<Child>>,
}

impl Translators {
    /// `program` must be the `ringfence` executable. Who translates again and again has a `spare`.
    pub fn new(program: PathBuf, spare: bool) -> Arc<Self> {
        Arc::new(Self {
            program,
            spare,
            waiting: Mutex::default(),
        })
    }

    /// The translation, or what is wrong with the code.
    pub async fn translate(
        self: &Arc<Self>,
        main: &str,
        files: BTreeMap<String, String>,
    ) -> Result<Result<Translation, Vec<Fault>>, Failure> {
        let size: usize = files.values().map(String::len).sum();
        if size as u64 > LONGEST {
            return Err(Failure::new(
                Code::TooLarge,
                format!("cannot translate {main}: the code is over {LONGEST} bytes"),
            ));
        }
        let main = main.to_owned();
        let question = serde_json::to_vec(&Ask { main, files })
            .map_err(|e| Failure::new(Code::Internal, "cannot ask for a translation").detail(e))?;
        let waiting = self.waiting().take();
        let lives = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        let translator = match waiting.and_then(|mut child| lives(&mut child).then_some(child)) {
            Some(child) => child,
            None => self.start()?,
        };
        let limit = Duration::from_secs(SECONDS);
        let answer = tokio::time::timeout(limit, ask(translator, &question)).await;
        if self.spare {
            let these = Arc::clone(self);
            tokio::spawn(async move {
                // What was translated starts now, and needs the processors more.
                tokio::time::sleep(REST).await;
                let mut waiting = these.waiting();
                if waiting.is_none() {
                    // The next translation says why it can't be started.
                    *waiting = these.start().ok();
                }
            });
        }
        answer.unwrap_or_else(|_| {
            Ok(Err(vec![Fault::whole(
                "the code takes too long to translate",
            )]))
        })
    }

    fn waiting(&self) -> MutexGuard<'_, Option<Child>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self) -> Result<Child, Failure> {
        tokio::process::Command::new(&self.program)
            .arg(VERB)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| Failure::io("cannot start a translator", &e))
    }
}

async fn ask(
    mut translator: Child,
    question: &[u8],
) -> Result<Result<Translation, Vec<Fault>>, Failure> {
    let lost = || Failure::new(Code::Internal, "cannot talk to the translator");
    let (Some(mut to), Some(from)) = (translator.stdin.take(), translator.stdout.take()) else {
        return Err(lost());
    };
    // One that has died says so by the end of its answer.
    let _ = to.write_all(question).await;
    drop(to);
    let mut answer = Vec::new();
    from.take(LONGEST_ANSWER)
        .read_to_end(&mut answer)
        .await
        .map_err(|e| lost().detail(e))?;
    let status = translator.wait().await.map_err(|e| lost().detail(e))?;
    if !status.success() {
        return Ok(Err(vec![Fault::whole(
            "the code is nested too deeply, or too large, to be translated",
        )]));
    }
    match serde_json::from_slice(&answer).map_err(|e| lost().detail(e))? {
        Reply::Done(translation) => Ok(Ok(translation)),
        Reply::Refused(faults) => Ok(Err(faults)),
    }
}

impl Fault {
    fn whole(message: &str) -> Self {
        Self {
            file: "code".to_owned(),
            line: 1,
            column: 1,
            message: message.to_owned(),
        }
    }
}

/// What the translator does: one question from its input, one answer to its output. `confine`
/// takes from the process whatever it can do besides.
pub fn serve(confine: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    for (resource, most) in [
        (Resource::As, MEMORY),
        (Resource::Cpu, SECONDS),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::Nofile, 3),
    ] {
        let most = Some(most);
        setrlimit(
            resource,
            Rlimit {
                current: most,
                maximum: most,
            },
        )?;
    }
    confine()?;
    let mut question = Vec::new();
    io::stdin().lock().read_to_end(&mut question)?;
    let ask: Ask = serde_json::from_slice(&question)?;
    let reply = match typescript::translate(&ask.main, &ask.files) {
        Ok(translation) => Reply::Done(translation),
        Err(faults) => Reply::Refused(faults),
    };
    let mut out = io::stdout().lock();
    out.write_all(&serde_json::to_vec(&reply)?)?;
    out.flush()
}
