//! The loop of a watch: evaluates a budget on live traffic, prints changes, and hands alerts and history to their writers.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use plimsoll_client::Clock;
use plimsoll_client::metrics::pages::{self, MetricsPage, ScrapeError};
use plimsoll_client::metrics::pushed::PushCounts;
use plimsoll_client::metrics::scrape::Scraper;
use plimsoll_client::metrics::told::ScrapeLog;
use plimsoll_console::exit::{Exit, Stop};
use plimsoll_console::out::{self, OutputFormat};
use plimsoll_console::screen::{KeyWatch, Screen};
use plimsoll_measure::server_side::{SCRAPE, ServerSide};
use plimsoll_model::{At, Sample, Span};
use plimsoll_report::watched as words;
use plimsoll_watch::course::ChartData;
use plimsoll_watch::lint::{dead_pairs, lint};
use plimsoll_watch::{
    Alert, AlertKind, BudgetWatch, BudgetWatchSpec, Minute, RowState, WatchFinding, requests,
};

use crate::LOOK;
use crate::config::WatchConfig;
use crate::history::{self, HistoryWriter};
use crate::names::{known, knows};
use crate::notify::Notifier;
use crate::pushed::{self, PushListener};
use crate::record::Recorder;
use crate::run::{self, FollowedRuns, ObservedData};
use crate::serve::StatusServer;
use crate::{lists, page};

/// Time that a lint waits for pushed metrics: two scrapes of a Prometheus with a one-minute interval.
const LINT_WAITS: Span = Span::from_secs(130);

/// Returns the configured metrics endpoints.
///
/// With `asks`, one source must respond, because otherwise the watch has no data. Lists are exempt, because
/// some of their targets are always starting or stopping. An endpoint that does not respond is reported and
/// retried. The interval is at least the scrape interval of Prometheus.
fn pages(asked: &mut WatchConfig, asks: bool) -> Result<Vec<MetricsPage>, Stop> {
    let line = |e: &ScrapeError| e.to_string().replace("--scrape ", "");
    let trusted = || pages::trust(&asked.target, &asked.scrape);
    let found = match asks && asked.lists.is_empty() {
        true => pages::find_any(&asked.target, &asked.scrape),
        false => trusted().map(|pages| (pages, Vec::new())),
    };
    let found = match found {
        Err(silent @ ScrapeError::Silent { .. }) if !asked.pushed.is_empty() => {
            trusted().map(|pages| (pages, vec![silent]))
        }
        found => found,
    };
    let (found, silent) = found.map_err(|e| match e {
        ScrapeError::Target { .. } => Stop::usage(line(&e)),
        ScrapeError::Silent { .. } | ScrapeError::Cut { .. } => Stop::unreachable(line(&e)),
        ScrapeError::Local(_) => Stop::invalid(e.to_string()),
    })?;
    for lost in &silent {
        out::note(&format!(
            "{}; the watch begins with its other sources and retries this endpoint",
            line(lost)
        ));
    }
    asked.no_faster(found.iter().filter_map(|page| page.cadence).max())?;
    Ok(known(found))
}

/// Scrapes every endpoint once and reports the rows that the endpoints can decide.
///
/// # Errors
/// Fails if no endpoint responds, or if an alert pair can never fire.
pub fn lint_once(mut asked: WatchConfig) -> Result<Exit, Stop> {
    let pages = pages(&mut asked, true)?;
    let asked = &asked;
    let clock = Clock::start();
    let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
    let kept = Arc::clone(&samples);
    let rows = ScrapeLog::changes(move |sample: Sample| {
        if let Ok(mut kept) = kept.lock() {
            kept.push(sample);
        }
    });
    let receiving = pushed::start(&asked.pushed, clock, &rows)?;
    let scraper = Scraper::start(pages, asked.spec.every, clock, knows, rows);
    scraper.map_err(|e| Stop::invalid(format!("cannot scrape: {e}")))?.stop();
    if !receiving.is_empty() {
        let is_whole = |sample: &Sample| sample.name == SCRAPE && sample.value > 0.0;
        let has_told = || samples.lock().is_ok_and(|samples| samples.iter().any(is_whole));
        pushed::await_all(&receiving, clock, asked.time.unwrap_or(LINT_WAITS), has_told)?;
    }
    let samples = samples.lock().map(|samples| samples.clone()).unwrap_or_default();
    let (file, pairs) = (&asked.budget, asked.alerts.pairs());
    let found = lint(file, pairs, &ServerSide::read(&samples), clock.now());
    match asked.format {
        OutputFormat::Text => out::line(&words::lint(&found)),
        OutputFormat::Json => out::json(&found),
    }
    if let Some(dead) = dead_pairs(file, pairs) {
        return Err(Stop::usage(dead));
    }
    Ok(if found.iter().any(|row| row.judged) { Exit::Done } else { Exit::Inconclusive })
}

