//! Counts of each replica of both sides by minute → the compared edges, and the verdict.

use std::collections::HashMap;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::say::number;
use plimsoll_measure::server_side::{Buckets, Signal};
use plimsoll_model::{Arm, At, Span};

use super::finding::{CanaryFinding, CanaryRow, CanaryVerdict};
use super::judge::{CanaryMeasure, CanarySpec, Judge, LEAST_BEFORE, ReplicaMinute};
use super::outright::Outright;
use crate::over::over;
use crate::source::{LiveRow, LiveRows, RowSource};

pub(super) const MINUTE: Span = Span::from_secs(60);
/// Latencies whose shares are compared, if the source has them.
pub(super) const SIGNALS: [Signal; 4] = [Signal::Ttft, Signal::Itl, Signal::Tpot, Signal::E2e];
/// Number of base requests before edges are chosen, and target shares over the edges.
const TO_CHOOSE: f64 = 300.0;
const SHARES: [f64; 3] = [0.5, 0.05, 0.01];
/// Margin of a share: relative, and its maximum in absolute terms.
const MARGIN: (f64, f64) = (0.5, 0.05);
const FAILURES_MARGIN: f64 = 0.005;
/// Maximum relative difference of load per replica and of prompts for a fair comparison.
const ALIKE: f64 = 0.10;
/// Time without a response after which the canary counts as down.
const GONE: Span = Span::from_secs(300);
/// Share of the false-alarm probability for outright failures.
const OUTRIGHT: f64 = 0.1;
/// Minimum number of replicas at which a difference is attributed to the version, without a period before the deploy.
const SEVERAL: usize = 3;

/// The counted event of a request.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Edge {
    Latency(Signal, f64),
    Failed,
}

/// Sums over replicas and minutes with the new version.
#[derive(Copy, Clone, Default, Debug)]
struct Traffic {
    replica_minutes: f64,
    requests: f64,
    prompt_tokens: f64,
}

/// The data of one replica in a minute; `None` fields are unknown.
#[derive(Clone, Default, Debug)]
pub struct ReplicaMinuteCounts {
    /// Name of the replica, equal in every minute.
    pub name: String,
    pub arm: Arm,
    /// Latencies in s.
    pub latencies: HashMap<Signal, Buckets>,
    /// Number of completed requests; `None` if unknown.
    pub finished: Option<u64>,
    /// Number of failed or rejected requests; `None` if unknown.
    pub failed: Option<u64>,
    /// Prompt tokens of the completed requests.
    pub prompt_tokens: f64,
}

/// The source of the minutes, for display.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum MinuteSource {
    Pages,
    Requests,
}

/// The two sides of a fleet and their data.
#[derive(Clone, Debug)]
pub struct CanaryTrial {
    spec: CanarySpec,
    limits: Vec<LiveRow>,
    from: MinuteSource,
    /// Latencies of the base until edges are chosen.
    base: HashMap<Signal, Buckets>,
    edges: Vec<Edge>,
    judge: Option<Judge>,
    outright: Outright,
    /// End of the last minute, and time of the last response of each side.
    last: Option<At>,
    seen: [Option<At>; 2],
    replicas: [usize; 2],
    traffic: [Traffic; 2],
}

impl CanaryTrial {
    pub fn new(spec: CanarySpec, budget: Option<BudgetFile>, from: MinuteSource) -> CanaryTrial {
        CanaryTrial {
            spec,
            limits: budget.map(|file| LiveRows::on_pages(&file).rows).unwrap_or_default(),
            from,
            base: HashMap::new(),
            edges: Vec::new(),
            judge: None,
            outright: Outright::default(),
            last: None,
            seen: [None; 2],
            replicas: [0; 2],
            traffic: [Traffic::default(); 2],
        }
    }

    /// Returns the range of the minute that is now complete, if there is one.
    pub fn due(&mut self, now: At) -> Option<(At, At)> {
        let last = *self.last.get_or_insert(now);
        (now - last >= MINUTE).then_some((last, now))
    }

