//! A straight line learnt from points that come one by one, with forgetting.
//!
//! Weighted least squares whose weights fall by a factor per point, so that a replica which became slower is believed within some dozens of
//! requests. Where few points are known, or all at one place, the line leans on one that is known from elsewhere: the
//! pool's. A recursive filter with a covariance matrix is the same estimate in a form that nobody can read off.

/// What a point's weight falls by with each later one: half of it is gone after 34 points.
pub(crate) const KEPT: f64 = 0.98;
/// The other line counts as this many points beside the first one, and as less the more there are.
pub(crate) const LENT: f64 = 4.0;
/// From this many points on, one that lies far off is taken as lying no further than [`FAR`] × from the line.
const ENOUGH: f64 = 8.0;
const FAR: f64 = 4.0;

/// `y = base + per · x`.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Line {
    /// y at x = 0.
    pub base: f64,
    pub per: f64,
}

impl Line {
    /// y at `x`.
    pub fn at(&self, x: f64) -> f64 {
        self.base + self.per * x
    }

    /// So many times as high everywhere.
    pub fn times(&self, factor: f64) -> Line {
        Line { base: self.base * factor, per: self.per * factor }
    }
}

/// See the module. Neither base nor slope is ever negative: both are times.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Learnt {
    weight: f64,
    mean_x: f64,
    mean_y: f64,
    /// Σ w (x − mean x)², Σ w (x − mean x)(y − mean y).
    spread: f64,
    joint: f64,
}

impl Learnt {
    /// Takes one point in, and says what it was taken for. `prior` is the line that it leans on.
    pub fn learn(&mut self, x: f64, y: f64, prior: Line) -> f64 {
        let expected = self.line(prior).at(x);
        let y =
            if self.weight >= ENOUGH && expected > 0.0 { y.clamp(expected / FAR, expected * FAR) } else { y };
        let weight = self.weight * KEPT + 1.0;
        let (dx, dy) = (x - self.mean_x, y - self.mean_y);
        self.mean_x += dx / weight;
        self.mean_y += dy / weight;
        self.spread = self.spread * KEPT + dx * (x - self.mean_x);
        self.joint = self.joint * KEPT + dx * (y - self.mean_y);
        self.weight = weight;
        y
    }

    /// The line through what is known. The prior's slope counts as points that lie as far apart as x is large, so that points
    /// at one place say nothing of the slope.
    pub fn line(&self, prior: Line) -> Line {
        if self.weight <= 1e-6 {
            return prior;
        }
        let lent = LENT / self.weight;
        let apart = lent * self.mean_x * self.mean_x;
        let total = self.spread + apart;
        let per = if total > 0.0 { (self.joint + apart * prior.per) / total } else { prior.per };
        // Whatever is bent, the line goes through the middle of what is known.
        let most = if self.mean_x > 0.0 { self.mean_y / self.mean_x } else { f64::INFINITY };
        let per = per.clamp(0.0, most.max(0.0));
        let own = (self.mean_y - per * self.mean_x).max(0.0);
        Line { base: (self.weight * own + lent * prior.base) / (self.weight + lent), per }
    }
}
