//! Compares every arrival process with theory: gap distribution (Kolmogorov–Smirnov), dispersion index, mean count.

use plimsoll_math::distance::{ks_p_value, ks_to_law};
use plimsoll_math::special::gamma_inc_pair;
use plimsoll_model::Span;
use plimsoll_workload::{ArrivalSpec, Scenario, Schedule};

fn times(spec: ArrivalSpec, rate: f64, window_s: f64, seed: u64) -> Vec<f64> {
    let scenario = Scenario { arrivals: spec, seed, ..Scenario::default() };
    let schedule = Schedule::generate(&scenario, rate, Span::from_secs_f64(window_s), 0).unwrap();
    schedule.arrivals.iter().map(|a| a.due.as_secs_f64()).collect()
}

fn gaps(times: &[f64]) -> Vec<f64> {
    times.windows(2).map(|w| w[1] - w[0]).collect()
}

/// Returns the p-value of the hypothesis that the values follow the distribution.
fn ks(values: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    ks_p_value(ks_to_law(&sorted, cdf), sorted.len() as f64)
}

/// Returns variance / mean of the counts in windows of `width` seconds.
fn dispersion(times: &[f64], window_s: f64, width: f64) -> f64 {
    let mut counts = vec![0.0; (window_s / width) as usize];
    for t in times {
        if let Some(count) = counts.get_mut((t / width) as usize) {
            *count += 1.0;
        }
    }
    let n = counts.len() as f64;
    let mean = counts.iter().sum::<f64>() / n;
    counts.iter().map(|c| (c - mean) * (c - mean)).sum::<f64>() / (n - 1.0) / mean
}

fn cv(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / (n - 1.0)).sqrt() / mean
}

fn near(what: &str, value: f64, truth: f64, tolerance: f64) {
    assert!((value - truth).abs() <= tolerance, "{what}: {value} is not {truth} ± {tolerance}");
}

#[test]
fn constant_gaps_are_equal_and_do_not_drift() {
    let t = times(ArrivalSpec::Constant, 7.0, 10_000.0, 1);
    assert_eq!(t.len(), 70_000);
    for (i, at) in t.iter().enumerate() {
        near("due", at - t[0], i as f64 / 7.0, 2e-9);
    }
}

#[test]
fn poisson_has_exponential_gaps_and_dispersion_one() {
    let t = times(ArrivalSpec::Poisson, 20.0, 2_000.0, 2);
    near("count", t.len() as f64, 40_000.0, 4.0 * 200.0);
    assert!(ks(&gaps(&t), |x| 1.0 - (-20.0 * x).exp()) > 0.001);
    // The estimate's standard deviation is √(2/(m − 1)) for m windows.
    near("IDC(1 s)", dispersion(&t, 2_000.0, 1.0), 1.0, 4.0 * (2.0f64 / 1_999.0).sqrt());
    near("IDC(20 s)", dispersion(&t, 2_000.0, 20.0), 1.0, 4.0 * (2.0f64 / 99.0).sqrt());
}

#[test]
fn gamma_gaps_have_their_law_and_burstiness() {
    for wanted in [0.5, 3.0] {
        let t = times(ArrivalSpec::Gamma { cv: wanted }, 20.0, 4_000.0, 3);
        let shape = 1.0 / (wanted * wanted);
        let law = |x: f64| gamma_inc_pair(shape, x * 20.0 * shape).0;
        // At CV 3 a tenth of the gaps are under a nanosecond, the unit of due times. The test uses the distribution above a
        // microsecond, and the share below it.
        let (low, all) = (1e-6, gaps(&t));
        let above: Vec<f64> = all.iter().copied().filter(|g| *g > low).collect();
        let share = law(low);
        assert!(ks(&above, |x| (law(x) - share) / (1.0 - share)) > 0.001, "cv {wanted}");
        let n = all.len() as f64;
        let error = (share * (1.0 - share) / n).sqrt() + 1.0 / n;
        near("short gaps", 1.0 - above.len() as f64 / n, share, 4.0 * error);
        near("cv", cv(&gaps(&t)), wanted, 0.06 * wanted);
        // A renewal process' dispersion tends to cv² in windows of many gaps.
        let idc = dispersion(&t, 4_000.0, 20.0);
        near("IDC(20 s)", idc, wanted * wanted, 0.35 * wanted * wanted);
    }
}

#[test]
fn weibull_gaps_have_their_law() {
    // Shape 0.5 has mean 2·scale and CV √5: Γ(3) = 2, Γ(5) = 24.
    let wanted = 5.0f64.sqrt();
    let t = times(ArrivalSpec::Weibull { cv: wanted }, 20.0, 3_000.0, 4);
    let scale = 0.05 / 2.0;
    assert!(ks(&gaps(&t), |x| 1.0 - (-(x / scale).sqrt()).exp()) > 0.001);
    near("cv", cv(&gaps(&t)), wanted, 0.1 * wanted);
}

