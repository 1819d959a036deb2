//! Checks that names built without text are equal exactly where the hashes of the texts are, over every block of a level.

use std::collections::HashMap;

use plimsoll_model::Span;
use plimsoll_workload::{Arrival, BlockNames, Prompts, Scenario, Schedule};
use serde_json::{Value, json};

/// Returns a scenario from JSON; `files` has the content of the files that it names.
fn scenario(value: Value, files: &[(&str, &str)]) -> Scenario {
    let mut scenario = Scenario::from_json(&value).expect("a sound scenario");
    scenario
        .attach(|name| {
            let found = files.iter().find(|(known, _)| *known == name);
            found.map(|(_, text)| text.as_bytes().to_vec()).ok_or_else(|| "not there".to_string())
        })
        .expect("files read");
    scenario
}

/// Draws a level and checks that names and text hashes share equal blocks. Returns the number of shared blocks.
fn check(scenario: &Scenario, rate_per_s: f64) -> usize {
    let arrivals: Vec<Arrival> =
        Schedule::generate(scenario, rate_per_s, Span::from_secs(20), 1).expect("drawn").arrivals;
    let texts = Prompts::new(scenario, 7).expect("prompts");
    let mut names = BlockNames::new(scenario).expect("names");
    let (mut name_of, mut text_of) = (HashMap::new(), HashMap::new());
    let (mut blocks, mut requests) = (0, 0);
    for arrival in &arrivals {
        let (by_text, by_name) = (texts.blocks(arrival), names.of(arrival));
        assert_eq!(by_text.len(), by_name.len(), "{arrival:?}");
        for (text, name) in by_text.into_iter().zip(by_name) {
            assert_eq!(*name_of.entry(text).or_insert(name), name, "one text, two names");
            assert_eq!(*text_of.entry(name).or_insert(text), text, "one name, two texts");
            blocks += 1;
        }
        requests += 1;
    }
    assert!(requests > 20, "{requests} requests tell nothing");
    blocks - name_of.len()
}

#[test]
fn prompts_of_their_own_share_nothing() {
    let scenario = scenario(json!({"sizes": {"prompt": "uniform:1,200"}}), &[]);
    assert_eq!(check(&scenario, 5.0), 0);
}

#[test]
fn groups_share_what_their_share_covers() {
    let scenario = scenario(
        json!({"sizes": {"prompt": "uniform:40,400"},
               "prompts": {"shared_prefix": {"groups": 3, "share": 0.55}}}),
        &[],
    );
    assert!(check(&scenario, 10.0) > 500);
}

#[test]
fn a_session_shares_its_history() {
    let scenario = scenario(
        json!({"sizes": {"prompt": "uniform:20,90", "output": "uniform:3,50"},
               "prompts": {"sessions": {"turns": "uniform:2,5", "think": "1s"},
                           "shared_prefix": {"groups": 2, "share": 0.4}}}),
        &[],
    );
    assert!(check(&scenario, 10.0) > 200);
}

#[test]
fn a_traces_blocks_share_their_sub_blocks() {
    let mut trace = String::new();
    for i in 0..60u64 {
        // Blocks of 512; the ids state that pairs of requests begin alike, and the third block is partial.
        let length = 1100 + i % 7 * 50;
        let row = json!({"timestamp": i * 300, "input_length": length, "output_length": 5,
                         "hash_ids": [i % 3, 10 + i % 6, 1000 + i % 20]});
        trace.push_str(&format!("{row}\n"));
    }
    let scenario = scenario(json!({"arrivals": {"process": "trace", "file": "t"}}), &[("t", &trace)]);
    assert_eq!(scenario.material.trace("t").expect("read").block_tokens, 512);
    assert!(check(&scenario, 3.0) > 60 * 64 - 3 * 32 - 6 * 32 - 60 * 32);
}

#[test]
fn lines_of_a_file_share_their_words() {
    let words = |n: usize, tail: &str| format!("{} {tail}", "load line ".repeat(n));
    let file = format!(
        "{}\n{}\n{}\n",
        json!({"prompt": words(30, "one end")}),
        json!({"prompt": words(30, "another end")}),
        json!({"messages": [{"role": "system", "content": words(9, "x")}, {"role": "user", "content": words(20, "y")}]})
    );
    for salt in [true, false] {
        let scenario = scenario(json!({"prompts": {"file": "p", "salt": salt}}), &[("p", &file)]);
        assert!(check(&scenario, 5.0) > 100);
    }
}
