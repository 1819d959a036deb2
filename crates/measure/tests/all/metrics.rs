//! Metrics compared with values calculated by hand from their definitions.

use plimsoll_measure::findings::{Percentiles, Reading};
use plimsoll_measure::{LevelFinding, summarise};
use plimsoll_model::{Attempt, Broken, By, EventKind, How, Outcome, TokensRule};

use plimsoll_lab::records::{MS, answer, broken, event, failure, level};

/// Returns a thousand requests, one every 10 ms, made from their number.
fn thousand(make: impl Fn(u64) -> Attempt) -> Vec<Attempt> {
    (0..1_000).map(make).collect()
}

fn value(reading: &Reading) -> f64 {
    reading.value().unwrap_or_else(|| panic!("refused: {reading:?}"))
}

fn check(set: Option<&Percentiles>, n: u64, p50_s: f64) {
    let set = set.expect("the metric exists");
    assert_eq!(set.n, n, "{}", set.metric);
    assert!((value(&set.p50) - p50_s).abs() < 1e-9, "{} p50 {:?}", set.metric, set.p50);
}

#[test]
fn every_latency_by_its_definition() {
    // Sent 2 ms late; first byte at 20 ms, reasoning at 30 ms, visible at 50 ms, last of 5 tokens at 110 ms, end at 120.
    let records = thousand(|i| {
        let mut a = answer(i, 10 * i as i64, 30, 110, 5);
        let at = |ms: i64| Some(plimsoll_model::At(a.due.0 + ms * MS));
        (a.sent, a.first_byte, a.first_visible, a.end) = (at(2), at(20), at(50), at(120));
        a
    });
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    let latency = &summary.latency;
    check(latency.ttft.as_ref(), 1_000, 0.030);
    check(latency.ttft_after_send.as_ref(), 1_000, 0.028);
    check(Some(&latency.ttfb), 1_000, 0.020);
    check(latency.ttfot.as_ref(), 1_000, 0.050);
    check(Some(&latency.e2e), 1_000, 0.120);
    check(Some(&latency.e2e_after_send), 1_000, 0.118);
    check(latency.tpot.as_ref(), 1_000, 0.020);
    check(latency.ntpot.as_ref(), 1_000, 0.024);
    check(latency.event_gap.as_ref(), 4_000, 0.020);
    let itl = latency.itl.as_ref().expect("tokens per event are known");
    check(Some(&itl.percentiles), 4_000, 0.020);
    assert_eq!((itl.rule, itl.exact_share), (TokensRule::UsageTotal, 1.0));
    assert!((summary.rates.offered_per_s - 100.0).abs() < 1e-9);
    // 988 ends lie before the 10 s are over: the last 12 requests are due from 9.88 s on and end 0.12 s later.
    assert!((value(&summary.rates.achieved_per_s) - 98.8).abs() < 1e-9);
    let tokens = summary.rates.output_tokens_per_s.as_ref().map(value);
    assert!((tokens.expect("tokens") - 5.0 * 98.8).abs() < 1e-6);
    assert!((value(summary.rates.tokens_per_s_per_user.as_ref().expect("streams")) - 50.0).abs() < 1e-6);
    // 100/s that stay 0.12 s each: 12 in flight, but for the first eleven steps of 10 ms, when 11, 10, … 1 are missing.
    assert!((summary.concurrency.mean - (12.0 - 0.066)).abs() < 1e-6, "{}", summary.concurrency.mean);
    assert_eq!(summary.concurrency.max, 12);
}

/// Metrics without a column are computed from others, which stay empty while no value differs: here values differ in the second half.
#[test]
fn latencies_are_those_of_each_last_attempt() {
    let after = |a: &Attempt, ms: i64| Some(plimsoll_model::At(a.due.0 + ms * MS));
    let last: Vec<Attempt> = (0..1_000u64)
        .map(|i| {
            let mut a = answer(i, 10 * i as i64, 30 + i as i64 % 7, 110, 5);
            if i >= 500 {
                a.first_visible = after(&a, 40 + i as i64 % 11);
                a.sent = after(&a, i as i64 % 4);
            }
            a.attempt = u16::from(i % 50 == 7);
            a
        })
        .collect();
    let first = last
        .iter()
        .filter(|a| a.attempt == 1)
        .map(|a| Attempt { attempt: 0, ..failure(a.request, a.due.0 / MS, How::Shed, 1) });
    let mut records: Vec<Attempt> = last.iter().cloned().chain(first).collect();
    records.sort_by_key(|a| (a.end, a.request));
    let latency = summarise(&level(100.0, 10), &records, &[], None).latency;
    let mean = |of: &dyn Fn(&Attempt) -> i64| last.iter().map(of).sum::<i64>() as f64 / 1e9 / 1_000.0;
    let since = |from: Option<plimsoll_model::At>, to: Option<plimsoll_model::At>| {
        (to.expect("an instant") - from.expect("an instant")).0
    };
    for (set, of) in [
        (latency.ttft_after_send.as_ref(), mean(&|a| since(a.sent, a.first_token))),
        (latency.ttfot.as_ref(), mean(&|a| since(Some(a.due), a.first_visible))),
        (Some(&latency.e2e_after_send), mean(&|a| since(a.sent, a.end))),
        (latency.ntpot.as_ref(), mean(&|a| since(Some(a.due), a.end) / 5)),
    ] {
        let set = set.expect("the metric exists");
        let found = set.mean_finite_s.expect("there are some");
        assert!(set.n == 1_000 && (found - of).abs() < 1e-9, "{}: {found} {of}", set.metric);
    }
}

