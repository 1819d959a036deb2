//! Traces out of spans that come in any order: each is decided once, sums are those of a twin that keeps everything, and what is held is bounded in a storm.

use std::collections::HashMap;

use plimsoll_math::rng::Stream;
use plimsoll_model::At;
use plimsoll_policy::sampling::{SamplingSpec, Stratum};
use plimsoll_policy::tail::{TailSpan, TailSpec, TailStage};

const S: i64 = 1_000_000_000;

/// A span of 100 bytes that took so long.
fn span(trace: u128, is_root: bool, ms: f64, failed: bool) -> TailSpan<(u128, f64)> {
    TailSpan {
        trace,
        is_root,
        kind: 1,
        start_ns: 0,
        end_ns: (ms * 1e6) as i64,
        first_token: None,
        failed,
        randomness: None,
        weight: 1.0,
        bytes: 100,
        payload: (trace, ms),
    }
}

type Stage = TailStage<(u128, f64)>;

fn stage(keep: &SamplingSpec, most_bytes: usize) -> Stage {
    TailStage::new(&TailSpec { keep: *keep, most_bytes, ..TailSpec::default() })
}

fn all() -> SamplingSpec {
    SamplingSpec { share: 1.0, failed_per_s: 1000, slow_per_s: 1000, rest_per_s: 1000 }
}

fn none() -> SamplingSpec {
    SamplingSpec { share: 0.0, failed_per_s: 1000, slow_per_s: 1000, rest_per_s: 0 }
}

#[test]
fn a_trace_that_comes_in_pieces_is_decided_once() {
    for (spec, kept) in [(all(), true), (none(), false)] {
        let mut stage = stage(&spec, 1 << 20);
        assert!(stage.take([span(7, false, 1.0, false)], At(0)).is_empty());
        assert!(stage.take([span(7, true, 9.0, false)], At(S)).is_empty());
        // Its root came a second ago: what comes before it is decided belongs to it.
        let decided = At(S) + TailSpec::default().wait;
        assert!(stage.take([span(7, false, 2.0, false)], At(decided.0 - 1)).is_empty());
        assert!(stage.tick(decided).is_empty(), "the second in which it is decided goes on");
        // And so does what comes within that second.
        assert!(stage.take([span(7, false, 3.0, true)], At(decided.0 + 1)).is_empty());
        let out = stage.tick(At(decided.0 + S));
        assert_eq!(out.len(), if kept { 4 } else { 0 });
        assert!(out.iter().all(|(_, weight)| (*weight - 1.0).abs() < 1e-12));
        // What comes late shares its fate, though it failed.
        let late = stage.take([span(7, false, 4.0, true)], At(decided.0 + 50 * S));
        assert_eq!(late.len(), usize::from(kept));
        let counts = stage.counts();
        let [took, left] = if kept { [5, 0] } else { [0, 5] };
        assert_eq!((counts.came, counts.kept, counts.dropped, counts.late), (5, took, left, 2));
        assert_eq!(stage.open_now(), (0, 0));
    }
}

#[test]
fn one_without_a_root_waits_no_longer_than_is_said() {
    let mut stage = stage(&all(), 1 << 20);
    let longest = TailSpec::default().longest().0;
    stage.take([span(1, false, 5.0, false)], At(0));
    assert!(stage.tick(At(longest - 1)).is_empty());
    stage.tick(At(longest));
    assert_eq!(stage.tick(At(longest + S)).len(), 1);
    assert_eq!(stage.counts().rootless_traces, 1);
}

#[test]
fn a_trace_that_was_sampled_before_stands_for_the_larger_weight() {
    let mut stage = stage(&all(), 1 << 20);
    let before = TailSpan { weight: 8.0, ..span(u128::from(u64::MAX), false, 1.0, false) };
    let root = span(u128::from(u64::MAX), true, 1.0, false);
    stage.take([root, before], At(0));
    let out = stage.end(At(S));
    assert!(out.len() == 2 && out.iter().all(|(_, weight)| *weight == 8.0), "{out:?}");
}

