//! Active faults: the affected replicas, and the record of their effects.
//!
//! This module decides everything that needs no engine: random draws, buckets, delays and the ground truth. The
//! effects on engines are in the fleet.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::fault::{DelayDistribution, FaultKind, FaultSpec};
use crate::traffic::EngineRejection;

/// Maximum number of recorded ids per fault; further ones are only counted, so that memory stays bounded.
const MOST_IDS: usize = 1 << 20;

/// The effects of a fault: the ground truth for an analysis of the run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FaultTruth {
    /// Index in the list of faults, from 0.
    pub fault: u32,
    /// Kind of the fault.
    pub kind: String,
    /// Configuration of the fault in one line.
    pub asked: String,
    /// Affected replica; `None` for all, or for the front of all.
    pub replica: Option<u32>,
    /// Start of the fault.
    pub began: At,
    /// End of the fault; `None` if it was active at the end of the run.
    pub ended: Option<At>,
    /// Number of affected requests: rejected, cut or delayed ones; for faults of an engine, all its requests in
    /// flight.
    pub touched: u64,
    /// Ids of the affected requests in the world, at most 1 048 576.
    pub requests: Vec<u64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Faults {
    seed: u64,
    list: Vec<Fault>,
    truths: Vec<FaultTruth>,
}

#[derive(Clone, Debug)]
struct Fault {
    spec: FaultSpec,
    purpose: String,
    on: bool,
    began: At,
    times: u32,
    /// Tokens in the bucket, and the time of that count.
    bucket: (f64, At),
    neighbours: Vec<Neighbour>,
    /// Time at which each server of a limited dependency is free.
    free: Vec<At>,
    /// Open records by replica.
    open: Vec<(Option<u32>, usize)>,
}

#[derive(Clone, Debug)]
struct Neighbour {
    replica: u32,
    here: bool,
    chance: Stream,
}

/// The pace of a replica's engine under its faults.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) struct FaultPace {
    pub factor: f64,
    pub extra_us: f64,
    pub kv_share: f64,
}

/// The connection limit of a replica.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct ConnectionLimitCheck {
    pub fault: u32,
    pub limit: u32,
    pub backlog: u32,
}

impl Faults {
    pub fn new(specs: &[FaultSpec], seed: u64) -> Faults {
        let fault = |(place, spec): (usize, &FaultSpec)| Fault {
            spec: spec.clone(),
            purpose: format!("fault.{place}"),
            on: false,
            began: At::ZERO,
            times: 0,
            bucket: (0.0, At::ZERO),
            neighbours: Vec::new(),
            free: Vec::new(),
            open: Vec::new(),
        };
        let list = specs.iter().enumerate().map(fault).collect();
        Faults { seed, list, truths: Vec::new() }
    }

    pub fn specs(&self) -> impl Iterator<Item = (u32, &FaultSpec)> {
        (0u32..).zip(self.list.iter().map(|fault| &fault.spec))
    }

    pub fn spec(&self, fault: u32) -> &FaultSpec {
        &self.list[fault as usize].spec
    }

    pub fn truths(&self) -> &[FaultTruth] {
        &self.truths
    }

    /// Returns whether responses must be observed token by token, and whether their ends must be observed in order of
    /// time.
    pub fn watching(&self) -> (bool, bool) {
        let tokens = self.list.iter().any(|fault| {
            matches!(fault.spec.kind, FaultKind::Disconnect { .. } | FaultKind::Buffering { .. })
        });
        let ends = self.list.iter().any(|fault| matches!(fault.spec.kind, FaultKind::ConnectionLimit { .. }));
        (tokens, ends)
    }

    /// Activates a fault and opens its record. Returns the number of activations, including this one.
    pub fn begin(&mut self, fault: u32, at: At) -> u32 {
        let this = &mut self.list[fault as usize];
        this.on = true;
        this.began = at;
        this.times += 1;
        if let FaultKind::RateLimit { burst, .. } = this.spec.kind {
            this.bucket = (burst, at);
        }
        let times = this.times;
        let noisy = matches!(this.spec.kind, FaultKind::Noisy { .. });
        if !noisy {
            self.open_record(fault, self.list[fault as usize].spec.replica, at);
        }
        times
    }

    /// Deactivates a fault and closes its records.
    pub fn end(&mut self, fault: u32, at: At) {
        let this = &mut self.list[fault as usize];
        this.on = false;
        this.neighbours.clear();
        for (_, record) in this.open.drain(..) {
            self.truths[record].ended = Some(at);
        }
    }

