//! How an attempt ended: *how* × *by whom* × *may it be tried again*.
//!
//! An outcome is data, never an error type: a server that misbehaves is what a load test came to see.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

crate::named! {
    /// What happened to an attempt in the end.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum How {
        /// A whole answer arrived. (It may still be a broken one: see [`crate::Broken`].)
        Finished => "finished",
        /// No connection could be made: refused, unreachable, name not found, TLS handshake failed.
        Refused => "refused",
        /// The connection was reset or closed before the answer had begun or, when not streaming, had ended.
        Reset => "reset",
        /// A time-out of the client's policy fired.
        Timeout => "timeout",
        /// 429 or 503: the server said that it would not serve this now.
        Shed => "shed",
        /// Another 4xx.
        ClientError => "client_error",
        /// Another 5xx.
        ServerError => "server_error",
        /// A redirect to another host, which is never followed, or a 3xx that leads nowhere.
        Redirected => "redirected",
        /// A stream that ended before its end.
        Truncated => "truncated",
        /// Bytes that are not what the protocol promises: HTML, broken JSON, a line past its bound.
        Malformed => "malformed",
        /// An answer of status 200 that reports an error (an event, an object, a finish reason) or in which nothing is.
        StreamError => "stream_error",
        /// Given up on purpose by the client's policy (a reader who left), as the scenario asked.
        Cancelled => "cancelled",
        /// Still in flight when the run stopped waiting.
        Unfinished => "unfinished",
        /// Due, but the run ended before it could be sent.
        NeverSent => "never_sent",
    }
}

impl How {
    /// The case with this [`name`](How::name).
    pub fn from_name(name: &str) -> Option<How> {
        How::ALL.into_iter().find(|how| how.name() == name)
    }
}

crate::named! {
    /// Whose doing the end was, as far as the client can see.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum By {
        /// The server, or something that answers in its name.
        Server => "server",
        /// The path between: no connection, a reset.
        Network => "network",
        /// The client's own policy: a time-out, a planned cancellation, the end of the run.
        Client => "client",
        /// The person at the keyboard.
        User => "user",
    }
}

impl By {
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
