//! The state of all metrics endpoints and their replicas at one instant, apart from counters.

use std::collections::BTreeSet;

use plimsoll_measure::server_side::Signal;
use plimsoll_measure::server_side::table::SignalLayer;

use crate::alert::cold::ReplicaPresence;
use crate::finding::ReplicaNow;

#[derive(Clone, Default, Debug)]
pub(crate) struct FleetView {
    /// Number of endpoints.
    pub pages: usize,
    /// Endpoints without a successful scrape for several intervals.
    pub lost: Vec<LostPage>,
    /// Every replica that was ever seen.
    pub replicas: Vec<ReplicaNow>,
    /// State of each replica that responds.
    pub present: Vec<ReplicaPresence>,
    /// Maximum KV cache usage of the replicas that respond; `None` if unknown.
    pub kv_usage: Option<f64>,
    /// Signals that an engine exports.
    pub of_engines: BTreeSet<Signal>,
    /// Set if an endpoint would export failed requests.
    pub counts_failures: bool,
    /// Number of gateway endpoints.
    pub gateways: usize,
}

impl FleetView {
    /// Returns the layer whose counts of a signal are used.
    pub fn layer(&self, signal: Signal) -> SignalLayer {
        if self.of_engines.contains(&signal) { SignalLayer::Engine } else { SignalLayer::Gateway }
    }

    /// Returns a mean over replica seconds; a gateway has one queue for all replicas.
    pub fn per_replica(&self, summed: Option<(f64, f64)>, signal: Signal) -> Option<f64> {
        let (sum, seconds) = summed.filter(|summed| summed.1 > 0.0 && !self.present.is_empty())?;
        Some(match self.layer(signal) {
            SignalLayer::Gateway => sum / seconds * self.gateways as f64 / self.present.len() as f64,
            _ => sum / seconds,
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LostPage {
    /// Name of the endpoint; empty if it is the only one.
    pub name: String,
    /// Error of the last scrape; empty if there was no scrape.
    pub why: String,
}

/// Returns the errors as a suffix: `: HTTP 503`, or `, such as a: HTTP 503` if they differ.
pub(crate) fn by(lost: &[LostPage]) -> String {
    match lost.iter().find(|page| !page.why.is_empty()) {
        None => String::new(),
        Some(LostPage { why, .. }) if lost.iter().all(|page| page.why == *why) => format!(": {why}"),
        Some(LostPage { name, why }) => format!(", such as {name}: {why}"),
    }
}
