//! What the gateway counts of itself: requests, attempts per replica, and how long each stage took, from 10 µs on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_model::Span;
use plimsoll_policy::{Refusal, Withheld};
use plimsoll_wire::prometheus::PrometheusPage;

/// Upper bounds of all stages, s. Engines' own ladders begin at 1 ms, where a gateway's share can't be seen.
const BOUNDS: [f64; 19] = [
    1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0,
    60.0,
];

/// A part of a request's time.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestStage {
    /// From the head to the whole body.
    Read,
    /// Waiting for a replica.
    Queue,
    Route,
    /// From the choice to an answer's head; further attempts apart.
    Head,
    /// From the head of a streamed answer to its first token.
    FirstToken,
    /// From the request's head to the first token of a streamed answer.
    Ttft,
    /// What that was expected to be when the request came.
    TtftExpected,
    /// From the request's head to the answer's end.
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

/// What became of a request, as its client saw it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// An answer of a replica, below 400.
    Answered,
    /// An answer that was kept, or a twin's.
    Cached,
    /// A replica's 4xx.
    Refused,
    /// A replica had no room (429, or 503 with Retry-After), and no other took it.
    Shed,
    /// A replica's 5xx, or none that could be reached.
    Failed,
    /// The stream broke after it had begun.
    Broken,
    /// The client went away.
    Cancelled,
    /// The gateway's own 4xx: too large, too slow, malformed.
    Bad,
    /// No replica answered in time.
    NoReplica,
    /// It came without a key, or with none of ours.
    Unauthorized,
    /// Its key was over its limit.
    Limited,
    /// The gateway's own 429: it would have been late, or the queue was full.
    Overloaded,
    /// Its time ran out in the queue.
    Expired,
    /// The gateway's own 429: the budget is broken, and its class gives way.
    HeldBack,
}

pub const ENDS: [(End, &str); 14] = [
    (End::Answered, "answered"),
    (End::Cached, "cached"),
    (End::Refused, "refused"),
    (End::Shed, "shed"),
    (End::Failed, "failed"),
    (End::Broken, "broken"),
    (End::Cancelled, "cancelled"),
    (End::Bad, "bad_request"),
    (End::NoReplica, "no_replica"),
    (End::Unauthorized, "unauthorized"),
    (End::Limited, "limited"),
    (End::Overloaded, "overloaded"),
    (End::Expired, "expired"),
    (End::HeldBack, "held_back"),
];

