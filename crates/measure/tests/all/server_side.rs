//! Server metrics: known answers on small pages, as a scraper or a simulated server writes them.

use plimsoll_measure::server_side::{Bracket, PageLayout, ServerSide, Signal};
use plimsoll_model::{At, Sample, SeriesName, join_labels, split_labels};
use proptest::prelude::*;

const S: i64 = 1_000_000_000;

fn row(at_s: f64, name: &str, labels: &str, value: f64) -> Sample {
    let at = At((at_s * 1e9) as i64);
    Sample { at, source: "server".into(), name: name.into(), labels: labels.into(), value }
}

/// Returns a scrape each second from 0, with the values of these gauges.
fn page(rows: &[(&str, &str, &[f64])]) -> Vec<Sample> {
    let scrapes = rows.iter().map(|row| row.2.len()).max().unwrap_or(0);
    let mut samples: Vec<Sample> =
        (0..scrapes).map(|i| row(i as f64, "scrape_samples", "", rows.len() as f64)).collect();
    for (name, labels, values) in rows {
        samples.extend(values.iter().enumerate().map(|(i, value)| row(i as f64, name, labels, *value)));
    }
    samples
}

fn at(s: i64) -> At {
    At(s * S)
}

/// A single page uses the names, ranks and rules of a series over time.
#[test]
fn one_page_says_at_one_instant_what_its_series_say_over_time() {
    let rows: &[(&str, &str, &[f64])] = &[
        ("vllm:num_requests_running", "engine=0", &[3.0]),
        ("vllm:num_requests_running", "engine=1", &[4.0]),
        ("vllm:num_requests_waiting", "engine=0", &[2.0]),
        ("vllm:num_requests_waiting_by_reason", "engine=0,reason=capacity", &[7.0]),
        ("vllm:kv_cache_usage_perc", "engine=0", &[0.25]),
        ("vllm:kv_cache_usage_perc", "engine=1", &[0.75]),
        ("vllm:generation_tokens_total", "engine=0,source=its_own", &[100.0]),
        ("sglang:num_running_reqs", "tp_rank=1", &[90.0]),
        ("some_other_gauge", "", &[1.0]),
    ];
    let page: Vec<Sample> = page(rows).into_iter().filter(|row| row.name != "scrape_samples").collect();
    let said = ServerSide::said(&page);
    let expected = [
        (Signal::Running, 7.0),
        (Signal::Waiting, 2.0),
        (Signal::KvUsage, 0.75),
        (Signal::OutputTokens, 100.0),
    ];
    assert_eq!(said, expected.into());
    assert!(ServerSide::said(&[]).is_empty());
}

#[test]
fn a_queue_adds_up_and_the_fullest_cache_counts() {
    let server = ServerSide::read(&page(&[
        ("vllm:num_requests_waiting", "engine=0", &[0.0, 2.0, 4.0, 0.0]),
        ("vllm:num_requests_waiting", "engine=1", &[1.0, 0.0, 6.0, 0.0]),
        ("vllm:kv_cache_usage_perc", "engine=0", &[0.2, 0.9, 0.95, 0.1]),
        ("vllm:kv_cache_usage_perc", "engine=1", &[0.3, 0.5, 0.60, 0.4]),
    ]));
    let (waiting, kv) = (server.gauge(Signal::Waiting).unwrap(), server.gauge(Signal::KvUsage).unwrap());
    assert_eq!(waiting.mean(at(0), at(4)), Some((1.0 + 2.0 + 10.0) / 4.0));
    assert_eq!(waiting.max(at(0), at(4)), Some(10.0));
    assert_eq!(kv.at(at(1)), Some(0.9));
    assert_eq!(kv.share_given(at(0), at(4), |kv| kv >= 0.85, &waiting, |n| n > 0.0), Some(2.0 / 3.0));
    assert_eq!(kv.mean_given(at(0), at(4), &waiting, |n| n > 5.0), Some(0.95));
    let names: Vec<&str> = server.replicas().iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["0", "1"]);
    assert_eq!(server.gauge_of(1, Signal::Waiting).unwrap().max(at(0), at(4)), Some(6.0));
    assert_eq!(server.cadence().unwrap().0, S);
}

#[test]
fn what_is_not_said_is_unknown() {
    let server = ServerSide::read(&page(&[("vllm:num_requests_running", "", &[1.0, 1.0])]));
    assert!(server.gauge(Signal::Waiting).is_none());
    assert!(server.gained(Signal::Preempted, at(0), at(1)).is_none());
    assert!(server.histogram(Signal::QueueTime, at(0), at(1)).is_none());
    assert!(ServerSide::read(&[]).is_empty());
    // A client's counts are no server metric.
    let own = Sample { source: "client".into(), ..row(0.0, "vllm:num_requests_running", "", 3.0) };
    assert!(ServerSide::read(&[own]).is_empty());
}

