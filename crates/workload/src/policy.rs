//! Configures the client's behaviour: connections, time-outs, retries, planned cancellations, and drain time.
//!
//! The behaviour is a variable of the experiment like the load, because real clients time out and retry. A server that is
//! stable without retries may fail with them. The defaults model a patient measuring instrument (no retries, long
//! time-outs) and not an SDK.

use std::fmt;

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::{How, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{SpanText, format_span, parse_span, span_text, span_text_opt};
use crate::{SpecError, as_text};

/// Client behaviour: connections, time limits, retries, cancellations and drain.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientSpec {
    /// Policy for opening and reusing connections.
    pub connections: Connections,
    /// Time limits of one attempt of a request.
    pub timeouts: Timeouts,
    /// Policy for retries of failed attempts.
    pub retries: RetrySpec,
    /// Cancellations by the client that the scenario plans.
    pub cancel: CancelSpec,
    /// Longest wait for requests in flight at the end of a level; default 60s.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub drain: Span,
    /// Most requests in flight in open mode; default: no ceiling. A level that reaches it is reported as "closed from t=…".
    pub max_in_flight: Option<u32>,
    /// Longest wait of a rejected user (429, 503) for the time in `Retry-After`, in a closed loop; default 60s. `null`
    /// ignores the header and sends the next request immediately.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub retry_after_max: Option<Span>,
    /// Request to the target's host before each level, warm-up included, such as `POST /reset_prefix_cache`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_level: Option<String>,
}

impl Default for ClientSpec {
    fn default() -> ClientSpec {
        ClientSpec {
            connections: Connections::default(),
            timeouts: Timeouts::default(),
            retries: RetrySpec::default(),
            cancel: CancelSpec::default(),
            drain: Span::from_secs(60),
            max_in_flight: None,
            retry_after_max: Some(Span::from_secs(60)),
            before_level: None,
        }
    }
}

/// Policy for opening and reusing connections.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
pub enum Connections {
    /// Kept connections without a limit, opened before the load.
    #[default]
    Prewarmed,
    /// A new connection for every attempt.
    Fresh,
    /// A limited number of kept connections. A request without a free connection waits, which adds to its latency.
    Pool {
        /// Maximum number of simultaneously open connections.
        limit: u32,
    },
}

/// Time limits of an attempt. All but `idle` count from the start of the attempt.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// Limit for the connection, TLS included; default 10s.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub connect: Span,
    /// Limit for the first generated token; default: only `total` applies.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub first_token: Option<Span>,
    /// Limit for the last byte; default 600s.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub total: Span,
    /// Limit for a pause between two reads of a response that has begun; default: only `total` applies.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub idle: Option<Span>,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { connect: Span::from_secs(10), first_token: None, total: Span::from_secs(600), idle: None }
    }
}

/// Retry policy: exponential backoff, and never earlier than `Retry-After`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetrySpec {
    /// Most retries of a request; default 0.
    pub max: u16,
    /// Backoff before the first retry, doubled for each further one; default 500ms.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub base: Span,
    /// Longest backoff before a retry; default 8s.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub cap: Span,
    /// Randomisation of the backoff; default `full`.
    pub jitter: Jitter,
    /// Failures that are retried, if the outcome is retryable.
    pub on: Vec<RetryOn>,
}

impl Default for RetrySpec {
    fn default() -> RetrySpec {
        RetrySpec {
            max: 0,
            base: Span::from_millis(500),
            cap: Span::from_secs(8),
            jitter: Jitter::Full,
            on: vec![RetryOn::Refused, RetryOn::Reset, RetryOn::Timeout, RetryOn::Shed, RetryOn::ServerError],
        }
    }
}

/// Randomisation of a backoff, so that requests that failed together do not return together.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Uniform between zero and the backoff (Brooker, "Exponential Backoff and Jitter", 2015).
    #[default]
    Full,
    /// Half of the backoff fixed, the other half uniform.
    Equal,
    /// The exact backoff, without random jitter.
    None,
}

/// A failure that can be retried.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// The connection to the endpoint failed.
    Refused,
    /// The connection was reset before the response began.
    Reset,
    /// A time limit of this policy expired.
    Timeout,
    /// Status 429 or 503: the server sheds load.
    Shed,
    /// Another status of the class 5xx.
    ServerError,
    /// A stream ended before its end marker.
    Truncated,
    /// A stream contained an error event.
    StreamError,
}

