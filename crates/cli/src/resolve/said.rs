//! Parses the short values of flags: URLs, arrivals, kinds of traffic, ceilings, prices.

use plimsoll_judge::cost::{Bill, EndpointPrice};
use plimsoll_measure::budget::BudgetMetric;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_model::Protocol;
use plimsoll_workload::{Scenario, nearest};
use serde_json::{Value, json};

use super::CliResult;
use crate::exit::Stop;
use crate::flags::PriceArgs;
use crate::{price, tensors};

pub const SCHEMES: [&str; 4] = ["http://", "https://", "grpc://", "grpcs://"];

/// Returns the address of a target without its scheme.
pub fn bare(url: &str) -> &str {
    SCHEMES.iter().chain(&["simulated:"]).find_map(|head| url.strip_prefix(head)).unwrap_or(url)
}

/// Checks that a base URL has a supported scheme and contains no secret.
pub(super) fn check_url(url: &str) -> CliResult<()> {
    let rest = SCHEMES.iter().find_map(|scheme| url.strip_prefix(scheme)).ok_or_else(|| {
        Stop::usage(format!(
            "{url}: a URL starts with http:// or https:// (KServe over gRPC: grpc:// or grpcs://)"
        ))
    })?;
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.contains('@') {
        return Err(Stop::usage(
            "the URL contains a user or password: use --key-env or --header 'authorization: $NAME'",
        ));
    }
    if authority.is_empty() {
        return Err(Stop::usage(format!("{url}: the host is missing")));
    }
    let query = path.split_once('?').map_or("", |(_, query)| query);
    for parameter in query.split('&') {
        let name = parameter.split('=').next().unwrap_or_default().to_ascii_lowercase();
        if SECRET_PARAMETERS.contains(&name.as_str()) {
            return Err(Stop::usage(format!(
                "the URL contains a key (?{name}=…), which the run would record: send it as a header with --key-env or --header"
            )));
        }
    }
    Ok(())
}

pub(super) const SECRET_PARAMETERS: [&str; 6] =
    ["key", "api_key", "api-key", "apikey", "token", "access_token"];

/// Parses the short form of an arrival process: `poisson`, `gamma:3`, `onoff:2s,8s`, `ramp:1,4`, …
pub fn arrivals(text: &str) -> CliResult<Value> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let parts: Vec<&str> = rest.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let bad = |form: &str| Stop::usage(format!("--arrivals {text}: write {form}"));
    let number = |i: usize, form: &str| -> CliResult<f64> {
        parts.get(i).and_then(|part| part.parse().ok()).ok_or_else(|| bad(form))
    };
    Ok(match name {
        "gamma" | "weibull" => {
            json!({"process": name, "cv": number(0, &format!("{name}:CV such as {name}:3"))?})
        }
        "onoff" | "on_off" => {
            let form = "onoff:ON,OFF[,FLOOR] such as onoff:2s,8s (FLOOR = rate in a pause / rate in a burst)";
            let (on, off) = (parts.first().ok_or_else(|| bad(form))?, parts.get(1).ok_or_else(|| bad(form))?);
            let floor = if parts.len() > 2 { number(2, form)? } else { 0.0 };
            json!({"process": "on_off", "on": on, "off": off, "floor": floor})
        }
        "ramp" => {
            let form = "ramp:FROM,TO with relative heights such as ramp:0,1";
            json!({"process": "ramp", "from": number(0, form)?, "to": number(1, form)?})
        }
        "step" => {
            let heights: Option<Vec<f64>> = parts.iter().map(|part| part.parse().ok()).collect();
            let heights =
                heights.filter(|h| !h.is_empty()).ok_or_else(|| bad("step:A,B,… with relative heights"))?;
            json!({"process": "step", "heights": heights})
        }
        "spike" => {
            json!({"process": "spike", "height": number(0, "spike:HEIGHT such as spike:5 (the rest being 1)")?})
        }
        "diurnal" => {
            json!({"process": "diurnal", "peak_to_trough": number(0, "diurnal:PEAK/TROUGH such as diurnal:4")?})
        }
        other => json!({"process": other}),
    })
}

