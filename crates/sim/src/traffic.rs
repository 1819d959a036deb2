//! The interface between an engine and its caller: requests in, timestamped emissions out, and gauges.
//!
//! One replica ([`Engine`](crate::engine::Engine)) and a fleet of them ([`World`](crate::fleet::world::World)) share
//! these types, so a caller need not know the kind.

use plimsoll_model::{At, Span};

/// A request to an engine. [`Submit::new`] leaves everything but the lengths at its default.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Submit {
    /// The caller's identifier, unique among requests in flight. Random draws for the request depend only on the seed
    /// and this identifier, not on its arrival time or order.
    pub id: u64,
    /// Prompt tokens; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Output tokens. A request with 0 ends when the prompt is computed (embeddings).
    pub output_tokens: u32,
    /// Hashes of the prompt's full blocks of [`BLOCK_TOKENS`](crate::spec::error::BLOCK_TOKENS) tokens. Each is
    /// chained to the one before, so equal hashes mean equal blocks after an equal prefix. Empty: the prompt shares
    /// no blocks.
    pub blocks: Vec<u64>,
    /// Conversation of the request, for routers with session affinity; `None` if there is none.
    pub session: Option<u64>,
    /// Index of the adapter (LoRA); `None` for the base model.
    pub adapter: Option<u32>,
    /// Priority level, 1 is the highest; 0 is the default level.
    pub priority: u32,
    /// Items (rows of a tensor) of a request to a batching model; 0 counts as 1.
    pub items: u32,
    /// Set if another replica computed the prompt and the first token, and its KV cache was transferred. The request
    /// then starts at its second token.
    pub handed_over: bool,
    /// Maximum queue time, if the server's queue has time-outs; `None` for the queue's default.
    pub queue_timeout: Option<Span>,
}

impl Submit {
    /// Returns a request of these lengths without shared blocks.
    pub fn new(id: u64, prompt_tokens: u32, output_tokens: u32) -> Submit {
        Submit { id, prompt_tokens, output_tokens, ..Submit::default() }
    }
}

/// The reason why a request was rejected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EngineRejection {
    /// The queue is full; retry later (HTTP 429).
    #[error("the queue is full: {limit} requests wait")]
    QueueFull {
        /// Maximum number of requests that may wait.
        limit: u32,
    },
    /// Prompt and output exceed the engine's maximum context (HTTP 400).
    #[error("prompt and answer need {tokens} tokens, the limit is {limit}")]
    TooLong {
        /// Tokens of prompt and output.
        tokens: u64,
        limit: u64,
    },
    /// More items than the largest batch (HTTP 400).
    #[error("inference request batch-size must be <= {limit}, this one has {items}")]
    TooManyItems {
        items: u32,
        /// Maximum number of items in one batch.
        limit: u32,
    },
    /// A request with this id is in flight: a mistake of the caller (HTTP 400).
    #[error("a request with id {id} is in flight")]
    DuplicateId {
        /// Id that another request in flight has.
        id: u64,
    },
    /// Rejected with this status by a fault, by a rate limit, or because no replica is available.
    #[error("{why}")]
    Unavailable {
        status: u16,
        why: &'static str,
        /// Value of `Retry-After`; `None` if the server sends none.
        retry_after: Option<Span>,
    },
    /// The connection is refused or reset before a response.
    #[error("the connection was reset")]
    Reset,
}

impl EngineRejection {
    /// Returns the HTTP status; `None` if there is no response.
    pub fn status(&self) -> Option<u16> {
        match self {
            EngineRejection::QueueFull { .. } => Some(429),
            EngineRejection::TooLong { .. }
            | EngineRejection::TooManyItems { .. }
            | EngineRejection::DuplicateId { .. } => Some(400),
            EngineRejection::Unavailable { status, .. } => Some(*status),
            EngineRejection::Reset => None,
        }
    }

    /// Returns the value of the `Retry-After` header, if there is one.
    pub fn retry_after(&self) -> Option<Span> {
        match self {
            EngineRejection::QueueFull { .. } => Some(QUEUE_FULL_WAIT),
            EngineRejection::Unavailable { retry_after, .. } => *retry_after,
            EngineRejection::TooLong { .. }
            | EngineRejection::TooManyItems { .. }
            | EngineRejection::DuplicateId { .. }
            | EngineRejection::Reset => None,
        }
    }
}

/// Value of `Retry-After` for a full queue: the minimum, because the header counts in seconds.
const QUEUE_FULL_WAIT: Span = Span::from_secs(1);

/// The reason why a response ended.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum FinishReason {
    /// The response has the requested length.
    Length,
    /// The response has no tokens.
    Stop,
}

