//! What a budget may hold down or up, by the names that files use: each with its unit, the side it is held on and whether a
//! percentile of it is judged.
//!
//! One closed list. A name that nobody measures is an error in the file, never a budget that can't break; readings of a
//! GPU's use are refused by name, because they lag and are no measure of load.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::Unit;
use crate::columns::{ABSENT, Columns};
use crate::findings::Metric;

/// A quantity that a budget holds.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BudgetMetric {
    /// First generated token, from the due time.
    Ttft,
    /// The same from the sent time.
    TtftAfterSend,
    /// First byte.
    Ttfb,
    /// First visible token.
    Ttfot,
    /// The whole answer, from the due time.
    E2e,
    /// The same from the sent time.
    E2eAfterSend,
    /// Time per output token after the first.
    Tpot,
    /// The whole answer over its tokens.
    Ntpot,
    /// Gaps between token-bearing events.
    EventGap,
    /// Gaps per token.
    Itl,
    /// A whole session, from its first due time.
    SessionE2e,
    /// p99 / p50 of `ttft`.
    TtftTailRatio,
    /// p99 / p50 of `tpot`.
    TpotTailRatio,
    /// p99 / p50 of `e2e`.
    E2eTailRatio,
    /// Requests that failed or came back broken.
    ErrorRate,
    /// Requests that were tried more than once.
    RetryRate,
    /// Requests that failed or were tried more than once.
    ErrorAndRetryRate,
    /// Requests finished per second.
    Throughput,
    /// Requests per second that met every latency ceiling of the file.
    Goodput,
    /// Generated tokens per second.
    OutputTokensPerS,
    /// The load up to which nothing queues: the onset of a sweep.
    ThroughputBeforeOnset,
    /// Offered load / measured stability limit.
    Utilisation,
    /// Cost of a request.
    CostPerRequest,
    /// Cost of a request that met every latency ceiling of the file.
    CostPerGoodRequest,
    /// Cost of a session that was played to a good end.
    CostPerSession,
}

/// How a metric is judged.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Judged {
    /// A percentile of a latency: the share of requests over the ceiling.
    Percentile,
    /// A share of the requests.
    Share,
    /// p99 / p50.
    TailRatio,
    /// A rate of one level, by its interval.
    Rate,
    /// A figure that needs the lines of a sweep.
    Line,
    /// A sum of money.
    Cost,
}

impl BudgetMetric {
    /// Every metric.
    pub const ALL: [BudgetMetric; 25] = [
        BudgetMetric::Ttft,
        BudgetMetric::TtftAfterSend,
        BudgetMetric::Ttfb,
        BudgetMetric::Ttfot,
        BudgetMetric::E2e,
        BudgetMetric::E2eAfterSend,
        BudgetMetric::Tpot,
        BudgetMetric::Ntpot,
        BudgetMetric::EventGap,
        BudgetMetric::Itl,
        BudgetMetric::SessionE2e,
        BudgetMetric::TtftTailRatio,
        BudgetMetric::TpotTailRatio,
        BudgetMetric::E2eTailRatio,
        BudgetMetric::ErrorRate,
        BudgetMetric::RetryRate,
        BudgetMetric::ErrorAndRetryRate,
        BudgetMetric::Throughput,
        BudgetMetric::Goodput,
        BudgetMetric::OutputTokensPerS,
        BudgetMetric::ThroughputBeforeOnset,
        BudgetMetric::Utilisation,
        BudgetMetric::CostPerRequest,
        BudgetMetric::CostPerGoodRequest,
        BudgetMetric::CostPerSession,
    ];

