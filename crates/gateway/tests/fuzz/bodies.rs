//! What the gateway reads of a request's body, of a replica's list of models and of its usage; however it cuts the prompt, it says the same of the rest.

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
}
