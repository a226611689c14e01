use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Bytes in JSON: a string where they are UTF-8, else `{"base64": "…"}`. Nothing is lost.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Blob(pub Vec<u8>);

impl Blob {
    /// The bytes as text, with replacement characters where they are not UTF-8.
    pub fn text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<u8>> for Blob {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&str> for Blob {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({:?})", self.text())
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for Blob {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        use utoipa::openapi::schema::{AdditionalProperties, Schema, Type};
        use utoipa::openapi::{ObjectBuilder, OneOfBuilder};
        let text = ObjectBuilder::new().schema_type(Type::String);
        let base64 = ObjectBuilder::new()
            .schema_type(Type::String)
            .content_encoding("base64");
        let binary = ObjectBuilder::new()
            .property("base64", base64)
            .required("base64")
            .additional_properties(Some(AdditionalProperties::<Schema>::FreeForm(false)));
        OneOfBuilder::new()
            .item(text)
            .item(binary)
            .description(Some(
                "Bytes: a string where they are UTF-8, else in base64.",
            ))
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for Blob {}

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry("base64", &STANDARD.encode(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BlobVisitor;
        impl<'de> Visitor<'de> for BlobVisitor {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or an object with one key `base64`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Blob, E> {
                Ok(Blob::from(text))
            }

            fn visit_string<E: Error>(self, text: String) -> Result<Blob, E> {
                Ok(Blob(text.into_bytes()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Blob, A::Error> {
                let mut blob = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key != "base64" || blob.is_some() {
                        return Err(A::Error::custom("expected one key `base64`"));
                    }
                    let text: String = map.next_value()?;
                    blob = Some(Blob(STANDARD.decode(text).map_err(A::Error::custom)?));
                }
                blob.ok_or_else(|| A::Error::missing_field("base64"))
            }
        }
        deserializer.deserialize_any(BlobVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_survive_json(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let json = serde_json::to_string(&Blob(bytes.clone())).unwrap();
            let back: Blob = serde_json::from_str(&json).unwrap();
            prop_assert_eq!(back.0, bytes);
        }
    }

    #[test]
    fn other_shapes_are_refused() {
        for bad in [
            "1",
            "{}",
            r#"{"base64":"*"}"#,
            r#"{"text":"a"}"#,
            "[1]",
            "null",
        ] {
            assert!(serde_json::from_str::<Blob>(bad).is_err(), "{bad}");
        }
    }
}
