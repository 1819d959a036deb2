//! Checks a scenario's JSON against its schema before deserialisation: unknown keys, unknown names and malformed texts.
//!
//! Each error has the path and the allowed values. The schema is derived from the structs, so there is no second list of
//! keys to maintain. Rewriting serde's messages was rejected: they have no path inside tagged enums, and comparing messages
//! breaks with the next release.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::error::nearest;
use crate::sizes::{Pause, Size};
use crate::units::{Rate, parse_span};
use crate::{Documents, Scenario, SpecError};

/// Checks the keys, names and texts of a scenario, but not the ranges of its numbers.
///
/// # Errors
/// Fails with the first error in the order of the document.
pub fn scenario(value: &Value) -> Result<(), SpecError> {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| schemars::schema_for!(Scenario).to_value());
    Checker { root: schema }.check(value, schema, "")
}

/// Checks JSON against any schema of structs that use this crate's text formats.
pub fn against(value: &Value, schema: impl FnOnce() -> Value) -> Result<(), SpecError> {
    let schema = schema();
    Checker { root: &schema }.check(value, &schema, "")
}

struct Checker<'a> {
    root: &'a Value,
}

impl<'a> Checker<'a> {
    fn check(&self, value: &Value, schema: &'a Value, path: &str) -> Result<(), SpecError> {
        let schema = self.resolve(schema);
        if value.is_null() {
            return Ok(()); // whether it may be absent is the deserialiser's question
        }
        if let Some(format) = schema.get("format").and_then(Value::as_str)
            && let Some(read) = text(value, format)
        {
            return read.map_err(|e| e.at(path));
        }
        if let Some(options) = schema.get("oneOf").or(schema.get("anyOf")).and_then(Value::as_array) {
            return self.one_of(value, options, path);
        }
        if let Some(names) = schema.get("enum").and_then(Value::as_array) {
            return name(value, names.iter().filter_map(Value::as_str), path);
        }
        kind(value, schema, path)?;
        match value {
            Value::Object(map) => self.object(map, schema, path),
            Value::Array(items) => match schema.get("items") {
                Some(inner) => items
                    .iter()
                    .enumerate()
                    .try_for_each(|(i, item)| self.check(item, inner, &join(path, &i.to_string()))),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn object(&self, map: &Map<String, Value>, schema: &'a Value, path: &str) -> Result<(), SpecError> {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        for (key, value) in map {
            match properties.unwrap_or(&empty).get(key) {
                Some(_) => {
                    let inner = properties.and_then(|p| p.get(key)).unwrap_or(&Value::Null);
                    self.check(value, inner, &join(path, key))?;
                }
                None if closed => {
                    let allowed: Vec<String> =
                        properties.map(|p| p.keys().cloned().collect()).unwrap_or_default();
                    return Err(SpecError::UnknownKey {
                        path: path.to_string(),
                        key: key.clone(),
                        nearest: nearest(key, allowed.iter().map(String::as_str)).map(str::to_string),
                        allowed,
                    });
                }
                // A map with free keys, whose values have one schema.
                None => {
                    if let Some(inner @ Value::Object(_)) = schema.get("additionalProperties") {
                        self.check(value, inner, &join(path, key))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn one_of(&self, value: &Value, options: &'a [Value], path: &str) -> Result<(), SpecError> {
        let options: Vec<&Value> = options
            .iter()
            .map(|o| self.resolve(o))
            .filter(|o| o.get("type").and_then(Value::as_str) != Some("null"))
            .collect();
        if let [only] = options[..] {
            return self.check(value, only, path);
        }
        let names: Vec<&str> = options.iter().flat_map(|o| names_of(o)).collect();
        if !names.is_empty() {
            return name(value, names, path);
        }
        let Some(tag) = options.iter().find_map(|o| tag_of(o)) else { return Ok(()) };
        let allowed = options.iter().filter_map(|o| tag_value(o, tag));
        match value.get(tag) {
            None if value.is_object() => Err(SpecError::Missing {
                path: join(path, tag),
                want: format!("one of {}", allowed.collect::<Vec<_>>().join(", ")),
            }),
            None => Ok(()),
            Some(given) => {
                name(given, allowed, &join(path, tag))?;
                let chosen = options.iter().find(|o| tag_value(o, tag) == given.as_str());
                match (value, chosen) {
                    (Value::Object(map), Some(chosen)) => self.object(map, chosen, path),
                    _ => Ok(()),
                }
            }
        }
    }

    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        while let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            match reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer)) {
                Some(found) => schema = found,
                None => break,
            }
        }
        schema
    }
}

fn names_of(schema: &Value) -> Vec<&str> {
    match (schema.get("const"), schema.get("enum").and_then(Value::as_array)) {
        (Some(Value::String(one)), _) => vec![one],
        (_, Some(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn tag_of(schema: &Value) -> Option<&str> {
    let properties = schema.get("properties")?.as_object()?;
    properties.iter().find(|(_, p)| p.get("const").is_some()).map(|(key, _)| key.as_str())
}

fn tag_value<'a>(schema: &'a Value, tag: &str) -> Option<&'a str> {
    schema.get("properties")?.get(tag)?.get("const")?.as_str()
}

fn name<'a>(value: &Value, allowed: impl IntoIterator<Item = &'a str>, path: &str) -> Result<(), SpecError> {
    let allowed: Vec<&str> = allowed.into_iter().collect();
    let given = match value {
        Value::String(given) => given.clone(),
        other => other.to_string(),
    };
    if allowed.contains(&given.as_str()) && value.is_string() {
        return Ok(());
    }
    Err(SpecError::UnknownValue {
        path: path.to_string(),
        nearest: nearest(&given, allowed.iter().copied()).map(str::to_string),
        value: given,
        allowed: allowed.into_iter().map(str::to_string).collect(),
    })
}

/// Checks the JSON type of a value, because deserialisers report a wrong type without its path.
fn kind(value: &Value, schema: &Value, path: &str) -> Result<(), SpecError> {
    let kinds: Vec<&str> = match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(many)) => many.iter().filter_map(Value::as_str).collect(),
        _ => return Ok(()),
    };
    let whole = schema.get("format").and_then(Value::as_str).unwrap_or_default();
    let is = |kind: &&str| match *kind {
        "integer" => fits(value, whole),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        // `null` was accepted earlier.
        "null" => false,
        _ => true,
    };
    if kinds.iter().any(is) {
        return Ok(());
    }
    let words = kinds.iter().filter_map(|kind| match *kind {
        "integer" if whole.starts_with('u') => Some("a whole number from 0"),
        "integer" => Some("a whole number"),
        "number" => Some("a number"),
        "boolean" => Some("true or false"),
        "string" => Some("a text"),
        "object" => Some("a map of keys"),
        "array" => Some("a list"),
        _ => None,
    });
    let given = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Err(SpecError::value(path, given, &words.collect::<Vec<_>>().join(" or ")))
}

/// Returns whether the value is a whole number in the format's range.
fn fits(value: &Value, format: &str) -> bool {
    let most = match format {
        "uint8" => u64::from(u8::MAX),
        "uint16" => u64::from(u16::MAX),
        "uint32" => u64::from(u32::MAX),
        _ => u64::MAX,
    };
    match value.as_u64() {
        Some(n) => n <= most,
        None => value.is_i64() && !format.starts_with('u'),
    }
}

/// Parses a text in one of this crate's formats; `None` for other formats.
fn text(value: &Value, format: &str) -> Option<Result<(), SpecError>> {
    let given = match value {
        Value::String(given) => given.clone(),
        other => other.to_string(),
    };
    Some(match format {
        "span" => parse_span(&given).map(|_| ()),
        "rate" => Rate::parse(&given).map(|_| ()),
        "size" => Size::parse(&given).map(|_| ()),
        "documents" => Documents::parse(&given).map(|_| ()),
        "pause" => Pause::parse(&given).map(|_| ()),
        "cancel" => crate::policy::CancelAfter::parse(&given).map(|_| ()),
        _ => return None, // the format of a plain number: uint32, double
    })
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}
