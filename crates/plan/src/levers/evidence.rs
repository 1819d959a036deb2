//! Reads from a run where a lever could act: repeats, shared prefixes, shares of the time, room in the batch.
//!
//! The prompts determine the hit rate of a hypothetical cache, because the rows contain their block hashes. The cache has
//! no limit in size or age, so these rates are upper bounds. Shares of time describe the tail (the slowest tenth by the
//! goal's metric). A lever that shortens the mean and not the tail does not move a percentile.

use std::collections::{HashMap, HashSet};

use plimsoll_math::quantile::order_statistic;
use plimsoll_math::special::student_t_inv;
use plimsoll_model::{At, Attempt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::catalogue::Term;
use super::finding::{FasterModel, FigureOrigin, Goal};
use super::{LeverCase, ReplayRequest, schedule};
use crate::roofline::{self, LevelRoofline};
use plimsoll_measure::findings::{Estimate, Metric};
use plimsoll_measure::server_side::{ServerSide, Signal};
use plimsoll_profile::infer::{self, ReportedStages, Split, WaitPart};

/// Number of batches for a ratio's interval.
const BATCHES: usize = 20;
/// Minimum number of requests for a share.
const FEWEST: usize = 100;

/// The evidence of one level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LeverEvidence {
    /// Number of the level in the run, from 0.
    pub level: u32,
    /// Requests in the level's window.
    pub requests: u64,
    /// Share of requests whose whole prompt is a repeat (by full blocks and length): the hit rate of an exact cache.
    pub exact_repeats: Option<Estimate>,
    /// Share of prompt tokens that also began an earlier prompt: the hit rate of a prefix cache.
    pub prefix_reuse: Option<Estimate>,
    /// Share of prompt tokens that the server reports as cached; null if not reported.
    pub cached_now: Option<f64>,
    /// Shares of the slow requests' time, by latency term.
    pub tail: Vec<Share>,
    /// Origin of the shares.
    pub shares_from: SharesFrom,
    /// Concurrent sequences compared with their limit; null if unknown.
    pub occupancy: Option<Occupancy>,
    /// Mean number of requests in flight.
    pub in_flight: f64,
    /// Maximum number of requests in flight.
    pub in_flight_max: u64,
    /// Number of preempted sequences; null if unknown.
    pub preemptions: Option<f64>,
    /// Whether responses stream.
    pub streams: bool,
    /// Shares of the GPU's peaks; absent without a known model and GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roofline: Option<LevelRoofline>,
}

/// The origin of the shares of time.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SharesFrom {
    /// Stages reported by the server.
    Server,
    /// Inferred from the client's timestamps and the server's metrics, as in `profile`.
    Inferred,
    /// Unknown: neither reported nor inferred from measurements.
    Unknown,
}

/// A latency term's share of the slow requests' time.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// Latency term.
    pub term: Term,
    /// Share of the goal's metric.
    pub share: Estimate,
}

/// The use of the batch.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Occupancy {
    /// Mean number of running sequences per replica.
    pub running: f64,
    /// Maximum running sequences observed per replica.
    pub running_max: f64,
    /// Limit of running sequences per replica.
    pub max_seqs: f64,
}

impl LeverEvidence {
    /// Returns a term's share of the slow requests' time.
    pub fn share(&self, term: Term) -> Option<&Estimate> {
        self.tail.iter().find(|share| share.term == term).map(|share| &share.share)
    }
}

pub fn read(case: &LeverCase<'_>, own: &[ReplayRequest], goal: &Goal) -> LeverEvidence {
    let summary = case.summary;
    let rows = schedule::finished(case);
    let (tail, shares_from) = shares(case, &rows, goal.metric);
    let (exact_repeats, prefix_reuse) = reuse(own, (summary.window.start - case.level.start).0);
    let server = ServerSide::read(case.samples.iter().copied());
    let (from, to) = (summary.window.start, summary.window.stop);
    LeverEvidence {
        level: summary.level,
        requests: summary.counts.requests,
        exact_repeats,
        prefix_reuse,
        cached_now: summary.lengths.cached_share,
        tail,
        shares_from,
        occupancy: occupancy(case, &server, (from, to)),
        in_flight: summary.concurrency.mean,
        in_flight_max: summary.concurrency.max,
        preemptions: server.gained(Signal::Preempted, from, to).map(|gained| gained.value),
        streams: summary.latency.ttft.is_some(),
        roofline: case
            .world
            .and_then(|world| roofline::of_level(&world.engine, world.fleet.replicas, summary, &server)),
    }
}

