//! What the gateway reads of a request's body, of a replica's list of models, its usage and its embeddings, of a text that is compared by its meaning; however it cuts the prompt, it says the same of the rest.

use plimsoll_gateway::cache::semantic::endpoint::embeddings;
use plimsoll_gateway::cache::semantic::question::Question;
use plimsoll_gateway::request::{ParsedRequest, PromptBlocks};
use plimsoll_gateway::{models, usage};

pub fn check(bytes: &[u8]) {
    let plain = ParsedRequest::read(bytes, PromptBlocks::No);
    // A proxy writes another model's name at that place.
    assert!(plain.model_at.start <= plain.model_at.end && plain.model_at.end <= bytes.len());
    for cut in [PromptBlocks::Blocks, PromptBlocks::Whole] {
        let asked = ParsedRequest::read(bytes, cut);
        let told = |a: &ParsedRequest| (a.streams, a.most_tokens, a.model_hash, a.model_at.clone());
        assert_eq!(told(&asked), told(&plain));
        assert_eq!(asked.blocks.len(), asked.ends.len());
    }
    let _ = models::read(bytes);
    let _ = usage::cached_share(bytes);
    for one in embeddings(bytes, 1).into_iter().flatten() {
        let length: f32 = one.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-3, "{length}");
    }
    if let Some(question) = Question::read(bytes, Vec::new(), 1 << 16) {
        // What else must be the same is.
        let other = Question::read(bytes, vec![b"x"], 1 << 16).expect("the same body");
        assert!(other.text == question.text && other.context != question.context);
    }
}
