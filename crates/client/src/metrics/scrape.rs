//! Scrapes metrics endpoints while a load runs, on the run's clock.
//!
//! The scraper has a separate thread and connections, so it shares only the machine with the workers. During a run all
//! endpoints are scraped simultaneously, so that they show one instant. A watch staggers the scrapes ([`crate::metrics::each`]).
//! [`crate::metrics::told`] selects the recorded values, and [`crate::metrics::pages`] finds the endpoints.

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;

use plimsoll_model::{At, Span};
use tokio::runtime::LocalRuntime;

use crate::clock::Clock;
use crate::metrics::each::{DuePages, ScrapeSchedule};
use crate::metrics::nvml;
use crate::metrics::pages::{MetricsPage, MetricsPageReader, PATIENCE, runtime};
use crate::metrics::targets::PrometheusSource;
use crate::metrics::told::{PageLogState, ScrapeLog};

/// A thread that scrapes until it is stopped.
#[derive(Debug)]
pub struct Scraper {
    asked: Arc<ScraperCommands>,
    looked: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// A command to the scraper in addition to its periodic scrapes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum ScrapeRequest {
    #[default]
    Nothing,
    /// Scrape now, and record every series.
    Whole,
    End,
}

/// The pending commands of the scraper's thread.
#[derive(Debug, Default)]
pub(crate) struct ScraperCommand {
    pub wish: ScrapeRequest,
    /// New list of endpoints, if it changed.
    pub pages: Option<Vec<MetricsPage>>,
}

/// The pending commands, and the condition variable that wakes the thread.
#[derive(Debug, Default)]
pub(crate) struct ScraperCommands(Mutex<ScraperCommand>, Condvar);

impl ScraperCommands {
    /// Takes the pending commands. A panic of the requesting thread ends the scraper.
    pub fn take(&self) -> ScraperCommand {
        match self.0.lock() {
            Ok(mut now) => std::mem::take(&mut *now),
            Err(_) => ScraperCommand { wish: ScrapeRequest::End, pages: None },
        }
    }
}

impl Scraper {
    /// Starts to scrape these endpoints. Returns after the first scrape, so that counters have a value from before the
    /// load. `knows` returns whether a metric name is used.
    pub fn start(
        pages: Vec<MetricsPage>,
        every: Span,
        clock: Clock,
        knows: fn(&str) -> bool,
        rows: ScrapeLog,
    ) -> std::io::Result<Scraper> {
        Scraper::on_thread(move |asked, told| {
            let Ok(runtime) = runtime() else { return };
            let pages = runtime.block_on(async {
                let several = pages.iter().any(|page| !page.name.is_empty());
                let mut marked: Vec<String> = Vec::new();
                // Of several endpoints of one server, the first marks the scrapes.
                let new = |page: MetricsPage| {
                    let marks = !marked.contains(&page.name);
                    marked.push(page.name.clone());
                    Source::new(page, clock, (several, marks), knows)
                };
                pages.into_iter().map(new).collect::<Vec<_>>()
            });
            Rounds { runtime, pages, every: at_least_a_millisecond(every), clock, rows }.go(asked, told);
        })
    }

    /// Starts staggered scrapes of these endpoints; the first scrapes are spread over a cadence. Returns after all first
    /// scrapes, or after a second.
    pub fn each(
        pages: Vec<MetricsPage>,
        every: Span,
        clock: Clock,
        knows: fn(&str) -> bool,
        rows: ScrapeLog,
    ) -> std::io::Result<Scraper> {
        Scraper::on_thread(move |asked, told| {
            let Ok(runtime) = runtime() else { return };
            let every = at_least_a_millisecond(every);
            let each = ScrapeSchedule { every, clock, knows, rows, waiting: DuePages::default() };
            runtime.block_on(each.go(pages, asked, told));
        })
    }

    fn on_thread(
        work: impl FnOnce(&ScraperCommands, &mpsc::Sender<()>) + Send + 'static,
    ) -> std::io::Result<Scraper> {
        let asked: Arc<ScraperCommands> = Arc::default();
        let (asks, (told, looked)) = (Arc::clone(&asked), mpsc::channel());
        let thread = std::thread::Builder::new().name("scrape".into()).spawn(move || work(&asks, &told))?;
        let _ = looked.recv();
        Ok(Scraper { asked, looked, thread: Some(thread) })
    }

    /// Scrapes now and records every row, so that a reader of any part of a run finds a value in it.
    ///
    /// Waits for that scrape with a timeout, because a hanging endpoint must not delay a level.
    pub fn whole(&self) {
        while self.looked.try_recv().is_ok() {}
        self.ask(ScrapeRequest::Whole);
        let _ = self.looked.recv_timeout(PATIENCE.as_duration());
    }

    /// Replaces the endpoints of a staggered scraper. Removed ones are recorded as left, and the others keep their
    /// schedule. Every endpoint must have a name.
    pub fn replace(&self, pages: Vec<MetricsPage>) {
        if let Ok(mut now) = self.asked.0.lock() {
            now.pages = Some(pages);
        }
        self.asked.1.notify_all();
    }

