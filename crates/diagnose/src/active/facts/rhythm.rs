//! Facts on token times: common stalls, slow periods, and waits that follow a clock.
//!
//! A stall is a simultaneous gap of all streaming responses. Isolated requests have no other prompts that could delay
//! them, so any gap counts. Under concurrency a gap must be longer than a prefill explains. Rayleigh's test decides
//! whether instants follow a clock. The periods are taken from the instants themselves, and each period counts as one
//! test.

use plimsoll_math::quantile;

use super::{ms, of, shown};
use crate::active::block::{BlockRow, ExperimentLevel, LEVEL, median, share};
use crate::active::plan::ExperimentKind;
use crate::effect::spearman;
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use plimsoll_measure::findings::Estimate;

/// Minimum stall in usual gaps and in s.
const STALL: (f64, f64) = (8.0, 0.04);
/// Number of stalls from which they are recurrent.
const STALLS: usize = 4;
/// Minimum share of the observed time in stalls.
const STALLED: f64 = 0.01;
/// Share of time that the load generator may wait for a CPU; above it, stalls of a smaller share may be its own.
const BUSY: f64 = 0.1;
/// Maximum error probability that waits follow a clock.
const BELIEVED: f64 = 0.001;
/// Maximum error probability for stalls; in addition, three quarters of the distances must fit.
const RHYTHM: f64 = 0.01;
/// Number of tested periods for each spread of waits.
const PERIODS: usize = 300;
/// Length in s of the intervals for slow tokens.
const STRETCH_S: f64 = 0.25;
/// Limits at which only some waits are long. The first is the distance of the extremes from the median, above over
/// below. It is 1.5 for a lognormal distribution with a spread of a fifth, typical for steps of servers. The second
/// is the share of the range that a hole between two kinds of waits takes.
const TAIL: f64 = 2.3;
const HOLE: f64 = 0.5;
/// Minimum ratio of slow intervals to fast ones. Healthy engines showed 1.6 to 2.5 (vLLM on a quiet machine).
const UNSTEADY: f64 = 3.0;

/// Returns the facts on stalls, their rhythm, and slow intervals.
pub(crate) fn read(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let mut all = stalls(blocks);
    all.extend(unsteady(blocks));
    all
}

/// A gap of all responses: start and length in ns.
type Stall = (i64, i64);

fn stalls(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let excuse_ns = excuse(blocks);
    let (mut found, mut watched_s, mut usual): (Vec<Stall>, f64, Vec<f64>) = (Vec::new(), 0.0, Vec::new());
    let moderate = |block: &&ExperimentLevel| block.concurrency().is_some_and(|c| c <= 8);
    for block in blocks.iter().filter(moderate) {
        let concurrency = block.concurrency().unwrap_or(1);
        let Some(gap) = usual_gap(block) else { continue };
        // All requests may have their prefills in one step.
        let read_ns = if concurrency > 1 { excuse_ns * f64::from(concurrency) } else { 0.0 };
        let least = (STALL.0 * gap).max(STALL.1 * 1e9).max(read_ns);
        usual.push(gap);
        let (stalls, told) = in_block(block, least);
        found.extend(stalls);
        watched_s += told;
    }
    if watched_s < 1.0 {
        return Vec::new();
    }
    found.sort_unstable();
    let stalled_s = found.iter().map(|(_, long)| *long as f64 * 1e-9).sum::<f64>();
    let enough = watched_s >= 8.0 || of(blocks, ExperimentKind::Watch).next().is_some();
    let part = stalled_s / watched_s;
    let busy = busy(blocks);
    let state = match found.len() {
        // Short stalls on a busy machine may be stalls of the load generator.
        n if n > 0 && busy > BUSY && part < BUSY => FactState::Unclear,
        n if n >= STALLS && part >= STALLED => FactState::Yes,
        n if enough && (n == 0 || part < 0.3 * STALLED) => FactState::No,
        _ => FactState::Unclear,
    };
    let middle = median(found.iter().map(|(_, long)| *long as f64 * 1e-9), 1.0);
    let says = match &middle {
        Some(middle) => format!(
            "all streams stalled together {} times for {} (median) in {}",
            found.len(),
            ms(middle.value),
            ms(watched_s)
        ),
        None => format!("the streams never stalled together in {}", ms(watched_s)),
    };
    let mut all = vec![shown(Observed::Stalls, state, says, middle, Some(STALL.1))];
    all.extend(regular(&found, state));
    all
}

