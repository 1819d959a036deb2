//! Facts on the network, from kernel statistics of the client's connections, up to the first hop that terminates TCP.
//! The smoothed round-trip time is no evidence here (see [`plimsoll_measure::network`]); the minimum is.

use plimsoll_math::proportion::exceedance_bounds;
use plimsoll_math::quantile::order_statistic;
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::network::Network;
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_model::TcpFacts;

use super::{FactState, Finding, Observed};
use crate::Layer;
use crate::effect::share;
use crate::frame::{Frame, Frames};
use crate::seen::{DiagnosedLevel, RequestView};
use crate::verdict::{ClearedSuspect, Verdict};

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    found.extend(packets_lost(frames));
    found.extend(round_trip(frames));
}

/// Share of lost segments that users notice: half of the responses with a hundred segments wait.
const LOST: f64 = 0.005;
/// Minimum number of requests with loss.
const FEWEST: usize = 8;
/// Share of segments that may be lost without an observed loss, at 95 %.
const CLEAR_UNDER: f64 = 0.01;
/// Minimum number of requests with known connections.
const KNOWN: u64 = 100;

/// Returns the kernel statistics of the connections of a level.
fn network(seen: &DiagnosedLevel<'_>) -> Network {
    let facts: Vec<&TcpFacts> = seen.rows.iter().map(|row| &row.tcp).collect();
    Network::of(&facts)
}

/// Returns whether a packet of this request was lost or reordered.
fn struck(row: &RequestView) -> bool {
    row.tcp.retransmits.unwrap_or(0) > 0 || row.tcp.out_of_order.unwrap_or(0) > 0
}

/// Returns the longest time without received data in s.
fn silence(row: &RequestView) -> f64 {
    let pause = if row.gap_max.is_finite() { row.gap_max } else { 0.0 };
    if row.ok { row.ttft_sent.max(pause) } else { f64::INFINITY }
}

/// Checks whether segments are lost and the requests with loss wait.
fn packets_lost(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    let found = network(seen);
    let lost = found.lost().filter(|_| found.known >= KNOWN)?;
    let before = frames.before().map(network).and_then(|before| before.lost()).unwrap_or(0.0);
    let hit = seen.rows.iter().filter(|row| struck(row)).count();
    // A request is slow if it waits longer than nine tenths of the requests without loss.
    let mut spared: Vec<f64> = seen.rows.iter().filter(|row| !struck(row)).map(silence).collect();
    let slow = order_statistic(&mut spared, 0.9)?;
    let waited = seen.rows.iter().filter(|row| struck(row) && silence(row) > slow).count();
    let harmed = share(waited as f64, hit as f64, 1.0);
    let is = match () {
        () if hit < FEWEST || lost < 0.5 * LOST || lost < 2.0 * before => FactState::No,
        () if lost >= LOST && lost >= 3.0 * before && harmed.lower > 0.1 && harmed.value >= 0.2 => {
            FactState::Yes
        }
        () => FactState::Unclear,
    };
    let says = format!(
        "{} of the segments are lost: {} of {} retransmitted, a gap in {} of {} answers; {} of the requests that lost one wait longer than nine tenths of the others",
        percent(lost),
        found.sent_again,
        found.sent,
        found.disordered_in,
        found.attempts,
        percent(harmed.value)
    );
    let finding = Finding::new(Observed::PacketsLost, is, says).figure(harmed, 0.2);
    Some(finding.touching(waited as f64 / seen.rows.len().max(1) as f64))
}

/// Returns the minimum round-trip times of a side's connections, and the median of the compared time to first token,
/// in s.
fn way(arm: &Frame<'_>) -> Option<(Vec<f64>, f64)> {
    let rows = if arm.alone.len() >= crate::effect::ALONE_NEEDED { &arm.alone } else { &arm.seen.rows };
    let least: Vec<f64> =
        rows.iter().filter_map(|row| row.tcp.rtt_min).map(plimsoll_model::Span::as_secs_f64).collect();
    let answer = |row: &RequestView| if row.ttft_sent.is_finite() { row.ttft_sent } else { row.head };
    let mut first: Vec<f64> =
        rows.iter().filter(|row| row.ok).map(answer).filter(|x| x.is_finite()).collect();
    let first = order_statistic(&mut first, 0.5)?;
    (least.len() >= crate::effect::ALONE_NEEDED).then_some((least, first))
}

/// Checks whether the round trip is longer by as much as the responses are later.
fn round_trip(frames: &Frames<'_>) -> Option<Finding> {
    let ((mut was, base), (mut now, first)) = (way(frames.base.as_ref()?)?, way(&frames.candidate)?);
    let (before, after) = (order_statistic(&mut was, 0.5)?, order_statistic(&mut now, 0.5)?);
    // Connections differ if paths or hosts differ, so the middle half is the interval.
    let lower = order_statistic(&mut now, 0.25)? - order_statistic(&mut was, 0.75)?;
    let upper = order_statistic(&mut now, 0.75)? - order_statistic(&mut was, 0.25)?;
    let (added, later) = (after - before, first - base);
    let needed = 0.002f64.max(0.08 * base);
    let is = match () {
        () if added < 0.5 * needed || added < 0.2 * later => FactState::No,
        () if added >= needed && lower > 0.0 && later >= 0.7 * added && added >= 0.3 * later => {
            FactState::Yes
        }
        () => FactState::Unclear,
    };
    let n = now.len() as u64;
    let figure = Estimate { value: added, lower, upper, n, n_eff: n as f64 };
    let says = format!(
        "the least round trip of the connections is {}, {} more than before; the first token comes {} later",
        ms(after),
        ms(added),
        ms(later)
    );
    Some(Finding::new(Observed::RoundTripLonger, is, says).figure(figure, needed))
}

/// Returns the clearance of the network: no loss, and a round trip that is small compared with the time to first
/// token.
pub fn cleared(frames: &Frames<'_>, verdicts: &[Verdict]) -> Option<ClearedSuspect> {
    if verdicts.iter().any(|verdict| verdict.layer == Layer::Network) {
        return None;
    }
    let found = network(frames.now());
    let (least, p99) = (found.rtt_min_p50_s?, found.rtt_p99_s?);
    let (lost, upper) =
        (found.lost()?, exceedance_bounds(found.sent_again as f64, found.sent as f64, 0.05).1);
    let mut first =
        frames.now().finite(|row| if row.ttft_sent.is_finite() { row.ttft_sent } else { row.head });
    let typical = order_statistic(&mut first, 0.5)?;
    // Without loss among few segments, a small loss rate remains possible.
    if found.known < KNOWN
        || lost >= LOST / 5.0
        || upper >= CLEAR_UNDER
        || p99 > 0.1 * typical && least > 0.02 * typical
    {
        return None;
    }
    let says = format!(
        "the network is not the cause: round trip least {} (median), smoothed p99 {}, with a first token after {}; {} of {} \
         segments retransmitted, {} of {} came out of order",
        ms(least),
        ms(p99),
        ms(typical),
        number(found.sent_again as f64),
        number(found.sent as f64),
        number(found.out_of_order as f64),
        number(found.received as f64)
    );
    Some(ClearedSuspect {
        layer: Layer::Network,
        says,
        value: Some(share(found.sent_again as f64, found.sent as f64, 1.0)),
    })
}
