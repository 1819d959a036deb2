//! Whole active diagnoses in virtual time: the table of `docs/diagnosis-validation.md`, section "Active, in virtual time".
//!
//! usage: cargo run --release -p plimsoll-diagnose --example active [-- WORDS]   systems whose name contains WORDS, with every line
//!        … --example active -- --cases N [--from SEED]     N random systems of each kind, as a table for the example `learn --experiments`

#![expect(clippy::print_stdout, reason = "a table for people")]

#[path = "../tests/all/active_systems.rs"]
mod active_systems;

use active_systems::{Played, System, spec, systems};
use plimsoll_diagnose::Cause;
use plimsoll_diagnose::active::before::EarlierComparison;
use plimsoll_diagnose::active::plan::ActiveSpec;
use plimsoll_diagnose::facts::{Observed, letters};
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{Ceiling, Metric};
use plimsoll_model::Fingerprint;
use plimsoll_sim::catalogue::profile;
use plimsoll_sim::{FaultSpec, ModeSpec};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    if let Some(cases) = number("--cases") {
        return drawn(cases, number("--from").unwrap_or(0));
    }
    let only = words.join(" ");
    println!("| system | verdict | sure | requests | time | right |");
    println!("| --- | --- | --- | --- | --- | --- |");
    let (mut right, mut all) = (0, 0);
    let mut count = |is_right: bool| (right, all) = (right + usize::from(is_right), all + 1);
    for system in systems().iter().filter(|system| system.name.contains(&only)) {
        let played = system.play(&spec());
        count(row(&system.name, &system.expect, &played, !only.is_empty()));
    }
    for (before, now) in compared() {
        let name = format!("{}, against a sound run of before", now.name);
        if name.contains(&only) {
            let target = Fingerprint::default();
            let before = before.play(&spec()).before(&target);
            let played =
                now.play_against(&spec(), Some(EarlierComparison { before: &before, target: &target }));
            count(row(&name, &now.expect, &played, !only.is_empty()));
        }
    }
    println!("\n{right} of {all}");
}

/// Prints a row and returns whether the verdict was right.
fn row(name: &str, expect: &[Cause], played: &Played, every_line: bool) -> bool {
    let verdict = &played.diagnosis.verdicts[0];
    let is_right = expect.contains(&verdict.cause);
    println!(
        "| {name} | {} | {:.2} | {} | {:.0} s | {} |",
        verdict.cause.id(),
        verdict.confidence,
        played.requests,
        played.seconds,
        if is_right { "yes" } else { "NO" }
    );
    if every_line || !is_right {
        played.log.iter().for_each(|line| println!("    {line}"));
        verdict.evidence.iter().for_each(|evidence| println!("    {}: {}", evidence.figure, evidence.says));
        println!("    {:?}", verdict.runner_up.as_ref().map(|other| (other.cause, other.confidence)));
        played.diagnosis.questions.iter().for_each(|q| println!("    {} {:?}: {}", q.asks, q.answer, q.says));
    }
    is_right
}

/// Returns a healthy engine and a changed one.
fn compared() -> Vec<(System, System)> {
    let engines = [
        ("llama-3.1-8b@h100", (256, 64)),
        ("qwen2.5-7b@a100", (128, 32)),
        ("llama-3.1-70b@h100x4", (512, 128)),
    ];
    let became = [
        ("none", Cause::Nothing),
        ("slow:factor=1.2", Cause::SlowerModel),
        ("slow:factor=2", Cause::SlowerModel),
        ("dependency:delay=250ms", Cause::SlowDependency),
    ];
    let pair = |(engine, sizes): (&str, (u32, u32)), (fault, cause): (&str, Cause)| {
        let mut now = System::new(engine, sizes, fault, &[cause]);
        now.scenario.seed = 11;
        (System::new(engine, sizes, "none", &[Cause::Nothing]), now)
    };
    engines.iter().flat_map(|engine| became.iter().map(move |became| pair(*engine, *became))).collect()
}

/// A kind of fault for drawn systems, with the accepted causes.
struct Kind {
    name: &'static str,
    causes: &'static [Cause],
    make: fn(&mut Stream, System) -> System,
}

