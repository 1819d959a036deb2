//! The command of a server with its placeholders, and the combinations of their values.
//!
//! The command is split like a shell line, but no shell runs it, because a stop must reach the server itself.

use std::collections::BTreeSet;

/// Name of the placeholder that a free port replaces.
pub const PORT: &str = "port";

/// Largest number of settings.
const MOST_SETTINGS: usize = 1000;

/// A named value of a setting.
pub type SetValue = (String, String);

/// Splits a command into words: quotes and backslashes as in a POSIX shell, without expansions.
///
/// # Errors
/// Fails if a quote is not closed or no word is left.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let words = shlex::split(text).ok_or("a quote is not closed")?;
    if words.is_empty() { Err("it has no word; write the command of the server".into()) } else { Ok(words) }
}

/// Returns the placeholders of a text. Only a name in braces is one, so JSON in a command is unchanged.
pub fn names(text: &str) -> BTreeSet<String> {
    pieces(text).filter_map(|(_, name)| name.map(str::to_owned)).collect()
}

/// Replaces the placeholders of a text; one without a value stays.
pub fn fill(text: &str, values: &[SetValue]) -> String {
    let value = |name: &str| values.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    pieces(text)
        .map(|(before, name)| {
            let value = name.map(|name| value(name).unwrap_or_else(|| format!("{{{name}}}")));
            format!("{before}{}", value.unwrap_or_default())
        })
        .collect()
}

/// Returns the parts of a text, each with the placeholder behind it.
fn pieces(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let left = rest?;
        for (at, _) in left.match_indices('{') {
            let Some(end) = left[at..].find('}').map(|end| at + end) else { break };
            if is_name(&left[at + 1..end]) {
                rest = Some(&left[end + 1..]);
                return Some((&left[..at], Some(&left[at + 1..end])));
            }
        }
        rest = None;
        Some((left, None))
    })
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

/// Parses `NAME=VALUE,VALUE,…`; `\,` is a comma inside a value.
///
/// # Errors
/// Fails if the name, a value or the sign is missing, or a value repeats.
pub fn values(text: &str) -> Result<(String, Vec<String>), String> {
    let form = || format!("--set {text}: write NAME=VALUE,VALUE such as slots=1,2,4");
    let (name, list) = text.split_once('=').ok_or_else(form)?;
    let (mut values, mut chars) = (vec![String::new()], list.chars().peekable());
    while let Some(c) = chars.next() {
        match (c, values.last_mut()) {
            ('\\', Some(value)) if chars.next_if_eq(&',').is_some() => value.push(','),
            (',', _) => values.push(String::new()),
            (c, Some(value)) => value.push(c),
            (_, None) => {}
        }
    }
    if !is_name(name.trim()) || values.iter().any(String::is_empty) {
        return Err(form());
    }
    match values.iter().enumerate().find(|(i, value)| values[..*i].contains(value)) {
        Some((_, value)) => Err(format!("--set {text}: {value} is there twice")),
        None => Ok((name.trim().to_owned(), values)),
    }
}

/// Returns every combination of the values; the last name varies first.
///
/// # Errors
/// Fails if there are too many.
pub fn combinations(sets: &[(String, Vec<String>)]) -> Result<Vec<Vec<SetValue>>, String> {
    let all = sets.iter().try_fold(1_usize, |n, (_, values)| n.checked_mul(values.len()));
    if all.is_none_or(|all| all > MOST_SETTINGS) {
        return Err(format!("--set: these values have more than {MOST_SETTINGS} combinations; name fewer"));
    }
    Ok(sets.iter().fold(vec![Vec::new()], |all, (name, values)| {
        let with = |before: &Vec<SetValue>, value: &String| {
            let one = std::iter::once((name.clone(), value.clone()));
            before.iter().cloned().chain(one).collect()
        };
        all.iter().flat_map(|before| values.iter().map(move |value| with(before, value))).collect()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_split_like_a_shell_line() {
        let words = split(r#"a 'b "c"' d\ e --json '{"k":{n}}' """#).expect("words");
        assert_eq!(words, ["a", r#"b "c""#, "d e", "--json", r#"{"k":{n}}"#, ""]);
        assert!(split("a 'b").is_err() && split("  ").is_err());
    }

    #[test]
    fn only_a_name_in_braces_is_a_placeholder() {
        let text = r#"-np {slots} --json {"k":{n}} {} {1} {a b} x{port"#;
        assert_eq!(names(text), BTreeSet::from(["n".to_owned(), "slots".to_owned()]));
        let values = [("slots".to_owned(), "4".to_owned()), ("n".to_owned(), "{slots}".to_owned())];
        assert_eq!(fill(text, &values), r#"-np 4 --json {"k":{slots}} {} {1} {a b} x{port"#);
        assert_eq!(fill("{port}", &values), "{port}");
    }

    #[test]
    fn values_are_separated_by_commas() {
        assert_eq!(values("a=1,2").expect("values"), ("a".into(), vec!["1".into(), "2".into()]));
        assert_eq!(values(r"ts=3\,1,1\,1").expect("values").1, ["3,1", "1,1"]);
        for wrong in ["a", "a=", "a=1,,2", "=1", "a b=1", "a=1,1"] {
            assert!(values(wrong).is_err_and(|why| why.starts_with("--set ")), "{wrong}");
        }
        let set = |name: &str, n: usize| (name.to_owned(), (0..n).map(|i| i.to_string()).collect());
        let all = combinations(&[set("a", 2), set("b", 3)]).expect("six");
        let text = |one: &[SetValue]| one.iter().map(|(_, value)| value.as_str()).collect::<String>();
        assert_eq!(all.iter().map(|one| text(one)).collect::<Vec<_>>(), ["00", "01", "02", "10", "11", "12"]);
        assert_eq!(combinations(&[]).expect("one"), vec![Vec::new()]);
        assert!(combinations(&[set("a", 32), set("b", 32)]).is_err());
    }
}
