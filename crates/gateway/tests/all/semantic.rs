//! Semantic cache. The reference is the meaning of the texts: a text consists of a meaning and a wording. The
//! embedder's vectors depend on both, and the engine answers by the meaning only.

use std::time::Duration;

use plimsoll_gateway::Gateway;
use plimsoll_gateway::cache::semantic::{EndpointSpec, SameAnswer, SemanticSpec};
use plimsoll_gateway::cache::{CacheSpec, CachedKinds};
use plimsoll_wire::prometheus::PrometheusPage;
use serde_json::Value;

use crate::kit::{Act, Answer, Mock, gateway, is_empty, send, until};

/// Returns a number without digits, because texts with different numbers are never compared.
fn word(number: usize) -> String {
    number.to_string().bytes().map(|digit| char::from(digit - b'0' + b'a')).collect()
}

fn number(word: &str) -> usize {
    word.bytes().fold(0, |number, letter| 10 * number + usize::from(letter.wrapping_sub(b'a') % 10))
}

fn text(meaning: usize, wording: usize) -> String {
    format!("{} {}", word(meaning), word(wording))
}

/// Returns the embedding of a text. Wordings of one meaning have a cosine of 0.995; meanings 2k and 2k + 1 are a near
/// miss (0.965). All others are orthogonal.
fn vector(text: &str) -> Vec<f64> {
    let (meaning, wording) = text.split_once(' ').unwrap_or((text, "a"));
    let (meaning, wording) = (number(meaning), number(wording));
    let mut vector = vec![0.0; 512];
    let (near, far) = if meaning % 2 == 0 { (1.0, 0.0) } else { (0.97, (1.0f64 - 0.97 * 0.97).sqrt()) };
    let pair = 2 * (meaning / 2) % 448;
    vector[pair] = near * 0.995f64.sqrt();
    vector[pair + 1] = far * 0.995f64.sqrt();
    vector[448 + wording % 64] = 0.005f64.sqrt();
    vector
}

fn message(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn embeds(body: &str) -> String {
    let asked: Value = serde_json::from_str(body).expect("JSON");
    let inputs = asked["input"].as_array().expect("a list");
    let data: Vec<Value> = inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            // The meaning of an answer is that of its first word.
            let text = input.as_str().expect("a text").trim_start_matches("It is ");
            serde_json::json!({"index": index, "embedding": vector(text)})
        })
        .collect();
    message("application/json", &serde_json::json!({"data": data}).to_string())
}

fn asked_text(body: &str) -> String {
    let asked: Value = serde_json::from_str(body).expect("JSON");
    let last = asked["messages"].as_array().and_then(|all| all.last()).expect("messages");
    last["content"].as_str().expect("a text").to_owned()
}

fn chat(body: &str, answer: &str) -> String {
    if body.contains("\"stream\": true") {
        let events: String = answer
            .split_inclusive(' ')
            .map(|word| {
                format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{word:?}}}}}]}}\n\n")
            })
            .collect();
        let end =
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        return message("text/event-stream", &(events + end));
    }
    let body = serde_json::json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}]});
    message("application/json", &body.to_string())
}

/// Answers with the meaning, in the same words each time.
fn knows(body: &str) -> String {
    let text = asked_text(body);
    chat(body, &format!("It is {}.", text.split(' ').next().expect("a word")))
}

/// Answers with the meaning, in words that depend on the wording.
fn words_it(body: &str) -> String {
    chat(body, &format!("It is {}", asked_text(body)))
}

/// Answers differently each time.
fn raves(body: &str) -> String {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static TIMES: AtomicUsize = AtomicUsize::new(0);
    chat(body, &format!("Say {}!", word(TIMES.fetch_add(1, Ordering::Relaxed))))
}

/// Confirms if both answers start with the same meaning.
fn judges(body: &str) -> String {
    let asked: Value = serde_json::from_str(&asked_text(body)).expect("JSON");
    let meaning =
        |which: &str| asked[which].as_str().and_then(|text| text.split(' ').nth(2)).map(str::to_owned);
    chat(body, if meaning("answer_1") == meaning("answer_2") { "Yes." } else { "No, they differ." })
}

struct Town {
    engine: Mock,
    embedder: Mock,
    gateway: Gateway,
}

impl Town {
    fn new(engine: fn(&str) -> String, change: impl FnOnce(&mut SemanticSpec)) -> Town {
        let (engine, embedder) = (Mock::new(Act::Says(engine)), Mock::new(Act::Says(embeds)));
        let mut semantic = SemanticSpec::new(endpoint(&embedder));
        // About two dozen comparisons are sufficient for a proof.
        (semantic.max_false_hits, semantic.thresholds) = (0.2, vec![0.9, 0.98]);
        change(&mut semantic);
        let gateway = gateway(&[&engine], |spec| {
            spec.cache =
                Some(CacheSpec { which: CachedKinds::All, semantic: Some(semantic), ..CacheSpec::default() });
        });
        Town { engine, embedder, gateway }
    }

