//! The evaluation of another tool's result file.
//!
//! It recomputes the file's aggregates from its rows, evaluates our metrics on the rows, and lists the errors that the file
//! proves or cannot exclude. The order matters. A file is understood if its aggregates follow from the tool's definitions. Only
//! then does a figure of ours describe the target and not the reader.
//!
//! Our metrics come from [`summary`](plimsoll_measure::summary), over attempts made of the rows. A file without timestamps has no
//! order, so its figures have no interval and support no verdict.

mod draws;
mod own;
mod proven;
mod recompute;
mod records;

use plimsoll_model::{
    At, Attempt, Doubt, Foreign, ForeignClock, ForeignDue, ForeignPart, ForeignRow, Level, Load,
};
use serde::Serialize;

use draws::Python;
pub use own::of_run;
use plimsoll_measure::columns::{ABSENT, INFINITE};
use plimsoll_measure::findings::{Estimate, Percentiles, Reading};
use plimsoll_measure::summary::summarise;
pub use proven::Proof;
pub use recompute::{AggregateComparison, DifferingAggregate, ToolQuantity};

/// The evaluation of an imported file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ImportFinding {
    pub tool: String,
    pub version: Option<String>,
    pub format: String,
    pub clock: ForeignClock,
    pub model: Option<String>,
    pub partial: Option<String>,
    pub parts: Vec<ImportedPart>,
    /// Errors that the file cannot exclude, one sentence each.
    pub not_excluded: Vec<String>,
}

/// One steady load of an imported file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ImportedPart {
    /// Name of the load in the file.
    pub name: String,
    /// Requested load; `None` if the file has none.
    pub load: Option<Load>,
    pub requests: u64,
    pub finished: u64,
    pub due: ForeignDue,
    /// Comparison of the tool's aggregates with recomputed ones.
    pub recomputed: AggregateComparison,
    pub ours: Vec<RecomputedMetric>,
    pub proven: Vec<Proof>,
}

/// One of our metrics over the rows.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct RecomputedMetric {
    pub definition: String,
    /// Percentiles in seconds.
    pub percentiles: Percentiles,
}

/// Returns whether the file contains scheduled due times, or a seed that reproduces them.
pub(crate) fn known_due(due: ForeignDue) -> bool {
    matches!(due, ForeignDue::Scheduled | ForeignDue::Regenerated)
}

/// Evaluates a file. Due times that follow from a seed are first added to its rows.
pub fn import(foreign: &mut Foreign) -> ImportFinding {
    foreign.parts.iter_mut().for_each(regenerate);
    let clock = foreign.clock;
    let parts: Vec<ImportedPart> = foreign.parts.iter().map(|part| judged(part, clock)).collect();
    let schedule = foreign.parts.iter().all(|part| known_due(part.due));
    let prompts = foreign.parts.iter().all(|part| part.rows.iter().all(|row| row.prompt.is_some()));
    let left = foreign.doubts.iter().filter(|doubt| match doubt {
        Doubt::CoordinatedOmission | Doubt::ForfeitedArrivals => !schedule,
        Doubt::RepeatedPrompts => !prompts,
        _ => true,
    });
    ImportFinding {
        tool: foreign.tool.to_owned(),
        version: foreign.version.clone(),
        format: foreign.format.to_owned(),
        clock,
        model: foreign.model.clone(),
        partial: foreign.partial.clone(),
        not_excluded: left.map(|doubt| doubted(*doubt).to_owned()).collect(),
        parts,
    }
}

/// Returns the levels and attempts of a file, on one axis that starts at its first request.
///
/// `None` if the file has no timestamps, so that there is no axis.
pub fn levels(foreign: &Foreign) -> Option<(Vec<Level>, Vec<Attempt>)> {
    if foreign.clock == ForeignClock::None {
        return None;
    }
    let begins = foreign.parts.iter().flat_map(|part| part.rows.iter().filter_map(records::begin));
    let base = begins.min()?;
    let (mut levels, mut attempts) = (Vec::new(), Vec::new());
    for part in &foreign.parts {
        let (level, mut own) = records::level(part, levels.len() as u32, base);
        if !own.is_empty() {
            levels.push(level);
            attempts.append(&mut own);
        }
    }
    Some((levels, attempts))
}