    /// The name in files and on the screen.
    pub fn name(self) -> &'static str {
        use BudgetMetric::*;
        match self {
            Ttft => "ttft",
            TtftAfterSend => "ttft_after_send",
            Ttfb => "ttfb",
            Ttfot => "ttfot",
            E2e => "e2e",
            E2eAfterSend => "e2e_after_send",
            Tpot => "tpot",
            Ntpot => "ntpot",
            EventGap => "event_gap",
            Itl => "itl",
            SessionE2e => "session_e2e",
            TtftTailRatio => "ttft_tail_ratio",
            TpotTailRatio => "tpot_tail_ratio",
            E2eTailRatio => "e2e_tail_ratio",
            ErrorRate => "error_rate",
            RetryRate => "retry_rate",
            ErrorAndRetryRate => "error_and_retry_rate",
            Throughput => "throughput",
            Goodput => "goodput",
            OutputTokensPerS => "output_tokens_per_s",
            ThroughputBeforeOnset => "throughput_before_onset",
            Utilisation => "utilisation",
            CostPerRequest => "cost_per_request",
            CostPerGoodRequest => "cost_per_good_request",
            CostPerSession => "cost_per_session",
        }
    }

    /// How it is judged.
    pub fn judged(self) -> Judged {
        use BudgetMetric::*;
        match self {
            Ttft | TtftAfterSend | Ttfb | Ttfot | E2e | E2eAfterSend | Tpot | Ntpot | EventGap | Itl
            | SessionE2e => Judged::Percentile,
            TtftTailRatio | TpotTailRatio | E2eTailRatio => Judged::TailRatio,
            ErrorRate | RetryRate | ErrorAndRetryRate => Judged::Share,
            Throughput | Goodput | OutputTokensPerS => Judged::Rate,
            ThroughputBeforeOnset | Utilisation => Judged::Line,
            CostPerRequest | CostPerGoodRequest | CostPerSession => Judged::Cost,
        }
    }

    /// The unit of its ceiling or floor.
    pub fn unit(self) -> Unit {
        match (self, self.judged()) {
            (BudgetMetric::Utilisation, _) | (_, Judged::Share) => Unit::Share,
            (_, Judged::Percentile) => Unit::Time,
            (_, Judged::TailRatio) => Unit::Plain,
            (_, Judged::Rate | Judged::Line) => Unit::Rate,
            (_, Judged::Cost) => Unit::Money(String::new()),
        }
    }

    /// Is more of it better, so that it has a floor and no ceiling?
    pub fn has_floor(self) -> bool {
        use BudgetMetric::*;
        matches!(self, Throughput | Goodput | OutputTokensPerS | ThroughputBeforeOnset)
    }

    /// The latency of which this is the p99 / p50.
    pub fn latency_of_ratio(self) -> Option<BudgetMetric> {
        match self {
            BudgetMetric::TtftTailRatio => Some(BudgetMetric::Ttft),
            BudgetMetric::TpotTailRatio => Some(BudgetMetric::Tpot),
            BudgetMetric::E2eTailRatio => Some(BudgetMetric::E2e),
            _ => None,
        }
    }

    /// Is the wait in the target's queue part of it, so that it grows as long as the queue does?
    pub fn holds_the_queue(self) -> bool {
        use BudgetMetric::{E2e, E2eAfterSend, SessionE2e, Ttfot, Ttft, TtftAfterSend};
        // Not ttfb: servers may send headers before a request is queued.
        matches!(self, Ttft | TtftAfterSend | Ttfot | E2e | E2eAfterSend | SessionE2e)
    }

    /// The same counted from the instant a request was sent: what a budget of the engine's scope judges.
    pub fn after_send(self) -> BudgetMetric {
        match self {
            BudgetMetric::Ttft => BudgetMetric::TtftAfterSend,
            BudgetMetric::E2e => BudgetMetric::E2eAfterSend,
            other => other,
        }
    }

    /// This latency of a request; `ttft` for what is no latency of a request. That of sessions is absent where there are none.
    pub fn of_row(self, columns: &Columns, row: usize) -> i64 {
        match self {
            BudgetMetric::TtftAfterSend => columns.ttft_after_send(row),
            BudgetMetric::Ttfb => columns.ttfb[row],
            BudgetMetric::Ttfot => columns.ttfot(row),
            BudgetMetric::E2e => columns.e2e[row],
            BudgetMetric::E2eAfterSend => columns.e2e_after_send(row),
            BudgetMetric::Tpot => columns.tpot[row],
            BudgetMetric::Ntpot => columns.ntpot(row),
            BudgetMetric::SessionE2e => columns.session_e2e.get(row).copied().unwrap_or(ABSENT),
            _ => columns.ttft[row],
        }
    }
}

/// Why a name is refused that people write for load and that is none.
pub fn no_measure_of_load(name: &str) -> Option<String> {
    let low = name.to_ascii_lowercase();
    let gpu = low.contains("gpu")
        || low.starts_with("dcgm")
        || low.contains("sm_active")
        || low.contains("sm_util");
    let is_use = ["util", "busy", "active", "load", "usage"].iter().any(|word| low.contains(word));
    (gpu && is_use).then(|| {
        format!(
            "`{name}` is no measure of load: a GPU reads as busy long before and long after it is full; use \
             `utilisation`, offered load / measured stability limit"
        )
    })
}

impl From<Metric> for BudgetMetric {
    fn from(metric: Metric) -> BudgetMetric {
        match metric {
            Metric::Ttft => BudgetMetric::Ttft,
            Metric::Tpot => BudgetMetric::Tpot,
            Metric::E2e => BudgetMetric::E2e,
        }
    }
}
