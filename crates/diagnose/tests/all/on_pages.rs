//! Diagnosis of live traffic from hand-written counters.

use plimsoll_diagnose::Cause;
use plimsoll_diagnose::gauges::LevelGauges;
use plimsoll_diagnose::pages::diagnose;
use plimsoll_measure::server_side::{SCRAPE, ServerSide};
use plimsoll_model::{At, Sample, Span};

/// Per request: prompt tokens, cached prompt tokens, and time to first token in s.
type Asked = (f64, f64, f64);

/// Returns a scrape every 5 s with a request per second: five minutes of the first kind, then of the second.
fn stretches(before: Asked, now: Asked) -> [LevelGauges; 2] {
    let (mut rows, mut sums) = (Vec::new(), [0.0; 4]);
    for second in 0..=600 {
        let (prompt, cached, first_s) = if second < 300 { before } else { now };
        // Lengths vary by a tenth.
        let times = 0.9 + 0.05 * f64::from(second % 5);
        sums = [sums[0] + prompt * times, sums[1] + cached * times, sums[2] + first_s * times, sums[3] + 1.0];
        if second % 5 == 0 {
            let [prompts, hits, first, requests] = sums;
            rows.extend(
                [
                    (SCRAPE, "", 8.0),
                    ("vllm:prompt_tokens_total", "", prompts),
                    ("vllm:prefix_cache_queries_total", "", prompts),
                    ("vllm:prefix_cache_hits_total", "", hits),
                    ("vllm:request_success_total", "finished_reason=stop", requests),
                    ("vllm:time_to_first_token_seconds_bucket", "le=2.5", requests),
                    ("vllm:time_to_first_token_seconds_bucket", "le=+Inf", requests),
                    ("vllm:time_to_first_token_seconds_sum", "", first),
                    ("vllm:time_to_first_token_seconds_count", "", requests),
                ]
                .map(|(name, labels, value)| Sample {
                    at: At(i64::from(second) * 1_000_000_000),
                    source: "server".into(),
                    name: name.into(),
                    labels: labels.into(),
                    value,
                }),
            );
        }
    }
    let side = ServerSide::read(&rows);
    let at = |seconds: i64| At(seconds * 1_000_000_000);
    [(5, 290), (305, 600)].map(|(from, to)| LevelGauges::between(side.clone(), (at(from), at(to))))
}

fn causes(before: Asked, now: Asked) -> Vec<Cause> {
    let [before, now] = stretches(before, now);
    diagnose(&now, Some(&before)).verdicts.iter().map(|verdict| verdict.cause).collect()
}

/// Prompts that are a quarter longer by unshared tokens have an unchanged number of cached tokens and a smaller
/// cached share. That was reported as a lost cache.
#[test]
fn longer_prompts_are_no_lost_cache() {
    assert_eq!(causes((2000.0, 800.0, 0.1), (2500.0, 800.0, 0.15)), [Cause::LongerPrompts]);
    assert_eq!(causes((2000.0, 800.0, 0.1), (2000.0, 300.0, 0.15)), [Cause::PrefixCacheLoss]);
    // With longer prompts and a lost cache, both are reported.
    let both = causes((2000.0, 800.0, 0.1), (2500.0, 100.0, 0.2));
    assert!(both.contains(&Cause::PrefixCacheLoss), "{both:?}");
}

