//! The seam to a diagnosis: what was seen in an alert's window → what is to blame, in a sentence, where that can be told.

use std::collections::VecDeque;

use plimsoll_measure::server_side::ServerSide;

use super::Alert;
use crate::window::Block;

/// What was seen when an alert fired.
#[expect(dead_code, reason = "the rules that read it come with the diagnosis")]
pub(crate) struct InWindow<'a> {
    /// The alert, with its beginning.
    pub alert: &'a Alert,
    /// What came between two ticks, as far back as verdicts look.
    pub blocks: &'a VecDeque<Block>,
    /// The last scrapes, signal by signal.
    pub side: &'a ServerSide,
}

/// What is to blame; None = it can't be told from what was seen.
pub(crate) fn diagnosis(_seen: &InWindow<'_>) -> Option<String> {
    None
}
