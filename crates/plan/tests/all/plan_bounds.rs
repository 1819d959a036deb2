//! Bounds of a plan from one replica, compared with closed forms; probability and cost, compared with arithmetic.

use plimsoll_judge::cost::{Price, PriceSpec};
use plimsoll_math::queueing::{Bulk, Mmc, mg1_mean_wait};
use plimsoll_math::special::normal_cdf;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_plan::bounds::{check, floor, mean_in_queue_s, refuse_below};
use plimsoll_plan::finding::{PlanBounds, exact};
use plimsoll_plan::replica::isolated;
use plimsoll_plan::spec::{BandRow, EffortSpec, PlanRuleSpec, PlanSpec, PredictionBand, TrafficSpec};
use plimsoll_plan::{Mix, PlanError, ReplicaCapacity, bounds, cost, probability, slots};
use plimsoll_sim::client::trial::{self, ProtocolSpec, SendPace, Sizes, Start, TrialRequest};
use plimsoll_sim::{BatchingSpec, EngineSpec, LawSpec, ModeSpec, QueueSpec, WorldSpec, catalogue::profile};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

fn engine(name: &str) -> EngineSpec {
    profile::find(name).expect("a profile of this name").spec
}

fn batching(engine: &mut EngineSpec) -> &mut BatchingSpec {
    match &mut engine.mode {
        ModeSpec::Batching(batching) => batching,
        _ => panic!("an engine that batches"),
    }
}

fn plan(engine: EngineSpec, rate_per_s: f64, latency: Vec<Ceiling>) -> PlanSpec {
    let mut scenario = Scenario { arrivals: ArrivalSpec::Poisson, ..Scenario::default() };
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(512), Size::Fixed(200));
    PlanSpec {
        traffic: TrafficSpec { scenario, rate_per_s, window_s: 60.0, source: "test".into() },
        slo: BudgetSpec { name: "test".into(), latency, error_rate: None },
        world: WorldSpec::one(engine),
        gpus_per_replica: Some(2),
        rules: PlanRuleSpec::default(),
        effort: EffortSpec::default(),
        price: None,
        band: None,
        seed: 7,
    }
}

fn queue(servers: u32, service: LawSpec) -> EngineSpec {
    let mode = ModeSpec::Queue(QueueSpec { servers, service, queue_limit: None });
    EngineSpec { name: "queue".into(), mode }
}

fn close(found: f64, truth: f64, share: f64) {
    assert!((found / truth - 1.0).abs() <= share, "{found} is not within {share} of {truth}");
}

/// The latency on an idle server is its service time, whose p99 is −m ln 0.01 if it is exponential. A ceiling of 47 ms on
/// 46.05 can be met.
#[test]
fn an_isolated_request_takes_its_service() {
    let exponential = LawSpec::Exponential { mean_ms: 10.0 };
    for (p, truth_ms) in [(0.5, 10.0 * std::f64::consts::LN_2), (0.99, -10.0 * 0.01f64.ln())] {
        let spec = plan(queue(8, exponential), 100.0, vec![Ceiling::new(Metric::E2e, p, 0.047)]);
        let isolated = isolated(&spec, 4_000).expect("an engine");
        let rows = floor(&spec, &isolated);
        close(rows[0].alone_s, truth_ms * 1e-3, 0.1);
        refuse_below(&rows, &isolated).expect("it can be met");
        let least = isolated.at_least(Metric::E2e, p).expect("a bound");
        assert!(least < truth_ms * 1e-3 && least > 0.8 * truth_ms * 1e-3, "{least}");
    }
}

/// An isolated request, compared with the other client's simulation.
#[test]
fn the_floor_is_an_isolated_request() {
    for (name, prompt, output) in
        [("llama-3.1-8b@h100", 512, 200), ("llama-3.1-8b@h100", 20_000, 50), ("demo", 64, 4)]
    {
        let ceilings = vec![Ceiling::new(Metric::Ttft, 0.5, 100.0), Ceiling::new(Metric::E2e, 0.5, 100.0)];
        let mut spec = plan(engine(name), 1.0, ceilings);
        let sizes = &mut spec.traffic.scenario.sizes;
        (sizes.prompt, sizes.output) = (Size::Fixed(prompt), Size::Fixed(output));
        let rows = floor(&spec, &isolated(&spec, 50).expect("an engine"));
        let sent = TrialRequest { prompt_tokens: prompt, output_tokens: output, ..TrialRequest::default() };
        let alone = trial::replay(&spec.world.engine, &[sent], 1).expect("an engine");
        close(rows[0].alone_s * 1e3, alone.ttft.mean, 2e-3);
        close(rows[1].alone_s * 1e3, alone.e2e.mean, 2e-3);
    }
}

