//! What an earlier run measured, beside what the experiments measure now: has the target become slower (SPEC D1, question 3)?
//!
//! Requests alone are held against requests alone, and concurrency against as much concurrency, by medians; never one kind against the
//! other, and first tokens only of prompts of like length. A baseline that lacks one of these leaves that fact out, and the
//! diagnosis says so. The figures that are needed are kept with the diagnosis: naming the folder alone lost, because a
//! diagnosis could then not be read again where the baseline has gone.

use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_model::{Attempt, Fingerprint, Level, Load};
use serde::{Deserialize, Serialize};

use super::block::{BlockRow, ExperimentLevel, LEVEL, median, ratio};
use super::facts::{self, ms, over, shown};
use super::plan::{ActiveSpec, ArmSetting, ExperimentKind};
use crate::effect::{ALONE_NEEDED, medians};
use crate::fact::{Is, Observed};
use crate::facts::Finding;
use crate::frame::is_probe;
use crate::seen::SeenLevel;
use crate::verdict::{Changed, Evidence, Missing};
use crate::{NextExperiment, RunData, changed};
use plimsoll_measure::findings::Estimate;

/// Times as long per token from which a request alone has become slower, and what the lower bound has to pass: as rule M1.
const TOKEN: (f64, f64) = (1.08, 1.03);
/// What even the faster quarter must show of it: kernels are slow for everyone.
const FOR_ALL: f64 = 1.05;
/// The same of the first token, whose spread is wider.
const FIRST: (f64, f64) = (1.1, 1.04);
/// The same of whole answers beside others: the lower bound has to pass it.
const TOGETHER: f64 = 1.1;
/// Ratio of lengths up to which requests are alike.
const ALIKE: f64 = 1.1;
/// The same of a context, which weighs little in the time per token.
const CONTEXT: f64 = 1.25;
/// Requests alone of a side below which they are not compared.
const FEWEST: usize = 10;
/// Requests kept of each kind: medians of more tell nothing more.
const KEPT: usize = 2_000;

/// The figures of an earlier run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EarlierRun {
    pub run: String,
    /// What was known of its target.
    pub target: Fingerprint,
    /// Requests that had the target to themselves.
    pub alone: Vec<Once>,
    /// Requests of closed loops, by how many were in flight.
    pub concurrency: Vec<(u32, Vec<Once>)>,
    /// What it showed, where it was an active diagnosis itself.
    pub shown: Vec<Finding>,
}

/// One request that was answered.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Once {
    /// Seconds to the first token, where it streamed.
    pub ttft_s: Option<f64>,
    /// Seconds per token after it.
    pub tpot_s: Option<f64>,
    /// Seconds to the end.
    pub e2e_s: f64,
    /// Prompt tokens that were computed: those from a cache left out, where the server says so.
    pub prompt: f64,
    pub output: f64,
}

/// An earlier run and the target as it is now.
#[derive(Copy, Clone, Debug)]
pub struct BeforeAndNow<'a> {
    pub before: &'a EarlierRun,
    /// What is known of the target now.
    pub target: &'a Fingerprint,
}

impl Once {
    fn of(row: &BlockRow) -> Option<Once> {
        let e2e_s = row.e2e_s()?;
        let prompt = (row.prompt - row.cached.unwrap_or(0.0)).max(0.0);
        Some(Once { ttft_s: row.ttft_s(), tpot_s: row.tpot_s(), e2e_s, prompt, output: row.output })
    }
}

fn answered(block: &ExperimentLevel) -> Vec<Once> {
    block.rows.iter().filter_map(Once::of).take(KEPT).collect()
}

