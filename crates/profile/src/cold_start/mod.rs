//! The cost of a request after idling: a cold start, an idle component, or none.
//!
//! A run of kind `cold-start` has one steady level (one request at a time, purpose `run`). After each idle period it
//! has a short level (purpose `cold`): one request and some after it. Cold levels are in no curve, percentile or
//! verdict of a run; they are evaluated here.
//!
//! A permutation of the first requests tests whether they are slower than the steady ones. (With one idle period it
//! is exact: the rank of the first request among the steady ones.) The *cause* is decided separately. Rejected
//! requests or refused connections, or a penalty of seconds, are a replica that starts. A small penalty is a clock, a
//! cache or an idle connection. Idle periods of ordinary runs are in `passive`, the parts of a first request's wait
//! in [`split`]. An average over "cold" and "warm" requests was rejected because it describes neither.

mod passive;
pub mod split;

pub use passive::BusySeconds;

use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::cold_start::{ColdStartFinding, ColdTrial, ColdVerdict};
use plimsoll_measure::findings::{BoundedValue, Reading};
use plimsoll_measure::order;
use plimsoll_measure::purpose::COLD;
use plimsoll_model::{Attempt, How, Level, Manifest};

/// Kind of a run for cold starts.
pub const KIND: &str = "cold-start";
/// Minimum number of steady requests, because with them a rank test can reach an error probability of 1 in 20.
pub(crate) const FEWEST_WARM: usize = 20;

/// Maximum p-value at which a penalty counts.
const LEVEL: f64 = 0.05;
/// Number of permutations if they are sampled.
const PERMUTATIONS: u32 = 4000;
/// Minimum penalty of a replica start: in s, and as a multiple of the steady time. No clock or cache takes seconds.
const STARTS_S: f64 = 1.0;
const STARTS_TIMES: f64 = 3.0;

/// The idle periods; below, the median and 95th percentile of steady requests.
type Trials = Vec<ColdTrial>;
type Steady = (Option<f64>, Option<f64>);

/// Returns the cold starts of a run; `None` if it neither searched for cold starts nor had one.
pub fn of(manifest: &Manifest, attempts: &[Attempt]) -> Option<ColdStartFinding> {
    if manifest.kind != KIND {
        return passive::of(manifest, attempts);
    }
    let of_level = |level: &Level| attempts.iter().filter(|a| a.level == level.id).collect::<Vec<_>>();
    let steady = manifest.levels.iter().find(|level| level.purpose == "run")?;
    let warm_rows = of_level(steady);
    let warm: Vec<f64> = requests(&warm_rows).iter().filter_map(|own| took(own)).collect();
    Some(found(warm, |usual| {
        let mut before = steady.drained;
        let mut trials = Vec::new();
        for level in manifest.levels.iter().filter(|level| level.purpose == COLD) {
            let own = of_level(level);
            trials.push(trial(level.id, &own, (level.start - before).as_secs_f64(), usual));
            before = level.drained;
        }
        trials
    }))
}

/// Returns the finding from the steady requests and the trials.
fn found(warm: Vec<f64>, trials: impl FnOnce(Steady) -> Trials) -> ColdStartFinding {
    let mut sorted = warm.clone();
    sorted.sort_by(f64::total_cmp);
    let at = |p: f64| sorted.get(plimsoll_math::quantile::rank(sorted.len().max(1), p) - 1).copied();
    let (median, p95) = (at(0.5), at(0.95));
    let trials = trials((median, p95));
    let (p, verdict, why) = judge(&warm, median, &trials);
    let column: Vec<i64> = warm.iter().map(|s| (s * 1e9) as i64).collect();
    let reading = order::percentiles("first_token", &column, f64::INFINITY).map(|(set, _)| set.p50);
    let penalties: Vec<f64> = trials.iter().filter_map(|trial| trial.penalty_s).collect();
    let penalty = (!penalties.is_empty()).then(|| BoundedValue {
        value: penalties.iter().sum::<f64>() / penalties.len() as f64,
        lower: penalties.iter().copied().fold(f64::INFINITY, f64::min),
        upper: penalties.iter().copied().fold(f64::NEG_INFINITY, f64::max),
    });
    let warm = reading.unwrap_or_else(|| Reading::refused("no steady request was answered", 0));
    ColdStartFinding { verdict, why, warm, warm_p95_s: p95, penalty, p, trials, in_passing: false }
}

/// Returns the attempts by request, in order of requests and attempts.
fn requests<'a>(rows: &[&'a Attempt]) -> Vec<Vec<&'a Attempt>> {
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|a| (a.request, a.attempt));
    sorted.chunk_by(|a, b| a.request == b.request).map(<[&Attempt]>::to_vec).collect()
}

/// Returns the time from due to the first token of the successful attempt, s.
fn took(own: &[&Attempt]) -> Option<f64> {
    let last = own.last().filter(|a| a.outcome.is_finished())?;
    let first = last.first_token.or(last.end)?;
    Some((first - own.first()?.due).as_secs_f64())
}

