//! Change points of result series: compared with a direct computation, on series with a known change, on outliers and on noise.

use plimsoll_judge::history::change::{ChangeSpec, MOST, Observation, changes, fewest};
use plimsoll_judge::history::{HISTORY_SCHEMA, HistoryEntry, ResultFigure, line};
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::Trust;

/// Returns a standard normal draw (Box and Muller).
fn normal(chance: &mut Stream) -> f64 {
    (-2.0 * chance.uniform().ln()).sqrt() * (std::f64::consts::TAU * chance.uniform()).cos()
}

/// Returns the default specification with a fifth of its permutations, because these tests are far from the limit.
fn quick() -> ChangeSpec {
    ChangeSpec { permutations: 1999, ..ChangeSpec::default() }
}

/// Returns results of these levels with noise of 4 % between runs and standard errors of 1 to 5 %.
fn observed(levels: &[f64], chance: &mut Stream) -> Vec<Observation> {
    let mut one = |level: &f64| {
        let se = 0.01 + 0.04 * chance.uniform();
        Observation { ln: level.ln() + 0.04 * normal(chance) + se * normal(chance), se }
    };
    levels.iter().map(&mut one).collect()
}

/// A permutation test on n results has no p under 2 divided by the ways of halving them: 3432 ways for 14, 1716 for 13.
///
/// One more result is left out.
#[test]
fn a_thousandth_takes_fifteen_results() {
    assert_eq!(fewest(0.001, 3), Some(15));
    assert_eq!(fewest(0.05, 3), Some(9)); // 70 ways of 8, 35 of 7
    let step = |n: usize| {
        let value = |i: usize| Observation { ln: if i < n / 2 { 0.0 } else { 0.3 }, se: 0.01 };
        changes(&(0..n).map(value).collect::<Vec<_>>(), &ChangeSpec::default())
    };
    assert_eq!(step(13), []);
    let found = step(15);
    assert_eq!((found.len(), found[0].at, found[0].earliest, found[0].latest), (1, 7, 7, 7));
    // Of seven and eight results one of the seven is the outlier; 2 of the 3003 orders of six and eight cut equally well.
    assert!((found[0].p - 2.0 / 3003.0).abs() < 4e-4, "{}", found[0].p);
    assert!((found[0].ratio - 0.3f64.exp()).abs() < 1e-12);
}

/// Returns the energy distance by its definition, pair by pair.
fn energy(series: &[Observation], w: &[f64], at: usize) -> f64 {
    let mean = |a: std::ops::Range<usize>, b: std::ops::Range<usize>| {
        let (mut sum, mut weight) = (0.0, 0.0);
        for i in a {
            for j in b.clone() {
                sum += w[i] * w[j] * (series[i].ln - series[j].ln).abs();
                weight += w[i] * w[j];
            }
        }
        sum / weight
    };
    let n = series.len();
    let (left, right): (f64, f64) = (w[..at].iter().sum(), w[at..].iter().sum());
    let distance = 2.0 * mean(0..at, at..n) - mean(0..at, 0..at) - mean(at..n, at..n);
    left * right / (left + right) * distance
}

#[test]
fn the_cut_is_the_one_of_the_definition() {
    // With at least five results on either side of twelve there are three positions and no second cut; every cut counts as one.
    let spec = ChangeSpec { alpha: 1.0, permutations: 0, min_segment: 5, margin: 0.0, seed: 1 };
    for seed in 0..200 {
        let mut chance = Stream::new(seed, "definition", 0);
        let series = observed(&[1.0; 13], &mut chance);
        let mut steps: Vec<f64> = series.windows(2).map(|pair| (pair[1].ln - pair[0].ln).abs()).collect();
        steps.sort_by(f64::total_cmp);
        let between = (1.4826 * steps[6] / 2f64.sqrt()).powi(2);
        let mut sorted: Vec<f64> = series.iter().map(|o| o.ln).collect();
        sorted.sort_by(f64::total_cmp);
        let far = |i: &usize| (series[*i].ln - sorted[6]).abs();
        let oddest = (0..13).max_by(|a, b| far(a).total_cmp(&far(b))).expect("thirteen");
        let rest: Vec<usize> = (0..13).filter(|i| *i != oddest).collect();
        let kept: Vec<Observation> = rest.iter().map(|i| series[*i]).collect();
        let w: Vec<f64> = kept.iter().map(|o| 1.0 / (o.se.powi(2) + between)).collect();
        let best = (5..=7).max_by(|a, b| energy(&kept, &w, *a).total_cmp(&energy(&kept, &w, *b)));
        let found = changes(&series, &spec);
        assert_eq!(found.first().map(|change| change.at), best.map(|at| rest[at]), "seed {seed}");
    }
}

