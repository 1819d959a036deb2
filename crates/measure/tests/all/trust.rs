//! Validity: each check finds its fault, and overload itself is no fault of the measurement.

use plimsoll_measure::findings::{LevelFinding, Trust, Validity};
use plimsoll_measure::{summarise, validity};
use plimsoll_model::{
    At, Attempt, Broken, EndedBy, How, KeptConnections, Level, Load, Quantiles, RateCourse, Room, Span,
    StampSource,
};

use plimsoll_sim::{EngineSpec, SimLevelPlan, World, simulate_level};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

use plimsoll_lab::records::{MS, answer, broken, failure, level};

fn good(i: u64) -> Attempt {
    let mut stream = plimsoll_math::rng::Stream::new(i, "trust", 0);
    answer(i, 10 * i as i64, 100 + (40.0 * stream.uniform()) as i64, 300, 5)
}

fn judged(change: impl Fn(&mut Level), make: impl Fn(u64) -> Attempt) -> Validity {
    let mut level = level(100.0, 30);
    change(&mut level);
    let records: Vec<Attempt> = (0..3_000).map(make).collect();
    let summary = summarise(&level, &records, &[], None);
    validity::judge(&level, &summary)
}

fn check(name: &str, verdict: Trust, change: impl Fn(&mut Level), make: impl Fn(u64) -> Attempt) {
    let validity = judged(change, make);
    let reason = validity.reasons.iter().find(|reason| reason.check == name);
    assert_eq!(reason.map(|reason| reason.verdict), Some(verdict), "{name}: {validity:#?}");
    assert_eq!(validity.verdict, verdict, "{name}: {validity:#?}");
}

fn lag(p99_ms: i64) -> Quantiles {
    Quantiles { count: 3_000, p50_ns: MS / 10, p99_ns: p99_ms * MS, ..Quantiles::default() }
}

#[test]
fn a_quiet_level_is_valid() {
    let validity = judged(
        |level| {
            level.generator.lag = lag(1);
            level.generator.user_delay = lag(1);
            level.generator.cpu_share_max = Some(0.4);
            level.generator.run_queue_share_max = Some(0.01);
            (level.generator.events, level.generator.events_coalesced) = (15_000, 100);
        },
        good,
    );
    assert_eq!(validity.verdict, Trust::Valid, "{validity:#?}");
    assert!(validity.passed.len() >= 9, "{:?}", validity.passed);
}

#[test]
fn each_check_finds_its_fault() {
    check("schedule_lag", Trust::Suspect, |l| l.generator.lag = lag(20), good);
    check("schedule_lag", Trust::Invalid, |l| l.generator.lag = lag(80), good);
    check("user_delay", Trust::Suspect, |l| l.generator.user_delay = lag(40), good);
    check("run_queue", Trust::Suspect, |l| l.generator.run_queue_share_max = Some(0.3), good);
    check("run_queue", Trust::Invalid, |l| l.generator.run_queue_share_max = Some(0.6), good);
    let own_stamps = |level: &mut Level, share| {
        (level.generator.stamps, level.generator.run_queue_share_max) = (StampSource::User, Some(share));
    };
    check("run_queue", Trust::Invalid, |l| own_stamps(l, 0.3), good);
    let kernel = judged(|l| l.generator.run_queue_share_max = Some(0.1), good);
    assert_eq!(kernel.verdict, Trust::Valid, "the kernel's stamps do not wait for a CPU: {kernel:#?}");
    check("cpu", Trust::Suspect, |l| l.generator.cpu_share_max = Some(0.9), good);
    check("cpu", Trust::Invalid, |l| l.generator.cpu_share_max = Some(0.99), good);
    check("clock", Trust::Suspect, |l| l.generator.clock_steps = 1, good);
    check("closed_since", Trust::Suspect, |l| l.generator.closed_since = Some(At(MS)), good);
    check("ended", Trust::Suspect, |l| l.ended_by = EndedBy::User, good);
    // Resources of the machine for connections, and exhausted ones.
    let ran_out = |l: &mut Level, change: fn(&mut Room)| {
        let mut room = Room { descriptors: Some(1024), ports: Some(28_232), ..Room::default() };
        change(&mut room);
        l.generator.room = Some(room);
    };
    check("sockets", Trust::Suspect, |l| ran_out(l, |room| room.no_socket = 1), good);
    check("sockets", Trust::Invalid, |l| ran_out(l, |room| room.no_socket = 500), good);
    // The kernel's counter is that of the machine: a run is suspect if its requests waited for a second attempt.
    let overflows = |l: &mut Level| ran_out(l, |room| room.listen_overflows = Some(1));
    let turned_away = |i: u64| if i == 7 { answer(i, 10 * i as i64, 1_020, 1_060, 5) } else { good(i) };
    check("backlog", Trust::Suspect, overflows, turned_away);
    let others = judged(overflows, good);
    assert!(others.passed.iter().any(|p| p.check == "backlog"), "{others:#?}");
    let full = |l: &mut Level, sockets, connects| {
        ran_out(l, |_| {});
        (l.generator.sockets_max, l.generator.connects) = (sockets, connects);
    };
    check("descriptors", Trust::Suspect, |l| full(l, 860, 860), good);
    check("ports", Trust::Suspect, |l| full(l, 100, 27_000), good);
    let roomy = judged(|l| full(l, 800, 20_000), good);
    for check in ["sockets", "descriptors", "ports"] {
        assert!(roomy.passed.iter().any(|p| p.check == check), "{check}: {roomy:#?}");
    }
    // The target's handling of connections is reported and is no fault of the measurement.
    let kept = |told: KeptConnections| {
        let validity = judged(|l| l.generator.kept = Some(told), good);
        assert_eq!(validity.verdict, Trust::Valid, "{validity:#?}");
        validity.passed.into_iter().find(|p| p.check == "kept_connections")
    };
    assert!(kept(KeptConnections::default()).is_none(), "nothing was checked");
    let stood = kept(KeptConnections { looks: 40, ..Default::default() }).expect("judged");
    assert_eq!((stood.figure.contains("40 checks"), stood.note), (true, None));
    let rest = Some(Span::from_millis(10));
    let ended = KeptConnections { looks: 97, ended: 45, lost: 3, rest, resting_since: Some(At(MS)) };
    let note = kept(ended).and_then(|passed| passed.note).expect("told");
    for part in ["48.0 %", "3 requests met the end", "rest 10"] {
        assert!(note.contains(part), "{part}: {note}");
    }
    check(
        "coalesced",
        Trust::Suspect,
        |l| (l.generator.events, l.generator.events_coalesced) = (15_000, 9_000),
        good,
    );
    check(
        "little",
        Trust::Invalid,
        |l| (l.generator.in_flight_mean, l.generator.in_flight_samples) = (Some(60.0), 3_000),
        good,
    );
}