#[test]
fn failures_keep_their_place_in_the_tail() {
    // Every 50th request is refused after a millisecond: fast, and ranked last.
    let records = thousand(|i| {
        if i % 50 == 49 {
            failure(i, 10 * i as i64, How::Shed, 1)
        } else {
            answer(i, 10 * i as i64, 30, 110, 5)
        }
    });
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    for set in summary.latency.all() {
        if matches!(set.metric.as_str(), "event_gap" | "itl") {
            // No response streamed, so there is no open gap.
            assert_eq!(set.infinite, 0);
            continue;
        }
        assert_eq!((set.n, set.infinite), (1_000, 20), "{}", set.metric);
        assert_eq!(set.max_s, Some(f64::INFINITY), "{}", set.metric);
        let p95 = set.p95.estimate().expect("shown");
        assert!(p95.value.is_finite() && p95.lower.is_finite());
    }
    // 2 % fail, so p99 is infinite whatever is shown of it.
    let p99 = &summary.latency.e2e.p99;
    assert!(p99.value().is_none_or(|v| v == f64::INFINITY), "{p99:?}");
    assert_eq!((summary.counts.finished, summary.counts.failed), (980, 20));
    assert_eq!(summary.counts.by_outcome[&How::Shed], 20);
    assert!((summary.counts.error_rate.expect("requests").value - 0.02).abs() < 1e-12);
}

/// Speech of 2 s that takes 500 ms has a factor of 0.25. Every 50th request fails, and every second one has no audio at all.
#[test]
fn the_real_time_factor_is_the_time_per_second_of_audio() {
    let records = thousand(|i| {
        let mut record = match i % 50 {
            48 | 49 => failure(i, 10 * i as i64, How::Shed, 1),
            _ => answer(i, 10 * i as i64, 30, 500, 5),
        };
        record.class = (i % 2) as u16;
        if record.class == 0 && record.outcome.is_finished() {
            record.media.audio_ms = 2_000;
        }
        record
    });
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    let rtf = summary.latency.rtf.as_ref().expect("audio");
    // The failures of the class without audio are none of speech.
    assert_eq!((rtf.n, rtf.infinite, rtf.max_s), (500, 20, Some(f64::INFINITY)));
    check(Some(rtf), 500, 0.25);
    // If all requests fail, none is known to be silent, and a limit on the factor is broken.
    let failed = thousand(|i| failure(i, 10 * i as i64, How::Shed, 1));
    let columns = plimsoll_measure::columns::Columns::read(&failed.iter().collect::<Vec<_>>());
    assert!(
        columns.rtf.len() == 1_000 && columns.rtf.iter().all(|ns| *ns == plimsoll_measure::columns::INFINITE)
    );
    // Of compressed audio the length is unknown, which is no factor of zero.
    let unknown = thousand(|i| answer(i, 10 * i as i64, 30, 500, 5));
    assert_eq!(summarise(&level(100.0, 10), &unknown, &[], None).latency.rtf, None);
}

/// A voice assistant: a text of 5 tokens, then its speech, which has a first sample and no tokens. Each stage has half the requests.
#[test]
fn speech_in_a_chain_adds_no_output_tokens() {
    let records = thousand(|i| {
        let mut record = answer(i, 10 * i as i64, 30, 110, 5);
        record.class = (i % 2) as u16;
        if record.class == 1 {
            (record.asked_output, record.media.audio_ms) = (0, 2_000);
            (record.answer.tokens.output, record.answer.tokens.rule) = (None, TokensRule::Unknown);
        }
        record
    });
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    let tokens = summary.rates.output_tokens_per_s.as_ref().map(value).expect("the texts have tokens");
    // The texts are due from 0 to 9.88 s, every 20 ms: 495 of them end within the 10 s, with 5 tokens each.
    assert!((tokens - 5.0 * 49.5).abs() < 1e-9, "{tokens}");
    assert_eq!((summary.rates.tokens_from.as_str(), summary.records.output_unknown), ("usage", 0));
    // A first sample that never came is still missed.
    assert_eq!((summary.records.streamed, summary.records.first_token_missing), (1_000, 0));
}

