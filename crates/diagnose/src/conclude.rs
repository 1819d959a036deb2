//! Turns facts and beliefs into verdicts: the named cause, its evidence, the runner-up and the experiment that would
//! overturn it.
//!
//! A cause is named only if the belief in it is high *and* a decisive fact was seen; elimination names no
//! cause. A second cause is named if the posterior over pairs supports it together with the first. Its decisive fact
//! must be unrelated to the first cause.

use plimsoll_measure::findings::{Reason, Trust};
use plimsoll_measure::say::number;

use super::belief::CausePosterior;
use super::cause::{Cause, Layer};
use super::causes::{CauseRow, FactRelation, row};
use super::experiment::NextExperiment;
use super::facts::{FactState, Finding, Observed};
use super::frame::Frames;
use super::verdict::{Counter, Evidence, RunnerUp, Verdict};

/// Minimum belief at which a cause is named. The second value applies if the layer is nearly certain; the verdict
/// then also names the rival cause.
const NAMED: (f64, f64) = (0.5, 0.35);
/// Minimum belief in the layer for the lower limit of [`NAMED`].
const LAYER: f64 = 0.85;
/// Minimum belief in a second cause.
const SECOND: f64 = 0.7;
/// Minimum share of the streaming time or of the requests that a fact must affect. A smaller share does not move a
/// p99.
const TOUCHES: f64 = 0.01;

/// The state of the run apart from the facts: whether anything is worse, and the texts of verdicts that name no
/// cause.
pub struct Worse {
    /// Set if anything became worse or failed, or if that is unknown. Otherwise no cause matters.
    pub felt: bool,
    /// Set if something is worse with confidence. The run is then never called sound.
    pub sure: bool,
    /// Set if a run without a named cause is sound for any beliefs.
    pub or_sound: bool,
    /// Description of the change, for the verdict that names no cause.
    pub words: String,
    /// Text for a run without problems.
    pub sound: String,
    pub evidence: Vec<Evidence>,
    /// Set if more requests could still show a change.
    pub open: bool,
    /// The run's own verdict if the run is not in a steady state, with the time; `None` otherwise.
    pub unsteady: Option<String>,
}

impl Worse {
    /// Returns the state for the records of a run.
    pub fn of(frames: &Frames<'_>, found: &[Finding]) -> Worse {
        let material = &frames.material;
        let unsteady = unsteady(frames);
        let felt = felt(frames, found) || unsteady.is_some();
        let moved = material.moved.iter().filter(|moved| !moved.material).take(4);
        let words = match &unsteady {
            Some(unsteady) if material.is() => format!("{}; {unsteady}", material.words()),
            Some(unsteady) => unsteady.clone(),
            None => material.words(),
        };
        Worse {
            felt,
            sure: material.is() || unsteady.is_some(),
            or_sound: !felt || frames.base.is_none(),
            words,
            sound: material.not_shown(),
            evidence: moved.map(noticed).collect(),
            open: material.is_open(),
            unsteady,
        }
    }
}

/// Returns the run's own verdict on the analysed level if the level is not steady. The text is shared so that two
/// outputs of one run agree.
fn unsteady(frames: &Frames<'_>) -> Option<String> {
    let validity = frames.case.validity?;
    let level = frames.now().level.id;
    let own = |reason: &&Reason| {
        reason.check == "steady_state"
            && reason.verdict >= Trust::Suspect
            && reason.level.is_none_or(|of| of == level)
    };
    let figure = &validity.reasons.iter().find(own)?.figure;
    Some(match figure.starts_with("not steady") {
        true => figure.clone(),
        false => format!("not steady: {figure}"),
    })
}

/// Returns the verdicts in order of weight; without a problem or a known cause there is exactly one.
pub fn conclude(worse: &Worse, found: &[Finding], belief: &CausePosterior) -> Vec<Verdict> {
    // A fact that affects almost no requests decides nothing, unless something is worse with confidence.
    let large = |finding: &&Finding| worse.sure || finding.touches.is_none_or(|share| share >= TOUCHES);
    let found: &[Finding] = &found.iter().filter(large).cloned().collect::<Vec<_>>();
    let mut verdicts = concluded(worse, found, belief);
    if let Some(unsteady) = &worse.unsteady {
        let line = || Evidence::said("steady_state", unsteady.clone());
        verdicts.iter_mut().for_each(|verdict| verdict.evidence.push(line()));
    }
    verdicts
}

