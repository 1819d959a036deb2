//! The counters between two ticks over all metrics endpoints: each endpoint adds its gain since its previous scrape.
//!
//! Metrics of engines and of the gateway in front of them are added separately, because both count the same requests.
//! If any engine exports a signal, the gateways' signal is left out.

use std::collections::BTreeMap;

use plimsoll_measure::server_side::{Buckets, Signal};
use plimsoll_model::At;

use crate::alert::FirstTokens;
use crate::block::TickBlock;
use crate::history::gather::KeptCounts;
use crate::over::OverCount;
use crate::source::{LiveRow, LiveRows, RowSource};

/// Counters that are summed.
pub(crate) const GAINED: [Signal; 6] = [
    Signal::Failed,
    Signal::Refused,
    Signal::Finished,
    Signal::OutputTokens,
    Signal::PromptTokens,
    Signal::CachedTokens,
];

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum SignalOrigin {
    Engines,
    Gateways,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct TickCounts {
    engines: OriginCounts,
    gateways: OriginCounts,
    /// Time of the newest successful scrape.
    pub newest: Option<At>,
    /// Oldest scrape that anything is counted from; `None` if nothing is counted yet.
    pub since: Option<At>,
    pub restarts: u64,
    /// Counters for the history; `None` if no history is kept.
    pub kept: Option<KeptCounts>,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct OriginCounts {
    gained: [Option<f64>; GAINED.len()],
    rows: Vec<Option<OverCount>>,
    tails: BTreeMap<usize, Buckets>,
    first: Option<Buckets>,
    /// Waiting requests × seconds, and replicas × seconds.
    waiting: Option<(f64, f64)>,
    /// Queue times of the requests that left the queue, in s, and replicas × seconds.
    queued: Option<(f64, f64)>,
}

/// The state of all endpoints apart from counters.
pub(crate) struct FleetView<'a> {
    pub teller: &'a dyn Fn(Signal) -> SignalOrigin,
    /// Set if an endpoint would export failed requests.
    pub counts_failures: bool,
    /// Number of gateway endpoints, and of replicas that respond.
    pub gateways: usize,
    pub answering: usize,
}

impl OriginCounts {
    pub fn gain(&mut self, place: usize, value: f64) {
        *self.gained[place].get_or_insert(0.0) += value;
    }

    pub fn row(&mut self, place: usize, over: OverCount) {
        if self.rows.len() <= place {
            self.rows.resize(place + 1, None);
        }
        let row = &mut self.rows[place];
        *row = Some(row.unwrap_or_default().with(over));
    }

    pub fn tail(&mut self, place: usize, buckets: Buckets) {
        let all = match self.tails.remove(&place) {
            Some(all) => all.with(buckets),
            None => buckets,
        };
        self.tails.insert(place, all);
    }

    pub fn first(&mut self, buckets: Buckets) {
        self.first = Some(match self.first.take() {
            Some(all) => all.with(buckets),
            None => buckets,
        });
    }

    pub fn waits(&mut self, area: f64, replica_s: f64) {
        add(&mut self.waiting, (area, replica_s));
    }

    pub fn queued(&mut self, waited_s: f64, replica_s: f64) {
        add(&mut self.queued, (waited_s, replica_s));
    }

    fn gained(&self, signal: Signal) -> Option<f64> {
        self.gained[GAINED.iter().position(|one| *one == signal)?]
    }
}

fn add(all: &mut Option<(f64, f64)>, one: (f64, f64)) {
    let all = all.get_or_insert((0.0, 0.0));
    *all = (all.0 + one.0, all.1 + one.1);
}

impl TickCounts {
    /// Returns empty counters for the next tick, with the present settings.
    pub fn next(&self) -> TickCounts {
        TickCounts { kept: self.kept.as_ref().map(|_| KeptCounts::default()), ..TickCounts::default() }
    }

    pub fn of(&mut self, teller: SignalOrigin) -> &mut OriginCounts {
        match teller {
            SignalOrigin::Engines => &mut self.engines,
            SignalOrigin::Gateways => &mut self.gateways,
        }
    }

    /// Returns the counters as a block.
    pub fn block(&self, rows: &LiveRows, (from, to): (At, At), around: &FleetView<'_>) -> TickBlock {
        let part = |signal| match (around.teller)(signal) {
            SignalOrigin::Engines => &self.engines,
            SignalOrigin::Gateways => &self.gateways,
        };
        let gained = |signal| part(signal).gained(signal);
        let failed: f64 = [Signal::Failed, Signal::Refused].into_iter().filter_map(gained).sum();
        let tail = |(place, row): (usize, &LiveRow)| match row.source {
            RowSource::TailRatio { signal, .. } => {
                let mut own = part(signal).tails.get(&place)?.clone();
                if let Some(last) = own.counts.last_mut().filter(|_| failed >= 1.0) {
                    // Failed requests count as later than every response; they are in no sum.
                    *last += failed.round();
                    (own.sum, own.bounds) = (None, [None, None]);
                }
                Some((place, own))
            }
            _ => None,
        };
        let tails = rows.rows.iter().enumerate().filter_map(tail).collect();
        let failed = OverCount::failed(failed.max(0.0).round() as u64);
        let row = |(place, row): (usize, &LiveRow)| match row.source {
            RowSource::Latency { signal, .. } => {
                let all: OverCount = part(signal).rows.get(place).copied().flatten()?;
                // Token gaps belong to no request that could fail.
                Some(if signal == Signal::Itl { all } else { all.with(failed) })
            }
            RowSource::Errors if !around.counts_failures => None,
            RowSource::Errors => {
                let n = gained(Signal::Finished)?.max(0.0).round() as u64;
                Some(failed.with(OverCount { n, ..OverCount::default() }))
            }
            RowSource::TailRatio { .. }
            | RowSource::Values { .. }
            | RowSource::Shares(_)
            | RowSource::Nothing(_) => None,
        };
        let first = part(Signal::Ttft).first.clone().filter(|buckets| !buckets.edges.is_empty());
        let computed = gained(Signal::PromptTokens);
        let computed = computed.map(|prompt| prompt - gained(Signal::CachedTokens).unwrap_or(0.0));
        let waited_s = part(Signal::QueueTime).queued.map(|queued| queued.0);
        TickBlock {
            at: to,
            length: to - from,
            rows: rows.rows.iter().enumerate().map(row).collect(),
            tails,
            first: first.map(|buckets| FirstTokens { buckets, computed, waited_s }),
            finished: gained(Signal::Finished),
            output_tokens: gained(Signal::OutputTokens),
            prompt_tokens: gained(Signal::PromptTokens),
            answering: around.answering,
            restarts: self.restarts,
            shed: 0,
            cancelled: 0,
            waiting: around.per_replica(part(Signal::Waiting).waiting, Signal::Waiting),
            waiting_by_little: around.per_replica(part(Signal::QueueTime).queued, Signal::QueueTime),
        }
    }
}

impl FleetView<'_> {
    /// Returns a mean over replica seconds; a gateway has one queue for all replicas.
    fn per_replica(&self, summed: Option<(f64, f64)>, signal: Signal) -> Option<f64> {
        let (sum, seconds) = summed.filter(|summed| summed.1 > 0.0 && self.answering > 0)?;
        Some(match (self.teller)(signal) {
            SignalOrigin::Engines => sum / seconds,
            SignalOrigin::Gateways => sum / seconds * self.gateways as f64 / self.answering as f64,
        })
    }
}