/// Returns the causes for three replicas with ten tokens per second each. After five minutes the second stalls for
/// `stands_s` with its requests. The incident lasts from `since_s` for `for_s`, compared with the five minutes
/// before; requests that waited are counted when the stall ends.
fn fleet(stands_s: i64, (since_s, for_s): (i64, i64)) -> Vec<Cause> {
    let (mut rows, mut counted) = (Vec::new(), [[0.0; 3]; 3]);
    let told = since_s.max(305 + stands_s);
    let late = told..told + 60;
    for second in 0..=since_s + for_s {
        let at = At(second * 1_000_000_000);
        for (replica, [requests, tokens, first]) in counted.iter_mut().enumerate() {
            let stands = replica == 1 && (305..305 + stands_s).contains(&second);
            if !stands {
                let late = if replica == 1 && late.contains(&second) { stands_s as f64 / 10.0 } else { 0.0 };
                (*requests, *tokens, *first) = (*requests + 1.0, *tokens + 10.0, *first + 0.1 + late);
            }
            let mut row = |name: &str, labels: &str, value: f64| {
                let labels = format!("{labels}source=pod-{replica}").into();
                rows.push(Sample { at, source: "server".into(), name: name.into(), labels, value });
            };
            if second % 5 == 0 {
                row(SCRAPE, "", 8.0);
                row("vllm:num_requests_running", "", if stands { 9.0 } else { 2.0 });
                row("vllm:num_requests_waiting", "", 0.0);
                row("vllm:generation_tokens_total", "", *tokens);
                row("vllm:request_success_total", "finished_reason=stop,", *requests);
                row("vllm:time_to_first_token_seconds_bucket", "le=+Inf,", *requests);
                row("vllm:time_to_first_token_seconds_sum", "", *first);
                row("vllm:time_to_first_token_seconds_count", "", *requests);
            }
        }
    }
    let side = ServerSide::read(&rows);
    let at = |seconds: i64| At(seconds * 1_000_000_000);
    let before = LevelGauges::between(side.clone(), (at(5), at(300)));
    let read = (Span::from_secs(5), at(0));
    let now = LevelGauges::of_incident(side, (at(since_s), at(since_s + for_s)), read);
    diagnose(&now, Some(&before)).verdicts.iter().map(|verdict| verdict.cause).collect()
}

/// A ceiling broken by the stall was attributed to routing, because the other replicas take over the load.
#[test]
fn a_replica_that_stands_still_is_to_blame() {
    assert_eq!(fleet(100, (305, 120))[0], Cause::BadReplica);
    assert!(!fleet(0, (305, 120)).contains(&Cause::BadReplica));
}

/// Requests that waited are late after the replica resumes, so it counts as the cause for a minute and no longer.
#[test]
fn a_replica_that_stood_still_is_to_blame_for_a_minute_after() {
    for for_s in [61, 74, 120] {
        for after_s in [5, 20, 40, 55] {
            let found = fleet(60, (365 + after_s, for_s));
            assert_eq!(found.first(), Some(&Cause::BadReplica), "{after_s} s after, {for_s} s long");
        }
        for after_s in [120, 600] {
            let found = fleet(60, (365 + after_s, for_s));
            assert!(!found.contains(&Cause::BadReplica), "{after_s} s after, {for_s} s long");
        }
    }
    // No longer than the usual waits for a token.
    assert!(!fleet(20, (345, 120)).contains(&Cause::BadReplica));
}

/// If output tokens are counted at the end of a response, its steps or token gaps show the progress.
#[test]
fn who_counts_tokens_at_the_end_does_not_stand_still() {
    let writes = |comes: Option<&str>| {
        let mut rows = Vec::new();
        for second in (0..=120).step_by(5) {
            let mut row = |name: &str, value: f64| {
                let at = At(second * 1_000_000_000);
                rows.push(Sample {
                    at,
                    source: "server".into(),
                    name: name.into(),
                    labels: "".into(),
                    value,
                });
            };
            row(SCRAPE, 3.0);
            row("llamacpp:requests_processing", 1.0);
            row("llamacpp:tokens_predicted_total", if second > 100 { 900.0 } else { 0.0 });
            comes.into_iter().for_each(|name| row(name, 10.0 * second as f64));
        }
        let stretch = (At(10_000_000_000), At(100_000_000_000));
        LevelGauges::between(ServerSide::read(&rows), stretch).on_pages()[0].writes.clone()
    };
    assert!(writes(Some("llamacpp:n_decode_total")).iter().all(|writes| *writes == Some(true)));
    assert!(writes(None).iter().all(|writes| *writes == Some(false)));
}

/// A restart before the interval does not count.
#[test]
fn restarts_are_counted_in_their_own_stretch() {
    let rows = (0..60).map(|k| Sample {
        at: At(k * 5_000_000_000),
        source: "server".into(),
        name: "vllm:generation_tokens_total".into(),
        labels: Default::default(),
        value: if k < 20 { 1000.0 } else { 0.0 } + k as f64,
    });
    let side = ServerSide::read(&rows.collect::<Vec<_>>());
    let restarts = |from_s: i64, to_s: i64| {
        let (from, to) = (At(from_s * 1_000_000_000), At(to_s * 1_000_000_000));
        LevelGauges::between(side.clone(), (from, to)).restarts()
    };
    assert_eq!([restarts(0, 290), restarts(90, 110), restarts(0, 95), restarts(110, 290)], [1, 1, 0, 0]);
}
