//! The flags of `plimsoll calc`: one formula and its inputs with their units.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::OutputFormat;

/// `plimsoll calc`
#[derive(Args, Debug)]
pub struct CalcArgs {
    /// Law to calculate [default: a list of the laws]
    #[command(subcommand)]
    pub law: Option<CalcLaw>,
}

/// The laws.
#[derive(Subcommand, Debug)]
pub enum CalcLaw {
    /// Little's law: requests in flight = rate × time
    Little(LittleArgs),
    /// Utilisation of servers, and the servers that a limit needs
    Utilisation(UtilisationArgs),
    /// M/M/1: one server, random arrivals and service times
    Mm1(Mm1Args),
    /// M/M/c: c servers and one queue
    Mmc(MmcArgs),
    /// M/G/1: one server with measured variation of service times
    Mg1(Mg1Args),
    /// Amdahl's law: speed-up of the total by a faster part
    Amdahl(AmdahlArgs),
    /// Fan-out: share of slow responses that need n calls
    Fanout(FanoutArgs),
}

/// Output of a law.
#[derive(Args, Debug, Clone, Default)]
pub struct ShownArgs {
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: OutputFormat,
    /// Short form of --format json
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

impl ShownArgs {
    /// Returns whether the output is JSON.
    pub fn as_json(&self) -> bool {
        self.json || self.format == OutputFormat::Json
    }
}

/// A kind of server.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServedBy {
    /// Servers that process one request at a time.
    Queue,
    /// An LLM engine, which batches step by step.
    Llm,
    /// A model server that batches whole requests, such as Triton.
    Batcher,
}

/// Parameters of every queue.
#[derive(Args, Debug, Clone)]
pub struct StationArgs {
    /// Mean service time of one request: 200ms
    #[arg(long, value_name = "TIME")]
    pub service: String,
    /// Percentiles: 99 or 50,95,99.9 [default: 50,95,99 where the law has them]
    #[arg(long, value_name = "P", value_delimiter = ',')]
    pub p: Vec<String>,
    /// Kind of server; batching servers have no percentiles by these laws
    #[arg(long = "for", value_enum, value_name = "KIND")]
    pub served: Option<ServedBy>,
    /// Engine profile or file that sets the kind of server
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "served")]
    pub profile: Option<String>,
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// Arrivals.
#[derive(Args, Debug, Clone)]
pub struct DemandArgs {
    /// Arrivals: 50/s, 600/m
    #[arg(long, value_name = "RATE", required_unless_present_any = ["utilisation", "waiting"])]
    pub rate: Option<String>,
    /// Utilisation in place of a rate (80%)
    #[arg(long, value_name = "SHARE", conflicts_with = "rate")]
    pub utilisation: Option<String>,
    /// Mean number of waiting requests in place of a rate (one server)
    #[arg(long, value_name = "N", conflicts_with_all = ["rate", "utilisation"])]
    pub waiting: Option<f64>,
}

/// `plimsoll calc little`
#[derive(Args, Debug)]
pub struct LittleArgs {
    /// Throughput: 50/s
    #[arg(long, value_name = "RATE")]
    pub rate: Option<String>,
    /// Time in the system: 2s
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// Requests in the system
    #[arg(long, value_name = "N")]
    pub in_flight: Option<f64>,
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
    /// Number of servers [default: the fewest that keep the limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub servers: Option<u32>,
    /// Concurrent requests per replica
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Highest utilisation [default: 80%]
    #[arg(long, value_name = "SHARE")]
    pub ceiling: Option<String>,
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// `plimsoll calc mm1`
#[derive(Args, Debug)]
pub struct Mm1Args {
    #[command(flatten)]
    pub demand: DemandArgs,
    #[command(flatten)]
    pub station: StationArgs,
}

/// `plimsoll calc mmc`
#[derive(Args, Debug)]
pub struct MmcArgs {
    /// Servers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub servers: u32,
    #[command(flatten)]
    pub demand: DemandArgs,
    #[command(flatten)]
    pub station: StationArgs,
}

/// `plimsoll calc mg1`
#[derive(Args, Debug)]
pub struct Mg1Args {
    /// Variation of the service times: standard deviation over mean
    #[arg(long, value_name = "CV")]
    pub cv: f64,
    #[command(flatten)]
    pub demand: DemandArgs,
    #[command(flatten)]
    pub station: StationArgs,
}

/// `plimsoll calc amdahl`
#[derive(Args, Debug)]
pub struct AmdahlArgs {
    /// Share of the total time that the part takes: 70%
    #[arg(long, value_name = "SHARE")]
    pub share: Option<String>,
    /// Speed-up of the part
    #[arg(long, value_name = "TIMES")]
    pub factor: Option<f64>,
    /// Speed-up of the total
    #[arg(long, value_name = "TIMES")]
    pub speed_up: Option<f64>,
    #[command(flatten)]
    pub shown: ShownArgs,
}

/// The latency of one call.
#[derive(Args, Debug, Clone)]
pub struct LatencyArgs {
    /// Exponential latency with this mean: 200ms
    #[arg(long, value_name = "TIME", conflicts_with = "sample")]
    pub mean: Option<String>,
    /// Measured latencies: a file with one per line (120ms), or a run folder (e2e)
    #[arg(long, value_name = "FILE|RUN")]
    pub sample: Option<PathBuf>,
}

/// `plimsoll calc fanout`
#[derive(Args, Debug)]
pub struct FanoutArgs {
    /// Parallel calls that one response needs
    #[arg(long, value_name = "N")]
    pub calls: u32,
    /// Percentiles [default: 95,99]
    #[arg(long, value_name = "P", value_delimiter = ',')]
    pub p: Vec<String>,
    #[command(flatten)]
    pub latency: LatencyArgs,
    #[command(flatten)]
    pub shown: ShownArgs,
}
