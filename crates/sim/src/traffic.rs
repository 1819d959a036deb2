//! What crosses the boundary between an engine and whoever steps it: requests in, stamped emissions out, and the state in
//! numbers.
//!
//! One replica ([`Engine`](crate::engine::Engine)) and a fleet of them ([`World`](crate::fleet::world::World)) speak the same
//! words, so that a caller need not know which of the two it has.

use plimsoll_model::{At, Span};

/// A request, as far as an engine cares. [`Submit::new`] leaves everything but the lengths at its default.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Submit {
    /// The caller's name for it, unique among those in flight. What is drawn for the request depends on the seed and
    /// this alone, not on when or after whom it comes.
    pub id: u64,
    /// Tokens of its prompt; 0 counts as 1.
    pub prompt_tokens: u32,
    /// Tokens of its answer. An answer of 0 tokens ends when the prompt is computed (embeddings).
    pub output_tokens: u32,
    /// Names of the prompt's full blocks of [`BLOCK_TOKENS`](crate::spec::error::BLOCK_TOKENS) tokens, each chained to the one
    /// before: equal name = equal block after an equal prefix. Empty = nothing is shared.
    pub blocks: Vec<u64>,
    /// The conversation it belongs to, for routers that keep one on one replica.
    pub session: Option<u64>,
    /// The adapter (LoRA) it needs.
    pub adapter: Option<u32>,
    /// Its priority level, 1 the highest; 0 = the default one.
    pub priority: u32,
    /// Items of an endpoint that computes batches (rows of a tensor); 0 counts as 1.
    pub items: u32,
    /// Were its prompt and the first token of its answer computed elsewhere, and is its KV cache here? Then it starts at its
    /// second token, without any prompt to compute.
    pub handed_over: bool,
    /// How long the server may keep it waiting, where the server's queue has time-outs; `None` = the queue's default.
    pub queue_timeout: Option<Span>,
}

impl Submit {
    /// A request of these lengths that shares nothing.
    pub fn new(id: u64, prompt_tokens: u32, output_tokens: u32) -> Submit {
        Submit { id, prompt_tokens, output_tokens, ..Submit::default() }
    }
}

/// Why a request was not taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejected {
    /// The queue is at its bound; try later (HTTP 429).
    #[error("the queue is full: {limit} requests wait")]
    QueueFull {
        /// The bound.
        limit: u32,
    },
    /// Prompt and answer are longer than the engine can ever hold (HTTP 400).
    #[error("prompt and answer need {tokens} tokens, the limit is {limit}")]
    TooLong {
        /// Tokens of prompt and answer.
        tokens: u64,
        /// The most there may be.
        limit: u64,
    },
    /// More items than the largest batch (HTTP 400).
    #[error("inference request batch-size must be <= {limit}, this one has {items}")]
    TooManyItems {
        /// Items of the request.
        items: u32,
        /// The most there may be.
        limit: u32,
    },
    /// A request of this id is in flight: a mistake of the caller (HTTP 400).
    #[error("a request with id {id} is in flight")]
    DuplicateId {
        /// The id.
        id: u64,
    },
    /// Refused by a fault, a rate limit or for want of a replica, with this status.
    #[error("{why}")]
    Unavailable {
        /// The HTTP status.
        status: u16,
        /// What the server says.
        why: &'static str,
        /// When to try again, if the server says so.
        retry_after: Option<Span>,
    },
    /// The connection is refused or reset before an answer.
    #[error("the connection was reset")]
    Reset,
}

impl Rejected {
    /// The HTTP status that says it; `None` where there is no answer at all.
    pub fn status(&self) -> Option<u16> {
        match self {
            Rejected::QueueFull { .. } => Some(429),
            Rejected::TooLong { .. } | Rejected::TooManyItems { .. } | Rejected::DuplicateId { .. } => {
                Some(400)
            }
            Rejected::Unavailable { status, .. } => Some(*status),
            Rejected::Reset => None,
        }
    }

    /// When the client is told to come back (`Retry-After`), if it is.
    pub fn retry_after(&self) -> Option<Span> {
        match self {
            Rejected::QueueFull { .. } => Some(QUEUE_FULL_WAIT),
            Rejected::Unavailable { retry_after, .. } => *retry_after,
            Rejected::TooLong { .. }
            | Rejected::TooManyItems { .. }
            | Rejected::DuplicateId { .. }
            | Rejected::Reset => None,
        }
    }
}

/// What a full queue tells its clients to wait: the header counts in seconds, and this is the least of them.
const QUEUE_FULL_WAIT: Span = Span::from_secs(1);

/// Why an answer ended.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum FinishReason {
    /// It has the length that was asked for.
    Length,
    /// There was nothing to generate.
    Stop,
}

