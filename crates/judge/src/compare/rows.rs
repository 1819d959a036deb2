//! Figures of one load on both sides: percentiles, means, the typical pair, errors and rates.
//!
//! A failed request is +∞ in every latency; a value that does not exist is left out. A figure that one side lacks is a row
//! without an effect, because missing is never equal.

use plimsoll_math::proportion::newcombe;
use plimsoll_math::quantile::needed;
use plimsoll_math::two_sample::{
    ArmSample, Flips, Ratio, exceedance_differences, mean_ratio, median_shift, percentile_ratio,
};
use plimsoll_model::TokensRule;

use super::finding::{ArmFigure, ChangeVerdict, ComparedFigure, Effect, Scale, WorseWay};
use super::pairs::{CutLevels, FEWEST, LevelArm, LevelPair, UnitRows};
use super::spec::{LEVEL, Margins};
use super::strata::{RequestStratum, Strata};
use plimsoll_measure::columns::{ABSENT, Columns, Fate, INFINITE, UNKNOWN};
use plimsoll_measure::say::number;

/// Percentiles that are compared, with their names.
const PERCENTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.95, "p95"), (0.99, "p99")];

/// Largest share of the base's requests of kinds that the candidate has none of.
const UNCOVERED: f64 = 0.05;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LatencyColumn {
    Ttft,
    Tpot,
    E2e,
    Rtf,
    /// Gaps between events; these are tokens if the flag is set.
    Gap {
        /// Set if each event has one token on both sides.
        tokens: bool,
    },
}

impl LatencyColumn {
    /// Returns the name of the metric.
    pub fn name(self) -> &'static str {
        match self {
            LatencyColumn::Ttft => "ttft",
            LatencyColumn::Tpot => "tpot",
            LatencyColumn::E2e => "e2e",
            LatencyColumn::Rtf => "rtf",
            LatencyColumn::Gap { tokens: true } => "itl",
            LatencyColumn::Gap { tokens: false } => "event_gap",
        }
    }

    /// Returns the values of one row in ns.
    pub fn of(self, columns: &Columns, row: usize) -> &[i64] {
        match self {
            LatencyColumn::Ttft => &columns.ttft[row..=row],
            LatencyColumn::Tpot => &columns.tpot[row..=row],
            LatencyColumn::E2e => &columns.e2e[row..=row],
            LatencyColumn::Rtf => columns.rtf.get(row..=row).unwrap_or_default(),
            LatencyColumn::Gap { .. } => columns.gaps(row, row + 1),
        }
    }
}

/// Returns the amount that a finished row adds to a rate.
type Amount = fn(&LevelArm, usize) -> f64;

/// Converts ns to seconds; `None` for an absent value.
pub fn seconds(ns: i64) -> Option<f64> {
    match ns {
        ABSENT => None,
        INFINITE => Some(f64::INFINITY),
        ns => Some(ns as f64 / 1e9),
    }
}

pub struct LoadRows<'a, 'b> {
    pub pairs: &'b [LevelPair<'a>],
    pub cut: &'b CutLevels,
    pub flips: &'b Flips,
    /// The base's mix for standardisation; `None` if requests are paired.
    pub strata: Option<&'b Strata>,
    pub margins: &'b Margins,
}

