//! The endpoints of a load that goes to several: what each came to, beside the whole.
//!
//! Requests are dealt to endpoints in turn and not by chance, so that an endpoint's own arrivals are more even than the load's, as they
//! are behind a balancer that does the same. Its figures hold for that.

use plimsoll_model::At;

use crate::columns::Columns;
use crate::findings::{Percentiles, TargetSummary};
use crate::order::percentiles;
use crate::summary::{counts_of, per_second};

/// What each endpoint came to, of the requests `from..to` in a window; nothing where all went to the first.
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
