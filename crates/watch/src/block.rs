//! What came between two ticks: the counts of each row of the budget, and the state of the fleet beside them.

use std::collections::BTreeMap;

use plimsoll_measure::server_side::Buckets;
use plimsoll_model::{At, Span};

use crate::alert::FirstTokens;
use crate::over::OverCount;

/// What came between two ticks.
#[derive(Clone, Debug)]
pub(crate) struct TickBlock {
    pub at: At,
    pub length: Span,
    /// Of each row of the budget; `None` = no page has its signal.
    pub rows: Vec<Option<OverCount>>,
    /// Latencies of those of them that hold a tail against its middle, by their places.
    pub tails: BTreeMap<usize, Buckets>,
    /// First tokens of all; `None` = no page has their histogram.
    pub first: Option<FirstTokens>,
    /// Requests that were answered.
    pub finished: Option<f64>,
    pub output_tokens: Option<f64>,
    pub prompt_tokens: Option<f64>,
    pub answering: usize,
    pub restarts: u64,
    /// Requests that were turned away for want of room.
    pub shed: u64,
    /// Requests whose reader left: asked, and not answered.
    pub cancelled: u64,
    /// Requests that wait per replica: by the pages' gauge as a mean over the block, and by their queue times (Little's law).
    pub waiting: Option<f64>,
    pub waiting_by_little: Option<f64>,
}

impl TickBlock {
    /// Takes out what requests counted here whose next attempt has ended since.
    pub fn take_out(&mut self, counted: &TickBlock) {
        for (own, counted) in self.rows.iter_mut().zip(&counted.rows) {
            if let (Some(own), Some(counted)) = (own, counted) {
                *own = own.without(*counted);
            }
        }
        self.shed = self.shed.saturating_sub(counted.shed);
    }
}
