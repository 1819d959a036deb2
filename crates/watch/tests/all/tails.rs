//! Tail ratios: the proofs from buckets match the requests behind them.

use plimsoll_model::At;
use plimsoll_watch::RowState;

use crate::watched::{Page, watched};

/// Returns the row after five minutes of ten requests/s, one in `nth` of which takes `slow_s` seconds.
fn row(most: f64, nth: usize, slow_s: f64) -> plimsoll_watch::WatchRow {
    let budget =
        format!(r#"{{"id": "tail", "metric": "ttft_tail_ratio", "max": {most}, "scope": "engine"}}"#);
    let (mut watched, mut page) = (watched(&budget), Page::default());
    for at in 0..=300i64 {
        for k in 0..10 {
            let is_slow = (at as usize * 10 + k).is_multiple_of(nth);
            page.ttft.push(if is_slow { slow_s } else { 0.061 + 0.001 * k as f64 });
        }
        page.running = 3.0;
        if at % 5 == 0 {
            page.samples("", at).iter().for_each(|sample| watched.push(sample));
            watched.tick(At(at * 1_000_000_000));
        }
    }
    watched.finding(At(300_000_000_000)).rows.remove(0)
}

/// The median is 66 ms, in the bucket from 60 to 80 ms.
#[test]
fn a_ratio_is_judged_by_the_edges_that_hold_the_median() {
    // One in twenty takes 900 ms: 13.7 times the median, and certainly over 750 / 80 = 9.4 times.
    let broken = row(5.0, 20, 0.9);
    assert_eq!(broken.state, RowState::Broken, "{broken:?}");
    assert!(broken.why.contains("9.375 to 16.67 times p50 (3000 requests), 5 allowed"), "{}", broken.why);
    // Within 20 times for any median: at most 1 s over 60 ms.
    assert_eq!(row(20.0, 20, 0.9).state, RowState::Holds);
    // 13 times is in between: the true ratio is over it, and the buckets do not prove it.
    let open = row(13.0, 20, 0.9);
    assert_eq!(open.state, RowState::CannotTell, "{open:?}");
    // One in a thousand does not affect the p99.
    assert_eq!(row(5.0, 1000, 0.9).state, RowState::Holds);
}

#[test]
fn a_page_without_the_histogram_says_nothing_of_it() {
    let mut watched = watched(r#"{"id": "tail", "metric": "e2e_tail_ratio", "max": 3}"#);
    let page = Page { ttft: vec![0.1; 10], ..Page::default() };
    for at in [0, 5, 10] {
        page.samples("", at).iter().for_each(|sample| watched.push(sample));
        watched.tick(At(at * 1_000_000_000));
    }
    assert_eq!(watched.finding(At(10_000_000_000)).rows[0].state, RowState::Absent);
}
