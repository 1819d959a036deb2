//! The flags of `plimsoll gateway`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::OutputFormat;

/// `plimsoll gateway`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct GatewayCommand {
    #[command(subcommand)]
    pub action: Option<GatewayAction>,
    #[command(flatten)]
    pub settings: GatewayArgs,
}

/// A task beside serving.
#[derive(Subcommand, Debug)]
pub enum GatewayAction {
    /// Check a gateway file and its replicas, then end
    Check(Box<GatewayArgs>),
    /// Explain the routing of recorded requests
    Explain(GatewayExplainArgs),
    /// Create a client key and its entry for the file
    Key(GatewayKeyArgs),
}

/// `plimsoll gateway explain`.
#[derive(Args, Debug)]
pub struct GatewayExplainArgs {
    /// Run that a gateway recorded with --record
    pub run: String,
    /// Request of the run [default: a summary of all]
    pub request: Option<String>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// `plimsoll gateway key`.
#[derive(Args, Debug)]
pub struct GatewayKeyArgs {
    /// Name of the client, such as alice
    pub name: String,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
    /// Suppress hints
    #[arg(long, short = 'q')]
    pub quiet: bool,
}

/// The settings of a gateway.
#[derive(Args, Debug)]
pub struct GatewayArgs {
    /// Gateway file
    #[arg(value_name = "FILE")]
    pub file: Option<String>,
    /// Replica URL, repeatable; NAME=URL names it
    #[arg(long = "replica", value_name = "URL")]
    pub replicas: Vec<String>,
    /// Listen address for clients [default: the file's, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Admin address of /metrics, /v1/replicas and /readyz, or none [default: the file's, or none]
    #[arg(long, value_name = "ADDR:PORT|none")]
    pub admin: Option<String>,
    /// Address of the gRPC endpoint picker for Envoy, or none [default: the file's, or none]
    #[arg(long, value_name = "ADDR:PORT|none")]
    pub picker: Option<String>,
    /// Routing policy: least_cost, round_robin, least_requests, power_of_two, … [default: the file's, or least_cost]
    #[arg(long, value_name = "ROUTE")]
    pub route: Option<String>,
    /// Health endpoint of a replica [default: the file's, or /health]
    #[arg(long, value_name = "PATH")]
    pub health: Option<String>,
    /// Budget file that the admin address reports on [default: the file's, or none]
    #[arg(long, short = 'b', value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// Folder for records of requests without texts [default: the file's, or none]
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Plain replica names in x-plimsoll-replica [default: a hash]
    #[arg(long)]
    pub name_replicas: bool,
    /// Number of threads [default: cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// PEM file of additional trusted certificates
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Skip verification of the TLS certificates of replicas
    #[arg(long)]
    pub insecure: bool,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
    /// Suppress progress messages
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
