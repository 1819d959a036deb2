//! S9 and S10 where no answer says who gave it and each replica has a page: the pages know who is slow and who gets the requests.
//!
//! A gateway that tells nobody apart hides both from the client; its replicas' counters do not. What is asked of them is only what
//! every engine tells: requests ended, requests running, the mean gap between tokens.

use super::{Fired, beyond, share};
use crate::bench::{Bench, BenchArm};
use crate::gauges::OnPage;
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::say::{ms, number};

/// Mean gap between tokens of a replica over the others', from which it is slower.
const SLOWER: f64 = 1.15;
/// Requests of a replica over a fair share, from which it is preferred.
const PREFERRED: f64 = 1.2;
/// Requests that a replica must have ended for its means to be read.
const ENDED: f64 = 20.0;

/// The engines on the pages of both runs, as many before as now; `None` where answers tell them apart, or there are not several.
fn both(bench: &Bench<'_>) -> Option<(Vec<OnPage>, Vec<OnPage>)> {
    let base = bench.base.as_ref()?;
    let untold = |arm: &BenchArm<'_>| arm.seen.replicas.len() < 2;
    let (before, now) = (base.gauges.on_pages(), bench.candidate.gauges.on_pages());
    let several = now.len() > 1 && before.len() == now.len();
    (several && untold(base) && untold(&bench.candidate)).then_some((before, now))
}

fn worse(bench: &Bench<'_>) -> bool {
    ["tpot", "ttft", "e2e", "pause"].iter().any(|metric| bench.suspects(metric))
}

/// Each engine's requests over a fair share.
fn loads(engines: &[OnPage]) -> Option<Vec<f64>> {
    let of = |of: fn(&OnPage) -> Option<f64>| engines.iter().map(of).collect::<Option<Vec<f64>>>();
    let counts = of(|engine| engine.ended).or_else(|| of(|engine| engine.running))?;
    let all: f64 = counts.iter().sum();
    (all > 0.0).then(|| counts.iter().map(|count| count / all * counts.len() as f64).collect())
}

fn largest(values: &[f64]) -> Option<(usize, f64)> {
    values.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1))
}

/// The slowest engine's mean gap over that of all the others' (plain mean of their means), and which it is.
fn slowest(engines: &[OnPage]) -> Option<(usize, f64, f64)> {
    let read = |engine: &OnPage| engine.ended.is_none_or(|ended| ended >= ENDED);
    let gaps: Vec<f64> =
        engines.iter().map(|engine| engine.gap.filter(|_| read(engine))).collect::<Option<_>>()?;
    let (at, slow) = largest(&gaps)?;
    let others = (gaps.iter().sum::<f64>() - slow) / (gaps.len() as f64 - 1.0);
    (others > 0.0).then_some((at, slow / others, slow))
}

/// S9 by the pages.
pub fn bad(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    let (before, now) = both(bench)?;
    let (at, ratio, gap) = slowest(&now)?;
    let was = slowest(&before).map_or(1.0, |(_, ratio, _)| ratio);
    let load = loads(&now)?[at];
    // One that is sent more has fuller steps: that is the router's doing.
    if ratio < SLOWER || ratio < 1.0 + 2.0 * (was - 1.0) || load > 1.2 {
        return None;
    }
    let name = &now[at].name;
    let says = format!(
        "{name} takes {} between tokens by its own page, × {} of the others' (in the baseline no replica was over × {}), with {} of a fair share of the requests",
        ms(gap),
        number(ratio),
        number(was),
        number(load)
    );
    let confidence = beyond(ratio - 1.0, SLOWER - 1.0) * 1.1;
    Some(
        Fired::new(Cause::BadReplica, confidence.min(0.95), says.clone())
            .with(Evidence::said("page_gap_ratio", says))
            .counted(Counter::Moved { name: format!("mean gap of {name} over the others'"), by: ratio }),
    )
}

/// S10 by the pages.
pub fn imbalance(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    let (before, now) = both(bench)?;
    let (at, load) = largest(&loads(&now)?)?;
    let (_, was) = largest(&loads(&before)?)?;
    let (name, fair) = (&now[at].name, 1.0 / now.len() as f64);
    let n = now.iter().filter_map(|engine| engine.ended).sum::<f64>();
    let part = share(load * fair * n, n, 2.0);
    if load < PREFERRED || load < 1.1 * was || n > 0.0 && part.lower <= fair {
        return None;
    }
    // It must show: fuller steps, or a queue there beside room elsewhere.
    let others = |of: fn(&OnPage) -> Option<f64>| {
        let values: Vec<f64> =
            now.iter().enumerate().filter(|(k, _)| *k != at).filter_map(|(_, engine)| of(engine)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let gaps = now[at].gap.zip(others(|engine| engine.gap)).map_or(1.0, |(own, theirs)| own / theirs);
    let waits = now[at].waiting.zip(others(|engine| engine.waiting));
    let queue = waits.is_some_and(|(own, theirs)| own > 0.1 && own > 3.0 * theirs);
    if gaps < 1.05 && !queue {
        return None;
    }
    let waiting = waits.map_or(String::new(), |(own, theirs)| {
        format!(", {} wait there on average and {} on each of the others", number(own), number(theirs))
    });
    let says = format!(
        "{name} gets {} times a fair share of the requests by the pages (before at most {}){waiting}; its tokens come × {} as far apart",
        number(load),
        number(was),
        number(gaps)
    );
    let confidence = beyond(load - 1.0, PREFERRED - 1.0) * 1.1;
    Some(
        Fired::new(Cause::RoutingImbalance, confidence.min(0.95), says.clone())
            .with(Evidence::figure("busiest_share", says, part, Some(PREFERRED * fair)))
            .counted(Counter::Moved {
                name: "busiest replica's requests over a fair share".into(),
                by: load,
            }),
    )
}