/// vLLM counts prompt tokens by a label `source`: one page, read once a second. It was read as three pages with as many scrapes.
#[test]
fn a_label_of_the_servers_own_is_no_page() {
    let [cached, computed] = ["local_cache_hit", "local_compute"].map(|of| format!("source={of}"));
    let server = ServerSide::read(&page(&[
        ("vllm:num_requests_waiting", "", &[0.0, 2.0, 4.0, 0.0]),
        ("vllm:prompt_tokens_by_source_total", &cached, &[0.0, 1.0, 2.0, 3.0]),
        ("vllm:prompt_tokens_by_source_total", &computed, &[0.0, 5.0, 6.0, 7.0]),
    ]));
    assert_eq!(server.cadence().map(|cadence| cadence.0), Some(S));
    assert_eq!((server.disclosures().scrapes, server.replicas().len()), (4, 1));
}

#[test]
fn a_failed_look_and_an_empty_page_leave_gaps() {
    let mut samples = page(&[("vllm:num_requests_waiting", "", &[4.0, 4.0])]);
    samples.push(row(2.0, "scrape_failed", "why=timeout", 1.0));
    samples.push(row(3.0, "scrape_samples", "", 0.0));
    samples.push(row(4.0, "scrape_samples", "", 1.0));
    samples.push(row(4.0, "vllm:num_requests_waiting", "", 8.0));
    let server = ServerSide::read(&samples);
    let waiting = server.gauge(Signal::Waiting).unwrap();
    assert_eq!((waiting.at(at(1)), waiting.at(at(2)), waiting.at(at(3))), (Some(4.0), None, None));
    assert_eq!(waiting.at(at(4)), Some(8.0));
    assert_eq!(waiting.mean(at(0), at(5)), Some((4.0 + 4.0 + 8.0) / 3.0));
    assert!((waiting.known(at(0), at(5)) - 0.6).abs() < 1e-12);
    let told = server.disclosures();
    assert_eq!((told.scrapes, told.failed), (5, 2));
    assert_eq!(told.failures["timeout"], 1);
}

#[test]
fn rows_per_change_and_rows_per_look_say_the_same() {
    let full = ServerSide::read(&page(&[
        ("vllm:num_requests_waiting", "", &[4.0, 4.0, 4.0, 1.0]),
        ("vllm:num_preemptions_total", "", &[7.0, 7.0, 9.0, 9.0]),
    ]));
    let mut samples: Vec<Sample> = (0..4).map(|i| row(f64::from(i), "scrape_samples", "", 2.0)).collect();
    for (at, value) in [(0.0, 4.0), (3.0, 1.0)] {
        samples.push(row(at, "vllm:num_requests_waiting", "", value));
    }
    for (at, value) in [(0.0, 7.0), (2.0, 9.0)] {
        samples.push(row(at, "vllm:num_preemptions_total", "", value));
    }
    let changes = ServerSide::read(&samples);
    assert_eq!(full.gauge(Signal::Waiting), changes.gauge(Signal::Waiting));
    for (from, to) in [(0, 3), (1, 3), (2, 3), (0, 1)] {
        let (a, b) = (
            full.gained(Signal::Preempted, at(from), at(to)),
            changes.gained(Signal::Preempted, at(from), at(to)),
        );
        assert_eq!(a, b);
        assert_eq!(a.unwrap().value, if from < 2 && to > 1 { 2.0 } else { 0.0 });
    }
}

/// vLLM 0.2x counts prompt tokens by the origin of their keys and values: computed here, this engine's cache, a connector.
#[test]
fn prompt_tokens_are_told_by_their_source() {
    let name = "vllm:prompt_tokens_by_source_total";
    let mut rows = vec![
        ("vllm:prompt_tokens_total", "engine=0", &[1000.0, 1600.0][..]),
        (name, "engine=0,source=local_compute", &[700.0, 1000.0]),
        (name, "engine=0,source=local_cache_hit", &[200.0, 380.0]),
        (name, "engine=0,source=external_kv_transfer", &[100.0, 220.0]),
    ];
    let gained = |rows: &[(&str, &str, &[f64])], signal| {
        ServerSide::read(&page(rows)).gained(signal, at(0), at(1)).map(|gained| gained.value)
    };
    assert_eq!(gained(&rows, Signal::TransferredTokens), Some(120.0));
    assert_eq!(gained(&rows, Signal::CachedTokens), Some(180.0 + 120.0));
    assert_eq!(gained(&rows, Signal::PromptTokens), Some(600.0));
    // If the page has the sum of the two, the sum is read and not added to them.
    rows.push(("vllm:prompt_tokens_cached_total", "engine=0", &[300.0, 600.0]));
    assert_eq!(gained(&rows, Signal::CachedTokens), Some(300.0));
}

#[test]
fn a_series_that_left_the_page_is_unknown_from_then() {
    let mut samples = page(&[("vllm:num_requests_waiting", "engine=0", &[4.0, 4.0, 4.0])]);
    samples.push(row(0.0, "vllm:num_requests_waiting", "engine=1", 3.0));
    samples.push(row(1.0, "vllm:num_requests_waiting", "engine=1", f64::NAN));
    let server = ServerSide::read(&samples);
    assert_eq!(server.gauge_of(1, Signal::Waiting).unwrap().at(at(1)), None);
    assert_eq!(server.gauge(Signal::Waiting).unwrap().at(at(1)), Some(4.0));
}

