//! Results of parts of a level's requests: of each endpoint, and of each class.
//!
//! Requests are assigned to endpoints in rotation and not at random. An endpoint's arrivals are therefore more even than the
//! load's, as behind a load balancer with rotation. Its figures apply to such arrivals.

use plimsoll_model::At;

use crate::columns::Columns;
use crate::findings::{ClassSummary, GroupSummary, Percentiles, TargetSummary};
use crate::order::percentiles;
use crate::summary::{counts_of, per_second};

/// The requests `from..to` of a window between two times.
type WindowRows = ((usize, usize), (At, At));

/// Returns the results of each endpoint; empty if all requests went to the first.
pub(crate) fn of_targets(columns: &Columns, window: WindowRows) -> Vec<TargetSummary> {
    let of = |(target, of)| TargetSummary { target, of };
    (0..).zip(figures(columns, &columns.target, window)).map(of).collect()
}

/// Returns the results of each class; empty if all requests have the first.
pub(crate) fn of_classes(columns: &Columns, window: WindowRows) -> Vec<ClassSummary> {
    let of = |(class, of)| ClassSummary { class, of };
    (0..).zip(figures(columns, &columns.class, window)).map(of).collect()
}

/// Returns the results of each group. `group` has the group of each row, or is empty if all rows belong to the first.
fn figures(columns: &Columns, group: &[u16], ((from, to), (start, stop)): WindowRows) -> Vec<GroupSummary> {
    let Some(most) = group.iter().max() else { return Vec::new() };
    let length_s = (stop - start).as_secs_f64();
    let (leading, _) = columns.leading();
    let mut rows_of: Vec<Vec<usize>> = vec![Vec::new(); usize::from(*most) + 1];
    group.iter().enumerate().for_each(|(row, of)| rows_of[usize::from(*of)].push(row));
    let of = |rows: Vec<usize>| {
        let due: Vec<usize> = rows.iter().copied().filter(|row| (from..to).contains(row)).collect();
        let set = |metric: &str, values: &[i64]| -> Option<Percentiles> {
            let own: Vec<i64> = due.iter().map(|row| values[*row]).collect();
            percentiles(metric, &own, length_s).map(|(set, _)| set)
        };
        let ended = |row: &&usize| {
            columns.fate[**row].ended_well() && (start.0..stop.0).contains(&columns.end[**row])
        };
        let done: Vec<i64> = rows.iter().filter(ended).map(|row| columns.end[*row]).collect();
        let n = done.len();
        let (by_outcome, finished) = counts_of(columns, &due);
        GroupSummary {
            requests: due.len() as u64,
            finished,
            failed: due.len() as u64 - finished,
            by_outcome,
            achieved_per_s: per_second(done.into_iter().map(|end| (end, 1.0)), (start, stop), n),
            ttft: if leading == "ttft" { set("ttft", &columns.ttft) } else { None },
            tpot: set("tpot", &columns.tpot),
            e2e: set("e2e", &columns.e2e),
        }
    };
    rows_of.into_iter().map(of).collect()
}