fn trial(level: u32, rows: &[&Attempt], idle_s: f64, (median, p95): (Option<f64>, Option<f64>)) -> ColdTrial {
    let all = requests(rows);
    let first: &[&Attempt] = all.first().map_or(&[], Vec::as_slice);
    let first_s = took(first);
    let answered = first.last().filter(|a| a.outcome.is_finished());
    let count = |of: &dyn Fn(How) -> bool| first.iter().filter(|a| of(a.outcome.how)).count() as u64;
    let is_warm = |own: &Vec<&Attempt>| took(own).zip(p95).is_some_and(|(took, p95)| took <= p95);
    let place = all.iter().position(is_warm);
    let end_of = |i: usize| all[i].last().and_then(|a| a.first_token.or(a.end));
    let due = first.first().map(|a| a.due);
    // Later attempts wait for their turn before connecting, and the start of connecting is not recorded.
    let once = answered.filter(|a| !a.reused && first.len() == 1);
    let made = once.and_then(|a| Some((a.connected?, a.sent?)));
    ColdTrial {
        level,
        idle_s,
        first_s,
        penalty_s: first_s.zip(median).map(|(first, median)| first - median),
        connect_s: made.and_then(|(connected, sent)| {
            let begun = due?;
            (connected <= sent).then(|| (connected - begun.min(connected)).as_secs_f64())
        }),
        turned_away: count(&|how| matches!(how, How::Shed | How::ServerError)),
        refused: count(&|how| matches!(how, How::Refused | How::Reset)),
        turned_away_s: match (due, answered.and_then(|a| a.sent)) {
            (Some(due), Some(sent)) if first.len() > 1 => (sent - due).as_secs_f64(),
            _ => 0.0,
        },
        waited_s: answered.and_then(|a| Some((a.first_token.or(a.end)? - a.sent?).as_secs_f64())),
        warm_after: place.map(|place| place as u64),
        warm_after_s: place.and_then(|place| Some((end_of(place)? - due?).as_secs_f64())),
        parts: split::parts(first, median),
    }
}

fn judge(warm: &[f64], median: Option<f64>, trials: &[ColdTrial]) -> (Option<f64>, ColdVerdict, String) {
    let firsts: Vec<f64> = trials.iter().filter_map(|trial| trial.first_s).collect();
    let idle = trials.iter().map(|trial| trial.idle_s).fold(f64::INFINITY, f64::min);
    let idle = time(idle);
    let cannot = |why: String| (None, ColdVerdict::CannotTell, why);
    let Some(median) = median.filter(|_| warm.len() >= FEWEST_WARM) else {
        return cannot(format!("{} steady requests were answered; {FEWEST_WARM} are needed", warm.len()));
    };
    if firsts.is_empty() {
        return cannot("no request after an idle period was answered".into());
    }
    let p = chance(warm, &firsts);
    let mean = firsts.iter().sum::<f64>() / firsts.len() as f64 - median;
    let away: u64 = trials.iter().map(|trial| trial.turned_away + trial.refused).sum();
    let figures = format!(
        "the first request after {idle} of idling took {} longer than the steady {} (chance {})",
        time(mean),
        time(median),
        plimsoll_measure::say::number(p)
    );
    if away > 0 {
        let why = format!(
            "{figures}, and {} rejected during the start",
            plimsoll_measure::say::count(away, "attempt")
        );
        return (Some(p), ColdVerdict::Started, why);
    }
    if p > LEVEL || mean <= 0.0 {
        let least = (warm.len() + 1) as f64;
        let why = if 1.0 / least > LEVEL { "; too few steady requests to see any" } else { "" };
        return (
            Some(p),
            ColdVerdict::None,
            format!(
                "no cold start within {idle} of idling: the first request took {}, steady ones {}{why}",
                time(mean + median),
                time(median)
            ),
        );
    }
    if mean >= STARTS_S && mean >= STARTS_TIMES * median {
        return (Some(p), ColdVerdict::Started, figures);
    }
    let why = format!(
        "{figures}: less than the start of a replica, so the cause is an idle clock, cache or connection"
    );
    (Some(p), ColdVerdict::Idle, why)
}

fn time(s: f64) -> String {
    if s.abs() < 1.0 {
        plimsoll_measure::say::ms(s)
    } else {
        format!("{} s", plimsoll_measure::say::number(s))
    }
}

/// Returns the p-value that first requests are this slow by accident. It is from permutations of the first requests
/// among all; with one idle period all are evaluated.
fn chance(warm: &[f64], firsts: &[f64]) -> f64 {
    if let [first] = firsts {
        let slower = warm.iter().filter(|other| *other >= first).count();
        return (slower + 1) as f64 / (warm.len() + 1) as f64;
    }
    let mut all: Vec<f64> = warm.iter().chain(firsts).copied().collect();
    let seen: f64 = firsts.iter().sum();
    let mut stream = Stream::new(1, "cold starts", firsts.len() as u64);
    let mut as_slow = 0u32;
    for _ in 0..PERMUTATIONS {
        for i in 0..firsts.len() {
            let with = i + stream.below((all.len() - i) as u64) as usize;
            all.swap(i, with);
        }
        as_slow += u32::from(all[..firsts.len()].iter().sum::<f64>() >= seen);
    }
    f64::from(as_slow + 1) / f64::from(PERMUTATIONS + 1)
}