#[test]
fn a_change_is_found_where_it_was_made() {
    let levels: Vec<f64> = [[0.100; 16], [0.125; 16]].concat();
    let (mut found, mut near, mut held, mut placed) = (0, 0, 0, 0);
    for seed in 0..30 {
        let series = observed(&levels, &mut Stream::new(seed, "step", 0));
        let Some(change) = changes(&series, &quick()).first().copied() else { continue };
        found += 1;
        near += u32::from(change.at.abs_diff(16) <= 1);
        held += u32::from(change.lower <= 1.25 && 1.25 <= change.upper);
        placed += u32::from(change.earliest <= 16 && 16 <= change.latest);
    }
    assert!(found >= 29, "{found} of 30 found");
    assert!(near >= 27, "{near} of 30 within one result");
    assert!(held >= 26, "{held} of 30 intervals hold the truth");
    assert!(placed >= 26, "{placed} of 30 ranges hold the place");
}

#[test]
fn two_steps_up_are_two_changes() {
    let levels: Vec<f64> = [[0.1; 16], [0.13; 16], [0.18; 16]].concat();
    let series = observed(&levels, &mut Stream::new(5, "stairs", 0));
    let found = changes(&series, &quick());
    assert_eq!(found.iter().map(|change| change.at).collect::<Vec<_>>(), [16, 32]);
    assert!(found[0].lower <= 1.3 && 1.3 <= found[0].upper, "{found:?}");
    assert!(found[1].lower <= 0.18 / 0.13 && 0.18 / 0.13 <= found[1].upper, "{found:?}");
}

/// A shift below the margin is no change, however significant it is.
#[test]
fn a_change_under_the_margin_is_none() {
    let mut chance = Stream::new(1, "small", 0);
    let series: Vec<Observation> = (0..60)
        .map(|i| Observation { ln: if i < 30 { 0.0 } else { 0.03 } + 0.002 * normal(&mut chance), se: 0.001 })
        .collect();
    assert_eq!(changes(&series, &ChangeSpec { margin: 0.05, ..quick() }), []);
    assert_eq!(changes(&series, &ChangeSpec { margin: 0.02, ..quick() }).len(), 1);
}

/// A single outlier raises no alarm at any position or size, in particular as the latest result, which every daily run tests.
#[test]
fn a_single_spike_never_alerts() {
    for seed in 0..300 {
        let mut chance = Stream::new(seed, "spike", 0);
        let n = 15 + chance.below(50) as usize;
        let mut levels = vec![0.1; n];
        let at = if seed % 3 == 0 { n - 1 } else { chance.below(n as u64) as usize };
        levels[at] *= [0.01, 3.0, 30.0, 1000.0][seed as usize % 4];
        let series = observed(&levels, &mut chance);
        assert_eq!(changes(&series, &ChangeSpec::default()), [], "seed {seed}: spike at {at} of {n}");
    }
    // The series has no noise and the maximum length, so the outlier is the only variation.
    let spiked = |at: usize, n: usize| {
        let series: Vec<Observation> =
            (0..n).map(|i| Observation { ln: if i == at { 5.0 } else { 0.0 }, se: 0.01 }).collect();
        changes(&series, &ChangeSpec::default())
    };
    for at in [0, 1, 2, 3, MOST / 2, MOST - 3, MOST - 1, 2 * MOST - 1] {
        assert_eq!(spiked(at, MOST.max(at + 1)), [], "at {at}");
    }
}

