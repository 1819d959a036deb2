//! Levels of one kind of traffic → their curve and their three lines.
//!
//! **Queueing onset**: the load at which the tail of `ttft` reaches a factor (1.5) of its zero-contention value, from
//! a monotone fit of ln p99 on load with a bootstrap over batches whose spread levels share (`tail::fit`,
//! which says what each level for itself would get wrong). Segmented regression and Kneedle lost: where they
//! put the knee depends on where the last level happened to be.
//! **Stability limit**: the bracket [last stable, first unstable] by the in-flight rule, with what an overloaded
//! target really finished per second as the estimate between.
//! **Budget line**: the bracket [last pass, first fail] of the budget by Beta bounds, with the crossing of the share
//! over the tightest ceiling between.

use plimsoll_math::isotonic::{Crossing, crossing, rising_fit};
use plimsoll_math::rng::Stream;
use plimsoll_model::{Attempt, Level, Load, Sample, SizeUnit};

use crate::columns::Columns;
use crate::findings::{
    BudgetRow, BudgetSpec, Curve, CurvePoint, Estimate, Held, Kept, LadderRung, Lengths, LevelFinding, Line,
    Lines, LoadWords, Reading, Trust,
};
use crate::gather::Gathered;
use crate::say::{count, number};
use crate::summary::{full_throughput, summarise_columns};
use crate::tail::{Fit, Upper, crossing_rate, fit};
use crate::validity;
use crate::whole::{as_far_as_it_got, of_level};

/// What the lines are read with.
#[derive(Clone, PartialEq, Debug)]
pub struct LineSpec {
    /// Times the zero-contention value that marks the onset.
    pub knee_factor: f64,
    /// Percentile that the onset is read from if the data support it.
    pub percentile: f64,
    /// Time a person takes between an answer and the next request, s.
    pub think_time_s: f64,
    /// The budget, if any.
    pub budget: Option<BudgetSpec>,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Redraws of the bootstrap.
    pub replicates: usize,
}

/// One level as the lines need it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The level itself.
    pub level: Level,
    /// What was found on it.
    pub finding: LevelFinding,
    /// The upper values of its leading latency.
    pub upper: Upper,
    /// The metric that leads.
    pub metric: &'static str,
    /// What was finished per second once the target was full.
    full: Reading,
}

impl Observed {
    /// Summarises and judges one level from its own records.
    pub fn new(
        level: &Level,
        own: &[&Attempt],
        samples: &[&Sample],
        budget: Option<&BudgetSpec>,
    ) -> Observed {
        Observed::of_columns(level, &Columns::read(own), samples, budget).0
    }

    /// The same of a level whose records were gathered as they ended. Samples of other levels are passed over.
    pub fn gathered(
        level: &Level,
        gathered: Gathered,
        samples: &[Sample],
        budget: Option<&BudgetSpec>,
    ) -> Observed {
        let level = as_far_as_it_got(level, gathered.last_end(), gathered.first_tries());
        let samples = of_level(samples, &level);
        Observed::of_columns(&level, &gathered.into_columns(), &samples, budget).0
    }

    /// The same of columns, with the requests that count.
    pub(crate) fn of_columns(
        level: &Level,
        columns: &Columns,
        samples: &[&Sample],
        budget: Option<&BudgetSpec>,
    ) -> (Observed, (usize, usize)) {
        let (summary, (from, to)) = summarise_columns(level, columns, samples, budget);
        let (metric, leading) = columns.leading();
        let upper = Upper::keep(&leading[from..to]);
        let full = full_throughput(columns, (level.start, level.stop));
        let validity = validity::judge(level, &summary);
        let observed = Observed {
            level: level.clone(),
            finding: LevelFinding { summary, validity },
            upper,
            metric,
            full,
        };
        (observed, (from, to))
    }

    /// Offered load as it fell, requests/s.
    pub fn rate(&self) -> f64 {
        self.finding.summary.rates.offered_per_s
    }

    fn is_open(&self) -> bool {
        matches!(self.level.load, Load::Open { .. })
    }

    /// May lines be drawn through it?
    fn counts(&self) -> bool {
        self.finding.validity.verdict != Trust::Invalid && self.finding.summary.counts.requests > 0
    }

    fn kept(&self) -> Kept {
        self.finding.summary.stability.verdict
    }

    fn achieved(&self) -> Option<&Estimate> {
        self.finding.summary.rates.achieved_per_s.estimate()
    }
}

