//! Comparison of the experiments with an earlier run: has the target become slower (SPEC D1, question 3).
//!
//! Isolated requests are compared with isolated requests, and levels with levels of equal concurrency, by medians.
//! Times to first token are compared only for prompts of similar length. If the baseline lacks one of these, the fact
//! is left out and the diagnosis reports the gap. The required figures are stored with the diagnosis. Storing only
//! the folder name was rejected, because a diagnosis could then not be repeated once the baseline is deleted.

use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_model::{Attempt, Fingerprint, Level, Load};
use serde::{Deserialize, Serialize};

use super::block::{BlockRow, ExperimentLevel, LEVEL, median, ratio};
use super::facts::{self, ms, over, shown};
use super::plan::{ActiveSpec, ArmSetting, ExperimentKind};
use crate::effect::{ALONE_NEEDED, medians};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use crate::frame::is_probe;
use crate::seen::DiagnosedLevel;
use crate::verdict::{Evidence, MissingEvidence, TargetChange};
use crate::{NextExperiment, RunData, changed};
use plimsoll_measure::findings::Estimate;

/// Minimum ratio of the time per token of isolated requests, and minimum of its lower bound; as rule M1.
const TOKEN: (f64, f64) = (1.08, 1.03);
/// Minimum ratio of the faster quarter, because slow kernels slow down every request.
const FOR_ALL: f64 = 1.05;
/// Both limits for the time to first token, whose spread is wider.
const FIRST: (f64, f64) = (1.1, 1.04);
/// Minimum lower bound of the ratio for whole responses under concurrency.
const TOGETHER: f64 = 1.1;
/// Maximum ratio of lengths at which requests are comparable.
const ALIKE: f64 = 1.1;
/// Maximum ratio of context lengths, which have little influence on the time per token.
const CONTEXT: f64 = 1.25;
/// Minimum number of isolated requests per side.
const FEWEST: usize = 10;
/// Maximum number of stored requests of each kind, because more do not improve a median.
const KEPT: usize = 2_000;

/// The figures of an earlier run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EarlierRun {
    pub run: String,
    /// Known properties of the target at that time.
    pub target: Fingerprint,
    pub alone: Vec<SingleRequest>,
    /// Requests of closed loops, by concurrency.
    pub concurrency: Vec<(u32, Vec<SingleRequest>)>,
    /// Facts of the earlier run if it was an active diagnosis; else empty.
    pub shown: Vec<Finding>,
}

/// The figures of one successful request.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SingleRequest {
    /// Time to first token in s; `None` if the response was not streamed.
    pub ttft_s: Option<f64>,
    /// Time per output token after the first in s; `None` if unknown.
    pub tpot_s: Option<f64>,
    /// Latency of the whole response, s.
    pub e2e_s: f64,
    /// Computed prompt tokens: without cached tokens, if the server reports them.
    pub prompt: f64,
    pub output: f64,
}

/// An earlier run and the current state of the target.
#[derive(Copy, Clone, Debug)]
pub struct EarlierComparison<'a> {
    pub before: &'a EarlierRun,
    /// Known properties of the target now.
    pub target: &'a Fingerprint,
}

impl SingleRequest {
    fn of(row: &BlockRow) -> Option<SingleRequest> {
        let e2e_s = row.e2e_s()?;
        let prompt = (row.prompt - row.cached.unwrap_or(0.0)).max(0.0);
        Some(SingleRequest { ttft_s: row.ttft_s(), tpot_s: row.tpot_s(), e2e_s, prompt, output: row.output })
    }
}

fn answered(block: &ExperimentLevel) -> Vec<SingleRequest> {
    block.rows.iter().filter_map(SingleRequest::of).take(KEPT).collect()
}

