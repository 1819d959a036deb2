//! Acceptance limits of the comparison in small (`examples/compare.rs` has them in full), on queues of sixteen servers at load 0.8.
//!
//! The reference is the formula, and the evaluation has no access to the seeds.

use plimsoll_math::dist::{lognormal, normal};
use plimsoll_math::rng::Stream;
use plimsoll_math::two_sample::{ArmSample, Flips, exceedance_differences, percentile_ratio};

use plimsoll_lab::arms::{
    BURN, MixedEffect, customers, kolmogorov_smirnov, mann_whitney, mixed, sojourns, steady, truth, units,
    weighed, welch,
};

fn differs(first: &ArmSample, second: &ArmSample, p: f64) -> bool {
    let (flips, differences) = (Flips::new(first.units()), exceedance_differences(first, second, p, 1.0));
    2.0 * flips.greater(&differences).min(flips.less(&differences)) <= 0.05
}

#[test]
fn equal_arms_are_left_alone_and_the_usual_tests_do_not() {
    let (mut alarms, mut naive) = (0, [0; 3]);
    let repetitions = 120;
    for i in 0..repetitions {
        let mut stream = Stream::new(21, "equal", i);
        let (a, b) = (steady(&mut stream, 6_000, 0.8), steady(&mut stream, 6_000, 0.8));
        alarms += u32::from(differs(&units(&a, 20), &units(&b, 20), [0.5, 0.95, 0.99][i as usize % 3]));
        for (n, p) in naive.iter_mut().zip([mann_whitney(&a, &b), kolmogorov_smirnov(&a, &b), welch(&a, &b)])
        {
            *n += u32::from(p <= 0.05);
        }
    }
    // 6 of 120 are expected; 13 or more have a probability of one in a hundred at 5 %. Tests of raw requests alarm at least four
    // times as often.
    assert!(alarms <= 12, "{alarms} of {repetitions}");
    assert!(naive.iter().all(|n| *n >= 30), "{naive:?} of {repetitions}");
}

#[test]
fn another_mix_of_one_target_is_left_alone_at_the_mix_of_the_base() {
    let (mut alarms, mut as_it_came) = (0, 0);
    let repetitions = 120;
    for i in 0..repetitions {
        let mut stream = Stream::new(24, "mixes", i);
        let (a, b) = (mixed(&mut stream, 6_000, 0.8, 0.2), mixed(&mut stream, 6_000, 0.8, 0.6));
        let [first, second, raw] = weighed(&a, &b, 20);
        let p = [0.5, 0.95, 0.99][i as usize % 3];
        alarms += u32::from(differs(&first, &second, p));
        as_it_came += u32::from(differs(&first, &raw, p));
    }
    // As above, 6 of 120 are expected. Before standardisation the runs do differ.
    assert!(alarms <= 12, "{alarms} of {repetitions}");
    assert!(as_it_came >= 80, "{as_it_came} of {repetitions}");
}

#[test]
fn a_better_median_does_not_hide_a_worse_tail() {
    let change = MixedEffect::new((truth(0.8, 0.5), 0.93), (truth(0.8, 0.99), 1.13));
    let (flips, repetitions) = (Flips::new(20), 40);
    let (mut passed, mut worse, mut held) = (0, 0, 0);
    for i in 0..repetitions {
        let mut stream = Stream::new(22, "bent", i);
        let a = steady(&mut stream, 12_000, 0.8);
        let b: Vec<f64> = steady(&mut stream, 12_000, 0.8).into_iter().map(|v| change.apply(v)).collect();
        let ratio = percentile_ratio(&units(&a, 20), &units(&b, 20), 0.99, &flips, 0.95);
        passed += u32::from(ratio.interval.upper < 1.1);
        worse += u32::from(ratio.interval.lower > 1.0);
        held += u32::from(ratio.interval.contains(1.13));
    }
    assert!(
        passed <= 2 && worse >= 32 && held >= 35,
        "passed {passed}, worse {worse}, held {held} of {repetitions}"
    );
}

/// Returns whether service times that are 4 % longer are found at 5 % among n requests per side.
///
/// The work of a request is equal on both sides, and a tenth of its service is independent noise.
fn found(stream: &mut Stream, n: usize, one_schedule: bool) -> bool {
    let load = 0.75;
    let arm = |stream: &mut Stream, (gaps, work): &(Vec<f64>, Vec<f64>), factor: f64| {
        let services: Vec<f64> = work.iter().map(|w| w * lognormal(stream, factor, 0.1)).collect();
        units(&sojourns(gaps, &services).split_off(BURN), 10)
    };
    let base = customers(stream, BURN + n, load);
    let candidate = if one_schedule { base.clone() } else { customers(stream, BURN + n, load) };
    let (first, second) = (arm(stream, &base, 1.0), arm(stream, &candidate, 1.04));
    differs(&first, &second, 0.5)
}

