//! Renders the section about the network: kernel statistics of the connections to the target.

use plimsoll_measure::network::Network;

use crate::document::Document;
use crate::{figure, words};

/// Adds the section on the network.
pub(crate) fn fill(document: &mut Document, found: &Network) {
    let heading = "Network, as this machine's kernel sees it (to the first hop that ends TCP)";
    document.section(heading, |section| section.list(lines(found)));
}

fn lines(found: &Network) -> Vec<String> {
    if found.known == 0 {
        return vec!["Unknown: neither round trips nor lost segments are reported here".to_owned()];
    }
    let time = |seconds: Option<f64>| seconds.map_or("unknown".to_owned(), words::time);
    let share = |k: u64, n: u64| match n {
        0 => String::new(),
        n => format!(" ({})", figure::percent(k as f64 / n as f64)),
    };
    vec![
        format!(
            "minimum round trip {} (median), smoothed p50 {}, p99 {} (including the peer's acknowledgement delay)",
            time(found.rtt_min_p50_s),
            time(found.rtt_p50_s),
            time(found.rtt_p99_s)
        ),
        format!(
            "{} of {} segments retransmitted{}, in {} of {} attempts · of {} received, {} came out of order, in {} attempts",
            figure::count(found.sent_again),
            figure::count(found.sent),
            share(found.sent_again, found.sent),
            figure::count(found.resent_in),
            figure::count(found.attempts),
            figure::count(found.received),
            figure::count(found.out_of_order),
            figure::count(found.disordered_in)
        ),
    ]
}
