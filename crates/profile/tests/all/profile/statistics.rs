//! Percentiles, tails, ceilings, slices and changes over many requests, compared with their generators.

use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_measure::budget::{Amount, PercentileLevel, StageBudget};
use plimsoll_measure::findings::{Held, Reading};
use plimsoll_profile::Stage::*;
use plimsoll_profile::{
    ModelFloor, ProfileFinding, ProfileSpec, ProfiledLatency, ProfiledRequest, Requests, Stage, TailReason,
    judge,
};

use super::{BASE, MS};

/// Returns requests ten ms apart with these stages, ms.
fn made(n: u64, mut stages: impl FnMut(u64) -> Vec<(Stage, f64)>) -> Requests {
    let one = |i: u64| {
        let mut times = [0i64; Stage::COUNT];
        for (stage, ms) in stages(i) {
            times[stage.index()] += (ms * MS as f64) as i64;
        }
        ProfiledRequest {
            start: BASE + 10 * MS * i as i64,
            trace: u128::from(i),
            weight: 1.0,
            e2e: times.iter().sum(),
            ttft: None,
            e2e_stages: times,
            ttft_stages: [0; Stage::COUNT],
            faster: Vec::new(),
        }
    };
    Requests { list: (0..n).map(one).collect(), ..Requests::default() }
}

fn profiled(requests: &Requests) -> ProfileFinding {
    judge(requests, &ProfileSpec::default())
}

#[test]
fn the_parts_of_the_tail_add_up_and_name_what_is_slow() {
    let mut stream = Stream::new(3, "tails", 0);
    let requests = made(5000, |i| {
        let queue = if i % 100 == 37 { 400.0 + exponential(&mut stream, 50.0) } else { 5.0 };
        vec![(Queue, queue), (Prefill, 20.0), (Decode, 100.0 + exponential(&mut stream, 10.0))]
    });
    let finding = profiled(&requests);
    let path = finding.path(ProfiledLatency::E2e).expect("requests");
    let TailReason::Attributed(tail) = &path.tail else { panic!("{:?}", path.tail) };
    assert_eq!((tail.slowest, tail.tail_requests), (0.01, 50));
    let sum: f64 = tail.parts.iter().map(|part| part.gap.value).sum();
    assert!((sum - tail.gap.value).abs() < 1e-12, "{sum} {}", tail.gap.value);
    assert!((tail.parts.iter().map(|part| part.share).sum::<f64>() - 1.0).abs() < 1e-12);
    assert_eq!(tail.parts[0].stage, Queue);
    let queue = &tail.parts[0].gap;
    assert!(
        queue.lower > 0.39 && queue.upper < 0.5 && queue.lower <= queue.value && queue.value <= queue.upper,
        "{queue:?}"
    );
    // A stage that is always long does not explain the tail.
    let prefill = tail.parts.iter().find(|part| part.stage == Prefill).expect("a part");
    assert_eq!(prefill.gap.value, 0.0);
    let shares: f64 = path.stages.iter().map(|stage| stage.of_mean).sum();
    assert!((shares - 1.0).abs() < 1e-12);
}

#[test]
fn a_tail_adapts_to_the_requests_there_are_and_is_refused_below() {
    let told = |n: u64| {
        let mut stream = Stream::new(4, "small", n);
        let finding = profiled(&made(n, |_| vec![(Decode, exponential(&mut stream, 10.0))]));
        match &finding.path(ProfiledLatency::E2e).expect("requests").tail {
            TailReason::Attributed(tail) => Ok(tail.slowest),
            TailReason::Refused { why } => Err(why.clone()),
        }
    };
    assert_eq!(told(2000), Ok(0.01));
    assert_eq!(told(1999), Ok(0.05));
    assert_eq!(told(200), Ok(0.10));
    assert_eq!(
        told(199),
        Err("a tail needs 200 requests (20 in the slowest tenth), there are 199".to_owned())
    );
    assert_eq!(told(3), Err("needs 16 requests, has 3".to_owned()));
}

#[test]
fn sampled_traces_are_weighted_back() {
    // As with a tail sampler: fast requests are kept one in twenty, slow ones always.
    let mut stream = Stream::new(5, "sampler", 0);
    let all = made(20_000, |_| {
        vec![(Decode, 50.0 + exponential(&mut stream, 40.0)), (Queue, exponential(&mut stream, 10.0))]
    });
    let mut kept = all.clone();
    kept.list.retain_mut(|request| {
        if request.e2e > 200 * MS {
            return true;
        }
        request.weight = 20.0;
        stream.chance(0.05)
    });
    assert!(kept.list.len() < 2500, "{}", kept.list.len());
    let (truth, sampled) = (profiled(&all), profiled(&kept));
    let (truth, sampled) =
        (truth.path(ProfiledLatency::E2e).expect("all"), sampled.path(ProfiledLatency::E2e).expect("kept"));
    for ((p, a), (_, b)) in truth.times.rows().into_iter().zip(sampled.times.rows()) {
        let (a, b) = (a.value().expect("shown"), b.estimate().expect("shown"));
        assert!((b.value / a - 1.0).abs() < 0.03, "p{p}: {b:?} for {a}");
        // Four intervals at 95 %: twice the width nearly always contains the true value.
        assert!((b.value - a).abs() < b.upper - b.lower, "p{p}: {b:?} for {a}");
    }
    assert!((sampled.times.mean_s / truth.times.mean_s - 1.0).abs() < 0.03);
    // The tail, which was kept completely, has more information than about a thousand requests would have.
    let worth = sampled.times.p99.estimate().expect("shown").n_eff;
    assert!(worth > 5000.0, "{worth}");
    // Without weights the slow requests would be a fifth of all.
    let naive = made_equal(&kept);
    assert!(
        profiled(&naive).path(ProfiledLatency::E2e).expect("kept").times.p50.value().expect("shown")
            > 1.1 * truth.times.p50.value().expect("shown")
    );
}

