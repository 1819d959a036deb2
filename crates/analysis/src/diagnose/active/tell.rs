//! From what was shown to a diagnosis: the verdict, what else fits, the five questions, and what was cleared.
//!
//! A cause is named only where it is believed *and* what it has to show was seen; belief by elimination names nobody. After
//! the first verdict the facts that it explains are set aside and the rest is judged once more, so that two faults get two
//! verdicts.

use plimsoll_model::{How, Load, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::before::{Against, Before};
use super::belief::{Belief, CONFIDENT, chance, decisive, unasked};
use super::block::{Block, Row, median, ratio, share};
use super::fact::{self, Fact, Shown, State, ms, of};
use super::fact_state;
use super::plan::{ActiveSpec, Kind, Traffic};
use crate::diagnose::questions::unchanged;
use crate::diagnose::verdict::DIAGNOSIS_SCHEMA;
use crate::diagnose::{
    Answer, Cause, Changed, Cleared, Counter, Diagnosis, Evidence, Experiment, Layer, Missing, Question,
    Reference, RunnerUp, Subject, Verdict, YesNo,
};
use crate::findings::{Trust, Validity};

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
    let shown = fact::read(blocks, spec, before);
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
        questions: questions(blocks, &shown, spec, before.map(|_| &changed)),
        cleared: cleared(blocks, &shown, before, &verdicts),
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
    let watched = cause != Cause::Nothing || of(blocks, Kind::Together).next().is_some();
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
    let about = cause.about();
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
        None => about.title.to_owned(),
    };
    Verdict {
        layer: about.layer,
        cause,
        rule: about.rule.to_owned(),
        confidence,
        says,
        explains: None,
        counter: counter(cause, shown),
        evidence,
        runner_up: rival.map(|rival| runner_up(cause, rival)),
        overturn: overturn(cause),
        do_first: about.first.to_owned(),
        do_not: about.not.to_owned(),
    }
}

/// Believed too little, or not seen: the two best candidates and what would tell them apart.
fn unknown(belief: &Belief, shown: &[Shown]) -> Verdict {
    let mut best = belief.of.iter().filter(|(cause, _)| *cause != Cause::Unknown);
    let (a, b) = (best.next().copied(), best.next().copied());
    let about = Cause::Unknown.about();
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
        rule: about.rule.to_owned(),
        confidence: 1.0 - a.map_or(0.0, |(_, p)| p),
        says,
        explains: None,
        evidence,
        counter: Counter::NoneExists,
        runner_up: b.zip(a).map(|(b, a)| runner_up(a.0, b)),
        overturn: a.map_or(Experiment::Scrape, |(cause, _)| overturn(cause)),
        do_first: about.first.to_owned(),
        do_not: about.not.to_owned(),
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
    let about = Cause::GeneratorLag.about();
    Verdict {
        layer: Layer::Measurement,
        cause: Cause::GeneratorLag,
        rule: about.rule.to_owned(),
        confidence: 1.0,
        says: format!("the figures are not the target's: {means} ({figure})"),
        explains: None,
        evidence: Vec::new(),
        counter: Counter::NoneExists,
        runner_up: None,
        overturn: Cause::GeneratorLag.overturned_by(),
        do_first: advice.to_owned(),
        do_not: about.not.to_owned(),
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
        .filter(|block| matches!(block.kind, Kind::Together | Kind::Watch | Kind::Rates))
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
        level: of(blocks, Kind::Watch).next().map(|block| block.level.id),
        load: if loads.is_empty() { "one at a time".into() } else { loads.join(", ") },
        requests: blocks.iter().map(|block| block.rows.len() as u64).sum(),
        reference: Reference::Probe,
        baseline_level: of(blocks, Kind::Alone).next().map(|block| block.level.id),
        alone: of(blocks, Kind::Alone).map(|block| block.rows.len() as u64).sum(),
    }
}

// ------------------------------------------------------------------------------------------------ the five questions

