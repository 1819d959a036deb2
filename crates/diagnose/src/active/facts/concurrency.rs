//! Facts on concurrency: whether requests wait under it, where they wait, and the throughput meanwhile.

use super::{ms, of, over, percent, shown};
use crate::active::block::{BlockRow, ExperimentLevel, mean, ratio};
use crate::active::plan::ExperimentKind;
use crate::fact::{FactState, Observed};
use crate::facts::{Finding, yes_if};
use plimsoll_measure::findings::Estimate;

/// Minimum ratio of the wait under concurrency to the isolated wait, and minimum wait as a share of the isolated
/// latency.
const WAITS: (f64, f64) = (2.0, 0.3);
/// Maximum ratio of the latency under concurrency to the isolated latency at which requests are faster.
const SOONER: f64 = 0.7;
/// Minimum number of scrapes per level for a mean number of requests in the engine.
const SCRAPES: usize = 4;
/// Number of failed scrapes from which they are no accident, and minimum number of successful ones without
/// concurrency.
const LOST: usize = 2;
/// Growth of throughput at twice the concurrency below which there is no growth.
const PLATEAU: f64 = 1.25;
/// Minimum ratio of the time per token at which tokens are slower.
const CROWDED: f64 = 1.4;
/// Maximum ratio at which tokens are not slower, with any interval.
const AS_FAST: f64 = 1.25;

/// Returns whether requests wait under concurrency, where they wait, and the throughput meanwhile.
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
    if waits != FactState::Yes {
        all.extend([Observed::Ceiling, Observed::CrowdedTogether].map(|fact| {
            let state = if waits == FactState::No { FactState::No } else { FactState::Unclear };
            shown(fact, state, "no request waits".into(), None, None)
        }));
    } else {
        all.extend(where_they_wait(alone, &steps, wait_1.value));
        all.extend(page_lost(alone, last));
    }
    all.extend(kv(&steps, wait_1.value));
    all.extend(sooner(blocks, &whole_1, last));
    all
}

/// Checks whether requests are faster under concurrency, because an isolated one waits for a batch to fill. A machine
/// that was slow at first shows this too, because isolated requests come first. Isolated requests at a later time
/// must therefore confirm it.
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
        false => FactState::No,
        true if n < 3 => FactState::Unclear,
        true if SOONER * least > whole.upper => FactState::Yes,
        true => FactState::No,
    };
    Some(shown(Observed::FasterTogether, state, says, Some(times), Some(SOONER)))
}

/// Checks where requests wait: as many are served as before at full speed, or all are slower.
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
    // If the interval of the few dozen responses contains the limit, neither is known, unless the value is far from
    // the limit.
    let (slots, crowded) = match (full, over(&slower, CROWDED)) {
        (true, _) if slower.value < AS_FAST => (FactState::Yes, FactState::No),
        (true, FactState::No) => (FactState::Yes, FactState::No),
        (true, FactState::Yes) => (FactState::No, FactState::Yes),
        (true, FactState::Unclear) => (FactState::Unclear, FactState::Unclear),
        (false, _) => (FactState::Unclear, FactState::No),
    };
    all.push(shown(Observed::Ceiling, slots, says.clone(), Some(slower), Some(CROWDED)));
    all.push(shown(Observed::CrowdedTogether, crowded, says, Some(slower), Some(CROWDED)));
    all.extend(crowded_elsewhere(last, crowded));
    let waiting = last.gauges.waiting.filter(|_| last.gauges.scrapes >= SCRAPES);
    let outside = (f64::from(at) - served).max(0.0);
    // If tokens are neither at full speed nor slower with confidence, requests may still wait in the engine.
    let known = slots == FactState::Yes || (full && slots == FactState::Unclear && outside >= 1.0);
    if let (Some(waiting), true) = (waiting, known) {
        let says =
            format!("of about {outside:.1} waiting requests, the engine reports {waiting:.1} in its queue");
        let (idle, queue) = match waiting / outside.max(1.0) {
            share if share < 0.2 && slots == FactState::Yes => (FactState::Yes, FactState::No),
            share if share > 0.5 => (FactState::No, FactState::Yes),
            _ => (FactState::Unclear, FactState::Unclear),
        };
        all.push(shown(Observed::InFrontOfEngine, idle, says.clone(), None, None));
        all.push(shown(Observed::EngineQueue, queue, says, None, None));
    }
    all
}

