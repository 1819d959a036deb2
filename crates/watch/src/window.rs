//! Scrapes → blocks of time: the counts of each budget row between two ticks.
//!
//! Endpoints count separately ([`crate::pages`]): a scrape adds its gain since the endpoint's previous scrape, at
//! whichever tick it arrives. A tick therefore costs only the new data, and counters lose only the last values of a
//! terminated process. A tick without a successful scrape makes no block.

use std::collections::{HashMap, VecDeque};

use plimsoll_judge::budget::BudgetFile;
use plimsoll_judge::cost::PriceSpec;
use plimsoll_model::{At, Attempt, PageRead, PageSaid, Sample, SeriesName, Span};

use crate::alert::{AlertBoard, AlertKind, BoardState, Minute, board};
use crate::cost::cost;
use crate::counts::{TickBlock, TickCounts};
use crate::course::{self, CourseCeiling};
use crate::finding::ReplicaNow;
use crate::fleet::{self, FleetView};
use crate::history::HistoryBlock;
use crate::history::gather::HistoryBuilder;
use crate::pages::Pages;
use crate::reads::Reads;
use crate::recall::Recall;
use crate::record::{AlertWindow, BEFORE, Recent};
use crate::requests;
use crate::rows;
use crate::source::LiveRows;
use crate::{Alert, AlertSpec, FleetNow, WatchFinding};

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BudgetWatchSpec {
    pub every: Span,
    pub window: Span,
}

/// Labels of `…_info` series that change with a release.
const VERSION_LABELS: [&str; 3] = ["version", "revision", "image"];

/// A budget file and the observed traffic.
#[derive(Clone, Debug)]
pub struct BudgetWatch {
    file: BudgetFile,
    rows: LiveRows,
    spec: BudgetWatchSpec,
    reads: Reads,
    recall: Recall,
    blocks: VecDeque<TickBlock>,
    pages: Pages,
    /// Counters since the last block.
    came: TickCounts,
    /// Newest scrape of the last tick with a scrape.
    last: Option<At>,
    /// Requests that ended since the last tick; `None` if metrics endpoints are watched.
    requests: Option<Vec<Attempt>>,
    /// Attempts of requests without a response, with the time of their count, because a retried request counts once,
    /// as in the gate.
    unanswered: HashMap<u64, (At, Vec<Attempt>)>,
    /// Requests of the last minutes; `None` if no windows of alerts are recorded.
    recent: Option<Recent>,
    /// History; `None` if none is kept.
    history: Option<HistoryBuilder>,
    /// Price; `None` if there is none.
    price: Option<PriceSpec>,
    alerts: AlertBoard,
}

impl BudgetWatch {
    pub fn new(file: BudgetFile, spec: BudgetWatchSpec) -> BudgetWatch {
        let rows = LiveRows::on_pages(&file);
        BudgetWatch {
            alerts: AlertBoard::new(&rows, AlertSpec::default(), spec.every),
            file,
            rows,
            spec,
            reads: Reads::default(),
            recall: Recall::default(),
            blocks: VecDeque::new(),
            pages: Pages::default(),
            came: TickCounts::default(),
            last: None,
            requests: None,
            unanswered: HashMap::new(),
            recent: None,
            history: None,
            price: None,
        }
    }

    /// Enables the history: [`BudgetWatch::blocks_ended`]. `wall_ns` is the wall-clock time of `At::ZERO`, ns since 1970.
    #[must_use]
    pub fn keeping(mut self, wall_ns: i64) -> BudgetWatch {
        self.came.keeps_all = true;
        BudgetWatch { history: Some(HistoryBuilder::new(wall_ns)), ..self }
    }

    /// Returns the history blocks that have ended since the last call. With `all`, the open one is included, at the
    /// end of the watch.
    pub fn blocks_ended(&mut self, all: bool) -> Vec<HistoryBlock> {
        self.history.as_mut().map_or(Vec::new(), |history| history.closed(all))
    }

