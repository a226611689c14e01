//! Numbers of bytes as people write them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes: `512`, `64k`, `256m`, `1g`, `1.5GiB`; letters count in powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "u64")]
pub struct Size(pub u64);

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Size {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::{ObjectBuilder, OneOfBuilder, schema::Type};
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(0));
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^[0-9]+(\\.[0-9]+)? *([kKmMgGtT]([iI]?[bB])?|[bB])?$"));
        OneOfBuilder::new()
            .item(number)
            .item(text)
            .description(Some(
                "A number of bytes: `512`, `\"256m\"`, `\"1.5GiB\"`; letters count in powers of 1024.",
            ))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Size {}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number of bytes, or text such as \"256m\""
)]
enum Raw {
    Number(u64),
    Text(String),
}

impl TryFrom<Raw> for Size {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        match raw {
            Raw::Number(bytes) => Ok(Self(bytes)),
            Raw::Text(text) => text.parse(),
        }
    }
}

impl From<Size> for u64 {
    fn from(size: Size) -> Self {
        size.0
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a size: use bytes or a number with k, m, g or t");
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(wrong()),
        };
        let factor = 1u64 << shift;
        let bytes = if number.contains('.') {
            let value: f64 = number.parse().map_err(|_| wrong())?;
            (value * factor as f64).round() as u64
        } else {
            let value: u64 = number.parse().map_err(|_| wrong())?;
            value.checked_mul(factor).ok_or_else(wrong)?
        };
        Ok(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            let whole = self.0 >> shift;
            if whole > 0 {
                if self.0.trailing_zeros() >= shift {
                    return write!(f, "{whole} {unit}");
                }
                return write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_read_and_print() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("64k", 65536),
            ("1.5g", 3 << 29),
            ("2 MiB", 2 << 20),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for bad in [
            "",
            "m",
            "-1",
            "1x",
            "1.2.3",
            "99999999999999999999",
            "99999999t",
            "1e3",
            " ",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        assert_eq!(Size(256 << 20).to_string(), "256 MiB");
        assert_eq!(Size(1500).to_string(), "1.5 KiB");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,20}") {
            let _ = text.parse::<Size>();
        }
    }
}