#[test]
fn pairing_needs_a_third_of_the_requests_and_less() {
    let repetitions = 40;
    let count = |n: usize, one_schedule: bool| {
        let one = |i: u64| found(&mut Stream::new(23, "pairing", i), n, one_schedule);
        (0..repetitions).filter(|i| one(*i)).count()
    };
    // Measured in full (400 repetitions, crates/lab/NOTES.md): 99.8 % of 3 000 paired, 60 % of 12 000 unpaired.
    let (paired, unpaired) = (count(3_000, true), count(9_000, false));
    assert!(paired >= 37 && unpaired < paired - 5, "{paired} of 3000 paired, {unpaired} of 9000 unpaired");
}

/// Returns the machine's speed per turn, which is redrawn for each and drifts over the hour in the order A B B A.
fn speeds(stream: &mut Stream, turns: usize, spread: f64, drift: f64) -> Vec<(f64, f64)> {
    let mut at = |place: usize| lognormal(stream, 1.0 + drift * place as f64 / (2 * turns) as f64, spread);
    let turn = |turn: usize| {
        let (first, second) = (at(2 * turn), at(2 * turn + 1));
        if turn.is_multiple_of(2) { (first, second) } else { (second, first) }
    };
    (0..turns).map(turn).collect()
}

/// Returns how many pairs of equal targets are called different at 5 %, with few turns cut into intervals, and by flips only.
fn alarms(turns: usize, per_turn: usize, spread: f64, drift: f64, repetitions: u64) -> (u32, u32) {
    let (mut judged, mut by_flips) = (0, 0);
    for i in 0..repetitions {
        let mut stream = Stream::new(25, "turns", i);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (of_a, of_b) in speeds(&mut stream, turns, spread, drift) {
            for (arm, speed) in [(&mut first, of_a), (&mut second, of_b)] {
                let turn = steady(&mut stream, 4_000 / turns, 0.7);
                arm.extend(turn.into_iter().map(|sojourn| sojourn * speed));
            }
        }
        let (a, b) = (units(&first, turns * per_turn), units(&second, turns * per_turn));
        let p = [0.5, 0.95][i as usize % 2];
        let differences = exceedance_differences(&a, &b, p, 1.0);
        let differs = |flips: &Flips| 2.0 * flips.greater(&differences).min(flips.less(&differences)) <= 0.05;
        judged += u32::from(differs(&Flips::of_turns(turns, per_turn)));
        by_flips += u32::from(differs(&Flips::new(turns * per_turn)));
    }
    (judged, by_flips)
}

/// Counts how often two equal servers are called different, and by flips only.
///
/// They run for 83 s each, and their speed varies independently over 20 s (sd 0.3).
#[test]
fn a_speed_that_wanders_within_the_run_is_not_taken_for_a_change() {
    const N: usize = 4_000;
    let keep = libm::exp(-83.0 / N as f64 / 20.0);
    let (mut judged, mut by_flips) = (0, 0);
    for i in 0..200 {
        let mut stream = Stream::new(26, "wander", i);
        let arm = |stream: &mut Stream| {
            let mut speed = normal(stream, 0.0, 1.0);
            let mut sojourns = steady(stream, N, 0.7);
            for sojourn in &mut sojourns {
                speed = keep * speed + (1.0 - keep * keep).sqrt() * normal(stream, 0.0, 1.0);
                *sojourn *= libm::exp(0.3 * speed);
            }
            units(&sojourns, 20)
        };
        let (a, b) = (arm(&mut stream), arm(&mut stream));
        let differences = exceedance_differences(&a, &b, 0.5, 1.0);
        // A row of a family of four.
        let differs =
            |flips: &Flips| 2.0 * flips.greater(&differences).min(flips.less(&differences)) <= 0.0125;
        judged += u32::from(differs(&Flips::of_turns(1, 20)));
        by_flips += u32::from(differs(&Flips::new(20)));
    }
    assert!(judged <= 20 && by_flips >= 60, "{judged} and by flips alone {by_flips} of 200");
}

#[test]
fn a_machine_that_is_not_always_as_fast_is_not_taken_for_a_change() {
    // 8 of 160 are expected; 16 or more have a probability below one in a hundred at 5 %.
    let (judged, by_flips) = alarms(4, 5, 0.15, 0.0, 160);
    assert!(judged <= 15, "four turns: {judged} of 160");
    assert!(by_flips >= 40, "flips of stretches alone are fooled: {by_flips} of 160");
    let (drifting, _) = alarms(4, 5, 0.02, 0.2, 160);
    assert!(drifting <= 15, "four turns, a fifth slower by the end: {drifting} of 160");
    let (ten, _) = alarms(10, 1, 0.15, 0.2, 160);
    assert!(ten <= 15, "ten turns: {ten} of 160");
    // An odd number of turns is unbalanced by one turn: a fiftieth here, below the spread.
    let (odd, _) = alarms(5, 4, 0.03, 0.1, 160);
    assert!(odd <= 15, "five turns: {odd} of 160");
}
