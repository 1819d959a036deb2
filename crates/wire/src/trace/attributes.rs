//! Parses attributes in the JSON of every tracer's export.
//!
//! One parser covers all formats, because they exclude each other. A value is plain (`8`, `"x"`; Jaeger) or an object with one
//! `…Value` (OTLP). A set of attributes is a list of `{key, value}`, or an object in tracers' own JSON.

use std::borrow::Cow;
use std::fmt;

use plimsoll_model::AttributeValue;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

/// A key or a text, borrowed if the JSON has no escapes in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Text<'a>, D::Error> {
        struct Take;
        impl<'de> Visitor<'de> for Take {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        d.deserialize_str(Take)
    }
}

/// A number, a text, a flag or nothing: the value of a small field in any spelling. Lists and maps are skipped.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) enum Scalar<'a> {
    #[default]
    Nothing,
    Flag(bool),
    Int(i64),
    Real(f64),
    Text(Cow<'a, str>),
}

impl Scalar<'_> {
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Scalar::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the whole number, also from a text; a fraction is cut off.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Scalar::Int(n) => Some(*n),
            Scalar::Real(n) if n.is_finite() => Some(*n as i64),
            Scalar::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }
}

/// A list with null for absent, as in protobuf's JSON.
///
/// A null list is empty, and null elements are left out.
pub(crate) struct Many<T>(pub(crate) Vec<T>);

impl<T> Default for Many<T> {
    fn default() -> Many<T> {
        Many(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Many<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Many<T>, D::Error> {
        let list: Option<Vec<Option<T>>> = Deserialize::deserialize(d)?;
        Ok(Many(list.into_iter().flatten().flatten().collect()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Scalar<'a>, D::Error> {
        struct Take;
        impl<'de> Visitor<'de> for Take {
            type Value = Scalar<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a text")
            }
            fn visit_unit<E>(self) -> Result<Scalar<'de>, E> {
                Ok(Scalar::Nothing)
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Scalar<'de>, E> {
                Ok(Scalar::Flag(flag))
            }
            fn visit_i64<E>(self, n: i64) -> Result<Scalar<'de>, E> {
                Ok(Scalar::Int(n))
            }
            fn visit_u64<E>(self, n: u64) -> Result<Scalar<'de>, E> {
                Ok(Scalar::Int(i64::try_from(n).unwrap_or(i64::MAX)))
            }
            fn visit_f64<E>(self, n: f64) -> Result<Scalar<'de>, E> {
                Ok(Scalar::Real(n))
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Scalar<'de>, E> {
                Ok(Scalar::Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Scalar<'de>, E> {
                Ok(Scalar::Text(Cow::Owned(text.to_owned())))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scalar<'de>, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nothing)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Scalar<'de>, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Scalar::Nothing)
            }
        }
        d.deserialize_any(Take)
    }
}

/// One attribute value; `None` for JSON's null.
pub(crate) struct Any(pub(crate) Option<AttributeValue>);

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Any, D::Error> {
        d.deserialize_any(TakeAny)
    }
}

struct TakeAny;

