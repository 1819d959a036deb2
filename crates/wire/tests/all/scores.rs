//! Rerank, score, pooling and classify: example answers of the references, defects of other answers, and the engine's side.

use plimsoll_model::outcome::How;
use plimsoll_model::{Broken, Payload, Protocol};
use plimsoll_wire::server::{GenerateRequest, Reply, ReportedTimings, answer, parse};
use plimsoll_wire::{DecodedAnswer, Decoder, RequestOptions, encode};
use serde_json::{Value, json};

use Protocol::{Classify, Pooling, Rerank, Score};

/// Parses a whole answer, in one piece and byte by byte; `results` is the expected number of results.
fn read(protocol: Protocol, body: &[u8], results: Option<u32>) -> DecodedAnswer {
    let pieces = |size: usize| {
        let decoder = Decoder::new(protocol, false, 200, Some("application/json"), false);
        let mut decoder = decoder.expecting_results(results);
        body.chunks(size).for_each(|piece| decoder.feed(piece, &mut Vec::new()));
        decoder.finish(true)
    };
    let whole = pieces(body.len().max(1));
    assert_eq!(pieces(1), whole);
    whole
}

#[test]
fn answers_of_the_references_are_counted() {
    // Cohere's, vLLM's rerank and score, TEI's bare list.
    let cohere = json!({"results": [{"index": 3, "relevance_score": 0.999_071}, {"index": 4, "relevance_score": 0.786_786_7},
        {"index": 0, "relevance_score": 0.327_130_68}], "id": "07734bd2", "meta": {"billed_units": {"search_units": 1}}});
    let vllm = json!({"id": "rerank-fae5", "model": "BAAI/bge-reranker-base", "usage": {"total_tokens": 56}, "results": [
        {"index": 1, "document": {"text": "The capital of France is Paris."}, "relevance_score": 0.998_535_156_25},
        {"index": 0, "document": {"text": "The capital of Brazil is Brasilia."}, "relevance_score": 0.000_586_032_867_431_640_6}]});
    let score = json!({"id": "score-request-id", "object": "list", "created": 693_447, "model": "BAAI/bge-reranker-v2-m3",
        "data": [{"index": 0, "object": "score", "score": 1}, {"index": 1, "object": "score", "score": 0.001}],
        "usage": {"prompt_tokens": 31, "total_tokens": 31}});
    // LiteLLM's 1.108.7, in front of our engine.
    let litellm = json!({"id": "cmpl-4e", "results": [{"index": 0, "relevance_score": 1.0}, {"index": 1, "relevance_score": 0.5}],
        "meta": {"billed_units": {"total_tokens": 4}, "tokens": {"input_tokens": 4}}});
    let tei = json!([{"index": 1, "score": 0.9976}, {"index": 0, "score": 0.0038}]);
    for (protocol, body, count, prompt) in [
        (Rerank, cohere, 3, None),
        (Rerank, vllm, 2, Some(56)),
        (Score, score, 2, Some(31)),
        (Rerank, litellm, 2, Some(4)),
        (Rerank, tei, 2, None),
    ] {
        let body = body.to_string();
        let right = read(protocol, body.as_bytes(), Some(count));
        assert_eq!((right.outcome.how, right.answer.broken), (How::Finished, None), "{body}");
        assert_eq!((right.answer.tokens.prompt, right.answer.tokens.output), (prompt, None));
        for other in [count - 1, count + 1] {
            assert_eq!(read(protocol, body.as_bytes(), Some(other)).answer.broken, Some(Broken::WrongCount));
        }
        assert_eq!(read(protocol, body.as_bytes(), None).answer.broken, None);
    }
}

