//! The flags of what is simulated: `plimsoll engine`, `simulate`, `dev calibrate` and `dev validate`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{CeilingArgs, ClientArgs, FitArgs, Format, LoadArgs, OutputArgs, SearchArgs, WorkloadArgs};

/// What is simulated.
#[derive(Args, Debug, Clone, Default)]
pub struct WorldArgs {
    /// Engine: a profile (plimsoll engine --list shows them) or a YAML file of one [default: demo]
    #[arg(long, value_name = "NAME|FILE", help_heading = "World")]
    pub profile: Option<String>,
    /// Replicas of it [default: 1]
    #[arg(long, value_name = "N", help_heading = "World")]
    pub replicas: Option<u32>,
    /// How requests are spread over replicas: round_robin, random, least_requests, prefix, … [default: round_robin]
    #[arg(long, value_name = "ROUTE", help_heading = "World")]
    pub route: Option<String>,
    /// Gateway file whose route, retries, hedging, breaker and admission stand in front of them, and whose replicas are counted
    #[arg(long, value_name = "FILE", help_heading = "World")]
    pub gateway: Option<PathBuf>,
    /// Adapters (LoRA) it serves beside its model, as NAME+NAME:slots=N,load=TIME: slots are held at once per replica
    /// [default: as many as names, and no time to load]
    #[arg(long, value_name = "ADAPTERS", help_heading = "World")]
    pub adapters: Option<String>,
    /// What goes wrong, repeatable: stall:at=20s,for=2s | slow:factor=3,replica=1 | error:share=0.01,status=500 | …
    #[arg(long = "fault", value_name = "FAULT", help_heading = "World")]
    pub faults: Vec<String>,
}

/// `plimsoll engine`
#[derive(Args, Debug)]
pub struct EngineArgs {
    /// Simulation file whose engine, fleet and faults are served (YAML; see `plimsoll schema simulation`)
    pub spec: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub listen: String,
    /// PEM file of the certificate to serve TLS with, and of those between it and its authority: https:// and grpcs:// then
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// PEM file of its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// PEM file of authorities: only clients with a certificate of theirs are let in
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// What is served.
    #[command(flatten)]
    pub world: WorldArgs,
    /// List the profiles with their derivation
    #[arg(long)]
    pub list: bool,
    /// Name of the model [default: the profile's]
    #[arg(long)]
    pub model: Option<String>,
    /// An input that a served batcher takes, PIXELS:UINT8:3x224x224; repeatable [default: INPUT:FP32:4]
    #[arg(long = "input", value_name = "NAME:TYPE:DIMS")]
    pub inputs: Vec<String>,
    /// Seed of everything drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write what really happened, request by request, as JSON lines
    #[arg(long, value_name = "FILE")]
    pub truth_log: Option<PathBuf>,
    /// No talk on stderr
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// Stop when stdin ends (for a parent process that may die)
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
    /// How --list is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Which events of answers are kept.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeepEvents {
    /// Every token event, as a measured run has them.
    All,
    /// First token, last token and end alone.
    Ends,
}

/// `plimsoll simulate`
#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// Simulation file (YAML or JSON): engine, fleet, faults, scenario. Flags override it. See: plimsoll schema simulation
    pub simulation: Option<PathBuf>,
    /// What is simulated.
    #[command(flatten)]
    pub world: WorldArgs,
    /// Find the curve, the onset and the limits, as plimsoll sweep does (with the flags of Search)
    #[arg(long, help_heading = "Load", conflicts_with_all = ["rate", "concurrency", "saturate", "duration", "arrivals"])]
    pub sweep: bool,
    /// How much load, and when.
    #[command(flatten)]
    pub load: LoadArgs,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How the client behaves.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where it stops by itself.
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    /// What --sweep looks for.
    #[command(flatten)]
    pub search: SearchArgs,
    /// Events of answers that are kept [default: all, up to 5 million output tokens; ends beyond]
    #[arg(long, value_enum, value_name = "WHICH", help_heading = "Output")]
    pub events: Option<KeepEvents>,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `plimsoll dev`
#[derive(Args, Debug)]
pub struct DevArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: DevAction,
}

/// What is done with the simulated engine itself.
#[derive(Subcommand, Debug)]
pub enum DevAction {
    /// Fit a simulated engine to a run or to measured rows, and print the error on rows held out
    Calibrate(CalibrateArgs),
    /// Recompute how far the simulated engine is from real servers
    Validate(ValidateArgs),
}

/// `plimsoll dev calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Run folder: every level is a row
    #[arg(required_unless_present = "from", conflicts_with = "from", value_parser = crate::named::run)]
    pub run: Option<PathBuf>,
    /// Rows as comma-separated values, of means or of a replay's requests
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Engine of all rows: MODEL[-DTYPE]@GPU[xTP] or a YAML file [default: the columns of each row; of a run, an engine fitted from nothing]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Protocol of rows that have no such column: closed,requests=10x,lengths=uniform:0.8
    #[arg(long, value_name = "PROTOCOL", requires = "from")]
    pub protocol: Option<String>,
    /// Take only the rows whose engine holds this text, such as "llama-3.1-70b fp8 on h100"
    #[arg(long, value_name = "TEXT", requires = "from")]
    pub only: Option<String>,
    /// Level of the run to fit to, without --profile [default: all of them]
    #[arg(long, value_name = "N", requires = "run")]
    pub level: Option<u32>,
    /// What no run at low load shows, without --profile.
    #[command(flatten)]
    pub target: FitArgs,
    /// Profile to write; must not exist
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: PathBuf,
    /// Seed of what the protocols draw
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How the result is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `plimsoll dev validate`.
#[derive(Args, Debug)]
pub struct ValidateArgs {
    /// Other rows, as for calibrate [default: those that are shipped]
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Engine of all those rows [default: the columns of each row]
    #[arg(long, value_name = "NAME", requires = "from")]
    pub profile: Option<String>,
    /// Protocol of rows that have no such column
    #[arg(long, value_name = "PROTOCOL", requires = "from")]
    pub protocol: Option<String>,
    /// How the tables are printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