fn made_equal(requests: &Requests) -> Requests {
    let mut equal = requests.clone();
    equal.list.iter_mut().for_each(|request| request.weight = 1.0);
    equal
}

#[test]
fn slices_are_judged_as_the_gate_judges() {
    let mut stream = Stream::new(6, "slices", 0);
    let requests = made(4000, |_| {
        vec![(Prefill, exponential(&mut stream, 10.0)), (Decode, exponential(&mut stream, 10.0))]
    });
    // p95 of an exponential of 10 ms is 30 ms.
    let budget = StageBudget {
        total: Amount::seconds(1.0),
        p: PercentileLevel(0.95),
        margin: None,
        slices: [("prefill", 0.060), ("decode", 0.020), ("lunch", 0.1)]
            .into_iter()
            .map(|(name, s)| (name.to_owned(), Amount::seconds(s)))
            .collect(),
    };
    let finding = judge(&requests, &ProfileSpec { budget: Some((&budget, 0.05)), ..ProfileSpec::default() });
    let of = |name: &str| finding.slices.iter().find(|slice| slice.name == name).expect("a row");
    assert_eq!(of("prefill").verdict, Held::Pass);
    assert_eq!(of("decode").verdict, Held::Fail);
    // P(over 20 ms) = e^−2, and the time over it is 10 e^−2 of 20 ms.
    let over = of("decode").requests_over.expect("counted");
    assert!((over.value - 0.1353).abs() < 0.02 && over.lower < 0.1353 && over.upper > 0.1353, "{over:?}");
    assert!((of("decode").time_over - 0.1353 / 2.0).abs() < 0.01, "{}", of("decode").time_over);
    assert!((of("decode").used - 0.5).abs() < 0.03);
    assert_eq!((of("lunch").stage, of("lunch").verdict), (None, Held::Inconclusive));
}

#[test]
fn a_change_names_the_stage_that_moved_the_tail() {
    let arm = |seed: u64, slow: f64| {
        let mut stream = Stream::new(seed, "arm", 0);
        made(3000, |_| {
            let queue = if stream.chance(0.03) { slow } else { 5.0 };
            vec![(Queue, queue), (Decode, 100.0 + exponential(&mut stream, 20.0))]
        })
    };
    let (base, candidate) = (arm(1, 300.0), arm(2, 500.0));
    let finding = judge(&candidate, &ProfileSpec { baseline: Some(&base), ..ProfileSpec::default() });
    let change = &finding.changes[0];
    for (whole, parts) in [
        (change.tail.value, change.parts.iter().map(|part| part.tail.value).sum::<f64>()),
        (change.middle.value, change.parts.iter().map(|part| part.middle.value).sum()),
        (change.tail.value - change.middle.value, change.parts.iter().map(|part| part.gap.value).sum()),
    ] {
        assert!((whole - parts).abs() < 1e-12, "{whole} {parts}");
    }
    assert_eq!(change.parts[0].stage, Queue);
    assert!(change.parts[0].tail.lower > 0.19 && change.parts[0].tail.upper < 0.21, "{:?}", change.parts[0]);
    let decode = &change.parts[1];
    assert!(decode.tail.lower < 0.0 && decode.tail.upper > 0.0, "nothing moved there: {decode:?}");
    // Compared with itself, nothing changes.
    let same = judge(&base, &ProfileSpec { baseline: Some(&base), ..ProfileSpec::default() });
    assert!(same.changes[0].parts.iter().all(|part| part.tail.value == 0.0));
}

#[test]
fn floors_are_read_from_other_tools() {
    let requests = made(100, |_| vec![(Prefill, 30.0), (Decode, 70.0), (Compute, 12.0)]);
    let vllm = serde_json::json!({"avg_latency": 0.05, "latencies": [0.04, 0.05, 0.06], "percentiles": {"50": 0.05}});
    let trt =
        serde_json::json!([{"startComputeMs": 1.0, "computeMs": 6.0, "latencyMs": 7.0}, {"computeMs": 6.2}]);
    let floors = [ModelFloor::read(&vllm).expect("vllm"), ModelFloor::read(&trt).expect("trtexec")];
    let finding = judge(&requests, &ProfileSpec { floors: &floors, ..ProfileSpec::default() });
    let ratios: Vec<f64> = finding.floors.iter().filter_map(|floor| floor.ratio).collect();
    assert!((ratios[0] - 2.0).abs() < 1e-9 && (ratios[1] - 2.0).abs() < 1e-9, "{ratios:?}");
    assert!(ModelFloor::read(&serde_json::json!({"x": 1})).is_err());
    assert!(ModelFloor::read(&serde_json::json!([])).is_err());
}

#[test]
fn traces_too_short_for_their_requests_are_refused() {
    // A hundred requests within a second that take ten: their correlation can't be estimated.
    let finding = profiled(&made(100, |_| vec![(Decode, 10_000.0)]));
    let path = finding.path(ProfiledLatency::E2e).expect("requests");
    assert!(
        matches!(&path.times.p50, Reading::Refused { why, .. } if why.starts_with("needs requests over 80 s"))
    );
    assert_eq!(path.times.mean_s, 10.0);
}