/// Returns the limit of a plan with these prompts and outputs.
fn limit(engine: EngineSpec, prompt: Size, output: Size) -> f64 {
    let mut spec = plan(engine, 10.0, Vec::new());
    let sizes = &mut spec.traffic.scenario.sizes;
    (sizes.prompt, sizes.output) = (prompt, output);
    let mix = Mix::draw(&spec).expect("requests");
    ReplicaCapacity::simulate(&spec, &mix).expect("an engine").limit_per_s
}

/// Busy servers finish one request per service time each; greedy batches are full; single sequences are served in sequence.
#[test]
fn a_full_replica_finishes_what_the_law_says() {
    close(
        limit(queue(8, LawSpec::Exponential { mean_ms: 100.0 }), Size::Fixed(8), Size::Fixed(1)),
        80.0,
        1e-9,
    );
    let batches = engine("bert-large-384-triton@a100");
    let queue = Bulk { fixed: 1.7e-3, each: 1.73e-3, most: 16 };
    close(limit(batches, Size::Fixed(1), Size::Fixed(1)), queue.capacity(), 0.01);
    let mut one = engine("demo");
    batching(&mut one).max_seqs = 1;
    let sent = TrialRequest { prompt_tokens: 64, output_tokens: 4, ..TrialRequest::default() };
    let front_s = batching(&mut one).front_ms / 1e3;
    let service_s = trial::replay(&one, &[sent], 1).expect("an engine").e2e.mean / 1e3 - front_s;
    close(limit(one, Size::Fixed(64), Size::Fixed(4)), 1.0 / service_s, 0.05);
}

/// The limit equals the throughput of a closed loop with more clients than slots on the engine, by the other client: chat,
/// retrieval, equal lengths.
#[test]
fn the_limit_is_what_more_clients_than_slots_get() {
    for (prompt, output) in [
        (Size::Fixed(512), Size::Lognormal(100.0, 0.7)),
        (Size::Lognormal(2500.0, 0.6), Size::Lognormal(50.0, 0.6)),
        (Size::Fixed(512), Size::Fixed(64)),
    ] {
        let spec = engine("llama-3.1-8b@h100");
        let protocol = ProtocolSpec {
            pace: SendPace::Closed { concurrency: 400, start: Start::Staggered },
            sizes: Sizes::Drawn { prompt: prompt.clone(), output: output.clone() },
            requests: 8_000,
            warm_up: 2_000,
        };
        // Little's law of a loop without think time.
        let seen = 400.0 / (trial::run(&spec, &protocol, 3).expect("an engine").e2e.mean * 1e-3);
        close(limit(spec, prompt, output), seen, 0.05);
    }
}

/// Erlang's mean wait, and Pollaczek and Khinchine's for one server.
#[test]
fn queues_are_those_of_the_textbooks() {
    let mut spec = plan(queue(5, LawSpec::Exponential { mean_ms: 100.0 }), 40.0, Vec::new());
    let mmc = Mmc { servers: 5, load: 0.8, service_mean: 0.1 };
    close(mean_in_queue_s(&spec, 1.0, 1).expect("a law"), mmc.mean_wait() + 0.1, 1e-9);
    spec.world.engine = queue(1, LawSpec::Gamma { mean_ms: 100.0, cv: 0.5 });
    spec.traffic.rate_per_s = 7.0;
    close(mean_in_queue_s(&spec, 1.0, 1).expect("a law"), mg1_mean_wait(0.7, 0.1, 0.5) + 0.1, 1e-9);
    assert_eq!(mean_in_queue_s(&plan(engine("demo"), 1.0, Vec::new()), 1.0, 1), None);
}

#[test]
fn the_binding_limit_has_a_name() {
    let mut engine = engine("demo");
    let mix = Mix::of([(100, 100)]).expect("a request");
    let binding = |engine: &EngineSpec| {
        let spec = plan(engine.clone(), 1.0, Vec::new());
        let slots = slots(&spec, &mix).expect("an engine").expect("slots");
        (slots.slots, slots.binding)
    };
    // A request in mid-response occupies 100 + 100²/200 tokens, and half a block: 158.
    let spec = batching(&mut engine);
    (spec.kv_blocks, spec.max_seqs, spec.token_budget) = (Some(158), 50, 1000);
    let (slots, by) = binding(&engine);
    close(slots, 16.0, 1e-12);
    assert_eq!(by, "kv_cache");
    batching(&mut engine).max_seqs = 12;
    assert_eq!(binding(&engine), (12.0, "max_seqs".to_owned()));
    batching(&mut engine).token_budget = 10;
    assert_eq!(binding(&engine), (10.0, "token_budget".to_owned()));
}