/// The zero-contention level that the onset is measured against.
pub struct Zero<'a> {
    /// The level.
    pub observed: &'a Observed,
    /// The percentile that it and enough levels support.
    pub percentile: f64,
    /// Where it comes from, as a sentence.
    pub from: String,
}

/// Everything read from the levels of one kind of traffic.
pub struct Read {
    /// The curve.
    pub curve: Curve,
    /// The lines.
    pub lines: Lines,
}

/// Percentiles that an onset may be read from, best first.
const LADDER_OF_PERCENTILES: [f64; 4] = [0.99, 0.95, 0.9, 0.5];

/// Fewest levels a fit makes sense with.
const LEAST_LEVELS: usize = 3;

/// Reads curve and lines of one kind of traffic. `zero` holds the levels at concurrency 1 (of any kind of traffic: one
/// request at a time is the same for all).
pub fn read(traffic: &str, levels: &[&Observed], zero: &[&Observed], spec: &LineSpec) -> Read {
    let mut open: Vec<&Observed> = levels.iter().copied().filter(|o| o.is_open() && o.rate() > 0.0).collect();
    open.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    let good: Vec<&Observed> = open.iter().copied().filter(|o| o.counts()).collect();
    let capacity = ladder_capacity(levels);
    let reference = zero_contention(&good, zero, capacity, spec.percentile, spec.seed);
    let words = Words { good: &good, think_time_s: spec.think_time_s };
    let stability = stability(&good, &words);
    let limit = stability.rate().map(|limit| limit.value).or(capacity);
    let mut stream = Stream::new(spec.seed, "onset", 0);
    let fit = reference.as_ref().and_then(|zero| {
        let p = zero.percentile;
        let points: Vec<(f64, &Upper)> =
            good.iter().filter(|o| o.upper.supports(p)).map(|o| (o.rate(), &o.upper)).collect();
        (points.len() >= LEAST_LEVELS).then(|| {
            let draws = (&mut stream, spec.replicates);
            fit(&points, &zero.observed.upper, p, spec.knee_factor, limit, draws)
        })
    });
    let onset = onset(&good, reference.as_ref(), fit.as_ref(), spec, &words);
    let budget = spec.budget.as_ref().map(|_| under_the_limit(budget(&good, &words), &stability, &words));
    let lines = Lines {
        traffic: traffic.to_owned(),
        onset: under_the_limit(onset, &stability, &words),
        stability,
        budget,
        budget_spec: spec.budget.clone(),
        mix: mix(&good, levels),
        think_time_s: spec.think_time_s,
        hold: None,
    };
    let curve = Curve {
        traffic: traffic.to_owned(),
        points: open.iter().map(|o| point(o)).collect(),
        ladder: ladder(levels),
        metric: open.first().or(zero.first()).map_or("ttft", |o| o.metric).to_owned(),
        percentile: reference.as_ref().map_or(spec.percentile, |zero| zero.percentile),
        knee_factor: spec.knee_factor,
        zero_contention: reference.as_ref().map_or_else(
            || Reading::refused("no level without contention has enough requests", 0),
            |zero| {
                let (upper, p) = (&zero.observed.upper, zero.percentile);
                let (lower_s, upper_s) = upper.interval_s(p, &mut stream, spec.replicates);
                Reading::Estimate(Estimate {
                    value: upper.quantile_s(p),
                    lower: lower_s,
                    upper: upper_s,
                    n: upper.len() as u64,
                    n_eff: upper.n_eff(p),
                })
            },
        ),
        zero_contention_from: reference.map_or_else(|| "none".to_owned(), |zero| zero.from),
        fit: fit.map_or_else(Vec::new, |fit| fit.line),
    };
    Read { curve, lines }
}

// ------------------------------------------------------------------------------------------- onset

/// Largest gap between the percentiles of a lightly loaded level and of concurrency 1 at which the first may stand in
/// for the second: a fifth of what marks the onset.
const STANDS_IN: f64 = 0.1;
/// Most that may be put down to uncertainty: half of what marks the onset.
const UNSURE: f64 = 0.25;
/// Redraws for that uncertainty.
const AGREEMENT_REDRAWS: usize = 200;
/// Share of the capacity up to which a level is lightly loaded.
const LIGHT: f64 = 0.35;

