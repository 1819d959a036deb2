//! Decides from several schedules whether a number of replicas meets the SLO, and with what confidence.
//!
//! "p99 ≤ B" means "at most 1 % exceed B", as in every other module. The evidence differs from a measured run, because
//! replications are independent by construction. The bounds of the share therefore come from its variation between
//! schedules (Student's t on the ratio of the sums, Cochran 1977, §2.11). No correlation within a schedule has to be
//! assumed. If few requests exceed the ceiling, every schedule may show none, and t would report certainty. The Beta bounds
//! at the effective sample size of the schedules must therefore also pass.
//!
//! A growing queue fails at any percentiles, because the percentiles belong to a window that ended early.

use plimsoll_math::proportion::exceedance_bounds;
use plimsoll_math::series;
use plimsoll_math::special::student_t_inv;

use super::finding::{ExpectedLatency, TriedReplicas};
use super::simulate::ExperimentOutcome;
use super::tally::{GROWS, Sketch, place};
use plimsoll_judge::budget::ALPHA;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Estimate, Held, Metric, Reading};
use plimsoll_measure::say::number;

/// Returns the verdict of several schedules on one number of replicas. `alpha` is the error probability on each side.
pub fn judge(slo: &BudgetSpec, replicas: u32, outcomes: &[&ExperimentOutcome], alpha: f64) -> TriedReplicas {
    let mut doubts = Vec::new();
    let mut all = Vec::new();
    let mut figures = Vec::new();
    for (i, ceiling) in slo.latency.iter().enumerate() {
        let counts: Vec<(u64, u64)> =
            outcomes.iter().map(|o| (o.counted.ceilings[i].n, o.counted.ceilings[i].over)).collect();
        let allowed = 1.0 - ceiling.percentile;
        let (held, doubt) = verdict(share(&counts, alpha), allowed, || format!("over {}", named(ceiling)));
        doubts.extend(doubt);
        all.push(held);
        figures.push(expected(ceiling, outcomes, held));
    }
    let lost: Vec<(u64, u64)> = outcomes.iter().map(|o| (o.counted.requests, o.counted.unanswered)).collect();
    if let Some(allowed) = slo.error_rate {
        let (held, doubt) = verdict(share(&lost, alpha), allowed, || "not answered".to_owned());
        doubts.extend(doubt);
        all.push(held);
    }
    let growth = growth(outcomes, alpha);
    let (held, doubt) = stable(&growth, outcomes.iter().all(|o| o.counted.hopeless));
    doubts.extend(doubt);
    all.push(held);
    // One failed ceiling decides; one inconclusive ceiling leaves the verdict inconclusive.
    let held = all.into_iter().max().unwrap_or(Held::Inconclusive);
    let why = (held == Held::Inconclusive)
        .then(|| format!("{}, after {} schedules", doubts.join("; "), outcomes.len()));
    TriedReplicas {
        replicas,
        seeds: outcomes.len() as u32,
        held,
        figures,
        unanswered: share(&lost, ALPHA).map_or_else(|| Reading::refused("no requests", 0), Reading::Estimate),
        growth,
        why,
    }
}

/// Returns the ceiling as text: `ttft p99 ≤ 500 ms`.
pub fn named(Ceiling { metric, percentile, limit_s }: &Ceiling) -> String {
    format!("{} p{} ≤ {} ms", metric.name(), number(100.0 * percentile), number(1e3 * limit_s))
}

fn verdict(share: Option<Estimate>, allowed: f64, of: impl Fn() -> String) -> (Held, Option<String>) {
    let Some(share) = share else {
        return (Held::Inconclusive, Some(format!("no request shows the share {}", of())));
    };
    if share.upper <= allowed {
        return (Held::Pass, None);
    }
    if share.lower > allowed {
        return (Held::Fail, None);
    }
    let percent = |x: f64| number(100.0 * x);
    let doubt = format!(
        "{} % are {} ({} to {} %), allowed are {} %",
        percent(share.value),
        of(),
        percent(share.lower),
        percent(share.upper),
        percent(allowed)
    );
    (Held::Inconclusive, Some(doubt))
}

/// Returns the share of requests over a ceiling, from (all, over) of each schedule. `None` without requests.
pub fn share(counts: &[(u64, u64)], alpha: f64) -> Option<Estimate> {
    let n: u64 = counts.iter().map(|(n, _)| n).sum();
    if n == 0 {
        return None;
    }
    let (n_all, m) = (n as f64, counts.len() as f64);
    let value = counts.iter().map(|(_, over)| *over as f64).sum::<f64>() / n_all;
    if counts.len() < 2 {
        return Some(Estimate { value, lower: 0.0, upper: 1.0, n, n_eff: 0.0 });
    }
    let (over, of): (Vec<f64>, Vec<f64>) = counts.iter().map(|(n, over)| (*over as f64, *n as f64)).unzip();
    let squares: f64 = over.iter().zip(&of).map(|(over, n)| (over - value * n).powi(2)).sum();
    let variance = squares / (m - 1.0) * m / (n_all * n_all);
    let worth = if variance > 0.0 { (value * (1.0 - value) / variance).min(n_all) } else { n_all };
    let half = student_t_inv(1.0 - alpha, m - 1.0) * variance.sqrt();
    let (lower, upper) = exceedance_bounds(value * worth, worth, alpha);
    Some(Estimate {
        value,
        lower: lower.min(value - half).max(0.0),
        upper: upper.max(value + half).min(1.0),
        n,
        n_eff: worth,
    })
}

