//! Metrics of the gateway: requests by outcome, attempts per replica and stage times from 10 µs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_model::Span;
use plimsoll_policy::{HedgeSkipReason, Refusal};
use plimsoll_wire::prometheus::PrometheusPage;

/// Upper bounds of the stage histograms in s. Buckets of engines start at 1 ms, which is too coarse for gateway
/// overhead.
const BOUNDS: [f64; 19] = [
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0,
    60.0,
];

/// A stage of a request whose duration the gateway measures.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestStage {
    /// Time from the request head to the complete request body.
    Read,
    /// Time in the queue for a replica.
    Queue,
    Route,
    /// Time from the choice to the response head, without retries.
    Head,
    /// Time from the response head of a stream to its first token.
    FirstToken,
    /// Time from the request head to the first token of a stream.
    Ttft,
    /// Expected time to first token, estimated when the request arrived.
    TtftExpected,
    /// Time from the request head to the end of the response.
    Total,
}

const STAGES: [(RequestStage, &str); 8] = [
    (RequestStage::Read, "read"),
    (RequestStage::Queue, "queue"),
    (RequestStage::Route, "route"),
    (RequestStage::Head, "head"),
    (RequestStage::FirstToken, "first_token"),
    (RequestStage::Ttft, "ttft"),
    (RequestStage::TtftExpected, "ttft_expected"),
    (RequestStage::Total, "total"),
];

/// The outcome of a request from the client's view.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestEnd {
    /// A replica's response with a status below 400.
    Answered,
    /// A cached response, or the shared response of an identical request.
    Cached,
    /// A replica's 4xx response.
    Refused,
    /// A replica had no capacity (429, or 503 with `Retry-After`), and no other replica accepted the request.
    Shed,
    /// A replica's 5xx response, or no reachable replica.
    Failed,
    /// A stream that broke after its start.
    Broken,
    Cancelled,
    /// A 4xx response of the gateway: the request was too large, too slow or malformed.
    Bad,
    /// Timeout: a response from a replica did not arrive in time.
    NoReplica,
    /// The request had no API key or an unknown key.
    Unauthorized,
    /// The API key exceeded its rate limit.
    Limited,
    /// A 429 response of the gateway: the request would have been late, or the queue was full.
    Overloaded,
    /// The request timed out in the queue.
    Expired,
    /// A 429 response of the gateway: the SLO budget is broken, and the priority class of the request is shed first.
    HeldBack,
}

pub const ENDS: [(RequestEnd, &str); 14] = [
    (RequestEnd::Answered, "answered"),
    (RequestEnd::Cached, "cached"),
    (RequestEnd::Refused, "refused"),
    (RequestEnd::Shed, "shed"),
    (RequestEnd::Failed, "failed"),
    (RequestEnd::Broken, "broken"),
    (RequestEnd::Cancelled, "cancelled"),
    (RequestEnd::Bad, "bad_request"),
    (RequestEnd::NoReplica, "no_replica"),
    (RequestEnd::Unauthorized, "unauthorized"),
    (RequestEnd::Limited, "limited"),
    (RequestEnd::Overloaded, "overloaded"),
    (RequestEnd::Expired, "expired"),
    (RequestEnd::HeldBack, "held_back"),
];

/// The counter of a request's outcome, which counts it once. A drop before that means that the client disconnected.
pub struct EndCounter {
    stats: Arc<Stats>,
    is_counted: bool,
}

impl EndCounter {
    pub(crate) fn new(stats: &Arc<Stats>) -> EndCounter {
        EndCounter { stats: Arc::clone(stats), is_counted: false }
    }

    pub(crate) fn count(&mut self, end: RequestEnd) {
        if !std::mem::replace(&mut self.is_counted, true) {
            self.stats.end(end);
        }
    }

    /// Moves the outcome to a new counter; a drop of this one counts nothing.
    pub(crate) fn take(&mut self) -> EndCounter {
        let is_counted = std::mem::replace(&mut self.is_counted, true);
        EndCounter { stats: Arc::clone(&self.stats), is_counted }
    }
}

impl Drop for EndCounter {
    fn drop(&mut self) {
        self.count(RequestEnd::Cancelled);
    }
}

#[derive(Default)]
struct StageHistogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

#[derive(Default)]
pub struct Stats {
    ends: [AtomicU64; ENDS.len()],
    stages: [StageHistogram; STAGES.len()],
    /// Stream events forwarded to clients.
    pub events: AtomicU64,
    /// Attempts after the first of a request that reached a replica.
    pub retries: AtomicU64,
    /// Retries that the retry budget denied.
    pub denied: AtomicU64,
    /// Hedged requests whose first token came from the second replica (index 0) or the first (index 1).
    pub hedges: [AtomicU64; 2],
    /// Late requests without a hedge, by [reason](WITHHELD).
    withheld: [AtomicU64; WITHHELD.len()],
    /// Configuration reloads: applied (index 0) and rejected (index 1).
    reloads: [AtomicU64; 2],
    stale: AtomicBool,
}

