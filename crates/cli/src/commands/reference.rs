//! `plimsoll dev reference`: a page of Markdown for each command and each file format.
//!
//! The pages come from the parser and from the schemas, and `scripts/book` puts them into the manual. They are not committed,
//! because a committed copy drifts from the flags.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, ValueEnum};
use serde_json::{Map, Value};

use super::schema;
use crate::exit::{Exit, Stop};
use crate::flags::{ReferenceArgs, SchemaOf};
use crate::{help, out};

/// Writes the pages, and `SUMMARY.md` with a line for each of them.
pub fn run(args: &ReferenceArgs) -> Result<Exit, Stop> {
    let mut pages = Vec::new();
    let mut command = help::command(help::HelpDetail::Full);
    command.build();
    for under in command.get_subcommands().filter(is_shown) {
        command_pages(under, &format!("plimsoll {}", under.get_name()), &mut pages);
    }
    for file in SchemaOf::value_variants() {
        pages.extend(schema_page(*file));
    }
    write(&args.out, &pages).map_err(|e| {
        Stop::usage(format!("{}: {e}; name a folder that can be written", args.out.display()))
    })?;
    out::note(&format!("wrote {} pages to {}", pages.len(), args.out.display()));
    Ok(Exit::Done)
}

struct ReferencePage {
    /// Path below the output folder, with `cli/` or `files/`.
    path: String,
    /// Title in the table of contents.
    title: String,
    text: String,
}

fn write(dir: &Path, pages: &[ReferencePage]) -> std::io::Result<()> {
    let mut summary = String::new();
    for folder in ["cli", "files"] {
        fs::create_dir_all(dir.join(folder))?;
    }
    for page in pages {
        fs::write(dir.join(&page.path), &page.text)?;
        let _ = writeln!(summary, "- [{}]({})", page.title, page.path);
    }
    fs::write(dir.join("SUMMARY.md"), summary)
}

fn is_shown(command: &&Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// Adds the page of a command and the pages of its subcommands.
fn command_pages(command: &Command, name: &str, pages: &mut Vec<ReferencePage>) {
    let file = |name: &str| format!("{}.md", name.trim_start_matches("plimsoll ").replace(' ', "-"));
    let under: Vec<(&Command, String)> =
        command.get_subcommands().filter(is_shown).map(|c| (c, format!("{name} {}", c.get_name()))).collect();
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    let mut text = format!("# {name}\n\n{}\n\n", escaped(&about.unwrap_or_default()));
    let usage = command.clone().render_usage().to_string();
    let _ = write!(text, "```text\n{}\n```\n", usage.trim_start_matches("Usage:").trim());
    for (at, (command, name)) in under.iter().enumerate() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let head = if at == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{head}* [{name}]({}): {}", file(name), escaped(&about));
    }
    let mut headings: Vec<&str> = Vec::new();
    let shown: Vec<&Arg> = command.get_arguments().filter(|arg| !is_common(arg)).collect();
    for arg in &shown {
        if !headings.contains(&heading(arg)) {
            headings.push(heading(arg));
        }
    }
    for under in headings {
        let _ = write!(text, "\n## {under}\n\n");
        for arg in shown.iter().filter(|arg| heading(arg) == under) {
            let _ = writeln!(text, "* {}", argument(arg));
        }
    }
    if let Some(after) = command.get_after_help() {
        let _ = write!(text, "\n```text\n{}\n```\n", after.to_string().trim());
    }
    pages.push(ReferencePage { path: format!("cli/{}", file(name)), title: name.to_owned(), text });
    for (command, name) in under {
        command_pages(command, &name, pages);
    }
}

fn is_common(arg: &Arg) -> bool {
    arg.is_hide_set() || matches!(arg.get_id().as_str(), "help" | "version")
}

fn heading(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or(if arg.is_positional() { "Arguments" } else { "Options" })
}

/// Returns an argument in its typed form, with its help, its default and its values.
fn argument(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let short = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let mut line = format!("`{short}{arg}`: {}", escaped(&help));
    let words =
        |words: Vec<String>| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        let _ = write!(line, ". Default: {}", words(defaults));
    }
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|v| !v.is_hide_set())
        .map(|v| v.get_name().to_owned())
        .collect();
    if arg.get_action().takes_values() && !values.is_empty() {
        let _ = write!(line, ". Values: {}", words(values));
    }
    line
}

