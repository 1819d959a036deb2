//! Tests schedules: equal for any number of workers, sizes by their distributions, classes by their weights, sessions.

use plimsoll_model::{At, Span};
use plimsoll_workload::{
    Arrival, ArrivalSpec, ClassSpec, Pause, PromptSpec, Scenario, Schedule, SessionSpec, Size, SizeSpec,
    SpecError, TargetSpec,
};
use proptest::prelude::*;

fn sized(prompt: &str, output: &str) -> Scenario {
    let sizes =
        SizeSpec { prompt: Size::parse(prompt).unwrap(), output: Size::parse(output).unwrap(), pairs: None };
    Scenario { sizes, seed: 42, ..Scenario::default() }
}

fn with_sessions() -> Scenario {
    let sessions = SessionSpec { turns: Size::Uniform(2, 4), think: Pause::Exponential(Span::from_secs(2)) };
    let prompts = PromptSpec { sessions: Some(sessions), ..PromptSpec::default() };
    Scenario { prompts, ..sized("lognormal:64,0.5", "uniform:8,32") }
}

fn generate(scenario: &Scenario, rate: f64, secs: i64, level: u32) -> Schedule {
    Schedule::generate(scenario, rate, Span::from_secs(secs), level).unwrap()
}

/// Every endpoint gets one request per round, for any assignment of requests to workers and shards.
#[test]
fn requests_are_dealt_to_endpoints_in_turn_and_no_worker_has_one_of_its_own() {
    for many in 1..7u64 {
        let further_urls = (1..many).map(|n| format!("http://h{n}/v1")).collect();
        let target = TargetSpec { further_urls, ..TargetSpec::default() };
        for round in 0..500 {
            let mut got: Vec<u16> = (0..many).map(|n| target.endpoint_of(None, round * many + n)).collect();
            got.sort_unstable();
            assert_eq!(got, (0..many as u16).collect::<Vec<_>>(), "round {round}");
        }
        for workers in 2..5u64 {
            for worker in 0..workers {
                let own = (0..1000).map(|n| target.endpoint_of(None, n * workers + worker));
                let mut counts = vec![0u32; many as usize];
                own.for_each(|endpoint| counts[usize::from(endpoint)] += 1);
                let mean = 1000.0 / many as f64;
                // Six standard deviations of a fair draw.
                let far = 6.0 * (mean * (1.0 - 1.0 / many as f64)).sqrt();
                assert!(
                    counts.iter().all(|n| (f64::from(*n) - mean).abs() <= far),
                    "{many} {workers}: {counts:?}"
                );
            }
        }
        // All turns of a session go to one endpoint, although their numbers differ.
        assert!((0..50).all(|n| target.endpoint_of(Some(17), n) == target.endpoint_of(Some(17), 0)));
    }
}

