//! Flags that several commands share: target, load, requests, client, limits and output.

use std::path::PathBuf;

use clap::Args;
use plimsoll_watchd::serve::ReadersSpec;

use super::{OutputFormat, PriceArgs};

/// The endpoint and its credentials.
#[derive(Args, Debug, Clone, Default)]
pub struct TargetArgs {
    /// Base URL of the endpoint: http://host:8000/v1; KServe http://host:8000/v2 or grpc://host:8001; Ollama http://host:11434; --protocol http the whole URL
    pub url: String,
    /// Model name [default: the only model that the endpoint lists]
    #[arg(long, short = 'm', help_heading = "Target")]
    pub model: Option<String>,
    /// Protocol: chat, completions, responses, embeddings, messages, ollama_chat, ollama_generate, rerank, score, pooling, classify, transcriptions, speech, images, kserve, kserve_grpc, http [default: chat]
    #[arg(long, visible_alias = "api", value_name = "NAME", help_heading = "Target")]
    pub protocol: Option<String>,
    /// Body template of --protocol http ({{prompt}}, {{model}}, {{max_tokens}}, {{id}}), or a whole KServe request
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub body: Option<PathBuf>,
    /// Whole responses instead of streams
    #[arg(long, help_heading = "Target")]
    pub no_stream: bool,
    /// Response length by the model [default: exactly the drawn length]
    #[arg(long, help_heading = "Target")]
    pub natural_length: bool,
    /// Environment variable of the API key
    #[arg(long, value_name = "NAME", help_heading = "Target")]
    pub key_env: Option<String>,
    /// File with the API key; reloaded when it changes
    #[arg(long, value_name = "FILE", conflicts_with = "key_env", help_heading = "Target")]
    pub key_file: Option<PathBuf>,
    /// Extra header, repeatable; $NAME inserts an environment variable; {session}, {request}, {trace} and {span} insert identifiers
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", help_heading = "Target")]
    pub headers: Vec<String>,
    /// Skip verification of the TLS certificate
    #[arg(long, help_heading = "Target")]
    pub insecure: bool,
    /// PEM file of additional trusted certificates
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client certificate; reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "client_key", help_heading = "Target")]
    pub client_cert: Option<PathBuf>,
    /// PEM file of the key of --client-cert
    #[arg(long, value_name = "FILE", requires = "client_cert", help_heading = "Target")]
    pub client_key: Option<PathBuf>,
}

/// The requests: sizes, sources and seeds.
#[derive(Args, Debug, Clone, Default)]
pub struct WorkloadArgs {
    /// Scenario file (YAML or JSON); flags override its fields
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    pub spec: Option<PathBuf>,
    /// Prompt tokens: 512, uniform:A,B, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or empirical:FILE
    #[arg(long, value_name = "SIZES", help_heading = "Workload")]
    pub isl: Option<String>,
    /// Output tokens, in the forms of --isl
    #[arg(long, value_name = "SIZES", help_heading = "Workload")]
    pub osl: Option<String>,
    /// Documents per request, or N*SIZES for their number and length: 20, uniform:5,50, 20*lognormal:120,0.6 [default: rerank and score 10, others 1]
    #[arg(long, value_name = "N[*SIZES]", help_heading = "Workload")]
    pub documents: Option<String>,
    /// Rows per KServe request, in the forms of --isl [default: 1]
    #[arg(long, value_name = "SIZES", help_heading = "Workload")]
    pub batch: Option<String>,
    /// Length of an open dimension of a KServe input, repeatable: INPUT_IDS=384
    #[arg(long = "shape", value_name = "INPUT=LENGTHS", help_heading = "Workload")]
    pub shapes: Vec<String>,
    /// Trace to replay: Azure LLM CSV, Mooncake JSONL or ServeGen JSONL, plain or gzipped
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    pub trace: Option<PathBuf>,
    /// Speed-up of the trace
    #[arg(long, value_name = "FACTOR", requires = "trace", help_heading = "Workload")]
    pub speed: Option<f64>,
    /// JSONL file of prompts ({"prompt": …} or {"messages": […]}, optional output_tokens)
    #[arg(long, value_name = "FILE", help_heading = "Workload")]
    pub prompts: Option<PathBuf>,
    /// Shared prefixes: the share of each prompt, and the number of groups (0.5,8)
    #[arg(long, value_name = "SHARE,GROUPS", help_heading = "Workload")]
    pub prefix: Option<String>,
    /// Models or LoRA adapters with weights (base=3,sql-lora=1); the results list each model
    #[arg(long, value_name = "NAME=WEIGHT,…", help_heading = "Workload")]
    pub models: Option<String>,
    /// Conversations: turns and think time between them (4,10s)
    #[arg(long, value_name = "TURNS,THINK", help_heading = "Workload")]
    pub sessions: Option<String>,
    /// The server's own answers in the prompts of later turns [default: text of equal length]
    #[arg(long, help_heading = "Workload")]
    pub real_answers: bool,
    /// Images per message: 1024x768, 3*uniform:256,2048xuniform:256,2048 (number, width, height)
    #[arg(long, value_name = "[N*]WIDTHxHEIGHT", help_heading = "Workload")]
    pub images: Option<String>,
    /// Audio clips per message: 5s, 2*lognormal:10s,0.5 (number, length)
    #[arg(long, value_name = "[N*]TIME", help_heading = "Workload")]
    pub audio: Option<String>,
    /// Random seed of lengths, arrivals and prompts
    #[arg(long, help_heading = "Workload")]
    pub seed: Option<u64>,
    /// Number that makes the prompts unique [default: a new number per run, against warm caches]
    #[arg(long, help_heading = "Workload")]
    pub nonce: Option<u64>,
}

