//! What the kernel knows of the connection that carried an attempt, as far as it says where the network was slow.
//!
//! Each figure stands alone and may be unknown: kernels learnt them one after the other, a portable build reads none, and a
//! simulated client has no network. Unknown is never zero. What TCP counts since the connection's beginning is kept as what
//! passed *during* the attempt, because a row is what gets compared. Left out: `lost` (segments presumed lost at this
//! instant: nearly always none at an attempt's end, and those sent again are counted) and the delivery rate (of requests this
//! small it measures the sender's pauses).
//!
//! All of it ends where TCP ends: at a proxy, if one stands in between.

use serde::{Deserialize, Serialize};

use crate::Span;

/// See the module's head. Read when the attempt ended.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TcpFacts {
    /// Smoothed round trip. Holds what the peer waits before it acknowledges (up to 40 ms on Linux), so it is an upper bound
    /// of the network's.
    pub rtt: Option<Span>,
    pub rtt_var: Option<Span>,
    /// Least round trip that the connection saw (Linux: in five minutes): the network without queues, and without such waits.
    pub rtt_min: Option<Span>,
    /// Segments sent again; of a connection's first attempt, from its first SYN on.
    pub retransmits: Option<u32>,
    /// Segments with data that were sent, those sent again included.
    pub segments_out: Option<u32>,
    /// Segments with data that came.
    pub segments_in: Option<u32>,
    /// Of those, the ones that came before one that was sent earlier: it was lost or overtaken on its way here.
    pub out_of_order: Option<u32>,
}
