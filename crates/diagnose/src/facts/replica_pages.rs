//! Comparison of replicas from metrics endpoints only.

use plimsoll_math::series;
use plimsoll_measure::say::{ms, number};

use super::{FactState, Finding, Observed};
use crate::gauges::{EngineGaugesView, LevelGauges, STALLED};

/// Ratio of a replica's mean gap to the others' from which the replica is slower.
const SLOWER: f64 = 1.15;
/// Minimum lower bound of that ratio over parts of the time.
const STEADILY: f64 = 1.05;
/// Minimum number of ended requests of a replica for its means.
const ENDED: f64 = 20.0;

/// The engines before and now.
pub type Engines = (Vec<EngineGaugesView>, Vec<EngineGaugesView>);

/// Returns the engines before and now, if there are several and their number is unchanged.
pub fn engines(before: &LevelGauges, now: &LevelGauges) -> Option<Engines> {
    let (before, now) = (before.on_pages(), now.on_pages());
    (now.len() > 1 && before.len() == now.len()).then_some((before, now))
}

/// Checks whether a replica has requests and writes no token for a long time while another continues.
pub fn stands(engines: &[EngineGaugesView], piece_s: f64) -> Option<Finding> {
    let stood = |at: usize| {
        let others = |k: usize| {
            let others = engines.iter().enumerate().filter(|(other, _)| *other != at);
            others.filter_map(|(_, engine)| engine.writes.get(k).copied()?).any(|writes| writes)
        };
        let (mut now, mut most) = (0usize, 0usize);
        for (k, writes) in engines[at].writes.iter().enumerate() {
            now = if *writes == Some(false) && others(k) { now + 1 } else { 0 };
            most = most.max(now);
        }
        most
    };
    let (at, pieces) = (0..engines.len()).map(|at| (at, stood(at))).max_by_key(|(_, pieces)| *pieces)?;
    let seconds = pieces as f64 * piece_s;
    (seconds >= STALLED.as_secs_f64()).then(|| {
        let name = &engines[at].name;
        let says = format!(
            "{name} produced no tokens for {} s by its metrics, while requests ran on it and the others continued",
            number(seconds)
        );
        Finding::new(Observed::ReplicaSlower, FactState::Yes, says)
    })
}

/// Checks whether the token gaps of one replica are longer than the gaps of the other replicas.
pub fn slower((before, now): &Engines) -> Option<Finding> {
    let (at, ratio, gap) = slowest_on_page(now)?;
    let was = slowest_on_page(before).map_or(1.0, |(_, ratio, _)| ratio);
    let load = loads(now)?[at];
    // A replica with more requests has fuller steps, which the router causes.
    let is = FactState::of(
        ratio >= SLOWER && ratio >= 1.0 + 2.0 * (was - 1.0) && load <= 1.2 && steadily(now, at),
        ratio < 1.07 || load > 1.3,
    );
    let says = format!(
        "{} takes {} between tokens by its metrics, × {} of the others' (before at most × {}), with {} of a fair share of the requests",
        now[at].name,
        ms(gap),
        number(ratio),
        number(was),
        number(load)
    );
    Some(Finding::new(Observed::ReplicaSlower, is, says))
}

/// Returns whether this replica is slower throughout, because a few long prompts slow down any replica for a while.
fn steadily(engines: &[EngineGaugesView], at: usize) -> bool {
    let part = |k: usize| {
        let own = engines[at].gaps.get(k).copied()??;
        let others = engines.iter().enumerate().filter(|(other, _)| *other != at);
        let others: Vec<f64> =
            others.map(|(_, engine)| engine.gaps.get(k).copied()?).collect::<Option<_>>()?;
        Some((own * others.len() as f64 / others.iter().sum::<f64>()).ln())
    };
    let ratios: Vec<f64> = (0..engines[at].gaps.len()).filter_map(part).collect();
    series::mean_of_batches(&ratios, 0.95).is_some_and(|mean| mean.interval.lower >= STEADILY.ln())
}

/// Checks whether one replica gets more than a fair share and is affected by it.
pub fn uneven((before, now): &Engines) -> Option<Finding> {
    let ((at, load), (_, was)) = (largest(&loads(now)?)?, largest(&loads(before)?)?);
    let others = |of: fn(&EngineGaugesView) -> Option<f64>| {
        let values: Vec<f64> =
            now.iter().enumerate().filter(|(k, _)| *k != at).filter_map(|(_, engine)| of(engine)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    // The load must have an effect: fuller steps, or a queue while other replicas have capacity.
    let gaps = now[at].gap.zip(others(|engine| engine.gap)).map_or(1.0, |(own, theirs)| own / theirs);
    let queue = now[at]
        .waiting
        .zip(others(|engine| engine.waiting))
        .is_some_and(|(own, theirs)| own > 0.1 && own > 3.0 * theirs);
    let is = FactState::of(
        load >= 1.2 && load >= 1.1 * was && (gaps >= 1.05 || queue),
        load < 1.1 || load < 1.03 * was,
    );
    let says = format!(
        "{} gets {} times a fair share of the requests by the metrics (before at most {}); its token gaps are × {}",
        now[at].name,
        number(load),
        number(was),
        number(gaps)
    );
    Some(Finding::new(Observed::UnevenLoad, is, says))
}

/// Returns each engine's requests over a fair share.
fn loads(engines: &[EngineGaugesView]) -> Option<Vec<f64>> {
    let of = |of: fn(&EngineGaugesView) -> Option<f64>| engines.iter().map(of).collect::<Option<Vec<f64>>>();
    let counts = of(|engine| engine.ended).or_else(|| of(|engine| engine.running))?;
    let all: f64 = counts.iter().sum();
    (all > 0.0).then(|| counts.iter().map(|count| count / all * counts.len() as f64).collect())
}

fn largest(values: &[f64]) -> Option<(usize, f64)> {
    values.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Returns the slowest engine, its mean gap over the mean of the others' means.
fn slowest_on_page(engines: &[EngineGaugesView]) -> Option<(usize, f64, f64)> {
    let read = |engine: &EngineGaugesView| engine.ended.is_none_or(|ended| ended >= ENDED);
    let gaps: Vec<f64> =
        engines.iter().map(|engine| engine.gap.filter(|_| read(engine))).collect::<Option<_>>()?;
    let (at, slow) = largest(&gaps)?;
    let others = (gaps.iter().sum::<f64>() - slow) / (gaps.len() as f64 - 1.0);
    (others > 0.0).then_some((at, slow / others, slow))
}