/// Returns the maximum share of a level in which the load generator was runnable and did not run.
fn busy(blocks: &[ExperimentLevel]) -> f64 {
    blocks.iter().filter_map(|block| block.level.generator.run_queue_share_max).fold(0.0, f64::max)
}

/// Returns the longest delay by one prefill in ns.
fn excuse(blocks: &[ExperimentLevel]) -> f64 {
    let alone = of(blocks, ExperimentKind::Alone).next().and_then(|block| block.median(BlockRow::ttft_s));
    alone.map_or(0.0, |wait| 1e9 * wait.value)
}

/// Returns the usual gap between two arrivals of a response.
fn usual_gap(block: &ExperimentLevel) -> Option<f64> {
    let mut gaps: Vec<f64> = block
        .rows
        .iter()
        .flat_map(|row| row.tokens.windows(2).map(|pair| (pair[1].0 - pair[0].0) as f64))
        .collect();
    if gaps.len() < 20 {
        return None;
    }
    quantile::sort(&mut gaps);
    quantile::of_sorted(&gaps, 0.5)
}

/// Returns the periods in which all streaming responses wait for their next token, and the observed time in s.
fn in_block(block: &ExperimentLevel, least: f64) -> (Vec<Stall>, f64) {
    let mut instants: Vec<i64> =
        block.rows.iter().flat_map(|row| row.tokens.iter().map(|(at, _)| *at)).collect();
    instants.sort_unstable();
    let told: Vec<(i64, i64)> =
        block.rows.iter().filter_map(|row| Some((row.tokens.first()?.0, row.tokens.last()?.0))).collect();
    let needed = if block.concurrency().unwrap_or(1) > 1 { 2 } else { 1 };
    let stalls = instants
        .windows(2)
        .filter(|pair| (pair[1] - pair[0]) as f64 >= least)
        .filter(|pair| told.iter().filter(|(from, to)| *from <= pair[0] && pair[1] <= *to).count() >= needed)
        .map(|pair| (pair[0], pair[1] - pair[0]))
        .collect();
    (stalls, union_s(told))
}

/// Returns the total time in s that these spans cover.
fn union_s(mut spans: Vec<(i64, i64)>) -> f64 {
    spans.sort_unstable();
    let (mut covered, mut until) = (0i64, i64::MIN);
    for (from, to) in spans {
        covered += (to - from.max(until)).max(0);
        until = until.max(to);
    }
    covered as f64 * 1e-9
}

/// Checks whether the stalls follow a clock, all of them or the long ones, because a busy machine adds short stalls.
fn regular(found: &[Stall], stalls: FactState) -> Option<Finding> {
    let mut lengths: Vec<f64> = found.iter().map(|(_, long)| *long as f64).collect();
    quantile::sort(&mut lengths);
    let long = 0.6 * quantile::of_sorted(&lengths, 0.9).unwrap_or(0.0);
    let few: Vec<Stall> = found.iter().copied().filter(|(_, length)| *length as f64 >= long).collect();
    let all = clocked(found, stalls)?;
    match (all.is, few.len() < found.len()) {
        (FactState::Yes, _) | (_, false) => Some(all),
        _ => clocked(&few, stalls).filter(|of_long| of_long.is == FactState::Yes).or(Some(all)),
    }
}

fn clocked(found: &[Stall], stalls: FactState) -> Option<Finding> {
    if stalls == FactState::No {
        return Some(shown(
            Observed::RegularStalls,
            FactState::No,
            "no stalls were observed".into(),
            None,
            None,
        ));
    }
    if stalls != FactState::Yes || found.len() < 5 {
        return None;
    }
    // Ends are closer to the clock than starts, because a stall becomes visible only at the next token.
    let ends: Vec<f64> = found.iter().map(|(at, long)| (at + long) as f64 * 1e-9).collect();
    let between: Vec<f64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let periods: Vec<f64> = between
        .iter()
        .flat_map(|gap| (1..=3).map(move |n| gap / f64::from(n)))
        .filter(|period| *period > 0.02)
        .collect();
    let (period, r) = strongest(&ends, &periods)?;
    let chance = (periods.len() as f64 * (-(ends.len() as f64) * r * r).exp()).min(1.0);
    // Evenly spaced: the distance of neighbours is a whole number of periods within a fifth of one.
    let even = between
        .iter()
        .filter(|gap| ((*gap / period).round() - *gap / period).abs() < 0.2 && **gap > 0.5 * period);
    let part = even.count() as f64 / between.len() as f64;
    let says = format!(
        "{} of the stalls follow a period of {}; a random series does in {:.4} of cases",
        format_args!("{:.0} %", 100.0 * part),
        ms(period),
        chance
    );
    let state = FactState::of(part >= 0.75 && chance < RHYTHM, part < 0.6);
    let value = share((part * between.len() as f64).round() as usize, between.len());
    Some(shown(Observed::RegularStalls, state, says, value, Some(0.75)))
}

