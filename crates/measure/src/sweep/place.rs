//! Where the next level tells most: the geometry of a search, free of time and ceilings.
//!
//! Three questions compete (onset, stability, budget); the one whose answer is furthest from narrow enough gets the
//! next level. Spending the time evenly over a grid lost: nine tenths of a grid lie where nothing is decided.

/// What is known of one line.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum KnownLine {
    /// Found, with its interval.
    At {
        /// Where, requests/s.
        value: f64,
        /// Lower end.
        lower: f64,
        /// Upper end; may be infinite.
        upper: f64,
    },
    /// Above every level so far.
    Above,
    /// Below every level so far.
    Below,
    /// Nothing: the data refuse.
    Nothing,
}

/// Loads of the first open-loop levels, as shares of the capacity that the ladder found: one light, to stand in for
/// zero contention; the range in which onsets lie (M/M/c: 0.63 at two servers, 0.95 at sixteen). One [`overload`] comes on
/// top.
const FIRST: [f64; 6] = [0.2, 0.45, 0.65, 0.8, 0.9, 0.96];
/// The same where requests are so few that seven levels would each say nothing.
const FIRST_FEW: [f64; 3] = [0.3, 0.65, 0.9];
/// Completions on a planned level below which it is few.
const FEW: f64 = 400.0;

/// A share of the capacity at which a level of this many arrivals will be seen to pile up. Requests in flight wander by the
/// root of the arrivals, and their growth must stand out from that over the limit of 2 %: at a fixed 1.06 every fourth
/// sweep of a minute (6 000 arrivals a level) decided nothing up there and found no stability limit.
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

/// Loads measured so far and what they are for.
pub struct LoadBoard<'a> {
    /// Usable open-loop loads, rising, requests/s.
    pub loads: &'a [f64],
    /// The capacity as best known, requests/s.
    pub capacity: f64,
    /// Is the capacity known from below only?
    pub open_above: bool,
    /// Width at which the onset is narrow enough, as a share.
    pub narrow: f64,
    /// Highest load that may be offered.
    pub ceiling: f64,
    /// Arrivals of a level at the capacity.
    pub arrivals: f64,
}

/// Width of a bracket at which stability and budget lines are narrow enough: the rule of the in-flight slope has a
/// limit of 2 % itself, so that the region in which it decides nothing is a few per cent wide.
const BRACKET: f64 = 0.10;

/// Urgency of an onset that lies outside the levels: over that of a bracket with one end, for it is what is asked.
const UNSEEN: f64 = 8.0;
/// Factor between loads while the capacity is known from below only.
const STRIDE: f64 = 1.5;
/// Levels within a few per cent of the onset before it counts as found.
const REPEATED: usize = 5;

impl LoadBoard<'_> {
    /// How far the onset is from narrow enough (1 = just so), and where to look next. None where nothing helps.
    pub fn onset(&self, known: KnownLine) -> Option<(f64, f64)> {
        match known {
            KnownLine::At { value, lower, upper } => {
                let below = self.loads.iter().copied().rfind(|load| *load < value);
                let above = self.loads.iter().copied().find(|load| *load >= value);
                // Between distant neighbours a straight line stands for a convex curve.
                if let (Some(below), Some(above)) = (below, above)
                    && above / below > 1.08
                {
                    let middle = value.clamp(below * 1.02, above / 1.02);
                    return self.wish(((upper - lower) / value / self.narrow).clamp(1.5, 20.0), middle);
                }
                let width = (upper - lower.max(0.0)) / value / self.narrow;
                let near = self.loads.iter().filter(|load| (**load / value - 1.0).abs() < 0.035).count();
                // At the line itself and to both sides of it in turn: the crossing needs all three.
                let offset = [0.0, -0.025, 0.02][near % 3];
                // One lucky level moves a crossing further than its own redraws can know; several do not err alike.
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

    /// The same for a bracket (last that holds, first that does not), with a point estimate where there is one.
    pub fn bracket(&self, holds: Option<f64>, breaks: Option<f64>, value: Option<f64>) -> Option<(f64, f64)> {
        match (holds, breaks) {
            (Some(holds), Some(breaks)) => {
                let width = breaks / holds - 1.0;
                let centre = value.filter(|v| *v > holds && *v < breaks).unwrap_or((holds * breaks).sqrt());
                let (left, right) = (centre / holds, breaks / centre);
                // Half the wanted width to the side that is further off; the very centre would decide nothing.
                let aim = if left > right {
                    (centre * (1.0 - 0.4 * BRACKET)).max(holds * left.powf(0.3))
                } else {
                    (centre * (1.0 + 0.5 * BRACKET)).min(breaks / right.powf(0.3))
                };
                self.wish(width / BRACKET, aim)
            }
            // By factors, and before all else: every other question waits for the scale.
            (Some(holds), None) if self.open_above => {
                let tried = self.loads.last().copied().unwrap_or(holds);
                self.wish(2.0 * UNSEEN, STRIDE * tried.max(self.capacity))
            }
            (Some(holds), None) => {
                let over = overload(self.arrivals);
                // Where that load was run and decided nothing, further up.
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