    /// Switches a noisy neighbour of a replica on or off. Returns the duration of the new state, or `None` if the
    /// fault is over.
    pub fn switch(&mut self, fault: u32, replica: u32, at: At) -> Option<Span> {
        let seed = self.seed;
        let this = &mut self.list[fault as usize];
        let FaultKind::Noisy { on, off, .. } = this.spec.kind else { return None };
        if !this.on {
            return None;
        }
        let known = this.neighbours.iter().position(|neighbour| neighbour.replica == replica);
        let place = known.unwrap_or_else(|| {
            let chance = Stream::new(seed, &this.purpose, u64::from(replica));
            this.neighbours.push(Neighbour { replica, here: false, chance });
            this.neighbours.len() - 1
        });
        let neighbour = &mut this.neighbours[place];
        neighbour.here = !neighbour.here;
        let here = neighbour.here;
        let stay = dist::exponential(&mut neighbour.chance, if here { on } else { off }.as_secs_f64());
        if here {
            self.open_record(fault, Some(replica), at);
        } else if let Some(place) = this.open.iter().position(|(of, _)| *of == Some(replica)) {
            let (_, record) = this.open.remove(place);
            self.truths[record].ended = Some(at);
        }
        Some(Span::from_secs_f64(stay).max(Span(1)))
    }

    /// Returns the pace of a replica's engine under all active faults.
    pub fn pace(&self, replica: u32) -> FaultPace {
        let mut pace = FaultPace { factor: 1.0, extra_us: 0.0, kv_share: 1.0 };
        for fault in self.on(replica) {
            match fault.spec.kind {
                FaultKind::Slow { factor } => pace.factor *= factor,
                FaultKind::Noisy { factor, .. } => {
                    let here = |neighbour: &Neighbour| neighbour.replica == replica && neighbour.here;
                    pace.factor *= if fault.neighbours.iter().any(here) { factor } else { 1.0 };
                }
                FaultKind::HostBound { step } => pace.extra_us += step.0 as f64 / 1e3,
                FaultKind::KvPressure { share } => pace.kv_share *= 1.0 - share,
                _ => {}
            }
        }
        pace
    }

    /// Fails if a fault rejects the request. `replica` = `None` checks the faults in front of all replicas, else
    /// the faults of this one.
    pub fn refuse(&mut self, replica: Option<u32>, id: u64, at: At) -> Result<(), EngineRejection> {
        for place in 0..self.list.len() {
            let this = &mut self.list[place];
            if !this.on || this.spec.replica != replica {
                continue;
            }
            let chance = || Stream::new(self.seed, &this.purpose, id);
            let refused = match this.spec.kind {
                FaultKind::Error { share, status, retry_after } => {
                    let why = "an error was injected";
                    chance().chance(share).then_some(EngineRejection::Unavailable {
                        status,
                        why,
                        retry_after,
                    })
                }
                FaultKind::Reset { share } => chance().chance(share).then_some(EngineRejection::Reset),
                FaultKind::RateLimit { rate, burst, retry_after } => {
                    draw_token(&mut this.bucket, rate, burst, at).map(|wait| {
                        let retry_after = Some(retry_after.unwrap_or(wait));
                        EngineRejection::Unavailable {
                            status: 429,
                            why: "the rate limit is reached",
                            retry_after,
                        }
                    })
                }
                _ => None,
            };
            if let Some(rejected) = refused {
                self.touch(place as u32, replica, id);
                return Err(rejected);
            }
        }
        Ok(())
    }

    /// Returns the time at which a request that arrived at `at` is admitted, and the part of the wait in
    /// dependencies.
    pub fn enters(&mut self, replica: u32, id: u64, at: At) -> (At, Span) {
        let (mut enters, mut depended) = (at, Span::ZERO);
        for place in 0..self.list.len() {
            let seed = self.seed;
            let fault = &mut self.list[place];
            if !fault.strikes(replica) {
                continue;
            }
            let before = enters;
            match fault.spec.kind {
                FaultKind::Dependency { .. } => {
                    enters = fault.depend(seed, id, enters);
                    depended += enters - before;
                }
                FaultKind::BatchWindow { window } => {
                    let since = (enters - fault.began).0;
                    let opens = fault.began
                        + Span(
                            since
                                .div_euclid(window.0)
                                .saturating_add(i64::from(since % window.0 != 0))
                                .saturating_mul(window.0),
                        );
                    let ends = fault.spec.lasts.map_or(At::MAX, |lasts| fault.began + lasts);
                    enters = enters.max(opens.min(ends));
                }
                _ => continue,
            }
            if enters > before {
                self.touch(place as u32, Some(replica), id);
            }
        }
        (enters, depended)
    }

