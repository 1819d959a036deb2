//! Stretches of time that may overlap, as a sorted list of those that do not: unions, what two share, what one leaves of another.

/// Stretches `[from, to)` in ns, sorted, apart from each other, none empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stretches(Vec<(i64, i64)>);

impl Stretches {
    /// The union of any stretches; those that are empty or end before they begin are nothing.
    pub fn union(mut all: Vec<(i64, i64)>) -> Stretches {
        all.retain(|(from, to)| from < to);
        all.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(all.len());
        for (from, to) in all {
            match merged.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        Stretches(merged)
    }

    pub fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }

    /// Their length, ns.
    pub fn length_ns(&self) -> i64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }

    /// What both hold.
    pub fn and(&self, other: &Stretches) -> Stretches {
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
        Stretches(both)
    }

    /// What is left of this without the other.
    pub fn without(&self, other: &Stretches) -> Stretches {
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
        Stretches(left)
    }
}
