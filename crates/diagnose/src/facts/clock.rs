//! Throttling by a clock: all responses pause and resume together, many times a second.
//!
//! A CPU limit (a cgroup quota) lets a server run for a part of each period, and all output of that part is sent
//! together. A buffering proxy coalesces tokens too. The two are distinguished by the times at which responses
//! resume. A proxy counts the bytes of each response, so two responses resume together only at random. A throttled
//! server resumes all responses together, at the period of the clock.
//!
//! The random rate is counted in the same records, at instants shifted by parts of a pause. Only responses with
//! different start times are compared, because every sixteenth token of a batch that started together also coincides.

use plimsoll_math::proportion::{clopper_pearson, proves_over};
use plimsoll_math::quantile::{of_sorted, order_statistic, sort};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, percent};
use plimsoll_model::{Attempt, Level};

use super::pauses::{self, regular};
use super::{FactState, Finding, Observed};
use crate::RunData;
use crate::frame::Frames;

pub fn find(frames: &Frames<'_>, all: &mut Vec<Finding>) {
    // Without a baseline, the server may work this way: steps with several tokens also reach all clients together.
    if frames.base.is_none() || !frames.now().gap_p50.is_finite() {
        return;
    }
    let Some(found) = halts(frames) else {
        all.push(Finding::new(
            Observed::ClockedHalts,
            FactState::No,
            "answers pause at no fixed period".to_owned(),
        ));
        return;
    };
    let limit = match (0.09..=0.11).contains(&found.every) {
        true => "; 100 ms is the period of Linux's CPU limits: see nr_throttled in the cgroup's cpu.stat",
        false => "",
    };
    let together = found.go_on_together.map_or(String::new(), |(with, chance)| {
        format!(
            "; in {} of the pairs of answers both resume at the same instant ({} if random)",
            percent(with),
            percent(chance)
        )
    });
    let says = format!(
        "answers pause for {} of their time, {} each (median), and resume every {} ({} of {} distances fit){together}{limit}",
        percent(found.share),
        ms(found.usual),
        ms(found.every),
        percent(found.fits),
        found.instants.len() - 1
    );
    let n = found.instants.len() as f64 - 1.0;
    let fits = clopper_pearson(found.fits * n, n, 0.95);
    let figure = Estimate { value: found.fits, lower: fits.lower, upper: fits.upper, n: n as u64, n_eff: n };
    all.push(
        Finding::new(Observed::ClockedHalts, FactState::Yes, says).figure(figure, FIT).touching(found.share),
    );
}

/// Minimum pause in s: a single one is barely visible, and ten per second are.
const SHORTEST_S: f64 = 0.02;
/// Minimum pause as a multiple of the baseline's median gap and of its p99.
const TIMES: (f64, f64) = (4.0, 1.25);
/// Minimum share of the streaming time in pauses, beyond twice the baseline's share.
const HALTED: f64 = 0.04;
/// Maximum share of pauses that follow each other with at most one token in between.
const IN_A_ROW: f64 = 0.4;
/// Minimum number of instants at which responses resume.
const INSTANTS: usize = 8;
/// Minimum share of the distances that fit one period; for random instants a third fits.
const FIT: f64 = 0.75;
const FIT_BY_CHANCE: f64 = 1.0 / 3.0;
/// Minimum share of the concurrent responses that resume together.
const TOGETHER: f64 = 0.8;
/// Minimum multiple of the random rate.
const OVER_CHANCE: f64 = 3.0;
/// Minimum number of pairs of concurrent responses for a statement on common resumption.
const PAIRS: usize = 10;
/// Shifts of the instants, in parts of a pause, that measure the random rate.
const SHIFTS: [f64; 5] = [0.21, 0.37, 0.45, 0.63, 0.79];
/// Maximum error probability of the fact.
const ACCIDENT: f64 = 0.001;

/// Times of the tokens of a response, in s since the start of the level, ascending.
type Stream = Vec<f64>;

