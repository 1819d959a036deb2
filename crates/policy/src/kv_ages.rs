//! How long ago the blocks were stored that an engine removes: what of a cache is still there, measured where its engine says what it removes.
//!
//! A router sees bytes and an engine's events name tokens, so that a removed block can't be told from others by a prompt. But caches drop what was used longest
//! ago (vLLM and SGLang both), so that the age of what they drop now says what they have dropped already, whoever sent it. No request need be told from another for that, and so
//! none can be mistaken: to tie blocks to the prompts that were sent meanwhile was the alternative, and is a guess wherever several are computed at once.
//!
//! An engine has a hundred thousand blocks and a gateway many engines. Ages are those of a sample by the blocks' names, of which twice as many are left out whenever it
//! becomes too large.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use plimsoll_math::spread::Spread;

/// Blocks of the sample: some 100 KiB for each replica, and still some thousand ages for each time that a cache is filled anew.
const SAMPLE: usize = 4_096;
/// A sample of a cache of 250 million blocks; what says more is no engine.
const MOST_ONE_IN: u64 = 1 << 16;
/// Tokens of a block; engines have 1 to 128.
const MOST_BLOCK_TOKENS: u32 = 1 << 12;
/// Ages that are looked at together, and which of them counts, from the youngest on: a quarter of the way, because blocks that were used again after they were stored are older than
/// what is dropped, and the last ones of a request go before its first. In virtual time (chat, caches of 4 000 blocks) 1.3 % of requests are sent for a prefix that has gone, 4 % with half of
/// the way, 3.7 % with a quarter of 32 ages.
const AGES: usize = 128;
const COUNTS: usize = AGES / 4;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct KvAges {
    /// Blocks that are there, by their names: when they were stored, in tokens.
    stored: HashMap<u64, u64, BuildHasherDefault<Spread>>,
    /// One in so many blocks is in the sample.
    one_in: u64,
    /// Of the last ones that were removed.
    ages: Vec<u64>,
}

impl Default for KvAges {
    fn default() -> KvAges {
        KvAges { stored: HashMap::default(), one_in: 1, ages: Vec::with_capacity(AGES) }
    }
}

impl KvAges {
    /// Blocks of so many tokens are there, at a count of tokens; gives how many tokens are new, by the sample.
    pub fn stored(&mut self, blocks: &[u64], block_tokens: u32, at: u64) -> u64 {
        let each = u64::from(block_tokens.min(MOST_BLOCK_TOKENS));
        let mut new = 0u64;
        for &name in blocks {
            if !is_one_in(name, self.one_in) {
                continue;
            }
            // One that is there already is used again, where its engine says that.
            if self.stored.insert(name, at.saturating_add(new)).is_none() {
                new += each * self.one_in;
            }
            if self.stored.len() > SAMPLE {
                self.thin_out();
            }
        }
        new
    }

    /// Leaves half of the sample out. Names that are alike in what decides it are none that an engine makes; they are not gathered.
    fn thin_out(&mut self) {
        let one_in = self.one_in * 2;
        self.stored.retain(|name, _| is_one_in(*name, one_in));
        self.one_in = one_in;
        if self.stored.len() > SAMPLE || one_in >= MOST_ONE_IN {
            self.clear();
        }
    }

    /// Blocks are gone, at a count of tokens; gives the age beyond which blocks are dropped now, where enough were since it was given last.
    pub fn removed(&mut self, blocks: &[u64], at: u64) -> Option<u64> {
        let mut measured = None;
        for name in blocks {
            let Some(stored) = self.stored.remove(name) else { continue };
            self.ages.push(at.saturating_sub(stored));
            if self.ages.len() == AGES {
                let (_, age, _) = self.ages.select_nth_unstable(COUNTS);
                measured = Some(*age);
                self.ages.clear();
            }
        }
        measured
    }

    /// Nothing is there any more.
    pub fn clear(&mut self) {
        self.stored.clear();
        self.ages.clear();
        self.one_in = 1;
    }
}

/// By bits of a name that are spread: engines may count their blocks.
fn is_one_in(name: u64, one_in: u64) -> bool {
    (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(one_in)
}
