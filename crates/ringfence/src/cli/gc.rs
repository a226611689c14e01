//! `ringfence gc`: removes what was left behind.

use crate::{embedded, settings};
use clap::Args;
use ringfence_core::backend::native::{Config, Native, PATIENCE};
use ringfence_core::{Failure, SandboxId};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence gc
  ringfence gc --json

Removes disposable sandboxes whose maker was killed, creations that were cut off, environments
that were not finished, and guests of earlier versions. What runs, and what is kept, stays.";

/// Removes what killed commands and earlier versions left behind
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Gc {
    /// Prints what was removed as one JSON object
    #[arg(long)]
    json: bool,
}

/// Everything that was removed.
#[derive(Serialize)]
struct Removed {
    sandboxes: Vec<SandboxId>,
    /// What did not go, and why.
    stuck: Vec<(SandboxId, String)>,
    environments: Vec<String>,
    guests: Vec<PathBuf>,
}

impl Gc {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let native = Native::new(Config {
            state: settings::state(),
            guest: embedded::guest()?,
            environments: settings::environments(),
            interpreter: None,
        })?;
        let swept = native.sweep(PATIENCE)?;
        let removed = Removed {
            sandboxes: swept.sandboxes,
            stuck: swept.stuck,
            environments: super::env::remove_unfinished()?,
            guests: embedded::remove_old()?,
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
        if removed.sandboxes.is_empty()
            && removed.environments.is_empty()
            && removed.guests.is_empty()
        {
            super::say("nothing was left behind");
        }
        Ok(ExitCode::SUCCESS)
    }
}
