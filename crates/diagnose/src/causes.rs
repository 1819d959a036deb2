//! The table of causes: what is said of each, and which facts it shows. Adding a cause is a row of `causes.tsv` and, at most, one fact.

use std::sync::OnceLock;

use super::cause::{Cause, Layer};
use super::fact::Observed;

/// How often a fact is so: yes, no, unclear.
pub type Often = [f64; 3];

/// How often a fact is seen by accident as long as nothing was learnt of it: a detector asks for chances of one in a hundred or less.
pub const BY_ACCIDENT: Often = [0.004, 0.96, 0.036];

#[derive(Clone, Debug)]
pub struct CauseRow {
    pub cause: Cause,
    pub layer: Layer,
    /// A few words, as they stand in a headline.
    pub title: String,
    pub do_first: String,
    pub do_not: String,
    /// Facts of which one must be seen for it to be named; empty = it is what is left.
    pub decisive: Vec<Observed>,
    /// Facts that it shows nearly always.
    pub usual: Vec<Observed>,
    /// Facts that it shows at times.
    pub may: Vec<Observed>,
}

/// How far a cause has to do with a fact.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Shows {
    Usually,
    Maybe,
    /// It has nothing to do with it.
    Never,
}

impl CauseRow {
    /// How far it has to do with this fact. What is noticed any cause may show.
    pub fn shows(&self, fact: Observed) -> Shows {
        let is_rest = matches!(self.cause, Cause::Nothing | Cause::Unknown);
        match () {
            () if self.decisive.len() == 1 && self.decisive[0] == fact || self.usual.contains(&fact) => {
                Shows::Usually
            }
            () if self.decisive.contains(&fact) || self.may.contains(&fact) => Shows::Maybe,
            () if is_rest || fact.is_noticed() || fact == Observed::EngineKnows => Shows::Maybe,
            () => Shows::Never,
        }
    }

    /// How often it shows this fact as long as no case of it was seen, where the fact is seen so often by accident.
    pub fn presumed(&self, fact: Observed, by_accident: Often) -> Often {
        match self.shows(fact) {
            Shows::Never => by_accident,
            Shows::Usually => [0.85, 0.05, 0.10],
            Shows::Maybe if self.cause == Cause::Nothing => by_accident,
            Shows::Maybe if self.cause == Cause::Unknown && fact.is_noticed() => [0.4, 0.4, 0.2],
            Shows::Maybe if self.cause == Cause::Unknown && !self.may.contains(&fact) => {
                std::array::from_fn(|is| 0.97 * by_accident[is] + 0.03 * [0.15, 0.7, 0.15][is])
            }
            Shows::Maybe => [0.3, 0.5, 0.2],
        }
    }
}

const TABLE: &str = include_str!("causes.tsv");

/// Every cause, in the order of the table.
pub fn causes() -> &'static [CauseRow] {
    static ROWS: OnceLock<Vec<CauseRow>> = OnceLock::new();
    ROWS.get_or_init(|| parse(TABLE))
}

pub fn row(cause: Cause) -> &'static CauseRow {
    let rows = causes();
    // A test holds that every cause has a row.
    rows.iter().find(|row| row.cause == cause).unwrap_or(&rows[0])
}

fn parse(table: &str) -> Vec<CauseRow> {
    let lines = table.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.filter_map(parse_row).collect()
}

fn parse_row(line: &str) -> Option<CauseRow> {
    let mut columns = line.split('\t');
    let mut next = || columns.next();
    let word = |text: &str| serde_json::Value::String(text.to_owned());
    let cause = serde_json::from_value(word(next()?)).ok()?;
    let layer = serde_json::from_value(word(next()?)).ok()?;
    let (title, do_first, do_not) = (next()?.to_owned(), next()?.to_owned(), next()?.to_owned());
    let mut facts = || -> Option<Vec<Observed>> {
        let words = next()?.split_whitespace().filter(|word| *word != "-");
        words.map(Observed::of_word).collect()
    };
    Some(CauseRow {
        cause,
        layer,
        title,
        do_first,
        do_not,
        decisive: facts()?,
        usual: facts()?,
        may: facts()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_one_row_that_can_be_read() {
        let lines = TABLE.lines().filter(|line| !line.starts_with('#')).count() - 1;
        assert_eq!(
            causes().len(),
            lines,
            "a row that can't be read: {:?}",
            TABLE.lines().filter(|l| parse_row(l).is_none()).collect::<Vec<_>>()
        );
        for cause in Cause::ALL.into_iter().chain([Cause::Unknown]) {
            assert_eq!(causes().iter().filter(|row| row.cause == cause).count(), 1, "{cause:?}");
        }
    }
}
