//! Writes levels as run folders of MLPerf Endpoints 0.5, in the layout that its submission tool accepts.
//!
//! The files are `events.jsonl`, `config.yaml` and `performance/result_summary.json`. A level of fixed concurrency also has the
//! measured part of `point.yaml` (rules 1.0, section 8.3).
//!
//! A request is a sample if it counts and was sent. Statistics are those of the tool: values at the lower rank, and the
//! deviation over n − 1. `latency` includes failed samples, and `tpot` counts from the first chunk to the end. The seeds are
//! `null`, because our schedule does not follow from the tool's generator.

use std::fmt::{self, Write};

use plimsoll_model::{Foreign, ForeignPart, ForeignRow, Load};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::statistics::SortedSamples;

/// Percentiles that the tool reports.
const PERCENTS: [f64; 12] = [99.9, 99.0, 97.0, 95.0, 90.0, 80.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0];

/// The fields of `result_summary.json` in the order of the tool, whose first fields identify the file.
#[derive(Serialize)]
struct Summary {
    version: String,
    git_sha: Option<String>,
    test_started_at: i64,
    n_samples_issued: usize,
    n_samples_completed: usize,
    n_samples_failed: usize,
    duration_ns: i64,
    state: &'static str,
    complete: bool,
    ttft: Value,
    tpot: Value,
    latency: Value,
    output_sequence_lengths: Value,
    input_sequence_lengths: Value,
    legacy_loadgen_window_duration_ns: Option<i64>,
    qps: Option<f64>,
    tps: Option<f64>,
    system_tps: Option<f64>,
    tps_per_user: Option<f64>,
    run_config: Value,
}

/// Writes one level of a run.
#[derive(Copy, Clone)]
pub struct EndpointsPoint<'a> {
    run: &'a Foreign,
    part: &'a ForeignPart,
}

