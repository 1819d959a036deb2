//! The flags of `plimsoll audit`.

use std::path::PathBuf;

use clap::Args;

use super::{OutputFormat, PriceArgs};

/// `plimsoll audit`
#[derive(Args, Debug)]
pub struct AuditArgs {
    /// Run folder, the record of a gateway, or the history of a watch
    #[arg(value_parser = crate::named::run)]
    pub run: PathBuf,
    #[command(flatten)]
    pub price: PriceArgs,
    /// Limit of a good response, repeatable: "ttft p99 < 500ms" [default: each complete response is good]
    #[arg(long = "slo", value_name = "LIMIT", value_delimiter = ',')]
    pub slo: Vec<String>,
    /// Budget file in place of --slo
    #[arg(long, short = 'b', value_name = "FILE", conflicts_with = "slo")]
    pub budget: Option<PathBuf>,
    /// Output tokens past which a response is too long [default: none]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub long_answer: Option<u32>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
