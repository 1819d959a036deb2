//! What can be typed after `plimsoll budget`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::Format;

/// `plimsoll budget`
#[derive(Args, Debug)]
pub struct BudgetArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: BudgetAction,
}

/// What can be done with a budget file.
#[derive(Subcommand, Debug)]
pub enum BudgetAction {
    /// Say what contradicts itself in a budget file, and whether it can be judged
    Lint(BudgetLintArgs),
    /// Begin a budget file: from conventions, or from what a run measured
    Init(BudgetInitArgs),
    /// Split a total over stages into slices that fit, as a budget file
    Split(BudgetSplitArgs),
}

/// `plimsoll budget split`
#[derive(Args, Debug)]
pub struct BudgetSplitArgs {
    /// Stages with a fixed figure, a share, a weight or measured percentiles each (see: plimsoll schema split)
    #[arg(required_unless_present = "from")]
    pub stages: Option<PathBuf>,
    /// Stages as a profile measured them: the output of plimsoll profile --format json
    #[arg(long, value_name = "FILE", conflicts_with = "stages")]
    pub from: Option<PathBuf>,
    /// What is divided: 3s [default: the file's]
    #[arg(long, value_name = "TIME")]
    pub total: Option<String>,
    /// What is kept back for variance: 150ms or 5% [default: the file's, else none]
    #[arg(long, value_name = "TIME|SHARE")]
    pub margin: Option<String>,
    /// Percentile at which the slices are held [default: the file's, else 99]
    #[arg(long, value_name = "P")]
    pub p: Option<String>,
    /// With --from: hold slices at the percentile at which they add up to no more than the whole did
    #[arg(long, requires = "from")]
    pub joint: bool,
    /// File to write; must not exist [default: stdout]
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// How it is printed; as text it is a budget file
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `plimsoll budget lint`
#[derive(Args, Debug)]
pub struct BudgetLintArgs {
    /// Budget file
    pub budget: PathBuf,
    /// A run under its load (folder or baseline): its design effects, lengths and single-request floor are used
    #[arg(long, value_name = "RUN", value_parser = crate::named::run_or_name)]
    pub run: Option<String>,
    /// Mean output tokens of a request [default: the run's]
    #[arg(long, value_name = "N")]
    pub output_tokens: Option<f64>,
    /// How it is printed
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// `plimsoll budget init`
#[derive(Args, Debug)]
pub struct BudgetInitArgs {
    /// Conventions for a kind of product
    #[arg(long, value_enum, conflicts_with = "from")]
    pub preset: Option<Preset>,
    /// Ceilings from what this run (folder or baseline) measured
    #[arg(long, value_name = "RUN", value_parser = crate::named::run_or_name)]
    pub from: Option<String>,
    /// With --from: what is kept over the measured upper bounds
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub margin: f64,
    /// File to write; must not exist [default: stdout]
    #[arg(long, short = 'o', value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// Kinds of products with conventions.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preset {
    /// A person waits and reads.
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