fn questions(
    blocks: &[Block],
    shown: &[Shown],
    spec: &ActiveSpec,
    changed: Option<&Changed>,
) -> Vec<Question> {
    vec![scales(blocks), tail(blocks), moved(shown, changed), over_alone(shown, spec), errors_climb(blocks)]
}

fn ask(asks: &str, answer: YesNo, says: String, value: Option<crate::findings::Estimate>) -> Question {
    Question { asks: asks.to_owned(), answer, says, value }
}

fn scales(blocks: &[Block]) -> Question {
    let asks = "does it scale with concurrency?";
    let alone = of(blocks, Kind::Alone).next().and_then(|block| block.median(Row::e2e_s));
    let last = of(blocks, Kind::Together).max_by_key(|block| block.concurrency());
    let (Some(one), Some(last)) = (alone, last) else {
        return ask(asks, YesNo::CantTell, "not measured in company".into(), None);
    };
    let Some((many, times)) = last.median(Row::e2e_s).and_then(|many| Some((many, ratio(&many, &one)?)))
    else {
        return ask(asks, YesNo::CantTell, "nothing was answered in company".into(), None);
    };
    let answer = match fact::over(&times, 1.25) {
        State::Yes => YesNo::Yes,
        State::No => YesNo::No,
        State::Unclear => YesNo::CantTell,
    };
    let says = format!(
        "an answer takes {} alone and {} with {} in flight: × {:.2} [{:.2}, {:.2}]",
        ms(one.value),
        ms(many.value),
        last.concurrency().unwrap_or(0),
        times.value,
        times.lower,
        times.upper
    );
    ask(asks, answer, says, Some(times))
}