/// Pinned hashes: a change here changes every user's schedule and belongs in the changelog.
#[test]
fn golden_hashes() {
    let mut hashes = Vec::new();
    for spec in [
        ArrivalSpec::Constant,
        ArrivalSpec::Poisson,
        ArrivalSpec::Gamma { cv: 3.0 },
        ArrivalSpec::Weibull { cv: 2.0 },
        ArrivalSpec::OnOff { on: Span::from_secs(1), off: Span::from_secs(3), floor: 0.2 },
        ArrivalSpec::Diurnal { peak_to_trough: 4.0, period: None, phase: 0.25, cv: 1.0 },
    ] {
        let scenario = Scenario { arrivals: spec, ..sized("lognormal:512,0.8", "normal:128,30") };
        hashes.push(generate(&scenario, 50.0, 60, 1).hash());
    }
    hashes.push(generate(&with_sessions(), 20.0, 60, 0).hash());
    assert_eq!(
        hashes,
        [
            "95716b86ce3aab81",
            "334edecd77e0bc1f",
            "e41ab0f69936975e",
            "bd2803ffe5cab3ee",
            "3af397aebf8b98b8",
            "5f774e9c1120fc9a",
            "70e19e2470b2c710"
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn dealing_keeps_everything_and_sessions_together(workers in 1usize..40, seed: u64, sessions: bool) {
        let scenario = Scenario { seed, ..if sessions { with_sessions() } else { sized("64", "8") } };
        let schedule = generate(&scenario, 30.0, 20, 3);
        let dealt = schedule.clone().deal(workers);
        prop_assert_eq!(dealt.len(), workers);
        let mut home = std::collections::HashMap::new();
        for (worker, part) in dealt.iter().enumerate() {
            for a in part {
                if let Some(session) = a.session {
                    prop_assert_eq!(*home.entry(session).or_insert(worker), worker);
                }
            }
        }
        let mut union: Vec<Arrival> = dealt.into_iter().flatten().collect();
        union.sort_by_key(|a| a.id);
        prop_assert_eq!(Schedule { arrivals: union }.hash(), schedule.hash());
    }

    #[test]
    fn shards_of_a_sequence_are_the_sequence(machines in 1usize..4, workers in 1usize..9, sessions: bool) {
        let scenario = if sessions { with_sessions() } else { sized("uniform:1,500", "8") };
        let whole = Schedule::sequence(&scenario, 2).unwrap();
        let starts = 60;
        let mut all = whole.clone();
        let expected: Vec<Arrival> = (0..starts).flat_map(|_| all.next_start()).collect();
        let mut found = Vec::new();
        for (machine, worker) in (0..machines).flat_map(|m| (0..workers).map(move |w| (m, w))) {
            // A machine's part is divided among its workers.
            let mut shard = whole.shard(machine, machines).shard(worker, workers);
            let first = machine + worker * machines;
            for _ in 0..(starts - first).div_ceil(machines * workers) {
                found.extend(shard.next_start());
            }
        }
        found.sort_by_key(|a| a.id);
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn open_and_closed_loop_ask_the_same_requests() {
    let scenario = sized("lognormal:512,0.8", "uniform:1,64");
    let open = generate(&scenario, 20.0, 10, 5);
    let mut sequence = Schedule::sequence(&scenario, 5).unwrap();
    for a in &open.arrivals {
        let closed = sequence.next_start().remove(0);
        assert_eq!(Arrival { due: At::ZERO, ..a.clone() }, closed);
    }
}

#[test]
fn seed_and_level_change_everything_and_the_nonce_nothing() {
    let base = sized("lognormal:512,0.8", "64");
    let hash = |s: &Scenario, level| generate(s, 20.0, 30, level).hash();
    assert_ne!(hash(&base, 0), hash(&Scenario { seed: 43, ..base.clone() }, 0));
    assert_ne!(hash(&base, 0), hash(&base, 1));
    assert_eq!(hash(&base, 0), hash(&Scenario { nonce: Some(9), ..base.clone() }, 0));
    let (a, b) = (generate(&base, 20.0, 30, 0), generate(&base, 20.0, 30, 1));
    let same = a.arrivals.iter().zip(&b.arrivals).filter(|(a, b)| a.prompt_tokens == b.prompt_tokens).count();
    assert!(same < a.arrivals.len() / 20);
}

#[test]
fn sizes_follow_their_laws() {
    let draws = |prompt: &str| -> Vec<f64> {
        let s = generate(&sized(prompt, "7"), 400.0, 100, 0);
        let mut v: Vec<f64> = s.arrivals.iter().map(|a| f64::from(a.prompt_tokens)).collect();
        assert!(s.arrivals.iter().all(|a| a.output_tokens == 7));
        v.sort_by(f64::total_cmp);
        v
    };
    let quantile = |v: &[f64], p: f64| v[(v.len() as f64 * p) as usize];
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;

    let v = draws("lognormal:512,0.8");
    // The median, and median · e^(±σ) at the normal's 15.87 % and 84.13 %.
    assert!((quantile(&v, 0.5) / 512.0 - 1.0).abs() < 0.02, "{}", quantile(&v, 0.5));
    assert!((quantile(&v, 0.8413) / (512.0 * 0.8f64.exp()) - 1.0).abs() < 0.03);
    assert!((quantile(&v, 0.1587) / (512.0 * (-0.8f64).exp()) - 1.0).abs() < 0.03);
    assert!((mean(&v) / (512.0 * 0.32f64.exp()) - 1.0).abs() < 0.03);

    let v = draws("normal:512,64");
    assert!((mean(&v) - 512.0).abs() < 1.5 && (quantile(&v, 0.8413) - 576.0).abs() < 3.0);

    let v = draws("uniform:10,19");
    assert_eq!((v[0], v[v.len() - 1]), (10.0, 19.0));
    for n in 10..20 {
        let share = v.iter().filter(|x| **x == f64::from(n)).count() as f64 / v.len() as f64;
        assert!((share - 0.1).abs() < 0.007, "{n}: {share}");
    }
    assert!(draws("normal:2,50").iter().all(|x| *x >= 1.0));
    assert!(draws("128").iter().all(|x| *x == 128.0));
}

#[test]
fn empirical_sizes_and_pairs_come_from_their_files() {
    let mut scenario = sized("empirical:lengths.txt", "5");
    scenario
        .attach(|file| Ok(format!("10\n\n20\n20\n# {file}").replace("# lengths.txt", "20").into_bytes()))
        .unwrap();
    let s = generate(&scenario, 400.0, 50, 0);
    let tens = s.arrivals.iter().filter(|a| a.prompt_tokens == 10).count() as f64 / s.arrivals.len() as f64;
    assert!((tens - 0.25).abs() < 0.015, "{tens}");
    assert!(s.arrivals.iter().all(|a| [10, 20].contains(&a.prompt_tokens)));

    let mut scenario = sized("1", "1");
    scenario.sizes.pairs = Some("arxiv.csv".into());
    let unloaded = Schedule::generate(&scenario, 1.0, Span::from_secs(1), 0);
    assert!(matches!(unloaded, Err(SpecError::File { .. })));
    let csv = include_bytes!("../../fixtures/arxiv_lengths_100.csv");
    scenario.attach(|_| Ok(csv.to_vec())).unwrap();
    let pairs = plimsoll_workload::trace::detect_and_read(csv, "arxiv").unwrap().pairs();
    assert_eq!(pairs.len(), 100);
    let s = generate(&scenario, 100.0, 20, 0);
    assert!(s.arrivals.iter().all(|a| pairs.contains(&(a.prompt_tokens, a.output_tokens))));
}

#[test]
fn classes_share_the_requests_by_weight_also_with_sessions() {
    let class = |name: &str, weight, prompts| ClassSpec {
        name: name.into(),
        weight,
        prompts,
        ..ClassSpec::default()
    };
    let sessions = SessionSpec { turns: Size::Fixed(4), think: Pause::Fixed(Span::from_millis(10)) };
    let talk = PromptSpec { sessions: Some(sessions), ..PromptSpec::default() };
    let scenario = Scenario {
        classes: vec![class("one", 3.0, None), class("talk", 1.0, Some(talk)), class("never", 0.0, None)],
        ..sized("64", "8")
    };
    let s = generate(&scenario, 100.0, 400, 0);
    let count = |c: u16| s.arrivals.iter().filter(|a| a.class == c).count() as f64;
    let n = s.arrivals.len() as f64;
    assert!((n / 40_000.0 - 1.0).abs() < 0.02, "{n} requests in all");
    assert!((count(1) / n - 0.25).abs() < 0.02, "{}", count(1) / n);
    assert_eq!(count(2), 0.0);
}

#[test]
fn sessions_grow_by_what_was_said() {
    let s = generate(&with_sessions(), 20.0, 200, 0);
    let mut by_session = std::collections::BTreeMap::<u64, Vec<&Arrival>>::new();
    for a in &s.arrivals {
        by_session.entry(a.session.unwrap()).or_default().push(a);
    }
    for turns in by_session.values() {
        for (i, w) in turns.windows(2).enumerate() {
            assert_eq!((w[0].turn as usize, w[1].turn as usize), (i, i + 1));
            assert!(w[1].prompt_tokens > w[0].prompt_tokens + w[0].output_tokens);
            assert_eq!(w[1].due, w[0].due + w[1].think);
        }
        assert_eq!(turns[0].think, Span::ZERO);
        assert!(turns.len() <= 4);
    }
    assert!(s.arrivals.windows(2).all(|w| w[0].due <= w[1].due && w[0].id + 1 == w[1].id));
}

#[test]
fn rates_that_are_none_are_refused() {
    let scenario = sized("64", "8");
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
        assert!(matches!(
            Schedule::generate(&scenario, rate, Span::from_secs(60), 0),
            Err(SpecError::Value { .. })
        ));
    }
    assert!(Schedule::generate(&scenario, 1.0, Span::ZERO, 0).is_err());
}
