//! Levels that stand for one another, cut into the units that are compared.
//!
//! Level i of one run stands for level i of the other; levels of one load are alternations of one question. Ten
//! alternations are units as they are: what changes from one to the next, machine and neighbours included, is then in the
//! interval. Fewer are cut into some twenty stretches, none shorter than five of its slowest requests. What changes from one
//! alternation to the next is then held against by Student's t beside the flips (`Flips::of_turns`), as is what changes slowly within a
//! single run; what changes from run to run is then *not* in the interval, which the finding says.

use std::collections::HashMap;

use plimsoll_math::quantile::rank;
use plimsoll_model::{Attempt, Level};

use super::finding::Unit;
use plimsoll_measure::columns::{Columns, INFINITE};
use plimsoll_measure::findings::LevelSummary;

/// Alternations from which on they are the units themselves.
const ALTERNATIONS: usize = 10;
/// Units wanted where levels are cut.
const SECTIONS: usize = 20;
/// Units below which nothing is decided: of six flips out of 64 patterns one is beyond 2.5 %, and eight leave some room.
pub const FEWEST: usize = 8;
/// Units that the patterns of flips hold.
const MOST: usize = 60;
/// A unit lasts at least as long as this many of the slowest requests (p99).
const SLOWEST: f64 = 5.0;
/// The same where requests pair and the level has not room for [`FEWEST`] units else: both arms of a unit met the same arrivals, so little is left
/// that one unit hands to the next.
const SLOWEST_PAIRED: f64 = 3.0;

/// One level of one run.
pub struct LevelArm<'a> {
    /// The level.
    pub level: &'a Level,
    /// Its records.
    pub own: Vec<&'a Attempt>,
    /// The same as columns.
    pub columns: Columns,
    /// First row that counts.
    pub from: usize,
    /// Rows from here on do not.
    pub to: usize,
    /// What was found of it.
    pub summary: &'a LevelSummary,
}

impl<'a> LevelArm<'a> {
    /// Reads the records of a level; the window is the one that its summary found.
    pub fn read(level: &'a Level, own: Vec<&'a Attempt>, summary: &'a LevelSummary) -> LevelArm<'a> {
        let columns = Columns::read(&own);
        let from = columns.first_due_from(summary.window.start);
        let to = columns.first_due_from(summary.window.stop).max(from);
        LevelArm { level, own, columns, from, to, summary }
    }

    /// The last record of a row.
    pub fn record(&self, row: usize) -> &'a Attempt {
        self.own[self.columns.last[row] as usize]
    }

    /// Time between the first due instant that counts and the end, s.
    pub fn length_s(&self) -> f64 {
        let first = self.columns.due.get(self.from).copied().unwrap_or(self.level.start.0);
        (self.level.stop.0 - first).max(0) as f64 / 1e9
    }

    fn slowest_s(&self) -> f64 {
        let finite = |ns: &&i64| **ns != INFINITE && **ns >= 0;
        let mut e2e: Vec<i64> = self.columns.e2e[self.from..self.to].iter().filter(finite).copied().collect();
        let Some(k) = rank(e2e.len(), 0.99).checked_sub(1) else { return 0.0 };
        *e2e.select_nth_unstable(k).1 as f64 / 1e9
    }
}

/// Two levels that stand for one another.
pub struct LevelPair<'a> {
    /// Of the base.
    pub base: LevelArm<'a>,
    /// Of the candidate.
    pub candidate: LevelArm<'a>,
    /// Rows of requests of one number that count on both sides, in the base's order.
    pub same: Vec<(usize, usize)>,
}

impl<'a> LevelPair<'a> {
    /// Puts two levels side by side.
    pub fn new(base: LevelArm<'a>, candidate: LevelArm<'a>) -> LevelPair<'a> {
        let rows = candidate.from..candidate.to;
        let by_number: HashMap<u64, usize> = rows.map(|row| (candidate.record(row).request, row)).collect();
        let same = (base.from..base.to)
            .filter_map(|row| Some((row, *by_number.get(&base.record(row).request)?)))
            .collect();
        LevelPair { base, candidate, same }
    }

    /// Paired requests of another length or class, and with another prompt, where both sides know it.
    pub fn unlike(&self) -> (usize, usize) {
        let (mut sizes, mut prompts) = (0, 0);
        for (a, b) in self.records() {
            let size = |r: &Attempt| (r.asked_prompt, r.asked_output, r.class);
            sizes += usize::from(size(a) != size(b));
            let known = !a.prompt_blocks.is_empty() && !b.prompt_blocks.is_empty();
            prompts += usize::from(known && a.prompt_blocks != b.prompt_blocks);
        }
        (sizes, prompts)
    }

    /// The paired records.
    pub fn records(&self) -> impl Iterator<Item = (&'a Attempt, &'a Attempt)> {
        self.same.iter().map(|(a, b)| (self.base.record(*a), self.candidate.record(*b)))
    }
}

/// The rows of one unit, with the level they are of.
pub struct UnitRows {
    /// Index of the level pair.
    pub pair: usize,
    /// Rows of the base.
    pub base: Vec<usize>,
    /// Rows of the candidate.
    pub candidate: Vec<usize>,
}

/// The levels of one load, cut.
pub struct CutLevels {
    /// Seconds that each level would have to last for [`FEWEST`] units; `None` where there are as many.
    pub needs_s: Option<f64>,
    /// What one unit is.
    pub unit: Unit,
    /// The units.
    pub units: Vec<UnitRows>,
    /// Units per level.
    pub per_level: usize,
}

/// Cuts level pairs of one load into units. Where requests pair, so do the rows of a unit, one by one.
pub fn cut(pairs: &[LevelPair], paired: bool) -> CutLevels {
    let alternations = pairs.len() >= ALTERNATIONS;
    let wanted = if alternations { 1 } else { SECTIONS.div_ceil(pairs.len().max(1)) };
    let shortest = if paired { SLOWEST_PAIRED } else { SLOWEST };
    let room = |times: f64| {
        let of = |arm: &LevelArm| match arm.slowest_s() {
            slowest if slowest > 0.0 => ((arm.length_s() / (times * slowest)) as usize).max(1),
            _ => usize::MAX,
        };
        pairs.iter().flat_map(|pair| [of(&pair.base), of(&pair.candidate)]).min().unwrap_or(1)
    };
    let fewest = FEWEST.div_ceil(pairs.len().max(1));
    let per_level = wanted.min(room(SLOWEST).max(fewest.min(room(shortest))));
    let few = per_level * pairs.len().min(MOST) < FEWEST;
    let needs_s = few.then(|| {
        let slowest = pairs.iter().flat_map(|pair| [pair.base.slowest_s(), pair.candidate.slowest_s()]);
        fewest as f64 * shortest * slowest.fold(0.0, f64::max)
    });
    let mut units = Vec::new();
    for (pair, levels) in pairs.iter().take(MOST).enumerate() {
        let (base, candidate): (Vec<usize>, Vec<usize>) = if paired {
            levels.same.iter().copied().unzip()
        } else {
            let rows = |arm: &LevelArm| (arm.from..arm.to).collect();
            (rows(&levels.base), rows(&levels.candidate))
        };
        for section in 0..per_level {
            let part = |rows: &[usize]| {
                rows[section * rows.len() / per_level..(section + 1) * rows.len() / per_level].to_vec()
            };
            units.push(UnitRows { pair, base: part(&base), candidate: part(&candidate) });
        }
    }
    CutLevels {
        needs_s,
        unit: if alternations { Unit::Alternation } else { Unit::Section },
        units,
        per_level,
    }
}
