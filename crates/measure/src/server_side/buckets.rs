//! What a counter gained and what a histogram took in between two scrapes.
//!
//! A quantile of a histogram is the bucket that it lies in, never a point: a line through a bucket, as Prometheus draws
//! it, is off by up to 85 % with the edges that servers have, and above the last edge it is the edge.

use plimsoll_model::At;

/// What a counter gained.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Gained {
    /// By how much. After a restart it counts from zero, so that what was lost between the last scrape before it and the restart is not
    /// in it.
    pub value: f64,
    /// Times that it went back.
    pub resets: u32,
    /// The scrape that it is counted from: the last one not after the instant asked for.
    pub from: At,
    /// The scrape that it is counted to.
    pub to: At,
}

impl Gained {
    /// Per second.
    pub fn per_s(&self) -> f64 {
        self.value / (self.to - self.from).as_secs_f64()
    }

    /// Together with what another process gained.
    pub(super) fn with(self, other: Gained) -> Gained {
        Gained {
            value: self.value + other.value,
            resets: self.resets.max(other.resets),
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }
}

/// Where a quantile lies.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Bracket {
    pub lower: f64,
    /// Not above this; `None` = above the last edge, nobody knows by how much.
    pub upper: Option<f64>,
}

/// What a histogram took in.
#[derive(Clone, PartialEq, Debug)]
pub struct Buckets {
    /// Upper edges, inclusive, ascending, in the signal's unit; empty where the server tells only sum and count.
    pub edges: Vec<f64>,
    /// Observations per bucket; the last lies above every edge.
    pub counts: Vec<f64>,
    /// Sum of what was observed, where it is told.
    pub sum: Option<f64>,
    /// Observations, where they are told.
    pub count: Option<f64>,
    /// Nothing that was observed lies below this, or above that, where it is told.
    pub bounds: [Option<f64>; 2],
    /// Times that it began anew.
    pub resets: u32,
    /// The scrape that it is counted from.
    pub from: At,
    /// The scrape that it is counted to.
    pub to: At,
}

impl Buckets {
    /// Together with what others took in: at the edges at which both are known.
    #[must_use]
    pub fn with(self, other: Buckets) -> Buckets {
        let (edges, counts) = match self.edges == other.edges && self.counts.len() == other.counts.len() {
            true => (self.edges, self.counts.iter().zip(&other.counts).map(|(a, b)| a + b).collect()),
            false => {
                let ladders = [(&self.edges, &self.counts), (&other.edges, &other.counts)];
                merged(ladders.into_iter().filter(|one| !one.0.is_empty()).map(ladder).collect())
            }
        };
        let either = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(|a, b| a + b);
        let both = |a: Option<f64>, b: Option<f64>, of: fn(f64, f64) -> f64| Some(of(a?, b?));
        Buckets {
            edges,
            counts,
            sum: either(self.sum, other.sum),
            count: either(self.count, other.count),
            bounds: [
                both(self.bounds[0], other.bounds[0], f64::min),
                both(self.bounds[1], other.bounds[1], f64::max),
            ],
            resets: self.resets.max(other.resets),
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }

    /// The exact mean: sum over count. `None` where nothing was observed or one of the two is not told.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count.filter(|count| *count > 0.0)?;
        Some(self.sum? / count)
    }

    /// The bucket that holds the quantile `p`, 0 < p ≤ 1. `None` without buckets or observations.
    pub fn quantile(&self, p: f64) -> Option<Bracket> {
        let total: f64 = self.counts.iter().sum();
        if self.edges.is_empty() || total <= 0.0 {
            return None;
        }
        let rank = (p * total).ceil().max(1.0).min(total);
        let mut seen = 0.0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        })?;
        let lower = if bucket == 0 { 0.0 } else { self.edges[bucket - 1] };
        Some(Bracket { lower, upper: self.edges.get(bucket).copied() })
    }

    /// Bounds of the share of observations above `value`.
    pub fn share_above(&self, value: f64) -> Option<(f64, f64)> {
        let total: f64 = self.counts.iter().sum();
        if self.edges.is_empty() || total <= 0.0 {
            return None;
        }
        let surely: usize = self.edges.partition_point(|edge| *edge < value);
        // The bucket around `value` may lie on either side, unless `value` is its upper edge.
        let exact = self.edges.get(surely).is_some_and(|edge| *edge == value);
        let above: f64 = self.counts[surely + 1..].iter().sum();
        let around = if exact { 0.0 } else { self.counts[surely] };
        Some((above / total, (above + around) / total))
    }
}

/// Counts between edges as counts up to each of them, and up to any value.
fn ladder((edges, counts): (&Vec<f64>, &Vec<f64>)) -> Vec<(f64, f64)> {
    let mut below = 0.0;
    let edges = edges.iter().copied().chain([f64::INFINITY]);
    edges
        .zip(counts)
        .map(|(edge, count)| {
            below += count;
            (edge, below)
        })
        .collect()
}

/// Cumulative ladders → edges at which all of them are known, and counts between those. Between two rungs that say the same nothing lies, so that one without an edge
/// there is known at it too: of powers of two each has only the edges that it needs.
pub(super) fn merged(mut ladders: Vec<Vec<(f64, f64)>>) -> (Vec<f64>, Vec<f64>) {
    for ladder in &mut ladders {
        ladder.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let mut all_edges: Vec<f64> = ladders.iter().flatten().map(|rung| rung.0).collect();
    all_edges.sort_by(f64::total_cmp);
    all_edges.dedup();
    let at = |ladder: &[(f64, f64)], edge: f64| match ladder.binary_search_by(|rung| rung.0.total_cmp(&edge))
    {
        Ok(place) => Some(ladder[place].1),
        Err(place) => {
            let below = place.checked_sub(1).map_or(0.0, |lower| ladder[lower].1);
            ladder.get(place).filter(|higher| higher.1 == below).map(|_| below)
        }
    };
    let (mut edges, mut counts, mut below) = (Vec::new(), Vec::new(), 0.0);
    for edge in all_edges {
        let all: Option<Vec<f64>> = ladders.iter().map(|ladder| at(ladder, edge)).collect();
        let Some(all) = all else { continue };
        let total: f64 = all.iter().sum();
        // A page that is read while it changes may have a higher bucket behind a lower one.
        counts.push((total - below).max(0.0));
        below = below.max(total);
        if edge.is_finite() {
            edges.push(edge);
        }
    }
    if counts.len() == edges.len() {
        // No +Inf among them: nothing is known to lie above.
        counts.push(0.0);
    }
    (edges, counts)
}
