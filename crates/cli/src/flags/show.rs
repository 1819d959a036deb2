//! The flags of what shows and measures nothing: `plimsoll show`, `browse`, `report`, `doctor` and `schema`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plimsoll_wire::kserve::batching::CompiledBatch;

use super::{OutputFormat, PriceArgs};

/// `plimsoll show`
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Run folder or trace file
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    #[command(flatten)]
    pub price: PriceArgs,
    /// All metrics, server and network data, and passed checks
    #[arg(long, conflicts_with_all = ["format", "html", "csv"])]
    pub details: bool,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
    /// CSV file with one row per request (ttft, e2e, tpot)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "html"])]
    pub csv: Option<PathBuf>,
    /// HTML page of the run
    #[arg(long, conflicts_with = "format")]
    pub html: bool,
    /// File of --html [default: report.html in the run folder]
    #[arg(long, short = 'o', value_name = "FILE", requires = "html")]
    pub out: Option<PathBuf>,
    /// Plan file of the run, shown on the page
    #[arg(long, value_name = "FILE", requires = "html")]
    pub plan: Option<PathBuf>,
}

/// `plimsoll ls`
#[derive(Args, Debug)]
pub struct LsArgs {
    /// Folder with runs
    #[arg(default_value = crate::named::HOME)]
    pub dir: PathBuf,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// `plimsoll browse`.
#[derive(Args, Debug)]
pub struct BrowseArgs {
    /// Folder with runs
    #[arg(default_value = crate::named::HOME)]
    pub dir: PathBuf,
    /// Address of the page, on loopback [default: a free port]
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", hide_default_value = true)]
    pub listen: SocketAddr,
    /// HTML file to write instead, for example as a CI artefact
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `plimsoll report`, the old name of `show --html`.
#[derive(Args, Debug, Default)]
pub struct ReportArgs {
    /// Run folder
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    #[command(flatten)]
    pub price: PriceArgs,
    /// Plan file of the run, shown on the page
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// File to create [default: report.html in the run folder]
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `plimsoll selftest`
#[derive(Args, Debug)]
pub struct SelftestArgs {
    /// HTML file of the checks
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Suppress progress messages
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// `plimsoll doctor`
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Endpoint to check under a short load
    pub url: Option<String>,
    /// Model name [default: the only model that the endpoint lists]
    #[arg(long, short = 'm', requires = "url")]
    pub model: Option<String>,
    /// Protocol: chat, completions, responses, embeddings, kserve, kserve_grpc or http [default: chat]
    #[arg(long, value_name = "NAME", requires = "url")]
    pub protocol: Option<String>,
    /// Environment variable of the API key
    #[arg(long, value_name = "NAME", requires = "url")]
    pub key_env: Option<String>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 4, requires = "url", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,
    /// Duration of the load
    #[arg(long = "for", value_name = "TIME", default_value = "5s", requires = "url")]
    pub window: String,
    /// Compiled batch sizes of a TensorRT plan behind Triton: --minShapes, --optShapes and --maxShapes in rows
    #[arg(long, value_name = "MIN,OPT,MAX", requires = "url")]
    pub compiled_batch: Option<CompiledBatch>,
    /// Latency limit for Triton's queue delay, repeatable: "e2e p95 < 50ms"
    #[arg(long = "slo", value_name = "LIMIT", value_delimiter = ',', requires = "url")]
    pub slo: Vec<String>,
    /// Budget file in place of --slo
    #[arg(long, short = 'b', value_name = "FILE", conflicts_with = "slo", requires = "url")]
    pub budget: Option<PathBuf>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// A file format with a JSON Schema.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchemaOf {
    /// The head of every JSON answer.
    Answer,
    /// The scenario file of --spec.
    Scenario,
    /// run.json.
    Manifest,
    /// The findings inside run.json.
    Findings,
    /// A line of the evaluation file of plimsoll quality.
    Eval,
    /// The file of plimsoll gateway.
    Gateway,
    /// The results file of plimsoll quality.
    Quality,
    /// An engine profile.
    Profile,
    /// The simulation file of plimsoll simulate.
    Simulation,
    /// The price file of --price.
    Price,
    /// A budget file.
    Budget,
    /// Output of plimsoll gate --format json.
    Gate,
    /// Output of plimsoll compare --format json.
    Comparison,
    /// Output of plimsoll levers --format json.
    Levers,
    /// Output of plimsoll diagnose --format json.
    Diagnosis,
    /// Plan file of plimsoll plan.
    Plan,
    /// The bands of plimsoll plan --band.
    Band,
    /// Output of plimsoll audit --format json.
    Audit,
    /// Output of plimsoll tradeoff --format json.
    Tradeoff,
    /// Output of plimsoll tune --format json.
    Tune,
    /// Stage rules of plimsoll profile.
    Stages,
    /// The stages of plimsoll budget split.
    Split,
    /// Output of plimsoll calc --format json.
    Law,
    /// A line of --progress json.
    Progress,
}

/// `plimsoll schema`
#[derive(Args, Debug)]
pub struct SchemaArgs {
    /// File format
    #[arg(value_enum, default_value = "scenario")]
    pub of: SchemaOf,
}
