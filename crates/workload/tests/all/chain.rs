//! Tests chains: one request per stage and start, with the stage's sizes, text and endpoint.

use plimsoll_model::{At, Attempt, Payload, Protocol, Span};
use plimsoll_workload::chain::ExternalClasses;
use plimsoll_workload::schedule::ArrivalFeed;
use plimsoll_workload::{Pause, Prompts, Scenario, Schedule};
use serde_json::{Value, json};

fn scenario(more: Value) -> Scenario {
    let mut whole = json!({
        "target": {"url": "https://llm.internal/v1", "key_env": "KEY", "model": "big"},
        "chain": true,
        "seed": 3,
        "classes": [
            {"name": "embed", "target": {"protocol": "embeddings", "model": "small"}, "sizes": {"prompt": "20"}},
            {"name": "search", "target": {"protocol": "http", "url": "http://store:6333/search"},
             "sizes": {"prompt": "8", "output": "0"}},
            {"name": "score", "target": {"protocol": "http", "url": "/score"}, "sizes": {"prompt": "5", "output": "0"}},
            {"name": "generate", "sizes": {"prompt": "400", "output": "50"}},
        ],
    });
    let fields = more.as_object().cloned().unwrap_or_default();
    fields.into_iter().for_each(|(key, value)| whole[key] = value);
    Scenario::from_json(&whole).unwrap()
}

fn error(more: Value) -> String {
    let mut whole = serde_json::to_value(scenario(json!({}))).unwrap();
    let fields = more.as_object().cloned().unwrap_or_default();
    fields.into_iter().for_each(|(key, value)| whole[key] = value);
    Scenario::from_json(&whole).unwrap_err().to_string()
}

/// A rate counts requests, so 40/s are 10 chains per second.
#[test]
fn each_start_sends_every_stage_once_in_order() {
    let all = Schedule::generate(&scenario(json!({})), 40.0, Span::from_secs(100), 0).unwrap().arrivals;
    assert!((all.len() as f64 / 4000.0 - 1.0).abs() < 0.1, "{}", all.len());
    for chain in all.chunks(4) {
        let stages: Vec<_> =
            chain.iter().map(|one| (one.class, one.turn, one.turns, one.after.clone())).collect();
        assert_eq!(stages, [(0, 0, 4, vec![]), (1, 1, 4, vec![0]), (2, 2, 4, vec![1]), (3, 3, 4, vec![2])]);
        assert!(chain.iter().all(|one| one.session == chain[0].session && one.due == chain[0].due));
        // An embedding has no output, although the scenario's default is 64 tokens.
        let sizes: Vec<_> = chain.iter().map(|one| (one.prompt_tokens, one.output_tokens)).collect();
        assert_eq!(sizes, [(20, 0), (8, 0), (5, 0), (400, 50)]);
    }
}

/// Regression: a feed gave the first turn of other sessions in place of the later turns.
#[test]
fn a_feed_gives_the_arrivals_of_the_schedule() {
    let chain = scenario(json!({}));
    let talk =
        json!({"prompts": {"sessions": {"turns": "uniform:2,5", "think": "1s"}}, "sizes": {"prompt": "60"}});
    for scenario in [chain, Scenario::from_json(&talk).unwrap()] {
        let window = Span::from_secs(20);
        let schedule = Schedule::generate(&scenario, 20.0, window, 0).unwrap();
        let feed = ArrivalFeed::new(&scenario, 20.0, window, 0, None).unwrap();
        assert_eq!(feed.collect::<Vec<_>>(), schedule.arrivals);
    }
}

#[test]
fn a_stage_has_its_own_text_and_no_conversation() {
    let scenario = scenario(json!({}));
    let all = Schedule::generate(&scenario, 40.0, Span::from_secs(2), 0).unwrap().arrivals;
    let prompts = Prompts::new(&scenario, 0).unwrap();
    let words = |text: &str| text.split_whitespace().count();
    match prompts.payload(&all[0]) {
        Payload::Text(text) => assert_eq!(words(&text), 20),
        other => panic!("{other:?}"),
    }
    match prompts.payload(&all[3]) {
        Payload::Messages(messages) => {
            assert_eq!(messages.len(), 1, "no answers of other stages");
            assert_eq!(words(&messages[0].content), 400);
        }
        other => panic!("{other:?}"),
    }
    assert_ne!(prompts.payload(&all[1]), prompts.payload(&all[5]), "another chain");
}

#[test]
fn stages_without_a_host_use_the_endpoint_and_the_key_of_the_scenario() {
    let scenario = scenario(json!({}));
    let of = |class: u16| {
        let target = scenario.target_of(class);
        (target.url, target.key_env, target.protocol, target.model)
    };
    let (key, text) = (Some("KEY".to_owned()), |text: &str| Some(text.to_owned()));
    assert_eq!(of(0), ("https://llm.internal/v1".into(), key.clone(), Protocol::Embeddings, text("small")));
    assert_eq!(of(1), ("http://store:6333/search".into(), None, Protocol::Http, None));
    assert_eq!(of(2), ("https://llm.internal/score".into(), key.clone(), Protocol::Http, None));
    assert_eq!(of(3), ("https://llm.internal/v1".into(), key, Protocol::Chat, text("big")));
    let endpoint = |class: u16| scenario.placed(Attempt { class, ..Attempt::new(0, 0, 0, At::ZERO) }).target;
    assert_eq!([0, 1, 2, 3].map(endpoint), [1, 2, 3, 0]);
}

/// With two endpoints, the stages without a host have two each.
#[test]
fn endpoints_are_numbered_through_all_targets() {
    let two = scenario(json!({"target": {"url": "http://a/v1", "further_urls": ["http://b/v1"]}}));
    let firsts: Vec<u16> = (0..4).map(|class| two.first_endpoint_of(class)).collect();
    assert_eq!(firsts, [2, 4, 5, 0]);
    assert_eq!(two.target_of(2).further_urls, ["http://b/score"]);
    let urls: usize = two.targets().map(|target| target.urls().count()).sum();
    assert_eq!(urls, 7);
}

#[test]
fn contradictions_are_named() {
    let classes = |classes: Value| json!({"classes": classes});
    assert!(error(classes(json!([{"name": "only"}]))).contains("at least two"));
    assert!(
        error(classes(json!([{"name": "a"}, {"name": "b", "weight": 2.0}]))).contains("classes.1.weight")
    );
    assert!(error(json!({"prompts": {"sessions": {"turns": "3"}}})).contains("drop sessions"));
    assert!(error(json!({"arrivals": {"process": "trace", "file": "x"}})).contains("generated process"));
    let bad = json!([{"name": "a", "target": {"protocol": "chat", "documents": {"count": "3", "length": "5"}}}, {"name": "b"}]);
    assert!(error(classes(bad)).contains("classes.0.target.documents"));
}

#[test]
fn a_simulation_needs_the_latency_of_other_services() {
    let scenario = scenario(json!({}));
    assert!(ExternalClasses::of(&scenario).unwrap_err().to_string().contains("classes.0.simulated"));
    let mut timed = scenario;
    timed.classes[..3]
        .iter_mut()
        .for_each(|class| class.simulated = Some(Pause::Fixed(Span::from_millis(10))));
    let external = ExternalClasses::of(&timed).unwrap();
    assert_eq!(external.served(), 0.25);
    let all = Schedule::generate(&timed, 40.0, Span::from_secs(1), 0).unwrap().arrivals;
    let latencies: Vec<_> = all[..4].iter().map(|one| external.latency(one)).collect();
    let ten = Some(Span::from_millis(10));
    assert_eq!(latencies, [ten, ten, ten, None]);
}
