//! The counters between two ticks: the counts of each budget row, and the state of the fleet.

use std::collections::BTreeMap;

use plimsoll_measure::server_side::Buckets;
use plimsoll_model::{At, Span};

use crate::alert::FirstTokens;
use crate::over::OverCount;

#[derive(Clone, Debug)]
pub(crate) struct TickBlock {
    pub at: At,
    pub length: Span,
    /// Counts of each budget row; `None` if no metrics endpoint has its signal.
    pub rows: Vec<Option<OverCount>>,
    /// Latencies of the tail-ratio rows, by row index.
    pub tails: BTreeMap<usize, Buckets>,
    /// Times to first token of all requests; `None` if no endpoint has the histogram.
    pub first: Option<FirstTokens>,
    /// Number of completed requests; `None` if unknown.
    pub finished: Option<f64>,
    pub output_tokens: Option<f64>,
    pub prompt_tokens: Option<f64>,
    pub answering: usize,
    pub restarts: u64,
    /// Number of requests that were shed for lack of capacity.
    pub shed: u64,
    /// Number of requests that the client cancelled.
    pub cancelled: u64,
    /// Waiting requests per replica: by the gauge as a mean over the block, and by queue times (Little's law).
    pub waiting: Option<f64>,
    pub waiting_by_little: Option<f64>,
}

impl TickBlock {
    /// Removes the counts of requests whose next attempt has ended since.
    pub fn take_out(&mut self, counted: &TickBlock) {
        for (own, counted) in self.rows.iter_mut().zip(&counted.rows) {
            if let (Some(own), Some(counted)) = (own, counted) {
                *own = own.without(*counted);
            }
        }
        self.shed = self.shed.saturating_sub(counted.shed);
    }
}
