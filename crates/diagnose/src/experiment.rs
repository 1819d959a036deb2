//! Experiments that distinguish causes: the cheapest next experiment as a value that active diagnosis can run. Plain
//! sentences were rejected, because the code that runs the experiments would have to parse them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An experiment that is recommended as the next step.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum NextExperiment {
    /// Requests in sequence, without concurrent requests.
    SingleRequests {
        /// Number of requests in the experiment.
        requests: u32,
    },
    /// Closed-loop levels with rising numbers of requests in flight.
    ConcurrencySteps {
        /// Number of requests in flight, per level.
        at: [u32; 4],
    },
    /// The traffic of the run at another rate.
    ScaleLoad {
        /// Load as a multiple of the measured rate.
        factor: f64,
    },
    /// A new connection for each request, then reused connections.
    FreshAgainstKept {
        /// Number of requests of each kind.
        requests: u32,
    },
    /// Twice the size of the client's pool and of the limit in front of the engine.
    PoolTwice,
    /// Short prompts, then long prompts, both isolated and under concurrency.
    PromptLengths,
    /// One repeated prompt, then distinct prompts.
    RepeatPrompts {
        /// Number of requests of each kind.
        requests: u32,
    },
    /// An idle period, then requests again.
    IdleGap {
        /// Length of the idle period in s.
        idle_s: f64,
    },
    /// Requests that go to one replica only.
    OneReplica,
    /// Evenly spaced arrivals at an equal rate.
    EvenArrivals,
    /// The baseline's requests, one by one (`plimsoll rerun`).
    ReplayBaseline,
    /// The run with a longer duration.
    RunLonger {
        /// Duration as a multiple of the measured duration.
        factor: f64,
    },
    /// An equal rate from two load generators.
    SecondGenerator,
    /// An equal rate in an open loop.
    OpenLoop,
    /// The measured load again, without retries.
    WithoutRetries,
    /// Tracing on and off in turns.
    TracingOff,
    /// Traces of every request, or at least of the slow ones.
    TraceAll,
    /// Client and server on one clock.
    OneClock,
    /// Requests directly to the engine, without its proxy.
    PastTheProxy,
    /// The run with scrapes of the server's metrics.
    Scrape,
    /// A run of the earlier state, for comparison.
    Baseline,
    /// A profile of the engine during the load.
    Profile,
}

impl NextExperiment {
    /// Returns a short description of the experiment.
    pub fn words(&self) -> String {
        match self {
            NextExperiment::SingleRequests { requests } => {
                format!("send {requests} requests one at a time")
            }
            NextExperiment::ConcurrencySteps { at } => {
                let at: Vec<String> = at.iter().map(u32::to_string).collect();
                format!("keep {} requests in flight, in turn", at.join(", "))
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
            NextExperiment::EvenArrivals => "send the same rate with even gaps".into(),
            NextExperiment::ReplayBaseline => "send the baseline's requests again, one by one".into(),
            NextExperiment::RunLonger { factor } => format!("run the same load {factor} times as long"),
            NextExperiment::SecondGenerator => "send the same rate from two generators".into(),
            NextExperiment::OpenLoop => "send the same rate open loop".into(),
            NextExperiment::WithoutRetries => "send the same load without retries".into(),
            NextExperiment::TracingOff => "turn tracing off and on in turns".into(),
            NextExperiment::TraceAll => {
                "trace every request, or at least the slow ones (tail sampling)".into()
            }
            NextExperiment::OneClock => "measure both ends on one clock".into(),
            NextExperiment::PastTheProxy => {
                "send the same requests to the engine directly, past the proxies".into()
            }
            NextExperiment::Scrape => {
                "repeat the run with --scrape, which records the server's metrics".into()
            }
            NextExperiment::Baseline => {
                "measure the state before the change, and give it as --baseline".into()
            }
            NextExperiment::Profile => "profile the engine under this load".into(),
        }
    }
}
