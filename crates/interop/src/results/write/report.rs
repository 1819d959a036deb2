//! Writes llm-d's benchmark report, version 0.2.1: the aggregates of one load, a document for each level.
//!
//! Latencies count from sending and are of answered requests, because readers compare them with reports of other tools
//! (inference-perf, vLLM bench, GuideLLM through llm-d's converters). Plimsoll's own results, from due and with intervals,
//! are in `results.profiling`, the only place of the results with free keys. The report contains only requests that count.
//! It has no rows, so a figure that the run lacks is left out.

use plimsoll_model::{Foreign, ForeignClock, ForeignPart, ForeignRow, How, Load};
use serde::Serialize;
use serde_json::{Value, json};

use super::statistics::{SortedSamples, seconds};

#[derive(Serialize, Debug)]
pub struct BenchmarkReport {
    version: &'static str,
    run: ReportRun,
    #[serde(skip_serializing_if = "Option::is_none")]
    scenario: Option<Value>,
    results: Results,
}

#[derive(Serialize, Debug)]
struct ReportRun {
    uid: String,
    eid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<RunTime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

#[derive(Serialize, Debug)]
struct RunTime {
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<String>,
    duration: String,
}

#[derive(Serialize, Debug)]
struct Results {
    request_performance: Performance,
    profiling: Value,
}

#[derive(Serialize, Debug)]
struct Performance {
    aggregate: Aggregate,
}

#[derive(Serialize, Debug)]
struct Aggregate {
    requests: Requests,
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Latency>,
    #[serde(skip_serializing_if = "Option::is_none")]
    throughput: Option<Throughput>,
}

#[derive(Serialize, Debug)]
struct Requests {
    total: usize,
    failures: usize,
    incomplete: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    input_length: Option<Statistics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_length: Option<Statistics>,
}

#[derive(Serialize, Debug)]
struct Latency {
    #[serde(skip_serializing_if = "Option::is_none")]
    time_to_first_token: Option<Statistics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    normalized_time_per_output_token: Option<Statistics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_per_output_token: Option<Statistics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inter_token_latency: Option<Statistics>,
    request_latency: Statistics,
}

#[derive(Serialize, Debug)]
struct Throughput {
    #[serde(skip_serializing_if = "Option::is_none")]
    input_token_rate: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_rate: Option<Rate>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_token_rate: Option<Rate>,
    request_rate: Rate,
}

#[derive(Serialize, Debug)]
struct Rate {
    units: &'static str,
    mean: f64,
}

#[derive(Serialize, Debug)]
struct Statistics {
    units: &'static str,
    mean: f64,
    stddev: f64,
    min: f64,
    p0p1: f64,
    p1: f64,
    p5: f64,
    p10: f64,
    p25: f64,
    p50: f64,
    p75: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    p99p9: f64,
    max: f64,
}

impl Statistics {
    fn of(units: &'static str, values: impl Iterator<Item = f64>) -> Option<Statistics> {
        let values = SortedSamples::new(values)?;
        Some(Statistics {
            units,
            mean: values.mean(),
            stddev: values.deviation(),
            min: values.least(),
            p0p1: values.at(0.001),
            p1: values.at(0.01),
            p5: values.at(0.05),
            p10: values.at(0.10),
            p25: values.at(0.25),
            p50: values.at(0.50),
            p75: values.at(0.75),
            p90: values.at(0.90),
            p95: values.at(0.95),
            p99: values.at(0.99),
            p99p9: values.at(0.999),
            max: values.most(),
        })
    }
}

/// Returns the reports of a run with identity `id`. `beside` contains the `profiling` of each part; `time` formats an instant in
/// ms since 1970.
pub fn write(run: &Foreign, id: &str, beside: &[Value], time: fn(i64) -> String) -> Vec<BenchmarkReport> {
    let each = run.parts.iter().enumerate().filter(|(_, part)| part.rows.iter().any(|row| row.counted));
    let report = |(stage, part): (usize, &ForeignPart)| {
        let rows: Vec<&ForeignRow> = part.rows.iter().filter(|row| row.counted).collect();
        let instants = || rows.iter().flat_map(|row| [row.due, row.sent, row.end]).flatten();
        let (start, end) = (instants().min().unwrap_or_default(), instants().max().unwrap_or_default());
        let wall = |ns: i64| (run.clock == ForeignClock::Wall).then(|| time(ns / 1_000_000));
        let duration_s = seconds(end.saturating_sub(start));
        BenchmarkReport {
            version: "0.2.1",
            run: ReportRun {
                uid: format!("{id}-{stage}"),
                eid: id.to_owned(),
                time: Some(RunTime {
                    start: wall(start),
                    end: wall(end),
                    duration: format!("PT{duration_s}S"),
                }),
                description: run.partial.as_ref().map(|why| format!("partial: {why}")),
            },
            scenario: scenario(run, stage, part, &rows),
            results: Results {
                request_performance: Performance { aggregate: aggregate(&rows, duration_s) },
                profiling: json!({"plimsoll": beside.get(stage)}),
            },
        }
    };
    each.map(report).collect()
}

fn aggregate(rows: &[&ForeignRow], duration_s: f64) -> Aggregate {
    let ok: Vec<&ForeignRow> = rows.iter().copied().filter(|row| row.latency().is_some()).collect();
    let is_incomplete =
        |row: &&&ForeignRow| matches!(row.outcome.how, How::Cancelled | How::Unfinished | How::NeverSent);
    let incomplete = rows.iter().filter(is_incomplete).count();
    let count = |of: fn(&ForeignRow) -> Option<u32>| ok.iter().filter_map(move |row| of(row)).map(f64::from);
    // A rate over some of the answers would be too low.
    let rate = |of: fn(&ForeignRow) -> Option<u32>| {
        let all = ok.iter().map(|row| of(row).map(f64::from)).sum::<Option<f64>>()?;
        Some(Rate { units: "tokens/s", mean: all / duration_s })
    };
    Aggregate {
        requests: Requests {
            total: rows.len(),
            failures: rows.len() - ok.len() - incomplete,
            incomplete,
            input_length: Statistics::of("count", count(|row| row.prompt_tokens)),
            output_length: Statistics::of("count", count(|row| row.output_tokens)),
        },
        latency: latency(&ok),
        throughput: (duration_s > 0.0 && !ok.is_empty()).then(|| Throughput {
            input_token_rate: rate(|row| row.prompt_tokens),
            output_token_rate: rate(|row| row.output_tokens),
            total_token_rate: rate(|row| row.prompt_tokens?.checked_add(row.output_tokens?)),
            request_rate: Rate { units: "queries/s", mean: ok.len() as f64 / duration_s },
        }),
    }
}

fn latency(ok: &[&ForeignRow]) -> Option<Latency> {
    let all = ok.iter().filter_map(|row| row.latency()).map(seconds);
    let first = ok.iter().filter_map(|row| Some(seconds(row.first_token?.saturating_sub(row.sent?))));
    let normalized = ok.iter().filter_map(|row| {
        let tokens = row.output_tokens.filter(|n| *n > 0)?;
        Some(seconds(row.latency()?) / f64::from(tokens))
    });
    let per_token = ok.iter().filter_map(|row| {
        let gaps = row.output_tokens?.checked_sub(1).filter(|n| *n > 0)?;
        Some(seconds(row.last_token?.saturating_sub(row.first_token?)) / f64::from(gaps))
    });
    // If an event has more or fewer tokens than one, the gap between two events is not a token gap.
    let single = ok.iter().filter(|row| row.output_tokens == Some(row.events.len() as u32));
    let gaps = single.flat_map(|row| row.events.iter().zip(row.events.iter().skip(1)));
    Some(Latency {
        request_latency: Statistics::of("s", all)?,
        time_to_first_token: Statistics::of("s", first),
        normalized_time_per_output_token: Statistics::of("s/token", normalized),
        time_per_output_token: Statistics::of("s/token", per_token),
        inter_token_latency: Statistics::of("s/token", gaps.map(|(a, b)| seconds(b.saturating_sub(*a)))),
    })
}

/// Returns the scenario for the fields of the format, which requires the prompt length for every load.
fn scenario(run: &Foreign, stage: usize, part: &ForeignPart, rows: &[&ForeignRow]) -> Option<Value> {
    let lengths = SortedSamples::new(rows.iter().filter_map(|row| row.prompt_tokens).map(f64::from))?;
    let length = match lengths.least() == lengths.most() {
        true => json!({"distribution": "fixed", "value": lengths.most()}),
        false => json!({
            "distribution": "other",
            "value": lengths.mean(),
            "min": lengths.least() as u64,
            "max": lengths.most() as u64,
        }),
    };
    let mut standardized = json!({
        "tool": run.tool.to_lowercase(),
        "tool_version": run.version.as_deref().unwrap_or("unknown"),
        "source": "unknown",
        "stage": stage,
        "input_seq_len": length,
    });
    match part.load {
        Some(Load::Open { rate_per_s }) if rate_per_s > 0.0 => standardized["rate_qps"] = json!(rate_per_s),
        Some(Load::Closed { concurrency } | Load::Saturating { concurrency }) if concurrency > 0 => {
            standardized["concurrency"] = json!(concurrency);
        }
        _ => {}
    }
    Some(json!({
        "load": {
            "metadata": {},
            "standardized": standardized,
            "native": {"config": {"model": run.model, "load": part.load, "partial": run.partial}},
        },
    }))
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{By, Outcome};

    use super::*;

    const MS: i64 = 1_000_000;

    /// A request due and sent at `at` ms; tokens at these ms later, the end with the last.
    fn row(at: i64, how: How, tokens: &[i64]) -> ForeignRow {
        let mut row = ForeignRow::new(Outcome::new(how, By::Server, false));
        let sent = at * MS;
        (row.due, row.sent) = (Some(sent - MS), Some(sent));
        row.events = tokens.iter().map(|ms| ms * MS).collect();
        row.first_token = row.events.first().map(|at| sent + at);
        row.last_token = row.events.last().map(|at| sent + at);
        row.end = row.last_token;
        row.output_tokens = Some(tokens.len() as u32).filter(|n| *n > 0);
        row.prompt_tokens = Some(10);
        row
    }

    fn report(rows: Vec<ForeignRow>) -> Value {
        let mut part = ForeignPart::new("level 0");
        part.rows = rows;
        let run = Foreign {
            tool: "Plimsoll",
            version: Some("1".into()),
            format: "a run",
            clock: ForeignClock::Wall,
            model: None,
            url: None,
            parts: vec![part],
            partial: Some("interrupted".into()),
            doubts: Vec::new(),
        };
        let reports = write(&run, "r", &[], |ms| format!("{ms}"));
        serde_json::to_value(&reports).expect("JSON")[0].clone()
    }

    /// Computed manually: answers of 3 tokens at 20, 30, 50 ms and of 2 at 10, 40 ms, over 1.021 s from the first due.
    #[test]
    fn figures_are_of_answers_that_count_from_when_they_were_sent() {
        let mut warm = row(0, How::Finished, &[500]);
        warm.counted = false;
        let rows = vec![
            warm,
            row(1_000, How::Finished, &[20, 30, 50]),
            row(1_500, How::Finished, &[10, 40]),
            row(1_600, How::ServerError, &[]),
            row(1_700, How::Truncated, &[300]),
            row(1_800, How::Cancelled, &[7]),
            row(1_900, How::Unfinished, &[]),
            row(1_970, How::Timeout, &[50]),
        ];
        let report = report(rows);
        let aggregate = &report["results"]["request_performance"]["aggregate"];
        let requests = &aggregate["requests"];
        assert_eq!((&requests["total"], &requests["failures"]), (&json!(7), &json!(3)));
        assert_eq!(requests["incomplete"], 2);
        let latency = &aggregate["latency"];
        for (metric, mean, max) in [
            ("time_to_first_token", 0.015, 0.020),
            ("request_latency", 0.045, 0.050),
            ("time_per_output_token", (0.015 + 0.030) / 2.0, 0.030),
            ("normalized_time_per_output_token", (0.050 / 3.0 + 0.020) / 2.0, 0.020),
            ("inter_token_latency", 0.020, 0.030),
        ] {
            for (statistic, value) in [("mean", mean), ("max", max)] {
                let said = latency[metric][statistic].as_f64().expect("a figure");
                assert!((said - value).abs() < 1e-12, "{metric} {statistic}: {said}");
            }
        }
        let rate = |name: &str| aggregate["throughput"][name]["mean"].as_f64().expect("a rate");
        let over = 1.021;
        assert!((rate("request_rate") - 2.0 / over).abs() < 1e-12);
        assert!((rate("total_token_rate") - 25.0 / over).abs() < 1e-12);
        assert_eq!(report["run"]["time"], json!({"start": "999", "end": "2020", "duration": "PT1.021S"}));
        assert_eq!(report["run"]["description"], "partial: interrupted");
    }

    /// If one answer has no token count, a token rate would be too low; if none streams, there is no first token.
    #[test]
    fn what_a_run_does_not_give_is_left_out() {
        let mut whole = row(1_000, How::Finished, &[]);
        whole.end = Some(1_030 * MS);
        whole.prompt_tokens = None;
        let report = report(vec![whole]);
        let aggregate = &report["results"]["request_performance"]["aggregate"];
        assert_eq!(aggregate["latency"].as_object().map(|of| of.len()), Some(1), "{aggregate}");
        assert_eq!(aggregate["throughput"].as_object().map(|of| of.len()), Some(1), "{aggregate}");
        assert!(aggregate["requests"].get("input_length").is_none() && report.get("scenario").is_none());
    }
}
