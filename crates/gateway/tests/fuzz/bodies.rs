//! Fuzzing of the parsers for request bodies, model lists, usage, embeddings and questions. The parsed properties do
//! not depend on how the prompt is cut.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method};
use plimsoll_gateway::cache::semantic::endpoint::embeddings;
use plimsoll_gateway::cache::semantic::question::SemanticQuery;
use plimsoll_gateway::owners::MadeObject;
use plimsoll_gateway::request::target::RequestTarget;
use plimsoll_gateway::request::{ParsedRequest, PromptBlocks, packed};
use plimsoll_gateway::{models, paths, response_observer};

pub fn check(bytes: &[u8]) {
    let plain = ParsedRequest::read(bytes, PromptBlocks::No);
    // The model name at this position is replaced for fallback lists.
    assert!(plain.model_at.start <= plain.model_at.end && plain.model_at.end <= bytes.len());
    for cut in [PromptBlocks::Blocks, PromptBlocks::Whole] {
        let asked = ParsedRequest::read(bytes, cut);
        let told = |a: &ParsedRequest| (a.streams, a.most_tokens, a.model_hash, a.model_at.clone());
        assert_eq!(told(&asked), told(&plain));
        assert_eq!(asked.blocks.len(), asked.ends.len());
    }
    let form =
        HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("multipart/form-data; boundary=X"))]);
    let asked =
        ParsedRequest::of((&Method::POST, "/v1/audio/transcriptions"), &form, bytes, PromptBlocks::Whole);
    assert!(asked.model_at.start <= asked.model_at.end && asked.model_at.end <= bytes.len());
    for coding in ["gzip", "deflate", "deflate, gzip"] {
        let headers = HeaderMap::from_iter([(CONTENT_ENCODING, HeaderValue::from_static(coding))]);
        let text = packed::unpacked(&bytes.to_vec().into(), &headers, 1 << 16);
        assert!(text.map_or(0, |text| text.len()) <= 1 << 16);
    }
    let path = String::from_utf8_lossy(bytes);
    let target = RequestTarget::read(&Method::POST, &path);
    assert!(path.get(target.model_at.clone()).is_some());
    let _ = (paths::has_dot_segment(&path), MadeObject::new(&form, true).passes(bytes, true));
    let _ = models::read(bytes);
    let _ = response_observer::cached_share(bytes);
    for one in embeddings(bytes, 1).into_iter().flatten() {
        let length: f32 = one.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-3, "{length}");
    }
    if let Some(question) = SemanticQuery::read(bytes, Vec::new(), 1 << 16) {
        // Different context data must lead to another context.
        let other = SemanticQuery::read(bytes, vec![b"x"], 1 << 16).expect("the same body");
        assert!(other.text == question.text && other.context != question.context);
    }
}
