//! From what was shown to a diagnosis: the verdict, what else fits, the five questions, and what was cleared.
//!
//! A cause is named only where it is believed *and* what it has to show was seen; belief by elimination names nobody. After
//! the first verdict the facts that it explains are set aside and the rest is judged once more, so that two faults get two
//! verdicts.

mod cleared;
mod questions;
mod tried;

pub use tried::{Tried, announced, tried};

use plimsoll_model::Load;

use super::before::{Against, Before};
use super::belief::{Belief, CONFIDENT, chance, decisive, unasked};
use super::block::Block;
use super::fact::{Fact, Shown, State, of};
use super::fact_state;
use super::facts;
use super::plan::{ActiveSpec, ExperimentKind};
use crate::causes::row;
use crate::verdict::DIAGNOSIS_SCHEMA;
use crate::{
    Answer, Cause, Changed, Counter, Diagnosis, Evidence, Experiment, Layer, Reference, RunnerUp, Subject,
    Verdict,
};
use cleared::{cleared, missing};
use plimsoll_measure::findings::{Trust, Validity};
use questions::questions;
use tried::server;

/// How often a cause makes a fact from which on the fact is its doing.
const EXPLAINS: f64 = 0.1;
/// Requests that have to be answered before anything is called fine.
const LEAST: usize = 20;

/// What the blocks of a diagnosis say.
pub fn diagnosis(
    blocks: &[Block],
    spec: &ActiveSpec,
    against: Option<Against<'_>>,
    validity: &Validity,
) -> Diagnosis {
    let before = against.map(|against| against.before);
    let shown = facts::read(blocks, spec, before);
    let unasked = unasked(&shown);
    let belief = Belief::after(&shown, &unasked, &[]);
    let answered = blocks.iter().flat_map(|block| &block.rows).filter(|row| row.fine).count();
    let mut verdicts = Vec::new();
    // A level without an answer is what the target did, and no fault of the measurement.
    let generator = validity.reasons.iter().filter(|reason| reason.check != "reached");
    let invalid = generator.into_iter().find(|reason| reason.verdict == Trust::Invalid);
    let answer = if let Some(reason) = invalid {
        verdicts.push(distrusted(&reason.means, &reason.figure, &reason.advice));
        Answer::Invalid
    } else {
        verdicts.push(first(&shown, &belief, answered, blocks));
        if verdicts[0].cause == Cause::Unknown {
            verdicts = both(&shown, &unasked).unwrap_or(verdicts);
        }
        match verdicts[0].cause {
            _ if verdicts.len() > 1 => Answer::Found,
            Cause::Nothing => Answer::NothingMaterial,
            Cause::Unknown => Answer::Unknown,
            cause => {
                verdicts.extend(second(&shown, cause, &unasked));
                Answer::Found
            }
        }
    };
    for verdict in &mut verdicts {
        verdict.evidence.extend(so_before(verdict.cause, &shown, before));
    }
    let changed = against.map_or_else(Changed::default, |against| against.changed());
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        answer,
        headline: headline(answer, &verdicts, blocks),
        subject: subject(blocks),
        validity: Some(validity.clone()),
        questions: questions(blocks, &shown, spec, before.map(|_| &changed)),
        cleared: cleared(blocks, &shown, before, &verdicts),
        observed: Vec::new(),
        missing: missing(&shown, blocks, before, &unasked),
        changed,
        verdicts,
    }
}

