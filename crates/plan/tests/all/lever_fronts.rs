//! Levers in front of the engine (admission control, hedging) and replicas that follow the load, compared with formulas and
//! with unseen arrivals.

use plimsoll_math::dist::exponential;
use plimsoll_math::quantile::order_statistic;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::Metric;
use plimsoll_plan::levers::candidate::{self, TrafficChange};
use plimsoll_plan::levers::{Goal, Redrawn, ReplayRequest, schedule};
use plimsoll_sim::spec::LinearSpec;
use plimsoll_sim::{
    EngineSpec, FaultSpec, FleetSpec, LawSpec, ModeSpec, QueueSpec, RouteSpec, StepSpec, WorldSpec,
};
use serde_json::json;

use crate::lever_systems::{System, system};

const SERVICE_S: f64 = 0.08;

fn exponential_servers(servers: u32) -> EngineSpec {
    let service = LawSpec::Exponential { mean_ms: 1e3 * SERVICE_S };
    let mode = ModeSpec::Queue(QueueSpec { servers, service, queue_limit: None });
    EngineSpec { name: "queue".into(), mode }
}

fn poisson(rate_per_s: f64, count: usize, seed: u64) -> Vec<ReplayRequest> {
    let mut stream = Stream::new(seed, "front arrivals", 0);
    let mut at_s = 0.0;
    let one = |_| {
        at_s += exponential(&mut stream, 1.0 / rate_per_s);
        ReplayRequest {
            due_ns: (1e9 * at_s) as i64,
            prompt: 16,
            output: 1,
            blocks: Vec::new(),
            session: None,
            turn: None,
            think_ns: None,
        }
    };
    (0..count).map(one).collect()
}

/// M/M/c/K by its balance equations (Erlang): p_n ∝ a^n/n! up to c, then × ρ.
struct Mmck {
    servers: u32,
    /// Probability that an admitted arrival finds n.
    found: Vec<f64>,
    refused: f64,
}

impl Mmck {
    fn new(servers: u32, most: u32, offered: f64) -> Mmck {
        let mut weights = vec![1.0];
        for n in 1..=most {
            let last = weights[n as usize - 1];
            weights.push(last * offered / f64::from(n.min(servers)));
        }
        let all: f64 = weights.iter().sum();
        let refused = weights[most as usize] / all;
        let found = weights[..most as usize].iter().map(|weight| weight / all / (1.0 - refused)).collect();
        Mmck { servers, found, refused }
    }

    /// Returns the probability that an admitted request takes longer than `t` services. It is Exp(1) with a free server,
    /// else k services of the c servers first, whose tail is a Poisson count.
    fn longer_than(&self, t: f64) -> f64 {
        let c = self.servers as usize;
        let after =
            |(n, share): (usize, &f64)| share * if n < c { (-t).exp() } else { self.waits(n - c + 1, t) };
        self.found.iter().enumerate().map(after).sum()
    }

    /// Returns P(Erlang(k, c) + Exp(1) > t), by the sum over the wait's density (Simpson).
    fn waits(&self, k: usize, t: f64) -> f64 {
        let c = f64::from(self.servers);
        let factorial = |n: usize| (1..=n).map(|i| i as f64).product::<f64>();
        let still: f64 = (0..k).map(|i| (c * t).powi(i as i32) / factorial(i)).sum::<f64>() * (-c * t).exp();
        let density =
            |s: f64| c * (c * s).powi(k as i32 - 1) / factorial(k - 1) * (-c * s).exp() * (s - t).exp();
        let (steps, h) = (200, t / 200.0);
        let weight = |i: usize| match i {
            0 | 200 => 1.0,
            _ => [2.0, 4.0][i % 2],
        };
        still + (0..=steps).map(|i| weight(i) * density(h * i as f64)).sum::<f64>() * h / 3.0
    }

    /// Returns the p-quantile of the admitted requests, in services.
    fn quantile(&self, p: f64) -> f64 {
        let (mut low, mut high) = (0.0, 100.0);
        for _ in 0..60 {
            let middle = 0.5 * (low + high);
            *(if self.longer_than(middle) > 1.0 - p { &mut low } else { &mut high }) = middle;
        }
        low
    }

    /// Returns the share of all requests that are answered within `t` services.
    fn good(&self, t: f64) -> f64 {
        (1.0 - self.refused) * (1.0 - self.longer_than(t))
    }
}

