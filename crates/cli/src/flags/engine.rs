//! The flags of the simulated engine: `plimsoll engine`, `simulate`, `dev calibrate` and `dev validate`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{
    CeilingArgs, ClientArgs, FitArgs, LoadArgs, OutputArgs, OutputFormat, ReferenceArgs, SearchArgs, SloArgs,
    WorkloadArgs,
};

/// The simulated world.
#[derive(Args, Debug, Clone, Default)]
pub struct WorldArgs {
    /// Engine profile (list: plimsoll engine --list) or YAML file [default: demo]
    #[arg(long, value_name = "NAME|FILE", help_heading = "World")]
    pub profile: Option<String>,
    /// Number of replicas [default: 1]
    #[arg(long, value_name = "N", help_heading = "World")]
    pub replicas: Option<u32>,
    /// Routing policy: round_robin, random, least_requests, prefix, … [default: round_robin]
    #[arg(long, value_name = "ROUTE", help_heading = "World")]
    pub route: Option<String>,
    /// Gateway file: routing, retries, hedging, circuit breaker, admission and number of replicas
    #[arg(long, value_name = "FILE", help_heading = "World")]
    pub gateway: Option<PathBuf>,
    /// LoRA adapters: NAME+NAME:slots=N,load=TIME [default: a slot per name, no load time]
    #[arg(long, value_name = "ADAPTERS", help_heading = "World")]
    pub adapters: Option<String>,
    /// Fault, repeatable: stall:at=20s,for=2s; slow:factor=3,replica=1; error:share=0.01,status=500; …
    #[arg(long = "fault", value_name = "FAULT", help_heading = "World")]
    pub faults: Vec<String>,
}

/// `plimsoll engine`
#[derive(Args, Debug)]
pub struct EngineArgs {
    /// Simulation file: engine, fleet and faults (fields: plimsoll schema simulation)
    pub spec: Option<PathBuf>,
    /// Listen address; port 0 selects a free port
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub listen: String,
    /// PEM file of the server certificate and its chain, for https:// and grpcs://
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file of the private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// PEM file of authorities for client certificates, which are then required
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    #[command(flatten)]
    pub world: WorldArgs,
    /// List of profiles and their sources
    #[arg(long)]
    pub list: bool,
    /// Model name [default: the profile's]
    #[arg(long)]
    pub model: Option<String>,
    /// Input tensor of a batching model, repeatable: PIXELS:UINT8:3x224x224 [default: INPUT:FP32:4]
    #[arg(long = "input", value_name = "NAME:TYPE:DIMS")]
    pub inputs: Vec<String>,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// JSON-lines file of the true times of each request
    #[arg(long, value_name = "FILE")]
    pub truth_log: Option<PathBuf>,
    /// Suppress progress messages
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// End when stdin ends (for a parent process that may die)
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
    /// Output format of --list: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// Stored events of a response.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepEvents {
    /// Every token event.
    All,
    /// First token, last token and end.
    Ends,
}

/// `plimsoll simulate`
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// Simulation file: engine, fleet, faults and scenario (fields: plimsoll schema simulation)
    pub simulation: Option<PathBuf>,
    #[command(flatten)]
    pub world: WorldArgs,
    /// Sweep in place of one load; takes the flags of Search
    #[arg(long, help_heading = "Load", conflicts_with_all = ["rate", "concurrency", "saturate", "duration", "arrivals"])]
    pub sweep: bool,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    #[command(flatten)]
    pub search: SearchArgs,
    #[command(flatten)]
    pub limits: SloArgs,
    /// Stored events: all or ends [default: all, up to 5 million output tokens]
    #[arg(long, value_enum, value_name = "WHICH", help_heading = "Output")]
    pub events: Option<KeepEvents>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `plimsoll dev`
#[derive(Args, Debug)]
pub struct DevArgs {
    /// Action.
    #[command(subcommand)]
    pub action: DevAction,
}

/// An action on the simulated engine.
#[derive(Subcommand, Debug)]
pub enum DevAction {
    /// Fit an engine profile to a run or to measured rows
    Calibrate(CalibrateArgs),
    /// Recompute the error of the simulated engine against real servers
    Validate(ValidateArgs),
    /// Write a page of Markdown for each command and each file format
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

/// `plimsoll dev calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Run folder; each level is a row
    #[arg(required_unless_present = "from", conflicts_with = "from", value_parser = crate::named::run)]
    pub run: Option<PathBuf>,
    /// CSV file of rows: means, or requests of a replay
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Engine of all rows: MODEL[-DTYPE]@GPU[xTP] or a YAML file [default: the columns of each row; for a run, a new fit]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Protocol of rows without that column: closed,requests=10x,lengths=uniform:0.8
    #[arg(long, value_name = "PROTOCOL", requires = "from")]
    pub protocol: Option<String>,
    /// Text that the engine of a row must contain, such as "llama-3.1-70b fp8 on h100"
    #[arg(long, value_name = "TEXT", requires = "from")]
    pub only: Option<String>,
    /// Level of the run to fit [default: all levels]
    #[arg(long, value_name = "N", requires = "run")]
    pub level: Option<u32>,
    #[command(flatten)]
    pub target: FitArgs,
    /// Profile file to create
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: PathBuf,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// `plimsoll dev validate`.
#[derive(Args, Debug)]
pub struct ValidateArgs {
    /// CSV file of rows [default: the shipped rows]
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Engine of all rows [default: the columns of each row]
    #[arg(long, value_name = "NAME", requires = "from")]
    pub profile: Option<String>,
    /// Protocol of rows without that column
    #[arg(long, value_name = "PROTOCOL", requires = "from")]
    pub protocol: Option<String>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