#[test]
fn renewal_processes_start_in_equilibrium() {
    // With an ordinary first gap, a CV-3 process would count (9 − 1)/2 = 4 arrivals too many in a long window.
    for spec in [ArrivalSpec::Gamma { cv: 3.0 }, ArrivalSpec::Weibull { cv: 3.0 }, ArrivalSpec::Constant] {
        let counts: Vec<f64> =
            (0..3_000).map(|seed| times(spec.clone(), 10.0, 1.05, seed).len() as f64).collect();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let error = cv(&counts) * mean / (counts.len() as f64).sqrt();
        near(&format!("{spec:?}"), mean, 10.5, 4.0 * error);
    }
}

#[test]
fn bursts_have_the_dispersion_of_an_mmpp2() {
    let (on, off, floor, rate, window) = (2.0, 6.0, 0.1, 40.0, 40_000.0);
    let spec = ArrivalSpec::OnOff { on: Span::from_secs(2), off: Span::from_secs(6), floor };
    let t = times(spec, rate, window, 5);
    // Fischer and Meier-Hellstern, "The MMPP cookbook", 1993: IDC(t) of the stationary process.
    let high = rate * (on + off) / (on + off * floor);
    let (l1, l2, s1, s2) = (high, high * floor, 1.0 / on, 1.0 / off);
    let s = s1 + s2;
    let limit = 2.0 * s1 * s2 * (l1 - l2) * (l1 - l2) / (s * s * (l1 * s2 + l2 * s1));
    for width in [0.5, 2.0, 10.0] {
        let truth = 1.0 + limit * (1.0 - (1.0 - (-s * width).exp()) / (s * width));
        near(&format!("IDC({width} s)"), dispersion(&t, window, width), truth, 0.08 * truth);
    }
    near("rate", t.len() as f64 / window, rate, 0.05 * rate);
}

#[test]
fn ramp_follows_its_line() {
    // Rate ∝ 1 + 3x: cumulated share (x + 1.5 x²)/2.5.
    let t = times(ArrivalSpec::Ramp { from: 1.0, to: 4.0, cv: 1.0 }, 30.0, 1_000.0, 6);
    let shares: Vec<f64> = t.iter().map(|t| t / 1_000.0).collect();
    assert!(ks(&shares, |x| (x + 1.5 * x * x) / 2.5) > 0.001);
    near("count", t.len() as f64, 30_000.0, 4.0 * 173.0);
    // Without randomness the n-th arrival is exactly at the n-th unit of area.
    let t = times(ArrivalSpec::Ramp { from: 0.0, to: 1.0, cv: 0.0 }, 30.0, 1_000.0, 6);
    let u0 = (t[0] / 1_000.0).powi(2) * 30_000.0;
    for (i, at) in t.iter().enumerate().step_by(997) {
        near("due", *at, ((u0 + i as f64) / 30_000.0).sqrt() * 1_000.0, 1e-6);
    }
}

#[test]
fn steps_and_spikes_have_their_heights() {
    let t = times(ArrivalSpec::Step { heights: vec![1.0, 0.0, 3.0], cv: 1.0 }, 40.0, 900.0, 7);
    let within = |low: f64, high: f64| t.iter().filter(|t| (low..high).contains(*t)).count() as f64;
    near("first", within(0.0, 300.0), 9_000.0, 4.0 * 95.0);
    assert_eq!(within(300.0, 600.0), 0.0);
    near("third", within(600.0, 900.0), 27_000.0, 4.0 * 165.0);

    let t = times(ArrivalSpec::Spike { height: 11.0, at: 0.5, share: 0.1, cv: 1.0 }, 40.0, 1_000.0, 8);
    let within = |low: f64, high: f64| t.iter().filter(|t| (low..high).contains(*t)).count() as f64;
    // Mean height 2: the spike is 5.5 × the mean, the rest half of it.
    near("spike", within(500.0, 600.0), 22_000.0, 4.0 * 149.0);
    near("rest", within(0.0, 500.0), 10_000.0, 4.0 * 100.0);
}

#[test]
fn diurnal_is_a_sine() {
    let spec = ArrivalSpec::Diurnal { peak_to_trough: 3.0, period: None, phase: 0.0, cv: 1.0 };
    let t = times(spec, 30.0, 1_000.0, 9);
    let tau = std::f64::consts::TAU;
    // 1 + ½ sin: cumulated share x + (1 − cos τx)/(2τ).
    let shares: Vec<f64> = t.iter().map(|t| t / 1_000.0).collect();
    assert!(ks(&shares, |x| x + (1.0 - (tau * x).cos()) / (2.0 * tau)) > 0.001);
}

#[test]
fn no_gap_is_used_twice() {
    let mut g: Vec<i64> = {
        let scenario = Scenario { seed: 11, ..Scenario::default() };
        let s = Schedule::generate(&scenario, 1_000.0, Span::from_secs(20), 0).unwrap();
        s.arrivals.windows(2).map(|w| (w[1].due - w[0].due).0).collect()
    };
    let n = g.len();
    g.sort_unstable();
    g.dedup();
    assert!(g.len() as f64 > 0.98 * n as f64, "{} distinct gaps of {n}", g.len());
}
