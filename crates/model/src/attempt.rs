//! Defines one attempt of a request: the row that all metrics are computed from.
//!
//! Each arrival has exactly one record, with one row per attempt. A request that is never sent still has its row, and a
//! failed one keeps the timestamps that it reached. Timestamps are [`At`]s on the run's axis.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{At, By, How, MediaCounts, Outcome, Span, TcpFacts};

crate::named! {
    /// Type of a decoded event of a response.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[repr(u8)]
    pub enum EventKind {
        /// Visible generated text.
        Content = 0 => "content",
        /// Generated text of the reasoning part.
        Reasoning = 1 => "reasoning",
        /// Part of a tool call, which is generated too.
        ToolCall = 2 => "tool_call",
        /// The role of the message, without generated content.
        Role = 3 => "role",
        /// Event without content (empty delta, keep-alive comment).
        Empty = 4 => "empty",
        /// Reason for the end of generation, without text.
        Finish = 5 => "finish",
        /// Token counts only, without generated content.
        Usage = 6 => "usage",
        /// An error that the server sends inside the stream.
        Error = 7 => "error",
        /// End marker `[DONE]`.
        Done = 8 => "done",
        /// Whole body of a response without streaming.
        Body = 9 => "body",
    }
}

impl EventKind {
    /// Returns whether the event contains generated tokens. A whole body does not count, because its token times are
    /// unknown.
    pub fn is_token(self) -> bool {
        matches!(self, EventKind::Content | EventKind::Reasoning | EventKind::ToolCall)
    }

    /// Returns the kind that is stored as this number.
    pub fn from_u8(n: u8) -> Option<EventKind> {
        EventKind::ALL.get(n as usize).copied()
    }
}

/// One event of a response, on arrival. It has sixteen bytes, because long responses have thousands of events.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// Arrival relative to [`Attempt::sent`]: the kernel's receive stamp if there is one.
    pub offset: Span,
    /// User-space stamp minus kernel stamp in ns: the generator's own delay. Zero for a user-space stamp.
    pub user_delay_ns: u32,
    /// Tokens in this event; 0 = unknown.
    pub tokens: u16,
    pub kind: EventKind,
    /// Set if one read also contained a later event; `offset` is then an upper bound and not exact.
    pub coalesced: bool,
}

crate::named! {
    /// Source of the token count per event.
    #[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum TokensRule {
        /// Unknown; an event may contain any number of tokens.
        #[default]
        Unknown => "unknown",
        /// Running total that the server sent with every event.
        UsageRunning => "usage_running",
        /// Server's total, which equals the number of token events, so each has one.
        UsageTotal => "usage_total",
        /// Count by a tokeniser, after the run.
        Tokeniser => "tokeniser",
    }
}

impl TokensRule {
    /// Returns the rule with this [`name`](TokensRule::name).
    pub fn from_name(name: &str) -> Option<TokensRule> {
        TokensRule::ALL.into_iter().find(|rule| rule.name() == name)
    }
}

/// Token counts as reported by the server. `None` = not reported, which is never zero.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Tokens {
    /// Prompt tokens, including cached ones.
    pub prompt: Option<u32>,
    /// Generated tokens, including reasoning; `None` also if count and events contradict each other (see `claimed`).
    pub output: Option<u32>,
    /// Generated tokens of the reasoning part.
    pub reasoning: Option<u32>,
    /// Prompt tokens that the server read from a cache.
    pub cached: Option<u32>,
    /// Source of the token count per event.
    pub rule: TokensRule,
    /// Server's count of generated tokens if the events contradict it; otherwise `None`.
    #[serde(default)]
    pub claimed: Option<u32>,
}

impl Tokens {
    /// Returns the generated tokens between the first and the last event. Reasoning tokens without events are excluded,
    /// because they precede the first event.
    pub fn streamed(&self, events: &[Event]) -> Option<u32> {
        let is_shown = events.is_empty() || events.iter().any(|event| event.kind == EventKind::Reasoning);
        let hidden = if is_shown { 0 } else { self.reasoning.unwrap_or(0) };
        Some(self.output?.saturating_sub(hidden))
    }
}

