//! What a server says of itself, on the run's own time axis: rows of `server.parquet` → signals.
//!
//! [`ServerSide::read`] takes the samples of a run, however they came there (scraped from a live server, written by a
//! simulated one), and answers in one vocabulary ([`Signal`]) over all servers:
//!
//! * [`gauge`](ServerSide::gauge): a [`Series`] over time, of all replicas together by the signal's [`Rule`];
//!   [`gauge_of`](ServerSide::gauge_of) of one. Time-weighted means, shares, and both on condition of another gauge.
//! * [`gained`](ServerSide::gained): what a counter gained, restarts handled and told.
//! * [`histogram`](ServerSide::histogram): what a histogram took in, as [`Buckets`] with an exact mean and bracketed quantiles.
//!
//! What a server does not say is `None`: unknown, never zero. A page that could not be read, or that was empty, leaves a gap in
//! every series. [`Disclosures`] hold what a reader must be told beside any figure.
//!
//! [`PageLayout`] says the same of one page that is read again and again, scrape by scrape.
//!
//! Rows are one per scrape or one per change: [`SCRAPE`] and [`FAILED`] mark the scrapes themselves. NaN says that a series has left the page.

mod buckets;
mod histogram;
mod layout;
mod read;
mod report;
mod series;
pub mod signal;
pub mod table;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_model::{At, Sample, SharedText, Span};

pub use buckets::{Bracket, Buckets, Gained};
pub use layout::PageLayout;
pub use report::{LevelReport, ServerMoment, ServerReport, report};
pub use series::{Series, SeriesStep};
pub use signal::{Rule, SeriesKind, Signal};

use read::{ScrapedPage, Track};
use table::{Layer, SignalName, SignalPart, Table};

/// Name of the row that marks a scrape at a page: how many samples the page had; 0 = an empty page, which says nothing.
pub const SCRAPE: &str = "scrape_samples";

/// Name of the row that marks a scrape that failed; its label `why` says how.
pub const FAILED: &str = "scrape_failed";

/// Name of the row that says that a page is nobody's any more: a target was taken out of Prometheus.
pub const LEFT: &str = "scrape_left";

/// Name of the row that says for how long a page may be silent before it is lost, s: how often it speaks is its sender's choice.
pub const PATIENCE: &str = "scrape_patience";

/// Label that names the page that a row came from, where there are several.
pub const PAGE_LABEL: &str = "source";

/// One engine (replica, data-parallel rank) or device that can be told from the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    /// How people call it: the page's name, the labels' values, or both.
    pub name: String,
    /// Name of its page; empty where there is only one.
    pub page: String,
    /// The labels that tell it apart, `key=value`; empty where the page has only one replica.
    pub labels: String,
}

/// A series of a page that is read, and what for.
#[derive(Clone, Debug)]
pub struct ExposedSeries {
    /// Its name as the page spells it.
    pub name: String,
    pub labels: Vec<(String, String)>,
    /// The row of the table that it is read by.
    pub row: &'static SignalName,
}

/// What must be said beside any figure of these.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Disclosures {
    /// Scrapes taken, failed ones included.
    pub scrapes: u64,
    /// Scrapes that failed: no answer, an error, or an empty page.
    pub failed: u64,
    /// Why, and how often.
    pub failures: BTreeMap<String, u64>,
    /// Counters that went back (a restart), most of any one.
    pub resets: u32,
    /// Counters go back again and again: several processes answer behind one address, and none of its figures can be used.
    pub alternates: bool,
    /// Pages whose gauges carry a process id: each process tells its own part, and one scrape sees one of them or all.
    pub per_process: bool,
    /// Names on the pages that the table does not know; kept in the run, read by nothing.
    pub unknown_names: usize,
}

/// What servers said during a run.
#[derive(Clone, Debug, Default)]
pub struct ServerSide {
    pages: Vec<ScrapedPage>,
    replicas: Vec<Replica>,
    devices: Vec<Replica>,
    tracks: BTreeMap<Signal, Vec<Track>>,
    servers: BTreeSet<&'static str>,
    disclosures: Disclosures,
}

impl ServerSide {
    /// Reads a run's samples, in any order. The generator's own (`source` = `client`) are left out.
    pub fn read<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> ServerSide {
        read::read(samples)
    }