fn streams(side: &RunData<'_>, level: &Level) -> Vec<Stream> {
    let of = |attempt: &Attempt| -> Option<Stream> {
        let sent = (attempt.sent? - level.start).as_secs_f64();
        let tokens = attempt.events.iter().filter(|event| event.kind.is_token());
        Some(tokens.map(|event| sent + event.offset.as_secs_f64()).collect())
    };
    let own = side.attempts.iter().filter(|attempt| attempt.level == level.id);
    own.filter_map(of).filter(|stream| stream.len() > 1).collect()
}

/// Returns the median and the p99 of the gaps between tokens.
fn gaps(streams: &[Stream]) -> Option<(f64, f64)> {
    let mut all: Vec<f64> = streams.iter().flat_map(|s| s.windows(2).map(|w| w[1] - w[0])).collect();
    sort(&mut all);
    Some((of_sorted(&all, 0.5)?, of_sorted(&all, 0.99)?))
}

/// A pause of one response; the response resumes at `to`.
#[derive(Copy, Clone, Debug)]
struct Halt {
    from: f64,
    to: f64,
    stream: usize,
}

struct Halts {
    streams: Vec<Stream>,
    /// Times of resumption by response, ascending.
    on: Vec<Vec<f64>>,
    /// All pauses, in order of their end.
    all: Vec<Halt>,
    /// Share of all streaming time in pauses.
    share: f64,
    /// Number of pauses without a token since the previous pause of the response.
    in_a_row: usize,
}

impl Halts {
    fn of(streams: Vec<Stream>, least: f64, explained: impl Fn(f64, f64) -> bool) -> Halts {
        let (mut all, mut on) = (Vec::new(), Vec::with_capacity(streams.len()));
        let (mut told, mut held, mut in_a_row) = (0.0, 0.0, 0);
        for (stream, at) in streams.iter().enumerate() {
            told += at[at.len() - 1] - at[0];
            let is_long = |w: &[f64]| w[1] - w[0] >= least && !explained(w[0], w[1]);
            let long: Vec<bool> = at.windows(2).map(is_long).collect();
            let halts = at.windows(2).zip(&long).filter(|(_, long)| **long);
            let own: Vec<Halt> = halts.map(|(w, _)| Halt { from: w[0], to: w[1], stream }).collect();
            held += own.iter().map(|halt| halt.to - halt.from).sum::<f64>();
            in_a_row += long.windows(2).filter(|pair| pair[0] && pair[1]).count();
            on.push(own.iter().map(|halt| halt.to).collect());
            all.extend(own);
        }
        all.sort_by(|a, b| a.to.total_cmp(&b.to));
        Halts { streams, on, all, share: held / f64::max(told, 1e-9), in_a_row }
    }

    /// Returns the median pause in s.
    fn usual(&self) -> Option<f64> {
        order_statistic(&mut self.all.iter().map(|halt| halt.to - halt.from).collect::<Vec<_>>(), 0.5)
    }

    /// Returns the instants at which responses resume; resumptions within a quarter of a pause are one instant.
    fn instants(&self, usual: f64) -> Vec<f64> {
        let mut at: Vec<f64> = Vec::new();
        for halt in &self.all {
            if at.last().is_none_or(|last| halt.to - last > 0.25 * usual) {
                at.push(halt.to);
            }
        }
        at
    }

    /// Returns whether this response resumes after a pause at about this instant.
    fn goes_on(&self, stream: usize, at: f64, about: f64) -> bool {
        let on = &self.on[stream];
        on.get(on.partition_point(|to| *to < at - about)).is_some_and(|to| *to <= at + about)
    }

