//! The source of each row's counts on metrics endpoints or on single requests, resolved once per watch.
//!
//! Lint, scrapes, requests, alerts, charts, canary and exports read these rows. Choosing the source at each place was rejected, because the
//! places could disagree.

use plimsoll_judge::budget::{BudgetFile, BudgetScope, RowPlan, SelectedRequests};
use plimsoll_measure::budget::BudgetMetric;
use plimsoll_measure::server_side::Signal;

/// The source of a row's counts.
#[derive(Clone, PartialEq, Debug)]
pub enum RowSource {
    /// A latency histogram against a ceiling.
    Latency {
        signal: Signal,
        /// Ceiling of the latency in seconds.
        limit_s: f64,
    },
    /// A latency histogram whose p99 is compared with its median.
    TailRatio {
        signal: Signal,
        /// Maximum ratio of p99 to median.
        most: f64,
    },
    /// Failed and rejected requests over all requests.
    Errors,
    /// The latency of each request against a ceiling.
    Values {
        metric: BudgetMetric,
        /// Ceiling of the values in seconds.
        limit_s: f64,
    },
    /// Failed or retried requests over all requests.
    Shares(BudgetMetric),
    /// Not observable from this source, with the reason as a phrase.
    Nothing(&'static str),
}

/// The rows of a budget with their sources.
#[derive(Clone, Debug)]
pub(crate) struct LiveRows {
    /// Rows in file order.
    pub rows: Vec<LiveRow>,
    pub scope: BudgetScope,
    /// Error probability of each verdict.
    pub alpha: f64,
    /// Set if the counts come from single requests and not from metrics endpoints.
    pub of_requests: bool,
}

/// A budget row with its source.
#[derive(Clone, Debug)]
pub(crate) struct LiveRow {
    pub plan: RowPlan,
    pub source: RowSource,
}

impl LiveRows {
    /// Returns the rows as metrics endpoints show them.
    pub fn on_pages(file: &BudgetFile) -> LiveRows {
        LiveRows::new(file, false, on_pages)
    }

    /// Returns the rows as single requests show them.
    pub fn on_requests(file: &BudgetFile) -> LiveRows {
        LiveRows::new(file, true, on_requests)
    }

    fn new(file: &BudgetFile, of_requests: bool, source: fn(&RowPlan) -> RowSource) -> LiveRows {
        let rows = file.rows().map(|plan| LiveRow { source: source(&plan), plan }).collect();
        LiveRows { rows, scope: file.scope, alpha: file.policy.alpha, of_requests }
    }
}

impl LiveRow {
    /// Returns whether the row is a share of requests. Only such rows can have alerts.
    pub fn is_count(&self) -> bool {
        !matches!(self.source, RowSource::Nothing(_) | RowSource::TailRatio { .. })
    }

    /// Returns the share of requests that may exceed the ceiling.
    pub fn allowed(&self) -> f64 {
        self.plan.allowed.unwrap_or(0.0)
    }

    /// Returns the singular and plural name of the counted event.
    pub fn counted(&self) -> (&'static str, &'static str) {
        match self.source {
            RowSource::Latency { signal: Signal::Itl, .. } => ("gap between tokens", "gaps between tokens"),
            _ => ("request", "requests"),
        }
    }

    /// Returns the requests of the row; classes have numbers here.
    pub fn requests(&self) -> SelectedRequests {
        let slice = self.plan.row.slice.as_ref();
        SelectedRequests {
            class: slice.and_then(|slice| slice.class.as_ref()?.parse().ok()),
            prompt_tokens: slice.and_then(|slice| slice.prompt_tokens),
            ..SelectedRequests::default()
        }
    }
}

fn on_pages(plan: &RowPlan) -> RowSource {
    use BudgetMetric::*;
    let row = &plan.row;
    if row.slice.is_some() {
        return RowSource::Nothing(
            "metrics do not separate these requests from others; watch spans or the gateway's log",
        );
    }
    if row.under.is_some() {
        return RowSource::Nothing("it applies during a burst, and metrics do not mark bursts");
    }
    let ceiling = plan.limit.filter(|_| row.max.is_some());
    let latency = |signal| match (ceiling, row.p) {
        (Some(limit_s), Some(_)) => RowSource::Latency { signal, limit_s },
        _ => RowSource::Nothing("metrics can show only a ceiling on a percentile"),
    };
    let tracked = RowSource::Nothing("it has no ceiling: it is tracked");
    let ratio = |signal| ceiling.map(|most| RowSource::TailRatio { signal, most });
    match row.metric {
        Ttft | TtftAfterSend => latency(Signal::Ttft),
        E2e | E2eAfterSend => latency(Signal::E2e),
        Tpot => latency(Signal::Tpot),
        Itl => latency(Signal::Itl),
        ErrorRate => ceiling.map_or(tracked, |_| RowSource::Errors),
        SessionE2e => RowSource::Nothing("metrics do not show which requests form a session"),
        RetryRate | ErrorAndRetryRate => RowSource::Nothing("metrics do not show which requests are retries"),
        Ttfb | Ttfot | Ntpot | Rtf | EventGap => {
            RowSource::Nothing("no server measures it; a client or a gateway does")
        }
        TtftTailRatio => ratio(Signal::Ttft).unwrap_or(tracked),
        TpotTailRatio => ratio(Signal::Tpot).unwrap_or(tracked),
        E2eTailRatio => ratio(Signal::E2e).unwrap_or(tracked),
        Goodput => RowSource::Nothing("metrics do not show which requests met all ceilings together"),
        Throughput | OutputTokensPerS => RowSource::Nothing(
            "the clients set the load; plimsoll gate URL evaluates it under a load that it sends",
        ),
        ThroughputBeforeOnset | Utilisation => RowSource::Nothing("it needs a sweep"),
        CostPerRequest | CostPerGoodRequest | CostPerSession | EnergyPerToken | GpuMemory => {
            RowSource::Nothing(
                "it depends on the load; plimsoll gate URL evaluates it under a load that it sends",
            )
        }
    }
}

fn on_requests(plan: &RowPlan) -> RowSource {
    use BudgetMetric::*;
    let row = &plan.row;
    if let Some(slice) = &row.slice {
        let is_named = slice.class.as_ref().is_some_and(|class| class.parse::<u16>().is_err());
        if slice.model.is_some() || slice.route.is_some() || is_named {
            return RowSource::Nothing("rows have only the class number and the prompt length");
        }
    }
    if row.under.is_some() {
        return RowSource::Nothing("it applies during a burst, and the rows do not mark bursts");
    }
    let (metric, ceiling) = (plan.metric, plan.limit.filter(|_| row.max.is_some()));
    match metric {
        Ttft | TtftAfterSend | Ttfb | Ttfot | E2e | E2eAfterSend | Tpot | Ntpot | Rtf => {
            match ceiling.filter(|_| row.p.is_some()) {
                Some(limit_s) => RowSource::Values { metric, limit_s },
                None => RowSource::Nothing("only a ceiling on a percentile can be evaluated"),
            }
        }
        ErrorRate | RetryRate | ErrorAndRetryRate => match ceiling {
            Some(_) => RowSource::Shares(metric),
            None => RowSource::Nothing("it has no ceiling: it is tracked"),
        },
        SessionE2e => RowSource::Nothing("only the client that plays a session knows its turns"),
        _ => RowSource::Nothing("it does not count requests; plimsoll gate evaluates it from a run"),
    }
}
