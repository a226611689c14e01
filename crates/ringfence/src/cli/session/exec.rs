//! `ringfence exec`: a command or code in a session.

use super::{Passed, explain, status};
use crate::cli::terminal::standard_input;
use crate::client::{self, Client, Following, ServerArgs};
use clap::Args;
use http::{Method, header};
use ringfence_core::Failure;
use ringfence_core::random_hex;
use serde_json::{Value, json};
use std::io::IsTerminal as _;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence exec work -- ls -la
  ringfence exec work -c 'x = 2'          Python whose variables stay
  ringfence exec work -c 'print(x)'
  cat data.csv | ringfence exec work -- sort
  ringfence exec work --detach -- ./server.sh

Exit status: that of the command; 124 when it ran out of time, 137 when it ran out of memory,
128 + N when signal N ended it; 64 to 78 when Ringfence itself failed.";

/// Runs a command, or Python code, in a sandbox that is kept
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Exec {
    /// The session's id or name; a name that is new makes one
    #[arg(value_name = "SESSION")]
    session: String,

    /// Python code, in an interpreter that keeps its variables
    #[arg(short, long, value_name = "CODE", conflicts_with = "words")]
    code: Option<String>,

    /// A program and its arguments
    #[arg(value_name = "COMMAND", last = true, required_unless_present = "code")]
    words: Vec<String>,

    /// Seconds until everything is ended
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,

    /// The folder it starts in
    #[arg(long, value_name = "FOLDER", conflicts_with = "code")]
    cwd: Option<String>,

    /// Lets it run and prints the id of its job, for `ringfence logs`
    #[arg(short, long)]
    detach: bool,

    /// Prints the whole result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

impl Exec {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        self.server.with(async |client| self.run(&client).await)
    }

    fn body(&self, reads: bool) -> Value {
        let mut body = json!({});
        match &self.code {
            Some(code) => body["code"] = json!(code),
            None => body["argv"] = json!(self.words),
        }
        let options = [
            (
                "timeout_seconds",
                self.timeout.map(|seconds| json!(seconds)),
            ),
            ("cwd", self.cwd.as_ref().map(|folder| json!(folder))),
            ("stdin", reads.then(|| json!({"stream": true}))),
            ("detach", self.detach.then_some(json!(true))),
        ];
        for (name, value) in options {
            if let Some(value) = value {
                body[name] = value;
            }
        }
        body
    }

    async fn run(&self, client: &Client) -> Result<ExitCode, Failure> {
        let jobs = format!("{}/jobs", client::session(&self.session));
        // A person at a terminal types into `ringfence shell`.
        let reads = self.code.is_none() && !self.detach && !std::io::stdin().is_terminal();
        let mut body = self.body(reads);
        if self.detach {
            let job: Value = client.ask(Method::POST, &jobs, Some(&body)).await?;
            match self.json {
                true => crate::cli::say_json(&job)?,
                false => crate::cli::say(job["job_id"].as_str().unwrap_or_default()),
            }
            return Ok(ExitCode::SUCCESS);
        }
        let job = format!("exec_{}", random_hex::<8>()?);
        body["id"] = json!(job);
        let accept = [
            (header::ACCEPT, "text/event-stream"),
            (header::CONTENT_TYPE, "application/json"),
        ];
        let answer = client
            .send(Method::POST, &jobs, &accept, client::json(&body))
            .await?;
        if reads {
            let (client, path) = (client.clone(), format!("{jobs}/{job}/stdin"));
            // A command that reads nothing ends before its input does.
            tokio::spawn(async move {
                let _ = client
                    .send(Method::POST, &path, &[], standard_input())
                    .await;
            });
        }
        let end = tokio::select! {
            end = self.follow(client.follow(answer, format!("{jobs}/{job}/events"))) => end?,
            _ = tokio::signal::ctrl_c() => {
                let path = format!("{jobs}/{job}");
                client.ask::<Value>(Method::DELETE, &path, None).await?;
                return Ok(ExitCode::from(130));
            }
        };
        if self.json {
            let result: Value = client.get(&format!("{jobs}/{job}/result")).await?;
            crate::cli::say_json(&result)?;
        } else {
            explain(&end);
        }
        // Nobody asks for it again; where that fails, the session forgets it in its time.
        let _ = client
            .ask::<Value>(Method::DELETE, &format!("{jobs}/{job}"), None)
            .await;
        Ok(status(&end))
    }

    /// Passes the output on, and gives the end.
    async fn follow(&self, mut events: Following) -> Result<Value, Failure> {
        let mut passed = Passed::new();
        loop {
            let event = events.next().await?;
            if self.json && matches!(event.name.as_str(), "stdout" | "stderr" | "result") {
                continue;
            }
            if let Some(end) = passed.take(event).await? {
                return Ok(end);
            }
        }
    }
}
