//! The results of one level of an experiment: requests as plain numbers, and medians with intervals.
//!
//! Experiments of a few dozen requests support medians and shares, but no tails: a p99 of forty requests is the
//! slowest one. Requests of a closed loop at concurrency 1 are sequential and share no queue, so each counts as one.
//! Concurrent requests share batches and queues, so √concurrency of them count as one. Counting a whole wave as one
//! was rejected, because five waves have no interval.

use std::collections::BTreeSet;

use plimsoll_math::proportion::{self, Interval};
use plimsoll_math::quantile;
use plimsoll_model::{Attempt, How, Level, Load};

use super::plan::{ArmSetting, ExperimentKind};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::server_side::{self, ServerSide, Signal};

/// Confidence level of all intervals here.
pub(crate) const LEVEL: f64 = 0.95;

#[derive(Clone, Debug)]
pub struct ExperimentLevel {
    pub kind: ExperimentKind,
    pub arm: ArmSetting,
    pub level: Level,
    /// Last attempts of its requests, in order of due times.
    pub rows: Vec<BlockRow>,
    /// Gauges of the server during the level.
    pub gauges: BlockGauges,
    /// Number of attempts, including retries.
    pub attempts: u64,
}

/// The server's metrics during a level.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct BlockGauges {
    /// Mean number of waiting requests; `None` if unknown.
    pub waiting: Option<f64>,
    /// Mean number of running requests; `None` if unknown.
    pub running: Option<f64>,
    /// Maximum share of the KV cache in use; `None` if unknown.
    pub kv: Option<f64>,
    /// Number of preemptions during the level; `None` if unknown.
    pub preemptions: Option<f64>,
    /// Prompt tokens found in the prefix cache, and prompt tokens queried; `None` if unknown.
    pub cached: Option<(f64, f64)>,
    /// Number of scrapes behind these values.
    pub scrapes: usize,
    /// Numbers of successful and of failed scrapes, with any content.
    pub pages: (usize, usize),
}

#[derive(Clone, PartialEq, Debug)]
pub struct BlockRow {
    /// Due time, ns.
    pub due: i64,
    /// End time in ns; `None` if the request did not end.
    pub end: Option<i64>,
    /// Time of the first token in ns; `None` if there is none.
    pub first: Option<i64>,
    pub fine: bool,
    pub how: How,
    pub status: Option<u16>,
    pub output: f64,
    pub prompt: f64,
    /// Prompt tokens from a cache; `None` if the server does not report them.
    pub cached: Option<f64>,
    /// Replica that responded; `None` if not reported.
    pub replica: Option<String>,
    /// Connection time in ns; `None` if the connection was reused.
    pub connect: Option<i64>,
    /// Error message of the server, or the connection error; `None` if there is none.
    pub error: Option<String>,
    /// Arrivals of tokens in ns, with the number of tokens of each.
    pub tokens: Vec<(i64, f64)>,
}

impl BlockRow {
    fn new(attempt: &Attempt) -> BlockRow {
        let sent = attempt.sent.unwrap_or(attempt.due);
        let events = attempt.events.iter().filter(|event| event.kind.is_token());
        let tokens: Vec<(i64, f64)> =
            events.map(|event| ((sent + event.offset).0, f64::from(event.tokens.max(1)))).collect();
        let counted: f64 = tokens.iter().map(|(_, n)| n).sum();
        let fresh = !attempt.reused;
        BlockRow {
            due: attempt.due.0,
            end: attempt.end.map(|at| at.0),
            first: attempt.first_token.or(attempt.first_byte).map(|at| at.0),
            fine: attempt.outcome.is_finished(),
            how: attempt.outcome.how,
            status: attempt.answer.status,
            output: attempt.answer.tokens.output.map_or(counted, f64::from),
            prompt: attempt.answer.tokens.prompt.map_or(f64::from(attempt.asked_prompt), f64::from),
            cached: attempt.answer.tokens.cached.map(f64::from),
            replica: attempt.answer.replica.clone(),
            connect: attempt
                .connected
                .filter(|at| fresh && *at >= attempt.due)
                .map(|at| (at - attempt.due).0),
            error: attempt.answer.error.clone(),
            tokens,
        }
    }

