//! The search for a cheaper configuration, compared with a check of every configuration.

use plimsoll_judge::cost::{Price, PriceSpec};
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_plan::finding::PlanOption;
use plimsoll_plan::search::ListedCandidate;
use plimsoll_plan::spec::{EffortSpec, PlanRuleSpec, PlanSpec, TrafficSpec};
use plimsoll_plan::{ConfigSearch, Mix, Planner, ReplicaCapacity, SimulatedPlan, VarySpec, bounds, simulate};
use plimsoll_sim::{BatchingSpec, ModeSpec, WorldSpec, catalogue::profile};
use plimsoll_workload::{ArrivalSpec, Scenario, Size};

fn price(text: &str) -> PriceSpec {
    PriceSpec::new(Price::parse(text).expect("a price"))
}

fn plan(name: &str, rate_per_s: f64, latency: Vec<Ceiling>) -> PlanSpec {
    let mut scenario = Scenario { arrivals: ArrivalSpec::Poisson, ..Scenario::default() };
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Fixed(512), Size::Fixed(100));
    PlanSpec {
        traffic: TrafficSpec { scenario, rate_per_s, window_s: 60.0, source: "test".into() },
        slo: BudgetSpec { name: "test".into(), latency, error_rate: None },
        world: WorldSpec::one(profile::find(name).expect("a profile of this name").spec),
        gpus_per_replica: Some(1),
        rules: PlanRuleSpec::default(),
        effort: EffortSpec::default(),
        price: Some(price("2.00USD/gpu-hour")),
        band: None,
        seed: 7,
    }
}

fn vary(settings: &[&str]) -> VarySpec {
    let mut vary = VarySpec::default();
    for setting in settings {
        vary.add(setting).expect("a setting");
    }
    vary
}

fn searched(plan: &PlanSpec, vary: &VarySpec) -> ConfigSearch {
    let mix = Mix::draw(plan).expect("a load");
    let mut search = ConfigSearch::new(plan, &mix, vary).expect("a search");
    while search.step() {}
    search
}

fn named<'a>(options: &'a [PlanOption], name: &str) -> &'a PlanOption {
    let found = options.iter().find(|option| option.name == name);
    found.unwrap_or_else(|| {
        panic!("{name} is not in {:?}", options.iter().map(|o| &o.name).collect::<Vec<_>>())
    })
}

/// GPUs and their number: each option has the replicas of a separate plan of that pair, at its GPU's price.
#[test]
fn each_option_is_the_plan_of_its_own_engine() {
    let latency = vec![Ceiling::new(Metric::Ttft, 0.99, 1.0), Ceiling::new(Metric::Tpot, 0.95, 0.04)];
    let plan = plan("llama-3.1-8b@h100", 60.0, latency);
    let mut vary = vary(&["gpu=h100,a100", "tp=1,2"]);
    vary.prices.insert("a100".into(), price("1.25USD/gpu-hour"));
    let options = searched(&plan, &vary).options();
    assert_eq!(options.len(), 4);
    for (name, pair, gpus, dollars) in [
        ("h100", "llama-3.1-8b@h100", 1, 2.0),
        ("h100 × 2", "llama-3.1-8b@h100x2", 2, 2.0),
        ("a100", "llama-3.1-8b@a100", 1, 1.25),
        ("a100 × 2", "llama-3.1-8b@a100x2", 2, 1.25),
    ] {
        let mut alone = plan.clone();
        alone.world = WorldSpec::one(profile::find(pair).expect("a pair").spec);
        let mix = Mix::draw(&alone).expect("a load");
        let replica = ReplicaCapacity::simulate(&alone, &mix).expect("an engine");
        let replicas = bounds(&alone, &mix, &replica).expect("bounds").replicas;
        let option = named(&options, name);
        assert_eq!((option.replicas, option.gpus), (Some(replicas), Some(gpus * replicas)), "{name}");
        let hour = f64::from(gpus * replicas) * dollars;
        assert!(option.per_hour.is_some_and(|is| (is - hour).abs() < 1e-9), "{name}: {:?}", option.per_hour);
    }
    assert!(options.windows(2).all(|pair| pair[0].per_hour <= pair[1].per_hour), "cheapest first");
}

/// An option on a front is beaten by no other in both figures; checked pair by pair.
#[test]
fn the_fronts_are_what_nobody_beats() {
    let latency = vec![Ceiling::new(Metric::Ttft, 0.99, 0.6), Ceiling::new(Metric::Tpot, 0.95, 0.03)];
    let plan = plan("llama-3.1-8b@h100", 120.0, latency);
    let vary = vary(&["tp=1,2,4", "max_seqs=16,64,256", "token_budget=1024,8192"]);
    let options = searched(&plan, &vary).options();
    let held: Vec<&PlanOption> = options.iter().filter(|option| option.refused.is_none()).collect();
    assert!(held.len() > 8, "{options:?}");
    for option in &held {
        let point = |o: &PlanOption| (o.per_hour.unwrap_or(f64::NAN), o.latency_s.unwrap_or(f64::NAN));
        let (cost, latency) = point(option);
        let beaten = held
            .iter()
            .map(|o| point(o))
            .any(|(c, l)| c <= cost && l <= latency && (c, l) != (cost, latency));
        assert_eq!(option.on_cost_front, !beaten, "{option:?}");
        let point =
            |o: &PlanOption| (o.tokens_per_user.unwrap_or(f64::NAN), o.tokens_per_gpu.unwrap_or(f64::NAN));
        let (user, gpu) = point(option);
        let beaten =
            held.iter().map(|o| point(o)).any(|(u, g)| u >= user && g >= gpu && (u, g) != (user, gpu));
        assert_eq!(option.on_token_front, !beaten, "{option:?}");
    }
    assert!(
        held.iter().any(|option| option.on_cost_front) && held.iter().any(|option| !option.on_cost_front)
    );
}