impl<'a> LoadRows<'a, '_> {
    /// Returns the latencies with values, the leading one first.
    pub fn latencies(&self) -> Vec<LatencyColumn> {
        let some = |latency: LatencyColumn| {
            let any = |arm: &LevelArm| {
                (arm.from..arm.to).any(|row| {
                    latency.of(&arm.columns, row).iter().any(|ns| *ns != ABSENT && *ns != INFINITE)
                })
            };
            self.pairs.iter().any(|pair| any(&pair.base) || any(&pair.candidate))
        };
        let one_token =
            |arm: &LevelArm| arm.columns.one_token_events && arm.columns.rule != TokensRule::Unknown;
        let tokens = self.pairs.iter().all(|pair| one_token(&pair.base) && one_token(&pair.candidate));
        use LatencyColumn::{E2e, Gap, Rtf, Tpot, Ttft};
        let all = [Ttft, Tpot, E2e, Rtf, Gap { tokens }];
        all.into_iter().filter(|latency| some(*latency)).collect()
    }

    /// Returns the rows of this load without verdicts.
    pub fn rows(&self) -> Vec<ComparedFigure> {
        let mut rows = Vec::new();
        for latency in self.latencies() {
            let (base, candidate) = self.arms(latency, None);
            let raw = self.strata.map(|_| self.unweighted(latency));
            for (p, name) in PERCENTILES {
                let margin = match name {
                    "p50" => self.margins.p50,
                    "p95" => self.margins.p95,
                    _ => self.margins.p99,
                };
                let mut row = self.percentile(latency, (p, name), (&base, &candidate), margin);
                row.as_it_came = raw.as_ref().and_then(|(base, candidate)| {
                    effect(Scale::Ratio, percentile_ratio(base, candidate, p, self.flips, LEVEL))
                });
                rows.push(row);
            }
            if !matches!(latency, LatencyColumn::Gap { .. }) {
                rows.extend(self.mean(latency));
                if self.strata.is_none() {
                    rows.push(self.typical(latency));
                }
            }
        }
        rows.push(self.errors());
        rows.extend(self.rates());
        rows.extend(self.machine());
        if let Some(strata) = self.strata.filter(|strata| strata.uncovered() > UNCOVERED) {
            let share = plimsoll_measure::say::percent(strata.uncovered());
            for row in &mut rows {
                row.why = Some(format!("{share} of the base's requests have no like in the candidate"));
            }
        }
        rows
    }

    /// Returns both sides of a latency by unit, for one kind of request or for all.
    pub fn arms(&self, latency: LatencyColumn, kind: Option<RequestStratum>) -> (ArmSample, ArmSample) {
        let own = |arm: &LevelArm, row: usize| match (kind, self.strata) {
            (Some(kind), Some(strata)) => strata.kind(arm, row) == kind,
            _ => true,
        };
        let base =
            self.units(|unit, pair| values(&pair.base, &unit.base, latency, |row| own(&pair.base, row)));
        let base = ArmSample::new(&base);
        let candidate = match (self.strata, kind) {
            (Some(strata), None) => ArmSample::weighted(&self.units(|unit, pair| {
                let arm = &pair.candidate;
                let of_row = |row: &usize| {
                    let weight = strata.weight(strata.kind(arm, *row));
                    latency.of(&arm.columns, *row).iter().filter_map(move |ns| Some((seconds(*ns)?, weight)))
                };
                unit.candidate.iter().flat_map(of_row).collect()
            })),
            _ => ArmSample::new(&self.units(|unit, pair| {
                values(&pair.candidate, &unit.candidate, latency, |row| own(&pair.candidate, row))
            })),
        };
        (base, candidate)
    }

    fn unweighted(&self, latency: LatencyColumn) -> (ArmSample, ArmSample) {
        LoadRows { strata: None, ..*self }.arms(latency, None)
    }

    fn units<T>(&self, of: impl Fn(&UnitRows, &LevelPair<'a>) -> T) -> Vec<T> {
        self.cut.units.iter().map(|unit| of(unit, &self.pairs[unit.pair])).collect()
    }

    pub(super) fn blank(&self, metric: &str, statistic: &str) -> ComparedFigure {
        let nothing = ArmFigure { value: None, n: 0, n_eff: 0.0 };
        ComparedFigure {
            metric: metric.to_owned(),
            statistic: statistic.to_owned(),
            primary: true,
            base: nothing,
            candidate: nothing,
            effect: None,
            worse: WorseWay::Higher,
            margin: self.margins.p50,
            p: None,
            p_family: None,
            differences: Vec::new(),
            method: String::new(),
            verdict: ChangeVerdict::Inconclusive,
            why: self.cut.needs_s.map(|_| "too short".to_owned()),
            needs_s: self.cut.needs_s,
            described: None,
            as_it_came: None,
        }
    }

    fn percentile(
        &self,
        latency: LatencyColumn,
        (p, name): (f64, &str),
        (a, b): (&ArmSample, &ArmSample),
        margin: f64,
    ) -> ComparedFigure {
        let mut row = ComparedFigure { margin, ..self.blank(latency.name(), name) };
        row.method = "shares beyond the common percentile, sign flips of units".into();
        row.primary = !matches!(latency, LatencyColumn::Gap { .. }) || name == "p99";
        row.base = self.figure(|pair| &pair.base, latency, a, p);
        row.candidate = match self.strata {
            None => self.figure(|pair| &pair.candidate, latency, b, p),
            Some(_) => figure(b, p),
        };
        // In paired requests both sides had equal bursts, and the flips account for their number; a single percentile does not.
        let (what, counts) = match self.strata {
            None => ("requests", [row.base.n as f64, row.candidate.n as f64]),
            Some(_) => ("effective requests", [row.base.n_eff, row.candidate.n_eff]),
        };
        for (side, has) in ["base", "candidate"].into_iter().zip(counts) {
            if row.why.is_none() && has < needed(p) * (1.0 - 1e-9) {
                let needed = needed(p);
                row.needs_s = (has > 0.0).then(|| self.longest_s() * needed / has);
                row.why =
                    Some(format!("the {side} needs {} {what}, has {}", number(needed), number(has.floor())));
            }
        }
        if a.is_empty() || b.is_empty() {
            row.why = Some(format!("the {} has none", if a.is_empty() { "base" } else { "candidate" }));
            return row;
        }
        if row.why.is_some() {
            return row;
        }
        let ratio = percentile_ratio(a, b, p, self.flips, LEVEL);
        row.p = Some(ratio.p);
        row.differences = exceedance_differences(a, b, p, 1.0);
        row.effect = effect(Scale::Ratio, ratio);
        if row.effect.is_none() {
            row.why = Some("infinite on both sides: failures reach down to it".into());
        }
        row
    }

    /// Returns a percentile of one side: from the summary of a single level, otherwise from the pooled requests.
    fn figure(
        &self,
        of: for<'x> fn(&'x LevelPair<'a>) -> &'x LevelArm<'a>,
        latency: LatencyColumn,
        arm: &ArmSample,
        p: f64,
    ) -> ArmFigure {
        let single = match self.pairs {
            [pair] => of(pair).summary.latency.all().into_iter().find(|set| set.metric == latency.name()),
            _ => None,
        };
        match single.filter(|set| set.n == arm.len() as u64).and_then(|set| set.at(p)?.seen()) {
            Some(e) => ArmFigure { value: Some(e.value), n: e.n, n_eff: e.n_eff },
            None => figure(arm, p),
        }
    }

    /// Returns the length of the longest level in seconds.
    fn longest_s(&self) -> f64 {
        let lengths = self.pairs.iter().flat_map(|pair| [pair.base.length_s(), pair.candidate.length_s()]);
        lengths.fold(0.0, f64::max)
    }

    /// Returns the row of the mean, which is descriptive because a mean does not show the tail.
    ///
    /// `None` if a request failed, because its latency has no mean.
    fn mean(&self, latency: LatencyColumn) -> Option<ComparedFigure> {
        let means = |arm: &dyn Fn(&UnitRows, &LevelPair<'a>) -> Vec<f64>| -> Option<Vec<f64>> {
            let units = self.units(arm);
            let mean = |values: Vec<f64>| {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                mean.is_finite().then_some(mean)
            };
            units.into_iter().map(mean).collect()
        };
        if self.strata.is_some() || self.cut.units.len() < FEWEST {
            return None;
        }
        let base = means(&|unit, pair| values(&pair.base, &unit.base, latency, |_| true))?;
        let candidate = means(&|unit, pair| values(&pair.candidate, &unit.candidate, latency, |_| true))?;
        let ratio = mean_ratio(&base, &candidate, self.flips, LEVEL);
        let of = |means: &[f64]| {
            let value = Some(means.iter().sum::<f64>() / means.len() as f64);
            ArmFigure { value, n: means.len() as u64, n_eff: means.len() as f64 }
        };
        let mut row = ComparedFigure { primary: false, ..self.blank(latency.name(), "mean") };
        (row.base, row.candidate) = (of(&base), of(&candidate));
        row.method = "means of units, sign flips".into();
        (row.p, row.effect) = (Some(ratio.p), effect(Scale::Ratio, ratio));
        Some(row)
    }

    /// Returns the row of the median over requests of candidate / base.
    fn typical(&self, latency: LatencyColumn) -> ComparedFigure {
        let mut row = self.blank(latency.name(), "per request");
        row.method = "median of the pairs' ratios, sign flips of units".into();
        let pairs = self.units(|unit, pair| -> Vec<f64> {
            let of = |(a, b): (&usize, &usize)| {
                let value = |arm: &LevelArm, row: usize| seconds(latency.of(&arm.columns, row)[0]);
                let ln = (value(&pair.candidate, *b)? / value(&pair.base, *a)?).ln();
                // If both failed, the ratio of the pair is unknown, and in particular not 1.
                (!ln.is_nan()).then_some(ln)
            };
            unit.base.iter().zip(&unit.candidate).filter_map(of).collect()
        });
        let arm = ArmSample::new(&pairs);
        if arm.is_empty() {
            row.why = Some("no request has it on both sides".into());
            return row;
        }
        if self.cut.units.len() < FEWEST {
            return row;
        }
        let shift = median_shift(&arm, self.flips, LEVEL);
        let n_eff = arm.n_eff_beyond(arm.quantile(0.5));
        row.base = ArmFigure { value: None, n: arm.len() as u64, n_eff };
        row.candidate = row.base;
        row.p = Some(shift.p);
        row.differences = (0..arm.units()).map(|unit| arm.share_beyond(unit, 0.0) - 0.5).collect();
        let interval = &shift.interval;
        row.effect = Some(Effect {
            scale: Scale::Ratio,
            value: shift.value.exp(),
            lower: interval.lower.exp(),
            upper: interval.upper.exp(),
        });
        row
    }

    /// Returns the row of the share of requests without a right response.
    fn errors(&self) -> ComparedFigure {
        let mut row = ComparedFigure { margin: self.margins.errors, ..self.blank("error_rate", "rate") };
        row.method = "difference of shares (Newcombe) at the effective number".into();
        let side = |arm: &dyn Fn(&UnitRows, &LevelPair<'a>) -> Vec<f64>| ArmSample::new(&self.units(arm));
        let base = side(&|unit, pair| wrong(&pair.base, &unit.base));
        let candidate = match self.strata {
            None => side(&|unit, pair| wrong(&pair.candidate, &unit.candidate)),
            // Long prompts may fail more often, so a candidate with more of them is not necessarily worse.
            Some(strata) => ArmSample::weighted(&self.units(|unit, pair| {
                let arm = &pair.candidate;
                let of_row =
                    |row: &usize| Some((went_wrong(arm, *row)?, strata.weight(strata.kind(arm, *row))));
                unit.candidate.iter().filter_map(of_row).collect()
            })),
        };
        if base.is_empty() || candidate.is_empty() {
            row.why = Some("a side has no requests".into());
            return row;
        }
        let of = |arm: &ArmSample| ArmFigure {
            value: Some(arm.share(0.5)),
            n: arm.len() as u64,
            n_eff: arm.n_eff_beyond(0.5),
        };
        (row.base, row.candidate) = (of(&base), of(&candidate));
        let counts = |arm: &ArmFigure| (arm.value.unwrap_or(0.0) * arm.n_eff, arm.n_eff);
        let (a, b) = (counts(&row.base), counts(&row.candidate));
        let interval = newcombe(a, b, LEVEL);
        let value = candidate.share(0.5) - base.share(0.5);
        row.p = Some(p_of(|level| newcombe(a, b, level).contains(0.0)));
        row.effect =
            Some(Effect { scale: Scale::Difference, value, lower: interval.lower, upper: interval.upper });
        row
    }

    /// Returns the rows of requests and output tokens finished per second.
    fn rates(&self) -> Vec<ComparedFigure> {
        let per_level = self.cut.per_level;
        let slices = |amount: Amount, of: for<'x> fn(&'x LevelPair<'a>) -> &'x LevelArm<'a>| {
            let level = |pair| finished(of(pair), per_level, amount);
            self.pairs
                .iter()
                .take(self.cut.units.len() / per_level.max(1))
                .flat_map(level)
                .collect::<Vec<f64>>()
        };
        // If the experiments differ, throughput mostly shows the load: it is described without a verdict.
        let asked_alike = self.strata.is_none();
        let kinds: [(&str, bool, Amount); 2] =
            [("throughput", asked_alike, |_, _| 1.0), ("output_tokens", false, tokens)];
        let mut rows = Vec::new();
        for (name, primary, amount) in kinds {
            let (a, b) = (slices(amount, |pair| &pair.base), slices(amount, |pair| &pair.candidate));
            if name == "output_tokens" && a.iter().chain(&b).all(|rate| *rate == 0.0) {
                continue;
            }
            let mut row =
                ComparedFigure { margin: self.margins.throughput, primary, ..self.blank(name, "rate") };
            row.worse = WorseWay::Lower;
            row.described = (!asked_alike).then(|| "the requested loads differ".to_owned());
            row.method = "means of units, sign flips".into();
            let of = |rates: &[f64]| ArmFigure {
                value: Some(rates.iter().sum::<f64>() / rates.len().max(1) as f64),
                n: rates.len() as u64,
                n_eff: rates.len() as f64,
            };
            (row.base, row.candidate) = (of(&a), of(&b));
            if self.cut.units.len() >= FEWEST {
                let ratio = mean_ratio(&a, &b, self.flips, LEVEL);
                (row.p, row.effect) = (Some(ratio.p), effect(Scale::Ratio, ratio));
                row.differences = a.iter().zip(&b).map(|(a, b)| b - a).collect();
                if row.effect.is_none() {
                    row.why = Some("nothing was finished on either side".into());
                }
            }
            rows.push(row);
        }
        rows
    }
}