#[test]
fn a_restart_is_told_and_counted_from_zero() {
    let server =
        ServerSide::read(&page(&[("vllm:generation_tokens_total", "", &[100.0, 160.0, 30.0, 50.0])]));
    let gained = server.gained(Signal::OutputTokens, at(0), at(3)).unwrap();
    assert_eq!((gained.value, gained.resets), (60.0 + 30.0 + 20.0, 1));
    assert_eq!(server.disclosures().resets, 1);
    assert!((gained.per_s() - 110.0 / 3.0).abs() < 1e-12);
}

/// Edges at powers of two appear with the values that need them, and disappear when the sender becomes coarser.
///
/// The reference: (0.5, 1] 3 and (2, 4] 2 before, then two more of the last, then (0.25, 0.5] 1, (2, 4] 2 and (8, 16] 5.
#[test]
fn edges_that_come_and_go_count_what_came() {
    let name = "gen_ai_server_time_to_first_token_bucket";
    const NO: f64 = f64::NAN;
    let server = ServerSide::read(&page(&[
        (name, "le=0.25", &[NO, NO, 0.0]),
        (name, "le=0.5", &[0.0, 0.0, 1.0]),
        (name, "le=0.7", &[1.0, 1.0, NO]),
        (name, "le=1", &[3.0, 3.0, 4.0]),
        (name, "le=2", &[3.0, 3.0, 4.0]),
        (name, "le=4", &[5.0, 7.0, 10.0]),
        (name, "le=8", &[NO, NO, 10.0]),
        (name, "le=16", &[NO, NO, 15.0]),
        (name, "le=+Inf", &[5.0, 7.0, 15.0]),
    ]));
    for (from, late) in [(0, 4.0), (1, 2.0)] {
        let found = server.histogram(Signal::Ttft, at(from), at(2)).expect("buckets");
        assert_eq!(found.edges, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]);
        assert_eq!(found.counts, [0.0, 1.0, 0.0, 0.0, late, 0.0, 5.0, 0.0], "{from}");
    }
}

/// A new process under load soon has more in a bucket than the old one, and perhaps other edges.
///
/// If one series of a histogram falls, all of them start at zero. The reference: the old process observed 100, of which 5 were
/// quick. The new one observed 60, of which 50 were, and 20 more by the third scrape, of which 10 were.
#[test]
fn a_histogram_begins_anew_as_a_whole() {
    let name = "vllm:time_to_first_token_seconds_bucket";
    const NO: f64 = f64::NAN;
    let sum: (&str, &str, &[f64]) = ("vllm:time_to_first_token_seconds_sum", "", &[30.0, 35.0, 45.0]);
    let same = [(name, "le=0.25", &[5.0, 50.0, 60.0][..]), (name, "le=+Inf", &[100.0, 60.0, 80.0]), sum];
    let other = [
        (name, "le=0.25", &[5.0, NO, NO][..]),
        (name, "le=0.5", &[NO, 50.0, 60.0]),
        (name, "le=1", &[20.0, 55.0, 75.0]),
        (name, "le=+Inf", &[100.0, 60.0, 80.0]),
        sum,
    ];
    let equal = [(name, "le=0.25", &[50.0, 50.0, 60.0][..]), (name, "le=+Inf", &[100.0, 60.0, 80.0]), sum];
    for (rows, edges, [first, both]) in [
        (&same[..], &[0.25][..], [&[50.0, 10.0][..], &[60.0, 20.0]]),
        (&other, &[0.5, 1.0], [&[50.0, 5.0, 5.0], &[60.0, 15.0, 5.0]]),
        (&equal, &[0.25], [&[50.0, 10.0], &[60.0, 20.0]]),
    ] {
        let server = ServerSide::read(&page(rows));
        for (to, counts, sum) in [(1, first, 35.0), (2, both, 45.0)] {
            let found = server.histogram(Signal::Ttft, at(0), at(to)).expect("buckets");
            assert_eq!((&found.edges[..], &found.counts[..]), (edges, counts), "to {to}");
            assert_eq!((found.sum, found.resets), (Some(sum), 1), "to {to}");
        }
    }
}

/// In a histogram with edges that appear and disappear a restart counts once, however often an old edge reappears.
///
/// A falling sum is no restart.
#[test]
fn a_histogram_begins_anew_once() {
    const NO: f64 = f64::NAN;
    let (bucket, sums) = ("vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_sum");
    let taken = |rows: &[(&str, &str, &[f64])], from: i64, to: i64| {
        let server = ServerSide::read(&page(rows));
        server.histogram(Signal::Ttft, at(from), at(to)).expect("buckets").counts
    };
    // The old process observed 100, the new one 60 and 20 more; an edge that the new one lacks at first reappears.
    let back = [(bucket, "le=0.25", &[5.0, NO, 3.0][..]), (bucket, "le=+Inf", &[100.0, 60.0, 80.0])];
    assert_eq!(taken(&back, 0, 2), [3.0, 77.0]);
    assert_eq!(taken(&back, 1, 2).iter().sum::<f64>(), 20.0);
    // An edge that the old process lacked.
    let new = [(bucket, "le=0.5", &[NO, NO, 50.0][..]), (bucket, "le=+Inf", &[100.0, 60.0, 80.0])];
    assert_eq!(taken(&new, 0, 2), [50.0, 30.0]);
    // The page had no series of it for a time.
    let gone =
        [(bucket, "le=0.25", &[50.0, NO, NO, 40.0][..]), (bucket, "le=+Inf", &[100.0, NO, 20.0, 60.0])];
    assert_eq!(taken(&gone, 0, 3), [40.0, 20.0]);
    let sum = [
        (sums, "", &[30.0000001, 30.0, 30.0][..]),
        (bucket, "le=0.25", &[5.0; 3]),
        (bucket, "le=+Inf", &[100.0; 3]),
    ];
    assert_eq!(taken(&sum, 0, 2), [0.0, 0.0]);
}

