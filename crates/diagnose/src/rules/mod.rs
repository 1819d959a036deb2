//! The rule table: in the order in which an answer makes the next question pointless.
//!
//! Every rule looks at the [`Bench`] and fires or does not, with a confidence that is the product of how far its clauses are
//! beyond their limits. All of them are asked, the first confident one wins, and the strongest of the others is its runner-up.

mod ceiling;
mod clock;
mod dependency;
mod engine;
mod failures;
mod front;
mod gathered;
mod head_of_line;
mod heavier;
mod inside;
mod load;
mod loaded;
mod measurement;
mod model;
mod neighbour;
mod network;
mod network_path;
mod pages;
mod replicas;
mod sampled;
mod saturation;
mod shape;
mod stall;
mod tracing;
mod window;

use super::bench::Bench;
use super::cause::{Cause, Layer};
use super::verdict::{Cleared, Evidence, RunnerUp, Verdict};
use crate::fired::{Fired, beyond, medians, share, within};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::number;

/// A rule of the table.
type Rule = fn(&Bench<'_>) -> Option<Fired>;

/// The table.
const TABLE: [Rule; 51] = [
    // V: is it the measurement?
    measurement::lost_rows,
    measurement::client_cap,
    measurement::generator_lag,
    // Answers that did not come: whatever else is slow, these are what people notice first.
    failures::retry_storm,
    failures::crash,
    failures::rate_limit,
    failures::cut,
    failures::errors,
    // L: is it what is asked?
    load::other_mix,
    load::higher_rate,
    head_of_line::head_of_line,
    load::less_shared_prompts,
    load::longer_prompts,
    load::longer_answers,
    gathered::bursts,
    // The way there and back: what it takes with it looks like stalls of some answers, and like a cost of all.
    network::loss,
    network::distance,
    // Who, and when: one replica, a stretch of time.
    replicas::scaling_lag,
    replicas::cold_start,
    replicas::bad,
    pages::bad,
    pages::imbalance,
    // By the clock or by each answer's bytes: either makes lumps.
    clock::throttled,
    front::buffering,
    // The cache, which takes what it holds with it: who waits for it, and prompts that are read again, make pauses and slow seconds.
    engine::kv_transfer,
    engine::kv,
    engine::prefix_loss,
    measurement::drift,
    neighbour::noisy,
    stall::stall,
    // What is known to have been switched on, before what is read from times alone.
    tracing::overhead,
    // Before the engine.
    dependency::slow,
    dependency::tail,
    dependency::capacity,
    sampled::tail,
    sampled::capacity,
    front::batching_window,
    // The host in each step and the exchange between devices; then the model, once nothing that is added to it explains it.
    inside::exchange,
    inside::launched_late,
    engine::host_bound,
    model::slower,
    front::per_request,
    dependency::untold,
    inside::memory_bandwidth,
    model::over_budget,
    // The engine's queue.
    front::connection_limit,
    replicas::imbalance,
    saturation::saturation,
    // Failures too few to be noticed for their number.
    failures::few,
    // What is left: somewhat more to do than before, where nothing else was found.
    heavier::heavier,
    measurement::no_steady_state,
];

/// What the table says: the winner, and what else fired, strongest first.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The winner, or "nothing" or "unknown".
    pub fired: Fired,
    /// The others.
    pub others: Vec<Fired>,
}

/// Asks every rule.
pub fn judge(bench: &Bench<'_>, found: &[Cause]) -> Judged {
    let made = |one: &Fired| {
        found.iter().any(|found| *found == one.cause || super::apart::makes(*found).contains(&one.cause))
    };
    let mut fired: Vec<Fired> =
        TABLE.iter().filter_map(|rule| rule(bench)).filter(|one| !made(one)).collect();
    network_path::doubt(bench, &mut fired);
    // What was taken out with the first cause is no lost record, and makes no gap in time.
    if !found.is_empty() {
        fired.retain(|one| one.cause.layer() != Layer::Measurement);
    }
    let confident = bench.case.spec.confident;
    let winner = fired.iter().position(|one| one.confidence >= confident);
    let strongest = |fired: &mut Vec<Fired>| fired.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    match winner {
        Some(at) => {
            let winner = fired.remove(at);
            // Two rules may show one cause by different figures; it is no rival of itself.
            fired.retain(|one| one.cause != winner.cause);
            strongest(&mut fired);
            Judged { fired: winner, others: fired }
        }
        None if bench.material.is() => {
            // Two candidates at least: what no rule half believes is read off the shape alone.
            let shaped = shape::candidates(bench).into_iter();
            let fits =
                shaped.filter(|fits| fired.iter().all(|one| one.cause != fits.cause)).collect::<Vec<_>>();
            let lacks = 2usize.saturating_sub(fired.len());
            fired.extend(fits.into_iter().take(lacks));
            strongest(&mut fired);
            let words = bench.material.words();
            let names: Vec<&str> = fired.iter().take(2).map(|one| one.cause.title()).collect();
            let says = match names.is_empty() {
                true => format!("{words}, and no rule explains it"),
                false => format!("{words}; the best candidates: {}", names.join("; ")),
            };
            Judged { fired: Fired::new(Cause::Unknown, 0.0, says), others: fired }
        }
        None => {
            strongest(&mut fired);
            Judged {
                fired: Fired::new(Cause::Nothing, nothing(bench), bench.material.not_shown()),
                others: fired,
            }
        }
    }
}