    /// Resets the load comparison, because the canary's share of the traffic changed.
    pub fn share_changed(&mut self) {
        self.traffic = [Traffic::default(); 2];
    }

    /// Adds a request that ended; metrics endpoints provide only [minutes](CanaryTrial::minute).
    pub fn request(&mut self, arm: Arm, failed: bool) {
        let is_out = self.last.is_some_and(|last| last > At::ZERO + self.spec.before);
        if is_out || self.spec.before == Span::ZERO {
            self.outright.take(arm, failed);
        }
    }

    /// Adds a minute with the replicas that responded in it.
    pub fn minute(&mut self, mut replicas: Vec<ReplicaMinuteCounts>, (from, to): (At, At)) {
        // A fixed order, because groups are drawn from it by a seed.
        replicas.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.last = Some(to);
        for (place, arm) in [Arm::Base, Arm::Canary].into_iter().enumerate() {
            self.replicas[place] = replicas.iter().filter(|replica| replica.arm == arm).count();
            self.seen[place] = if self.replicas[place] > 0 { Some(to) } else { self.seen[place] };
        }
        if self.from == MinuteSource::Pages && to > At::ZERO + self.spec.before {
            let sum = |arm| {
                let side = replicas.iter().filter(|replica| replica.arm == arm);
                let counts = side.filter_map(|replica| counted(replica, Edge::Failed));
                counts.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
            };
            self.outright.block(sum(Arm::Base), sum(Arm::Canary));
        }
        if self.judge.is_none() {
            self.choose(&replicas);
            return;
        }
        if to > At::ZERO + self.spec.before {
            for replica in &replicas {
                let traffic = &mut self.traffic[usize::from(replica.arm == Arm::Canary)];
                traffic.replica_minutes += (to - from).as_secs_f64() / MINUTE.as_secs_f64();
                traffic.requests += replica.finished.unwrap_or(0) as f64;
                traffic.prompt_tokens += replica.prompt_tokens;
            }
        }
        let each: Vec<ReplicaMinute> = replicas
            .iter()
            .map(|replica| ReplicaMinute {
                name: replica.name.clone(),
                arm: replica.arm,
                counts: self.edges.iter().map(|edge| counted(replica, *edge)).collect(),
            })
            .collect();
        if let Some(judge) = &mut self.judge {
            judge.push(to, &each);
        }
    }

    /// Chooses edges from the base's latencies once there are enough. Minutes used for the choice are not evaluated.
    fn choose(&mut self, replicas: &[ReplicaMinuteCounts]) {
        for replica in replicas.iter().filter(|replica| replica.arm == Arm::Base) {
            for (signal, buckets) in &replica.latencies {
                match self.base.get_mut(signal) {
                    Some(sum) if sum.edges == buckets.edges => {
                        sum.counts.iter_mut().zip(&buckets.counts).for_each(|(sum, count)| *sum += count);
                    }
                    _ => drop(self.base.insert(*signal, buckets.clone())),
                }
            }
        }
        let enough = |buckets: &Buckets| buckets.counts.iter().sum::<f64>() >= TO_CHOOSE;
        if self.base.is_empty() || !self.base.values().all(enough) {
            return;
        }
        let mut measured = Vec::new();
        for signal in SIGNALS {
            let Some(buckets) = self.base.get(&signal) else { continue };
            for (edge, share) in edges(buckets) {
                measured.push((Edge::Latency(signal, edge), (MARGIN.0 * share).min(MARGIN.1)));
            }
        }
        for row in &self.limits {
            if let RowSource::Latency { signal, limit_s } = row.source
                && self.base.contains_key(&signal)
            {
                measured.push((Edge::Latency(signal, limit_s), (MARGIN.0 * row.allowed()).min(MARGIN.1)));
            }
        }
        if replicas.iter().any(|replica| replica.failed.is_some()) {
            measured.push((Edge::Failed, FAILURES_MARGIN));
        }
        let mut kept: Vec<(Edge, f64)> = Vec::new();
        for (edge, margin) in measured {
            if kept.iter().all(|(other, _)| *other != edge) {
                kept.push((edge, margin));
            }
        }
        let named = kept.iter().map(|(edge, margin)| CanaryMeasure { what: words(*edge), margin: *margin });
        self.judge = Some(Judge::new(self.spec.clone(), named.collect()));
        self.edges = kept.into_iter().map(|(edge, _)| edge).collect();
    }

