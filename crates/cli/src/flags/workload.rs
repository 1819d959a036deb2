//! The flags of `plimsoll workload`.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `plimsoll workload`
#[derive(Args, Debug)]
pub struct FromLogArgs {
    /// Logs of LiteLLM, Envoy AI gateway, nginx (JSON), Dynamo, vLLM or llama.cpp, agents' sessions in WEKA's form, traces with GenAI spans, a
    /// run, what a Prometheus kept of servers' pages (its answer in a file, or http://HOST:9090/api/v1/query?query={job="vllm"}[6h]), or a folder of
    /// one of these; several of one kind are put together
    #[arg(required = true, value_parser = crate::named::run)]
    pub sources: Vec<PathBuf>,
    /// Environment variable with the bearer token of a Prometheus that is asked
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// Write the workload: a trace (Mooncake's form) that run, simulate and plan take with --trace; .gz packs it
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Hash the prompts that a log holds, so that shared beginnings are kept; no text is
    #[arg(long)]
    pub hash_prompts: bool,
    /// Take the requests for this model alone
    #[arg(long, short = 'm', value_name = "NAME")]
    pub model: Option<String>,
    /// Level of a run that is taken [default: the heaviest of those measured best that kept up]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Prompt tokens where the log does not say them: 512 | uniform:A,B | normal:MEAN,SD | lognormal:MEDIAN,SIGMA
    #[arg(long, value_name = "SIZES")]
    pub isl: Option<String>,
    /// Output tokens likewise
    #[arg(long, value_name = "SIZES")]
    pub osl: Option<String>,
    /// Sessions that begin, where the log does not say when they did: 2/min
    #[arg(long, value_name = "RATE")]
    pub session_rate: Option<String>,
    /// Cut the waits of turns for their tools (and for people) to this [default: 24h]
    #[arg(long, value_name = "SPAN")]
    pub max_wait: Option<String>,
    /// Engine on which log and workload are simulated: a profile, or a YAML file of one
    #[arg(long, value_name = "NAME|FILE", default_value = "llama-3.1-8b@h100")]
    pub profile: String,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How the report is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
