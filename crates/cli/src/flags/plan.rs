//! The flags of `plimsoll plan`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{FitArgs, Format, WorkloadArgs};

/// `plimsoll plan`
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PlanArgs {
    /// What to do with a plan that was made.
    #[command(subcommand)]
    pub action: Option<PlanAction>,
    /// The load to be carried.
    #[command(flatten)]
    pub load: PlanLoadArgs,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// What is promised, and the rules.
    #[command(flatten)]
    pub promise: PromiseArgs,
    /// What carries it.
    #[command(flatten)]
    pub fleet: PlanFleetArgs,
    /// What no run at low load shows of what it was measured on.
    #[command(flatten)]
    pub target: FitArgs,
    /// The plan that takes four figures.
    #[command(flatten)]
    pub envelope: EnvelopeArgs,
    /// How much is simulated.
    #[command(flatten)]
    pub effort: PlanEffortArgs,
    /// What else is looked at.
    #[command(flatten)]
    pub search: PlanSearchArgs,
    /// Where it goes.
    #[command(flatten)]
    pub output: PlanOutputArgs,
}

/// What can be done with a plan that was made.
#[derive(Subcommand, Debug)]
pub enum PlanAction {
    /// Hold a plan's predictions against what a run then measured, and learn from the difference
    Verify(PlanVerifyArgs),
}

/// The load to be carried.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanLoadArgs {
    /// Run folder: load, lengths and engine as it had them (a simulated run: its world; a measured one: an engine fitted to it, or --profile)
    #[arg(long, value_name = "RUN", value_parser = crate::named::run, help_heading = "Load")]
    pub from: Option<PathBuf>,
    /// Level of that run whose load is planned for [default: its own; a sweep's nearest to its budget line or onset]
    #[arg(long, value_name = "N", requires = "from", help_heading = "Load")]
    pub level: Option<u32>,
    /// Mean arrivals per second (50/s, 600/m) [default: the run's or the trace's]
    #[arg(long, value_name = "RATE", allow_hyphen_values = true, help_heading = "Load")]
    pub rate: Option<String>,
    /// Arrival process, as plimsoll run takes it: poisson | gamma:CV | onoff:ON,OFF | diurnal:RATIO | … [default: poisson]
    #[arg(long, value_name = "PROCESS", conflicts_with = "trace", help_heading = "Load")]
    pub arrivals: Option<String>,
    /// How long arrivals fall in one simulation [default: 30 000 requests, 1m to 5m; a trace: its length]
    #[arg(long = "for", value_name = "TIME", help_heading = "Load")]
    pub window: Option<String>,
}

/// What is promised, and the rules of whoever runs it.
#[derive(Args, Debug, Clone, Default)]
pub struct PromiseArgs {
    /// A ceiling, repeatable or separated by commas: "ttft p99 < 500ms, tpot p95 < 30ms"; or a budget file
    #[arg(long = "slo", value_name = "CEILING|FILE", value_delimiter = ',', help_heading = "Promise")]
    pub slo: Vec<String>,
    /// The load planned for, as a multiple of the mean: 2x [default: 1x]
    #[arg(long, value_name = "FACTOR", help_heading = "Promise")]
    pub peak: Option<String>,
    /// The most that ρ = offered / stability limit may be at the peak: 0.8 or 80% [default: 0.8]. It multiplies with the peak: mean 50/s, peak
    /// 2x and 0.8 ask for a limit of 125/s
    #[arg(long, value_name = "SHARE", help_heading = "Promise")]
    pub utilisation: Option<String>,
    /// Replicas that may be lost with the promise still held at the peak (N+1: 1) [default: 0]
    #[arg(long, value_name = "N", help_heading = "Promise")]
    pub spare: Option<u32>,
    /// Failure domains that replicas are spread over; from 2 on a whole one may be lost [default: 1]
    #[arg(long, value_name = "N", help_heading = "Promise")]
    pub domains: Option<u32>,
}