/// Returns the growth of requests in flight per arrival, over the schedules.
fn growth(outcomes: &[&ExperimentOutcome], alpha: f64) -> Reading {
    let seen: Vec<f64> = outcomes.iter().filter_map(|o| o.counted.growth).collect();
    let n = outcomes.iter().map(|o| o.counted.requests).sum();
    if seen.len() < 2 {
        return Reading::refused("too few requests to see whether the backlog grows", n);
    }
    mean(&seen, n, alpha).map_or_else(|| Reading::refused("no figure", n), Reading::Estimate)
}

/// Returns the mean of independent figures with Student's interval.
pub fn mean(values: &[f64], n: u64, alpha: f64) -> Option<Estimate> {
    let found = series::mean_of_batches(values, 1.0 - 2.0 * alpha)?;
    let (lower, upper) = (found.interval.lower, found.interval.upper);
    Some(Estimate { value: found.value, lower, upper, n, n_eff: values.len() as f64 })
}

fn stable(growth: &Reading, hopeless: bool) -> (Held, Option<String>) {
    match growth {
        // The simulation stopped before growth was measurable, because a ceiling had already decided.
        _ if hopeless => (Held::Pass, None),
        Reading::Estimate(growth) if growth.upper < GROWS => (Held::Pass, None),
        Reading::Estimate(growth) if growth.lower > GROWS => (Held::Fail, None),
        Reading::Estimate(growth) => {
            let percent = |x: f64| number(100.0 * x);
            let doubt = format!(
                "requests in flight grow by {} % of the arrivals ({} to {} %), the limit is {} %",
                percent(growth.value),
                percent(growth.lower),
                percent(growth.upper),
                percent(GROWS)
            );
            (Held::Inconclusive, Some(doubt))
        }
        Reading::Refused { why, .. } => (Held::Inconclusive, Some(why.clone())),
    }
}

/// Returns the expected percentile of a ceiling over all schedules.
fn expected(ceiling: &Ceiling, outcomes: &[&ExperimentOutcome], held: Held) -> ExpectedLatency {
    let value = percentile(ceiling.metric, ceiling.percentile, outcomes);
    ExpectedLatency {
        metric: ceiling.metric,
        percentile: Some(ceiling.percentile),
        value,
        limit_s: Some(ceiling.limit_s),
        held: Some(held),
    }
}

/// Returns a percentile over all schedules together, s. Its interval contains the values at which the share above is
/// consistent with the percentile (Woodruff 1952), by the bounds of [`share`].
pub fn percentile(metric: Metric, p: f64, outcomes: &[&ExperimentOutcome]) -> Reading {
    let sketches: Vec<&Sketch> = outcomes.iter().map(|o| o.values(metric)).collect();
    let all = Sketch::merged(sketches.iter().copied());
    if let Some(given_up) = outcomes.iter().find(|o| o.counted.hopeless) {
        let share = |o: &ExperimentOutcome| {
            o.counted.ceilings.iter().map(|c| c.over as f64 / c.n.max(1) as f64).fold(0.0, f64::max)
        };
        let why = format!("given up: {} % are over a ceiling", number(100.0 * share(given_up)));
        return Reading::refused(why, all.n);
    }
    let Some(value) = all.quantile(p) else {
        return Reading::refused(format!("no request has a {}", metric.name()), 0);
    };
    let counts: Vec<(u64, u64)> = sketches
        .iter()
        .map(|sketch| (sketch.n, (sketch.share_above(value) * sketch.n as f64).round() as u64))
        .collect();
    let Some(above) = share(&counts, ALPHA) else { return Reading::refused("no requests", 0) };
    let at = |share: f64| all.quantile((1.0 - share).clamp(0.0, 1.0)).unwrap_or(f64::INFINITY);
    // The share above is 1 − p; a bound that differs from 1 − p moves the value.
    let off = |bound: f64| (1.0 - p) + ((1.0 - p) - bound);
    Reading::Estimate(Estimate {
        value,
        lower: at(off(above.lower)).min(value),
        upper: at(off(above.upper)).max(value),
        n: all.n,
        n_eff: above.n_eff,
    })
}

/// Returns the mean of a metric over the schedules, s, for answered requests.
pub fn mean_of(metric: Metric, outcomes: &[&ExperimentOutcome]) -> Option<Estimate> {
    let means: Option<Vec<f64>> =
        outcomes.iter().map(|o| o.counted.metrics[place(metric)].mean_s()).collect();
    mean(&means?, outcomes.iter().map(|o| o.counted.requests).sum(), ALPHA)
}
