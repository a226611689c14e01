//! `ringfence shell`: this terminal, joined to one in a session.

use super::{explain, status};
use crate::cli::output::pass_on;
use crate::cli::terminal::{Raw, keys, size};
use crate::client::{self, Client, ServerArgs};
use clap::Args;
use futures_util::{SinkExt as _, StreamExt as _};
use ringfence_core::{Code, Failure};
use serde_json::{Value, json};
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use tokio_tungstenite::tungstenite::Message;

const EXAMPLES: &str = "\
Examples:
  ringfence shell work                   a shell
  ringfence shell work -- python3        another program
  ringfence shell work --url https://sandboxes.example";

/// Opens an interactive shell in a sandbox that is kept
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Shell {
    /// The session's id or name; a name that is new makes one
    #[arg(value_name = "SESSION")]
    session: String,

    /// What runs in the terminal, in place of a shell
    #[arg(value_name = "COMMAND", last = true)]
    words: Vec<String>,

    #[command(flatten)]
    server: ServerArgs,
}

impl Shell {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        if !std::io::stdin().is_terminal() {
            let message = "cannot open a shell: standard input is no terminal";
            let hint = "`ringfence exec` runs commands without one";
            return Err(Failure::invalid(message).hint(hint));
        }
        self.server.with(async |client| self.run(&client).await)
    }

    async fn run(&self, client: &Client) -> Result<ExitCode, Failure> {
        let now = size();
        let mut path = format!(
            "{}/pty?rows={}&cols={}",
            client::session(&self.session),
            now.rows,
            now.cols
        );
        if !self.words.is_empty() {
            let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
            path += &format!(
                "&command={}",
                client::segment(&format!("exec {}", words.join(" ")))
            );
        }
        let mut resized = signal(SignalKind::window_change())
            .map_err(|e| Failure::io("cannot listen for signals", &e))?;
        let socket = client.socket(&path).await?;
        let (mut to, mut from) = socket.split();
        let raw = Raw::enter()?;
        let mut typed = keys();
        let mut stdout = tokio::io::stdout();
        let gone = || Failure::new(Code::Unavailable, "the terminal of the sandbox went away");
        let end = loop {
            tokio::select! {
                message = from.next() => match message {
                    // A terminal that is gone takes no output; what runs in it is told by its own.
                    Some(Ok(Message::Binary(bytes))) => drop(pass_on(&mut stdout, &bytes).await),
                    Some(Ok(Message::Text(text))) => {
                        let told: Value = serde_json::from_str(&text).unwrap_or_default();
                        if told.get("ended").is_some() {
                            break told["ended"].clone();
                        }
                    }
                    Some(Ok(Message::Close(why))) => {
                        let why = why.map(|why| why.reason.to_string());
                        return Err(gone().detail(why.unwrap_or_default()));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(gone().detail(error)),
                    None => return Err(gone()),
                },
                Some(bytes) = typed.recv() => {
                    to.send(Message::Binary(bytes)).await.map_err(|e| gone().detail(e))?;
                }
                Some(()) = resized.recv() => {
                    let now = size();
                    let told = json!({"resize": {"rows": now.rows, "cols": now.cols}});
                    let told = Message::Text(told.to_string().into());
                    to.send(told).await.map_err(|e| gone().detail(e))?;
                }
            }
        };
        drop(raw);
        explain(&end);
        Ok(status(&end))
    }
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