/// Parses a kind of traffic of a sweep: `steady`, `burst`, or `NAME=PROCESS`. Returns the name and the arrival process.
pub fn traffic(text: &str) -> CliResult<(String, Value)> {
    match text.split_once('=') {
        Some((name, process)) if !name.is_empty() => Ok((name.to_string(), arrivals(process)?)),
        None if text == "steady" => Ok((text.into(), json!({"process": "poisson"}))),
        None if text == "burst" => Ok((text.into(), json!({"process": "gamma", "cv": 3.0}))),
        _ => Err(Stop::usage(format!(
            "--traffic {text}: steady, burst, or NAME=PROCESS such as evening=onoff:2s,8s"
        ))),
    }
}

/// Parses ceilings such as `ttft p99 < 500ms` into a budget. A metric may have several, at different percentiles.
pub fn budget(ceilings: &[String]) -> CliResult<Option<BudgetSpec>> {
    if ceilings.is_empty() {
        return Ok(None);
    }
    let mut budget = BudgetSpec {
        name: ceilings.iter().map(|text| text.trim()).collect::<Vec<_>>().join(", "),
        latency: Vec::new(),
        error_rate: None,
    };
    for text in ceilings {
        let bad = || {
            Stop::usage(format!(
                "--slo {text}: write METRIC pXX < TIME such as 'ttft p99 < 500ms', or 'errors < 1%'"
            ))
        };
        let (left, ceiling) = text.split_once('<').ok_or_else(bad)?;
        let ceiling = ceiling.trim_start_matches('=').trim();
        let mut words = left.split_whitespace();
        let metric = words.next().ok_or_else(bad)?;
        if metric == "errors" || metric == "error_rate" {
            let share: f64 =
                ceiling.strip_suffix('%').unwrap_or(ceiling).trim().parse().map_err(|_| bad())?;
            budget.error_rate = Some(if ceiling.ends_with('%') { share / 100.0 } else { share });
            continue;
        }
        let p: f64 = words.next().and_then(|p| p.strip_prefix('p')?.parse().ok()).ok_or_else(bad)?;
        let p = p / 100.0;
        if !(p > 0.0 && p < 1.0) || words.next().is_some() {
            return Err(bad());
        }
        let limit = plimsoll_workload::units::parse_span(ceiling).map_err(|_| bad())?.as_secs_f64();
        if limit <= 0.0 {
            return Err(bad());
        }
        let named = Metric::ALL.into_iter().find(|known| known.name() == metric);
        let metric = named.ok_or_else(|| {
            let tip = nearest(metric, ["ttft", "tpot", "e2e", "errors"]);
            let tip = tip.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let tip = match BudgetMetric::ALL.iter().any(|known| known.name() == metric) {
                true => "; a budget file takes this one".to_owned(),
                false => tip,
            };
            Stop::usage(format!("--slo {text}: the metrics are ttft, tpot, e2e and errors{tip}"))
        })?;
        // Ceilings must rise with the percentile, because a higher percentile is never smaller and one of the two would be redundant.
        for other in budget.latency.iter().filter(|other| other.metric == metric) {
            let rises = (p - other.percentile) * (limit - other.limit_s);
            if rises <= 0.0 {
                return Err(Stop::usage(format!(
                    "--slo {}: contradicts or repeats {} p{}: a higher percentile needs a higher ceiling",
                    text.trim(),
                    metric.name(),
                    plimsoll_report::figure::centile(other.percentile)
                )));
            }
        }
        budget.latency.push(Ceiling::new(metric, p, limit));
    }
    Ok(Some(budget))
}

