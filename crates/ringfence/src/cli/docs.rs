//! `docs/cli.md` and `docs/env.md`, made from the command line and the settings themselves.

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

fn env() -> String {
    let mut text = format!(
        "{MADE}\n# Environment variables\n\nAll are optional. An empty one counts as unset, and so \
         does a folder that is not an absolute path.\nNone of them is seen inside a sandbox, but for `TERM` with `run --tty`.\n\n\
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
fn docs_of_the_environment_are_fresh() {
    check("env.md", &env());
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