#[test]
fn what_lacks_its_result_is_not_counted() {
    let broken = |protocol, body: &str, due| read(protocol, body.as_bytes(), Some(due)).answer.broken;
    assert_eq!(broken(Rerank, r#"{"results":[]}"#, 2), Some(Broken::Empty));
    assert_eq!(broken(Rerank, r#"{"id":"x"}"#, 2), Some(Broken::Empty));
    assert_eq!(
        broken(
            Rerank,
            r#"{"results":[{"index":0,"relevance_score":null},{"index":1,"relevance_score":1e-9}]}"#,
            2
        ),
        Some(Broken::WrongCount)
    );
    assert_eq!(broken(Pooling, r#"{"data":[{"index":0,"data":[]}]}"#, 1), Some(Broken::Empty));
    assert_eq!(broken(Pooling, r#"{"data":[{"index":0,"data":[[0.1],[0.2]]}]}"#, 1), None);
    assert_eq!(broken(Pooling, r#"{"data":[{"index":0,"data":"AACAPw=="}]}"#, 1), None);
    assert_eq!(broken(Classify, r#"{"data":[{"index":0,"label":"Default","probs":[0.5,0.4]}]}"#, 1), None);
    assert_eq!(broken(Classify, r#"{"data":[{"index":0,"label":"Default"}]}"#, 1), Some(Broken::Empty));
    for error in [r#"{"error":"the model is overloaded"}"#, r#"{"detail":"the model is overloaded"}"#] {
        let told = read(Score, error.as_bytes(), Some(2));
        assert_eq!(
            (told.outcome.how, told.answer.error.as_deref()),
            (How::StreamError, Some("the model is overloaded"))
        );
    }
    assert_eq!(read(Rerank, b"[1,", Some(2)).outcome.how, How::Malformed);
}

#[test]
fn what_is_sent_is_what_is_asked_and_answered() {
    let payload = Payload::Documents { query: "a \"b\"".into(), documents: vec!["c d e".into(), "f".into()] };
    for (protocol, path, one, many) in
        [(Rerank, "/rerank", "query", "documents"), (Score, "/score", "text_1", "text_2")]
    {
        let options = RequestOptions { protocol, model: Some("m".into()), ..RequestOptions::default() };
        let sent = encode(&payload, &options);
        let body: Value = serde_json::from_slice(&sent.body).expect("JSON");
        assert_eq!(body, json!({"model": "m", one: "a \"b\"", many: ["c d e", "f"]}));
        assert_eq!(sent.path, path);
        let asked = parse(protocol, &sent.body, 1 << 20).expect("good");
        // The query is read with each document.
        assert_eq!((asked.inputs, asked.prompt_tokens, asked.stream), (2, 8, false));
        answered(&asked, 2);
        for (bad, param) in
            [(json!({one: "a"}), many), (json!({many: ["a"]}), one), (json!({one: "a", many: []}), many)]
        {
            let refused = parse(protocol, bad.to_string().as_bytes(), 1 << 20).unwrap_err();
            assert_eq!((refused.status, refused.param), (400, Some(param)));
        }
    }
    let texts = br#"{"query":"a","documents":[{"text":"b c"},"d"]}"#;
    assert_eq!(parse(Rerank, texts, 1 << 20).expect("good").prompt_tokens, 5);
    for (protocol, path) in [(Pooling, "/pooling"), (Classify, "/classify")] {
        let options = RequestOptions { protocol, ..RequestOptions::default() };
        let sent = encode(&Payload::Text("a b".into()), &options);
        assert_eq!((sent.path.as_ref(), sent.body.as_ref()), (path, &br#"{"input":"a b"}"#[..]));
        answered(&parse(protocol, &sent.body, 1 << 20).expect("good"), 1);
    }
}

fn answered(asked: &GenerateRequest, results: u32) {
    let told = ReportedTimings::default();
    let reply = Reply { id: "x", created_s: 0, model: "m", first_word: 0, tokens: 0, reason: "length", told };
    let verdict = read(asked.endpoint, &answer(asked, &reply), Some(results));
    assert_eq!((verdict.outcome.how, verdict.answer.broken), (How::Finished, None), "{:?}", asked.endpoint);
    assert_eq!(verdict.answer.tokens.prompt, Some(asked.prompt_tokens));
}