/// Returns text on one line. Outside of code spans nothing in it is a mark of Markdown or HTML.
fn escaped(text: &str) -> String {
    // A link to an item in a doc comment has no target outside the source.
    let text = text.replace("[`", "`").replace("`]", "`");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let escape = |marks: &[&str], part: &str| {
        marks.iter().fold(part.to_owned(), |part, mark| part.replace(mark, &format!("\\{mark}")))
    };
    let spans: Vec<&str> = line.split('`').collect();
    if spans.len().is_multiple_of(2) {
        return escape(&["\\", "<", "*", "[", "|", "`"], &line);
    }
    let outside = |at: usize| at.is_multiple_of(2);
    let parts = spans.iter().enumerate().map(|(at, part)| match outside(at) {
        true => escape(&["\\", "<", "*", "[", "|"], part),
        false => escape(&["|"], part),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn schema_page(file: SchemaOf) -> Option<ReferencePage> {
    let value = file.to_possible_value()?;
    let about = value.get_help().map(ToString::to_string).unwrap_or_default();
    let name = value.get_name();
    let schema = schema::of(file).to_value();
    let mut text = format!(
        "# Schema of {name}\n\n{}. `plimsoll schema {name}` prints this schema as JSON.\n",
        escaped(about.trim_end_matches('.'))
    );
    shape(&mut text, &schema);
    for (name, part) in schema.get("$defs").and_then(Value::as_object).into_iter().flatten() {
        let _ = write!(text, "\n## {name}\n");
        shape(&mut text, part);
    }
    Some(ReferencePage { path: format!("files/{name}.md"), title: format!("Schema of {name}"), text })
}

/// Adds the description of a schema, its keys and its forms.
fn shape(text: &mut String, schema: &Value) {
    if let Some(about) = schema.get("description").and_then(Value::as_str) {
        let _ = write!(text, "\n{}\n", escaped(about));
    }
    if let Some(keys) = schema.get("properties").and_then(Value::as_object) {
        keys_table(text, keys, schema);
    }
    let forms = ["oneOf", "anyOf", "allOf"].iter().filter_map(|of| schema.get(of)?.as_array());
    for form in forms.flatten() {
        if unnamed(form).is_some() {
            text.push_str(if form.get("description").is_none() { "\nAs keys:\n" } else { "" });
            shape(text, form);
        } else {
            let about = form.get("description").and_then(Value::as_str).unwrap_or_default();
            let colon = if about.is_empty() { "" } else { ": " };
            let _ = write!(text, "\n* {}{colon}{}\n", kind(form), escaped(about));
        }
    }
    if schema.get("properties").is_none() && !kind(schema).is_empty() && schema.get("oneOf").is_none() {
        let _ = write!(text, "\nType: {}\n", kind(schema));
    }
}

fn keys_table(text: &mut String, keys: &Map<String, Value>, schema: &Value) {
    let required = schema.get("required").and_then(Value::as_array);
    text.push_str("\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n");
    for (key, value) in keys {
        let default = match value.get("default") {
            // A table of defaults would widen the column; the part has its own.
            Some(default) if default.is_object() => String::new(),
            Some(default) => format!("`{}`", default.to_string().replace('|', "\\|")),
            None if required.is_some_and(|all| all.iter().any(|name| name == key)) => "required".to_owned(),
            None => String::new(),
        };
        let about = value.get("description").and_then(Value::as_str).unwrap_or_default();
        let _ = writeln!(text, "| `{key}` | {} | {default} | {} |", kind(value), escaped(about));
    }
    for (key, value) in keys {
        if let Some(part) = unnamed(value) {
            let _ = write!(text, "\nWithin `{key}`:\n");
            shape(text, part);
        }
    }
}

/// Returns the schema of a key's value, or of its items, if it has keys and no name.
fn unnamed(value: &Value) -> Option<&Value> {
    let has_keys = |value: &Value| value.get("properties").is_some();
    let forms = ["oneOf", "anyOf"].iter().filter_map(|of| value.get(of)?.as_array());
    if has_keys(value) || forms.flatten().any(|form| unnamed(form).is_some()) {
        return Some(value);
    }
    ["items", "additionalProperties"].iter().find_map(|part| unnamed(value.get(part)?))
}

/// Returns the type of a schema as a phrase, with links to the named parts.
fn kind(schema: &Value) -> String {
    let is_null = |schema: &&Value| schema.get("type").is_some_and(|kind| kind == "null");
    let joined = |parts: Vec<String>| {
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" or ")
    };
    if let Some(name) = schema.get("$ref").and_then(Value::as_str) {
        let name = name.trim_start_matches("#/$defs/");
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(value) = schema.get("const") {
        return format!("`{value}`");
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return joined(values.iter().map(|value| format!("`{value}`")).collect());
    }
    for of in ["anyOf", "oneOf", "allOf"] {
        if let Some(forms) = schema.get(of).and_then(Value::as_array) {
            return joined(forms.iter().filter(|form| !is_null(form)).map(kind).collect());
        }
    }
    let one = |name: &str| match name {
        "null" => String::new(),
        "array" => match schema.get("items").map(kind) {
            Some(item) if !item.is_empty() => format!("list of {item}"),
            _ => "list".to_owned(),
        },
        "object" => match schema.get("additionalProperties").filter(|value| value.is_object()).map(kind) {
            Some(item) if !item.is_empty() => format!("map of {item}"),
            _ => "object".to_owned(),
        },
        name => name.to_owned(),
    };
    match schema.get("type") {
        Some(Value::String(name)) => one(name),
        Some(Value::Array(names)) => joined(names.iter().filter_map(Value::as_str).map(one).collect()),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_flag_of_its_command() {
        let mut command = help::command(help::HelpDetail::Full);
        command.build();
        for under in command.get_subcommands().filter(is_shown) {
            let mut pages = Vec::new();
            command_pages(under, &format!("plimsoll {}", under.get_name()), &mut pages);
            for arg in under.get_arguments().filter(|arg| !is_common(arg)) {
                let line =
                    pages[0].text.lines().find(|line| line.starts_with(&format!("* {}", argument(arg))));
                assert!(line.is_some(), "{} lacks {arg}", pages[0].path);
            }
        }
    }

    #[test]
    fn a_page_has_every_key_of_its_schema() {
        for file in SchemaOf::value_variants() {
            let page = schema_page(*file).expect("a page");
            let mut keys = Vec::new();
            collect(&schema::of(*file).to_value(), &mut keys);
            assert!(!keys.is_empty(), "{}", page.path);
            for key in keys {
                assert!(page.text.contains(&format!("| `{key}` |")), "{} lacks {key}", page.path);
            }
        }
    }

    /// Collects the keys of a schema at any depth.
    fn collect(schema: &Value, keys: &mut Vec<String>) {
        if let Some(own) = schema.get("properties").and_then(Value::as_object) {
            keys.extend(own.keys().cloned());
        }
        match schema {
            Value::Object(parts) => parts.values().for_each(|part| collect(part, keys)),
            Value::Array(parts) => parts.iter().for_each(|part| collect(part, keys)),
            _ => {}
        }
    }
}
