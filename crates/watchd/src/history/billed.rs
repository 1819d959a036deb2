//! The bill of a history: idle time, failed requests, and time that was not watched.

use std::path::Path;

use plimsoll_console::exit::Stop;
use plimsoll_judge::cost::Bill;
use plimsoll_judge::cost::audit::{self, AuditBlock, AuditFinding, BillPart};
use plimsoll_measure::server_side::Signal;
use plimsoll_measure::server_side::table::SignalLayer;
use plimsoll_watch::history::HistoryBlock;

use super::cut;

const LAYERS: [SignalLayer; 2] = [SignalLayer::Engine, SignalLayer::Gateway];

/// Returns the audit of all blocks. `per_s` is the price of a second.
///
/// # Errors
/// Fails if the history can't be read or has no block.
pub fn audit(dir: &Path, bill: &Bill, per_s: f64) -> Result<AuditFinding, Stop> {
    let blocks = cut::blocks(dir)?;
    if blocks.is_empty() {
        return Err(Stop::usage(format!("{}: the history has no data yet", dir.display())));
    }
    let divided = divided(&blocks, per_s);
    let unknown = [
        "Idle is a lower bound: a block knows the mean of the running requests.",
        "Failed requests are billed by their number, as if each took as long as the others.",
        "Late, retried, over-long and recomputed are not known from metrics: audit a gateway record.",
        "Headroom is part of idle: the load limit is not in a history; plimsoll sweep URL finds it.",
    ];
    Ok(audit::finding(&divided, bill, unknown.map(str::to_owned).to_vec()))
}

/// Divides the time of each block. The time between two blocks is not observed.
fn divided(blocks: &[HistoryBlock], per_s: f64) -> Vec<AuditBlock> {
    let mut divided: Vec<AuditBlock> = Vec::with_capacity(blocks.len());
    for (i, block) in blocks.iter().enumerate() {
        let gap_s =
            i.checked_sub(1).map_or(0.0, |before| (block.from - blocks[before].to).as_secs_f64().max(0.0));
        let length_s = (block.to - block.from).as_secs_f64();
        let watched_s = block.watched.as_secs_f64().clamp(0.0, length_s);
        // The engine's counts, or the gateway's if no engine reports them.
        let gained = |signal| {
            let own = LAYERS.iter().find_map(|layer| block.counters.get(&(*layer, signal)));
            own.copied().unwrap_or(0.0).max(0.0)
        };
        let (finished, cancelled) = (gained(Signal::Finished), gained(Signal::Aborted));
        let failed = gained(Signal::Failed) + gained(Signal::Refused);
        let ended = finished + failed + cancelled;
        let running = LAYERS.iter().find_map(|layer| block.gauges.get(&(*layer, Signal::Running)));
        // The mean of the running requests is at least the share of the time with one.
        let busy = match running {
            Some(range) if ended > 0.0 || range.most > 0.0 => range.mean.clamp(0.0, 1.0),
            Some(_) => 0.0,
            None => f64::from(ended > 0.0),
        };
        let [failed, cancelled] = [failed, cancelled].map(|n| if ended > 0.0 { n / ended } else { 0.0 });
        let mut amounts = audit::Amounts::default();
        let mut add = |part: BillPart, seconds: f64| amounts[part as usize] += seconds * per_s;
        add(BillPart::NotObserved, gap_s + length_s - watched_s);
        add(BillPart::Idle, watched_s * (1.0 - busy));
        add(BillPart::Failed, watched_s * busy * failed);
        add(BillPart::Cancelled, watched_s * busy * cancelled);
        add(BillPart::Good, watched_s * busy * (1.0 - failed - cancelled).max(0.0));
        divided.push(AuditBlock { seconds: gap_s + length_s, amounts });
    }
    divided
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use plimsoll_model::{At, Span};
    use plimsoll_watch::history::GaugeRange;

    use super::*;

    fn block(from_s: i64, running: f64, counts: [f64; 2]) -> HistoryBlock {
        let engine = |signal| (SignalLayer::Engine, signal);
        let [from, to] = [from_s, from_s + 10].map(|s| At(s * 1_000_000_000));
        HistoryBlock {
            from,
            to,
            watched: Span::from_secs(10),
            restarts: 0,
            counters: BTreeMap::from([
                (engine(Signal::Finished), counts[0]),
                (engine(Signal::Failed), counts[1]),
            ]),
            histograms: BTreeMap::new(),
            gauges: BTreeMap::from([(
                engine(Signal::Running),
                GaugeRange { least: 0.0, mean: running, most: 2.0 * running },
            )]),
            latencies: BTreeMap::new(),
        }
    }

    /// 10 s busy with a quarter failed, 10 s idle, 10 s unwatched, 10 s with half a request running on average.
    #[test]
    fn a_history_is_divided_as_by_hand() {
        let blocks = [block(0, 4.0, [3.0, 1.0]), block(10, 0.0, [0.0; 2]), block(30, 0.5, [1.0, 0.0])];
        let divided = divided(&blocks, 2.0);
        let sum = |part: BillPart| divided.iter().map(|block| block.amounts[part as usize]).sum::<f64>();
        assert_eq!(sum(BillPart::Good), 2.0 * (7.5 + 5.0));
        assert_eq!(sum(BillPart::Failed), 2.0 * 2.5);
        assert_eq!(sum(BillPart::Idle), 2.0 * (10.0 + 5.0));
        assert_eq!(sum(BillPart::NotObserved), 2.0 * 10.0);
        assert_eq!(divided.iter().map(|block| block.seconds).sum::<f64>(), 40.0);
    }
}
