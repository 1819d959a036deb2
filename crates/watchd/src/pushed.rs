//! Receivers of pushed metrics: listen addresses of a watch.
//!
//! An address without data is reported as a lost source, like an endpoint that does not respond. The grace
//! period is 65 seconds or three intervals, whichever is longer, because exporters may push once a minute.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_client::Secret;
use plimsoll_client::metrics::measured::OtlpSource;
use plimsoll_client::metrics::pushed::PushCounts;
use plimsoll_client::metrics::told::ScrapeLog;
use plimsoll_console::exit::Stop;
use plimsoll_console::out;
use plimsoll_model::{At, PageRead, PageSaid, Span};
use plimsoll_report::watched as words;
use plimsoll_server::collector::{self, Bearer, CollectorConfig, CollectorHandle, PushSink};
use plimsoll_watch::BudgetWatch;
use plimsoll_wire::otlp_metrics;

use crate::LOOK;
use crate::file::PushSpec;
use crate::names::knows;

/// Grace period for the first push, because an exporter may push once a minute.
const FIRST: Span = Span::from_secs(65);
/// Returns the token that senders must present. `section` is the section of the watch file.
pub fn bearer(
    section: &str,
    key_env: Option<&String>,
    key_file: Option<&PathBuf>,
) -> Result<Option<Bearer>, Stop> {
    let key = match (key_env, key_file) {
        (Some(name), _) => Secret::from_env(name),
        (None, Some(path)) => Secret::from_file(path),
        (None, None) => return Ok(None),
    };
    let key = key.map_err(|e| Stop::usage(format!("{section}: {e}")))?;
    Ok(Some(key.with_bytes(Bearer::new)))
}

/// A receiver on one listen address; dropping it closes the address.
pub struct PushListener {
    name: String,
    counts: Arc<Mutex<PushCounts>>,
    /// Set after the address was reported as silent.
    is_lost: bool,
    is_warned: bool,
    _collecting: CollectorHandle,
}

/// Starts all receivers.
///
/// # Errors
/// Fails if an address can't be bound or a key can't be read.
pub fn start(specs: &[PushSpec], clock: Clock, rows: &ScrapeLog) -> Result<Vec<PushListener>, Stop> {
    specs.iter().map(|spec| receive(spec, clock, rows)).collect()
}

fn receive(spec: &PushSpec, clock: Clock, rows: &ScrapeLog) -> Result<PushListener, Stop> {
    let counts: Arc<Mutex<PushCounts>> = Arc::default();
    let shown = Arc::clone(&counts);
    let mut pages = OtlpSource::new(clock, knows, rows.clone());
    let sink = PushSink::Measured(Box::new(move |resources| {
        let (says, rejected) = pages.take(resources);
        says.iter().for_each(|line| out::note(&format!("otlp: {line}")));
        show(&shown, pages.counts());
        rejected
    }));
    let bearer = bearer("sources: otlp", spec.key_env.as_ref(), spec.key_file.as_ref())?;
    let config = CollectorConfig { bearer, ..CollectorConfig::new(vec![spec.listen]) };
    let collecting = collector::receive(config, sink)
        .map_err(|e| Stop::usage(format!("sources: otlp: {e}; name another port")))?;
    let addr = collecting.addrs().first().copied().unwrap_or(spec.listen);
    // Parent processes wait for this line, so it is printed even with `--quiet`.
    out::note(&format!("otlp is taken at http://{addr}{}", otlp_metrics::HTTP_PATH));
    let name = format!("otlp {addr}");
    Ok(PushListener { name, counts, is_lost: false, is_warned: false, _collecting: collecting })
}

fn show(shown: &Mutex<PushCounts>, counts: PushCounts) {
    if let Ok(mut shown) = shown.lock() {
        *shown = counts;
    }
}

impl PushListener {
    /// Returns the display name of the address.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn counts(&self) -> PushCounts {
        self.counts.lock().map(|counts| counts.clone()).unwrap_or_default()
    }

    /// Marks the source as lost after a silent grace period. Warns once if an exporter pushes too rarely for the
    /// window.
    pub fn tick(&mut self, now: At, (every, window): (Span, Span), watched: &mut BudgetWatch) {
        let counts = self.counts();
        let is_heard = counts.taken > 0;
        let mark = |said| PageRead { page: self.name.clone(), at: now, said };
        if !is_heard && now > At::ZERO + FIRST.max(Span(3 * every.0)) {
            watched.read(mark(PageSaid::Failed("nothing has come".to_owned())));
            self.is_lost = true;
        } else if is_heard && std::mem::take(&mut self.is_lost) {
            watched.read(mark(PageSaid::Left));
        }
        if let Some(cadence) = counts.cadence.filter(|cadence| Span(8 * cadence.0) > window)
            && !std::mem::replace(&mut self.is_warned, true)
        {
            out::note(&words::pushed_too_seldom(&self.name, cadence, window));
        }
    }
}

/// Waits until every receiver has data, for at most `most`.
pub fn await_all(
    receiving: &[PushListener],
    clock: Clock,
    most: Span,
    has_told: impl Fn() -> bool,
) -> Result<(), Stop> {
    loop {
        let silent = receiving.iter().find(|one| one.counts().taken == 0);
        if silent.is_none() && has_told() {
            return Ok(());
        }
        if clock.now() > At::ZERO + most {
            let name = silent.or(receiving.first()).map_or("", PushListener::name);
            let unknown: u64 = receiving.iter().map(|one| one.counts().unknown).sum();
            let why = match unknown {
                0 => "nothing was received",
                _ => "no known metric was received",
            };
            let seconds = most.as_secs_f64();
            return Err(Stop::unreachable(format!(
                "{name}: {why} within {seconds:.0} s; see that its sender runs, or wait longer with --for"
            )));
        }
        std::thread::sleep(Duration::from_millis(20).min(LOOK));
    }
}
