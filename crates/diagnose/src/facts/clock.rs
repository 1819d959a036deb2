//! Halts by a clock: everybody's tokens stop and go on together, many times a second.
//!
//! A limit on processor time (a cgroup's quota) lets a server run for a part of each period, and whatever it made leaves it at once. A
//! proxy that holds answers back coalesces them as well. They are told apart by when answers go on: a proxy counts each answer's own bytes, so
//! that two answers go on together as often as chance makes them; a server that is let run goes on with all of them at once, at the distances
//! of the clock. What chance makes is counted in the same records, at instants that are shifted by parts of a halt. Only answers that began
//! apart are held against each other: of a batch that began together every sixteenth token comes together as well.

use plimsoll_math::proportion::{clopper_pearson, proves_over};
use plimsoll_math::quantile::{of_sorted, order_statistic, sort};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, percent};
use plimsoll_model::{Attempt, Level};

use super::pauses::{self, regular};
use super::{Finding, Is, Observed};
use crate::RunData;
use crate::frame::Frames;

pub fn find(frames: &Frames<'_>, all: &mut Vec<Finding>) {
    // With no run of before it may be how the server works: steps of several tokens go out to everybody at once as well.
    if frames.base.is_none() || !frames.now().gap_p50.is_finite() {
        return;
    }
    let Some(found) = halts(frames) else {
        all.push(Finding::new(Observed::ClockedHalts, Is::No, "answers halt by no clock".to_owned()));
        return;
    };
    let limit = match (0.09..=0.11).contains(&found.every) {
        true => "; 100 ms is the period of Linux's CPU limits: see nr_throttled in the cgroup's cpu.stat",
        false => "",
    };
    let together = found.go_on_together.map_or(String::new(), |(with, chance)| {
        format!(
            "; in {} of the pairs of answers both go on at the same instant ({} by chance)",
            percent(with),
            percent(chance)
        )
    });
    let says = format!(
        "answers stand still for {} of their time, {} at a time (median), and go on every {} ({} of {} distances fit){together}{limit}",
        percent(found.share),
        ms(found.usual),
        ms(found.every),
        percent(found.fits),
        found.instants.len() - 1
    );
    let n = found.instants.len() as f64 - 1.0;
    let fits = clopper_pearson(found.fits * n, n, 0.95);
    let figure = Estimate { value: found.fits, lower: fits.lower, upper: fits.upper, n: n as u64, n_eff: n };
    all.push(Finding::new(Observed::ClockedHalts, Is::Yes, says).figure(figure, FIT).touching(found.share));
}

/// Shortest halt, s: what a person hardly sees one of, and sees ten of in a second.
const SHORTEST_S: f64 = 0.02;
/// Times the baseline's median gap, and its p99, that a halt must last.
const TIMES: (f64, f64) = (4.0, 1.25);
/// Share of the streaming that must lie in halts, beyond twice the baseline's.
const HALTED: f64 = 0.04;
/// Share of the halts that may follow one another with no more than one token between.
const IN_A_ROW: f64 = 0.4;
/// Fewest instants at which answers go on.
const INSTANTS: usize = 8;
/// Share of the distances between them that must be of one interval; of instants at random a third are.
const FIT: f64 = 0.75;
const FIT_BY_CHANCE: f64 = 1.0 / 3.0;
/// Share of the answers beside one that goes on that must go on with it.
const TOGETHER: f64 = 0.8;
/// Times that chance must be passed by.
const OVER_CHANCE: f64 = 3.0;
/// Fewest pairs of concurrent answers to say whether they go on together.
const PAIRS: usize = 10;
/// Parts of a halt by which instants are shifted to see what chance makes.
const SHIFTS: [f64; 5] = [0.21, 0.37, 0.45, 0.63, 0.79];
/// Chance that is left of what is believed.
const ACCIDENT: f64 = 0.001;

/// When an answer's tokens came, s since the level began, rising.
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

