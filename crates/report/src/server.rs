//! Renders the section about the server's side: its reported figures, and the missing ones.
//!
//! A table was rejected, because half of the figures are unknown on most servers, and sentences need no columns of dashes.

use plimsoll_measure::findings::Reading;
use plimsoll_measure::server_side::{GpuReport, HostReport, LevelReport, ServerReport};

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
        lines.extend(level.host.as_ref().and_then(host));
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
    ]
    .into_iter()
    .flatten()
    .chain(level.gpu.iter().flat_map(energy))
    .collect();
    let many = level.gpu.as_ref().filter(|gpu| gpu.gpus > 1);
    let head = many.map_or("GPU".to_owned(), |gpu| format!("All {} GPUs of the host", gpu.gpus));
    (!parts.is_empty()).then(|| format!("{head}: {}", parts.join(" · ")))
}

/// Returns power, energy, memory and limits.
fn energy(gpu: &GpuReport) -> Vec<String> {
    let bytes = |bytes: f64| format!("{} GiB", figure::number(bytes / 1_073_741_824.0));
    let memory = gpu.memory_max.map(|most| {
        let of = gpu.memory_of.map_or(String::new(), |of| format!(" of {}", bytes(of)));
        format!("memory at most {}{of}", bytes(most))
    });
    let limited = gpu.limited.iter().filter(|limit| *limit.1 > 0.0);
    let limited = limited
        .map(|(cause, share)| format!("clock limited by {cause} in {} of the time", figure::percent(*share)));
    reading(gpu.power_w.as_ref(), "W").into_iter().chain(joules(gpu)).chain(memory).chain(limited).collect()
}

/// Returns the energy per token and per good token.
pub(crate) fn joules(gpu: &GpuReport) -> Vec<String> {
    let each = [(&gpu.per_token, "J per output token"), (&gpu.per_good_token, "J per good token")];
    each.into_iter().filter_map(|(value, unit)| reading(value.as_ref(), unit)).collect()
}

fn reading(reading: Option<&Reading>, unit: &str) -> Option<String> {
    let seen = reading?.seen()?;
    let value = figure::number(seen.value);
    Some(match seen.lower.is_finite() {
        true => {
            let ends = [seen.lower, seen.upper].map(figure::number);
            format!("{value} {unit} {}", figure::interval(&ends[0], &ends[1]))
        }
        false => format!("about {value} {unit}"),
    })
}

/// Returns the line of the host's CPUs and containers.
fn host(host: &HostReport) -> Option<String> {
    let waits = |what: &str, share: Option<f64>| {
        share.map(|share| format!("processes wait for {what} in {} of the time", figure::percent(share)))
    };
    let parts: Vec<String> = [
        host.stolen_cpus.map(|cpus| format!("{} CPUs stolen by other machines", figure::number(cpus))),
        waits("a CPU", host.cpu_pressure),
        waits("memory", host.memory_pressure),
        waits("a disk", host.io_pressure),
        host.throttled.as_ref().zip(host.throttled_share).map(|(name, share)| {
            format!("its CPU quota stops {name} in {} of its periods", figure::percent(share))
        }),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!parts.is_empty()).then(|| format!("Host: {}", parts.join(" · ")))
}
