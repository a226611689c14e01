//! What a tool takes. Each parameter is declared once; its JSON schema and the check of what a
//! caller sends are both made from that.

use ringfence_proto::Blob;
use serde::Deserialize as _;
use serde_json::{Map, Number, Value, json};
use std::fmt;
use std::time::Duration;

/// Most characters of one argument: the guest reads no longer body.
const TEXT: usize = 8 << 20;

/// The longest that a caller may let something run, in seconds.
const LONGEST: f64 = 86_400.0;

/// One parameter of a tool.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    pub name: &'static str,
    /// Names that other versions of a contract's clients use for it.
    also: &'static [&'static str],
    kind: Kind,
    need: Need,
    about: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Integer {
        least: i64,
        most: i64,
    },
    /// A time in seconds.
    Seconds,
    Flag,
    Choice(&'static [&'static str]),
    /// The first and the last line.
    Lines,
    /// So many strings at most.
    Texts(usize),
    /// A string, or `{"base64": …}`.
    Bytes,
    /// Such by name.
    Files,
    /// Strings by name.
    Variables,
}

#[derive(Debug, Clone, Copy)]
enum Need {
    Required,
    Optional,
    Text(&'static str),
    Integer(i64),
    Flag(bool),
}

/// Which arguments are refused that no parameter has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    Refuse,
    /// As the clients of a contract expect.
    Ignore,
}

impl Param {
    const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self {
            name,
            also: &[],
            kind,
            need: Need::Required,
            about,
        }
    }

    pub(super) const fn text(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::Text, about)
    }

    pub(super) const fn integer(
        name: &'static str,
        (least, most): (i64, i64),
        about: &'static str,
    ) -> Self {
        Self::new(name, Kind::Integer { least, most }, about)
    }

    pub(super) const fn seconds(name: &'static str, default: i64, about: &'static str) -> Self {
        Self::new(name, Kind::Seconds, about).need(Need::Integer(default))
    }

    pub(super) const fn flag(name: &'static str, default: bool, about: &'static str) -> Self {
        Self::new(name, Kind::Flag, about).need(Need::Flag(default))
    }

    pub(super) const fn choice(
        name: &'static str,
        of: &'static [&'static str],
        about: &'static str,
    ) -> Self {
        Self::new(name, Kind::Choice(of), about)
    }

    pub(super) const fn lines(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::Lines, about).optional()
    }

    pub(super) const fn texts(name: &'static str, most: usize, about: &'static str) -> Self {
        Self::new(name, Kind::Texts(most), about).optional()
    }

    pub(super) const fn bytes(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::Bytes, about).optional()
    }

    pub(super) const fn files(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::Files, about).optional()
    }

    pub(super) const fn variables(name: &'static str, about: &'static str) -> Self {
        Self::new(name, Kind::Variables, about).optional()
    }

    const fn need(mut self, need: Need) -> Self {
        self.need = need;
        self
    }

    pub(super) const fn optional(self) -> Self {
        self.need(Need::Optional)
    }

    pub(super) const fn or(self, default: &'static str) -> Self {
        self.need(Need::Text(default))
    }

    pub(super) const fn or_integer(self, default: i64) -> Self {
        self.need(Need::Integer(default))
    }

    pub(super) const fn also(mut self, names: &'static [&'static str]) -> Self {
        self.also = names;
        self
    }

    fn default(&self) -> Option<Value> {
        match self.need {
            Need::Required | Need::Optional => None,
            Need::Text(text) => Some(json!(text)),
            Need::Integer(number) => Some(json!(number)),
            Need::Flag(flag) => Some(json!(flag)),
        }
    }

    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Text => json!({"type": "string"}),
            Kind::Integer { least, most } if most == i64::MAX => {
                json!({"type": "integer", "minimum": least})
            }
            Kind::Integer { least, most } => {
                json!({"type": "integer", "minimum": least, "maximum": most})
            }
            Kind::Seconds => {
                json!({"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST as i64})
            }
            Kind::Flag => json!({"type": "boolean"}),
            Kind::Choice(of) => json!({"type": "string", "enum": of}),
            Kind::Lines => json!({
                "type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2
            }),
            Kind::Texts(most) => {
                json!({"type": "array", "items": {"type": "string"}, "maxItems": most})
            }
            Kind::Bytes => bytes(),
            Kind::Files => json!({"type": "object", "additionalProperties": bytes()}),
            Kind::Variables => {
                json!({"type": "object", "additionalProperties": {"type": "string"}})
            }
        };
        schema["description"] = json!(self.about);
        if let Some(default) = self.default() {
            schema["default"] = default;
        }
        schema
    }

    fn expected(&self) -> String {
        match self.kind {
            Kind::Text => "a string".to_owned(),
            Kind::Integer { least, most } if most == i64::MAX => {
                format!("a whole number of at least {least}")
            }
            Kind::Integer { least, most } => format!("a whole number from {least} to {most}"),
            Kind::Seconds => format!("a number of seconds above 0 and up to {LONGEST}"),
            Kind::Flag => "true or false".to_owned(),
            Kind::Choice(of) => format!("one of {}", of.join(", ")),
            Kind::Lines => "a list of two whole numbers".to_owned(),
            Kind::Texts(most) => format!("a list of up to {most} strings"),
            Kind::Bytes => "a string or {\"base64\": …}".to_owned(),
            Kind::Files => "an object of strings or {\"base64\": …}".to_owned(),
            Kind::Variables => "an object of strings".to_owned(),
        }
    }

    fn fits(&self, value: &Value) -> bool {
        match self.kind {
            Kind::Text => value
                .as_str()
                .is_some_and(|text| text.chars().count() <= TEXT),
            Kind::Integer { least, most } => {
                whole(value).is_some_and(|number| (least..=most).contains(&number))
            }
            Kind::Seconds => value
                .as_f64()
                .is_some_and(|seconds| seconds > 0.0 && seconds <= LONGEST),
            Kind::Flag => value.is_boolean(),
            Kind::Choice(of) => value.as_str().is_some_and(|text| of.contains(&text)),
            Kind::Lines => value
                .as_array()
                .is_some_and(|two| two.len() == 2 && two.iter().all(|n| whole(n).is_some())),
            Kind::Texts(most) => value
                .as_array()
                .is_some_and(|all| all.len() <= most && all.iter().all(Value::is_string)),
            Kind::Bytes => is_bytes(value),
            Kind::Files => value
                .as_object()
                .is_some_and(|all| all.values().all(is_bytes)),
            Kind::Variables => value
                .as_object()
                .is_some_and(|all| all.values().all(Value::is_string)),
        }
    }
}