    /// Returns the time to first token in s, from the due time.
    pub fn ttft_s(&self) -> Option<f64> {
        self.first.filter(|_| self.fine).map(|first| (first - self.due) as f64 * 1e-9)
    }

    /// Returns the latency of the whole response in s.
    pub fn e2e_s(&self) -> Option<f64> {
        self.end.filter(|_| self.fine).map(|end| (end - self.due) as f64 * 1e-9)
    }

    /// Returns the time per output token after the first in s.
    pub fn tpot_s(&self) -> Option<f64> {
        let (first, end) = (self.first?, self.tokens.last().map(|(at, _)| *at).or(self.end)?);
        (self.fine && self.output >= 2.0).then(|| (end - first) as f64 * 1e-9 / (self.output - 1.0))
    }

    /// Returns whether the request failed and the client did not end it.
    pub fn failed(&self) -> bool {
        !self.fine && !matches!(self.how, How::NeverSent | How::Cancelled | How::Unfinished)
    }
}

impl ExperimentLevel {
    /// Reads the rows of a level.
    pub fn new(
        (kind, arm): (ExperimentKind, ArmSetting),
        level: &Level,
        attempts: &[Attempt],
        samples: &[plimsoll_model::Sample],
    ) -> ExperimentLevel {
        let mut own: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.level == level.id).collect();
        own.sort_by_key(|attempt| (attempt.due, attempt.request, attempt.attempt));
        let last = |i: usize| own.get(i + 1).is_none_or(|next| next.request != own[i].request);
        let rows = (0..own.len()).filter(|i| last(*i)).map(|i| BlockRow::new(own[i])).collect();
        let gauges = BlockGauges::read(level, samples);
        ExperimentLevel { kind, arm, level: level.clone(), rows, gauges, attempts: own.len() as u64 }
    }

    /// Returns the concurrency of a closed loop; `None` for an open loop.
    pub fn concurrency(&self) -> Option<u32> {
        match self.level.load {
            Load::Closed { concurrency } | Load::Saturating { concurrency } => Some(concurrency),
            Load::Open { .. } | Load::Wave { .. } => None,
        }
    }

    /// Returns the rows at full concurrency: without the first wave, which starts simultaneously, and the last
    /// requests, which finish with fewer others.
    pub fn settled(&self) -> &[BlockRow] {
        let beside = self.concurrency().unwrap_or(1) as usize - 1;
        let most = self.rows.len() / 4;
        let cut = beside.min(most);
        &self.rows[cut..self.rows.len() - cut]
    }

    /// Returns the responses per second: of a closed loop by Little's law, else from their ends.
    pub fn rate(&self) -> Option<f64> {
        match self.concurrency() {
            Some(concurrency) => {
                let took = mean(self.settled().iter().filter_map(BlockRow::e2e_s))?;
                (took > 0.0).then(|| f64::from(concurrency) / took)
            }
            None => {
                let fine = self.rows.iter().filter(|row| row.fine).count() as f64;
                let window = (self.level.drained.max(self.level.stop) - self.level.start).as_secs_f64();
                (window > 0.0 && fine > 0.0).then(|| fine / window)
            }
        }
    }

    /// Returns the median over the rows at full concurrency.
    pub fn median(&self, of: impl Fn(&BlockRow) -> Option<f64>) -> Option<Estimate> {
        median(self.settled().iter().filter_map(of), f64::from(self.concurrency().unwrap_or(1)).sqrt())
    }
}

