//! The table of causes: the texts of each cause and the facts that it shows. To add a cause, add a row to
//! `causes.tsv` and at most one fact.

use std::sync::OnceLock;

use super::cause::{Cause, Layer};
use super::fact::Observed;

/// Frequencies of the answers of a fact: yes, no, unclear.
pub type FactFrequency = [f64; 3];

/// Frequencies of a fact without a cause, before anything is learnt of the fact. Detectors use error probabilities of
/// 0.01 or less.
pub const BY_ACCIDENT: FactFrequency = [0.004, 0.96, 0.036];

/// One row of the table of causes.
#[derive(Clone, Debug)]
pub struct CauseRow {
    pub cause: Cause,
    pub layer: Layer,
    pub title: String,
    pub do_first: String,
    pub do_not: String,
    /// Facts; at least one must be seen before the cause is named. Empty: the cause is the remainder.
    pub decisive: Vec<Observed>,
    /// Facts that the cause shows nearly always.
    pub usual: Vec<Observed>,
    /// Facts that the cause shows at times.
    pub may: Vec<Observed>,
}

/// The relation of a cause to a fact.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum FactRelation {
    /// The cause shows the fact nearly always.
    Usually,
    /// The cause shows the fact at times.
    Maybe,
    /// The cause does not influence the fact.
    Never,
}

impl CauseRow {
    /// Returns the relation to `fact`. Any cause may show a symptom.
    pub fn shows(&self, fact: Observed) -> FactRelation {
        let is_rest = matches!(self.cause, Cause::Nothing | Cause::Unknown);
        match () {
            () if self.decisive.len() == 1 && self.decisive[0] == fact || self.usual.contains(&fact) => {
                FactRelation::Usually
            }
            () if self.decisive.contains(&fact) || self.may.contains(&fact) => FactRelation::Maybe,
            () if is_rest || fact.is_noticed() || fact == Observed::EngineKnows => FactRelation::Maybe,
            () => FactRelation::Never,
        }
    }

    /// Returns the presumed frequencies of `fact` for a cause without observed cases. `by_accident` has the
    /// frequencies without a cause.
    pub fn presumed(&self, fact: Observed, by_accident: FactFrequency) -> FactFrequency {
        match self.shows(fact) {
            FactRelation::Never => by_accident,
            FactRelation::Usually => [0.85, 0.05, 0.10],
            FactRelation::Maybe if self.cause == Cause::Nothing => by_accident,
            FactRelation::Maybe if self.cause == Cause::Unknown && fact.is_noticed() => [0.4, 0.4, 0.2],
            FactRelation::Maybe if self.cause == Cause::Unknown && !self.may.contains(&fact) => {
                std::array::from_fn(|is| 0.97 * by_accident[is] + 0.03 * [0.15, 0.7, 0.15][is])
            }
            FactRelation::Maybe => [0.3, 0.5, 0.2],
        }
    }
}

const TABLE: &str = include_str!("causes.tsv");

pub fn causes() -> &'static [CauseRow] {
    static ROWS: OnceLock<Vec<CauseRow>> = OnceLock::new();
    ROWS.get_or_init(|| parse(TABLE))
}

pub fn row(cause: Cause) -> &'static CauseRow {
    let rows = causes();
    // The fallback is never used because a test checks that every cause has a row.
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
