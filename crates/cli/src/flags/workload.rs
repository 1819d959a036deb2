//! The flags of `plimsoll workload`.

use std::path::PathBuf;

use clap::Args;

use super::OutputFormat;

/// `plimsoll workload`
#[derive(Args, Debug)]
pub struct FromLogArgs {
    /// Sources: logs (LiteLLM, Envoy AI gateway, nginx JSON, Dynamo, vLLM, llama.cpp), agent sessions (WEKA), GenAI traces, a run, a Prometheus query URL or response file
    #[arg(required = true, value_parser = crate::named::run)]
    pub sources: Vec<PathBuf>,
    /// Environment variable of the bearer token for Prometheus
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// Trace file to create (Mooncake JSONL), for --trace; FILE.gz compresses it
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Hashes of prompts in the trace, which keep shared prefixes; no text is stored
    #[arg(long)]
    pub hash_prompts: bool,
    /// Model whose requests are kept
    #[arg(long, short = 'm', value_name = "NAME")]
    pub model: Option<String>,
    /// Level of a run [default: the heaviest level that kept up]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Prompt tokens if the log has none: 512, uniform:A,B, normal:MEAN,SD or lognormal:MEDIAN,SIGMA
    #[arg(long, value_name = "SIZES")]
    pub isl: Option<String>,
    /// Output tokens if the log has none
    #[arg(long, value_name = "SIZES")]
    pub osl: Option<String>,
    /// Session start rate if the log has none: 2/min
    #[arg(long, value_name = "RATE")]
    pub session_rate: Option<String>,
    /// Longest wait between two turns [default: 24h]
    #[arg(long, value_name = "SPAN")]
    pub max_wait: Option<String>,
    /// Engine profile or YAML file for the comparison of log and workload
    #[arg(long, value_name = "NAME|FILE", default_value = "llama-3.1-8b@h100")]
    pub profile: String,
    /// Random seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
