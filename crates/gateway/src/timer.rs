//! Instants of the gateway's clock as the runtime's timers count them.

use plimsoll_model::Span;

/// This long from now, as the runtime's timers count. They are late by a millisecond, which no limit here minds.
pub fn soon(span: Span) -> tokio::time::Instant {
    tokio::time::Instant::now() + span.as_duration()
}
