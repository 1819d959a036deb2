//! A whole run → its findings: every level, the lines where there are any, the held line, trust, and the headline.
//!
//! A finished run read back from disk and a sweep in progress go through the same function, so that what the screen
//! said at the end of a sweep is what the run folder says ever after.

use std::collections::BTreeMap;

use plimsoll_model::{Attempt, Level, Load, Manifest, Sample};

use crate::findings::{
    Estimate, FINDINGS_SCHEMA, Findings, Held, Hold, Kept, LevelSummary, Line, Lines, Reading, Trust,
    Validity,
};
use crate::lines::{self, LineSpec, Observed};
use crate::validity::judge_run;

/// Recomputes all findings of a run from its rows.
pub fn analyse(manifest: &Manifest, attempts: &[Attempt], samples: &[Sample], spec: &LineSpec) -> Findings {
    let mut by_level: BTreeMap<u32, Vec<&Attempt>> = BTreeMap::new();
    for attempt in attempts {
        by_level.entry(attempt.level).or_default().push(attempt);
    }
    let none = Vec::new();
    let observe = |level: &Level| {
        let own = by_level.get(&level.id).unwrap_or(&none);
        let samples: Vec<&Sample> =
            samples.iter().filter(|s| s.at >= level.start && s.at < level.drained).collect();
        Observed::new(level, own, &samples, spec.budget.as_ref())
    };
    let observed: Vec<Observed> = manifest.levels.iter().map(observe).collect();
    let is_sweep = observed.iter().any(|o| o.level.purpose != "run");
    findings(&observed, spec, is_sweep)
}

/// The findings of levels that were observed.
pub(crate) fn findings(observed: &[Observed], spec: &LineSpec, is_sweep: bool) -> Findings {
    let levels: Vec<_> = observed.iter().map(|o| o.finding.clone()).collect();
    let zero: Vec<&Observed> =
        observed.iter().filter(|o| matches!(o.level.load, Load::Closed { concurrency: 1 })).collect();
    let mut kinds: Vec<&str> = Vec::new();
    if is_sweep {
        for o in observed {
            if !kinds.contains(&o.level.traffic.as_str()) {
                kinds.push(&o.level.traffic);
            }
        }
    }
    let (mut all_lines, mut curves) = (Vec::new(), Vec::new());
    for kind in kinds {
        let own: Vec<&Observed> = observed.iter().filter(|o| o.level.traffic == kind).collect();
        let mut read = lines::read(kind, &own, &zero, spec);
        read.lines.hold = own.iter().rfind(|o| o.level.purpose == "hold").map(|o| {
            let before: Vec<&Observed> = own.iter().copied().filter(|o| o.level.purpose != "hold").collect();
            let line = line_to_hold(&lines::read(kind, &before, &zero, spec).lines);
            let zero_s = read.curve.zero_contention.value();
            hold(o, line.map_or("load", |line| line.0), zero_s, read.curve.percentile, spec.knee_factor)
        });
        all_lines.push(read.lines);
        curves.push(read.curve);
    }
    let validity = judge_run(&levels);
    let summaries: Vec<&LevelSummary> = levels.iter().map(|l| &l.summary).collect();
    let headline = headline(&all_lines, &summaries, &validity);
    Findings { schema: FINDINGS_SCHEMA, headline, validity, lines: all_lines, curves, levels }
}

// ------------------------------------------------------------------------------------------- hold

/// The line that is worth holding and the load to hold it at: the lower of onset and budget line, at the lower end of
/// its interval (at the very onset an honest verdict is "cannot tell" every second time); without either, just under
/// the last load known to be stable.
pub(crate) fn line_to_hold(lines: &Lines) -> Option<(&'static str, f64)> {
    let lower = |line: &Line| match line {
        Line::Found { rate, .. } => Some(if rate.lower > 0.0 { rate.lower } else { 0.9 * rate.value }),
        Line::Above { rate_per_s, .. } => Some(*rate_per_s),
        Line::Below { .. } | Line::CannotTell { .. } => None,
    };
    let onset = lower(&lines.onset).map(|rate| ("onset", rate));
    let budget = lines.budget.as_ref().and_then(lower).map(|rate| ("budget", rate));
    let least = [onset, budget].into_iter().flatten().min_by(|a, b| a.1.total_cmp(&b.1));
    least.or_else(|| lower(&lines.stability).map(|rate| ("stability", 0.95 * rate)))
}

