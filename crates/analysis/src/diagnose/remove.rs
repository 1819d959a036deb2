//! Taking the effect of a cause out, so that what is left can be judged once more.
//!
//! Rows that the cause struck are left out (failures, freezes, a replica, a stretch of time), or a constant is subtracted.
//! Where neither is possible (a queue has no part that can be cut out) nothing is said about a second cause.

use super::Cause;
use super::bench::Bench;
use super::rules::Fired;
use super::seen::Row;

/// What of a level a cause struck.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Struck {
    /// Stretches of time, s since the level began: requests in flight during one are left out.
    pub during: Vec<(f64, f64)>,
    /// Replica: its requests are left out.
    pub replica: Option<u16>,
    /// Seconds that every first token came later.
    pub delay_s: f64,
    /// What stages before the engine take more than the baseline's is subtracted; where none is told, the request is left out.
    pub stages: bool,
}

/// Takes the effect out of the candidate. `None` where it can't be.
pub fn effect(bench: &mut Bench<'_>, found: &Fired) -> Option<()> {
    let struck = &found.struck;
    let seen = &mut bench.candidate.seen;
    let before = seen.rows.len();
    let failed = matches!(found.cause, Cause::StreamDisconnect | Cause::ServerErrors | Cause::RateLimit);
    if failed {
        seen.retain(|row| row.ok && row.attempts == 1);
    }
    if let Some(replica) = struck.replica {
        seen.retain(|row| row.replica != Some(replica));
    }
    if !struck.during.is_empty() {
        seen.retain(|row| !struck.during.iter().any(|(from, to)| overlaps(row, *from, *to)));
    }
    if struck.delay_s > 0.0 {
        for row in seen.rows.iter_mut().chain(&mut bench.candidate.alone) {
            row.ttft -= struck.delay_s;
            row.ttft_sent -= struck.delay_s;
            row.e2e -= struck.delay_s;
        }
    }
    if struck.stages {
        let usual = bench.base.as_ref().map_or(0.0, |base| {
            let mut told = base.seen.finite(|row| row.before_engine().unwrap_or(f64::NAN));
            plimsoll_math::quantile::order_statistic(&mut told, 0.5).unwrap_or(0.0)
        });
        let seen = &mut bench.candidate.seen;
        seen.retain(|row| row.before_engine().is_some());
        for row in seen.rows.iter_mut().chain(&mut bench.candidate.alone) {
            let over = row.before_engine().map_or(0.0, |took| (took - usual).max(0.0));
            row.ttft -= over;
            row.ttft_sent -= over;
            row.e2e -= over;
        }
    }
    let acted = struck.stages
        || failed
        || struck.replica.is_some()
        || !struck.during.is_empty()
        || struck.delay_s > 0.0;
    // With little left, the rest is another level altogether.
    (acted && bench.candidate.seen.rows.len() * 3 >= before).then_some(())
}

fn overlaps(row: &Row, from: f64, to: f64) -> bool {
    row.due < to && row.end > from
}
