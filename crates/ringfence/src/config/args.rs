//! The flags: one for each setting, made from the table.

use super::table::{GROUPS, SETTINGS};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What flags were given, by the key of their setting.
pub(crate) type Flags = BTreeMap<&'static str, Given>;

/// A flag as it was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    pub flag: &'static str,
    /// More than one where the setting is a list.
    pub values: Vec<String>,
}

/// The flags of every setting, and of the file: to be flattened into a verb.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigArgs {
    pub file: Option<PathBuf>,
    pub flags: Flags,
}

impl ConfigArgs {
    /// As if the flag of this setting had been given.
    pub(crate) fn set(&mut self, key: &str, value: &str) {
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == key) {
            let values = vec![value.to_owned()];
            let flag = setting.flag;
            self.flags.insert(setting.key, Given { flag, values });
        }
    }
}

const FILE: &str = "config";

/// Made only when the verb is asked for: other verbs start sooner without them.
fn arguments(mut command: Command) -> Command {
    command = command.arg(
        Arg::new(FILE)
            .long(FILE)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help(
                "A file of settings; without one, /etc/ringfence/config.toml for root, else \
                 ringfence/config.toml below XDG_CONFIG_HOME, if it is there",
            ),
    );
    for shown in super::defaults() {
        let setting = shown.setting;
        let default = setting.shown.unwrap_or(&shown.text).replace('`', "");
        let mut argument = Arg::new(setting.key)
            .long(setting.flag)
            .action(ArgAction::Append)
            .allow_negative_numbers(true)
            .help(format!("{} [default: {default}]", setting.meaning));
        if setting.placeholder.is_empty() {
            // `--keep` alone is yes; `--keep=false` takes back what the file says.
            argument = argument
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .help(setting.meaning);
        } else {
            argument = argument.value_name(setting.placeholder);
        }
        if !setting.group.is_empty() {
            let group = GROUPS.iter().find(|group| group.name == setting.group);
            // The first page of the help is for what nearly everybody wants.
            argument = argument
                .help_heading(group.map(|group| group.meaning))
                .hide_short_help(true);
        }
        command = command.arg(argument);
        if let Some(short) = &setting.shorthand {
            command = command.arg(
                Arg::new(short.flag)
                    .long(short.flag)
                    .action(ArgAction::SetTrue)
                    .conflicts_with(setting.key)
                    .help(format!("The same as --{} {}", setting.flag, short.value)),
            );
        }
    }
    command
}

impl clap::Args for ConfigArgs {
    fn augment_args(command: Command) -> Command {
        command.defer(arguments)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConfigArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Self {
            file: matches.get_one::<PathBuf>(FILE).cloned(),
            flags: Flags::new(),
        };
        for setting in SETTINGS {
            if let Some(values) = matches.get_many::<String>(setting.key) {
                let values = values.cloned().collect();
                let flag = setting.flag;
                given.flags.insert(setting.key, Given { flag, values });
            }
            if let Some(short) = &setting.shorthand
                && matches.get_flag(short.flag)
            {
                let values = vec![short.value.to_owned()];
                let flag = short.flag;
                given.flags.insert(setting.key, Given { flag, values });
            }
        }
        Ok(given)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
