//! The flags of `plimsoll profile`.

use std::path::PathBuf;

use clap::Args;

use super::Format;

/// `plimsoll profile`
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// A run folder; or trace files, or folders of them: OTLP, Jaeger, MLflow, Phoenix, Chrome, PyTorch's profiler; compressed or not
    #[arg(required = true, value_name = "RUN|TRACES", value_parser = crate::named::run)]
    pub traces: Vec<PathBuf>,
    /// Traces of before the change, repeatable: say where the tail moved
    #[arg(long, value_name = "TRACES")]
    pub baseline: Vec<PathBuf>,
    /// Budget file whose stages the requests are held to
    #[arg(long, value_name = "FILE")]
    pub budget: Option<PathBuf>,
    /// Rules of your own, asked before the shipped ones: which span is which stage. See: plimsoll schema stages
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// The model alone, repeatable: JSON of trtexec --exportTimes or of vllm bench latency --output-json
    #[arg(long, value_name = "FILE")]
    pub floor: Vec<PathBuf>,
    /// Profile requests that ended in an error too
    #[arg(long)]
    pub failed: bool,
    /// Also write the profile as one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Of a run: the level to show [default: those that a report shows]
    #[arg(long, value_name = "N")]
    pub level: Option<u32>,
    /// Of a run: infer queue and prefill although the server reports them, to see how right the inference is
    #[arg(long)]
    pub infer: bool,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}
