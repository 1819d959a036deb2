//! Tail sampling against a reference that keeps everything: unbiased sums, the volume bound, and complete strata
//! below their limit.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::sampling::{EndedTrace, KeptTrace, SamplingSpec, TailSampler, TraceStratum};

/// The reference record of a trace: its time in ms, and whether it failed.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Twin {
    ms: f64,
    failed: bool,
}

/// Traffic with a rate and a duration. From `incident` on the rate is tenfold, and a fifth of the requests fail.
struct Traffic {
    per_s: i64,
    seconds: i64,
    incident: i64,
}

impl Traffic {
    fn run(&self, seed: u64, mut each: impl FnMut(EndedTrace<Twin>)) {
        let mut chance = Stream::new(seed, "tail sampling", 0);
        for second in 0..self.seconds {
            let hot = second >= self.incident;
            let count = if hot { self.per_s * 10 } else { self.per_s };
            for n in 0..count {
                let ms = 100.0 * (-chance.uniform().ln()).sqrt() * if hot { 2.0 } else { 1.0 };
                let failed = chance.uniform() < if hot { 0.2 } else { 0.01 };
                let at = At(second * 1_000_000_000 + n * 1_000_000_000 / count);
                each(EndedTrace {
                    at,
                    kind: 1,
                    took: [None, Some(Span((ms * 1e6) as i64))],
                    failed,
                    randomness: chance.next_u64() >> 8,
                    spans: Twin { ms, failed },
                });
            }
        }
    }
}

/// Returns the weighted and the reference sums (count, failures, times above 250 ms, total time), and the kept
/// traces.
fn sums(traffic: &Traffic, spec: &SamplingSpec, seed: u64) -> ([f64; 4], [f64; 4], Vec<KeptTrace<Twin>>) {
    let (mut sampler, mut kept, mut truth) = (TailSampler::new(spec), Vec::new(), [0.0; 4]);
    let of =
        |twin: &Twin| [1.0, f64::from(u8::from(twin.failed)), f64::from(u8::from(twin.ms > 250.0)), twin.ms];
    traffic.run(seed, |ended| {
        truth.iter_mut().zip(of(&ended.spans)).for_each(|(sum, one)| *sum += one);
        kept.extend(sampler.push(ended));
    });
    kept.extend(sampler.turn(At(i64::MAX)));
    let mut estimate = [0.0; 4];
    for one in &kept {
        estimate.iter_mut().zip(of(&one.spans)).for_each(|(sum, x)| *sum += one.weight * x);
    }
    (estimate, truth, kept)
}

