//! `ringfence logs`: what the jobs of a session printed.

use super::{Passed, explain};
use crate::client::{self, Client, ServerArgs};
use clap::Args;
use comfy_table::{Table, presets};
use http::Method;
use ringfence_core::Failure;
use serde_json::Value;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence logs work                    its jobs
  ringfence logs work job_1f0c           what one printed, as far as it is kept
  ringfence logs work job_1f0c --follow  and what it goes on to print";

/// Shows the jobs of a sandbox, or what one of them printed
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Logs {
    /// The session's id or name
    #[arg(value_name = "SESSION")]
    session: String,

    /// A job of it
    #[arg(value_name = "JOB")]
    job: Option<String>,

    /// Goes on until the job ends
    #[arg(short, long, requires = "job", conflicts_with = "json")]
    follow: bool,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

impl Logs {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        self.server.with(async |client| self.run(&client).await)?;
        Ok(ExitCode::SUCCESS)
    }

    async fn run(&self, client: &Client) -> Result<(), Failure> {
        let jobs = format!("{}/jobs", client::session(&self.session));
        let Some(job) = &self.job else {
            let all: Value = client.get(&jobs).await?;
            return match self.json {
                true => crate::cli::say_json(&all),
                false => {
                    crate::cli::say(table(&all));
                    Ok(())
                }
            };
        };
        let job = format!("{jobs}/{}", client::segment(job));
        let about: Value = client.get(&job).await?;
        if self.json {
            return crate::cli::say_json(&about);
        }
        if self.follow || about["state"] == "ended" {
            let path = format!("{job}/events");
            let answer = client
                .send(Method::GET, &path, &[], client::empty())
                .await?;
            let mut events = client.follow(answer, path);
            let mut passed = Passed::new();
            loop {
                if let Some(end) = passed.take(events.next().await?).await? {
                    explain(&end);
                    return Ok(());
                }
            }
        }
        // So far; the two streams one after the other.
        for stream in ["stdout", "stderr"] {
            let path = format!("{job}/output/{stream}");
            let answer = client
                .send(Method::GET, &path, &[], client::empty())
                .await?;
            crate::cli::pass(&client.bytes(answer).await?);
        }
        Ok(())
    }
}

fn table(all: &Value) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["JOB", "STATE", "STATUS", "STDOUT", "STDERR", "COMMAND"]);
    for job in all["jobs"].as_array().into_iter().flatten() {
        let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
        let status = &job["end"]["return_code"];
        table.add_row([
            text("job_id"),
            text("state"),
            status
                .as_i64()
                .map_or(String::new(), |code| code.to_string()),
            job["stdout_bytes"].to_string(),
            job["stderr_bytes"].to_string(),
            text("command").replace('\n', " "),
        ]);
    }
    table
}
