//! The flags of `plimsoll diagnose URL`: the limits of the load, the time, and the output.

use std::path::PathBuf;

use clap::Args;

use super::{ClientArgs, TargetArgs, WorkloadArgs};

/// Limits of an active diagnosis; a run folder ignores them.
#[derive(Args, Debug, Clone, Default)]
pub struct DiagnoseUrlArgs {
    /// Longest time of the experiments on a URL [default: 5m]
    #[arg(long, value_name = "TIME", help_heading = "Experimenting on a URL")]
    pub time: Option<String>,
    /// Highest rate to offer
    #[arg(long, value_name = "RATE", help_heading = "Experimenting on a URL")]
    pub max_rate: Option<String>,
    /// Highest number of requests in flight [default: 16]
    #[arg(long, value_name = "N", help_heading = "Experimenting on a URL")]
    pub max_concurrency: Option<u32>,
    /// Highest number of requests [default: 2000]
    #[arg(long, value_name = "N", help_heading = "Experimenting on a URL")]
    pub max_requests: Option<u64>,
    /// Number of failed requests that stops the load [default: 200]
    #[arg(long, value_name = "N", help_heading = "Experimenting on a URL")]
    pub max_errors: Option<u64>,
    /// TTFT limit of a single request, such as 500ms
    #[arg(long, value_name = "TIME", help_heading = "Experimenting on a URL")]
    pub ttft: Option<String>,
    /// Base URL of a single replica, repeatable
    #[arg(long = "replica", value_name = "URL", help_heading = "Experimenting on a URL")]
    pub replicas: Vec<String>,
    /// Print the experiments and send nothing
    #[arg(long, help_heading = "Experimenting on a URL")]
    pub dry_run: bool,
}

/// References of a diagnosis.
#[derive(Args, Debug, Clone, Default)]
pub struct DiagnoseRunArgs {
    /// Reference run or baseline; a diagnosis of a URL repeats its requests
    #[arg(long, value_name = "RUN|NAME", help_heading = "Judging a run")]
    pub baseline: Option<PathBuf>,
    /// Budget file whose latency limits decide which effects matter
    #[arg(long, value_name = "FILE", help_heading = "Judging a run")]
    pub budget: Option<PathBuf>,
    /// Level of the run [default: nearest to the load of the baseline, else the heaviest]
    #[arg(long, value_name = "N", help_heading = "Judging a run")]
    pub level: Option<u32>,
    /// Profiler timeline of the target (PyTorch, Nsight Systems), repeatable
    #[arg(long, value_name = "FILE", help_heading = "Judging a run")]
    pub timeline: Vec<PathBuf>,
    /// Model and GPU of the target, for shares of the GPU's peaks: a profile such as llama-3.1-8b@h100 [default: the simulated run's]
    #[arg(long, value_name = "NAME|FILE", help_heading = "Judging a run")]
    pub profile: Option<String>,
}

/// `plimsoll diagnose`
#[derive(Args, Debug)]
#[command(mut_arg("url", |url| url.value_name("URL|RUN").help(
    "Endpoint: its base URL, as for plimsoll run; or the folder of a run, to be judged from what it measured"
).long_help(None)))]
pub struct DiagnoseArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub passive: DiagnoseRunArgs,
    #[command(flatten)]
    pub active: DiagnoseUrlArgs,
    /// HTML file of the diagnosis
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub output: super::OutputArgs,
}
