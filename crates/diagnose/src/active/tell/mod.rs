//! Turns the results of experiments into a diagnosis: the verdict, the runner-up, the five questions, and the cleared
//! parts.
//!
//! Causes are named as in a run ([`crate::conclude`]). This module adds the statements that only experiments permit:
//! too few responses, none at all, facts that were present before, and untried experiments.

mod cleared;
mod questions;
mod tried;

pub use tried::{ExperimentReport, announced, tried};

use plimsoll_model::Load;

use super::before::{EarlierComparison, EarlierRun};
use super::block::ExperimentLevel;
use super::choose::CONFIDENT;
use super::facts::{self, of};
use super::is_so;
use super::plan::{ActiveSpec, ExperimentKind};
use crate::belief::{CausePosterior, EvidenceSource};
use crate::causes::row;
use crate::conclude::{Worse, conclude, unknown};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use crate::{Cause, Counter, Diagnosis, Evidence, NextExperiment, Reference, Subject, TargetChange, Verdict};
use cleared::{cleared, missing};
use plimsoll_measure::findings::{Trust, Validity};
use questions::questions;

/// Minimum number of successful requests before any part is cleared.
const LEAST: usize = 20;

/// Returns the diagnosis from the levels.
pub fn diagnosis(
    blocks: &[ExperimentLevel],
    spec: &ActiveSpec,
    against: Option<EarlierComparison<'_>>,
    validity: &Validity,
) -> Diagnosis {
    let before = against.map(|against| against.before);
    let shown = facts::read(blocks, spec, before);
    // A level without a response is an outcome of the target and no fault of the measurement.
    let generator = validity.reasons.iter().filter(|reason| reason.check != "reached");
    let invalid = generator.into_iter().find(|reason| reason.verdict == Trust::Invalid);
    let mut verdicts = match invalid {
        Some(reason) => vec![distrusted(&reason.means, &reason.figure, &reason.advice)],
        None => verdicts(blocks, &shown),
    };
    for verdict in &mut verdicts {
        verdict.evidence.extend(so_before(verdict.cause, &shown, before));
        verdict.overturn = overturn(verdict.cause);
        if verdict.counter == Counter::NoneExists {
            verdict.counter = counter(verdict.cause, &shown);
        }
        if let Some(other) = &mut verdict.runner_up {
            other.experiment = overturn(other.cause);
        }
    }
    let changed = against.map_or_else(TargetChange::default, |against| against.changed());
    Diagnosis {
        validity: Some(validity.clone()),
        questions: questions(blocks, &shown, spec, before.map(|_| &changed)),
        cleared: cleared(blocks, &shown, before, &verdicts),
        missing: missing(&shown, blocks, before),
        changed,
        ..Diagnosis::of(subject(blocks), verdicts, &shown)
    }
}

fn verdicts(blocks: &[ExperimentLevel], shown: &[Finding]) -> Vec<Verdict> {
    let belief = CausePosterior::after(shown, EvidenceSource::Experiments);
    let worse = worse(blocks, shown);
    let verdicts = conclude(&worse, shown, &belief);
    let answered = blocks.iter().flat_map(|block| &block.rows).any(|row| row.fine);
    // The server's messages are more specific than the verdict that it responds with errors.
    let said = !matches!(verdicts[0].cause, Cause::Unknown | Cause::ServerErrors);
    let sure = said && verdicts[0].confidence >= CONFIDENT;
    if answered || sure { verdicts } else { vec![unanswered(&worse, &belief, shown)] }
}

/// Returns the changes for the worse apart from facts. Without an earlier run they are unknown, so the facts decide.
fn worse(blocks: &[ExperimentLevel], shown: &[Finding]) -> Worse {
    let answered = blocks.iter().flat_map(|block| &block.rows).filter(|row| row.fine).count();
    let together = of(blocks, ExperimentKind::Together).filter_map(ExperimentLevel::concurrency).max();
    let broken =
        shown.iter().find(|shown| shown.fact == Observed::BudgetBroken && shown.is == FactState::Yes);
    let few = answered < LEAST || together.is_none();
    let fine = shown.iter().filter(|shown| shown.is == FactState::No);
    Worse {
        felt: true,
        sure: few || broken.is_some(),
        or_sound: false,
        words: match broken {
            Some(broken) => {
                format!("{}, and no fault explains it: the cause may be only the load", broken.says)
            }
            None if few => format!("{answered} answers are too few to rule out a fault"),
            None => "the evidence fits no single cause well".to_owned(),
        },
        sound: format!("no fault was found with up to {} requests in flight", together.unwrap_or(1)),
        evidence: fine.filter_map(|shown| Some((shown, shown.value?))).map(evidence).collect(),
        open: false,
        unsteady: None,
    }
}

