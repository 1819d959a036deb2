//! The times that an engine tells of its own stages, as vLLM does with `--enable-per-request-metrics`.
//!
//! An object `metrics` at the top of a whole answer, or of the chunk of a stream that holds the usage. vLLM counts "time to
//! first token" from when the request was *scheduled*, so that its two spans and the queue before them add up. A header
//! `Server-Timing` lost: a stream's head has left long before its stages are over.

use plimsoll_model::Span;

/// What an engine tells of an answer beside the answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportedTimings {
    /// How long its stages took, where the engine has them.
    pub timing: Option<Timing>,
    /// Tokens of its prompt that a cache held, where the engine knows (vLLM: `--enable-prompt-tokens-details`).
    pub cached: Option<u32>,
}

/// The stages of one answer, and the tokens that were generated in the last of them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Timing {
    /// From its coming to the engine until it was scheduled.
    pub queue: Span,
    /// From then until its prompt was computed, which gives the first token.
    pub prefill: Span,
    /// From the first token to the last.
    pub decode: Span,
    pub tokens: u32,
}

impl Timing {
    /// The object, written by vLLM's formulas. What can't be said (a gap between tokens where there is one token) is left
    /// out: so it is in vLLM's streams, and in its whole answers it is null, which reads the same.
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
