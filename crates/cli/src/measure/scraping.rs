//! The scraper of a live run. It is found before the folder is made, starts when the log exists, and ends with the run.
//!
//! Samples go to the log immediately, like records, and stay in memory until the folder is closed.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use plimsoll_client::Clock;
use plimsoll_client::metrics::pages::{self, MetricsPage, ScrapeError};
use plimsoll_client::metrics::scrape::Scraper;
use plimsoll_client::metrics::told::ScrapeLog;
use plimsoll_measure::findings::Findings;
use plimsoll_measure::server_side::report;
use plimsoll_measure::server_side::table::SignalTable;
use plimsoll_model::{Sample, Span};
use plimsoll_workload::{Scenario, format_span};
use serde_json::{Value, json};

use super::{Driver, MeasurementSession, append};
use crate::exit::Stop;
use crate::screen::Screen;

/// A scraper and its samples so far.
pub struct ScrapeSession {
    scraper: Option<Scraper>,
    samples: Arc<Mutex<Vec<Sample>>>,
}

/// Finds the metrics endpoints, reports them on the screen and records them in the stored scenario.
pub fn find(scenario: &Scenario, screen: &mut Screen, whole: &mut Value) -> Result<Vec<MetricsPage>, Stop> {
    let spec = &scenario.scrape;
    let pages = pages::find(&scenario.target, spec).map_err(|e| match e {
        ScrapeError::Target { .. } => Stop::usage(e.to_string()),
        ScrapeError::Silent { .. } | ScrapeError::Cut { .. } => Stop::unreachable(e.to_string()),
        ScrapeError::Local(_) => Stop::invalid(e.to_string()),
    })?;
    let urls: Vec<&str> = pages.iter().map(|page| page.url.as_str()).collect();
    if !urls.is_empty() {
        screen.say(&format!("reading {} every {}", urls.join(", "), format_span(spec.every)));
    }
    if spec.discover && spec.pages.is_empty() && pages.iter().all(MetricsPage::is_exporter) {
        screen.say("no metrics endpoint found, so server metrics are missing (name one with --scrape)");
    }
    if let Some(object) = whole.as_object_mut() {
        let page = |page: &MetricsPage| json!({"name": page.name, "url": page.url});
        object.insert("scraped".into(), pages.iter().map(page).collect());
    }
    Ok(pages)
}

impl ScrapeSession {
    /// Starts the scraper if there is a metrics endpoint.
    pub fn start(
        pages: Vec<MetricsPage>,
        every: Span,
        clock: Clock,
        store: plimsoll_store::RecordSink,
    ) -> Result<Option<ScrapeSession>, Stop> {
        if pages.is_empty() {
            return Ok(None);
        }
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let kept = Arc::clone(&samples);
        let rows = ScrapeLog::changes(move |sample: Sample| {
            store.sample(&sample);
            if let Ok(mut kept) = kept.lock() {
                kept.push(sample);
            }
        });
        let knows = |name: &str| !SignalTable::shipped().of(name).is_empty();
        let scraper = Scraper::start(pages, every, clock, knows, rows);
        let scraper = scraper.map_err(|e| Stop::invalid(format!("cannot scrape: {e}")))?;
        Ok(Some(ScrapeSession { scraper: Some(scraper), samples }))
    }

    /// Marks the start of a level, at which every series gets a sample.
    pub fn level(&self) {
        if let Some(scraper) = &self.scraper {
            scraper.whole();
        }
    }

    pub fn so_far(&self) -> Vec<Sample> {
        self.samples.lock().map(|all| all.clone()).unwrap_or_default()
    }

    /// Scrapes a last time and returns all samples.
    pub fn end(&mut self) -> Vec<Sample> {
        if let Some(scraper) = self.scraper.take() {
            scraper.stop();
        }
        self.samples.lock().map(|mut all| std::mem::take(&mut *all)).unwrap_or_default()
    }
}

impl MeasurementSession {
    /// Keeps the samples of simulated servers; the scraper keeps the samples of live servers.
    pub fn keep_server(&mut self, mut samples: Vec<Sample>) {
        samples.retain(|sample| sample.source != "client");
        append(&mut self.samples, samples);
    }

    /// Adds the server's metrics so far to findings that were computed from levels only.
    pub fn tell(&self, findings: &mut Findings) {
        findings.server = report(&findings.levels, &self.seen());
    }

    /// Returns all samples so far, including the scraper's.
    pub fn seen(&self) -> Cow<'_, [Sample]> {
        match &self.driver {
            Driver::Live { scraping: Some(scraping), .. } => {
                let mut samples = self.samples.clone();
                samples.extend(scraping.so_far());
                Cow::Owned(samples)
            }
            _ => Cow::Borrowed(&self.samples),
        }
    }
}