/// Median and p99 of the gaps between tokens.
fn gaps(streams: &[Stream]) -> Option<(f64, f64)> {
    let mut all: Vec<f64> = streams.iter().flat_map(|s| s.windows(2).map(|w| w[1] - w[0])).collect();
    sort(&mut all);
    Some((of_sorted(&all, 0.5)?, of_sorted(&all, 0.99)?))
}

/// A halt of one answer: it goes on at `to`.
#[derive(Copy, Clone, Debug)]
struct Halt {
    from: f64,
    to: f64,
    stream: usize,
}

struct Halts {
    streams: Vec<Stream>,
    /// By answer, when it goes on after a halt, rising.
    on: Vec<Vec<f64>>,
    /// All of them, by when they end.
    all: Vec<Halt>,
    /// Share of all streaming that lies in them.
    share: f64,
    /// Halts with no token between them and the one before in the same answer.
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

    /// The median halt, s.
    fn usual(&self) -> Option<f64> {
        order_statistic(&mut self.all.iter().map(|halt| halt.to - halt.from).collect::<Vec<_>>(), 0.5)
    }

    /// Instants at which answers go on: those within a quarter of a halt are one.
    fn instants(&self, usual: f64) -> Vec<f64> {
        let mut at: Vec<f64> = Vec::new();
        for halt in &self.all {
            if at.last().is_none_or(|last| halt.to - last > 0.25 * usual) {
                at.push(halt.to);
            }
        }
        at
    }

    /// Does this answer go on after a halt about this instant?
    fn goes_on(&self, stream: usize, at: f64, about: f64) -> bool {
        let on = &self.on[stream];
        on.get(on.partition_point(|to| *to < at - about)).is_some_and(|to| *to <= at + about)
    }

    /// Pairs of a halt and another answer that was being told throughout it and had not begun with it; in how many the other goes on at the
    /// same instant, and in how many at one that is as good by chance.
    fn go_on_together(&self) -> (usize, f64, f64) {
        let (mut pairs, mut with, mut by_chance) = (0usize, 0usize, 0usize);
        // Answers by their beginning, so that only those that are under way are asked.
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

    /// Of the answers with two halts or more: how many, and in how many the last burst comes a whole number of intervals after the one before. Who
    /// holds back an answer's own bytes lets the rest go when it ends, at any time.
    fn ends_on_clock(&self, every: f64) -> (usize, usize) {
        let last = |on: &&Vec<f64>| on.len() >= 2;
        let fits = |on: &&Vec<f64>| {
            let times = (on[on.len() - 1] - on[on.len() - 2]) / every;
            times.round() >= 1.0 && (times - times.round()).abs() <= 0.125
        };
        (self.on.iter().filter(last).count(), self.on.iter().filter(last).filter(fits).count())
    }
}

struct Found {
    usual: f64,
    every: f64,
    fits: f64,
    instants: Vec<f64>,
    /// Share of the concurrent answers that go on at the same instant, share by chance; `None` = too few were concurrent.
    go_on_together: Option<(f64, f64)>,
    share: f64,
}

fn halts(frames: &Frames<'_>) -> Option<Found> {
    let case = frames.case;
    let now = streams(&case.candidate, frames.now().level);
    let before = case.baseline.as_ref().zip(frames.before()).map(|(side, seen)| streams(side, seen.level));
    let usual_gaps = match &before {
        Some(before) => gaps(before)?,
        // Of its own gaps only the median is no halt.
        None => (2.0 * gaps(&now)?.0, 0.0),
    };
    let least = SHORTEST_S.max(TIMES.0 * usual_gaps.0).max(TIMES.1 * usual_gaps.1);
    let reading = pauses::excuses(frames);
    let held = Halts::of(now, least, |from, to| reading.explains(from, to));
    let was = before.map_or(0.0, |before| Halts::of(before, least, |_, _| false).share);
    // One token and the next halt: that is a step that takes longer, and steps come at even distances.
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
    together.then_some(Found { usual, every, fits, instants, go_on_together, share: held.share })
}