impl FinishReason {
    /// The name that OpenAI's protocol uses.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::Stop => "stop",
        }
    }
}

/// What happens to a request.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum RequestEvent {
    /// A router gave it to this replica. Only where there is more than one.
    Placed {
        /// Its number.
        replica: u32,
    },
    /// Something in front of the engine takes so long with it, from now on. Only where there is such a thing.
    Depends {
        /// How long.
        takes: Span,
    },
    /// It left the queue for the first time.
    Admitted {
        /// Tokens of its prompt that a prefix cache held.
        cached: u32,
    },
    /// It lost its place and its blocks, and will be computed again.
    Preempted,
    /// The whole prompt is computed.
    PrefillDone,
    Token {
        /// How many.
        n: u32,
        /// Are they the last?
        last: bool,
    },
    /// It is answered. Each request ends in exactly one of this, a failure, and a [`World::cancel`](crate::World::cancel).
    Finished {
        /// Why.
        reason: FinishReason,
    },
    /// It is over without an answer, or with a part of one.
    Failed(Failure),
}

/// How a request that was taken fails.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// An error answer: in place of the head where nothing was streamed yet, else as an error inside the stream.
    Status {
        /// The HTTP status.
        status: u16,
        /// What the server says.
        why: &'static str,
    },
    Reset,
    /// The connection is closed in the middle of the answer, as if it were at its end.
    Cut,
}

/// Something that happened, with its exact virtual time.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Emission {
    pub at: At,
    pub id: u64,
    pub what: RequestEvent,
}

/// How much of an answer is told.
#[derive(Copy, Clone, PartialEq, Eq, Default, Hash, Debug)]
pub enum Detail {
    /// Every token as it leaves.
    #[default]
    Tokens,
    /// The first token when it leaves, and the others together with the last. Only batching engines make this shorter.
    Ends,
}

/// The state of one replica, or of all together, in numbers, as of the last step.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct EngineGauges {
    pub running: u32,
    /// Requests that wait in an engine, preempted ones and those in its front end included, or for a replica. Not those that
    /// something in front of an engine holds back.
    pub waiting: u32,
    /// KV blocks in use. Zero where there is no KV cache.
    pub kv_blocks_used: u32,
    pub kv_blocks: u32,
    /// Replicas that take requests.
    pub ready: u32,
    /// Does it compute whole batches, and is its page Triton's?
    pub batches: bool,
    /// Counts since the beginning.
    pub totals: Totals,
}

impl EngineGauges {
    /// Share of the KV cache in use, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        if self.kv_blocks == 0 { 0.0 } else { f64::from(self.kv_blocks_used) / f64::from(self.kv_blocks) }
    }
}

/// Counts since the beginning.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    pub submitted: u64,
    pub rejected: u64,
    pub finished: u64,
    /// Requests cancelled by the caller.
    pub cancelled: u64,
    /// Requests that failed after they were taken.
    pub failed: u64,
    /// Requests that a gateway sent to a second replica because the first was late.
    pub hedged: u64,
    /// Times that a running request lost its blocks and had to be computed again.
    pub preempted: u64,
    /// Prompt tokens of the requests whose prompt is computed.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Steps (of a batcher: batches) ended. Zero where there are none.
    pub steps: u64,
    /// Prompt tokens that were looked up in a prefix cache.
    pub prefix_queries: u64,
    /// Those of them that it held.
    pub prefix_hits: u64,
    pub drafts: Drafts,
    /// Items of the batches ended (Triton: `nv_inference_count`; `steps` is its `nv_inference_exec_count`).
    pub items: u64,
    /// Time that requests waited for their batch, summed over the requests whose batch ended, ns.
    pub queue_ns: u64,
    /// Time of their batches' input copies, summed over requests, not batches, as Triton counts, ns.
    pub input_ns: u64,
    /// Time of their batches' computing, summed alike, ns.
    pub compute_ns: u64,
    /// Time of their batches' output copies, summed alike, ns.
    pub output_ns: u64,
}

impl Totals {
    /// Adds the work of a replica; what became of requests is counted by the fleet.
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

/// What came of drafts: how many were checked, tokens they proposed, and those of them that held.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Drafts {
    /// Drafts that the model checked, each in one step of one sequence.
    pub checked: u64,
    pub proposed: u64,
    /// Tokens accepted. The token that each check brings besides is not counted in.
    pub accepted: u64,
}

impl Drafts {
    pub(crate) fn count(&mut self, proposed: u32, accepted: u32) {
        *self += Drafts { checked: 1, proposed: proposed.into(), accepted: accepted.into() };
    }

    /// Tokens that a check brings on average, `None` where nothing was checked.
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
