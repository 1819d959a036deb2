//! The five questions of the method, answered from experiments.

use crate::active::block::{BlockRow, ExperimentLevel, ratio, share};
use crate::active::facts::{self, ms, of};
use crate::active::plan::{ActiveSpec, ExperimentKind};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use crate::questions::{cant, question as ask, unchanged};
use crate::{Question, TargetChange, YesNo};

pub fn questions(
    blocks: &[ExperimentLevel],
    shown: &[Finding],
    spec: &ActiveSpec,
    changed: Option<&TargetChange>,
) -> Vec<Question> {
    vec![scales(blocks), tail(blocks), moved(shown, changed), over_alone(shown, spec), errors_climb(blocks)]
}

fn scales(blocks: &[ExperimentLevel]) -> Question {
    let asks = "does it scale with concurrency?";
    let alone = of(blocks, ExperimentKind::Alone).next().and_then(|block| block.median(BlockRow::e2e_s));
    let last = of(blocks, ExperimentKind::Together).max_by_key(|block| block.concurrency());
    let (Some(one), Some(last)) = (alone, last) else {
        return cant(asks, "not measured under concurrency");
    };
    let Some((many, times)) = last.median(BlockRow::e2e_s).and_then(|many| Some((many, ratio(&many, &one)?)))
    else {
        return cant(asks, "nothing was answered under concurrency");
    };
    let answer = YesNo::of(facts::over(&times, 1.25));
    let says = format!(
        "an isolated answer takes {}, and {} with {} in flight: × {:.2} [{:.2}, {:.2}]",
        ms(one.value),
        ms(many.value),
        last.concurrency().unwrap_or(0),
        times.value,
        times.lower,
        times.upper
    );
    ask(asks, answer, says, Some(times))
}

fn tail(blocks: &[ExperimentLevel]) -> Question {
    let asks = "is the median fine and the tail blown?";
    let Some(block) =
        of(blocks, ExperimentKind::Watch).next().or_else(|| of(blocks, ExperimentKind::Alone).next())
    else {
        return cant(asks, "not measured");
    };
    let mut waits: Vec<f64> = block.settled().iter().filter_map(BlockRow::ttft_s).collect();
    plimsoll_math::quantile::sort(&mut waits);
    let at = |p: f64| plimsoll_math::quantile::of_sorted(&waits, p);
    match (at(0.5), at(0.95)) {
        (Some(middle), Some(high)) if waits.len() >= 40 => {
            let answer = if high > 3.0 * middle { YesNo::Yes } else { YesNo::No };
            let n = waits.len();
            let says = format!(
                "first token: p95 {} is {:.1} times the median {} ({n} requests: {})",
                ms(high),
                high / middle,
                ms(middle),
                if n < 200 { "a hint, no bound" } else { "see the run for intervals" }
            );
            ask(asks, answer, says, None)
        }
        _ => ask(asks, YesNo::CantTell, format!("{} answers are too few for a p95", waits.len()), None),
    }
}

fn moved(shown: &[Finding], changed: Option<&TargetChange>) -> Question {
    let asks = "did latency move with the model artefact unchanged?";
    let Some(changed) = changed else {
        return cant(asks, "there is no run of before to compare with; give one with --baseline");
    };
    let of: Vec<&Finding> = shown.iter().filter(|shown| compared(shown.fact)).collect();
    let what = of.iter().map(|shown| shown.says.as_str()).collect::<Vec<_>>().join("; ");
    let known = of.iter().find(|shown| shown.is == FactState::Yes);
    match (known, of.iter().all(|shown| shown.is == FactState::No)) {
        _ if of.is_empty() => cant(asks, "nothing could be compared with the baseline"),
        (None, false) => ask(asks, YesNo::CantTell, format!("too close to decide: {what}"), None),
        (known, _) => {
            let (answer, says) = unchanged(changed, known.is_some(), &what);
            ask(asks, answer, says, known.or(of.first()).and_then(|shown| shown.value))
        }
    }
}

/// Returns whether the fact is a comparison with the baseline.
fn compared(fact: Observed) -> bool {
    matches!(fact, Observed::AloneTokensSlower | Observed::AloneFirstLater | Observed::SlowerBeside)
}

fn over_alone(shown: &[Finding], spec: &ActiveSpec) -> Question {
    let asks = "does a single request with no contention already exceed the budget?";
    match shown.iter().find(|shown| shown.fact == Observed::AloneOverBudget) {
        Some(over) => ask(asks, YesNo::of(over.is), over.says.clone(), over.value),
        None if spec.promised().is_empty() => cant(asks, "no budget was given (--budget FILE, --ttft 500ms)"),
        None => cant(asks, "too few answers"),
    }
}

fn errors_climb(blocks: &[ExperimentLevel]) -> Question {
    let asks = "do errors and retries climb with latency?";
    let failing = |kind: ExperimentKind| {
        let rows: Vec<&BlockRow> = of(blocks, kind).flat_map(|block| &block.rows).collect();
        share(rows.iter().filter(|row| row.failed()).count(), rows.len())
    };
    let retried: u64 = blocks.iter().map(|block| block.attempts - block.rows.len() as u64).sum();
    match (failing(ExperimentKind::Alone), failing(ExperimentKind::Together)) {
        (Some(alone), Some(concurrency)) => {
            let answer = match () {
                () if concurrency.lower > alone.upper => YesNo::Yes,
                () if concurrency.value <= alone.value => YesNo::No,
                () => YesNo::CantTell,
            };
            let says = format!(
                "{:.1} % fail when isolated, {:.1} % under concurrency; {retried} retries",
                100.0 * alone.value,
                100.0 * concurrency.value
            );
            ask(asks, answer, says, Some(concurrency))
        }
        _ => cant(asks, "not measured under concurrency"),
    }
}