fn first(shown: &[Shown], belief: &Belief, answered: usize, blocks: &[Block]) -> Verdict {
    let (cause, chance) = belief.first();
    let rival = belief.of.iter().find(|(other, _)| *other != cause && *other != Cause::Unknown).copied();
    let seen = decisive(cause).is_empty()
        || decisive(cause).iter().any(|fact| fact_state(shown, *fact) == State::Yes);
    if answered == 0 && (chance < CONFIDENT || !seen) {
        return unanswered(belief, shown);
    }
    let enough = answered >= LEAST || cause != Cause::Nothing;
    let watched = cause != Cause::Nothing || of(blocks, ExperimentKind::Together).next().is_some();
    let broken = shown.iter().find(|shown| shown.fact == Fact::OverTogether && shown.state == State::Yes);
    match chance >= CONFIDENT && seen && enough && watched && cause != Cause::Unknown {
        // Nothing is wrong that experiments can see, and yet what was promised is not kept: that is not "nothing".
        true if cause == Cause::Nothing && broken.is_some() => {
            let mut found = unknown(
                &Belief { of: belief.of.iter().filter(|(of, _)| *of != cause).copied().collect() },
                shown,
            );
            let broken = broken.map_or("", |broken| broken.says.as_str());
            found.says = format!(
                "cannot tell: {broken}, and no fault was found that explains it: it may be the load alone"
            );
            found
        }
        true => verdict(cause, chance, shown, rival),
        false => unknown(belief, shown),
    }
}

/// Judged once more without what the first verdict explains.
fn second(shown: &[Shown], found: Cause, unasked: &[Cause]) -> Option<Verdict> {
    let explained: Vec<Fact> =
        Fact::ALL.into_iter().filter(|fact| chance(found, *fact) >= EXPLAINS).collect();
    let without: Vec<Cause> = unasked.iter().copied().chain([found]).collect();
    let rest = Belief::after(shown, &without, &explained);
    let (cause, chance) = rest.first();
    let seen = decisive(cause)
        .iter()
        .any(|fact| !explained.contains(fact) && fact_state(shown, *fact) == State::Yes);
    let named = !matches!(cause, Cause::Nothing | Cause::Unknown) && seen && chance >= CONFIDENT;
    let rival = rest.of.iter().find(|(other, _)| *other != cause && *other != Cause::Unknown).copied();
    named.then(|| verdict(cause, chance, shown, rival))
}

/// Two causes where no single one makes all that was shown: each has to be believed, and to have shown what it must and the other
/// does not make.
fn both(shown: &[Shown], unasked: &[Cause]) -> Option<Vec<Verdict>> {
    let belief = Belief::in_pairs(shown, unasked);
    let mut sure = belief.of.iter().filter(|(_, chance)| *chance >= CONFIDENT);
    let pair = [*sure.next()?, *sure.next()?];
    let seen = |cause: Cause, other: Cause| {
        let own = decisive(cause).iter().filter(|fact| chance(other, **fact) < EXPLAINS);
        own.into_iter().any(|fact| fact_state(shown, *fact) == State::Yes)
    };
    let [(a, _), (b, _)] = pair;
    let rival = belief.of.iter().find(|(other, _)| ![a, b, Cause::Unknown].contains(other)).copied();
    (seen(a, b) && seen(b, a))
        .then(|| pair.map(|(cause, chance)| verdict(cause, chance, shown, rival)).into_iter().collect())
}

fn verdict(cause: Cause, confidence: f64, shown: &[Shown], rival: Option<(Cause, f64)>) -> Verdict {
    let about = row(cause);
    let own = |shown: &&Shown| shown.state == State::Yes && chance(cause, shown.fact) >= EXPLAINS;
    let mut evidence: Vec<Evidence> = shown.iter().filter(own).map(evidence).collect();
    let needed = |evidence: &Evidence| !decisive(cause).iter().any(|fact| word(*fact) == evidence.figure);
    evidence.sort_by_key(needed);
    if cause == Cause::Nothing {
        let fine = shown.iter().filter(|shown| shown.state == State::No && shown.value.is_some());
        evidence = fine.map(self::evidence).collect();
    }
    let says = match evidence.first() {
        Some(first) => format!("{}: {}", about.title, first.says),
        None => about.title.clone(),
    };
    Verdict {
        layer: about.layer,
        cause,
        rule: decisive(about.cause).first().map_or_else(|| "none".to_owned(), |fact| word(*fact)),
        confidence,
        says,
        explains: None,
        counter: counter(cause, shown),
        evidence,
        runner_up: rival.map(|rival| runner_up(cause, rival)),
        overturn: overturn(cause),
        do_first: about.do_first.clone(),
        do_not: about.do_not.clone(),
    }
}

