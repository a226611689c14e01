//! `ringfence key`: who may call the server.

use super::env::ago;
use crate::config::{self, ConfigArgs};
use crate::keys::{self, Key as Known, Keys, NewKey, Scope};
use clap::{Args, Subcommand};
use ringfence_core::{Failure, Size};
use serde::Serialize;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ringfence key add ci
  KEY=$(ringfence key add laptop --scope admin --expires 30d)
  ringfence key ls
  ringfence key rm ci

A running server sees a change within a second.";

/// Makes and removes keys for callers of `serve`
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Key {
    #[command(subcommand)]
    verb: Verb,

    /// A file of settings, as of `serve`: it may name the state folder
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server")]
    config: Option<PathBuf>,

    /// The state folder of the server
    #[arg(long, value_name = "FOLDER", global = true, help_heading = "Server")]
    state_dir: Option<String>,
}

#[derive(Subcommand)]
enum Verb {
    Add(Add),
    Ls(Ls),
    Rm(Rm),
}

/// Makes a key and prints it, for the only time
///
/// Only its hash is kept. Standard output has the key and nothing else.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ringfence key add ci
  ringfence key add agents --max-sessions 20 --max-memory 16g --rate 50
  ringfence key add dashboard --scope read --expires 90d --json")]
struct Add {
    /// 1 to 64 letters, digits, `.`, `_` and `-`
    name: String,

    /// What it allows
    #[arg(long, value_enum, default_value_t = Scope::Use)]
    scope: Scope,

    /// Sessions at one time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    max_sessions: Option<u64>,

    /// Sum of the memory limits of its sessions
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    max_memory: Option<Size>,

    /// Requests in a second
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,

    /// Time after which it opens nothing, such as 12h or 90d
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    expires: Option<Duration>,

    /// Prints the new key as one JSON object
    #[arg(long)]
    json: bool,
}

/// Lists the keys, without what opens
#[derive(Args)]
#[command(after_help = "Examples:\n  ringfence key ls\n  ringfence key ls --json")]
struct Ls {
    /// Prints a JSON list
    #[arg(long)]
    json: bool,
}

/// Removes a key: from then on it opens nothing
#[derive(Args)]
#[command(after_help = "Examples:\n  ringfence key rm ci")]
struct Rm {
    name: String,
}

fn memory(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match size >= Size(16 << 20) {
        true => Ok(size),
        false => Err("less than the 16 MiB that one session needs".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.001..=1e6).contains(&number) => Ok(number),
        _ => Err("not a number from 0.001 to 1000000".to_owned()),
    }
}

fn expiry(text: &str) -> Result<Duration, String> {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
    config::time(text)
        .filter(|time| (Duration::from_secs(1)..=LONGEST).contains(time))
        .ok_or_else(|| "not a time from 1s to 36500d, such as 12h or 90d".to_owned())
}

/// A key for machines: all but its hash.
#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    scope: Scope,
    created: u64,
    expires: Option<u64>,
    expired: bool,
    max_sessions: Option<u64>,
    max_memory: Option<Size>,
    rate: Option<f64>,
}

impl<'a> Entry<'a> {
    fn of(known: &'a Known, key: Option<&'a str>) -> Self {
        Self {
            name: &known.name,
            key,
            scope: known.scope,
            created: known.created,
            expires: known.expires,
            expired: known.is_expired(),
            max_sessions: known.max_sessions,
            max_memory: known.max_memory,
            rate: known.rate,
        }
    }
}

impl Key {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        let state = self.state()?;
        match self.verb {
            Verb::Add(add) => add.main(&state)?,
            Verb::Ls(ls) => ls.main(&state)?,
            Verb::Rm(rm) => {
                keys::remove(&state, &rm.name)?;
                super::say(format_args!("removed key `{}`", rm.name));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The state folder that a server would have, from all that would be asked for it.
    fn state(&self) -> Result<PathBuf, Failure> {
        let mut args = ConfigArgs {
            file: self.config.clone(),
            ..ConfigArgs::default()
        };
        if let Some(folder) = &self.state_dir {
            args.set("state_dir", folder);
        }
        let loaded = args.load()?;
        super::config::warn(&loaded);
        Ok(loaded.config.state_dir)
    }
}

impl Add {
    fn main(self, state: &std::path::Path) -> Result<(), Failure> {
        let new = NewKey {
            name: self.name,
            scope: self.scope,
            expires: self.expires.map(|time| keys::now() + time.as_secs()),
            max_sessions: self.max_sessions,
            max_memory: self.max_memory,
            rate: self.rate,
        };
        let (secret, known) = keys::add(state, new)?;
        if self.json {
            return super::say_json(&Entry::of(&known, Some(&secret)));
        }
        super::say(secret);
        let _ = writeln!(
            anstream::stderr().lock(),
            "this is the only time that the key `{}` is shown; callers send it as \
             `Authorization: Bearer KEY`",
            known.name
        );
        Ok(())
    }
}

impl Ls {
    fn main(self, state: &std::path::Path) -> Result<(), Failure> {
        let keys = Keys::load(&keys::path(state))?;
        if self.json {
            let entries: Vec<Entry<'_>> = keys.iter().map(|key| Entry::of(key, None)).collect();
            return super::say_json(&entries);
        }
        let width = keys.iter().map(|key| key.name.len()).max().unwrap_or(0);
        for key in keys.iter() {
            let line = format!(
                "{:<width$}  {:<5}  made {:<15}  {:<18}  {}",
                key.name,
                key.scope,
                ago(key.created),
                until(key),
                limits(key)
            );
            super::say(line.trim_end());
        }
        if keys.iter().next().is_none() {
            super::say("there are no keys; `ringfence key add NAME` makes one");
        }
        Ok(())
    }
}

fn until(key: &Known) -> String {
    let Some(expires) = key.expires else {
        return "does not expire".to_owned();
    };
    match expires.saturating_sub(keys::now()) {
        0 => "expired".to_owned(),
        left @ 1..120 => format!("for {left} seconds"),
        left @ 120..7200 => format!("for {} minutes", left / 60),
        left @ 7200..172_800 => format!("for {} hours", left / 3600),
        left => format!("for {} days", left / 86_400),
    }
}

fn limits(key: &Known) -> String {
    let limits = [
        key.max_sessions.map(|n| format!("{n} sessions")),
        key.max_memory.map(|size| format!("{size} of memory")),
        key.rate.map(|n| format!("{n} requests/s")),
    ];
    limits.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
