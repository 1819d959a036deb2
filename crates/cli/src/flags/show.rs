//! The flags of what shows and measures nothing: `plimsoll show`, `report`, `doctor` and `schema`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Format, PriceArgs};

/// `plimsoll show`
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Run folder, or a file with traces
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    /// What the endpoint costs.
    #[command(flatten)]
    pub price: PriceArgs,
    /// Print every metric, what the server and the network path say, and each check that was passed
    #[arg(long, conflicts_with_all = ["format", "html", "csv"])]
    pub details: bool,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Write one row per request with its ttft, e2e and tpot to this file (CSV), instead
    #[arg(long, value_name = "FILE", conflicts_with_all = ["format", "html"])]
    pub csv: Option<PathBuf>,
    /// Write it as one HTML file that opens offline, instead
    #[arg(long, conflicts_with = "format")]
    pub html: bool,
    /// File of --html [default: report.html in the run folder]
    #[arg(long, short = 'o', value_name = "FILE", requires = "html")]
    pub out: Option<PathBuf>,
    /// Plan that was made of the run (plimsoll plan … -o FILE): it becomes a part of the page
    #[arg(long, value_name = "FILE", requires = "html")]
    pub plan: Option<PathBuf>,
}

/// `plimsoll ls`
#[derive(Args, Debug)]
pub struct LsArgs {
    /// Folder with runs
    #[arg(default_value = crate::named::HOME)]
    pub dir: PathBuf,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `plimsoll report`, the old name of `show --html`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Run folder
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    /// What the endpoint costs.
    #[command(flatten)]
    pub price: PriceArgs,
    /// Plan that was made of the run (plimsoll plan … -o FILE): it becomes a part of the page
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// File to write [default: report.html in the run folder]
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `plimsoll selftest`
#[derive(Args, Debug)]
pub struct SelftestArgs {
    /// Page to write: what was checked and what came of it, to be shown to others
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Seed of the load's arrivals and prompts
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// No words on the way
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `plimsoll doctor`
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Look while this endpoint answers a short load as well: an engine on this machine takes cores only when it works
    pub url: Option<String>,
    /// Model to ask for [default: the only one the endpoint lists]
    #[arg(long, short = 'm', requires = "url")]
    pub model: Option<String>,
    /// chat, completions, responses, embeddings, kserve, kserve_grpc or http [default: chat]
    #[arg(long, value_name = "NAME", requires = "url")]
    pub protocol: Option<String>,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "NAME", requires = "url")]
    pub key_env: Option<String>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 4, requires = "url", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub concurrency: u32,
    /// How long
    #[arg(long = "for", value_name = "TIME", default_value = "5s", requires = "url")]
    pub window: String,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// What has a schema.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchemaOf {
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
    /// What plimsoll gate --format json prints.
    Gate,
    /// What plimsoll compare --format json prints.
    Comparison,
    /// What plimsoll levers --format json prints.
    Levers,
    /// What plimsoll diagnose RUN --format json prints.
    Diagnosis,
    /// The plan file: what plimsoll plan -o writes and --format json prints.
    Plan,
    /// The bands of plimsoll plan --band.
    Band,
    /// The rules of plimsoll profile: which span is which stage.
    Stages,
    /// The stages of plimsoll budget split.
    Split,
    /// What plimsoll calc --format json prints.
    Law,
}

/// `plimsoll schema`
#[derive(Args, Debug)]
pub struct SchemaArgs {
    /// Of what
    #[arg(value_enum, default_value = "scenario")]
    pub of: SchemaOf,
}