/// 100 000 arrivals a millisecond apart, each served in 2.5 ms: 2 or 3 in flight, 2.5 on average.
///
/// A count every 100 ms, in step with the arrivals, would always be 2.
#[test]
fn evenly_spaced_arrivals_in_virtual_time_are_valid() {
    let spec: EngineSpec = serde_json::from_str(
        r#"{"name": "even", "mode": {"kind": "queue", "servers": 4, "service": {"law": "deterministic", "ms": 2.5}}}"#,
    )
    .expect("an engine");
    let mut scenario = Scenario { arrivals: ArrivalSpec::Constant, seed: 3, ..Scenario::default() };
    scenario.sizes.prompt = Size::Fixed(10);
    scenario.sizes.output = Size::Fixed(3);
    let load = Load::Open { rate_per_s: 1_000.0 };
    let plan = SimLevelPlan::new(&scenario, 0, load, At(0), Span::from_secs(100));
    let mut world = World::new(&spec, 1).expect("sound");
    let run = simulate_level(&mut world, &scenario, plan).expect("sound");
    assert_eq!(run.attempts.len(), 100_000);
    let summary = summarise(&run.level, &run.attempts, &run.samples, None);
    let validity = validity::judge(&run.level, &summary);
    assert_eq!(validity.verdict, Trust::Valid, "{validity:#?}");
    assert!(validity.passed.iter().any(|p| p.check == "little"), "{validity:#?}");
    let little = summary.concurrency.little.as_ref().expect("checked");
    assert!((little.sampled_mean - 2.5).abs() < 0.01, "{little:?}");
}

/// A counter that adds requests when they are sent does not include requests that wait in a late generator.
///
/// 100/s answered in 300 ms are 30 in flight from due to end. From sent to end they are 25 if each is sent 50 ms late.
#[test]
fn a_late_generator_loses_no_records() {
    let late = |i: u64| {
        let mut attempt = good(i);
        attempt.sent = Some(attempt.due + Span::from_millis(50));
        attempt
    };
    for counter in [25.0, 27.0, 30.0] {
        let counted = |l: &mut Level| {
            (l.generator.in_flight_mean, l.generator.in_flight_samples) = (Some(counter), 3_000);
        };
        let validity = judged(counted, late);
        assert!(validity.passed.iter().any(|p| p.check == "little"), "{counter}: {validity:#?}");
    }
    let counted = |l: &mut Level| {
        (l.generator.in_flight_mean, l.generator.in_flight_samples) = (Some(36.0), 3_000);
    };
    check("little", Trust::Suspect, counted, late);
}

