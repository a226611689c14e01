//! `ringfence ls`: the sessions there are.

use crate::client::{Client, ServerArgs};
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use ringfence_core::Failure;
use serde_json::{Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often the table is drawn anew.
const EVERY: Duration = Duration::from_secs(1);

const EXAMPLES: &str = "\
Examples:
  ringfence ls
  ringfence ls --watch          a table that stays up to date; Ctrl-C ends it
  ringfence ls --label team=a --json";

/// Lists sandboxes that are kept
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct List {
    /// Draws the table anew every second
    #[arg(long, short, conflicts_with = "json")]
    watch: bool,

    /// Only those with this label: NAME or NAME=VALUE
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,

    /// Prints JSON, for programs
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: ServerArgs,
}

impl List {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let label = self.label.clone();
        self.server.with(async |client| {
            if self.watch {
                return watch(&client, label.as_deref()).await;
            }
            let all = sessions(&client, label.as_deref()).await?;
            match self.json {
                true => crate::cli::say_json(&json!({"sessions": all}))?,
                false if all.is_empty() => {
                    let _ = writeln!(
                        anstream::stderr().lock(),
                        "there are no sandboxes; `ringfence new` makes one"
                    );
                }
                false => crate::cli::say(table(&all)),
            }
            Ok(())
        })?;
        Ok(ExitCode::SUCCESS)
    }
}

/// All pages.
pub(super) async fn sessions(client: &Client, label: Option<&str>) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    let mut after = String::new();
    loop {
        let mut path = format!("/sessions?limit=1000&after={after}");
        if let Some(label) = label {
            path += &format!("&label={}", crate::client::segment(label));
        }
        let mut page: Value = client.get(&path).await?;
        if let Value::Array(sessions) = page["sessions"].take() {
            all.extend(sessions);
        }
        match page["next"].as_str() {
            Some(next) => next.clone_into(&mut after),
            None => return Ok(all),
        }
    }
}

async fn watch(client: &Client, label: Option<&str>) -> Result<(), Failure> {
    let terminal = std::io::stdout().is_terminal();
    let mut ticks = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
        let all = sessions(client, label).await?;
        // From the top of a screen that is cleared; elsewhere one table after the other.
        let start = if terminal { "\x1b[H\x1b[2J" } else { "" };
        let mut stdout = anstream::stdout().lock();
        let written = writeln!(stdout, "{start}{}", table(&all)).and_then(|()| stdout.flush());
        if written.is_err() {
            return Ok(());
        }
    }
}

fn table(sessions: &[Value]) -> Table {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_secs_f64();
    let ago = |session: &Value, name: &str| {
        let seconds = (now - session[name].as_f64().unwrap_or(now)).max(0.0) as u64;
        humantime::format_duration(Duration::from_secs(seconds)).to_string()
    };
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["SESSION", "NAME", "AGE", "IDLE", "LABELS"]);
    for session in sessions {
        let labels = session["labels"].as_object().map(|labels| {
            let each = labels
                .iter()
                .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()));
            each.collect::<Vec<_>>().join(" ")
        });
        table.add_row([
            session["session_id"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            session["key"].as_str().unwrap_or_default().to_owned(),
            ago(session, "created_at"),
            ago(session, "last_activity_at"),
            labels.unwrap_or_default(),
        ]);
    }
    table
}