/// A histogram without an edge in a range without observations still has a known count there.
#[test]
fn histograms_with_gaps_add_up_at_the_edges_of_each() {
    let name = "gen_ai_server_time_to_first_token_bucket";
    let server = ServerSide::read(&page(&[
        (name, "le=1,model=a", &[0.0, 0.0]),
        (name, "le=2,model=a", &[0.0, 3.0]),
        (name, "le=+Inf,model=a", &[0.0, 3.0]),
        (name, "le=4,model=b", &[0.0, 0.0]),
        (name, "le=8,model=b", &[0.0, 2.0]),
        (name, "le=+Inf,model=b", &[0.0, 2.0]),
    ]));
    let found = server.histogram(Signal::Ttft, at(0), at(1)).expect("buckets");
    assert_eq!((found.edges, found.counts), (vec![1.0, 2.0, 4.0, 8.0], vec![0.0, 3.0, 0.0, 2.0, 0.0]));
}

/// The maximum since the previous scrape is the last reported value; an unchanged value has no row and stays valid.
#[test]
fn bounds_are_of_the_scrapes_between() {
    let name = "gen_ai_server_time_to_first_token";
    let mut rows = page(&[
        (&format!("{name}_bucket"), "le=1", &[0.0, 2.0, 3.0, 4.0]),
        (&format!("{name}_bucket"), "le=+Inf", &[0.0, 3.0, 4.0, 5.0]),
        (&format!("{name}_count"), "", &[0.0, 3.0, 4.0, 5.0]),
        (&format!("{name}_observed_min"), "", &[0.1, 0.3, 0.2, 0.4]),
    ]);
    for (second, max) in [(1.0, 9.0), (2.0, 3.0)] {
        rows.push(row(second, &format!("{name}_observed_max"), "", max));
    }
    let server = ServerSide::read(&rows);
    let bounds = |from, to| server.histogram(Signal::Ttft, at(from), at(to)).expect("buckets").bounds;
    assert_eq!(bounds(0, 1), [Some(0.3), Some(9.0)]);
    assert_eq!(bounds(1, 2), [Some(0.2), Some(3.0)]);
    assert_eq!(bounds(2, 3), [Some(0.4), Some(3.0)]);
    assert_eq!(bounds(1, 3), [Some(0.2), Some(3.0)]);
    assert_eq!(bounds(0, 3), [Some(0.2), Some(9.0)]);
}

#[test]
fn pages_that_answer_in_turn_are_not_believed() {
    let values: Vec<f64> =
        (0..20).map(|i| if i % 2 == 0 { 1000.0 + f64::from(i) } else { f64::from(i) }).collect();
    let server = ServerSide::read(&page(&[("vllm:generation_tokens_total", "", &values)]));
    assert!(server.gained(Signal::OutputTokens, at(0), at(19)).is_none());
    assert!(server.disclosures().alternates);
}

#[test]
fn a_counter_that_appears_later_began_at_zero() {
    let mut samples = page(&[("vllm:request_success_total", "finished_reason=stop", &[5.0, 6.0, 8.0])]);
    samples.push(row(2.0, "vllm:request_success_total", "finished_reason=error", 3.0));
    let server = ServerSide::read(&samples);
    assert_eq!(server.gained(Signal::Failed, at(0), at(2)).unwrap().value, 3.0);
    assert_eq!(server.gained(Signal::Finished, at(0), at(2)).unwrap().value, 3.0);
}

/// Returns buckets `le` → cumulative counts at two scrapes.
fn histogram(labels: &str, rungs: &[(&str, f64, f64)], sum: (f64, f64)) -> Vec<Sample> {
    let name = "vllm:request_queue_time_seconds";
    let mut samples = Vec::new();
    let mut both = |name: &str, labels: &str, values: (f64, f64)| {
        samples.push(row(0.0, name, labels, values.0));
        samples.push(row(10.0, name, labels, values.1));
    };
    for (le, from, to) in rungs {
        let le = format!("le={le}");
        let all = [labels, &le].iter().filter(|one| !one.is_empty()).copied().collect::<Vec<_>>().join(",");
        both(&format!("{name}_bucket"), &all, (*from, *to));
    }
    let last = rungs[rungs.len() - 1];
    both(&format!("{name}_sum"), labels, sum);
    both(&format!("{name}_count"), labels, (last.1, last.2));
    samples
}

