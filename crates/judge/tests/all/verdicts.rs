//! The evaluation on queues with known percentiles: the frequency of each verdict, and equal verdicts for all kinds of evidence.

use plimsoll_judge::budget::{ALPHA, Decision, decide, of_flags, of_values};
use plimsoll_math::dist::exponential;
use plimsoll_math::queueing::Mmc;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::Held;

use plimsoll_lab::queues::{Queue, Servers};

/// The source of latencies. Times are in seconds, with a mean service time of 1.
#[derive(Copy, Clone, Debug)]
pub enum Source {
    /// Independent exponential latencies with a design effect of 1.
    Independent,
    /// First come, first served with 16 servers, 80 % busy.
    Queue,
    /// First come, first served with 16 servers, 85 % busy.
    #[allow(dead_code, reason = "a row of the example's table")]
    Busy,
    /// One server, 70 % busy: the strongest correlation in the tests.
    #[allow(dead_code, reason = "a row of the example's table")]
    Single,
    /// Four servers, 85 % busy: 5000 requests have an n_eff of fifty, and calm runs look like many more.
    #[allow(dead_code, reason = "judged at its p95, not in the example's table")]
    Few,
}

impl Source {
    #[allow(dead_code, reason = "the example's rows")]
    pub const ALL: [Source; 4] = [Source::Independent, Source::Queue, Source::Busy, Source::Single];

    fn servers(self) -> (u32, f64) {
        match self {
            Source::Independent => (1, 0.0),
            Source::Queue => (16, 0.8),
            Source::Busy => (16, 0.85),
            Source::Single => (1, 0.7),
            Source::Few => (4, 0.85),
        }
    }

    /// Returns the p-quantile by the formula.
    pub fn quantile(self, p: f64) -> f64 {
        match self {
            Source::Independent => -(1.0 - p).ln(),
            _ => {
                let (servers, load) = self.servers();
                Mmc { servers, load, service_mean: 1.0 }.sojourn_quantile(p)
            }
        }
    }

    /// Returns `n` latencies in ns, and the time between two arrivals in seconds.
    pub fn draw(self, seed: u64, n: usize) -> (Vec<i64>, f64) {
        let mut stream = Stream::new(seed, "verdicts", 0);
        let ns = |s: f64| (s * 1e9) as i64;
        if let Source::Independent = self {
            // As many per second as make a level long against its requests.
            return ((0..n).map(|_| ns(exponential(&mut stream, 1.0))).collect(), 1.0);
        }
        let (servers, load) = self.servers();
        let mut queue = Servers::new(servers as usize, load, false);
        queue.run(&mut stream, 5_000);
        let sojourns = queue.run(&mut stream, n);
        (sojourns.into_iter().map(ns).collect(), 1.0 / (load * f64::from(servers)))
    }
}

/// Returns the frequencies of (passed, failed) for "p99 ≤ budget" if the true p99 is `times` the budget.
pub fn verdicts(source: Source, times: f64, n: usize, replications: u64) -> (f64, f64) {
    let budget_s = source.quantile(0.99) / times;
    let (mut passed, mut failed) = (0, 0);
    for seed in 1..=replications {
        let (values, gap_s) = source.draw(seed, n);
        match judged(&values, budget_s, gap_s * n as f64).held {
            Held::Pass => passed += 1,
            Held::Fail => failed += 1,
            Held::Inconclusive => {}
        }
    }
    (passed as f64 / replications as f64, failed as f64 / replications as f64)
}

/// A calm run has a small share over the limit, and a small design effect there. Its share without the percentile's design effect
/// would pass it: 11 % of these runs passed.
#[test]
fn a_calm_run_is_not_taken_for_a_fast_target() {
    let (n, runs) = (5_000, 300);
    for p in [0.9, 0.95] {
        let budget_s = Source::Few.quantile(p);
        let passes = |seed: &u64| {
            let (values, gap_s) = Source::Few.draw(*seed, n);
            let count = of_values(&values, budget_s, p, gap_s * n as f64);
            decide(&count, 1.0 - p, ALPHA).held == Held::Pass
        };
        let passed = (1..=runs).filter(passes).count() as f64 / runs as f64;
        assert!(passed <= 0.05 + 2.0 * (0.05 * 0.95 / runs as f64).sqrt(), "p{} {passed}", 100.0 * p);
    }
}

/// The tail came in one burst below the limit. With this n_eff there is no verdict at any distance of the limit.
#[test]
fn one_burst_below_the_limit_leaves_it_open() {
    let values: Vec<i64> =
        (0..1846).map(|i| if (900..940).contains(&i) { 400_000_000 + i } else { 30_000_000 + i }).collect();
    let decision = judged(&values, 1.0, 154.0);
    assert_eq!(decision.share.value, 0.0);
    assert_eq!((decision.held, decision.needed), (Held::Inconclusive, None), "{decision:?}");
}

/// Returns failures with this share in bursts of `burst`, drawn from a seed.
fn failures(seed: u64, n: usize, (share, burst): (f64, usize)) -> Vec<bool> {
    let mut stream = Stream::new(seed, "bursts", 0);
    let mut failed = vec![false; n];
    for at in 0..n {
        if stream.uniform() < share / burst as f64 {
            failed[at..(at + burst).min(n)].fill(true);
        }
    }
    failed
}

