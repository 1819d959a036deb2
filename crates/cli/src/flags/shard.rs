//! The flags of a load that several machines send, and of `plimsoll merge`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// One shard of a load and its start.
#[derive(Args, Debug, Clone, Default)]
pub struct ShardArgs {
    /// Shard number from 0, and number of shards (0/4, 1/4, …); rates are totals of all shards
    #[arg(long, value_name = "I/N", help_heading = "Shards")]
    pub shard: Option<String>,
    /// Place where shards agree on the start: a shared folder, s3://bucket/prefix, gs:// or az:// [default: -o]
    #[arg(
        long,
        value_name = "PLACE",
        requires = "shard",
        conflicts_with = "start_at",
        help_heading = "Shards"
    )]
    pub rendezvous: Option<PathBuf>,
    /// Start time by each machine's clock: 2026-11-25T14:30:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME", requires = "shard", help_heading = "Shards")]
    pub start_at: Option<String>,
    /// Longest wait for the other shards
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "shard", help_heading = "Shards")]
    pub shard_wait: String,
}

/// `plimsoll merge`
#[derive(Args, Debug)]
pub struct MergeArgs {
    /// Folders or object stores with the runs of all shards
    #[arg(required = true)]
    pub places: Vec<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
}