    /// Returns the connection limit of a replica, if one is active.
    pub fn gate(&self, replica: u32) -> Option<ConnectionLimitCheck> {
        let mut faults = (0u32..).zip(&self.list).filter(|(_, fault)| fault.strikes(replica));
        faults.find_map(|(place, fault)| match fault.spec.kind {
            FaultKind::ConnectionLimit { limit, backlog } => {
                Some(ConnectionLimitCheck { fault: place, limit, backlog })
            }
            _ => None,
        })
    }

    /// Returns the fault that cuts a response, and the number of tokens before the cut.
    pub fn cut(&self, replica: u32, id: u64, output_tokens: u32) -> Option<(u32, u32)> {
        let mut faults = (0u32..).zip(&self.list).filter(|(_, fault)| fault.strikes(replica));
        faults.find_map(|(place, fault)| {
            let FaultKind::Disconnect { share, tokens } = fault.spec.kind else { return None };
            let mut chance = Stream::new(self.seed, &fault.purpose, id);
            if output_tokens < 2 || !chance.chance(share) {
                return None;
            }
            let after = tokens.unwrap_or_else(|| 1 + chance.below(u64::from(output_tokens) - 1) as u32);
            (after < output_tokens).then_some((place, after))
        })
    }

    /// Returns the fault that buffers tokens of a replica, with its maximum delay and group size.
    pub fn buffer(&self, replica: u32) -> Option<(u32, Option<Span>, Option<u32>)> {
        let mut faults = (0u32..).zip(&self.list).filter(|(_, fault)| fault.strikes(replica));
        faults.find_map(|(place, fault)| match fault.spec.kind {
            FaultKind::Buffering { every, tokens } => Some((place, every, tokens)),
            _ => None,
        })
    }

    /// Records a request on a replica in the engine's faults.
    pub fn came(&mut self, replica: u32, id: u64) {
        for place in 0..self.list.len() {
            if self.list[place].strikes(replica) && self.list[place].spec.kind.needs_engine() {
                self.touch(place as u32, Some(replica), id);
            }
        }
    }

    /// Records a request that a fault affected.
    pub fn touch(&mut self, fault: u32, replica: Option<u32>, id: u64) {
        let open = &self.list[fault as usize].open;
        let record = open.iter().find(|(of, _)| of.is_none() || *of == replica).map(|(_, record)| *record);
        let Some(record) = record else { return };
        let truth = &mut self.truths[record];
        if truth.requests.last() == Some(&id) {
            return;
        }
        truth.touched += 1;
        if truth.requests.len() < MOST_IDS {
            truth.requests.push(id);
        }
    }

    pub fn is_on(&self, fault: u32) -> bool {
        self.list[fault as usize].on
    }

    fn on(&self, replica: u32) -> impl Iterator<Item = &Fault> {
        self.list.iter().filter(move |fault| fault.strikes(replica))
    }

    fn open_record(&mut self, fault: u32, replica: Option<u32>, at: At) {
        let this = &mut self.list[fault as usize];
        this.open.push((replica, self.truths.len()));
        self.truths.push(FaultTruth {
            fault,
            kind: this.spec.name().to_owned(),
            asked: this.spec.to_string(),
            replica,
            began: at,
            ended: None,
            touched: 0,
            requests: Vec::new(),
        });
    }
}

impl Fault {
    /// Returns the time at which a dependency has served a request that arrived at `at`.
    fn depend(&mut self, seed: u64, id: u64, at: At) -> At {
        let FaultKind::Dependency { delay, spread, share, servers } = self.spec.kind else { return at };
        let mut chance = Stream::new(seed, &self.purpose, id);
        if share < 1.0 && !chance.chance(share) {
            return at;
        }
        let takes = match spread {
            DelayDistribution::Fixed => delay,
            DelayDistribution::Exponential => {
                Span::from_secs_f64(dist::exponential(&mut chance, delay.as_secs_f64()))
            }
        };
        let Some(servers) = servers else { return at + takes };
        self.free.resize(servers as usize, At::ZERO);
        let Some(first) = self.free.iter_mut().min() else { return at + takes };
        *first = at.max(*first) + takes;
        *first
    }

    fn strikes(&self, replica: u32) -> bool {
        self.on && self.spec.replica.is_none_or(|struck| struck == replica)
    }
}

/// Takes a token from a bucket. Returns the time until the next one if the bucket is empty.
fn draw_token(bucket: &mut (f64, At), rate: f64, burst: f64, at: At) -> Option<Span> {
    let (tokens, since) = *bucket;
    let tokens = (tokens + (at - since).as_secs_f64() * rate).min(burst);
    if tokens >= 1.0 {
        *bucket = (tokens - 1.0, at);
        return None;
    }
    *bucket = (tokens, at);
    Some(Span::from_secs_f64((1.0 - tokens) / rate))
}