    /// Returns the number of pairs of a pause and a concurrent response that started at another time. Returns also
    /// the share in which the other response resumes at the same instant, and the share at shifted instants.
    fn go_on_together(&self) -> (usize, f64, f64) {
        let (mut pairs, mut with, mut by_chance) = (0usize, 0usize, 0usize);
        // Sorting by start limits the search to responses that are in flight.
        let mut order: Vec<usize> = (0..self.streams.len()).collect();
        order.sort_by(|a, b| self.streams[*a][0].total_cmp(&self.streams[*b][0]));
        let longest = self.streams.iter().map(|at| at[at.len() - 1] - at[0]).fold(0.0, f64::max);
        for halt in &self.all {
            let lasts = halt.to - halt.from;
            let about = (0.05 * lasts).max(0.003);
            let began = self.streams[halt.stream][0];
            let from = order.partition_point(|k| self.streams[*k][0] < halt.from - longest);
            let until = order.partition_point(|k| self.streams[*k][0] <= halt.from);
            for other in order[from..until].iter().copied() {
                let at = &self.streams[other];
                let apart = other != halt.stream && (at[0] - began).abs() > lasts;
                if apart && at[at.len() - 1] > halt.to + about {
                    pairs += 1;
                    with += usize::from(self.goes_on(other, halt.to, about));
                    let shifted = |part: &&f64| self.goes_on(other, halt.to - **part * lasts, about);
                    by_chance += SHIFTS.iter().filter(shifted).count();
                }
            }
        }
        let n = pairs.max(1) as f64;
        (pairs, with as f64 / n, by_chance as f64 / n / SHIFTS.len() as f64)
    }

    /// Returns the number of responses with two pauses or more, and the number whose last burst fits the period
    /// `every`. A buffering proxy releases the rest of a response at its end, at any time.
    fn ends_on_clock(&self, every: f64) -> (usize, usize) {
        let last = |on: &&Vec<f64>| on.len() >= 2;
        let fits = |on: &&Vec<f64>| {
            let times = (on[on.len() - 1] - on[on.len() - 2]) / every;
            times.round() >= 1.0 && (times - times.round()).abs() <= 0.125
        };
        (self.on.iter().filter(last).count(), self.on.iter().filter(last).filter(fits).count())
    }
}

/// The result of the search for throttling.
struct PeriodicStalls {
    usual: f64,
    every: f64,
    fits: f64,
    instants: Vec<f64>,
    /// Share of the concurrent responses that resume at the same instant, and the random share; `None` if too few
    /// were concurrent.
    go_on_together: Option<(f64, f64)>,
    share: f64,
}

fn halts(frames: &Frames<'_>) -> Option<PeriodicStalls> {
    let case = frames.case;
    let now = streams(&case.candidate, frames.now().level);
    let before = case.baseline.as_ref().zip(frames.before()).map(|(side, seen)| streams(side, seen.level));
    let usual_gaps = match &before {
        Some(before) => gaps(before)?,
        // Without a baseline, only the median gap is known to be no pause.
        None => (2.0 * gaps(&now)?.0, 0.0),
    };
    let least = SHORTEST_S.max(TIMES.0 * usual_gaps.0).max(TIMES.1 * usual_gaps.1);
    let reading = pauses::excuses(frames);
    let held = Halts::of(now, least, |from, to| reading.explains(from, to));
    let was = before.map_or(0.0, |before| Halts::of(before, least, |_, _| false).share);
    // Pauses with one token in between are long steps, and steps have a regular period too.
    let steps = held.in_a_row as f64 > IN_A_ROW * held.all.len() as f64;
    if steps || held.share < HALTED + 2.0 * was {
        return None;
    }
    let usual = held.usual()?;
    let instants = held.instants(usual);
    let (every, fits) = regular(&instants)?;
    let n = instants.len() as f64 - 1.0;
    if instants.len() < INSTANTS || fits < FIT || !proves_over(fits * n, n, FIT_BY_CHANCE, ACCIDENT) {
        return None;
    }
    let (pairs, with, chance) = held.go_on_together();
    let go_on_together = (pairs >= PAIRS).then_some((with, chance));
    let together = match go_on_together {
        Some((with, chance)) => with >= TOGETHER && with >= OVER_CHANCE * chance,
        None => {
            let (answers, fit) = held.ends_on_clock(every);
            answers >= PAIRS && proves_over(fit as f64, answers as f64, TOGETHER, 0.05)
        }
    };
    together.then_some(PeriodicStalls { usual, every, fits, instants, go_on_together, share: held.share })
}