fn concluded(worse: &Worse, found: &[Finding], belief: &CausePosterior) -> Vec<Verdict> {
    let named = |(cause, p): &(Cause, f64)| {
        let rest = matches!(cause, Cause::Nothing | Cause::Unknown);
        let sure = *p >= NAMED.0 || *p >= NAMED.1 && belief.in_layer_of(*cause) >= LAYER;
        let matters = worse.felt || row(*cause).layer == Layer::Measurement;
        !rest && sure && matters && decided_by(found, row(*cause)).is_some()
    };
    let Some(first) = belief.of.iter().find(|one| named(one)).copied() else {
        // A run that is worse with confidence is never sound; its cause is then unknown.
        let sound = !worse.sure && (belief.first().0 == Cause::Nothing || worse.or_sound);
        return vec![if sound { nothing(worse, belief) } else { unknown(worse, found, belief) }];
    };
    let mut verdicts = vec![verdict(found, first)];
    let beside = |(cause, p): &&(Cause, f64)| {
        let own = |finding: &&Finding| row(first.0).shows(finding.fact) == FactRelation::Never;
        *p >= SECOND && *cause != first.0 && decided_by(found, row(*cause)).filter(own).is_some()
    };
    let measured = row(first.0).layer != Layer::Measurement;
    verdicts.extend(belief.of.iter().filter(|_| measured).find(beside).map(|second| verdict(found, *second)));
    // Failures come first, sorted by their number, because users notice missing responses first.
    let failing = |verdict: &Verdict| {
        let kinds = [Observed::TurnedAway, Observed::CutShort, Observed::Errors];
        let decided = decided_by(found, row(verdict.cause)).filter(|decided| kinds.contains(&decided.fact));
        decided.and_then(|decided| decided.value).map_or(0.0, |value| value.value)
    };
    verdicts.sort_by(|a, b| failing(b).total_cmp(&failing(a)));
    // A cause that is named too is no rival.
    let named: Vec<Cause> = verdicts.iter().map(|verdict| verdict.cause).collect();
    let rivals = belief.of.iter().filter(|(cause, _)| !named.contains(cause) && *cause != Cause::Unknown);
    let instead = rivals.map(|(cause, _)| (*cause, belief.instead_of(*cause, &named)));
    let rival = instead.max_by(|a, b| a.1.total_cmp(&b.1));
    verdicts.iter_mut().for_each(|verdict| verdict.runner_up = rival.map(|rival| runner_up(found, rival)));
    verdicts
}

/// Returns whether anything became worse or failed, or may have. Without a baseline or a budget this is unknown, so
/// the facts decide.
fn felt(frames: &Frames<'_>, found: &[Finding]) -> bool {
    let fails =
        [Observed::TurnedAway, Observed::CutShort, Observed::Errors, Observed::Outage, Observed::Retries];
    let failing = found.iter().any(|finding| fails.contains(&finding.fact) && finding.is == FactState::Yes);
    let worse = frames.material.is() || frames.material.moved.iter().any(|moved| moved.large);
    // Arrivals in few time intervals can't be compared.
    let unknown = frames.material.moved.is_empty() && frames.case.budget.is_none();
    worse || failing || unknown
}

/// Returns the observed decisive fact of a cause.
fn decided_by<'f>(found: &'f [Finding], of: &CauseRow) -> Option<&'f Finding> {
    let seen =
        |fact: &Observed| found.iter().find(|finding| finding.fact == *fact && finding.is == FactState::Yes);
    of.decisive.iter().find_map(seen)
}

fn verdict(found: &[Finding], (cause, confidence): (Cause, f64)) -> Verdict {
    let of = row(cause);
    let decided = decided_by(found, of);
    let mut own: Vec<&Finding> = found
        .iter()
        .filter(|finding| finding.is == FactState::Yes && of.shows(finding.fact) != FactRelation::Never)
        .collect();
    // Decisive facts come first, symptoms last.
    own.sort_by_key(|finding| {
        (Some(finding.fact) != decided.map(|decided| decided.fact), finding.fact.is_noticed())
    });
    Verdict {
        rule: decided.map_or_else(|| "none".to_owned(), |decided| decided.fact.word()),
        confidence,
        says: decided.map_or_else(|| of.title.clone(), |decided| decided.says.clone()),
        evidence: own.into_iter().map(evidence).collect(),
        counter: decided.map_or(Counter::NoneExists, counter),
        ..Verdict::of(cause)
    }
}

