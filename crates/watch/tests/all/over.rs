//! The bracket against the true count: known latencies, seen only through buckets and their sum.

use plimsoll_measure::server_side::Buckets;
use plimsoll_model::At;
use plimsoll_watch::over::{OverCount, over};
use proptest::prelude::*;

/// Returns typical edges in s: vLLM's time to first token and whole response, SGLang's, TGI's (× 1.5), Dynamo's with
/// its 0, an OpenTelemetry SDK's.
fn ladders() -> Vec<Vec<f64>> {
    let vllm = [
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
        40.0, 80.0,
    ];
    let e2e = [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0];
    let sglang = [0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0];
    let dynamo = [0.0, 0.0022, 0.0047, 0.01, 0.022, 0.047, 0.1, 0.22, 0.47, 1.0, 2.2, 4.7, 10.0, 22.0, 48.0];
    let tgi = (0..35).map(|k| 0.00015 * 1.5_f64.powi(k)).collect();
    let exponential = (-40..40).map(|k| 2_f64.powf(f64::from(k) / 4.0)).collect();
    let litellm = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0];
    vec![vllm.to_vec(), e2e.to_vec(), sglang.to_vec(), dynamo.to_vec(), tgi, exponential, litellm.to_vec()]
}

fn seen(edges: &[f64], values: &[f64]) -> Buckets {
    let mut counts = vec![0.0; edges.len() + 1];
    for value in values {
        counts[edges.partition_point(|edge| edge < value)] += 1.0;
    }
    let sum = Some(values.iter().sum());
    Buckets {
        edges: edges.to_vec(),
        counts,
        sum,
        count: Some(values.len() as f64),
        bounds: [None, None],
        resets: 0,
        from: At(0),
        to: At(1),
    }
}

fn truth(values: &[f64], limit: f64) -> u64 {
    values.iter().filter(|value| **value > limit).count() as u64
}

proptest! {
    /// For any edges, latencies and ceiling: the bracket contains the true count, and the sum never widens it.
    #[test]
    fn the_bracket_holds_the_truth(
        ladder in 0usize..7,
        logs in prop::collection::vec(-6.0..3.5f64, 1..40),
        limit in -5.0..3.0f64,
    ) {
        let edges = &ladders()[ladder];
        let values: Vec<f64> = logs.iter().map(|log| log.exp()).collect();
        let (limit, buckets) = (limit.exp(), seen(edges, &values));
        let found = over(&buckets, limit).expect("buckets");
        let over_it = truth(&values, limit);
        prop_assert!(found.n == values.len() as u64);
        prop_assert!(found.least <= over_it && over_it <= found.most, "{found:?} does not hold {over_it}");
        let plain = over(&Buckets { sum: None, ..buckets }, limit).expect("buckets");
        prop_assert!(plain.least <= found.least && found.most <= plain.most);
    }

    /// The smallest and the largest observation narrow the bracket, and it still contains the true count.
    #[test]
    fn bounds_narrow_the_bracket(
        ladder in 0usize..7,
        logs in prop::collection::vec(-6.0..3.5f64, 1..40),
        limit in -5.0..3.0f64,
        has_sum in any::<bool>(),
    ) {
        let values: Vec<f64> = logs.iter().map(|log| log.exp()).collect();
        let limit = limit.exp();
        let mut buckets = seen(&ladders()[ladder], &values);
        buckets.sum = buckets.sum.filter(|_| has_sum);
        let without = over(&buckets, limit).expect("buckets");
        buckets.bounds = [values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max)];
        let found = over(&buckets, limit).expect("buckets");
        let over_it = truth(&values, limit);
        prop_assert!(found.least <= over_it && over_it <= found.most, "{found:?} does not hold {over_it}");
        prop_assert!(without.least <= found.least && found.most <= without.most, "{found:?} {without:?}");
    }

    /// A scrape with one request has its latency in the sum: exact, if it is below the top edge and not equal to the
    /// ceiling.
    #[test]
    fn one_request_between_two_scrapes_is_exact(ladder in 0usize..7, log in -4.0..2.0f64, limit in -4.0..2.0f64) {
        let (value, limit) = (log.exp(), limit.exp());
        prop_assume!((value / limit - 1.0).abs() > 1e-4 && value < 10.0);
        let found = over(&seen(&ladders()[ladder], &[value]), limit).expect("buckets");
        let over_it = truth(&[value], limit);
        prop_assert_eq!(found, OverCount { n: 1, least: over_it, most: over_it });
    }
}

/// A ceiling that is an edge is exact for any number of requests and any spelling of the edge.
#[test]
fn a_ceiling_on_an_edge_is_exact() {
    let values: Vec<f64> = (1..=400).map(|i| f64::from(i) * 0.005).collect();
    for limit in [0.5, 0.500_000_000_01, 0.499_999_999_99] {
        let found = over(&seen(&ladders()[0], &values), limit).expect("buckets");
        assert_eq!((found.least, found.most), (300, 300), "{limit}");
    }
}

/// A sum that these buckets cannot have (an endpoint that changed during the scrape) is not used. Without buckets
/// there is no count; above the last edge it is unknown.
#[test]
fn what_cannot_be_is_not_used() {
    let mut torn = seen(&[1.0, 2.0, 4.0], &[1.5, 1.6, 3.0]);
    torn.sum = Some(100.0);
    assert_eq!(over(&torn, 1.7), Some(OverCount { n: 3, least: 1, most: 3 }));
    torn.sum = Some(f64::NAN);
    assert_eq!(over(&torn, 1.7), Some(OverCount { n: 3, least: 1, most: 3 }));
    assert_eq!(over(&Buckets { edges: Vec::new(), ..torn.clone() }, 1.7), None);
    // A largest observation outside the last non-empty bucket is ignored.
    let lies = Buckets { bounds: [None, Some(0.5)], ..torn.clone() };
    assert_eq!(over(&lies, 1.7), Some(OverCount { n: 3, least: 1, most: 3 }));
    let beyond = seen(&[1.0], &[0.5, 30.0, 2.0]);
    let told = Buckets { sum: None, bounds: [None, Some(4.9)], ..beyond.clone() };
    assert_eq!(over(&told, 5.0), Some(OverCount { n: 3, least: 0, most: 0 }));
    assert_eq!(over(&Buckets { sum: None, ..beyond }, 5.0), Some(OverCount { n: 3, least: 0, most: 2 }));
}
