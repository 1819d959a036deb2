//! Counter increases and histogram increments between two scrapes.
//!
//! The quantile of a histogram is the bucket that contains it, and not a point. Prometheus interpolates linearly in a bucket,
//! which is off by up to 85 % with the edges of real servers. Above the last edge its result is the last edge.

use plimsoll_model::At;

/// The increase of a counter between two scrapes.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct CounterDelta {
    /// Increase in the signal's unit. A restarted counter starts at zero, so an increase between the last scrape and the restart
    /// is missing.
    pub value: f64,
    /// Number of decreases of the counter, which are restarts.
    pub resets: u32,
    /// First scrape of the interval: the last scrape not after the requested start.
    pub from: At,
    /// Time of the last scrape in the interval.
    pub to: At,
}

impl CounterDelta {
    pub fn per_s(&self) -> f64 {
        self.value / (self.to - self.from).as_secs_f64()
    }

    /// Returns the sum with the increase of another process.
    pub(super) fn with(self, other: CounterDelta) -> CounterDelta {
        CounterDelta {
            value: self.value + other.value,
            resets: self.resets.max(other.resets),
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }
}

/// The bucket that contains a quantile.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Bracket {
    pub lower: f64,
    /// Upper edge; `None` above the last edge, where no upper bound is known.
    pub upper: Option<f64>,
}

/// The observations of a histogram between two scrapes.
#[derive(Clone, PartialEq, Debug)]
pub struct Buckets {
    /// Upper edges in the signal's unit, inclusive and ascending; empty if the server reports only sum and count.
    pub edges: Vec<f64>,
    /// Observations per bucket; the last bucket is above all edges.
    pub counts: Vec<f64>,
    /// Sum of the observed values; `None` if not reported.
    pub sum: Option<f64>,
    /// Number of observations; `None` if not reported.
    pub count: Option<f64>,
    /// Smallest and largest observed value; `None` if not reported.
    pub bounds: [Option<f64>; 2],
    /// Number of restarts of the histogram.
    pub resets: u32,
    /// Time of the first scrape in the interval.
    pub from: At,
    /// Time of the last scrape in the interval.
    pub to: At,
}

impl Buckets {
    /// Returns the sum with other observations, at the edges at which both counts are known.
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

    /// Returns the exact mean, sum / count; `None` if there are no observations or one of the two is not reported.
    pub fn mean(&self) -> Option<f64> {
        let count = self.count.filter(|count| *count > 0.0)?;
        Some(self.sum? / count)
    }

    /// Returns the bucket that contains the quantile `p`, 0 < p ≤ 1; `None` without buckets or observations.
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

    /// Returns the lower and upper bound of the share of observations above `value`; `None` without buckets or observations.
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

/// Returns the cumulative counts of a histogram by edge, the last one at infinity.
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

/// Merges cumulative counts into edges at which all histograms have a count, and counts between these edges.
///
/// Two neighbouring edges with equal cumulative counts have no observation between them. A histogram without an edge in that
/// range has a known count there too. With edges at powers of two each histogram has only the edges that it needs.
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
        // A scrape that the server changes meanwhile may have a smaller count at a higher edge.
        counts.push((total - below).max(0.0));
        below = below.max(total);
        if edge.is_finite() {
            edges.push(edge);
        }
    }
    if counts.len() == edges.len() {
        // There is no +Inf edge, so no observation above the last edge is known.
        counts.push(0.0);
    }
    (edges, counts)
}
