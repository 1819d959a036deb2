//! S8 to S10: one replica against the others.
//!
//! A slower replica has slower tokens and no more requests than the others; an unlucky one has more requests and tokens as fast as
//! theirs; a fresh one is slow at first and then is not.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::{Fired, beyond};
use crate::bench::{Bench, BenchArm};
use crate::ratio::{Effect, of_units};
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::say::{chance, number, percent};

/// The values of one replica.
pub struct Own {
    /// Index of the replica.
    pub replica: u16,
    /// Finite values, rising.
    pub values: Vec<f64>,
}

/// Splits a metric by replica; replicas with fewer than ten values are left out.
pub fn by_replica(seen: &Seen<'_>, of: impl Fn(&RequestRow) -> f64) -> Vec<Own> {
    let mut all: Vec<Own> =
        (0..seen.replicas.len()).map(|r| Own { replica: r as u16, values: Vec::new() }).collect();
    for row in seen.rows.iter().filter(|row| row.ok) {
        if let (Some(replica), value) = (row.replica, of(row))
            && value.is_finite()
        {
            all[usize::from(replica)].values.push(value);
        }
    }
    all.retain(|own| own.values.len() >= 10);
    all.iter_mut().for_each(|own| sort(&mut own.values));
    all
}

fn worse(bench: &Bench<'_>) -> bool {
    ["tpot", "ttft", "e2e", "pause"].iter().any(|metric| bench.suspects(metric))
}

/// The slowest replica against all others, by stretches of time.
fn slowest(seen: &Seen<'_>) -> Option<(u16, Effect)> {
    let own = by_replica(seen, |row| row.tpot);
    if own.len() < 2 {
        return None;
    }
    let middle = |own: &Own| of_sorted(&own.values, 0.5).unwrap_or(0.0);
    let slow = own.iter().max_by(|a, b| middle(a).total_cmp(&middle(b)))?.replica;
    let of = |is: bool| {
        crate::ratio::stretches(
            seen,
            move |row| {
                if (row.replica == Some(slow)) == is { row.tpot } else { f64::NAN }
            },
        )
    };
    Some((slow, of_units(of(false), of(true), 0.5, 0.95)?))
}

/// Requests of a replica over those of the mean of so many.
fn load_of(seen: &Seen<'_>, replica: u16, of: usize) -> f64 {
    let own = seen.rows.iter().filter(|row| row.replica == Some(replica)).count() as f64;
    let told = seen.rows.iter().filter(|row| row.replica.is_some()).count() as f64;
    own / (told / of.max(1) as f64).max(1.0)
}

/// S9: one replica is slower.
pub fn bad(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    let seen = bench.now();
    let (slow, effect) = slowest(seen)?;
    let ratio = effect.ratio;
    let before = bench.before().and_then(slowest).map_or(1.0, |(_, effect)| effect.ratio.value);
    let grown = ratio.value / before.clamp(1.0, 1.5);
    if ratio.value < 1.15
        || ratio.lower < 1.07
        || grown < 1.12
        || load_of(seen, slow, seen.replicas.len()) > 1.35
    {
        return None;
    }
    let name = seen.replicas[usize::from(slow)].clone();
    // Alone, is it slower as well? Then load is no excuse.
    let alone = bench.candidate.probe.as_ref().and_then(|probe| {
        let index = probe.replicas.iter().position(|r| *r == name)? as u16;
        let of = |is: bool| -> Vec<f64> {
            let mut v: Vec<f64> = probe
                .rows
                .iter()
                .filter(|r| (r.replica == Some(index)) == is)
                .map(|r| r.tpot)
                .filter(|x| x.is_finite())
                .collect();
            sort(&mut v);
            v
        };
        let (others, own) = (of(false), of(true));
        (own.len() >= 5 && others.len() >= 5)
            .then(|| Some(of_sorted(&own, 0.5)? / of_sorted(&others, 0.5)?))
            .flatten()
    });
    let excused = alone.is_some_and(|alone| alone < 1.06);
    let says = format!(
        "replica {name} takes × {} [{}, {}] as long per token as the others, with {} of a fair share of the requests{}",
        number(ratio.value),
        number(ratio.lower),
        number(ratio.upper),
        percent(load_of(seen, slow, seen.replicas.len())),
        alone.map_or(String::new(), |alone| format!("; single requests × {}", number(alone)))
    );
    let confidence =
        beyond(grown - 1.0, 0.15) * beyond(ratio.lower - 1.0, 0.07) / 0.68 * if excused { 0.4 } else { 1.0 };
    let mut fired = Fired::new(Cause::BadReplica, confidence.min(0.98), says.clone())
        .with(Evidence::figure("replica_tpot_ratio", says, ratio, Some(1.15)))
        .counted(Counter::Moved {
            name: format!("time per token of replica {name} over the others'"),
            by: ratio.value,
        });
    fired.struck.replica = Some(slow);
    Some(fired)
}

