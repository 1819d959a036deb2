//! The flags of `plimsoll budget`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::OutputFormat;

/// `plimsoll budget`
#[derive(Args, Debug)]
pub struct BudgetArgs {
    /// Action.
    #[command(subcommand)]
    pub action: BudgetAction,
}

/// An action on a budget file.
#[derive(Subcommand, Debug)]
pub enum BudgetAction {
    /// Check a budget file for contradictions and undecidable rows
    Lint(BudgetLintArgs),
    /// Create a budget file from a preset or a run
    Init(BudgetInitArgs),
    /// Split a total limit over stages
    Split(BudgetSplitArgs),
}

/// `plimsoll budget split`
#[derive(Args, Debug)]
pub struct BudgetSplitArgs {
    /// Stages file: a fixed figure, share, weight or measured percentiles per stage (fields: plimsoll schema split)
    #[arg(required_unless_present = "from")]
    pub stages: Option<PathBuf>,
    /// Stages of a profile: output of plimsoll profile --format json
    #[arg(long, value_name = "FILE", conflicts_with = "stages")]
    pub from: Option<PathBuf>,
    /// Total to divide: 3s [default: the file's]
    #[arg(long, value_name = "TIME")]
    pub total: Option<String>,
    /// Reserve for variance: 150ms or 5% [default: the file's, else none]
    #[arg(long, value_name = "TIME|SHARE")]
    pub margin: Option<String>,
    /// Percentile of the slices [default: the file's, else 99]
    #[arg(long, value_name = "P")]
    pub p: Option<String>,
    /// Slices at the percentile where their sum is the measured total; needs --from
    #[arg(long, requires = "from")]
    pub joint: bool,
    /// File to create [default: stdout]
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Output format: text (a budget file) or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// `plimsoll budget lint`
#[derive(Args, Debug)]
pub struct BudgetLintArgs {
    /// Budget file
    pub budget: PathBuf,
    /// Run or baseline that supplies design effects, lengths and the latency without load
    #[arg(long, value_name = "RUN", value_parser = crate::named::run_or_name)]
    pub run: Option<String>,
    /// Mean output tokens per request [default: the run's]
    #[arg(long, value_name = "N")]
    pub output_tokens: Option<f64>,
    /// Output format: text or json
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// `plimsoll budget init`
#[derive(Args, Debug)]
pub struct BudgetInitArgs {
    /// Kind of product, which sets conventional limits
    #[arg(long, value_enum, conflicts_with = "from")]
    pub preset: Option<Preset>,
    /// Run or baseline whose figures set the limits
    #[arg(long, value_name = "RUN", value_parser = crate::named::run_or_name)]
    pub from: Option<String>,
    /// Margin over the measured upper bounds of --from
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub margin: f64,
    /// File to create [default: stdout]
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// A kind of product with conventional limits.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preset {
    /// A chat with a user.
    Chat,
    /// A results page.
    Search,
    /// A shelf that is filled while a page loads.
    Recommendation,
    /// Completions inside an editor.
    Code,
    /// A queue of work by a deadline.
    Batch,
}

impl Preset {
    /// The names, for a refusal.
    pub const NAMES: [&str; 5] = ["chat", "search", "recommendation", "code", "batch"];
}
