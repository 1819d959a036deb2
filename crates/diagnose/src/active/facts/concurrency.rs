//! What concurrency shows: whether one waits in it, where, and what is served meanwhile.

use super::{ms, of, over, percent, shown};
use crate::active::block::{BlockRow, ExperimentLevel, mean, ratio};
use crate::active::plan::ExperimentKind;
use crate::fact::{Is, Observed};
use crate::facts::{Finding, yes_if};
use plimsoll_measure::findings::Estimate;

/// Times the wait alone from which on a wait beside others is one, and as a share of the whole answer alone.
const WAITS: (f64, f64) = (2.0, 0.3);
/// What an answer beside others takes of one alone, at most, from which on it is sooner.
const SOONER: f64 = 0.7;
/// Looks at the server's page in a level from which on their mean says how many it knows of.
const SCRAPES: usize = 4;
/// Looks that brought no page from which on they are no accident, and as many that brought one where nobody was beside.
const LOST: usize = 2;
/// Growth of the answers per second for twice the concurrency under which there is none.
const PLATEAU: f64 = 1.25;
/// Times as long per token from which on it is felt.
const CROWDED: f64 = 1.4;
/// And up to which it is not, however wide the interval.
const AS_FAST: f64 = 1.25;

/// Whether one waits beside others, where, and what is served meanwhile.
pub fn concurrency(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let mut all = Vec::new();
    let Some(alone) = of(blocks, ExperimentKind::Alone).next() else { return all };
    let mut steps: Vec<&ExperimentLevel> =
        of(blocks, ExperimentKind::Together).filter(|block| block.rate().is_some()).collect();
    steps.sort_by_key(|block| block.concurrency());
    let (Some(wait_1), Some(whole_1)) = (alone.median(BlockRow::ttft_s), alone.median(BlockRow::e2e_s))
    else {
        return all;
    };
    let Some(last) = steps.last() else { return all };
    let (Some(wait), Some(at)) = (last.median(BlockRow::ttft_s), last.concurrency()) else { return all };
    let limit = WAITS.0.max(1.0 + WAITS.1 * whole_1.value / wait_1.value.max(1e-9));
    let Some(times) = ratio(&wait, &wait_1) else { return all };
    let says = format!(
        "{at} in flight wait {} for the first token, an isolated one {}",
        ms(wait.value),
        ms(wait_1.value)
    );
    let waits = over(&times, limit);
    all.push(shown(Observed::WaitsTogether, waits, says, Some(times), Some(limit)));
    if waits != Is::Yes {
        all.extend([Observed::Ceiling, Observed::CrowdedTogether].map(|fact| {
            let state = if waits == Is::No { Is::No } else { Is::Unclear };
            shown(fact, state, "nobody waits".into(), None, None)
        }));
    } else {
        all.extend(where_they_wait(alone, &steps, wait_1.value));
        all.extend(page_lost(alone, last));
    }
    all.extend(kv(&steps, wait_1.value));
    all.extend(sooner(blocks, &whole_1, last));
    all
}

/// Who is answered sooner among others waits alone for them: a batch that is held open. Isolated requests come first and concurrent ones after them, so that
/// a machine that was slow at first looks the same; requests alone that came later have to show it as well.
fn sooner(blocks: &[ExperimentLevel], alone: &Estimate, last: &ExperimentLevel) -> Option<Finding> {
    let whole = last.median(BlockRow::e2e_s)?;
    let times = ratio(&whole, alone)?;
    let later = of(blocks, ExperimentKind::Idle).flat_map(|block| &block.rows).filter_map(BlockRow::e2e_s);
    let (n, least) = later.fold((0, f64::INFINITY), |(n, least), e2e| (n + 1, e2e.min(least)));
    let at = last.concurrency().unwrap_or(1);
    let says = format!(
        "at {at} in flight an answer takes {}, isolated {}{}",
        ms(whole.value),
        ms(alone.value),
        if n > 0 { format!(" and {} later on (the fastest of {n})", ms(least)) } else { String::new() }
    );
    let state = match times.upper < SOONER {
        false => Is::No,
        true if n < 3 => Is::Unclear,
        true if SOONER * least > whole.upper => Is::Yes,
        true => Is::No,
    };
    Some(shown(Observed::FasterTogether, state, says, Some(times), Some(SOONER)))
}