    pub fn finding(&self, now: At) -> CanaryFinding {
        let rows = self.judge.iter().flat_map(|judge| judge.known());
        let rows: Vec<CanaryRow> = rows
            .map(|(of, known)| CanaryRow {
                what: of.what.clone(),
                n: known.seen.map(|(n, _)| n),
                over: known.seen.map(|(n, over)| (n > 0).then(|| over as f64 / n as f64)),
                worse: known.worse,
                margin: of.margin,
                is_within: known.is_within,
            })
            .collect();
        let per = |of: fn(&Traffic) -> f64, by: fn(&Traffic) -> f64| {
            let [base, canary] = self.traffic.map(|t| of(&t) / by(&t));
            Some(canary / base).filter(|ratio| ratio.is_finite())
        };
        let mut found = CanaryFinding {
            at_s: now.0 as f64 / 1e9,
            verdict: CanaryVerdict::KeepWatching,
            why: String::new(),
            replicas: self.replicas,
            minutes: self.judge.as_ref().map_or([0; 2], Judge::minutes),
            worse: self.judge.as_ref().map_or(1.0, Judge::worse),
            decides: self.judge.as_ref().map_or(1.0 / self.spec.alpha, Judge::decides) / (1.0 - OUTRIGHT),
            load: per(|t| t.requests, |t| t.replica_minutes),
            prompts: per(|t| t.prompt_tokens, |t| t.requests),
            rows,
        };
        (found.verdict, found.why) = self.verdict(&found, now);
        found
    }

    fn verdict(&self, found: &CanaryFinding, now: At) -> (CanaryVerdict, String) {
        use CanaryVerdict::*;
        let out = now - (At::ZERO + self.spec.before);
        if let Some(why) = self.gone(now).filter(|_| out > Span::ZERO) {
            return (RollBack, why);
        }
        if self.outright.worse() >= 1.0 / (OUTRIGHT * self.spec.alpha) {
            let [(base, bad), (canary, failed)] = self.outright.seen();
            let why =
                format!("it fails outright: {failed} of {canary} requests, of the base {bad} of {base}");
            return (RollBack, why);
        }
        let more = [(found.load, "requests per replica"), (found.prompts, "prompt tokens per request")];
        let unlike = |most: bool| {
            more.iter().find_map(|(ratio, what)| {
                let ratio = ratio.as_ref()?;
                let is = *ratio > 1.0 + ALIKE || (most && *ratio < 1.0 - ALIKE);
                is.then(|| format!("the canary gets {} × the {what} of the base", number(*ratio)))
            })
        };
        if found.worse >= found.decides {
            return match unlike(false) {
                Some(unlike) => (KeepWatching, format!("it is slower, but {unlike}, which may be the cause")),
                None => (RollBack, self.worse(found)),
            };
        }
        if self.judge.is_none() {
            return (KeepWatching, self.unchosen());
        }
        if out <= Span::ZERO {
            let left = -out.as_secs_f64() / 60.0;
            return (
                KeepWatching,
                format!("the same version everywhere for another {left:.0} min; deploy the canary then"),
            );
        }
        if self.spec.before > Span::ZERO && found.minutes[0] < LEAST_BEFORE as u64 {
            return (
                KeepWatching,
                format!(
                    "only {} minutes from before the deploy were counted, {LEAST_BEFORE} are needed; start again",
                    found.minutes[0]
                ),
            );
        }
        let open: Vec<&str> =
            found.rows.iter().filter(|row| !row.is_within).map(|row| row.what.as_str()).collect();
        match unlike(true) {
            _ if !open.is_empty() => {
                (KeepWatching, format!("not yet proven to be no worse: {}", open.join(", ")))
            }
            Some(unlike) => (KeepWatching, format!("it is no worse, but {unlike}: no fair comparison")),
            None if out < self.spec.least => {
                let left = (self.spec.least - out).as_secs_f64() / 3600.0;
                (
                    KeepWatching,
                    format!("it is no worse so far; {} h until it was watched for long enough", number(left)),
                )
            }
            None => (Promote, "no row is worse by more than its margin".to_owned()),
        }
    }

