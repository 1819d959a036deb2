//! How requests fail: turned away, cut short, in any other way, or all of them for a while.
//!
//! Each way is counted by itself, because each is another's doing; what an outage makes is told once, as the outage. A rate of errors by
//! time lost: a share of failures that matters shows in a few dozen requests, a change of it in thousands.

use plimsoll_model::How;

use super::{ms, over, shown};
use crate::active::block::{BlockRow, ExperimentLevel, share};
use crate::active::plan::ExperimentKind;
use crate::fact::{Is, Observed};
use crate::facts::Finding;

/// Share of requests that fail from which on it matters: its lower bound has to be over it.
const FAILING: f64 = 0.005;
/// Requests without any failure after which a share of failures that matters (1 in 20) would have shown in 19 of 20 runs.
const ENOUGH: usize = 60;
/// Failures, all on kept connections, and fresh ones without one, from which on it is said: by chance, of a fifth that are fresh, once in
/// a hundred thousand.
const KEPT: usize = 20;

/// How requests fail, each way by itself, and whether the target was away for a while.
pub(crate) fn read(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let rows: Vec<&BlockRow> = blocks.iter().flat_map(own).collect();
    let outage = outage(blocks);
    // One that has not ended is told by none of these either: what a restart looks like before it is over is no rate of errors.
    let dead = outage.as_ref().is_some_and(|shown| shown.is != Is::No);
    let turned = |row: &BlockRow| row.how == How::Shed || row.status == Some(429);
    let cut = |row: &BlockRow| matches!(row.how, How::Truncated | How::StreamError) || cut_short(row);
    let other = |row: &BlockRow| row.failed() && !turned(row) && !cut(row);
    let mut all = Vec::new();
    let kinds: [(Observed, Test<'_>, &str); 3] = [
        (Observed::TurnedAway, &turned, "were turned away (429 or 503)"),
        (Observed::CutShort, &cut, "ended in the middle of the answer"),
        (Observed::Errors, &other, "failed"),
    ];
    for (fact, is, words) in kinds {
        let struck: Vec<&BlockRow> = rows.iter().copied().filter(|row| is(row)).collect();
        let (k, n) = (struck.len(), rows.len());
        let Some(value) = share(k, n) else { continue };
        let state = match over(&value, FAILING) {
            // A replica that is down makes all of them; it is said once, as an outage.
            Is::Yes if dead => Is::Unclear,
            Is::Yes => Is::Yes,
            _ if k == 0 && n >= ENOUGH => Is::No,
            _ => Is::Unclear,
        };
        let how = if fact == Observed::Errors { how(&struck, &rows) } else { String::new() };
        all.push(shown(fact, state, format!("{k} of {n} requests {words}{how}"), Some(value), Some(FAILING)));
    }
    all.extend(outage);
    all
}

/// The requests whose failures are the target's. One that was refused as it is (4xx) where an experiment made it longer than the
/// traffic's own is the experiment's doing.
fn own(block: &ExperimentLevel) -> impl Iterator<Item = &BlockRow> {
    let changed =
        matches!(block.kind, ExperimentKind::Prompts | ExperimentKind::Answers | ExperimentKind::Repeats);
    block.rows.iter().filter(move |row| !(changed && row.how == How::ClientError))
}

/// How most of them failed, in the server's own words where it has some; and whether only kept connections did.
fn how(struck: &[&BlockRow], rows: &[&BlockRow]) -> String {
    let mut ways: Vec<((How, Option<u16>), usize)> = Vec::new();
    for row in struck {
        let way = (row.how, row.status);
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, n)) => *n += 1,
            None => ways.push((way, 1)),
        }
    }
    let Some((way, n)) = ways.into_iter().max_by_key(|(_, n)| *n) else { return String::new() };
    let of = || struck.iter().filter(|row| (row.how, row.status) == way);
    let status = way.1.map_or_else(|| way.0.name().replace('_', " "), |status| status.to_string());
    let words = of().find_map(|row| row.error.clone()).map_or_else(String::new, |error| format!(": {error}"));
    let fresh = rows.iter().filter(|row| row.connect.is_some()).count();
    let kept = n >= KEPT && fresh >= KEPT && of().all(|row| row.connect.is_none());
    let kept = if kept {
        format!("; all on kept connections, and none of {fresh} on fresh ones")
    } else {
        String::new()
    };
    format!(" ({n} with {status}{words}{kept})")
}

/// A way to fail.
type Test<'a> = &'a dyn Fn(&BlockRow) -> bool;

/// A stream that was reset after its first token.
fn cut_short(row: &BlockRow) -> bool {
    row.how == How::Reset && row.first.is_some() && !row.tokens.is_empty()
}

/// Experiments in a row without an answer from which a target is gone, though nobody saw it come back: some of them are light.
const GONE: usize = 3;

/// A stretch in which nearly all fail, with answers on both sides of it; or that goes on through experiment after experiment.
fn outage(blocks: &[ExperimentLevel]) -> Option<Finding> {
    let mut rows: Vec<(&BlockRow, usize)> = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        rows.extend(own(block).map(|row| (row, number)));
    }
    rows.sort_by_key(|(row, _)| row.due);
    let (rows, of): (Vec<&BlockRow>, Vec<usize>) = rows.into_iter().unzip();
    let failed: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].failed()).collect();
    let (Some(&first), Some(&last)) = (failed.first(), failed.last()) else {
        // Nothing is dead while nothing fails, however few were sent.
        let state = if rows.len() >= ENOUGH { Is::No } else { Is::Unclear };
        return Some(shown(Observed::Outage, state, "nothing failed".into(), None, None));
    };
    let stretch = &rows[first..=last];
    // Who turns requests away or refuses them is there.
    let gone = |row: &BlockRow| row.failed() && !matches!(row.how, How::Shed | How::ClientError);
    let dead = stretch.iter().filter(|row| gone(row)).count();
    let lasted_s = (rows[last].end.unwrap_or(rows[last].due) - rows[first].due) as f64 * 1e-9;
    let (before, after) = (first, rows.len() - 1 - last);
    let all = dead >= 5 && dead as f64 >= 0.8 * stretch.len() as f64 && before >= 5;
    let mut experiments: Vec<usize> = of[first..=last].to_vec();
    experiments.dedup();
    let says = format!(
        "{dead} of {} requests in a row failed within {}; {before} before and {after} after them did not",
        stretch.len(),
        ms(lasted_s)
    );
    let state = match all {
        true if after >= 5 || experiments.len() >= GONE => Is::Yes,
        true => Is::Unclear,
        false => Is::No,
    };
    Some(shown(Observed::Outage, state, says, share(dead, stretch.len()), Some(0.8)))
}
