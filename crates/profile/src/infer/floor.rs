//! The isolated-request floor: the time of a request without concurrent ones, by prompt length.
//!
//! An isolated request does not queue: its time to first token is the network, the front end and the prefill. Over
//! several prompt lengths that is a line whose slope is the cost of a prompt token. At a prompt length of zero, one
//! step of the engine (visible as a token gap in responses) and the front end remain.

use super::rows::ClientRow;

/// The floor of isolated requests. Times in ns.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct ComputeFloor {
    /// Time at a prompt length of zero.
    pub base_ns: f64,
    pub per_token_ns: f64,
    /// Gap between two tokens of an isolated response.
    pub gap_ns: f64,
    /// Typical distance of an isolated request from the line.
    pub spread_ns: f64,
    /// Set if the lengths differ enough to determine the cost of a token. Otherwise base and prefill can't be
    /// separated.
    pub lengths_differ: bool,
    /// Number of requests behind the floor.
    pub n: usize,
}

/// Minimum number of isolated requests; with fewer there is no floor.
const FEWEST: usize = 12;

impl ComputeFloor {
    /// Returns the floor of isolated requests. Returns `None` with too few of them.
    pub fn of(alone: &[&ClientRow<'_>]) -> Option<ComputeFloor> {
        if alone.len() < FEWEST {
            return None;
        }
        let points: Vec<(f64, f64)> = alone.iter().map(|row| (row.uncached, row.wait() as f64)).collect();
        let per_token_ns = slope(&points).unwrap_or(0.0).max(0.0);
        let base_ns = median(points.iter().map(|(x, y)| y - per_token_ns * x).collect())?.max(0.0);
        let off = points.iter().map(|(x, y)| (y - base_ns - per_token_ns * x).abs()).collect();
        let mut lengths: Vec<f64> = points.iter().map(|point| point.0).collect();
        lengths.sort_by(f64::total_cmp);
        let lengths_differ = lengths[lengths.len() * 3 / 4] >= 1.3 * lengths[lengths.len() / 4];
        let gaps: Vec<f64> = alone.iter().filter_map(|row| gap(row)).collect();
        let gap_ns = median(gaps).unwrap_or(0.0);
        Some(ComputeFloor {
            base_ns,
            per_token_ns,
            gap_ns,
            spread_ns: median(off)?,
            lengths_differ,
            n: alone.len(),
        })
    }

    /// Returns the time of network and front end in ns: the base without one step of the engine.
    pub fn front_ns(&self) -> f64 {
        (self.base_ns - self.gap_ns).max(0.0)
    }

    /// Returns the prefill time of an isolated request, ns.
    pub fn prefill_ns(&self, row: &ClientRow<'_>) -> f64 {
        self.base_ns - self.front_ns() + self.per_token_ns * row.uncached
    }
}

/// Returns the rows without concurrent requests during their wait. `busy` are (sent, end) of all attempts, in any
/// order.
pub fn alone<'r, 'a>(rows: &'r [ClientRow<'a>], busy: &[(i64, i64)]) -> Vec<&'r ClientRow<'a>> {
    let mut edges: Vec<(i64, i32)> = busy.iter().flat_map(|(from, to)| [(*from, 1), (*to, -1)]).collect();
    edges.sort_unstable();
    let mut level = 0;
    // Number of requests in flight after each edge.
    let counts: Vec<(i64, i32)> = edges
        .into_iter()
        .map(|(at, by)| {
            level += by;
            (at, level)
        })
        .collect();
    rows.iter()
        .filter(|row| {
            let from = counts.partition_point(|edge| edge.0 < row.sent);
            let to = counts.partition_point(|edge| edge.0 < row.first);
            counts[from..to].iter().all(|edge| edge.1 <= 1)
        })
        .collect()
}

/// Returns the time per token after the first, ns.
fn gap(row: &ClientRow<'_>) -> Option<f64> {
    let tokens = row.attempt.answer.tokens.streamed(&row.attempt.events).filter(|n| *n > 1)?;
    Some((row.last - row.first) as f64 / f64::from(tokens - 1))
}

/// Returns the Theil–Sen slope: the median of the slopes of pairs. Each point is paired with the one half the list
/// later in order of length.
fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let mut sorted = points.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half = sorted.len() / 2;
    let slopes = sorted.iter().zip(&sorted[half..]).filter(|(a, b)| b.0 - a.0 >= 1.0);
    median(slopes.map(|(a, b)| (b.1 - a.1) / (b.0 - a.0)).collect())
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let middle = values.len() / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}