impl EarlierRun {
    /// Reads an earlier run: an active diagnosis, a sweep, or any run with requests that had the target to themselves.
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
        let mut alone: Vec<Once> =
            levels.iter().filter(probe).flat_map(|level| answered(&block(level, side.attempts))).collect();
        if alone.len() < ALONE_NEEDED && blocks.is_empty() {
            alone = levels
                .iter()
                .flat_map(|level| answered(&block(level, &undisturbed(level, side.attempts))))
                .collect();
        }
        alone.truncate(KEPT);
        let at_concurrency = |level: &&Level| -> Option<(u32, Vec<Once>)> {
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

    /// What the experiments show beside it.
    pub fn read(&self, blocks: &[ExperimentLevel]) -> Vec<Finding> {
        let now: Vec<Once> = facts::of(blocks, ExperimentKind::Alone).flat_map(answered).collect();
        let mut all = Vec::new();
        all.extend(self.token(&now));
        all.extend(self.first(&now));
        all.extend(self.together(blocks));
        all
    }

    fn token(&self, now: &[Once]) -> Option<Finding> {
        let context = |of: &Once| Some(of.prompt + 0.5 * of.output);
        alike(&self.alone, now, context, CONTEXT)?;
        let (a, b) = (values(&self.alone, |of| of.tpot_s), values(now, |of| of.tpot_s));
        let ratio = of_medians(&a, &b)?;
        let for_all = of_sorted(&b, 0.25)? / of_sorted(&a, 0.25)? >= FOR_ALL;
        let state = slower(&ratio, TOKEN, for_all);
        let says = beside("isolated, a token takes", &a, &b)?;
        Some(shown(Observed::AloneTokensSlower, state, says, Some(ratio), Some(TOKEN.0)))
    }

    fn first(&self, now: &[Once]) -> Option<Finding> {
        alike(&self.alone, now, |of| Some(of.prompt), ALIKE)?;
        let (a, b) = (values(&self.alone, |of| of.ttft_s), values(now, |of| of.ttft_s));
        let ratio = of_medians(&a, &b)?;
        let says = beside("isolated, the first token takes", &a, &b)?;
        Some(shown(Observed::AloneFirstLater, slower(&ratio, FIRST, true), says, Some(ratio), Some(FIRST.0)))
    }

    /// Whole answers at the highest concurrency that both had.
    fn together(&self, blocks: &[ExperimentLevel]) -> Option<Finding> {
        let (at, then, now) = self.shared_concurrency(blocks)?;
        alike(then, &now, |of| Some(of.prompt), ALIKE)?;
        alike(then, &now, |of| Some(of.output), ALIKE)?;
        let effect = f64::from(at).sqrt();
        let e2e = |of: &[Once]| median(of.iter().map(|of| of.e2e_s), effect);
        let (a, b) = (e2e(then)?, e2e(&now)?);
        let times = ratio(&b, &a)?;
        let says = format!("with {at} in flight an answer takes {}, before {}", ms(b.value), ms(a.value));
        Some(shown(Observed::SlowerBeside, over(&times, TOGETHER), says, Some(times), Some(TOGETHER)))
    }

    fn shared_concurrency(&self, blocks: &[ExperimentLevel]) -> Option<(u32, &[Once], Vec<Once>)> {
        let both = facts::of(blocks, ExperimentKind::Together).filter_map(|block| {
            let at = block.concurrency()?;
            let then = self.concurrency.iter().find(|(concurrency, _)| *concurrency == at)?;
            Some((at, then.1.as_slice(), answered(block)))
        });
        both.max_by_key(|(at, ..)| *at)
    }

    /// The ratio of the time per token alone, at 90 %: what clears the model.
    pub(crate) fn token_ratio(&self, blocks: &[ExperimentLevel]) -> Option<Estimate> {
        let now: Vec<Once> = facts::of(blocks, ExperimentKind::Alone).flat_map(answered).collect();
        medians(&values(&self.alone, |of| of.tpot_s), &values(&now, |of| of.tpot_s), 0.9)
    }

    /// Was what shows now there before as well?
    pub fn evidence(&self, fact: Observed) -> Option<Evidence> {
        let then = self.shown.iter().find(|shown| shown.fact == fact)?;
        let word = match then.is {
            Is::Yes => "it was so before as well",
            Is::No => "it was not so before",
            Is::Unclear => return None,
        };
        let figure = format!("before_{}", fact.word());
        let says = format!("{word}: {}", then.says);
        Some(Evidence { figure, says, value: then.value, limit: then.limit, inferred: true })
    }

    /// What can't be compared, and why.
    pub fn lacks(&self, blocks: &[ExperimentLevel], shown: &[Finding]) -> Vec<Missing> {
        let known = |fact: Observed| shown.iter().any(|shown| shown.fact == fact);
        let now: Vec<Once> = facts::of(blocks, ExperimentKind::Alone).flat_map(answered).collect();
        let run = &self.run;
        let mut all = Vec::new();
        let mut lacks = |what: String| all.push(Missing { what, needs: NextExperiment::Baseline });
        let few = self.alone.len().min(now.len());
        if few < FEWEST {
            let (then, now) = (self.alone.len(), now.len());
            lacks(format!(
                "whether an isolated request is slower than before: {run} holds {then} that had the target to themselves and {now} were answered now, of {FEWEST} that it takes"
            ));
        } else if !known(Observed::AloneFirstLater) {
            let prompt = |of: &[Once]| of_sorted(&values(of, |of| Some(of.prompt)), 0.5).unwrap_or(0.0);
            let (then, now) = (prompt(&self.alone), prompt(&now));
            lacks(format!(
                "whether isolated first tokens are later than before: prompts of {then:.0} tokens in {run}, {now:.0} now"
            ));
        }
        if !known(Observed::SlowerBeside) && facts::of(blocks, ExperimentKind::Together).next().is_some() {
            let why = match self.shared_concurrency(blocks) {
                Some(_) => "its requests are of other lengths",
                None => "it holds no closed loop with as many in flight",
            };
            lacks(format!("whether concurrency costs more than in {run}: {why}"));
        }
        all
    }
}

impl BeforeAndNow<'_> {
    /// What is known to have changed of the target.
    pub fn changed(&self) -> Changed {
        changed::between(&self.before.target, self.target)
    }
}