/// A sweep of one minute drew a level without arrivals, and its headline gave the network as the cause, although the endpoint answered.
#[test]
fn a_level_without_arrivals_counts_for_nothing() {
    let finding = |records: &[Attempt], load| {
        let mut level = level(100.0, 30);
        (level.load, level.purpose) = (load, "curve".into());
        let summary = summarise(&level, records, &[], None);
        let validity = validity::judge(&level, &summary);
        LevelFinding { summary, validity }
    };
    let empty = finding(&[], Load::Open { rate_per_s: 0.244 });
    let reason = &empty.validity.reasons[0];
    assert_eq!((reason.check.as_str(), reason.verdict), ("arrivals", Trust::Invalid), "{reason:#?}");
    assert_eq!(reason.figure, "no arrival fell into this level");
    let records: Vec<Attempt> = (0..3_000).map(good).collect();
    let full = finding(&records, Load::Open { rate_per_s: 100.0 });
    let run = validity::judge_run(&[empty.clone(), full.clone(), empty.clone()]);
    assert_eq!(run, validity::judge_run(&[full.clone(), full]), "beside others it says nothing");
    assert_eq!(validity::judge_run(&[empty.clone(), empty]).verdict, Trust::Invalid, "nothing was measured");
}

#[test]
fn answers_are_looked_at() {
    let some = |share: u64, bad: fn(u64) -> Attempt| {
        move |i: u64| if i.is_multiple_of(share) { bad(i) } else { good(i) }
    };
    check("broken_answers", Trust::Suspect, |_| {}, some(20, |i| broken(good(i), Broken::CutShort)));
    check("errors", Trust::Suspect, |_| {}, some(20, |i| failure(i, 10 * i as i64, How::ServerError, 5)));
    check("reached", Trust::Invalid, |_| {}, some(1, |i| failure(i, 10 * i as i64, How::Refused, 1)));
    check("never_sent", Trust::Invalid, |_| {}, some(20, |i| failure(i, 10 * i as i64, How::NeverSent, 1)));
    check(
        "output_tokens",
        Trust::Suspect,
        |_| {},
        |i| {
            let mut a = good(i);
            a.asked_output = 8;
            a
        },
    );
}

#[test]
fn overload_is_a_result() {
    // A tenth joins the backlog: the level is overloaded, and it is a correct measurement of that.
    check(
        "steady_state",
        Trust::Suspect,
        |_| {},
        |i| answer(i, 10 * i as i64, 11 + i as i64, 11 + i as i64, 1),
    );
}

/// Arrivals slow down from one in 7 ms to one in 13 ms, with slower responses while they are dense.
///
/// There is no growing backlog, and the latency changes because the arrivals do. With a constant planned rate the records show
/// a drift.
#[test]
fn latency_that_follows_shaped_arrivals_is_no_suspicion() {
    let dense_first = |i: u64| {
        let n = i as i64;
        let mut stream = plimsoll_math::rng::Stream::new(i, "shaped", 0);
        let ttft = 160 - n / 50 + (40.0 * stream.uniform()) as i64;
        // 35 in flight throughout: latency is proportional to the gap.
        answer(i, 7 * n + n * n / 1_000, ttft, 35 * (7 + n / 500), 5)
    };
    let even = judged(|_| {}, dense_first);
    assert!(even.reasons.iter().any(|reason| reason.check == "steady_state"), "{even:#?}");
    let shaped = judged(|level| level.rate_course = RateCourse::Shaped, dense_first);
    // Another check reports that varying records describe a tail less well, and it stays.
    assert!(shaped.reasons.iter().all(|reason| reason.check == "samples"), "{shaped:#?}");
    let passed = shaped.passed.iter().find(|passed| passed.check == "steady_state").expect("it was checked");
    assert!(passed.note.as_ref().is_some_and(|note| note.contains("shape of the arrivals")), "{passed:?}");
    assert!(passed.figure.contains("moves by"), "the figure stays: {passed:?}");
    // A growing backlog is reported for any arrivals.
    check(
        "steady_state",
        Trust::Suspect,
        |level| level.rate_course = RateCourse::Shaped,
        |i| answer(i, 10 * i as i64, 11 + i as i64, 11 + i as i64, 1),
    );
}

/// A closed loop of thirty that was killed after 3 000 responses had thirty more in flight.
///
/// They may be the slowest of 3 030, so the upper 0.99 % is unknown. In an open loop they are redrawn from the schedule.
#[test]
fn a_killed_run_says_what_is_missing() {
    let reason = |validity: Validity| {
        let found = validity.reasons.into_iter().find(|reason| reason.check == "ended").expect("cut off");
        (found.figure, found.means)
    };
    let closed = |level: &mut Level| {
        (level.ended_by, level.load) = (EndedBy::Cut, Load::Closed { concurrency: 30 });
    };
    let (figure, means) = reason(judged(closed, good));
    assert!(figure.contains("the 30 requests in flight left no record"), "{figure}");
    assert!(means.contains("above p99.0 of all"), "{means}");
    let cut = |i: u64| if i < 2_993 { good(i) } else { failure(i, 10 * i as i64, How::Unfinished, 50) };
    let (figure, _) = reason(judged(|level| level.ended_by = EndedBy::Cut, cut));
    assert!(figure.contains("7 requests then in flight came from the schedule"), "{figure}");
}
