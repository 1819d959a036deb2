//! What is known to have changed between the two runs. A fact that one side does not know is unknown, never unchanged.

use super::{Case, Changed};

/// Facts about the server that say nothing of the artefact: they differ between any two runs.
const NO_ARTEFACT: [&str; 1] = ["server_header"];

/// Compares the fingerprints.
pub fn facts(case: &Case<'_>) -> Changed {
    let mut changed = Changed::default();
    let Some(base) = case.baseline else { return changed };
    let (base, candidate) = (&base.facts.facts, &case.candidate.facts.facts);
    let mut names: Vec<&String> = base.keys().chain(candidate.keys()).collect();
    names.sort();
    names.dedup();
    for name in names.into_iter().filter(|name| !NO_ARTEFACT.contains(&name.as_str())) {
        match (base.get(name).cloned().flatten(), candidate.get(name).cloned().flatten()) {
            (Some(a), Some(b)) if a == b => changed.same.push(format!("{name} {a}")),
            (Some(a), Some(b)) => changed.differ.push(format!("{name}: {a} -> {b}")),
            _ => changed.unknown.push(name.clone()),
        }
    }
    changed
}
