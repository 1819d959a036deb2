//! One attempt at one request: the row that everything else is computed from.
//!
//! Exactly one record is left per arrival, and one row per attempt at it. A request that is never sent still has its
//! row; a failed one keeps the stamps it reached. Stamps are [`At`]s on the run's own axis.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{At, By, How, MediaCounts, Outcome, Span, TcpFacts};

crate::named! {
    /// What a decoded event of an answer is.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[repr(u8)]
    pub enum EventKind {
        /// Visible generated text.
        Content = 0 => "content",
        /// Generated text of the reasoning part.
        Reasoning = 1 => "reasoning",
        /// A piece of a tool call: generated as well.
        ToolCall = 2 => "tool_call",
        /// Names the role and carries nothing generated.
        Role = 3 => "role",
        /// Carries nothing at all (empty delta, keep-alive comment).
        Empty = 4 => "empty",
        /// Says why generation ended, without text.
        Finish = 5 => "finish",
        /// Token accounting only.
        Usage = 6 => "usage",
        /// An error inside the stream.
        Error = 7 => "error",
        /// `[DONE]`.
        Done = 8 => "done",
        /// The whole body of an answer that does not stream.
        Body = 9 => "body",
    }
}

impl EventKind {
    /// Does the event carry generated tokens? (A whole body does not count: when its tokens were made is unknown.)
    pub fn is_token(self) -> bool {
        matches!(self, EventKind::Content | EventKind::Reasoning | EventKind::ToolCall)
    }

    /// The kind stored as this number.
    pub fn from_u8(n: u8) -> Option<EventKind> {
        EventKind::ALL.get(n as usize).copied()
    }
}

/// One event of an answer, as it arrived. Sixteen bytes, because long answers hold thousands.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Arrival, counted from [`Attempt::sent`]: the kernel's receive stamp where there is one.
    pub offset: Span,
    /// User-space stamp minus kernel stamp, in ns: the generator's own delay. Zero where the stamp is user space's.
    pub user_delay_ns: u32,
    /// Tokens in this event; 0 = unknown.
    pub tokens: u16,
    pub kind: EventKind,
    /// True when a later event came out of the same read: `offset` is then an upper bound, not an exact time.
    pub coalesced: bool,
}

crate::named! {
    /// How the tokens per event are known.
    #[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum TokensRule {
        /// They are not: an event may carry any number.
        #[default]
        Unknown => "unknown",
        /// The server sent a running total with every event.
        UsageRunning => "usage_running",
        /// The server's total equals the number of token events, so each carries one.
        UsageTotal => "usage_total",
        /// Counted by a tokeniser after the run.
        Tokeniser => "tokeniser",
    }
}

impl TokensRule {
    /// The rule with this [`name`](TokensRule::name).
    pub fn from_name(name: &str) -> Option<TokensRule> {
        TokensRule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// Token counts as the server reported them. `None` = not reported, which is never zero.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Tokens {
    /// Tokens of the prompt, cached ones included.
    pub prompt: Option<u32>,
    /// Generated tokens, reasoning included. Also `None` where the server's count and its events contradict each other: see `claimed`.
    pub output: Option<u32>,
    /// Generated tokens of the reasoning part.
    pub reasoning: Option<u32>,
    /// Prompt tokens the server took from a cache.
    pub cached: Option<u32>,
    /// How the tokens per event are known.
    pub rule: TokensRule,
    /// The server's count of generated tokens that the events of its answer contradict; `None` where nothing does.
    #[serde(default)]
    pub claimed: Option<u32>,
}

impl Tokens {
    /// Generated tokens that came between the first and the last of these events. Reasoning that is counted and of which no event
    /// came lies before them.
    pub fn streamed(&self, events: &[Event]) -> Option<u32> {
        let is_shown = events.is_empty() || events.iter().any(|event| event.kind == EventKind::Reasoning);
        let hidden = if is_shown { 0 } else { self.reasoning.unwrap_or(0) };
        Some(self.output?.saturating_sub(hidden))
    }
}

crate::named! {
    /// An answer that arrived whole and is still wrong.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Broken {
        /// Nothing was generated.
        Empty => "empty",
        /// The same piece over and over.
        Repeated => "repeated",
        /// Ended by the server before the asked length, though the end was pinned; or of a sound that was sent only a part was heard.
        CutShort => "cut_short",
        /// Longer than asked.
        TooLong => "too_long",
        /// Not as many results as documents were sent.
        WrongCount => "wrong_count",
    }
}

impl Broken {
    /// The case with this [`name`](Broken::name).
    pub fn from_name(name: &str) -> Option<Broken> {
        Broken::ALL.into_iter().find(|broken| broken.name() == name)
    }
}

