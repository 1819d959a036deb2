//! Flags that several commands share: the target, the load, the requests, the client, where it stops, where results go.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::PriceArgs;

/// What is measured.
#[derive(Args, Debug, Clone, Default)]
pub struct TargetArgs {
    /// Endpoint: its base URL (http://host:8000/v1; kserve: http://host:8000/v2[/models/NAME], over gRPC grpc://host:8001[/v2/models/NAME]; Ollama: http://host:11434) or, with --protocol http,
    /// the whole URL
    pub url: String,
    /// Model to ask for [default: the only one the endpoint lists]
    #[arg(long, short = 'm', help_heading = "Target")]
    pub model: Option<String>,
    /// chat, completions, responses, embeddings, messages (Anthropic), ollama_chat, ollama_generate, rerank, score, pooling, classify, transcriptions, kserve (KServe v2, Triton), kserve_grpc (the same over gRPC) or http [default: chat]
    #[arg(long, visible_alias = "api", value_name = "NAME", help_heading = "Target")]
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
    /// File that holds the API key; read again when it changes
    #[arg(long, value_name = "FILE", conflicts_with = "key_env", help_heading = "Target")]
    pub key_file: Option<PathBuf>,
    /// Extra header; $NAME in its value is taken from the environment and never written down,
    /// {session}, {request}, {trace} and {span} name each request
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", help_heading = "Target")]
    pub headers: Vec<String>,
    /// Do not verify the TLS certificate
    #[arg(long, help_heading = "Target")]
    pub insecure: bool,
    /// PEM file with further trusted certificates
    #[arg(long, value_name = "FILE", help_heading = "Target")]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the certificate that is shown where the server asks for one; read again when it changes
    #[arg(long, value_name = "FILE", requires = "client_key", help_heading = "Target")]
    pub client_cert: Option<PathBuf>,
    /// PEM file of its key
    #[arg(long, value_name = "FILE", requires = "client_cert", help_heading = "Target")]
    pub client_key: Option<PathBuf>,
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
    /// Documents of a rerank or score request, texts of a pooling, classify or embeddings request: 20, uniform:5,50,
    /// 20*lognormal:120,0.6 (how many, how long each; --isl is then the query's length) [default: 10, of texts 1]
    #[arg(long, value_name = "N[*SIZES]", help_heading = "Workload")]
    pub documents: Option<String>,
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
    /// Prompts of later turns hold what the server really answered, in place of text of the same length
    #[arg(long, help_heading = "Workload")]
    pub real_answers: bool,
    /// Pictures in each message: 1024x768, 3*uniform:256,2048xuniform:256,2048 (how many, width, height, each a size as in --isl)
    #[arg(long, value_name = "[N*]WIDTHxHEIGHT", help_heading = "Workload")]
    pub images: Option<String>,
    /// Sounds in each message: 5s, 2*lognormal:10s,0.5 (how many, how long)
    #[arg(long, value_name = "[N*]TIME", help_heading = "Workload")]
    pub audio: Option<String>,
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
    /// Version of HTTP: 1.1, or 2 (over https:// by ALPN, else by prior knowledge); gRPC is always 2 [default: 1.1]
    #[arg(long, value_name = "VERSION", value_parser = ["1.1", "2"], help_heading = "Client")]
    pub http: Option<String>,
    /// Over HTTP/2: at most this many requests at the same time on one connection [default: as many as the server allows]
    #[arg(long, value_name = "N", help_heading = "Client")]
    pub streams_per_connection: Option<u32>,
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
    /// Wait until the target answers, this long at the most: a server that is still loading its model
    #[arg(long, value_name = "TIME", help_heading = "Client")]
    pub wait_ready: Option<String>,
    /// Sent to the target's host before each level: "POST /reset_prefix_cache"
    #[arg(long, value_name = "METHOD PATH", help_heading = "Client")]
    pub before_level: Option<String>,
    /// Send the load even where the target refuses the requests before it
    #[arg(long, help_heading = "Client")]
    pub force: bool,
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
    #[arg(long, alias = "rps", value_name = "RATE", allow_hyphen_values = true, help_heading = "Load", conflicts_with_all = ["concurrency", "saturate"])]
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
    /// Requests before an open loop, one after the other, as a level of their own: what a request takes alone, which a diagnosis asks (20 at least)
    #[arg(long, value_name = "N", help_heading = "Load", conflicts_with_all = ["concurrency", "saturate", "wave"])]
    pub alone: Option<u32>,
    /// How long arrivals fall [default: 60s; a trace: its length]
    #[arg(long = "for", value_name = "TIME", help_heading = "Load")]
    pub duration: Option<String>,
    /// End once a figure is known as well as this: "ttft p99 ±5%" (of its 95 % interval); --for is then the longest time [default: 30m]
    #[arg(long, value_name = "FIGURE", allow_hyphen_values = true, help_heading = "Load", conflicts_with_all = ["saturate", "wave", "requests"])]
    pub until: Option<String>,
    /// Arrival process: poisson | constant | gamma:CV | weibull:CV | onoff:ON,OFF[,FLOOR] | ramp:FROM,TO | step:A,B,… | spike:HEIGHT | diurnal:RATIO
    #[arg(long, value_name = "PROCESS", help_heading = "Load")]
    pub arrivals: Option<String>,
}

/// Who may read what is served, beyond this machine.
#[derive(Args, Debug, Clone, Default)]
pub struct ReadersArgs {
    /// Serve other machines too, whoever asks
    #[arg(long)]
    pub listen_open: bool,
    /// Environment variable with readers' key
    ///
    /// They show it as a bearer token, or in a browser as the password of any user; then other machines may be served too.
    #[arg(long, value_name = "NAME")]
    pub listen_key_env: Option<String>,
}

/// Where results go.
#[derive(Args, Debug, Clone)]
pub struct OutputArgs {
    /// Run folder to write; must not exist [default: a new one under plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "DIR", help_heading = "Output")]
    pub out: Option<PathBuf>,
    /// Name of the run, to show and to find it by
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    pub label: Option<String>,
    /// How the result is printed to stdout
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: Format,
    /// No progress on stderr
    #[arg(long, short = 'q', help_heading = "Output")]
    pub quiet: bool,
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