impl<'de> Visitor<'de> for TakeAny {
    type Value = Any;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an attribute's value")
    }

    fn visit_unit<E>(self) -> Result<Any, E> {
        Ok(Any(None))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Any, E> {
        Ok(Any(Some(AttributeValue::Flag(flag))))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Any, E> {
        Ok(Any(Some(AttributeValue::Int(n))))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Any, E> {
        Ok(Any(Some(match i64::try_from(n) {
            Ok(n) => AttributeValue::Int(n),
            Err(_) => AttributeValue::Real(n as f64),
        })))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Any, E> {
        Ok(Any(Some(AttributeValue::Real(n))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Any, E> {
        Ok(Any(Some(AttributeValue::Text(text.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Any, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element::<Json>()? {
            list.push(value);
        }
        Ok(Any(Some(AttributeValue::Text(Json::Array(list).to_string()))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Any, A::Error> {
        let mut found = None;
        let mut plain = serde_json::Map::new();
        while let Some(Text(key)) = map.next_key()? {
            let scalar = match &*key {
                "stringValue" | "string_value" | "bytesValue" | "bytes_value" => {
                    map.next_value::<Scalar<'_>>()?.text().map(|text| AttributeValue::Text(text.to_owned()))
                }
                "intValue" | "int_value" => map.next_value::<Scalar<'_>>()?.int().map(AttributeValue::Int),
                "boolValue" | "bool_value" => match map.next_value()? {
                    Scalar::Flag(flag) => Some(AttributeValue::Flag(flag)),
                    Scalar::Text(text) => text.parse().ok().map(AttributeValue::Flag),
                    _ => None,
                },
                "doubleValue" | "double_value" => real(&map.next_value()?).map(AttributeValue::Real),
                "arrayValue" | "array_value" | "kvlistValue" | "kvlist_value" => {
                    let nested: Option<Json> = map.next_value()?;
                    nested.map(|nested| AttributeValue::Text(unwrapped(&key, nested).to_string()))
                }
                _ => {
                    plain.insert(key.into_owned(), map.next_value()?);
                    None
                }
            };
            found = scalar.or(found);
        }
        if found.is_none() && !plain.is_empty() {
            found = Some(AttributeValue::Text(Json::Object(plain).to_string()));
        }
        Ok(Any(found))
    }
}

/// Returns a double; protobuf's JSON writes special values as a text.
fn real(scalar: &Scalar<'_>) -> Option<f64> {
    match scalar {
        Scalar::Real(n) => Some(*n),
        Scalar::Int(n) => Some(*n as f64),
        // `f64` parses "NaN", "Infinity" and "-Infinity".
        Scalar::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Unwraps OTLP's list or map. The JSON parser's limit bounds the depth.
fn unwrapped(kind: &str, nested: Json) -> Json {
    let values = match nested {
        Json::Object(mut map) => map.remove("values").unwrap_or(Json::Array(Vec::new())),
        other => other,
    };
    let Json::Array(values) = values else { return values };
    if kind.starts_with("array") {
        return Json::Array(values.into_iter().map(unwrapped_value).collect());
    }
    let pairs = values.into_iter().filter_map(|pair| {
        let Json::Object(mut pair) = pair else { return None };
        let key = pair.remove("key")?.as_str()?.to_owned();
        Some((key, unwrapped_value(pair.remove("value").unwrap_or(Json::Null))))
    });
    Json::Object(pairs.collect())
}

fn unwrapped_value(value: Json) -> Json {
    let Json::Object(map) = value else { return value };
    let Some((kind, value)) = map.into_iter().next() else { return Json::Null };
    match (&*kind, value) {
        ("intValue" | "int_value", Json::String(text)) => {
            text.parse::<i64>().map_or(Json::String(text), Json::from)
        }
        ("arrayValue" | "array_value" | "kvlistValue" | "kvlist_value", nested) => unwrapped(&kind, nested),
        (_, value) => value,
    }
}

/// A set of attributes in their original order.
#[derive(Default)]
pub(crate) struct Attributes(pub(crate) Vec<(String, AttributeValue)>);

impl<'de> Deserialize<'de> for Attributes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Attributes, D::Error> {
        struct Take;
        impl<'de> Visitor<'de> for Take {
            type Value = Attributes;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("attributes: an object, or a list of keys and values")
            }
            fn visit_unit<E>(self) -> Result<Attributes, E> {
                Ok(Attributes::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Attributes, A::Error> {
                let mut all = Vec::new();
                while let Some(pair) = seq.next_element::<Option<Pair<'_>>>()? {
                    let Some(pair) = pair else { continue };
                    if let (Some(key), Some(value)) = (pair.key, pair.value.and_then(|any| any.0)) {
                        all.push((key.0.into_owned(), value));
                    }
                }
                Ok(Attributes(all))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes, A::Error> {
                let mut all = Vec::new();
                while let Some((Text(key), Any(value))) = map.next_entry()? {
                    all.extend(value.map(|value| (key.into_owned(), value)));
                }
                Ok(Attributes(all))
            }
        }
        d.deserialize_any(Take)
    }
}

#[derive(Deserialize)]
struct Pair<'a> {
    #[serde(borrow)]
    key: Option<Text<'a>>,
    value: Option<Any>,
}