/// Checks for a bottleneck in front of the engine: all responses are slower and few requests have reached the engine.
fn crowded_elsewhere(last: &ExperimentLevel, crowded: FactState) -> Option<Finding> {
    let inside = last.gauges.running? + last.gauges.waiting?;
    let at = f64::from(last.concurrency()?);
    // Congestion of the path affects scrapes too, so two that show next to no requests are enough.
    if crowded != FactState::Yes || last.gauges.scrapes < 2 {
        return None;
    }
    let few = last.gauges.scrapes < SCRAPES;
    let says = format!(
        "of {at:.0} requests in flight the engine reports {inside:.1}; the others are on their way to it or from it"
    );
    let state = match inside / at {
        share if share < if few { 0.25 } else { 0.5 } => FactState::Yes,
        share if share > 0.8 && !few => FactState::No,
        _ => FactState::Unclear,
    };
    Some(shown(Observed::InFrontOfEngine, state, says, None, None))
}

/// Checks whether scrapes fail under concurrency. They use the path of the responses and not the engine, so that path
/// or the front end is congested.
fn page_lost(alone: &ExperimentLevel, last: &ExperimentLevel) -> Option<Finding> {
    let ((came, lost), (came_alone, lost_alone)) = (last.gauges.pages, alone.gauges.pages);
    let at = last.concurrency()?;
    let says = format!(
        "at {at} in flight {lost} of {} scrapes of the server's metrics timed out, with one in flight {lost_alone} of {}",
        came + lost,
        came_alone + lost_alone
    );
    let is = lost >= LOST && lost >= came && 4 * lost_alone <= came_alone;
    (came_alone >= LOST).then(|| shown(Observed::PageLost, yes_if(is), says, None, None))
}

/// Returns the number of requests in service by Little's law: in flight without waiting longer than an isolated
/// request.
fn served(block: &ExperimentLevel, wait_alone: f64) -> Option<f64> {
    let e2e = mean(block.settled().iter().filter_map(BlockRow::e2e_s))?;
    let extra = (block.median(BlockRow::ttft_s)?.value - wait_alone).max(0.0);
    Some(block.rate()? * (e2e - extra).max(0.0))
}

fn round(rate: f64) -> String {
    if rate >= 10.0 { format!("{rate:.0}") } else { format!("{rate:.2}") }
}

/// Tokens in flight that any KV cache contains, because engines are set up for at least one context of a few thousand
/// tokens.
const HELD: f64 = 4_096.0;

fn kv(steps: &[&ExperimentLevel], wait_alone: f64) -> Option<Finding> {
    if steps.iter().any(|block| super::without_tokens(block)) {
        return None;
    }
    let told = steps.iter().filter_map(|block| block.gauges.kv).reduce(f64::max);
    let Some(kv) = told else {
        // Without server metrics: the tokens in service may be fewer than any cache contains. Waiting requests occupy
        // no cache.
        let tokens = |block: &ExperimentLevel| {
            let longest = block.rows.iter().map(|row| row.prompt + row.output).fold(0.0, f64::max);
            served(block, wait_alone).unwrap_or_else(|| f64::from(block.concurrency().unwrap_or(1))) * longest
        };
        let most = steps.iter().map(|block| tokens(block)).fold(0.0, f64::max);
        let says =
            format!("at most {most:.0} tokens were served at a time, fewer than any KV cache can store");
        return (most > 0.0 && most < HELD)
            .then(|| shown(Observed::KvFull, FactState::No, says, None, Some(HELD)));
    };
    let preempted: f64 = steps.iter().filter_map(|block| block.gauges.preemptions).sum();
    let waiting = steps.last().and_then(|block| block.gauges.waiting).unwrap_or(0.0);
    let says = format!(
        "the KV cache was up to {} full, {preempted:.0} preemptions, {waiting:.1} waiting",
        percent(kv)
    );
    let state = FactState::of(preempted > 0.0 || (kv >= 0.85 && waiting > 0.5), kv < 0.7);
    Some(shown(Observed::KvFull, state, says, None, Some(0.85)))
}
