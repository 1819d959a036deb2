//! Comparison of replicas, from the replica names in responses, else from metrics endpoints.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};
use plimsoll_measure::say::{chance, number, percent, ratio_ends};

use super::{FactState, Finding, Observed, replica_pages as pages};
use crate::RunData;
use crate::effect::share;
use crate::effect::{StatisticChange, of_units};
use crate::frame::{Frame, Frames};
use crate::seen::{DiagnosedLevel, RequestView};

/// Minimum ratio of a replica's time per token to the others', of its lower bound, and of its growth.
const SLOWER: (f64, f64, f64) = (1.15, 1.07, 1.12);
/// Minimum number of requests per replica that others got before the first request of a late replica.
const EARLY_REQUESTS: usize = 8;
/// Time in s since the start of the level after which a first response is late.
const EARLY_S: f64 = 5.0;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    found.extend(fewer(frames));
    found.extend(slower(frames).or_else(|| pages::slower(&both(frames)?)));
    found.extend(uneven(frames).or_else(|| pages::uneven(&both(frames)?)));
    found.extend(late(frames));
    found.extend(slow_when_young(frames));
}

fn fewer(frames: &Frames<'_>) -> Option<Finding> {
    frames.base.as_ref()?;
    let no = || Finding::new(Observed::FewerReplicas, FactState::No, "as many replicas as before".to_owned());
    Some(fewer_replicas(frames).map_or_else(no, |(a, b)| {
        Finding::new(
            Observed::FewerReplicas,
            FactState::Yes,
            format!("{b} of the {a} replicas that answered before answer now"),
        )
    }))
}

fn slower(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    let (slow, effect) = slowest(seen)?;
    let ratio = effect.ratio;
    let before = frames.before().and_then(slowest).map_or(1.0, |(_, effect)| effect.ratio.value);
    let grown = ratio.value / before.clamp(1.0, 1.5);
    let load = load_of(seen, slow, seen.replicas.len());
    let is = FactState::of(
        ratio.value >= SLOWER.0 && ratio.lower >= SLOWER.1 && grown >= SLOWER.2 && load <= 1.35,
        ratio.value < 1.07 || grown < 1.05 || load > 1.5,
    );
    let says = format!(
        "replica {} takes × {} {} as long per token as the others, with {} of a fair share of the requests",
        seen.replicas[usize::from(slow)],
        number(ratio.value),
        ratio_ends(ratio.lower, ratio.upper),
        percent(load)
    );
    Some(Finding::new(Observed::ReplicaSlower, is, says).figure(ratio, SLOWER.0))
}

/// Checks whether the busiest replica gets more than a fair share with confidence, and whether the worse metric is
/// worse there. The metric is the time to first token or the time per token.
fn uneven(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    let (busy, load) = busiest(&frames.candidate)?;
    let before = frames.base.as_ref().and_then(busiest).map_or(1.0, |(_, load)| load);
    let passed_over = there(&frames.candidate) > seen.replicas.len();
    let of = |of: fn(&RequestView) -> f64, p: f64| {
        over_others(frames, (busy, passed_over), of, p).map_or(1.0, |(over, _)| over)
    };
    let (tails, tokens) = (of(|row| row.ttft_sent, 0.95), of(|row| row.tpot, 0.5));
    let theirs: Vec<bool> =
        seen.rows.iter().filter_map(|row| row.replica).map(|replica| replica == busy).collect();
    let (n, fair) = (theirs.len() as f64, 1.0 / there(&frames.candidate) as f64);
    let design = plimsoll_math::quantile::design_effect(&theirs, crate::effect::STRETCHES);
    let share = share(load * fair * n, n, design);
    let worse = tails.max(tokens) >= 1.1;
    let is = FactState::of(
        load >= 1.1 && load >= 1.05 * before && share.lower > fair && worse,
        load < 1.07 || load < 1.02 * before || !worse,
    );
    let says = format!(
        "replica {} gets {} times a fair share of the requests (before {}); its first tokens (p95) are × {} and its time per token × {} the figures of less loaded replicas",
        seen.replicas[usize::from(busy)],
        number(load),
        number(before),
        number(tails),
        number(tokens)
    );
    Some(Finding::new(Observed::UnevenLoad, is, says).figure(share, 1.1 * fair))
}

