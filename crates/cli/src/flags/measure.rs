//! The flags of `plimsoll run`, `sweep` and `demo`.

use clap::{Args, ValueEnum};

use super::{CeilingArgs, ClientArgs, LoadArgs, OutputArgs, ShardArgs, TargetArgs, WorkloadArgs};

/// `plimsoll run`
#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Further endpoints of the same kind, with the same key and headers; requests rotate over all endpoints, sessions stay on one
    #[arg(value_name = "URL")]
    pub further: Vec<String>,
    #[command(flatten)]
    pub load: LoadArgs,
    /// Short health check of the endpoint, yes or no: 30 s of one request at a time, or the given load
    #[arg(long, help_heading = "Load", conflicts_with = "saturate")]
    pub smoke: bool,
    #[command(flatten)]
    pub limits: SloArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub shard: ShardArgs,
    #[command(flatten)]
    pub ceilings: CeilingArgs,
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

/// Search settings of a sweep.
#[derive(Args, Debug, Clone)]
pub struct SearchArgs {
    /// Bound of the whole sweep
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Search")]
    pub time: String,
    /// Duration of a confirming load at the found limit
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

/// The defaults of the flags.
impl Default for SearchArgs {
    fn default() -> SearchArgs {
        SearchArgs { time: "10m".into(), hold: None, traffic: vec!["steady".into()], knee_factor: 1.5 }
    }
}

/// `plimsoll sweep`
#[derive(Args, Debug)]
pub struct SweepArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Further endpoints of the same kind, with the same key and headers; requests rotate over all endpoints, sessions stay on one
    #[arg(value_name = "URL")]
    pub further: Vec<String>,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub limits: SloArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    #[command(flatten)]
    pub shard: ShardArgs,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Print the planned measurement without sending a request
    #[arg(long)]
    pub dry_run: bool,
}

/// Demos other than the sweep.
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
    /// Demo: gateway (routing with one slow replica, compared with round robin) or watch (live metrics of an engine that becomes slow)
    #[arg(value_enum)]
    pub what: Option<DemoOf>,
    /// Bound of the sweep, or of the demo that is named [default: 60s; watch: 3m]
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// Time at the found limit, so that its percentiles have enough requests [default: a sixth]
    #[arg(long, value_name = "TIME")]
    pub hold: Option<String>,
    /// Seed of everything drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[command(flatten)]
    pub output: OutputArgs,
}
