//! Budgets: pass, fail, and not enough to say.

use plimsoll_analysis::findings::{BudgetSpec, Ceiling, Held, Metric};
use plimsoll_analysis::summarise;
use plimsoll_model::{Attempt, How};

use crate::records::{answer, failure, level};

fn budget() -> BudgetSpec {
    BudgetSpec {
        name: "test".into(),
        latency: vec![Ceiling::new(Metric::Ttft, 0.95, 0.1)],
        error_rate: Some(0.05),
    }
}

/// `n` requests of which one in `slow` is over the ceiling (scattered, so that batches are alike).
fn judged(n: u64, slow: u64) -> plimsoll_analysis::findings::BudgetFinding {
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
    // Of 40 two are expected beyond a p95; ten are, of 200, and the finding says so.
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
fn mixture(a: u64, b: u64) -> plimsoll_analysis::findings::LevelSummary {
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