/// Checks whether replicas come later than the load. Compares the times to first token, between the start of a
/// replica in the baseline and in this run, with the baseline's of that period. Otherwise compares those before the
/// last replica came with those after it.
fn late(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    if seen.replicas.is_empty() {
        return None;
    }
    let found = later_than_before(frames).or_else(|| slow_until_they_came(frames));
    Some(found.unwrap_or_else(|| {
        Finding::new(Observed::ReplicasLate, FactState::No, "no replica comes later than the load".to_owned())
    }))
}

fn later_than_before(frames: &Frames<'_>) -> Option<Finding> {
    let (base, seen) = (frames.before()?, frames.now());
    let late = |seen: &DiagnosedLevel<'_>| -> Vec<f64> {
        let mut born: Vec<f64> =
            births(seen).into_iter().filter(|at| at.is_finite() && *at > EARLY_S).collect();
        sort(&mut born);
        born
    };
    let (before, now) = (late(base), late(seen));
    // The longest delay of a replica; a replica that never came counts to the end.
    let (had, came) = before
        .iter()
        .enumerate()
        .map(|(k, at)| (*at, now.get(k).copied().unwrap_or(seen.length)))
        .max_by(|a, b| (a.1 - a.0).total_cmp(&(b.1 - b.0)))?;
    // A replica that metrics endpoints already list existed and got no requests, which the router causes.
    let by_then = births(base).into_iter().filter(|at| *at <= had).count();
    if frames.candidate.gauges.replicas_at(&seen.replicas, had) >= by_then {
        return None;
    }
    let p75 = |seen: &DiagnosedLevel<'_>, from: f64, to: f64| {
        let within = |row: &&RequestView| row.due >= from && row.due < to && !row.ttft.is_nan();
        let mut v: Vec<f64> = seen.rows.iter().filter(within).map(|row| row.ttft).collect();
        (v.len() >= 15).then(|| order_statistic(&mut v, 0.75)).flatten()
    };
    let delay = came - had;
    let (slow, usual) = (p75(seen, had, came)?, p75(base, had, came)?);
    let calm =
        p75(seen, 0.0, had).zip(p75(base, 0.0, had)).map_or(1.0, |(now, before)| now / before.max(1e-9));
    let ratio = slow / usual.max(1e-9);
    // If requests were slow even before the load called for more replicas, late replicas are not the cause.
    if delay < 5.0 || ratio < 1.25 || ratio < 1.2 * calm {
        return None;
    }
    let says = format!(
        "a replica that the baseline got at {} s {}; until then first tokens took {} times the baseline's of that time (p75), before the scale-up {} times",
        number(had),
        if came < seen.length { format!("came at {} s", number(came)) } else { "did not come".to_owned() },
        number(ratio),
        number(calm)
    );
    Some(Finding::new(Observed::ReplicasLate, FactState::Yes, says))
}

fn slow_until_they_came(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    let born: Vec<f64> = births(seen).into_iter().filter(|at| at.is_finite()).collect();
    let late: Vec<f64> = born.iter().copied().filter(|at| *at > EARLY_S).collect();
    let last = late.iter().copied().fold(f64::NAN, f64::max);
    // Replicas that metrics endpoints list all the time existed and got no requests.
    let there = frames.candidate.gauges.replicas_at(&seen.replicas, EARLY_S) >= born.len();
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
    // The backlog takes some time to be served.
    let (before, after) = (of(0.0, last), of((last + 5.0).min(0.95 * seen.length), f64::INFINITY));
    let worst = |v: &[f64]| of_sorted(v, 0.75);
    let (Some(slow), Some(fine)) = (worst(&before), worst(&after)) else { return None };
    let ratio = slow / fine.max(1e-9);
    let was = frames
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
    Some(Finding::new(Observed::ReplicasLate, FactState::Yes, says))
}

