//! The settings of a watch, after flags and files are read.

use std::net::SocketAddr;
use std::path::PathBuf;

use plimsoll_client::Clock;
use plimsoll_client::target::without_user;
use plimsoll_console::exit::Stop;
use plimsoll_console::out::OutputFormat;
use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::cost::PriceSpec;
use plimsoll_model::{Span, TimeBase};
use plimsoll_watch::{AlertSpec, BudgetWatchSpec};
use plimsoll_workload::TargetSpec;
use plimsoll_workload::scrape::ScrapeSpec;

use crate::file::{PageList, PushSpec, RetentionSpec};
use crate::history::HistoryWriter;
use crate::notify::Senders;
use crate::record::{Recorder, WatchedSource};
use crate::serve::ReadersSpec;

/// The settings of a watch.
pub struct WatchConfig {
    pub target: TargetSpec,
    /// Scrape settings and the current metrics endpoints: the fixed ones and those from the target lists.
    pub scrape: ScrapeSpec,
    /// Metrics endpoints that are named directly and do not change.
    pub fixed: Vec<String>,
    pub lists: Vec<PageList>,
    /// Listen addresses for pushed metrics.
    pub pushed: Vec<PushSpec>,
    /// A run in progress, or a folder of runs, that is watched instead of metrics endpoints.
    pub run: Option<PathBuf>,
    pub spec: BudgetWatchSpec,
    pub alerts: AlertSpec,
    pub senders: Senders,
    pub journal: Option<PathBuf>,
    pub record: Option<RetentionSpec>,
    pub history: Option<RetentionSpec>,
    pub budget: BudgetFile,
    pub budget_path: PathBuf,
    pub price: Option<PriceSpec>,
    pub listen: Option<SocketAddr>,
    pub time: Option<Span>,
    pub readers: ReadersSpec,
    pub format: OutputFormat,
    /// Suppresses progress messages.
    pub quiet: bool,
}

/// Checks the scrape interval and the evaluation window.
pub fn checked(spec: BudgetWatchSpec) -> Result<BudgetWatchSpec, Stop> {
    let BudgetWatchSpec { every, window } = spec;
    if every < Span::from_millis(100) {
        return Err(Stop::usage("--every: from 100ms"));
    }
    if window < Span(8 * every.0) {
        let (every, least) = (every.as_secs_f64(), 8.0 * every.as_secs_f64());
        return Err(Stop::usage(format!(
            "--window: a verdict needs at least eight scrapes, one every {every} s; write {least:.0}s or more"
        )));
    }
    Ok(spec)
}

impl WatchConfig {
    /// Returns the path of the budget file for display.
    pub fn budget_name(&self) -> String {
        self.budget_path.display().to_string()
    }

    /// Returns the recorder of alert windows, or `None` if recording is off.
    pub fn recorder(&self, clock: Clock) -> Result<Option<Recorder>, Stop> {
        let url = match &self.run {
            Some(run) => run.display().to_string(),
            None => without_user(&self.target.url),
        };
        self.records(WatchedSource { url, clock: clock.anchor(), time: TimeBase::Real })
    }

    /// Returns the recorder of alert windows for data with its own time axis.
    pub fn records(&self, of: WatchedSource) -> Result<Option<Recorder>, Stop> {
        let what = (&self.budget, self.spec.every);
        self.record.clone().map(|spec| Recorder::start(spec, what, of)).transpose()
    }

    /// Returns the history writer, or `None` if no history is configured.
    ///
    /// # Errors
    /// Fails if the folder can't be created or another watch writes it.
    pub fn history(&self, clock: Clock) -> Result<Option<HistoryWriter>, Stop> {
        let url = without_user(&self.target.url);
        self.histories(WatchedSource { url, clock: clock.anchor(), time: TimeBase::Real })
    }

    /// Returns the history writer for data with its own time axis.
    pub fn histories(&self, of: WatchedSource) -> Result<Option<HistoryWriter>, Stop> {
        let what = (&self.budget, self.spec.every);
        self.history.clone().map(|spec| HistoryWriter::start(spec, what, of)).transpose()
    }

    /// Raises the scrape interval to at least `cadence`.
    pub fn no_faster(&mut self, cadence: Option<Span>) -> Result<(), Stop> {
        let every = self.spec.every.max(cadence.unwrap_or_default());
        self.spec = checked(BudgetWatchSpec { every, ..self.spec })?;
        self.scrape.every = every;
        Ok(())
    }
}
