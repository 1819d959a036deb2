//! Shared responses in simulated loads with a known false-hit probability at each similarity.

use plimsoll_math::proportion::proves_at_most;
use plimsoll_math::rng::Stream;
use plimsoll_policy::{NearUse, SimilarityRule};

const THRESHOLDS: [f64; 6] = [0.75, 0.80, 0.85, 0.90, 0.95, 0.98];
const MOST: f64 = 0.02;
const RUNS: u64 = 200;

/// The results of a load.
#[derive(Default, Debug)]
struct Load {
    served: u64,
    served_false: u64,
    compared: u64,
    /// Requests served in the last quarter of the load.
    late: u64,
    ever: bool,
}

impl Load {
    fn is_over(&self) -> bool {
        self.served_false as f64 > MOST * self.served as f64
    }
}

/// Similarities are uniform from 0.7 to 1. `chance` is the false-hit probability by similarity and by progress of the
/// load.
fn load(run: u64, (requests, audit): (u64, f64), chance: impl Fn(f64, f64) -> f64) -> Load {
    let mut stream = Stream::new(run, "load", 0);
    let mut rule = SimilarityRule::new(&THRESHOLDS, (MOST, 0.95), audit, run);
    let mut load = Load::default();
    for number in 0..requests {
        let similarity = 0.7 + 0.3 * stream.uniform();
        let is_false = stream.chance(chance(similarity, number as f64 / requests as f64));
        match rule.decide(similarity) {
            NearUse::Shadow | NearUse::Audit => {
                rule.learn(similarity, is_false);
                load.compared += 1;
            }
            NearUse::Serve => {
                assert!(similarity >= rule.in_force().expect("it serves"));
                load.served += 1;
                load.served_false += u64::from(is_false);
                load.late += u64::from(4 * number >= 3 * requests);
            }
            NearUse::Far => assert!(similarity < THRESHOLDS[0]),
            NearUse::Under => assert!(similarity < rule.in_force().expect("it serves")),
        }
        load.ever |= rule.in_force().is_some();
    }
    load
}

/// Returns the number of runs above the permitted false share, and all runs.
fn runs(requests: (u64, f64), chance: impl Fn(f64, f64) -> f64) -> (usize, Vec<Load>) {
    let loads: Vec<Load> = (0..RUNS).map(|run| load(run, requests, &chance)).collect();
    (loads.iter().filter(|load| load.is_over()).count(), loads)
}

/// False hits are frequent up to 0.93 and rare above.
fn steep(similarity: f64, above: f64) -> f64 {
    if similarity < 0.93 { 0.6 } else { above }
}

#[test]
fn no_more_is_false_of_what_is_served_than_may_be_and_much_is_served() {
    let (over, loads) = runs((20_000, 0.05), |similarity, _| steep(similarity, 0.004));
    assert!(over <= 10, "{over} of {RUNS}");
    // A sixth of the requests has a similarity of at least 0.95.
    let served: u64 = loads.iter().map(|load| load.served).sum::<u64>() / RUNS;
    assert!(served > 1_000, "{served}");
    // False hits decrease gradually; at 0.90 and above, one in fifty is false.
    let (over, loads) = runs((20_000, 0.05), |similarity, _| (0.5 * (1.0 - similarity)).min(1.0) * 0.6);
    assert!(over <= 10, "{over} of {RUNS}");
    assert!(loads.iter().filter(|load| load.served > 500).count() > 150);
}

/// Returns whether a rule with a single-evaluation bound at each check would ever serve, at any threshold.
fn begins_by_single_looks(run: u64, requests: u64, chance: f64) -> bool {
    let (mut stream, mut counts) = (Stream::new(run, "load", 0), [(0u64, 0u64); THRESHOLDS.len()]);
    (0..requests).any(|_| {
        let similarity = 0.7 + 0.3 * stream.uniform();
        let is_false = stream.chance(chance);
        counts.iter_mut().zip(THRESHOLDS).any(|((ones, n), threshold)| {
            if similarity >= threshold {
                (*ones, *n) = (*ones + u64::from(is_false), *n + 1);
            }
            proves_at_most(*ones as f64, *n as f64, MOST, 0.05)
        })
    })
}

#[test]
fn where_too_much_is_false_at_every_similarity_nothing_is_ever_served_however_often_one_looks() {
    let (_, loads) = runs((20_000, 0.05), |_, _| 1.1 * MOST);
    let ever = loads.iter().filter(|load| load.ever).count();
    assert!(ever <= 10, "{ever} of {RUNS}");
    // The reference checks equally often, each time as if it were the only check.
    let single = (0..RUNS).filter(|run| begins_by_single_looks(*run, 20_000, 1.1 * MOST)).count();
    assert!(single > 40, "{single} of {RUNS}");
}

#[test]
fn it_stops_by_itself_when_answers_begin_to_differ_slowly_or_at_once() {
    let (over, loads) = runs((40_000, 0.2), |similarity, at| steep(similarity, 0.001 + 0.03 * at));
    assert!(over <= 10, "slowly: {over} of {RUNS}");
    assert!(loads.iter().filter(|load| load.served > 500).count() > 150);
    let (over, loads) =
        runs((40_000, 0.2), |similarity, at| steep(similarity, if at < 0.75 { 0.001 } else { 0.3 }));
    assert!(over <= 10, "at once: {over} of {RUNS}");
    let late: u64 = loads.iter().map(|load| load.late).sum::<u64>() / RUNS;
    let before: u64 = loads.iter().map(|load| load.served - load.late).sum::<u64>() / RUNS;
    // Without the change, about 1 300 would have been served.
    assert!(late < 100 && before > 3_000, "{late} after, {before} before");
}

#[test]
fn it_begins_again_when_what_had_changed_has_changed_back() {
    let chance =
        |similarity: f64, at: f64| steep(similarity, if (0.3..0.5).contains(&at) { 0.4 } else { 0.001 });
    let again = (0..20).filter(|run| load(*run, (40_000, 0.2), chance).late > 500).count();
    assert!(again >= 18, "{again} of 20");
}

#[test]
fn the_fewest_comparisons_are_what_the_formula_says() {
    // 1/4 Σ (1 + f m/(1 − m))^n = 2 · 12/0.05, m = 0.01: little less than ln(4 · 480)/−ln(0.99) = 752.
    let fewest = SimilarityRule::fewest(12, 0.01, 0.95);
    assert!((690..=753).contains(&fewest), "{fewest}");
    let mut rule = SimilarityRule::new(&[0.9; 12], (0.01, 0.95), 0.05, 1);
    (1..fewest).for_each(|_| rule.learn(0.95, false));
    assert_eq!(
        (rule.in_force(), rule.decide(0.95), rule.decide(0.89)),
        (None, NearUse::Shadow, NearUse::Far)
    );
    rule.learn(0.95, false);
    assert_eq!(rule.in_force(), Some(0.9));
    let standing = rule.standings().next().expect("one");
    assert_eq!((standing.compared, standing.different), (fewest, 0));
    assert!(standing.upper <= 0.01 && standing.upper > 0.0098, "{standing:?}");
}
