//! The verdict in a few sentences, for a reader with ten seconds.
//!
//! The result comes first, then its trust. Each sentence is complete on its own, because readers quote it in meetings
//! without the rest.

use plimsoll_measure::findings::{
    BudgetFinding, CapacityLine, CapacityLines, CurvePoint, Findings, Held, LevelFinding, LevelSummary,
    LoadKeptUp, SustainedLine, Trust, Validity,
};
use plimsoll_measure::purpose::PROVE;
use plimsoll_model::Load;

use crate::text::{budget_cells, budget_row_name};
use crate::{figure, words};

/// Returns the sentences of the verdict.
pub fn headline(findings: &Findings) -> Vec<String> {
    let several = findings.lines.len() > 1;
    let mut said: Vec<String> = Vec::new();
    for lines in &findings.lines {
        said.extend(carries(lines, findings).map(|sentence| of_kind(lines, several) + &sentence));
        said.extend(of_lines(lines, several));
    }
    if findings.lines.is_empty() {
        said.extend(findings.levels.iter().filter_map(of_budget));
    }
    if let Some(best) = words::saturated(findings) {
        said.push(of_saturation(&best.summary, words::still_grew(findings)));
    } else if findings.lines.is_empty() {
        said.extend(findings.levels.iter().map(|level| of_level(&level.summary)));
    }
    let levels: Vec<Trust> = findings.levels.iter().map(|level| level.validity.verdict).collect();
    said.push(of_run(&findings.validity, &levels));
    said
}

fn of_lines(lines: &CapacityLines, several: bool) -> Vec<String> {
    let kind = of_kind(lines, several);
    // If the time could not support a p99, the onset uses another percentile, and the sentence must name it.
    let read = match words::not_p99(lines) {
        None => String::new(),
        Some(p) => format!(" (by {p}; the onset by p99 is usually lower)"),
    };
    let starts = format!("Queueing starts{read} at");
    let mut said = Vec::new();
    if let (Some(line), Some(budget)) = (&lines.budget, &lines.budget_spec) {
        let name = format!("The budget ({}) passes up to", budget.name);
        said.push(sentence(&name, &format!("The load limit of the budget ({})", budget.name), line));
    }
    said.extend(lines.hold.as_ref().map(of_hold));
    said.push(sentence(&starts, "The queueing onset", &lines.onset));
    said.push(sentence("The endpoint is stable up to", "The stability limit", &lines.stability));
    said.into_iter().map(|sentence| format!("{kind}{sentence}")).collect()
}

fn of_kind(lines: &CapacityLines, several: bool) -> String {
    if several { format!("{} traffic: ", lines.traffic) } else { String::new() }
}

/// Returns the answer of a sweep with `--slo`: the proven load, its time, and the loads between which the budget breaks.
fn carries(lines: &CapacityLines, findings: &Findings) -> Option<String> {
    let (proven, broken) = match lines.budget.as_ref()? {
        CapacityLine::Found { rate, .. } => (Some(rate.lower), Some(rate.upper)),
        CapacityLine::Above { rate_per_s, .. } => (Some(*rate_per_s), None),
        CapacityLine::Below { rate_per_s, .. } => (None, Some(*rate_per_s)),
        CapacityLine::CannotTell { .. } => (None, None),
    };
    let curve = findings.curves.iter().find(|curve| curve.traffic == lines.traffic)?;
    if !curve.points.iter().any(|point| point.purpose == PROVE) {
        return None;
    }
    let level = |id: u32| findings.levels.iter().map(|level| &level.summary).find(|level| level.level == id);
    let length_s = |rate: f64| {
        let point = curve.points.iter().find(|point| point.offered_per_s == rate)?;
        Some(level(point.level)?.window.length_s)
    };
    // The heaviest load clearly below the break whose share of requests over a ceiling is within its limit.
    let within = |point: &&CurvePoint| {
        broken.is_none_or(|broken| point.offered_per_s < CLEARLY * broken)
            && point.stability != LoadKeptUp::Unstable
            && level(point.level).and_then(|level| level.budget.as_ref()).is_some_and(is_within)
    };
    let heaviest = curve.points.iter().filter(within).map(|point| point.offered_per_s).reduce(f64::max);
    let [from, to] = [heaviest, broken].map(|rate| rate.map(figure::number));
    let breaks = match (from, to) {
        (Some(from), Some(to)) => format!("breaks between {from} and {to}"),
        (None, Some(to)) => format!("breaks at {to} or below"),
        (Some(from), None) => format!("no break was seen up to {from}"),
        (None, None) => "no break was seen".to_owned(),
    };
    Some(match proven {
        Some(rate) => {
            let time =
                length_s(rate).map_or_else(String::new, |s| format!(" (proven for {})", words::time(s)));
            format!("Carries {}/s within the budget{time}; {breaks}.", figure::number(rate))
        }
        None => format!("No load is proven to meet the budget; {breaks}."),
    })
}

