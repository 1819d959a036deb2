//! Diagnosis from metrics endpoints only: live traffic without known requests, compared with an earlier healthy
//! period.
//!
//! Facts, causes and beliefs come from the analysis of a run ([`crate::facts`], [`crate::belief`]); only the detectors differ.
//! Facts that no metrics endpoint shows are not checked: a pause of a tenth of a second, a proxy, the time of a
//! single request. A cause without a counter on any endpoint is no candidate.

use plimsoll_math::series::{self, Mean};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, number, percent};
use plimsoll_measure::server_side::Signal;

use crate::belief::{CausePosterior, EvidenceSource};
use crate::cause::{Cause, Layer};
use crate::causes::row;
use crate::conclude::{Worse, conclude};
use crate::experiment::NextExperiment;
use crate::fact::{FactState, Observed};
use crate::facts::{Finding, over, page, replica_pages, yes_if};
use crate::gauges::LevelGauges;
use crate::verdict::{Diagnosis, MissingEvidence, Reference, Subject, Verdict};

/// Number of parts of an interval; the confidence intervals are computed from their sums.
const PARTS: usize = 12;
/// Confidence level of the intervals.
const LEVEL: f64 = 0.95;
/// Minimum number of requests of an interval for statements on its means.
const FEWEST: f64 = 50.0;
/// Ratio from which a mean counts as grown; equal to the limit of a run for medians, lengths and rates.
const LATER: f64 = 1.10;
const MORE: f64 = 1.08;
/// Increase of the share of failed requests from which it matters, as in a run.
const FAILING: f64 = 0.01;
/// Maximum ratio of running requests at which two parts count as equally loaded.
const ALIKE: f64 = 1.15;

/// Shares of token gaps longer than the earlier median gap: above the first, most gaps have grown; below the second,
/// they have not.
const BODY: (f64, f64) = (0.1, 0.04);

/// Causes that no metrics endpoint shows, because it does not show whether the prompts are equal.
const NOT_ON_A_PAGE: [Cause; 1] = [Cause::LongerAnswersToSamePrompts];

/// Diagnoses an interval of live traffic, compared with an earlier one.
pub fn diagnose(now: &LevelGauges, before: Option<&LevelGauges>) -> Diagnosis {
    let found = observe(now, before);
    let belief = CausePosterior::after(&found, EvidenceSource::Pages).without(&NOT_ON_A_PAGE);
    let mut verdicts = conclude(&worse(&found, before.is_some()), &found, &belief);
    verdicts.iter_mut().filter(|verdict| verdict.cause == Cause::LongerAnswers).for_each(leave_open);
    // The server reports facts here that a client would have to infer.
    verdicts.iter_mut().flat_map(|verdict| &mut verdict.evidence).for_each(|one| one.inferred = false);
    Diagnosis { missing: missing(now, before), ..Diagnosis::of(subject(now, before), verdicts, &found) }
}

/// Leaves open whether longer responses are caused by the prompts or by the model.
fn leave_open(verdict: &mut Verdict) {
    let models = row(Cause::LongerAnswersToSamePrompts);
    verdict.layer = Layer::Unknown;
    verdict.says += "; the metrics do not show whether the prompts or the model cause it";
    verdict.do_first = format!(
        "compare the prompts with the earlier ones. If they changed: {}. If they did not: {}",
        verdict.do_first, models.do_first
    );
    verdict.do_not = "don't tune the engine: each token is as fast as before".to_owned();
}

/// Returns all facts that the metrics endpoints show.
pub fn observe(now: &LevelGauges, before: Option<&LevelGauges>) -> Vec<Finding> {
    let mut found = page::find(now, before);
    found.extend(queue(now, before));
    found.extend(backlog(now));
    found.extend(preemptions(now, before));
    found.push(Finding::new(
        Observed::Restarted,
        yes_if(now.restarts() > 0),
        format!("the server's counters restarted {} time(s)", now.restarts()),
    ));
    found.extend(failing(
        Observed::Errors,
        "of the requests failed in the server",
        Signal::Failed,
        now,
        before,
    ));
    found.extend(failing(
        Observed::TurnedAway,
        "of the requests were rejected",
        Signal::Refused,
        now,
        before,
    ));
    if let Some(before) = before {
        found.extend(grown(now, before));
        found.extend(less_cached(now, before));
        let asked = more_is_asked(&found);
        found.extend(slower_beside(now, before, asked));
        let (replicas, stood) = replicas(now, before);
        found.extend(replicas);
        // After a stall the waiting requests end together. Endpoints count requests at their end, so a higher rate is
        // unproven.
        let more =
            |finding: &&mut Finding| finding.fact == Observed::MoreRequests && finding.is == FactState::Yes;
        found.iter_mut().filter(|_| stood).filter(more).for_each(|finding| finding.is = FactState::Unclear);
    }
    found.sort_by_key(|finding| finding.fact);
    found
}

