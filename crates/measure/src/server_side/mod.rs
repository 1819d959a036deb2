//! Server metrics on the run's time axis: rows of `server.parquet` → signals.
//!
//! [`ServerSide::read`] takes the samples of a run, scraped from a live server or written by a simulated one. It returns
//! one vocabulary ([`Signal`]) for all servers:
//!
//! * [`gauge`](ServerSide::gauge): a [`GaugeSeries`] over time, combined over all replicas by the signal's [`AggregationRule`];
//!   [`gauge_of`](ServerSide::gauge_of) returns the series of one replica. A series has time-weighted means and shares, also
//!   conditional on another gauge.
//! * [`gained`](ServerSide::gained): the increase of a counter, with restarts handled and reported.
//! * [`histogram`](ServerSide::histogram): the observations of a histogram as [`Buckets`], with an exact mean and bracketed
//!   quantiles.
//!
//! A signal that a server does not report is `None`: unknown, never zero. A failed or empty scrape leaves a gap in every
//! series. [`Disclosures`] contain the remarks that belong to all figures.
//!
//! [`PageLayout`] reads one endpoint scrape by scrape.
//!
//! There is one row per scrape or one per change: [`SCRAPE`] and [`FAILED`] mark the scrapes. NaN marks a series that
//! disappeared.

mod buckets;
mod histogram;
mod layout;
pub mod machine;
mod read;
mod report;
mod series;
pub mod signal;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_model::{At, Sample, SharedText, Span};

pub use buckets::{Bracket, Buckets, CounterDelta};
pub use layout::PageLayout;
pub use machine::{GpuReport, HostReport};
pub use report::{LevelReport, ServerMoment, ServerReport, report};
pub use series::{GaugeSeries, SeriesStep};
pub use signal::{AggregationRule, SeriesKind, Signal};

use read::{ScrapedPage, Track};
use table::{SignalLayer, SignalName, SignalPart, SignalTable};

/// Name of the row that marks a scrape. Its value is the number of samples; 0 is an empty page, which carries no data.
pub const SCRAPE: &str = "scrape_samples";

/// Name of the row that marks a failed scrape; its label `why` contains the error.
pub const FAILED: &str = "scrape_failed";

/// Name of the row that marks an endpoint as removed from the Prometheus targets.
pub const LEFT: &str = "scrape_left";

/// Name of the row with the time in seconds after which a silent endpoint counts as lost. The sender chooses its interval.
pub const PATIENCE: &str = "scrape_patience";

/// Label with the name of the endpoint that a row is from, if there are several.
pub const PAGE_LABEL: &str = "source";

/// An engine (replica, data-parallel rank) or device that is distinguishable from the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObservedReplica {
    /// Display name: the page's name, the values of the labels, or both.
    pub name: String,
    /// Name of its page; empty if there is only one page.
    pub page: String,
    /// Labels that identify the replica, `key=value`; empty if the page has only one replica.
    pub labels: String,
}

/// A series of a page that is read, with its row of the table.
#[derive(Clone, Debug)]
pub struct ExposedSeries {
    /// Name as spelled on the page.
    pub name: String,
    pub labels: Vec<(String, String)>,
    /// Row of the table that the series matches.
    pub row: &'static SignalName,
}

/// The remarks that belong to all figures of the server side.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Disclosures {
    /// Number of scrapes, including failed ones.
    pub scrapes: u64,
    /// Number of failed scrapes: no response, an error, or an empty page.
    pub failed: u64,
    /// Number of failed scrapes by error.
    pub failures: BTreeMap<String, u64>,
    /// Largest number of decreases (restarts) of any counter.
    pub resets: u32,
    /// Set if counters decrease repeatedly. Several processes then answer at one address, and none of its figures is usable.
    pub alternates: bool,
    /// Set if gauges have a process id as label. Each process then reports its part, and a scrape shows one process or all.
    pub per_process: bool,
    /// Number of names that the table does not contain; they are stored with the run and not read.
    pub unknown_names: usize,
}

