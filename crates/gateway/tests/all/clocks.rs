//! The wall clock may be wrong or change while requests pass: only the monotonic clock matters.

use std::fs;
use std::path::Path;

use plimsoll_client::Clock;
use plimsoll_model::Span;
use plimsoll_policy::PageStanding;

use crate::kit::{Act, Mock, ask, is_empty, started, until};

/// The replica's clock reads 2094, and it requests a pause of 20 s by its clock. Gateways with a clock in 1970, today
/// and 2096 treat it equally.
#[test]
fn what_the_wall_clock_reads_decides_nothing() {
    let sheds = Act::Status(
        429,
        "date: Sat, 06 Nov 2094 08:49:37 GMT\r\nretry-after: Sat, 06 Nov 2094 08:49:57 GMT\r\n",
    );
    let clock = Clock::start();
    for realtime_ns in [0, clock.anchor().realtime_ns, 4_000_000_000_000_000_000] {
        let (a, b) = (Mock::new(sheds.clone()), Mock::new(sheds.clone()));
        a.shows(Act::Metrics(1, 0));
        let gateway = started(&[&a, &b], Clock::start().with_realtime(realtime_ns), None, |spec| {
            spec.retry.most = 0;
        });
        let answer = ask(&gateway);
        assert_eq!((answer.status, answer.header("x-plimsoll-queue-ms")), (429, Some("0")));
        let penalty = gateway.pool.shown().0.iter().map(|shown| shown.penalty).max().expect("two");
        assert!(penalty > Span::from_secs(5) && penalty <= Span::from_secs(20), "{realtime_ns}: {penalty:?}");
        [&a, &b].iter().for_each(|mock| mock.set(Act::Answer));
        assert!((0..20).all(|_| ask(&gateway).status == 200), "{realtime_ns}");
        until("a page is read", || gateway.pool.shown().0[0].page.standing == PageStanding::Believed);
        is_empty(&gateway);
    }
}

/// Neither this crate nor the policies read the wall clock after the start, so a clock adjustment has no effect.
#[test]
fn nobody_reads_the_wall_clock() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut left = vec![crates.join("gateway/src"), crates.join("policy/src")];
    let mut files = 0;
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        files += 1;
        let text = fs::read_to_string(&path).expect("a source");
        for name in ["SystemTime", "realtime_ns()", "at_unix", "CLOCK_REALTIME", "Ties"] {
            assert!(!text.contains(name), "{}: {name}", path.display());
        }
    }
    assert!(files > 50, "{files}");
}
