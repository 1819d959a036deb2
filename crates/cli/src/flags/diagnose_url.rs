//! What can be typed after `plimsoll diagnose URL`: what may be sent, how long, and where the result goes.

use std::path::PathBuf;

use clap::Args;

use super::{ClientArgs, TargetArgs, WorkloadArgs};

/// What an active diagnosis may do. With a run folder none of it has a meaning.
#[derive(Args, Debug, Clone, Default)]
pub struct DiagnoseUrlArgs {
    /// Of a URL: how long it may be experimented on [default: 5m]
    #[arg(long, value_name = "TIME", help_heading = "Experimenting on a URL")]
    pub time: Option<String>,
    /// Never offer more than this rate; twice the load is sent only up to it
    #[arg(long, value_name = "RATE", help_heading = "Experimenting on a URL")]
    pub max_rate: Option<String>,
    /// Never have more than this in flight [default: 16]
    #[arg(long, value_name = "N", help_heading = "Experimenting on a URL")]
    pub max_concurrency: Option<u32>,
    /// Send no more requests than this [default: 2000]
    #[arg(long, value_name = "N", help_heading = "Experimenting on a URL")]
    pub max_requests: Option<u64>,
    /// Stop after this many failed requests [default: 200]
    #[arg(long, value_name = "N", help_heading = "Experimenting on a URL")]
    pub max_errors: Option<u64>,
    /// What was promised for the first token of a request alone, such as 500ms; --budget says more
    #[arg(long, value_name = "TIME", help_heading = "Experimenting on a URL")]
    pub ttft: Option<String>,
    /// A replica's own base URL, repeatable: each is asked alone
    #[arg(long = "replica", value_name = "URL", help_heading = "Experimenting on a URL")]
    pub replicas: Vec<String>,
    /// Say what would be done at most, and send nothing
    #[arg(long, help_heading = "Experimenting on a URL")]
    pub dry_run: bool,
}

/// What is held against what.
#[derive(Args, Debug, Clone, Default)]
pub struct DiagnoseRunArgs {
    /// The run of before: a run folder, or a baseline by its name. Of a URL: its requests are sent, and what they took alone and beside others is held against it
    #[arg(long, value_name = "RUN|NAME", help_heading = "Judging a run")]
    pub baseline: Option<PathBuf>,
    /// What was promised, a budget file: its ceilings on ttft, tpot and e2e of all requests say what is material
    #[arg(long, value_name = "FILE", help_heading = "Judging a run")]
    pub budget: Option<PathBuf>,
    /// Of a run: the level to judge [default: the one nearest to the baseline's load, else the heaviest]
    #[arg(long, value_name = "N", help_heading = "Judging a run")]
    pub level: Option<u32>,
    /// Of a run: a profiler's timeline of the target's steps (PyTorch), repeatable
    #[arg(long, value_name = "FILE", help_heading = "Judging a run")]
    pub timeline: Vec<PathBuf>,
}

/// `plimsoll diagnose`
#[derive(Args, Debug)]
#[command(mut_arg("url", |url| url.value_name("URL|RUN").help(
    "Endpoint: its base URL, as for plimsoll run; or the folder of a run, to be judged from what it measured"
).long_help(None)))]
pub struct DiagnoseArgs {
    /// The endpoint to experiment on, or the folder of a run
    #[command(flatten)]
    pub target: TargetArgs,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How the client behaves.
    #[command(flatten)]
    pub client: ClientArgs,
    /// What a run folder is held against.
    #[command(flatten)]
    pub passive: DiagnoseRunArgs,
    /// What may be done.
    #[command(flatten)]
    pub active: DiagnoseUrlArgs,
    /// Also write the diagnosis as a page, one file that opens offline
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Where results go.
    #[command(flatten)]
    pub output: super::OutputArgs,
}
