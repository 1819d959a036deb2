//! Parses a range vector of the Prometheus API: every scraped value with the instant of its scrape.
//!
//! `rate` and `increase` were rejected because they extrapolate, and the counts here are whole requests.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Clone, PartialEq, Debug)]
pub struct RangeSeries {
    pub name: String,
    /// Labels without the name, ascending.
    pub labels: Vec<(String, String)>,
    /// Instant, ns since the unix epoch, and value; ascending.
    pub values: Vec<(i64, f64)>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: serde_json::Value,
}

#[derive(Deserialize)]
struct One {
    metric: BTreeMap<String, String>,
    /// Samples; empty for a native histogram.
    #[serde(default)]
    values: Vec<(f64, String)>,
}

/// Limit of targets per list, because each is scraped and the list comes from another server.
pub const TARGETS_MOST: usize = 10_000;
/// Longest URL of a target, because the path of a group is repeated for each of its targets.
const URL_MOST: usize = 4096;

/// A target group of `file_sd` or `http_sd`.
#[derive(Deserialize)]
struct Group {
    targets: Vec<String>,
    #[serde(default)]
    labels: GroupLabels,
}

#[derive(Deserialize, Default)]
struct GroupLabels {
    #[serde(rename = "__scheme__")]
    scheme: Option<String>,
    #[serde(rename = "__metrics_path__")]
    path: Option<String>,
}

/// Parses a target list of `file_sd` or `http_sd` into metrics endpoints, `TARGET=URL`.
///
/// # Errors
/// Fails if the bytes are not a target list, or if it is too long.
pub fn targets(list: &[u8]) -> Result<Vec<String>, String> {
    let groups: Vec<Group> = serde_json::from_slice(list)
        .map_err(|e| format!("{e}; expected [{{\"targets\": [\"host:8000\"]}}]"))?;
    let count: usize = groups.iter().map(|group| group.targets.len()).sum();
    if count > TARGETS_MOST {
        return Err(format!("names {count} targets, and a list may have {TARGETS_MOST}: split it"));
    }
    let mut pages = Vec::new();
    for Group { targets, labels } in groups {
        let scheme = labels.scheme.as_deref().unwrap_or("http");
        let path = labels.path.as_deref().unwrap_or("/metrics");
        for target in targets {
            if scheme.len() + target.len() + path.len() > URL_MOST {
                return Err(format!("the URL of a target is longer than {URL_MOST} letters"));
            }
            pages.push(format!("{target}={scheme}://{target}{path}"));
        }
    }
    Ok(pages)
}

/// Parses the response to a range query.
///
/// # Errors
/// Fails with the server's message, or with the parse error.
pub fn range(body: &[u8]) -> Result<Vec<RangeSeries>, String> {
    let answer: Answer =
        serde_json::from_slice(body).map_err(|_| "the answer is not that of Prometheus' API".to_owned())?;
    if let Some(error) = answer.error {
        return Err(error);
    }
    let data = answer.data.filter(|data| data.result_type == "matrix");
    let result = data.ok_or("the answer is no range of samples")?.result;
    let each: Vec<One> = serde_json::from_value(result).map_err(|e| format!("the answer: {e}"))?;
    Ok(each.into_iter().map(series).collect())
}

fn series(one: One) -> RangeSeries {
    let mut metric = one.metric;
    let name = metric.remove("__name__").unwrap_or_default();
    let values = one.values.into_iter().filter_map(|(at_s, value)| {
        // To the millisecond, because Prometheus stores milliseconds.
        let at = ((at_s * 1e3).round() as i64).checked_mul(1_000_000)?;
        Some((at, value.parse().ok()?))
    });
    RangeSeries { name, labels: metric.into_iter().collect(), values: values.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Response of Prometheus 2.42 to `{__name__=~"llamacpp:tokens_predicted_total|up"}[3s]`, shortened.
    const ANSWER: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"llamacpp:tokens_predicted_total","instance":"127.0.0.1:23950","job":"llama"},
         "values":[[1795404902.093,"3840"],[1795404903.093,"+Inf"],[1795404904.093,"NaN"]]},
        {"metric":{"job":"llama"},"histograms":[[1795404904.093,{"count":"1"}]]}]}}"#;

    #[test]
    fn values_come_with_their_scrapes_instants() {
        let found = range(ANSWER.as_bytes()).expect("an answer");
        assert_eq!(found[0].name, "llamacpp:tokens_predicted_total");
        assert_eq!(found[0].labels[1], ("job".to_owned(), "llama".to_owned()));
        assert_eq!(found[0].values[0], (1_795_404_902_093_000_000, 3840.0));
        assert!(found[0].values[1].1.is_infinite() && found[0].values[2].1.is_nan());
        assert!(found[1].values.is_empty());
    }

    #[test]
    fn what_is_no_such_answer_says_why() {
        let refused =
            br#"{"status":"error","errorType":"bad_data","error":"1:3: parse error: unexpected end"}"#;
        assert_eq!(range(refused).expect_err("refused"), "1:3: parse error: unexpected end");
        for (body, word) in [
            ("<html>", "not that of Prometheus"),
            (r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#, "no range"),
            (r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":3}]}}"#, "the answer"),
            ("{}", "no range"),
        ] {
            let why = range(body.as_bytes()).expect_err(body);
            assert!(why.contains(word), "{body}: {why}");
        }
    }

    /// A list comes from another server, and each of its targets is kept and scraped.
    #[test]
    fn a_list_of_targets_is_bounded() {
        let list = |targets: usize, path: usize| {
            let targets: Vec<String> = (0..targets).map(|n| format!("\"h:{n}\"")).collect();
            let path = "p".repeat(path);
            format!(
                "[{{\"targets\": [{}], \"labels\": {{\"__metrics_path__\": \"/{path}\"}}}}]",
                targets.join(",")
            )
        };
        let read = |targets, path| super::targets(list(targets, path).as_bytes());
        assert_eq!(read(1, 3).as_deref(), Ok(&["h:0=http://h:0/ppp".to_owned()][..]));
        assert_eq!(read(TARGETS_MOST, 1).map(|pages| pages.len()), Ok(TARGETS_MOST));
        assert!(read(TARGETS_MOST + 1, 1).expect_err("too many").contains("10001 targets"));
        assert!(read(2, URL_MOST).expect_err("too long").contains("4096 letters"));
    }
}