/// Watches metrics endpoints or the requests of a run, until the end of the run or of the watch.
///
/// # Errors
/// Fails if the sources, the listen address or a folder can't be used.
pub fn start(mut asked: WatchConfig) -> Result<Exit, Stop> {
    let (format, quiet) = (asked.format, asked.quiet);
    let clock = Clock::start();
    let run = asked.run.as_deref().map(|dir| FollowedRuns::open(dir, clock)).transpose()?;
    let senders = std::mem::take(&mut asked.senders);
    let memory = asked.alerts.pairs().iter().map(|pair| pair.long_s).max().unwrap_or(0);
    let what = (asked.budget.name.as_deref(), Span::from_secs(memory));
    let (notifier, kept) = Notifier::start(senders, asked.journal.as_ref(), what, clock)?;
    // An endpoint of an earlier watch may be gone; its absence is an outcome to report and not a start-up
    // error.
    let is_first = kept.as_ref().is_none_or(|kept| kept.alerts.is_empty());
    let pages = if run.is_none() { pages(&mut asked, is_first)? } else { Vec::new() };
    let served = asked
        .listen
        .map(|listen| StatusServer::start(listen, &asked.readers, page::nothing()))
        .transpose()?;
    let mut screen = Screen::new(quiet);
    let ended = Arc::new(AtomicBool::new(false));
    let on_key = Arc::clone(&ended);
    let _keys = KeyWatch::start(!quiet, move || on_key.store(true, Ordering::Relaxed));
    says_what_begins(&mut screen, &asked, &pages);
    if let Some(served) = &served {
        // Parent processes wait for this line, so it is printed even with `--quiet`.
        out::note(&format!("page, /metrics, /v1/rows and /v1/alerts on http://{}", served.addr));
    }
    let mut watched = BudgetWatch::new(asked.budget.clone(), asked.spec)
        .alerting(asked.alerts.clone())
        .priced(asked.price.clone())
        .begun_at(clock.anchor().realtime_ns as f64 / 1e9);
    let recorder = asked.recorder(clock)?;
    if recorder.is_some() {
        watched = watched.recording();
    }
    let mut history = asked.history(clock)?;
    let mut course = served.as_ref().map(|_| history::course(history.as_mut(), clock));
    if history.is_some() || course.is_some() {
        watched = watched.keeping(clock.anchor().realtime_ns);
    }
    // The channel is unbounded, because evaluation must not delay scraping.
    let (sends, coming) = mpsc::channel();
    let (receiving, follower) = match run {
        Some(mut run) => {
            let now = clock.now();
            watched = watched.of_requests(asked.alerts.clone(), now);
            // Taken out to free its memory, because this is the whole run so far.
            let before = std::mem::take(&mut run.before);
            if let Some(course) = &mut course {
                course.take(requests::before(&asked.budget, before, (clock.anchor().realtime_ns, now)));
            }
            (Vec::new(), run::follow(run, sends, Arc::clone(&ended)))
        }
        None => {
            if let Some(kept) = kept {
                watched = watched.resuming(kept, clock.now());
            }
            let rows = ScrapeLog::pages(move |read| _ = sends.send(ObservedData::Page(read)));
            let receiving = pushed::start(&asked.pushed, clock, &rows)?;
            // The limit is raised because each endpoint keeps one open connection.
            let _ = plimsoll_client::doctor::raise_descriptor_limit();
            let scraper = Scraper::each(pages, asked.spec.every, clock, knows, rows);
            let scraper = scraper.map_err(|e| Stop::invalid(format!("cannot scrape: {e}")))?;
            (receiving, lists::follow(&asked, scraper, Arc::clone(&ended)))
        }
    };
    let until = asked.time.map(|time| At::ZERO + time);
    let mut told = WatchOutputs {
        receiving,
        history,
        course,
        ..WatchOutputs::new(format, (notifier, recorder), served)
    };
    let last = go(WatchInputs { watched, coming }, &mut told, (clock, asked.spec, until), &ended);
    let is_ended = ended.swap(true, Ordering::Relaxed);
    let came: Vec<String> = told.pushed().iter().map(|(name, counts)| came(name, counts)).collect();
    told.notifier.end();
    told.recorder.into_iter().for_each(Recorder::end);
    told.history.into_iter().for_each(HistoryWriter::end);
    let is_over = follower.join().unwrap_or(Ok(false)).map_err(|e| Stop::invalid(e.to_string()));
    screen.clear();
    came.iter().for_each(|line| screen.say(line));
    let is_over = is_over?;
    let Some(found) = last else { return Ok(Exit::Inconclusive) };
    match format {
        OutputFormat::Json => out::json(&found),
        OutputFormat::Text => out::line(&words::text(&found)),
    }
    Ok(exit(&found, is_over || (until.is_some() && !is_ended)))
}