#[test]
fn a_quantile_is_the_bucket_that_holds_it() {
    let samples =
        histogram("", &[("0.3", 10.0, 60.0), ("0.5", 10.0, 100.0), ("+Inf", 12.0, 112.0)], (1.0, 31.0));
    let server = ServerSide::read(&samples);
    let queue = server.histogram(Signal::QueueTime, at(0), at(10)).unwrap();
    assert_eq!((queue.edges.as_slice(), queue.counts.as_slice()), (&[0.3, 0.5][..], &[50.0, 40.0, 10.0][..]));
    assert_eq!((queue.count, queue.mean()), (Some(100.0), Some(0.3)));
    assert_eq!(queue.quantile(0.5), Some(Bracket { lower: 0.0, upper: Some(0.3) }));
    assert_eq!(queue.quantile(0.51), Some(Bracket { lower: 0.3, upper: Some(0.5) }));
    assert_eq!(queue.quantile(0.99), Some(Bracket { lower: 0.5, upper: None }));
    assert_eq!(queue.share_above(0.3), Some((0.5, 0.5)));
    assert_eq!(queue.share_above(0.4), Some((0.1, 0.5)));
    assert_eq!(queue.share_above(9.0), Some((0.0, 0.1)));
    assert_eq!(server.waiting_by_little(at(0), at(10)), Some(3.0));
}

#[test]
fn histograms_of_engines_add_up_where_their_edges_agree() {
    let mut samples =
        histogram("engine=0", &[("0.3", 0.0, 1.0), ("0.5", 0.0, 2.0), ("+Inf", 0.0, 2.0)], (0.0, 1.0));
    samples.extend(histogram(
        "engine=1",
        &[("0.5", 0.0, 5.0), ("1.0", 0.0, 6.0), ("+Inf", 0.0, 7.0)],
        (0.0, 9.0),
    ));
    let server = ServerSide::read(&samples);
    let queue = server.histogram(Signal::QueueTime, at(0), at(10)).unwrap();
    // At 0.3 the second is unknown; at 1.0 the first is known, because it has no value above 0.5.
    assert_eq!((queue.edges.as_slice(), queue.counts.as_slice()), (&[0.5, 1.0][..], &[7.0, 1.0, 1.0][..]));
    assert_eq!(queue.mean(), Some(10.0 / 9.0));
    assert_eq!(server.histogram_of(1, Signal::QueueTime, at(0), at(10)).unwrap().edges, [0.5, 1.0]);
}

#[test]
fn old_and_new_names_on_one_page_are_not_added() {
    let server = ServerSide::read(&page(&[
        ("vllm:kv_cache_usage_perc", "", &[0.5]),
        ("vllm:gpu_cache_usage_perc", "", &[0.4]),
        ("vllm:num_requests_waiting", "engine=0", &[3.0]),
        ("vllm:num_requests_waiting_by_reason", "engine=0,reason=capacity", &[1.0]),
        ("vllm:num_requests_waiting_by_reason", "engine=0,reason=deferred", &[2.0]),
        ("sglang:num_queue_reqs", "", &[3.0]),
    ]));
    assert_eq!(server.gauge(Signal::KvUsage).unwrap().at(at(0)), Some(0.5));
    assert_eq!(server.gauge(Signal::Waiting).unwrap().at(at(0)), Some(3.0));
    assert_eq!(server.gauge(Signal::DeferredKvTransfer).unwrap().at(at(0)), Some(2.0));
}

#[test]
fn a_gateway_and_its_engines_are_not_added() {
    let mut samples = page(&[("dynamo_frontend_inflight_requests", "source=front", &[9.0, 9.0])]);
    for sample in page(&[("vllm:num_requests_running", "source=a", &[4.0, 4.0])]) {
        samples.push(Sample { labels: "source=a".into(), ..sample });
    }
    samples.iter_mut().filter(|one| one.labels.is_empty()).for_each(|one| one.labels = "source=front".into());
    let server = ServerSide::read(&samples);
    assert_eq!(server.gauge(Signal::Running).unwrap().at(at(0)), Some(4.0));
}

#[test]
fn units_become_those_of_the_signal() {
    let server = ServerSide::read(&page(&[
        ("DCGM_FI_DEV_GPU_UTIL", "gpu=0", &[80.0, 80.0]),
        ("DCGM_FI_DEV_GPU_UTIL", "gpu=1", &[40.0, 40.0]),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "gpu=0", &[5_000.0, 305_000.0]),
        ("DCGM_FI_DEV_SM_CLOCK", "gpu=0", &[1980.0, 1200.0]),
        ("nv_inference_queue_duration_us", "model=a,version=1", &[1e6, 3e6]),
        ("nv_inference_request_success", "model=a,version=1", &[10.0, 30.0]),
        ("vllm:cache_config_info", "block_size=16,engine=0,num_gpu_blocks=2048", &[1.0, 1.0]),
    ]));
    assert!((server.gauge(Signal::GpuUtilisation).unwrap().at(at(0)).unwrap() - 0.6).abs() < 1e-12);
    assert_eq!(server.gained(Signal::GpuEnergy, at(0), at(1)).unwrap().value, 300.0);
    assert_eq!(server.gauge(Signal::SmClock).unwrap().min(at(0), at(2)), Some(1.2e9));
    let queue = server.histogram(Signal::QueueTime, at(0), at(1)).unwrap();
    assert_eq!((queue.mean(), queue.quantile(0.5)), (Some(0.1), None));
    assert_eq!(server.gauge(Signal::KvBlocks).unwrap().at(at(0)), Some(2048.0));
    assert_eq!(server.gauge(Signal::KvBlockTokens).unwrap().at(at(0)), Some(16.0));
    assert_eq!(server.devices().len(), 2);
}

