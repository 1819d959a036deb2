//! What `gateway` can be told.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `plimsoll gateway`.
#[derive(Args, Debug)]
pub struct GatewayArgs {
    /// A gateway file; before it the word check: say whether the file is sound and which replicas answer, and end.
    /// Or explain RUN [REQUEST]: why what was recorded there went where it went.
    /// Or key NAME: make a key, print it this once and the line that the file needs
    #[arg(value_name = "FILE")]
    pub file: Vec<String>,
    /// A server behind the gateway, http://host:8000; NAME=URL names it. Once for each
    #[arg(long = "replica", value_name = "URL")]
    pub replicas: Vec<String>,
    /// Where clients connect [default: the file's, or 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Where /metrics, /v1/replicas and /readyz are served, or none [default: the file's, or none]
    #[arg(long, value_name = "ADDR:PORT|none")]
    pub admin: Option<String>,
    /// Where Envoys, and other proxies of a cluster, ask by gRPC which replica gets a request that they carry themselves, or none [default: the file's, or none]
    #[arg(long, value_name = "ADDR:PORT|none")]
    pub picker: Option<String>,
    /// How requests are spread: least_cost, round_robin, least_requests, power_of_two, … [default: the file's, or least_cost]
    #[arg(long, value_name = "ROUTE")]
    pub route: Option<String>,
    /// The page by which it is seen that a replica answers [default: the file's, or /health]
    #[arg(long, value_name = "PATH")]
    pub health: Option<String>,
    /// Hold what comes to this budget file: its state on the admin address [default: the file's, or none]
    #[arg(long, short = 'b', value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// Record each request, without its text, as runs under this folder [default: the file's, or not at all]
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// Name the replica in each answer's x-plimsoll-replica; otherwise it carries a hash of the name
    #[arg(long)]
    pub name_replicas: bool,
    /// Threads [default: as many as cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// PEM file of further trusted roots
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Do not check the replicas' certificates
    #[arg(long)]
    pub insecure: bool,
    /// How the end, and check, are printed to stdout
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// No talk on stderr
    #[arg(long, short = 'q')]
    pub quiet: bool,
}
