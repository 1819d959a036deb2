//! The flags of `plimsoll plan`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{FitArgs, OutputFormat, WorkloadArgs};

/// `plimsoll plan`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanArgs {
    /// Action on an existing plan.
    #[command(subcommand)]
    pub action: Option<PlanAction>,
    #[command(flatten)]
    pub load: PlanLoadArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub promise: PromiseArgs,
    #[command(flatten)]
    pub fleet: PlanFleetArgs,
    #[command(flatten)]
    pub target: FitArgs,
    #[command(flatten)]
    pub envelope: EnvelopeArgs,
    #[command(flatten)]
    pub effort: PlanEffortArgs,
    #[command(flatten)]
    pub search: PlanSearchArgs,
    #[command(flatten)]
    pub output: PlanOutputArgs,
}

/// An action on an existing plan.
#[derive(Subcommand, Debug)]
pub enum PlanAction {
    /// Compare the predictions of a plan with a later run
    Verify(PlanVerifyArgs),
}

/// The planned load.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanLoadArgs {
    /// Run folder that supplies load, lengths and engine (fitted, if measured)
    #[arg(long, value_name = "RUN", value_parser = crate::named::run, help_heading = "Load")]
    pub from: Option<PathBuf>,
    /// Level of the run [default: the only one; in a sweep nearest to the budget limit or onset]
    #[arg(long, value_name = "N", requires = "from", help_heading = "Load")]
    pub level: Option<u32>,
    /// Mean arrivals per second (50/s, 600/m) [default: of the run or trace]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true, help_heading = "Load")]
    pub rate: Option<String>,
    /// Arrival process: poisson, gamma:CV, onoff:ON,OFF, diurnal:RATIO, … [default: poisson]
    #[arg(long, value_name = "PROCESS", conflicts_with = "trace", help_heading = "Load")]
    pub arrivals: Option<String>,
    /// Duration of one simulation [default: 30 000 requests, 1m to 5m; a trace: its length]
    #[arg(long = "for", value_name = "TIME", help_heading = "Load")]
    pub window: Option<String>,
}

/// The promise and the reserve.
#[derive(Args, Debug, Clone, Default)]
pub struct PromiseArgs {
    /// Latency limit, repeatable or with commas: "ttft p99 < 500ms, tpot p95 < 30ms"; or a budget file
    #[arg(long = "slo", value_name = "CEILING|FILE", value_delimiter = ',', help_heading = "Promise")]
    pub slo: Vec<String>,
    /// Peak load as a multiple of the mean: 2x [default: 1x]
    #[arg(long, value_name = "FACTOR", help_heading = "Promise")]
    pub peak: Option<String>,
    /// Highest utilisation at the peak: offered ÷ stability limit, 0.8 or 80% [default: 0.8]
    #[arg(long, value_name = "SHARE", help_heading = "Promise")]
    pub utilisation: Option<String>,
    /// Replicas that may fail at the peak (N+1: 1) [default: 0]
    #[arg(long, value_name = "N", help_heading = "Promise")]
    pub spare: Option<u32>,
    /// Number of failure domains; from 2 on, one may fail [default: 1]
    #[arg(long, value_name = "N", help_heading = "Promise")]
    pub domains: Option<u32>,
}

/// The fleet and its cost.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanFleetArgs {
    /// Engine of a replica: a profile (list: plimsoll engine --list) or a YAML file
    #[arg(long, value_name = "NAME|FILE", help_heading = "Fleet")]
    pub profile: Option<String>,
    /// Routing policy: round_robin, random, least_requests, prefix, … [default: round_robin]
    #[arg(long, value_name = "ROUTE", help_heading = "Fleet")]
    pub route: Option<String>,
    /// Autoscaler to compare: keda:target=4[,min=1,max=20] (waiting requests)
    #[arg(long, value_name = "POLICY", help_heading = "Fleet")]
    pub autoscale: Option<String>,
    /// Start time of a replica [default: 70s and the weights at 2 GB/s]
    #[arg(long, value_name = "TIME", help_heading = "Fleet")]
    pub cold_start: Option<String>,
    /// LoRA adapters, as in plimsoll simulate
    #[arg(long, value_name = "ADAPTERS", help_heading = "Fleet")]
    pub adapters: Option<String>,
    /// Fault, repeatable, as in plimsoll simulate
    #[arg(long = "fault", value_name = "FAULT", help_heading = "Fleet")]
    pub faults: Vec<String>,
    /// GPUs per replica [default: the engine's tensor parallelism]
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    pub gpus_per_replica: Option<u32>,
    /// Price: 2.49USD/gpu-hour, 9.9USD/replica-hour, 0.5,1.5USD/Mtok (input,output), or a price file
    #[arg(long, value_name = "PRICE|FILE", help_heading = "Fleet")]
    pub price: Option<String>,
}

/// A plan from four figures.
#[derive(Args, Debug, Clone, Default)]
pub struct EnvelopeArgs {
    /// Request time; with --slots a plan without an engine
    #[arg(long, value_name = "TIME", requires = "slots", help_heading = "Envelope")]
    pub latency: Option<String>,
}

/// The extent of the simulation.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanEffortArgs {
    /// Time limit of planning [default: 1m]
    #[arg(long, value_name = "TIME", help_heading = "Effort")]
    pub time: Option<String>,
    /// Simulated schedules per number of replicas, at least 5 [default: 5, more near the limit]
    #[arg(long, value_name = "N", help_heading = "Effort")]
    pub seeds: Option<u32>,
    /// File of past prediction errors (from plimsoll plan verify), for the probability that the plan holds
    #[arg(long, value_name = "FILE", help_heading = "Effort")]
    pub band: Option<PathBuf>,
}

/// The search for cheaper fleets.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanSearchArgs {
    /// Search for a cheaper configuration
    #[arg(long, help_heading = "Search")]
    pub search: bool,
    /// Variable, repeatable: gpu=h100,a100; tp=1,2,4; max_seqs=…; token_budget=…; chunking=on,off; prefix_cache=on,off; max_batch=…; delay_us=…; route=… [default: those of this engine, and --autoscale]
    #[arg(long, value_name = "KEY=VALUES", requires = "search", help_heading = "Search")]
    pub vary: Vec<String>,
    /// Price of another GPU, repeatable: a100=1.60USD/gpu-hour
    #[arg(long, value_name = "GPU=PRICE", requires = "search", help_heading = "Search")]
    pub price_of: Vec<String>,
}

/// Output of a plan.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanOutputArgs {
    /// Plan file to create (JSON), for plimsoll plan verify
    #[arg(long, short = 'o', value_name = "FILE", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// HTML file of the plan
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: OutputFormat,
    /// Suppress progress messages
    #[arg(long, short = 'q', help_heading = "Output")]
    pub quiet: bool,
}

/// `plimsoll plan verify`
#[derive(Args, Debug)]
pub struct PlanVerifyArgs {
    /// Plan file, or predictions of plimsoll what-if -o
    pub plan: PathBuf,
    /// Run folder of the later measurement
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    /// Level of the run [default: the only one; in a sweep nearest to the planned load per replica]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Change that happened: "rate 2x" [default: the one closest to the run]
    #[arg(long, value_name = "CHANGE")]
    pub what_if: Option<String>,
    /// Number of replicas of the run [default: from the run]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u32>,
    /// File of prediction errors to create or extend, for plimsoll plan --band
    #[arg(long, value_name = "FILE")]
    pub band: Option<PathBuf>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