/// Largest share of a load that counts as clearly below it.
const CLEARLY: f64 = 0.99;

fn is_within(budget: &BudgetFinding) -> bool {
    budget.rows.iter().all(|row| row.share_over.value <= row.allowed)
}

fn sentence(opening: &str, subject: &str, line: &CapacityLine) -> String {
    match line {
        CapacityLine::Found { rate, .. } => {
            let interval = format!("{} to {}", figure::number(rate.lower), figure::number(rate.upper));
            format!("{opening} {} requests/s ({interval}).", figure::number(rate.value))
        }
        CapacityLine::Above { rate_per_s, why, .. } => {
            let more = if opening.ends_with("up to") { "at least" } else { "more than" };
            format!("{opening} {more} {} requests/s: {why}.", figure::number(*rate_per_s))
        }
        CapacityLine::Below { rate_per_s, why } if opening.ends_with("up to") => {
            format!("{subject} is below {} requests/s: {why}.", figure::number(*rate_per_s))
        }
        CapacityLine::Below { rate_per_s, why } => {
            format!("{opening} less than {} requests/s: {why}.", figure::number(*rate_per_s))
        }
        CapacityLine::CannotTell { why } => format!("{subject} is unknown: {why}."),
    }
}

fn of_hold(hold: &SustainedLine) -> String {
    let verdict = match hold.verdict {
        Held::Pass => "was sustained",
        Held::Fail => "was not sustained",
        Held::Inconclusive => "may not be sustained",
    };
    let (rate, time) = (figure::number(hold.rate_per_s), words::time(hold.held_s));
    format!("{rate} requests/s {verdict} for {time}: {}.", hold.why.trim_end_matches('.'))
}

fn of_saturation(best: &LevelSummary, still_grew: bool) -> String {
    let Load::Saturating { concurrency } = best.load else { return String::new() };
    let done = best.rates.achieved_per_s.value().map_or_else(|| "–".into(), figure::number);
    if still_grew {
        return format!(
            "Throughput still grew when the search ended: {done} requests/s with {concurrency} in flight (closed loop), \
             the most that were tried."
        );
    }
    format!(
        "Throughput stops growing at {done} requests/s, reached with {concurrency} in flight (closed loop)."
    )
}

/// Returns the verdict of the budget on a level, with the row that decides it; `None` without a budget.
fn of_budget(level: &LevelFinding) -> Option<String> {
    let budget = level.summary.budget.as_ref()?;
    let (subject, load) = (format!("The budget ({})", budget.name), load_of(&level.summary));
    if level.validity.verdict == Trust::Invalid {
        return Some(format!("{subject} is not judged at {load}: the measurement is invalid."));
    }
    let row = budget.rows.iter().find(|row| row.verdict == budget.verdict)?;
    let name = budget_row_name(row);
    Some(match budget.verdict {
        Held::Pass => format!("{subject} passes at {load}."),
        Held::Fail => {
            let [_, ceiling, measured, ..] = budget_cells(row);
            format!("{subject} is broken at {load}: {name} is {measured}, allowed {ceiling}.")
        }
        Held::Inconclusive => {
            let n = row.share_over.n;
            let tends = if row.share_over.value <= row.allowed { "would pass" } else { "would break" };
            let per_s = level.summary.rates.offered_per_s;
            let more = row.needed.map(|needed| needed.saturating_sub(n).max(1)).map(|more| {
                let time = words::time(more as f64 / per_s);
                let time = if per_s > 0.0 { format!(" ({time} at this load)") } else { String::new() };
                format!(", but a verdict needs about {}{time}", figure::counted(more, "more request"))
            });
            let more = more.unwrap_or_else(|| ", but a verdict needs many more requests".to_owned());
            format!("{subject} is inconclusive at {load}: {name} {tends}{more}.")
        }
    })
}