/// With four concurrent sequences a replica has a lower limit than with six, so six are cheaper. The search finds it, and
/// simulation of whole fleets confirms the number.
#[test]
fn simulation_confirms_what_is_cheaper() {
    let mut plan = plan("demo", 300.0, vec![Ceiling::new(Metric::E2e, 0.95, 0.2)]);
    if let ModeSpec::Batching(BatchingSpec { max_seqs, .. }) = &mut plan.world.engine.mode {
        *max_seqs = 2;
    }
    plan.traffic.window_s = 40.0;
    let mut search = searched(&plan, &vary(&["max_seqs=2,6"]));
    let next = search.next().expect("six sequences are cheaper");
    let simulated = simulated(&next);
    search.take(&next, &simulated);
    assert!(search.next().is_none(), "the cheapest is confirmed");
    let options = search.options();
    let (six, two) = (named(&options, "6 seqs"), named(&options, "2 seqs"));
    assert_eq!((six.how.as_str(), six.replicas), ("simulated", simulated.replicas), "{six:?}");
    assert!(six.replicas < two.replicas, "{six:?} {two:?}");
    let says = search.says().expect("a sentence");
    assert!(says.contains("6 seqs (simulated)") && says.contains("2 of 2"), "{says}");
}

/// After the possibly cheaper candidates come those on a front; a candidate that is beaten in every figure keeps its bound.
#[test]
fn what_is_beaten_is_left_alone() {
    let mut plan = plan("demo", 300.0, vec![Ceiling::new(Metric::E2e, 0.95, 0.2)]);
    plan.traffic.window_s = 10.0;
    let mut search = searched(&plan, &vary(&["max_seqs=6,2", "token_budget=64,512"]));
    let mut listed = Vec::new();
    while let Some(next) = search.next() {
        let before = search.options();
        search.take(&next, &simulated(&next));
        let name = search.options().into_iter().find(|option| {
            option.how == "simulated"
                && before.iter().any(|old| old.name == option.name && old.how == "bound")
        });
        let name = name.expect("one was taken").name;
        let old = named(&before, &name);
        assert!(old.on_cost_front || old.on_token_front, "{old:?}");
        listed.push(name);
    }
    assert!(!listed.is_empty() && listed.len() < 4, "{listed:?}");
    let left: Vec<PlanOption> = search.options().into_iter().filter(|option| option.how == "bound").collect();
    assert!(
        left.iter()
            .all(|option| !(option.on_cost_front || option.on_token_front) || !listed.contains(&option.name))
    );
    assert!(search.says().is_some_and(|says| says.contains("simulated")), "{:?}", search.says());
}

/// Returns the number of a candidate by simulation.
fn simulated(listed: &ListedCandidate) -> SimulatedPlan {
    let mut planner = Planner::new(&listed.spec, listed.start, listed.least).expect("a plan").number_only();
    loop {
        let batch = planner.next();
        if batch.is_empty() {
            return planner.finish();
        }
        for experiment in batch {
            let outcome = simulate(&experiment).expect("a world");
            planner.take(&experiment, outcome);
        }
    }
}

/// Weights that do not fit and SLOs that can't be met are excluded, with their reason; the other candidates remain.
#[test]
fn what_cannot_be_is_out_with_its_reason() {
    let latency = vec![Ceiling::new(Metric::Tpot, 0.95, 0.02)];
    let mut plan = plan("llama-3.1-70b@h100x4", 5.0, latency);
    plan.gpus_per_replica = Some(4);
    let options = searched(&plan, &vary(&["tp=1,3,4,8"])).options();
    let why = |name: &str| named(&options, name).refused.clone().unwrap_or_default();
    assert!(why("h100").contains("too much"), "{}", why("h100"));
    assert!(why("h100 × 3").contains("tensor_parallel 3"), "{}", why("h100 × 3"));
    assert_eq!(named(&options, "h100 × 8").refused, None);
    assert!(options.windows(2).all(|pair| pair[0].refused.is_none() || pair[1].refused.is_some()));
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for (text, word) in [
        ("tp", "such as tp=1,2,4"),
        ("tp=", "no value"),
        ("tp=0", "whole number"),
        ("gpu=h1000", "did you mean"),
        ("chunking=maybe", "neither on nor off"),
        ("rout=random", "no such setting; there are route"),
        ("route=fastest", "fastest"),
    ] {
        let error = VarySpec::default().add(text).expect_err(text).to_string();
        assert!(error.contains(word) && error.contains(text), "{error}");
    }
    let plan = plan("demo", 300.0, vec![Ceiling::new(Metric::E2e, 0.95, 0.2)]);
    let mix = Mix::draw(&plan).expect("a load");
    for setting in ["tp=1,2", "gpu=h100", "max_batch=8"] {
        let error = ConfigSearch::new(&plan, &mix, &vary(&[setting])).expect_err(setting).to_string();
        assert!(error.contains("has no such setting"), "{error}");
    }
    let many: Vec<String> = (1..=70).map(|n| n.to_string()).collect();
    let (seqs, budget) = (format!("max_seqs={}", many.join(",")), format!("token_budget={}", many.join(",")));
    let error = ConfigSearch::new(&plan, &mix, &vary(&[&seqs, &budget])).expect_err("too many").to_string();
    assert!(error.contains("more than 4096"), "{error}");
}