/// Prints the sources and the budget before the first scrape.
fn says_what_begins(screen: &mut Screen, asked: &WatchConfig, pages: &[MetricsPage]) {
    let (budget, every) = (asked.budget_name(), asked.spec.every);
    let asks_prometheus = pages.iter().any(|page| page.cadence.is_some());
    let line = match (asks_prometheus, asked.pushed.len()) {
        _ if let Some(dir) = &asked.run => words::follows(&dir.display().to_string(), every, &budget),
        (true, _) => words::begins_at_prometheus(every, &budget),
        (false, 0) => words::begins(pages.len(), every, &budget),
        (false, pushed) => words::begins_pushed(pages.len(), pushed, every, &budget),
    };
    screen.say(&line);
}

/// A watch and the channel of its data.
struct WatchInputs {
    watched: BudgetWatch,
    coming: mpsc::Receiver<ObservedData>,
}

impl WatchInputs {
    fn take(&mut self) {
        for came in self.coming.try_iter() {
            match came {
                ObservedData::Page(read) => self.watched.read(read),
                ObservedData::Requests(rows) => self.watched.take(rows),
            }
        }
    }
}

/// Ticks until the end. Returns the last finding.
fn go(
    mut seen: WatchInputs,
    told: &mut WatchOutputs,
    (clock, spec, until): (Clock, BudgetWatchSpec, Option<At>),
    ended: &AtomicBool,
) -> Option<WatchFinding> {
    let (mut due, mut last) = (clock.now(), None);
    loop {
        // Read this flag before the data, because the sender sets it after its last message.
        let is_ended = ended.load(Ordering::Acquire);
        seen.take();
        let now = clock.now();
        let over = is_ended || until.is_some_and(|until| now >= until);
        if now >= due || over {
            // Scrapes are staggered. A scrape that ends just after the tick is counted in the next tick.
            while due <= now {
                due += spec.every;
            }
            let watched = &mut seen.watched;
            told.receiving.iter_mut().for_each(|one| one.tick(now, (spec.every, spec.window), watched));
            watched.tick(now);
            if let Some((recorder, window)) = told.recorder.as_mut().zip(watched.fired(now)) {
                let dir = recorder.keep(window);
                watched.recorded(now, &dir.display().to_string());
            }
            let ended = watched.blocks_ended(over);
            if let Some(history) = &mut told.history {
                history.keep(&ended);
            }
            if let Some(course) = &mut told.course {
                course.take(ended);
            }
            let found = watched.finding(now);
            let minutes = watched.minutes_after(told.notifier.minutes_to());
            told.tell(&found, watched, minutes);
            last = Some(found);
        }
        if over {
            return last;
        }
        std::thread::sleep(LOOK);
    }
}

/// All outputs of a watch, and the state that each last showed.
struct WatchOutputs {
    format: OutputFormat,
    states: Vec<Option<RowState>>,
    alerts: Vec<Alert>,
    notifier: Notifier,
    /// Recorder of alert windows; `None` if recording is off.
    recorder: Option<Recorder>,
    history: Option<HistoryWriter>,
    /// Chart data of the last hours; `None` if the status page is off.
    course: Option<ChartData>,
    served: Option<StatusServer>,
    /// Receivers of pushed metrics, whose counts are shown.
    receiving: Vec<PushListener>,
}

