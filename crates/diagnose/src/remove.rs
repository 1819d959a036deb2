//! Taking the effect of a cause out, so that what is left can be judged once more.
//!
//! Rows that the cause struck are left out (failures, freezes, a replica, a stretch of time), or a constant is subtracted. Of answers that
//! were held back on their way only the end came when it was made: they are judged by it, and the baseline's as well. Where nothing of
//! this is possible (a queue has no part that can be cut out), `apart` says what may still be told.

use super::Cause;
use super::bench::{Bench, BenchArm};
use super::fired::Fired;
use super::seen::RequestRow;

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
        let name = seen.replicas.get(usize::from(replica)).cloned();
        seen.retain(|row| row.replica != Some(replica));
        leave_out_alone(&mut bench.candidate, name.as_ref());
    }
    let seen = &mut bench.candidate.seen;
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
    if struck.lumps {
        by_its_end(&mut bench.candidate);
        bench.base.iter_mut().for_each(by_its_end);
    }
    let acted = struck.stages
        || struck.lumps
        || failed
        || struck.replica.is_some()
        || !struck.during.is_empty()
        || struck.delay_s > 0.0;
    // With little left, the rest is another level altogether.
    (acted && bench.candidate.seen.rows.len() * 3 >= before).then_some(())
}

/// Leaves this replica's single requests out, whatever number it has among those of the probe.
fn leave_out_alone(arm: &mut BenchArm<'_>, name: Option<&String>) {
    let of = arm.probe.as_ref().filter(|_| arm.probed).unwrap_or(&arm.seen);
    let place = of.replicas.iter().position(|replica| Some(replica) == name).map(|place| place as u16);
    arm.alone.retain(|row| row.replica.is_none() || row.replica != place);
}

/// Forgets when each token came: the time per token is that of the whole answer, from its sending to its end.
fn by_its_end(arm: &mut BenchArm<'_>) {
    let forget = |row: &mut RequestRow| {
        row.tpot = match row.ok && row.output >= 1.0 {
            true => (row.end - row.sent_last) / row.output,
            false => f64::NAN,
        };
        (row.events, row.lumped, row.gap_max, row.gap_p50) = (0, f64::NAN, f64::NAN, f64::NAN);
        (row.ttft, row.ttft_sent) = (f64::NAN, f64::NAN);
    };
    arm.alone.iter_mut().for_each(forget);
    for seen in std::iter::once(&mut arm.seen).chain(&mut arm.probe) {
        seen.rows.iter_mut().for_each(forget);
        (seen.gaps, seen.paces, seen.gap_p50) = (Vec::new(), Vec::new(), f64::NAN);
    }
}

fn overlaps(row: &RequestRow, from: f64, to: f64) -> bool {
    row.due < to && row.end > from
}