/// Diagnoses this many systems of each kind; half of them against an earlier healthy diagnosis.
fn drawn(cases: u64, from: u64) {
    let facts: Vec<String> = Observed::ALL.iter().map(|fact| fact.word()).collect();
    println!("server\tfault\tseverity\thalf\tmaterial\tcauses\tlayers\t{}", facts.join(","));
    for kind in KINDS {
        for n in from..from + cases {
            let mut chance = Stream::new(n, kind.name, 0);
            let sound = sound(&mut chance, n);
            let mut system = (kind.make)(&mut chance, sound.clone());
            // The earlier run is missing, or was healthy, or had the present fault.
            let known = if kind.name == "slow" { 1 } else { chance.below(3) };
            let before = [None, Some(sound), Some(system.clone())][known as usize].take();
            system.scenario.seed = n + 1_000;
            let target = Fingerprint::default();
            let before = before.map(|before| before.play(&spec()).before(&target));
            let against = before.as_ref().map(|before| EarlierComparison { before, target: &target });
            let limit_s = if kind.name == "over_budget" { 0.02 } else { 120.0 };
            let promised = kind.name == "over_budget" || chance.chance(0.3);
            let ceilings = promised.then(|| Ceiling::new(Metric::E2e, 0.9, limit_s)).into_iter().collect();
            let played = system.play_against(&ActiveSpec { ceilings, ..spec() }, against);
            let ids: Vec<String> = kind.causes.iter().map(|cause| cause.id()).collect();
            let mut layers: Vec<String> = kind.causes.iter().map(|cause| word(cause.layer())).collect();
            layers.dedup();
            println!(
                "simulated\t{}\t{n}\tlearn\tyes\t{}\t{}\t{}",
                kind.name,
                ids.join(","),
                layers.join(","),
                letters(&played.found)
            );
        }
    }
}

/// Returns an engine of the catalogue under a sustainable load; in half of the cases steps are longer at times.
fn sound(chance: &mut Stream, n: u64) -> System {
    let engines = [
        "llama-3.1-8b@h100",
        "llama-3.1-8b@a100",
        "qwen2.5-7b@h100",
        "llama-3.1-70b@h100x4",
        "qwen3-32b@h100x2",
    ];
    let engine = engines[chance.below(engines.len() as u64) as usize];
    let sizes = (64 << chance.below(4), 24 + 8 * chance.below(12) as u32);
    let mut system = System::new(engine, sizes, "none", &[Cause::Nothing]);
    system.scenario.seed = n;
    if chance.chance(0.5) {
        let factor = 1.1 + 0.8 * chance.uniform();
        let text = format!(
            "noisy:factor={factor:.2},on={}ms,off={}ms",
            20 + chance.below(60),
            30 + chance.below(200)
        );
        system.world.faults.push(FaultSpec::parse(&text).expect("a fault"));
    }
    system
}

/// Adds a fault.
fn with(mut system: System, text: String) -> System {
    system.world.faults.push(FaultSpec::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}")));
    system
}

/// Returns a value between two limits on a logarithmic scale.
fn between(chance: &mut Stream, low: f64, high: f64) -> f64 {
    low * (high / low).powf(chance.uniform())
}