/// The client: connections, time limits and retries.
#[derive(Args, Debug, Clone, Default)]
pub struct ClientArgs {
    /// Connection policy: prewarmed, fresh (one per request) or pool:N [default: prewarmed]
    #[arg(long, value_name = "POLICY", help_heading = "Client")]
    pub connections: Option<String>,
    /// HTTP version; 2 uses ALPN over https:// and prior knowledge otherwise [default: 1.1; gRPC: 2]
    #[arg(long, value_name = "VERSION", value_parser = ["1.1", "2"], help_heading = "Client")]
    pub http: Option<String>,
    /// Highest number of concurrent HTTP/2 requests per connection [default: the server's limit]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub streams_per_connection: Option<u32>,
    /// Time limit of a request [default: 10m]
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub timeout: Option<String>,
    /// Time limit until the first token
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub first_token_timeout: Option<String>,
    /// Time limit between two parts of a response
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub idle_timeout: Option<String>,
    /// Highest number of retries of a request, with backoff and jitter [default: 0]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub retries: Option<u32>,
    /// Share of streams that the client cancels half-way
    #[arg(long, value_name = "SHARE", help_heading = "Client")]
    pub cancel: Option<f64>,
    /// Highest number of requests in flight; the report says if the load reached it
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub max_in_flight: Option<u32>,
    /// Threads that generate load [default: cores − 1]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub workers: Option<usize>,
    /// Longest wait for a target that is still loading its model
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub wait_ready: Option<String>,
    /// Request to the target before each level: "POST /reset_prefix_cache"
    #[arg(long, value_name = "METHOD PATH", help_heading = "Client")]
    pub before_level: Option<String>,
    /// Load even if the target refuses the first requests
    #[arg(long, help_heading = "Client")]
    pub force: bool,
    /// Texts of responses in the run folder
    #[arg(long, help_heading = "Client")]
    pub keep_text: bool,
    #[command(flatten)]
    pub scrape: ScrapeArgs,
    /// Value of any scenario field, repeatable: client.timeouts.connect=2s (fields: plimsoll schema scenario)
    #[arg(long, value_name = "PATH=VALUE", help_heading = "Client")]
    pub set: Vec<String>,
}

