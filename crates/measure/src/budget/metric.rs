//! The metrics of a budget: names in files, units, the side of the limit, and the kind of evaluation.
//!
//! The list is closed. An unknown name is an error in the file, because a row without measurements can never break. Readings of GPU
//! utilisation are rejected by name, because they lag and do not measure load.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::AmountUnit;
use crate::columns::{ABSENT, Columns, Fate};
use crate::findings::Metric;

plimsoll_model::named! {
    /// Metric that a budget limits.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum BudgetMetric {
        /// Time to first token, from the due time.
        Ttft => "ttft",
        /// Time to first token, from the send time.
        TtftAfterSend => "ttft_after_send",
        /// Time to first byte of the response.
        Ttfb => "ttfb",
        /// Time to the first visible token, without reasoning.
        Ttfot => "ttfot",
        /// Latency of the whole response, from the due time.
        E2e => "e2e",
        /// Latency of the whole response, from the send time.
        E2eAfterSend => "e2e_after_send",
        /// Time per output token after the first.
        Tpot => "tpot",
        /// Latency of the whole response over its tokens.
        Ntpot => "ntpot",
        /// Real-time factor: latency of the whole response per second of audio.
        Rtf => "rtf",
        /// Gaps between events that contain tokens.
        EventGap => "event_gap",
        /// Gaps between the tokens of a response.
        Itl => "itl",
        /// Duration of a session, from its first due time.
        SessionE2e => "session_e2e",
        /// Tail ratio of `ttft`: p99 / p50.
        TtftTailRatio => "ttft_tail_ratio",
        /// Tail ratio of `tpot`: p99 / p50.
        TpotTailRatio => "tpot_tail_ratio",
        /// Tail ratio of `e2e`: p99 / p50.
        E2eTailRatio => "e2e_tail_ratio",
        /// Share of requests that failed, for any reason.
        ErrorRate => "error_rate",
        /// Share of requests that were retried.
        RetryRate => "retry_rate",
        /// Share of requests that failed or were retried.
        ErrorAndRetryRate => "error_and_retry_rate",
        /// Number of completed requests per second.
        Throughput => "throughput",
        /// Requests per second that met every latency ceiling of the file.
        Goodput => "goodput",
        /// Number of generated tokens per second.
        OutputTokensPerS => "output_tokens_per_s",
        /// Load at which queueing begins: the onset of a sweep.
        ThroughputBeforeOnset => "throughput_before_onset",
        /// Offered load as a share of the measured stability limit.
        Utilisation => "utilisation",
        /// Cost of a request at the stated price.
        CostPerRequest => "cost_per_request",
        /// Cost of a request that met every latency ceiling of the file.
        CostPerGoodRequest => "cost_per_good_request",
        /// Cost of a session that ended well.
        CostPerSession => "cost_per_session",
        /// Energy of the GPUs per output token.
        EnergyPerToken => "energy_per_token",
        /// Largest observed memory use of one GPU.
        GpuMemory => "gpu_memory",
    }
}

/// The evaluation of a metric.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Percentile of a latency: the share of requests over the ceiling.
    Percentile,
    /// Share of the requests.
    Share,
    /// p99 / p50.
    TailRatio,
    /// Rate of a level, by its interval.
    Rate,
    /// Figure that needs the lines of a sweep.
    Line,
    Cost,
    /// Figure of the GPUs by their exporter.
    Gpu,
}

impl BudgetMetric {
    pub fn kind(self) -> MetricKind {
        use BudgetMetric::*;
        match self {
            Ttft | TtftAfterSend | Ttfb | Ttfot | E2e | E2eAfterSend | Tpot | Ntpot | Rtf | EventGap
            | Itl | SessionE2e => MetricKind::Percentile,
            TtftTailRatio | TpotTailRatio | E2eTailRatio => MetricKind::TailRatio,
            ErrorRate | RetryRate | ErrorAndRetryRate => MetricKind::Share,
            Throughput | Goodput | OutputTokensPerS => MetricKind::Rate,
            ThroughputBeforeOnset | Utilisation => MetricKind::Line,
            CostPerRequest | CostPerGoodRequest | CostPerSession => MetricKind::Cost,
            EnergyPerToken | GpuMemory => MetricKind::Gpu,
        }
    }

