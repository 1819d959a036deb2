//! Facts from comparisons of two settings (new connections, longer prompts, a repeated prompt, an idle period), and
//! from comparisons of replicas.

use super::{arm, ms, of, over, shown};
use crate::active::block::{BlockRow, ExperimentLevel, median, ratio, share};
use crate::active::plan::{ArmSetting, ExperimentKind};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use plimsoll_measure::findings::Estimate;

/// Returns the facts on pairs of settings with one difference.
pub fn settings(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let mut all = Vec::new();
    let two = |kind: ExperimentKind, of: &dyn Fn(&BlockRow) -> Option<f64>| {
        let a = median(arm(blocks, kind, ArmSetting::First).into_iter().filter_map(of), 1.0)?;
        let b = median(arm(blocks, kind, ArmSetting::Second).into_iter().filter_map(of), 1.0)?;
        Some((a, b, ratio(&b, &a)?))
    };
    // If the server closes each connection, the reused ones are new as well.
    let kept_ones = arm(blocks, ExperimentKind::Connections, ArmSetting::First);
    let made = kept_ones.iter().filter(|row| row.connect.is_some()).count();
    let keeps = 2 * made <= kept_ones.len();
    if let Some((kept, fresh, times)) =
        two(ExperimentKind::Connections, &|row| row.ttft_s()).filter(|_| keeps)
    {
        let costs = fresh.value - kept.value;
        let says = format!(
            "on a fresh connection the first token takes {}, on a kept one {}",
            ms(fresh.value),
            ms(kept.value)
        );
        let state = if costs.abs() < 0.01 { FactState::No } else { over(&times, 1.25) };
        all.push(shown(Observed::FreshCosts, state, says, Some(times), Some(1.25)));
    }
    if let Some((once, twice, times)) = two(ExperimentKind::Pool, &|row| row.ttft_s()) {
        let says = format!(
            "with the client's pool the first token takes {}, with one twice as large {}",
            ms(once.value),
            ms(twice.value)
        );
        let shrinks = Estimate {
            value: 1.0 / times.value,
            lower: 1.0 / times.upper,
            upper: 1.0 / times.lower.max(1e-9),
            ..times
        };
        all.push(shown(Observed::LargerPoolHelps, over(&shrinks, 1.5), says, Some(shrinks), Some(1.5)));
    }
    all.extend(cache(blocks));
    all.extend(idle(blocks));
    all
}

/// Checks whether a repeated prompt is faster, always or at times.
fn cache(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let mut all = Vec::new();
    let distinct: Vec<f64> = arm(blocks, ExperimentKind::Repeats, ArmSetting::First)
        .iter()
        .filter_map(|row| row.ttft_s())
        .collect();
    // The first request fills the cache; it is no repeat.
    let same_rows: Vec<&BlockRow> =
        arm(blocks, ExperimentKind::Repeats, ArmSetting::Second).into_iter().skip(1).collect();
    let same: Vec<f64> = same_rows.iter().filter_map(|row| row.ttft_s()).collect();
    let (Some(new), Some(old)) = (median(distinct.iter().copied(), 1.0), median(same.iter().copied(), 1.0))
    else {
        return all;
    };
    let (Some(times), true) = (ratio(&old, &new), same.len() >= 10) else { return all };
    // Without a prefill cost there is nothing to save.
    let prefill = prefill_share(blocks);
    let says = format!(
        "a prompt sent before has its first token after {}, a new one after {}",
        ms(old.value),
        ms(new.value)
    );
    let forgets = forgets(blocks, &same_rows, &same, new.value);
    if let Some((none, n, state)) = forgets {
        let words = format!("{none} of {n} prompts sent before were computed again");
        all.push(shown(Observed::CacheForgets, state, words, share(none, n), None));
    }
    let nothing = match () {
        () if prefill.is_none_or(|share| share < 0.3) => FactState::Unclear,
        () if times.lower > 0.85 => FactState::Yes,
        () if times.upper < 0.85 => FactState::No,
        () => FactState::Unclear,
    };
    all.push(shown(Observed::CacheNothing, nothing, says, Some(times), Some(0.85)));
    all
}

/// Minimum share of the repeated prompts' tokens from a cache that works, and maximum share for one that does not.
const HOLDS: (f64, f64) = (0.5, 0.2);

