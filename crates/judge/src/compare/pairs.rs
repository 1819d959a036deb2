//! Pairs of levels, divided into the units of the comparison.
//!
//! Level i of one run is paired with level i of the other; levels of one load are alternations of one test. Ten alternations are
//! the units themselves, so the interval includes changes from one to the next, of machine and neighbours too. Fewer alternations
//! are divided into about twenty intervals, each at least five of its slowest requests long.
//!
//! Changes between alternations are then tested by Student's t in addition to the flips (`Flips::of_turns`), and so are slow
//! changes within a single run. Changes from run to run are then *not* in the interval, which the finding reports.

use std::collections::HashMap;

use plimsoll_math::quantile::rank;
use plimsoll_model::{Attempt, Level};

use super::finding::ComparisonUnit;
use plimsoll_measure::columns::{Columns, INFINITE};
use plimsoll_measure::findings::LevelSummary;
use plimsoll_measure::server_side::LevelReport;

/// Minimum number of alternations to be the units themselves.
const ALTERNATIONS: usize = 10;
/// Desired number of units if levels are divided.
const SECTIONS: usize = 20;
/// Minimum number of units for a verdict: with six, one of 64 sign patterns is beyond 2.5 %, and eight leave a reserve.
pub const FEWEST: usize = 8;
/// Maximum number of units in the patterns of flips.
const MOST: usize = 60;
/// Minimum length of a unit, as a multiple of the slowest requests (p99).
const SLOWEST: f64 = 5.0;
/// Minimum length of a unit if requests are paired and the level is too short for [`FEWEST`] units otherwise.
///
/// Both sides of a unit have equal arrivals, so little correlation is left between units.
const SLOWEST_PAIRED: f64 = 3.0;

pub struct LevelArm<'a> {
    pub level: &'a Level,
    pub own: Vec<&'a Attempt>,
    pub columns: Columns,
    /// Index of the first row that counts.
    pub from: usize,
    /// Index after the last row that counts.
    pub to: usize,
    pub summary: &'a LevelSummary,
    /// Metrics of the server and its machine; `None` if there are none.
    pub server: Option<&'a LevelReport>,
}

impl<'a> LevelArm<'a> {
    /// Reads the records of a level; the window is that of its summary.
    pub fn read(level: &'a Level, own: Vec<&'a Attempt>, summary: &'a LevelSummary) -> LevelArm<'a> {
        let columns = Columns::read(&own);
        let from = columns.first_due_from(summary.window.start);
        let to = columns.first_due_from(summary.window.stop).max(from);
        LevelArm { level, own, columns, from, to, summary, server: None }
    }

    /// Returns the last record of a row.
    pub fn record(&self, row: usize) -> &'a Attempt {
        self.own[self.columns.last[row] as usize]
    }

    /// Returns the time from the first due time that counts to the end, in seconds.
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

/// A pair of levels that are compared.
pub struct LevelPair<'a> {
    pub base: LevelArm<'a>,
    pub candidate: LevelArm<'a>,
    /// Rows of requests with equal numbers that count on both sides, in the base's order.
    pub same: Vec<(usize, usize)>,
}

impl<'a> LevelPair<'a> {
    pub fn new(base: LevelArm<'a>, candidate: LevelArm<'a>) -> LevelPair<'a> {
        let rows = candidate.from..candidate.to;
        let by_number: HashMap<u64, usize> = rows.map(|row| (candidate.record(row).request, row)).collect();
        let same = (base.from..base.to)
            .filter_map(|row| Some((row, *by_number.get(&base.record(row).request)?)))
            .collect();
        LevelPair { base, candidate, same }
    }

    /// Returns the number of pairs with different lengths or classes, and with different known prompts.
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

    pub fn records(&self) -> impl Iterator<Item = (&'a Attempt, &'a Attempt)> {
        self.same.iter().map(|(a, b)| (self.base.record(*a), self.candidate.record(*b)))
    }
}

/// The rows of one unit, with their level pair.
pub struct UnitRows {
    pub pair: usize,
    pub base: Vec<usize>,
    pub candidate: Vec<usize>,
}

/// The levels of one load, divided into units.
pub struct CutLevels {
    /// Length of each level in seconds for [`FEWEST`] units; `None` if there are enough.
    pub needs_s: Option<f64>,
    pub unit: ComparisonUnit,
    pub units: Vec<UnitRows>,
    pub per_level: usize,
}

/// Divides the level pairs of one load into units. If requests are paired, so are the rows of a unit.
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
        unit: if alternations { ComparisonUnit::Alternation } else { ComparisonUnit::Section },
        units,
        per_level,
    }
}