#[test]
fn a_door_turns_away_and_speeds_up_as_erlang_says() {
    let world = WorldSpec::one(exponential_servers(3));
    // The load is a fifth above the capacity of three servers, with at most nine inside.
    let (offered, most) = (3.6, 9);
    let asked = poisson(offered / SERVICE_S, 60_000, 5);
    let truth = Mmck::new(3, most, offered);
    let times = TrafficChange::AtMost(most).play(&world, &asked, 5).expect("a sound world");
    let refused = times.iter().filter(|times| times.end.is_none()).count() as f64 / times.len() as f64;
    assert!((refused - truth.refused).abs() < 0.01, "{refused} against {}", truth.refused);
    let mut answered: Vec<f64> = times.iter().filter_map(|t| Some(t.end? as f64 / 1e9)).collect();
    let p95 = order_statistic(&mut answered, 0.95).expect("answers") / SERVICE_S;
    assert!((p95 / truth.quantile(0.95) - 1.0).abs() < 0.03, "{p95} against {}", truth.quantile(0.95));
    let good = answered.iter().filter(|t| **t <= 2.0 * SERVICE_S).count() as f64 / times.len() as f64;
    assert!((good - truth.good(2.0)).abs() < 0.01, "{good} against {}", truth.good(2.0));
}

/// Returns exponential servers under a separate load.
fn servers(count: u32, times: f64, requests: f64) -> System {
    let value = json!({"sizes": {"prompt": 32, "output": 1}, "seed": 3, "nonce": 0});
    System {
        name: format!("M/M/{count} at {times}"),
        world: WorldSpec::one(exponential_servers(count)),
        scenario: serde_json::from_value(value).expect("a sound scenario"),
        rate_per_s: times * f64::from(count) / SERVICE_S,
        requests,
    }
}

#[test]
fn past_the_limit_admission_says_what_erlang_says() {
    let system = servers(8, 1.2, 4_000.0);
    let (ceiling_s, offered) = (3.0 * SERVICE_S, 9.6);
    let goal = Goal { metric: Metric::E2e, percentile: 0.95, limit_s: Some(ceiling_s) };
    let finding = system.ranking_for(goal, 6);
    assert!(finding.fit.as_ref().is_some_and(|fit| fit.fits), "{:?}", finding.fit);
    assert_eq!(finding.redrawn, Some(Redrawn::Scenario));
    let found = finding.admission.expect("simulated");
    let truth = Mmck::new(8, found.in_flight, offered);
    let holds = |name: &str, e: &plimsoll_measure::findings::Estimate, truth: f64| {
        assert!(e.lower <= truth && truth <= e.upper, "{name}: {truth} outside {e:?}");
        assert!((e.upper - e.lower) < 0.5 * truth, "{name} says nothing: {e:?}");
    };
    holds("turned away", &found.refused, truth.refused);
    holds("p95", &found.answered_s, SERVICE_S * truth.quantile(0.95));
    let good = found.good.expect("a ceiling");
    holds("good", &good.then_per_s, system.rate_per_s * truth.good(3.0));
    // The limit found is nearly the best by the formula.
    let best = (8..60).map(|most| Mmck::new(8, most, offered).good(3.0)).fold(0.0, f64::max);
    assert!(truth.good(3.0) >= 0.97 * best, "{} of {best}", truth.good(3.0));
    // Without admission control, almost no request is in time in the end.
    assert!(good.now_per_s.upper < 0.5 * good.then_per_s.lower && good.more_per_s.lower > 0.0);
    assert!(found.now_s.value > 5.0 * found.answered_s.value);
    // A sixth is rejected, so the p95 of all requests is infinite, and no share of latency is reported.
    assert!(finding.ranked.iter().all(|ranked| ranked.lever != "admission"));
}

#[test]
fn below_the_limit_nobody_is_turned_away() {
    let finding = servers(8, 0.5, 3_000.0).ranking(3);
    assert!(finding.admission.is_none());
    assert!(finding.ruled_out.iter().any(|out| out.lever == "admission" && out.why.contains("is stable")));
}

/// Returns four batching replicas, one of which stalls for two seconds at intervals.
fn stalling() -> WorldSpec {
    let mut engine = system(1, 100.0).world.engine;
    let ModeSpec::Batching(batching) = &mut engine.mode else { panic!("it batches") };
    batching.step = StepSpec::Linear(LinearSpec {
        base_us: 8_000.0,
        decode_us: 600.0,
        prefill_us: 83.3,
        context_ns: 0.0,
        overlap: None,
    });
    batching.origin = None;
    let stall = FaultSpec::parse("stall:at=20s,every=15s,times=24,for=2s,replica=1").expect("sound");
    let fleet = FleetSpec { replicas: 4, route: RouteSpec::LeastRequests {}, ..FleetSpec::default() };
    WorldSpec { engine, fleet, faults: vec![stall] }
}

