//! What an engine says of its KV cache as it changes: blocks that are there from now on, and blocks that are not.
//!
//! The names of the events are vLLM's (`vllm/distributed/kv_events.py`), which SGLang and others took over.

/// A change of one replica's cache. A block's name is its engine's own, and says the whole prefix up to its end; two engines, and one that was started twice,
/// need not agree on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KvEvent {
    /// Full blocks are there, in a row; or are used again.
    Stored {
        /// The name of the block before the first of them; none = they begin a prompt.
        parent: Option<u64>,
        /// Tokens of each block.
        block_tokens: u32,
        /// Their names.
        blocks: Vec<u64>,
    },
    /// These blocks are gone; of one that was there twice a copy may be left.
    Removed(Vec<u64>),
    /// Nothing is there.
    Cleared,
}
