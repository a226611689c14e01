//! Where values come from: flags, then the environment, then the file, then the default.

use super::args::Flags;
use super::declare::Setting;
use super::file::File;
use super::table::SETTINGS;
use super::value::Value;
use crate::settings::Environment;
use ringfence_core::Failure;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub(crate) enum Source {
    Flag { name: String },
    Env { name: String },
    File { path: PathBuf, line: usize },
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag { name } => write!(f, "--{name}"),
            Self::Env { name } => f.write_str(name),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A setting with its value, for people and machines.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub setting: &'static Setting,
    pub text: String,
    pub json: serde_json::Value,
    pub toml: String,
    pub expects: String,
    pub source: Source,
}

/// What a value must be beyond its type.
pub(super) struct Rule<T> {
    expects: String,
    holds: Box<dyn Fn(&T) -> bool>,
}

impl<T: Value> Rule<T> {
    pub(super) fn any() -> Self {
        Self {
            expects: T::expects(),
            holds: Box::new(|_| true),
        }
    }

    pub(super) fn within(self, range: &RangeInclusive<T>) -> Self
    where
        T: PartialOrd + Clone + 'static,
    {
        let range = range.clone();
        Self {
            expects: format!(
                "{} from {} to {}",
                T::expects(),
                range.start().text(),
                range.end().text()
            ),
            holds: Box::new(move |value| range.contains(value)),
        }
    }

    pub(super) fn check(self, holds: impl Fn(&T) -> bool + 'static, expects: &str) -> Self {
        Self {
            expects: expects.to_owned(),
            holds: Box::new(holds),
        }
    }
}

/// A value that was found, or what stood in its place.
type Found<T> = Result<(T, Source), (String, Source)>;

/// All that can be asked for a value.
pub(super) struct Sources<'a> {
    pub(super) flags: &'a Flags,
    pub(super) environment: &'a Environment,
    pub(super) file: Option<&'a File>,
    pub(super) shown: Vec<Shown>,
}

impl Sources<'_> {
    /// The value of the setting whose turn it is.
    pub(super) fn next<T: Value>(&mut self, default: T, rule: Rule<T>) -> Result<T, Failure> {
        let setting = &SETTINGS[self.shown.len()];
        let found: Found<T> = self
            .flag(setting)
            .or_else(|| self.env(setting))
            .or_else(|| self.file(setting))
            .unwrap_or(Ok((default, Source::Default)));
        let refused = |written: &str, source: &Source| {
            Failure::invalid(format!(
                "cannot set {} from {source}: `{written}` is not {}",
                setting.key, rule.expects
            ))
        };
        let (value, source) = found.map_err(|(written, source)| refused(&written, &source))?;
        if !(rule.holds)(&value) {
            return Err(refused(&value.text(), &source));
        }
        self.shown.push(Shown {
            setting,
            text: value.text(),
            json: value.json(),
            toml: value.toml(),
            expects: rule.expects,
            source,
        });
        Ok(value)
    }

    /// Keys of what was not left to its default.
    pub(super) fn set(&self) -> BTreeSet<&'static str> {
        let set = self.shown.iter().filter(|s| s.source != Source::Default);
        set.map(|shown| shown.setting.key).collect()
    }

    fn flag<T: Value>(&self, setting: &Setting) -> Option<Found<T>> {
        let given = self.flags.get(setting.key)?;
        let source = Source::Flag {
            name: given.flag.to_owned(),
        };
        let value = T::from_flag(&given.values);
        Some(match value {
            Some(value) => Ok((value, source)),
            None => Err((given.values.join(", "), source)),
        })
    }

    /// Our own name goes before that of a contract.
    fn env<T: Value>(&self, setting: &Setting) -> Option<Found<T>> {
        let alias = setting.alias.as_ref();
        let names = [(setting.env(), "")]
            .into_iter()
            .chain(alias.map(|alias| (alias.name.to_owned(), alias.unit)));
        for (name, unit) in names {
            let Some(text) = self.environment.get(&name) else {
                continue;
            };
            let source = Source::Env { name };
            let value = text.to_str().map(|text| format!("{text}{unit}"));
            return Some(match value.and_then(|text| T::from_text(&text)) {
                Some(value) => Ok((value, source)),
                None => Err((text.to_string_lossy().into_owned(), source)),
            });
        }
        None
    }

    fn file<T: Value>(&self, setting: &Setting) -> Option<Found<T>> {
        let file = self.file?;
        let entry = file.entries.get(setting.key)?;
        let source = Source::File {
            path: file.path.clone(),
            line: entry.line,
        };
        Some(match T::from_toml(&entry.value) {
            Some(value) => Ok((value, source)),
            None => Err((entry.written.clone(), source)),
        })
    }
}
