//! `ringfence new`: makes a session.

use crate::client::ServerArgs;
use clap::Args;
use http::Method;
use ringfence_core::{Failure, Size};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ringfence new                        a sandbox; prints its id
  ringfence new work --memory 2g       one with a name, for `ringfence exec work …`
  ringfence new docs --skills ./skills     with skills, read-only at /sandbox/skills/NAME
  ringfence new --url http://127.0.0.1:8080 --json";

/// Makes a sandbox that is kept
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct New {
    /// A name of your own for it; the one that has it is found again
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Time without any use after which it ends
    #[arg(long, value_name = "TIME", value_parser = time)]
    idle_timeout: Option<Duration>,

    /// Time after which it ends in any case
    #[arg(long, value_name = "TIME", value_parser = time)]
    lifetime: Option<Duration>,

    /// Memory of the whole sandbox
    #[arg(long, value_name = "SIZE")]
    memory: Option<Size>,

    /// A packages environment made by `ringfence env add`
    #[arg(long, value_name = "NAME")]
    env_name: Option<String>,

    /// A folder that is a skill (with a SKILL.md) or has skills in it, seen read-only at
    /// /sandbox/skills/NAME; on the server's host where --url names one
    #[arg(long, value_name = "FOLDER")]
    skills: Vec<PathBuf>,

    /// A label to find it by, NAME=VALUE
    #[arg(long = "label", value_name = "LABEL", value_parser = pair)]
    labels: Vec<(String, String)>,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

fn time(text: &str) -> Result<Duration, String> {
    crate::config::time(text).ok_or_else(|| "a time is a number with s, m, h or d".to_owned())
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    match name.is_empty() {
        true => Err("a label is NAME=VALUE".to_owned()),
        false => Ok((name.to_owned(), value.to_owned())),
    }
}

impl New {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let mut spec = json!({});
        if let Some(memory) = self.memory {
            spec["limits"] = json!({"memory": memory});
        }
        if let Some(name) = &self.env_name {
            spec["environment"] = json!(name);
        }
        if !self.skills.is_empty() {
            // A path of another host means what it means there.
            let resolve = match self.server.is_remote() {
                true => |path: &PathBuf| std::path::absolute(path),
                false => |path: &PathBuf| path.canonicalize(),
            };
            let paths = self.skills.iter().map(|path| {
                resolve(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
            });
            spec["skills"] = json!(paths.collect::<Result<Vec<_>, _>>()?);
        }
        let labels: serde_json::Map<String, Value> = self
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        let body = json!({
            "key": self.name,
            "idle_timeout_seconds": self.idle_timeout.map(|time| time.as_secs_f64()),
            "max_lifetime_seconds": self.lifetime.map(|time| time.as_secs_f64()),
            "labels": labels,
            "spec": spec,
        });
        let made: Value = self
            .server
            .with(async |client| client.ask(Method::POST, "/sessions", Some(&body)).await)?;
        match self.json {
            true => crate::cli::say_json(&made)?,
            false => crate::cli::say(made["session_id"].as_str().unwrap_or_default()),
        }
        Ok(ExitCode::SUCCESS)
    }
}