/// Believed too little, or not seen: the two best candidates and what would tell them apart.
fn unknown(belief: &Belief, shown: &[Shown]) -> Verdict {
    let mut best = belief.of.iter().filter(|(cause, _)| *cause != Cause::Unknown);
    let (a, b) = (best.next().copied(), best.next().copied());
    let about = row(Cause::Unknown);
    let none = belief.in_cause(Cause::Unknown);
    let says = match (a, b) {
        (Some((a, p)), _) if none > 0.5 && p < 0.2 => format!(
            "cannot tell: what was seen fits no single cause ({:.0} %); the nearest is {} ({:.0} %)",
            100.0 * none,
            a.title(),
            100.0 * p
        ),
        (Some((a, p)), Some((b, q))) => {
            format!("cannot tell: {} ({:.0} %) or {} ({:.0} %)", a.title(), 100.0 * p, b.title(), 100.0 * q)
        }
        _ => "cannot tell".to_owned(),
    };
    let evidence: Vec<Evidence> =
        shown.iter().filter(|shown| shown.state == State::Yes).map(evidence).collect();
    Verdict {
        layer: Layer::Unknown,
        cause: Cause::Unknown,
        rule: decisive(about.cause).first().map_or_else(|| "none".to_owned(), |fact| word(*fact)),
        confidence: 1.0 - a.map_or(0.0, |(_, p)| p),
        says,
        explains: None,
        evidence,
        counter: Counter::NoneExists,
        runner_up: b.zip(a).map(|(b, a)| runner_up(a.0, b)),
        overturn: a.map_or(Experiment::Scrape, |(cause, _)| overturn(cause)),
        do_first: about.do_first.clone(),
        do_not: about.do_not.clone(),
    }
}

/// Where nothing was ever answered there is no load and no speed to judge: what came instead is all that can be said.
fn unanswered(belief: &Belief, shown: &[Shown]) -> Verdict {
    let ways = [Fact::Fails, Fact::TurnedAway, Fact::CutShort, Fact::Outage];
    let way = shown.iter().filter(|shown| ways.contains(&shown.fact)).max_by(|a, b| {
        let share = |shown: &Shown| shown.value.map_or(0.0, |value| value.value);
        share(a).total_cmp(&share(b))
    });
    let says = way
        .map_or_else(|| "nothing was sent".to_owned(), |way| format!("nothing was answered: {}", way.says));
    Verdict {
        says,
        evidence: Vec::new(),
        runner_up: None,
        do_first: "send one of these requests by hand and read the answer".to_owned(),
        ..unknown(belief, shown)
    }
}

fn distrusted(means: &str, figure: &str, advice: &str) -> Verdict {
    let about = row(Cause::GeneratorLag);
    Verdict {
        layer: Layer::Measurement,
        cause: Cause::GeneratorLag,
        rule: decisive(about.cause).first().map_or_else(|| "none".to_owned(), |fact| word(*fact)),
        confidence: 1.0,
        says: format!("the figures are not the target's: {means} ({figure})"),
        explains: None,
        evidence: Vec::new(),
        counter: Counter::NoneExists,
        runner_up: None,
        overturn: Cause::GeneratorLag.overturned_by(),
        do_first: advice.to_owned(),
        do_not: about.do_not.clone(),
    }
}

/// Was what names this cause there before as well?
fn so_before(cause: Cause, shown: &[Shown], before: Option<&Before>) -> Vec<Evidence> {
    let Some(before) = before else { return Vec::new() };
    let seen = decisive(cause).iter().filter(|fact| fact_state(shown, **fact) == State::Yes);
    seen.filter_map(|fact| before.evidence(*fact)).collect()
}

/// What would overturn it that has not been done here.
fn overturn(cause: Cause) -> Experiment {
    match cause {
        Cause::Nothing => Experiment::ScaleLoad { factor: 2.0 },
        Cause::SlowDependency | Cause::PerRequestCost | Cause::BatchingWindow | Cause::DependencyTail => {
            Experiment::PastTheProxy
        }
        Cause::ConnectionLimit | Cause::Saturation | Cause::KvExhaustion => Experiment::Scrape,
        other => other.overturned_by(),
    }
}

