//! The mean lengths of a load, from drawn requests or a trace.
//!
//! Prompt and output are counted jointly, because long prompts often have short outputs.

use plimsoll_model::Span;
use plimsoll_workload::Schedule;
use plimsoll_workload::chain::ExternalClasses;

use super::spec::{PlanError, PlanSpec};

/// The means over all requests of a load, in tokens (for an engine of whole batches, in rows).
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct Mix {
    /// Mean prompt, `E[I]`.
    pub prompt: f64,
    /// Mean output, `E[O]`.
    pub output: f64,
    /// Second moment of the output, `E[O²]`.
    pub output_squared: f64,
    /// Mean context of a decoding sequence: Σ O (I + O/2) / Σ O, which is I + `E[O²]/(2 E[O])` for independent lengths.
    pub context: f64,
}

/// Maximum number of requests of a mix.
const MOST: f64 = 40_000.0;

impl Mix {
    /// Returns the mix of pairs of prompt and output; `None` without requests.
    pub fn of(pairs: impl IntoIterator<Item = (u32, u32)>) -> Option<Mix> {
        let (mut sums, mut context, mut count) = (Mix::default(), 0.0, 0.0);
        for (prompt, output) in pairs {
            let (prompt, output) = (f64::from(prompt), f64::from(output));
            sums.prompt += prompt;
            sums.output += output;
            sums.output_squared += output * output;
            context += output * (prompt + output / 2.0);
            count += 1.0;
        }
        (count > 0.0).then(|| Mix {
            prompt: sums.prompt / count,
            output: sums.output / count,
            output_squared: sums.output_squared / count,
            context: if sums.output > 0.0 { context / sums.output } else { sums.prompt / count },
        })
    }

    /// Returns the mix of a plan's drawn load.
    ///
    /// # Errors
    /// Fails if the workload can't be drawn, or draws no request.
    pub fn draw(spec: &PlanSpec) -> Result<Mix, PlanError> {
        let traffic = &spec.traffic;
        let window_s = traffic.window_s.min(MOST / traffic.rate_per_s.max(f64::MIN_POSITIVE)).max(1e-3);
        let window = Span::from_secs_f64(window_s);
        let external = ExternalClasses::of(&traffic.scenario)?;
        let rate = traffic.rate_per_s / external.served();
        let schedule = Schedule::generate(&traffic.scenario, rate, window, 0)?;
        let served = schedule.arrivals.iter().filter(|arrival| external.latency(arrival).is_none());
        let pairs = served.map(|arrival| (arrival.prompt_tokens.max(1), arrival.output_tokens));
        Mix::of(pairs).ok_or_else(|| {
            PlanError::Setting(format!(
                "the load draws no request in {window_s:.4} s; give a higher rate or a longer window"
            ))
        })
    }
}
