//! The flags of `plimsoll export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::OutputFormat;

/// `plimsoll export`
#[derive(Args, Debug)]
pub struct ExportArgs {
    /// Output of a budget (rules, dashboard, openslo, keda or tail-sampling), or a run folder with --as
    #[arg(value_name = "WHAT|RUN")]
    pub what: String,
    /// Format of a run: csv, benchmark-report, mlflow, mlperf-endpoints or otlp
    #[arg(long = "as", value_enum, value_name = "FORMAT", conflicts_with_all = ["budget", "source", "labels", "queue_per_replica", "deployment", "prometheus", "format"])]
    pub run_format: Option<RunFormat>,
    /// MLflow experiment, created if missing [default: plimsoll]
    #[arg(long, value_name = "NAME", requires = "run_format")]
    pub experiment: Option<String>,
    /// Budget file
    #[arg(long, short = 'b', value_name = "FILE", required_unless_present = "run_format")]
    pub budget: Option<PathBuf>,
    /// Source of the metrics: vllm, sglang, triton, llama.cpp, gateway, or a metrics endpoint (URL or file)
    #[arg(long, value_name = "NAME|URL|FILE", default_value = "vllm")]
    pub source: String,
    /// Label of the series, repeatable: job=vllm
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Waiting requests per replica: alert limit and KEDA target
    #[arg(long, value_name = "N")]
    pub queue_per_replica: Option<f64>,
    /// Deployment that KEDA scales
    #[arg(long, value_name = "NAME")]
    pub deployment: Option<String>,
    /// Prometheus address for KEDA [default: http://prometheus-server.monitoring:9090]
    #[arg(long, value_name = "URL")]
    pub prometheus: Option<String>,
    /// Output folder of a budget [default: .]; file, folder or MLflow URL of a run [default: stdout]
    #[arg(long, short = 'o', value_name = "PATH")]
    pub out: Option<PathBuf>,
    /// Output format of the summary: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// An export of a budget.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub enum ExportWhat {
    /// Prometheus recording, alerting and burn-rate rules, with promtool tests
    Rules,
    /// Grafana dashboard
    Dashboard,
    /// OpenSLO v1 documents
    Openslo,
    /// KEDA ScaledObject
    Keda,
    /// OpenTelemetry collector tail-sampling processor
    TailSampling,
}

/// A format of a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug, ValueEnum)]
pub enum RunFormat {
    /// One row per request
    Csv,
    /// llm-d benchmark report 0.2.1 (YAML, or JSON for FILE.json)
    BenchmarkReport,
    /// Run on an MLflow tracking server (-o URL)
    Mlflow,
    /// MLPerf Endpoints: a run folder for each level (-o FOLDER)
    MlperfEndpoints,
    /// OTLP JSON lines, one client span per attempt
    Otlp,
}