/// A page and its series: name, labels, values.
type NamedPage<'a> = (&'a str, &'a [(&'a str, &'a str, &'a [f64])]);

/// Returns the rows of these pages, as a scraper of several endpoints writes them.
fn named_pages(pages: &[NamedPage<'_>]) -> Vec<Sample> {
    let of = |(name, rows): &NamedPage<'_>| {
        let label = |labels: &str| {
            let mut labels = split_labels(labels);
            labels.push(("source".to_owned(), (*name).to_owned()));
            join_labels(&labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>())
        };
        page(rows)
            .into_iter()
            .map(|row| Sample { labels: label(&row.labels).into(), ..row })
            .collect::<Vec<_>>()
    };
    pages.iter().flat_map(of).collect()
}

/// The units of AMD's documentation: per cent, MB, MHz, W and µJ. Of the powers one is read.
#[test]
fn amds_exporter_is_read_in_the_units_of_the_signals() {
    for prefix in ["", "amd_"] {
        let names = |name: &str| format!("{prefix}{name}");
        let [activity, used, clock, power, older, energy] = [
            "gpu_gfx_activity",
            "gpu_used_vram",
            "gpu_clock",
            "gpu_package_power",
            "gpu_power_usage",
            "gpu_energy_consumed",
        ]
        .map(names);
        let server = ServerSide::read(&page(&[
            (&activity, "gpu_id=0", &[80.0, 80.0]),
            (&activity, "gpu_id=1", &[40.0, 40.0]),
            (&used, "gpu_id=0", &[1024.0, 1024.0]),
            (&clock, "clock_index=2,clock_type=system,gpu_id=0", &[2100.0, 2100.0]),
            (&clock, "clock_index=8,clock_type=memory,gpu_id=0", &[900.0, 900.0]),
            (&power, "gpu_id=0", &[700.0, 700.0]),
            (&older, "gpu_id=0", &[690.0, 690.0]),
            (&energy, "gpu_id=0", &[1e15, 1e15 + 7e8]),
        ]));
        let at_0 = |signal| server.gauge(signal).unwrap().at(at(0)).unwrap();
        assert!((at_0(Signal::GpuUtilisation) - 0.6).abs() < 1e-12, "{prefix}");
        assert_eq!(at_0(Signal::GpuMemoryUsed), 1024.0 * 1024.0 * 1024.0);
        assert_eq!((at_0(Signal::SmClock), at_0(Signal::GpuPower)), (2.1e9, 700.0));
        assert_eq!(server.gained(Signal::GpuEnergy, at(0), at(1)).unwrap().value, 700.0);
        assert_eq!(server.devices().len(), 2);
    }
}

#[test]
fn a_machine_and_its_containers_are_apart_from_the_engine() {
    let samples = named_pages(&[
        (
            "engine:8000",
            &[
                ("vllm:num_requests_running", "engine=0", &[1.0, 1.0]),
                ("vllm:prompt_tokens_by_source_total", "exported_source=local_cache_hit", &[0.0, 30.0]),
                ("process_cpu_seconds_total", "", &[10.0, 12.0]),
            ],
        ),
        (
            "node:9100",
            &[
                ("node_cpu_seconds_total", "cpu=0,mode=steal", &[1.0, 1.5]),
                ("node_cpu_seconds_total", "cpu=1,mode=steal", &[2.0, 2.25]),
                ("node_cpu_seconds_total", "cpu=1,mode=idle", &[70.0, 90.0]),
                ("node_pressure_cpu_waiting_seconds_total", "", &[5.0, 5.5]),
                ("process_cpu_seconds_total", "", &[100.0, 150.0]),
            ],
        ),
        (
            "node:8080",
            &[
                (
                    "container_cpu_cfs_throttled_periods_total",
                    "container=vllm,id=/a,namespace=n,pod=p",
                    &[4.0, 9.0],
                ),
                (
                    "container_cpu_cfs_throttled_periods_total",
                    "container=web,id=/b,namespace=n,pod=q",
                    &[1.0, 0.0],
                ),
            ],
        ),
    ]);
    let server = ServerSide::read(&samples);
    let gained = |signal| server.gained(signal, at(0), at(1)).unwrap().value;
    assert_eq!((gained(Signal::CpuStolen), gained(Signal::CpuPressure)), (0.75, 0.5));
    assert_eq!(gained(Signal::CachedTokens), 30.0, "the label of vLLM, which the scraper renamed");
    assert_eq!(gained(Signal::CpuSeconds), 2.0, "the exporter's own process is no server");
    let names: Vec<&str> = server.replicas().iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["0"], "pages without engines tell no replicas apart");
    let throttled =
        |host| server.gained_of_host(host, Signal::QuotaThrottled, at(0), at(1)).map(|gained| gained.value);
    let vllm = server.hosts().iter().position(|host| host.labels.contains("vllm")).unwrap();
    assert_eq!(throttled(vllm), Some(5.0));
    assert_eq!((server.disclosures().resets, server.restarts(at(0), at(1))), (0, 0), "of servers");
    assert_eq!(server.scraped(at(0), at(1)), (2, 0), "of servers");
}

