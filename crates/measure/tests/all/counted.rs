//! Requests reconstructed from scraped counters, compared with the requests behind the counters.

use plimsoll_math::distance::ks_between;
use plimsoll_math::rng::Stream;
use plimsoll_measure::counted;
use plimsoll_model::{At, Sample};

const S: i64 = 1_000_000_000;
const EDGES: [u32; 9] = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const EVERY_S: i64 = 15;

struct Served {
    replica: usize,
    came_s: f64,
    took_s: f64,
    prompt: u32,
    output: u32,
}

/// One of its two lengths.
type LengthOf = fn(&Served) -> u32;

/// Requests of two replicas over some minutes, with lengths between the bucket edges.
fn served(minutes: f64, per_s: f64, seed: u64) -> Vec<Served> {
    let mut stream = Stream::new(seed, "served", 0);
    // After the first scrape of either page.
    let mut at = 10.0;
    let mut all = Vec::new();
    loop {
        at -= stream.uniform().ln() / per_s;
        if at > 60.0 * minutes {
            return all;
        }
        let length = |stream: &mut Stream, median: f64| {
            let normal = (0..12).map(|_| stream.uniform()).sum::<f64>() - 6.0;
            (median * (0.9 * normal).exp()).round().max(1.0) as u32
        };
        let (prompt, output) = (length(&mut stream, 400.0), length(&mut stream, 90.0));
        let replica = stream.below(2) as usize;
        all.push(Served { replica, came_s: at, took_s: 0.02 * f64::from(output), prompt, output });
    }
}

/// The pages of both replicas, scraped at different phases, in vLLM's format.
fn pages(served: &[Served], until_s: i64) -> Vec<Sample> {
    let mut rows = Vec::new();
    for replica in 0..2 {
        for scrape in 0..=until_s / EVERY_S {
            let at = At(scrape * EVERY_S * S + replica as i64 * 4 * S);
            let ended: Vec<&Served> = (served.iter())
                .filter(|one| one.replica == replica && ((one.came_s + one.took_s) * 1e9) as i64 <= at.0)
                .collect();
            let page = format!("source=r{replica}");
            let mut row = |name: &str, labels: &str, value: f64| {
                let labels = if labels.is_empty() { page.clone() } else { format!("{labels},{page}") };
                rows.push(Sample {
                    at,
                    source: "server".into(),
                    name: name.into(),
                    labels: labels.into(),
                    value,
                });
            };
            row("scrape_samples", "", 20.0);
            let lengths: [(&str, LengthOf); 2] = [
                ("vllm:request_prompt_tokens", |one| one.prompt),
                ("vllm:request_generation_tokens", |one| one.output),
            ];
            for (name, of) in lengths {
                for edge in EDGES {
                    let within = ended.iter().filter(|one| of(one) <= edge).count();
                    row(&format!("{name}_bucket"), &format!("le={edge}.0"), within as f64);
                }
                row(&format!("{name}_bucket"), "le=+Inf", ended.len() as f64);
                row(&format!("{name}_count"), "", ended.len() as f64);
                row(&format!("{name}_sum"), "", ended.iter().map(|one| f64::from(of(one))).sum());
            }
            row("vllm:e2e_request_latency_seconds_count", "", ended.len() as f64);
            row("vllm:e2e_request_latency_seconds_sum", "", ended.iter().map(|one| one.took_s).sum());
        }
    }
    rows
}

#[test]
fn counts_and_sums_are_exact_and_laws_agree_at_every_edge() {
    let served = served(20.0, 6.0, 7);
    let last = 22 * 60;
    let made = counted::logged(&pages(&served, last), 1_000 * S, 1).expect("requests");
    assert_eq!(made.requests.len(), served.len());
    assert_eq!(made.tick_ns, EVERY_S * S);
    let [prompt_slack, output_slack] = made.counts_only.expect("lengths between edges");
    let columns: [(LengthOf, Vec<u32>, f64); 2] = [
        (|one| one.prompt, made.requests.iter().filter_map(|one| one.prompt).collect(), prompt_slack),
        (|one| one.output, made.requests.iter().filter_map(|one| one.output).collect(), output_slack),
    ];
    for (of, drawn, slack) in columns {
        assert_eq!(drawn.len(), served.len());
        let sum = |all: &mut dyn Iterator<Item = u32>| all.map(u64::from).sum::<u64>();
        assert_eq!(sum(&mut drawn.iter().copied()), sum(&mut served.iter().map(of)));
        for edge in EDGES {
            let within = |all: &mut dyn Iterator<Item = u32>| all.filter(|length| *length <= edge).count();
            assert_eq!(within(&mut drawn.iter().copied()), within(&mut served.iter().map(of)), "{edge}");
        }
        let sorted = |mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            all
        };
        let (a, b) = (served.iter().map(|one| f64::from(of(one))), drawn.iter().map(|one| f64::from(*one)));
        let apart = ks_between(&sorted(a.collect()), &sorted(b.collect()));
        assert!(apart <= slack && apart < 0.06, "{apart} of {slack}");
    }
    // When they came: within a scrape and what the times of a scrape's requests differ.
    let mut came: Vec<f64> = served.iter().map(|one| one.came_s).collect();
    came.sort_by(f64::total_cmp);
    let mut taken: Vec<f64> = made.requests.iter().map(|one| (one.at_ns - 1_000 * S) as f64 / 1e9).collect();
    taken.sort_by(f64::total_cmp);
    let late = came.iter().zip(&taken).map(|(came, taken)| came - taken);
    let mean = late.clone().sum::<f64>() / came.len() as f64;
    assert!(mean.abs() < 0.6, "{mean}");
    assert!(late.fold(0.0, |most: f64, one| most.max(one.abs())) < EVERY_S as f64);
}

