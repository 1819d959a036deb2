//! The command line: what can be typed, in the words of the help text.
//!
//! Flags are sugar over the fields of the scenario ([`plimsoll_workload::Scenario`]); nothing is decided here. What
//! needs thinking (defaults that depend on each other, units, files) happens in `resolve`.

mod baseline;
mod budget;
pub mod calc;
mod cold_start;
mod collect;
mod compare;
mod diagnose_url;
mod engine;
mod gate;
mod gate_url;
mod history;
mod interleave;
mod levers;
mod measure;
mod plan;
mod price;
mod profile;
mod quality;
mod rerun;
mod shared;
mod show;
mod what_if;

use clap::{Parser, Subcommand};

pub use baseline::{BaselineAction, BaselineArgs};
pub use budget::{BudgetAction, BudgetArgs, BudgetInitArgs, BudgetLintArgs, BudgetSplitArgs, Preset};
pub use cold_start::ColdStartArgs;
pub use collect::CollectArgs;
pub use compare::CompareArgs;
pub use diagnose_url::{DiagnoseArgs, DiagnoseUrlArgs};
pub use engine::{CalibrateArgs, EngineArgs, KeepEvents, SimulateArgs, ValidateArgs, WorldArgs};
pub use gate::GateArgs;
pub use gate_url::GateUrlArgs;
pub use history::HistoryArgs;
pub use interleave::InterleaveArgs;
pub use levers::{LeversArgs, RankBy};
pub use measure::{DemoArgs, RunArgs, SearchArgs, SweepArgs};
pub use plan::{PlanAction, PlanArgs, PlanSearchArgs, PlanVerifyArgs, PromiseArgs};
pub use price::PriceArgs;
pub use profile::ProfileArgs;
pub use quality::QualityArgs;
pub use rerun::RerunArgs;
pub use shared::{
    CeilingArgs, ClientArgs, Format, LoadArgs, OutputArgs, ScrapeArgs, TargetArgs, WorkloadArgs,
};
pub use show::{DoctorArgs, ReportArgs, SchemaArgs, SchemaOf, ShowArgs};
pub use what_if::{FitArgs, WhatIfArgs};

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
    /// Sweep the embedded engine for about a minute and show what Plimsoll prints
    Demo(DemoArgs),
    /// Put one load on an endpoint and measure it
    Run(RunArgs),
    /// Find an endpoint's curve, its queueing onset and its limits
    Sweep(SweepArgs),
    /// Say what a change did: from two runs of one load, or from two endpoints measured in turn
    Compare(Box<CompareArgs>),
    /// Hold a run to a budget file: pass, broken, inconclusive or invalid, as exit code
    Gate(GateArgs),
    /// Ask two endpoints the same at temperature 0: how far their answers agree and how they score
    Quality(Box<QualityArgs>),
    /// Serve the embedded engine behind an OpenAI-compatible API
    Engine(EngineArgs),
    /// Put a load on a simulated engine or fleet in virtual time and write the same kind of run
    Simulate(SimulateArgs),
    /// Fit a simulated engine to a run or to measured rows, and print the error on rows held out
    Calibrate(CalibrateArgs),
    /// Recompute how far the simulated engine is from real servers
    Validate(ValidateArgs),
    /// Send a run's schedule again, arrival by arrival, to another target
    Rerun(RerunArgs),
    /// Check a budget file, begin one, or split a total over stages
    Budget(BudgetArgs),
    /// Answer by a law of queues or of scale: Little, M/M/c, USL, Amdahl, fan-out, hedging and others
    Calc(calc::CalcArgs),
    /// Show a baseline's line of results, and since which version a metric has moved
    History(HistoryArgs),
    /// Say which layer is slow: of an endpoint by experiments, of a run from what was measured
    Diagnose(Box<DiagnoseArgs>),
    /// Rank what to change first, for one run
    Levers(LeversArgs),
    /// Say how many replicas carry a load within a promise, at what cost, and the load at which they break
    Plan(Box<PlanArgs>),
    /// Predict what would become of a run if something changed: more traffic, longer prompts, one replica less
    WhatIf(Box<WhatIfArgs>),
    /// Show where each request's time went: of traces by stages, of a run without them by what can be seen from outside
    Profile(Box<ProfileArgs>),
    /// Idle past the point where an endpoint scales to zero, and measure what the next request pays
    ColdStart(Box<ColdStartArgs>),
    /// Name the runs that others are held to
    Baseline(BaselineArgs),
    /// Take the spans of others over OTLP, gRPC and HTTP, into a run folder
    Collect(CollectArgs),
    /// Print what a run found (recovers a run that was killed)
    Show(ShowArgs),
    /// Write a run's report: one HTML file that opens offline
    Report(ReportArgs),
    /// Check whether this machine can measure
    Doctor(DoctorArgs),
    /// Print the JSON Schema of a file Plimsoll reads or writes
    Schema(SchemaArgs),
}
