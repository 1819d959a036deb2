//! The parts that experiments cleared, and the facts that they could not evaluate.

use plimsoll_model::How;

use crate::active::before::EarlierRun;
use crate::active::block::{BlockRow, ExperimentLevel, median};
use crate::active::facts::{ms, of};
use crate::active::is_so;
use crate::active::plan::ExperimentKind;
use crate::causes::row;
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use crate::{Cause, ClearedSuspect, Layer, MissingEvidence, NextExperiment, Verdict};

/// Returns the parts that are not the cause with confidence.
pub fn cleared(
    blocks: &[ExperimentLevel],
    shown: &[Finding],
    before: Option<&EarlierRun>,
    verdicts: &[Verdict],
) -> Vec<ClearedSuspect> {
    let blamed: Vec<Layer> = verdicts.iter().map(|verdict| verdict.layer).collect();
    let mut all = Vec::new();
    let tpot = of(blocks, ExperimentKind::Alone).next().and_then(|block| block.median(BlockRow::tpot_s));
    let elsewhere =
        blamed.iter().any(|layer| !matches!(layer, Layer::Model | Layer::Unknown | Layer::Measurement));
    let same = before.and_then(|before| same_model(before.token_ratio(blocks)?, shown));
    if let Some(same) = same.filter(|_| !blamed.contains(&Layer::Model)) {
        all.push(same);
    } else if let (Some(tpot), true, None) = (tpot, elsewhere, before) {
        all.push(ClearedSuspect {
            layer: Layer::Model,
            says: format!(
                "the model is not the cause of what was found: isolated, a token takes {} [{}, {}]; whether that is as fast as before needs a baseline",
                ms(tpot.value),
                ms(tpot.lower),
                ms(tpot.upper)
            ),
            value: Some(tpot),
        });
    }
    let connect =
        of(blocks, ExperimentKind::Connections).flat_map(|block| &block.rows).filter_map(|row| row.connect);
    if let Some(connect) =
        median(connect.map(|ns| ns as f64 * 1e-9), 1.0).filter(|connect| connect.value < 0.01)
    {
        let says = format!("the network is close: a connection is made in {}", ms(connect.value));
        all.push(ClearedSuspect { layer: Layer::Dependency, says, value: Some(connect) });
    }
    for (fact, layer) in [(Observed::FixedWait, Layer::Dependency), (Observed::TurnedAway, Layer::Provider)] {
        let clear = shown.iter().find(|shown| shown.fact == fact && shown.is == FactState::No);
        if let Some(clear) = clear.filter(|_| !blamed.contains(&layer)) {
            all.push(ClearedSuspect { layer, says: clear.says.clone(), value: clear.value });
        }
    }
    all
}

/// Clears the model if the 90 % interval is within the margin (two one-sided tests), as in a run.
fn same_model(ratio: plimsoll_measure::findings::Estimate, shown: &[Finding]) -> Option<ClearedSuspect> {
    let same = crate::DiagnoseSpec::default().same;
    let fine = is_so(shown, Observed::AloneTokensSlower) == FactState::No;
    (fine && ratio.lower > 1.0 - same && ratio.upper < 1.0 + same).then(|| ClearedSuspect {
        layer: Layer::Model,
        says: format!(
            "the model is not the cause: the time per token of single requests is × {:.3} the baseline's [{:.3}, {:.3}] (90 % interval within ±{:.0} %)",
            ratio.value,
            ratio.lower,
            ratio.upper,
            100.0 * same
        ),
        value: Some(ratio),
    })
}

/// Returns the causes that were not checked because they need extra input: a pool, a budget, replica names, a cache,
/// an idle period, server gauges.
fn unasked(shown: &[Finding]) -> Vec<Cause> {
    let looked = |fact: &Observed| shown.iter().any(|shown| shown.fact == *fact);
    let mut apart = vec![
        Cause::ClientCap,
        Cause::SingleRequestOverBudget,
        Cause::BadReplica,
        Cause::PrefixCacheLoss,
        Cause::ColdStart,
    ];
    // Only the server can report whether the KV cache is full; without it, a queue may be caused by a full cache.
    apart.extend((is_so(shown, Observed::WaitsTogether) != FactState::Yes).then_some(Cause::KvExhaustion));
    apart.retain(|cause| !row(*cause).decisive.iter().any(looked));
    apart
}

/// Returns the facts that could not be evaluated, and the experiments that would.
pub fn missing(
    shown: &[Finding],
    blocks: &[ExperimentLevel],
    before: Option<&EarlierRun>,
) -> Vec<MissingEvidence> {
    let mut all = before.map(|before| before.lacks(blocks, shown)).unwrap_or_default();
    let mut miss = |what: &str, needs| all.push(MissingEvidence { what: what.to_owned(), needs });
    if before.is_none() {
        miss("whether the target has become slower than it was", NextExperiment::Baseline);
    }
    // The comparisons with an earlier run are listed above.
    for cause in unasked(shown) {
        let needs = match cause {
            Cause::SingleRequestOverBudget => NextExperiment::SingleRequests { requests: 40 },
            Cause::ClientCap => NextExperiment::OpenLoop,
            Cause::KvExhaustion => NextExperiment::Scrape,
            other => other.overturned_by(),
        };
        miss(&format!("\"{}\"", cause.title()), needs);
    }
    let refused = |row: &&BlockRow| row.how == How::ClientError;
    if let Some(row) = of(blocks, ExperimentKind::Prompts).flat_map(|block| &block.rows).find(refused) {
        let error = row.error.as_deref().unwrap_or("a 4xx");
        let what = format!("prompts of {:.0} tokens: the target rejects them ({error})", row.prompt);
        miss(&what, NextExperiment::PromptLengths);
    }
    let read = blocks.iter().any(|block| block.gauges.waiting.is_some());
    if !read && is_so(shown, Observed::WaitsTogether) == FactState::Yes {
        miss(
            "whether requests wait inside the engine, and whether its KV cache is full",
            NextExperiment::Scrape,
        );
    }
    all
}
