//! How an attempt ended: *how* × *by whom* × *may it be tried again*.
//!
//! An outcome is data, never an error type: a server that misbehaves is what a load test came to see.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happened to an attempt in the end.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// A whole answer arrived. (It may still be a broken one: see [`crate::Broken`].)
    Finished,
    /// No connection could be made: refused, unreachable, name not found, TLS handshake failed.
    Refused,
    /// The connection was reset or closed before the answer had begun or, when not streaming, had ended.
    Reset,
    /// A time-out of the client's policy fired.
    Timeout,
    /// 429 or 503: the server said that it would not serve this now.
    Shed,
    /// Another 4xx.
    ClientError,
    /// Another 5xx.
    ServerError,
    /// A redirect to another host, which is never followed, or a 3xx that leads nowhere.
    Redirected,
    /// A stream that ended before its end.
    Truncated,
    /// Bytes that are not what the protocol promises: HTML, broken JSON, a line past its bound.
    Malformed,
    /// An error event inside a stream whose status was 200.
    StreamError,
    /// Given up on purpose by the client's policy (a reader who left), as the scenario asked.
    Cancelled,
    /// Still in flight when the run stopped waiting.
    Unfinished,
    /// Due, but the run ended before it could be sent.
    NeverSent,
}

impl How {
    /// Every case, in the order in which tables list them.
    pub const ALL: [How; 14] = [
        How::Finished,
        How::Refused,
        How::Reset,
        How::Timeout,
        How::Shed,
        How::ClientError,
        How::ServerError,
        How::Redirected,
        How::Truncated,
        How::Malformed,
        How::StreamError,
        How::Cancelled,
        How::Unfinished,
        How::NeverSent,
    ];

    /// The name used in files and on the screen.
    pub fn name(self) -> &'static str {
        match self {
            How::Finished => "finished",
            How::Refused => "refused",
            How::Reset => "reset",
            How::Timeout => "timeout",
            How::Shed => "shed",
            How::ClientError => "client_error",
            How::ServerError => "server_error",
            How::Redirected => "redirected",
            How::Truncated => "truncated",
            How::Malformed => "malformed",
            How::StreamError => "stream_error",
            How::Cancelled => "cancelled",
            How::Unfinished => "unfinished",
            How::NeverSent => "never_sent",
        }
    }

    /// The case with this [`name`](How::name).
    pub fn from_name(name: &str) -> Option<How> {
        How::ALL.into_iter().find(|how| how.name() == name)
    }
}

/// Whose doing the end was, as far as the client can see.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The server, or something that answers in its name.
    Server,
    /// The path between: no connection, a reset.
    Network,
    /// The client's own policy: a time-out, a planned cancellation, the end of the run.
    Client,
    /// The person at the keyboard.
    User,
}

impl By {
    /// Every case.
    pub const ALL: [By; 4] = [By::Server, By::Network, By::Client, By::User];

    /// The name used in files and on the screen.
    pub fn name(self) -> &'static str {
        match self {
            By::Server => "server",
            By::Network => "network",
            By::Client => "client",
            By::User => "user",
        }
    }

    /// The case with this [`name`](By::name).
    pub fn from_name(name: &str) -> Option<By> {
        By::ALL.into_iter().find(|by| by.name() == name)
    }
}

/// How an attempt ended, by whom, and whether trying again is harmless and may help.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// What happened.
    pub how: How,
    /// Whose doing it was.
    pub by: By,
    /// May the same request be tried again?
    pub retryable: bool,
}

impl Outcome {
    /// A whole answer.
    pub const FINISHED: Outcome = Outcome { how: How::Finished, by: By::Server, retryable: false };

    /// An outcome in full.
    pub const fn new(how: How, by: By, retryable: bool) -> Outcome {
        Outcome { how, by, retryable }
    }

    /// Did a whole answer arrive?
    pub fn is_finished(self) -> bool {
        self.how == How::Finished
    }
}
