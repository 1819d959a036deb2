//! The flags of `plimsoll interleave`.

use clap::Args;

use super::{CeilingArgs, ClientArgs, JudgedArgs, LoadArgs, OutputArgs, TargetArgs, WorkloadArgs};

/// Two live endpoints, measured in turn.
#[derive(Args, Debug)]
// The place is said because `mut_arg` moves what it changes behind all others: A and B would be swapped.
#[command(mut_arg("url", |url| url.value_name("URL_A").index(1)))]
pub struct InterleaveArgs {
    /// Blocks of each endpoint; a block is as long as --for says
    #[arg(long, value_name = "N", default_value_t = 10, help_heading = "Interleave")]
    pub alternations: u32,
    /// End as soon as harm is proven, or that there is none (never before --least-time and --least-n-eff)
    #[arg(long, help_heading = "Interleave")]
    pub stop_early: bool,
    /// Traffic that B has to have had before "not worse" ends it
    #[arg(long, value_name = "TIME", default_value = "0s", help_heading = "Interleave")]
    pub least_time: String,
    /// Independent requests (by effective number) that B has to have had before "not worse" ends it
    #[arg(long, value_name = "N", default_value_t = 1000.0, help_heading = "Interleave")]
    pub least_n_eff: f64,
    /// Chance of a false alarm over all looks together
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, help_heading = "Interleave")]
    pub alpha: f64,
    /// Between two blocks, once all is answered
    #[arg(long, value_name = "TIME", default_value = "1s", help_heading = "Interleave")]
    pub pause: String,
    /// Model to ask B for [default: as for A]
    #[arg(long, value_name = "MODEL", help_heading = "Interleave")]
    pub model_b: Option<String>,
    /// Environment variable that holds B's key [default: as for A]
    #[arg(long, value_name = "NAME", help_heading = "Interleave")]
    pub key_env_b: Option<String>,
    /// How both are spoken to; its URL is A's.
    #[command(flatten)]
    pub target: TargetArgs,
    /// The endpoint it is compared with, in the same form
    #[arg(value_name = "URL_B", index = 2)]
    pub url_b: String,
    /// How the change is judged.
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
