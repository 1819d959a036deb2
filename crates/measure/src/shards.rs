//! Merging of the shards of one load into one run, as if a single machine had sent it.
//!
//! Nothing is averaged. The rows go on one time axis, and their levels start at one instant. Figures of the generators are
//! summed if they are additive; otherwise the worst one counts. An arrival without a row was not sent by a lost shard. It gets
//! that row here, because the schedule contains it, and a gap would improve every figure. Contradictions (a row of another
//! shard, a due time that is not in the schedule) are rejected and never repaired.

use std::collections::HashSet;
use std::fmt;

use plimsoll_model::{
    At, Attempt, EndedBy, GeneratorHealth, KeptConnections, Level, Quantiles, Room, Sample, Shard,
    ShardsHealth, Span, StampSource,
};
use plimsoll_workload::{Arrival, Schedule};

/// The records of one shard so far.
#[derive(Debug)]
pub struct ShardRun {
    pub shard: Shard,
    /// Level of the shard; `None` if it never started.
    pub level: Option<Level>,
    pub attempts: Vec<Attempt>,
    pub samples: Vec<Sample>,
    /// Largest error of its clock in ns; `None` if unknown.
    pub clock_error_ns: Option<i64>,
}

#[derive(Debug)]
pub struct MergedRun {
    /// Merged level. Its load, arrivals and hash still come from one shard; the scenario defines the spacing of arrivals.
    pub level: Level,
    /// Rows in the order of their ends.
    pub attempts: Vec<Attempt>,
    /// Time series in the order of their samples.
    pub samples: Vec<Sample>,
    /// Number of rows per shard that were added for arrivals that it never sent.
    pub lost: Vec<u64>,
}

/// The errors of shards that do not form a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShardMismatch {
    /// All shards failed before their start.
    NoneBegan,
    /// A shard has the row of a request that belongs to another shard.
    Foreign(Shard, u64),
    /// A shard's row has another due time than the schedule, both in ns from the start.
    Moved(Shard, u64, i64, i64),
    /// Rows are missing, and there is no schedule.
    NoSchedule(u64),
}

impl fmt::Display for ShardMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShardMismatch::NoneBegan => write!(f, "no shard began to send"),
            ShardMismatch::Foreign(shard, request) => {
                write!(f, "shard {shard} has a row of request {request}, which another shard was to send")
            }
            ShardMismatch::Moved(shard, request, was, drawn) => write!(
                f,
                "shard {shard}: request {request} was due {was} ns after the start; in the schedule of this scenario it is due at {drawn} ns"
            ),
            ShardMismatch::NoSchedule(missing) => {
                write!(f, "{missing} arrivals have no row, and the scenario cannot regenerate them")
            }
        }
    }
}

/// Merges the shards. `arrivals` is the number of requests of all shards, `schedule` their schedule if it could be redrawn.
///
/// # Errors
/// Fails if no shard started, if rows contradict the schedule, or if rows are missing without a schedule.
pub fn join(
    shards: Vec<ShardRun>,
    of: u32,
    arrivals: u64,
    schedule: Option<&Schedule>,
) -> Result<MergedRun, ShardMismatch> {
    let levels: Vec<Level> = shards.iter().filter_map(|one| one.level.clone()).collect();
    let first = levels.first().ok_or(ShardMismatch::NoneBegan)?.clone();
    let clock = clocks_apart(&shards, of);
    let moved: Vec<Level> = levels.iter().map(|level| on_axis(level, first.start)).collect();
    let mut joined =
        MergedRun { level: first, attempts: Vec::new(), samples: Vec::new(), lost: vec![0; of as usize] };
    let mut counters: Vec<Vec<(At, f64)>> = Vec::new();
    let mut connections = 0;
    for one in shards {
        let Some(level) = &one.level else { continue };
        let by = joined.level.start - level.start;
        connections = take_rows(&mut joined.attempts, one.attempts, (one.shard, by, connections))?;
        let (own, others): (Vec<Sample>, Vec<Sample>) = one.samples.into_iter().partition(is_counter);
        counters.push(own.iter().map(|sample| (sample.at + by, sample.value)).collect());
        joined.samples.extend(others.into_iter().map(|sample| Sample { at: sample.at + by, ..sample }));
    }
    complete(&mut joined, of, arrivals, schedule)?;
    let cut = moved.iter().filter(|level| level.ended_by == EndedBy::Cut).count();
    let lost = of - (moved.len() - cut) as u32;
    let never_sent = joined.lost.iter().sum();
    if lost == 0 {
        joined.samples.extend(summed(&counters, joined.level.id));
    }
    let health = health(moved.iter().map(|level| &level.generator), lost == 0);
    joined.level = Level {
        stop: moved.iter().map(|level| level.stop).max().unwrap_or(joined.level.stop),
        drained: moved.iter().map(|level| level.drained).max().unwrap_or(joined.level.drained),
        ended_by: ended_by(&moved),
        generator: GeneratorHealth {
            shards: Some(ShardsHealth { of, lost, never_sent, clocks_apart_ns: clock, constant: false }),
            ..health
        },
        ..joined.level
    };
    joined.attempts.sort_by_key(|row| (row.end.unwrap_or(row.due), row.request, row.attempt));
    joined.samples.sort_by_key(|sample| sample.at);
    Ok(joined)
}