#[test]
fn a_gpu_that_two_pages_report_is_read_once() {
    let both: &[NamedPage<'_>] = &[
        ("triton", &[("nv_gpu_power_usage", "gpu_uuid=GPU-1", &[300.0, 300.0])]),
        (
            "dcgm",
            &[
                ("DCGM_FI_DEV_POWER_USAGE", "UUID=GPU-1,gpu=0", &[301.0, 301.0]),
                ("DCGM_FI_DEV_POWER_USAGE", "UUID=GPU-2,gpu=1", &[100.0, 100.0]),
            ],
        ),
    ];
    let power = |pages| ServerSide::read(&named_pages(pages)).gauge(Signal::GpuPower).unwrap().at(at(0));
    assert_eq!(power(both), Some(400.0));
    assert_eq!(power(&both[1..]), Some(401.0));
    // Both instances of a partitioned GPU report its power, and each its own memory.
    let server = ServerSide::read(&page(&[
        ("DCGM_FI_DEV_POWER_USAGE", "GPU_I_ID=1,UUID=GPU-1,gpu=0", &[300.0, 300.0]),
        ("DCGM_FI_DEV_POWER_USAGE", "GPU_I_ID=2,UUID=GPU-1,gpu=0", &[300.0, 300.0]),
        ("DCGM_FI_DEV_FB_USED", "GPU_I_ID=1,UUID=GPU-1,gpu=0", &[1.0, 1.0]),
        ("DCGM_FI_DEV_FB_USED", "GPU_I_ID=2,UUID=GPU-1,gpu=0", &[2.0, 2.0]),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "GPU_I_ID=1,UUID=GPU-1,gpu=0", &[4.0, 0.0]),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "GPU_I_ID=2,UUID=GPU-1,gpu=0", &[32.0, 0.0]),
    ]));
    let at_0 = |signal| server.gauge(signal).unwrap().at(at(0)).unwrap();
    assert_eq!((at_0(Signal::GpuPower), at_0(Signal::GpuMemoryUsed)), (300.0, 3.0 * 1024.0 * 1024.0));
    assert_eq!(at_0(Signal::ClockReasons), 36.0);
}

#[test]
fn a_series_without_the_replicas_label_is_the_only_replicas() {
    let server = ServerSide::read(&page(&[
        ("vllm:num_requests_running", "engine=0", &[1.0, 1.0]),
        ("vllm:admission_rejections_total", "reason=max_num_queued_reqs", &[0.0, 4.0]),
        ("process_cpu_seconds_total", "", &[10.0, 12.0]),
    ]));
    assert_eq!(server.replicas().len(), 1);
    assert_eq!(server.gained_of(0, Signal::Refused, at(0), at(1)).unwrap().value, 4.0);
    assert_eq!(server.gained_of(0, Signal::CpuSeconds, at(0), at(1)).unwrap().value, 2.0);
}

proptest! {
    #[test]
    fn labels_survive(labels in proptest::collection::btree_map("[a-z_]{1,6}", ".{0,12}", 0..5)) {
        let pairs: Vec<(&str, &str)> = labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let back = split_labels(&join_labels(&pairs));
        let back: Vec<(&str, &str)> = back.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        prop_assert_eq!(back, pairs);
    }

    /// Any rows are read without a panic, and shares stay shares.
    #[test]
    fn any_rows_are_read(rows in proptest::collection::vec(
        (0i64..50, 0usize..6, "(engine=[01])?|le=[0-9.+Inf]{0,4}|.{0,6}", proptest::num::f64::ANY), 0..80)
    ) {
        let names = ["vllm:num_requests_waiting", "vllm:request_queue_time_seconds_bucket", "scrape_samples",
            "scrape_failed", "vllm:generation_tokens_total", "vllm:request_queue_time_seconds_sum"];
        let samples: Vec<Sample> =
            rows.iter().map(|(s, name, labels, value)| row(*s as f64, names[*name], labels, *value)).collect();
        let server = ServerSide::read(&samples);
        if let Some(waiting) = server.gauge(Signal::Waiting) {
            let known = waiting.known(at(0), at(60));
            prop_assert!((0.0..=1.0).contains(&known));
            prop_assert!(waiting.steps.windows(2).all(|pair| pair[0].to <= pair[1].from));
        }
        let _ = server.gained(Signal::OutputTokens, at(3), at(40));
        if let Some(queue) = server.histogram(Signal::QueueTime, at(3), at(40)) {
            let _ = (queue.quantile(0.99), queue.share_above(0.5), queue.mean());
            prop_assert!(queue.counts.iter().all(|count| *count >= 0.0 || count.is_nan()));
        }
    }
}