#[test]
fn what_does_not_exist_is_absent_and_never_zero() {
    let single = thousand(|i| answer(i, 10 * i as i64, 30, 30, 1));
    let summary = summarise(&level(100.0, 10), &single, &[], None);
    assert!(summary.latency.tpot.is_none() && summary.latency.event_gap.is_none());
    // Half of them have two tokens in one event: both at one instant, so that no time per token exists.
    let lumps = thousand(|i| {
        let mut a = answer(i, 10 * i as i64, 30, 110, 5);
        if i % 2 == 0 {
            (a.last_token, a.events) = (a.first_token, vec![event(30, 5)]);
        }
        a
    });
    let summary = summarise(&level(100.0, 10), &lumps, &[], None);
    let tpot = summary.latency.tpot.as_ref().expect("half have it");
    assert_eq!((tpot.n, tpot.absent), (500, 500));
    assert!((value(&tpot.p50) - 0.020).abs() < 1e-9);
    // Whole bodies: no first token anywhere.
    let bodies = thousand(|i| {
        let mut a = answer(i, 10 * i as i64, 30, 110, 5);
        (a.first_token, a.first_visible, a.last_token) = (None, None, None);
        a.events = vec![plimsoll_model::Event { kind: EventKind::Body, ..event(110, 0) }];
        a
    });
    let summary = summarise(&level(100.0, 10), &bodies, &[], None);
    assert!(summary.latency.ttft.is_none() && summary.latency.ttfot.is_none());
    assert_eq!(summary.latency.leading().metric, "e2e");
}

#[test]
fn events_of_several_tokens_give_gaps_of_zero_within() {
    // 3 tokens at 30 ms, 2 at 50 ms: one gap of 20 ms and three of zero.
    let records = thousand(|i| {
        let mut a = answer(i, 10 * i as i64, 30, 50, 5);
        a.events = vec![event(30, 3), event(50, 2)];
        a
    });
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    check(summary.latency.event_gap.as_ref(), 1_000, 0.020);
    let itl = summary.latency.itl.as_ref().expect("known");
    check(Some(&itl.percentiles), 4_000, 0.0);
    assert!((itl.exact_share - 0.25).abs() < 1e-12);
    assert!((value(&itl.percentiles.p90) - 0.020).abs() < 1e-9);
    // Unknown tokens per event: there is no figure per token.
    let unknown = thousand(|i| {
        let mut a = answer(i, 10 * i as i64, 30, 50, 5);
        a.answer.tokens.rule = TokensRule::Unknown;
        a
    });
    assert!(summarise(&level(100.0, 10), &unknown, &[], None).latency.itl.is_none());
}

#[test]
fn a_request_is_its_last_attempt() {
    // Each request is shed immediately, retried 40 ms later and answered 30 ms after that; its due time is unchanged.
    let records: Vec<Attempt> = (0..2_000u64)
        .rev()
        .map(|k| {
            let (i, again) = (k / 2, k % 2 == 1);
            let due = 10 * i as i64;
            if !again {
                return failure(i, due, How::Shed, 1);
            }
            let mut a = answer(i, due, 70, 90, 2);
            (a.attempt, a.sent) = (1, Some(plimsoll_model::At((due + 40) * MS)));
            a
        })
        .collect();
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    assert_eq!((summary.counts.requests, summary.counts.attempts), (1_000, 2_000));
    assert_eq!((summary.counts.failed, summary.counts.amplification), (0, 2.0));
    assert_eq!(summary.counts.attempts_by_outcome[&How::Shed], 1_000);
    check(summary.latency.ttft.as_ref(), 1_000, 0.070);
    check(summary.latency.ttft_after_send.as_ref(), 1_000, 0.030);
}

