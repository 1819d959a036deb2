//! The flags of `plimsoll run`, `sweep` and `demo`.

use clap::{Args, ValueEnum};

use super::{CeilingArgs, ClientArgs, LoadArgs, OutputArgs, ShardArgs, TargetArgs, WorkloadArgs};

/// `plimsoll run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// What is measured.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Further endpoints of the same kind, with the same key and headers: the requests are dealt to all in turn, those of a session to one
    #[arg(value_name = "URL")]
    pub further: Vec<String>,
    /// How much load, and when.
    #[command(flatten)]
    pub load: LoadArgs,
    /// Is it alive and sane? 30 s of one request after the other (or the load that is given), and a plain yes or no
    #[arg(long, help_heading = "Load", conflicts_with = "saturate")]
    pub smoke: bool,
    /// Limits that judge the load.
    #[command(flatten)]
    pub limits: SloArgs,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How the client behaves.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Which part of the load is sent here.
    #[command(flatten)]
    pub shard: ShardArgs,
    /// Where it stops by itself.
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Limits on the command line.
#[derive(Args, Debug, Clone, Default)]
pub struct SloArgs {
    /// Limit to judge by, repeatable or with commas: "ttft p99 < 500ms", "e2e p50 < 60ms", "errors < 1%"
    #[arg(long = "slo", value_name = "LIMIT", value_delimiter = ',', help_heading = "Limits")]
    pub slo: Vec<String>,
}

/// What a sweep looks for.
#[derive(Args, Debug, Clone)]
pub struct SearchArgs {
    /// Bound of the whole sweep
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Search")]
    pub time: String,
    /// Hold the found line for this long before it is called sustained
    #[arg(long, value_name = "TIME", help_heading = "Search")]
    pub hold: Option<String>,
    /// Kinds of traffic to search, each by itself: steady, burst (gamma gaps, CV 3) or NAME=PROCESS
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "steady",
        help_heading = "Search"
    )]
    pub traffic: Vec<String>,
    /// Queueing onset = the load at which p99 ttft (e2e where answers come whole) reaches this many times its
    /// zero-contention value
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, help_heading = "Search")]
    pub knee_factor: f64,
}

/// As the flags have it.
impl Default for SearchArgs {
    fn default() -> SearchArgs {
        SearchArgs { time: "10m".into(), hold: None, traffic: vec!["steady".into()], knee_factor: 1.5 }
    }
}

/// `plimsoll sweep`
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// What is measured.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Further endpoints of the same kind, with the same key and headers: the requests are dealt to all in turn, those of a session to one
    #[arg(value_name = "URL")]
    pub further: Vec<String>,
    /// The search.
    #[command(flatten)]
    pub search: SearchArgs,
    /// Limits of the budget line.
    #[command(flatten)]
    pub limits: SloArgs,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How the client behaves.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where it stops by itself.
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    /// Where several machines send it.
    #[command(flatten)]
    pub shard: ShardArgs,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Say what would be done and stop
    #[arg(long)]
    pub dry_run: bool,
}

/// What is shown instead of a sweep.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum DemoOf {
    /// A gateway in front of three replicas.
    Gateway,
    /// A watch of an engine that becomes slow.
    Watch,
}

/// `plimsoll demo`
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// gateway: the same requests through round robin and through the gateway, in front of three replicas of which one becomes slow; watch: an engine's page is watched while the engine becomes slow
    #[arg(value_enum)]
    pub what: Option<DemoOf>,
    /// Bound of the sweep, or of the demo that is named [default: 60s; watch: 3m]
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// How long of it the found line is held, so that the percentiles there have enough requests [default: a sixth]
    #[arg(long, value_name = "TIME")]
    pub hold: Option<String>,
    /// Seed of everything drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}
