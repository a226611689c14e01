//! The options of `run` that are about a container.

use super::progress::Progress;
use clap::{Args, ValueEnum};
use ringfence_core::Failure;
use ringfence_core::backend::progress::{Listener, OVER};
use ringfence_core::container::{ContainerSpec, Pull};
use std::sync::Arc;

/// What makes the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BackendName {
    /// Docker where an option of a container is given, else native, else Docker
    Auto,
    Native,
    Docker,
    Kubernetes,
}

#[derive(Clone, Copy, ValueEnum)]
enum PullWhen {
    Missing,
    Always,
    Never,
}

#[derive(Args)]
#[command(next_help_heading = "Containers")]
pub(super) struct ContainerArgs {
    /// What makes the sandbox
    #[arg(
        long,
        value_name = "NAME",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(super) backend: BackendName,

    /// The image of the container [default: python:3.13-slim]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// When the image is fetched: missing, always or never [default: missing]
    #[arg(long, value_name = "WHEN", hide_possible_values = true)]
    pull: Option<PullWhen>,

    /// The platform of the image, such as linux/arm64
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<String>,

    /// The user inside, by name or number, with or without a group: app, 1000:1000
    #[arg(long, value_name = "USER")]
    user: Option<String>,

    /// The engine's runtime, such as runsc
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,

    /// Any other options of the container as JSON, such as '{"cap_add": ["CHOWN"]}'
    #[arg(long, value_name = "JSON")]
    container: Option<String>,
}

impl ContainerArgs {
    /// What was asked of the container; absent where nothing was.
    pub(super) fn spec(&self, network: &str) -> Result<Option<ContainerSpec>, Failure> {
        let mut spec: ContainerSpec = match &self.container {
            None => ContainerSpec::default(),
            Some(text) => serde_json::from_str(text).map_err(|e| {
                Failure::invalid(format!("--container has no options of a container: {e}"))
                    .hint("docs/openapi.json lists them: ContainerSpec")
            })?,
        };
        let set = |slot: &mut Option<String>, given: &Option<String>| {
            if given.is_some() {
                slot.clone_from(given);
            }
        };
        set(&mut spec.image, &self.image);
        set(&mut spec.platform, &self.platform);
        set(&mut spec.user, &self.user);
        set(&mut spec.runtime, &self.runtime);
        match self.pull {
            None => {}
            Some(PullWhen::Missing) => spec.pull = Pull::Missing,
            Some(PullWhen::Always) => spec.pull = Pull::Always,
            Some(PullWhen::Never) => spec.pull = Pull::Never,
        }
        if !matches!(network, "none" | "host") {
            spec.network = Some(network.to_owned());
        }
        Ok((spec != ContainerSpec::default()).then_some(spec))
    }
}

/// Shows how far an image is that has to be fetched.
pub(super) fn shown() -> Listener {
    let progress = std::sync::Mutex::new(None::<Progress>);
    Arc::new(move |event| {
        let mut progress = progress
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if event.status == OVER {
            // What comes next is the output.
            *progress = None;
            return;
        }
        let progress = progress.get_or_insert_with(|| {
            let progress = Progress::new();
            progress.step(&format!("fetching {}", event.image));
            progress
        });
        progress.measure(event.current, event.total, &event.status);
    })
}