/// Returns the largest possible distance of two clocks: the sum of the two largest errors, which may have opposite signs.
fn clocks_apart(shards: &[ShardRun], of: u32) -> Option<i64> {
    let mut bounds: Vec<i64> = shards.iter().map(|one| one.clock_error_ns).collect::<Option<_>>()?;
    bounds.sort_unstable_by_key(|bound| std::cmp::Reverse(*bound));
    (of as usize == bounds.len()).then(|| bounds.iter().take(2).sum())
}

fn on_axis(level: &Level, start: At) -> Level {
    let by = start - level.start;
    let mut level = Level { start, stop: level.stop + by, drained: level.drained + by, ..level.clone() };
    let health = &mut level.generator;
    health.closed_since = health.closed_since.map(|at| at + by);
    if let Some(kept) = &mut health.kept {
        kept.resting_since = kept.resting_since.map(|at| at + by);
    }
    level
}

/// Puts a shard's rows on the common axis and numbers its connections after earlier shards; returns the next free number.
fn take_rows(
    all: &mut Vec<Attempt>,
    rows: Vec<Attempt>,
    (shard, by, connections): (Shard, Span, u32),
) -> Result<u32, ShardMismatch> {
    let mut next = connections;
    for mut row in rows {
        if !shard.takes(row.session, row.request) {
            return Err(ShardMismatch::Foreign(shard, row.request));
        }
        row.shift(by);
        row.connection = row.connection.map(|number| number.saturating_add(connections));
        next = next.max(row.connection.map_or(0, |number| number.saturating_add(1)));
        all.push(row);
    }
    Ok(next)
}

/// Checks the rows against the schedule, and adds rows for arrivals that have none.
fn complete(
    joined: &mut MergedRun,
    of: u32,
    arrivals: u64,
    schedule: Option<&Schedule>,
) -> Result<(), ShardMismatch> {
    let known: HashSet<u64> = joined.attempts.iter().map(|row| row.request).collect();
    let Some(schedule) = schedule else {
        return match arrivals.saturating_sub(known.len() as u64) {
            0 => Ok(()),
            missing => Err(ShardMismatch::NoSchedule(missing)),
        };
    };
    let start = joined.level.start;
    for row in &joined.attempts {
        let shard = Shard { index: Shard::index_of(of, row.session, row.request), of };
        let Some(drawn) = schedule.arrivals.get(row.request as usize) else {
            return Err(ShardMismatch::Foreign(shard, row.request));
        };
        let was = (row.due - start).0;
        // A turn that depends on others is due after their responses, and the schedule has only its earliest time.
        if drawn.after.is_empty() && was != drawn.due.0 {
            return Err(ShardMismatch::Moved(shard, row.request, was, drawn.due.0));
        }
    }
    for arrival in schedule.arrivals.iter().filter(|arrival| !known.contains(&arrival.id)) {
        joined.lost[Shard::index_of(of, arrival.session, arrival.id) as usize] += 1;
        joined.attempts.push(never_sent(arrival, joined.level.id, start));
    }
    Ok(())
}

fn never_sent(arrival: &Arrival, level: u32, start: At) -> Attempt {
    let mut row = arrival.row(0, level, start + Span(arrival.due.0));
    row.answer.error = Some("its shard was lost before it was due".into());
    row
}

fn is_counter(sample: &Sample) -> bool {
    sample.source == "client" && sample.name == "in_flight"
}

/// Adds up the shards' counters of requests in flight at the instants of the first. Each value is the mean since the last.
fn summed(counters: &[Vec<(At, f64)>], level: u32) -> Vec<Sample> {
    let Some((first, others)) = counters.split_first() else { return Vec::new() };
    let value = |other: &[(At, f64)], at: At| {
        let next = other.partition_point(|(read, _)| *read < at);
        other.get(next).or(other.last()).map_or(0.0, |(_, value)| *value)
    };
    let all = |(at, own): &(At, f64)| Sample {
        at: *at,
        source: "client".into(),
        name: "in_flight".into(),
        labels: format!("level={level}").into(),
        value: own + others.iter().map(|other| value(other, *at)).sum::<f64>(),
    };
    first.iter().map(all).collect()
}

/// Returns the worst end of the shards that ended normally. A killed shard is reported separately, and its arrivals have rows.
fn ended_by(levels: &[Level]) -> EndedBy {
    let order = [
        EndedBy::UserNow,
        EndedBy::User,
        EndedBy::Errors,
        EndedBy::Ceiling,
        EndedBy::DrainLimit,
        EndedBy::Known,
        EndedBy::Complete,
    ];
    let is_there = |by: &EndedBy| levels.iter().any(|level| level.ended_by == *by);
    order.into_iter().find(is_there).unwrap_or(EndedBy::Cut)
}