fn runner_up(found: Cause, (cause, confidence): (Cause, f64)) -> RunnerUp {
    let why = match cause {
        Cause::Nothing => "what was seen is not what a sound endpoint shows".to_owned(),
        other => format!("what it should show was seen less often than what \"{}\" should", found.title())
            .replace("\"\"", other.title()),
    };
    RunnerUp { cause, confidence, why, experiment: overturn(cause) }
}

pub(crate) fn word(fact: Fact) -> String {
    match serde_json::to_value(fact) {
        Ok(serde_json::Value::String(word)) => word,
        _ => format!("{fact:?}"),
    }
}

fn evidence(shown: &Shown) -> Evidence {
    Evidence {
        figure: word(shown.fact),
        says: shown.says.clone(),
        value: shown.value,
        limit: shown.limit,
        inferred: !server(shown.fact),
    }
}

/// What had to move if it is true, as far as the run can know.
fn counter(cause: Cause, shown: &[Shown]) -> Counter {
    let counted = |fact: Fact, name: &str| {
        shown.iter().find(|shown| shown.fact == fact && shown.state == State::Yes).map(|shown| {
            Counter::Moved {
                name: name.to_owned(),
                by: shown.value.map_or(1.0, |value| (value.value * value.n as f64).round()),
            }
        })
    };
    let moved = match cause {
        Cause::RateLimit => counted(Fact::TurnedAway, "answers 429 or 503"),
        Cause::ServerErrors => counted(Fact::Fails, "failed requests"),
        Cause::EngineCrash => counted(Fact::Outage, "failed requests in a row"),
        Cause::StreamDisconnect => counted(Fact::CutShort, "truncated answers"),
        Cause::PrefixCacheLoss => counted(Fact::CacheForgets, "repeated prompts computed anew"),
        _ => None,
    };
    let unread = |name: &str| Counter::NotRead { name: name.to_owned() };
    moved.unwrap_or_else(|| match cause {
        Cause::Saturation | Cause::ConnectionLimit => match fact_state(shown, Fact::EngineQueue) {
            State::Yes => Counter::Moved { name: "requests waiting in the engine".into(), by: 1.0 },
            _ => unread("requests waiting in the engine (vllm:num_requests_waiting)"),
        },
        Cause::KvExhaustion => unread("preemptions (vllm:num_preemptions_total)"),
        Cause::PeriodicStall | Cause::HostContention => {
            unread("GC or CPU throttling time of the server's process")
        }
        _ => Counter::NoneExists,
    })
}

fn headline(answer: Answer, verdicts: &[Verdict], blocks: &[Block]) -> String {
    let most = blocks.iter().filter_map(Block::concurrency).max().unwrap_or(0);
    match (answer, verdicts) {
        (Answer::NothingMaterial, [only, ..]) => {
            format!("nothing material up to {most} in flight ({:.0} % sure)", 100.0 * only.confidence)
        }
        (Answer::Found, [one, two, ..]) => format!(
            "{}: {} ({:.0} % sure); and {}: {} ({:.0} % sure)",
            one.layer.name(),
            one.cause.title(),
            100.0 * one.confidence,
            two.layer.name(),
            two.cause.title(),
            100.0 * two.confidence
        ),
        (Answer::Found, [only]) => {
            format!("{}: {} ({:.0} % sure)", only.layer.name(), only.cause.title(), 100.0 * only.confidence)
        }
        (_, [only, ..]) => only.says.clone(),
        (_, []) => "nothing was measured".to_owned(),
    }
}

fn subject(blocks: &[Block]) -> Subject {
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
    Subject {
        chosen_of: 0,
        level: of(blocks, ExperimentKind::Watch).next().map(|block| block.level.id),
        load: if loads.is_empty() { "one at a time".into() } else { loads.join(", ") },
        requests: blocks.iter().map(|block| block.rows.len() as u64).sum(),
        reference: Reference::Probe,
        baseline_level: of(blocks, ExperimentKind::Alone).next().map(|block| block.level.id),
        alone: of(blocks, ExperimentKind::Alone).map(|block| block.rows.len() as u64).sum(),
    }
}
