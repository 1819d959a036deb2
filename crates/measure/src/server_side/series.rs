//! A gauge over time, as far as it is known.
//!
//! What was read holds until it is read again; where a scrape failed, or none was taken for more than two and a half times the usual
//! distance, nothing is known. Means are weighted by time, because scrapes are not evenly spaced when a server is busy.
//! Straight lines between scrapes lost: they would make up values of counts that never were.

use plimsoll_model::{At, Span};

/// A stretch of time in which a value held.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct SeriesStep {
    pub from: At,
    /// Until when, exclusive.
    pub to: At,
    pub value: f64,
}

/// Steps in order of time; what lies between them is unknown.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Series {
    /// The steps, none empty, none overlapping. Two neighbours may have the same value: there was a scrape between.
    pub steps: Vec<SeriesStep>,
}

impl Series {
    /// The value at an instant; `None` = unknown.
    pub fn at(&self, at: At) -> Option<f64> {
        let next = self.steps.partition_point(|step| step.to <= at);
        self.steps.get(next).filter(|step| step.from <= at).map(|step| step.value)
    }

    /// Time-weighted mean over the known part of `[from, to)`.
    pub fn mean(&self, from: At, to: At) -> Option<f64> {
        weighted(self.clipped(from, to))
    }

    /// Largest value that was read in `[from, to)`. What rose and fell between two scrapes was not seen.
    pub fn max(&self, from: At, to: At) -> Option<f64> {
        self.clipped(from, to).map(|step| step.value).reduce(f64::max)
    }

    /// Smallest value that was read in `[from, to)`.
    pub fn min(&self, from: At, to: At) -> Option<f64> {
        self.clipped(from, to).map(|step| step.value).reduce(f64::min)
    }

    /// Share of the known part of `[from, to)` in which the value is so.
    pub fn share(&self, from: At, to: At, is: impl Fn(f64) -> bool) -> Option<f64> {
        weighted(
            self.clipped(from, to)
                .map(|step| SeriesStep { value: f64::from(u8::from(is(step.value))), ..step }),
        )
    }

    /// Time-weighted mean over the part of `[from, to)` in which `other` is known and so.
    pub fn mean_given(&self, from: At, to: At, other: &Series, is: impl Fn(f64) -> bool) -> Option<f64> {
        self.given(other, is).mean(from, to)
    }

    /// Share in which this is so, of the part of `[from, to)` in which `other` is known and so: P(this | other).
    pub fn share_given(
        &self,
        from: At,
        to: At,
        this_is: impl Fn(f64) -> bool,
        other: &Series,
        other_is: impl Fn(f64) -> bool,
    ) -> Option<f64> {
        self.given(other, other_is).share(from, to, this_is)
    }

    /// The part in which `other` is known and so.
    pub fn given(&self, other: &Series, is: impl Fn(f64) -> bool) -> Series {
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
        Series { steps }
    }

    /// How much of `[from, to)` is known, 0 to 1.
    pub fn known(&self, from: At, to: At) -> f64 {
        let known: i64 = self.clipped(from, to).map(|step| (step.to - step.from).0).sum();
        if to > from { known as f64 / (to - from).0 as f64 } else { 0.0 }
    }

    /// Steps that lie in `[from, to)` or reach into it: how many scrapes a figure of that window rests on.
    pub fn scrapes(&self, from: At, to: At) -> usize {
        self.clipped(from, to).count()
    }

    /// The steps of `[from, to)`, cut there.
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

/// When a page was looked at, and whether it said anything.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Scrapes {
    /// Instant, and whether the page was there and not empty; ascending.
    pub at: Vec<(At, bool)>,
    /// The usual distance between two.
    pub cadence: Option<Span>,
}

/// Beyond this many times the usual distance nothing is known between two scrapes.
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

    /// The stretches in which what was read holds.
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

    /// The last good scrape that is not after `at`.
    pub(crate) fn last_good(&self, at: At) -> Option<At> {
        let end = self.at.partition_point(|scrape| scrape.0 <= at);
        self.at[..end].iter().rev().find(|scrape| scrape.1).map(|scrape| scrape.0)
    }

    pub(crate) fn first_good(&self) -> Option<At> {
        self.at.iter().find(|scrape| scrape.1).map(|scrape| scrape.0)
    }
}

/// One series as it was read: a row per scrape, or per change.
pub(super) fn held(points: &[(At, f64)], scrapes: &Scrapes, known: &[(At, At)], factor: f64) -> Series {
    let mut steps = Vec::new();
    let mut stretch = 0;
    // Boundaries: the points themselves and, for a row per change, the scrapes between them, so that counts of scrapes are true.
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
    Series { steps }
}

/// Adds a stretch of one value, cut at the scrapes in it.
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
