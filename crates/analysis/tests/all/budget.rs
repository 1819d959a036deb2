//! Budgets: pass, fail, and not enough to say.

use plimsoll_analysis::findings::{BudgetSpec, Held};
use plimsoll_analysis::summarise;
use plimsoll_model::{Attempt, How};

use crate::records::{answer, failure, level};

fn budget() -> BudgetSpec {
    BudgetSpec {
        name: "test".into(),
        percentile: 0.95,
        ttft_s: Some(0.1),
        tpot_s: None,
        e2e_s: None,
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
    // Without one over it, 59 are what it takes (0.95⁵⁹ < 0.05); 40 are too few and the finding says how many are not.
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
