//! What-ifs of a plan, against plans in which the change has been made.

use plimsoll_measure::findings::{BudgetSpec, Ceiling, Held, Metric};
use plimsoll_plan::decide;
use plimsoll_plan::fit::knee::{KneeSpec, limit_of};
use plimsoll_plan::replay::ReplayRequest;
use plimsoll_plan::spec::{EffortSpec, PlanSpec, RuleSpec, TrafficSpec};
use plimsoll_plan::what_if::of_plan::{Planned, judge};
use plimsoll_plan::what_if::{AsItIs, Asking, WhatIfFinding, WhatIfSpec, what_if};
use plimsoll_plan::{Experiment, Fleet, Mix, Outcome, PlanCase, answer, formula, simulate};
use plimsoll_sim::{WorldSpec, catalogue::profile};
use plimsoll_workload::{Scenario, Size};

fn plan(rate_per_s: f64) -> PlanSpec {
    let mut scenario = Scenario::default();
    (scenario.sizes.prompt, scenario.sizes.output) = (Size::Lognormal(64.0, 0.5), Size::Lognormal(8.0, 0.5));
    let latency = vec![Ceiling::new(Metric::Ttft, 0.95, 0.03), Ceiling::new(Metric::E2e, 0.95, 0.1)];
    PlanSpec {
        traffic: TrafficSpec { scenario, rate_per_s, window_s: 20.0, source: "test".into() },
        slo: BudgetSpec { name: "test".into(), latency, error_rate: None },
        world: WorldSpec::one(profile::find("demo").expect("a profile").spec),
        gpus_per_replica: None,
        rules: RuleSpec { peak: 2.0, ..RuleSpec::default() },
        effort: EffortSpec::default(),
        price: None,
        band: None,
        seed: 7,
    }
}

const FIGURES: [(Metric, f64); 3] = [(Metric::Ttft, 0.5), (Metric::Ttft, 0.95), (Metric::E2e, 0.95)];

fn predict(plan: &PlanSpec, replicas: u32, asks: &[&str]) -> WhatIfFinding {
    let planned = Planned::of(plan, replicas).expect("a load");
    let as_it_is = AsItIs {
        world: &planned.world,
        others: &[],
        band: None,
        asked: &planned.asked,
        window_s: planned.window_s,
        measured: &[],
        redraw: planned.redraw.as_ref(),
    };
    let asks = asks.iter().map(|text| Asking::parse(text).expect("a change")).collect();
    let spec = WhatIfSpec { asks, figures: FIGURES.to_vec(), schedules: 6, seed: plan.seed };
    let mut found = what_if(&as_it_is, &spec).expect("predictions");
    judge(&mut found, plan, &Mix::draw(plan).expect("a mix"));
    found
}

/// The changed plan simulated as a plan is: by other code, on other schedules.
fn truth(plan: &PlanSpec, replicas: u32) -> Vec<Outcome> {
    let case = std::sync::Arc::new(PlanCase::of(plan));
    let one = |draw| Experiment {
        case: case.clone(),
        replicas,
        fleet: Fleet::Static,
        factor: plan.rules.peak,
        draw,
        gives_up: false,
    };
    (20..28).map(|draw| simulate(&one(draw)).expect("a world")).collect()
}

/// 200/s × 2 on one replica, with half as much again, with longer prompts and on two replicas: the predicted figures are those of a plan that was
/// asked for just that, and so are the replicas by formula.
#[test]
fn a_what_if_is_the_plan_that_was_asked_for_that() {
    let plan = plan(200.0);
    let found = predict(&plan, 1, &["rate 1.5x", "prompts +30%", "replicas +1", "rate 20x"]);
    assert!((found.rate_per_s / 400.0 - 1.0).abs() < 1e-9, "at the peak: {}", found.rate_per_s);
    let changed = |change: fn(&mut PlanSpec)| {
        let mut plan = plan.clone();
        change(&mut plan);
        plan
    };
    let grown = changed(|plan| plan.traffic.rate_per_s *= 1.5);
    let longer = changed(|plan| plan.traffic.scenario.sizes.prompt = Size::Lognormal(64.0 * 1.3, 0.5));
    for (place, (spec, replicas)) in [(&grown, 1), (&longer, 1), (&plan, 2)].into_iter().enumerate() {
        let case = &found.cases[place];
        assert_eq!(case.refused, None, "{}", case.ask);
        let outcomes = truth(spec, replicas);
        let all: Vec<&Outcome> = outcomes.iter().collect();
        for (figure, (metric, percentile)) in case.figures.iter().zip(FIGURES) {
            let is = decide::percentile(metric, percentile, &all).value().expect("a percentile");
            let predicted = figure.predicted.estimate().expect("predicted");
            let what = format!("{} {} p{percentile}: {predicted:?} against {is}", case.ask, metric.name());
            assert!((predicted.value / is - 1.0).abs() < 0.1, "{what}");
        }
        let formula = answer(spec, &Mix::draw(spec).expect("a mix")).expect("an answer").replicas;
        assert_eq!(case.replicas, Some(formula), "{}", case.ask);
    }
    assert_eq!(found.cases[0].held, Some(Held::Pass), "{:?}", found.cases[0]);
    let over = &found.cases[3];
    assert_eq!((over.held, over.figures.len()), (Some(Held::Fail), 0), "{over:?}");
    assert!(
        over.replicas.is_some_and(|replicas| replicas > 7),
        "8 000/s are more than seven carry: {over:?}"
    );
}

/// An engine that holds seven hundred requests at once, flooded with four thousand, finishes the short ones first: its limit came out half as high
/// again as the formula's. Flooded with several times what it holds, it is the formula's.
#[test]
fn a_large_engine_is_flooded_with_enough() {
    let mut plan = plan(20.0);
    plan.world = WorldSpec::one(profile::find("llama-3.1-8b@h200").expect("a pair").spec);
    let sizes = &mut plan.traffic.scenario.sizes;
    (sizes.prompt, sizes.output) = (Size::Lognormal(900.0, 0.6), Size::Lognormal(180.0, 0.8));
    plan.traffic.window_s = 100.0;
    let mix = Mix::draw(&plan).expect("a mix");
    let by_formula = formula::replica(&plan, &mix).expect("a replica").limit_per_s();
    let asked: Vec<ReplayRequest> = Planned::of(&plan, 1).expect("a load").asked;
    let spec = KneeSpec { requests: 1_000, ..KneeSpec::default() };
    let found = limit_of(&plan.world, &asked, &spec).expect("a limit");
    assert!((found / by_formula - 1.0).abs() < 0.1, "{found} against {by_formula}");
}
