//! The backends, set up from where things are on this host.

use crate::config::Config;
#[cfg(feature = "kubernetes")]
use crate::config::{ReachChoice, SandboxesChoice};
use crate::{embedded, settings};
use ringfence_core::Failure;
use ringfence_core::backend::docker::{self, Docker, Endpoint};
#[cfg(feature = "kubernetes")]
use ringfence_core::backend::kubernetes::{self, Kubernetes, Reach, Sandboxes};
use ringfence_core::backend::native::{self, Launcher, Native};
use ringfence_core::backend::progress::Listener;
use ringfence_core::interpreter::Interpreter;
use std::path::PathBuf;
use std::sync::Arc;

/// What a container is made from when nobody says.
pub(crate) const IMAGE: &str = "python:3.13-slim";

/// Native sandboxes, with their state in this folder, by a launcher that was started before or
/// one that is when it is needed.
pub(crate) fn native(
    state: PathBuf,
    interpreter: Option<Interpreter>,
    launcher: Option<Launcher>,
) -> Result<Native, Failure> {
    let config = native::Config {
        state,
        guest: embedded::guest()?,
        environments: settings::environments(),
        interpreter,
    };
    Native::with_launcher(config, launcher)
}

/// Containers of the engine that Docker's own tools would use.
pub(crate) fn docker(
    state: PathBuf,
    image: &str,
    listener: Option<Listener>,
    pool: usize,
) -> Result<Arc<Docker>, Failure> {
    let around = settings::docker();
    let config = docker::Config {
        endpoint: Endpoint::find(&around)?,
        state,
        guest: embedded::guest()?,
        image: image.to_owned(),
        docker_config: around.config,
        listener,
        pool,
    };
    Docker::new(config)
}

/// How much longer than a session may last the cluster lets a pod live: what was parked first.
#[cfg(feature = "kubernetes")]
const LAST_RESORT: std::time::Duration = std::time::Duration::from_secs(3600);

/// Pods of the cluster that its own tools would use.
#[cfg(feature = "kubernetes")]
pub(crate) fn kubernetes(config: &Config) -> Result<Arc<Kubernetes>, Failure> {
    let asked = &config.kubernetes;
    // Clients of HasteKit name the default image in a variable of their own.
    let image = match (config.is_set("docker.image"), &config.hastekit.image) {
        (false, Some(image)) => image,
        _ => &config.docker.image,
    };
    let sessions = &config.sessions;
    Kubernetes::new(kubernetes::Config {
        endpoint: kubernetes::Endpoint {
            kubeconfig: None,
            context: asked.context.clone(),
            namespace: asked.namespace.clone(),
        },
        guest_image: asked.guest_image.clone(),
        reach: match asked.reach {
            ReachChoice::Auto => Reach::Auto,
            ReachChoice::Address => Reach::Address,
            ReachChoice::Exec => Reach::Exec,
        },
        sandboxes: match asked.sandboxes {
            SandboxesChoice::Pods => Sandboxes::Pods,
            SandboxesChoice::AgentSandbox => Sandboxes::AgentSandbox,
        },
        network_policy: asked.network_policy,
        storage_class: asked.storage_class.clone(),
        pull_secrets: asked.pull_secrets.clone(),
        reserve: asked.reserve,
        scheduling: asked.scheduling,
        deadline: sessions.max_lifetime.max(sessions.longest_timeout) + LAST_RESORT,
        pool: config.docker.pool as usize,
        image: image.clone(),
    })
}

#[cfg(not(feature = "kubernetes"))]
pub(crate) fn kubernetes(
    _config: &Config,
) -> Result<Arc<ringfence_core::backend::docker::Docker>, Failure> {
    let message = "this program was built without Kubernetes";
    Err(Failure::new(ringfence_core::Code::Missing, message))
}
