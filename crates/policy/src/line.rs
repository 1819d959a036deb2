//! Line fit from a stream of points, with forgetting.
//!
//! The estimate is weighted least squares with weights that fall by a factor per point. A slower replica is therefore
//! recognised within dozens of requests. With few points, or all at one place, the line leans on a prior line: the
//! pool's. A recursive filter with a covariance matrix is the same estimate, but lost because its state is not
//! readable.

/// Factor on a point's weight with each later one: it halves after 34 points.
pub(crate) const KEPT: f64 = 0.98;
/// Weight of the prior line in points.
pub(crate) const LENT: f64 = 4.0;
/// Weight from which outliers are limited to a factor of `FAR` from the line.
const ENOUGH: f64 = 8.0;
const FAR: f64 = 4.0;

/// A line: `y = base + per · x`.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct LinearFit {
    /// Value at x = 0.
    pub base: f64,
    pub per: f64,
}

impl LinearFit {
    pub fn at(&self, x: f64) -> f64 {
        self.base + self.per * x
    }

    /// Returns the line multiplied by a factor.
    pub fn times(&self, factor: f64) -> LinearFit {
        LinearFit { base: self.base * factor, per: self.per * factor }
    }
}

/// A line fit. Neither base nor slope is ever negative, because both are times.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct LinearEstimator {
    weight: f64,
    mean_x: f64,
    mean_y: f64,
    /// Σ w (x − mean x)², Σ w (x − mean x)(y − mean y).
    spread: f64,
    joint: f64,
}

impl LinearEstimator {
    /// Adds a point and returns its value after the outlier limit. `prior` is the line that the fit leans on.
    pub fn learn(&mut self, x: f64, y: f64, prior: LinearFit) -> f64 {
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

    /// Returns the fitted line. The prior's slope counts as points with a spread of the mean x, so that points at one
    /// place do not determine the slope.
    pub fn line(&self, prior: LinearFit) -> LinearFit {
        if self.weight <= 1e-6 {
            return prior;
        }
        let lent = LENT / self.weight;
        let apart = lent * self.mean_x * self.mean_x;
        let total = self.spread + apart;
        let per = if total > 0.0 { (self.joint + apart * prior.per) / total } else { prior.per };
        // After all limits, the line passes through the mean of the points.
        let most = if self.mean_x > 0.0 { self.mean_y / self.mean_x } else { f64::INFINITY };
        let per = per.clamp(0.0, most.max(0.0));
        let own = (self.mean_y - per * self.mean_x).max(0.0);
        LinearFit { base: (self.weight * own + lent * prior.base) / (self.weight + lent), per }
    }
}
