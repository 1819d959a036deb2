//! A gauge over time, with gaps where its value is unknown.
//!
//! A value is valid until the next scrape. After a failed scrape it is unknown, and so it is after 2.5 usual scrape intervals
//! without a scrape. Means are weighted by time, because scrapes of a busy server are not evenly spaced. Linear
//! interpolation between scrapes was rejected because it would make up values of counts that never existed.

use plimsoll_model::{At, Span};

/// A time range with a constant value.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SeriesStep {
    pub from: At,
    /// End of the range, exclusive.
    pub to: At,
    pub value: f64,
}

/// A sequence of steps in order of time; the value between steps is unknown.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GaugeSeries {
    /// Steps, not empty and not overlapping. Two neighbours may have equal values if a scrape is between them.
    pub steps: Vec<SeriesStep>,
}

impl GaugeSeries {
    /// Returns the value at an instant; `None` if unknown.
    pub fn at(&self, at: At) -> Option<f64> {
        let next = self.steps.partition_point(|step| step.to <= at);
        self.steps.get(next).filter(|step| step.from <= at).map(|step| step.value)
    }

    /// Returns the time-weighted mean over the known part of `[from, to)`.
    pub fn mean(&self, from: At, to: At) -> Option<f64> {
        weighted(self.clipped(from, to))
    }

    /// Returns the largest value that was read in `[from, to)`. Peaks between two scrapes are not visible.
    pub fn max(&self, from: At, to: At) -> Option<f64> {
        self.clipped(from, to).map(|step| step.value).reduce(f64::max)
    }

    /// Returns the smallest value that was read in `[from, to)`.
    pub fn min(&self, from: At, to: At) -> Option<f64> {
        self.clipped(from, to).map(|step| step.value).reduce(f64::min)
    }

    /// Returns the share of the known part of `[from, to)` in which the value satisfies `is`.
    pub fn share(&self, from: At, to: At, is: impl Fn(f64) -> bool) -> Option<f64> {
        weighted(
            self.clipped(from, to)
                .map(|step| SeriesStep { value: f64::from(u8::from(is(step.value))), ..step }),
        )
    }

    /// Returns the time-weighted mean over the part of `[from, to)` in which `other` is known and satisfies `is`.
    pub fn mean_given(&self, from: At, to: At, other: &GaugeSeries, is: impl Fn(f64) -> bool) -> Option<f64> {
        self.given(other, is).mean(from, to)
    }

    /// Returns the share in which this series satisfies `this_is`, of the part in which `other` satisfies `other_is`: P(this | other).
    pub fn share_given(
        &self,
        from: At,
        to: At,
        this_is: impl Fn(f64) -> bool,
        other: &GaugeSeries,
        other_is: impl Fn(f64) -> bool,
    ) -> Option<f64> {
        self.given(other, other_is).share(from, to, this_is)
    }

    /// Returns the part in which `other` is known and satisfies `is`.
    pub fn given(&self, other: &GaugeSeries, is: impl Fn(f64) -> bool) -> GaugeSeries {
        let (mut steps, mut first) = (Vec::new(), 0);
        for step in &self.steps {
            while other.steps.get(first).is_some_and(|theirs| theirs.to <= step.from) {
                first += 1;
            }
            for theirs in other.steps[first..].iter().take_while(|theirs| theirs.from < step.to) {
                if is(theirs.value) {
                    let (from, to) = (step.from.max(theirs.from), step.to.min(theirs.to));
                    steps.push(SeriesStep { from, to, value: step.value });
                }
            }
        }
        GaugeSeries { steps }
    }

    /// Returns the known share of `[from, to)`, 0 to 1.
    pub fn known(&self, from: At, to: At) -> f64 {
        let known: i64 = self.clipped(from, to).map(|step| (step.to - step.from).0).sum();
        if to > from { known as f64 / (to - from).0 as f64 } else { 0.0 }
    }

    /// Returns the number of steps that overlap `[from, to)`: the number of scrapes that a figure of that window is based on.
    pub fn scrapes(&self, from: At, to: At) -> usize {
        self.clipped(from, to).count()
    }