    #[must_use]
    pub fn priced(self, price: Option<PriceSpec>) -> BudgetWatch {
        BudgetWatch { price, ..self }
    }

    /// Enables the recording of alert windows, which keeps requests.
    #[must_use]
    pub fn recording(self) -> BudgetWatch {
        BudgetWatch { recent: Some(Recent::default()), ..self }
    }

    /// Watches requests from this instant on, instead of metrics endpoints.
    #[must_use]
    pub fn of_requests(self, alerts: AlertSpec, now: At) -> BudgetWatch {
        let rows = LiveRows::on_requests(&self.file);
        let alerts = AlertBoard::new(&rows, alerts, self.spec.every);
        BudgetWatch { rows, alerts, requests: Some(Vec::new()), last: Some(now), ..self }
    }

    pub fn take(&mut self, attempts: impl IntoIterator<Item = Attempt>) {
        if let Some(pending) = &mut self.requests {
            pending.extend(attempts);
        }
    }

    /// Sets the alert settings, before any data.
    #[must_use]
    pub fn alerting(self, alerts: AlertSpec) -> BudgetWatch {
        BudgetWatch { alerts: AlertBoard::new(&self.rows, alerts, self.spec.every), ..self }
    }

    /// Resumes an earlier watch; its times are on this watch's clock.
    #[must_use]
    pub fn resuming(mut self, kept: BoardState, now: At) -> BudgetWatch {
        // A stalled replica stays stalled until it makes progress, however short this watch is.
        let stalled = kept.alerts.iter().filter(|alert| alert.kind == AlertKind::Stalled && alert.stands());
        stalled.for_each(|alert| self.pages.stood(alert.about.clone(), board::at(alert.since_s)));
        self.alerts.resume(kept, now);
        self
    }

    /// Returns the counts of rows in the minutes that began after this instant. The newest minute of each row is left
    /// out because it is incomplete.
    pub fn minutes_after(&self, at: At) -> Vec<(String, Minute)> {
        self.alerts.minutes_after(at)
    }

    /// Returns the firing alerts, and the last resolved ones, newest first.
    pub fn alerts(&self) -> Vec<Alert> {
        self.alerts.alerts()
    }

    /// Returns the window of the alerts that fired at this tick; `None` if there are none.
    pub fn fired(&self, now: At) -> Option<AlertWindow> {
        let alerts = self.alerts.fired(now);
        let since = alerts.iter().map(|alert| board::at(alert.since_s)).min()?.min(now);
        let from = since - BEFORE;
        let samples = match self.requests {
            None => self.recall.samples(from, now),
            Some(_) => Vec::new(),
        };
        let attempts = self.recent.as_ref().map(|recent| recent.window((from, since, now)));
        Some(AlertWindow { alerts, from, since, to: now, samples, attempts: attempts.unwrap_or_default() })
    }

    /// Records the run folder of that window in its alerts.
    pub fn recorded(&mut self, now: At, run: &str) {
        self.alerts.recorded(now, run);
    }

    pub fn file(&self) -> &BudgetFile {
        &self.file
    }

    /// Returns whether requests are watched instead of metrics endpoints.
    pub fn is_of_requests(&self) -> bool {
        self.requests.is_some()
    }

    /// Returns the ceilings for its charts.
    pub fn ceilings(&self) -> Vec<CourseCeiling> {
        course::ceilings(&self.rows)
    }

    /// Adds a row of a run. Rows of one scrape have one time and are processed together.
    pub fn push(&mut self, sample: &Sample) {
        self.reads.push(sample).into_iter().for_each(|read| self.read(read));
    }

    /// Adds a scrape of an endpoint.
    pub fn read(&mut self, read: PageRead) {
        self.recall.push(&read, self.pages.last(&read.page));
        let PageRead { page, at, said } = read;
        match said {
            PageSaid::Values(series, values) => {
                let names = series.clone();
                if self.pages.read(&page, at, (series, values), (&self.rows, &mut self.came)) {
                    names.iter().for_each(|series| self.version(&page, series));
                }
            }
            PageSaid::Failed(why) => self.pages.failed(&page, at, why),
            PageSaid::Patience(patience) => self.pages.patience(&page, patience),
            PageSaid::Left => {
                self.pages.left(&page);
                self.alerts.cold.left(&page);
            }
        }
    }

