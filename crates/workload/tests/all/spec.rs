//! Tests the messages of rejected scenarios, and round trips of accepted ones.

use plimsoll_model::Span;
use plimsoll_workload::{CancelAfter, Pause, Rate, Scenario, Size, format_span, parse_span};
use proptest::prelude::*;
use serde_json::{Value, json};

fn refused(value: Value) -> String {
    Scenario::from_json(&value).unwrap_err().to_string()
}

#[test]
fn unknown_keys_and_names_come_with_the_nearest() {
    let text = refused(json!({"clinet": {}}));
    assert!(text.starts_with("unknown key `clinet`, did you mean `client`?; allowed: "), "{text}");
    let text = refused(json!({"client": {"retries": {"maxx": 3}}}));
    assert!(text.starts_with("client.retries: unknown key `maxx`, did you mean `max`?"), "{text}");
    let text = refused(json!({"arrivals": {"process": "poison"}}));
    assert!(
        text.starts_with("arrivals.process: unknown value `poison`, did you mean `poisson`?; allowed: "),
        "{text}"
    );
    assert!(text.contains("on_off"), "{text}");
    let text = refused(json!({"arrivals": {"process": "poisson", "cv": 3}}));
    assert!(text.starts_with("arrivals: unknown key `cv`"), "{text}");
    let text = refused(json!({"arrivals": {"process": "gamma", "vc": 3}}));
    assert!(text.contains("did you mean `cv`?"), "{text}");
    let text = refused(json!({"arrivals": {"cv": 3}}));
    assert!(text.starts_with("arrivals.process: missing"), "{text}");
    let text = refused(json!({"target": {"protocol": "chatt"}}));
    assert!(text.starts_with("target.protocol: unknown value `chatt`, did you mean `chat`?"), "{text}");
    let text = refused(json!({"client": {"retries": {"on": ["shed", "rest"]}}}));
    assert!(text.starts_with("client.retries.on.1: unknown value `rest`, did you mean `reset`?"), "{text}");
    let text = refused(json!({"client": {"connections": {"policy": "pool", "limt": 3}}}));
    assert!(text.contains("did you mean `limit`?"), "{text}");
    let text = refused(json!({"sizes": {"prompt": "lognorml:5,1"}}));
    assert!(text.starts_with("sizes.prompt: unknown value `lognorml`, did you mean `lognormal`?"), "{text}");
    let text = refused(json!({"classes": [{"name": "a"}, {"name": "b", "wait": 1}]}));
    assert!(text.starts_with("classes.1: unknown key `wait`"), "{text}");
    let text = refused(json!({"material": {}}));
    assert!(text.starts_with("unknown key `material`"), "{text}");
}

#[test]
fn values_out_of_range_are_named_with_their_place() {
    for (value, place) in [
        (json!({"load": {"mode": "open", "rate": 0}}), "load.rate"),
        (json!({"load": {"mode": "open", "rate": "-3/s"}}), "load.rate"),
        (json!({"load": {"mode": "open", "rate": "NaN"}}), "load.rate"),
        (json!({"load": {"mode": "open", "rate": "12/fortnight"}}), "load.rate"),
        (json!({"load": {"mode": "open", "window": 60}}), "load.window"),
        (json!({"load": {"mode": "open", "window": "0s"}}), "load.window"),
        (json!({"load": {"mode": "closed", "concurrency": 0}}), "load.concurrency"),
        (json!({"arrivals": {"process": "gamma", "cv": -1}}), "arrivals.cv"),
        (json!({"arrivals": {"process": "step", "heights": [0, 0]}}), "arrivals.heights"),
        (json!({"arrivals": {"process": "spike", "height": 3, "at": 0.95}}), "arrivals.share"),
        (json!({"arrivals": {"process": "trace", "file": "t", "speed": 0}}), "arrivals.speed"),
        (json!({"sizes": {"prompt": 0}}), "sizes.prompt"),
        (json!({"sizes": {"output": "uniform:9,3"}}), "sizes.output"),
        (json!({"client": {"timeouts": {"total": "soon"}}}), "client.timeouts.total"),
        (json!({"client": {"timeouts": {"idle": "0ms"}}}), "client.timeouts.idle"),
        (json!({"client": {"cancel": {"share": 2}}}), "client.cancel.share"),
        (json!({"client": {"cancel": {"after": "120%"}}}), "client.cancel.after"),
        (json!({"prompts": {"shared_prefix": {"groups": 3, "share": 1.5}}}), "prompts.shared_prefix.share"),
        (json!({"prompts": {"words_per_token": 0}}), "prompts.words_per_token"),
        (json!({"classes": [{"name": "a", "weight": 0}]}), "classes"),
    ] {
        let text = refused(value);
        assert!(text.starts_with(&format!("{place}: `")), "{place}: {text}");
    }
    assert_eq!(refused(json!({"seed": "x"})), "seed: `x` is not a whole number from 0");
    assert_eq!(refused(json!({"target": {"stream": "yes"}})), "target.stream: `yes` is not true or false");
    assert_eq!(refused(json!({"classes": "a"})), "classes: `a` is not a list");
    assert_eq!(
        refused(json!({"client": {"max_in_flight": -1}})),
        "client.max_in_flight: `-1` is not a whole number from 0"
    );
}

