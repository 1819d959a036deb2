//! Network statistics from the kernel's figures of connections, over many attempts.
//!
//! Two figures decide whether the network is the cause: the minimum round trip, and the retransmitted or reordered segments.
//! The smoothed round trip is reported but decides nothing. It includes the peer's delay before an acknowledgement, which a
//! slow server lets run to its end (40 ms on Linux). A slow engine would therefore resemble a slow network.

use std::collections::HashMap;

use plimsoll_math::quantile::rank;
use plimsoll_model::{Attempt, Span, TcpFacts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Network statistics between this machine and the first hop that terminates TCP.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Network {
    /// Number of attempts that had a connection.
    pub attempts: u64,
    /// Attempts with kernel statistics of their connection; with 0 all other values are unknown.
    pub known: u64,
    /// Minimum round trip of an attempt's connection in seconds, median over attempts; `null` if unknown.
    pub rtt_min_p50_s: Option<f64>,
    /// Smoothed round trip in seconds, median over attempts; `null` if unknown. It includes the peer's delay of acknowledgements.
    pub rtt_p50_s: Option<f64>,
    /// Smoothed round trip in seconds, 99th percentile over attempts; `null` if unknown.
    pub rtt_p99_s: Option<f64>,
    /// Sent segments with data, including retransmissions.
    pub sent: u64,
    /// Retransmitted segments, including a connection's first SYN.
    pub sent_again: u64,
    /// Number of received TCP segments with data.
    pub received: u64,
    /// Segments received out of order; after a lost segment all segments are out of order until it arrives.
    pub out_of_order: u64,
    /// Number of attempts with at least one retransmission.
    pub resent_in: u64,
    /// Attempts with segments out of order: at least one segment was lost or overtaken.
    pub disordered_in: u64,
}

impl Network {
    /// Returns the statistics of attempts; `None` if none had a connection.
    pub(crate) fn of_attempts(attempts: &[Attempt]) -> Option<Network> {
        let connected: Vec<&TcpFacts> =
            attempts.iter().filter(|a| a.connection.is_some()).map(|a| &a.tcp).collect();
        (!connected.is_empty()).then(|| Network::of(&connected))
    }

    /// Returns the statistics of connections of attempts or requests.
    pub fn of(facts: &[&TcpFacts]) -> Network {
        let mut seen = SeenOfNetwork::default();
        facts.iter().for_each(|tcp| seen.push(tcp));
        seen.network()
    }

    /// Returns a lower bound of the share of lost segments, 0 to 1; `None` if unknown.
    ///
    /// It is the larger of two shares: retransmitted of sent segments, and attempts with a gap of received segments. Gaps count
    /// once per attempt, because one lost segment puts many out of order.
    pub fn lost(&self) -> Option<f64> {
        let share = |k: u64, n: u64| k as f64 / n.max(1) as f64;
        (self.known > 0 && self.sent > 0)
            .then(|| share(self.sent_again, self.sent).max(share(self.disordered_in, self.received)).min(1.0))
    }
}

/// The network statistics of the attempts so far.
#[derive(Default)]
pub(crate) struct SeenOfNetwork {
    network: Network,
    least: Tally,
    smooth: Tally,
}

/// The number of occurrences of each round trip. The kernel reports whole microseconds, so there are few distinct values.
#[derive(Default)]
struct Tally(HashMap<Span, u64>);

impl Tally {
    fn push(&mut self, rtt: Option<Span>) {
        if let Some(rtt) = rtt {
            *self.0.entry(rtt).or_default() += 1;
        }
    }

    /// Returns the order statistics `x[⌈np⌉]` in seconds.
    fn at<const N: usize>(self, shares: [f64; N]) -> [Option<f64>; N] {
        let mut rising: Vec<(Span, u64)> = self.0.into_iter().collect();
        rising.sort_unstable();
        let n: u64 = rising.iter().map(|(_, times)| times).sum();
        shares.map(|p| {
            let mut left = rank(n as usize, p) as u64;
            let reached = |(_, times): &&(Span, u64)| {
                left = left.saturating_sub(*times);
                left == 0
            };
            rising.iter().find(reached).map(|(rtt, _)| rtt.as_secs_f64())
        })
    }
}

impl SeenOfNetwork {
    pub(crate) fn push(&mut self, tcp: &TcpFacts) {
        let network = &mut self.network;
        network.attempts += 1;
        self.least.push(tcp.rtt_min);
        self.smooth.push(tcp.rtt);
        // A share needs a denominator of the same connections.
        if let (Some(again), Some(sent)) = (tcp.retransmits, tcp.segments_out) {
            network.known += 1;
            network.sent += u64::from(sent);
            network.sent_again += u64::from(again);
            network.resent_in += u64::from(again > 0);
        }
        if let (Some(late), Some(came)) = (tcp.out_of_order, tcp.segments_in) {
            network.received += u64::from(came);
            network.out_of_order += u64::from(late);
            network.disordered_in += u64::from(late > 0);
        }
    }

    pub(crate) fn network(self) -> Network {
        let [rtt_min_p50_s] = self.least.at([0.5]);
        let [rtt_p50_s, rtt_p99_s] = self.smooth.at([0.5, 0.99]);
        Network { rtt_min_p50_s, rtt_p50_s, rtt_p99_s, ..self.network }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(rtt_ms: i64, again: u32, late: u32) -> TcpFacts {
        TcpFacts {
            rtt: Some(Span::from_millis(2 * rtt_ms)),
            rtt_min: Some(Span::from_millis(rtt_ms)),
            retransmits: Some(again),
            segments_out: Some(4 + again),
            segments_in: Some(100),
            out_of_order: Some(late),
            ..TcpFacts::default()
        }
    }

    #[test]
    fn shares_rest_on_what_is_known_and_a_gap_counts_once() {
        let all = [facts(10, 1, 0), facts(11, 0, 30), facts(12, 0, 0), TcpFacts::default()];
        let network = Network::of(&all.iter().collect::<Vec<_>>());
        assert_eq!((network.attempts, network.known), (4, 3));
        assert_eq!((network.rtt_min_p50_s, network.rtt_p99_s), (Some(0.011), Some(0.024)));
        assert_eq!((network.sent_again, network.sent, network.out_of_order), (1, 13, 30));
        assert_eq!(network.lost(), Some(1.0 / 13.0), "one gap of 300 segments is less");
        let unknown = Network::of(&[&TcpFacts::default()]);
        assert_eq!((unknown.known, unknown.lost(), unknown.rtt_min_p50_s), (0, None, None));
        assert_eq!(Network::of_attempts(&[]), None);
    }
}