impl FinishReason {
    /// Returns the name in OpenAI's protocol.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::Stop => "stop",
        }
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum RequestEvent {
    /// A router sent the request to this replica. Emitted only with several replicas.
    Placed {
        replica: u32,
    },
    /// A dependency in front of the engine starts on the request. Emitted only if there is such a dependency.
    Depends {
        /// Duration in the dependency.
        takes: Span,
    },
    /// The request left the queue for the first time.
    Admitted {
        /// Prompt tokens found in the prefix cache.
        cached: u32,
    },
    /// The engine preempted the request, freed its blocks, and will compute it again.
    Preempted,
    PrefillDone,
    Token {
        n: u32,
        last: bool,
    },
    /// The response is complete. Each request ends in exactly one of this, a failure, and a
    /// [`World::cancel`](crate::World::cancel).
    Finished {
        reason: FinishReason,
    },
    /// The request ended without a complete response.
    Failed(Failure),
}

/// The failure of an accepted request.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// An error response: instead of the head before the first token, else as an error inside the stream.
    Status {
        status: u16,
        why: &'static str,
    },
    Reset,
    /// The connection is closed in the middle of the response, as if the response were complete.
    Cut,
}

/// An event with its exact virtual time.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Emission {
    pub at: At,
    pub id: u64,
    pub what: RequestEvent,
}

/// The detail of emissions for a response.
#[derive(Copy, Clone, PartialEq, Eq, Default, Hash, Debug)]
pub enum Detail {
    /// Every token when it leaves.
    #[default]
    Tokens,
    /// The first token when it leaves, and the others together with the last. Only batching engines support this.
    Ends,
}

/// The gauges of one replica, or of all together, as of the last step.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct EngineGauges {
    pub running: u32,
    /// Requests that wait in an engine (including preempted ones and those in its front end) or for a replica.
    /// Requests that a dependency in front of the engine delays are not counted.
    pub waiting: u32,
    /// KV blocks in use; 0 without a KV cache.
    pub kv_blocks_used: u32,
    pub kv_blocks: u32,
    pub ready: u32,
    /// Set if the engine computes whole batches and exports Triton's metrics.
    pub batches: bool,
    pub totals: Totals,
}

impl EngineGauges {
    /// Returns the share of the KV cache in use, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        if self.kv_blocks == 0 { 0.0 } else { f64::from(self.kv_blocks_used) / f64::from(self.kv_blocks) }
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    pub submitted: u64,
    pub rejected: u64,
    pub finished: u64,
    pub cancelled: u64,
    /// Accepted requests that failed.
    pub failed: u64,
    /// Requests that a gateway hedged to a second replica because the first was late.
    pub hedged: u64,
    pub preempted: u64,
    /// Prompt tokens of the requests whose prompt is computed.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Completed steps (batches of a batcher); 0 for engines without steps.
    pub steps: u64,
    /// Prompt tokens that were queried in a prefix cache.
    pub prefix_queries: u64,
    /// Prompt tokens that were found in a prefix cache.
    pub prefix_hits: u64,
    pub drafts: Drafts,
    /// Items of the completed batches (Triton: `nv_inference_count`; `steps` is its `nv_inference_exec_count`).
    pub items: u64,
    /// Queue time, summed over the requests of completed batches, ns.
    pub queue_ns: u64,
    /// Time of input copies, summed over requests and not over batches, as in Triton, ns.
    pub input_ns: u64,
    /// Compute time, summed over requests, ns.
    pub compute_ns: u64,
    /// Time of output copies, summed over requests, ns.
    pub output_ns: u64,
}

impl Totals {
    /// Adds the counters of a replica's work; the fleet counts the outcomes of requests.
    pub(crate) fn add_work(&mut self, replica: &Totals) {
        self.preempted += replica.preempted;
        self.prompt_tokens += replica.prompt_tokens;
        self.output_tokens += replica.output_tokens;
        self.steps += replica.steps;
        self.prefix_queries += replica.prefix_queries;
        self.prefix_hits += replica.prefix_hits;
        self.drafts += replica.drafts;
    }
}

/// Counters of speculative decoding: verified drafts, proposed tokens and accepted tokens.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Drafts {
    /// Drafts that the model verified, each in one step of one sequence.
    pub checked: u64,
    pub proposed: u64,
    /// Accepted tokens, without the additional token of each verification.
    pub accepted: u64,
}

impl Drafts {
    pub(crate) fn count(&mut self, proposed: u32, accepted: u32) {
        *self += Drafts { checked: 1, proposed: proposed.into(), accepted: accepted.into() };
    }

    /// Returns the mean number of tokens per verification; `None` without verifications.
    pub fn accepted_length(&self) -> Option<f64> {
        (self.checked > 0).then(|| 1.0 + self.accepted as f64 / self.checked as f64)
    }
}

impl std::ops::AddAssign for Drafts {
    fn add_assign(&mut self, more: Drafts) {
        self.checked += more.checked;
        self.proposed += more.proposed;
        self.accepted += more.accepted;
    }
}