fn judged(part: &ForeignPart, clock: ForeignClock) -> ImportedPart {
    ImportedPart {
        name: part.name.clone(),
        load: part.load,
        requests: part.rows.len() as u64,
        finished: part.rows.iter().filter(|row| row.outcome.is_finished()).count() as u64,
        due: part.due,
        recomputed: recompute::recompute(part),
        ours: if clock == ForeignClock::None { without_order(part) } else { ours(part) },
        proven: proven::proven(part, clock),
    }
}

/// Returns our metrics of a part, by their definitions in `summary`.
fn ours(part: &ForeignPart) -> Vec<RecomputedMetric> {
    let base = part.rows.iter().filter_map(records::begin).min().unwrap_or_default();
    let (level, attempts) = records::level(part, 0, base);
    let summary = summarise(&level, &attempts, &[], None);
    let has_tokens = attempts.iter().any(|attempt| attempt.first_token.is_some());
    let from_due = part.due != ForeignDue::Unknown;
    let all = summary.latency.all().into_iter().filter(|set| {
        let is_token = matches!(set.metric.as_str(), "ttft" | "ttft_after_send" | "tpot");
        let is_due = matches!(set.metric.as_str(), "ttft" | "e2e" | "ttfb");
        let is_shown = matches!(set.metric.as_str(), "e2e" | "e2e_after_send")
            || (set.metric == "ttfb" && !has_tokens && attempts.iter().any(|a| a.first_byte.is_some()));
        (is_token && has_tokens || is_shown) && (from_due || !is_due || set.metric == "ttfb") && set.n > 0
    });
    all.map(|set| RecomputedMetric {
        definition: definition(&set.metric, part.due),
        percentiles: set.clone(),
    })
    .collect()
}

/// Returns our metrics of a part without a request order: the values, without an interval.
fn without_order(part: &ForeignPart) -> Vec<RecomputedMetric> {
    type Of = fn(&ForeignRow) -> Option<i64>;
    let since_due: Of = |row| Some(row.end?.saturating_sub(row.due?));
    let metrics: [(&str, Of); 4] = [
        ("ttft_after_send", |row| Some(row.first_token?.saturating_sub(row.sent?))),
        ("e2e", since_due),
        ("e2e_after_send", |row| Some(row.end?.saturating_sub(row.sent?))),
        ("tpot", |row| {
            let gaps = i64::from(row.output_tokens?.checked_sub(1)?);
            Some((row.last_token?.saturating_sub(row.first_token?)) / (gaps > 0).then_some(gaps)?)
        }),
    ];
    let mut all = Vec::new();
    for (metric, of) in metrics {
        let values = part.rows.iter().map(|row| match row.outcome.is_finished() {
            true => of(row).unwrap_or(ABSENT),
            false => INFINITE,
        });
        let mut values: Vec<i64> = values.filter(|value| *value != ABSENT).collect();
        values.sort_unstable();
        if values.iter().all(|value| *value == INFINITE) {
            continue;
        }
        all.push(RecomputedMetric {
            definition: definition(metric, part.due),
            percentiles: plain(metric, &values),
        });
    }
    all
}

/// Returns the percentiles of values whose order is unknown.
fn plain(metric: &str, sorted: &[i64]) -> Percentiles {
    let n = sorted.len() as u64;
    let seconds = plimsoll_measure::order::seconds;
    let at = |p: f64| {
        let rank = plimsoll_math::quantile::rank(sorted.len(), p);
        let value = sorted.get(rank.saturating_sub(1)).copied().unwrap_or(INFINITE);
        let seen =
            Estimate { value: seconds(value), lower: f64::NEG_INFINITY, upper: f64::INFINITY, n, n_eff: 0.0 };
        Reading::few("the file does not contain the order of its requests", seen)
    };
    let finite = sorted.iter().copied().filter(|value| *value != INFINITE);
    let (count, sum) = finite.clone().fold((0u64, 0f64), |(n, sum), value| (n + 1, sum + value as f64));
    Percentiles {
        metric: metric.to_owned(),
        n,
        infinite: n - count,
        absent: 0,
        mean_finite_s: (count > 0).then(|| sum / count as f64 / 1e9),
        p50: at(0.5),
        p90: at(0.9),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
        max_s: sorted.last().map(|value| seconds(*value)),
        max_finite_s: finite.max().map(seconds),
    }
}