fn occupancy(case: &LeverCase<'_>, server: &ServerSide, (from, to): (At, At)) -> Option<Occupancy> {
    let world = case.world?;
    let plimsoll_sim::ModeSpec::Batching(batching) = &world.engine.mode else { return None };
    let running = server.gauge(Signal::Running)?;
    let replicas = f64::from(world.fleet.replicas.max(1));
    // A level may end between two scrapes.
    let most = running.max(from, to).filter(|most| *most > 0.0)?;
    Some(Occupancy {
        running: running.mean(from, to)? / replicas,
        running_max: most / replicas,
        max_seqs: f64::from(batching.max_seqs),
    })
}

/// Returns the repeated prompts and the shared prefixes, in due order. The level's warm-up counts as seen.
fn reuse(own: &[ReplayRequest], from_ns: i64) -> (Option<Estimate>, Option<Estimate>) {
    let (mut whole, mut blocks) = (HashSet::new(), HashSet::new());
    let (mut repeats, mut shared) = (Vec::new(), Vec::new());
    for one in own {
        let Some(last) = one.blocks.last() else { continue };
        let again = !whole.insert((*last, one.prompt));
        let seen = one.blocks.iter().take_while(|block| blocks.contains(*block)).count();
        blocks.extend(one.blocks.iter().copied());
        if one.due_ns >= from_ns {
            repeats.push((f64::from(u8::from(again)), 1.0));
            shared.push((seen as f64 * 16.0, f64::from(one.prompt)));
        }
    }
    (ratio(&repeats), ratio(&shared))
}

/// Returns the goal's metric of a request, s.
fn counted(row: &Attempt, metric: Metric) -> Option<f64> {
    let (from, to) = match metric {
        Metric::Ttft => (Some(row.due), row.first_token),
        Metric::E2e => (Some(row.due), row.end),
        Metric::Tpot => (row.first_token, row.last_token),
    };
    Some((to? - from?).as_secs_f64())
}

/// Returns the server stages that the goal's metric includes.
fn stages_of(metric: Metric) -> &'static [(Term, &'static str)] {
    let all: &[(Term, &str)] =
        &[(Term::Queue, "queue"), (Term::Prefill, "prefill"), (Term::Decode, "decode")];
    match metric {
        Metric::Ttft => &all[..2],
        Metric::E2e => all,
        Metric::Tpot => &all[2..],
    }
}

/// Returns the shares of the goal's metric for the requests that are slow by it.
fn shares(case: &LeverCase<'_>, rows: &[&Attempt], metric: Metric) -> (Vec<Share>, SharesFrom) {
    let mut order: Vec<f64> = rows.iter().filter_map(|row| counted(row, metric)).collect();
    if order.len() < FEWEST {
        return (Vec::new(), SharesFrom::Unknown);
    }
    order.sort_by(f64::total_cmp);
    // The slowest tenth has enough rows for an interval and is close to a p95.
    let from = order[order.len() * 9 / 10];
    let slow: Vec<(&Attempt, f64)> = rows
        .iter()
        .filter_map(|row| Some((*row, counted(row, metric)?)))
        .filter(|(_, took)| *took >= from)
        .collect();
    let stage = |row: &Attempt, name: &str| -> Option<f64> {
        let found = row.answer.stages.iter().find(|stage| stage.name == name);
        found.map(|stage| stage.took.as_secs_f64())
    };
    let reported = slow.iter().filter(|(row, _)| stage(row, "prefill").is_some()).count();
    if reported * 10 < slow.len() * 9 {
        return inferred(case, &slow, metric);
    }
    let parts = stages_of(metric);
    let share = |(term, name): &(Term, &str)| {
        let pairs: Vec<(f64, f64)> =
            slow.iter().map(|(row, took)| (stage(row, name).unwrap_or(0.0).min(*took), *took)).collect();
        ratio(&pairs).map(|share| Share { term: *term, share })
    };
    let mut shares: Vec<Share> = parts.iter().filter_map(share).collect();
    let rest: Vec<(f64, f64)> = slow
        .iter()
        .map(|(row, took)| {
            let known: f64 = parts.iter().filter_map(|(_, name)| stage(row, name)).sum();
            ((took - known).max(0.0), *took)
        })
        .collect();
    shares.extend(ratio(&rest).map(|share| Share { term: Term::Host, share }));
    (shares, SharesFrom::Server)
}

