//! `ringfence rm`: ends sessions.

use crate::client::{self, Client, ServerArgs};
use clap::Args;
use http::Method;
use ringfence_core::{Code, Failure};
use serde_json::{Value, json};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence rm work
  ringfence rm --all";

/// Ends sandboxes, with their processes and files
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Remove {
    /// Ids or names of sessions
    #[arg(value_name = "SESSION", required_unless_present = "all")]
    sessions: Vec<String>,

    /// All that you may see
    #[arg(long, conflicts_with = "sessions")]
    all: bool,

    /// One that is not there is no failure
    #[arg(short, long)]
    force: bool,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

impl Remove {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let removed = self.server.with(async |client| self.run(&client).await)?;
        if self.json {
            crate::cli::say_json(&json!({"removed": removed}))?;
        } else {
            removed.iter().for_each(crate::cli::say);
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn run(&self, client: &Client) -> Result<Vec<String>, Failure> {
        let names = match self.all {
            true => all(client).await?,
            false => self.sessions.clone(),
        };
        let mut removed = Vec::new();
        for name in names {
            let path = client::session(&name);
            match client.get::<Value>(&path).await {
                Ok(_) => {}
                Err(failure) if failure.code == Code::NotFound && self.force => continue,
                Err(failure) => return Err(failure.hint("`ringfence ls` shows those there are")),
            }
            client.ask::<Value>(Method::DELETE, &path, None).await?;
            removed.push(name);
        }
        Ok(removed)
    }
}

async fn all(client: &Client) -> Result<Vec<String>, Failure> {
    let all = super::list::sessions(client, None).await?;
    let ids = all
        .iter()
        .filter_map(|session| session["session_id"].as_str());
    Ok(ids.map(str::to_owned).collect())
}
