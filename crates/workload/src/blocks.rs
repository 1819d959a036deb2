//! Names the blocks of a prompt without its text, for the prefix cache of a simulated engine.
//!
//! A synthetic prompt is a sequence of pieces, each a prefix of a keyed text. A block of sixteen tokens is named by the
//! pieces that it covers and by the previous block's name. Two names are equal exactly if the hashes of the texts are
//! (`hash_blocks`), so a simulated cache hits where a real one would. The cost is a thousandth: the prompts of the Mooncake
//! trace are 145 million words. Blocks are counted in tokens, for any ratio of words to tokens. Prompts of a file have no
//! pieces; their words are hashed once and kept.

use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

use siphasher::sip::SipHasher24;

use crate::draw::Arrival;
use crate::prompts::{BLOCK_TOKENS, Length, Piece, Prompts, Root, SALT_WORDS, words_of};
use crate::{Scenario, SpecError};

/// A generator of the names of prompt blocks.
#[derive(Debug)]
pub struct BlockNames {
    prompts: Prompts,
    /// Names of prompts from a file, by class, level and index of the entry.
    entries: HashMap<(u16, u32, u64), Arc<[u64]>>,
}

impl BlockNames {
    /// Returns a generator for the prompts of this scenario.
    ///
    /// # Errors
    /// Fails with a [`SpecError`] if the scenario is inconsistent or its files are not attached.
    pub fn new(scenario: &Scenario) -> Result<BlockNames, SpecError> {
        Ok(BlockNames { prompts: Prompts::new(scenario, 0)?, entries: HashMap::new() })
    }

    /// Returns the names of the prompt's full blocks of [`BLOCK_TOKENS`] tokens, each chained to the previous one.
    pub fn of(&mut self, arrival: &Arrival) -> Vec<u64> {
        if (arrival.prompt_tokens as usize) < BLOCK_TOKENS {
            return Vec::new();
        }
        if self.prompts.scenario.prompts_of(arrival.class).file.is_some() {
            return self.of_entry(arrival);
        }
        let mut chain = Chain::with_room(arrival.prompt_tokens);
        for part in self.prompts.parts(arrival, Length { factor: 1.0, template: 0 }) {
            part.pieces.into_iter().for_each(|piece| chain.add(piece));
        }
        chain.names
    }

    fn of_entry(&mut self, arrival: &Arrival) -> Vec<u64> {
        let index = arrival.blocks.first().copied().unwrap_or(0);
        let prompts = &self.prompts;
        let key = (arrival.class, arrival.level, index);
        self.entries.entry(key).or_insert_with(|| entry_names(prompts, arrival, index).into()).to_vec()
    }
}

/// The names of a prompt in progress.
struct Chain {
    names: Vec<u64>,
    hash: u64,
    filled: usize,
}

impl Chain {
    fn with_room(tokens: u32) -> Chain {
        Chain { names: Vec::with_capacity(tokens as usize / BLOCK_TOKENS), hash: 0, filled: 0 }
    }

    fn add(&mut self, piece: Piece) {
        let mut from = 0;
        while from < piece.count {
            let take = (BLOCK_TOKENS - self.filled).min(piece.count - from);
            self.hash = mix(self.hash, piece.key, (from as u64) << 5 | take as u64);
            self.filled += take;
            from += take;
            if self.filled == BLOCK_TOKENS {
                self.names.push(self.hash);
                self.filled = 0;
            }
        }
    }
}

/// Mixes three numbers into one. Keys are SipHash values already, so only spreading is needed, and SipHash costs as much as
/// the request's simulation. The steps come from MurmurHash3's finaliser.
fn mix(hash: u64, key: u64, place: u64) -> u64 {
    let mut x = hash.rotate_left(23) ^ key.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    x = (x ^ x >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ x >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

/// Returns the block names of a line of a prompt file: the salt, then the user's words.
fn entry_names(prompts: &Prompts, arrival: &Arrival, index: u64) -> Vec<u64> {
    let spec = prompts.scenario.prompts_of(arrival.class);
    let entries = spec.file.as_ref().and_then(|file| prompts.scenario.material.prompts(file).ok());
    let Some(entry) = entries.and_then(|entries| entries.get(index as usize)) else { return Vec::new() };
    let salt = if spec.salt { SALT_WORDS } else { 0 };
    let salt_word = prompts.key(arrival, Root::Salt, 0, 0).to_le_bytes();
    let text = entry.messages.iter().flat_map(|message| words_of(&message.content)).map(str::as_bytes);
    let words: Vec<&[u8]> = std::iter::repeat_n(&salt_word[..], salt).chain(text).collect();
    let mut names = Vec::new();
    let (mut hash, mut from) = (0, 0);
    for block in 1..=arrival.prompt_tokens as usize / BLOCK_TOKENS {
        let to = ((block * BLOCK_TOKENS) as f64 * spec.words_per_token).round() as usize;
        let mut hasher = SipHasher24::new_with_keys(hash, block as u64);
        for word in words.get(from..to.min(words.len())).unwrap_or_default() {
            hasher.write(word);
            hasher.write(b" ");
        }
        hash = hasher.finish();
        from = to.min(words.len());
        names.push(hash);
    }
    names
}