/// Checks how many repeated prompts were computed again. The sources are cached tokens in responses, else the
/// server's counters, else the response times. Times decide only if there are two separate groups of them.
fn forgets(
    blocks: &[ExperimentLevel],
    rows: &[&BlockRow],
    waits: &[f64],
    new: f64,
) -> Option<(usize, usize, FactState)> {
    let cached: Vec<f64> = rows.iter().filter_map(|row| row.cached).collect();
    if cached.len() >= 10 {
        let none = cached.iter().filter(|cached| **cached < 1.0).count();
        let is = none >= 3 && none < cached.len();
        return Some((none, cached.len(), if is { FactState::Yes } else { FactState::No }));
    }
    let told = |block: &ExperimentLevel| block.gauges.cached.filter(|_| block.arm == ArmSetting::Second);
    let counted = of(blocks, ExperimentKind::Repeats)
        .filter_map(told)
        .fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let anew = waits.iter().filter(|wait| **wait > 0.85 * new).count();
    if counted.1 > 0.0 {
        let state = match counted.0 / counted.1 {
            share if share >= HOLDS.0 => FactState::No,
            share if share > 0.0 && share < HOLDS.1 => FactState::Yes,
            _ => FactState::Unclear,
        };
        let missed = (1.0 - counted.0 / counted.1).clamp(0.0, 1.0) * waits.len() as f64;
        return Some((missed.round() as usize, waits.len(), state));
    }
    let quick = waits.iter().filter(|wait| **wait < 0.5 * new).count();
    let between = waits.len() - anew - quick;
    let state = FactState::of(anew >= 3 && quick >= 3 && 10 * between <= waits.len(), anew == 0);
    Some((anew, waits.len(), state))
}

/// Returns the share of a long prompt's wait that its length causes.
fn prefill_share(blocks: &[ExperimentLevel]) -> Option<f64> {
    let ttft = |which| {
        median(arm(blocks, ExperimentKind::Prompts, which).iter().filter_map(|row| row.ttft_s()), 1.0)
    };
    let (short, long) = (ttft(ArmSetting::First)?, ttft(ArmSetting::Second)?);
    Some(((long.value - short.value) / long.value).max(0.0))
}

fn idle(blocks: &[ExperimentLevel]) -> Option<Finding> {
    let after: Vec<f64> =
        of(blocks, ExperimentKind::Idle).filter_map(|block| block.rows.first()?.ttft_s()).collect();
    let alone = of(blocks, ExperimentKind::Alone).next()?;
    let usual = median(alone.rows.iter().skip(1).filter_map(BlockRow::ttft_s), 1.0)?;
    let slowest = alone.rows.iter().skip(1).filter_map(BlockRow::ttft_s).fold(0.0, f64::max);
    let (n, least) = (after.len(), after.iter().copied().fold(f64::INFINITY, f64::min));
    let cold = median(after.into_iter(), 1.0)?;
    let times = ratio(&cold, &usual)?;
    let says = format!(
        "after a pause the first request has its first token after {}, else after {}",
        ms(cold.value),
        ms(usual.value)
    );
    // Three of three slower than twice the median and than all forty: by accident one in ten thousand.
    let state = FactState::of(
        n >= 2 && least > 2.0 * usual.value && least > slowest && least - usual.value > 0.02,
        n >= 2 && cold.value <= 1.3 * usual.value,
    );
    Some(shown(Observed::ColdAfterIdle, state, says, Some(times), Some(2.0)))
}

/// Compares the time per token of replicas: isolated if they were addressed separately, else from all their
/// responses.
pub fn replicas(blocks: &[ExperimentLevel]) -> Option<Finding> {
    let mut by: Vec<(String, Vec<f64>)> = Vec::new();
    let mut put = |name: String, value: f64| match by.iter_mut().find(|(known, _)| *known == name) {
        Some((_, values)) => values.push(value),
        None => by.push((name, vec![value])),
    };
    let told_apart = of(blocks, ExperimentKind::Replicas).next().is_some();
    if told_apart {
        for block in of(blocks, ExperimentKind::Replicas) {
            let ArmSetting::Number(n) = block.arm else { continue };
            block.rows.iter().filter_map(BlockRow::tpot_s).for_each(|tpot| put(format!("replica {n}"), tpot));
        }
    } else {
        // Only the watch experiment, because its concurrency is constant.
        for row in of(blocks, ExperimentKind::Watch)
            .chain(of(blocks, ExperimentKind::Alone))
            .flat_map(|block| &block.rows)
        {
            if let (Some(name), Some(tpot)) = (&row.replica, row.tpot_s()) {
                put(name.clone(), tpot);
            }
        }
    }
    let of: Vec<(String, Estimate)> = by
        .into_iter()
        .filter(|(_, values)| values.len() >= 6)
        .filter_map(|(name, values)| Some((name, median(values.into_iter(), 1.0)?)))
        .collect();
    let slowest = of.iter().max_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
    let mut values: Vec<f64> = of.iter().map(|(_, tpot)| tpot.value).collect();
    values.sort_by(f64::total_cmp);
    // The median of the others; of two replicas the faster one.
    let usual = of.iter().find(|(_, tpot)| tpot.value == values[(of.len() - 1) / 2])?;
    if of.len() < 2 {
        return None;
    }
    let times = ratio(&slowest.1, &usual.1)?;
    let says = format!(
        "a token takes {} on {} and {} on {}",
        ms(slowest.1.value),
        slowest.0,
        ms(usual.1.value),
        usual.0
    );
    let state = FactState::of(times.lower > 1.15 && times.value >= 1.3, times.value < 1.15);
    Some(shown(Observed::ReplicaSlower, state, says, Some(times), Some(1.3)))
}
