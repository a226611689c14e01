//! `ringfence config`: what a server would be told, and by whom.

use crate::config::{ConfigArgs, GROUPS, Loaded, Shown, Source, defaults};
use clap::{Args, Subcommand};
use ringfence_core::Failure;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  ringfence config show
  ringfence config example > config.toml

A flag goes before the environment, that before the file, and that before the default. Every
setting is in docs/config.md.";

/// Shows the settings of `serve` and where each came from
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Config {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Show(Box<Show>),
    Example(Example),
}

/// Shows every setting, its value, and where that came from
///
/// Takes the flags of `serve`, and fails where `serve` would.
#[derive(Args)]
#[command(after_help = "\
Examples:
  ringfence config show
  ringfence config show --json
  ringfence config show --config ./config.toml --idle-timeout 5m
  RINGFENCE_LIMITS_MEMORY=2g ringfence config show")]
struct Show {
    /// Prints one JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    config: ConfigArgs,
}

/// Prints a file with every setting and its default, all commented out
#[derive(Args)]
#[command(after_help = "\
Examples:
  ringfence config example > /etc/ringfence/config.toml
  ringfence config example | less")]
struct Example {}

#[derive(Serialize)]
struct Report<'a> {
    file: Option<&'a Path>,
    settings: Vec<Row<'a>>,
    warnings: &'a [String],
}

#[derive(Serialize)]
struct Row<'a> {
    key: &'a str,
    value: &'a serde_json::Value,
    source: &'a Source,
}

impl Config {
    pub(crate) fn main(self) -> Result<ExitCode, Failure> {
        match self.verb {
            Verb::Show(show) => show.main()?,
            Verb::Example(_) => super::pass(example().as_bytes()),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Show {
    fn main(self) -> Result<(), Failure> {
        let loaded = self.config.load()?;
        if self.json {
            let rows = loaded.shown.iter().map(|shown| Row {
                key: shown.setting.key,
                value: &shown.json,
                source: &shown.source,
            });
            return super::say_json(&Report {
                file: loaded.file.as_deref(),
                settings: rows.collect(),
                warnings: &loaded.warnings,
            });
        }
        warn(&loaded);
        let width = |text: fn(&Shown) -> &str, most: usize| {
            let widths = loaded.shown.iter().map(|shown| text(shown).chars().count());
            widths.filter(|width| *width <= most).max().unwrap_or(0)
        };
        let keys = width(|shown| shown.setting.key, 40);
        // One long value must not push all sources out of sight.
        let values = width(|shown| &shown.text, 32);
        for shown in &loaded.shown {
            let (key, value, source) = (shown.setting.key, &shown.text, &shown.source);
            let (start, end) = match source {
                Source::Default => ("\x1b[2m", "\x1b[0m"),
                _ => ("", ""),
            };
            super::say(format_args!(
                "{start}{key:<keys$}  {value:<values$}  {source}{end}"
            ));
        }
        match &loaded.file {
            Some(file) => super::say(format_args!("\nread {}", file.display())),
            None => super::say("\nno file was read"),
        }
        Ok(())
    }
}

/// Tells what looks like a mistake.
pub(super) fn warn(loaded: &Loaded) {
    let mut stderr = anstream::stderr().lock();
    for warning in &loaded.warnings {
        let _ = writeln!(stderr, "\x1b[1;33mwarning:\x1b[0m {warning}");
    }
}

/// Words after `# ` explain; taking away a bare `#` makes a line a setting.
fn example() -> String {
    let mut text = "\
# Settings of `ringfence serve`. All are optional, and these are the defaults.
# Flags and the environment go before them: `ringfence config show` says what came from where.
"
    .to_owned();
    let all = defaults();
    for group in GROUPS {
        let _ = write!(text, "\n# {}\n", group.meaning);
        if !group.name.is_empty() {
            let _ = writeln!(text, "[{}]", group.name);
        }
        for shown in all.iter().filter(|s| s.setting.group == group.name) {
            let name = shown.setting.key.rsplit('.').next().unwrap_or_default();
            let _ = writeln!(
                text,
                "# {} ({})\n#{name} = {}",
                shown.setting.meaning, shown.expects, shown.toml
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the example says is what happens without it.
    #[test]
    fn the_example_is_the_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let active: Vec<String> = example()
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(setting) if !setting.starts_with(' ') => setting.to_owned(),
                _ => line.to_owned(),
            })
            .collect();
        std::fs::write(&path, active.join("\n")).unwrap();
        let args = ConfigArgs {
            file: Some(path),
            ..ConfigArgs::default()
        };
        let loaded = args.load().unwrap();
        for (shown, default) in loaded.shown.iter().zip(defaults()) {
            assert!(matches!(shown.source, Source::File { .. }), "{shown:?}");
            assert_eq!(shown.json, default.json, "{shown:?}");
        }
    }

    #[test]
    fn the_example_can_be_used_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, example()).unwrap();
        let args = ConfigArgs {
            file: Some(path),
            ..ConfigArgs::default()
        };
        let loaded = args.load().unwrap();
        assert!(loaded.shown.iter().all(|s| s.source == Source::Default));
    }
}
