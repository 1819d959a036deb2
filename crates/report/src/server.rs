//! Renders the section about the server's side: its reported figures, and the missing ones.
//!
//! A table was rejected, because half of the figures are unknown on most servers, and sentences need no columns of dashes.

use plimsoll_measure::server_side::{LevelReport, ServerReport};

use crate::{figure, words};

pub(crate) fn heading(told: &ServerReport) -> String {
    let cadence = told.cadence_s.map_or("once".to_owned(), |every| format!("every {}", words::time(every)));
    let replicas = if told.replicas > 1 { format!(", {} replicas", told.replicas) } else { String::new() };
    let scrapes = figure::counted(told.scrapes, "scrape");
    format!("Server, by its own metrics (read {cadence}, {scrapes}{replicas})")
}

/// Returns the lines of the section, for these levels.
pub(crate) fn lines(told: &ServerReport, shown: &[u32]) -> Vec<String> {
    let levels: Vec<&LevelReport> = told.levels.iter().filter(|level| shown.contains(&level.level)).collect();
    let mut lines = Vec::new();
    if levels.is_empty() {
        // The heading contains the number of scrapes, and disappears with an empty section.
        lines.push("No shown level has server metrics.".to_owned());
    }
    for level in &levels {
        let which = if levels.len() > 1 { format!("level {}: ", level.level) } else { String::new() };
        lines.push(format!("{which}{}", queue(level)));
        lines.push(engine(level));
        lines.extend(gpu(level));
    }
    lines.extend(told.notes.iter().map(|note| words::sentence(note)));
    lines
}

fn queue(level: &LevelReport) -> String {
    let mut parts = Vec::new();
    match (level.waiting, level.waiting_max) {
        (Some(mean), Some(max)) => {
            parts.push(format!("queue mean {}, most seen {}", figure::number(mean), figure::number(max)));
        }
        _ => parts.push("queue unknown".to_owned()),
    }
    if let Some(little) = level.waiting_by_little {
        parts.push(format!("{} by its queue times", figure::number(little)));
    }
    if let Some(mean) = level.queue_s {
        let p99 = level.queue_p99_s.map(|(lower, upper)| match upper {
            Some(upper) => format!(", p99 between {} and {}", words::time(lower), words::time(upper)),
            None => format!(", p99 over {}", words::time(lower)),
        });
        parts.push(format!("time in it mean {}{}", words::time(mean), p99.unwrap_or_default()));
    }
    parts.join(" · ")
}

fn engine(level: &LevelReport) -> String {
    let limit = match level.running_limit {
        Some(limit) => format!("of {}", figure::number(limit)),
        None => "limit unknown".to_owned(),
    };
    let mut parts = vec![match (level.running, level.running_max) {
        (Some(mean), Some(max)) => {
            format!("running mean {}, most seen {} ({limit})", figure::number(mean), figure::number(max))
        }
        _ => "running unknown".to_owned(),
    }];
    parts.extend(level.batch.map(|batch| format!("mean batch {}", figure::number(batch))));
    parts.push(match (level.kv_usage, level.kv_usage_max) {
        (Some(mean), Some(max)) => {
            format!("KV cache {}, most seen {}", figure::percent(mean), figure::percent(max))
        }
        _ => "KV cache unknown".to_owned(),
    });
    parts.push(match level.prefix_hits {
        Some(share) => format!("prefix hits {}", figure::percent(share)),
        None => "prefix hits unknown".to_owned(),
    });
    parts.extend(
        level
            .transferred
            .filter(|share| *share > 0.0)
            .map(|share| format!("{} of prompt tokens from another KV cache", figure::percent(share))),
    );
    parts.extend(level.accepted_length.map(|length| {
        let share = level.accepted.map(|share| format!(", {} of the draft's", figure::percent(share)));
        format!("{} tokens per draft accepted{}", figure::number(length), share.unwrap_or_default())
    }));
    parts.push(match level.preempted {
        Some(n) => format!("{} preemptions", figure::number(n)),
        None => "preemptions unknown".to_owned(),
    });
    parts.join(" · ")
}

fn gpu(level: &LevelReport) -> Option<String> {
    let share =
        |name: &str, value: Option<f64>| value.map(|value| format!("{name} {}", figure::percent(value)));
    let parts: Vec<String> = [
        share("SM active", level.sm_active),
        share("memory active", level.dram_active),
        share("utilisation (lags, no measure of load)", level.gpu_utilisation),
        level.sm_clock_min.map(|hz| format!("lowest clock {} MHz", figure::number(hz / 1e6))),
        level.power_w.map(|watts| format!("{} W", figure::number(watts))),
        level.joules_per_token.map(|joules| format!("{} J per output token", figure::number(joules))),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!parts.is_empty()).then(|| format!("GPU: {}", parts.join(" · ")))
}
