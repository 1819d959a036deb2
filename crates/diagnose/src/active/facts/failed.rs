//! Facts on failures: rejections, incomplete responses, other errors, and an outage.
//!
//! Each kind is counted separately, because each has another cause. Failures during an outage are reported once, as
//! the outage. Comparing error rates over time was rejected: a significant share of failures shows in a few dozen
//! requests, a change of it only in thousands.

use plimsoll_model::How;

use super::{ms, over, shown};
use crate::active::block::{BlockRow, ExperimentLevel, share};
use crate::active::plan::ExperimentKind;
use crate::fact::{FactState, Observed};
use crate::facts::Finding;

/// Share of failed requests that its lower bound must exceed.
const FAILING: f64 = 0.005;
/// Number of requests without failure after which a share of 1 in 20 would have shown in 19 of 20 runs.
const ENOUGH: usize = 60;
/// Minimum number of failures, all on reused connections and none on new ones. With a fifth on new connections, the
/// probability of an accident is one in 100 000.
const KEPT: usize = 20;

/// Returns the facts on each kind of failure, and on an outage.
pub(crate) fn read(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let rows: Vec<&BlockRow> = blocks.iter().flat_map(own).collect();
    let outage = outage(blocks);
    // An outage that has not ended is not an error rate either, because a restart looks like errors until it is over.
    let dead = outage.as_ref().is_some_and(|shown| shown.is != FactState::No);
    let turned = |row: &BlockRow| row.how == How::Shed || row.status == Some(429);
    let cut = |row: &BlockRow| matches!(row.how, How::Truncated | How::StreamError) || cut_short(row);
    let other = |row: &BlockRow| row.failed() && !turned(row) && !cut(row);
    let mut all = Vec::new();
    let kinds: [(Observed, Test<'_>, &str); 3] = [
        (Observed::TurnedAway, &turned, "were rejected (429 or 503)"),
        (Observed::CutShort, &cut, "ended in the middle of the answer"),
        (Observed::Errors, &other, "failed"),
    ];
    for (fact, is, words) in kinds {
        let struck: Vec<&BlockRow> = rows.iter().copied().filter(|row| is(row)).collect();
        let (k, n) = (struck.len(), rows.len());
        let Some(value) = share(k, n) else { continue };
        let state = match over(&value, FAILING) {
            // A stopped replica causes all these failures; they are reported once, as an outage.
            FactState::Yes if dead => FactState::Unclear,
            FactState::Yes => FactState::Yes,
            _ if k == 0 && n >= ENOUGH => FactState::No,
            _ => FactState::Unclear,
        };
        let how = if fact == Observed::Errors { how(&struck, &rows) } else { String::new() };
        all.push(shown(fact, state, format!("{k} of {n} requests {words}{how}"), Some(value), Some(FAILING)));
    }
    all.extend(outage);
    all
}

/// Returns the requests whose failures count for the target. A 4xx rejection of a request that an experiment made
/// longer than the traffic's own does not count.
fn own(block: &ExperimentLevel) -> impl Iterator<Item = &BlockRow> {
    let changed =
        matches!(block.kind, ExperimentKind::Prompts | ExperimentKind::Answers | ExperimentKind::Repeats);
    block.rows.iter().filter(move |row| !(changed && row.how == How::ClientError))
}

/// Returns the kind of most failures, with the server's message if there is one, and whether only reused connections
/// failed.
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

/// A kind of failure.
type Test<'a> = &'a dyn Fn(&BlockRow) -> bool;

/// Returns whether the stream was reset after its first token.
fn cut_short(row: &BlockRow) -> bool {
    row.how == How::Reset && row.first.is_some() && !row.tokens.is_empty()
}

/// Number of experiments in a row without a response from which a target counts as down, even if it never recovered.
/// Some experiments are light.
const GONE: usize = 3;

/// Checks for a period in which nearly all requests fail, with responses before and after it, or one that lasts for
/// several experiments.
fn outage(blocks: &[ExperimentLevel]) -> Option<Finding> {
    let mut rows: Vec<(&BlockRow, usize)> = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        rows.extend(own(block).map(|row| (row, number)));
    }
    rows.sort_by_key(|(row, _)| row.due);
    let (rows, of): (Vec<&BlockRow>, Vec<usize>) = rows.into_iter().unzip();
    let failed: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].failed()).collect();
    let (Some(&first), Some(&last)) = (failed.first(), failed.last()) else {
        // Without failures there is no outage, even with few requests.
        let state = if rows.len() >= ENOUGH { FactState::No } else { FactState::Unclear };
        return Some(shown(Observed::Outage, state, "nothing failed".into(), None, None));
    };
    let stretch = &rows[first..=last];
    // A target that rejects requests is not down.
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
        true if after >= 5 || experiments.len() >= GONE => FactState::Yes,
        true => FactState::Unclear,
        false => FactState::No,
    };
    Some(shown(Observed::Outage, state, says, share(dead, stretch.len()), Some(0.8)))
}