crate::named! {
    /// Reason that a complete response is wrong.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Broken {
        /// Response without generated content.
        Empty => "empty",
        /// Endless repetition of one piece.
        Repeated => "repeated",
        /// End before the requested length although the end-of-sequence token was disabled, or transcription of only a part
        /// of the audio.
        CutShort => "cut_short",
        /// Output longer than requested.
        TooLong => "too_long",
        /// Number of results different from the number of documents.
        WrongCount => "wrong_count",
    }
}

impl Broken {
    /// Returns the case with this [`name`](Broken::name).
    pub fn from_name(name: &str) -> Option<Broken> {
        Broken::ALL.into_iter().find(|broken| broken.name() == name)
    }
}

/// The content of a response, except its times.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// HTTP status; `None` before a response head arrived.
    pub status: Option<u16>,
    /// Server's finish reason: `stop`, `length`, `tool_calls`, …
    pub finish_reason: Option<String>,
    pub tokens: Tokens,
    /// Reason that a complete response is wrong; otherwise `None`.
    pub broken: Option<Broken>,
    /// Delay that the server requested in `Retry-After`.
    pub retry_after: Option<Span>,
    /// Error message of the server or the client, bounded in length and without secrets.
    pub error: Option<String>,
    /// Replica that answered; `None` if the response does not name it.
    pub replica: Option<String>,
    /// Durations that the server reports for its stages.
    pub stages: Vec<ServerStage>,
    /// Text of the answer; `None` unless the user enabled recording.
    pub text: Option<String>,
}

/// The duration of one stage, as reported by the server.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerStage {
    /// Name of the stage: `queue`, `prefill` or `decode` for the servers' synonyms of these, otherwise the server's name.
    pub name: String,
    pub took: Span,
}

/// Prefix of the error of an attempt whose kept connection ended without a response byte.
pub const KEPT_CONNECTION: &str = "kept connection";

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// Arrival number in the schedule of the level; equal schedules are paired by it.
    pub request: u64,
    /// Attempt number; 0 for the first attempt.
    pub attempt: u16,
    pub level: u32,
    /// Session of the request; `None` without sessions.
    pub session: Option<u64>,
    /// Turn in the session, from 0.
    pub turn: u16,
    /// Planned turns of the session; 0 = unknown, or no session.
    pub turns: u16,
    /// Index of the request class in the scenario.
    pub class: u16,
    /// Endpoint number: 0 = the scenario's `target.url`, then its `further_urls`.
    #[serde(default)]
    pub target: u16,

    /// Due time of the request, which retries keep. In a closed loop it is the send time less the wait for a connection.
    pub due: At,
    /// Time at which the kernel received the request's bytes.
    pub sent: Option<At>,
    /// Time at which the connection was established; before `sent` for a kept connection.
    pub connected: Option<At>,
    /// First byte of the response head.
    pub first_byte: Option<At>,
    pub first_token: Option<At>,
    /// First visible (non-reasoning) token.
    pub first_visible: Option<At>,
    pub last_token: Option<At>,
    /// Last byte of the response, or time of the failure.
    pub end: Option<At>,
    /// Events in order of arrival.
    pub events: Vec<Event>,
    /// Set if all receive stamps come from the kernel.
    pub kernel_stamps: bool,

    /// Prompt tokens that the scenario requested.
    pub asked_prompt: u32,
    /// Prompt tokens that an earlier turn of the session has already sent; `None` = unknown, or no session.
    pub resent: Option<u32>,
    /// Output tokens that the scenario requested.
    pub asked_output: u32,
    /// Keyed hashes of the prompt's blocks, chained to the parent: equal hashes are equal blocks after an equal prefix.
    pub prompt_blocks: Vec<u64>,

    /// Images, audio and documents of the request.
    #[serde(default)]
    pub media: MediaCounts,
    /// Size of the request in bytes, head included.
    pub bytes_out: u64,
    /// Size of the response in bytes, head included.
    pub bytes_in: u64,
    /// Connection number within the run; `None` without a connection.
    pub connection: Option<u32>,
    /// Set if the connection had carried a request before.
    pub reused: bool,
    #[serde(default)]
    pub tcp: TcpFacts,

    pub outcome: Outcome,
    pub answer: Answer,
}

impl Attempt {
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

    /// Returns an attempt that is due but not sent.
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
