//! The known changes of the target between the two runs. A fact that is unknown for one side counts as unknown and
//! never as unchanged.

use plimsoll_model::Fingerprint;

use super::{Case, TargetChange};

/// Facts about the server that do not describe the artefact, because they differ between any two runs.
const NO_ARTEFACT: [&str; 1] = ["server_header"];

/// Compares the fingerprints of the two runs.
pub fn facts(case: &Case<'_>) -> TargetChange {
    case.baseline.map_or_else(TargetChange::default, |base| between(base.facts, case.candidate.facts))
}

pub fn between(base: &Fingerprint, candidate: &Fingerprint) -> TargetChange {
    let mut changed = TargetChange::default();
    let (base, candidate) = (&base.facts, &candidate.facts);
    let mut names: Vec<&String> = base.keys().chain(candidate.keys()).collect();
    names.sort();
    names.dedup();
    for name in names.into_iter().filter(|name| !NO_ARTEFACT.contains(&name.as_str())) {
        match (base.get(name).cloned().flatten(), candidate.get(name).cloned().flatten()) {
            (Some(a), Some(b)) if a == b => changed.same.push(format!("{name} {}", short(&a))),
            (Some(a), Some(b)) => {
                let (from, a, b) = apart(&a, &b);
                changed.differ.push(format!("{name}{from}: {a} -> {b}"));
            }
            _ => changed.unknown.push(name.clone()),
        }
    }
    changed
}

/// Returns a value shortened for display, because flags as JSON may have kilobytes.
fn short(value: &str) -> String {
    const MOST: usize = 60;
    if value.chars().count() <= MOST {
        return value.to_owned();
    }
    let head: String = value.chars().take(MOST).collect();
    format!("{head}…")
}

/// Returns two values from shortly before their first difference, and the position of the difference.
fn apart(a: &str, b: &str) -> (String, String, String) {
    let same = a.chars().zip(b.chars()).take_while(|(x, y)| x == y).count();
    let from = if same > 40 { same - 20 } else { 0 };
    let cut = |text: &str| short(&text.chars().skip(from).collect::<String>());
    let at = if from > 0 { format!(" (at letter {from})") } else { String::new() };
    (at, cut(a), cut(b))
}
