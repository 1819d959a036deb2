//! Facts from experiments, each with its decisive figure (the names of all facts: [`crate::fact`]).
//!
//! A fact is *yes*, *no* or *unclear*, never only a number. Unclear facts have no weight. Each threshold is
//! documented in the file of the experiments that use it.

pub(crate) mod concurrency;
pub(crate) mod failed;
pub(crate) mod isolated;
pub(crate) mod promise;
pub(crate) mod rhythm;
pub(crate) mod settings;

use plimsoll_model::SizeUnit;

use super::before::EarlierRun;
use super::block::{BlockRow, ExperimentLevel};
use super::plan::{ActiveSpec, ArmSetting, ExperimentKind};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use plimsoll_measure::findings::Estimate;

/// Returns all facts of the levels, compared with an earlier run if there is one.
pub fn read(blocks: &[ExperimentLevel], spec: &ActiveSpec, before: Option<&EarlierRun>) -> Vec<Finding> {
    let mut shown = failed::read(blocks);
    shown.extend(isolated::coalesced(blocks));
    shown.extend(rhythm::read(blocks));
    shown.extend(promise::alone(blocks, spec));
    shown.extend(isolated::isolated(blocks));
    shown.extend(concurrency::concurrency(blocks));
    shown.extend(promise::together(blocks, spec));
    shown.extend(settings::settings(blocks));
    shown.extend(settings::replicas(blocks));
    shown.extend(before.into_iter().flat_map(|before| before.read(blocks)));
    if blocks.iter().any(without_tokens) {
        shown.iter_mut().for_each(|shown| shown.says = of_answers(&shown.says));
    }
    shown
}

/// Adapts a phrase on first tokens to servers that return the whole response: the timestamps mark its first
/// byte.
fn of_answers(says: &str) -> String {
    says.replace("first tokens", "answers").replace("first token", "answer")
}

/// Returns whether the protocol has rows instead of tokens. Such a response arrives as a whole, and there is no KV
/// cache.
pub(super) fn without_tokens(block: &ExperimentLevel) -> bool {
    block.level.unit == SizeUnit::Items
}

pub(crate) fn shown(
    fact: Observed,
    is: FactState,
    says: String,
    value: Option<Estimate>,
    limit: Option<f64>,
) -> Finding {
    Finding { value, limit, ..Finding::new(fact, is, says) }
}

/// Returns yes if the lower bound exceeds the limit, no if the upper bound is below it.
pub(crate) fn over(value: &Estimate, limit: f64) -> FactState {
    FactState::of(value.lower > limit, value.upper < limit)
}

pub(crate) fn of(blocks: &[ExperimentLevel], kind: ExperimentKind) -> impl Iterator<Item = &ExperimentLevel> {
    blocks.iter().filter(move |block| block.kind == kind)
}

/// Returns the rows of all levels with one setting.
fn arm(blocks: &[ExperimentLevel], kind: ExperimentKind, arm: ArmSetting) -> Vec<&BlockRow> {
    of(blocks, kind).filter(|block| block.arm == arm).flat_map(|block| &block.rows).collect()
}

pub(crate) fn ms(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.0} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.01 => format!("{:.0} ms", 1e3 * s),
        s => format!("{:.1} ms", 1e3 * s),
    }
}

pub(crate) fn percent(share: f64) -> String {
    if share < 0.1 { format!("{:.1} %", 100.0 * share) } else { format!("{:.0} %", 100.0 * share) }
}

#[cfg(test)]
mod tests {
    use super::of_answers;

    #[test]
    fn answers_that_come_whole_have_no_first_token() {
        assert_eq!(
            of_answers("first tokens of isolated requests follow no clock"),
            "answers of isolated requests follow no clock"
        );
        assert_eq!(of_answers("in all 8 the first token waits"), "in all 8 the answer waits");
    }
}