/// What carries the load, and what it costs.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanFleetArgs {
    /// Engine of one replica: a profile (plimsoll engine --list shows them) or a YAML file of one, such as calibrate writes
    #[arg(long, value_name = "NAME|FILE", help_heading = "Fleet")]
    pub profile: Option<String>,
    /// How requests are spread over replicas: round_robin, random, least_requests, prefix, … [default: round_robin]
    #[arg(long, value_name = "ROUTE", help_heading = "Fleet")]
    pub route: Option<String>,
    /// Compare a static fleet with this autoscaler: keda:target=4[,min=1,max=20], by waiting requests
    #[arg(long, value_name = "POLICY", help_heading = "Fleet")]
    pub autoscale: Option<String>,
    /// From asking for a replica to its first answer, as a span [default: 70s and the weights at 2 GB/s]
    #[arg(long, value_name = "TIME", help_heading = "Fleet")]
    pub cold_start: Option<String>,
    /// Adapters (LoRA) it serves beside its model, as plimsoll simulate takes them
    #[arg(long, value_name = "ADAPTERS", help_heading = "Fleet")]
    pub adapters: Option<String>,
    /// What goes wrong meanwhile, repeatable, as plimsoll simulate takes it
    #[arg(long = "fault", value_name = "FAULT", help_heading = "Fleet")]
    pub faults: Vec<String>,
    /// GPUs of one replica [default: the engine's tensor parallelism]
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    pub gpus_per_replica: Option<u32>,
    /// Price: 2.49USD/gpu-hour, 9.9USD/replica-hour, 0.5,1.5USD/Mtok (input,output), or a file with its date and source
    #[arg(long, value_name = "PRICE|FILE", help_heading = "Fleet")]
    pub price: Option<String>,
}

/// The plan that takes four figures.
#[derive(Args, Debug, Clone, Default)]
pub struct EnvelopeArgs {
    /// How long a request takes: with --slots a plan from four figures, without engine or promise
    #[arg(long, value_name = "TIME", requires = "slots", help_heading = "Envelope")]
    pub latency: Option<String>,
}

/// How much is simulated.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanEffortArgs {
    /// How long planning may take: what is known then is said [default: 1m]
    #[arg(long, value_name = "TIME", help_heading = "Effort")]
    pub time: Option<String>,
    /// Schedules that each number of replicas is simulated on, at least 5 [default: 5, and more where the interval holds the ceiling]
    #[arg(long, value_name = "N", help_heading = "Effort")]
    pub seeds: Option<u32>,
    /// How far predictions have been from measurements, as plimsoll plan verify writes it: gives the chance that the promise holds
    #[arg(long, value_name = "FILE", help_heading = "Effort")]
    pub band: Option<PathBuf>,
}

/// What else is looked at.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanSearchArgs {
    /// Look for a cheaper configuration: one replica of each bounds what it costs, then fleets of those that could be cheaper are simulated
    #[arg(long, help_heading = "Search")]
    pub search: bool,
    /// What may differ, repeatable: gpu=h100,a100 | tp=1,2,4 | max_seqs=128,256 | token_budget=2048,8192 | chunking=on,off | prefix_cache=on,off |
    /// max_batch=8,16 | delay_us=0,1000 | route=round_robin,least_requests [default: what is worth varying of this engine, and --autoscale]
    #[arg(long, value_name = "KEY=VALUES", requires = "search", help_heading = "Search")]
    pub vary: Vec<String>,
    /// Price of another GPU, repeatable: a100=1.60USD/gpu-hour; --price is that of the plan's own
    #[arg(long, value_name = "GPU=PRICE", requires = "search", help_heading = "Search")]
    pub price_of: Vec<String>,
}

/// Where a plan goes.
#[derive(Args, Debug, Clone, Default)]
pub struct PlanOutputArgs {
    /// Plan file to write (JSON): what plimsoll plan verify reads
    #[arg(long, short = 'o', value_name = "FILE", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Also write the plan as one HTML page to send round
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// How it is printed to stdout
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// No progress on stderr
    #[arg(long, short = 'q', help_heading = "Output")]
    pub quiet: bool,
}

/// `plimsoll plan verify`
#[derive(Args, Debug)]
pub struct PlanVerifyArgs {
    /// Plan file, as plimsoll plan -o wrote it, or predictions of plimsoll what-if -o
    pub plan: PathBuf,
    /// Run folder: what then happened
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    /// Level of the run to compare [default: its own; of a sweep, the one nearest to the planned load per replica]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// The what-if that happened, as it was written: "rate 2x" [default: the one that is like the run]
    #[arg(long, value_name = "CHANGE")]
    pub what_if: Option<String>,
    /// Replicas that the run was measured on [default: what the run knows]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u32>,
    /// File of bands to write or to add to, for plimsoll plan --band [default: none; the comparison is only printed]
    #[arg(long, value_name = "FILE")]
    pub band: Option<PathBuf>,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
