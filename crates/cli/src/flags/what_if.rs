//! The flags of `plimsoll what-if`, and the properties of a target that an engine is fitted to.

use std::path::PathBuf;

use clap::Args;

use super::OutputFormat;

/// Capacity limits of a target that a run at low load does not show.
#[derive(Args, Debug, Clone, Default)]
pub struct FitArgs {
    /// Highest batch size of a replica (vLLM: max_num_seqs); servers, for an endpoint without tokens [default: from the server metrics]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576), help_heading = "Target")]
    pub slots: Option<u32>,
    /// KV cache blocks of 16 tokens per replica [default: from the server metrics]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Target")]
    pub kv_blocks: Option<u32>,
    /// Highest number of tokens per step (vLLM: max_num_batched_tokens) [default: 8192]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576), help_heading = "Target")]
    pub token_budget: Option<u32>,
    /// Batch size of an endpoint without tokens [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536), help_heading = "Target")]
    pub max_batch: Option<u32>,
    /// Number of replicas [default: those named in responses, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Target")]
    pub replicas: Option<u32>,
}

impl FitArgs {
    /// Returns the first flag that was given; `None` if none was.
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
    /// Changes, repeatable or with commas: "rate 2x", "prompts +30%", "outputs -20%", "cache off", "replicas -1", "route least_requests", "slots 64", "weights fp8", "gpu h200"
    #[arg(required = true, value_name = "CHANGE")]
    pub changes: Vec<String>,
    /// Level of the run [default: the only one; in a sweep nearest to the budget limit or onset]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Engine that models the target: a profile or a calibrated file [default: the simulated run's, else a fit to the run]
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,
    #[command(flatten)]
    pub target: FitArgs,
    /// Simulated schedules per change
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(3..=100))]
    pub schedules: u32,
    /// Random seed of the additional schedules
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// File to create (JSON), for plimsoll plan verify
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