/// Returns whether a smaller share of the prompts comes from the cache. If prompts grow by unshared parts, the
/// share falls without a loss of cache. Cached tokens are then compared for prompts of the earlier length. The fact
/// is unclear if it is not certain that the prompts are longer.
fn less_cached(now: &LevelGauges, before: &LevelGauges) -> Option<Finding> {
    let (share, was) = (now.hit_rate()?, before.hit_rate()?);
    let found = page::less_cached(was, (share, "the server's counters"));
    let prompt = |of: &LevelGauges| length_of(of, Signal::PromptLength, Signal::PromptTokens);
    let longer = prompt(now).zip(prompt(before)).and_then(|(now, before)| ratio(&now, &before));
    let Some(longer) = longer.filter(|times| times.value > MORE) else { return Some(found) };
    let as_long = page::less_cached(was, ((share * longer.value).min(1.0), "")).is;
    let is = if longer.lower > 1.0 || as_long == found.is { as_long } else { FactState::Unclear };
    let says = format!("{}, of prompts × {} as long", found.says, number(longer.value));
    Some(Finding { is, says, ..found })
}

/// Returns a histogram's mean over the parts of an interval, for the first of these signals that is exported.
fn mean_of(of: &LevelGauges, signals: &[Signal]) -> Option<Mean> {
    let (sums, counts) = signals.iter().find_map(|signal| of.sums(*signal, PARTS))?;
    (counts.iter().sum::<f64>() >= FEWEST).then(|| series::ratio(&sums, &counts, LEVEL))?
}

/// Returns tokens per request over the parts of an interval, from the histogram of lengths, else from the counters.
fn length_of(of: &LevelGauges, histogram: Signal, counter: Signal) -> Option<Mean> {
    mean_of(of, &[histogram]).or_else(|| {
        let (tokens, requests) = (of.gains(counter, PARTS)?, of.gains(Signal::Finished, PARTS)?);
        (requests.iter().sum::<f64>() >= FEWEST).then(|| series::ratio(&tokens, &requests, LEVEL))?
    })
}

/// Returns requests per second over the parts of an interval.
fn rate_of(of: &LevelGauges) -> Option<Mean> {
    let parts = of.gains(Signal::Finished, PARTS)?;
    let each_s = of.seconds() / parts.len() as f64;
    series::mean_of_batches(&parts.iter().map(|n| n / each_s).collect::<Vec<_>>(), LEVEL)
}

/// Returns the ratio of `now` to `before` by the ends of their intervals. The result is wider than necessary and
/// assumes no distribution.
fn ratio(now: &Mean, before: &Mean) -> Option<Estimate> {
    let (n, lowest) = (PARTS as u64, before.interval.lower);
    (before.value > 0.0).then(|| Estimate {
        value: now.value / before.value,
        lower: now.interval.lower.max(0.0) / before.interval.upper,
        upper: if lowest > 0.0 { now.interval.upper / lowest } else { f64::INFINITY },
        n,
        n_eff: n as f64,
    })
}

fn more(
    fact: Observed,
    what: &str,
    limit: f64,
    pair: Option<(Mean, Mean)>,
    say: fn(f64) -> String,
) -> Option<Finding> {
    let (now, before) = pair?;
    let times = ratio(&now, &before)?;
    let says = format!("{what} {}, before {}: × {}", say(now.value), say(before.value), number(times.value));
    Some(Finding::new(fact, over(&times, times.lower > 1.0, limit), says).figure(times, limit))
}