/// Returns the shares without server stages: the split that `profile` prints for the run ([`infer`]).
fn inferred(case: &LeverCase<'_>, slow: &[(&Attempt, f64)], metric: Metric) -> (Vec<Share>, SharesFrom) {
    let ended = |from: At, to: At| {
        case.attempts.iter().filter(|a| a.end.is_some_and(|end| end > from && end <= to)).count()
    };
    let told =
        ReportedStages::read(case.samples.iter().copied(), (case.level.start, case.level.drained), ended);
    let found = infer::infer(&infer::SplitCase {
        level: case.level.id,
        attempts: case.attempts,
        from: case.summary.window.start,
        told,
        floor: case.floor,
        ignore_reported: false,
        budget: None,
    });
    let of_row: HashMap<*const Attempt, Split> =
        found.splits.iter().map(|(i, split)| (std::ptr::from_ref(case.attempts[*i]), *split)).collect();
    let pairs = |parts: &[WaitPart]| -> Vec<(f64, f64)> {
        let of = |(row, took): &(&Attempt, f64)| {
            let split = of_row.get(&std::ptr::from_ref::<Attempt>(row))?;
            let ns: f64 = parts.iter().map(|part| split[*part as usize]).sum();
            Some(((ns / 1e9).clamp(0.0, *took), *took))
        };
        slow.iter().filter_map(of).collect()
    };
    let terms: &[(Term, &[WaitPart])] = match metric {
        Metric::Tpot => &[(Term::Decode, &[WaitPart::Decode])],
        Metric::Ttft => {
            &[(Term::Queue, &[WaitPart::Queue]), (Term::Prefill, &[WaitPart::Prefill]), (Term::Host, BEFORE)]
        }
        Metric::E2e => &[
            (Term::Queue, &[WaitPart::Queue]),
            (Term::Prefill, &[WaitPart::Prefill]),
            (Term::Decode, &[WaitPart::Decode]),
            (Term::Host, BESIDE),
        ],
    };
    let share =
        |(term, parts): &(Term, &[WaitPart])| ratio(&pairs(parts)).map(|share| Share { term: *term, share });
    let shares: Vec<Share> = terms.iter().filter_map(share).collect();
    let from = if shares.is_empty() { SharesFrom::Unknown } else { SharesFrom::Inferred };
    (shares, from)
}

/// The parts outside queue and model: before the first token, and in total.
const BEFORE: &[WaitPart] = &[WaitPart::ClientWait, WaitPart::Connect, WaitPart::Front];
const BESIDE: &[WaitPart] = &[WaitPart::ClientWait, WaitPart::Connect, WaitPart::Front, WaitPart::Tail];

/// Returns Σ over / Σ under, with the interval of batch sums (Student's t on their residuals).
pub(super) fn ratio(pairs: &[(f64, f64)]) -> Option<Estimate> {
    let under: f64 = pairs.iter().map(|pair| pair.1).sum();
    let batches = BATCHES.min(pairs.len() / 5);
    if batches < 4 || under <= 0.0 {
        return None;
    }
    let value = pairs.iter().map(|pair| pair.0).sum::<f64>() / under;
    let size = pairs.len().div_ceil(batches);
    let residuals: Vec<f64> =
        pairs.chunks(size).map(|chunk| chunk.iter().map(|(a, b)| a - value * b).sum::<f64>()).collect();
    let count = residuals.len() as f64;
    let mean = residuals.iter().sum::<f64>() / count;
    let variance = residuals.iter().map(|r| (r - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = student_t_inv(0.975, count - 1.0) * (variance * count).sqrt() / under;
    Some(Estimate {
        value,
        lower: (value - half).max(0.0),
        upper: (value + half).min(1.0),
        n: pairs.len() as u64,
        n_eff: pairs.len() as f64,
    })
}

/// Returns the upper bound of a faster model's gain, by removing its share of prefill and decode from every row.
pub fn faster_model(case: &LeverCase<'_>, goal: &Goal, evidence: &LeverEvidence) -> Option<FasterModel> {
    if evidence.shares_from != SharesFrom::Server {
        return None;
    }
    let rows = schedule::finished(case);
    let without = |factor: f64| -> Option<f64> {
        let kept = 1.0 - 1.0 / factor;
        let values = rows.iter().filter_map(|row| {
            let of = |name: &str| {
                let stage = row.answer.stages.iter().find(|stage| stage.name == name);
                stage.map_or(0.0, |stage| stage.took.as_secs_f64())
            };
            let value = match goal.metric {
                Metric::Ttft => (row.first_token? - row.due).as_secs_f64() - kept * of("prefill"),
                Metric::E2e => (row.end? - row.due).as_secs_f64() - kept * (of("prefill") + of("decode")),
                Metric::Tpot => {
                    let tokens = row.answer.tokens.output.unwrap_or(row.asked_output);
                    (row.last_token? - row.first_token?).as_secs_f64() / f64::from(tokens.max(2) - 1) / factor
                }
            };
            Some(value.max(0.0))
        });
        let mut values: Vec<f64> = values.collect();
        order_statistic(&mut values, goal.percentile)
    };
    let now = without(1.0).filter(|now| *now > 0.0)?;
    let saved = |factor: f64| without(factor).map(|then| 1.0 - then / now);
    Some(FasterModel {
        twice: super::finding::exact(saved(2.0)?, rows.len()),
        ten_times: super::finding::exact(saved(10.0)?, rows.len()),
        at_most: saved(1e12)?,
        how: FigureOrigin::Replayed,
    })
}