impl RetryOn {
    fn covers(self, how: How) -> bool {
        matches!(
            (self, how),
            (RetryOn::Refused, How::Refused)
                | (RetryOn::Reset, How::Reset)
                | (RetryOn::Timeout, How::Timeout)
                | (RetryOn::Shed, How::Shed)
                | (RetryOn::ServerError, How::ServerError)
                | (RetryOn::Truncated, How::Truncated)
                | (RetryOn::StreamError, How::StreamError)
        )
    }
}

impl RetrySpec {
    /// Returns whether this outcome is retried while attempts remain.
    pub fn covers(&self, how: How) -> bool {
        self.on.iter().any(|on| on.covers(how))
    }

    /// Returns the wait before attempt `attempt` (1 = the first retry): the jittered backoff, or a longer `Retry-After`.
    pub fn wait(&self, attempt: u16, seed: u64, request: u64, retry_after: Option<Span>) -> Span {
        let doublings = u32::from(attempt.saturating_sub(1)).min(40);
        let backoff = self.base.0.saturating_mul(1i64 << doublings).min(self.cap.0).max(0) as f64;
        let mut stream = Stream::new(seed, &format!("retry {attempt}"), request);
        let spread = match self.jitter {
            Jitter::Full => dist::uniform(&mut stream, 0.0, backoff),
            Jitter::Equal => dist::uniform(&mut stream, backoff / 2.0, backoff),
            Jitter::None => backoff,
        };
        Span(spread.round() as i64).max(retry_after.unwrap_or(Span::ZERO))
    }
}

/// Planned cancellations: a share of the requests whose client leaves before the end.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CancelSpec {
    /// Share of the requests, 0 to 1; default 0.
    pub share: f64,
    /// Time of the cancellation: a span from sending (`2s`) or a share of the requested output (`50%`); default `50%`.
    pub after: CancelAfter,
}

impl Default for CancelSpec {
    fn default() -> CancelSpec {
        CancelSpec { share: 0.0, after: CancelAfter::Share(0.5) }
    }
}

/// The time of a planned cancellation.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum CancelAfter {
    /// Time from the start of the attempt.
    Span(Span),
    /// Share of the requested output tokens (at least one token).
    Share(f64),
}

const CANCEL_WANT: &str = "a span such as 2s, or a share of the answer between 0% and 100%";

impl CancelAfter {
    /// Parses `2s` or `50%`.
    ///
    /// # Errors
    /// Fails with [`SpecError::Value`] for other text.
    pub fn parse(text: &str) -> Result<CancelAfter, SpecError> {
        let bad = |_| SpecError::value("", text, CANCEL_WANT);
        match text.trim().strip_suffix('%') {
            None => parse_span(text).map(CancelAfter::Span).map_err(bad),
            Some(number) => match number.trim().parse::<f64>() {
                Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(CancelAfter::Share(percent / 100.0)),
                _ => Err(SpecError::value("", text, CANCEL_WANT)),
            },
        }
    }
}

impl fmt::Display for CancelAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CancelAfter::Span(span) => f.write_str(&format_span(*span)),
            CancelAfter::Share(share) => write!(f, "{}%", share * 100.0),
        }
    }
}

as_text!(CancelAfter, "string", "cancel", CANCEL_WANT, ["2s", "50%"]);

impl ClientSpec {
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        let positive = |span: Span, path: &str| match span.0 > 0 {
            true => Ok(()),
            false => Err(SpecError::value(path, format_span(span), "a span above 0")),
        };
        positive(self.timeouts.connect, "timeouts.connect")?;
        positive(self.timeouts.total, "timeouts.total")?;
        self.timeouts.first_token.map_or(Ok(()), |s| positive(s, "timeouts.first_token"))?;
        self.timeouts.idle.map_or(Ok(()), |s| positive(s, "timeouts.idle"))?;
        if !(0.0..=1.0).contains(&self.cancel.share) {
            return Err(SpecError::value("cancel.share", self.cancel.share, "a share between 0 and 1"));
        }
        self.retry_after_max.map_or(Ok(()), |s| positive(s, "retry_after_max"))?;
        if self.max_in_flight == Some(0) {
            return Err(SpecError::value("max_in_flight", 0, "a ceiling of at least 1"));
        }
        if self.connections == (Connections::Pool { limit: 0 }) {
            return Err(SpecError::value("connections.limit", 0, "a limit of at least 1"));
        }
        if self.retries.max > 0 && self.retries.cap < self.retries.base {
            return Err(SpecError::value(
                "retries.cap",
                format_span(self.retries.cap),
                "at least retries.base",
            ));
        }
        Ok(())
    }
}