    fn ask_as(&self, who: &str, extra: &str, text: &str) -> Answer {
        let body = format!("{{\"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}]{extra}}}");
        let asked =
            crate::kit::message("/v1/chat/completions", &format!("Authorization: Bearer {who}\r\n"), &body);
        send(self.gateway.addr, &asked).expect("an answer")
    }

    fn ask(&self, meaning: usize, wording: usize) -> Answer {
        self.ask_as("a", "", &text(meaning, wording))
    }

    fn metrics(&self) -> String {
        let mut page = PrometheusPage::new();
        self.gateway.reloader().cache().expect("a cache").write(&mut page);
        page.finish()
    }

    fn count(&self, line: &str) -> f64 {
        let metrics = self.metrics();
        let found =
            metrics.lines().find_map(|of| of.strip_prefix(&format!("plimsoll_gateway_semantic_{line} ")));
        found.unwrap_or_else(|| panic!("no {line} in {metrics}")).parse().expect("a number")
    }

    fn serves(&self) -> bool {
        self.count("serving") == 1.0
    }

    /// Sends a meaning, and waits until its text is in the index.
    fn tells(&self, meaning: usize, wording: usize) -> Answer {
        let answer = self.ask(meaning, wording);
        if answer.header("x-plimsoll-cache") == Some("miss") {
            self.settles();
        }
        answer
    }

    /// Waits until the index has as many texts as the engine received requests.
    fn settles(&self) {
        until("the text is remembered", || self.count("texts") == self.engine.count() as f64);
    }

    /// Sends meanings and their near misses, each in two wordings, until responses are served. Returns the next
    /// meaning.
    fn learns(&self, mut meaning: usize) -> usize {
        let first = meaning;
        while !self.serves() {
            assert!(meaning < first + 400, "{}", self.metrics());
            for (of, wording) in [(meaning, 0), (meaning, 1), (meaning + 1, 2), (meaning + 1, 3)] {
                let answer = self.tells(of, wording);
                if !self.serves() {
                    assert_eq!(
                        answer.header("x-plimsoll-cache"),
                        Some("miss"),
                        "nothing is served before it is proven"
                    );
                }
            }
            meaning += 2;
        }
        meaning
    }
}

fn endpoint(mock: &Mock) -> EndpointSpec {
    EndpointSpec { url: format!("http://{}", mock.addr), model: "m".to_owned(), key: None, timeout_s: 20.0 }
}

fn used(answer: &Answer) -> &str {
    answer.header("x-plimsoll-cache").expect("a header")
}

#[test]
fn other_words_get_the_answer_after_enough_evidence_and_near_misses_never_do() {
    let town = Town::new(knows, |_| {});
    let next = town.learns(0);
    // Above 0.9, a third is false; above 0.98, none is.
    assert_eq!(town.count("threshold"), 0.98);
    assert!(town.count("false_hits_bound{threshold=\"0.98\"}") <= 0.2);
    assert!(town.count("false_hits_bound{threshold=\"0.9\"}") > 0.2);
    assert!(town.count("compared_total{pair=\"near\",same=\"yes\"}") >= 20.0);
    let by_now = || town.count("requests_total{use=\"served\"}");
    let (mut served, before, served_before) = (0, town.engine.count(), by_now());
    for meaning in next..next + 60 {
        let first = town.tells(meaning, 4);
        assert_eq!(used(&first), "miss", "the near miss of another, or near nothing");
        let second = town.tells(meaning, 5);
        assert!(second.text().contains(&format!("It is {}.", word(meaning))), "{}", second.text());
        if used(&second) == "semantic" {
            served += 1;
            assert_eq!(second.header("x-plimsoll-similarity"), Some("0.9950"));
            assert!(second.header("age").is_some() && second.header("x-plimsoll-replica").is_none());
        }
    }
    // Initially every request that could be served is compared, later fewer.
    assert!(served >= 8, "{served} of 60");
    assert_eq!(town.engine.count() - before, 120 - served);
    assert_eq!(by_now() - served_before, served as f64);
    assert_eq!(town.count("compared_total{pair=\"near\",same=\"unknown\"}"), 0.0);
    is_empty(&town.gateway);
}

#[test]
fn who_else_asks_or_asks_otherwise_gets_his_own_and_streams_are_streams() {
    let town = Town::new(knows, |_| {});
    let next = town.learns(0);
    let served = |who: &str, extra: &str, meaning: usize| {
        (0..30).any(|wording| used(&town.ask_as(who, extra, &text(meaning, wording))) == "semantic")
    };
    assert!(served("a", "", next));
    // These credentials or parameters are new, so the first text of each context has no neighbour.
    for (who, extra) in
        [("b", ""), ("a", ", \"seed\": 1"), ("a", ", \"tools\": []"), ("a", ", \"stream\": true")]
    {
        assert_eq!(used(&town.ask_as(who, extra, &text(next, 60))), "miss", "{who} {extra}");
        town.settles();
    }
    let streamed = (0..30).find_map(|wording| {
        let answer = town.ask_as("a", ", \"stream\": true", &text(next, wording));
        (used(&answer) == "semantic").then_some(answer)
    });
    let streamed = streamed.expect("one of thirty is served");
    assert_eq!(streamed.header("content-type"), Some("text/event-stream"));
    assert!(streamed.is_whole() && streamed.text().ends_with("data: [DONE]\n\n"), "{}", streamed.text());
    is_empty(&town.gateway);
}

