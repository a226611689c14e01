//! The TOML file: its values, each with the line that it stands on.

use super::nearest;
use super::settings_of;
use ringfence_core::Failure;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// No file of settings is longer; one that is was named by mistake.
const LONGEST: u64 = 1 << 20;

/// A value of the file, as far as settings can be one.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Toml {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    List(Vec<Toml>),
    /// A date, a table, or a number that is too large.
    Other,
}

impl Toml {
    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

impl From<&DeValue<'_>> for Toml {
    fn from(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Self::Text(text.to_string()),
            DeValue::Boolean(value) => Self::Bool(*value),
            DeValue::Integer(number) => {
                let read = i64::from_str_radix(number.as_str(), number.radix());
                read.map_or(Self::Other, Self::Integer)
            }
            DeValue::Float(number) => number.as_str().parse().map_or(Self::Other, Self::Float),
            DeValue::Array(items) => {
                Self::List(items.iter().map(|item| item.get_ref().into()).collect())
            }
            DeValue::Datetime(_) | DeValue::Table(_) => Self::Other,
        }
    }
}

/// A value, where it stands, and how.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) value: Toml,
    pub(super) line: usize,
    pub(super) written: String,
}

/// The settings of a file, by their keys, all of them known.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) entries: BTreeMap<String, Entry>,
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        use std::io::Read as _;
        let what = || format!("cannot read the settings in {}", path.display());
        let mut bytes = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut bytes))
            .map_err(|e| Failure::io(what(), &e))?;
        if bytes.len() as u64 > LONGEST {
            return Err(Failure::invalid(format!("{}: it is over 1 MiB", what())));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| Failure::invalid(format!("{}: it is not UTF-8", what())))?;
        Self::parse(path, &text)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let document = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_at(text, span.start));
            let message = error.message().replace('\n', ", ");
            Failure::invalid(format!(
                "cannot read the settings in {}:{line}: {message}",
                path.display()
            ))
            .hint("`ringfence config example` prints a file with every setting")
        })?;
        let mut reader = Reader {
            path,
            text,
            entries: BTreeMap::new(),
        };
        reader.table(document.get_ref(), "")?;
        Ok(Self {
            path: path.to_owned(),
            entries: reader.entries,
        })
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    entries: BTreeMap<String, Entry>,
}

impl Reader<'_> {
    fn table(&mut self, table: &DeTable<'_>, group: &str) -> Result<(), Failure> {
        for (name, value) in table {
            let line = line_at(self.text, name.span().start);
            let name: &str = name.get_ref();
            let key = match group {
                "" => name.to_owned(),
                group => format!("{group}.{name}"),
            };
            let is_setting = settings_of(group).any(|setting| setting.key == key);
            let is_group = group.is_empty() && settings_of(name).next().is_some();
            match value.get_ref() {
                DeValue::Table(below) if is_group => self.table(below, name)?,
                _ if is_group => return Err(self.not_a_table(name, line)),
                _ if !is_setting => return Err(self.unknown(group, &key, line)),
                other => {
                    let written = self.text.get(value.span()).unwrap_or_default();
                    let entry = Entry {
                        value: other.into(),
                        line,
                        written: written.to_owned(),
                    };
                    self.entries.insert(key, entry);
                }
            }
        }
        Ok(())
    }

    fn not_a_table(&self, name: &str, line: usize) -> Failure {
        Failure::invalid(format!(
            "cannot use `{name}` in {}:{line}: it is a table, not a value",
            self.path.display()
        ))
        .hint(format!("write [{name}], and its settings below"))
    }

    fn unknown(&self, group: &str, key: &str, line: usize) -> Failure {
        let failure = Failure::invalid(format!(
            "there is no setting `{key}`, as in {}:{line}",
            self.path.display()
        ));
        match meant(group, key) {
            Some(meant) => failure.hint(format!("did you mean `{meant}`?")),
            None => failure.hint("`ringfence config example` prints every setting"),
        }
    }
}

/// The setting or table that an unknown key may stand for.
fn meant(group: &str, key: &str) -> Option<&'static str> {
    // As the flag is called.
    let by_flag = |setting: &&super::Setting| key.replace('_', "-") == setting.flag;
    if let Some(setting) = super::SETTINGS.iter().find(by_flag) {
        return Some(setting.key);
    }
    let keys = || super::SETTINGS.iter().map(|setting| setting.key);
    let name = name_of(key);
    let here = || settings_of(group).map(|setting| setting.key);
    let tables = super::GROUPS.iter().map(|group| group.name);
    let names = here()
        .map(name_of)
        .chain(tables.filter(|_| group.is_empty()));
    if let Some(near) = nearest(name, names) {
        return here().find(|key| name_of(key) == near).or(Some(near));
    }
    // The right name in the wrong table is a slip too, where one table alone has it.
    let mut same = keys().filter(|known| name_of(known) == name);
    let elsewhere = same.next().filter(|_| same.next().is_none());
    elsewhere.or_else(|| nearest(key, keys()).filter(|_| group.is_empty()))
}

/// A key without its table.
fn name_of(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// Lines count from 1.
fn line_at(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().get(..offset).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}
