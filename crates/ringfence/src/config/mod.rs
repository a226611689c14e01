//! What `ringfence serve` can be told, and by whom: flags, then the environment, then one TOML
//! file, then defaults. [`table`] is the list; everything else reads it.

mod args;
mod declare;
mod file;
mod sources;
mod table;
#[cfg(test)]
mod tests;
mod types;
mod value;

pub(crate) use args::ConfigArgs;
pub(crate) use declare::Setting;
pub(crate) use ringfence_core::near::nearest;
pub(crate) use sources::{Shown, Source};
#[allow(unused_imports, reason = "for the server, which takes what it needs")]
pub(crate) use table::{Audit, Hastekit, Http, Limits, Log, Mcp, Otlp, Policy, Sandbox, Sessions};
pub(crate) use table::{Config, GROUPS, SETTINGS};
#[allow(unused_imports, reason = "for the server, which takes what it needs")]
pub(crate) use types::{
    AllowedMount, Auth, BackendChoice, CallbackRule, Danger, Endpoint, Listen, LogFormat, LogLevel,
    ReachChoice, SandboxesChoice, WorkspaceChoice,
};

#[cfg(test)]
pub(crate) use value::Value;

use crate::settings::{self, Environment};
use ringfence_core::{Code, Failure};
use std::path::PathBuf;
use std::time::Duration;

/// What all names of ours in the environment start with.
const OURS: &str = "RINGFENCE_";

/// With this those of the otari contract.
const CONTRACT: &str = "SANDBOX_";

/// The configuration, and how it came about.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub config: Config,
    /// Every setting, in the order of the table.
    pub shown: Vec<Shown>,
    /// The file that was read.
    pub file: Option<PathBuf>,
    /// What looks like a mistake and is none for sure; a line each.
    pub warnings: Vec<String>,
}

impl ConfigArgs {
    /// The configuration that these flags, our environment and the file make.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        self.load_in(&settings::environment())
    }

    fn load_in(&self, environment: &Environment) -> Result<Loaded, Failure> {
        let file = self.file(environment)?;
        let mut sources = sources::Sources {
            flags: &self.flags,
            environment,
            file: file.as_ref(),
            shown: Vec::new(),
        };
        let config = Config::fill(&mut sources)?;
        Ok(Loaded {
            config,
            shown: sources.shown,
            file: file.map(|file| file.path),
            warnings: unknown_names(environment),
        })
    }

    /// A file that is named must be there; the usual one may be.
    fn file(&self, environment: &Environment) -> Result<Option<file::File>, Failure> {
        let named = environment.get(settings::CONFIG.name).map(PathBuf::from);
        let Some(path) = self.file.clone().or(named) else {
            let usual = settings::usual_config_file();
            return match file::File::read(&usual) {
                Err(failure) if failure.code == Code::NotFound => Ok(None),
                read => read.map(Some),
            };
        };
        // What is shown of it must mean the same elsewhere.
        let path = std::path::absolute(&path)
            .map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))?;
        file::File::read(&path).map(Some)
    }
}

/// A time as people write it: `30`, `30s`, `5m`, `1.5h`.
pub(crate) fn time(text: &str) -> Option<Duration> {
    value::Value::from_text(text)
}

/// Every setting with its default.
pub(crate) fn defaults() -> Vec<Shown> {
    let mut sources = sources::Sources {
        flags: &args::Flags::new(),
        environment: &Environment::default(),
        file: None,
        shown: Vec::new(),
    };
    // Every default is within its own range: a test holds that.
    let _ = Config::fill(&mut sources);
    sources.shown
}

/// The settings of a table of the file; those at its top for the empty name.
fn settings_of(group: &str) -> impl Iterator<Item = &'static Setting> {
    SETTINGS
        .iter()
        .filter(move |setting| setting.group == group)
}

/// Names that start like ours, or nearly are one of the contract, and are none. A later version
/// may know them, so they are no failure.
fn unknown_names(environment: &Environment) -> Vec<String> {
    let ours: Vec<String> = SETTINGS.iter().map(Setting::env).collect();
    let aliases = SETTINGS.iter().filter_map(|setting| setting.alias.as_ref());
    let known: Vec<&str> = (settings::ALL.iter().map(|variable| variable.name))
        .chain(ours.iter().map(String::as_str))
        .chain(aliases.map(|alias| alias.name))
        .collect();
    let unknown = |name: &str| {
        let prefix = [OURS, CONTRACT].into_iter().find(|p| name.starts_with(p))?;
        if known.contains(&name) {
            return None;
        }
        // What all of them start with says nothing about which was meant.
        let ends = known.iter().filter_map(|known| known.strip_prefix(prefix));
        let unknown = format!("the environment variable {name} means nothing");
        match nearest(name.strip_prefix(prefix)?, ends) {
            Some(meant) => Some(format!("{unknown}: did you mean {prefix}{meant}?")),
            // Others have such names too.
            None => (prefix == OURS).then_some(unknown),
        }
    };
    environment.names().filter_map(unknown).collect()
}