/// The metrics that servers reported during a run.
#[derive(Clone, Debug, Default)]
pub struct ServerSide {
    pages: Vec<ScrapedPage>,
    replicas: Vec<ObservedReplica>,
    devices: Vec<ObservedReplica>,
    hosts: Vec<ObservedReplica>,
    tracks: BTreeMap<Signal, Vec<Track>>,
    servers: BTreeSet<&'static str>,
    disclosures: Disclosures,
}

impl ServerSide {
    /// Reads the samples of a run, in any order. Samples of the load generator (`source` = `client`) are left out.
    pub fn read<'a>(samples: impl IntoIterator<Item = &'a Sample, IntoIter: Clone>) -> ServerSide {
        read::read(samples)
    }

    /// Returns the series of these pages that figures are made of, with their rows of the table.
    pub fn exposed(samples: &[Sample]) -> Vec<ExposedSeries> {
        let all = read::exposed(samples);
        // As in `whole`, an engine's series replaces the series of a gateway in front of it.
        let engines: Vec<Signal> =
            all.iter().filter(|one| one.row.layer == SignalLayer::Engine).map(|one| one.row.signal).collect();
        all.into_iter()
            .filter(|one| one.row.layer == SignalLayer::Engine || !engines.contains(&one.row.signal))
            .collect()
    }

    /// Returns the signals of one page at one instant over all its processes: gauges by their rules, and values of counters.
    pub fn said(page: &[Sample]) -> BTreeMap<Signal, f64> {
        // The page is read separately, so a label `source` belongs to its server.
        let mark = Sample {
            at: At::ZERO,
            source: "server".into(),
            name: SCRAPE.into(),
            labels: SharedText::default(),
            value: page.len() as f64,
        };
        let values = read::values(&page.iter().chain([&mark]).collect::<Vec<_>>());
        let engines: BTreeSet<Signal> = values
            .iter()
            .filter(|(row, _)| row.layer == SignalLayer::Engine)
            .map(|(row, _)| row.signal)
            .collect();
        let mut each: BTreeMap<Signal, Vec<f64>> = BTreeMap::new();
        for (row, value) in values {
            let counts = matches!(row.part, SignalPart::Gauge | SignalPart::Counter);
            if counts && (row.layer == SignalLayer::Engine || !engines.contains(&row.signal)) {
                each.entry(row.signal).or_default().push(value);
            }
        }
        each.into_iter().filter_map(|(signal, values)| Some((signal, signal.rule().of(&values)?))).collect()
    }

    /// Returns whether no server reported a signal.
    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }

    /// Returns whether there is a series for this signal.
    pub fn has(&self, signal: Signal) -> bool {
        self.tracks.contains_key(&signal)
    }

    /// Returns whether any of these servers has a name for this signal. A counter of an event that never occurred is on no page.
    pub fn may_say(&self, signal: Signal) -> bool {
        self.has(signal) || self.servers.iter().any(|server| SignalTable::shipped().says(server, signal))
    }

    /// Returns the engines that can be distinguished.
    pub fn replicas(&self) -> &[ObservedReplica] {
        &self.replicas
    }

    /// Returns the GPUs that can be distinguished.
    pub fn devices(&self) -> &[ObservedReplica] {
        &self.devices
    }

    /// Returns the number of GPUs. A GPU that two pages report counts once.
    pub fn gpus(&self) -> usize {
        let tracks = |signal| self.tracks(signal).len();
        let each = [Signal::GpuPower, Signal::GpuEnergy, Signal::GpuMemoryUsed, Signal::GpuUtilisation];
        each.into_iter().map(tracks).find(|tracks| *tracks > 0).unwrap_or(self.devices.len())
    }

    /// Returns the machines and containers that can be distinguished.
    pub fn hosts(&self) -> &[ObservedReplica] {
        &self.hosts
    }

    /// Returns the usual scrape interval; the longest if pages differ. Scrapes miss most events that are shorter.
    pub fn cadence(&self) -> Option<Span> {
        self.pages.iter().filter_map(|page| page.scrapes.cadence).max()
    }

    /// Returns the remarks that belong to all figures.
    pub fn disclosures(&self) -> &Disclosures {
        &self.disclosures
    }

    /// Returns a gauge over all processes, combined by the signal's rule.
    ///
    /// If a process could not be scraped for a time and reappears later, the combined value is unknown for that time.
    pub fn gauge(&self, signal: Signal) -> Option<GaugeSeries> {
        let tracks: Vec<&Track> = self.whole(signal).filter(|track| track.is_level()).collect();
        read::combine(&self.pages, &tracks, signal.rule())
    }

    /// Returns a gauge of one replica, numbered as in [`replicas`](ServerSide::replicas), or of one device for a GPU's signals.
    pub fn gauge_of(&self, replica: usize, signal: Signal) -> Option<GaugeSeries> {
        let tracks: Vec<&Track> =
            self.own(replica, signal).into_iter().filter(|track| track.is_level()).collect();
        read::combine(&self.pages, &tracks, signal.rule())
    }

    /// Returns a gauge of one device, numbered as in [`devices`](ServerSide::devices).
    pub fn gauge_of_device(&self, device: usize, signal: Signal) -> Option<GaugeSeries> {
        let own = self.of_number(device, signal);
        read::combine(&self.pages, &own, signal.rule())
    }

    /// Returns the increase of a counter of one device.
    pub fn gained_of_device(&self, device: usize, signal: Signal, from: At, to: At) -> Option<CounterDelta> {
        self.counted(self.of_number(device, signal).into_iter(), from, to)
    }

    /// Returns the increase of a counter of one of the [`hosts`](ServerSide::hosts).
    pub fn gained_of_host(&self, host: usize, signal: Signal, from: At, to: At) -> Option<CounterDelta> {
        self.gained_of_device(host, signal, from, to)
    }

    /// Returns the number of successful and of failed scrapes between these instants, of servers if there are any.
    pub fn scraped(&self, from: At, to: At) -> (u64, u64) {
        let servers = self.tracks.values().flatten().filter(|track| !track.is_of_machine());
        let servers: BTreeSet<usize> = servers.map(|track| track.page).collect();
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter(|(number, _)| servers.is_empty() || servers.contains(number));
        let all = pages.flat_map(|(_, page)| &page.scrapes.at);
        let within = all.filter(|scrape| (from..=to).contains(&scrape.0));
        within.fold((0, 0), |(came, lost), scrape| match scrape.1 {
            true => (came + 1, lost),
            false => (came, lost + 1),
        })
    }

    /// Returns the largest number of restarts of any counter between these instants.
    ///
    /// The result is 0 if several processes answer in turn at one address.
    pub fn restarts(&self, from: At, to: At) -> u32 {
        if self.disclosures.alternates {
            return 0;
        }
        let grows = self.tracks.values().flatten().filter(|track| track.grows() && !track.is_of_machine());
        grows.map(|track| track.falls(from, to)).max().unwrap_or(0)
    }

    /// Returns the increase of a counter over all processes.
    ///
    /// The interval is from the last scrape not after `from` to the last scrape not after `to`.
    pub fn gained(&self, signal: Signal, from: At, to: At) -> Option<CounterDelta> {
        self.counted(self.whole(signal), from, to)
    }

    /// Returns the increase of a counter of one replica.
    pub fn gained_of(&self, replica: usize, signal: Signal, from: At, to: At) -> Option<CounterDelta> {
        self.counted(self.own(replica, signal).into_iter(), from, to)
    }

    /// Returns the observations of a histogram over all processes between the scrapes that [`gained`](ServerSide::gained) uses.
    pub fn histogram(&self, signal: Signal, from: At, to: At) -> Option<Buckets> {
        let tracks: Vec<&Track> = self.whole(signal).collect();
        histogram::taken_in(&self.pages, &tracks, from, to)
    }

    /// Returns the observations of a histogram of one replica.
    pub fn histogram_of(&self, replica: usize, signal: Signal, from: At, to: At) -> Option<Buckets> {
        histogram::taken_in(&self.pages, &self.own(replica, signal), from, to)
    }

    /// Returns the total of a replica's counters of this signal at `at`, since the start of its process.
    ///
    /// For a histogram `part` selects its sums or its counts.
    pub fn stood_of(&self, replica: usize, signal: Signal, part: &SignalPart, at: At) -> Option<f64> {
        let own = self.own(replica, signal).into_iter().filter(|track| track.part == *part);
        own.filter_map(|track| track.stood_at(at)).reduce(|a, b| a + b)
    }

    /// Returns the mean number of queued requests by Little's law, λW, from the queue-time histogram.
    ///
    /// Unlike the gauge it includes queues between two scrapes. It counts the queue time of requests that ended in the window.
    pub fn waiting_by_little(&self, from: At, to: At) -> Option<f64> {
        let taken = self.histogram(Signal::QueueTime, from, to)?;
        Some(taken.sum? / (taken.to - taken.from).as_secs_f64())
    }

    /// Returns the mean tokens per check of a draft (speculative decoding), including the model's own token.
    ///
    /// Counters are used if they count at least a hundred checks, else the mean of the gauge. `None` if there are no drafts.
    pub fn accepted_length(&self, from: At, to: At) -> Option<f64> {
        let gained = |signal| Some(self.gained(signal, from, to)?.value);
        let counted = || {
            let (checked, accepted) = (gained(Signal::DraftsChecked)?, gained(Signal::AcceptedTokens)?);
            (checked >= 100.0).then(|| 1.0 + accepted / checked)
        };
        // A server without speculative decoding shows 0.
        let shown = || self.gauge(Signal::AcceptedLength)?.mean(from, to).filter(|length| *length >= 1.0);
        counted().or_else(shown)
    }

    /// Returns all tracks of a signal.
    fn tracks(&self, signal: Signal) -> &[Track] {
        self.tracks.get(&signal).map_or(&[][..], Vec::as_slice)
    }

    /// Returns the tracks of the owner with this number.
    fn of_number(&self, number: usize, signal: Signal) -> Vec<&Track> {
        self.tracks(signal).iter().filter(|track| track.replica == Some(number)).collect()
    }

    /// Returns the tracks that add up to the total: the engines' if there are any, else the gateway's.
    fn whole(&self, signal: Signal) -> impl Iterator<Item = &Track> {
        let tracks = self.tracks.get(&signal).map_or(&[][..], Vec::as_slice);
        let engines = tracks.iter().any(|track| track.layer == SignalLayer::Engine);
        tracks.iter().filter(move |track| !engines || track.layer == SignalLayer::Engine)
    }

    /// Returns the tracks of one replica; the tracks of the whole page if the page has only this replica.
    fn own(&self, replica: usize, signal: Signal) -> Vec<&Track> {
        let tracks = self.tracks.get(&signal).map_or(&[][..], Vec::as_slice);
        let own: Vec<&Track> = tracks.iter().filter(|track| track.replica == Some(replica)).collect();
        if !own.is_empty() {
            return own;
        }
        let Some(page) = self.replicas.get(replica).map(|replica| &replica.page) else { return Vec::new() };
        if self.replicas.iter().filter(|other| other.page == *page).count() > 1 {
            return Vec::new();
        }
        let of_page = |track: &&Track| {
            track.replica.is_none()
                && track.layer != SignalLayer::Gateway
                && self.pages[track.page].name == *page
        };
        tracks.iter().filter(of_page).collect()
    }

    /// Returns the increase of the counters among these tracks.
    fn counted<'a>(&self, tracks: impl Iterator<Item = &'a Track>, from: At, to: At) -> Option<CounterDelta> {
        let counters = tracks.filter(|track| track.part == SignalPart::Counter);
        let each = counters.filter_map(|track| self.pages[track.page].gained(track, (from, to), (0.0, &[])));
        each.reduce(CounterDelta::with)
    }
}