/// Returns the period with the closest phases, and the length of their mean (Rayleigh's R, 0 to 1).
fn strongest(instants: &[f64], periods: &[f64]) -> Option<(f64, f64)> {
    let length = |period: f64| {
        let turn = |at: &f64| std::f64::consts::TAU * (at / period).fract();
        let (x, y) = instants.iter().map(turn).fold((0.0, 0.0), |(x, y), a| (x + a.cos(), y + a.sin()));
        (x * x + y * y).sqrt() / instants.len() as f64
    };
    periods.iter().map(|period| (*period, length(*period))).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Checks for intervals in which every token is slow.
fn unsteady(blocks: &[ExperimentLevel]) -> Option<Finding> {
    let block = of(blocks, ExperimentKind::Watch).next()?;
    let mut gaps: Vec<(i64, f64)> = block
        .rows
        .iter()
        .filter(|row| row.fine)
        .flat_map(|row| row.tokens.windows(2).map(|pair| (pair[0].0, (pair[1].0 - pair[0].0) as f64)))
        .collect();
    gaps.sort_by_key(|(at, _)| *at);
    let start = gaps.first()?.0;
    let usual = usual_gap(block)?;
    // An interval contains about twenty gaps at any speed.
    let stretch = (STRETCH_S * 1e9).max(10.0 * usual) as i64;
    let mut medians = Vec::new();
    for chunk in gaps.chunk_by(|a, b| (a.0 - start) / stretch == (b.0 - start) / stretch) {
        if chunk.len() >= 5 {
            medians.push(median(chunk.iter().map(|(_, gap)| *gap), 1.0)?.value);
        }
    }
    if medians.len() < 12 {
        return None;
    }
    let mut sorted = medians.clone();
    quantile::sort(&mut sorted);
    let (fast, slow) = (quantile::of_sorted(&sorted, 0.1)?, quantile::of_sorted(&sorted, 0.95)?);
    // Tokens from one read have no distance to compare.
    if fast <= 0.0 {
        return None;
    }
    let follows = follows(&medians);
    let says = format!(
        "the slowest intervals of {} take {:.2} times as long per token as the fastest; autocorrelation {follows:.2}",
        ms(stretch as f64 * 1e-9),
        slow / fast
    );
    let value = Estimate {
        value: slow / fast,
        lower: 1.0,
        upper: f64::INFINITY,
        n: medians.len() as u64,
        n_eff: medians.len() as f64,
    };
    // Independent intervals have a correlation of at most 2/√n in 39 of 40 series.
    let chance = 2.0 / (medians.len() as f64).sqrt();
    let state = FactState::of(
        slow / fast >= UNSTEADY && follows > chance.max(0.3),
        slow / fast < 1.0 + 0.6 * (UNSTEADY - 1.0),
    );
    Some(shown(Observed::SlowSeconds, state, says, Some(value), Some(UNSTEADY)))
}

/// Returns the correlation of each value with the next.
fn follows(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let next: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    if variance > 0.0 { next / variance } else { 0.0 }
}

/// Returns whether only some waits are long, which shows as a one-sided tail or as a hole between two kinds. A server
/// whose steps all vary spreads the waits as widely, without either.
fn some_wait(waits: &[f64]) -> bool {
    let (n, at) = (waits.len(), |p: f64| quantile::of_sorted(waits, p).unwrap_or(0.0));
    let (low, middle, high) = (at(0.05), at(0.5), at(0.97));
    let hole = |k: usize| waits[k] - waits[k - 1];
    // A single value at an end is a tail or an accident.
    let widest = (2..n.saturating_sub(1)).map(hole).fold(0.0, f64::max);
    high - middle >= TAIL * (middle - low) || widest >= HOLE * (high - low)
}

/// Returns the isolated waits. Waits that depend on prompt length are scaled to the mean length, because a longer
/// prefill is no irregular slowness.
fn at_like_prompt(block: &ExperimentLevel) -> Vec<f64> {
    let points: Vec<(f64, f64)> =
        block.rows.iter().filter_map(|row| Some((row.prompt, row.ttft_s()?))).collect();
    let (x, y): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
    if !matches!(spearman(&x, &y), Some((rho, p)) if rho > 0.0 && p < 0.01) {
        return y;
    }
    // Theil (1950) and Sen (1968): the median of the slopes of all pairs, because a few slow requests do not
    // influence it.
    let mut slopes: Vec<f64> = Vec::new();
    for (k, a) in points.iter().enumerate() {
        slopes.extend(points[..k].iter().filter(|b| a.0 != b.0).map(|b| (a.1 - b.1) / (a.0 - b.0)));
    }
    let slope = quantile::order_statistic(&mut slopes, 0.5).unwrap_or(0.0).max(0.0);
    let usual = x.iter().sum::<f64>() / x.len().max(1) as f64;
    points.iter().map(|(prompt, wait)| wait - slope * (prompt - usual)).collect()
}

/// Checks the spread of the isolated wait, and whether it follows a clock. `least`: minimum in s, and as a share of
/// the median.
pub(crate) fn spread(block: &ExperimentLevel, usual: &Estimate, least: (f64, f64)) -> Vec<Finding> {
    let mut waits = at_like_prompt(block);
    quantile::sort(&mut waits);
    let at = |p: f64| quantile::of_sorted(&waits, p).unwrap_or(0.0);
    let wide = at(0.9) - at(0.1);
    let limit = least.0.max(least.1 * usual.value);
    let first: Vec<f64> =
        block.rows.iter().filter(|row| row.fine).filter_map(|row| Some(row.first? as f64 * 1e-9)).collect();
    let periods: Vec<f64> = (0..PERIODS).map(|i| wide * (0.9 + 1.1 * i as f64 / PERIODS as f64)).collect();
    let mut all = Vec::new();
    let found = strongest(&first, &periods).filter(|_| wide >= limit);
    let chance = found.map(|(_, r)| PERIODS as f64 * (-(first.len() as f64) * r * r).exp());
    let lattice = chance.is_some_and(|chance| chance < BELIEVED);
    let says = match (found, chance) {
        (Some((period, _)), Some(chance)) if lattice => format!(
            "first tokens of isolated requests come at whole multiples of {} (a random series: {:.0e})",
            ms(period),
            chance.max(1e-30)
        ),
        _ => "first tokens of isolated requests follow no clock".to_owned(),
    };
    all.push(shown(
        Observed::WaitsForWindow,
        if lattice { FactState::Yes } else { FactState::No },
        says,
        None,
        None,
    ));
    let spread = format!(
        "isolated requests wait {} (p10) to {} (p90) for their first token at equal prompts",
        ms(at(0.1)),
        ms(at(0.9))
    );
    let value =
        Estimate { value: wide, lower: wide, upper: wide, n: waits.len() as u64, n_eff: waits.len() as f64 };
    let interval = quantile::undecided(&waits, quantile::EffectiveN::known(waits.len() as f64), 0.9, LEVEL);
    let low = interval.lower.max(0.0) - at(0.1);
    let value = Estimate { lower: low.max(0.0), upper: (interval.upper - at(0.1)).max(wide), ..value };
    let some = lattice || some_wait(&waits);
    let says = match wide >= limit && !some {
        true => {
            format!("{spread}, all of them near the median: no request waits longer than the others")
        }
        false => spread,
    };
    let state = match () {
        () if wide >= limit && !some => FactState::No,
        () if wide >= limit && value.lower > 0.5 * limit => FactState::Yes,
        () if wide < 0.7 * limit => FactState::No,
        () => FactState::Unclear,
    };
    all.push(shown(Observed::AloneSpread, state, says, Some(value), Some(limit)));
    all
}