fn hold(o: &Observed, line: &str, zero_s: Option<f64>, percentile: f64, factor: f64) -> Hold {
    let summary = &o.finding.summary;
    let budget = summary.budget.as_ref().map(|b| b.verdict);
    let tail = summary.latency.leading().at(percentile).and_then(Reading::estimate);
    let over = match (tail, zero_s) {
        (Some(tail), Some(zero_s)) => tail.lower > factor * zero_s,
        _ => false,
    };
    let rises = summary.drift.drifts && summary.drift.change_share.is_some_and(|change| change > 0.0);
    let (verdict, why) = match (summary.stability.verdict, line, budget) {
        (Kept::Unstable, ..) => (Held::Fail, summary.stability.why.clone()),
        _ if rises => (Held::Fail, "latency rose through the hold".to_owned()),
        (_, "budget", Some(Held::Fail)) => (Held::Fail, "the budget was broken".to_owned()),
        (_, "onset", _) if over => {
            (Held::Fail, format!("the tail stayed over {factor} × its zero-contention value"))
        }
        (Kept::Undecided, ..) => (Held::Inconclusive, summary.stability.why.clone()),
        (_, "budget", Some(Held::Inconclusive)) => {
            (Held::Inconclusive, "too few requests to judge the budget".to_owned())
        }
        _ => (Held::Pass, summary.stability.why.clone()),
    };
    Hold {
        line: line.to_owned(),
        level: o.level.id,
        rate_per_s: o.rate(),
        held_s: o.level.window().as_secs_f64(),
        verdict,
        why,
    }
}

// ------------------------------------------------------------------------------------------- headline

fn headline(lines: &[Lines], levels: &[&LevelSummary], validity: &Validity) -> Vec<String> {
    let mut said: Vec<String> = lines.iter().flat_map(line_sentences).collect();
    if lines.is_empty() {
        said.extend(levels.iter().map(|level| level_sentence(level)));
    }
    said.push(match validity.verdict {
        Trust::Valid => "Nothing speaks against the measurement.".to_owned(),
        verdict => {
            let word = if verdict == Trust::Invalid { "invalid" } else { "suspect" };
            let first = validity.reasons.first().map_or("", |reason| reason.means.as_str());
            format!("The measurement is {word}: {first}.")
        }
    });
    said
}

fn line_sentences(lines: &Lines) -> Vec<String> {
    let kind = &lines.traffic;
    let mut said = vec![
        sentence(kind, "requests start to queue at", &lines.onset),
        sentence(kind, "it keeps up to", &lines.stability),
    ];
    if let (Some(line), Some(spec)) = (&lines.budget, &lines.budget_spec) {
        said.push(sentence(kind, &format!("the budget \"{}\" holds up to", spec.name), line));
    }
    if let Some(hold) = &lines.hold {
        let verdict = match hold.verdict {
            Held::Pass => "held",
            Held::Fail => "did not hold",
            Held::Inconclusive => "could not be shown to hold",
        };
        let (rate, held_s) = (short(hold.rate_per_s), short(hold.held_s));
        said.push(format!("{kind}: {rate} requests/s {verdict} for {held_s} s ({}).", hold.line));
    }
    said
}

fn sentence(kind: &str, says: &str, line: &Line) -> String {
    match line {
        Line::Found { rate, .. } => {
            format!("{kind}: {says} {} requests/s {}.", short(rate.value), between(rate))
        }
        Line::Above { rate_per_s, why, .. } => {
            format!("{kind}: {says} more than {} requests/s ({why}).", short(*rate_per_s))
        }
        Line::Below { rate_per_s, why } => {
            format!("{kind}: {says} less than {} requests/s ({why}).", short(*rate_per_s))
        }
        Line::CannotTell { why } => format!("{kind}: {says} … cannot tell: {why}."),
    }
}

fn level_sentence(level: &LevelSummary) -> String {
    let load = match level.load {
        Load::Open { rate_per_s } => format!("{} requests/s", short(rate_per_s)),
        Load::Closed { concurrency } => format!("concurrency {concurrency} (closed loop)"),
        Load::Saturating { concurrency } => format!("saturating, concurrency {concurrency}"),
    };
    let leading = level.latency.leading();
    let tail = leading.rows().into_iter().rev().find_map(|(p, reading)| Some((p, reading.estimate()?)));
    let tail = tail.map_or_else(
        || "no percentile is supported".to_owned(),
        |(p, e)| {
            let figure = format!("{} s ({} to {})", short(e.value), short(e.lower), short(e.upper));
            format!("p{} of {} is {figure}", short(100.0 * p), leading.metric)
        },
    );
    let kept = match (level.load, level.stability.verdict) {
        (Load::Open { .. }, Kept::Stable) => "; the target keeps up",
        (Load::Open { .. }, Kept::Unstable) => "; the target does not keep up",
        _ => "",
    };
    format!("{load}: {tail}, {} of {} requests failed{kept}.", level.counts.failed, level.counts.requests)
}

fn between(rate: &Estimate) -> String {
    let upper = if rate.upper.is_finite() { short(rate.upper) } else { "unknown".to_owned() };
    format!("({} to {upper})", short(rate.lower))
}

/// Four significant digits, for sentences. Tables are formatted where pages are made.
fn short(x: f64) -> String {
    if !x.is_finite() {
        return if x > 0.0 { "∞".to_owned() } else { "−∞".to_owned() };
    }
    if x == 0.0 {
        return "0".to_owned();
    }
    let digits = (3 - x.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{x:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}