/// What the table says beside a cause whose effect is still there: the first confident rule that rests on nothing that it moves.
pub fn beside(bench: &Bench<'_>, found: Cause) -> Option<Judged> {
    let mut fired: Vec<Fired> = TABLE
        .iter()
        .filter_map(|rule| rule(bench))
        .filter(|one| one.cause != found && super::apart::may_follow(found, one.cause))
        .collect();
    network_path::doubt(bench, &mut fired);
    let winner = fired.iter().position(|one| one.confidence >= bench.case.spec.confident)?;
    let winner = fired.remove(winner);
    fired.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    Some(Judged { fired: winner, others: fired })
}

/// How sure it is that nothing is: how far the upper bounds stay under what would be material.
fn nothing(bench: &Bench<'_>) -> f64 {
    let spec = bench.case.spec;
    if !bench.material.judged {
        return 0.5;
    }
    let bound = |m: &super::material::Moved| {
        let limit = if m.percentile > 0.9 { spec.material_p95 } else { spec.material_p50 };
        if m.effect.ratio.upper < limit { 1.0 } else { (limit / m.effect.ratio.upper).clamp(0.3, 1.0) }
    };
    // Far percentiles and longest pauses of a run this long have no upper bound; that is no doubt about the rest.
    let told = bench.material.moved.iter().filter(|m| m.percentile < 0.96 && m.metric != "pause");
    told.map(bound).fold(1.0, f64::min)
}

impl Judged {
    /// The verdict, with its runner-up.
    pub fn verdict(&self, bench: &Bench<'_>) -> Verdict {
        let unknown = self.fired.cause == Cause::Unknown;
        let runner_up = self.others.first().map(|next| RunnerUp {
            cause: next.cause,
            confidence: next.confidence,
            why: match unknown {
                true => format!("the best candidate, not confident enough: {}", next.says),
                false if next.confidence < bench.case.spec.confident => {
                    format!("not confident: {}", next.says)
                }
                false => format!("asked later, and it may follow from the first: {}", next.says),
            },
            experiment: next.overturn,
        });
        let mut verdict = self.fired.verdict(runner_up);
        if unknown {
            if let Some(best) = self.others.first() {
                verdict.overturn = best.overturn;
            }
            verdict.do_first = verdict.overturn.words();
            for other in self.others.iter().take(2) {
                let says = format!("{} ({}): {}", other.cause.title(), number(other.confidence), other.says);
                let mut line = Evidence::said("candidate", says);
                line.value = other.evidence.first().and_then(|evidence| evidence.value);
                verdict.evidence.push(line);
            }
        }
        if self.fired.cause == Cause::Nothing && bench.material.is_open() {
            verdict.do_first = verdict.overturn.words();
        }
        if matches!(self.fired.cause, Cause::Unknown | Cause::Nothing) {
            let moved = bench.material.moved.iter();
            verdict.evidence.extend(moved.filter(|m| unknown == m.material).take(4).map(|m| {
                let name = format!("{}_p{}_ratio", m.metric, number(100.0 * m.percentile));
                Evidence::figure(&name, m.words(), m.effect.ratio, None)
            }));
        }
        verdict
    }
}

impl Evidence {
    /// A figure with its limit.
    pub fn figure(figure: &str, says: String, value: Estimate, limit: Option<f64>) -> Evidence {
        Evidence { figure: figure.to_owned(), says, value: Some(value), limit, inferred: false }
    }

    /// Something that is no figure.
    pub fn said(figure: &str, says: String) -> Evidence {
        Evidence { figure: figure.to_owned(), says, value: None, limit: None, inferred: false }
    }

    /// The same, inferred from the client's side.
    pub fn inferred(mut self) -> Evidence {
        self.inferred = true;
        self
    }
}

/// What was found to be fine: M0, that the model is not the cause, where the single requests say so; the network; the generator.
pub fn cleared(bench: &Bench<'_>, verdicts: &[Verdict]) -> Vec<Cleared> {
    let mut cleared = Vec::new();
    let blamed = |layer: Layer| verdicts.iter().any(|verdict| verdict.layer == layer);
    if !blamed(Layer::Model)
        && let Some(found) = model_cleared(bench)
    {
        cleared.push(found);
    }
    cleared.extend(network::cleared(bench, verdicts));
    let lag = bench.now().finite(|row| row.lag);
    if !blamed(Layer::Measurement)
        && !lag.is_empty()
        && let Some(p99) = super::questions::estimate(&lag, 0.99)
    {
        let says = format!("the generator sent on time (lag p99 {})", plimsoll_measure::say::ms(p99.value));
        cleared.push(Cleared { layer: Layer::Measurement, says, value: Some(p99) });
    }
    cleared
}

/// Two one-sided tests at 5 % on the medians of single requests: the 90 % interval lies within the margin.
fn model_cleared(bench: &Bench<'_>) -> Option<Cleared> {
    let base = bench.base.as_ref()?;
    let same = bench.case.spec.same;
    let tpot = |rows: &[super::seen::RequestRow]| -> Vec<f64> {
        rows.iter().map(|row| row.tpot).filter(|x| x.is_finite()).collect()
    };
    let ratio = medians(&tpot(&base.alone), &tpot(&bench.candidate.alone), 0.9)?;
    (ratio.lower > 1.0 - same && ratio.upper < 1.0 + same).then(|| Cleared {
        layer: Layer::Model,
        says: format!(
            "the model is not the cause: the time per token of single requests is × {} [{}, {}] (90 % interval within ±{} %)",
            number(ratio.value),
            number(ratio.lower),
            number(ratio.upper),
            number(100.0 * same)
        ),
        value: Some(ratio),
    })
}
