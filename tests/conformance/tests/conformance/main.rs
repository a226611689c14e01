//! Every behaviour on every backend: the fake, native as root and as an ordinary user, Docker, with
//! its own runtime and with gVisor, whose kernel has neither openat2 nor pidfd_open, and Kubernetes.

mod gvisor;

use libtest_mimic::{Arguments, Failed, Trial as Case};
use ringfence_conformance::{BEHAVIOURS, Behaviour, Fake, Trial};
use ringfence_core::backend::docker::{self, Docker, Endpoint};
use ringfence_core::backend::kubernetes::{self, Kubernetes};
use ringfence_core::backend::native::{Config, Native};
use ringfence_core::interpreter::Interpreter;
use ringfence_core::{Backend, Lifetime};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The ordinary user that root becomes.
const USER: u32 = 12_345;
/// Tells a copy of this program, run as that user, where things are.
const BIN: &str = "RINGFENCE_CONFORMANCE_BIN";

fn main() {
    let arguments = Arguments::from_args();
    let mut cases = Vec::new();
    for behaviour in BEHAVIOURS {
        let name = behaviour.name;
        cases.push(Case::test(format!("fake::{name}"), move || fake(behaviour)));
        cases.push(Case::test(format!("native::{name}"), move || {
            native(behaviour)
        }));
        cases.push(Case::test(format!("user::{name}"), move || {
            as_user(behaviour)
        }));
        cases.push(Case::test(format!("docker::{name}"), move || {
            docker(behaviour, |docker| docker)
        }));
        let lacks = gvisor::LACKS.iter().find(|(lacks, _)| *lacks == name);
        let case = Case::test(format!("gvisor::{name}"), move || {
            docker(behaviour, |docker| Arc::new(gvisor::Gvisor(docker)))
        });
        cases.push(match lacks {
            Some((_, why)) => case.with_kind(*why).with_ignored_flag(true),
            None => case,
        });
        cases.push(Case::test(format!("kubernetes::{name}"), move || {
            kubernetes(behaviour)
        }));
    }
    libtest_mimic::run(&arguments, cases).exit();
}

fn run(behaviour: &Behaviour, trial: impl FnOnce() -> Result<Trial, Failed>) -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        trial()?
            .run(behaviour)
            .await
            .map_err(|wrong| wrong.0.into())
    })
}

fn fake(behaviour: &Behaviour) -> Result<(), Failed> {
    run(behaviour, || {
        Ok(Trial {
            backend: Arc::new(Fake::default()),
        })
    })
}

fn native(behaviour: &Behaviour) -> Result<(), Failed> {
    let state = tempfile::tempdir()?;
    let ringfence = ringfence()?;
    run(behaviour, || {
        let config = Config {
            state: state.path().join("state"),
            guest: guest(&ringfence)?,
            environments: state.path().join("envs"),
            interpreter: Some(Interpreter::at(Path::new("/usr/bin/python3"))?),
        };
        let native = Native::new(config)?;
        Ok(Trial {
            backend: Arc::new(native),
        })
    })
}

/// On the engine that `DOCKER_HOST` names, which must be there.
fn docker(
    behaviour: &Behaviour,
    as_backend: fn(Arc<Docker>) -> Arc<dyn Backend>,
) -> Result<(), Failed> {
    let state = tempfile::tempdir()?;
    let ringfence = ringfence()?;
    let host = variable("DOCKER_HOST").ok_or("DOCKER_HOST is not set: see tests/engines")?;
    run(behaviour, || {
        let config = docker::Config {
            endpoint: Endpoint::parse(&host.to_string_lossy(), None)?,
            state: state.path().join("state"),
            guest: guest(&ringfence)?,
            image: "ringfence-test/python".to_owned(),
            docker_config: state.path().to_owned(),
            listener: None,
            pool: 0,
        };
        Ok(Trial {
            backend: as_backend(Docker::new(config)?),
        })
    })
}

/// On the cluster that `RINGFENCE_TEST_KUBECONFIG` names, which must be there. One half of the
/// trials reaches guests by address, the other through the API server.
fn kubernetes(behaviour: &Behaviour) -> Result<(), Failed> {
    let kubeconfig = variable("RINGFENCE_TEST_KUBECONFIG")
        .ok_or("RINGFENCE_TEST_KUBECONFIG is not set: see tests/engines")?;
    let position = BEHAVIOURS.iter().position(|b| b.name == behaviour.name);
    let volume = match behaviour.lifetime {
        Lifetime::Kept => Some(Volume::make(&kubeconfig, behaviour.name)?),
        Lifetime::Disposable => None,
    };
    run(behaviour, || {
        let mut config = kubernetes::Config::new("ringfence-test/python-guest");
        config.endpoint.kubeconfig = Some(kubeconfig.clone().into());
        config.endpoint.namespace = Some("default".to_owned());
        config.storage_class = volume.as_ref().map(|volume| volume.class.clone());
        config.reach = match position.is_some_and(|at| at % 2 == 0) {
            true => kubernetes::Reach::Address,
            false => kubernetes::Reach::Exec,
        };
        Ok(Trial {
            backend: Kubernetes::new(config)?,
        })
    })
}

