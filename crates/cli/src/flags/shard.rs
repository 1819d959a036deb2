//! The flags of a load that several machines send, and of `plimsoll merge`.

use std::path::PathBuf;

use clap::Args;

use super::OutputArgs;

/// Which part of a load is sent here, and when all begin.
#[derive(Args, Debug, Clone, Default)]
pub struct ShardArgs {
    /// Send one of N equal parts of the load: its number, from 0, and N (0/4, 1/4, 2/4, 3/4); the rates given are those of all together
    #[arg(long, value_name = "I/N", help_heading = "Shards")]
    pub shard: Option<String>,
    /// Where shards agree on the start: a folder that all see, s3://bucket/prefix, gs:// or az://; a new one for each run [-o is the same where it is not given]
    #[arg(
        long,
        value_name = "PLACE",
        requires = "shard",
        conflicts_with = "start_at",
        help_heading = "Shards"
    )]
    pub rendezvous: Option<PathBuf>,
    /// Begin at this time by each machine's own clock: 2026-11-25T14:30:00Z, or seconds since 1970
    #[arg(long, value_name = "TIME", requires = "shard", help_heading = "Shards")]
    pub start_at: Option<String>,
    /// Give up when the others have not come after this long
    #[arg(long, value_name = "TIME", default_value = "10m", requires = "shard", help_heading = "Shards")]
    pub shard_wait: String,
}

/// `plimsoll merge`
#[derive(Args, Debug)]
pub struct MergeArgs {
    /// Folders of shards' runs: the one that all wrote to (-o), or each by itself; also s3://bucket/prefix, gs://, az://
    #[arg(required = true)]
    pub places: Vec<PathBuf>,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}