    /// Sets the start of the watch on the wall clock.
    #[must_use]
    pub fn begun_at(mut self, unix_s: f64) -> BudgetWatch {
        self.alerts.cold.began(unix_s);
        self
    }

    /// Records the version of an endpoint from its labels.
    fn version(&mut self, page: &str, series: &SeriesName) {
        if !series.name.ends_with("_info") {
            return;
        }
        let told: Vec<String> = series
            .labels
            .iter()
            .filter(|(name, _)| VERSION_LABELS.contains(&name.as_str()))
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        if !told.is_empty() {
            self.alerts.cold.version(page, told.join(", "));
        }
    }

    /// Counts the data since the last tick, steps and diagnoses the alerts, and drops data older than the window.
    pub fn tick(&mut self, now: At) {
        self.reads.whole().into_iter().for_each(|read| self.read(read));
        let fleet = self.pages.fleet(now, self.spec.every);
        // 1. Count.
        let pending = self.requests.as_mut().map(std::mem::take);
        let block = match pending {
            Some(ended) => Some(self.count_requests(ended, now)),
            None => self.count_pages(&fleet, now),
        };
        // 2. Alert.
        self.alerts.step(&board::TickFacts { now, block: block.as_ref(), fleet: &fleet });
        // 3. Diagnose the alerts that just fired, once for all of them. Requests are diagnosed from their run.
        if let Some(since) = self.alerts.undiagnosed(now).filter(|_| self.requests.is_none()) {
            let found = self.recall.diagnose((since, now), self.alerts.good(), self.spec.every);
            self.alerts.diagnosed(now, &found);
        }
        // 4. Forget.
        self.pages.ticked();
        let Some(block) = block else { return };
        self.blocks.push_back(block);
        while self.blocks.front().is_some_and(|block| block.at < now - self.spec.window) {
            self.blocks.pop_front();
        }
    }

    /// Returns the counts of the requests that ended since the last tick.
    fn count_requests(&mut self, ended: Vec<Attempt>, now: At) -> TickBlock {
        let span = (self.last.replace(now).unwrap_or(now), now);
        let whole = self.with_earlier_attempts(ended.clone(), now);
        if let Some(history) = &mut self.history {
            history.take(requests::charts(&self.rows, &ended, span));
        }
        if let Some(recent) = &mut self.recent {
            recent.push(ended, now);
        }
        requests::block(&self.rows, &whole, span)
    }

    /// Returns the counts of the scrapes since the last tick; `None` without a newer scrape that counts.
    fn count_pages(&mut self, fleet: &FleetView, now: At) -> Option<TickBlock> {
        let fresh = self.came.newest.filter(|fresh| self.last.is_none_or(|last| *fresh > last))?;
        let came = self.came.next();
        let came = std::mem::replace(&mut self.came, came);
        let last = self.last.replace(fresh);
        let between = (last.unwrap_or(came.since?), fresh);
        let block = came.block(&self.rows, between, fleet);
        if let Some(history) = &mut self.history {
            let gauges = self.pages.gauges((now, self.spec.every), fleet.present.len());
            history.tick(between, (came, gauges), self.spec.every);
        }
        Some(block)
    }