fn tail(blocks: &[Block]) -> Question {
    let asks = "is the median fine and the tail blown?";
    let Some(block) = of(blocks, Kind::Watch).next().or_else(|| of(blocks, Kind::Alone).next()) else {
        return ask(asks, YesNo::CantTell, "not measured".into(), None);
    };
    let mut waits: Vec<f64> = block.settled().iter().filter_map(Row::ttft_s).collect();
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

fn moved(shown: &[Shown], changed: Option<&Changed>) -> Question {
    let asks = "did latency move with the model artefact unchanged?";
    let Some(changed) = changed else {
        let says = "there is no run of before to compare with; give one with --baseline".to_owned();
        return ask(asks, YesNo::CantTell, says, None);
    };
    let of: Vec<&Shown> = shown.iter().filter(|shown| compared(shown.fact)).collect();
    let what = of.iter().map(|shown| shown.says.as_str()).collect::<Vec<_>>().join("; ");
    let known = of.iter().find(|shown| shown.state == State::Yes);
    match (known, of.iter().all(|shown| shown.state == State::No)) {
        _ if of.is_empty() => {
            ask(asks, YesNo::CantTell, "nothing could be held against the baseline".into(), None)
        }
        (None, false) => ask(asks, YesNo::CantTell, format!("too near to tell: {what}"), None),
        (known, _) => {
            let (answer, says) = unchanged(changed, known.is_some(), &what);
            ask(asks, answer, says, known.or(of.first()).and_then(|shown| shown.value))
        }
    }
}

/// Is it a figure beside the baseline's?
fn compared(fact: Fact) -> bool {
    matches!(fact, Fact::SlowerToken | Fact::LaterFirst | Fact::SlowerTogether)
}

fn over_alone(shown: &[Shown], spec: &ActiveSpec) -> Question {
    let asks = "does a single request with no contention already exceed the budget?";
    match shown.iter().find(|shown| shown.fact == Fact::OverBudget) {
        Some(over) => {
            let answer = match over.state {
                State::Yes => YesNo::Yes,
                State::No => YesNo::No,
                State::Unclear => YesNo::CantTell,
            };
            ask(asks, answer, over.says.clone(), over.value)
        }
        None if spec.promised().is_empty() => {
            ask(asks, YesNo::CantTell, "no budget was given (--budget FILE, --ttft 500ms)".into(), None)
        }
        None => ask(asks, YesNo::CantTell, "too few answers".into(), None),
    }
}

fn errors_climb(blocks: &[Block]) -> Question {
    let asks = "do errors and retries climb with latency?";
    let failing = |kind: Kind| {
        let rows: Vec<&Row> = of(blocks, kind).flat_map(|block| &block.rows).collect();
        share(rows.iter().filter(|row| row.failed()).count(), rows.len())
    };
    let retried: u64 = blocks.iter().map(|block| block.attempts - block.rows.len() as u64).sum();
    match (failing(Kind::Alone), failing(Kind::Together)) {
        (Some(alone), Some(company)) => {
            let answer = match () {
                () if company.lower > alone.upper => YesNo::Yes,
                () if company.value <= alone.value => YesNo::No,
                () => YesNo::CantTell,
            };
            let says = format!(
                "{:.1} % fail alone, {:.1} % in company; {retried} retries",
                100.0 * alone.value,
                100.0 * company.value
            );
            ask(asks, answer, says, Some(company))
        }
        _ => ask(asks, YesNo::CantTell, "not measured in company".into(), None),
    }
}

// ------------------------------------------------------------------------------------------------ cleared and missing

fn cleared(blocks: &[Block], shown: &[Shown], before: Option<&Before>, verdicts: &[Verdict]) -> Vec<Cleared> {
    let blamed: Vec<Layer> = verdicts.iter().map(|verdict| verdict.layer).collect();
    let mut all = Vec::new();
    let tpot = of(blocks, Kind::Alone).next().and_then(|block| block.median(Row::tpot_s));
    let elsewhere =
        blamed.iter().any(|layer| !matches!(layer, Layer::Model | Layer::Unknown | Layer::Measurement));
    let same = before.and_then(|before| same_model(before.token_ratio(blocks)?, shown));
    if let Some(same) = same.filter(|_| !blamed.contains(&Layer::Model)) {
        all.push(same);
    } else if let (Some(tpot), true, None) = (tpot, elsewhere, before) {
        all.push(Cleared {
            layer: Layer::Model,
            says: format!(
                "the model is not the cause of what was found: alone a token takes {} [{}, {}]; whether that is as fast as before needs a baseline",
                ms(tpot.value),
                ms(tpot.lower),
                ms(tpot.upper)
            ),
            value: Some(tpot),
        });
    }
    let connect = of(blocks, Kind::Connections).flat_map(|block| &block.rows).filter_map(|row| row.connect);
    if let Some(connect) =
        median(connect.map(|ns| ns as f64 * 1e-9), 1.0).filter(|connect| connect.value < 0.01)
    {
        let says = format!("the network is close: a connection is made in {}", ms(connect.value));
        all.push(Cleared { layer: Layer::Dependency, says, value: Some(connect) });
    }
    for (fact, layer) in [(Fact::FixedWait, Layer::Dependency), (Fact::TurnedAway, Layer::Provider)] {
        let clear = shown.iter().find(|shown| shown.fact == fact && shown.state == State::No);
        if let Some(clear) = clear.filter(|_| !blamed.contains(&layer)) {
            all.push(Cleared { layer, says: clear.says.clone(), value: clear.value });
        }
    }
    all
}

/// The model is cleared where the 90 % interval lies within the margin (two one-sided tests), as of a run.
fn same_model(ratio: crate::findings::Estimate, shown: &[Shown]) -> Option<Cleared> {
    let same = crate::diagnose::DiagnoseSpec::default().same;
    let fine = fact_state(shown, Fact::SlowerToken) == State::No;
    (fine && ratio.lower > 1.0 - same && ratio.upper < 1.0 + same).then(|| Cleared {
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

fn missing(shown: &[Shown], blocks: &[Block], before: Option<&Before>, unasked: &[Cause]) -> Vec<Missing> {
    let mut all = before.map(|before| before.lacks(blocks, shown)).unwrap_or_default();
    let mut miss = |what: &str, needs| all.push(Missing { what: what.to_owned(), needs });
    if before.is_none() {
        miss("whether the target has become slower than it was", Experiment::Baseline);
    }
    // What an earlier run would tell is said above.
    for cause in unasked.iter().filter(|cause| **cause != Cause::SlowerModel) {
        let needs = match *cause {
            Cause::SingleRequestOverBudget => Experiment::SingleRequests { requests: 40 },
            Cause::ClientCap => Experiment::OpenLoop,
            Cause::KvExhaustion => Experiment::Scrape,
            other => other.overturned_by(),
        };
        miss(&format!("\"{}\"", cause.title()), needs);
    }
    let refused = |row: &&Row| row.how == How::ClientError;
    if let Some(row) = of(blocks, Kind::Prompts).flat_map(|block| &block.rows).find(refused) {
        let says = row.error.as_deref().unwrap_or("a 4xx");
        let what = format!("prompts of {:.0} tokens: the target refuses them ({says})", row.prompt);
        miss(&what, Experiment::PromptLengths);
    }
    let read = blocks.iter().any(|block| block.gauges.waiting.is_some());
    if !read && fact_state(shown, Fact::Waits) == State::Yes {
        miss(
            "whether those who wait do so inside the engine, and whether its KV cache is full",
            Experiment::Scrape,
        );
    }
    all
}

/// An experiment that was done, and what it showed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Tried {
    /// Which.
    pub experiment: Kind,
    /// What was done, in a few words.
    pub did: String,
    /// Requests sent.
    pub requests: u64,
    /// Seconds it took.
    pub took_s: f64,
    /// What it showed.
    pub shows: Vec<Shown>,
}

/// What was tried, in the order in which it was.
pub fn tried(blocks: &[Block], spec: &ActiveSpec, before: Option<&Before>) -> Vec<Tried> {
    let shown = fact::read(blocks, spec, before);
    let mut all: Vec<Tried> = Vec::new();
    for block in blocks {
        let took_s = (block.level.drained.max(block.level.stop) - block.level.start).as_secs_f64();
        match all.iter_mut().find(|tried| tried.experiment == block.kind) {
            Some(tried) => {
                tried.requests += block.attempts;
                tried.took_s += took_s;
            }
            None => all.push(Tried {
                experiment: block.kind,
                did: block.kind.does().to_owned(),
                requests: block.attempts,
                took_s,
                shows: Vec::new(),
            }),
        }
    }
    // A fact that several decide stands with the first that was run.
    for shown in shown {
        let decides = |tried: &&Tried| {
            let of = super::belief::decides(tried.experiment);
            of.iter().any(|(fact, _)| *fact == shown.fact)
                || (tried.experiment == Kind::Together && server(shown.fact))
        };
        let place = all.iter().position(|tried| decides(&tried));
        // What another experiment is for may have shown itself in the first.
        if let Some(tried) = all.get_mut(place.unwrap_or(0)) {
            tried.shows.push(shown);
        }
    }
    all
}

/// Is it the server's own word?
fn server(fact: Fact) -> bool {
    matches!(fact, Fact::EngineIdle | Fact::EngineQueue | Fact::PageLost | Fact::KvFull)
}

/// What an active diagnosis does at most, in one line, before it does it.
pub fn announced(spec: &ActiveSpec, traffic: &Traffic) -> String {
    let requests = spec.max_requests as f64;
    // Prompts are told four times as long where lengths are compared.
    let longest = if traffic.synthetic { 4.0 } else { 1.0 };
    let rate = match spec.max_rate {
        Some(rate) => format!("{rate}/s"),
        None => "the rate it answers by itself (nothing is doubled without --max-rate)".to_owned(),
    };
    format!(
        "at most {}, {} requests, {} in flight, {rate}; at most {:.1e} prompt and {:.1e} output tokens; it stops after {} failed requests",
        span(spec.time),
        spec.max_requests,
        spec.max_concurrency,
        requests * traffic.prompt * longest,
        requests * traffic.output * 2.0,
        spec.max_errors
    )
}

fn span(time: Span) -> String {
    let s = time.as_secs_f64();
    if s >= 60.0 { format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0) } else { format!("{s:.0} s") }
}