/// Checks whether a replica that got its first request late is slow in its first seconds, and normal later.
fn slow_when_young(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    if seen.replicas.is_empty() {
        return None;
    }
    let mut worst: Option<(f64, Finding)> = None;
    for (replica, born) in births(seen).into_iter().enumerate().filter(|(_, born)| born.is_finite()) {
        // At the start of a level every replica responds for the first time, and at a low rate some only after a
        // while.
        let before = seen.rows.iter().filter(|row| row.sent_last < born).count();
        if born < 3.0 || before < EARLY_REQUESTS * seen.replicas.len() {
            continue;
        }
        let own = |from: f64, to: f64, of: fn(&RequestView) -> f64| -> Vec<f64> {
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
            ("tpot", (|r: &RequestView| r.tpot) as fn(&RequestView) -> f64),
            ("ttft", |r: &RequestView| r.ttft_sent),
        ] {
            let (young, old) = (own(0.0, 12.0, of), own(40.0, f64::INFINITY, of));
            let (Some(first), Some(later)) = (of_sorted(&young, 0.5), of_sorted(&old, 0.5)) else { continue };
            let p = crate::effect::rank_sum(&old, &young);
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
            let finding = Finding::new(Observed::SlowWhenYoung, FactState::Yes, says);
            if worst.as_ref().is_none_or(|(most, _)| ratio > *most) {
                worst = Some((ratio, finding));
            }
        }
    }
    let no = || {
        Finding::new(
            Observed::SlowWhenYoung,
            FactState::No,
            "no replica is slow while it is young".to_owned(),
        )
    };
    Some(worst.map_or_else(no, |(_, finding)| finding))
}

/// The values of one replica.
pub struct Own {
    pub replica: u16,
    /// Finite values in ascending order.
    pub values: Vec<f64>,
}

/// Returns a metric by replica; replicas with fewer than ten values are left out.
pub fn by_replica(seen: &DiagnosedLevel<'_>, of: impl Fn(&RequestView) -> f64) -> Vec<Own> {
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

/// Returns the slowest replica compared with all others, by time intervals.
fn slowest(seen: &DiagnosedLevel<'_>) -> Option<(u16, StatisticChange)> {
    let own = by_replica(seen, |row| row.tpot);
    if own.len() < 2 {
        return None;
    }
    let middle = |own: &Own| of_sorted(&own.values, 0.5).unwrap_or(0.0);
    let slow = own.iter().max_by(|a, b| middle(a).total_cmp(&middle(b)))?.replica;
    let of =
        |is: bool| {
            crate::effect::stretches(seen, move |row| {
                if (row.replica == Some(slow)) == is { row.tpot } else { f64::NAN }
            })
        };
    Some((slow, of_units(of(false), of(true), 0.5, 0.95)?))
}

/// Returns the requests of a replica over the mean of `of` replicas.
fn load_of(seen: &DiagnosedLevel<'_>, replica: u16, of: usize) -> f64 {
    let own = seen.rows.iter().filter(|row| row.replica == Some(replica)).count() as f64;
    let told = seen.rows.iter().filter(|row| row.replica.is_some()).count() as f64;
    own / (told / of.max(1) as f64).max(1.0)
}

/// Returns the number of available replicas: the replicas that responded, or those on metrics endpoints if they are
/// more. A replica without requests never responds.
fn there(arm: &Frame<'_>) -> usize {
    arm.seen.replicas.len().max(arm.gauges.replicas(&arm.seen.replicas))
}

/// Returns the busiest replica, and its requests over a fair share.
fn busiest(arm: &Frame<'_>) -> Option<(u16, f64)> {
    let of = there(arm);
    let loads = (0..arm.seen.replicas.len() as u16).map(|r| (r, load_of(&arm.seen, r, of)));
    (of > 1).then(|| loads.max_by(|a, b| a.1.total_cmp(&b.1)))?
}

/// Returns the ratio of a percentile between the replicas above and below a fair share, and a phrase that names the
/// reference. With two busy replicas of three, the third is the reference. If the others get next to no requests, the
/// busiest replica is compared with the baseline.
fn over_others(
    frames: &Frames<'_>,
    (busy, passed_over): (u16, bool),
    of: fn(&RequestView) -> f64,
    p: f64,
) -> Option<(f64, &'static str)> {
    let at = |seen: &DiagnosedLevel<'_>, own: &dyn Fn(&RequestView) -> bool| {
        let mut v: Vec<f64> =
            seen.rows.iter().filter(|r| r.ok && own(r)).map(of).filter(|x| x.is_finite()).collect();
        (v.len() >= 10).then(|| order_statistic(&mut v, p)).flatten()
    };
    let of = there(&frames.candidate);
    let loads: Vec<f64> =
        (0..frames.now().replicas.len() as u16).map(|r| load_of(frames.now(), r, of)).collect();
    let over = |row: &RequestView| row.replica.is_some_and(|r| loads[usize::from(r)] > 1.0);
    let others = at(frames.now(), &|row| row.replica.is_some() && !over(row)).filter(|_| !passed_over);
    let (now, than, whose) = match others {
        Some(others) => (at(frames.now(), &over)?, others, "the figures of less loaded replicas"),
        None => {
            let own = at(frames.now(), &|row| row.replica == Some(busy))?;
            (
                own,
                at(frames.before()?, &|_| true)?,
                "the baseline's, while another replica gets almost no requests",
            )
        }
    };
    Some((now / than, whose))
}