/// Horvitz–Thompson sums over the kept traces are unbiased in calm and in a storm. Over sixty seeds, the mean error
/// is within three standard errors.
#[test]
fn weighted_sums_are_those_of_all() {
    let traffic = Traffic { per_s: 200, seconds: 40, incident: 30 };
    let spec = SamplingSpec { share: 0.05, failed_per_s: 20, slow_per_s: 10, rest_per_s: 8 };
    let runs: Vec<_> = (0..60).map(|seed| sums(&traffic, &spec, seed)).collect();
    for figure in 0..4 {
        let errors: Vec<f64> =
            runs.iter().map(|(estimate, truth, _)| estimate[figure] / truth[figure] - 1.0).collect();
        let n = errors.len() as f64;
        let mean = errors.iter().sum::<f64>() / n;
        let deviation = (errors.iter().map(|e| (e - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        assert!(
            mean.abs() <= 3.0 * deviation / n.sqrt(),
            "figure {figure}: {mean} ± {}",
            deviation / n.sqrt()
        );
        assert!(deviation < 0.5, "figure {figure}: {deviation}");
    }
}

/// The limit holds in every second; in calm seconds, all failures are kept.
#[test]
fn the_bound_holds_in_a_storm_and_calm_keeps_all_that_failed() {
    let spec = SamplingSpec { share: 0.02, failed_per_s: 20, slow_per_s: 10, rest_per_s: 5 };
    let mut sampler = TailSampler::new(&spec);
    let (mut kept, mut failed, mut calm) = (Vec::new(), 0, 0);
    Traffic { per_s: 300, seconds: 60, incident: 40 }.run(7, |ended| {
        let (second, is_failed) = (ended.at.0 / 1_000_000_000, ended.failed);
        failed += u64::from(is_failed && second < 40);
        let one = sampler.push(ended);
        for stratum in [(TraceStratum::Failed, 20), (TraceStratum::Slow, 10), (TraceStratum::Rest, 5)] {
            let count = one.iter().filter(|kept| kept.stratum == stratum.0).count();
            assert!(count <= stratum.1, "second {second}: {count} {stratum:?}");
        }
        if second <= 40 {
            calm += one.iter().filter(|kept| kept.stratum == TraceStratum::Failed).count() as u64;
            assert!(
                one.iter().filter(|kept| kept.stratum == TraceStratum::Failed).all(|kept| kept.weight == 1.0)
            );
        }
        kept.extend(one);
    });
    assert_eq!(calm, failed, "all that failed in calm");
    let slow: Vec<&KeptTrace<Twin>> = kept.iter().filter(|one| one.stratum == TraceStratum::Slow).collect();
    // The 99th percentile of 100·√Exp(1) is 100·√ln 100 = 215 ms; buckets are 2 % wide.
    assert!(slow.len() > 100 && slow.iter().all(|one| one.spans.ms > 200.0), "{}", slow.len());
    assert!(kept.iter().any(|one| one.stratum == TraceStratum::Rest && one.weight >= 50.0));
}

/// A share of 0 keeps no trace of the rest, and equal trace ids cannot exceed the limit.
#[test]
fn hostile_randomness_keeps_the_bound() {
    let spec = SamplingSpec { share: 1.0, failed_per_s: 3, slow_per_s: 3, rest_per_s: 3 };
    for randomness in [0, u64::MAX, (1 << 56) - 1, 77] {
        let mut sampler = TailSampler::new(&spec);
        for n in 0..1_000 {
            let ended = EndedTrace {
                at: At(n),
                kind: n as u64,
                took: [Some(Span(1)), None],
                failed: false,
                randomness,
                spans: n,
            };
            assert_eq!(sampler.push(ended), []);
        }
        let kept = sampler.turn(At(2_000_000_000));
        assert!(kept.len() <= 3, "{} of {randomness}", kept.len());
        assert!(kept.iter().all(|one| one.weight.is_finite()));
    }
    let none = SamplingSpec { share: 0.0, ..spec };
    let (_, _, kept) = sums(&Traffic { per_s: 50, seconds: 5, incident: 9 }, &none, 1);
    assert!(kept.iter().all(|one| one.stratum != TraceStratum::Rest));
}

/// Requests without a first-token time are compared with the last hour too, not with the entire past.
#[test]
fn the_past_is_an_hour_also_without_first_tokens() {
    let spec = SamplingSpec { share: 0.0, failed_per_s: 0, slow_per_s: 1, rest_per_s: 0 };
    let mut sampler = TailSampler::new(&spec);
    let mut push = |second: i64, ms: i64| {
        let took = [None, Some(Span(ms * 1_000_000))];
        let at = At(second * 1_000_000_000);
        sampler.push(EndedTrace { at, kind: 1, took, failed: false, randomness: 1, spans: second });
        sampler.counted()[TraceStratum::Slow as usize].1
    };
    for second in 0..3_600 {
        push(second, 300 + second % 50);
    }
    let before = push(3_600, 250);
    // Responses now take a third of the time; after an hour, no slower ones are remembered.
    assert_eq!(push(3_601, 250), before);
    for second in 3_602..7_800 {
        push(second, 100 + second % 50);
    }
    let before = push(7_800, 120);
    assert_eq!(push(7_801, 250), before + 1);
}
