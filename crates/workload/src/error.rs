//! Defines the errors of a scenario, with a remedy in each message.
//!
//! Every error names the path (`client.retries.max`), the value found and the allowed values. For a misspelt name it
//! suggests the nearest valid one. Deserialisers report "unknown variant" with a byte position, which does not help the
//! user. Keys and names are therefore checked against the schema first ([`crate::check`]), which creates these errors.

use std::fmt;

/// The error of an invalid scenario.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SpecError {
    /// A key that no field accepts.
    #[error("{}unknown key `{key}`{}; allowed: {}", At(path), Hint(nearest), List(allowed))]
    UnknownKey {
        /// Dotted path; empty at the top level.
        path: String,
        key: String,
        /// All keys that are valid at the path.
        allowed: Vec<String>,
        /// Most similar valid key, if any.
        nearest: Option<String>,
    },
    /// A name is not one of the allowed values.
    #[error("{}unknown value `{value}`{}; allowed: {}", At(path), Hint(nearest), List(allowed))]
    UnknownValue {
        path: String,
        value: String,
        allowed: Vec<String>,
        /// Most similar valid key, if any.
        nearest: Option<String>,
    },
    /// A value can't be parsed or is out of range.
    #[error("{}`{value}` is not {want}", At(path))]
    Value {
        path: String,
        value: String,
        /// Description of accepted values: "a rate above 0, such as 12/s or 600/m".
        want: String,
    },
    #[error("{}missing: {want}", At(path))]
    Missing {
        path: String,
        /// Description of the setting that is missing.
        want: String,
    },
    #[error("{}{what}", At(path))]
    Conflict {
        path: String,
        /// The conflicting settings, and a way to resolve the conflict.
        what: String,
    },
    /// A file of the scenario can't be read.
    #[error("{file}: {what}")]
    File {
        file: String,
        /// Reason why the file is not usable.
        what: String,
    },
    /// A file of the scenario has a malformed line.
    #[error(transparent)]
    Trace(#[from] TraceFileError),
}

impl SpecError {
    /// Returns the error of a value that is not accepted.
    pub fn value(path: &str, value: impl fmt::Display, want: &str) -> SpecError {
        SpecError::Value { path: path.to_string(), value: value.to_string(), want: want.to_string() }
    }

    /// Returns this error with `prefix` in front of its path.
    pub fn at(mut self, prefix: &str) -> SpecError {
        match &mut self {
            SpecError::UnknownKey { path, .. }
            | SpecError::UnknownValue { path, .. }
            | SpecError::Value { path, .. }
            | SpecError::Missing { path, .. }
            | SpecError::Conflict { path, .. } => {
                *path = match (prefix.is_empty(), path.is_empty()) {
                    (true, _) => std::mem::take(path),
                    (false, true) => prefix.to_string(),
                    (false, false) => format!("{prefix}.{path}"),
                }
            }
            SpecError::File { .. } | SpecError::Trace(_) => {}
        }
        self
    }
}

struct At<'a>(&'a str);
impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}: ", self.0) }
    }
}

struct Hint<'a>(&'a Option<String>);
impl fmt::Display for Hint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(nearest) => write!(f, ", did you mean `{nearest}`?"),
            None => Ok(()),
        }
    }
}

struct List<'a>(&'a [String]);
impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

/// Returns the allowed name that is most similar to `given`, if one is similar.
///
/// The measure is the optimal string alignment distance: an insertion, deletion, substitution or swap of neighbours counts
/// one. The limit is a third of the length, at least 1. A name that starts with `given` counts as similar too.
pub fn nearest<'a>(given: &str, allowed: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given_low = given.to_lowercase();
    let limit = (given_low.chars().count() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    for name in allowed {
        let low = name.to_lowercase();
        let prefix = given_low.len() >= 2 && low.starts_with(&given_low);
        let d = if prefix { 1 } else { distance(&given_low, &low) };
        if d <= limit && best.is_none_or(|(b, _)| d < b) {
            best = Some((d, name));
        }
    }
    best.map(|(_, name)| name)
}

/// Returns the `count` allowed names that are most similar to `given`, the most similar first, without a limit on the
/// distance.
///
/// A common prefix reduces the distance. This serves lists that are too long to be shown whole.
pub fn closest<'a>(given: &str, allowed: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<&'a str> {
    let given = given.to_lowercase();
    let mut ranked: Vec<(isize, &str)> = Vec::new();
    for name in allowed {
        let low = name.to_lowercase();
        let shared = given.chars().zip(low.chars()).take_while(|(a, b)| a == b).count();
        ranked.push((distance(&given, &low) as isize - shared as isize, name));
    }
    ranked.sort_by_key(|(rank, _)| *rank); // stable: of equals, the order in which they are shown
    ranked.into_iter().take(count).map(|(_, name)| name).collect()
}

fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let substitute = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut d = substitute.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                d = d.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = d;
        }
    }
    rows[a.len()][b.len()]
}

/// The error of a malformed line of a file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}{}: {what}", if *line > 0 { format!(", line {line}") } else { String::new() })]
pub struct TraceFileError {
    pub file: String,
    /// Line number from 1 in the decompressed text; 0 = the whole file.
    pub line: usize,
    pub what: String,
}
