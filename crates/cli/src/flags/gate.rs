//! `plimsoll gate`: what can be typed.

use std::path::PathBuf;

use clap::Args;

use super::{GateUrlArgs, OutputFormat};

/// `plimsoll gate`
#[derive(Args, Debug)]
pub struct GateArgs {
    /// Run folder, the name of a baseline, or the URL of an endpoint, which is measured first
    #[arg(value_parser = crate::named::run_or_name)]
    pub run: String,
    /// Budget file. See: plimsoll schema budget
    #[arg(long, short = 'b', value_name = "FILE", required_unless_present = "slo")]
    pub budget: Option<PathBuf>,
    /// SLO in place of a budget file, repeatable or separated by commas: "ttft p99 < 500ms", "errors < 1%"
    #[arg(long = "slo", value_name = "CEILING", value_delimiter = ',', conflicts_with_all = ["budget", "sarif"])]
    pub slo: Vec<String>,
    /// Run to compare with, for relative budgets and changed means: a folder or a name [default: the budget file's]
    #[arg(long, value_name = "RUN")]
    pub baseline: Option<String>,
    /// Measured version, for the line of a named baseline [default: the engine's, where it is known]
    #[arg(long, value_name = "LABEL")]
    pub label: Option<String>,
    #[command(flatten)]
    pub url: GateUrlArgs,
    /// Write JUnit XML here
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub junit: Option<PathBuf>,
    /// Write Markdown for a pull request here
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub markdown: Option<PathBuf>,
    /// Write a picture here (SVG): each row's interval in multiples of its limit
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub svg: Option<PathBuf>,
    /// Write SARIF 2.1.0 here
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub sarif: Option<PathBuf>,
    /// Other exit codes, such as 3=0 (inconclusive passes) or 4=1,5=1
    #[arg(long, value_name = "FROM=TO", value_delimiter = ',', help_heading = "Output")]
    pub map_exit: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t, help_heading = "Output")]
    pub format: OutputFormat,
}