    /// Which series of these pages are read, and for what: those that every figure here is made of.
    pub fn exposed(samples: &[Sample]) -> Vec<ExposedSeries> {
        let all = read::exposed(samples);
        // As in `whole`: what an engine says goes before what the gateway before it says.
        let engines: Vec<Signal> =
            all.iter().filter(|one| one.row.layer == Layer::Engine).map(|one| one.row.signal).collect();
        all.into_iter()
            .filter(|one| one.row.layer == Layer::Engine || !engines.contains(&one.row.signal))
            .collect()
    }

    /// What one page says at one instant, all its processes together: gauges by their signals' rules, and what counters stand at.
    pub fn said(page: &[Sample]) -> BTreeMap<Signal, f64> {
        // A page that is read by itself: a label `source` on it is its server's own.
        let mark = Sample {
            at: At::ZERO,
            source: "server".into(),
            name: SCRAPE.into(),
            labels: SharedText::default(),
            value: page.len() as f64,
        };
        let values = read::values(&page.iter().chain([&mark]).collect::<Vec<_>>());
        let engines: BTreeSet<Signal> =
            values.iter().filter(|(row, _)| row.layer == Layer::Engine).map(|(row, _)| row.signal).collect();
        let mut each: BTreeMap<Signal, Vec<f64>> = BTreeMap::new();
        for (row, value) in values {
            let counts = matches!(row.part, SignalPart::Gauge | SignalPart::Counter);
            if counts && (row.layer == Layer::Engine || !engines.contains(&row.signal)) {
                each.entry(row.signal).or_default().push(value);
            }
        }
        each.into_iter().filter_map(|(signal, values)| Some((signal, signal.rule().of(&values)?))).collect()
    }

    /// Did nobody say anything?
    pub fn is_empty(&self) -> bool {
        self.tracks.is_empty()
    }

    /// Is there anything of this signal?
    pub fn has(&self, signal: Signal) -> bool {
        self.tracks.contains_key(&signal)
    }

    /// Does any of these servers have a name for this signal? Counters of what has not happened yet are on no page.
    pub fn may_say(&self, signal: Signal) -> bool {
        self.has(signal) || self.servers.iter().any(|server| Table::shipped().says(server, signal))
    }

    /// The engines that can be told apart.
    pub fn replicas(&self) -> &[Replica] {
        &self.replicas
    }

    /// The GPUs that can be told apart.
    pub fn devices(&self) -> &[Replica] {
        &self.devices
    }

    /// The usual time between two scrapes; the longest where pages differ. What lasts less is seen by chance.
    pub fn cadence(&self) -> Option<Span> {
        self.pages.iter().filter_map(|page| page.scrapes.cadence).max()
    }

    /// What must be said beside any figure.
    pub fn disclosures(&self) -> &Disclosures {
        &self.disclosures
    }

    /// A gauge over all processes, by the signal's rule. Where one of them could not be read for a while and is there again later,
    /// the whole is unknown for that while.
    pub fn gauge(&self, signal: Signal) -> Option<Series> {
        let tracks: Vec<&Track> = self.whole(signal).filter(|track| track.is_level()).collect();
        read::combine(&self.pages, &tracks, signal.rule())
    }

    /// A gauge of one replica, numbered as in [`replicas`](ServerSide::replicas), or of one device for a GPU's signals.
    pub fn gauge_of(&self, replica: usize, signal: Signal) -> Option<Series> {
        let tracks: Vec<&Track> =
            self.own(replica, signal).into_iter().filter(|track| track.is_level()).collect();
        read::combine(&self.pages, &tracks, signal.rule())
    }

    /// Scrapes between these instants that brought a page, and those that brought none.
    pub fn scraped(&self, from: At, to: At) -> (u64, u64) {
        let all = self.pages.iter().flat_map(|page| &page.scrapes.at);
        let within = all.filter(|scrape| (from..=to).contains(&scrape.0));
        within.fold((0, 0), |(came, lost), scrape| match scrape.1 {
            true => (came + 1, lost),
            false => (came, lost + 1),
        })
    }

