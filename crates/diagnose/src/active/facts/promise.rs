//! Facts on the budget: whether isolated requests or requests under concurrency break its ceilings.
//!
//! A ceiling on a percentile is broken if the lower bound of the share of requests over it exceeds the allowed share.
//! The budget of a run uses that rule, and forty requests suffice for it. Forty requests can't prove that a p99
//! *passes*. Then the median must be under the ceiling and the share over it within the allowed share; the phrase
//! states the number of requests. Refusing every ceiling above the median was rejected: a ceiling of 0.5 s that every
//! isolated request breaks would go unnoticed.

use plimsoll_math::proportion::exceedance_bounds;
use plimsoll_model::Load;

use super::{ms, of, percent, shown};
use crate::active::block::{BlockRow, ExperimentLevel, median, share};
use crate::active::plan::{ActiveSpec, ArmSetting, ExperimentKind};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use plimsoll_measure::findings::{Ceiling, Estimate, Metric};

/// Minimum number of isolated requests with a value; with fewer a ceiling has no verdict.
const LEAST: usize = 10;
/// Error probability of calling a ceiling broken, for one ceiling at one load; equal to that of a run's budget.
const ALPHA: f64 = 0.05;

impl ActiveSpec {
    /// Returns all ceilings: the budget's, and `--ttft` as one on the median.
    pub fn promised(&self) -> Vec<Ceiling> {
        let flag = self.ttft_s.map(|limit_s| Ceiling::new(Metric::Ttft, 0.5, limit_s));
        flag.into_iter().chain(self.ceilings.iter().copied()).collect()
    }
}

struct CeilingCheck {
    ceiling: Ceiling,
    /// Share of the requests over the ceiling; failed requests are over it.
    over: Estimate,
    /// Set if the share exceeds the allowed share with confidence.
    broken: bool,
    values: Vec<f64>,
}

impl CeilingCheck {
    fn new(ceiling: Ceiling, rows: &[BlockRow], together: f64) -> Option<CeilingCheck> {
        let values: Vec<f64> = rows.iter().filter_map(|row| value(row, ceiling.metric)).collect();
        let over = values.iter().filter(|x| **x > ceiling.limit_s).count();
        let mut over = share(over, values.len())?;
        // Concurrent requests share batches and queues, so √concurrency of them count as one.
        over.n_eff = over.n as f64 / together.max(1.0).sqrt();
        let (lower, upper) = exceedance_bounds(over.value * over.n_eff, over.n_eff, ALPHA);
        (over.lower, over.upper) = (lower, upper);
        let broken = lower > 1.0 - ceiling.percentile;
        Some(CeilingCheck { ceiling, over, broken, values })
    }

    fn allowed(&self) -> f64 {
        1.0 - self.ceiling.percentile
    }

    /// Returns the evidence as text: `7.5 % of the requests are over ttft 500 ms (1 % may be)`.
    fn words(&self) -> String {
        format!(
            "{} of the requests are over {} {} ({} may be)",
            percent(self.over.value),
            self.ceiling.metric.name(),
            ms(self.ceiling.limit_s),
            percent(self.allowed())
        )
    }
}

/// The level with the lowest concurrency, and its worst ceiling.
type Worst<'a> = Option<(&'a ExperimentLevel, CeilingCheck)>;

/// Returns the value of a request, infinite if it failed. Returns `None` if it has none (one token, or never sent).
fn value(row: &BlockRow, metric: Metric) -> Option<f64> {
    let figure = match metric {
        Metric::Ttft => row.ttft_s(),
        Metric::Tpot => row.tpot_s(),
        Metric::E2e => row.e2e_s(),
    };
    figure.or_else(|| row.failed().then_some(f64::INFINITY))
}