const KINDS: &[Kind] = &[
    Kind { name: "none", causes: &[Cause::Nothing], make: |_, system| system },
    Kind {
        name: "none_of_many",
        causes: &[Cause::Nothing],
        make: |chance, system| system.replicas(1 + chance.below(4) as u32),
    },
    Kind {
        name: "few_slots",
        causes: &[Cause::Saturation, Cause::ConnectionLimit],
        make: |chance, system| {
            let slots = 1 + chance.below(4) as u32;
            system.engine(|batching| batching.max_seqs = slots)
        },
    },
    Kind {
        name: "connection_limit",
        causes: &[Cause::ConnectionLimit, Cause::Saturation],
        make: |chance, system| with(system, format!("connection_limit:limit={}", 1 + chance.below(5))),
    },
    Kind {
        name: "kv_pressure",
        causes: &[Cause::KvExhaustion, Cause::Saturation],
        make: |chance, system| {
            with(system, format!("kv_pressure:share={:.5}", 1.0 - between(chance, 0.0005, 0.006)))
        },
    },
    Kind {
        name: "rate_limit",
        causes: &[Cause::RateLimit],
        make: |chance, system| {
            with(
                system,
                format!("rate_limit:rate={:.1},burst={}", between(chance, 0.5, 6.0), 2 + chance.below(12)),
            )
        },
    },
    Kind {
        name: "error",
        causes: &[Cause::ServerErrors],
        make: |chance, system| {
            with(system, format!("error:share={:.3},status=500", between(chance, 0.04, 0.4)))
        },
    },
    Kind {
        name: "reset",
        causes: &[Cause::ServerErrors],
        make: |chance, system| with(system, format!("reset:share={:.3}", between(chance, 0.04, 0.4))),
    },
    Kind {
        name: "crash",
        causes: &[Cause::EngineCrash, Cause::ServerErrors],
        make: |chance, system| {
            let (at, lasts) = (between(chance, 4.0, 40.0), between(chance, 1.0, 12.0));
            with(system, format!("crash:at={at:.0}s,for={lasts:.0}s"))
        },
    },
    Kind {
        name: "disconnect",
        causes: &[Cause::StreamDisconnect, Cause::ServerErrors],
        make: |chance, system| with(system, format!("disconnect:share={:.3}", between(chance, 0.04, 0.4))),
    },
    Kind {
        name: "buffering",
        causes: &[Cause::ProxyBuffering],
        make: |chance, system| match chance.chance(0.5) {
            true => with(system, format!("buffering:tokens={}", 6 + chance.below(60))),
            false => with(system, format!("buffering:every={}ms", between(chance, 150.0, 1_500.0).round())),
        },
    },
    Kind {
        name: "batch_window",
        causes: &[Cause::BatchingWindow],
        make: |chance, system| {
            with(system, format!("batch_window:window={}ms", between(chance, 60.0, 400.0).round()))
        },
    },
    Kind {
        name: "dependency",
        causes: &[Cause::SlowDependency, Cause::PerRequestCost],
        make: |chance, system| {
            with(system, format!("dependency:delay={}ms", between(chance, 80.0, 800.0).round()))
        },
    },
    Kind {
        name: "dependency_spread",
        causes: &[Cause::DependencyTail, Cause::SlowDependency],
        make: |chance, system| {
            let delay = between(chance, 80.0, 600.0).round();
            with(system, format!("dependency:delay={delay}ms,spread=exponential"))
        },
    },
    Kind {
        name: "stall",
        causes: &[Cause::PeriodicStall, Cause::HostContention],
        make: |chance, system| {
            let (every, lasts) = (between(chance, 1_000.0, 6_000.0), between(chance, 150.0, 700.0));
            with(system, format!("stall:every={every:.0}ms,for={lasts:.0}ms"))
        },
    },
    Kind {
        name: "stalls_at_random",
        causes: &[Cause::HostContention, Cause::NoisyNeighbour],
        make: |chance, system| {
            let (on, off) = (between(chance, 150.0, 600.0), between(chance, 1_500.0, 5_000.0));
            with(system, format!("noisy:factor=1000,on={on:.0}ms,off={off:.0}ms"))
        },
    },
    Kind {
        name: "noisy",
        causes: &[Cause::NoisyNeighbour, Cause::HostContention],
        make: |chance, system| {
            let (factor, on, off) =
                (between(chance, 3.5, 8.0), between(chance, 1.0, 5.0), between(chance, 2.0, 8.0));
            with(system, format!("noisy:factor={factor:.2},on={on:.1}s,off={off:.1}s"))
        },
    },
    Kind {
        name: "slow_replica",
        causes: &[Cause::BadReplica],
        make: |chance, system| {
            let factor = between(chance, 1.6, 4.0);
            with(system.replicas(2 + chance.below(3) as u32), format!("slow:factor={factor:.2},replica=1"))
        },
    },
    Kind {
        name: "own_pool",
        causes: &[Cause::ClientCap],
        make: |chance, system| system.pool(1 + chance.below(5) as u32),
    },
    Kind { name: "over_budget", causes: &[Cause::SingleRequestOverBudget], make: |_, system| system },
    Kind {
        name: "crowded",
        causes: &[Cause::Saturation],
        make: |chance, system| {
            // Prefills take longer than decodes: concurrent requests slow all others down.
            let sizes = (4_096 << chance.below(2), 16 + 8 * chance.below(3) as u32);
            System { name: system.name, ..System::new("llama-3.1-8b@a100", sizes, "none", &[]) }
        },
    },
    Kind {
        name: "batch_opened",
        causes: &[Cause::BatchingWindow],
        make: |chance, mut system| {
            let delay = between(chance, 60.0, 400.0) * 1e3;
            system.world.engine = profile::find("bert-base-384-triton@a100").expect("in the catalogue").spec;
            let ModeSpec::Dynamic(batcher) = &mut system.world.engine.mode else { panic!("it batches rows") };
            let waits = batcher.dynamic_batching.as_mut().expect("it waits for others");
            waits.max_queue_delay_us = delay as u64;
            waits.preferred_batch_size = vec![if chance.chance(0.5) { 8 } else { 16 }];
            system.scenario.sizes.output = plimsoll_workload::Size::Fixed(1);
            system
        },
    },
    Kind {
        name: "slow",
        causes: &[Cause::SlowerModel],
        make: |chance, system| with(system, format!("slow:factor={:.2}", between(chance, 1.12, 3.0))),
    },
];

fn word(layer: plimsoll_diagnose::Layer) -> String {
    serde_json::to_value(layer).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