/// Returns the bill that the flags request; `None` without a price.
pub fn cost(price: &PriceArgs, scenario: &Scenario) -> CliResult<Option<Bill>> {
    let bill = price::bill(price, None)?;
    let per_token = bill.as_ref().is_some_and(|bill| matches!(bill.rate, EndpointPrice::PerMtok { .. }));
    tensors::priced(scenario, per_token)?;
    Ok(bill)
}

/// Returns the budget of a single load, if `--slo` sets one.
pub fn asked_budget(scenario: &Scenario, ceilings: &[String]) -> CliResult<Option<BudgetSpec>> {
    if ceilings.is_empty() { Ok(None) } else { budget_for(scenario, ceilings).map(Some) }
}

/// Returns the budget of a sweep: the configured one, or an example that fits this endpoint's kind of answer.
pub fn budget_for(scenario: &Scenario, ceilings: &[String]) -> CliResult<BudgetSpec> {
    let target = &scenario.target;
    let whole = !target.stream || !target.protocol.streams();
    let asked = budget(ceilings)?;
    let of_tokens = asked.iter().flat_map(|budget| &budget.latency).find(|c| c.metric != Metric::E2e);
    match (asked.as_ref(), of_tokens) {
        (Some(_), Some(ceiling)) if whole => Err(Stop::usage(format!(
            "--slo: answers are not streamed here and have no {}; set a limit on e2e",
            ceiling.metric.name()
        ))),
        (Some(budget), _) => Ok(budget.clone()),
        (None, _) if !whole && target.protocol.takes_output_length() => Ok(BudgetSpec::default()),
        (None, _) if !target.protocol.streams() && target.protocol != Protocol::Images => {
            Ok(BudgetSpec::recommendation())
        }
        // The example has no latency ceiling, because the duration of a generated answer depends on its length.
        (None, _) => Ok(BudgetSpec {
            name: "example: errors < 1%".into(),
            latency: Vec::new(),
            error_rate: Some(0.01),
        }),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};

    use super::*;

    #[test]
    fn a_url_with_a_secret_is_refused_without_repeating_it() {
        for url in [
            "http://user:hunter2@host/v1",
            "https://host/v1?api_key=hunter2",
            "https://host/v1?a=1&token=hunter2",
        ] {
            let stop = check_url(url).expect_err("refused");
            assert!(!stop.line.contains("hunter2"), "{}", stop.line);
        }
        assert!(check_url("https://host:8443/v1?version=2").is_ok());
        assert!(check_url("host:8000").is_err());
    }

    #[test]
    fn slo_texts_become_a_budget() {
        let texts = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let budget = budget(&texts(&["ttft p95 < 500ms", "tpot p95 < 30ms", "errors < 1%"]))
            .expect("valid")
            .expect("some");
        let ceilings = [Ceiling::new(Metric::Ttft, 0.95, 0.5), Ceiling::new(Metric::Tpot, 0.95, 0.03)];
        assert_eq!(budget.latency, ceilings);
        assert_eq!(budget.error_rate, Some(0.01));
        let several = super::budget(&texts(&["e2e p50 < 60ms", "e2e p95 < 150ms", "e2e p99 < 350ms"]));
        let several = several.expect("valid").expect("some");
        assert_eq!(several.latency, BudgetSpec::recommendation().latency);
        for wrong in [
            &["ttft < 5s"][..],
            &["ttft p99 < 0s"],
            &["wait p99 < 1s"],
            &["e2e p99 < 1s", "e2e p99 < 2s"],
            &["e2e p50 < 1s", "e2e p99 < 1s"],
            &["e2e p99 < 1s", "e2e p50 < 2s"],
        ] {
            assert!(super::budget(&texts(wrong)).is_err(), "{wrong:?}");
        }
        let swapped = super::budget(&texts(&["tftt p99 < 500ms"])).expect_err("refused");
        assert!(swapped.line.ends_with("did you mean ttft?"), "{}", swapped.line);
    }
}