fn evidence((shown, value): (&Finding, plimsoll_measure::findings::Estimate)) -> Evidence {
    Evidence::figure(&shown.fact.word(), shown.says.clone(), value, shown.limit)
}

/// Returns the verdict if no request was ever answered: there is no speed to evaluate, only the failures.
fn unanswered(worse: &Worse, belief: &CausePosterior, shown: &[Finding]) -> Verdict {
    let ways = [Observed::Errors, Observed::TurnedAway, Observed::CutShort, Observed::Outage];
    let way = shown.iter().filter(|shown| ways.contains(&shown.fact)).max_by(|a, b| {
        let share = |shown: &Finding| shown.value.map_or(0.0, |value| value.value);
        share(a).total_cmp(&share(b))
    });
    let says = way
        .map_or_else(|| "nothing was sent".to_owned(), |way| format!("nothing was answered: {}", way.says));
    Verdict {
        says,
        evidence: Vec::new(),
        runner_up: None,
        do_first: "send one of these requests manually (curl) and read the answer".to_owned(),
        ..unknown(worse, shown, belief)
    }
}

fn distrusted(means: &str, figure: &str, advice: &str) -> Verdict {
    Verdict {
        rule: Observed::SentLate.word(),
        confidence: 1.0,
        says: format!("the figures are not the target's: {means} ({figure})"),
        do_first: advice.to_owned(),
        ..Verdict::of(Cause::GeneratorLag)
    }
}

/// Returns evidence on whether the decisive facts of this cause were present before.
fn so_before(cause: Cause, shown: &[Finding], before: Option<&EarlierRun>) -> Vec<Evidence> {
    let Some(before) = before else { return Vec::new() };
    let seen = row(cause).decisive.iter().filter(|fact| is_so(shown, **fact) == FactState::Yes);
    seen.filter_map(|fact| before.evidence(*fact)).collect()
}

/// Returns an experiment that would overturn the cause and has not been run here.
fn overturn(cause: Cause) -> NextExperiment {
    match cause {
        Cause::Nothing => NextExperiment::ScaleLoad { factor: 2.0 },
        Cause::SlowDependency | Cause::PerRequestCost | Cause::BatchingWindow | Cause::DependencyTail => {
            NextExperiment::PastTheProxy
        }
        Cause::ConnectionLimit | Cause::Saturation | Cause::KvExhaustion => NextExperiment::Scrape,
        other => other.overturned_by(),
    }
}

/// Returns the counter that must have moved if the cause is true and that was not read.
fn counter(cause: Cause, shown: &[Finding]) -> Counter {
    let name = match cause {
        Cause::Saturation | Cause::ConnectionLimit
            if is_so(shown, Observed::EngineQueue) != FactState::Yes =>
        {
            "requests waiting in the engine (vllm:num_requests_waiting)"
        }
        Cause::KvExhaustion => "preemptions (vllm:num_preemptions_total)",
        Cause::PeriodicStall | Cause::HostContention => "GC or CPU throttling time of the server's process",
        _ => return Counter::NoneExists,
    };
    Counter::NotRead { name: name.to_owned() }
}

fn subject(blocks: &[ExperimentLevel]) -> Subject {
    let loads: Vec<String> = blocks
        .iter()
        .filter(|block| {
            matches!(block.kind, ExperimentKind::Together | ExperimentKind::Watch | ExperimentKind::Rates)
        })
        .map(|block| match block.level.load {
            Load::Open { rate_per_s } => format!("{rate_per_s:.1}/s"),
            Load::Closed { concurrency } | Load::Saturating { concurrency } => {
                format!("{concurrency} in flight")
            }
            Load::Wave { requests } => format!("a wave of {requests}"),
        })
        .collect();
    let load = if loads.is_empty() { "one at a time".to_owned() } else { loads.join(", ") };
    let requests = blocks.iter().map(|block| block.rows.len() as u64).sum();
    Subject {
        level: of(blocks, ExperimentKind::Watch).next().map(|block| block.level.id),
        baseline_level: of(blocks, ExperimentKind::Alone).next().map(|block| block.level.id),
        alone: of(blocks, ExperimentKind::Alone).map(|block| block.rows.len() as u64).sum(),
        ..Subject::of(load, requests, Reference::Probe)
    }
}
