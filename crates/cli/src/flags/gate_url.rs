//! The flags of `plimsoll gate URL` in addition to the gate's own: the target, the load and the client.

use std::path::PathBuf;

use clap::Args;

use super::{ScrapeArgs, ShardArgs, TargetArgs, WorkloadArgs};

/// Measurement of a gate on a URL; these flags are refused with a run folder.
#[derive(Args, Debug, Clone, Default)]
pub struct GateUrlArgs {
    /// Of a URL: further endpoints of the same kind, measured together with it
    #[arg(value_name = "URL")]
    pub further: Vec<String>,
    /// Measurement time of a URL [default: the budget file's load.duration]
    #[arg(long, value_name = "TIME", help_heading = "Measuring a URL")]
    pub time: Option<String>,
    /// Measure until every row is decided, at most --max
    #[arg(long, requires = "max", conflicts_with = "time", help_heading = "Measuring a URL")]
    pub until_decided: bool,
    /// Longest time of --until-decided, such as 15m
    #[arg(long, value_name = "TIME", requires = "until_decided", help_heading = "Measuring a URL")]
    pub max: Option<String>,
    /// Offered load, such as 12/s [default: the budget file's load.rate]
    #[arg(long, value_name = "RATE", help_heading = "Measuring a URL")]
    pub rate: Option<String>,
    /// Model to ask for [default: the only one the endpoint lists]
    #[arg(long, short = 'm', help_heading = "Measuring a URL")]
    pub model: Option<String>,
    /// chat, completions, responses, embeddings, messages (Anthropic), ollama_chat, ollama_generate, rerank, score, pooling, classify, transcriptions, speech, images, kserve, kserve_grpc or http [default: chat]
    #[arg(long, visible_alias = "api", value_name = "NAME", help_heading = "Measuring a URL")]
    pub protocol: Option<String>,
    /// Body template for --protocol http
    #[arg(long, value_name = "FILE", help_heading = "Measuring a URL")]
    pub body: Option<PathBuf>,
    /// Environment variable of the API key
    #[arg(long, value_name = "NAME", help_heading = "Measuring a URL")]
    pub key_env: Option<String>,
    /// File that holds the API key
    #[arg(long, value_name = "FILE", conflicts_with = "key_env", help_heading = "Measuring a URL")]
    pub key_file: Option<PathBuf>,
    /// Extra header; $NAME in its value is taken from the environment and never written down
    #[arg(long = "header", short = 'H', value_name = "NAME: VALUE", help_heading = "Measuring a URL")]
    pub headers: Vec<String>,
    /// Do not verify the TLS certificate
    #[arg(long, help_heading = "Measuring a URL")]
    pub insecure: bool,
    /// PEM file with further trusted certificates
    #[arg(long, value_name = "FILE", help_heading = "Measuring a URL")]
    pub ca_file: Option<PathBuf>,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Set any field of the scenario, repeatable
    #[arg(long, value_name = "PATH=VALUE", help_heading = "Measuring a URL")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub scrape: ScrapeArgs,
    #[command(flatten)]
    pub shard: ShardArgs,
    /// Load-generating threads [default: cores − 1]
    #[arg(long, value_name = "N", help_heading = "Measuring a URL")]
    pub workers: Option<usize>,
    /// Longest wait for a target that is still loading its model
    #[arg(long, value_name = "TIME", help_heading = "Measuring a URL")]
    pub wait_ready: Option<String>,
    /// Never offer more than this rate
    #[arg(long, value_name = "RATE", help_heading = "Measuring a URL")]
    pub max_rate: Option<String>,
    /// Stop after this many requests
    #[arg(long, value_name = "N", help_heading = "Measuring a URL")]
    pub max_requests: Option<u64>,
    /// Stop after this many failed requests
    #[arg(long, value_name = "N", help_heading = "Measuring a URL")]
    pub max_errors: Option<u64>,
    /// Run folder to write; must not exist [default: a new one under plimsoll-runs/]
    #[arg(long, short = 'o', value_name = "DIR", help_heading = "Measuring a URL")]
    pub out: Option<PathBuf>,
    /// Suppress progress messages
    #[arg(long, short = 'q', help_heading = "Measuring a URL")]
    pub quiet: bool,
}

impl GateUrlArgs {
    /// The flags of the target, the URL left out.
    pub fn target(&self) -> TargetArgs {
        TargetArgs {
            model: self.model.clone(),
            protocol: self.protocol.clone(),
            body: self.body.clone(),
            key_env: self.key_env.clone(),
            key_file: self.key_file.clone(),
            headers: self.headers.clone(),
            insecure: self.insecure,
            ca_file: self.ca_file.clone(),
            ..TargetArgs::default()
        }
    }
}