/// Replicas that could answer: those that did, or those on the servers' pages where they are more (one that gets nothing answers
/// nothing).
fn there(arm: &BenchArm<'_>) -> usize {
    arm.seen.replicas.len().max(arm.gauges.replicas(&arm.seen.replicas))
}

/// The busiest replica, and its requests over a fair share.
fn busiest(arm: &BenchArm<'_>) -> Option<(u16, f64)> {
    let of = there(arm);
    let loads = (0..arm.seen.replicas.len() as u16).map(|r| (r, load_of(&arm.seen, r, of)));
    (of > 1).then(|| loads.max_by(|a, b| a.1.total_cmp(&b.1)))?
}

/// A figure of the replicas that get more than a fair share over that of those that get less (where two of three are busy, the one beside
/// them shows what it should be); where these get next to nothing, or one of them nothing, of the busiest over the baseline's. With whose
/// it is.
fn over_others(
    bench: &Bench<'_>,
    (busy, passed_over): (u16, bool),
    of: fn(&RequestRow) -> f64,
    p: f64,
) -> Option<(f64, &'static str)> {
    let at = |seen: &Seen<'_>, own: &dyn Fn(&RequestRow) -> bool| {
        let mut v: Vec<f64> =
            seen.rows.iter().filter(|r| r.ok && own(r)).map(of).filter(|x| x.is_finite()).collect();
        (v.len() >= 10).then(|| order_statistic(&mut v, p)).flatten()
    };
    let of = there(&bench.candidate);
    let loads: Vec<f64> =
        (0..bench.now().replicas.len() as u16).map(|r| load_of(bench.now(), r, of)).collect();
    let over = |row: &RequestRow| row.replica.is_some_and(|r| loads[usize::from(r)] > 1.0);
    let others = at(bench.now(), &|row| row.replica.is_some() && !over(row)).filter(|_| !passed_over);
    let (now, than, whose) = match others {
        Some(others) => (at(bench.now(), &over)?, others, "those of the replicas with less"),
        None => {
            let own = at(bench.now(), &|row| row.replica == Some(busy))?;
            (own, at(bench.before()?, &|_| true)?, "the baseline's, while another gets next to nothing")
        }
    };
    Some((now / than, whose))
}

/// S10: equal speed, unequal load. What got worse must be worse on the busy replica: its first tokens where requests wait there, its time
/// per token where they only make its batch larger.
pub fn imbalance(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    let seen = bench.now();
    let (busy, load) = busiest(&bench.candidate)?;
    let before = bench.base.as_ref().and_then(busiest).map_or(1.0, |(_, load)| load);
    let passed_over = there(&bench.candidate) > seen.replicas.len();
    let of = |metric: &str, of: fn(&RequestRow) -> f64, p: f64| {
        if bench.suspects(metric) { over_others(bench, (busy, passed_over), of, p) } else { None }
    };
    let (first, token) = (of("ttft", |row| row.ttft_sent, 0.95), of("tpot", |row| row.tpot, 0.5));
    let ((tails, whose), what) = match (first, token) {
        (first, Some(token)) if first.is_none_or(|(first, _)| first < 1.1) => {
            (token, "time per token (median) is")
        }
        (Some(first), _) => (first, "first tokens (p95) are"),
        _ => return None,
    };
    // Fewer replicas than before, each with its share, is no imbalance.
    if load < 1.1 || load < 1.05 * before || tails < 1.1 {
        return None;
    }
    let theirs: Vec<bool> =
        seen.rows.iter().filter_map(|row| row.replica).map(|replica| replica == busy).collect();
    let (n, fair) = (theirs.len() as f64, 1.0 / there(&bench.candidate) as f64);
    let design = plimsoll_math::quantile::design_effect(&theirs, crate::ratio::STRETCHES);
    let share = super::share(load * fair * n, n, design);
    if share.lower <= fair {
        return None;
    }
    let name = &seen.replicas[usize::from(busy)];
    let says = format!(
        "replica {name} gets {} times a fair share of the requests (before {}), and its {what} {} times {whose}",
        number(load),
        number(before),
        number(tails)
    );
    let confidence = beyond(load - 1.0, 0.1) * beyond(tails, 1.15) / 0.7;
    Some(
        Fired::new(Cause::RoutingImbalance, confidence.min(0.97), says.clone())
            .with(Evidence::figure("busiest_share", says, share, Some(1.1 * fair)))
            .counted(Counter::Moved {
                name: "busiest replica's requests over a fair share".into(),
                by: load,
            }),
    )
}