/// Returns the time of the first request to each replica, in s since the start of the level.
fn births(seen: &DiagnosedLevel<'_>) -> Vec<f64> {
    let mut born = vec![f64::INFINITY; seen.replicas.len()];
    for row in &seen.rows {
        if let Some(replica) = row.replica {
            let at = &mut born[usize::from(replica)];
            *at = at.min(row.sent_last);
        }
    }
    born
}

/// Returns the engines of both runs, if there are several and their number is unchanged. Returns `None` if responses
/// distinguish them.
fn both(frames: &Frames<'_>) -> Option<pages::Engines> {
    let base = frames.base.as_ref()?;
    let untold = |arm: &Frame<'_>| arm.seen.replicas.len() < 2;
    let engines = pages::engines(&base.gauges, &frames.candidate.gauges)?;
    (untold(base) && untold(&frames.candidate)).then_some(engines)
}

/// Returns the number of replicas before and now, if it fell. The sources are the known properties of the target, the
/// responses, and the metrics endpoints.
pub(crate) fn fewer_replicas(frames: &Frames<'_>) -> Option<(usize, usize)> {
    let told =
        |side: &RunData<'_>| side.facts.facts.get("replicas").cloned().flatten()?.parse::<usize>().ok();
    if let (Some(a), Some(b)) = (frames.case.baseline.as_ref().and_then(told), told(&frames.case.candidate))
        && a > b
        && b > 0
    {
        return Some((a, b));
    }
    let count = |seen: &DiagnosedLevel<'_>| {
        (0..seen.replicas.len() as u16)
            .filter(|r| seen.rows.iter().filter(|row| row.replica == Some(*r)).count() >= 5)
            .count()
    };
    let base = frames.base.as_ref()?;
    let (a, b) = (count(&base.seen), count(frames.now()));
    if a > b && b > 0 {
        return (frames.candidate.gauges.replicas(&frames.now().replicas) < a).then_some((a, b));
    }
    let on_pages = |arm: &Frame<'_>| arm.gauges.replicas(&base.seen.replicas);
    let (pages, pages_now) = (on_pages(base), on_pages(&frames.candidate));
    (b == 0 && pages > pages_now && pages_now > 0).then_some((pages, pages_now))
}