#[test]
fn readers_who_leave_are_no_failures_and_broken_answers_are() {
    let records = thousand(|i| match i % 10 {
        0 => {
            let mut a = answer(i, 10 * i as i64, 30, 60, 2);
            a.outcome = Outcome::new(How::Cancelled, By::Client, false);
            a
        }
        1 => broken(answer(i, 10 * i as i64, 5, 5, 1), Broken::Empty),
        2 => broken(answer(i, 10 * i as i64, 30, 40, 2), Broken::CutShort),
        _ => answer(i, 10 * i as i64, 30, 110, 5),
    });
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    let counts = &summary.counts;
    assert_eq!(
        (counts.cancelled, counts.broken[&Broken::Empty], counts.broken[&Broken::CutShort]),
        (100, 100, 100)
    );
    // 200 broken of the 900 that were not cancelled.
    assert!((counts.error_rate.expect("requests").value - 200.0 / 900.0).abs() < 1e-12);
    // Cancelled: the first token counts, the end does not exist. Empty: no answer at all.
    let ttft = summary.latency.ttft.as_ref().expect("streams");
    assert_eq!((ttft.n, ttft.absent, ttft.infinite), (1_000, 0, 100));
    assert_eq!((summary.latency.e2e.n, summary.latency.e2e.absent), (900, 100));
}

#[test]
fn too_few_requests_are_refused_by_name() {
    let few: Vec<Attempt> =
        (0..150).map(|i| answer(i, 60 * i as i64, 30 + (i * 7 % 13) as i64, 110, 5)).collect();
    let summary = summarise(&level(16.0, 9), &few, &[], None);
    let ttft = summary.latency.ttft.as_ref().expect("streams");
    assert!(ttft.p50.estimate().is_some());
    match &ttft.p99 {
        Reading::Refused { why, n, .. } => {
            assert!(why.contains("1000") && *n == 150, "{why}");
        }
        shown => panic!("150 requests cannot show a p99: {shown:?}"),
    }
}

#[test]
fn findings_survive_json() {
    let records = thousand(|i| {
        if i % 4 == 3 {
            failure(i, 10 * i as i64, How::Timeout, 5)
        } else {
            answer(i, 10 * i as i64, 30, 110, 5)
        }
    });
    let level = level(100.0, 10);
    let summary = summarise(&level, &records, &[], Some(&plimsoll_measure::findings::BudgetSpec::default()));
    let validity = plimsoll_measure::validity::judge(&level, &summary);
    let finding = LevelFinding { summary, validity };
    let text = serde_json::to_string(&finding).expect("serialises");
    assert!(text.contains("\"inf\""));
    let back: LevelFinding = serde_json::from_str(&text).expect("reads back");
    let (written, read) = (serde_json::to_value(&finding), serde_json::to_value(&back));
    assert!(same(&written.expect("a value"), &read.expect("a value")));
    assert_eq!(back.summary.latency.e2e.p99.value(), Some(f64::INFINITY));
}

/// Returns whether two values are equal except for the last bit of a number, which is the precision of reading decimals.
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (a, b) {
        (Number(a), Number(b)) => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-15 * a.abs(),
            _ => a == b,
        },
        (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Object(a), Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, a)| b.get(k).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

#[test]
fn rows_of_batches_are_items_and_no_tokens() {
    // 100/s of four rows each for 20 s: 400 items/s, and no token figures.
    let records: Vec<Attempt> = (0..2_000)
        .map(|i| {
            let mut whole = answer(i, 10 * i as i64, 5, 5, 0);
            (whole.first_token, whole.first_visible, whole.last_token) = (None, None, None);
            (whole.asked_prompt, whole.asked_output) = (4, 0);
            whole.answer.tokens = plimsoll_model::Tokens::default();
            whole
        })
        .collect();
    let level = plimsoll_model::Level { unit: plimsoll_model::SizeUnit::Items, ..level(100.0, 20) };
    let summary = summarise(&level, &records, &[], None);
    let rates = &summary.rates;
    let items = rates.items_per_s.as_ref().and_then(|r| r.value()).expect("items are counted");
    assert!((items - 400.0).abs() < 1e-6, "{items}");
    assert!(rates.input_tokens_per_s.is_none() && rates.output_tokens_per_s.is_none());
    assert!(rates.total_tokens_per_s.is_none() && summary.latency.ttft.is_none());
    assert_eq!((summary.lengths.unit, summary.lengths.prompt.asked_mean), (level.unit, 4.0));
    assert_eq!(summary.latency.leading().metric, "e2e");
}