fn load_of(level: &LevelSummary) -> String {
    match level.load {
        Load::Open { .. } => format!("{} requests/s", figure::number(level.rates.offered_per_s)),
        Load::Closed { concurrency } => format!("{concurrency} in flight (closed loop)"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("{concurrency} in flight (saturating)"),
    }
}

fn of_level(level: &LevelSummary) -> String {
    let load = load_of(level);
    if level.counts.requests == 0 {
        return format!("At {load}: no request was due in this level. Give it more time or a higher rate.");
    }
    if let Some(fails) = of_failure(level) {
        return format!("At {load}: {fails}.");
    }
    let leading = level.latency.leading();
    let shown = leading.rows().into_iter().rev().find_map(|(p, reading)| Some((p, reading.estimate()?)));
    let few = || match leading.p50.seen() {
        Some(e) => format!(
            "{} p50 is about {} ms, from too few requests for an interval",
            leading.metric,
            words::ms(e.value)
        ),
        None => format!("too few requests for any percentile of {}", leading.metric),
    };
    let latency = shown.map_or_else(few, |(p, e)| {
        if e.value.is_infinite() {
            let share = figure::percent(1.0 - p);
            return format!("{} p{} is infinite: {share} or more failed", leading.metric, figure::centile(p));
        }
        let interval = format!("{} to {}", words::ms(e.lower), words::ms(e.upper));
        format!("{} p{} is {} ms ({interval})", leading.metric, figure::centile(p), words::ms(e.value))
    });
    let kept = match (level.load, level.stability.verdict) {
        (Load::Open { .. }, LoadKeptUp::Stable) => "; the endpoint is stable",
        (Load::Open { .. }, LoadKeptUp::Unstable) => "; the endpoint is unstable",
        _ => "",
    };
    let failed = figure::count(level.counts.failed.saturating_sub(level.counts.cancelled));
    let requests = figure::count(level.counts.requests);
    let left = match level.counts.cancelled {
        0 => String::new(),
        n => format!(", {} were cancelled as configured", figure::count(n)),
    };
    let local = match no_socket(level) {
        0 => String::new(),
        n => format!(" ({} because this machine had no free socket)", figure::count(n)),
    };
    format!("At {load}: {latency}; {failed} of {requests} requests failed{local}{left}{kept}.")
}

/// Returns the number of attempts without a socket on this machine.
fn no_socket(level: &LevelSummary) -> u64 {
    level.generator.room.as_ref().map_or(0, |room| room.no_socket)
}

/// Returns the sentence for a level without answers: the target or this machine fails. A note on too few latencies would mislead.
fn of_failure(level: &LevelSummary) -> Option<String> {
    let counts = &level.counts;
    if counts.requests == 0 || counts.finished + counts.cancelled > 0 {
        return None;
    }
    let problem =
        if no_socket(level) >= counts.attempts { "this machine has no sockets" } else { "the target fails" };
    let ends = counts
        .by_outcome
        .iter()
        .map(|(how, n)| format!("{} {}", figure::count(*n), how.name().replace('_', " ")));
    let error = counts
        .errors
        .first()
        .map(|error| format!("; most often: {}", words::error(error)))
        .unwrap_or_default();
    let ends = ends.collect::<Vec<_>>().join(", ");
    Some(format!(
        "{problem}: none of {} finished ({ends}){error}",
        figure::counted(counts.requests, "request")
    ))
}

/// Returns the trust of a run. It also counts suspect and invalid levels, because a level that overloads the target on purpose
/// does not lower the trust in the run.
fn of_run(run: &Validity, levels: &[Trust]) -> String {
    let marked = levels.iter().filter(|trust| **trust >= Trust::Suspect).count();
    match run.verdict {
        Trust::Valid if marked > 0 => format!(
            "All validity checks passed for the run. Suspect or invalid levels: {marked} of {}.",
            levels.len()
        ),
        _ => of_trust(run),
    }
}

/// Returns the trust of the measurement, in a sentence or two.
pub(crate) fn of_trust(validity: &Validity) -> String {
    let first = validity.reasons.first().map(|reason| words::sentence(&reason.means)).unwrap_or_default();
    match validity.verdict {
        Trust::Valid => "All validity checks passed.".into(),
        Trust::Short => format!("The measurement is short. {first}"),
        Trust::Suspect => format!("The measurement is suspect. {first}"),
        Trust::Invalid => format!("The measurement is invalid. {first}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_run_names_its_suspect_levels() {
        let run = Validity::default();
        assert_eq!(of_run(&run, &[Trust::Valid, Trust::Short]), "All validity checks passed.");
        let said = of_run(&run, &[Trust::Valid, Trust::Suspect, Trust::Invalid]);
        assert_eq!(said, "All validity checks passed for the run. Suspect or invalid levels: 2 of 3.");
    }
}