impl Stats {
    pub fn end(&self, end: RequestEnd) {
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn ended(&self, end: RequestEnd) -> u64 {
        self.ends[end as usize].load(Ordering::Relaxed)
    }

    /// Returns the total time that requests spent in a stage.
    pub fn sum(&self, stage: RequestStage) -> Span {
        Span(self.stages[stage as usize].sum_ns.load(Ordering::Relaxed) as i64)
    }

    /// Returns the number of finished requests over all outcomes.
    pub fn all(&self) -> u64 {
        self.ends.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub fn took(&self, stage: RequestStage, span: Span) {
        let timed = &self.stages[stage as usize];
        let seconds = span.as_secs_f64();
        let place = BOUNDS.iter().position(|bound| seconds <= *bound).unwrap_or(BOUNDS.len());
        timed.buckets[place].fetch_add(1, Ordering::Relaxed);
        timed.sum_ns.fetch_add(span.0.max(0) as u64, Ordering::Relaxed);
    }

    /// Counts a late request without a hedge.
    pub fn withheld(&self, why: HedgeSkipReason) {
        let place = WITHHELD.iter().position(|(of, _)| *of == why);
        place.iter().for_each(|place| {
            self.withheld[*place].fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Counts a configuration reload. `sound` is false if the file was rejected.
    pub fn reloaded(&self, sound: bool) {
        self.reloads[usize::from(!sound)].fetch_add(1, Ordering::Relaxed);
        self.stale.store(!sound, Ordering::Relaxed);
    }

    /// Writes all metrics to a Prometheus page.
    pub fn write(&self, page: &mut PrometheusPage) {
        let ends = ENDS.iter().map(|(end, name)| ([("outcome", *name)], self.ended(*end) as f64));
        page.counter("plimsoll_gateway_requests_total", "Requests by outcome for the client.", ends);
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        page.counter(
            "plimsoll_gateway_retries_total",
            "Attempts beyond a request's first.",
            [([], value(&self.retries))],
        );
        page.counter(
            "plimsoll_gateway_retries_denied_total",
            "Retries that the budget did not allow.",
            [([], value(&self.denied))],
        );
        let hedges = ["second", "first"].into_iter().zip(&self.hedges);
        let hedges = hedges.map(|(replica, count)| ([("first_token", replica)], value(count)));
        page.counter("plimsoll_gateway_hedges_total", "Hedged requests by which replica was first.", hedges);
        let withheld = WITHHELD.iter().zip(&self.withheld);
        let withheld = withheld.map(|((_, why), count)| ([("why", *why)], value(count)));
        page.counter(
            "plimsoll_gateway_hedges_withheld_total",
            "Late requests without a hedge, by reason.",
            withheld,
        );
        page.counter(
            "plimsoll_gateway_reloads_total",
            "Reloads of the gateway's file.",
            ["in_force", "refused"]
                .into_iter()
                .zip(&self.reloads)
                .map(|(of, n)| ([("outcome", of)], value(n))),
        );
        let stale = f64::from(u8::from(self.stale.load(Ordering::Relaxed)));
        let help = "1: the last reload was rejected; the previous configuration is active.";
        page.gauge("plimsoll_gateway_file_refused", help, [([], stale)]);
        page.counter(
            "plimsoll_gateway_events_total",
            "Forwarded events of streams.",
            [([], value(&self.events))],
        );
        let each = STAGES.iter().zip(&self.stages).map(|((_, stage), timed)| {
            let buckets: Vec<u64> = timed.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            ([("stage", *stage)], buckets, value(&timed.sum_ns) / 1e9)
        });
        page.histograms("plimsoll_gateway_stage_seconds", "Time by stage of a request.", &BOUNDS, each);
    }
}

/// The metric label of each reason against a hedge.
const WITHHELD: [(HedgeSkipReason, &str); 5] = [
    (HedgeSkipReason::Busy, "busy"),
    (HedgeSkipReason::NoReplica, "no_replica"),
    (HedgeSkipReason::NoGain, "no_gain"),
    (HedgeSkipReason::OverShare, "over_share"),
    (HedgeSkipReason::Useless, "useless"),
];

/// The metric labels of admission rejections.
pub(crate) const REASONS: [&str; 5] = ["late", "full", "expired", "no_replica", "budget"];

/// Returns the index of a rejection in [`REASONS`].
pub(crate) fn reason(refusal: Refusal) -> usize {
    match refusal {
        Refusal::Late(_) => 0,
        Refusal::Full(_) => 1,
        Refusal::Expired => 2,
        Refusal::NoReplica => 3,
        Refusal::HeldBack(_) => 4,
    }
}
