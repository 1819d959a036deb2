//! The flags of `plimsoll mcp`.

use std::path::PathBuf;

use clap::Args;

use super::PriceArgs;

/// `plimsoll mcp`
#[derive(Args, Debug, Clone)]
pub struct McpArgs {
    /// Folder of the runs that the tools read and write
    #[arg(long, value_name = "DIR", default_value = crate::named::HOME)]
    pub runs: PathBuf,
    /// Host that the load tools may test, repeatable; without a port any port [default: none]
    #[arg(long, value_name = "HOST[:PORT]")]
    pub allow_load: Vec<String>,
    /// Environment variable of the API key of these hosts
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// Highest number of requests of all calls together
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    pub max_requests: u64,
    /// Highest number of prompt and output tokens of all calls together
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    pub max_tokens: u64,
    /// Longest time under load of all calls together
    #[arg(long, value_name = "MINUTES", default_value_t = 60.0)]
    pub max_minutes: f64,
    /// Highest cost of all calls together, in the currency of --price [default: 10]
    #[arg(long, value_name = "AMOUNT", requires = "price")]
    pub max_spend: Option<f64>,
    /// Price of the hosts.
    #[command(flatten)]
    pub price: PriceArgs,
}
