//! The same shell script inside a sandbox and outside of it.

use ringfence_core::proto::{Cause, Command, ExecRequest, Exit};
use ringfence_core::{
    Backend, Code, Control, Enforced, Failure, GuestClient, Lifetime, Plan, SandboxSpec, resolve,
};
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Exit status of a probe that tried and did not get there.
const HELD_BACK: i32 = 10;

/// How far a probe got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// It got what it was after.
    There,
    /// It tried and was held back.
    HeldBack,
    /// It could not even try.
    Broken,
}

impl Reach {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::There => "passed",
            Self::HeldBack => "stopped",
            Self::Broken => "could not be tried",
        }
    }
}

/// What a probe said and how it ended.
pub(super) struct Outcome {
    pub status: Option<i32>,
    pub stdout: String,
    /// The limit that ended it, inside a sandbox.
    pub cause: Option<Cause>,
    pub cpu_ms: u64,
    pub duration_ms: u64,
}

impl Outcome {
    pub(super) fn reach(&self) -> Reach {
        match self.status {
            Some(0) => Reach::There,
            Some(HELD_BACK) => Reach::HeldBack,
            _ => Reach::Broken,
        }
    }

    /// The value of a line such as `Seccomp: 2`.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.stdout.lines().find_map(|line| {
            let (key, value) = line.split_once([':', ' '])?;
            (key == name).then(|| value.trim())
        })
    }
}

/// A script, and what it is told.
pub(super) struct Probe<'a> {
    pub script: &'a str,
    pub args: &'a [&'a str],
}

impl Probe<'_> {
    fn argv(&self) -> Vec<String> {
        ["/bin/sh", "-c", self.script, "probe"]
            .iter()
            .chain(self.args)
            .map(|word| (*word).to_owned())
            .collect()
    }

    pub(super) fn outside(&self) -> Outcome {
        let argv = self.argv();
        let output = std::process::Command::new(&argv[0])
            .args(&argv[1..])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .output();
        let (status, stdout) = match output {
            Ok(output) => (
                output.status.code(),
                String::from_utf8_lossy(&output.stdout).into_owned(),
            ),
            Err(_) => (None, String::new()),
        };
        Outcome {
            status,
            stdout,
            cause: None,
            cpu_ms: 0,
            duration_ms: 0,
        }
    }

    pub(super) async fn inside(&self, sandbox: &Sandbox<'_>) -> Result<Outcome, Failure> {
        sandbox.run(self.argv(), 5000).await
    }
}

/// A sandbox to look around in.
pub(super) struct Sandbox<'a> {
    backend: &'a dyn Backend,
    guest: GuestClient,
    pub plan: Plan,
}

impl<'a> Sandbox<'a> {
    pub(super) async fn make(backend: &'a dyn Backend, spec: SandboxSpec) -> Result<Self, Failure> {
        let plan = resolve(spec, Lifetime::Disposable, &backend.guarantees().await?)?;
        backend.create(&plan).await?;
        let guest = async { GuestClient::connect(backend.dial(&plan.id).await?).await };
        match guest.await {
            Ok(guest) => Ok(Self {
                backend,
                guest,
                plan,
            }),
            Err(failure) => {
                let _ = backend.destroy(&plan.id).await;
                Err(failure)
            }
        }
    }

    pub(super) async fn run(&self, argv: Vec<String>, ms: u64) -> Result<Outcome, Failure> {
        let mut request = ExecRequest::new(Command::Argv(argv));
        request.timeout_ms = Some(ms);
        let result = match self.guest.exec(&request).await {
            // No shell inside is an answer too: the probe can't try.
            Err(failure) if failure.code == Code::Missing || failure.code == Code::NotFound => {
                return Ok(Outcome {
                    status: None,
                    stdout: String::new(),
                    cause: None,
                    cpu_ms: 0,
                    duration_ms: 0,
                });
            }
            other => other?,
        };
        Ok(Outcome {
            status: match result.end.exit {
                Exit::Code(code) => Some(code),
                _ => None,
            },
            stdout: String::from_utf8_lossy(&result.stdout.data.0).into_owned(),
            cause: result.end.certificate.map(|c| c.cause),
            cpu_ms: result.end.cpu_ms,
            duration_ms: result.end.duration_ms,
        })
    }

    pub(super) fn enforced(&self, control: Control) -> Option<&Enforced> {
        self.plan.enforced.iter().find(|e| e.control == control)
    }

    /// The guest's process id, out here.
    pub(super) fn pid(&self) -> Option<i32> {
        let mark = format!("\0--id\0{}\0", self.plan.id);
        fs::read_dir("/proc")
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .find(|pid| {
                fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                    line.starts_with(b"ringfence-guest\0")
                        && line.windows(mark.len()).any(|w| w == mark.as_bytes())
                })
            })
    }

    pub(super) async fn remove(self) -> Result<(), Failure> {
        self.backend.destroy(&self.plan.id).await
    }
}

/// A folder of the host that is gone when this is.
pub(super) struct Folder {
    pub path: PathBuf,
}

impl Folder {
    /// Below `parent`, with a name that nobody can guess; everyone may look into it.
    pub(super) fn make(parent: &Path) -> Result<Self, Failure> {
        let path = parent.join(format!("ringfence-doctor-{}", random()?));
        fs::DirBuilder::new()
            .mode(0o755)
            .create(&path)
            .map_err(|e| Failure::io(format!("cannot make {}", path.display()), &e))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

pub(super) fn random() -> Result<String, Failure> {
    let mut bytes = [0u8; 8];
    let failed = |e: io::Error| Failure::io("cannot draw a random name", &e);
    fs::File::open("/dev/urandom")
        .and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes))
        .map_err(failed)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