/// Traces of three spans each, at this rate, of which the root comes last; from `storm` on twenty times as many.
struct Traffic {
    per_s: i64,
    seconds: i64,
    storm: i64,
}

/// What is summed over traces: their number, those that failed, their times.
type Sums = [f64; 3];

/// Sums over what was kept and over everything; most traces kept in a second, and most bytes open.
fn run(traffic: &Traffic, spec: &SamplingSpec, most_bytes: usize, seed: u64) -> (Sums, Sums, usize, usize) {
    let mut chance = Stream::new(seed, "tail stage", 0);
    let mut stage = stage(spec, most_bytes);
    let (mut truth, mut kept, mut most, mut bytes) = ([0.0; 3], [0.0; 3], 0, 0);
    let mut facts: HashMap<u128, Sums> = HashMap::new();
    let mut sum = |out: Vec<((u128, f64), f64)>, facts: &HashMap<u128, Sums>| -> usize {
        let mut weights: HashMap<u128, f64> = HashMap::new();
        for ((trace, _), weight) in out {
            assert_eq!(*weights.entry(trace).or_insert(weight), weight, "one weight a trace");
        }
        let count = weights.len();
        for (trace, weight) in weights {
            kept.iter_mut().zip(facts[&trace]).for_each(|(sum, x)| *sum += weight * x);
        }
        count
    };
    for second in 0..traffic.seconds {
        let count = if second >= traffic.storm { 20 * traffic.per_s } else { traffic.per_s };
        for n in 0..count {
            let now = At(second * S + n * S / count);
            let trace = u128::from(chance.next_u64()) << 64 | u128::from(chance.next_u64());
            let ms = 100.0 * (-chance.uniform().ln()).sqrt();
            let failed = chance.uniform() < 0.02;
            let fact = [1.0, f64::from(u8::from(failed)), ms];
            facts.insert(trace, fact);
            truth.iter_mut().zip(fact).for_each(|(sum, x)| *sum += x);
            let spans = [
                span(trace, false, ms / 2.0, failed),
                span(trace, false, ms / 3.0, false),
                span(trace, true, ms, false),
            ];
            most = most.max(sum(stage.take(spans, now), &facts));
            bytes = bytes.max(stage.open_now().1);
        }
    }
    let end = At(traffic.seconds * S);
    sum(stage.end(end), &facts);
    let counts = stage.counts();
    assert_eq!(counts.came, counts.kept + counts.dropped + counts.over_bound, "every span is accounted for");
    assert_eq!(stage.counted().iter().map(|of| of.1).sum::<u64>(), facts.len() as u64);
    (kept, truth, most, bytes)
}

