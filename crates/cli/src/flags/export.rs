//! The flags of `plimsoll export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Format;

/// `plimsoll export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Of a budget: rules, dashboard, openslo, keda or tail-sampling; or a run folder, with --as
    #[arg(value_name = "WHAT|RUN")]
    pub what: String,
    /// The format that a run is written in
    #[arg(long = "as", value_enum, value_name = "FORMAT", conflicts_with_all = ["budget", "source", "labels", "queue_per_replica", "deployment", "prometheus", "format"])]
    pub run_format: Option<RunFormat>,
    /// With --as mlflow: the experiment that the run is put into, made where there is none [default: plimsoll]
    #[arg(long, value_name = "NAME", requires = "run_format")]
    pub experiment: Option<String>,
    /// Budget file
    #[arg(long, short = 'b', value_name = "FILE", required_unless_present = "run_format")]
    pub budget: Option<PathBuf>,
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
    /// Of a budget: folder that the files are written to, made where it is missing [default: .]; of a run: the file, for reports of several levels the folder, for mlflow the URL [default: stdout]
    #[arg(long, short = 'o', value_name = "PATH")]
    pub out: Option<PathBuf>,
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

/// What `plimsoll export RUN --as` writes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub enum RunFormat {
    /// A row per request
    Csv,
    /// llm-d's benchmark report 0.2.1: aggregates, a file per level; YAML, or JSON for a file that ends in .json
    BenchmarkReport,
    /// MLflow: a run with figures and parameters, posted to the tracking server that -o names by its URL
    Mlflow,
    /// OpenTelemetry: a client span per attempt, in lines of OTLP's JSON
    Otlp,
}