    /// Takes a last scrape and ends the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn ask(&self, wish: ScrapeRequest) {
        if let Ok(mut now) = self.asked.0.lock() {
            now.wish = wish;
        }
        self.asked.1.notify_all();
    }

    fn end(&mut self) {
        self.ask(ScrapeRequest::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.end();
    }
}

fn at_least_a_millisecond(every: Span) -> Span {
    Span(every.0.max(1_000_000))
}

/// Returns the timeout of a scrape.
pub(crate) fn patience(every: Span) -> Span {
    Span(PATIENCE.0.max(every.0.min(10_000_000_000)))
}

/// The scraper that scrapes all endpoints simultaneously.
struct Rounds {
    runtime: LocalRuntime,
    pages: Vec<Source>,
    every: Span,
    clock: Clock,
    rows: ScrapeLog,
}

impl Rounds {
    /// Scrapes all endpoints at each due time; due times that a slow scrape missed are skipped.
    fn go(mut self, asked: &ScraperCommands, told: &mpsc::Sender<()>) {
        let mut due = self.clock.now();
        loop {
            self.scrape();
            let _ = told.send(());
            let now = self.clock.now();
            while due <= now {
                due += self.every;
            }
            match wait(due, self.clock, asked).wish {
                ScrapeRequest::Nothing => {}
                ScrapeRequest::Whole => self.pages.iter_mut().for_each(Source::forget),
                // The changes since the last scrape count too.
                ScrapeRequest::End => return self.scrape(),
            }
        }
    }

    /// Scrapes all endpoints concurrently: they share one instant, and a hanging endpoint delays no other.
    fn scrape(&mut self) {
        let how = (self.clock, patience(self.every), self.every);
        let scrapes = self.pages.iter_mut().map(|page| page.scrape(how, &self.rows));
        self.runtime.block_on(futures_util::future::join_all(scrapes));
    }
}

/// Waits until `due` or until a command arrives.
fn wait(due: At, clock: Clock, ScraperCommands(asked, changed): &ScraperCommands) -> ScraperCommand {
    let over = || ScraperCommand { wish: ScrapeRequest::End, pages: None };
    let Ok(mut now) = asked.lock() else { return over() };
    loop {
        let left = due - clock.now();
        if now.wish != ScrapeRequest::Nothing || now.pages.is_some() || left.0 <= 0 {
            return std::mem::take(&mut *now);
        }
        match changed.wait_timeout(now, left.as_duration()) {
            Ok((guard, _)) => now = guard,
            Err(_) => return over(),
        }
    }
}

/// The source of rows: a metrics endpoint, or the targets of a Prometheus server.
pub(crate) enum Source {
    Page(MetricsPageReader, PageLogState),
    Targets(PrometheusSource),
}

impl Source {
    pub fn new(
        page: MetricsPage,
        clock: Clock,
        (named, marks): (bool, bool),
        knows: fn(&str) -> bool,
    ) -> Source {
        let name = named.then(|| page.name.clone());
        let looker = MetricsPageReader::new(page, clock);
        match looker.page.asks_prometheus() {
            Some(_) => Source::Targets(PrometheusSource::new(looker, knows)),
            None => {
                let mut log = PageLogState::new((name, marks), knows);
                log.exporter = looker.page.exporter;
                Source::Page(looker, log)
            }
        }
    }

    pub fn page(&self) -> &MetricsPage {
        match self {
            Source::Page(looker, _) => &looker.page,
            Source::Targets(targets) => targets.page(),
        }
    }

    /// Discards the last values, as if they were never received.
    fn forget(&mut self) {
        match self {
            Source::Page(_, told) => told.forget(),
            Source::Targets(targets) => targets.forget(),
        }
    }

    /// Returns whether the source has had at most one scrape.
    pub fn is_new(&self) -> bool {
        match self {
            Source::Page(_, told) => told.scrapes <= 1,
            Source::Targets(_) => true,
        }
    }

    /// Records that the endpoint was removed.
    pub fn left(&mut self, at: At, rows: &ScrapeLog) {
        if let Source::Page(_, told) = self {
            told.left(at, rows);
        }
    }

    pub async fn scrape(&mut self, (clock, patience, every): (Clock, Span, Span), rows: &ScrapeLog) {
        let (looker, told) = match self {
            Source::Targets(targets) => return targets.scrape((clock, patience, every), rows).await,
            Source::Page(looker, told) => (looker, told),
        };
        if looker.page.is_constant() && told.scrapes > 0 {
            return;
        }
        if looker.page.is_driver() {
            let asked = clock.now();
            let found = nvml::rows();
            return told.tell(At(asked.0 + (clock.now() - asked).0 / 2), found, rows);
        }
        let asked = clock.now();
        let found = looker.body(patience).await;
        // The server builds the exposition between request and response, so the midpoint is its time.
        let at = At(asked.0 + (clock.now() - asked).0 / 2);
        match found {
            Ok(page) if looker.page.is_text() => told.tell_text(at, &page, rows),
            Ok(page) => match looker.page.read(&page) {
                Ok(found) => told.tell(at, found, rows),
                Err(why) => told.failed(at, &why.to_string(), rows),
            },
            Err(unread) => told.failed(at, &unread.why, rows),
        }
    }
}