fn values(
    arm: &LevelArm,
    rows: &[usize],
    latency: LatencyColumn,
    counts: impl Fn(usize) -> bool,
) -> Vec<f64> {
    let own = rows.iter().filter(|row| counts(**row));
    own.flat_map(|row| latency.of(&arm.columns, *row).iter().filter_map(|ns| seconds(*ns))).collect()
}

/// Returns 1 for a request without a right response, 0 with one; `None` for a planned cancellation.
fn went_wrong(arm: &LevelArm, row: usize) -> Option<f64> {
    match arm.columns.fate[row] {
        Fate::Cancelled => None,
        Fate::Finished => Some(0.0),
        Fate::Broken | Fate::Failed => Some(1.0),
    }
}

fn wrong(arm: &LevelArm, rows: &[usize]) -> Vec<f64> {
    rows.iter().filter_map(|row| went_wrong(arm, *row)).collect()
}

pub(super) fn tokens(arm: &LevelArm, row: usize) -> f64 {
    match arm.columns.output[row] {
        UNKNOWN => f64::from(arm.columns.asked_output[row]),
        tokens => f64::from(tokens),
    }
}

/// Returns the finished amount per second in equal parts of the level's window.
pub(super) fn finished(arm: &LevelArm, parts: usize, amount: Amount) -> Vec<f64> {
    let start = arm.level.stop.0 - (1e9 * arm.length_s()) as i64;
    let width = (arm.level.stop.0 - start).max(1) as f64 / parts as f64;
    let mut sums = vec![0.0; parts];
    for row in 0..arm.columns.len() {
        let end = arm.columns.end[row];
        if arm.columns.fate[row].ended_well() && end >= start && end < arm.level.stop.0 {
            sums[(((end - start) as f64 / width) as usize).min(parts - 1)] += amount(arm, row);
        }
    }
    sums.iter().map(|sum| sum * 1e9 / width).collect()
}

fn figure(arm: &ArmSample, p: f64) -> ArmFigure {
    let value = arm.quantile(p);
    let n_eff = if arm.is_empty() { 0.0 } else { arm.n_eff_beyond(value) };
    ArmFigure { value: (!value.is_nan()).then_some(value), n: arm.len() as u64, n_eff }
}

/// Converts a ratio to an effect; `None` if both sides are infinite or zero.
pub fn effect(scale: Scale, ratio: Ratio) -> Option<Effect> {
    let Ratio { value, interval, .. } = ratio;
    (!value.is_nan()).then_some(Effect { scale, value, lower: interval.lower, upper: interval.upper })
}

/// Returns the two-sided p-value of a family of intervals: one minus the level at which zero enters.
fn p_of(holds_zero: impl Fn(f64) -> bool) -> f64 {
    let (mut out, mut inside) = (0.0, 1.0 - 1e-9);
    if !holds_zero(inside) {
        return 1.0 - inside;
    }
    for _ in 0..40 {
        let middle = 0.5 * (out + inside);
        if holds_zero(middle) { inside = middle } else { out = middle }
    }
    1.0 - inside
}
