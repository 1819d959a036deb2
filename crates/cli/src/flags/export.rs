//! The flags of `plimsoll export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Format;

/// `plimsoll export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// What is written
    #[arg(value_enum)]
    pub what: ExportWhat,
    /// Budget file
    #[arg(long, short = 'b', value_name = "FILE")]
    pub budget: PathBuf,
    /// What is counted by: vllm, sglang, triton, llama.cpp, gateway (recorded pages), or a metrics page as a URL or a saved file
    #[arg(long, value_name = "NAME|URL|FILE", default_value = "vllm")]
    pub source: String,
    /// Labels of the series that are meant, such as job=vllm; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Requests that may wait per replica: an alert of the rules, the target of keda
    #[arg(long, value_name = "N")]
    pub queue_per_replica: Option<f64>,
    /// The Deployment that keda scales
    #[arg(long, value_name = "NAME")]
    pub deployment: Option<String>,
    /// Where keda asks Prometheus [default: http://prometheus-server.monitoring:9090]
    #[arg(long, value_name = "URL")]
    pub prometheus: Option<String>,
    /// Folder that the files are written to; made where it is missing
    #[arg(long, short = 'o', value_name = "DIR", default_value = ".")]
    pub out: PathBuf,
    /// How it is printed which rows are judged, and which files were written
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// What `plimsoll export` writes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub enum ExportWhat {
    /// Prometheus: recording, alerting and burn-rate rules, with unit tests for promtool
    Rules,
    /// Grafana: a dashboard on the rules' series
    Dashboard,
    /// OpenSLO v1: a document per row
    Openslo,
    /// KEDA: a ScaledObject on the queue
    Keda,
    /// OpenTelemetry collector: a tail-sampling processor
    TailSampling,
}
