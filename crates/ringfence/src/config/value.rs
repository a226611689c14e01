//! The kinds of values that settings have: how each is read and shown.

use super::file::Toml;
use ringfence_core::Size;
use serde_json::{Value as Json, json};
use std::path::PathBuf;
use std::time::Duration;

/// A value as people write it. What it shows can be read again.
pub(crate) trait Value: Sized {
    /// What a value must be, with its article.
    fn expects() -> String;

    /// From the environment.
    fn from_text(text: &str) -> Option<Self>;

    /// From a flag; lists give it once for each time that the flag stood there.
    fn from_flag(given: &[String]) -> Option<Self> {
        Self::from_text(given.last()?)
    }

    /// From the file, whose values have types of their own.
    fn from_toml(value: &Toml) -> Option<Self> {
        Self::from_text(value.text()?)
    }

    fn text(&self) -> String;

    fn json(&self) -> Json {
        json!(self.text())
    }

    /// As it stands in the file.
    fn toml(&self) -> String {
        quoted(&self.text())
    }
}

/// A TOML string. JSON's escapes are a part of TOML's.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}

impl Value for bool {
    fn expects() -> String {
        "true or false".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        }
    }

    fn from_toml(value: &Toml) -> Option<Self> {
        match value {
            Toml::Bool(value) => Some(*value),
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn json(&self) -> Json {
        json!(self)
    }

    fn toml(&self) -> String {
        self.to_string()
    }
}

impl Value for u64 {
    fn expects() -> String {
        "a whole number".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn from_toml(value: &Toml) -> Option<Self> {
        match value {
            Toml::Integer(number) => Self::try_from(*number).ok(),
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn json(&self) -> Json {
        json!(self)
    }

    fn toml(&self) -> String {
        self.to_string()
    }
}

impl Value for f64 {
    fn expects() -> String {
        "a number".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().filter(|number: &Self| number.is_finite())
    }

    fn from_toml(value: &Toml) -> Option<Self> {
        match value {
            Toml::Integer(number) => Some(*number as Self),
            Toml::Float(number) => Some(*number).filter(|number| number.is_finite()),
            _ => None,
        }
    }

    fn text(&self) -> String {
        self.to_string()
    }

    fn json(&self) -> Json {
        json!(self)
    }

    fn toml(&self) -> String {
        self.to_string()
    }
}

impl Value for Size {
    fn expects() -> String {
        "a size".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn from_toml(value: &Toml) -> Option<Self> {
        match value {
            Toml::Integer(bytes) => u64::try_from(*bytes).ok().map(Self),
            other => Self::from_text(other.text()?),
        }
    }

    /// Exact, where its own Display rounds.
    fn text(&self) -> String {
        let shown = self.to_string();
        match shown.parse() == Ok(*self) {
            true => shown,
            false => format!("{} B", self.0),
        }
    }

    fn json(&self) -> Json {
        json!(self.0)
    }
}

impl Value for Duration {
    fn expects() -> String {
        "a time".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let seconds = match unit.trim() {
            "ms" => 0.001,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        Self::try_from_secs_f64(number * seconds).ok()
    }

    fn from_toml(value: &Toml) -> Option<Self> {
        match value {
            Toml::Integer(seconds) => u64::try_from(*seconds).ok().map(Self::from_secs),
            Toml::Float(seconds) => Self::try_from_secs_f64(*seconds).ok(),
            other => Self::from_text(other.text()?),
        }
    }

    fn text(&self) -> String {
        let seconds = self.as_secs();
        if self.subsec_nanos() > 0 {
            return format!("{}s", self.as_secs_f64());
        }
        for (unit, length) in [("d", 86_400), ("h", 3600), ("m", 60)] {
            if seconds >= length && seconds.is_multiple_of(length) {
                return format!("{}{unit}", seconds / length);
            }
        }
        format!("{seconds}s")
    }

    fn json(&self) -> Json {
        json!(self.as_secs_f64())
    }
}

impl Value for String {
    fn expects() -> String {
        "a text".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

/// A relative path would mean another one in each working folder, so only a flag can be one.
impl Value for PathBuf {
    fn expects() -> String {
        "an absolute path".to_owned()
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(Self::from(text)).filter(|path| path.is_absolute())
    }

    fn from_flag(given: &[String]) -> Option<Self> {
        std::path::absolute(given.last()?).ok()
    }

    fn text(&self) -> String {
        self.display().to_string()
    }
}

/// What can be absent is the word `none` where it is.
impl<T: Value> Value for Option<T> {
    fn expects() -> String {
        format!("{}, or none", T::expects())
    }

    fn from_text(text: &str) -> Option<Self> {
        match text {
            "none" => Some(None),
            text => T::from_text(text).map(Some),
        }
    }

    fn from_flag(given: &[String]) -> Option<Self> {
        match given.last()?.as_str() {
            "none" => Some(None),
            _ => T::from_flag(given).map(Some),
        }
    }

    fn from_toml(value: &Toml) -> Option<Self> {
        match value.text() {
            Some("none") => Some(None),
            _ => T::from_toml(value).map(Some),
        }
    }

    fn text(&self) -> String {
        self.as_ref().map_or_else(|| "none".to_owned(), T::text)
    }

    fn json(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::json)
    }

    fn toml(&self) -> String {
        self.as_ref().map_or_else(|| quoted("none"), T::toml)
    }
}

/// Commas stand between the items in the environment; a flag is given once for each. The word
/// `none` alone is an empty list, so that a flag can take back what the file says.
impl<T: Value> Value for Vec<T> {
    fn expects() -> String {
        format!("a list, where each is {}", T::expects())
    }

    fn from_text(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self::new());
        }
        text.split(',').map(str::trim).map(T::from_text).collect()
    }

    fn from_flag(given: &[String]) -> Option<Self> {
        match given {
            [word] if word == "none" => Some(Self::new()),
            items => items.chunks(1).map(T::from_flag).collect(),
        }
    }

    fn from_toml(value: &Toml) -> Option<Self> {
        match value {
            Toml::List(items) => items.iter().map(T::from_toml).collect(),
            _ => None,
        }
    }

    fn text(&self) -> String {
        if self.is_empty() {
            return "none".to_owned();
        }
        let items: Vec<String> = self.iter().map(T::text).collect();
        items.join(", ")
    }

    fn json(&self) -> Json {
        self.iter().map(T::json).collect()
    }

    fn toml(&self) -> String {
        let items: Vec<String> = self.iter().map(T::toml).collect();
        format!("[{}]", items.join(", "))
    }
}
