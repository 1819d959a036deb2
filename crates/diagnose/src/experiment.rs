//! Experiments that tell causes apart: what the cheapest next one is, as a value that active diagnosis can run.
//!
//! Sentences alone lost: whoever runs the experiments would have to read them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to do next to know more.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum NextExperiment {
    /// Requests one after the other, nobody beside them.
    SingleRequests {
        /// How many.
        requests: u32,
    },
    /// Closed-loop levels.
    ConcurrencySteps {
        /// Requests in flight, level by level.
        at: [u32; 4],
    },
    /// The same traffic at another rate.
    ScaleLoad {
        /// Times the measured rate.
        factor: f64,
    },
    /// A fresh connection for each request, then kept ones.
    FreshAgainstKept {
        /// Requests of each.
        requests: u32,
    },
    /// The client's pool, and the limit in front of the engine, twice as large.
    PoolTwice,
    /// Short prompts, then long ones, alone and beside others.
    PromptLengths,
    /// The same prompt again and again, then distinct ones.
    RepeatPrompts {
        /// Requests of each.
        requests: u32,
    },
    /// Nothing for a while, then requests.
    IdleGap {
        /// How long nothing is sent.
        idle_s: f64,
    },
    /// One replica alone.
    OneReplica,
    /// Arrivals at even distances at the same rate.
    EvenArrivals,
    /// The baseline's requests, one by one (`plimsoll rerun`).
    ReplayBaseline,
    /// The same for longer.
    RunLonger {
        /// Times as long.
        factor: f64,
    },
    /// The same rate from two generators.
    SecondGenerator,
    /// The same rate open loop.
    OpenLoop,
    /// Without retries.
    WithoutRetries,
    /// Tracing on and off in turns.
    TracingOff,
    /// Every request traced, or at least the slow ones.
    TraceAll,
    /// Both ends on one clock.
    OneClock,
    /// The same requests to the engine itself, past what stands in front of it.
    PastTheProxy,
    /// The same run with the server's metrics read beside it.
    Scrape,
    /// A run of the state before, to compare with.
    Baseline,
    /// A profile of the engine.
    Profile,
}

impl NextExperiment {
    /// What to do, in a few words.
    pub fn words(&self) -> String {
        match self {
            NextExperiment::SingleRequests { requests } => {
                format!("send {requests} requests one at a time")
            }
            NextExperiment::ConcurrencySteps { at } => {
                let at: Vec<String> = at.iter().map(u32::to_string).collect();
                format!("hold {} requests in flight in turn", at.join(", "))
            }
            NextExperiment::ScaleLoad { factor } => {
                format!("send the same traffic at {factor} times the rate")
            }
            NextExperiment::FreshAgainstKept { requests } => {
                format!("send {requests} requests on fresh connections and {requests} on kept ones")
            }
            NextExperiment::PoolTwice => {
                "make the pool (or the limit in front of the engine) twice as large".into()
            }
            NextExperiment::PromptLengths => {
                "send short prompts only, long ones only, and both together".into()
            }
            NextExperiment::RepeatPrompts { requests } => {
                format!("send {requests} requests with one prompt and {requests} with distinct ones")
            }
            NextExperiment::IdleGap { idle_s } => format!("send nothing for {idle_s} s, then requests"),
            NextExperiment::OneReplica => "send to one replica only, each in turn".into(),
            NextExperiment::EvenArrivals => "send the same rate at even distances".into(),
            NextExperiment::ReplayBaseline => "send the baseline's requests again, one by one".into(),
            NextExperiment::RunLonger { factor } => format!("run the same for {factor} times as long"),
            NextExperiment::SecondGenerator => "send the same rate from two generators".into(),
            NextExperiment::OpenLoop => "send the same rate open loop".into(),
            NextExperiment::WithoutRetries => "send the same without retries".into(),
            NextExperiment::TracingOff => "turn tracing off and on in turns".into(),
            NextExperiment::TraceAll => {
                "trace every request, or at least the slow ones (tail sampling)".into()
            }
            NextExperiment::OneClock => "measure both ends on one clock".into(),
            NextExperiment::PastTheProxy => "send the same to the engine itself, past the proxies".into(),
            NextExperiment::Scrape => {
                "run the same with the server's metrics read beside it (--scrape)".into()
            }
            NextExperiment::Baseline => {
                "measure the state before the change, and give it as --baseline".into()
            }
            NextExperiment::Profile => "profile the engine under this load".into(),
        }
    }
}
