//! `ringfence gc`: removes what was left behind.

use crate::{backends, embedded, settings};
use clap::{Args, ValueEnum};
use ringfence_core::backend::docker::Swept;
use ringfence_core::backend::native::PATIENCE;
use ringfence_core::{Backend as _, Failure, SandboxId};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence gc
  ringfence gc --json

Removes disposable sandboxes whose maker was killed, creations that were cut off, environments
that were not finished, and guests of earlier versions; on a Docker engine, where one answers,
containers that were never started and guests of other versions. What runs, and what is kept, stays.";

/// Removes what killed commands and earlier versions left behind
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gc {
    /// Prints what was removed as one JSON object
    #[arg(long)]
    json: bool,

    /// Cleans up in a cluster in place of this machine: kubernetes
    #[arg(long, value_name = "NAME", hide_possible_values = true)]
    backend: Option<Elsewhere>,
}

/// Where else than here things are left behind.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Elsewhere {
    Kubernetes,
}

/// Everything that was removed.
#[derive(Serialize)]
struct Removed {
    sandboxes: Vec<SandboxId>,
    /// What did not go, and why.
    stuck: Vec<(SandboxId, String)>,
    environments: Vec<String>,
    guests: Vec<PathBuf>,
    /// Of a Docker engine, where one answers.
    docker: Swept,
}

impl Gc {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        if self.backend.is_some() {
            return self.in_cluster();
        }
        let native = backends::native(settings::state(), None, None)?;
        let swept = native.sweep(PATIENCE)?;
        let docker = super::block_on(async {
            let docker = backends::docker(settings::state(), backends::IMAGE, None, 0)?;
            // Where no engine answers there is nothing to remove.
            match docker.guarantees().await {
                Ok(_) => docker.sweep().await,
                Err(_) => Ok(Swept::default()),
            }
        })?;
        let removed = Removed {
            sandboxes: swept.sandboxes,
            stuck: swept.stuck,
            environments: super::env::remove_unfinished()?,
            guests: embedded::remove_old()?,
            docker,
        };
        if self.json {
            super::say_json(&removed)?;
            return Ok(ExitCode::SUCCESS);
        }
        for (id, why) in &removed.stuck {
            super::say(format_args!("sandbox {id} does not go: {why}"));
        }
        for id in &removed.sandboxes {
            super::say(format_args!("removed sandbox {id}"));
        }
        for name in &removed.environments {
            super::say(format_args!("removed the unfinished environment {name}"));
        }
        for path in &removed.guests {
            super::say(format_args!("removed the old guest {}", path.display()));
        }
        for id in &removed.docker.containers {
            super::say(format_args!("removed the container {id}"));
        }
        for name in &removed.docker.volumes {
            super::say(format_args!("removed the volume {name}"));
        }
        if removed.sandboxes.is_empty()
            && removed.docker == Swept::default()
            && removed.environments.is_empty()
            && removed.guests.is_empty()
        {
            super::say("nothing was left behind");
        }
        Ok(ExitCode::SUCCESS)
    }

    #[cfg(feature = "kubernetes")]
    fn in_cluster(&self) -> Result<ExitCode, Failure> {
        let config = crate::config::ConfigArgs::default().load()?.config;
        let cluster = backends::kubernetes(&config)?;
        let swept = super::block_on(cluster.sweep())?;
        if self.json {
            super::say_json(&swept)?;
            return Ok(ExitCode::SUCCESS);
        }
        for name in &swept.pods {
            super::say(format_args!("removed the pod {name}"));
        }
        for object in &swept.objects {
            super::say(format_args!("removed the {object}"));
        }
        if swept.pods.is_empty() && swept.objects.is_empty() {
            super::say("nothing was left behind");
        }
        Ok(ExitCode::SUCCESS)
    }

    #[cfg(not(feature = "kubernetes"))]
    fn in_cluster(&self) -> Result<ExitCode, Failure> {
        let config = crate::config::ConfigArgs::default().load()?.config;
        backends::kubernetes(&config).map(|_| ExitCode::SUCCESS)
    }
}