/// What came back, beyond its times.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// HTTP status, once a head arrived.
    pub status: Option<u16>,
    /// The server's reason for ending: `stop`, `length`, `tool_calls`, …
    pub finish_reason: Option<String>,
    pub tokens: Tokens,
    /// Set when the answer is whole and still wrong.
    pub broken: Option<Broken>,
    /// The server's wish, from `Retry-After`.
    pub retry_after: Option<Span>,
    /// What the server or the client said went wrong; bounded in length, free of secrets.
    pub error: Option<String>,
    /// Which replica answered, if it says.
    pub replica: Option<String>,
    /// Times the server reports of its own stages.
    pub stages: Vec<ServerStage>,
    /// The answer's text, kept only when the user asked for it.
    pub text: Option<String>,
}

/// A time that the server says one of its stages took.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerStage {
    /// `queue`, `prefill` or `decode` for what servers call these (and their synonyms: a prompt's time, a completion's), else
    /// the server's own name of the stage.
    pub name: String,
    pub took: Span,
}

/// How the error of an attempt begins whose kept connection ended without a byte of an answer.
pub const KEPT_CONNECTION: &str = "kept connection";

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// The arrival's number in the schedule of its level; equal schedules pair by it.
    pub request: u64,
    /// 0 for the first try.
    pub attempt: u16,
    /// Number of the [`crate::Level`] it belongs to.
    pub level: u32,
    /// The session it is a turn of, if any.
    pub session: Option<u64>,
    /// Turn in the session, from 0.
    pub turn: u16,
    /// Turns that its session was to have; 0 = unknown, or it is of none.
    pub turns: u16,
    /// Index of the request class in the scenario.
    pub class: u16,
    /// Number of the endpoint that it went to: 0 = the scenario's `target.url`, then its `further_urls`.
    #[serde(default)]
    pub target: u16,

    /// When the request was to be sent (closed loop: when it was sent, less the wait for a connection). A retry keeps its request's due time.
    pub due: At,
    /// When its bytes were handed to the kernel.
    pub sent: Option<At>,
    /// When its connection stood; before `sent` when the connection was kept.
    pub connected: Option<At>,
    /// First byte of the answer's head.
    pub first_byte: Option<At>,
    pub first_token: Option<At>,
    /// First visible (non-reasoning) token.
    pub first_visible: Option<At>,
    pub last_token: Option<At>,
    /// Last byte of the answer, or the moment it failed.
    pub end: Option<At>,
    /// Every event, in order of arrival.
    pub events: Vec<Event>,
    /// True when the stamps are the kernel's.
    pub kernel_stamps: bool,

    /// Prompt tokens the scenario asked for.
    pub asked_prompt: u32,
    /// Of these, tokens that an earlier turn of its session, which it comes after, has sent; `None` = unknown, or it is of no session.
    pub resent: Option<u32>,
    /// Output tokens the scenario asked for.
    pub asked_output: u32,
    /// Keyed hashes of the prompt's blocks, parent-chained: equal hash = equal block after an equal prefix.
    pub prompt_blocks: Vec<u64>,

    /// Pictures and sounds that it carries.
    #[serde(default)]
    pub media: MediaCounts,
    /// Bytes of the request, head included.
    pub bytes_out: u64,
    /// Bytes of the answer, head included.
    pub bytes_in: u64,
    /// Number of the connection within the run.
    pub connection: Option<u32>,
    /// Had the connection carried a request before?
    pub reused: bool,
    /// What the kernel knows of the connection.
    #[serde(default)]
    pub tcp: TcpFacts,

    pub outcome: Outcome,
    pub answer: Answer,
}

impl Attempt {
    /// Moves all its instants by so much.
    pub fn shift(&mut self, by: Span) {
        self.due += by;
        let instants = [
            &mut self.sent,
            &mut self.connected,
            &mut self.first_byte,
            &mut self.first_token,
            &mut self.first_visible,
            &mut self.last_token,
            &mut self.end,
        ];
        instants.into_iter().flatten().for_each(|at| *at += by);
    }

    /// An attempt in which nothing has happened yet: due, and never sent.
    pub fn new(request: u64, attempt: u16, level: u32, due: At) -> Attempt {
        Attempt {
            request,
            attempt,
            level,
            session: None,
            turn: 0,
            turns: 0,
            class: 0,
            target: 0,
            due,
            sent: None,
            connected: None,
            first_byte: None,
            first_token: None,
            first_visible: None,
            last_token: None,
            end: None,
            events: Vec::new(),
            kernel_stamps: false,
            asked_prompt: 0,
            resent: None,
            asked_output: 0,
            prompt_blocks: Vec::new(),
            media: MediaCounts::default(),
            bytes_out: 0,
            bytes_in: 0,
            connection: None,
            reused: false,
            tcp: TcpFacts::default(),
            outcome: Outcome::new(How::NeverSent, By::Client, false),
            answer: Answer::default(),
        }
    }
}
