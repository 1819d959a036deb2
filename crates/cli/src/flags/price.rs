//! The flags of a price, shared by all commands that compute costs.

use clap::Args;

/// The price of an endpoint.
#[derive(Args, Debug, Clone, Default)]
pub struct PriceArgs {
    /// Price: 2.49USD/gpu-hour, 9.9USD/replica-hour, 20USD/h, 0.5,1.5USD/Mtok (input,output), or a price file
    #[arg(long, value_name = "PRICE|FILE", help_heading = "Price")]
    pub price: Option<String>,
    /// GPUs of the endpoint, over all replicas
    #[arg(long, value_name = "N", help_heading = "Price")]
    pub gpus: Option<u32>,
}