/// The level to measure against, and the best percentile it supports. Concurrency 1 is the definition; where it is too
/// slow to gather enough requests, the lightest open-loop level stands in, if its shape agrees with concurrency 1 as
/// far as that can be seen.
fn zero_contention<'a>(
    good: &[&'a Observed],
    zero: &[&'a Observed],
    capacity: Option<f64>,
    asked: f64,
    seed: u64,
) -> Option<Zero<'a>> {
    let largest = zero.iter().copied().filter(|o| o.counts()).max_by_key(|o| o.upper.len());
    let lightest = good
        .iter()
        .copied()
        .filter(|o| capacity.is_some_and(|capacity| o.rate() <= LIGHT * capacity))
        .max_by_key(|o| o.upper.len());
    for p in LADDER_OF_PERCENTILES.into_iter().filter(|p| *p <= asked + 1e-9) {
        let levels = good.iter().filter(|o| o.upper.supports(p)).count();
        if levels < LEAST_LEVELS {
            continue;
        }
        if let Some(one) = largest.filter(|o| o.upper.supports(p)) {
            let from = format!("concurrency 1, {}", count(one.upper.len() as u64, "request"));
            return Some(Zero { observed: one, percentile: p, from });
        }
        if let Some(light) = lightest.filter(|o| o.upper.supports(p))
            && let Some(q) = largest.and_then(|one| agreement(&light.upper, &one.upper, seed))
        {
            let from = format!(
                "{} requests/s in open loop, which agrees with concurrency 1 at the median and at p{}",
                number(light.rate()),
                number(100.0 * q)
            );
            return Some(Zero { observed: light, percentile: p, from });
        }
    }
    None
}

/// The largest percentile that both support, if the light level agrees with concurrency 1 there and at the median: not
/// above it by more than [`STANDS_IN`], or than the two are uncertain (up to [`UNSURE`]).
fn agreement(light: &Upper, one: &Upper, seed: u64) -> Option<f64> {
    let q = LADDER_OF_PERCENTILES.into_iter().find(|q| light.supports(*q) && one.supports(*q))?;
    let mut stream = Stream::new(seed, "agreement", 0);
    let mut agrees = |q: f64| {
        let (_, one_high) = one.interval_s(q, &mut stream, AGREEMENT_REDRAWS);
        let (light_low, _) = light.interval_s(q, &mut stream, AGREEMENT_REDRAWS);
        let (one, light) = (one.quantile_s(q), light.quantile_s(q));
        let unsure = (one_high / one - 1.0).hypot(light / light_low - 1.0);
        light / one - 1.0 <= STANDS_IN.max(unsure.min(UNSURE))
    };
    (agrees(q) && agrees(0.5)).then_some(q)
}

fn onset(
    good: &[&Observed],
    zero: Option<&Zero<'_>>,
    fit: Option<&Fit>,
    spec: &LineSpec,
    words: &Words<'_>,
) -> Line {
    let (Some(zero), Some(fit)) = (zero, fit) else {
        let most = good.iter().map(|o| o.upper.len()).max().unwrap_or(0);
        return Line::CannotTell {
            why: format!(
                "no percentile of {} has {} values beyond it both without contention and on {LEAST_LEVELS} levels \
                 (the largest level has {}); give it more time",
                good.first().map_or("ttft", |o| o.metric),
                number(crate::tail::BEYOND),
                count(most as u64, "request")
            ),
        };
    };
    let p = number(100.0 * zero.percentile);
    let how = format!(
        "p{p} of {} reaches {} × its zero-contention value ({})",
        zero.observed.metric,
        number(spec.knee_factor),
        zero.from
    );
    let interval = fit.crossing.interval;
    let (first, last) = (fit.line.first(), fit.line.last());
    match fit.crossing.value {
        Crossing::At(rate) => {
            let (lower, upper) = both_sides(rate, interval.lower, interval.upper);
            if lower <= 0.0 && !upper.is_finite() {
                return Line::CannotTell {
                    why: format!(
                        "the levels put it near {} requests/s and bound it on neither side; give it more time",
                        number(rate)
                    ),
                };
            }
            let n = good.iter().map(|o| o.upper.len() as u64).sum();
            let rate = Estimate { value: rate, lower, upper, n, n_eff: fit.line.len() as f64 };
            Line::Found { rate, load: words.at(rate.value), how }
        }
        Crossing::Before => Line::Below {
            rate_per_s: first.map_or(0.0, |point| point.rate_per_s),
            why: format!("at the lightest level already, {how}"),
        },
        Crossing::Beyond => {
            let rate_per_s = last.map_or(0.0, |point| point.rate_per_s);
            Line::Above {
                rate_per_s,
                load: words.at(rate_per_s),
                why: format!("the heaviest level is still below the load at which {how}"),
            }
        }
    }
}