#[test]
fn hedging_answers_elsewhere_what_waits_on_a_replica_that_stands_still() {
    let mut asked = poisson(10.0, 4_000, 6);
    asked.iter_mut().for_each(|one| (one.prompt, one.output) = (400, 40));
    let world = stalling();
    let hedges: Vec<_> =
        candidate::candidates(&world).into_iter().filter(|one| one.lever == "hedging").collect();
    assert_eq!(hedges.len(), 2);
    let late = |world: &WorldSpec| {
        let times = TrafficChange::AsItIs.play(world, &asked, 4).expect("a sound world");
        assert!(times.iter().all(|one| one.end.is_some()), "all are answered");
        times.iter().filter(|one| one.first > Some(1_000_000_000)).count()
    };
    let as_it_is = late(&world);
    assert!(as_it_is >= 20, "{as_it_is} waited for more than a second");
    for hedged in &hedges {
        assert_eq!(hedged.traffic, TrafficChange::AsItIs);
        let left = late(&hedged.world);
        assert!(left * 3 < as_it_is, "{}: {left} of {as_it_is} still did", hedged.setting);
    }
    // A hedging gateway gets no hedge; a single replica has no alternative.
    let has = |world: &WorldSpec| candidate::candidates(world).iter().any(|one| one.lever == "hedging");
    assert!(!has(&hedges[0].world));
    assert!(!has(&WorldSpec::one(exponential_servers(2))));
}

#[test]
fn blocks_drawn_twice_do_not_repeat_their_prompts() {
    // Every prompt has a separate block after a common one, and a session of two requests.
    let own: Vec<ReplayRequest> = (0..1_200u64)
        .map(|i| ReplayRequest {
            due_ns: i as i64 * 1_000_000,
            prompt: 32,
            output: 8,
            blocks: vec![7, 1_000 + i],
            session: Some(i / 2),
            turn: None,
            think_ns: None,
        })
        .collect();
    let mut stream = Stream::new(1, "blocks", 0);
    let drawn = schedule::in_blocks(&own, 1_200_000_000, schedule::BLOCKS, &mut stream);
    let distinct = |f: &dyn Fn(&ReplayRequest) -> u64| {
        drawn.iter().map(f).collect::<std::collections::HashSet<u64>>().len()
    };
    assert_eq!(drawn.len(), 1_200);
    assert!(drawn.is_sorted_by_key(|asked| asked.due_ns));
    assert!(drawn.iter().all(|asked| asked.blocks[0] == 7), "what all share stays shared");
    assert_eq!(distinct(&|asked| asked.blocks[1]), 1_200);
    assert_eq!(distinct(&|asked| asked.session.expect("a session")), 600);
    // With a varying load, a block moves by one place at most.
    let near = schedule::in_blocks(&own, 1_200_000_000, 1, &mut stream);
    let block_of = |asked: &ReplayRequest| (asked.blocks[1] as i64 - 1_000) / 100;
    let first_copies = near.iter().filter(|asked| asked.blocks[1] < 1_000_000);
    assert!(first_copies.clone().count() > 600);
    assert!(first_copies.clone().all(|a| (block_of(a) - a.due_ns / 100_000_000).abs() <= 1));
}

/// A load that triples half-way, from 0.4 of a replica's capacity to 1.2: the autoscaler's gain is predicted from one run
/// and measured on others.
#[test]
fn autoscaling_returns_what_was_predicted() {
    let mut system = servers(2, 0.8, 0.0);
    let arrivals = json!({"process": "step", "heights": [1.0, 3.0]});
    let value = json!({
        "sizes": {"prompt": 32, "output": 1}, "seed": 3, "nonce": 0, "arrivals": arrivals,
    });
    system.scenario = serde_json::from_value(value).expect("a sound scenario");
    system.requests = 300.0 * system.rate_per_s;
    let goal = Goal { metric: Metric::E2e, percentile: 0.95, limit_s: None };
    let finding = system.ranking_for(goal, 6);
    let said = finding.ranked.iter().find(|ranked| ranked.lever == "autoscaling");
    let said = said.unwrap_or_else(|| panic!("{:?} {:?}", finding.fit, finding.ruled_out));
    let candidates = candidate::candidates(&system.world);
    let scaled = candidates.iter().find(|candidate| candidate.lever == "autoscaling").expect("simulated");
    let mut held = 0;
    for seed in 0..8 {
        let asked = system.unseen(seed, 1.0);
        let base = system.truth(&finding.goal, &system.world, &asked, seed, &TrafficChange::AsItIs);
        let saved = system.saved(&finding.goal, scaled, &asked, base, seed);
        assert!(saved > 0.1, "seed {seed}: {saved}");
        held += u32::from(said.latency.lower <= saved && saved <= said.latency.upper);
    }
    // Each is inside with 95 %; of eight, six or more with 99.4 %.
    assert!(held >= 6, "{held} of 8 inside {:?}", said.latency);
    assert!(said.latency.upper - said.latency.lower < 0.5, "{:?} says nothing", said.latency);
}