    /// Returns the unit of the ceiling or floor.
    pub fn unit(self) -> AmountUnit {
        match (self, self.kind()) {
            (BudgetMetric::Utilisation, _) | (_, MetricKind::Share) => AmountUnit::Share,
            (_, MetricKind::Percentile) => AmountUnit::Time,
            (_, MetricKind::TailRatio) => AmountUnit::Plain,
            (_, MetricKind::Rate | MetricKind::Line) => AmountUnit::Rate,
            (_, MetricKind::Cost) => AmountUnit::Money(String::new()),
            (BudgetMetric::GpuMemory, _) => AmountUnit::Bytes,
            (_, MetricKind::Gpu) => AmountUnit::Energy,
        }
    }

    /// Returns whether more is better, so that the metric has a floor and no ceiling.
    pub fn has_floor(self) -> bool {
        use BudgetMetric::*;
        matches!(self, Throughput | Goodput | OutputTokensPerS | ThroughputBeforeOnset)
    }

    /// Returns the latency of a p99 / p50 ratio.
    pub fn latency_of_ratio(self) -> Option<BudgetMetric> {
        match self {
            BudgetMetric::TtftTailRatio => Some(BudgetMetric::Ttft),
            BudgetMetric::TpotTailRatio => Some(BudgetMetric::Tpot),
            BudgetMetric::E2eTailRatio => Some(BudgetMetric::E2e),
            _ => None,
        }
    }

    /// Returns whether the metric includes queue time, so that it grows with the queue.
    pub fn holds_the_queue(self) -> bool {
        use BudgetMetric::{E2e, E2eAfterSend, SessionE2e, Ttfot, Ttft, TtftAfterSend};
        // Without ttfb, because servers may send headers before a request is queued.
        matches!(self, Ttft | TtftAfterSend | Ttfot | E2e | E2eAfterSend | SessionE2e)
    }

    /// Returns the metric counted from the send time, for a budget with engine scope.
    pub fn after_send(self) -> BudgetMetric {
        match self {
            BudgetMetric::Ttft => BudgetMetric::TtftAfterSend,
            BudgetMetric::E2e => BudgetMetric::E2eAfterSend,
            other => other,
        }
    }

    /// Returns this latency of a request, or `ttft` for other metrics. Without sessions, their latency is absent.
    pub fn of_row(self, columns: &Columns, row: usize) -> i64 {
        match self {
            BudgetMetric::TtftAfterSend => columns.ttft_after_send(row),
            BudgetMetric::Ttfb => columns.ttfb[row],
            BudgetMetric::Ttfot => columns.ttfot(row),
            BudgetMetric::E2e => columns.e2e[row],
            BudgetMetric::E2eAfterSend => columns.e2e_after_send(row),
            BudgetMetric::Tpot => columns.tpot[row],
            BudgetMetric::Ntpot => columns.ntpot(row),
            BudgetMetric::Rtf => columns.rtf.get(row).copied().unwrap_or(ABSENT),
            BudgetMetric::SessionE2e => columns.session_e2e.get(row).copied().unwrap_or(ABSENT),
            _ => columns.ttft[row],
        }
    }

    /// Returns whether a request counts against a share metric; `None` if its client cancelled it.
    pub fn counts_against(self, columns: &Columns, row: usize) -> Option<bool> {
        let (fate, is_retried) = (columns.fate[row], columns.attempts(row) > 1);
        (fate != Fate::Cancelled).then(|| match self {
            BudgetMetric::RetryRate => is_retried,
            BudgetMetric::ErrorAndRetryRate => fate != Fate::Finished || is_retried,
            _ => fate != Fate::Finished,
        })
    }
}

/// Returns why a GPU reading is rejected as a measure of load; `None` for other names.
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