/// What a target cannot finish queues: an onset or a budget line read above the stability limit was drawn through levels
/// too short for their queues to have grown. It is set to the limit, with its interval down from there.
fn under_the_limit(onset: Line, stability: &Line, words: &Words<'_>) -> Line {
    match (onset, stability.rate()) {
        (Line::Found { rate, how, .. }, Some(limit)) if rate.value > limit.value => {
            let lower = rate.lower.min(limit.lower);
            let rate = Estimate { value: limit.value, lower, upper: rate.upper, ..rate };
            Line::Found {
                rate,
                load: words.at(rate.value),
                how: format!("{how}; set to the stability limit, which it cannot exceed"),
            }
        }
        (onset, _) => onset,
    }
}

/// The interval of a crossing with its wider side on both. Between which two levels the crossing falls decides how the
/// redraws lean, and that is chance: taken as they lean, the intervals miss the truth on the short side in a quarter of
/// the sweeps (`examples/accuracy.rs`). An end that lies outside the levels is unknown there: zero, or infinite.
fn both_sides(value: f64, lower: f64, upper: f64) -> (f64, f64) {
    match (lower.is_finite() && lower > 0.0, upper.is_finite()) {
        (true, true) => {
            let ratio = (value / lower).max(upper / value).max(1.0);
            (value / ratio, value * ratio)
        }
        (known, _) => (if known { lower.min(value) } else { 0.0 }, upper.max(value)),
    }
}

// ------------------------------------------------------------------------------------------- stability

/// The bracket of a rule that holds at light loads and no longer at heavy ones: (last that holds, first that does not).
/// Levels that contradict one another are split where the fewest are on the wrong side.
pub fn bracket(verdicts: &[(f64, Option<bool>)]) -> (Option<f64>, Option<f64>) {
    let decided: Vec<(f64, bool)> =
        verdicts.iter().filter_map(|(rate, holds)| Some((*rate, (*holds)?))).collect();
    let wrong = |split: usize| {
        decided[..split].iter().filter(|d| !d.1).count() + decided[split..].iter().filter(|d| d.1).count()
    };
    // Of equal splits the lowest: what is not known to hold is not promised.
    let split = (0..=decided.len()).min_by_key(|split| wrong(*split)).unwrap_or(0);
    let holds = decided[..split].iter().rfind(|d| d.1).map(|d| d.0);
    let breaks = decided[split..].iter().find(|d| !d.1).map(|d| d.0);
    (holds, breaks)
}

/// Levels above the first unstable one by up to this factor tell what the target finishes when it is full; far above,
/// thrashing is measured.
const FULL_UP_TO: f64 = 1.25;

/// What an overloaded target finishes per second: throughput of the unstable levels just over the limit.
pub fn saturated(good: &[&Observed], first_unstable: f64) -> Option<Estimate> {
    let full: Vec<&Estimate> = good
        .iter()
        .filter(|o| {
            o.kept() == Kept::Unstable
                && o.rate() >= first_unstable
                && o.rate() <= FULL_UP_TO * first_unstable
        })
        .filter_map(|o| o.full.estimate())
        .collect();
    if full.is_empty() {
        return None;
    }
    let weight = |e: &Estimate| 1.0 / ((e.upper - e.lower).max(1e-9 * e.value) / 3.92).powi(2);
    let total: f64 = full.iter().map(|e| weight(e)).sum();
    let value = full.iter().map(|e| weight(e) * e.value).sum::<f64>() / total;
    let half = 1.96 / total.sqrt();
    let n = full.iter().map(|e| e.n).sum();
    Some(Estimate { value, lower: value - half, upper: value + half, n, n_eff: full.len() as f64 })
}

fn kept_verdicts(good: &[&Observed]) -> Vec<(f64, Option<bool>)> {
    good.iter()
        .map(|o| {
            let holds = match o.kept() {
                Kept::Stable => Some(true),
                Kept::Unstable => Some(false),
                Kept::Undecided => None,
            };
            (o.rate(), holds)
        })
        .collect()
}