fn bounded(spec: &PlanSpec) -> Result<PlanBounds, PlanError> {
    check(spec)?;
    let mix = Mix::draw(spec)?;
    let replica = ReplicaCapacity::simulate(spec, &mix)?;
    refuse_below(&floor(spec, &replica.isolated), &replica.isolated)?;
    bounds(spec, &mix, &replica)
}

#[test]
fn the_ceiling_on_utilisation_counts_at_the_peak() {
    // 8 servers of 100 ms carry 80/s each; 50/s × 2 at 80 % need 125/s.
    let mut spec = plan(queue(8, LawSpec::Exponential { mean_ms: 100.0 }), 50.0, Vec::new());
    spec.rules.peak = 2.0;
    let found = bounded(&spec).expect("bounds");
    assert_eq!((found.replicas, found.replicas_for_utilisation), (2, 2));
    close(found.utilisation, 100.0 / 160.0, 1e-9);
    spec.rules.utilisation = 0.6;
    assert_eq!(bounded(&spec).expect("bounds").replicas, 3);
    spec.rules.utilisation = 1.0;
    let refused = bounded(&spec).expect_err("a queue without end").to_string();
    assert!(refused.starts_with("--utilisation 1:"), "{refused}");
}

/// 100/s of 100 ms each are 10 in flight, and eight servers contain eight.
#[test]
fn what_is_in_flight_has_to_fit() {
    let mut spec = plan(queue(8, LawSpec::Deterministic { ms: 100.0 }), 100.0, Vec::new());
    spec.rules.utilisation = 0.99;
    let found = bounded(&spec).expect("bounds");
    assert_eq!((found.replicas, found.replicas_for_slots), (2, 2));
    close(found.in_flight, 5.0, 0.01);
}

#[test]
fn a_promise_below_the_floor_is_refused_by_how_much() {
    let spec = plan(engine("llama-3.1-8b@h100"), 5.0, vec![Ceiling::new(Metric::Ttft, 0.99, 0.005)]);
    match bounded(&spec) {
        Err(PlanError::BelowFloor { metric: "ttft", limit_ms, floor_ms, over_ms, .. }) => {
            close(limit_ms, 5.0, 1e-9);
            close(over_ms, floor_ms - 5.0, 1e-9);
        }
        other => panic!("{other:?}"),
    }
}

/// Many rows: a normal distribution. The tighter of two percentiles of a metric decides, and metrics multiply.
#[test]
fn the_chance_is_that_of_the_residuals() {
    let row = |metric: &str, bias_log, spread_log| BandRow {
        metric: metric.into(),
        bias_log,
        spread_log,
        rows: 1_000_000,
    };
    let band =
        PredictionBand { rows: vec![row("ttft", 0.1, 0.2), row("tpot", 0.0, 0.1)], source: "test".into() };
    let figure = |metric, percentile, value, limit_s| plimsoll_plan::finding::ExpectedLatency {
        metric,
        percentile: Some(percentile),
        value: exact(value),
        limit_s: Some(limit_s),
        held: None,
    };
    let figures = [
        figure(Metric::Ttft, 0.5, 0.1, 1.0),
        figure(Metric::Ttft, 0.99, 0.4, 0.5),
        figure(Metric::Tpot, 0.95, 0.02, 0.025),
    ];
    let found = probability(&figures, 0.5, &band).expect("ceilings");
    let ttft = normal_cdf((1.25_f64.ln() - 0.1) / 0.2);
    let tpot = normal_cdf(1.25_f64.ln() / 0.1);
    close(found.held, ttft * tpot, 1e-5);
    assert_eq!(found.weakest, "ttft p99");
    assert!(probability(&figures[..0], 0.5, &band).is_none());
}

/// Five replicas of two GPUs at 2.49 USD: 24.90 USD per hour, and 10/s are 36 000 requests in it.
#[test]
fn the_bill_counts_every_gpu() {
    let mut spec = plan(engine("llama-3.1-8b@h100"), 10.0, Vec::new());
    spec.price = Some(PriceSpec::new(Price::parse("2.49USD/gpu-hour").expect("a price")));
    let mix = Mix::draw(&spec).expect("requests");
    let found = cost(&spec, &mix, 5, Some(20.0)).expect("a bill").expect("a price");
    close(found.per_hour.expect("by the hour"), 24.90, 1e-9);
    close(found.at_mean.per_request.value().expect("a figure"), 24.90 / 36_000.0, 1e-9);
    let million = found.at_break.expect("a load").per_million_output.value().expect("a figure");
    close(million, 24.90 / (72_000.0 * 200.0) * 1e6, 1e-9);
}
