//! Defines the kernel's facts of a connection that show network delay during an attempt.
//!
//! Each field is independent and may be unknown. Kernels added the fields over time, a portable build reads none, and a
//! simulated client has no network. Unknown is never zero. Counts since the start of the connection are stored as their
//! change *during* the attempt, because comparisons use rows. Two facts are omitted. `lost` (segments presumed lost now) is
//! nearly always zero at an attempt's end, and retransmitted segments are counted. The delivery rate of such small requests
//! measures the sender's pauses.
//!
//! All facts end at the TCP peer, which may be a proxy.

use serde::{Deserialize, Serialize};

use crate::Span;

/// The kernel's facts of a connection at the end of an attempt.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TcpFacts {
    /// Smoothed round-trip time. It includes delayed acknowledgements (up to 40 ms on Linux), so it is an upper bound on
    /// the network's.
    pub rtt: Option<Span>,
    pub rtt_var: Option<Span>,
    /// Smallest round-trip time (Linux: within five minutes): the network without queues and delayed acknowledgements.
    pub rtt_min: Option<Span>,
    /// Retransmitted segments; for a connection's first attempt, from its first SYN on.
    pub retransmits: Option<u32>,
    /// Segments with data that were sent, retransmissions included.
    pub segments_out: Option<u32>,
    /// Segments with data that were received.
    pub segments_in: Option<u32>,
    /// Received segments that arrived before an earlier one, which was lost or overtaken on its way.
    pub out_of_order: Option<u32>,
}
