//! Logs a run in MLflow through its REST API (`/api/2.0/mlflow`). It creates the experiment if needed, then a
//! run whose metrics have the level as their step. MLflow has no single request for all of this. The run
//! therefore has status RUNNING until its last metric is logged.

use std::collections::BTreeMap;

use plimsoll_client::PostClient;
use plimsoll_measure::findings::Trust;
use plimsoll_model::{Manifest, RunState, Span};
use plimsoll_report::mlflow::{LoggedMetric, metrics};
use plimsoll_workload::TargetSpec;
use serde_json::{Value, json};

use crate::exit::Stop;
use crate::rows::WholeRun;

/// MLflow's environment variable for a token.
const TOKEN: &str = "MLFLOW_TRACKING_TOKEN";
/// Maximum number of metrics per MLflow request.
const BATCH: usize = 1000;
/// Time limit for one response of the MLflow server.
const PATIENCE: Span = Span::from_secs(30);

/// Logs the run. Returns its address and the number of its metrics.
pub fn write(run: &WholeRun, url: &str, experiment: &str) -> Result<(String, u64), Stop> {
    let server = Server { url: url.trim_end_matches('/') };
    let experiment = server.experiment(experiment)?;
    let manifest = &run.manifest;
    let start_ms = manifest.clock.realtime_ns / 1_000_000;
    let last = manifest.levels.iter().map(|level| level.drained.0).max().unwrap_or_default();
    let end_ms = start_ms + last / 1_000_000;
    let made = server.ask(
        "runs/create",
        &json!({
            "experiment_id": experiment,
            "run_name": manifest.label.as_ref().unwrap_or(&manifest.id),
            "start_time": start_ms,
            "tags": tags(run),
        }),
    )?;
    let id = text(&made, "/run/info/run_id")?;
    server.ask("runs/log-batch", &json!({"run_id": id, "params": params(manifest)}))?;
    let all = metrics(&run.findings);
    for batch in all.chunks(BATCH) {
        let metric = |one: &LoggedMetric| json!({"key": one.key, "value": one.value, "timestamp": end_ms, "step": one.step});
        let metrics: Vec<Value> = batch.iter().map(metric).collect();
        server.ask("runs/log-batch", &json!({"run_id": id, "metrics": metrics}))?;
    }
    let status = match manifest.progress {
        RunState::Complete => "FINISHED",
        RunState::Partial { .. } | RunState::Running => "KILLED",
    };
    server.ask("runs/update", &json!({"run_id": id, "status": status, "end_time": end_ms}))?;
    Ok((format!("{}/#/experiments/{experiment}/runs/{id}", server.url), all.len() as u64))
}

fn tags(run: &WholeRun) -> Value {
    let worst = run.findings.levels.iter().map(|level| level.validity.verdict).max().unwrap_or(Trust::Valid);
    let manifest = &run.manifest;
    let mut tags = vec![
        ("plimsoll.run", json!(manifest.id)),
        ("plimsoll.version", json!(manifest.tool.trim_start_matches("plimsoll "))),
        ("plimsoll.kind", json!(manifest.kind)),
        ("plimsoll.validity", json!(worst)),
    ];
    if let RunState::Partial { why } = &manifest.progress {
        tags.push(("plimsoll.partial", json!(why)));
    }
    tags.into_iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

/// Returns the scenario and target parameters, without command line, headers or prompts.
fn params(manifest: &Manifest) -> Value {
    let asked = |path: &str| manifest.scenario.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let all = [
        ("url", manifest.target.url.split(['?', '#']).next().map(str::to_owned)),
        ("model", asked("/target/model")),
        ("protocol", asked("/target/protocol")),
        ("arrivals", asked("/arrivals/process")),
        ("prompt_tokens", asked("/sizes/prompt")),
        ("output_tokens", asked("/sizes/output")),
        ("seed", Some(manifest.seed.to_string())),
    ];
    let known = all.into_iter().filter_map(|(key, value)| Some(json!({"key": key, "value": value?})));
    known.collect()
}

struct Server<'a> {
    url: &'a str,
}

impl Server<'_> {
    /// Returns the id of the experiment, and creates the experiment if needed.
    fn experiment(&self, name: &str) -> Result<String, Stop> {
        let filter = format!("name = '{}'", name.replace('\'', "''"));
        let found = self.ask("experiments/search", &json!({"filter": filter, "max_results": 1}))?;
        match text(&found, "/experiments/0/experiment_id") {
            Ok(id) => Ok(id),
            Err(_) => text(&self.ask("experiments/create", &json!({"name": name}))?, "/experiment_id"),
        }
    }

    fn ask(&self, path: &str, body: &Value) -> Result<Value, Stop> {
        let mut headers = BTreeMap::new();
        if std::env::var_os(TOKEN).is_some() {
            headers.insert("authorization".to_owned(), format!("Bearer ${TOKEN}"));
        }
        let target = TargetSpec { url: self.url.to_owned(), headers, ..TargetSpec::default() };
        let poster = PostClient::new(&target, &format!("/api/2.0/mlflow/{path}"));
        let poster = poster.map_err(|e| Stop::usage(format!("-o: {e}")))?;
        let at = poster.authority();
        let silent = |why: String| Stop::unreachable(format!("-o: MLflow at {at}: {why}"));
        let (posted, answer) = poster.ask(body.to_string().into_bytes(), PATIENCE).map_err(silent)?;
        let answer: Option<Value> = serde_json::from_slice(&answer).ok();
        match (posted.status, answer) {
            (200..300, Some(answer)) => Ok(answer),
            (401 | 403, _) => Err(Stop::usage(format!(
                "-o: MLflow at {at} refuses (HTTP {}); it takes a token from {TOKEN}",
                posted.status
            ))),
            (status, answer) => {
                let code = answer.and_then(|answer| text(&answer, "/error_code").ok()).unwrap_or_default();
                Err(Stop::unreachable(format!(
                    "-o: {at} does not do {path} as MLflow does: HTTP {status} {code}"
                )))
            }
        }
    }
}

fn text(answer: &Value, path: &str) -> Result<String, Stop> {
    let found = answer.pointer(path).and_then(Value::as_str);
    found.map(str::to_owned).ok_or_else(|| Stop::unreachable(format!("-o: no {path} in what MLflow answers")))
}
