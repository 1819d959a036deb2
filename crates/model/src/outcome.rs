//! Defines the outcome of an attempt: *result* × *cause* × *retryable*.
//!
//! An outcome is data and never an error type, because a load test exists to observe misbehaving servers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

crate::named! {
    /// Result of an attempt: finished, or an error class.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum How {
        /// Complete response. (It may still be wrong: see [`crate::Broken`].)
        Finished => "finished",
        /// Failed connection: refused, unreachable, name not found, TLS handshake failed.
        Refused => "refused",
        /// Connection reset or closed before the response began or, without streaming, before its end.
        Reset => "reset",
        /// Time-out of the client's policy.
        Timeout => "timeout",
        /// Rejection with 429 or 503: the server could not serve the request at that time.
        Shed => "shed",
        /// Another status of the class 4xx.
        ClientError => "client_error",
        /// Another status of the class 5xx.
        ServerError => "server_error",
        /// A redirect to another host, which is never followed, or a 3xx without a usable target.
        Redirected => "redirected",
        /// Stream that ended before its end marker.
        Truncated => "truncated",
        /// Bytes that violate the protocol: HTML, malformed JSON, an overlong line.
        Malformed => "malformed",
        /// Response with status 200 that contains an error (an event, an object, a finish reason) or no content.
        StreamError => "stream_error",
        /// Planned cancellation by the client, as configured in the scenario.
        Cancelled => "cancelled",
        /// Still in flight at the end of the run.
        Unfinished => "unfinished",
        /// Due, but not sent before the end of the run.
        NeverSent => "never_sent",
    }
}

impl How {
    /// Returns the case with this [`name`](How::name).
    pub fn from_name(name: &str) -> Option<How> {
        How::ALL.into_iter().find(|how| how.name() == name)
    }
}

crate::named! {
    /// Cause of the end, as seen by the client.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum By {
        /// The server, or a proxy that answers for it.
        Server => "server",
        /// The network: no connection, a reset.
        Network => "network",
        /// The client's policy: a time-out, a planned cancellation, the end of the run.
        Client => "client",
        /// The user, who stopped the run.
        User => "user",
    }
}

impl By {
    /// Returns the case with this [`name`](By::name).
    pub fn from_name(name: &str) -> Option<By> {
        By::ALL.into_iter().find(|by| by.name() == name)
    }
}

/// Outcome of an attempt: its result, cause, and whether a retry is harmless and may help.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Result of the attempt.
    pub how: How,
    /// Cause of the end: server, client, user or network.
    pub by: By,
    /// Set if the request may be retried.
    pub retryable: bool,
}

impl Outcome {
    pub const FINISHED: Outcome = Outcome { how: How::Finished, by: By::Server, retryable: false };

    pub const fn new(how: How, by: By, retryable: bool) -> Outcome {
        Outcome { how, by, retryable }
    }

    /// Returns whether a complete response arrived.
    pub fn is_finished(self) -> bool {
        self.how == How::Finished
    }
}
