//! The choice of the most informative next load, without time limits and maximum rates.
//!
//! Three questions compete (onset, stability, budget). The question whose answer is furthest from narrow enough gets the next
//! level. A uniform grid was rejected because nine tenths of its levels would decide nothing.

/// The result of one limit so far.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum KnownLine {
    /// The limit was found, with its interval.
    At {
        /// Limit in requests per second.
        value: f64,
        /// Lower end in requests per second.
        lower: f64,
        /// Upper end in requests per second; may be infinite.
        upper: f64,
    },
    /// Above every level so far.
    Above,
    /// Below every level so far.
    Below,
    /// Unknown, because the data allow no result.
    Nothing,
}

/// Loads of the first open-loop levels, as shares of the capacity that the closed loops found.
///
/// One light level may replace zero contention. The others cover the range of onsets (M/M/c: 0.63 at two servers, 0.95 at
/// sixteen). One [`overload`] is added.
const FIRST: [f64; 6] = [0.2, 0.45, 0.65, 0.8, 0.9, 0.96];
/// Loads of the first levels if there are so few requests that each of seven levels would be inconclusive.
const FIRST_FEW: [f64; 3] = [0.3, 0.65, 0.9];
/// Completions of a planned level below which [`FIRST_FEW`] applies.
const FEW: f64 = 400.0;

/// Returns a share of the capacity at which the backlog of a level with this many arrivals visibly grows.
///
/// Requests in flight fluctuate by the root of the arrivals, and their growth must exceed that and the limit of 2 %. With a
/// fixed share of 1.06, every fourth sweep of a minute (6 000 arrivals per level) was inconclusive and found no limit.
pub fn overload(arrivals: f64) -> f64 {
    1.02 + (6.0 / arrivals.max(1.0).sqrt()).min(0.5)
}

/// Returns the first open-loop loads in rising order, because a heavier level leaves work behind.
pub fn first_loads(capacity: f64, arrivals: f64, max_rate: Option<f64>) -> Vec<f64> {
    let shares: &[f64] = if arrivals < FEW { &FIRST_FEW } else { &FIRST };
    let ceiling = max_rate.unwrap_or(f64::INFINITY);
    let shares = shares.iter().copied().chain([overload(arrivals)]);
    let mut loads: Vec<f64> = shares.map(|share| (share * capacity).min(ceiling)).collect();
    loads.dedup();
    loads
}

/// The measured loads and the settings of the search.
pub struct MeasuredLoads<'a> {
    /// Usable open-loop loads in ascending order, in requests per second.
    pub loads: &'a [f64],
    /// Best estimate of the capacity, in requests per second.
    pub capacity: f64,
    /// Set if only a lower bound of the capacity is known.
    pub open_above: bool,
    /// Relative width at which the onset is narrow enough.
    pub narrow: f64,
    /// Maximum load that may be offered, in requests per second.
    pub ceiling: f64,
    /// Arrivals of a level at the capacity.
    pub arrivals: f64,
}

/// Relative width at which the stability and budget brackets are narrow enough.
///
/// The rule of the in-flight slope has a limit of 2 % itself, so its inconclusive region is a few per cent wide.
const BRACKET: f64 = 0.10;

/// Urgency of an onset outside the levels. It exceeds the urgency of a bracket with one end, because it is the main question.
const UNSEEN: f64 = 8.0;
/// Factor between loads while only a lower bound of the capacity is known.
const STRIDE: f64 = 1.5;
/// Levels within a few per cent of the onset before it counts as found.
const REPEATED: usize = 5;

impl MeasuredLoads<'_> {
    /// Returns the urgency of the onset (1 is narrow enough) and the next load; `None` if no load helps.
    pub fn onset(&self, known: KnownLine) -> Option<(f64, f64)> {
        match known {
            KnownLine::At { value, lower, upper } => {
                let below = self.loads.iter().copied().rfind(|load| *load < value);
                let above = self.loads.iter().copied().find(|load| *load >= value);
                // A straight line between distant neighbours approximates a convex curve.
                if let (Some(below), Some(above)) = (below, above)
                    && above / below > 1.08
                {
                    let middle = value.clamp(below * 1.02, above / 1.02);
                    return self.wish(((upper - lower) / value / self.narrow).clamp(1.5, 20.0), middle);
                }
                let width = (upper - lower.max(0.0)) / value / self.narrow;
                let near = self.loads.iter().filter(|load| (**load / value - 1.0).abs() < 0.035).count();
                // The loads alternate between the limit and both sides of it, because the crossing needs all three.
                let offset = [0.0, -0.025, 0.02][near % 3];
                // One outlier moves a crossing further than its replicates can show; several levels do not err in one direction.
                let least = if near < REPEATED { 1.5 } else { 0.0 };
                self.wish(width.min(10.0).max(least), value * (1.0 + offset))
            }
            KnownLine::Above => {
                let last = self.loads.last()?;
                let most = if self.open_above { f64::INFINITY } else { 1.02 * self.capacity };
                self.wish(UNSEEN, (1.1 * last).min(most).max(1.02 * last))
            }
            KnownLine::Below => self.wish(UNSEEN, 0.6 * self.loads.first()?),
            KnownLine::Nothing => None,
        }
    }

    /// Returns the urgency and the next load of a bracket (last that passes, first that does not), with its estimate if any.
    pub fn bracket(&self, holds: Option<f64>, breaks: Option<f64>, value: Option<f64>) -> Option<(f64, f64)> {
        match (holds, breaks) {
            (Some(holds), Some(breaks)) => {
                let width = breaks / holds - 1.0;
                let centre = value.filter(|v| *v > holds && *v < breaks).unwrap_or((holds * breaks).sqrt());
                let (left, right) = (centre / holds, breaks / centre);
                // The aim is half the wanted width to the side that is further off; the centre itself would decide nothing.
                let aim = if left > right {
                    (centre * (1.0 - 0.4 * BRACKET)).max(holds * left.powf(0.3))
                } else {
                    (centre * (1.0 + 0.5 * BRACKET)).min(breaks / right.powf(0.3))
                };
                self.wish(width / BRACKET, aim)
            }
            // The load grows by a factor and with priority, because every other question depends on the scale.
            (Some(holds), None) if self.open_above => {
                let tried = self.loads.last().copied().unwrap_or(holds);
                self.wish(2.0 * UNSEEN, STRIDE * tried.max(self.capacity))
            }
            (Some(holds), None) => {
                let over = overload(self.arrivals);
                // If a level at that load was inconclusive, the next load is higher.
                let tried = self.loads.last().filter(|last| **last >= 0.99 * over * self.capacity);
                let aim = tried.map_or(over * self.capacity.min(3.0 * holds), |last| 1.1 * last);
                self.wish(6.0, aim.max(1.15 * holds))
            }
            (None, Some(breaks)) => self.wish(6.0, 0.7 * breaks),
            (None, None) => self.wish(2.0, 0.8 * self.capacity),
        }
    }

    fn wish(&self, urgency: f64, load: f64) -> Option<(f64, f64)> {
        let load = load.min(self.ceiling);
        (load.is_finite() && load > 0.0).then_some((urgency, load))
    }
}