/// The requests of a level that had the target to themselves, first attempts that were answered.
fn undisturbed(level: &Level, attempts: &[Attempt]) -> Vec<Attempt> {
    let seen = SeenLevel::read(level, attempts);
    let alone: std::collections::BTreeSet<u64> = seen.alone().map(|row| row.request).collect();
    attempts.iter().filter(|of| of.level == level.id && alone.contains(&of.request)).cloned().collect()
}

/// The values that are known, sorted.
fn values(of: &[Once], value: impl Fn(&Once) -> Option<f64>) -> Vec<f64> {
    let mut all: Vec<f64> = of.iter().filter_map(value).collect();
    sort(&mut all);
    all
}

/// Are the medians within this ratio of each other?
fn alike(then: &[Once], now: &[Once], of: impl Fn(&Once) -> Option<f64>, most: f64) -> Option<()> {
    let (a, b) = (of_sorted(&values(then, &of), 0.5)?, of_sorted(&values(now, &of), 0.5)?);
    (a.max(b) <= most * a.min(b) + 2.0).then_some(())
}

/// The ratio of two sorted sides' medians. Below what the rules ask for, with the wider interval of two medians' extremes.
fn of_medians(then: &[f64], now: &[f64]) -> Option<Estimate> {
    let few = then.len().min(now.len());
    let wide = || ratio(&median(now.iter().copied(), 1.0)?, &median(then.iter().copied(), 1.0)?);
    medians(then, now, LEVEL).or_else(|| if few >= FEWEST { wide() } else { None })
}

fn slower(ratio: &Estimate, (value, lower): (f64, f64), for_all: bool) -> Is {
    match () {
        () if ratio.value >= value && ratio.lower > lower && for_all => Is::Yes,
        () if ratio.upper < value => Is::No,
        () => Is::Unclear,
    }
}

fn beside(what: &str, then: &[f64], now: &[f64]) -> Option<String> {
    Some(format!("{what} {}, before {}", ms(of_sorted(now, 0.5)?), ms(of_sorted(then, 0.5)?)))
}