impl BlockGauges {
    fn read(level: &Level, samples: &[plimsoll_model::Sample]) -> BlockGauges {
        let (from, to) = (level.start, level.drained.max(level.stop));
        let said = samples.iter().filter(|sample| sample.source != "client" && sample.at <= to);
        let said: Vec<plimsoll_model::Sample> = said.cloned().collect();
        let of = |lost: bool| {
            let of = said.iter().filter(|s| s.at >= from && (s.name == server_side::FAILED) == lost);
            of.map(|s| (s.at, &s.source)).collect::<BTreeSet<_>>().len()
        };
        let pages = (of(false), of(true));
        let server = ServerSide::read(&said);
        if server.is_empty() {
            return BlockGauges { pages, ..BlockGauges::default() };
        }
        let mean = |signal| server.gauge(signal)?.mean(from, to);
        let gained = |signal| server.gained(signal, from, to).map(|gained| gained.value);
        BlockGauges {
            waiting: mean(Signal::Waiting),
            running: mean(Signal::Running),
            kv: server.gauge(Signal::KvUsage).and_then(|series| series.max(from, to)),
            scrapes: server.gauge(Signal::Running).map_or(0, |series| series.scrapes(from, to)),
            pages,
            preemptions: gained(Signal::Preempted),
            cached: gained(Signal::PrefixHit).zip(gained(Signal::PrefixQueried)),
        }
    }
}

/// Returns the mean; `None` without values.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut n, mut sum) = (0.0, 0.0);
    for value in values {
        n += 1.0;
        sum += value;
    }
    (n > 0.0).then(|| sum / n)
}

/// Returns the median with its interval; each value counts as `1 / effect` independent values.
pub(crate) fn median(values: impl Iterator<Item = f64>, effect: f64) -> Option<Estimate> {
    let mut sorted: Vec<f64> = values.collect();
    quantile::sort(&mut sorted);
    let value = quantile::of_sorted(&sorted, 0.5)?;
    let n_eff = sorted.len() as f64 / effect.max(1.0);
    let interval = between(&sorted, n_eff);
    Some(Estimate { value, lower: interval.lower, upper: interval.upper, n: sorted.len() as u64, n_eff })
}

/// Returns the order statistics that contain the median at [`LEVEL`] (inverted Clopper-Pearson bounds). The bound of
/// the gate, [`quantile::undecided`], is wider below a few dozen values, because it accounts for an estimated design
/// effect. Here the effect is given.
fn between(sorted: &[f64], n_eff: f64) -> Interval {
    let n = sorted.len();
    let worth = n_eff / n as f64;
    let bounds = |under: usize| proportion::clopper_pearson(under as f64 * worth, n_eff, LEVEL);
    // x₍j₎ has j − 1 smaller values; it is a lower bound if this number can't be half of all.
    let lower = (1..=n).rev().find(|j| bounds(j - 1).upper < 0.5);
    let upper = (1..=n).find(|j| bounds(*j).lower > 0.5);
    Interval {
        lower: lower.map_or(f64::NEG_INFINITY, |j| sorted[j - 1]),
        upper: upper.map_or(f64::INFINITY, |j| sorted[j - 1]),
    }
}

/// Returns the ratio of two medians. Its interval uses the ends of both intervals; it is wider than necessary and
/// assumes no distribution.
pub(crate) fn ratio(above: &Estimate, below: &Estimate) -> Option<Estimate> {
    (below.value > 0.0).then(|| Estimate {
        value: above.value / below.value,
        lower: (above.lower.max(0.0) / below.upper).max(0.0),
        upper: if below.lower > 0.0 { above.upper / below.lower } else { f64::INFINITY },
        n: above.n.min(below.n),
        n_eff: above.n_eff.min(below.n_eff),
    })
}

/// Returns a share with its exact interval (Clopper and Pearson 1934).
pub(crate) fn share(k: usize, n: usize) -> Option<Estimate> {
    let interval = proportion::clopper_pearson(k as f64, n as f64, LEVEL);
    (n > 0).then(|| Estimate {
        value: k as f64 / n as f64,
        lower: interval.lower,
        upper: interval.upper,
        n: n as u64,
        n_eff: n as f64,
    })
}
