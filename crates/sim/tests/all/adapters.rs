//! A mix of models and adapters, from the scenario to the engine, in hand-computed cases.
//!
//! The engine's steps take 1 ms + 0.1 ms per response in flight + 10 µs per prompt token.

use plimsoll_model::{At, Load, Span};
use plimsoll_sim::{
    AdapterSpec, LevelRun, ModeSpec, RequestEvent, SimLevelPlan, Submit, World, WorldSpec, simulate_level,
};
use plimsoll_workload::{ArrivalSpec, ClassSpec, Scenario, SessionSpec, Size, SpecError};

use crate::fleet::of;
use crate::util::{Act, ask, batching, engine, play};

fn fleet(slots: u32) -> WorldSpec {
    let mut spec = of(engine(ModeSpec::Batching(batching())), 1, "round_robin");
    let names = ["sql", "law"].map(str::to_owned).to_vec();
    spec.fleet.adapters = Some(AdapterSpec { names, slots, load: Span::from_millis(100) });
    spec
}

fn class(model: Option<&str>, weight: f64) -> ClassSpec {
    let name = model.unwrap_or("own").to_owned();
    let model = model.map(str::to_owned);
    ClassSpec { name, weight, model, ..ClassSpec::default() }
}

/// Returns prompts of 10 tokens and outputs of 1, for the base model and two adapters.
fn mix() -> Scenario {
    let mut scenario = Scenario { arrivals: ArrivalSpec::Constant, seed: 3, ..Scenario::default() };
    scenario.sizes.prompt = Size::Fixed(10);
    scenario.sizes.output = Size::Fixed(1);
    scenario.target.model = Some("base".to_owned());
    scenario.classes = vec![class(None, 2.0), class(Some("sql"), 1.0), class(Some("law"), 1.0)];
    scenario
}

fn one_by_one(spec: &WorldSpec, scenario: &Scenario, window: Span) -> Result<LevelRun, SpecError> {
    let mut world = World::of(spec, 1).expect("sound");
    simulate_level(
        &mut world,
        scenario,
        SimLevelPlan::new(scenario, 0, Load::Closed { concurrency: 1 }, At(0), window),
    )
}

/// One slot, one request at a time. A request for the last used adapter takes one step of 1.1 ms; a request for the
/// other one takes 100 ms longer. The base model needs no slot.
#[test]
fn with_one_slot_a_change_of_adapter_costs_a_load() {
    let run = one_by_one(&fleet(1), &mix(), Span::from_secs(3)).expect("simulated");
    let mut held = 0;
    let mut loads = 0;
    for record in &run.attempts {
        let took = (record.first_token.expect("answered") - record.due).0 / 1_000;
        let expected = if record.class != 0 && record.class != held { 101_100 } else { 1_100 };
        assert_eq!(
            took, expected,
            "request {} of class {} while {held} is held",
            record.request, record.class
        );
        loads += u32::from(expected > 100_000);
        held = if record.class == 0 { held } else { record.class };
    }
    assert!(loads > 10 && run.attempts.len() > 40, "{loads} loads in {} requests", run.attempts.len());
}

/// With a slot for each adapter, each is loaded once.
#[test]
fn with_a_slot_for_each_an_adapter_is_loaded_once() {
    let run = one_by_one(&fleet(2), &mix(), Span::from_secs(1)).expect("simulated");
    let slow: Vec<u16> = run
        .attempts
        .iter()
        .filter(|record| (record.first_token.expect("answered") - record.due).0 > 50_000_000)
        .map(|record| record.class)
        .collect();
    assert_eq!(slow.len(), 2);
    assert!(slow.contains(&1) && slow.contains(&2));
}

