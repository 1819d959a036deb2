//! Parses results of lm-evaluation-harness: `results_*.json` with scores by task, and `samples_*.jsonl` with scores by document.
//!
//! A score is a field `METRIC,FILTER` of a task, with its error in `METRIC_stderr,FILTER`. Groups repeat the scores of their
//! tasks and are left out; `n-samples` lists the tasks. A task has several metrics, and one of them is compared: the named one,
//! otherwise the first of [`USUAL`]. Scores outside 0 to 1, such as perplexity, are left out, because they are no accuracy.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

/// Metrics in order of preference if none is named.
const USUAL: [&str; 9] =
    ["acc", "exact_match", "pass@1", "pass_at_1", "prompt_level_strict_acc", "acc_norm", "em", "f1", "mcc"];

/// Errors of reading a result of lm-evaluation-harness.
#[derive(Error, Clone, PartialEq, Eq, Debug)]
pub enum EvalError {
    /// The text is not a result file.
    #[error("not a result of lm-evaluation-harness (results_*.json): {0}")]
    NotResults(&'static str),
    /// The file has no usable score.
    #[error("no task with {0} between 0 and 1")]
    NoScore(String),
    /// A line of samples is malformed.
    #[error("line {0}: expected a sample with doc_id")]
    Sample(usize),
}

/// The score of one task.
#[derive(Clone, PartialEq, Debug)]
pub struct EvalScore {
    /// Name of the task, such as `gsm8k`.
    pub task: String,
    /// Metric without its filter, such as `exact_match`.
    pub metric: String,
    /// Filter of the answers, such as `strict-match`.
    pub filter: String,
    /// Mean score, 0 to 1.
    pub value: f64,
    /// Standard error of the mean; `None` if the file has none.
    pub standard_error: Option<f64>,
    /// Number of documents that were scored.
    pub n: u64,
}

/// Returns the scores of a result file, one per task, in order of their names. `metric` is `METRIC` or `METRIC,FILTER`.
///
/// # Errors
/// Fails if the text is no result file or has no score of this metric.
pub fn scores(text: &str, metric: Option<&str>) -> Result<Vec<EvalScore>, EvalError> {
    let root: Value = serde_json::from_str(text).map_err(|_| EvalError::NotResults("not JSON"))?;
    let results = root.get("results").and_then(Value::as_object);
    let results = results.ok_or(EvalError::NotResults("no results"))?;
    let counts = root.get("n-samples").and_then(Value::as_object);
    let counts = counts.ok_or(EvalError::NotResults("no n-samples"))?;
    let mut scores = Vec::new();
    for (task, counted) in counts {
        let n = counted.get("effective").or(counted.get("original")).and_then(Value::as_u64).unwrap_or(0);
        let Some(fields) = results.get(task).and_then(Value::as_object).filter(|_| n > 0) else { continue };
        if let Some(score) = score(fields, metric) {
            scores.push(EvalScore { task: task.clone(), n, ..score });
        }
    }
    scores.sort_by(|a, b| a.task.cmp(&b.task));
    match scores.is_empty() {
        true => Err(EvalError::NoScore(metric.map_or("an accuracy".to_owned(), str::to_owned))),
        false => Ok(scores),
    }
}

fn score(fields: &Map<String, Value>, metric: Option<&str>) -> Option<EvalScore> {
    let is_error = |name: &str| name.ends_with("_stderr");
    let all = fields.iter().filter_map(|(key, value)| {
        let (name, filter) = key.split_once(',')?;
        let value = value.as_f64().filter(|value| (0.0..=1.0).contains(value) && !is_error(name))?;
        let standard_error = fields.get(&format!("{name}_stderr,{filter}")).and_then(Value::as_f64);
        Some(EvalScore {
            task: String::new(),
            metric: name.to_owned(),
            filter: filter.to_owned(),
            value,
            standard_error,
            n: 0,
        })
    });
    let all: Vec<EvalScore> = all.collect();
    let fits = |score: &&EvalScore, named: &str| match named.split_once(',') {
        Some((name, filter)) => score.metric == name && score.filter == filter,
        None => score.metric == named,
    };
    let first = |named: &str| all.iter().find(|score| fits(score, named)).cloned();
    match metric {
        Some(named) => first(named),
        None => USUAL.iter().find_map(|named| first(named)),
    }
}

/// Returns the score of each document of a samples file, by document, for the metric and filter of `of`.
///
/// A repeated document keeps its last score. The key contains the document's hash, so that changed documents do not pair.
///
/// # Errors
/// Fails if a line is no sample.
pub fn items(text: &str, of: &EvalScore) -> Result<BTreeMap<u64, f64>, EvalError> {
    let mut items = BTreeMap::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let sample: Value = serde_json::from_str(line).map_err(|_| EvalError::Sample(i + 1))?;
        let id = sample.get("doc_id").and_then(Value::as_u64).ok_or(EvalError::Sample(i + 1))?;
        let filter = sample.get("filter").and_then(Value::as_str).unwrap_or("none");
        let score = sample.get(&of.metric).and_then(|score| match score {
            Value::Bool(is_right) => Some(f64::from(u8::from(*is_right))),
            score => score.as_f64(),
        });
        if let Some(score) = score.filter(|_| filter == of.filter) {
            let hash = sample.get("doc_hash").and_then(Value::as_str).unwrap_or_default();
            items.insert(crate::results::hashed(&format!("{id}:{hash}")), score);
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = r#"{"results": {
        "gsm8k": {"alias": "gsm8k", "exact_match,strict-match": 0.7, "exact_match_stderr,strict-match": 0.0126,
            "exact_match,flexible-extract": 0.75, "exact_match_stderr,flexible-extract": 0.0119},
        "mmlu": {"acc,none": 0.6, "acc_stderr,none": 0.004},
        "mmlu_law": {"acc,none": 0.5, "acc_stderr,none": "N/A", "acc_norm,none": 0.55},
        "wikitext": {"word_perplexity,none": 9.1}},
        "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}, "mmlu_law": {"original": 100, "effective": 40},
            "wikitext": {"original": 62, "effective": 62}}}"#;

    #[test]
    fn a_task_has_its_usual_metric_and_groups_and_perplexities_none() {
        let found = scores(RESULTS, None).expect("scores");
        let names: Vec<_> =
            found.iter().map(|s| (s.task.as_str(), s.metric.as_str(), s.n, s.value)).collect();
        assert_eq!(names[0].0, "gsm8k");
        assert_eq!(names[1], ("mmlu_law", "acc", 40, 0.5));
        assert_eq!((names.len(), found[1].standard_error), (2, None));
        let named = scores(RESULTS, Some("exact_match,flexible-extract")).expect("scores");
        assert_eq!((named.len(), named[0].value, named[0].standard_error), (1, 0.75, Some(0.0119)));
        assert_eq!(scores(RESULTS, Some("bleu")), Err(EvalError::NoScore("bleu".into())));
        for text in ["", "{}", "{\"results\": {}}", "[1]"] {
            assert!(matches!(scores(text, None), Err(EvalError::NotResults(_))), "{text}");
        }
    }

    #[test]
    fn samples_pair_by_document_and_filter() {
        let of = scores(RESULTS, Some("exact_match,strict-match")).expect("scores").remove(0);
        let text = "{\"doc_id\": 0, \"filter\": \"strict-match\", \"exact_match\": 1.0, \"doc_hash\": \"a\"}\n\
            {\"doc_id\": 0, \"filter\": \"flexible-extract\", \"exact_match\": 0.0, \"doc_hash\": \"a\"}\n\n\
            {\"doc_id\": 1, \"filter\": \"strict-match\", \"exact_match\": false, \"doc_hash\": \"b\"}\n";
        let found = items(text, &of).expect("items");
        assert_eq!(found.len(), 2);
        assert!(found.values().copied().sum::<f64>() == 1.0);
        let changed = items(&text.replace("\"b\"", "\"c\""), &of).expect("items");
        assert!(!found.keys().eq(changed.keys()));
        assert_eq!(items("{\"doc_id\": 0}\n{", &of), Err(EvalError::Sample(2)));
    }
}