fn nothing(worse: &Worse, belief: &CausePosterior) -> Verdict {
    let mut verdict = Verdict::of(Cause::Nothing);
    if worse.open {
        verdict.do_first = verdict.overturn.words();
    }
    let (says, evidence) = (worse.sound.clone(), worse.evidence.clone());
    Verdict { confidence: belief.in_cause(Cause::Nothing), says, evidence, ..verdict }
}

/// Returns the verdict for a problem without a believed cause: the two best candidates, their evidence and a
/// distinguishing experiment. The verdict shows no probability, because no decisive fact was seen and belief by
/// elimination is no basis for action.
pub fn unknown(worse: &Worse, found: &[Finding], belief: &CausePosterior) -> Verdict {
    let mut candidates =
        belief.of.iter().filter(|(cause, _)| !matches!(cause, Cause::Nothing | Cause::Unknown));
    let best: Vec<(Cause, f64)> = candidates.by_ref().take(2).copied().collect();
    let names: Vec<&str> = best.iter().map(|(cause, _)| cause.title()).collect();
    let overturn = best.first().map_or(NextExperiment::Scrape, |(cause, _)| cause.overturned_by());
    let mut lines: Vec<Evidence> =
        found.iter().filter(|finding| finding.is == FactState::Yes).map(evidence).collect();
    lines.extend(best.iter().map(|(cause, _)| {
        let seen = decided_by(found, row(*cause))
            .map_or("its decisive evidence was not observed", |decided| &decided.says);
        Evidence::said("candidate", format!("{}: {seen}", cause.title()))
    }));
    Verdict {
        says: format!("{}; the best candidates: {}", worse.words, names.join("; ")),
        evidence: lines,
        runner_up: best.first().map(|(cause, p)| runner_up(found, (*cause, p.min(NAMED.1)))),
        overturn,
        do_first: overturn.words(),
        ..Verdict::of(Cause::Unknown)
    }
}

fn noticed(moved: &super::material::MovedMetric) -> Evidence {
    let name = format!("{}_p{}_ratio", moved.metric, number(100.0 * moved.percentile));
    Evidence::figure(&name, moved.words(), moved.effect.ratio, None)
}

fn evidence(finding: &Finding) -> Evidence {
    let mut evidence = Evidence::said(&finding.fact.word(), finding.says.clone());
    (evidence.value, evidence.limit, evidence.inferred) =
        (finding.value, finding.limit, finding.fact.is_inferred());
    evidence
}

/// Returns the number of attempts with the decisive kind of failure, or the counter of the cause.
fn counter(decided: &Finding) -> Counter {
    let name = match decided.fact {
        Observed::TurnedAway => "requests rejected",
        Observed::CutShort => "answers cut short",
        Observed::Errors => "requests with an error",
        _ => return Counter::NoneExists,
    };
    let by = decided.value.map_or(0.0, |value| (value.value * value.n as f64).round());
    Counter::Moved { name: name.to_owned(), by }
}

fn runner_up(found: &[Finding], (cause, confidence): (Cause, f64)) -> RunnerUp {
    let of = row(cause);
    let why = match decided_by(found, of) {
        _ if cause == Cause::Nothing => "the difference may be chance".to_owned(),
        Some(decided) => format!("it fits less of the evidence, but: {}", decided.says),
        None => "its decisive evidence was not observed".to_owned(),
    };
    RunnerUp { cause, confidence, why, experiment: cause.overturned_by() }
}

impl Verdict {
    /// Returns the verdict of a cause with the texts of its row, without evidence and confidence.
    pub(crate) fn of(cause: Cause) -> Verdict {
        let of = row(cause);
        Verdict {
            layer: of.layer,
            cause,
            rule: "none".to_owned(),
            confidence: 0.0,
            says: of.title.clone(),
            evidence: Vec::new(),
            counter: Counter::NoneExists,
            runner_up: None,
            overturn: cause.overturned_by(),
            do_first: of.do_first.clone(),
            do_not: of.do_not.clone(),
        }
    }
}

impl Evidence {
    /// Returns evidence with a figure and its limit.
    pub fn figure(
        figure: &str,
        says: String,
        value: plimsoll_measure::findings::Estimate,
        limit: Option<f64>,
    ) -> Evidence {
        Evidence { figure: figure.to_owned(), says, value: Some(value), limit, inferred: false }
    }

    /// Returns evidence that has a description but no value or limit.
    pub fn said(figure: &str, says: String) -> Evidence {
        Evidence { figure: figure.to_owned(), says, value: None, limit: None, inferred: false }
    }
}
