//! The backends, set up from where things are on this host.

use crate::{embedded, settings};
use ringfence_core::Failure;
use ringfence_core::backend::docker::{self, Docker, Endpoint};
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