/// Shares of a mix are weights: 2 to 1 to 1, within four standard errors of the count.
#[test]
fn weights_are_shares_of_the_requests() {
    let mut scenario = mix();
    scenario.classes[1].weight = 0.5;
    let run = one_by_one(&fleet(2), &scenario, Span::from_secs(20)).expect("simulated");
    let n = run.attempts.len() as f64;
    for (number, share) in [2.0 / 3.5, 0.5 / 3.5, 1.0 / 3.5].into_iter().enumerate() {
        let found =
            run.attempts.iter().filter(|record| usize::from(record.class) == number).count() as f64 / n;
        let error = (share * (1.0 - share) / n).sqrt();
        assert!((found - share).abs() < 4.0 * error, "class {number}: {found} of {share}");
    }
}

/// The turns of a session keep their adapter.
#[test]
fn a_session_keeps_its_adapter() {
    let mut scenario = mix();
    let sessions = serde_json::json!({"turns": "3", "think": "1ms"});
    let sessions: SessionSpec = serde_json::from_value(sessions).expect("a valid session");
    scenario.prompts.sessions = Some(sessions);
    let run = one_by_one(&fleet(2), &scenario, Span::from_secs(1)).expect("simulated");
    let mut of_session = std::collections::HashMap::new();
    for record in &run.attempts {
        let session = record.session.expect("a session");
        assert_eq!(*of_session.entry(session).or_insert(record.class), record.class);
    }
    assert!(of_session.len() > 10);
}

/// A prompt of 40 tokens has two full blocks of 16. The base model's second request with this text finds 32 tokens.
/// An adapter finds none of the base model or of another adapter, and 32 of its own.
#[test]
fn adapters_do_not_share_a_prefix() {
    let asked = |id: u64, adapter: Option<u32>| {
        let submit = Submit { blocks: vec![71, 72], adapter, ..ask(id, 40, 1) };
        (At(id as i64 * 1_000_000_000), Act::Submit(submit))
    };
    let script = [
        asked(1, None),
        asked(2, None),
        asked(3, Some(0)),
        asked(4, Some(1)),
        asked(5, Some(0)),
        asked(6, Some(1)),
        asked(7, None),
    ];
    let log = play(&mut World::of(&fleet(2), 1).expect("sound"), &script);
    let cached: Vec<(u64, u32)> = log
        .iter()
        .filter_map(|emission| match emission.what {
            RequestEvent::Admitted { cached } => Some((emission.id, cached)),
            _ => None,
        })
        .collect();
    assert_eq!(cached, [(1, 0), (2, 32), (3, 0), (4, 0), (5, 32), (6, 32), (7, 32)]);
}

#[test]
fn a_model_that_the_fleet_has_not_is_refused() {
    let mut scenario = mix();
    scenario.classes[2].model = Some("lwa".to_owned());
    let refused =
        |spec: &WorldSpec| one_by_one(spec, &scenario, Span::from_secs(1)).expect_err("refused").to_string();
    assert_eq!(
        refused(&fleet(1)),
        "classes.2.model: lwa is no model and no adapter of this fleet (there are base, sql, law); add it to \
         fleet.adapters.names"
    );
    assert!(
        refused(&of(engine(ModeSpec::Batching(batching())), 1, "round_robin"))
            .starts_with("classes.1.model: sql")
    );
}

#[test]
fn adapters_on_one_line() {
    let spec = AdapterSpec::parse("sql+law:slots=1,load=100ms").expect("sound");
    assert_eq!(spec, AdapterSpec { slots: 1, ..fleet(1).fleet.adapters.expect("there") });
    let all = AdapterSpec::parse("a+b+c").expect("sound");
    assert_eq!((all.slots, all.load), (3, Span::ZERO));
    for (text, words) in [
        ("a:slots=0", "slots: \"0\" is not a whole number from 1"),
        ("a:load=soon", "load: \"soon\" is not a span such as 500ms"),
        ("a:slot=1", "unknown parameter \"slot\"; allowed: slots, load"),
    ] {
        assert!(AdapterSpec::parse(text).expect_err(text).to_string().contains(words), "{text}");
    }
    let mut twice = fleet(1);
    twice.fleet.adapters = AdapterSpec::parse("a+a").ok();
    assert!(World::of(&twice, 1).expect_err("refused").to_string().contains("a is there twice"));
}