#[test]
fn a_scenario_reads_back_as_written() {
    let value = json!({
        "target": {"url": "http://h/v1", "headers": {"x-team": "$TEAM"}, "extra": {"top_k": 5}},
        "load": {"mode": "open", "rate": "600/m", "window": "15m"},
        "arrivals": {"process": "on_off", "on": "500ms", "off": "1m30s"},
        "sizes": {"prompt": "lognormal:512,0.8", "output": 128},
        "prompts": {"shared_prefix": {"groups": 4, "share": 0.5}, "sessions": {"turns": "uniform:1,5"}},
        "classes": [{"name": "a", "weight": 2, "model": "lora-1"}],
        "client": {
            "connections": {"policy": "pool", "limit": 8},
            "timeouts": {"first_token": "2s", "idle": null},
            "retries": {"max": 3, "jitter": "equal", "on": ["shed"]},
            "cancel": {"share": 0.1, "after": "50%"},
        },
        "nonce": 7,
    });
    let scenario = Scenario::from_json(&value).unwrap();
    assert_eq!(scenario.rate().unwrap(), 10.0);
    assert_eq!(scenario.client.cancel.after, CancelAfter::Share(0.5));
    let written = serde_json::to_value(&scenario).unwrap();
    assert_eq!(written["arrivals"]["off"], "90s");
    assert_eq!(written["load"], json!({"mode": "open", "rate": "10/s", "window": "15m"}));
    assert_eq!(written["client"]["timeouts"]["total"], "10m");
    assert_eq!(Scenario::from_json(&written).unwrap(), scenario);
    // Every default is written out.
    let default = serde_json::to_value(Scenario::default()).unwrap();
    assert_eq!(Scenario::from_json(&default).unwrap(), Scenario::default());
    assert_eq!(Scenario::from_json(&json!({})).unwrap(), Scenario::default());
    assert_eq!(default["arrivals"]["process"], "poisson");
}

#[test]
fn spans_rates_and_sizes_as_people_write_them() {
    for (text, ns) in [
        ("250ms", 250_000_000),
        ("60s", 60_000_000_000),
        ("15m", 900_000_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5 h", 5_400_000_000_000),
        ("2d", 172_800_000_000_000),
        ("7us", 7_000),
        ("0s", 0),
    ] {
        assert_eq!(parse_span(text).unwrap(), Span(ns), "{text}");
    }
    for text in ["", "60", "s", "-5s", "5 parsecs", "1e3s", "NaNs", "infs", "400000d", "5s3", "1..5s"] {
        assert!(parse_span(text).is_err(), "{text}");
    }
    for (text, rate) in [("12/s", 12.0), ("600/m", 10.0), ("36/h", 0.01), ("0.5", 0.5), ("1e3/s", 1000.0)] {
        assert!((Rate::parse(text).unwrap().as_per_s() - rate).abs() < 1e-12, "{text}");
    }
    for text in ["0", "0/s", "-1/s", "nan/s", "inf", "", "/s", "5/", "12/day"] {
        assert!(Rate::parse(text).is_err(), "{text}");
    }
    for text in ["0", "128", "uniform:1,9", "normal:512,64", "lognormal:512,0.8", "empirical:a,b.txt"] {
        assert_eq!(Size::parse(text).unwrap().to_string(), text);
    }
    for text in
        ["", "-3", "1.5", "uniform:1", "normal:0,1", "lognormal:NaN,1", "lognormal:1,-1", "empirical:"]
    {
        assert!(Size::parse(text).is_err(), "{text}");
    }
    for text in ["5s", "exponential:10s", "uniform:1s,2s", "lognormal:5s,0.8"] {
        assert_eq!(Pause::parse(text).unwrap().to_string(), text);
    }
}

proptest! {
    #[test]
    fn every_span_reads_back(ns in 0i64..8_000_000_000_000_000, k in 0usize..5) {
        let span = Span(ns / [1, 1_000, 1_000_000, 1_000_000_000, 60_000_000_000][k] * [1, 1_000, 1_000_000, 1_000_000_000, 60_000_000_000][k]);
        prop_assert_eq!(parse_span(&format_span(span)).unwrap(), span);
    }

    #[test]
    fn nothing_a_user_writes_panics(text in "\\PC{0,24}") {
        let _ = (parse_span(&text), Rate::parse(&text), Size::parse(&text), Pause::parse(&text), CancelAfter::parse(&text));
        let _ = plimsoll_workload::trace::detect_and_read(text.as_bytes(), "t");
        let _ = Scenario::from_json(&json!({"sizes": {"prompt": text}, "load": text}));
    }
}
