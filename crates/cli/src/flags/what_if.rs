//! The flags of `plimsoll what-if`, and what a person says of a target that an engine is fitted to.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// What no run at low load shows of a target.
#[derive(Args, Debug, Clone, Default)]
pub struct FitArgs {
    /// Most sequences that a replica runs at once (vLLM: max_num_seqs); of an endpoint without tokens, its servers [default: what the server's page says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576), help_heading = "Target")]
    pub slots: Option<u32>,
    /// KV blocks of 16 tokens of a replica [default: what the server's page says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Target")]
    pub kv_blocks: Option<u32>,
    /// Most tokens computed in a step (vLLM: max_num_batched_tokens) [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576), help_heading = "Target")]
    pub token_budget: Option<u32>,
    /// Requests computed together by an endpoint without tokens [default: each alone]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Target")]
    pub max_batch: Option<u32>,
    /// Replicas behind the address [default: those that the answers name, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Target")]
    pub replicas: Option<u32>,
}

impl FitArgs {
    /// The first flag that was given; `None` = nothing was said.
    pub fn first(&self) -> Option<&'static str> {
        let FitArgs { slots, kv_blocks, token_budget, max_batch, replicas } = self;
        let given = [
            ("--slots", slots.is_some()),
            ("--kv-blocks", kv_blocks.is_some()),
            ("--token-budget", token_budget.is_some()),
            ("--max-batch", max_batch.is_some()),
            ("--replicas", replicas.is_some()),
        ];
        given.into_iter().find(|(_, is)| *is).map(|(flag, _)| flag)
    }
}

/// `plimsoll what-if`
#[derive(Args, Debug)]
pub struct WhatIfArgs {
    /// Run folder
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    /// A change, repeatable: "rate 2x", "rate 50/s", "prompts +30%", "outputs -20%", "cache off", "replicas -1", "route least_requests", "slots 64", "weights fp8", "gpu h200"; several at once with commas
    #[arg(required = true, value_name = "CHANGE")]
    pub changes: Vec<String>,
    /// Level to start from [default: a run's level; a sweep's nearest to its budget line or onset]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Engine that stands for the target, such as llama-3.1-8b@h100 or a calibrated file [default: a simulated run's own, else one fitted to the run]
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    /// What no run at low load shows.
    #[command(flatten)]
    pub target: FitArgs,
    /// Schedules that each change is simulated on, the run's own among them
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(3..=100))]
    pub schedules: u32,
    /// Seed of the other schedules
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// File to write (JSON): what plimsoll plan verify holds against a later run
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
