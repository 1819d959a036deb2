//! The engine's stage times in an answer, as in vLLM with `--enable-per-request-metrics`.
//!
//! They are an object `metrics` at the top of a whole answer, or of the usage chunk of a stream. In vLLM, "time to
//! first token" starts when the request was *scheduled*, so that its two spans and the queue before them add up. A header
//! `Server-Timing` was rejected: the head of a stream is sent long before its stages end.

use plimsoll_model::Span;

/// Timings and cache use that an engine reports with an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportedTimings {
    /// Stage times; `None` if the engine has none.
    pub timing: Option<Timing>,
    /// Prompt tokens found in a cache; `None` if the engine does not know (vLLM: `--enable-prompt-tokens-details`).
    pub cached: Option<u32>,
}

/// The stages of one answer, and the tokens that were generated in the last of them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Time from arrival at the engine until the request was scheduled.
    pub queue: Span,
    /// Time from then until the prompt was computed, which gives the first token.
    pub prefill: Span,
    /// Time from the first token to the last.
    pub decode: Span,
    pub tokens: u32,
}

impl Timing {
    /// Returns the object, computed by vLLM's formulas.
    ///
    /// Undefined values (a gap between tokens for a single token) are left out, as in vLLM's streams. Whole answers of vLLM contain
    /// null instead, which is equivalent.
    pub fn json(&self) -> String {
        let ms = |span: Span| span.0 as f64 / 1e6;
        let mut out = format!(
            r#"{{"time_to_first_token_ms":{},"generation_time_ms":{},"queue_time_ms":{}"#,
            ms(self.prefill),
            ms(self.decode),
            ms(self.queue)
        );
        if self.tokens > 1 {
            out.push_str(&format!(r#","mean_itl_ms":{}"#, ms(self.decode) / f64::from(self.tokens - 1)));
        }
        let computed = self.prefill + self.decode;
        if computed > Span::ZERO {
            let per_second = f64::from(self.tokens) / computed.as_secs_f64();
            out.push_str(&format!(r#","tokens_per_second":{per_second}"#));
        }
        out.push('}');
        out
    }
}
