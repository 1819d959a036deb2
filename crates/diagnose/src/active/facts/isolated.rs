//! Facts on isolated requests: coalesced tokens, a fixed wait, a spread of waits.

use plimsoll_model::How;

use super::rhythm;
use super::{arm, ms, of, over, shown};
use crate::active::block::{BlockRow, ExperimentLevel, mean, median, ratio};
use crate::active::plan::{ArmSetting, ExperimentKind};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use plimsoll_measure::findings::Estimate;

/// Minimum isolated wait that prompt length does not explain: in s, in engine steps, as a share of the time to first
/// token.
const FIXED: (f64, f64, f64) = (0.025, 4.0, 0.4);
/// Minimum spread of the isolated wait, p90 − p10: in s, and as a share of its median.
const SPREAD: (f64, f64) = (0.02, 0.35);
/// Minimum number of tokens per burst, and minimum time in s between bursts, at which users see bursts.
const LUMPS: (f64, f64) = (3.0, 0.03);

/// Checks for coalesced tokens and for first tokens that wait for the rest of the response.
pub fn coalesced(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let rows = of(blocks, ExperimentKind::Alone)
        .chain(of(blocks, ExperimentKind::Watch))
        .flat_map(|block| &block.rows);
    let long: Vec<&BlockRow> =
        rows.filter(|row| row.fine && row.output >= 8.0 && !row.tokens.is_empty()).collect();
    let mut all = Vec::new();
    if long.len() >= 5 {
        let seen: Vec<(f64, f64)> = long.iter().map(|row| burst(row)).collect();
        let tokens = median(seen.iter().map(|(tokens, _)| *tokens), 1.0);
        let apart = median(seen.iter().map(|(_, apart)| *apart), 1.0);
        if let (Some(tokens), Some(apart)) = (tokens, apart) {
            let state = match over(&tokens, LUMPS.0) {
                FactState::Yes if apart.value < LUMPS.1 => FactState::No,
                state => state,
            };
            let says =
                format!("{:.1} tokens arrive together (coalesced), {} apart", tokens.value, ms(apart.value));
            all.push(shown(Observed::Coalesced, state, says, Some(tokens), Some(LUMPS.0)));
        }
    }
    all.extend(held_back(blocks));
    all
}

/// Returns the tokens per burst and the time in s between bursts. Tokens within a fifth of the mean distance belong
/// to one burst.
fn burst(row: &BlockRow) -> (f64, f64) {
    let (Some(first), Some(last)) = (row.tokens.first(), row.tokens.last()) else { return (0.0, 0.0) };
    let from = row.due.max(first.0 - (last.0 - first.0));
    let apart = 0.2 * (last.0 - from) as f64 / row.output;
    let bursts = 1 + row.tokens.windows(2).filter(|pair| (pair[1].0 - pair[0].0) as f64 > apart).count();
    let whole_s = (last.0 - row.due) as f64 * 1e-9;
    (row.output / bursts as f64, whole_s / bursts as f64)
}

/// Checks whether long responses have later first tokens than short ones, because a component collects tokens.
fn held_back(blocks: &[ExperimentLevel]) -> Option<Finding> {
    let ttft = |which| {
        median(arm(blocks, ExperimentKind::Answers, which).iter().filter_map(|row| row.ttft_s()), 1.0)
    };
    let e2e =
        |which| median(arm(blocks, ExperimentKind::Answers, which).iter().filter_map(|row| row.e2e_s()), 1.0);
    let (short, long) = (ttft(ArmSetting::First)?, ttft(ArmSetting::Second)?);
    let (whole_short, whole_long) = (e2e(ArmSetting::First)?, e2e(ArmSetting::Second)?);
    let grows = ratio(&long, &short)?;
    let whole = whole_long.value / whole_short.value;
    // The response is four times as long. A first token that follows at least half of the growth waits for the rest.
    let limit = 1.0 + 0.5 * (whole - 1.0);
    let says = format!(
        "four times as long an answer takes {whole:.1} times as long, and its first token {:.2} times as long",
        grows.value
    );
    let state = if whole < 1.5 { FactState::Unclear } else { over(&grows, limit) };
    Some(shown(Observed::LaterByAnswer, state, says, Some(grows), Some(limit)))
}

/// Returns the facts on waits that neither concurrency nor length explains.
pub fn isolated(blocks: &[ExperimentLevel]) -> Vec<Finding> {
    let mut all = Vec::new();
    let Some(block) = of(blocks, ExperimentKind::Alone).next() else { return all };
    let waits: Vec<f64> = block.rows.iter().filter_map(BlockRow::ttft_s).collect();
    let Some(usual) = median(waits.iter().copied(), 1.0).filter(|_| waits.len() >= 10) else { return all };
    all.extend(rhythm::spread(block, &usual, SPREAD));
    all.extend(fixed_wait(blocks, block));
    all
}

/// Checks for a wait that remains at a prompt length of zero.
fn fixed_wait(blocks: &[ExperimentLevel], alone: &ExperimentLevel) -> Option<Finding> {
    let (short, mut long) = (
        arm(blocks, ExperimentKind::Prompts, ArmSetting::First),
        arm(blocks, ExperimentKind::Prompts, ArmSetting::Second),
    );
    // If the context window rejects prompts of four times the length, the normal prompts are the long ones.
    if !long.is_empty() && long.iter().all(|row| row.how == How::ClientError) {
        long = alone.rows.iter().filter(|row| row.fine).collect();
    }
    let ttft = |rows: &[&BlockRow]| median(rows.iter().filter_map(|row| row.ttft_s()), 1.0);
    let tokens = |rows: &[&BlockRow]| mean(rows.iter().map(|row| row.prompt));
    let (wait_short, wait_long) = (ttft(&short)?, ttft(&long)?);
    let (few, many) = (tokens(&short)?, tokens(&long)?);
    let slope = ((wait_long.value - wait_short.value) / (many - few).max(1.0)).max(0.0);
    let without = |at: f64| (at - slope * few).max(0.0);
    let fixed = Estimate {
        value: without(wait_short.value),
        lower: without(wait_short.lower),
        upper: without(wait_short.upper),
        ..wait_short
    };
    let usual = alone.median(BlockRow::ttft_s)?;
    let step = alone.median(BlockRow::tpot_s).map_or(0.0, |tpot| tpot.value);
    let limit = FIXED.0.max(FIXED.1 * step).max(FIXED.2 * usual.value);
    let says = format!(
        "{} of the isolated wait ({}) is there at any prompt length; a token takes {}, 1 000 prompt tokens {}",
        ms(fixed.value),
        ms(usual.value),
        ms(step),
        ms(1e3 * slope)
    );
    Some(shown(Observed::FixedWait, over(&fixed, limit), says, Some(fixed), Some(limit)))
}
