//! Metric names that a watch uses.

use plimsoll_client::metrics::pages::MetricsPage;
use plimsoll_measure::server_side::table::SignalTable;

/// Restricts queries to a Prometheus server to known metric names.
pub(crate) fn known(pages: Vec<MetricsPage>) -> Vec<MetricsPage> {
    let names = SignalTable::shipped().families();
    pages.into_iter().map(|page| page.of_names(&names)).collect()
}

/// Returns whether the name is in the table of signals.
pub fn knows(name: &str) -> bool {
    !SignalTable::shipped().of(name).is_empty()
}
