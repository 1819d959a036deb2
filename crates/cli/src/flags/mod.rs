//! The command line: what can be typed, in the words of the help text.
//!
//! Flags are sugar over the fields of the scenario ([`plimsoll_workload::Scenario`]); nothing is decided here. What
//! needs thinking (defaults that depend on each other, units, files) happens in `resolve`.

mod baseline;
mod budget;
pub mod calc;
mod canary;
mod cold_start;
mod collect;
mod compare;
mod diagnose_url;
mod engine;
mod export;
mod gate;
mod gate_url;
mod gateway;
mod history;
mod import;
mod interleave;
mod k8s;
mod levers;
mod measure;
mod plan;
mod price;
mod profile;
mod quality;
mod rerun;
mod shard;
mod shared;
mod shell;
mod show;
mod watch;
mod what_if;
mod workload;

use clap::{Parser, Subcommand};

pub use baseline::{BaselineAction, BaselineArgs};
pub use budget::{BudgetAction, BudgetArgs, BudgetInitArgs, BudgetLintArgs, BudgetSplitArgs, Preset};
pub use canary::CanaryArgs;
pub use cold_start::ColdStartArgs;
pub use collect::CollectArgs;
pub use compare::{CompareArgs, JudgedArgs};
pub use diagnose_url::{DiagnoseArgs, DiagnoseUrlArgs};
pub use engine::{
    CalibrateArgs, DevAction, DevArgs, EngineArgs, KeepEvents, SimulateArgs, ValidateArgs, WorldArgs,
};
pub use export::{ExportArgs, ExportWhat, RunFormat};
pub use gate::GateArgs;
pub use gate_url::GateUrlArgs;
pub use gateway::GatewayArgs;
pub use history::HistoryArgs;
pub use import::ImportArgs;
pub use interleave::InterleaveArgs;
pub use k8s::K8sArgs;
pub use levers::{LeversArgs, RankBy};
pub use measure::{DemoArgs, DemoOf, RunArgs, SearchArgs, SweepArgs};
pub use plan::{PlanAction, PlanArgs, PlanSearchArgs, PlanVerifyArgs, PromiseArgs};
pub use price::PriceArgs;
pub use profile::ProfileArgs;
pub use quality::QualityArgs;
pub use rerun::RerunArgs;
pub use shard::{MergeArgs, ShardArgs};
pub use shared::{
    CeilingArgs, ClientArgs, Format, LoadArgs, OutputArgs, ReadersArgs, ScrapeArgs, TargetArgs, WorkloadArgs,
};
pub use shell::{CompletionsArgs, ManArgs};
pub use show::{DoctorArgs, LsArgs, ReportArgs, SchemaArgs, SchemaOf, SelftestArgs, ShowArgs};
pub use watch::WatchArgs;
pub use what_if::{FitArgs, WhatIfArgs};
pub use workload::FromLogArgs;

/// Finds how much load an AI inference endpoint can carry, and says how sure it is.
#[derive(Parser, Debug)]
#[command(name = "plimsoll", version, max_term_width = 110, propagate_version = true)]
#[command(after_help = "Start here: plimsoll demo   (no flags, no network, about a minute)")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Sweep the embedded engine for about a minute: what Plimsoll prints
    Demo(DemoArgs),
    /// Put one load on an endpoint and measure it
    Run(RunArgs),
    /// Find an endpoint's curve, its queueing onset and its limits
    Sweep(SweepArgs),
    /// Say what a change did, from two runs of one load
    Compare(CompareArgs),
    /// Measure two endpoints in turn under one load, then compare
    Interleave(Box<InterleaveArgs>),
    /// Hold a run, or an endpoint, to a budget file; the exit code judges
    Gate(GateArgs),
    /// Ask two endpoints the same: how far answers agree, how they score
    Quality(Box<QualityArgs>),
    /// Serve the embedded engine behind an OpenAI-compatible API
    Engine(EngineArgs),
    /// Put a load on a simulated engine in virtual time: a run like any
    Simulate(SimulateArgs),
    /// The simulated engine: fit it, hold it to real servers
    Dev(DevArgs),
    #[command(hide = true)]
    Calibrate(CalibrateArgs),
    #[command(hide = true)]
    Validate(ValidateArgs),
    /// Send a run's schedule again, arrival by arrival, to another target
    Rerun(RerunArgs),
    /// Check a budget file, begin one, or split a total over stages
    Budget(BudgetArgs),
    /// Answer by a law: Little, M/M/c, M/G/1, Amdahl, fan-out, …
    Calc(calc::CalcArgs),
    /// Show a baseline's results: since which version a metric has moved
    History(HistoryArgs),
    /// Hold a budget against live traffic, from servers' metrics pages
    Watch(WatchArgs),
    /// Judge a new version on some replicas beside the old one on others
    Canary(CanaryArgs),
    /// Write budgets as rules or dashboards, runs as tables or spans
    Export(ExportArgs),
    /// Stand in front of replicas: route, retry and eject by what is seen
    Gateway(GatewayArgs),
    /// Say which layer is slow, of an endpoint or of a run
    Diagnose(Box<DiagnoseArgs>),
    /// Rank what to change first, for one run
    Levers(LeversArgs),
    /// Say how many replicas carry a load within a promise, and the cost
    Plan(Box<PlanArgs>),
    /// Predict a run under more traffic, longer prompts, a replica less
    WhatIf(Box<WhatIfArgs>),
    /// Show where each request's time went, of traces or of a run
    Profile(Box<ProfileArgs>),
    /// Idle until an endpoint scales to zero; measure the next request
    ColdStart(Box<ColdStartArgs>),
    /// Name the runs that others are held to
    Baseline(BaselineArgs),
    /// Take the spans of others over OTLP into a run folder
    Collect(CollectArgs),
    /// Hold another tool's results to themselves, and make a run of them
    Import(ImportArgs),
    /// Make one run of the shards that several machines sent of a load
    Merge(MergeArgs),
    /// Print the Kubernetes Job that sends a load from many pods
    K8s(Box<K8sArgs>),
    /// Make a workload of production's logs, spans or runs: no text in it
    Workload(FromLogArgs),
    /// Print what a run found (recovers a killed one); --html: as a page
    Show(ShowArgs),
    /// List the runs of a folder, the newest first
    Ls(LsArgs),
    #[command(hide = true)]
    Report(ReportArgs),
    /// Check whether this machine can measure
    Doctor(DoctorArgs),
    /// Prove, on this machine, that what is printed is true
    Selftest(SelftestArgs),
    /// Print the JSON Schema of a file Plimsoll reads or writes
    // Whoever needs it is told by the page of the file that it is of.
    #[command(hide = true)]
    Schema(SchemaArgs),
    /// Print the completions of a shell (man pages: plimsoll man DIR)
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write the man pages of all commands into a folder
    #[command(hide = true)]
    Man(ManArgs),
}
