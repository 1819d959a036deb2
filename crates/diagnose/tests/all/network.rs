//! Verdicts on the network (cause, cleared, undecided), from hand-written records with kernel statistics.

use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, Layer, RunData, diagnose};
use plimsoll_model::{At, Attempt, Fingerprint, Level, Span, TcpFacts};

use plimsoll_lab::records::{MS, answer, level};

/// Length of a run, s.
const SECONDS: i64 = 120;
/// Tokens per response, one every 25 ms.
const TOKENS: i64 = 40;

struct Run(Level, Vec<Attempt>);

/// Returns eight requests per second at uneven distances. `later` is the delay in ms before the first token and in
/// the middle of the response, and the kernel statistics of the connection.
fn run(later: impl Fn(u64) -> (i64, i64, TcpFacts)) -> Run {
    let mut attempts = Vec::new();
    for i in 0..(8 * SECONDS) as u64 {
        let due = 125 * i as i64 + (i as i64 * 37) % 90;
        let (first, pause, tcp) = later(i);
        let first = 80 + (i as i64 * 13) % 7 + first;
        let at = |k: i64| first + 25 * k + if k > 20 { pause } else { 0 };
        let mut row = answer(i, due, first, at(TOKENS - 1), TOKENS as u32);
        for (k, event) in row.events.iter_mut().enumerate() {
            event.offset = Span(at(k as i64) * MS);
        }
        row.sent = Some(At(due * MS));
        (row.connection, row.tcp) = (Some(1), tcp);
        attempts.push(row);
    }
    let mut level = level(8.0, SECONDS);
    level.arrivals = attempts.len() as u64;
    Run(level, attempts)
}

/// Returns a connection with this minimum round trip in ms.
fn far(rtt_ms: i64) -> TcpFacts {
    TcpFacts {
        rtt: Some(Span::from_millis(rtt_ms + 1)),
        rtt_var: Some(Span::from_millis(1)),
        rtt_min: Some(Span::from_millis(rtt_ms)),
        retransmits: Some(0),
        segments_out: Some(1),
        segments_in: Some(40),
        out_of_order: Some(0),
    }
}

/// Returns `far(1)` with a lost segment for every 25th response.
fn lossy(i: u64) -> TcpFacts {
    TcpFacts {
        out_of_order: Some(if i % 25 == 3 { 9 } else { 0 }),
        retransmits: Some(u32::from(i % 50 == 3)),
        ..far(1)
    }
}

fn ask(base: &Run, candidate: &Run) -> Diagnosis {
    let facts = Fingerprint::default();
    let side = |run| {
        let Run(level, attempts): &'static Run = Box::leak(Box::new(run));
        (std::slice::from_ref(level), attempts.as_slice())
    };
    let clone = |run: &Run| Run(run.0.clone(), run.1.clone());
    let ((before, old), (now, new)) = (side(clone(base)), side(clone(candidate)));
    let spec = DiagnoseSpec::default();
    let side = |levels, attempts| RunData { levels, attempts, samples: &[], facts: &facts };
    diagnose(&Case {
        candidate: side(now, new),
        baseline: Some(side(before, old)),
        budget: None,
        device: None,
        validity: None,
        spec: &spec,
    })
}

fn near() -> Run {
    run(|_| (0, 0, far(1)))
}

#[test]
fn a_longer_way_is_neither_the_model_nor_the_stack() {
    let diagnosis = ask(&near(), &run(|_| (30, 0, far(31))));
    let verdict = &diagnosis.verdicts[0];
    assert_eq!((verdict.layer, verdict.cause), (Layer::Network, Cause::LongerRoundTrip), "{}", verdict.says);
    assert!(verdict.says.contains("31") && verdict.says.contains("30"), "{}", verdict.says);
    assert_eq!(diagnosis.verdicts.len(), 1, "nothing is left: {:?}", diagnosis.verdicts);
}

/// A later response lets the peer's delayed acknowledgement run to its end, so the smoothed round trip rises too.
#[test]
fn a_slower_server_with_a_longer_smoothed_round_trip_is_no_network() {
    let delayed = TcpFacts { rtt: Some(Span::from_millis(40)), ..far(1) };
    let diagnosis = ask(&near(), &run(|_| (30, 0, delayed)));
    assert_ne!(diagnosis.verdicts[0].layer, Layer::Network, "{}", diagnosis.headline);
    let unknown = ask(&run(|_| (0, 0, TcpFacts::default())), &run(|_| (30, 0, TcpFacts::default())));
    assert_ne!(unknown.verdicts[0].layer, Layer::Network, "{}", unknown.headline);
    assert!(unknown.cleared.iter().all(|cleared| cleared.layer != Layer::Network), "unknown clears nobody");
}

#[test]
fn lost_packets_are_blamed_where_the_answers_that_lost_them_waited() {
    let waits = |i: u64| (0, if i % 25 == 3 { 900 } else { 0 }, lossy(i));
    let verdict = ask(&near(), &run(waits)).verdicts.remove(0);
    assert_eq!((verdict.layer, verdict.cause), (Layer::Network, Cause::PacketLoss), "{}", verdict.says);
    // An equal number of losses, while other requests waited.
    let others = |i: u64| (0, if i % 25 == 9 { 900 } else { 0 }, lossy(i));
    let diagnosis = ask(&near(), &run(others));
    assert_ne!(diagnosis.verdicts[0].cause, Cause::PacketLoss, "{}", diagnosis.headline);
}

#[test]
fn a_network_that_lost_nothing_and_is_near_is_cleared_with_its_figures() {
    let diagnosis = ask(&near(), &run(|_| (60, 0, far(1))));
    let cleared = diagnosis.cleared.iter().find(|cleared| cleared.layer == Layer::Network);
    let says = &cleared.unwrap_or_else(|| panic!("{diagnosis:#?}")).says;
    assert!(says.contains("0 of 960 segments retransmitted"), "{says}");
    let far_away = ask(&run(|_| (0, 0, far(50))), &run(|_| (60, 0, far(50))));
    assert!(
        far_away.cleared.iter().all(|cleared| cleared.layer != Layer::Network),
        "50 of 80 ms is no trifle"
    );
}