    /// Returns a reason if no replica of the canary responds while the base does.
    fn gone(&self, now: At) -> Option<String> {
        let [base, canary] = self.seen;
        let is_there = base.is_some_and(|base| now - base < Span(2 * MINUTE.0));
        let since = canary.map_or(now - At::ZERO, |canary| now - canary);
        let minutes = since.as_secs_f64() / 60.0;
        let what = match self.from {
            MinuteSource::Pages => "page",
            MinuteSource::Requests => "replica",
        };
        (is_there && since >= GONE)
            .then(|| format!("no {what} of the canary has answered for {minutes:.0} min"))
    }

    fn worse(&self, found: &CanaryFinding) -> String {
        let most = found.rows.iter().max_by(|a, b| a.worse.total_cmp(&b.worse));
        let of = most.map_or(String::new(), |row| {
            let share = |place: usize| row.over[place].map_or("–".to_owned(), plimsoll_measure::say::percent);
            format!(": {}: {} of the base, {} of the canary", row.what, share(0), share(1))
        });
        let caution = match self.spec.before == Span::ZERO && found.replicas[1] < SEVERAL {
            true => "; its replicas may be worse regardless of the change (check with --before 1h)",
            false => "",
        };
        format!("it is worse{of}{caution}")
    }

    fn unchosen(&self) -> String {
        match (self.base.is_empty(), self.from) {
            (true, MinuteSource::Pages) => {
                "no page of the base has a latency as a histogram with requests yet".to_owned()
            }
            (true, MinuteSource::Requests) => "the base has answered no request yet".to_owned(),
            (false, _) => format!("waiting for {TO_CHOOSE} requests of the base, to choose edges by"),
        }
    }
}

fn counted(replica: &ReplicaMinuteCounts, edge: Edge) -> Option<(u64, u64)> {
    match edge {
        Edge::Latency(signal, edge_s) => {
            let over = over(replica.latencies.get(&signal)?, edge_s)?;
            // The middle of the bracket, equally for both sides, so that neither is favoured.
            Some((over.n, (over.least + over.most) / 2))
        }
        Edge::Failed => {
            let failed = replica.failed.unwrap_or(0);
            Some((replica.finished? + failed, failed))
        }
    }
}

/// Returns the bucket edges whose shares are nearest to the target shares, each with its share.
fn edges(buckets: &Buckets) -> Vec<(f64, f64)> {
    let all: f64 = buckets.counts.iter().sum();
    let mut below = 0.0;
    let shares: Vec<(f64, f64)> = buckets
        .edges
        .iter()
        .zip(&buckets.counts)
        .map(|(edge, count)| {
            below += count;
            (*edge, 1.0 - below / all)
        })
        .collect();
    let mut found: Vec<(f64, f64)> = Vec::new();
    for wanted in SHARES {
        // An edge with a share of zero or one has no information yet, so the nearest inner edge is used.
        let far = |share: f64| (share.max(1e-4).ln() - f64::ln(wanted)).abs();
        let inner = shares.iter().filter(|(_, share)| *share > 0.0 && *share < 1.0);
        if let Some(edge) = inner.min_by(|a, b| far(a.1).total_cmp(&far(b.1))).copied()
            && !found.contains(&edge)
        {
            found.push(edge);
        }
    }
    found
}

fn words(edge: Edge) -> String {
    let name = |signal| match signal {
        Signal::Ttft => "ttft",
        Signal::Itl => "itl",
        Signal::Tpot => "tpot",
        _ => "e2e",
    };
    match edge {
        Edge::Latency(signal, edge_s) => format!("{} over {} s", name(signal), number(edge_s)),
        Edge::Failed => "failed".to_owned(),
    }
}