    /// Returns the steps that overlap `[from, to)`, clipped to it.
    pub fn clipped(&self, from: At, to: At) -> impl Iterator<Item = SeriesStep> + '_ {
        let first = self.steps.partition_point(|step| step.to <= from);
        self.steps[first..]
            .iter()
            .take_while(move |step| step.from < to)
            .map(move |step| SeriesStep { from: step.from.max(from), to: step.to.min(to), value: step.value })
            .filter(|step| step.from < step.to)
    }
}

fn weighted(steps: impl Iterator<Item = SeriesStep>) -> Option<f64> {
    let (mut area, mut time) = (0.0, 0.0);
    for step in steps {
        let took = (step.to - step.from).0 as f64;
        area += took * step.value;
        time += took;
    }
    (time > 0.0).then(|| area / time)
}

/// The scrapes of a page and their success.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Scrapes {
    /// Instant of each scrape, and whether the page was read and not empty; ascending.
    pub at: Vec<(At, bool)>,
    /// Median interval between two scrapes; `None` with fewer than two.
    pub cadence: Option<Span>,
}

/// Maximum gap between two scrapes, in usual intervals. In a longer gap the value is unknown.
const LONGEST_HOLD: f64 = 2.5;

impl Scrapes {
    pub fn new(mut at: Vec<(At, bool)>) -> Scrapes {
        at.sort_unstable();
        at.dedup_by_key(|scrape| scrape.0);
        let mut gaps: Vec<i64> = at.windows(2).map(|pair| (pair[1].0 - pair[0].0).0).collect();
        let middle = gaps.len() / 2;
        let cadence = (!gaps.is_empty()).then(|| Span(*gaps.select_nth_unstable(middle).1));
        Scrapes { at, cadence }
    }

    /// Returns the time ranges in which the last read value is valid.
    pub fn known(&self) -> Vec<(At, At)> {
        let cadence = self.cadence.unwrap_or(Span(1));
        let hold = Span((cadence.0 as f64 * LONGEST_HOLD) as i64);
        let mut known: Vec<(At, At)> = Vec::new();
        for (i, &(at, good)) in self.at.iter().enumerate() {
            if !good {
                continue;
            }
            let to = match self.at.get(i + 1) {
                Some(&(next, _)) if next - at <= hold => next,
                _ => at + cadence,
            };
            match known.last_mut() {
                Some(last) if last.1 == at => last.1 = to,
                _ => known.push((at, to)),
            }
        }
        known
    }

    /// Returns the last successful scrape that is not after `at`.
    pub(crate) fn last_good(&self, at: At) -> Option<At> {
        let end = self.at.partition_point(|scrape| scrape.0 <= at);
        self.at[..end].iter().rev().find(|scrape| scrape.1).map(|scrape| scrape.0)
    }

    pub(crate) fn first_good(&self) -> Option<At> {
        self.at.iter().find(|scrape| scrape.1).map(|scrape| scrape.0)
    }
}

/// Converts one series with a row per scrape, or per change, to steps.
pub(super) fn held(points: &[(At, f64)], scrapes: &Scrapes, known: &[(At, At)], factor: f64) -> GaugeSeries {
    let mut steps = Vec::new();
    let mut stretch = 0;
    // Boundaries are the points and, for a row per change, the scrapes between them. The number of scrapes is then correct.
    for (i, &(at, value)) in points.iter().enumerate() {
        let until = points.get(i + 1).map_or(At::MAX, |next| next.0);
        if value.is_nan() {
            continue;
        }
        while known.get(stretch).is_some_and(|known| known.1 <= at) {
            stretch += 1;
        }
        for &(from, to) in known[stretch..].iter().take_while(|known| known.0 < until) {
            cut(&mut steps, (from.max(at), to.min(until)), value * factor, scrapes);
        }
    }
    GaugeSeries { steps }
}

/// Adds a time range with one value, split at its scrapes.
fn cut(steps: &mut Vec<SeriesStep>, (mut from, to): (At, At), value: f64, scrapes: &Scrapes) {
    let first = scrapes.at.partition_point(|scrape| scrape.0 <= from);
    for &(at, _) in scrapes.at[first..].iter().take_while(|scrape| scrape.0 < to) {
        steps.push(SeriesStep { from, to: at, value });
        from = at;
    }
    if from < to {
        steps.push(SeriesStep { from, to, value });
    }
}
