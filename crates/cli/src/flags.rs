//! The command line: what can be typed, in the words of the help text.
//!
//! Flags are sugar over the fields of the scenario ([`plimsoll_workload::Scenario`]); nothing is decided here. What
//! needs thinking (defaults that depend on each other, units, files) happens in `resolve`.

mod cold_start;
mod levers;
mod plan;
mod price;
mod profile;
mod what_if;

use std::path::PathBuf;

pub use cold_start::ColdStartArgs;
pub use levers::{LeversArgs, RankBy};
pub use plan::{PlanAction, PlanArgs, PlanSearchArgs, PlanVerifyArgs, PromiseArgs};
pub use price::PriceArgs;
pub use profile::ProfileArgs;
pub use what_if::{FitArgs, WhatIfArgs};

use clap::{Args, Parser, Subcommand, ValueEnum};

mod baseline;
mod budget;
pub mod calc;
mod collect;
mod compare;
mod diagnose_url;
mod gate;
mod gate_url;
mod history;
mod interleave;
mod quality;
mod rerun;

pub use baseline::{BaselineAction, BaselineArgs};
pub use budget::{BudgetAction, BudgetArgs, BudgetInitArgs, BudgetLintArgs, BudgetSplitArgs, Preset};
pub use collect::CollectArgs;
pub use compare::CompareArgs;
pub use diagnose_url::{DiagnoseArgs, DiagnoseUrlArgs};
pub use gate::GateArgs;
pub use gate_url::GateUrlArgs;
pub use history::HistoryArgs;
pub use interleave::InterleaveArgs;
pub use quality::QualityArgs;
pub use rerun::RerunArgs;

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

/// How results are printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Where results go.
#[derive(Args, Debug, Clone)]
pub struct OutputArgs {
    /// Run folder to write; must not exist [default: a new one under plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// How the result is printed to stdout
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// No progress on stderr
    #[arg(long, short = 'q', help_heading = "Output")]
    pub quiet: bool,
}

/// What is measured.
#[derive(Args, Debug, Clone, Default)]
pub struct TargetArgs {
    /// Endpoint: its base URL (http://host:8000/v1; kserve: http://host:8000/v2[/models/NAME]) or, with --protocol http,
    /// the whole URL
    pub url: String,
    /// Model to ask for [default: the only one the endpoint lists]
    #[arg(long, short = 'm', help_heading = "Target")]
    pub model: Option<String>,
    /// chat, completions, responses, embeddings, kserve (KServe v2, Triton) or http [default: chat]
    #[arg(long, value_name = "NAME", help_heading = "Target")]
    pub protocol: Option<String>,
    /// Body template for --protocol http: {{prompt}}, {{model}}, {{max_tokens}}, {{id}}; for kserve a whole request
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub body: Option<PathBuf>,
    /// Ask for whole answers instead of streams
    #[arg(long, help_heading = "Target")]
    pub no_stream: bool,
    /// Let the model end its answers where it likes (default: ask for exactly the drawn length)
    #[arg(long, help_heading = "Target")]
    pub natural_length: bool,
    /// Environment variable that holds the API key
    #[arg(long, value_name = "NAME", help_heading = "Target")]
    pub key_env: Option<String>,
    /// File that holds the API key
    #[arg(long, value_name = "FILE", conflicts_with = "key_env", help_heading = "Target")]
    pub key_file: Option<PathBuf>,
    /// Extra header; $NAME in its value is taken from the environment and never written down
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", help_heading = "Target")]
    pub headers: Vec<String>,
    /// Do not verify the TLS certificate
    #[arg(long, help_heading = "Target")]
    pub insecure: bool,
    /// PEM file with further trusted certificates
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub ca_file: Option<PathBuf>,
}

