//! What can be wrong with a scenario, in words that say what to do.
//!
//! Every refusal names the place (`client.retries.max`), what was found there and what is allowed; where a name is
//! merely misspelt, the nearest valid one is offered. Deserialisers say "unknown variant" with a position in bytes,
//! which helps the programmer and not the user; so keys and names are checked against the schema first
//! ([`crate::check`]), and these errors come from there.

use std::fmt;

/// A scenario that can't be run as it is.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SpecError {
    /// A key that nothing reads.
    #[error("{}unknown key `{key}`{}; allowed: {}", At(path), Hint(nearest), List(allowed))]
    UnknownKey {
        /// Where, dotted; empty at the top.
        path: String,
        /// The key as written.
        key: String,
        /// Every key that would be read there.
        allowed: Vec<String>,
        /// The allowed one it most resembles.
        nearest: Option<String>,
    },
    /// A name that is none of the allowed ones.
    #[error("{}unknown value `{value}`{}; allowed: {}", At(path), Hint(nearest), List(allowed))]
    UnknownValue {
        /// Where, dotted.
        path: String,
        /// The value as written.
        value: String,
        /// Every allowed value.
        allowed: Vec<String>,
        /// The allowed one it most resembles.
        nearest: Option<String>,
    },
    /// A value that can't be read or lies outside its range.
    #[error("{}`{value}` is not {want}", At(path))]
    Value {
        /// Where, dotted.
        path: String,
        /// The value as written.
        value: String,
        /// What would be accepted: "a rate above 0, such as 12/s or 600/m".
        want: String,
    },
    /// Something needed was not said.
    #[error("{}missing: {want}", At(path))]
    Missing {
        /// Where, dotted.
        path: String,
        /// What to say.
        want: String,
    },
    /// Two settings contradict each other.
    #[error("{}{what}", At(path))]
    Conflict {
        /// Where, dotted.
        path: String,
        /// Which ones, and how to choose.
        what: String,
    },
    /// A file the scenario names can't be read.
    #[error("{file}: {what}")]
    File {
        /// The file as named.
        file: String,
        /// Why.
        what: String,
    },
    /// A file the scenario names has a broken line.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl SpecError {
    /// A value outside what is accepted.
    pub fn value(path: &str, value: impl fmt::Display, want: &str) -> SpecError {
        SpecError::Value { path: path.to_string(), value: value.to_string(), want: want.to_string() }
    }

    /// The same error, found at `path`.
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

/// The allowed name that `given` most resembles, if it resembles one: optimal string alignment distance (an
/// insertion, deletion, substitution or swap of neighbours counts one) of at most a third of the length, at least 1;
/// a name that begins with `given` counts as near too.
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

/// The `count` allowed names that `given` most resembles, most alike first, however little that is: by the same distance,
/// less what both begin with. For lists that are too long to be shown whole.
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

/// A line of a file that can't be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}{}: {what}", if *line > 0 { format!(", line {line}") } else { String::new() })]
pub struct TraceError {
    pub file: String,
    /// Its line, counted from 1 in the unpacked text; 0 = the file as a whole.
    pub line: usize,
    pub what: String,
}
