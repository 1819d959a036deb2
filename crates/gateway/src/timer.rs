//! Conversion from the gateway's clock to timers of the runtime.

use plimsoll_model::Span;

/// Returns the instant that is `span` from now. Timers are up to 1 ms late, which no limit here depends on.
pub fn soon(span: Span) -> tokio::time::Instant {
    tokio::time::Instant::now() + span.as_duration()
}