/// What the requests are.
#[derive(Args, Debug, Clone, Default)]
pub struct WorkloadArgs {
    /// Scenario file (YAML or JSON); flags override it. See: plimsoll schema scenario
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    pub spec: Option<PathBuf>,
    /// Prompt tokens: 512 | uniform:A,B | normal:MEAN,SD | lognormal:MEDIAN,SIGMA | empirical:FILE
    #[arg(long, value_name = "SIZES", help_heading = "Workload")]
    pub isl: Option<String>,
    /// Output tokens, in the same forms
    #[arg(long, value_name = "SIZES", help_heading = "Workload")]
    pub osl: Option<String>,
    /// Rows of a KServe request's batch, in the same forms [default: 1]
    #[arg(long, value_name = "SIZES", help_heading = "Workload")]
    pub batch: Option<String>,
    /// Lengths of a KServe input's open dimensions, repeatable: INPUT_IDS=384
    #[arg(long = "shape", value_name = "INPUT=LENGTHS", help_heading = "Workload")]
    pub shapes: Vec<String>,
    /// Replay a trace: Azure LLM CSV, Mooncake JSONL or ServeGen's clients (JSONL), plain or gzipped
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    pub trace: Option<PathBuf>,
    /// Replay this many times faster
    #[arg(long, value_name = "FACTOR", requires = "trace", help_heading = "Workload")]
    pub speed: Option<f64>,
    /// Prompts from a JSONL file ({"prompt": …} or {"messages": […]}, optional output_tokens)
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    pub prompts: Option<PathBuf>,
    /// Shared prefixes as SHARE,GROUPS: that share of each prompt is common to its group (0.5,8)
    #[arg(long, value_name = "SHARE,GROUPS", help_heading = "Workload")]
    pub prefix: Option<String>,
    /// Models or adapters (LoRA) to ask for, with their shares of the requests: base=3,sql-lora=1. Each is a class of its own
    #[arg(long, value_name = "NAME=WEIGHT,…", help_heading = "Workload")]
    pub models: Option<String>,
    /// Conversations as TURNS,THINK: that many turns, the think time between them (4,10s)
    #[arg(long, value_name = "TURNS,THINK", help_heading = "Workload")]
    pub sessions: Option<String>,
    /// Seed of everything drawn
    #[arg(long, help_heading = "Workload")]
    pub seed: Option<u64>,
    /// Nonce that salts the prompts [default: a new one per run, so that a warm cache can't bend the result]
    #[arg(long, help_heading = "Workload")]
    pub nonce: Option<u64>,
}

/// How the client behaves.
#[derive(Args, Debug, Clone, Default)]
pub struct ClientArgs {
    /// prewarmed | fresh (one per request) | pool:N [default: prewarmed]
    #[arg(long, value_name = "POLICY", help_heading = "Client")]
    pub connections: Option<String>,
    /// Give up on a request after this long [default: 10m]
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub timeout: Option<String>,
    /// Give up when no token has come after this long
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub first_token_timeout: Option<String>,
    /// Give up when nothing has come for this long
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub idle_timeout: Option<String>,
    /// Try a request again at most this often, with backoff and jitter [default: 0]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub retries: Option<u32>,
    /// Leave this share of the streams half-way, as readers do
    #[arg(long, value_name = "SHARE", help_heading = "Client")]
    pub cancel: Option<f64>,
    /// At most this many in flight; if it is ever reached, the level is no longer open loop and says so
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub max_in_flight: Option<u32>,
    /// Load-generating threads [default: cores − 1]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub workers: Option<usize>,
    /// Keep answers' texts in the run folder
    #[arg(long, help_heading = "Client")]
    pub keep_text: bool,
    #[command(flatten)]
    pub scrape: ScrapeArgs,
    /// Set any field of the scenario, repeatable: client.timeouts.connect=2s (see: plimsoll schema scenario)
    #[arg(long, value_name = "PATH=VALUE", help_heading = "Client")]
    pub set: Vec<String>,
}

/// What is looked at on the server's side while the load runs.
#[derive(Args, Debug, Clone, Default)]
pub struct ScrapeArgs {
    /// Page of metrics to read meanwhile, repeatable: URL or NAME=URL; off = none [default: found on the endpoint's host]
    #[arg(long, value_name = "URL", help_heading = "Server side")]
    pub scrape: Vec<String>,
    /// How often pages are read [default: 1s]
    #[arg(long, value_name = "TIME", help_heading = "Server side")]
    pub scrape_every: Option<String>,
}

/// Where it stops by itself.
#[derive(Args, Debug, Clone, Default)]
pub struct CeilingArgs {
    /// Never offer more than this rate
    #[arg(long, value_name = "RATE", help_heading = "Ceilings")]
    pub max_rate: Option<String>,
    /// Send no more requests than this (a closed loop may pass it by what is in flight)
    #[arg(long, value_name = "N", help_heading = "Ceilings")]
    pub max_requests: Option<u64>,
    /// Stop after this many failed requests
    #[arg(long, value_name = "N", help_heading = "Ceilings")]
    pub max_errors: Option<u64>,
    /// What it costs, said before and after.
    #[command(flatten)]
    pub price: PriceArgs,
}

