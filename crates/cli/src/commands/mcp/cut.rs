//! Cuts a document to a size that an agent can read, and names the missing parts.

use serde_json::{Map, Value, json};

/// Smallest part that is cut further; a smaller one is left out.
const LEAST: usize = 200;

/// Keys of parts that are large and that few questions need.
const LARGE: [&str; 6] = ["histograms", "timeline", "scenario", "passed", "generator", "points"];

/// Returns the part of a document at a path such as `findings.levels.0`.
///
/// # Errors
/// Fails if the path leads nowhere; the text names the keys at the last part that exists.
pub fn at<'a>(value: &'a Value, path: &str) -> Result<&'a Value, String> {
    let mut here = value;
    for part in path.split('.').filter(|part| !part.is_empty()) {
        let next = match here {
            Value::Array(items) => part.parse::<usize>().ok().and_then(|n| items.get(n)),
            other => other.get(part),
        };
        here = next.ok_or_else(|| format!("path {path}: {part} does not exist; there is {}", keys(here)))?;
    }
    Ok(here)
}

fn keys(value: &Value) -> String {
    match value {
        Value::Object(object) => object.keys().cloned().collect::<Vec<_>>().join(", "),
        Value::Array(items) => format!("0 to {}", items.len().saturating_sub(1)),
        _ => "nothing below".to_owned(),
    }
}

/// Returns the document in at most about `most` bytes, and the paths at which something is missing.
pub fn cut(value: &Value, most: usize) -> (Value, Vec<String>) {
    let mut missing = Vec::new();
    if size(value) <= most {
        return (value.clone(), missing);
    }
    let mut rest = value.clone();
    leave_out(&mut rest, "", &mut missing);
    let cut = part(&rest, most, "", &mut missing);
    (cut, missing)
}

/// Leaves out the parts that few questions need.
fn leave_out(value: &mut Value, path: &str, missing: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let bytes = size(value);
                if LARGE.contains(&key.as_str()) && bytes > LEAST {
                    missing.push(below);
                    *value = json!({"cut_bytes": bytes});
                } else {
                    leave_out(value, &below, missing);
                }
            }
        }
        Value::Array(items) => {
            items
                .iter_mut()
                .enumerate()
                .for_each(|(i, item)| leave_out(item, &format!("{path}.{i}"), missing));
        }
        _ => {}
    }
}

fn size(value: &Value) -> usize {
    value.to_string().len()
}

fn part(value: &Value, most: usize, path: &str, missing: &mut Vec<String>) -> Value {
    let bytes = size(value);
    // A mark in place of a small value would be as large as the value.
    if bytes <= most || (bytes <= LEAST && !value.is_object() && !value.is_array()) {
        return value.clone();
    }
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(object) if most >= LEAST => {
            // Small values first: each gets at most an equal part of what is left.
            let mut order: Vec<(&String, usize)> =
                object.iter().map(|(key, value)| (key, key.len() + 4 + size(value))).collect();
            order.sort_by_key(|(_, bytes)| *bytes);
            let (mut left, mut rest) = (most, order.len());
            let mut kept = Map::new();
            for (key, bytes) in order {
                let share = left / rest.max(1);
                let value = part(&object[key], share.saturating_sub(key.len() + 4), &below(key), missing);
                left = left.saturating_sub(bytes.min(share));
                rest -= 1;
                kept.insert(key.clone(), value);
            }
            Value::Object(kept)
        }
        Value::Array(items) if most >= LEAST => {
            let mut left = most;
            let mut kept = Vec::new();
            for (i, item) in items.iter().enumerate() {
                // The first items tell the form, so that one large item is cut and not left out.
                let bytes = size(item) + 1;
                if bytes > left && i > 0 {
                    break;
                }
                kept.push(part(item, left, &below(&i.to_string()), missing));
                left = left.saturating_sub(bytes);
            }
            if kept.len() < items.len() {
                missing.push(format!("{path} ({} of {} items)", kept.len(), items.len()));
            }
            Value::Array(kept)
        }
        Value::String(text) if most >= LEAST => {
            missing.push(path.to_owned());
            Value::String(text.chars().take(most / 2).chain(['…']).collect())
        }
        _ => {
            missing.push(path.to_owned());
            json!({"cut_bytes": bytes})
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_stay_and_large_ones_are_named() {
        let value = json!({"verdict": "valid", "rows": (0..1000).collect::<Vec<_>>(), "deep": {"text": "x".repeat(5000), "n": 1}});
        let (kept, missing) = cut(&value, 1200);
        assert!(size(&kept) <= 1400, "{}", size(&kept));
        assert_eq!((&kept["verdict"], &kept["deep"]["n"]), (&json!("valid"), &json!(1)));
        assert!(kept["rows"].as_array().is_some_and(|rows| rows.len() > 50), "{kept}");
        assert!(
            missing.iter().any(|path| path.starts_with("rows ("))
                && missing.contains(&"deep.text".to_owned()),
            "{missing:?}"
        );
        assert_eq!(cut(&value, 1_000_000), (value, Vec::new()));
    }

    #[test]
    fn a_path_leads_to_a_part_or_names_the_keys() {
        let value = json!({"levels": [{"a": 1}, {"a": 2}]});
        assert_eq!(at(&value, "levels.1.a"), Ok(&json!(2)));
        assert_eq!(at(&value, ""), Ok(&value));
        assert_eq!(
            at(&value, "levels.2"),
            Err("path levels.2: 2 does not exist; there is 0 to 1".to_owned())
        );
        assert_eq!(at(&value, "level"), Err("path level: level does not exist; there is levels".to_owned()));
    }
}