/// The second of two endpoints gets the odd requests, is three times as slow and refuses every 50th.
///
/// Its figures are those of its requests only.
#[test]
fn endpoints_have_figures_of_their_own() {
    let records = thousand(|i| {
        let due = 10 * i as i64;
        let row = match (i % 2, i % 50) {
            (0, _) => answer(i, due, 30, 110, 5),
            (_, 49) => failure(i, due, How::Shed, 1),
            _ => answer(i, due, 90, 330, 5),
        };
        Attempt { target: (i % 2) as u16, ..row }
    });
    let summary = summarise(&level(100.0, 10), &records, &[], None);
    let [first, second] = summary.targets.as_slice() else { panic!("two endpoints: {:?}", summary.targets) };
    assert_eq!((first.target, first.of.requests, first.of.finished, first.of.failed), (0, 500, 500, 0));
    assert_eq!((second.target, second.of.requests, second.of.finished, second.of.failed), (1, 500, 480, 20));
    assert_eq!(second.of.by_outcome, [(How::Finished, 480), (How::Shed, 20)].into());
    check(first.of.ttft.as_ref(), 500, 0.030);
    check(first.of.tpot.as_ref(), 500, 0.020);
    check(first.of.e2e.as_ref(), 500, 0.110);
    check(second.of.ttft.as_ref(), 500, 0.090);
    check(second.of.e2e.as_ref(), 500, 0.330);
    assert_eq!(second.of.e2e.as_ref().map(|set| set.infinite), Some(20));
    // Of the first those due in the last 0.11 s end later: five. Of the second those due in the last 0.33 s: 17, of which one fails.
    assert!((value(&first.of.achieved_per_s) - 49.5).abs() < 1e-9, "{:?}", first.of.achieved_per_s);
    assert!((value(&second.of.achieved_per_s) - 46.4).abs() < 1e-9, "{:?}", second.of.achieved_per_s);
    let one: Vec<Attempt> = records.into_iter().map(|row| Attempt { target: 0, ..row }).collect();
    assert!(summarise(&level(100.0, 10), &one, &[], None).targets.is_empty());
}

/// Returns a response with 39 events, for which the server reports 9 tokens.
fn contradicted(i: u64) -> Attempt {
    let mut a = answer(i, 10 * i as i64, 30, 410, 39);
    (a.answer.tokens.output, a.answer.tokens.claimed) = (None, Some(9));
    a.answer.tokens.rule = TokensRule::Unknown;
    a
}

#[test]
fn figures_per_token_are_refused_where_counts_are_contradicted() {
    let level = level(100.0, 10);
    let summary = summarise(&level, &thousand(contradicted), &[], None);
    let latency = &summary.latency;
    for set in [&latency.tpot, &latency.ntpot] {
        assert!(set.as_ref().expect("named").p50.value().is_none());
    }
    assert!(latency.itl.is_none() && latency.ttft.is_some());
    assert!(summary.rates.output_tokens_per_s.as_ref().is_none_or(|rate| rate.value().is_none()));
    let validity = plimsoll_measure::validity::judge(&level, &summary);
    let said = validity.reasons.iter().find(|reason| reason.check == "token_counts").expect("a reason");
    assert!(said.figure.contains(" 9 output tokens for 39 events"), "{}", said.figure);
    // One in a hundred is left out without a remark.
    let few = thousand(|i| if i % 100 == 0 { contradicted(i) } else { answer(i, 10 * i as i64, 30, 110, 5) });
    let tpot = summarise(&level, &few, &[], None).latency.tpot.expect("known");
    assert_eq!((tpot.n, tpot.absent), (990, 10));
}

#[test]
fn answers_of_one_event_have_no_first_token_where_most_are() {
    let one_event = |i: u64| {
        let mut a = answer(i, 10 * i as i64, 60, 60, 1);
        (a.asked_output, a.answer.tokens.output) = (16, Some(16));
        a
    };
    let level = level(100.0, 10);
    let summary = summarise(&level, &thousand(one_event), &[], None);
    assert!(summary.latency.ttft.is_none() && summary.latency.ttfot.is_none());
    assert_eq!((summary.records.in_one_event, summary.records.multi_token), (1_000, 1_000));
    // Responses of one token stream. A few that arrive in one event do not change that.
    assert!(
        summarise(&level, &thousand(|i| answer(i, 10 * i as i64, 60, 60, 1)), &[], None)
            .latency
            .ttft
            .is_some()
    );
    let some = thousand(|i| if i % 4 == 0 { one_event(i) } else { answer(i, 10 * i as i64, 30, 110, 5) });
    let ttft = summarise(&level, &some, &[], None).latency.ttft.expect("streams");
    assert_eq!(ttft.n, 1_000);
}

#[test]
fn hidden_reasoning_is_outside_the_time_per_token() {
    let hides = |i: u64| {
        let mut a = answer(i, 10 * i as i64, 530, 610, 9);
        (a.answer.tokens.output, a.answer.tokens.reasoning) = (Some(59), Some(50));
        a
    };
    let summary = summarise(&level(100.0, 10), &thousand(hides), &[], None);
    check(summary.latency.tpot.as_ref(), 1_000, 0.010);
}