/// How much load, and when.
#[derive(Args, Debug, Clone, Default)]
pub struct LoadArgs {
    /// Open loop: arrivals per second (12/s, 600/m), whatever the server does
    #[arg(long, value_name = "RATE", allow_hyphen_values = true, help_heading = "Load", conflicts_with_all = ["concurrency", "saturate"])]
    pub rate: Option<String>,
    /// Closed loop: this many in flight, each end starts the next
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with = "saturate")]
    pub concurrency: Option<u32>,
    /// Saturating: concurrency doubled until throughput stops growing
    #[arg(long, help_heading = "Load")]
    pub saturate: bool,
    /// With --concurrency: end after this many requests; the level is as long as they take
    #[arg(
        long,
        value_name = "N",
        requires = "concurrency",
        conflicts_with = "duration",
        help_heading = "Load"
    )]
    pub requests: Option<u64>,
    /// One wave: this many requests at once, and none after them
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with_all = ["rate", "concurrency", "saturate", "duration"])]
    pub wave: Option<u32>,
    /// Requests before the measured part: kept as rows of a level of their own, counted in no figure
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with = "saturate")]
    pub warm_up: Option<u32>,
    /// How long arrivals fall [default: 60s; a trace: its length]
    #[arg(long = "for", value_name = "TIME", help_heading = "Load")]
    pub duration: Option<String>,
    /// Arrival process: poisson | constant | gamma:CV | weibull:CV | onoff:ON,OFF[,FLOOR] | ramp:FROM,TO | step:A,B,… | spike:HEIGHT | diurnal:RATIO
    #[arg(long, value_name = "PROCESS", help_heading = "Load")]
    pub arrivals: Option<String>,
}

/// `plimsoll run`
#[derive(Args, Debug)]
pub struct RunArgs {
    /// What is measured.
    #[command(flatten)]
    pub target: TargetArgs,
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
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// What a sweep looks for.
#[derive(Args, Debug, Clone)]
pub struct SearchArgs {
    /// Bound of the whole sweep
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Search")]
    pub time: String,
    /// Hold the found line for this long before it is called sustained
    #[arg(long, value_name = "TIME", help_heading = "Search")]
    pub hold: Option<String>,
    /// Kinds of traffic to search, each by itself: steady, burst (gamma gaps, CV 3) or NAME=PROCESS
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "steady",
        help_heading = "Search"
    )]
    pub traffic: Vec<String>,
    /// Queueing onset = the load at which p99 ttft (e2e where answers come whole) reaches this many times its
    /// zero-contention value
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5, help_heading = "Search")]
    pub knee_factor: f64,
    /// A ceiling of the budget line, repeatable or separated by commas: "ttft p99 < 500ms", "e2e p50 < 60ms", "errors < 1%"
    #[arg(long = "slo", value_name = "CEILING", value_delimiter = ',', help_heading = "Search")]
    pub slo: Vec<String>,
}

/// `plimsoll sweep`
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// What is measured.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What is looked for.
    #[command(flatten)]
    pub search: SearchArgs,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How the client behaves.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where it stops by itself.
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
    /// Say what would be done and stop
    #[arg(long)]
    pub dry_run: bool,
}

/// `plimsoll demo`
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// Bound of the sweep
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub time: String,
    /// How long of it the found line is held, so that the percentiles there have enough requests [default: a sixth]
    #[arg(long, value_name = "TIME")]
    pub hold: Option<String>,
    /// Seed of everything drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `plimsoll engine`
#[derive(Args, Debug)]
pub struct EngineArgs {
    /// Simulation file whose engine, fleet and faults are served (YAML; see `plimsoll schema simulation`)
    pub spec: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:8000")]
    pub listen: String,
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
    /// Stop when stdin ends (for a parent process that may die)
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
    /// How --list is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `plimsoll calibrate`.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Run folder: every level is a row
    #[arg(required_unless_present = "from", conflicts_with = "from")]
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

/// `plimsoll validate`.
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
    /// Adapters (LoRA) it serves beside its model, as NAME+NAME:slots=N,load=TIME: slots are held at once per replica
    /// [default: as many as names, and no time to load]
    #[arg(long, value_name = "ADAPTERS", help_heading = "World")]
    pub adapters: Option<String>,
    /// What goes wrong, repeatable: stall:at=20s,for=2s | slow:factor=3,replica=1 | error:share=0.01,status=500 | …
    #[arg(long = "fault", value_name = "FAULT", help_heading = "World")]
    pub faults: Vec<String>,
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

/// `plimsoll show`
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Run folder, or a file with traces
    pub run: PathBuf,
    /// What the endpoint costs.
    #[command(flatten)]
    pub price: PriceArgs,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `plimsoll report`
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Run folder
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

/// `plimsoll doctor`
#[derive(Args, Debug)]
pub struct DoctorArgs {
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