#[derive(Default)]
struct Timed {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

#[derive(Default)]
pub struct Stats {
    ends: [AtomicU64; ENDS.len()],
    stages: [Timed; STAGES.len()],
    /// Events of streams that were passed on.
    pub events: AtomicU64,
    /// Attempts beyond a request's first that reached a replica.
    pub retries: AtomicU64,
    /// Retries that the budget did not allow.
    pub denied: AtomicU64,
    /// Hedged requests whose first token came from the second replica, and from the first.
    pub hedges: [AtomicU64; 2],
    /// Late requests that were not hedged, by [why](WITHHELD).
    withheld: [AtomicU64; WITHHELD.len()],
    /// Further readings of the file: put in force, and refused.
    reloads: [AtomicU64; 2],
    stale: AtomicBool,
}

impl Stats {
    pub fn end(&self, end: End) {
        self.ends[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn ended(&self, end: End) -> u64 {
        self.ends[end as usize].load(Ordering::Relaxed)
    }

    /// The sum of a stage's times.
    pub fn sum(&self, stage: RequestStage) -> Span {
        Span(self.stages[stage as usize].sum_ns.load(Ordering::Relaxed) as i64)
    }

    /// All requests that ended.
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

    /// A late request was not hedged.
    pub fn withheld(&self, why: Withheld) {
        let place = WITHHELD.iter().position(|(of, _)| *of == why);
        place.iter().for_each(|place| {
            self.withheld[*place].fetch_add(1, Ordering::Relaxed);
        });
    }

    /// A further reading of the file was put in force, or refused.
    pub fn reloaded(&self, sound: bool) {
        self.reloads[usize::from(!sound)].fetch_add(1, Ordering::Relaxed);
        self.stale.store(!sound, Ordering::Relaxed);
    }

    /// Writes all of it on a page.
    pub fn write(&self, page: &mut PrometheusPage) {
        let ends: Vec<([(&str, &str); 1], f64)> =
            ENDS.iter().map(|(end, name)| ([("outcome", *name)], self.ended(*end) as f64)).collect();
        let ends: Vec<(&[(&str, &str)], f64)> =
            ends.iter().map(|(labels, value)| (&labels[..], *value)).collect();
        page.counter(
            "plimsoll_gateway_requests_total",
            "Requests by how they ended for their client.",
            &ends,
        );
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        page.counter(
            "plimsoll_gateway_retries_total",
            "Attempts beyond a request's first.",
            &[(&[], value(&self.retries))],
        );
        page.counter(
            "plimsoll_gateway_retries_denied_total",
            "Retries that the budget did not allow.",
            &[(&[], value(&self.denied))],
        );
        let hedges = [([("first_token", "second")], 0), ([("first_token", "first")], 1)];
        let hedges = hedges.each_ref().map(|(labels, of)| (&labels[..], value(&self.hedges[*of])));
        page.counter("plimsoll_gateway_hedges_total", "Hedged requests by which replica was first.", &hedges);
        let withheld = WITHHELD.map(|(_, why)| [("why", why)]);
        let withheld: Vec<_> =
            withheld.iter().zip(&self.withheld).map(|(labels, count)| (&labels[..], value(count))).collect();
        page.counter(
            "plimsoll_gateway_hedges_withheld_total",
            "Times that a request was late and no second replica was asked.",
            &withheld,
        );
        page.counter(
            "plimsoll_gateway_reloads_total",
            "Further readings of the gateway's file.",
            &[
                (&[("outcome", "in_force")], value(&self.reloads[0])),
                (&[("outcome", "refused")], value(&self.reloads[1])),
            ],
        );
        let stale = f64::from(u8::from(self.stale.load(Ordering::Relaxed)));
        let help = "1: the file was read again and refused; what was in force before it still is.";
        page.gauge("plimsoll_gateway_file_refused", help, &[(&[], stale)]);
        page.counter(
            "plimsoll_gateway_events_total",
            "Events of streams that were passed on.",
            &[(&[], value(&self.events))],
        );
        let counts: Vec<(Vec<u64>, f64)> = self
            .stages
            .iter()
            .map(|timed| {
                let buckets = timed.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
                (buckets, timed.sum_ns.load(Ordering::Relaxed) as f64 / 1e9)
            })
            .collect();
        let labels: Vec<[(&str, &str); 1]> = STAGES.iter().map(|(_, name)| [("stage", *name)]).collect();
        let each = labels.iter().zip(&counts);
        let each: Vec<_> = each.map(|(labels, (buckets, sum))| (&labels[..], &buckets[..], *sum)).collect();
        page.histograms("plimsoll_gateway_stage_seconds", "Time by stage of a request.", &BOUNDS, &each);
    }
}

/// Why late requests were not hedged, as metrics name it.
const WITHHELD: [(Withheld, &str); 5] = [
    (Withheld::Busy, "busy"),
    (Withheld::NoReplica, "no_replica"),
    (Withheld::NoGain, "no_gain"),
    (Withheld::OverShare, "over_share"),
    (Withheld::Useless, "useless"),
];

/// Why requests were not sent, as metrics name it.
pub(crate) const REASONS: [&str; 5] = ["late", "full", "expired", "no_replica", "budget"];

/// A refusal's place in [`REASONS`].
pub(crate) fn reason(refusal: Refusal) -> usize {
    match refusal {
        Refusal::Late(_) => 0,
        Refusal::Full(_) => 1,
        Refusal::Expired => 2,
        Refusal::NoReplica => 3,
        Refusal::HeldBack(_) => 4,
    }
}