impl<'a> EndpointsPoint<'a> {
    /// Returns the levels of a run that have samples.
    pub fn all(run: &'a Foreign) -> Vec<EndpointsPoint<'a>> {
        let points = run.parts.iter().map(|part| EndpointsPoint { run, part });
        points.filter(|point| point.samples().next().is_some()).collect()
    }

    /// Returns the folder name: `r8` for eight requests in flight, as in a submission. A rate of 2.5/s gives `poisson-2.5`.
    pub fn folder(&self) -> String {
        match self.part.load {
            Some(Load::Closed { concurrency } | Load::Saturating { concurrency }) => {
                format!("r{concurrency}")
            }
            Some(Load::Open { rate_per_s }) => format!("poisson-{}", (1e3 * rate_per_s).round() / 1e3),
            Some(Load::Wave { requests }) => format!("burst-{requests}"),
            None => self.part.name.replace(' ', "-"),
        }
    }

    fn samples(&self) -> impl Iterator<Item = &'a ForeignRow> + use<'a> {
        self.part.rows.iter().filter(|row| row.counted && row.sent.is_some())
    }

    /// Writes the events in order of time. They contain no text, because a run has none.
    ///
    /// # Errors
    /// Fails if `out` does.
    pub fn events(&self, out: &mut dyn Write) -> fmt::Result {
        let mut events: Vec<(i64, usize, usize)> = Vec::new();
        let rows: Vec<&ForeignRow> = self.samples().collect();
        for (i, row) in rows.iter().enumerate() {
            let sent = row.sent.unwrap_or_default();
            let chunks = chunks(row);
            events.push((sent, i, 0));
            events.extend(chunks.iter().enumerate().map(|(k, at)| (*at, i, k + 1)));
            events.extend(row.end.map(|end| (end, i, chunks.len() + 1)));
        }
        events.sort_unstable();
        let session = |out: &mut dyn Write, name: &str, at: i64| {
            line(out, &format!("session.{name}"), at, "", &Value::Null, None)
        };
        let (first, last) = self.span();
        session(out, "started", first)?;
        session(out, "start_performance_tracking", first)?;
        for (at, i, step) in events {
            let (row, id) = (rows[i], format!("{i:032x}"));
            match step {
                0 => line(out, "sample.issued", at, &id, &json!(["PromptData"]), None)?,
                step if step <= chunks(row).len() => {
                    let name = if step == 1 { "sample.recv_first" } else { "sample.recv_non_first" };
                    line(out, name, at, &id, &Value::Null, None)?;
                }
                _ => complete(out, at, &id, row)?,
            }
        }
        session(out, "stop_performance_tracking", last)?;
        session(out, "ended", last)
    }

    /// Returns first send and last event in ns.
    fn span(&self) -> (i64, i64) {
        let first = self.samples().filter_map(|row| row.sent).min().unwrap_or_default();
        let last = self.samples().filter_map(|row| row.end.or_else(|| chunks(row).last().copied())).max();
        (first, last.unwrap_or(first).max(first))
    }

    /// Returns `result_summary.json`.
    pub fn summary(&self) -> impl Serialize + use<> {
        let since = |to: fn(&ForeignRow) -> Option<i64>| {
            self.samples().filter_map(move |row| Some((to(row)?.saturating_sub(row.sent?)) as f64))
        };
        let finished: Vec<&ForeignRow> = self.samples().filter(|row| row.outcome.is_finished()).collect();
        let tpot = finished.iter().filter_map(|row| {
            let later = row.output_tokens?.checked_sub(1).filter(|tokens| *tokens > 0)?;
            Some(row.end?.saturating_sub(row.first_token?) as f64 / f64::from(later))
        });
        let tpot: Vec<f64> = tpot.collect();
        let user = SortedSamples::new(tpot.iter().copied()).map(|values| values.below(0.9));
        let user = user.filter(|ns| *ns > 0.0).map(|ns| 1e9 / ns);
        let tokens: Vec<f64> = finished.iter().filter_map(|row| row.output_tokens).map(f64::from).collect();
        let prompts: Vec<f64> = self.samples().filter_map(|row| row.prompt_tokens).map(f64::from).collect();
        let (first, last) = self.span();
        let seconds = (last - first) as f64 / 1e9;
        let per_s = |n: f64| (seconds > 0.0).then(|| n / seconds);
        let failed = self.samples().count() - finished.len();
        // A sum over some of the answers would be too low.
        let is_whole = tokens.len() == finished.len() && !tokens.is_empty();
        let tps = is_whole.then(|| per_s(tokens.iter().sum())).flatten();
        Summary {
            version: self.run.version.as_ref().map_or("plimsoll".to_owned(), |v| format!("plimsoll {v}")),
            git_sha: None,
            test_started_at: 0,
            n_samples_issued: finished.len() + failed,
            n_samples_completed: finished.len(),
            n_samples_failed: failed,
            duration_ns: last - first,
            state: if self.run.partial.is_some() { "interrupted" } else { "complete" },
            complete: self.run.partial.is_none(),
            ttft: block(&since(|row| row.first_token).collect::<Vec<_>>()),
            tpot: block(&tpot),
            latency: block(&since(|row| row.end).collect::<Vec<_>>()),
            output_sequence_lengths: block(&tokens),
            input_sequence_lengths: block(&prompts),
            legacy_loadgen_window_duration_ns: None,
            qps: per_s(finished.len() as f64),
            tps,
            system_tps: tps,
            tps_per_user: user,
            run_config: json!({"load_pattern": self.pattern(), "warmup": {"enabled": false}}),
        }
    }

    fn pattern(&self) -> Value {
        let (name, qps, concurrency) = match self.part.load {
            Some(Load::Closed { concurrency } | Load::Saturating { concurrency }) => {
                ("concurrency", None, Some(concurrency))
            }
            Some(Load::Open { rate_per_s }) if rate_per_s > 0.0 => ("poisson", Some(rate_per_s), None),
            _ => ("max_throughput", None, None),
        };
        json!({"type": name, "target_qps": qps, "target_concurrency": concurrency})
    }

    /// Returns `config.yaml`.
    pub fn config(&self) -> Value {
        let streams = self.samples().any(|row| row.first_token.is_some());
        json!({
            "name": "plimsoll",
            "version": "1.0",
            "type": "online",
            "model_params": {
                "name": self.run.model,
                "streaming": if streams { "on" } else { "off" },
            },
            "settings": {
                "runtime": {
                    "min_duration_ms": self.duration_ms(),
                    "n_samples_to_issue": self.samples().count(),
                    "scheduler_random_seed": null,
                    "dataloader_random_seed": null,
                },
                "load_pattern": self.pattern(),
                "client": {"stream_all_chunks": true},
                "warmup": {"enabled": false},
            },
            "endpoint_config": {"endpoints": self.run.url.iter().collect::<Vec<_>>(), "api_type": "openai"},
        })
    }

    fn duration_ms(&self) -> i64 {
        let (first, last) = self.span();
        (last - first) / 1_000_000
    }

    /// Returns the measured part of `point.yaml`; `None` if the level has no fixed concurrency, because it is no point then.
    pub fn point(&self) -> Option<Value> {
        let Some(Load::Closed { concurrency }) = self.part.load else { return None };
        let warm = self.part.rows.iter().filter(|row| !row.counted && row.sent.is_some());
        let (issued, done) = (warm.clone().count(), warm.filter(|row| row.outcome.is_finished()).count());
        Some(json!({
            "concurrency": concurrency,
            "model_name": self.run.model,
            "runtime_settings": {
                "load_pattern": "concurrency",
                "stream_all_chunks": true,
                "min_duration_ms": self.duration_ms(),
                "min_sample_count": self.samples().count(),
            },
            "warmup": {"requests_issued": issued, "requests_completed": done, "concurrency": concurrency},
        }))
    }
}

/// Returns the instants of the chunks with tokens.
fn chunks(row: &ForeignRow) -> Vec<i64> {
    let Some((sent, first)) = row.sent.zip(row.first_token) else { return Vec::new() };
    let later = row.events.iter().map(|offset| sent.saturating_add(*offset)).filter(|at| *at > first);
    std::iter::once(first).chain(later).collect()
}

fn complete(out: &mut dyn Write, at: i64, id: &str, row: &ForeignRow) -> fmt::Result {
    if row.outcome.is_finished() {
        let reason = row.finish_reason.as_deref().unwrap_or("other");
        return line(
            out,
            "sample.complete",
            at,
            id,
            &json!(["TextModelOutput", [""], null, null]),
            Some(reason),
        );
    }
    let status = row.status.map_or(String::new(), |status| status.to_string());
    line(
        out,
        "error.generic",
        at,
        id,
        &json!(["ErrorData", format!("{:?}", row.outcome.how), status]),
        None,
    )?;
    line(out, "sample.complete", at, id, &Value::Null, None)
}

fn line(
    out: &mut dyn Write,
    name: &str,
    at: i64,
    id: &str,
    data: &Value,
    reason: Option<&str>,
) -> fmt::Result {
    let reason = reason.map_or(String::new(), |reason| format!(",\"finish_reason\":{}", json!(reason)));
    writeln!(
        out,
        "{{\"event_type\":\"{name}\",\"timestamp_ns\":{at},\"sample_uuid\":\"{id}\",\"conversation_id\":\"\",\"turn\":null,\
         \"data\":{data}{reason}}}"
    )
}

/// Returns the statistics of a quantity; an empty object without values, as the tool writes it.
fn block(values: &[f64]) -> Value {
    let Some(sorted) = SortedSamples::new(values.iter().copied()) else { return json!({}) };
    let n = values.len() as f64;
    let at = |percent: f64| json!(sorted.below(percent / 100.0));
    let percentiles: Map<String, Value> = PERCENTS.iter().map(|p| (format!("{p:.1}"), at(*p))).collect();
    json!({
        "total": sorted.sum(),
        "min": sorted.least(),
        "max": sorted.most(),
        "median": at(50.0),
        "avg": sorted.mean(),
        "std_dev": if n > 1.0 { sorted.deviation() * (n / (n - 1.0)).sqrt() } else { 0.0 },
        "percentiles": percentiles,
    })
}
