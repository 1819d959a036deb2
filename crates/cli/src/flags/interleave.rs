//! The flags of `plimsoll interleave`.

use clap::Args;

use super::{CeilingArgs, ClientArgs, JudgedArgs, LoadArgs, OutputArgs, TargetArgs, WorkloadArgs};

/// Two live endpoints that are measured in turn.
#[derive(Args, Debug)]
// The place is said because `mut_arg` moves what it changes behind all others: A and B would be swapped.
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
    /// Endpoint A and the credentials.
    #[command(flatten)]
    pub target: TargetArgs,
    /// Base URL of endpoint B
    #[arg(value_name = "URL_B", index = 2)]
    pub url_b: String,
    /// The judgement of a change.
    #[command(flatten)]
    pub judged: JudgedArgs,
    /// How much load, and when.
    #[command(flatten)]
    pub load: LoadArgs,
    /// What the requests are.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// How the client behaves.
    #[command(flatten)]
    pub client: ClientArgs,
    /// Where it stops by itself.
    #[command(flatten)]
    pub ceilings: CeilingArgs,
    /// Where results go.
    #[command(flatten)]
    pub output: OutputArgs,
}
