//! S5 where it is somebody else on the machine: seconds in which a replica's tokens come slower than beside as many others.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::load::{Law, computed};
use super::stall::worse;
use super::{Fired, beyond};
use crate::bench::Bench;
use crate::concurrency;
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{number, percent};

/// Somebody else on the machine: tokens come slower for stretches of seconds, on a replica, and as fast as ever between. Slower than beside
/// as many others in the baseline: what makes a queue makes larger batches, and slow seconds with them.
pub fn noisy(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    // A step holds more answers at one time than at another: only what is slow beside as many is a neighbour's.
    let company = concurrency::Law::of(bench.before().unwrap_or(bench.now()));
    let alone = Law::of(&bench.candidate.alone);
    let of = |seen: &Seen<'_>| slow_stretches(seen, company.as_ref(), alone.as_ref());
    let (found, slow) = of(bench.now())?;
    let before = bench.before().and_then(of).map_or(0.0, |(share, _)| share.value);
    if found.value < 0.06 || found.value > 0.75 || found.value < 2.5 * before + 0.03 {
        return None;
    }
    let says = format!(
        "in {} of the seconds a replica's tokens come {} times slower than its usual, in stretches of several seconds ({} in the baseline)",
        percent(found.value),
        number(slow),
        percent(before)
    );
    let confidence = beyond(found.value, 0.08) * beyond(slow - 1.0, 0.4) / 0.72;
    Some(
        Fired::new(Cause::NoisyNeighbour, confidence.min(0.95), says.clone())
            .with(Evidence::figure("slow_seconds", says, found, Some(0.06)).inferred())
            .counted(Counter::Moved { name: "seconds with slow tokens, share".into(), by: found.value }),
    )
}

/// Share of a second from which its prompts, at what single requests take, explain that tokens are slow in it.
const READING: f64 = 0.4;

/// Seconds that a prompt token takes to be read: of single requests, else of the fastest tenth among the longer half of the prompts. What they
/// wait for beside is in that too, so that more time counts as read than was.
fn per_token(seen: &Seen<'_>, alone: Option<&Law>) -> f64 {
    if let Some(law) = alone {
        return law.per_token;
    }
    let read = |row: &&RequestRow| row.ok && row.ttft_sent.is_finite();
    let mut prompts: Vec<f64> = seen.rows.iter().filter(read).map(computed).collect();
    sort(&mut prompts);
    let Some(middle) = of_sorted(&prompts, 0.5) else { return 0.0 };
    let longer = seen.rows.iter().filter(read).filter(|row| computed(row) >= middle);
    let mut each: Vec<f64> = longer.map(|row| row.ttft_sent / computed(row)).collect();
    sort(&mut each);
    of_sorted(&each, 0.1).unwrap_or(0.0)
}

/// Share of each second in which prompts are read, at so many seconds a token, up to their first tokens; by replica.
fn reading_by_second(seen: &Seen<'_>, per_token: f64, several: usize, seconds: usize) -> Vec<Vec<f64>> {
    let mut reading = vec![vec![0.0; seconds + 1]; several];
    for row in seen.rows.iter().filter(|row| row.ttft_sent.is_finite()) {
        let replica = usize::from(row.replica.unwrap_or(0)).min(several - 1);
        let until = row.sent_last + row.ttft_sent;
        let from = (until - per_token * computed(row)).max(row.sent_last);
        let first = (from.max(0.0) as usize).min(seconds);
        for (second, read) in (first..).zip(&mut reading[replica][first..]) {
            let (begin, end) = (second as f64, second as f64 + 1.0);
            if until <= begin {
                break;
            }
            *read += (until.min(end) - from.max(begin)).max(0.0);
        }
    }
    reading
}

/// Share of (replica, second) cells whose typical gap is 1.4 times the replica's usual, as it is and beside as many answers, in runs of two
/// or more; and by how much. Seconds in which prompts were read for the most part are none.
fn slow_stretches(
    seen: &Seen<'_>,
    law: Option<&concurrency::Law>,
    alone: Option<&Law>,
) -> Option<(Estimate, f64)> {
    let seconds = seen.length.ceil() as usize;
    let several = seen.replicas.len().max(1);
    let reading = reading_by_second(seen, per_token(seen, alone), several, seconds);
    let (mut cells, mut slow, mut ratios) = (0.0, 0.0, Vec::new());
    for (replica, reading) in reading.iter().enumerate() {
        let mut by_second: Vec<Vec<(f64, f64)>> = vec![Vec::new(); seconds + 1];
        for pace in seen.paces.iter() {
            let row = &seen.rows[pace.row as usize];
            if seen.replicas.is_empty() || row.replica == Some(replica as u16) {
                let alike = law.map_or(1.0, |law| law.at(pace.company));
                by_second[(pace.at.max(0.0) as usize).min(seconds)].push((pace.gap, pace.gap / alike));
            }
        }
        let middle = |of: &[f64]| if of.len() >= 3 { order_statistic(&mut of.to_vec(), 0.5) } else { None };
        let middles = |of: fn(&(f64, f64)) -> f64| -> Vec<Option<f64>> {
            by_second.iter().map(|paces| middle(&paces.iter().map(of).collect::<Vec<_>>())).collect()
        };
        // The lower half is what is usual: a neighbour who is there half of the time must not become the usual.
        let usual = |middles: &[Option<f64>]| {
            let mut known: Vec<f64> = middles.iter().flatten().copied().collect();
            sort(&mut known);
            of_sorted(&known, 0.35)
        };
        let (middles, alike) = (middles(|pace| pace.0), middles(|pace| pace.1));
        let (Some(usual), Some(usual_alike)) = (usual(&middles), usual(&alike)) else { continue };
        let over = |middle: &Option<f64>, usual: f64| middle.is_some_and(|m| m >= 1.4 * usual);
        let is_slow: Vec<bool> = middles
            .iter()
            .zip(&alike)
            .zip(reading)
            .map(|((middle, alike), reading)| {
                *reading < READING && over(middle, usual) && over(alike, usual_alike)
            })
            .collect();
        for (k, middle) in middles.iter().enumerate() {
            let Some(middle) = middle else { continue };
            cells += 1.0;
            let neighbour = (k > 0 && is_slow[k - 1]) || is_slow.get(k + 1).copied().unwrap_or(false);
            if is_slow[k] && neighbour {
                slow += 1.0;
                ratios.push(middle / usual);
            }
        }
    }
    if cells < 40.0 {
        return None;
    }
    let share = super::share(slow, cells, 4.0);
    Some((share, order_statistic(&mut ratios, 0.5).unwrap_or(1.0)))
}
