//! Renders `plimsoll demo gateway`: two runs of equal requests, and the better route for them. It may be either.

use plimsoll_measure::findings::{LevelSummary, Reading};
use serde::Serialize;

use crate::table::TextTable;
use crate::{figure, words};

/// The measurement of one of the two routes.
#[derive(Clone, Debug, Serialize)]
pub struct DemoRoute {
    pub met: LevelSummary,
    /// Shares of the replicas, in order.
    pub replicas: Vec<ReplicaShare>,
    /// Number of attempts after the first.
    pub retries: u64,
    /// Number of requests that were not forwarded.
    pub refused: u64,
    /// Whether a replica was ejected for a time.
    pub ejected: bool,
}

/// The part of a replica in a run.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicaShare {
    pub name: String,
    pub requests: u64,
    /// Assumed time per token with one stream, s.
    pub step_s: f64,
}

/// Returns the page. `scene`: a description of the runs, in a few sentences; `again`: the command line.
pub fn render(scene: &str, robin: &DemoRoute, gateway: &DemoRoute, again: &str) -> String {
    let mut table = TextTable::new(&["", "round robin", "plimsoll gateway"]);
    let mut row =
        |name: &str, of: &dyn Fn(&DemoRoute) -> String| table.row([name.to_owned(), of(robin), of(gateway)]);
    row("requests", &|way| way.met.counts.requests.to_string());
    row("failed", &|way| way.met.counts.failed.to_string());
    row("ttft p50", &|way| latency(way.met.latency.ttft.as_ref().map(|ttft| &ttft.p50)));
    row("ttft p95", &|way| latency(p95(way)));
    row("ttft p99", &|way| latency(way.met.latency.ttft.as_ref().map(|ttft| &ttft.p99)));
    row("e2e p95", &|way| latency(Some(&way.met.latency.e2e.p95)));
    for (at, replica) in robin.replicas.iter().enumerate() {
        row(&format!("sent to {}", replica.name), &|way| way.replicas[at].requests.to_string());
    }
    row("retries", &|way| way.retries.to_string());
    row("refused", &|way| way.refused.to_string());
    let mut page =
        format!("Plimsoll demo of the gateway\n\n{}\n{}\n", words::wrap(2, scene), table.render(2));
    for sentence in [
        verdict(robin, gateway),
        learnt(gateway),
        "* from too few requests for a general result: each request was sent once each way. plimsoll interleave \
         reports the confidence of a difference."
            .to_owned(),
    ] {
        page += &words::wrap(2, &sentence);
    }
    page += "\n";
    page += &words::wrap(
        2,
        "In front of your own: plimsoll gateway --replica http://a:8000 --replica http://b:8000",
    );
    page += &words::wrap(2, &format!("Again: {again}"));
    page
}

fn p95(way: &DemoRoute) -> Option<&Reading> {
    way.met.latency.ttft.as_ref().map(|ttft| &ttft.p95)
}

fn latency(reading: Option<&Reading>) -> String {
    let Some(reading) = reading else { return "–".to_owned() };
    match (reading.estimate(), reading.seen()) {
        (Some(estimate), _) => words::time(estimate.value),
        (None, Some(seen)) => format!("{}*", words::time(seen.value)),
        (None, None) => "–".to_owned(),
    }
}

/// Returns the better route for these requests.
fn verdict(robin: &DemoRoute, gateway: &DemoRoute) -> String {
    match (p95(robin), p95(gateway)) {
        (Some(robin), Some(gateway)) => between(robin, gateway),
        _ => "Too few requests were answered to compare the two policies.".to_owned(),
    }
}

fn between(robin: &Reading, gateway: &Reading) -> String {
    let value = |reading: &Reading| reading.seen().map_or(f64::INFINITY, |seen| seen.value);
    let (slow, fast) = (value(robin), value(gateway));
    let (by_robin, by_gateway) = (words::time(slow), words::time(fast));
    match slow / fast {
        times if times >= 1.1 => format!(
            "One first token in twenty came after {by_robin} by round robin, and after {by_gateway} through the gateway: {} times as long by round robin.",
            figure::number(times)
        ),
        times if times > 1.0 / 1.1 => {
            format!(
                "One first token in twenty came after {by_robin} and {by_gateway}: here the gateway made no difference."
            )
        }
        _ => format!(
            "One first token in twenty came after {by_gateway} through the gateway, and after {by_robin} by round robin: here the gateway was slower."
        ),
    }
}

/// Describes the values that the gateway measured automatically.
fn learnt(gateway: &DemoRoute) -> String {
    let steps: Vec<String> = gateway
        .replicas
        .iter()
        .map(|replica| format!("{} {}", replica.name, words::time(replica.step_s)))
        .collect();
    let ejected = match gateway.ejected {
        true => "A replica that failed or stalled received no requests for a while.",
        false => "No replica was ejected: a slow replica still answers.",
    };
    format!("The gateway measured the time per token ({}) and routed by it. {ejected}", steps.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_way_is_the_one_that_was_better() {
        let way = |p95_s: f64| {
            let seen = plimsoll_measure::findings::Estimate {
                value: p95_s,
                lower: p95_s,
                upper: p95_s,
                n: 480,
                n_eff: 480.0,
            };
            Reading::Estimate(seen)
        };
        let says = |robin: f64, gateway: f64| between(&way(robin), &way(gateway));
        assert!(says(2.0, 0.1).contains("20.0 times as long by round robin"), "{}", says(2.0, 0.1));
        assert!(says(0.1, 0.102).contains("no difference"));
        assert!(says(0.1, 0.3).contains("was slower"));
    }
}