/// Merges the generators' health by sums and maxima.
///
/// A value that one shard lacks is unknown for all. If a shard is lost, the number in flight is unknown.
fn health<'a>(of: impl Iterator<Item = &'a GeneratorHealth>, whole: bool) -> GeneratorHealth {
    let all: Vec<&GeneratorHealth> = of.collect();
    let sum = |get: fn(&GeneratorHealth) -> u64| all.iter().map(|one| get(one)).sum::<u64>();
    let worst = |get: fn(&GeneratorHealth) -> Option<f64>| {
        all.iter().map(|one| get(one)).collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
    };
    let total = |get: fn(&GeneratorHealth) -> Option<f64>| {
        Some(all.iter().map(|one| get(one)).collect::<Option<Vec<f64>>>()?.iter().sum())
    };
    let cpu: Option<Vec<i64>> = all.iter().map(|one| one.cpu_ns).collect();
    let stamps = all.iter().map(|one| one.stamps);
    GeneratorHealth {
        lag: slowest(all.iter().map(|one| one.lag)),
        user_delay: slowest(all.iter().map(|one| one.user_delay)),
        stamps: stamps.reduce(|a, b| if a == b { a } else { StampSource::Mixed }).unwrap_or_default(),
        workers: sum(|one| one.workers.into()) as u32,
        cpu_share_max: worst(|one| one.cpu_share_max),
        cpu_ns: cpu.map(|each| each.iter().sum()),
        run_queue_share_max: worst(|one| one.run_queue_share_max),
        events: sum(|one| one.events),
        events_coalesced: sum(|one| one.events_coalesced),
        clock_steps: sum(|one| one.clock_steps.into()) as u32,
        in_flight_mean: if whole { total(|one| one.in_flight_mean) } else { None },
        // Upper bound, because the maxima of the shards may be at different times.
        in_flight_max: sum(|one| one.in_flight_max),
        in_flight_samples: all.iter().map(|one| one.in_flight_samples).min().unwrap_or(0),
        closed_since: all.iter().filter_map(|one| one.closed_since).min(),
        // Limits of a machine apply to the use of that machine, so the largest use counts.
        sockets_max: all.iter().map(|one| one.sockets_max).max().unwrap_or(0),
        connects: all.iter().map(|one| one.connects).max().unwrap_or(0),
        kept: all.iter().filter_map(|one| one.kept).reduce(kept),
        room: all.iter().filter_map(|one| one.room).reduce(room),
        shards: None,
    }
}

/// Returns the quantiles of the slowest machine with the observations of all, because quantiles cannot be merged.
fn slowest(of: impl Iterator<Item = Quantiles>) -> Quantiles {
    of.fold(Quantiles::default(), |all, one| Quantiles {
        count: all.count + one.count,
        p50_ns: all.p50_ns.max(one.p50_ns),
        p90_ns: all.p90_ns.max(one.p90_ns),
        p99_ns: all.p99_ns.max(one.p99_ns),
        p999_ns: all.p999_ns.max(one.p999_ns),
        max_ns: all.max_ns.max(one.max_ns),
    })
}

fn kept(a: KeptConnections, b: KeptConnections) -> KeptConnections {
    KeptConnections {
        looks: a.looks + b.looks,
        ended: a.ended + b.ended,
        lost: a.lost + b.lost,
        rest: a.rest.max(b.rest),
        resting_since: [a.resting_since, b.resting_since].into_iter().flatten().min(),
    }
}

fn room(a: Room, b: Room) -> Room {
    Room {
        descriptors: [a.descriptors, b.descriptors].into_iter().flatten().min(),
        ports: [a.ports, b.ports].into_iter().flatten().min(),
        // Shards on the target's machine all count one queue.
        listen_overflows: a.listen_overflows.max(b.listen_overflows),
        no_socket: a.no_socket + b.no_socket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_added_at_the_instants_of_the_first() {
        let at = |ms: i64| At(ms * 1_000_000);
        let a = vec![(at(100), 2.0), (at(200), 3.0)];
        let b = vec![(at(50), 10.0), (at(150), 20.0)];
        let all: Vec<f64> = summed(&[a, b], 0).iter().map(|sample| sample.value).collect();
        // 100 ms is in b's interval that ends at 150. b ends at 200, and its last value is kept.
        assert_eq!(all, [22.0, 23.0]);
    }

    #[test]
    fn the_worst_machine_stands_for_all() {
        let one = |p99: i64, cpu: Option<f64>, events: u64| GeneratorHealth {
            lag: Quantiles { count: 10, p99_ns: p99, ..Quantiles::default() },
            cpu_share_max: cpu,
            events,
            in_flight_mean: Some(4.0),
            ..GeneratorHealth::default()
        };
        let (a, b) = (one(5, Some(0.2), 7), one(3, Some(0.6), 8));
        let all = health([&a, &b].into_iter(), true);
        assert_eq!((all.lag.count, all.lag.p99_ns, all.cpu_share_max, all.events), (20, 5, Some(0.6), 15));
        assert_eq!(all.in_flight_mean, Some(8.0));
        let unknown = health([&a, &one(1, None, 1)].into_iter(), false);
        assert_eq!((unknown.cpu_share_max, unknown.in_flight_mean), (None, None));
    }
}