/// Checks whether isolated requests already exceed the worst ceiling.
pub(super) fn alone(blocks: &[ExperimentLevel], spec: &ActiveSpec) -> Option<Finding> {
    let block = of(blocks, ExperimentKind::Alone).next()?;
    let one = |ceiling: Ceiling| {
        let held = CeilingCheck::new(ceiling, &block.rows, 1.0).filter(|held| held.values.len() >= LEAST)?;
        // If half of the requests fail there is no median; the failures are a separate fact.
        let usual = median(held.values.iter().copied(), 1.0).filter(|usual| usual.value.is_finite())?;
        let limit = ceiling.limit_s;
        let state = FactState::of(held.broken, usual.upper <= limit && held.over.value <= held.allowed());
        let says = format!("isolated, {}; the median is {}", held.words(), ms(usual.value));
        Some((
            rank(state),
            usual.value / limit,
            shown(Observed::AloneOverBudget, state, says, Some(usual), Some(limit)),
        ))
    };
    let all = spec.promised().into_iter().filter_map(one);
    all.max_by(|a, b| (a.0, a.1).partial_cmp(&(b.0, b.1)).unwrap_or(std::cmp::Ordering::Equal))
        .map(|(.., shown)| shown)
}

fn rank(state: FactState) -> u8 {
    match state {
        FactState::No => 0,
        FactState::Unclear => 1,
        FactState::Yes => 2,
    }
}

/// Returns the concurrency up to which every ceiling passes, from the concurrency steps and the moderate load. Twice
/// the load is meant to be too much, and other prompts are not the user's.
pub(super) fn together(blocks: &[ExperimentLevel], spec: &ActiveSpec) -> Option<Finding> {
    let promised = spec.promised();
    let own = |block: &&ExperimentLevel| match block.kind {
        ExperimentKind::Together | ExperimentKind::Watch => true,
        ExperimentKind::Rates => block.arm == ArmSetting::First,
        _ => false,
    };
    let (mut worst, mut fine, mut doubt): (Worst<'_>, Vec<&ExperimentLevel>, Worst<'_>) =
        (None, Vec::new(), None);
    for block in blocks.iter().filter(own) {
        let concurrency = f64::from(block.concurrency().unwrap_or(1));
        let held: Vec<CeilingCheck> = promised
            .iter()
            .filter_map(|ceiling| CeilingCheck::new(*ceiling, &block.rows, concurrency))
            .collect();
        let excess = |held: &CeilingCheck| held.over.value / held.allowed().max(1e-6);
        let most = held.into_iter().max_by(|a, b| {
            (a.broken, excess(a)).partial_cmp(&(b.broken, excess(b))).unwrap_or(std::cmp::Ordering::Equal)
        });
        let Some(most) = most else { continue };
        let least =
            |other: &Worst<'_>| other.as_ref().is_none_or(|(at, _)| block.concurrency() < at.concurrency());
        match (most.broken, most.over.value <= most.allowed()) {
            (true, _) if least(&worst) => worst = Some((block, most)),
            (true, _) => {}
            (false, true) => fine.push(block),
            (false, false) if least(&doubt) => doubt = Some((block, most)),
            (false, false) => {}
        }
    }
    let best = fine.iter().filter_map(|block| block.concurrency()).max();
    let found = |state, says: String, held: Option<&CeilingCheck>| {
        Some(shown(
            Observed::BudgetBroken,
            state,
            says,
            held.map(|held| held.over),
            held.map(CeilingCheck::allowed),
        ))
    };
    match (worst, doubt) {
        (Some((at, held)), _) => {
            let below = best.filter(|n| at.concurrency().is_none_or(|at| *n < at));
            let below = below.map_or_else(String::new, |n| format!("; with {n} no ceiling was broken"));
            found(FactState::Yes, format!("{}, {}{below}", at_concurrency(at), held.words()), Some(&held))
        }
        (None, Some((at, held))) => found(
            FactState::Unclear,
            format!("{}, {}: too few to be sure", at_concurrency(at), held.words()),
            Some(&held),
        ),
        (None, None) => {
            found(FactState::No, format!("the budget passed with up to {} requests in flight", best?), None)
        }
    }
}

fn at_concurrency(block: &ExperimentLevel) -> String {
    match block.level.load {
        Load::Open { rate_per_s } => format!("at {rate_per_s:.1}/s"),
        _ => format!("with {} in flight", block.concurrency().unwrap_or(1)),
    }
}
