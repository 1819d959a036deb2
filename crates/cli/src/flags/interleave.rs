//! The flags of `plimsoll interleave`.

use clap::Args;

use super::{CeilingArgs, ClientArgs, JudgedArgs, LoadArgs, OutputArgs, TargetArgs, WorkloadArgs};

/// Two live endpoints that are measured in turn.
#[derive(Args, Debug)]
// The index is explicit, because `mut_arg` moves the changed argument behind all others and would swap A and B.
#[command(mut_arg("url", |url| url.value_name("URL_A").index(1)))]
pub struct InterleaveArgs {
    /// Number of blocks per endpoint; --for sets the length of a block
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Interleave")]
    pub alternations: u32,
    /// End once harm or no harm is proven
    #[arg(long, help_heading = "Interleave")]
    pub stop_early: bool,
    /// Shortest time of B before "not worse"
    #[arg(long, value_name = "TIME", default_value = "0s", help_heading = "Interleave")]
    pub least_time: String,
    /// Fewest effective requests of B before "not worse"
    #[arg(long, value_name = "N", default_value_t = 1000.0, help_heading = "Interleave")]
    pub least_n_eff: f64,
    /// Highest false-alarm rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, help_heading = "Interleave")]
    pub alpha: f64,
    /// Pause between two blocks
    #[arg(long, value_name = "TIME", default_value = "1s", help_heading = "Interleave")]
    pub pause: String,
    /// Model of B [default: as A]
    #[arg(long, value_name = "MODEL", help_heading = "Interleave")]
    pub model_b: Option<String>,
    /// Environment variable of B's API key [default: as A]
    #[arg(long, value_name = "NAME", help_heading = "Interleave")]
    pub key_env_b: Option<String>,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Base URL of endpoint B
    #[arg(value_name = "URL_B", index = 2)]
    pub url_b: String,
    #[command(flatten)]
    pub judged: JudgedArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub workload: WorkloadArgs,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}
