//! Sets of time intervals as sorted lists without overlaps: union, intersection and difference.

/// Time intervals `[from, to)` in ns, sorted, disjoint and not empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IntervalSet(Vec<(i64, i64)>);

impl IntervalSet {
    /// Returns the union of any intervals; empty intervals, and intervals that end before they start, are dropped.
    pub fn union(mut all: Vec<(i64, i64)>) -> IntervalSet {
        all.retain(|(from, to)| from < to);
        all.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        IntervalSet(merged)
    }

    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }

    /// Returns the total length in ns.
    pub fn length_ns(&self) -> i64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }

    /// Returns the intersection of both sets.
    pub fn and(&self, other: &IntervalSet) -> IntervalSet {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(one), Some(two)) = (a.peek(), b.peek()) {
            let (from, to) = (one.0.max(two.0), one.1.min(two.1));
            if from < to {
                both.push((from, to));
            }
            if one.1 < two.1 {
                a.next()
            } else {
                b.next()
            };
        }
        IntervalSet(both)
    }

    /// Returns this set without the other.
    pub fn without(&self, other: &IntervalSet) -> IntervalSet {
        let mut left = Vec::new();
        let mut others = other.0.iter().peekable();
        for (from, to) in self.iter() {
            let mut at = from;
            while let Some((cut_from, cut_to)) = others.peek() {
                if *cut_to <= at {
                    others.next();
                    continue;
                }
                if *cut_from >= to {
                    break;
                }
                if *cut_from > at {
                    left.push((at, *cut_from));
                }
                at = at.max(*cut_to);
                if *cut_to >= to {
                    break;
                }
                others.next();
            }
            if at < to {
                left.push((at, to));
            }
        }
        IntervalSet(left)
    }
}