fn definition(metric: &str, due: ForeignDue) -> String {
    let from = match due {
        ForeignDue::Scheduled => "due by the schedule in the file",
        ForeignDue::Regenerated => {
            "due by the seed's draws (a lower bound: the least late request is assumed to be on time)"
        }
        ForeignDue::Handed => {
            "handed over by the tool's pacing loop (a lower bound: its own lateness is missing)"
        }
        ForeignDue::Unknown => "sent (the schedule is not kept)",
    };
    match metric {
        "ttft" => format!("{from} → first generated token"),
        "e2e" => format!("{from} → last byte"),
        "ttfb" => format!("{from} → first byte"),
        "ttft_after_send" => "sent → first generated token".into(),
        "e2e_after_send" => "sent → last byte".into(),
        _ => "(last − first token) / (tokens − 1)".into(),
    }
}

fn doubted(doubt: Doubt) -> &'static str {
    match doubt {
        Doubt::CoordinatedOmission => {
            "coordinated omission: latency counts from sending, so what a request waited before it was sent is missing"
        }
        Doubt::ForfeitedArrivals => {
            "forfeited arrivals: requests that could not be sent in time may be missing or moved"
        }
        Doubt::ClientLimit => "the client as the limit: its CPU, sockets and pools are not in the file",
        Doubt::LateStamps => {
            "late stamps: they are user space's, and a busy client adds its own delay to each"
        }
        Doubt::TokensPerEvent => "tokens per event: a chunk may contain several tokens",
        Doubt::TokenCounts => "token counts: the client's tokeniser need not be the server's",
        Doubt::RepeatedPrompts => {
            "repeated prompts: the file does not keep them, and a prefix cache would not show"
        }
        Doubt::WarmUp => "warm-up: it may be among the requests",
        Doubt::HiddenRetries => "hidden retries: failed attempts may have been retried without a record",
        Doubt::CutAnswers => "cut answers: one that was broken off may count as whole",
        Doubt::NoOrder => "drift and correlation: without timestamps the order of the requests is unknown",
    }
}

/// Computes due times from the seed: cumulative `max(1, int(expovariate))`. The least late request is assumed to be on time.
fn regenerate(part: &mut ForeignPart) {
    let (ForeignDue::Regenerated, Some(seed), Some(Load::Open { rate_per_s })) =
        (part.due, part.seed, part.load)
    else {
        return;
    };
    let mut python = Python::new(seed);
    let mut due = 0i64;
    let mut draws = Vec::with_capacity(part.rows.len());
    for _ in 0..part.rows.len() {
        due = due.saturating_add((python.expovariate(rate_per_s / 1e9) as i64).max(1));
        draws.push(due);
    }
    let late =
        part.rows.iter().zip(&draws).filter_map(|(row, due)| row.sent.map(|sent| sent.saturating_sub(*due)));
    let Some(offset) = late.min() else { return };
    for (row, due) in part.rows.iter_mut().zip(draws) {
        row.due = Some(due.saturating_add(offset));
    }
    // Rows that do not match the draws come from other draws: a newer version, another seed.
    let spread =
        part.rows.iter().filter_map(|row| Some(row.sent?.saturating_sub(row.due?))).max().unwrap_or(0);
    let length = At(due) - At::ZERO;
    if spread > length.0 / 4 {
        part.due = ForeignDue::Unknown;
        part.rows.iter_mut().for_each(|row| row.due = None);
        part.seen.push(
            "the arrivals differ from the draws of the seed in the file: the schedule is unknown".into(),
        );
    }
}