/// Counters of a llama.cpp (xllamacpp 2026.10.11549, drafts by n-gram) before and after three requests.
///
/// The timings in their answers report `draft_n` 56 each and `draft_n_accepted` 49, 53 and 55.
#[test]
fn drafts_are_counted_as_the_answers_themselves_say() {
    let server = ServerSide::read(&page(&[
        ("llamacpp:spec_decode_num_draft_tokens_total", "", &[0.0, 168.0]),
        ("llamacpp:spec_decode_num_accepted_tokens_total", "", &[0.0, 157.0]),
        ("llamacpp:spec_decode_num_drafts_total", "", &[0.0, 161.0]),
    ]));
    let gained = |signal| server.gained(signal, at(0), at(2)).unwrap().value;
    assert_eq!(gained(Signal::DraftTokens), 3.0 * 56.0);
    assert_eq!(gained(Signal::AcceptedTokens), 49.0 + 53.0 + 55.0);
    let length = server.accepted_length(at(0), at(2)).unwrap();
    assert!((length - (1.0 + 157.0 / 161.0)).abs() < 1e-12, "{length}");
    // SGLang shows the length itself, and 0 without drafts.
    let shown = |length| {
        ServerSide::read(&page(&[("sglang:spec_accept_length", "", &[length; 3])]))
            .accepted_length(at(0), at(3))
    };
    assert_eq!((shown(2.75), shown(0.0)), (Some(2.75), None));
}

#[test]
fn a_process_that_begins_anew_is_seen_to_though_its_series_were_gone_in_between() {
    let counted = |values: &[f64]| {
        ServerSide::read(&page(&[("vllm:generation_tokens_total", "", values)])).disclosures().resets
    };
    assert_eq!(counted(&[5.0, 9.0, f64::NAN, f64::NAN, 2.0, 4.0]), 1);
    assert_eq!(counted(&[5.0, 9.0, f64::NAN, 9.0, 12.0]), 0);
}

proptest! {
    /// A page that is read twice gives equal results by its layout and by its rows, for every signal and replica.
    #[test]
    fn a_layout_says_what_rows_say(values in proptest::collection::vec((0u32..50, 0u32..50), 14)) {
        let series = [
            ("vllm:num_requests_running", "engine=0"),
            ("vllm:num_requests_running", "engine=1"),
            ("vllm:num_requests_waiting", "engine=0"),
            ("vllm:request_success_total", "engine=0,finished_reason=stop"),
            ("vllm:request_success_total", "engine=0,finished_reason=error"),
            ("vllm:generation_tokens_total", "engine=1"),
            ("vllm:time_to_first_token_seconds_bucket", "engine=0,le=0.1"),
            ("vllm:time_to_first_token_seconds_bucket", "engine=0,le=+Inf"),
            ("vllm:time_to_first_token_seconds_sum", "engine=0"),
            ("vllm:time_to_first_token_seconds_count", "engine=0"),
            ("vllm:time_to_first_token_seconds_bucket", "engine=1,le=0.25"),
            ("vllm:time_to_first_token_seconds_bucket", "engine=1,le=+Inf"),
            ("DCGM_FI_DEV_GPU_UTIL", "gpu=0"),
            ("vllm:cache_config_info", "block_size=16,engine=0,num_gpu_blocks=2048"),
        ];
        let pairs: Vec<[f64; 2]> = values.iter().map(|(a, b)| [f64::from(*a), f64::from(*b)]).collect();
        let rows: Vec<(&str, &str, &[f64])> =
            series.iter().zip(&pairs).map(|((name, labels), pair)| (*name, *labels, &pair[..])).collect();
        let told = ServerSide::read(&page(&rows));
        let named = |(name, labels): &(&str, &str)| SeriesName { name: (*name).into(), labels: split_labels(labels) };
        let layout = PageLayout::of(&series.iter().map(named).collect::<Vec<_>>());
        let [before, now] = [0, 1].map(|n| pairs.iter().map(|pair| pair[n]).collect::<Vec<f64>>());
        let side = layout.between("", Some((at(0), &before)), (at(1), &now));
        prop_assert_eq!(side.replicas(), told.replicas());
        for signal in Signal::ALL {
            prop_assert_eq!(layout.has(*signal), told.has(*signal));
            prop_assert_eq!(side.gained(*signal, at(0), at(1)), told.gained(*signal, at(0), at(1)));
            prop_assert_eq!(side.histogram(*signal, at(0), at(1)), told.histogram(*signal, at(0), at(1)));
            prop_assert_eq!(side.gauge(*signal), told.gauge(*signal));
            for replica in 0..told.replicas().len() {
                let both = [&side, &told].map(|side| {
                    (side.gained_of(replica, *signal, at(0), at(1)), side.histogram_of(replica, *signal, at(0), at(1)))
                });
                prop_assert_eq!(&both[0], &both[1]);
            }
        }
    }
}

/// The observations of two pages are the sum of both, with equal edges and with different ones.
#[test]
fn what_pages_took_in_is_added() {
    let taken = |edge: &str, low: f64, all: f64| {
        let name = "vllm:time_to_first_token_seconds_bucket";
        let rows = [(format!("le={edge}"), low), ("le=+Inf".to_owned(), all)].map(|(le, n)| (le, [0.0, n]));
        let rows: Vec<_> = rows.iter().map(|(le, n)| (name, le.as_str(), &n[..])).collect();
        ServerSide::read(&page(&rows)).histogram(Signal::Ttft, at(0), at(1)).unwrap()
    };
    let same = taken("0.1", 3.0, 5.0).with(taken("0.1", 4.0, 4.0));
    assert_eq!((same.edges, same.counts, same.count), (vec![0.1], vec![7.0, 2.0], Some(9.0)));
    let other = taken("0.1", 3.0, 5.0).with(taken("0.25", 4.0, 6.0));
    assert_eq!((other.edges, other.counts, other.count), (vec![], vec![11.0], Some(11.0)));
}
