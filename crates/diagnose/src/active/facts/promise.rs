//! What was promised, and whether experiments broke it: of requests alone, and of those beside others.
//!
//! A ceiling on a percentile is broken for sure where the share of requests over it is, at its lower bound, more than the percentile
//! allows; that is the reading of a run's budget, and forty requests can do it. That a p99 *holds* forty requests can't
//! show: then the median has to lie under the ceiling and no more requests over it than may be, and the sentence says how many there
//! were. Refusing every ceiling above the median lost: a promise of half a second that each single request breaks would go unseen.

use plimsoll_math::proportion::exceedance_bounds;
use plimsoll_model::Load;

use super::{ms, of, percent, shown};
use crate::active::block::{BlockRow, ExperimentLevel, median, share};
use crate::active::plan::{ActiveSpec, ArmSetting, ExperimentKind};
use crate::fact::{Is, Observed};
use crate::facts::Finding;
use plimsoll_measure::findings::{Ceiling, Estimate, Metric};

/// Requests alone below which nothing is said.
const LEAST: usize = 10;
/// Chance of calling a ceiling broken that is not, of one ceiling at one load: that of a run's budget.
const ALPHA: f64 = 0.05;

impl ActiveSpec {
    /// Everything that was promised: the budget's ceilings, and `--ttft` as one on the median.
    pub fn promised(&self) -> Vec<Ceiling> {
        let flag = self.ttft_s.map(|limit_s| Ceiling::new(Metric::Ttft, 0.5, limit_s));
        flag.into_iter().chain(self.ceilings.iter().copied()).collect()
    }
}

/// One ceiling at one load.
struct Held {
    ceiling: Ceiling,
    /// Share of the requests over it; those that failed are.
    over: Estimate,
    /// Is more over it, for sure, than may be?
    broken: bool,
    values: Vec<f64>,
}

impl Held {
    fn new(ceiling: Ceiling, rows: &[BlockRow], together: f64) -> Option<Held> {
        let values: Vec<f64> = rows.iter().filter_map(|row| value(row, ceiling.metric)).collect();
        let over = values.iter().filter(|x| **x > ceiling.limit_s).count();
        let mut over = share(over, values.len())?;
        // Requests beside others share batches and queues: √concurrency of them count as one.
        over.n_eff = over.n as f64 / together.max(1.0).sqrt();
        let (lower, upper) = exceedance_bounds(over.value * over.n_eff, over.n_eff, ALPHA);
        (over.lower, over.upper) = (lower, upper);
        let broken = lower > 1.0 - ceiling.percentile;
        Some(Held { ceiling, over, broken, values })
    }

    fn allowed(&self) -> f64 {
        1.0 - self.ceiling.percentile
    }

    /// `7.5 % of the requests are over ttft 500 ms (1 % may be)`.
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

/// The block at the least concurrency with the ceiling that is worst off in it.
type Worst<'a> = Option<(&'a ExperimentLevel, Held)>;

/// A request's figure, endless where it failed; `None` where it has none (one token, or it was never sent).
fn value(row: &BlockRow, metric: Metric) -> Option<f64> {
    let figure = match metric {
        Metric::Ttft => row.ttft_s(),
        Metric::Tpot => row.tpot_s(),
        Metric::E2e => row.e2e_s(),
    };
    figure.or_else(|| row.failed().then_some(f64::INFINITY))
}

/// Does a single request with no contention already exceed what was promised? Of the ceiling that is worst off.
pub(super) fn alone(blocks: &[ExperimentLevel], spec: &ActiveSpec) -> Option<Finding> {
    let block = of(blocks, ExperimentKind::Alone).next()?;
    let one = |ceiling: Ceiling| {
        let held = Held::new(ceiling, &block.rows, 1.0).filter(|held| held.values.len() >= LEAST)?;
        // Where half of them fail there is no median, and the failures are told by themselves.
        let usual = median(held.values.iter().copied(), 1.0).filter(|usual| usual.value.is_finite())?;
        let limit = ceiling.limit_s;
        let state = match () {
            () if held.broken => Is::Yes,
            () if usual.upper <= limit && held.over.value <= held.allowed() => Is::No,
            () => Is::Unclear,
        };
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

fn rank(state: Is) -> u8 {
    match state {
        Is::No => 0,
        Is::Unclear => 1,
        Is::Yes => 2,
    }
}

/// Up to which concurrency does every ceiling hold? Of the steps of concurrency and the moderate load; twice the load is meant to be
/// too much, and other prompts are not the user's.
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
        let held: Vec<Held> =
            promised.iter().filter_map(|ceiling| Held::new(*ceiling, &block.rows, concurrency)).collect();
        let excess = |held: &Held| held.over.value / held.allowed().max(1e-6);
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
    let found = |state, says: String, held: Option<&Held>| {
        Some(shown(Observed::BudgetBroken, state, says, held.map(|held| held.over), held.map(Held::allowed)))
    };
    match (worst, doubt) {
        (Some((at, held)), _) => {
            let below = best.filter(|n| at.concurrency().is_none_or(|at| *n < at));
            let below = below.map_or_else(String::new, |n| format!("; with {n} no ceiling was broken"));
            found(Is::Yes, format!("{}, {}{below}", at_concurrency(at), held.words()), Some(&held))
        }
        (None, Some((at, held))) => found(
            Is::Unclear,
            format!("{}, {}: too few to be sure", at_concurrency(at), held.words()),
            Some(&held),
        ),
        (None, None) => found(Is::No, format!("what was promised held with up to {} in flight", best?), None),
    }
}

fn at_concurrency(block: &ExperimentLevel) -> String {
    match block.level.load {
        Load::Open { rate_per_s } => format!("at {rate_per_s:.1}/s"),
        _ => format!("with {} in flight", block.concurrency().unwrap_or(1)),
    }
}