/// Metrics endpoints that the client scrapes during the load.
#[derive(Args, Debug, Clone, Default)]
pub struct ScrapeArgs {
    /// Metrics endpoint to scrape, repeatable: URL or NAME=URL; off scrapes none, endpoint no exporters [default: found on the endpoint's host]
    #[arg(long, value_name = "URL", help_heading = "Server side")]
    pub scrape: Vec<String>,
    /// Scrape interval of the metrics endpoints [default: 1s]
    #[arg(long, value_name = "TIME", help_heading = "Server side")]
    pub scrape_every: Option<String>,
}

/// Limits that stop a load.
#[derive(Args, Debug, Clone, Default)]
pub struct CeilingArgs {
    /// Highest rate to offer
    #[arg(long, value_name = "RATE", help_heading = "Ceilings")]
    pub max_rate: Option<String>,
    /// Highest number of requests (a closed loop also finishes the requests in flight)
    #[arg(long, value_name = "N", help_heading = "Ceilings")]
    pub max_requests: Option<u64>,
    /// Number of failed requests that stops the load
    #[arg(long, value_name = "N", help_heading = "Ceilings")]
    pub max_errors: Option<u64>,
    #[command(flatten)]
    pub price: PriceArgs,
}

/// The load: rate or concurrency, duration and arrivals.
#[derive(Args, Debug, Clone, Default)]
pub struct LoadArgs {
    /// Open loop: arrivals per second, independent of responses (12/s, 600/m)
    #[arg(long, alias = "rps", value_name = "RATE", allow_hyphen_values = true, help_heading = "Load", conflicts_with_all = ["concurrency", "saturate"])]
    pub rate: Option<String>,
    /// Closed loop: constant number of requests in flight
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with = "saturate")]
    pub concurrency: Option<u32>,
    /// Saturation: double the concurrency until throughput stops growing
    #[arg(long, help_heading = "Load")]
    pub saturate: bool,
    /// Number of requests of a closed loop
    #[arg(
        long,
        value_name = "N",
        requires = "concurrency",
        conflicts_with = "duration",
        help_heading = "Load"
    )]
    pub requests: Option<u64>,
    /// One burst of N concurrent requests
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with_all = ["rate", "concurrency", "saturate", "duration"])]
    pub wave: Option<u32>,
    /// Requests before the measured part; no figure counts them
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with = "saturate")]
    pub warm_up: Option<u32>,
    /// Sequential requests before an open loop, for the latency without load (diagnose needs 20)
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with_all = ["concurrency", "saturate", "wave"])]
    pub alone: Option<u32>,
    /// Duration of arrivals [default: 60s; a trace: its length]
    #[arg(long = "for", value_name = "TIME", help_heading = "Load")]
    pub duration: Option<String>,
    /// Precision at which the run ends, such as "ttft p99 ±5%"; --for is then the longest time [default: 30m]
    #[arg(long, value_name = "FIGURE", allow_hyphen_values = true, help_heading = "Load", conflicts_with_all = ["saturate", "wave", "requests"])]
    pub until: Option<String>,
    /// Arrival process: poisson, constant, gamma:CV, weibull:CV, onoff:ON,OFF[,FLOOR], ramp:FROM,TO, step:A,B,…, spike:HEIGHT or diurnal:RATIO
    #[arg(long, value_name = "PROCESS", help_heading = "Load")]
    pub arrivals: Option<String>,
}

/// Access to the pages from other machines.
#[derive(Args, Debug, Clone, Default)]
pub struct ReadersArgs {
    /// Access from other machines without a key
    #[arg(long)]
    pub listen_open: bool,
    /// Environment variable of the access key, which opens the pages to other machines (bearer token, or password of any user)
    #[arg(long, value_name = "NAME")]
    pub listen_key_env: Option<String>,
}

impl ReadersArgs {
    /// Returns the access that the flags permit.
    pub fn spec(&self) -> ReadersSpec {
        ReadersSpec { open: self.listen_open, key_env: self.listen_key_env.clone() }
    }
}

/// Output of a run.
#[derive(Args, Debug, Clone)]
pub struct OutputArgs {
    /// Run folder to create [default: a new folder in plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Name of the run
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    pub label: Option<String>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: OutputFormat,
    /// Suppress progress messages
    #[arg(long, short = 'q', help_heading = "Output")]
    pub quiet: bool,
}