#[test]
fn when_answers_begin_to_differ_serving_ends_by_itself() {
    let town = Town::new(knows, |_| {});
    let next = town.learns(0);
    town.engine.set(Act::Says(raves));
    let ends = (0..400).any(|turn| {
        town.tells(next, turn);
        !town.serves()
    });
    assert!(ends, "{}", town.metrics());
    assert!(town.count("compared_total{pair=\"near\",same=\"no\"}") >= 1.0);
    let answer = town.ask_as("a", "", &text(next, 62));
    assert_eq!(used(&answer), "miss");
}

#[test]
fn an_embedder_that_fails_or_hangs_is_a_miss_and_no_error() {
    let town = Town::new(knows, |spec| spec.embeddings.timeout_s = 0.3);
    let acts = [Act::Status(500, ""), Act::Hang, Act::Silence, Act::Text("{}".to_owned()), Act::Flood(200)];
    for (wording, act) in acts.into_iter().enumerate() {
        town.embedder.set(act.clone());
        let before = town.count("requests_total{use=\"not_embedded\"}");
        let answer = town.ask(2, wording);
        assert_eq!((answer.status, used(&answer)), (200, "miss"), "{act:?}");
        until("it is counted", || town.count("requests_total{use=\"not_embedded\"}") > before);
    }
    assert_eq!((town.count("texts"), town.serves()), (0.0, false));
    // The endpoint pauses after failures, and is used again afterwards.
    town.embedder.set(Act::Says(embeds));
    let mut wording = 10;
    until("it is asked again", || {
        wording += 1;
        std::thread::sleep(Duration::from_millis(50));
        town.ask(4, wording);
        town.count("texts") > 0.0
    });
}

#[test]
fn answers_in_other_words_are_the_same_by_their_embeddings_or_by_a_judge() {
    let plain = Town::new(words_it, |_| {});
    (0..4).for_each(|wording| drop(plain.tells(0, wording)));
    assert_eq!(plain.count("compared_total{pair=\"near\",same=\"no\"}"), 3.0, "their words differ");
    let town = Town::new(words_it, |spec| spec.same = SameAnswer::Embedding(0.98));
    town.learns(0);
    assert_eq!(town.count("threshold"), 0.98);

    let judge = Mock::new(Act::Says(judges));
    let town = Town::new(words_it, |spec| spec.same = SameAnswer::Judge(endpoint(&judge)));
    let next = town.learns(0);
    assert_eq!(town.count("threshold"), 0.98);
    // Without a useful judge, the share of false hits is unknown.
    judge.set(Act::Text("{}".to_owned()));
    let ends = (0..400).any(|turn| {
        town.tells(next, turn);
        !town.serves()
    });
    assert!(ends, "{}", town.metrics());
    assert!(town.count("compared_total{pair=\"near\",same=\"unknown\"}") >= 1.0);
    judge.set(Act::Says(judges));
    let mut wording = 0;
    until("it goes on where it was", || {
        std::thread::sleep(Duration::from_millis(50));
        wording += 1;
        town.ask(next + 2, wording);
        town.serves()
    });
}

#[test]
fn the_same_request_is_answered_twice_now_and_then_to_see_how_often_a_replica_differs_from_itself() {
    let town = Town::new(knows, |spec| spec.audit = 1.0);
    town.tells(0, 0);
    for times in 1..4 {
        assert_eq!(used(&town.ask(0, 0)), "miss");
        until("it is compared", || {
            town.count("compared_total{pair=\"repeat\",same=\"yes\"}") == f64::from(times)
        });
    }
    town.engine.set(Act::Says(raves));
    assert_eq!(used(&town.ask(0, 0)), "miss");
    until("it is compared", || town.count("compared_total{pair=\"repeat\",same=\"no\"}") == 1.0);
    assert_eq!(town.count("texts"), 1.0);
    assert_eq!(town.count("window_compared{threshold=\"0.9\"}"), 0.0, "that is no evidence of near texts");
}

/// If no pair can be judged, only equal texts would be learnt from.
#[test]
fn while_the_judge_is_silent_nothing_is_learnt() {
    let judge = Mock::new(Act::Text("{}".to_owned()));
    let town = Town::new(words_it, |spec| spec.same = SameAnswer::Judge(endpoint(&judge)));
    (0..2).for_each(|wording| drop(town.tells(0, wording)));
    until("it could not be compared", || town.count("compared_total{pair=\"near\",same=\"unknown\"}") >= 1.0);
    town.engine.set(Act::Says(knows));
    (2..60).flat_map(|meaning| [0, 1].map(|wording| (2 * meaning, wording))).for_each(
        |(meaning, wording)| {
            town.tells(meaning, wording);
        },
    );
    assert!(town.count("compared_total{pair=\"near\",same=\"yes\"}") >= 50.0, "{}", town.metrics());
    assert_eq!((town.count("window_compared{threshold=\"0.98\"}"), town.serves()), (0.0, false));
}
