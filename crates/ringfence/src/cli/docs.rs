//! `docs/cli.md`, `docs/config.md` and `docs/env.md`, made from the command line and the settings
//! themselves.

use crate::config::{GROUPS, Shown, defaults};
use crate::settings;
use ringfence_core::Code;
use std::fmt::Write as _;
use std::path::Path;

const MADE: &str = "<!-- Generated: UPDATE_DOCS=1 cargo nextest run -p ringfence docs -->\n";

fn cli() -> String {
    let mut text = format!("{MADE}\n# The command line\n");
    let mut command = super::command()
        .term_width(100)
        .disable_help_subcommand(true);
    command.build();
    describe(&mut text, &mut command, "ringfence");
    text.push_str(
        "\n## Exit status\n\n\
         `ringfence run` exits with the status of the code. When the code did not end by itself:\n\n\
         | status | meaning |\n|---|---|\n\
         | 124 | it ran out of time |\n\
         | 137 | it ran out of memory |\n\
         | 128 + N | signal N ended it, or Ringfence: 130 is Ctrl-C, 143 is SIGTERM |\n\n\
         When Ringfence itself failed, as every verb can:\n\n\
         | status | failures |\n|---|---|\n",
    );
    let mut statuses: Vec<u8> = Code::ALL.iter().map(|code| code.exit_status()).collect();
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        let names: Vec<_> = Code::ALL
            .iter()
            .filter(|code| code.exit_status() == status)
            .map(|code| format!("`{}`", code.name()))
            .collect();
        let _ = writeln!(text, "| {status} | {} |", names.join(", "));
    }
    text
}

/// The help of a command and of each one below it.
fn describe(text: &mut String, command: &mut clap::Command, name: &str) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _ = write!(
        text,
        "\n## {name}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    );
    for below in command.get_subcommands_mut().filter(|c| !c.is_hide_set()) {
        let name = format!("{name} {}", below.get_name());
        describe(text, below, &name);
    }
}

/// The default as the documentation shows it, which is the same on every machine.
fn default_of(shown: &Shown) -> String {
    match shown.setting.shown {
        Some(words) => words.to_owned(),
        None => format!("`{}`", shown.text),
    }
}

fn config() -> String {
    let mut text = format!(
        "{MADE}\n# Settings of `ringfence serve`\n\n\
         Each can be set by its flag, by its name in the environment, or by its key in a TOML file; \
         a flag goes before the environment, that before the file, and that before the default. \
         `ringfence config show` says which value came from where, `ringfence config example` \
         prints a file with all of them.\n\n\
         The file is the one of `--config` or `RINGFENCE_CONFIG`, else \
         `/etc/ringfence/config.toml` for root and `ringfence/config.toml` below \
         `XDG_CONFIG_HOME` for others, if it is there. An unknown key in it is an error.\n\n\
         - A time is a number of seconds, or a number with `ms`, `s`, `m`, `h` or `d`.\n\
         - A size is a number of bytes, or a number with `k`, `m`, `g` or `t`, in powers of 1024.\n\
         - A list has commas between its items in the environment; its flag is given once for \
         each.\n\
         - `none` takes back what a source further down says, where a value can be absent.\n\
         - A path is absolute, but a flag's can be relative to the working folder.\n"
    );
    let all = defaults();
    for group in GROUPS {
        let title = match group.name {
            "" => group.meaning.to_owned(),
            name => format!("`[{name}]` {}", group.meaning),
        };
        let _ = write!(
            text,
            "\n## {title}\n\n| key | flag | meaning | must be | default |\n|---|---|---|---|---|\n"
        );
        for shown in all.iter().filter(|s| s.setting.group == group.name) {
            let setting = shown.setting;
            let short = setting.shorthand.as_ref();
            let short = short.map_or(String::new(), |s| format!(", `--{}`", s.flag));
            let _ = writeln!(
                text,
                "| `{}` | `--{}`{short} | {} | {} | {} |",
                setting.key,
                setting.flag,
                setting.meaning,
                shown.expects,
                default_of(shown)
            );
        }
    }
    text
}

fn env() -> String {
    let mut text = format!(
        "{MADE}\n# Environment variables\n\nAll are optional. An empty one counts as unset, and so \
         does a folder of the first table that is not an absolute path.\nNone of them is seen inside a sandbox, but for `TERM` with `run --tty`.\n\n\
         | name | meaning | default |\n|---|---|---|\n"
    );
    for variable in settings::ALL {
        let settings::Variable {
            name,
            meaning,
            default,
        } = variable;
        let _ = writeln!(text, "| `{name}` | {meaning} | {default} |");
    }
    text.push_str(
        "\n## Settings of `ringfence serve`\n\n\
         [config.md](config.md) says what each must be. Our own name goes before the other one, \
         which is that of a contract.\n\n\
         | name | other name | key | meaning | default |\n|---|---|---|---|---|\n",
    );
    for shown in defaults() {
        let setting = shown.setting;
        let other = setting
            .alias
            .as_ref()
            .map_or(String::new(), |alias| match alias.unit {
                "m" => format!("`{}`, in MiB", alias.name),
                _ => format!("`{}`", alias.name),
            });
        let _ = writeln!(
            text,
            "| `{}` | {other} | `{}` | {} | {} |",
            setting.env(),
            setting.key,
            setting.meaning,
            default_of(&shown)
        );
    }
    text
}

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name);
    if settings::update_docs() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == text,
        "docs/{name} is stale: UPDATE_DOCS=1 cargo nextest run -p ringfence docs"
    );
}

#[test]
fn docs_of_the_command_line_are_fresh() {
    check("cli.md", &cli());
}

#[test]
fn docs_of_the_settings_are_fresh() {
    check("config.md", &config());
}

#[test]
fn docs_of_the_environment_are_fresh() {
    check("env.md", &env());
}

#[test]
fn docs_of_the_api_are_fresh() {
    check("openapi.json", &crate::http::description());
}

/// Every name that the settings read is in the table.
#[test]
fn docs_name_every_variable_that_is_read() {
    let source = include_str!("../settings.rs");
    let declared = source.matches(": Variable = Variable {").count();
    assert_eq!(declared, settings::ALL.len());
    assert_eq!(
        source.matches("std::env::var(").count(),
        1,
        "read through Variable"
    );
}

#[test]
fn every_verb_has_examples() {
    fn look(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string);
        assert!(
            help.is_some_and(|text| text.starts_with("Examples:")),
            "{}",
            command.get_name()
        );
        let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
        shown.for_each(look);
    }
    look(&super::command());
    super::command().debug_assert();
}

/// The defaults are the plan's; the help only tells them.
#[test]
fn the_help_of_run_tells_the_defaults() {
    let limits = ringfence_core::Limits::default();
    let command = super::command();
    let run = command.find_subcommand("run").unwrap();
    for (name, value) in [
        ("memory", limits.memory.to_string()),
        ("cpus", limits.cpus.to_string()),
        ("pids", limits.pids.to_string()),
        ("workspace_size", limits.workspace.to_string()),
        ("tmp_size", limits.tmp.to_string()),
        ("file_size", limits.file_size.to_string()),
        ("open_files", limits.open_files.to_string()),
        (
            "output",
            ringfence_core::Size(ringfence_core::proto::OUTPUT_LIMIT).to_string(),
        ),
    ] {
        let argument = run.get_arguments().find(|a| a.get_id() == name).unwrap();
        let help = argument.get_help().unwrap().to_string();
        assert!(
            help.ends_with(&format!("[default: {value}]")),
            "{name}: {help}"
        );
    }
}