/// At a thousandth each, 1500 quiet series alarm 1.5 times; 7 or more have a probability of one in a thousand.
#[test]
fn noise_alone_alarms_once_in_a_thousand() {
    let alarms = (0..1500u64)
        .filter(|seed| {
            let mut chance = Stream::new(*seed, "noise", 0);
            let n = [20, 30, 40][*seed as usize % 3];
            !changes(
                &observed(&vec![0.1; n], &mut chance),
                &ChangeSpec { margin: 0.0, ..ChangeSpec::default() },
            )
            .is_empty()
        })
        .count();
    assert!(alarms <= 6, "{alarms} of 1500");
}

fn entry(i: usize, p99: f64) -> HistoryEntry {
    HistoryEntry {
        schema: HISTORY_SCHEMA,
        measured: format!("2026-11-{:02} 02:00 UTC", 1 + i % 28),
        id: format!("{i:016x}"),
        run: format!("runs/{i}"),
        version: Some(if i < 10 { "v1" } else { "v2" }.into()),
        verdict: None,
        trust: Trust::Valid,
        load: "open loop, 12/s, 128 in, 64 out".into(),
        metrics: vec![ResultFigure {
            name: "ttft p99".into(),
            value: p99,
            lower: 0.95 * p99,
            upper: 1.05 * p99,
        }],
        cut: Vec::new(),
    }
}

#[test]
fn a_line_keeps_to_one_load_and_counts_a_run_once() {
    let mut entries: Vec<HistoryEntry> =
        (0..20).map(|i| entry(i, if i < 10 { 0.2 } else { 0.3 } * (1.0 + 0.001 * i as f64))).collect();
    entries.insert(4, HistoryEntry { load: "open loop, 24/s, 128 in, 64 out".into(), ..entry(40, 0.9) });
    entries.insert(7, HistoryEntry { trust: Trust::Invalid, ..entry(41, 9.0) });
    entries.push(entries[21].clone());
    let found = line(&entries, "", 1);
    assert_eq!((found.entries.len(), found.other_load, found.invalid), (20, 1, 1));
    let [course] = &found.courses[..] else { panic!("one figure") };
    let change = course.last().expect("moved");
    assert_eq!((course.changes.len(), change.at), (1, 10));
    assert_eq!(found.entries[change.at].version.as_deref(), Some("v2"));
    assert!((change.ratio - 1.515).abs() < 0.01, "{}", change.ratio);
    // A result at another load at the end is left out like any other, because the pinned run sets the load.
    entries.push(HistoryEntry { load: "open loop, 24/s, 128 in, 64 out".into(), ..entry(42, 0.9) });
    let pinned = line(&entries, &entries[0].id, 1);
    assert_eq!((pinned.entries.len(), pinned.other_load), (20, 2));
    assert_eq!(pinned.courses, found.courses);
    entries.pop();
    // Equal entries give equal results.
    assert_eq!(line(&entries, "", 1), found);
}

/// A p99 among failures has no finite value. It counts as an outlier, and such results leave no gap in the series.
#[test]
fn a_percentile_among_failures_counts_as_far_out() {
    let entries: Vec<HistoryEntry> =
        (0..20).map(|i| entry(i, if i < 10 { 0.2 + 0.001 * i as f64 } else { f64::INFINITY })).collect();
    let found = line(&entries, "", 1);
    let change = *found.courses[0].last().expect("moved");
    assert_eq!(change.at, 10);
    assert!(change.ratio > 5.0);
    // A single one is an outlier.
    let one: Vec<HistoryEntry> =
        (0..20).map(|i| entry(i, if i == 19 { f64::INFINITY } else { 0.2 + 0.001 * i as f64 })).collect();
    assert_eq!(line(&one, "", 1).courses[0].changes, []);
}