impl EarlierRun {
    /// Reads an earlier run: an active diagnosis, a sweep, or any run with isolated requests.
    pub fn of(run: &str, side: &RunData<'_>) -> EarlierRun {
        let blocks = super::blocks(side.levels, side.attempts, side.samples);
        let shown = match blocks.is_empty() {
            true => Vec::new(),
            false => facts::read(&blocks, &ActiveSpec::default(), None),
        };
        let levels: Vec<&Level> = side.levels.iter().filter(|level| level.purpose != "warmup").collect();
        let block = |level: &Level, attempts: &[Attempt]| {
            ExperimentLevel::new((ExperimentKind::Alone, ArmSetting::Only), level, attempts, &[])
        };
        let probe = |level: &&&Level| match blocks.is_empty() {
            true => is_probe(level),
            false => super::plan::of_level(level).is_some_and(|(kind, _)| kind == ExperimentKind::Alone),
        };
        let mut alone: Vec<SingleRequest> =
            levels.iter().filter(probe).flat_map(|level| answered(&block(level, side.attempts))).collect();
        if alone.len() < ALONE_NEEDED && blocks.is_empty() {
            alone = levels
                .iter()
                .flat_map(|level| answered(&block(level, &undisturbed(level, side.attempts))))
                .collect();
        }
        alone.truncate(KEPT);
        let at_concurrency = |level: &&Level| -> Option<(u32, Vec<SingleRequest>)> {
            let plain = super::plan::of_level(level).is_none_or(|(kind, _)| kind == ExperimentKind::Together);
            match level.load {
                Load::Closed { concurrency } | Load::Saturating { concurrency }
                    if concurrency > 1 && plain =>
                {
                    Some((concurrency, answered(&block(level, side.attempts))))
                }
                _ => None,
            }
        };
        let concurrency = levels.iter().filter_map(at_concurrency).collect();
        EarlierRun { run: run.to_owned(), target: side.facts.clone(), alone, concurrency, shown }
    }

    /// Returns the facts of the comparison.
    pub fn read(&self, blocks: &[ExperimentLevel]) -> Vec<Finding> {
        let now: Vec<SingleRequest> = facts::of(blocks, ExperimentKind::Alone).flat_map(answered).collect();
        let mut all = Vec::new();
        all.extend(self.token(&now));
        all.extend(self.first(&now));
        all.extend(self.together(blocks));
        all
    }

    fn token(&self, now: &[SingleRequest]) -> Option<Finding> {
        let context = |of: &SingleRequest| Some(of.prompt + 0.5 * of.output);
        alike(&self.alone, now, context, CONTEXT)?;
        let (a, b) = (values(&self.alone, |of| of.tpot_s), values(now, |of| of.tpot_s));
        let ratio = of_medians(&a, &b)?;
        let for_all = of_sorted(&b, 0.25)? / of_sorted(&a, 0.25)? >= FOR_ALL;
        let state = slower(&ratio, TOKEN, for_all);
        let says = beside("isolated, a token takes", &a, &b)?;
        Some(shown(Observed::AloneTokensSlower, state, says, Some(ratio), Some(TOKEN.0)))
    }

    fn first(&self, now: &[SingleRequest]) -> Option<Finding> {
        alike(&self.alone, now, |of| Some(of.prompt), ALIKE)?;
        let (a, b) = (values(&self.alone, |of| of.ttft_s), values(now, |of| of.ttft_s));
        let ratio = of_medians(&a, &b)?;
        let says = beside("isolated, the first token takes", &a, &b)?;
        Some(shown(Observed::AloneFirstLater, slower(&ratio, FIRST, true), says, Some(ratio), Some(FIRST.0)))
    }

    /// Compares whole responses at the highest concurrency of both sides.
    fn together(&self, blocks: &[ExperimentLevel]) -> Option<Finding> {
        let (at, then, now) = self.shared_concurrency(blocks)?;
        alike(then, &now, |of| Some(of.prompt), ALIKE)?;
        alike(then, &now, |of| Some(of.output), ALIKE)?;
        let effect = f64::from(at).sqrt();
        let e2e = |of: &[SingleRequest]| median(of.iter().map(|of| of.e2e_s), effect);
        let (a, b) = (e2e(then)?, e2e(&now)?);
        let times = ratio(&b, &a)?;
        let says = format!("with {at} in flight an answer takes {}, before {}", ms(b.value), ms(a.value));
        Some(shown(Observed::SlowerBeside, over(&times, TOGETHER), says, Some(times), Some(TOGETHER)))
    }

    fn shared_concurrency(
        &self,
        blocks: &[ExperimentLevel],
    ) -> Option<(u32, &[SingleRequest], Vec<SingleRequest>)> {
        let both = facts::of(blocks, ExperimentKind::Together).filter_map(|block| {
            let at = block.concurrency()?;
            let then = self.concurrency.iter().find(|(concurrency, _)| *concurrency == at)?;
            Some((at, then.1.as_slice(), answered(block)))
        });
        both.max_by_key(|(at, ..)| *at)
    }

    /// Returns the 90 % interval of the ratio of the isolated time per token, which can clear the model.
    pub(crate) fn token_ratio(&self, blocks: &[ExperimentLevel]) -> Option<Estimate> {
        let now: Vec<SingleRequest> = facts::of(blocks, ExperimentKind::Alone).flat_map(answered).collect();
        medians(&values(&self.alone, |of| of.tpot_s), &values(&now, |of| of.tpot_s), 0.9)
    }

