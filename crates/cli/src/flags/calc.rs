//! What can be typed after `plimsoll calc`: one law, its figures with their units.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Format;

/// `plimsoll calc`
#[derive(Args, Debug)]
pub struct CalcArgs {
    /// The law; none = list them.
    #[command(subcommand)]
    pub law: Option<CalcLaw>,
}

/// The laws.
#[derive(Subcommand, Debug)]
pub enum CalcLaw {
    /// Requests in flight = rate × time: any one of the three from the other two
    Little(LittleArgs),
    /// How busy servers are, and how many a ceiling takes
    Utilisation(UtilisationArgs),
    /// One server, random arrivals and services
    Mm1(Mm1Args),
    /// c servers, one queue
    Mmc(MmcArgs),
    /// One server whose services vary as measured
    Mg1(Mg1Args),
    /// What a faster part brings the whole
    Amdahl(AmdahlArgs),
    /// A page of n calls: how often one is slow, and what each has to meet
    Fanout(FanoutArgs),
}

/// How the answer is shown.
#[derive(Args, Debug, Clone, Default)]
pub struct ShownArgs {
    /// How it is printed
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// The same as --format json
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl ShownArgs {
    /// For programs?
    pub fn as_json(&self) -> bool {
        self.json || self.format == Format::Json
    }
}

/// What kind of server it is.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServedBy {
    /// Servers that take one request each.
    Queue,
    /// An LLM engine, which batches step by step.
    Llm,
    /// A model server that batches whole requests, such as Triton.
    Batcher,
}

/// What is asked of every queue.
#[derive(Args, Debug, Clone)]
pub struct StationArgs {
    /// Mean service time of one request: 200ms
    #[arg(long, value_name = "TIME")]
    pub service: String,
    /// Percentiles, such as 99 or 50,95,99.9 [default: 50,95,99 where the law has them]
    #[arg(long, value_name = "P", value_delimiter = ',')]
    pub p: Vec<String>,
    /// What serves; percentiles are refused for what batches
    #[arg(long = "for", value_enum, value_name = "KIND")]
    pub served: Option<ServedBy>,
    /// The engine that is meant, such as llama-3.1-8b@h100 or a file: says what serves
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "served")]
    pub profile: Option<String>,
    /// How it is shown.
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// How much comes.
#[derive(Args, Debug, Clone)]
pub struct DemandArgs {
    /// Arrivals: 50/s, 600/m
    #[arg(long, value_name = "RATE", required_unless_present_any = ["utilisation", "waiting"])]
    pub rate: Option<String>,
    /// Instead: the share of the time that each server is busy (80%)
    #[arg(long, value_name = "SHARE", conflicts_with = "rate")]
    pub utilisation: Option<String>,
    /// Instead, of one server: how many wait on average
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "utilisation"])]
    pub waiting: Option<f64>,
}

/// `plimsoll calc little`
#[derive(Args, Debug)]
pub struct LittleArgs {
    /// What passes through: 50/s
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// The time that one spends inside: 2s
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// How many are inside
    #[arg(long, value_name = "N")]
    pub in_flight: Option<f64>,
    /// How it is shown.
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// `plimsoll calc utilisation`
#[derive(Args, Debug)]
pub struct UtilisationArgs {
    /// Arrivals: 50/s
    #[arg(long, value_name = "RATE")]
    pub rate: String,
    /// Mean service time of one request: 2s
    #[arg(long, value_name = "TIME")]
    pub service: String,
    /// Servers in all [default: as many as the ceiling takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub servers: Option<u32>,
    /// Servers of one replica: how many requests it takes at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Utilisation not to pass [default: 80%]
    #[arg(long, value_name = "SHARE")]
    pub ceiling: Option<String>,
    /// How it is shown.
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// `plimsoll calc mm1`
#[derive(Args, Debug)]
pub struct Mm1Args {
    /// How much comes.
    #[command(flatten)]
    pub demand: DemandArgs,
    /// The rest.
    #[command(flatten)]
    pub station: StationArgs,
}

/// `plimsoll calc mmc`
#[derive(Args, Debug)]
pub struct MmcArgs {
    /// Servers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub servers: u32,
    /// How much comes.
    #[command(flatten)]
    pub demand: DemandArgs,
    /// The rest.
    #[command(flatten)]
    pub station: StationArgs,
}

/// `plimsoll calc mg1`
#[derive(Args, Debug)]
pub struct Mg1Args {
    /// Variation of the service times: standard deviation over mean
    #[arg(long, value_name = "CV")]
    pub cv: f64,
    /// How much comes.
    #[command(flatten)]
    pub demand: DemandArgs,
    /// The rest.
    #[command(flatten)]
    pub station: StationArgs,
}

/// `plimsoll calc amdahl`
#[derive(Args, Debug)]
pub struct AmdahlArgs {
    /// The part's share of the whole's time: 70%
    #[arg(long, value_name = "SHARE")]
    pub share: Option<String>,
    /// How many times faster the part becomes
    #[arg(long, value_name = "TIMES")]
    pub factor: Option<f64>,
    /// How many times faster the whole becomes
    #[arg(long, value_name = "TIMES")]
    pub speed_up: Option<f64>,
    /// How it is shown.
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// The latency of one call.
#[derive(Args, Debug, Clone)]
pub struct LatencyArgs {
    /// Exponential latency with this mean: 200ms
    #[arg(long, value_name = "TIME", conflicts_with = "sample")]
    pub mean: Option<String>,
    /// Latencies as measured: a file of one each line (120ms), or a run folder (its e2e)
    #[arg(long, value_name = "FILE|RUN")]
    pub sample: Option<PathBuf>,
}

/// `plimsoll calc fanout`
#[derive(Args, Debug)]
pub struct FanoutArgs {
    /// Calls of a page, all of them needed
    #[arg(long, value_name = "N")]
    pub calls: u32,
    /// Percentiles [default: 95,99]
    #[arg(long, value_name = "P", value_delimiter = ',')]
    pub p: Vec<String>,
    /// The latency of one call.
    #[command(flatten)]
    pub latency: LatencyArgs,
    /// How it is shown.
    #[command(flatten)]
    pub shown: ShownArgs,
}