/// Those who are served: as many as before and as fast, or all of them slower?
fn where_they_wait(alone: &ExperimentLevel, steps: &[&ExperimentLevel], wait_alone: f64) -> Vec<Finding> {
    let mut all = Vec::new();
    let Some((last, before)) = steps.split_last() else { return all };
    let half = before.last().copied().unwrap_or(alone);
    let (Some(rate), Some(rate_half)) = (last.rate(), half.rate()) else { return all };
    let growth = rate / rate_half;
    let tpot = |block: &ExperimentLevel| block.median(BlockRow::tpot_s);
    let (Some(token), Some(token_half)) = (tpot(last), tpot(half)) else { return all };
    let Some(slower) = ratio(&token, &token_half) else { return all };
    let served = served(last, wait_alone).unwrap_or(0.0);
    let at = last.concurrency().unwrap_or(1);
    let full = growth < PLATEAU;
    let says = format!(
        "at {at} in flight about {served:.1} are served at a time, {} a second ({growth:.2} times as many as at {}), a token takes {:.2} times as long",
        round(rate),
        half.concurrency().unwrap_or(1),
        slower.value
    );
    // Tokens of a few dozen answers: where their interval holds the limit, neither is known, unless they are far from it.
    let (slots, crowded) = match (full, over(&slower, CROWDED)) {
        (true, _) if slower.value < AS_FAST => (Is::Yes, Is::No),
        (true, Is::No) => (Is::Yes, Is::No),
        (true, Is::Yes) => (Is::No, Is::Yes),
        (true, Is::Unclear) => (Is::Unclear, Is::Unclear),
        (false, _) => (Is::Unclear, Is::No),
    };
    all.push(shown(Observed::Ceiling, slots, says.clone(), Some(slower), Some(CROWDED)));
    all.push(shown(Observed::CrowdedTogether, crowded, says, Some(slower), Some(CROWDED)));
    all.extend(crowded_elsewhere(last, crowded));
    let waiting = last.gauges.waiting.filter(|_| last.gauges.scrapes >= SCRAPES);
    let outside = (f64::from(at) - served).max(0.0);
    // Where tokens are neither as fast as before nor slower for sure, those who wait in the engine still wait in it.
    let known = slots == Is::Yes || (full && slots == Is::Unclear && outside >= 1.0);
    if let (Some(waiting), true) = (waiting, known) {
        let says = format!("of about {outside:.1} who wait, the engine says that {waiting:.1} wait in it");
        let (idle, queue) = match waiting / outside.max(1.0) {
            share if share < 0.2 && slots == Is::Yes => (Is::Yes, Is::No),
            share if share > 0.5 => (Is::No, Is::Yes),
            _ => (Is::Unclear, Is::Unclear),
        };
        all.push(shown(Observed::InFrontOfEngine, idle, says.clone(), None, None));
        all.push(shown(Observed::EngineQueue, queue, says, None, None));
    }
    all
}

/// All are slower, and the engine knows of few of them: what is crowded lies between it and here.
fn crowded_elsewhere(last: &ExperimentLevel, crowded: Is) -> Option<Finding> {
    let inside = last.gauges.running? + last.gauges.waiting?;
    let at = f64::from(last.concurrency()?);
    // What crowds the way crowds the page's scrapes too: two that know of next to none of them are enough.
    if crowded != Is::Yes || last.gauges.scrapes < 2 {
        return None;
    }
    let few = last.gauges.scrapes < SCRAPES;
    let says = format!(
        "of {at:.0} in flight the engine knows of {inside:.1}; the others are on their way to it or from it"
    );
    let state = match inside / at {
        share if share < if few { 0.25 } else { 0.5 } => Is::Yes,
        share if share > 0.8 && !few => Is::No,
        _ => Is::Unclear,
    };
    Some(shown(Observed::InFrontOfEngine, state, says, None, None))
}

/// The page takes the way that the answers take and nothing of the engine. Where it stops coming as soon as requests are concurrent, that way is
/// what is crowded, or the front that sends it.
fn page_lost(alone: &ExperimentLevel, last: &ExperimentLevel) -> Option<Finding> {
    let ((came, lost), (came_alone, lost_alone)) = (last.gauges.pages, alone.gauges.pages);
    let at = last.concurrency()?;
    let says = format!(
        "at {at} in flight {lost} of {} scrapes of the server's page timed out, with one in flight {lost_alone} of {}",
        came + lost,
        came_alone + lost_alone
    );
    let is = lost >= LOST && lost >= came && 4 * lost_alone <= came_alone;
    (came_alone >= LOST).then(|| shown(Observed::PageLost, yes_if(is), says, None, None))
}

/// How many of those in flight are served at a time, by Little's law: those who do not wait longer than one alone does.
fn served(block: &ExperimentLevel, wait_alone: f64) -> Option<f64> {
    let e2e = mean(block.settled().iter().filter_map(BlockRow::e2e_s))?;
    let extra = (block.median(BlockRow::ttft_s)?.value - wait_alone).max(0.0);
    Some(block.rate()? * (e2e - extra).max(0.0))
}

fn round(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.2}") }
}

/// Tokens in flight that every KV cache holds: the least that engines are set up for is one context of a few thousand.
const HELD: f64 = 4_096.0;

fn kv(steps: &[&ExperimentLevel], wait_alone: f64) -> Option<Finding> {
    if steps.iter().any(|block| super::without_tokens(block)) {
        return None;
    }
    let told = steps.iter().filter_map(|block| block.gauges.kv).reduce(f64::max);
    let Some(kv) = told else {
        // Where the server does not say: what was served at a time may be less than any cache holds. Who waits holds nothing.
        let tokens = |block: &ExperimentLevel| {
            let longest = block.rows.iter().map(|row| row.prompt + row.output).fold(0.0, f64::max);
            served(block, wait_alone).unwrap_or_else(|| f64::from(block.concurrency().unwrap_or(1))) * longest
        };
        let most = steps.iter().map(|block| tokens(block)).fold(0.0, f64::max);
        let says = format!("at most {most:.0} tokens were served at a time, fewer than any KV cache holds");
        return (most > 0.0 && most < HELD).then(|| shown(Observed::KvFull, Is::No, says, None, Some(HELD)));
    };
    let preempted: f64 = steps.iter().filter_map(|block| block.gauges.preemptions).sum();
    let waiting = steps.last().and_then(|block| block.gauges.waiting).unwrap_or(0.0);
    let says = format!(
        "the KV cache was up to {} full, {preempted:.0} preemptions, {waiting:.1} waiting",
        percent(kv)
    );
    let state = match () {
        () if preempted > 0.0 || (kv >= 0.85 && waiting > 0.5) => Is::Yes,
        () if kv < 0.7 => Is::No,
        () => Is::Unclear,
    };
    Some(shown(Observed::KvFull, state, says, None, Some(0.85)))
}