    /// How often counters went back between these instants, most of any one: a process began anew. None where several processes answer in turn.
    pub fn restarts(&self, from: At, to: At) -> u32 {
        if self.disclosures.alternates {
            return 0;
        }
        let grows = self.tracks.values().flatten().filter(|track| track.grows());
        grows.map(|track| track.falls(from, to)).max().unwrap_or(0)
    }

    /// What a counter gained over all processes from the last scrape not after `from` to the last one not after `to`.
    pub fn gained(&self, signal: Signal, from: At, to: At) -> Option<Gained> {
        let tracks: Vec<&Track> =
            self.whole(signal).filter(|track| track.part == SignalPart::Counter).collect();
        self.sum_gained(&tracks, from, to)
    }

    /// The same of one replica.
    pub fn gained_of(&self, replica: usize, signal: Signal, from: At, to: At) -> Option<Gained> {
        let own = self.own(replica, signal);
        let tracks: Vec<&Track> = own.into_iter().filter(|track| track.part == SignalPart::Counter).collect();
        self.sum_gained(&tracks, from, to)
    }

    /// What a histogram took in over all processes between the scrapes that [`gained`](ServerSide::gained) takes.
    pub fn histogram(&self, signal: Signal, from: At, to: At) -> Option<Buckets> {
        let tracks: Vec<&Track> = self.whole(signal).collect();
        self.taken_in(&tracks, from, to)
    }

    /// The same of one replica.
    pub fn histogram_of(&self, replica: usize, signal: Signal, from: At, to: At) -> Option<Buckets> {
        self.taken_in(&self.own(replica, signal), from, to)
    }

    /// What a replica's counters of this signal (or the sums, or the counts, of its histogram) stood at then: since its process began.
    pub fn stood_of(&self, replica: usize, signal: Signal, part: &SignalPart, at: At) -> Option<f64> {
        let own = self.own(replica, signal).into_iter().filter(|track| track.part == *part);
        own.filter_map(|track| track.stood_at(at)).reduce(|a, b| a + b)
    }

    /// Mean requests in the queue by Little's law, λW: what the queue-time histogram took in over the window. Unlike the gauge it misses no
    /// short queue; it counts the wait of the requests that ended in the window.
    pub fn waiting_by_little(&self, from: At, to: At) -> Option<f64> {
        let taken = self.histogram(Signal::QueueTime, from, to)?;
        Some(taken.sum? / (taken.to - taken.from).as_secs_f64())
    }

    /// Tokens that each check of a draft brought (speculative decoding), the model's own counted in: from counters where there are any and
    /// they counted a hundred checks, else the mean of the gauge. `None` where nothing was drafted.
    pub fn accepted_length(&self, from: At, to: At) -> Option<f64> {
        let gained = |signal| Some(self.gained(signal, from, to)?.value);
        let counted = || {
            let (checked, accepted) = (gained(Signal::DraftsChecked)?, gained(Signal::AcceptedTokens)?);
            (checked >= 100.0).then(|| 1.0 + accepted / checked)
        };
        // A server that drafts nothing shows 0.
        let shown = || self.gauge(Signal::AcceptedLength)?.mean(from, to).filter(|length| *length >= 1.0);
        counted().or_else(shown)
    }

    /// The tracks that make the whole: an engine's own where there are any, else those of the gateway before it.
    fn whole(&self, signal: Signal) -> impl Iterator<Item = &Track> {
        let tracks = self.tracks.get(&signal).map_or(&[][..], Vec::as_slice);
        let engines = tracks.iter().any(|track| track.layer == Layer::Engine);
        tracks.iter().filter(move |track| !engines || track.layer == Layer::Engine)
    }

    /// The tracks of one replica; those of its whole page where it is alone there.
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
            track.replica.is_none() && track.layer != Layer::Gateway && self.pages[track.page].name == *page
        };
        tracks.iter().filter(of_page).collect()
    }

    fn sum_gained(&self, tracks: &[&Track], from: At, to: At) -> Option<Gained> {
        let each = tracks.iter().filter_map(|track| self.pages[track.page].gained(track, from, to));
        each.reduce(Gained::with)
    }

    fn taken_in(&self, tracks: &[&Track], from: At, to: At) -> Option<Buckets> {
        histogram::taken_in(&self.pages, tracks, from, to)
    }
}