impl WatchOutputs {
    fn new(
        format: OutputFormat,
        (notifier, recorder): (Notifier, Option<Recorder>),
        served: Option<StatusServer>,
    ) -> WatchOutputs {
        let (states, alerts, receiving) = (Vec::new(), Vec::new(), Vec::new());
        let (history, course) = (None, None);
        WatchOutputs { format, states, alerts, notifier, recorder, history, course, served, receiving }
    }

    fn tell(&mut self, found: &WatchFinding, watched: &BudgetWatch, minutes: Vec<(String, Minute)>) {
        self.notifier.tick(&found.alerts, minutes);
        changes(self.format, found, &mut self.states);
        called(self.format, found, &mut self.alerts);
        if let Some(served) = &self.served {
            let (mut bodies, event) = page::bodies(found, &self.notifier.health(), &self.pushed());
            bodies.extend(self.course.as_ref().map(|course| page::course(course, watched)));
            served.show(bodies, event);
        }
    }
}

impl WatchOutputs {
    /// Returns the receive counts of each listen address.
    fn pushed(&self) -> Vec<(String, PushCounts)> {
        self.receiving.iter().map(|one| (one.name().to_owned(), one.counts())).collect()
    }
}

/// Prints one line per row whose state changed.
fn changes(format: OutputFormat, found: &WatchFinding, states: &mut Vec<Option<RowState>>) {
    states.resize(found.rows.len(), None);
    for (row, state) in found.rows.iter().zip(states) {
        if *state == Some(row.state) {
            continue;
        }
        let before = state.replace(row.state);
        match format {
            OutputFormat::Text => out::line(&words::change(found.at_s, row, before)),
            OutputFormat::Json => {
                out::line(&serde_json::json!({"at_s": found.at_s, "before": before, "row": row}).to_string());
            }
        }
    }
}

/// Prints one line per alert that fires or resolves. The watchdog alert is for machines only. Without a known
/// cause the next step is printed once per kind, because a thousand stalled replicas share one step.
fn called(format: OutputFormat, found: &WatchFinding, told: &mut Vec<Alert>) {
    let is_told =
        |alert: &Alert| told.iter().any(|before| before.id == alert.id && before.state == alert.state);
    let people = found.alerts.iter().rev().filter(|alert| alert.kind != AlertKind::Watchdog);
    let mut kinds = HashSet::new();
    for alert in people.clone().filter(|alert| !is_told(alert)) {
        match format {
            OutputFormat::Text
                if alert.stands() && alert.diagnosis.is_none() && !kinds.insert(alert.kind) =>
            {
                out::line(&words::alert_again(found.at_s, alert));
            }
            OutputFormat::Text => out::line(&words::alert(found.at_s, alert)),
            OutputFormat::Json => {
                out::line(&serde_json::json!({"at_s": found.at_s, "alert": alert}).to_string());
            }
        }
    }
    *told = people.cloned().collect();
}

/// Formats receive counts and rejected samples: `otlp 127.0.0.1:9465: 1200 samples in 40 requests`.
fn came(name: &str, counts: &PushCounts) -> String {
    let left_out = [
        (counts.out_of_order, "twice or behind newer ones"),
        (counts.over_bound, "past the bounds of targets and series"),
        (counts.unknown, "of unused names"),
    ];
    words::came(name, [counts.taken, counts.requests], &left_out)
}

/// Returns the exit code: 1 broken, 5 no source responds, 3 inconclusive, 0 passed. Without a time limit the
/// user ended the watch.
fn exit(found: &WatchFinding, by_time: bool) -> Exit {
    let any = |state: RowState| found.rows.iter().any(|row| row.state == state);
    match () {
        () if !by_time => Exit::Interrupted,
        () if any(RowState::Broken) || any(RowState::Stalled) => Exit::Broken,
        () if any(RowState::SourceLost) => Exit::Unreachable,
        () if any(RowState::CannotTell) || !any(RowState::Holds) => Exit::Inconclusive,
        () => Exit::Done,
    }
}
