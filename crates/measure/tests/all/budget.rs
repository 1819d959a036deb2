//! Budgets: passed, failed and inconclusive.

use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Held, Metric};
use plimsoll_measure::summarise;
use plimsoll_model::{Attempt, How};

use plimsoll_lab::arms;
use plimsoll_lab::records::{answer, failure, level};

fn budget() -> BudgetSpec {
    BudgetSpec {
        name: "test".into(),
        latency: vec![Ceiling::new(Metric::Ttft, 0.95, 0.1)],
        error_rate: Some(0.05),
    }
}

/// Judges `n` requests; one in `slow` is over the ceiling (scattered, so that batches are alike).
fn judged(n: u64, slow: u64) -> plimsoll_measure::findings::BudgetFinding {
    let records: Vec<Attempt> = (0..n)
        .map(|i| answer(i, 10 * i as i64, if i * 7919 % slow == 1 { 150 } else { 50 }, 200, 2))
        .collect();
    summarise(&level(100.0, (n / 100) as i64), &records, &[], Some(&budget()))
        .budget
        .expect("a budget was set")
}

#[test]
fn the_bounds_decide() {
    // Clopper–Pearson, one-sided 95 %: 2 % of 2 000 is under 5 %, 10 % is over it, 5 % is neither.
    assert_eq!(judged(2_000, 50).verdict, Held::Pass);
    assert_eq!(judged(2_000, 10).verdict, Held::Fail);
    let open = judged(2_000, 20);
    assert_eq!(open.verdict, Held::Inconclusive);
    // Of 40 requests two are expected beyond a p95; of 200 ten are, as the finding reports.
    let few = judged(40 * 5, 1_000_000);
    assert_eq!(few.rows[0].share_over.n, 200);
    assert_eq!(few.rows[0].verdict, Held::Pass);
}

#[test]
fn good_is_counted_against_all_that_were_due() {
    // A fifth fail, a fifth are late: three fifths of 100/s are good.
    let records: Vec<Attempt> = (0..2_000)
        .map(|i| match i % 5 {
            0 => failure(i, 10 * i as i64, How::ServerError, 3),
            1 => answer(i, 10 * i as i64, 150, 200, 2),
            _ => answer(i, 10 * i as i64, 50, 200, 2),
        })
        .collect();
    let rates = summarise(&level(100.0, 20), &records, &[], Some(&budget())).rates;
    assert!((rates.good_per_s.and_then(|r| r.value()).expect("a budget") - 60.0).abs() < 1e-9);
    assert!((rates.good_share.expect("a budget").value - 0.6).abs() < 1e-12);
}

/// Whole answers of 40 ms (share `a`), 100 ms (`b`) and 400 ms (the rest), scattered by 7919 modulo 1000.
fn mixture(a: u64, b: u64) -> plimsoll_measure::findings::LevelSummary {
    let records: Vec<Attempt> = (0..20_000)
        .map(|i| {
            let took = match i * 7919 % 1000 {
                n if n < a => 40,
                n if n < a + b => 100,
                _ => 400,
            };
            let mut whole = answer(i, 10 * i as i64, took, took, 0);
            (whole.first_token, whole.first_visible, whole.last_token) = (None, None, None);
            whole
        })
        .collect();
    summarise(&level(100.0, 200), &records, &[], Some(&BudgetSpec::recommendation()))
}

#[test]
fn each_percentile_of_one_metric_is_judged_by_itself() {
    // Of the example (p50 60 ms, p95 150 ms, p99 350 ms): over 60 ms, over 150 ms, over 350 ms.
    for (a, b, want) in [
        (600, 395, [Held::Pass, Held::Pass, Held::Pass]),
        (400, 595, [Held::Fail, Held::Pass, Held::Pass]),
        (600, 370, [Held::Pass, Held::Pass, Held::Fail]),
        (600, 300, [Held::Pass, Held::Fail, Held::Fail]),
    ] {
        let summary = mixture(a, b);
        assert!(summary.latency.ttft.is_none());
        let budget = summary.budget.expect("a budget was set");
        let shares: Vec<f64> = budget.rows[..3].iter().map(|row| row.share_over.value).collect();
        let slow = (1000 - a - b) as f64 / 1e3;
        assert_eq!(shares, [1.0 - a as f64 / 1e3, slow, slow]);
        let verdicts: Vec<Held> = budget.rows[..3].iter().map(|row| row.verdict).collect();
        assert_eq!(verdicts, want, "{a} {b}");
        // A request is good when it meets the ceiling of the highest percentile: 350 ms.
        let good = summary.rates.good_share.expect("a budget").value;
        assert!((good - (1.0 - slow)).abs() < 1e-12, "{good}");
    }
}

/// Returns the verdict and the share over a ceiling of `limit_s` at this percentile of `ttft`.
/// The queue has sixteen servers of 100 ms and starts empty.
fn queued(seed: u64, load: f64, seconds: usize, (percentile, limit_s): (f64, f64)) -> (Held, f64) {
    let rate = load * arms::SERVERS as f64 / 0.1;
    let (gaps, services) =
        arms::customers(&mut Stream::new(seed, "overload", 0), (rate * seconds as f64) as usize, load);
    let sojourns = arms::sojourns(&gaps, &services);
    let mut due = 0.0;
    let records: Vec<Attempt> = (0u64..)
        .zip(gaps.iter().zip(sojourns))
        .map(|(i, (gap, sojourn))| {
            due += 0.1 * gap;
            let took = (100.0 * sojourn) as i64;
            answer(i, (1e3 * due) as i64, took, took, 1)
        })
        .filter(|answer| answer.due < level(rate, seconds as i64).stop)
        .collect();
    let spec = BudgetSpec {
        name: "queue".into(),
        latency: vec![Ceiling::new(Metric::Ttft, percentile, limit_s)],
        error_rate: None,
    };
    let found = summarise(&level(rate, seconds as i64), &records, &[], Some(&spec)).budget.expect("a budget");
    (found.verdict, found.rows[0].share_over.value)
}

/// At 1.3 times the servers' capacity the wait grows by 0.3 s a second, so a ceiling of half a second is broken.
///
/// A level without a steady state has no number of independent requests. Such levels were once called inconclusive.
#[test]
fn a_queue_that_grows_past_the_ceiling_breaks_it() {
    for seed in 0..20 {
        let (held, over) = queued(seed, 1.3, 60, (0.95, 0.5));
        assert!(held == Held::Fail && over > 0.9, "{seed}: {held:?} with {over} over it");
    }
}

/// A ceiling at the median of a stable, full queue is almost never called broken, although half of the requests are over it.
/// Growth must be proven, not only visible.
#[test]
fn a_full_queue_that_does_not_grow_breaks_nothing() {
    let mut all: Vec<f64> = arms::steady(&mut Stream::new(99, "median", 0), 400_000, 0.85);
    all.sort_unstable_by(f64::total_cmp);
    let median_s = 0.1 * all[all.len() / 2];
    let broken = (0..100).filter(|seed| queued(*seed, 0.85, 60, (0.5, median_s)).0 == Held::Fail).count();
    assert!(broken <= 12, "{broken} of 100");
}
