//! Results of each endpoint of a load with several endpoints.
//!
//! Requests are assigned to endpoints in rotation and not at random. An endpoint's arrivals are therefore more even than the
//! load's, as behind a load balancer with rotation. Its figures apply to such arrivals.

use plimsoll_model::At;

use crate::columns::Columns;
use crate::findings::{Percentiles, TargetSummary};
use crate::order::percentiles;
use crate::summary::{counts_of, per_second};

/// Returns the results of each endpoint for the requests `from..to` in a window; empty if all went to the first.
pub(crate) fn figures(
    columns: &Columns,
    (from, to): (usize, usize),
    (start, stop): (At, At),
) -> Vec<TargetSummary> {
    let Some(most) = columns.target.iter().max() else { return Vec::new() };
    let length_s = (stop - start).as_secs_f64();
    let (leading, _) = columns.leading();
    let of = |target: u16| {
        let rows: Vec<usize> = (0..columns.len()).filter(|row| columns.target[*row] == target).collect();
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
        TargetSummary {
            target,
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
    (0..=*most).map(of).collect()
}