/// When each replica was first sent something, s since the level began.
fn births(seen: &Seen<'_>) -> Vec<f64> {
    let mut born = vec![f64::INFINITY; seen.replicas.len()];
    for row in &seen.rows {
        if let Some(replica) = row.replica {
            let at = &mut born[usize::from(replica)];
            *at = at.min(row.sent_last);
        }
    }
    born
}

/// Requests per replica that others must have been sent before a replica's first one for it to have come late.
const EARLY_REQUESTS: usize = 8;

/// S8: a replica that came up during the level and is slow at first.
pub fn cold_start(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    let seen = bench.now();
    let mut best: Option<Fired> = None;
    for (replica, born) in births(seen).into_iter().enumerate().filter(|(_, born)| born.is_finite()) {
        // At the beginning of a level every replica answers for the first time, and where few requests come, some only after a while.
        let before = seen.rows.iter().filter(|row| row.sent_last < born).count();
        if born < 3.0 || before < EARLY_REQUESTS * seen.replicas.len() {
            continue;
        }
        let own = |from: f64, to: f64, of: fn(&RequestRow) -> f64| -> Vec<f64> {
            let mut v: Vec<f64> = seen
                .rows
                .iter()
                .filter(|r| {
                    r.ok && r.replica == Some(replica as u16)
                        && r.sent_last >= born + from
                        && r.sent_last < born + to
                })
                .map(of)
                .filter(|x| x.is_finite())
                .collect();
            sort(&mut v);
            v
        };
        for (name, of) in [
            ("tpot", (|r: &RequestRow| r.tpot) as fn(&RequestRow) -> f64),
            ("ttft", |r: &RequestRow| r.ttft_sent),
        ] {
            let (young, old) = (own(0.0, 12.0, of), own(40.0, f64::INFINITY, of));
            let (Some(first), Some(later)) = (of_sorted(&young, 0.5), of_sorted(&old, 0.5)) else { continue };
            let p = crate::ratio::rank_sum(&old, &young);
            let ratio = first / later;
            if young.len() < 5 || old.len() < 5 || ratio < 1.4 || p > 0.01 {
                continue;
            }
            let says = format!(
                "replica {} was sent its first request {} s into the level; {name} is {} times as long in its first 12 s as after 40 s ({} and {} requests, {})",
                seen.replicas[replica],
                number(born),
                number(ratio),
                young.len(),
                old.len(),
                chance(p)
            );
            let mut fired =
                Fired::new(Cause::ColdStart, (beyond(ratio - 1.0, 0.5) * 1.1).min(0.97), says.clone())
                    .with(Evidence::said("young_over_old", says))
                    .counted(Counter::Moved {
                        name: "replicas that came up during the level".into(),
                        by: 1.0,
                    });
            fired.struck.during.push((born, born + 40.0));
            if best.as_ref().is_none_or(|b| fired.confidence > b.confidence) {
                best = Some(fired);
            }
        }
    }
    best
}

/// Seconds into the level after which a replica that answers for the first time may have come late.
const EARLY_S: f64 = 5.0;

