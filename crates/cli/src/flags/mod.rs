//! The command line, with its help texts as doc comments.
//!
//! Flags are sugar over the fields of the scenario ([`plimsoll_workload::Scenario`]); nothing is decided here. The
//! module `resolve` handles units, files and defaults that depend on each other.

mod audit;
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
mod mcp;
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
mod tradeoff;
mod tune;
mod watch;
mod what_if;
mod workload;

use clap::{Parser, Subcommand};

pub use audit::AuditArgs;
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
pub use gateway::{GatewayAction, GatewayArgs, GatewayCommand, GatewayKeyArgs};
pub use history::HistoryArgs;
pub use import::ImportArgs;
pub use interleave::InterleaveArgs;
pub use k8s::K8sArgs;
pub use levers::{LeversArgs, RankBy};
pub use mcp::McpArgs;
pub use measure::{DemoArgs, DemoOf, RunArgs, SearchArgs, SloArgs, SweepArgs};
pub use plan::{PlanAction, PlanArgs, PlanSearchArgs, PlanVerifyArgs, PromiseArgs};
pub use plimsoll_console::out::OutputFormat;
pub use price::PriceArgs;
pub use profile::ProfileArgs;
pub use quality::QualityArgs;
pub use rerun::RerunArgs;
pub use shard::{MergeArgs, ShardArgs};
pub use shared::{
    CeilingArgs, ClientArgs, LoadArgs, OutputArgs, ReadersArgs, ScrapeArgs, TargetArgs, WorkloadArgs,
};
pub use shell::{CompletionsArgs, DocsArgs, ManArgs, ReferenceArgs};
pub use show::{BrowseArgs, DoctorArgs, LsArgs, ReportArgs, SchemaArgs, SchemaOf, SelftestArgs, ShowArgs};
pub use tradeoff::TradeoffArgs;
pub use tune::TuneArgs;
pub use watch::{WatchAction, WatchArgs, WatchCommand};
pub use what_if::{FitArgs, WhatIfArgs};
pub use workload::FromLogArgs;

/// Measures AI inference endpoints under load and judges them against latency and throughput budgets
#[derive(Parser, Debug)]
#[command(name = "plimsoll", version, max_term_width = 110, propagate_version = true)]
#[command(after_help = "Start: plimsoll demo   All commands: plimsoll help all   Manual: plimsoll docs")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Measure the built-in engine for a minute, without a network
    Demo(DemoArgs),
    /// Send one load to an endpoint and measure it
    Run(RunArgs),
    /// Find the load limits of an endpoint
    Sweep(SweepArgs),
    /// Compare two runs of the same load
    Compare(CompareArgs),
    /// Weigh speed and cost of a change against accuracy
    Tradeoff(Box<TradeoffArgs>),
    /// Measure two endpoints alternately and compare them
    Interleave(Box<InterleaveArgs>),
    /// Check a run or an endpoint against a budget (exit code)
    #[command(
        after_help = "Exit codes: 0 pass, 1 broken, 2 wrong usage, 3 inconclusive, 4 invalid, 5 not reached"
    )]
    Gate(GateArgs),
    /// Compare and score the answers of two endpoints
    Quality(Box<QualityArgs>),
    /// Serve the simulated engine behind an OpenAI-compatible API
    Engine(EngineArgs),
    /// Send a load to a simulated engine in virtual time
    Simulate(SimulateArgs),
    /// Fit and validate profiles of the simulated engine
    Dev(DevArgs),
    #[command(hide = true)]
    Calibrate(CalibrateArgs),
    #[command(hide = true)]
    Validate(ValidateArgs),
    /// Repeat the request schedule of a run on another target
    Rerun(RerunArgs),
    /// Check, create or split a budget file
    Budget(BudgetArgs),
    /// Evaluate a formula: Little, M/M/c, M/G/1, Amdahl
    Calc(calc::CalcArgs),
    /// Show the history of a baseline and its change points
    History(HistoryArgs),
    /// Check live metrics against a budget
    Watch(WatchCommand),
    /// Compare canary replicas with the stable replicas
    Canary(CanaryArgs),
    /// Write a budget as rules, or a run as a table
    Export(ExportArgs),
    /// Route requests to replicas: balance, retry, eject, cache
    Gateway(GatewayCommand),
    /// Find the slow layer of an endpoint or a run
    Diagnose(Box<DiagnoseArgs>),
    /// Rank the changes that would improve a run most
    Levers(LeversArgs),
    /// Find the replicas that carry a load, and their cost
    Plan(Box<PlanArgs>),
    /// Predict a run under other traffic or another fleet
    WhatIf(Box<WhatIfArgs>),
    /// Show the time of each request by stage
    Profile(Box<ProfileArgs>),
    /// Show the uses of the money: good, failed, idle
    Audit(AuditArgs),
    /// Find the best flags of a server: start, measure, stop
    Tune(Box<TuneArgs>),
    /// Measure the first request after an idle time
    ColdStart(Box<ColdStartArgs>),
    /// Name runs as baselines for gate and compare
    Baseline(BaselineArgs),
    /// Receive OTLP spans and write them to a run folder
    Collect(CollectArgs),
    /// Import and verify results of another tool
    Import(ImportArgs),
    /// Merge the shards of one load into one run
    Merge(MergeArgs),
    /// Print a Kubernetes Job that sends a load from many pods
    K8s(Box<K8sArgs>),
    /// Build a workload from logs, spans or runs, without texts
    Workload(FromLogArgs),
    /// Print the results of a run, or write its HTML page
    Show(ShowArgs),
    /// Show many runs on one page: a list, figures over time
    Browse(BrowseArgs),
    /// List the runs of a folder, newest first
    Ls(LsArgs),
    #[command(hide = true)]
    Report(ReportArgs),
    /// Check whether this machine can measure
    Doctor(DoctorArgs),
    /// Verify measurement accuracy on this machine
    Selftest(SelftestArgs),
    /// Print a page of the manual, without a network
    Docs(DocsArgs),
    /// Serve the commands as tools for agents (MCP)
    Mcp(Box<McpArgs>),
    /// Print the JSON Schema of a file format
    #[command(hide = true)]
    Schema(SchemaArgs),
    /// Print the completion script of a shell
    #[command(hide = true)]
    Completions(CompletionsArgs),
    /// Write the man pages of all commands into a folder
    #[command(hide = true)]
    Man(ManArgs),
}