/// A volume of the cluster that a claim of its class gets.
struct Volume {
    kubeconfig: std::ffi::OsString,
    class: String,
    folder: tempfile::TempDir,
}

impl Volume {
    fn make(kubeconfig: &std::ffi::OsStr, name: &str) -> Result<Self, Failed> {
        let folder = tempfile::tempdir()?;
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777))?;
        let volume = Self {
            kubeconfig: kubeconfig.to_owned(),
            class: format!("rf-{}-{}", name.replace('_', "-"), std::process::id()),
            folder,
        };
        let described = serde_json::json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume.class},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": volume.class,
                "hostPath": {"path": volume.folder.path()},
            },
        });
        let file = volume.folder.path().with_extension("json");
        std::fs::write(&file, described.to_string())?;
        let done = volume
            .kubectl()
            .args(["create", "-f"])
            .arg(&file)
            .output()?;
        std::fs::remove_file(&file)?;
        match done.status.success() {
            true => Ok(volume),
            false => Err(String::from_utf8_lossy(&done.stderr).into_owned().into()),
        }
    }

    fn kubectl(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let remove = ["delete", "persistentvolume", "--wait=false", &self.class];
        let _ = self.kubectl().args(remove).output();
    }
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::vars_os().find(|(k, _)| k == name).map(|(_, v)| v)
}

/// Runs the native trial of this name in a copy of this program that has given up root.
fn as_user(behaviour: &Behaviour) -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        return Err("run the tests as root: they become an ordinary user by themselves".into());
    }
    let own = public_copy(&std::env::current_exe()?)?;
    let ringfence = public_copy(&ringfence()?)?;
    let home = tempfile::tempdir()?;
    std::os::unix::fs::chown(home.path(), Some(USER), Some(USER))?;
    let output = Command::new(own)
        .args([
            "--exact",
            &format!("native::{}", behaviour.name),
            "--nocapture",
        ])
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", home.path())
        .env("TMPDIR", home.path())
        .env("RINGFENCE_CACHE_DIR", home.path().join("cache"))
        .env(BIN, ringfence)
        .current_dir(home.path())
        .uid(USER)
        .gid(USER)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && text.contains("1 passed") {
        return Ok(());
    }
    Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)).into())
}

fn ringfence() -> Result<PathBuf, Failed> {
    if let Some(path) = variable(BIN) {
        return Ok(path.into());
    }
    // target/debug/deps/conformance-… lies two below target/debug/ringfence.
    let own = std::env::current_exe()?;
    let path = own
        .ancestors()
        .nth(2)
        .unwrap_or(Path::new("/"))
        .join("ringfence");
    if path.is_file() {
        return Ok(path);
    }
    Err(format!("{} is missing: run `cargo build` first", path.display()).into())
}

/// The guest that the executable carries, which it unpacks when it runs.
fn guest(ringfence: &Path) -> Result<PathBuf, Failed> {
    let cache = tempfile::tempdir()?.keep();
    let output = Command::new(ringfence)
        .args(["run", "--", "true"])
        .env("RINGFENCE_CACHE_DIR", &cache)
        .env("RINGFENCE_STATE_DIR", cache.join("state"))
        .output()?;
    let found = std::fs::read_dir(&cache)?
        .filter_map(Result::ok)
        .map(|e| e.path());
    let guest = found.into_iter().find(|p| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("guest-"))
    });
    guest.ok_or_else(|| String::from_utf8_lossy(&output.stderr).into_owned().into())
}

/// A copy of a program that every user can execute, made once for each version of it.
fn public_copy(program: &Path) -> Result<PathBuf, Failed> {
    let metadata = program.metadata()?;
    let stamp = metadata
        .modified()?
        .duration_since(std::time::UNIX_EPOCH)?
        .as_nanos();
    let name = program
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let folder = std::env::temp_dir().join(format!("ringfence-public-{stamp}"));
    let path = folder.join(name);
    if path.is_file() {
        return Ok(path);
    }
    std::fs::create_dir_all(&folder)?;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755))?;
    let new = folder.join(format!("new-{}", std::process::id()));
    std::fs::copy(program, &new)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o755))?;
    std::fs::rename(&new, &path)?;
    Ok(path)
}
