//! The flags of `plimsoll profile`.

use std::path::PathBuf;

use clap::Args;

use super::OutputFormat;

/// `plimsoll profile`
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// Run folder, or trace files or folders: OTLP, Jaeger, Chrome, PyTorch or Nsight Systems
    #[arg(required = true, value_name = "RUN|TRACES", value_parser = crate::named::run)]
    pub traces: Vec<PathBuf>,
    /// Traces before the change, repeatable
    #[arg(long, value_name = "TRACES")]
    pub baseline: Vec<PathBuf>,
    /// Budget file with limits per stage
    #[arg(long, value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// Rules file: span name to stage (fields: plimsoll schema stages)
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Model time without a server, repeatable: JSON of trtexec --exportTimes or vllm bench latency --output-json
    #[arg(long, value_name = "FILE")]
    pub floor: Vec<PathBuf>,
    /// Failed requests too
    #[arg(long)]
    pub failed: bool,
    /// HTML file of the profile
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Level of the run [default: those of the report]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Inferred queue and prefill times even if the server reports them
    #[arg(long)]
    pub infer: bool,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}
