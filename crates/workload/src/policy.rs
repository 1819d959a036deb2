//! How the client behaves: connections, time-outs, retries, planned cancellations, and how long it drains.
//!
//! It is a variable of the experiment like the load itself: real callers time out and retry, and a server that is
//! fine without retries may fall over with them. The defaults are those of a patient measuring instrument (no
//! retries, long time-outs), not those of any SDK.

use std::fmt;

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::{How, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{SpanText, format_span, parse_span, span_text, span_text_opt};
use crate::{SpecError, as_text};

/// The client's behaviour.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientSpec {
    /// Where connections come from.
    pub connections: Connections,
    /// When the client gives up on an attempt.
    pub timeouts: Timeouts,
    /// Whether and when it tries again.
    pub retries: RetrySpec,
    /// Readers who leave half-way.
    pub cancel: CancelSpec,
    /// How long the end of a level waits for requests in flight.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub drain: Span,
    /// Most requests in flight in open mode; none = no ceiling. Reaching it makes the level "closed from t=…".
    pub max_in_flight: Option<u32>,
    /// Closed loop: a user who is turned away (429, 503) and told when to come back (`Retry-After`) waits so long, at most
    /// this; none = the wish is not heeded and the next request goes out at once.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub retry_after_max: Option<Span>,
    /// Sent to the target's host before each level, the warm-up too: `POST /reset_prefix_cache`.
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

/// Where connections come from.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
pub enum Connections {
    /// Kept open, opened ahead of the load, without a limit.
    #[default]
    Prewarmed,
    /// A new one for every attempt.
    Fresh,
    /// Kept open, at most so many; a request that finds none free waits, and its latency with it.
    Pool {
        /// Most connections.
        limit: u32,
    },
}

/// When the client gives up on an attempt. Each counts from the moment the attempt was begun, except `idle`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// To a connection, TLS included.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub connect: Span,
    /// To the first generated token; none = only `total` bounds it.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub first_token: Option<Span>,
    /// To the last byte.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub total: Span,
    /// Between two reads of an answer that has begun; none = only `total` bounds it.
    #[serde(with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub idle: Option<Span>,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts { connect: Span::from_secs(10), first_token: None, total: Span::from_secs(600), idle: None }
    }
}

/// Whether and when a failed attempt is tried again: exponential backoff, never earlier than `Retry-After` asks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetrySpec {
    /// Attempts after the first; 0 = never.
    pub max: u16,
    /// Backoff before the first retry; it doubles with each.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub base: Span,
    /// It doubles no further than this.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub cap: Span,
    /// How the backoff is spread.
    pub jitter: Jitter,
    /// Which ends are tried again (where the outcome says that it may help).
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

/// How a backoff is spread, so that those who failed together do not come back together.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// Uniform between nothing and the backoff (Brooker, "Exponential Backoff and Jitter", 2015).
    #[default]
    Full,
    /// Half of it fixed, half uniform.
    Equal,
    /// Not spread.
    None,
}

/// An end that may be tried again.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RetryOn {
    /// No connection.
    Refused,
    /// Reset before the answer had begun.
    Reset,
    /// A time-out of this policy.
    Timeout,
    /// 429 or 503.
    Shed,
    /// Another 5xx.
    ServerError,
    /// A stream that broke off.
    Truncated,
    /// An error event inside a stream.
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
    /// Is this end tried again, were there attempts left?
    pub fn covers(&self, how: How) -> bool {
        self.on.iter().any(|on| on.covers(how))
    }

    /// How long to wait before attempt `attempt` (1 = the first retry): the jittered backoff, or what the server
    /// asked for where that is longer.
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

/// Readers who leave half-way: a share of the requests is cancelled on purpose.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CancelSpec {
    /// Share of the requests, 0 to 1.
    pub share: f64,
    /// When: a span from sending (`2s`) or a share of the asked answer (`50%`).
    pub after: CancelAfter,
}

impl Default for CancelSpec {
    fn default() -> CancelSpec {
        CancelSpec { share: 0.0, after: CancelAfter::Share(0.5) }
    }
}

/// When a planned cancellation happens.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum CancelAfter {
    /// So long after the attempt was begun.
    Span(Span),
    /// After this share of the asked output tokens (at least one token).
    Share(f64),
}

const CANCEL_WANT: &str = "a span such as 2s, or a share of the answer between 0% and 100%";

impl CancelAfter {
    /// Reads `2s` or `50%`.
    ///
    /// # Errors
    /// [`SpecError::Value`] for anything else.
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