/// A whole number, also one that was written as `2.0`.
fn whole(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let number = value.as_f64()?;
        (number.fract() == 0.0 && number.abs() < 1e15).then_some(number as i64)
    })
}

/// The schema of a [`Blob`].
fn bytes() -> Value {
    let base64 = json!({"type": "string", "contentEncoding": "base64"});
    json!({"anyOf": [{"type": "string"}, {
        "type": "object",
        "properties": {"base64": base64},
        "required": ["base64"],
        "additionalProperties": false,
    }]})
}

fn is_bytes(value: &Value) -> bool {
    Blob::deserialize(value).is_ok()
}

/// An argument that is wrong: which one, and what is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadArgument {
    pub name: String,
    pub message: String,
    /// `missing`, `value_error` or `extra_forbidden`, as in the lists of a 422.
    pub kind: &'static str,
}

impl BadArgument {
    pub(super) fn value(name: &str, message: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            message: message.into(),
            kind: "value_error",
        }
    }
}

impl fmt::Display for BadArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the argument {} {}", self.name, self.message)
    }
}

/// Arguments that were checked, with defaults where the caller said nothing. A name that is asked
/// for is one of the tool's parameters.
#[derive(Debug, Clone)]
pub struct Args(Map<String, Value>);

impl Args {
    /// Null is as good as absent.
    pub(super) fn check(
        params: &[Param],
        unknown: Unknown,
        mut given: Map<String, Value>,
    ) -> Result<Self, BadArgument> {
        let mut args = Map::new();
        for param in params {
            let names = std::iter::once(&param.name).chain(param.also);
            let mut values = names.filter_map(|name| Some((*name, given.remove(*name)?)));
            let value = values.find(|(_, value)| !value.is_null());
            // The other names of one that was given are used up too.
            let _ = values.count();
            match (value, param.need) {
                (Some((name, value)), _) if !param.fits(&value) => {
                    let message =
                        format!("must be {}, not {}", param.expected(), described(&value));
                    return Err(BadArgument::value(name, message));
                }
                (Some((_, value)), _) => {
                    args.insert(param.name.to_owned(), value);
                }
                (None, Need::Required) => {
                    return Err(BadArgument {
                        name: param.name.to_owned(),
                        message: format!("is missing: it must be {}", param.expected()),
                        kind: "missing",
                    });
                }
                (None, _) => {
                    if let Some(default) = param.default() {
                        args.insert(param.name.to_owned(), default);
                    }
                }
            }
        }
        if unknown == Unknown::Refuse
            && let Some(name) = given.keys().next()
        {
            let known: Vec<_> = params.iter().map(|param| param.name).collect();
            return Err(BadArgument {
                name: name.chars().take(64).collect(),
                message: format!("is not known: there are {}", known.join(", ")),
                kind: "extra_forbidden",
            });
        }
        Ok(Self(args))
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.maybe_text(name).unwrap_or_default()
    }

