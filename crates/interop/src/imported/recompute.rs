//! Recomputation of a tool's aggregates from its rows, by its definitions. If they differ, the file is misunderstood or wrong.

use plimsoll_model::{ForeignPart, ForeignStatistic, Rank};
use schemars::JsonSchema;
use serde::Serialize;

/// Relative difference up to which two floating-point computations of one figure agree.
const AGREES: f64 = 1e-9;

/// The comparison of a part's aggregates with recomputed ones.
#[derive(Clone, PartialEq, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Recomputed")]
pub struct AggregateComparison {
    /// Number of aggregates that follow from the rows.
    pub equal: u64,
    /// Number of aggregates that could be recomputed.
    pub of: u64,
    /// Aggregates that do not follow from the rows.
    pub differ: Vec<DifferingAggregate>,
    /// Aggregates that the file has no data to recompute.
    pub beyond: Vec<String>,
    /// Quantities of the aggregates.
    pub quantities: Vec<ToolQuantity>,
}

/// An aggregate that does not follow from the rows.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Differing")]
pub struct DifferingAggregate {
    /// Name of the aggregate in the file.
    pub label: String,
    /// Value that the tool's file states.
    pub said: f64,
    /// Value computed from the rows; `null` if there is no row for it.
    pub recomputed: Option<f64>,
}

/// A quantity in another tool's file.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Quantity")]
pub struct ToolQuantity {
    /// Name that the tool uses for the quantity.
    pub name: String,
    /// Definition of the quantity, as a formula or phrase.
    pub definition: String,
    /// Number of observations behind the quantity.
    pub n: u64,
    /// Number of its aggregates in the file.
    pub aggregates: u64,
    /// Number of its aggregates that follow from the rows.
    pub equal: u64,
}

/// Recomputes all aggregates of a part.
pub(super) fn recompute(part: &ForeignPart) -> AggregateComparison {
    let mut found = AggregateComparison::default();
    let sorted: Vec<Vec<f64>> = part
        .columns
        .iter()
        .map(|column| {
            let mut values = column.values.clone();
            values.sort_unstable_by(f64::total_cmp);
            values
        })
        .collect();
    let mut tally = vec![(0u64, 0u64); part.columns.len()];
    for claim in &part.claims {
        let Some(at) = claim.column.filter(|at| *at < sorted.len()) else {
            found.beyond.push(claim.label.clone());
            continue;
        };
        let ours = value(&part.columns[at].values, &sorted[at], claim.statistic).map(|v| v * claim.scale);
        let near = |ours: f64| {
            let size = ours.abs().max(claim.value.abs());
            (ours - claim.value).abs() <= (AGREES * size).max(claim.rounded_to).max(1e-12)
        };
        let is_equal = ours.is_some_and(near);
        found.of += 1;
        tally[at].0 += 1;
        if is_equal {
            found.equal += 1;
            tally[at].1 += 1;
        } else {
            found.differ.push(DifferingAggregate {
                label: claim.label.clone(),
                said: claim.value,
                recomputed: ours,
            });
        }
    }
    let said = part.columns.iter().zip(&tally).filter(|(_, tally)| tally.0 > 0);
    found.quantities = said
        .map(|(column, (aggregates, equal))| ToolQuantity {
            name: column.name.clone(),
            definition: column.definition.clone(),
            n: column.values.len() as u64,
            aggregates: *aggregates,
            equal: *equal,
        })
        .collect();
    found
}

/// Returns a statistic of values; `sorted` contains the values in ascending order.
fn value(values: &[f64], sorted: &[f64], statistic: ForeignStatistic) -> Option<f64> {
    let n = values.len() as f64;
    let sum: f64 = values.iter().sum();
    let squares = || values.iter().map(|v| (v - sum / n).powi(2)).sum::<f64>();
    match statistic {
        ForeignStatistic::Sum => Some(sum),
        ForeignStatistic::Count => Some(n),
        ForeignStatistic::PerSecond { seconds } => Some(sum / seconds),
        _ if values.is_empty() => None,
        ForeignStatistic::Mean => Some(sum / n),
        ForeignStatistic::Deviation => Some((squares() / n).sqrt()),
        ForeignStatistic::SampleDeviation => (n > 1.0).then(|| (squares() / (n - 1.0)).sqrt()),
        ForeignStatistic::Least => sorted.first().copied(),
        ForeignStatistic::Most => sorted.last().copied(),
        ForeignStatistic::Quantile { p, rank } => quantile(sorted, p, rank),
    }
}

/// Returns the p-quantile by a tool's rank.
pub(super) fn quantile(sorted: &[f64], p: f64, rank: Rank) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    // In floating point 0.9 of 120 is 107.99999999999999, but the rank is 108.
    let floor = |place: f64| ((place + 1e-9).floor().max(0.0) as usize).min(last);
    match rank {
        Rank::Above => sorted.get(floor(sorted.len() as f64 * p)).copied(),
        Rank::Summed => {
            let mut sum = 0.0;
            let equal = sorted.chunk_by(|a, b| a == b);
            let reached = equal.filter_map(|equal| {
                sum += equal.len() as f64 / sorted.len() as f64;
                (sum >= p).then(|| equal.first())?
            });
            reached.copied().next().or(sorted.last().copied())
        }
        Rank::Below => sorted.get(floor(last as f64 * p)).copied(),
        Rank::Linear => {
            let place = last as f64 * p;
            let low = floor(place);
            let (a, b) = (sorted.get(low)?, sorted.get((low + 1).min(last))?);
            Some(a + (b - a) * (place - low as f64).max(0.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calculated by hand; NumPy's `percentile([1, 2, 3, 4], 90)` is 3.7.
    #[test]
    fn each_tools_rank_is_its_own() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        let of = |p, rank| quantile(&sorted, p, rank).expect("four values");
        assert!((of(0.9, Rank::Linear) - 3.7).abs() < 1e-12);
        assert_eq!((of(0.5, Rank::Above), of(0.5, Rank::Below)), (3.0, 2.0));
        assert_eq!((of(1.0, Rank::Above), of(0.0, Rank::Below)), (4.0, 1.0));
        assert_eq!(quantile(&[], 0.5, Rank::Linear), None);
        // 30 times 1/60 is 0.49999999999999983 in floats, 3 times 1/60 is 0.05.
        let sixty: Vec<f64> = (0..60).map(f64::from).collect();
        let of = |p| quantile(&sixty, p, Rank::Summed).expect("sixty values");
        assert_eq!((of(0.05), of(0.5), of(0.9), of(0.99)), (2.0, 30.0, 53.0, 59.0));
    }
}