/// Both runs call for more replicas, and here they come later, or not within the run: first tokens between the instant at which the
/// baseline had one more and the instant at which this run had, against the baseline's of the same stretch.
fn later_than_before(bench: &Bench<'_>) -> Option<Fired> {
    let (base, seen) = (bench.before()?, bench.now());
    let late = |seen: &Seen<'_>| -> Vec<f64> {
        let mut born: Vec<f64> =
            births(seen).into_iter().filter(|at| at.is_finite() && *at > EARLY_S).collect();
        sort(&mut born);
        born
    };
    let (before, now) = (late(base), late(seen));
    // The longest that a replica let wait for itself; one that never came, to the end.
    let (had, came) = before
        .iter()
        .enumerate()
        .map(|(k, at)| (*at, now.get(k).copied().unwrap_or(seen.length)))
        .max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)))?;
    // One that is on the servers' pages by then was there and was not asked: that is the router's doing.
    let by_then = births(base).into_iter().filter(|at| *at <= had).count();
    if bench.candidate.gauges.replicas_at(&seen.replicas, had) >= by_then {
        return None;
    }
    let p75 = |seen: &Seen<'_>, from: f64, to: f64| {
        let within = |row: &&RequestRow| row.due >= from && row.due < to && !row.ttft.is_nan();
        let mut v: Vec<f64> = seen.rows.iter().filter(within).map(|row| row.ttft).collect();
        (v.len() >= 15).then(|| order_statistic(&mut v, 0.75)).flatten()
    };
    let delay = came - had;
    let (slow, usual) = (p75(seen, had, came)?, p75(base, had, came)?);
    let calm =
        p75(seen, 0.0, had).zip(p75(base, 0.0, had)).map_or(1.0, |(now, before)| now / before.max(1e-9));
    let ratio = slow / usual.max(1e-9);
    // Slow before the load called for more as well: then it is not their coming.
    if delay < 5.0 || ratio < 1.25 || ratio < 1.2 * calm {
        return None;
    }
    let says = format!(
        "a replica that the baseline had from {} s on {}; meanwhile first tokens took {} times the baseline's of the same time (p75), before it {} times",
        number(had),
        if came < seen.length { format!("came at {} s", number(came)) } else { "did not come".to_owned() },
        number(ratio),
        number(calm)
    );
    let confidence = beyond(delay, 5.0) * beyond(ratio, 1.25) / 0.6;
    let mut fired = Fired::new(Cause::AutoscalingLag, confidence.min(0.96), says.clone())
        .with(Evidence::said("later_than_before", says))
        .counted(Counter::Moved { name: "seconds that a replica came later than before".into(), by: delay });
    fired.struck.during.push((had, came));
    Some(fired)
}

/// Load is there before the replicas are: slow until more of them answer, fine afterwards.
pub fn scaling_lag(bench: &Bench<'_>) -> Option<Fired> {
    if !(bench.suspects("ttft") || bench.suspects("e2e") || bench.suspects("tpot")) {
        return None;
    }
    if let Some(fired) = later_than_before(bench) {
        return Some(fired);
    }
    let seen = bench.now();
    let born: Vec<f64> = births(seen).into_iter().filter(|at| at.is_finite()).collect();
    let late: Vec<f64> = born.iter().copied().filter(|at| *at > EARLY_S).collect();
    let last = late.iter().copied().fold(f64::NAN, f64::max);
    // Those that were on the servers' pages all the while were there and were not asked.
    let there = bench.candidate.gauges.replicas_at(&seen.replicas, EARLY_S) >= born.len();
    if late.is_empty() || last > 0.9 * seen.length || there {
        return None;
    }
    let of = |from: f64, to: f64| -> Vec<f64> {
        let mut v: Vec<f64> = seen
            .rows
            .iter()
            .filter(|r| r.due >= from && r.due < to)
            .map(|r| r.ttft)
            .filter(|x| !x.is_nan())
            .collect();
        sort(&mut v);
        v
    };
    // What had piled up takes its time to be served.
    let (before, after) = (of(0.0, last), of((last + 5.0).min(0.95 * seen.length), f64::INFINITY));
    let worst = |v: &[f64]| of_sorted(v, 0.75);
    let (Some(slow), Some(fine)) = (worst(&before), worst(&after)) else { return None };
    let ratio = slow / fine.max(1e-9);
    let was = bench
        .before()
        .map_or(0.0, |base| births(base).into_iter().filter(|at| at.is_finite()).fold(0.0, f64::max));
    if ratio < 1.5 || before.len() < 15 || after.len() < 15 || last < was + 3.0 {
        return None;
    }
    let says = format!(
        "{} of {} replicas answered only from {} s on (in the baseline from {} s); before it first tokens took {} times as long as afterwards (p75)",
        late.len(),
        born.len(),
        number(last),
        number(was),
        number(ratio)
    );
    let mut fired = Fired::new(Cause::AutoscalingLag, (beyond(ratio, 1.5) * 1.15).min(0.96), says.clone())
        .with(Evidence::said("before_over_after", says))
        .counted(Counter::Moved {
            name: "replicas that came up during the level".into(),
            by: late.len() as f64,
        });
    fired.struck.during.push((0.0, last));
    Some(fired)
}
