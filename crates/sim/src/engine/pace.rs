//! How long steps take, one at a time and in a row: the model's duration, what faults do to it, and the closed form.
//!
//! A row of decodes costs d, d + s, d + 2s, … in whole picoseconds, because a step's duration is linear in the tokens of
//! context and each sequence adds one per step. A fault's factor is applied to the two terms of that line apart and
//! rounded there, so that a slowed row is still a line.

use crate::engine::step_time::{StepLoad, StepModel};
use crate::spec::BatchingSpec;

/// A step takes a nanosecond at the least, so that time moves.
pub(crate) const SHORTEST_PS: i128 = 1_000;

#[derive(Clone, Debug)]
pub(crate) struct StepPace {
    model: StepModel,
    factor: f64,
    extra_ps: i128,
}

/// A row of steps: the first ends at `end`, the next takes `next`, each further one `slope` more than the one before.
#[derive(Copy, Clone, Debug)]
pub(crate) struct StepRow {
    pub end: i128,
    pub next: i128,
    pub slope: i128,
    /// Steps like the first one that can follow it.
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

    /// How long a step takes, picoseconds; at least one nanosecond.
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

    /// What a token of context adds to a step of decodes, picoseconds.
    pub(crate) fn per_context(&mut self, load: &StepLoad) -> i128 {
        let (_, each) = self.line(load);
        if self.factor == 1.0 { each } else { self.scale(each) }
    }

    /// A step of decodes as a line over its context: without any, and per token.
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
    /// One step and none like it after it.
    pub fn single(end: i128) -> StepRow {
        StepRow { end, next: 0, slope: 0, ahead: 0 }
    }

    /// When the step ends that comes `steps` after the first.
    pub(crate) fn end_after(&self, steps: u32) -> i128 {
        let steps = i128::from(steps);
        self.end + steps * self.next + steps * (steps - 1) / 2 * self.slope
    }

    /// How many steps from the first on have ended by `limit`, of those that a jump may book: at most `ahead`.
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

    /// The first `steps` have ended.
    pub fn go_on(&mut self, steps: u32) {
        self.end = self.end_after(steps);
        self.next += self.slope * i128::from(steps);
        self.ahead -= steps;
    }
}