    /// Returns evidence on whether the earlier run showed this fact too.
    pub fn evidence(&self, fact: Observed) -> Option<Evidence> {
        let then = self.shown.iter().find(|shown| shown.fact == fact)?;
        let word = match then.is {
            FactState::Yes => "this is unchanged",
            FactState::No => "this is new",
            FactState::Unclear => return None,
        };
        let figure = format!("before_{}", fact.word());
        let says = format!("{word}: {}", then.says);
        Some(Evidence { figure, says, value: then.value, limit: then.limit, inferred: true })
    }

    /// Returns the comparisons that are impossible, with the reasons.
    pub fn lacks(&self, blocks: &[ExperimentLevel], shown: &[Finding]) -> Vec<MissingEvidence> {
        let known = |fact: Observed| shown.iter().any(|shown| shown.fact == fact);
        let now: Vec<SingleRequest> = facts::of(blocks, ExperimentKind::Alone).flat_map(answered).collect();
        let run = &self.run;
        let mut all = Vec::new();
        let mut lacks = |what: String| all.push(MissingEvidence { what, needs: NextExperiment::Baseline });
        let few = self.alone.len().min(now.len());
        if few < FEWEST {
            let (then, now) = (self.alone.len(), now.len());
            lacks(format!(
                "whether an isolated request is slower than before: {run} has {then} isolated requests and {now} were answered now; it takes {FEWEST}"
            ));
        } else if !known(Observed::AloneFirstLater) {
            let prompt =
                |of: &[SingleRequest]| of_sorted(&values(of, |of| Some(of.prompt)), 0.5).unwrap_or(0.0);
            let (then, now) = (prompt(&self.alone), prompt(&now));
            lacks(format!(
                "whether isolated first tokens are later than before: prompts of {then:.0} tokens in {run}, {now:.0} now"
            ));
        }
        if !known(Observed::SlowerBeside) && facts::of(blocks, ExperimentKind::Together).next().is_some() {
            let why = match self.shared_concurrency(blocks) {
                Some(_) => "its requests have other lengths",
                None => "it has no closed loop with as many requests in flight",
            };
            lacks(format!("whether concurrency costs more than in {run}: {why}"));
        }
        all
    }
}

impl EarlierComparison<'_> {
    /// Returns the known changes of the target.
    pub fn changed(&self) -> TargetChange {
        changed::between(&self.before.target, self.target)
    }
}

/// Returns the isolated requests of a level: successful first attempts.
fn undisturbed(level: &Level, attempts: &[Attempt]) -> Vec<Attempt> {
    let seen = DiagnosedLevel::read(level, attempts);
    let alone: std::collections::BTreeSet<u64> = seen.alone().map(|row| row.request).collect();
    attempts.iter().filter(|of| of.level == level.id && alone.contains(&of.request)).cloned().collect()
}

/// Returns the known values in ascending order.
fn values(of: &[SingleRequest], value: impl Fn(&SingleRequest) -> Option<f64>) -> Vec<f64> {
    let mut all: Vec<f64> = of.iter().filter_map(value).collect();
    sort(&mut all);
    all
}

/// Returns `Some` if the ratio of the medians is at most `most`.
fn alike(
    then: &[SingleRequest],
    now: &[SingleRequest],
    of: impl Fn(&SingleRequest) -> Option<f64>,
    most: f64,
) -> Option<()> {
    let (a, b) = (of_sorted(&values(then, &of), 0.5)?, of_sorted(&values(now, &of), 0.5)?);
    (a.max(b) <= most * a.min(b) + 2.0).then_some(())
}

/// Returns the ratio of the medians of two sorted sides. Below the minimum counts of the rules, the interval is the
/// wider one from the ends of both medians' intervals.
fn of_medians(then: &[f64], now: &[f64]) -> Option<Estimate> {
    let few = then.len().min(now.len());
    let wide = || ratio(&median(now.iter().copied(), 1.0)?, &median(then.iter().copied(), 1.0)?);
    medians(then, now, LEVEL).or_else(|| if few >= FEWEST { wide() } else { None })
}

fn slower(ratio: &Estimate, (value, lower): (f64, f64), for_all: bool) -> FactState {
    FactState::of(ratio.value >= value && ratio.lower > lower && for_all, ratio.upper < value)
}

fn beside(what: &str, then: &[f64], now: &[f64]) -> Option<String> {
    Some(format!("{what} {}, before {}", ms(of_sorted(now, 0.5)?), ms(of_sorted(then, 0.5)?)))
}
