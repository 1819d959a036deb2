//! Documents with drawn numbers and lengths: a server's own count against the distribution, the rows and the figures.

use std::path::Path;
use std::sync::{Arc, Mutex};

use plimsoll_model::Attempt;
use serde_json::{Value, json};

use crate::kit::{Server, plimsoll, reply, run_folder};

/// Words of a request: of the query, and of each document.
type Held = (usize, Vec<usize>);

/// A server that counts the words of what it gets, and answers as many results.
fn counting() -> (Server, Arc<Mutex<Vec<Held>>>) {
    let held: Arc<Mutex<Vec<Held>>> = Arc::default();
    let kept = Arc::clone(&held);
    let server = Server::reading(move |first, body, socket| {
        let json = "content-type: application/json\r\n";
        if !first.starts_with("POST") {
            return reply(socket, "200 OK", json, r#"{"data":[{"id":"m"}]}"#);
        }
        let body: Value = serde_json::from_slice(body).expect("JSON");
        let words = |text: &Value| text.as_str().expect("a text").split(' ').count();
        let list = ["documents", "text_2", "input"].iter().find_map(|key| body.get(key)).expect("documents");
        let documents: Vec<usize> = match list.as_array() {
            Some(all) => all.iter().map(words).collect(),
            None => vec![words(list)],
        };
        let query = ["query", "text_1"].iter().find_map(|key| body.get(key)).map_or(0, words);
        let results: Vec<Value> = (0..documents.len())
            .map(|index| json!({"index": index, "relevance_score": 0.5, "score": 0.5, "data": [0.5], "probs": [0.5], "embedding": [0.5]}))
            .collect();
        kept.lock().expect("held").push((query, documents));
        reply(socket, "200 OK", json, &json!({"results": results, "data": results}).to_string());
    });
    (server, held)
}

/// The rows of a run of this load, what the server counted of it, and what was printed as JSON.
fn measured(more: &[&str]) -> (Vec<Attempt>, Vec<Held>, Value) {
    let (server, held) = counting();
    let (_folder, run) = run_folder();
    let load =
        ["--seed", "7", "--concurrency", "4", "--requests", "300", "--warm-up", "0", "--scrape", "off"];
    let base = ["run", &server.url, "-q", "-o", &run, "--format", "json"];
    let ended = plimsoll(&[&base[..], &load, more].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let rows = plimsoll_store::open(Path::new(&run)).expect("a run").attempts;
    let rows: Vec<Attempt> = rows.into_iter().filter(|row| row.level != u32::MAX).collect();
    assert!(rows.iter().all(|row| row.outcome.is_finished() && row.answer.broken.is_none()));
    // The first four are the calibration's, of one document.
    let held = held.lock().expect("held").split_off(4);
    (rows, held, ended.json())
}

/// The largest distance between the counts of whole numbers and a law's share at or below each (Kolmogorov).
fn distance(values: &[usize], law: impl Fn(usize) -> f64) -> f64 {
    let n = values.len() as f64;
    let most = values.iter().max().copied().unwrap_or(0);
    let below = |k: usize| values.iter().filter(|value| **value <= k).count() as f64 / n;
    (0..=most).map(|k| (below(k) - law(k)).abs()).fold(0.0, f64::max)
}

/// Abramowitz and Stegun 7.1.26, good to 1.5e-7.
fn normal_below(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let poly = t
        * (0.254_829_592
            + t * (-0.284_496_736 + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    let upper = 0.5 * poly * (-z * z).exp();
    if x < 0.0 { upper } else { 1.0 - upper }
}

#[test]
fn documents_have_the_numbers_and_lengths_of_their_laws_and_rows_say_so() {
    for (api, query) in [("rerank", 16), ("score", 16), ("pooling", 0), ("classify", 0), ("embeddings", 0)] {
        let (rows, held, json) = measured(&["--api", api, "--documents", "uniform:3,12*lognormal:60,0.5"]);
        assert_eq!((rows.len(), held.len()), (300, 300), "{api}");
        // Kolmogorov's bound, which a correct sample exceeds with a probability of 0.001.
        let numbers: Vec<usize> = held.iter().map(|(_, documents)| documents.len()).collect();
        let far = distance(&numbers, |k| ((k as f64 - 2.0) / 10.0).clamp(0.0, 1.0));
        assert!(far < 1.95 / (numbers.len() as f64).sqrt(), "{api}: numbers are {far} from their law");
        let lengths: Vec<usize> = held.iter().flat_map(|(_, documents)| documents).copied().collect();
        let far = distance(&lengths, |k| match k {
            0 => 0.0,
            k => normal_below(((k as f64 + 0.5) / 60.0).ln() / 0.5),
        });
        assert!(far < 1.95 / (lengths.len() as f64).sqrt(), "{api}: lengths are {far} from their law");
        assert!(held.iter().all(|(words, _)| *words == query), "{api}");

        let mut seen: Vec<(usize, usize)> = held
            .iter()
            .map(|(query, all)| (all.len(), all.iter().sum::<usize>() + query * all.len()))
            .collect();
        let mut said: Vec<(usize, usize)> =
            rows.iter().map(|row| (row.media.documents as usize, row.asked_prompt as usize)).collect();
        seen.sort_unstable();
        said.sort_unstable();
        assert_eq!(seen, said, "{api}");
        let rates = &json["findings"]["levels"][0]["summary"]["rates"];
        let value = |name: &str| rates[name]["value"].as_f64().expect(name);
        let each = value("documents_per_s") / value("achieved_per_s");
        assert!((4.0..11.0).contains(&each), "{api}: {each} documents per request");
    }
}