/// If no two requests end between two scrapes, each one's length is the difference of the sums.
#[test]
fn a_request_alone_in_its_scrape_has_its_own_lengths() {
    let served: Vec<Served> = (0..20)
        .map(|i| Served {
            replica: i % 2,
            came_s: 31.0 * i as f64 + 3.0,
            took_s: 1.0,
            prompt: 37 * (i as u32 + 1),
            // The last ones are above every edge.
            output: 3 + 300 * i as u32,
        })
        .collect();
    let made = counted::logged(&pages(&served, 11 * 60), 0, 1).expect("requests");
    let lengths = |all: Vec<(u32, u32)>| {
        let mut all = all;
        all.sort_unstable();
        all
    };
    let drawn =
        made.requests.iter().map(|one| (one.prompt.expect("known"), one.output.expect("known"))).collect();
    assert_eq!(lengths(drawn), lengths(served.iter().map(|one| (one.prompt, one.output)).collect()));
}

#[test]
fn pages_that_count_no_requests_say_so() {
    assert!(counted::logged(&[], 0, 1).is_err_and(|why| why.contains("scraped twice")));
    let gauge = |s: i64| Sample {
        at: At(s * S),
        source: "server".into(),
        name: "vllm:num_requests_running".into(),
        labels: "".into(),
        value: 1.0,
    };
    let why = counted::logged(&[gauge(0), gauge(15), gauge(30)], 0, 1);
    assert!(why.is_err_and(|why| why.contains("counts requests")));
}

#[test]
fn names_that_are_asked_for_are_names_that_are_read() {
    let asked = counted::names();
    for name in ["vllm.request.prompt.tokens", "tgi.request.success"] {
        assert!(asked.contains(name), "{asked}");
    }
    assert!(
        counted::reads("vllm:request_success_total") && counted::reads("vllm:request_prompt_tokens_bucket")
    );
    assert!(!counted::reads("vllm:num_requests_running") && !asked.contains("num.requests.running"));
}

/// Pages without a replica label, and a window that a watch wrote, are treated as one source.
#[test]
fn what_counts_without_replicas_is_taken_together() {
    let served = served(5.0, 2.0, 3);
    let fleet = |row: Sample| Sample {
        name: row.name.replace("vllm:request_prompt_tokens", "plimsoll_fleet_prompt_length").into(),
        ..row
    };
    let rows: Vec<Sample> = pages(&served, 7 * 60)
        .into_iter()
        .filter(|row| {
            ["scrape_samples", "vllm:request_prompt_tokens"].iter().any(|name| row.name.starts_with(name))
        })
        .map(fleet)
        .collect();
    let made = counted::logged(&rows, 0, 1).expect("requests");
    assert_eq!(made.requests.len(), served.len());
    let sum: u64 = made.requests.iter().filter_map(|one| one.prompt).map(u64::from).sum();
    assert_eq!(sum, served.iter().map(|one| u64::from(one.prompt)).sum::<u64>());
}

/// An arbitrary page never causes a panic.
#[test]
fn no_page_makes_it_fall_over() {
    let strange = ["1", "7", "1e300", "-4", "inf", "NaN", "9e14", "0"]
        .map(|text| text.parse::<f64>().expect("a number"));
    let mut stream = Stream::new(5, "strange", 0);
    for _ in 0..400 {
        let mut rows = Vec::new();
        for scrape in 0..5 {
            let mut value = || strange[stream.below(strange.len() as u64) as usize];
            let mut row = |name: &str, labels: &str, value: f64| {
                let at = At(scrape * EVERY_S * S);
                rows.push(Sample {
                    at,
                    source: "server".into(),
                    name: name.into(),
                    labels: labels.into(),
                    value,
                });
            };
            row("scrape_samples", "", 9.0);
            for edge in ["-5", "0", "10", "1e300", "+Inf"] {
                row("vllm:request_prompt_tokens_bucket", &format!("le={edge}"), value());
            }
            for name in [
                "vllm:request_prompt_tokens_sum",
                "vllm:request_prompt_tokens_count",
                "vllm:e2e_request_latency_seconds_sum",
            ] {
                row(name, "", value());
            }
            row("vllm:e2e_request_latency_seconds_count", "", 3.0);
            row("vllm:prefix_cache_hits_total", "", value());
            row("vllm:prefix_cache_queries_total", "", 1.0 + scrape as f64);
        }
        match counted::logged(&rows, i64::MAX - S, 1) {
            Ok(made) => assert!(made.requests.len() <= 20_000_000),
            Err(why) => assert!(why.contains("requests") || why.contains("scraped twice"), "{why}"),
        }
    }
}