    pub(super) fn maybe_text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str)
    }

    pub(super) fn integer(&self, name: &str) -> i64 {
        self.maybe_integer(name).unwrap_or_default()
    }

    pub(super) fn maybe_integer(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(whole)
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.0
            .get(name)
            .and_then(Value::as_bool)
            .unwrap_or_default()
    }

    /// A time as it was written.
    pub(super) fn number(&self, name: &str) -> Number {
        match self.0.get(name) {
            Some(Value::Number(number)) => number.clone(),
            _ => Number::from(0),
        }
    }

    pub(super) fn seconds(&self, name: &str) -> Duration {
        let seconds = self.number(name).as_f64().unwrap_or_default();
        Duration::from_secs_f64(seconds.clamp(0.001, LONGEST))
    }

    pub(super) fn lines(&self, name: &str) -> Option<(i64, i64)> {
        match self.0.get(name)?.as_array()?.as_slice() {
            [first, last] => Some((whole(first)?, whole(last)?)),
            _ => None,
        }
    }

    /// All of them.
    pub(super) fn map(&self) -> &Map<String, Value> {
        &self.0
    }
}

/// The kind of a value, in words.
fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.chars().count() <= 40 => format!("{text:?}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The JSON schema of an object with these.
pub(super) fn schema(params: &[Param], unknown: Unknown) -> Value {
    let properties: Map<String, Value> = params
        .iter()
        .map(|param| (param.name.to_owned(), param.schema()))
        .collect();
    let required: Vec<_> = params
        .iter()
        .filter(|param| matches!(param.need, Need::Required))
        .map(|param| param.name)
        .collect();
    let mut schema = json!({"type": "object", "properties": properties, "required": required});
    if unknown == Unknown::Refuse {
        schema["additionalProperties"] = json!(false);
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: &[Param] = &[
        Param::text("file_path", "A file.").also(&["path"]),
        Param::integer("limit", (1, 10), "Lines.").or_integer(5),
        Param::seconds("timeout", 5, "Time."),
        Param::choice("mode", &["a", "b"], "Which.").or("a"),
        Param::flag("all", false, "All of them."),
        Param::lines("range", "Lines."),
        Param::text("stdin", "Input.").optional(),
        Param::texts("words", 2, "Words."),
        Param::files("files", "Files."),
        Param::variables("env", "Variables."),
    ];

    fn check(given: Value) -> Result<Args, BadArgument> {
        let Value::Object(given) = given else {
            unreachable!("tests give objects")
        };
        Args::check(PARAMS, Unknown::Refuse, given)
    }

    #[test]
    fn defaults_and_other_names_are_filled_in() {
        let args = check(json!({"path": "a", "stdin": null})).unwrap();
        assert_eq!(args.text("file_path"), "a");
        assert_eq!(args.integer("limit"), 5);
        assert_eq!(args.seconds("timeout"), Duration::from_secs(5));
        assert_eq!(args.text("mode"), "a");
        assert!(!args.flag("all"));
        assert_eq!(args.maybe_text("stdin"), None);
        let args = check(json!({"file_path": "a", "range": [1, -1], "limit": 2.0})).unwrap();
        assert_eq!(args.lines("range"), Some((1, -1)));
        assert_eq!(args.integer("limit"), 2);
    }

    #[test]
    fn what_is_wrong_names_the_argument_and_the_type() {
        for (given, said) in [
            (
                json!({}),
                "the argument file_path is missing: it must be a string",
            ),
            (
                json!({"path": 1}),
                "the argument path must be a string, not 1",
            ),
            (
                json!({"path": "a", "limit": 11}),
                "the argument limit must be a whole number from 1 to 10, not 11",
            ),
            (
                json!({"path": "a", "timeout": "soon"}),
                "the argument timeout must be a number of seconds above 0 and up to 86400, not \"soon\"",
            ),
            (
                json!({"path": "a", "mode": "c"}),
                "the argument mode must be one of a, b, not \"c\"",
            ),
            (
                json!({"path": "a", "all": {}}),
                "the argument all must be true or false, not an object",
            ),
            (
                json!({"path": "a", "range": [1]}),
                "the argument range must be a list of two whole numbers, not a list",
            ),
            (
                json!({"path": "a", "nope": 1}),
                "the argument nope is not known: there are file_path, limit, timeout, mode, all, range, stdin, words, files, env",
            ),
            (
                json!({"path": "a", "words": ["a", 1]}),
                "the argument words must be a list of up to 2 strings, not a list",
            ),
            (
                json!({"path": "a", "files": {"x": {"base64": "?"}}}),
                "the argument files must be an object of strings or {\"base64\": …}, not an object",
            ),
            (
                json!({"path": "a", "env": {"A": 1}}),
                "the argument env must be an object of strings, not an object",
            ),
        ] {
            assert_eq!(check(given).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn the_schema_says_the_same() {
        let schema = schema(PARAMS, Unknown::Refuse);
        assert_eq!(schema["required"], json!(["file_path"]));
        assert_eq!(schema["additionalProperties"], json!(false));
        assert_eq!(
            schema["properties"]["limit"],
            json!({"type": "integer", "minimum": 1, "maximum": 10, "default": 5, "description": "Lines."})
        );
    }
}