fn stability(good: &[&Observed], words: &Words<'_>) -> Line {
    match bracket(&kept_verdicts(good)) {
        (None, None) => {
            Line::CannotTell { why: "no level was long enough to see whether requests pile up".into() }
        }
        (Some(rate_per_s), None) => {
            let heaviest = good.last().map_or(0.0, |o| o.rate());
            let why = if heaviest > rate_per_s {
                format!(
                    "requests did not pile up there, and heavier levels (up to {} requests/s) were too short to tell",
                    number(heaviest)
                )
            } else {
                "requests did not pile up at any level".into()
            };
            Line::Above { rate_per_s, load: words.at(rate_per_s), why }
        }
        (None, Some(rate_per_s)) => {
            Line::Below { rate_per_s, why: "requests pile up at every level that could be judged".into() }
        }
        (Some(stable), Some(unstable)) => {
            let full = saturated(good, unstable);
            // A target that finishes less when overloaded than it did before has lost its limit by overloading.
            let inside = full.filter(|full| full.value >= stable / (1.0 + 2.0 * crate::flight::GROWTH_LIMIT));
            let value = inside.map_or((stable * unstable).sqrt(), |full| full.value.min(unstable));
            let lower = inside.map_or(stable, |full| full.lower.min(stable));
            let n = good.iter().map(|o| o.upper.len() as u64).sum();
            let rate = Estimate { value, lower, upper: unstable, n, n_eff: good.len() as f64 };
            let how = format!(
                "requests in flight hold steady at {} requests/s and pile up at {} requests/s{}",
                number(stable),
                number(unstable),
                if inside.is_some() {
                    "; the figure is what the target finished when overloaded"
                } else {
                    ""
                }
            );
            Line::Found { rate, load: words.at(value.min(stable)), how }
        }
    }
}

// ------------------------------------------------------------------------------------------- budget

fn budget_verdicts(good: &[&Observed]) -> Vec<(f64, Option<bool>)> {
    good.iter()
        .filter_map(|o| {
            let budget = o.finding.summary.budget.as_ref()?;
            let holds = match (budget.verdict, o.kept()) {
                // What passes only because its queue has not grown long enough yet does not pass.
                (_, Kept::Unstable) | (Held::Fail, _) => Some(false),
                (Held::Pass, _) => Some(true),
                (Held::Inconclusive, _) => None,
            };
            Some((o.rate(), holds))
        })
        .collect()
}

fn budget(good: &[&Observed], words: &Words<'_>) -> Line {
    match bracket(&budget_verdicts(good)) {
        (None, None) => {
            Line::CannotTell { why: "no level had enough requests to pass or fail the budget".into() }
        }
        (Some(rate_per_s), None) => Line::Above {
            rate_per_s,
            load: words.at(rate_per_s),
            why: "the budget holds at every level".into(),
        },
        (None, Some(rate_per_s)) => {
            Line::Below { rate_per_s, why: "the budget is broken at every level that could be judged".into() }
        }
        (Some(pass), Some(fail)) => {
            let value = tightest_crossing(good).unwrap_or_else(|| (pass * fail).sqrt()).clamp(pass, fail);
            let n = good.iter().map(|o| o.upper.len() as u64).sum();
            let rate = Estimate { value, lower: pass, upper: fail, n, n_eff: good.len() as f64 };
            let how = format!(
                "every ceiling holds at {} requests/s and at least one is broken at {} requests/s",
                number(pass),
                number(fail)
            );
            Line::Found { rate, load: words.at(value), how }
        }
    }
}

/// Where the share over a ceiling reaches what is allowed, for the ceiling that gets there first.
fn tightest_crossing(good: &[&Observed]) -> Option<f64> {
    let budgets: Vec<_> =
        good.iter().filter_map(|o| Some((o.rate(), o.finding.summary.budget.as_ref()?))).collect();
    let ceilings: Vec<&BudgetRow> = budgets.first()?.1.rows.iter().collect();
    let crossings = ceilings.into_iter().filter_map(|ceiling| {
        let same = |row: &&BudgetRow| row.metric == ceiling.metric && row.percentile == ceiling.percentile;
        let rows: Vec<_> =
            budgets.iter().filter_map(|(rate, b)| Some((*rate, b.rows.iter().find(same)?))).collect();
        let x: Vec<f64> = rows.iter().map(|row| row.0).collect();
        // Half an exceedance where none was seen, so that the logarithm exists.
        let share = |e: &Estimate| e.value.max(0.5 / e.n.max(1) as f64).ln();
        let y: Vec<f64> = rows.iter().map(|row| share(&row.1.share_over)).collect();
        let weights: Vec<f64> = rows.iter().map(|row| row.1.share_over.n_eff.max(1e-9)).collect();
        let allowed = rows.first()?.1.allowed.max(1e-12).ln();
        crossing_rate(crossing(&x, &rising_fit(&y, &weights), allowed))
    });
    crossings.min_by(f64::total_cmp)
}