/// Horvitz–Thompson sums over what was kept are those of the twin, in calm and in a storm that memory has no room for: over forty seeds the mean
/// error lies within three of its standard errors.
#[test]
fn weighted_sums_are_those_of_a_twin_that_keeps_all() {
    let traffic = Traffic { per_s: 40, seconds: 24, storm: 18 };
    let spec = SamplingSpec { share: 0.2, failed_per_s: 5, slow_per_s: 5, rest_per_s: 10 };
    let runs: Vec<_> = (0..40).map(|seed| run(&traffic, &spec, 400_000, seed)).collect();
    for figure in 0..3 {
        let errors: Vec<f64> =
            runs.iter().map(|(kept, truth, ..)| kept[figure] / truth[figure] - 1.0).collect();
        let n = errors.len() as f64;
        let mean = errors.iter().sum::<f64>() / n;
        let deviation = (errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let error = deviation / n.sqrt();
        assert!(mean.abs() <= 3.0 * error, "figure {figure}: {mean} ± {error}");
        assert!(deviation < 0.5, "figure {figure}: {deviation}");
    }
    // The bound of memory is a span's bytes from being exact, and of traces a second it is what was asked for.
    for (_, _, most, bytes) in runs {
        assert!(most <= 5 + 5 + 10 && bytes <= 400_000, "{most} {bytes}");
    }
}

/// One trace that does not end, or a second that keeps more than there is room for: what is held stays within the bound, and what went is counted.
#[test]
fn what_has_no_room_is_counted() {
    let mut stage = stage(&all(), 10_000);
    // Twenty traces of four spans are decided early, one after the other, and all wait for their second to be over.
    for trace in 1..=20 {
        stage.take((0..4).map(|n| span(trace, n == 0, 1.0, true)), At(0));
        assert!(stage.open_now().1 <= 10_000);
    }
    // 256 bytes of books a trace, and room for one more is left free.
    let counts = stage.counts();
    assert_eq!((counts.came, counts.kept, counts.dropped), (80, 0, 0));
    assert!(counts.early_traces >= 14 && counts.over_bound > 10, "{counts:?}");
    assert_eq!(stage.held() + counts.over_bound, 80);
    let out = stage.end(At(S));
    assert_eq!(out.len() as u64 + counts.over_bound, 80);
    assert_eq!((stage.open_now(), stage.held()), ((0, 0), 0));
    // One trace of a thousand spans.
    stage.take((0..1000).map(|_| span(99, false, 1.0, false)), At(3 * S));
    assert!(stage.open_now().1 <= 10_000);
    assert_eq!(stage.counts().over_bound - counts.over_bound + stage.held(), 1000);
}

/// What is certain not to be kept is let go at once, and late spans of it too.
#[test]
fn what_falls_out_takes_no_room() {
    let one = SamplingSpec { share: 1.0, failed_per_s: 1, slow_per_s: 1, rest_per_s: 1 };
    let mut stage = stage(&one, 1 << 20);
    let of = |trace: u128| [span(trace, true, 1.0, false)];
    (1..=50).for_each(|trace| drop(stage.take(of(trace), At(0))));
    let decided = At(0) + TailSpec::default().wait;
    assert!(stage.tick(decided).is_empty());
    // The one that is kept, and the one by which its weight is known.
    assert_eq!(stage.open_now(), (2, 2 * (256 + 100)));
    assert!(stage.take(of(7), decided).is_empty());
    assert_eq!((stage.counts().dropped, stage.counts().late), (49, 1));
    let out = stage.tick(At(decided.0 + S));
    assert_eq!(out.iter().map(|((trace, _), _)| *trace).collect::<Vec<_>>(), [50]);
    assert_eq!((stage.counts().dropped, stage.open_now()), (50, (0, 0)));
}

/// A trace may say what is drawn for it; then its id has no part in it.
#[test]
fn what_a_trace_says_is_drawn_decides() {
    let half = SamplingSpec { share: 0.5, ..all() };
    for (said, kept) in [(Some(1), 0), (Some((1 << 56) - 1), 2), (None, 2)] {
        let mut stage = stage(&half, 1 << 20);
        let root = TailSpan { randomness: said, ..span(u128::from(u64::MAX), true, 1.0, false) };
        stage.take([span(u128::from(u64::MAX), false, 1.0, false), root], At(0));
        let out = stage.end(At(S));
        assert_eq!(out.len(), kept);
        assert!(out.iter().all(|(_, weight)| *weight == 2.0));
    }
}

#[test]
fn errors_come_before_the_rest() {
    let mut stage = stage(&none(), 1 << 20);
    stage.take((0..100).map(|n| span(n + 1, true, 1.0, n % 10 == 0)), At(0));
    assert_eq!(stage.end(At(S)).len(), 10);
    assert_eq!(
        stage.counted().map(|(stratum, came, kept)| (stratum, came, kept)),
        [(Stratum::Failed, 10, 10), (Stratum::Slow, 0, 0), (Stratum::Rest, 90, 0),]
    );
}