/// Returns the symptoms, and the facts on the load of the servers.
fn grown(now: &LevelGauges, before: &LevelGauges) -> Vec<Finding> {
    let of = |signals: &[Signal]| mean_of(now, signals).zip(mean_of(before, signals));
    let lengths =
        |histogram, counter| length_of(now, histogram, counter).zip(length_of(before, histogram, counter));
    let tokens = [Signal::Itl, Signal::Tpot];
    let prompts = lengths(Signal::PromptLength, Signal::PromptTokens);
    let answers = lengths(Signal::OutputLength, Signal::OutputTokens);
    [
        more(Observed::FirstTokenLater, "the mean first token takes", LATER, of(&[Signal::Ttft]), ms),
        more(Observed::TokensSlower, "the mean gap between tokens is", LATER, of(&tokens), ms),
        more(Observed::AnswersLonger, "the mean answer takes", LATER, of(&[Signal::E2e]), ms),
        more(Observed::MoreRequests, "requests per second:", MORE, rate_of(now).zip(rate_of(before)), number),
        more(Observed::LongerPrompts, "prompt tokens per request:", MORE, prompts, number),
        more(Observed::LongerAnswers, "output tokens per request:", MORE, answers, number),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the mean wait in the engine's queue in s, from its histogram, else from its gauge by Little's law.
fn queue_wait(of: &LevelGauges) -> Option<f64> {
    of.queue_mean().or_else(|| Some(of.mean(Signal::Waiting)? / rate_of(of)?.value.max(1e-9)))
}

fn queue(now: &LevelGauges, before: Option<&LevelGauges>) -> Option<Finding> {
    let wait = queue_wait(now)?;
    let was = before.and_then(queue_wait).unwrap_or(0.0);
    // Endpoints without a first-token histogram have one for whole responses.
    let first = |of: &LevelGauges| mean_of(of, &[Signal::Ttft, Signal::E2e]).map(|mean| mean.value);
    let first_token = first(now)?;
    let grown = before.and_then(first).map(|was| first_token - was);
    Some(page::engine_queue((wait, was), first_token, grown, ["", "before"]))
}

/// Returns whether the number of requests in the engine grows by more than a fiftieth of the rate.
fn backlog(now: &LevelGauges) -> Option<Finding> {
    let inside: Vec<f64> = now.inside_at_scrapes()?.into_iter().map(|(_, inside, _)| inside).collect();
    let rate = rate_of(now)?.value;
    let per_s = inside.len() as f64 / now.seconds();
    let slope = series::slope(&inside, PARTS, 0.9)?;
    let is = FactState::of(slope.interval.lower * per_s > 0.02 * rate, slope.value * per_s < 0.01 * rate);
    let says =
        format!("the number of requests in the engine grows by {} a second", number(slope.value * per_s));
    Some(Finding::new(Observed::BacklogGrows, is, says))
}

/// Returns whether the engine preempted running requests more often than before.
fn preemptions(now: &LevelGauges, before: Option<&LevelGauges>) -> Option<Finding> {
    let per_request =
        |of: &LevelGauges| Some(of.gained(Signal::Preempted)? / of.gained(Signal::Finished)?.max(1.0));
    let was = before.and_then(per_request).unwrap_or(0.0);
    Some(page::preempted(now.gained(Signal::Preempted)?, per_request(now)?, was))
}

/// Returns whether the share of requests with this outcome is higher than before.
fn failing(
    fact: Observed,
    what: &str,
    signal: Signal,
    now: &LevelGauges,
    before: Option<&LevelGauges>,
) -> Option<Finding> {
    let share = |of: &LevelGauges| {
        let (bad, fine) = (of.gained(signal)?, of.gained(Signal::Finished)?);
        Some((bad / (bad + fine).max(1.0), bad, bad + fine))
    };
    let (part, k, n) = share(now)?;
    let was = before.and_then(share).map_or(0.0, |(was, ..)| was);
    let value = crate::effect::share(k, n, 1.0);
    let is = match part - was {
        grown if grown >= FAILING && value.lower > was => FactState::Yes,
        grown if k < 0.5 || grown < 0.2 * FAILING => FactState::No,
        _ => FactState::Unclear,
    };
    let says = format!("{} {what}, before {}", percent(part), percent(was));
    Some(Finding::new(fact, is, says).figure(value, FAILING))
}

/// A part of an interval: running requests, sum of the token gaps in s, number of gaps.
type Part = (f64, f64, f64);

/// Compares the token gaps at equal concurrency, in equally loaded parts of both intervals.
fn slower_beside(now: &LevelGauges, before: &LevelGauges, asked: bool) -> Option<Finding> {
    let parts = |of: &LevelGauges| -> Option<Vec<Part>> {
        let (sums, counts) = of.sums(Signal::Itl, PARTS).or_else(|| of.sums(Signal::Tpot, PARTS))?;
        // Parts without data would be compared with the concurrency of others.
        (sums.len() == PARTS).then_some(())?;
        let running = of.means(Signal::Running, PARTS);
        let known = running.into_iter().zip(sums).zip(counts).filter(|((_, _), n)| *n > 0.0);
        Some(known.filter_map(|((running, sum), n)| Some((running?, sum, n))).collect())
    };
    let (parts_now, parts_before) = (parts(now)?, parts(before)?);
    let like = |own: f64, others: &[Part]| {
        others.iter().any(|(running, ..)| own.max(*running) <= ALIKE * own.min(*running) + 0.5)
    };
    let mean = |of: &[Part], beside: &[Part]| {
        let of = of.iter().filter(|(running, ..)| like(*running, beside));
        let (sums, counts): (Vec<f64>, Vec<f64>) = of.map(|(_, sum, n)| (*sum, *n)).unzip();
        (sums.len() >= 4).then(|| series::ratio(&sums, &counts, LEVEL))?
    };
    let pair = mean(&parts_now, &parts_before).zip(mean(&parts_before, &parts_now));
    if pair.is_none() {
        let moved = most_gaps(now, before).is_some_and(|moved| moved >= BODY.0);
        return slower_at_more_load(&parts_now, &parts_before, (asked, moved));
    }
    let what = "with as many requests running the mean gap between tokens is";
    let mut found = more(Observed::SlowerBeside, what, MORE, pair, ms)?;
    if found.is == FactState::Yes {
        // A slower model is slower for every token, but a few very long gaps raise the mean too.
        let moved = most_gaps(now, before);
        found.is = match moved {
            Some(moved) if moved >= BODY.0 => FactState::Yes,
            Some(moved) if moved < BODY.1 => FactState::No,
            _ => FactState::Unclear,
        };
        if let Some(moved) = moved.filter(|moved| *moved < BODY.0) {
            let few = percent(moved.max(0.0));
            found.says = format!("{}; but only {few} more of the gaps are longer than usual", found.says);
        }
    }
    Some(found)
}

/// Compares the token gaps if more requests run than ever before. A step has a fixed cost and a cost per request, so
/// gaps grow at most in proportion to the concurrency. Longer gaps prove a slower engine; gaps no longer than before
/// disprove it. In between, a line through the earlier gaps predicts the present ones if the load has not grown. The
/// prediction applies because a slower engine runs more requests simultaneously: each stays longer.
fn slower_at_more_load(now: &[Part], before: &[Part], (asked, moved): (bool, bool)) -> Option<Finding> {
    let mean = |of: &[Part]| {
        let (sums, counts): (Vec<f64>, Vec<f64>) = of.iter().map(|(_, sum, n)| (*sum, *n)).unzip();
        let running = of.iter().map(|(running, ..)| running).sum::<f64>() / of.len() as f64;
        (of.len() >= 4).then(|| Some((series::ratio(&sums, &counts, LEVEL)?, running)))?
    };
    let ((gap, running), (was, ran)) = (mean(now)?, mean(before)?);
    let times = ratio(&gap, &was)?;
    let load = running / ran;
    (load > 1.0 && load.is_finite()).then_some(())?;
    let points: Vec<(f64, f64)> = before.iter().map(|(running, sum, n)| (*running, sum / n)).collect();
    let foretold = series::line_at(&points, running, LEVEL).map_or(f64::INFINITY, |at| at.interval.upper);
    let longest = points.iter().map(|(_, gap)| *gap).fold(foretold, f64::max);
    // Bursts of arrivals leave quiet parts, which are as fast as before.
    let throughout = now.iter().all(|(_, sum, n)| sum / n > MORE * longest);
    let is = match () {
        () if times.lower > load * MORE => FactState::Yes,
        () if throughout && moved && !asked => FactState::Yes,
        () if times.upper < MORE => FactState::No,
        () => FactState::Unclear,
    };
    let says = format!(
        "the mean gap between tokens is {}, before {}: × {}, with × {} as many requests running",
        ms(gap.value),
        ms(was.value),
        number(times.value),
        number(load)
    );
    Some(Finding::new(Observed::SlowerBeside, is, says).figure(times, load * MORE))
}

/// Returns whether the load may have grown: more requests, longer ones, or ones with a smaller cached share. The
/// cached share must be known.
fn more_is_asked(found: &[Finding]) -> bool {
    let more = [Observed::MoreRequests, Observed::LongerPrompts, Observed::LongerAnswers];
    let as_cached = found.iter().any(|of| of.fact == Observed::LessCached && of.is == FactState::No);
    !as_cached || found.iter().any(|of| more.contains(&of.fact) && of.is == FactState::Yes)
}

/// Returns how much the share of long token gaps has grown. Long means over the histogram edge nearest to the earlier
/// median.
fn most_gaps(now: &LevelGauges, before: &LevelGauges) -> Option<f64> {
    let (then, now) = (before.histogram(Signal::Itl)?, now.histogram(Signal::Itl)?);
    let above = |edge: f64| then.share_above(edge).map(|(lower, upper)| 0.5 * (lower + upper));
    let far = |edge: &f64| above(*edge).map_or(1.0, |share| (share - 0.5).abs());
    let edge = then.edges.iter().copied().min_by(|a, b| far(a).total_cmp(&far(b)))?;
    Some(now.share_above(edge)?.0 - then.share_above(edge)?.1)
}

/// Returns the facts on differences between replicas, and whether one stalled.
fn replicas(now: &LevelGauges, before: &LevelGauges) -> (Vec<Finding>, bool) {
    let (were, are) = (before.replicas(&[]), now.replicas(&[]));
    let says = format!("the metrics show {are} replicas, before {were}");
    let mut found = vec![Finding::new(Observed::FewerReplicas, yes_if(are > 0 && are < were), says)];
    let Some(engines) = replica_pages::engines(before, now) else { return (found, false) };
    let stands = replica_pages::stands(&engines.1, now.piece_s());
    let stood = stands.is_some();
    found.extend(stands);
    // The other replicas take over the load of a stalled one, so the router is not the cause.
    if !stood {
        found.extend(replica_pages::slower(&engines));
        found.extend(replica_pages::uneven(&engines));
    }
    (found, stood)
}

/// Returns the changes for the worse. Without an earlier interval they are unknown, so the facts decide.
fn worse(found: &[Finding], compared: bool) -> Worse {
    let fails = [Observed::TurnedAway, Observed::Errors, Observed::Restarted, Observed::PageLost];
    let yes = |finding: &&Finding| finding.is == FactState::Yes;
    let noticed: Vec<&str> = found
        .iter()
        .filter(yes)
        .filter(|finding| finding.fact.is_noticed())
        .map(|finding| finding.says.as_str())
        .collect();
    let failing = found.iter().filter(yes).any(|finding| fails.contains(&finding.fact));
    let maybe = found.iter().any(|finding| finding.fact.is_noticed() && finding.is == FactState::Unclear);
    Worse {
        felt: !compared || failing || maybe || !noticed.is_empty(),
        sure: !noticed.is_empty(),
        or_sound: noticed.is_empty() && !failing && !maybe,
        words: if noticed.is_empty() { "something may be worse".to_owned() } else { noticed.join("; ") },
        sound: match compared {
            true => "no metric of the servers is worse than before".to_owned(),
            false => "no metric of the servers shows a fault".to_owned(),
        },
        evidence: Vec::new(),
        open: false,
        unsteady: None,
    }
}

fn subject(now: &LevelGauges, before: Option<&LevelGauges>) -> Subject {
    let requests = now.gained(Signal::Finished).unwrap_or(0.0);
    let rate = rate_of(now).map(|rate| format!("{} requests/s", number(rate.value)));
    let reference = if before.is_some() { Reference::Baseline } else { Reference::Quiet };
    Subject::of(rate.unwrap_or_else(|| "live traffic".to_owned()), requests.max(0.0) as u64, reference)
}

/// Returns the facts that these endpoints do not show, and the experiments that would.
fn missing(now: &LevelGauges, before: Option<&LevelGauges>) -> Vec<MissingEvidence> {
    let mut missing = Vec::new();
    let mut lacks = |what: &str, needs| missing.push(MissingEvidence { what: what.to_owned(), needs });
    if before.is_none() {
        lacks(
            "whether anything changed: there is no earlier period to compare with",
            NextExperiment::Baseline,
        );
    }
    if mean_of(now, &[Signal::Ttft]).is_none() {
        lacks(
            "whether first tokens are later: the metrics have no TTFT histogram, or too few requests ended",
            NextExperiment::Scrape,
        );
    }
    lacks(
        "what only requests show: pauses, buffered tokens, a wait in front of the server, unloaded latency",
        NextExperiment::SingleRequests { requests: 60 },
    );
    missing
}