/// The brackets that the planner narrows: (last stable, first unstable), (last pass, first fail).
pub(crate) fn brackets(good: &[&Observed]) -> [(Option<f64>, Option<f64>); 2] {
    [bracket(&kept_verdicts(good)), bracket(&budget_verdicts(good))]
}

/// Open-loop levels that lines may be drawn through, lowest load first.
pub(crate) fn usable<'a>(levels: &[&'a Observed]) -> Vec<&'a Observed> {
    let mut good: Vec<&Observed> =
        levels.iter().copied().filter(|o| o.is_open() && o.rate() > 0.0 && o.counts()).collect();
    good.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    good
}

// ------------------------------------------------------------------------------------------- the rest

/// Turns a load into other words.
struct Words<'a> {
    good: &'a [&'a Observed],
    think_time_s: f64,
}

impl Words<'_> {
    fn at(&self, rate: f64) -> LoadWords {
        let mix = mix(self.good, self.good);
        let tokens = |figures: &crate::findings::LengthFigures| {
            Some(rate * figures.reported_mean.unwrap_or(figures.asked_mean)).filter(|t| *t > 0.0)
        };
        let in_flight = self.in_flight(rate);
        let items = mix.unit == SizeUnit::Items;
        LoadWords {
            input_tokens_per_s: tokens(&mix.prompt).filter(|_| !items),
            output_tokens_per_s: tokens(&mix.output).filter(|_| !items),
            items_per_s: tokens(&mix.prompt).filter(|_| items),
            in_flight,
            users: in_flight.map(|n| n + rate * self.think_time_s),
        }
    }

    /// Linear between the levels that kept up, from none in flight at no load; nothing beyond the last of them.
    fn in_flight(&self, rate: f64) -> Option<f64> {
        let mut before = (0.0, 0.0);
        for level in self.good.iter().filter(|o| o.kept() != Kept::Unstable) {
            let here = (level.rate(), level.finding.summary.concurrency.mean);
            if here.0 >= rate && here.0 > before.0 {
                return Some(before.1 + (rate - before.0) / (here.0 - before.0) * (here.1 - before.1));
            }
            before = here;
        }
        // Within two per cent of the last one its own figure serves.
        (before.0 > 0.0 && rate <= 1.02 * before.0).then_some(before.1)
    }
}

/// The lengths of the largest level.
fn mix(good: &[&Observed], levels: &[&Observed]) -> Lengths {
    let largest = good.iter().chain(levels).max_by_key(|o| o.upper.len());
    largest.map(|o| o.finding.summary.lengths.clone()).unwrap_or_default()
}

/// The most that a closed loop got out of the target, requests/s.
pub(crate) fn ladder_capacity(levels: &[&Observed]) -> Option<f64> {
    let closed = levels.iter().filter(|o| !o.is_open()).filter_map(|o| o.achieved()).map(|e| e.value);
    let open = levels.iter().filter(|o| o.is_open() && o.kept() != Kept::Unstable).map(|o| o.rate());
    closed.chain(open).max_by(f64::total_cmp)
}

fn ladder(levels: &[&Observed]) -> Vec<LadderRung> {
    let mut rungs: Vec<LadderRung> = levels
        .iter()
        .filter_map(|o| match o.level.load {
            Load::Closed { concurrency } | Load::Saturating { concurrency } => Some(LadderRung {
                level: o.level.id,
                concurrency,
                achieved_per_s: o.achieved()?.value,
                little_disagreement: o.finding.summary.concurrency.little.as_ref().map(|l| l.disagreement),
            }),
            Load::Open { .. } | Load::Wave { .. } => None,
        })
        .collect();
    rungs.sort_by_key(|rung| rung.concurrency);
    rungs
}

fn point(o: &Observed) -> CurvePoint {
    let summary = &o.finding.summary;
    let leading = summary.latency.leading();
    CurvePoint {
        level: o.level.id,
        purpose: o.level.purpose.clone(),
        offered_per_s: o.rate(),
        achieved_per_s: o.achieved().map(|e| e.value),
        good_per_s: summary.rates.good_per_s.as_ref().and_then(Reading::value),
        in_flight: summary.concurrency.mean,
        p50: leading.p50.clone(),
        p90: leading.p90.clone(),
        p95: leading.p95.clone(),
        p99: leading.p99.clone(),
        error_rate: summary.counts.error_rate.map_or(0.0, |e| e.value),
        stability: o.kept(),
        budget: summary.budget.as_ref().map(|b| b.verdict),
        trust: o.finding.validity.verdict,
    }
}