/// The failure rate equals the ceiling. A run with one or two bursts of twenty has a wide interval. A run without bursts cannot
/// know whether there are any.
#[test]
fn bursts_of_failures_at_the_ceiling_do_not_pass() {
    let runs = 400;
    for (n, bursts) in [(10_000, (0.01, 20)), (2_000, (0.01, 20)), (10_000, (0.01, 1)), (2_000, (0.01, 1))] {
        let decided = |seed: u64| {
            let failed = failures(seed, n, bursts);
            let seen = failed.contains(&true);
            (seen, decide(&of_flags(&failed), 0.01, ALPHA).held == Held::Pass)
        };
        let passed = (1..=runs).map(decided).filter(|(seen, passed)| *seen && *passed).count();
        let share = passed as f64 / runs as f64;
        assert!(share <= 0.05, "{n} {bursts:?}: {share}");
    }
}

/// The named number of requests gives a verdict in 85 % of the cases: the target is measured again for the named length.
#[test]
fn as_many_as_are_named_settle_it() {
    for (source, n, times, longest) in
        [(Source::Independent, 1_000, [0.7, 0.75, 1.2], 40), (Source::Queue, 2_000, [0.55, 0.65, 1.3], 60)]
    {
        let (mut named, mut settled, mut longer) = (0, 0, 0.0);
        for seed in 1..=120 {
            let budget_s = source.quantile(0.99) / times[seed as usize % 3];
            let (values, gap_s) = source.draw(seed, longest * n);
            let of = |n: usize| judged(&values[..n], budget_s, gap_s * n as f64);
            let Some(needed) = of(n).needed.filter(|needed| *needed as usize <= values.len()) else {
                continue;
            };
            named += 1;
            longer += needed as f64 / n as f64;
            settled += u32::from(of(needed as usize).held != Held::Inconclusive);
        }
        let share = f64::from(settled) / f64::from(named);
        println!(
            "{source:?}: {named} named, {:.1} times as long, {share} settled",
            longer / f64::from(named)
        );
        assert!(
            named >= 10 && share >= 0.85 - 2.0 * (0.1275 / f64::from(named)).sqrt(),
            "{source:?} {share} of {named}"
        );
    }
}

fn judged(values: &[i64], budget_s: f64, length_s: f64) -> Decision {
    decide(&of_values(values, budget_s, 0.99, length_s), 1.0 - 0.99, ALPHA)
}

/// Acceptance limits at sizes that run in seconds; `examples/gate.rs` has them with thousands of replications.
///
/// Two standard errors of the few replications are allowed beyond the limit.
#[test]
fn the_verdicts_fall_as_often_as_they_may() {
    for (source, replications) in [(Source::Independent, 120), (Source::Queue, 60)] {
        let slack = 2.0 * (0.06 * 0.94 / replications as f64).sqrt();
        let (passed, failed) = verdicts(source, 1.0, 10_000, replications);
        assert!(passed <= 0.06 + slack && failed <= 0.06 + slack, "{source:?}: {passed} {failed}");
        let (passed, failed) = verdicts(source, 0.8, 10_000, replications / 2);
        assert!(passed >= 0.9 && failed == 0.0, "{source:?} 20 % under: {passed} {failed}");
    }
    let (passed, failed) = verdicts(Source::Independent, 1.1, 10_000, 80);
    assert!(failed >= 0.85 && passed == 0.0, "10 % over: {failed}");
}

/// 0 of n under 1 %: 0.99²⁹⁹ = 0.0495 passes at 5 % and 0.99²⁹⁸ = 0.0500 does not.
#[test]
fn the_chance_is_the_binomials() {
    for (n, held) in [(299, Held::Pass), (298, Held::Inconclusive)] {
        let decision = decide(&of_flags(&vec![false; n]), 0.01, 0.05);
        assert!((decision.p_pass - 0.99f64.powi(n as i32)).abs() < 1e-12, "{}", decision.p_pass);
        assert_eq!(decision.held, held, "{n}");
    }
    // Distinct values pass with this probability, also if the percentile itself is refused; far too many fail.
    for (n, slow, held) in [
        (367, 0, Held::Inconclusive),
        (368, 0, Held::Pass),
        (500, 50, Held::Fail),
        (500, 8, Held::Inconclusive),
    ] {
        let values: Vec<i64> =
            (0..n).map(|i| if i * 271 % n < slow { i64::MAX } else { 1_000_000 }).collect();
        // Too near to the slowest for anything but a count.
        assert_eq!(judged(&values, 0.001_2, 1e6).held, held, "{slow} of {n}");
    }
    // Without measurements there is no verdict.
    let nothing = judged(&[], 0.5, 60.0);
    assert_eq!((nothing.held, nothing.p_pass, nothing.p_fail), (Held::Inconclusive, 1.0, 1.0));
}

#[test]
fn what_failed_exceeds_every_limit() {
    let mut values = vec![1_000_000; 10_000];
    values.iter_mut().step_by(40).for_each(|ns| *ns = i64::MAX);
    let decision = judged(&values, 1e9, 1e6);
    assert_eq!(decision.held, Held::Fail);
    assert!((decision.share.value - 0.025).abs() < 1e-12);
    // Without the failed requests it would pass.
    values.retain(|ns| *ns != i64::MAX);
    assert_eq!(judged(&values, 1e9, 1e6).held, Held::Pass);
}

/// The example of Benjamini and Hochberg (1995, section 3.2): the four smallest of fifteen p-values are discoveries at 5 %.
#[test]
fn false_discoveries_are_held_down_as_in_the_paper() {
    let p = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
        0.6528, 0.7590, 1.0,
    ];
    let found = plimsoll_judge::gate::benjamini_hochberg(&p, 0.05);
    assert_eq!(found.iter().filter(|found| **found).count(), 4);
    assert!(found[..4].iter().all(|found| *found));
}