    /// Returns these attempts together with the earlier ones of their requests, which are removed from their former
    /// blocks. Drops attempts older than the window.
    fn with_earlier_attempts(&mut self, mut ended: Vec<Attempt>, now: At) -> Vec<Attempt> {
        let again: Vec<u64> = ended.iter().filter(|row| row.attempt > 0).map(|row| row.request).collect();
        for (at, earlier) in again.into_iter().filter_map(|request| self.unanswered.remove(&request)) {
            let counted = requests::block(&self.rows, &earlier, (at, at));
            if let Some(block) = self.blocks.iter_mut().rev().find(|block| block.at == at) {
                block.take_out(&counted);
            }
            ended.extend(earlier);
        }
        let mut last: HashMap<u64, (u32, bool)> = HashMap::new();
        for row in &ended {
            let own = (u32::from(row.attempt), row.outcome.retryable);
            last.entry(row.request).and_modify(|last| *last = own.max(*last)).or_insert(own);
        }
        for row in ended.iter().filter(|row| last[&row.request].1) {
            self.unanswered.entry(row.request).or_insert_with(|| (now, Vec::new())).1.push(row.clone());
        }
        let oldest = now - self.spec.window;
        self.unanswered.retain(|_, (at, _)| *at >= oldest);
        ended
    }

    /// Returns the number of stored entries: endpoints, their values, replicas, former series, layouts; blocks;
    /// recent rows; alerts.
    pub fn size(&self) -> [usize; 8] {
        let [pages, values, replicas, gone, layouts] = self.pages.size();
        let (blocks, rows, alerts) = (self.blocks.len(), self.recall.len(), self.alerts.alerts().len());
        [pages, values, replicas, gone, layouts, blocks, rows, alerts]
    }

    pub fn finding(&self, now: At) -> WatchFinding {
        let view = self.pages.fleet(now, self.spec.every);
        let (lost, lost_by) = ([view.lost.len(), view.pages], fleet::by(&view.lost));
        let fleet = self.fleet(view);
        let still: Vec<f64> = fleet.replicas.iter().filter_map(|replica| replica.stalled_s).collect();
        let busy = |replica: &&ReplicaNow| replica.answers && replica.running.is_some_and(|r| r >= 1.0);
        let of_requests = self.is_of_requests();
        let seen = rows::RowEvidence {
            blocks: &self.blocks,
            lost,
            lost_by: &lost_by,
            stalled: [still.len(), fleet.replicas.iter().filter(busy).count()],
            stalled_s: still.iter().copied().fold(0.0, f64::max),
            began: self.last.is_some(),
        };
        let rows = (0..self.rows.rows.len()).map(|place| rows::row(&self.rows, place, &seen)).collect();
        let cost = self.price.as_ref().map(|price| cost(price, &self.blocks, &fleet, of_requests));
        WatchFinding {
            budget: self.file.name.clone(),
            at_s: now.0 as f64 / 1e9,
            window_s: self.spec.window.as_secs_f64(),
            rows,
            shed: of_requests.then(|| self.blocks.iter().map(|block| block.shed).sum()),
            fleet,
            cost,
            alerts: self.alerts.alerts(),
        }
    }

    fn fleet(&self, view: FleetView) -> FleetNow {
        let of_requests = self.is_of_requests();
        let rate = |of: fn(&TickBlock) -> Option<f64>| {
            // The next scrape of an endpoint includes what an earlier one lacked. A request never gets a missing
            // count, so its time is left out too.
            let told = self.blocks.iter().filter(|block| !of_requests || of(block).is_some());
            let seconds: f64 = told.map(|block| block.length.as_secs_f64()).sum();
            let gained: Vec<f64> = self.blocks.iter().filter_map(of).collect();
            (!gained.is_empty() && seconds > 0.0).then(|| gained.iter().sum::<f64>() / seconds)
        };
        // Summed per replica, because each endpoint has its own scrape time.
        let sum = |of: fn(&ReplicaNow) -> Option<f64>| {
            let answering = view.replicas.iter().filter(|replica| replica.answers);
            answering.filter_map(of).reduce(|all, one| all + one)
        };
        FleetNow {
            pages: [(view.pages - view.lost.len()) as u64, view.pages as u64],
            running: sum(|replica| replica.running),
            waiting: sum(|replica| replica.waiting),
            requests_per_s: rate(|block| block.finished),
            output_tokens_per_s: rate(|block| block.output_tokens),
            kv_usage: view.kv_usage,
            restarts: self.blocks.iter().map(|block| block.restarts).sum(),
            replicas: view.replicas,
        }
    }
}
