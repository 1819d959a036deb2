//! Parses the evaluation file of `plimsoll quality` and its results; each error names the line.

use std::path::Path;

use plimsoll_judge::quality::score::ScoreRule;
use plimsoll_judge::quality::{ItemSpec, QUALITY_SCHEMA, Quality};
use plimsoll_workload::check;
use schemars::schema_for;
use serde_json::{Value, json};

use crate::exit::Stop;

/// An item with its line number and its rule.
pub type EvalItem = (u64, ItemSpec, Option<ScoreRule>);

/// Reads an evaluation file. Returns its items and its digest.
///
/// # Errors
/// The number of the first invalid line.
pub fn read(path: &Path) -> Result<(Vec<EvalItem>, String), Stop> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(&name, &e))?;
    let mut items = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = i as u64 + 1;
        let (item, rule) = item(line).map_err(|what| Stop::usage(format!("{name} line {number}: {what}")))?;
        items.push((number, item, rule));
    }
    if items.is_empty() {
        return Err(Stop::usage(format!("{name}: no item found; write one JSON object per line")));
    }
    Ok((items, format!("{:016x}", digest(text.as_bytes()))))
}

fn item(line: &str) -> Result<(ItemSpec, Option<ScoreRule>), String> {
    let value: Value = serde_json::from_str(line).map_err(|e| format!("not JSON: {e}"))?;
    if !value.is_object() {
        return Err("an item is a JSON object, such as {\"prompt\": \"…\"}".into());
    }
    check::against(&value, || schema_for!(ItemSpec).to_value()).map_err(|e| e.to_string())?;
    let item: ItemSpec = serde_json::from_value(value).map_err(|e| e.to_string())?;
    match (&item.prompt, &item.messages) {
        (Some(_), None) => {}
        (None, Some(messages)) if !messages.is_empty() => {}
        _ => return Err("want either \"prompt\" or a non-empty \"messages\"".into()),
    }
    if item.max_tokens == Some(0) {
        return Err("max_tokens is 0; want at least 1".into());
    }
    let rule =
        item.score.as_ref().map(ScoreRule::new).transpose().map_err(|what| format!("score: {what}"))?;
    Ok((item, rule))
}

/// Renders the items as a prompt file for the load generator.
pub fn prompts(items: &[EvalItem], max_tokens: u32) -> Vec<u8> {
    let mut out = String::new();
    for (_, item, _) in items {
        let tokens = item.max_tokens.unwrap_or(max_tokens);
        let line = match (&item.messages, &item.prompt) {
            (Some(messages), _) => json!({"messages": messages, "output_tokens": tokens}),
            (None, prompt) => json!({"prompt": prompt, "output_tokens": tokens}),
        };
        out.push_str(&line.to_string());
        out.push('\n');
    }
    out.into_bytes()
}

/// Reads a results file.
///
/// # Errors
/// The file is not a results file, or has an unknown layout version.
pub fn results(path: &Path) -> Result<Quality, Stop> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| crate::out::unread(&name, &e))?;
    let not_it = |e: serde_json::Error| Stop::usage(format!("{name}: no results of plimsoll quality: {e}"));
    let value: Value = serde_json::from_str(&text).map_err(not_it)?;
    match value.get("schema").and_then(Value::as_u64) {
        Some(schema) if schema != u64::from(QUALITY_SCHEMA) => {
            Err(Stop::usage(format!("{name}: layout {schema}, and this version knows {QUALITY_SCHEMA}")))
        }
        _ => serde_json::from_value(value).map_err(not_it),
    }
}

/// Returns the 64-bit FNV-1a hash, which distinguishes evaluation files but is not secure.
fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
