//! Step durations, single and in rows: the model's duration, the effect of faults, and the closed form.
//!
//! A row of decode steps costs d, d + s, d + 2s, … in whole picoseconds. A step's duration is linear in the context
//! tokens, and each sequence adds one per step. A fault's factor is applied to both terms separately and rounded
//! there, so that a slowed row stays linear.

use crate::engine::step_time::{StepLoad, StepModel};
use crate::spec::BatchingSpec;

/// Minimum duration of a step, a nanosecond, because time must advance.
pub(crate) const SHORTEST_PS: i128 = 1_000;

#[derive(Clone, Debug)]
pub(crate) struct StepPace {
    model: StepModel,
    factor: f64,
    extra_ps: i128,
}

/// A row of steps: the first ends at `end`, the second takes `next`, each further one `slope` more than the one
/// before.
#[derive(Copy, Clone, Debug)]
pub(crate) struct StepRow {
    pub end: i128,
    pub next: i128,
    pub slope: i128,
    /// Number of equal steps that can follow the first.
    pub ahead: u32,
}

impl StepPace {
    pub fn new(spec: &BatchingSpec) -> StepPace {
        StepPace { model: StepModel::new(spec), factor: 1.0, extra_ps: 0 }
    }

    pub(crate) fn set_factor(&mut self, factor: f64) {
        self.factor = if factor.is_finite() && factor > 0.0 { factor } else { 1.0 };
    }

    pub(crate) fn set_extra_us(&mut self, extra_us: f64) {
        self.extra_ps = (extra_us.max(0.0) * 1e6).round() as i128;
    }

    /// Returns the duration of a step in ps, at least one nanosecond.
    pub fn picoseconds(&mut self, load: &StepLoad) -> i128 {
        let plain = i128::from(self.model.picoseconds(load));
        let scaled = if self.factor == 1.0 {
            plain
        } else if load.chunks == 0 && load.decodes > 0 {
            let (fixed, each) = self.line(load);
            self.scale(fixed) + self.scale(each) * i128::from(load.context)
        } else {
            self.scale(plain)
        };
        (scaled + self.extra_ps).max(SHORTEST_PS)
    }

    /// Returns the additional duration per context token of a decode step in ps.
    pub(crate) fn per_context(&mut self, load: &StepLoad) -> i128 {
        let (_, each) = self.line(load);
        if self.factor == 1.0 { each } else { self.scale(each) }
    }

    /// Returns a decode step as a line over its context: the constant, and the slope per token.
    fn line(&mut self, load: &StepLoad) -> (i128, i128) {
        let none = i128::from(self.model.picoseconds(&StepLoad { context: 0, ..*load }));
        let one = i128::from(self.model.picoseconds(&StepLoad { context: 1, ..*load }));
        (none, one - none)
    }

    fn scale(&self, ps: i128) -> i128 {
        (ps as f64 * self.factor).round() as i128
    }
}

impl StepRow {
    /// Returns a row of one step.
    pub fn single(end: i128) -> StepRow {
        StepRow { end, next: 0, slope: 0, ahead: 0 }
    }

    /// Returns the end of the step that comes `steps` after the first.
    pub(crate) fn end_after(&self, steps: u32) -> i128 {
        let steps = i128::from(steps);
        self.end + steps * self.next + steps * (steps - 1) / 2 * self.slope
    }

    /// Returns the number of steps from the first that have ended by `limit`, at most `ahead`.
    pub fn ended_by(&self, limit: i128) -> u32 {
        if self.ahead == 0 || self.end > limit {
            return 0;
        }
        if self.end_after(self.ahead - 1) <= limit {
            return self.ahead;
        }
        let (mut ended, mut not) = (1, self.ahead);
        while not - ended > 1 {
            let middle = ended + (not - ended) / 2;
            if self.end_after(middle - 1) <= limit {
                ended = middle;
            } else {
                not = middle;
            }
        }
        ended
    }

    /// Removes the first `steps` from the row.
    pub fn go_on(&mut self, steps: u32) {
        self.end = self.end_after(steps);
        self.next += self.slope * i128::from(steps);
        self.ahead -= steps;
    }
}
