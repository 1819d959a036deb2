//! Comparison of two periods of live traffic: the reported changes match the requests behind the metrics.

use plimsoll_judge::compare::Margins;
use plimsoll_judge::compare::finding::ChangeVerdict;
use plimsoll_math::rng::Stream;
use plimsoll_measure::server_side::Signal;
use plimsoll_model::At;
use plimsoll_watch::history::HistoryBlock;
use plimsoll_watch::history::compare::{StretchComparison, compare};

use crate::watched::{Page, TTFT, watched};

/// Returns the blocks of a replica at this rate with times to first token of 20 ms plus an exponential time.
fn stretch(seed: u64, (per_s, mean_s): (f64, f64), seconds: i64) -> Vec<HistoryBlock> {
    let mut stream = Stream::new(seed, "stretch", 0);
    let mut exponential = || -(1.0 - stream.uniform()).ln();
    let (mut watched, mut page) = (watched(TTFT).keeping(0), Page::default());
    let mut next = 0.0;
    for at in 0..=seconds {
        while next < at as f64 {
            page.ttft.push(0.02 + (mean_s - 0.02) * exponential());
            next += exponential() / per_s;
        }
        page.running = 1.0;
        if at % 5 == 0 {
            page.samples("", at).iter().for_each(|sample| watched.push(sample));
            watched.tick(At(at * 1_000_000_000));
        }
    }
    watched.blocks_ended(true)
}

fn compared(base: &[HistoryBlock], candidate: &[HistoryBlock], despite: bool) -> StretchComparison {
    compare(base, candidate, (&Margins::default(), despite))
}

#[test]
fn what_did_not_change_is_seldom_called_changed() {
    let sides: Vec<Vec<HistoryBlock>> = (0..31).map(|seed| stretch(seed, (3.0, 0.12), 900)).collect();
    let verdicts: Vec<ChangeVerdict> =
        sides.windows(2).map(|pair| compared(&pair[0], &pair[1], true).verdict).collect();
    let wrong = |verdict| verdicts.iter().filter(|one| **one == verdict).count();
    assert!(wrong(ChangeVerdict::Regressed) + wrong(ChangeVerdict::Improved) <= 3, "{verdicts:?}");
}

#[test]
fn what_is_slower_is_told_with_the_edges_that_prove_it() {
    let (base, slower) = (stretch(1, (3.0, 0.12), 1800), stretch(2, (3.0, 0.4), 1800));
    let found = compared(&base, &slower, false);
    assert_eq!(found.verdict, ChangeVerdict::Regressed, "{found:?}");
    let row = |p: f64| {
        let found = found.percentiles.iter().find(|row| row.metric == Signal::Ttft && row.p == p);
        found.expect("a row")
    };
    // The medians are 20 + 100 ln 2 = 89 ms and 20 + 380 ln 2 = 283 ms.
    let median = row(0.5);
    assert_eq!((median.base.over_s, median.base.most_s), (Some(0.08), Some(0.1)));
    assert_eq!((median.candidate.over_s, median.candidate.most_s), (Some(0.25), Some(0.5)));
    assert_eq!((median.verdict, row(0.95).verdict), (ChangeVerdict::Regressed, ChangeVerdict::Regressed));
    let mean = found.means.iter().find(|row| row.metric == "ttft").expect("a mean");
    assert!(
        mean.base[1] < 0.12 && 0.12 < mean.base[2] && mean.candidate[1] < 0.4 && 0.4 < mean.candidate[2],
        "{mean:?}"
    );
    assert_eq!(compared(&slower, &base, false).verdict, ChangeVerdict::Improved);
}

#[test]
fn another_load_leaves_it_open_unless_it_is_told_otherwise() {
    let (base, busier) = (stretch(1, (3.0, 0.12), 1800), stretch(2, (6.0, 0.4), 1800));
    let found = compared(&base, &busier, false);
    assert_eq!(found.verdict, ChangeVerdict::Inconclusive);
    assert!(found.load.iter().any(|row| !row.alike && row.about.contains("per second")), "{:?}", found.load);
    assert_eq!(compared(&base, &busier, true).verdict, ChangeVerdict::Regressed);
}
