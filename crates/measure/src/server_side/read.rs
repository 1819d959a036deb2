//! Samples → tracks: matches each series of a page, process and replica to a signal.
//!
//! A page may have a signal under several names (an old and a new one, names of two servers). One name is read, because
//! the sum would count requests twice. Series that the table's filters keep separate are added.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use plimsoll_model::{At, Sample, SeriesName, split_labels};

use super::buckets::CounterDelta;
use super::layout::{PageLayout, PlacedTrack};
use super::series::{GaugeSeries, Scrapes, SeriesStep, held};
use super::signal::{AggregationRule, Signal};
use super::table::{HISTORY, SignalLayer, SignalName, SignalPart, SignalTable};
use super::{
    Disclosures, ExposedSeries, FAILED, LEFT, ObservedReplica, PAGE_LABEL, PATIENCE, SCRAPE, ServerSide,
};

/// Name of the server's own label [`PAGE_LABEL`] on a named page, as in Prometheus.
const EXPORTED: &str = "exported_source";

/// Maximum number of restarts of one counter. More decreases are not restarts.
const MOST_RESTARTS: u32 = 3;

#[derive(Clone, Debug, Default)]
pub(super) struct ScrapedPage {
    pub name: String,
    pub scrapes: Scrapes,
    known: Vec<(At, At)>,
    /// Set if several processes answer in turn.
    alternates: bool,
}

/// One series that contributes to a signal.
#[derive(Clone, Debug)]
pub(super) struct Track {
    pub page: usize,
    pub layer: SignalLayer,
    pub replica: Option<usize>,
    pub part: SignalPart,
    /// Upper edge of a bucket; `None` if the series is not a bucket.
    pub edge: Option<f64>,
    /// All labels except the bucket's edge. They identify the series of one histogram.
    pub group: Arc<str>,
    pub factor: f64,
    pub points: Vec<(At, f64)>,
}

impl Track {
    /// Returns whether the value describes an instant.
    pub(crate) fn is_level(&self) -> bool {
        matches!(self.part, SignalPart::Gauge | SignalPart::Label(_))
    }

    /// Returns whether the value only increases, except at restarts.
    pub fn grows(&self) -> bool {
        !self.is_level() && !matches!(self.part, SignalPart::Min | SignalPart::Max)
    }

    /// Returns the value at `at` in the signal's unit; a histogram's count has no unit.
    pub(crate) fn stood_at(&self, at: At) -> Option<f64> {
        let factor = if self.part == SignalPart::Count { 1.0 } else { self.factor };
        Some(self.value_at(at)? * factor)
    }

    /// Returns whether an exporter beside the server reports the track.
    pub fn is_of_machine(&self) -> bool {
        matches!(self.layer, SignalLayer::Gpu | SignalLayer::Host)
    }

    /// Returns whether the track counts the observations of a histogram.
    pub fn counts(&self) -> bool {
        matches!(self.part, SignalPart::Bucket | SignalPart::Count)
    }

    /// Returns the last number not after `from`, even if the series disappeared since, and the points from there to `to`.
    pub fn numbers(&self, from: At, to: At) -> (Option<f64>, &[(At, f64)]) {
        let (earlier, rest) = self.points.split_at(self.points.partition_point(|point| point.0 <= from));
        let last = earlier.iter().rev().map(|point| point.1).find(|value| value.is_finite());
        (last, &rest[..rest.partition_point(|point| point.0 <= to)])
    }

    /// Returns how many numbers between these instants are below their predecessor.
    ///
    /// A restarted process often lacks the series (NaN) until its first request.
    pub fn falls(&self, from: At, to: At) -> u32 {
        let (last, points) = self.numbers(from, to);
        let mut last = last.unwrap_or(f64::NEG_INFINITY);
        let numbers = points.iter().map(|point| point.1).filter(|value| value.is_finite());
        numbers.filter(|now| *now < std::mem::replace(&mut last, *now)).count() as u32
    }

    /// Returns the last number not after `at`; `None` if there is none yet or the series disappeared.
    pub fn value_at(&self, at: At) -> Option<f64> {
        let end = self.points.partition_point(|point| point.0 <= at);
        self.points[..end].last().map(|point| point.1).filter(|value| value.is_finite())
    }
}

/// A series as read, before it is matched to a signal.
struct Raw<'a> {
    name: &'a str,
    page: usize,
    labels: Vec<(String, String)>,
    /// Whether the table of signals has a row for it. Without one, no points are kept.
    is_read: bool,
    points: Vec<(At, f64)>,
}

pub(super) fn read<'a>(samples: impl IntoIterator<Item = &'a Sample, IntoIter: Clone>) -> ServerSide {
    let mut disclosures = Disclosures::default();
    let (mut pages, raw) = gather(samples, &mut disclosures);
    let found = spoken(&raw, &mut disclosures);
    let [replicas, devices, hosts] = identities(&raw, &found, &pages);
    let servers = found.iter().map(|(_, row)| row.server).collect();
    let mut tracks: BTreeMap<Signal, Vec<Track>> = BTreeMap::new();
    for (number, row) in found {
        let among = among(row, [&replicas, &devices, &hosts]);
        if let Some(track) = track(&raw[number], row, &pages, among) {
            tracks.entry(row.signal).or_default().push(track);
        }
    }
    judge_resets(&mut pages, &tracks, &mut disclosures);
    ServerSide { pages, replicas, devices, hosts, tracks, servers, disclosures }
}

/// Returns the list that contains the owner of a row's series.
fn among<'a>(
    row: &SignalName,
    [replicas, devices, hosts]: [&'a [ObservedReplica]; 3],
) -> &'a [ObservedReplica] {
    match row.layer {
        SignalLayer::Gpu => devices,
        SignalLayer::Host => hosts,
        SignalLayer::Engine | SignalLayer::Gateway | SignalLayer::Process => replicas,
    }
}

/// Returns the layout of one page, without values.
pub(super) fn laid_out(series: &[SeriesName]) -> PageLayout {
    let raw = series.iter().map(|series| Raw {
        is_read: true,
        name: &series.name,
        page: 0,
        labels: series.labels.clone(),
        points: vec![(At::ZERO, 0.0)],
    });
    let raw: Vec<Raw<'_>> = raw.collect();
    let found = spoken(&raw, &mut Disclosures::default());
    let pages = [ScrapedPage::default()];
    let [replicas, devices, hosts] = identities(&raw, &found, &pages);
    let servers = found.iter().map(|(_, row)| row.server).collect();
    let mut tracks: BTreeMap<Signal, Vec<PlacedTrack>> = BTreeMap::new();
    for (place, row) in found {
        let among = among(row, [&replicas, &devices, &hosts]);
        let Some(mut track) = track(&raw[place], row, &pages, among) else { continue };
        let points = std::mem::take(&mut track.points);
        let fixed = matches!(row.part, SignalPart::Label(_)).then(|| points[0].1);
        tracks.entry(row.signal).or_default().push(PlacedTrack { place, fixed, track });
    }
    PageLayout { replicas, devices, hosts, tracks, servers }
}

/// Returns the series that are read, with their rows of the table.
pub(super) fn exposed(samples: &[Sample]) -> Vec<ExposedSeries> {
    let mut disclosures = Disclosures::default();
    let (_, raw) = gather(samples, &mut disclosures);
    let found = spoken(&raw, &mut disclosures).into_iter();
    let series = |(number, row): (usize, &'static SignalName)| ExposedSeries {
        name: raw[number].name.to_owned(),
        labels: raw[number].labels.clone(),
        row,
    };
    found.map(series).collect()
}

/// Returns the values of the series that are read, in the units of their signals.
pub(super) fn values(samples: &[&Sample]) -> Vec<(&'static SignalName, f64)> {
    let mut disclosures = Disclosures::default();
    let (_, raw) = gather(samples.iter().copied(), &mut disclosures);
    let found = spoken(&raw, &mut disclosures).into_iter();
    let value = |(number, row): (usize, &'static SignalName)| {
        let (_, value) = raw[number].points.last()?;
        Some((row, value * row.factor))
    };
    found.filter_map(value).collect()
}

/// Returns the numbers of the series that are read, with their rows of the table.
fn spoken(raw: &[Raw<'_>], disclosures: &mut Disclosures) -> Vec<(usize, &'static SignalName)> {
    let mut found = Vec::new();
    let mut unknown = BTreeSet::new();
    for (number, one) in raw.iter().enumerate() {
        let rows = SignalTable::shipped().of(one.name);
        if rows.is_empty() && !one.name.ends_with("_created") {
            unknown.insert(one.name);
        }
        disclosures.per_process |= one.labels.iter().any(|(name, _)| name == "pid");
        found.extend(rows.iter().filter(|row| row.allows(&one.labels)).map(|row| (number, row)));
    }
    disclosures.unknown_names = unknown.len();
    let chosen = chosen(raw, &found);
    let exporters = exporters(raw, &found);
    found.retain(|(number, row)| {
        chosen.get(&(raw[*number].page, row.signal, row.layer == SignalLayer::Gateway))
            == Some(&(row.server, row.rank, vendor(raw, *number)))
            && leads(row, &raw[*number])
            && !(row.layer == SignalLayer::Process && exporters.contains(&raw[*number].page))
    });
    once_per_device(raw, &mut found);
    found
}

/// Returns the pages of exporters: the processes on them are exporters and no servers.
fn exporters(raw: &[Raw<'_>], found: &[(usize, &'static SignalName)]) -> BTreeSet<usize> {
    let of = |layers: &[SignalLayer]| -> BTreeSet<usize> {
        let rows = found.iter().filter(|(_, row)| layers.contains(&row.layer));
        rows.map(|(number, _)| raw[*number].page).collect()
    };
    let machines = of(&[SignalLayer::Gpu, SignalLayer::Host]);
    &machines - &of(&[SignalLayer::Engine, SignalLayer::Gateway])
}

/// Drops the second series of a GPU that two pages report, such as Triton and the DCGM exporter beside it.
///
/// The instances of a partitioned GPU (MIG) each report the power of the whole board, so one of them is read.
fn once_per_device(raw: &[Raw<'_>], found: &mut Vec<(usize, &'static SignalName)>) {
    let mut reads: HashMap<(Signal, &str), (usize, &str)> = HashMap::new();
    found.retain(|(number, row)| {
        let one = &raw[*number];
        let of_device = |labels: &[&str]| labels.iter().find_map(|label| value_of(&one.labels, label));
        let Some(uuid) = of_device(&["UUID", "gpu_uuid", "uuid"]).filter(|_| row.layer == SignalLayer::Gpu)
        else {
            return true;
        };
        let is_of_board = matches!(row.signal, Signal::GpuPower | Signal::GpuEnergy);
        let instance = if is_of_board { of_device(&["GPU_I_ID"]).unwrap_or_default() } else { "" };
        *reads.entry((row.signal, uuid)).or_insert((one.page, instance)) == (one.page, instance)
    });
}

/// Returns whether [`PAGE_LABEL`] names the page.
///
/// A scraper of several pages writes the label on every row, also on the marks of each scrape. If the marks lack the label,
/// a label of that name belongs to the server (vLLM counts prompt tokens by `source`).
fn pages_are_named<'a>(samples: impl Iterator<Item = &'a Sample>) -> bool {
    let mut scrapes = samples
        .filter(|sample| matches!(sample.name.as_str(), SCRAPE | FAILED) && !is_other(sample))
        .peekable();
    scrapes.peek().is_none()
        || scrapes.any(|sample| value_of(&split_labels(&sample.labels), PAGE_LABEL).is_some())
}

/// Returns whether the sample is not of a server: of the load generator, or a note of `watch`.
fn is_other(sample: &Sample) -> bool {
    sample.source == "client" || matches!(sample.name.as_str(), LEFT | PATIENCE)
}

/// Most addresses of texts that are remembered.
const ADDRESSES_MAX: usize = 1 << 16;

/// Returns the pages with their scrapes, and the series. Series without a row in the table of signals have no points.
///
/// A run of hours has millions of samples of a few thousand series. A series is found by the addresses of its texts, which its
/// samples share, and by the texts themselves only if the addresses are new.
fn gather<'a>(
    samples: impl IntoIterator<Item = &'a Sample, IntoIter: Clone>,
    disclosures: &mut Disclosures,
) -> (Vec<ScrapedPage>, Vec<Raw<'a>>) {
    let mut raw: Vec<Raw<'a>> = Vec::new();
    let mut index: HashMap<(&str, &str, &str), Option<usize>> = HashMap::new();
    let mut addresses: HashMap<[usize; 3], Option<usize>> = HashMap::new();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut marks: Vec<Vec<(At, bool)>> = Vec::new();
    let mut instants: Vec<Vec<At>> = Vec::new();
    let samples = samples.into_iter();
    let named = pages_are_named(samples.clone());
    let mut place_of =
        |sample: &'a Sample, raw: &mut Vec<Raw<'a>>, marks: &mut Vec<_>, instants: &mut Vec<_>| {
            let key = (sample.source.as_str(), sample.name.as_str(), sample.labels.as_str());
            *index.entry(key).or_insert_with(|| {
                if is_other(sample) {
                    return None;
                }
                let mut labels = split_labels(&sample.labels);
                let name = value_of(&labels, PAGE_LABEL).filter(|_| named).unwrap_or_default().to_owned();
                labels.retain(|(label, _)| !named || label != PAGE_LABEL);
                // The scraper renames the server's label, because the page's name uses it.
                labels.iter_mut().filter(|(label, _)| named && label == EXPORTED).for_each(|(label, _)| {
                    PAGE_LABEL.clone_into(label);
                });
                let count = names.len();
                let page = *names.entry(name).or_insert(count);
                marks.resize_with(names.len(), Vec::new);
                instants.resize_with(names.len(), Vec::new);
                let is_read = !SignalTable::shipped().of(&sample.name).is_empty();
                raw.push(Raw { name: &sample.name, page, labels, is_read, points: Vec::new() });
                Some(raw.len() - 1)
            })
        };
    for sample in samples {
        // A writer whose samples share no texts must not fill the table.
        if addresses.len() == ADDRESSES_MAX {
            addresses.clear();
        }
        let texts = [&sample.source, &sample.name, &sample.labels];
        let place = *addresses
            .entry(texts.map(|text| text.as_ptr().addr()))
            .or_insert_with(|| place_of(sample, &mut raw, &mut marks, &mut instants));
        let Some(one) = place.map(|place| &mut raw[place]) else { continue };
        match one.name {
            SCRAPE => marks[one.page].push((sample.at, sample.value > 0.0)),
            FAILED => marks[one.page].push((sample.at, false)),
            _ => {
                let instants = &mut instants[one.page];
                // The rows of a scrape follow each other.
                if instants.last() != Some(&sample.at) {
                    instants.push(sample.at);
                }
                if one.is_read {
                    one.points.push((sample.at, sample.value));
                }
                continue;
            }
        }
        disclosures.scrapes += 1;
        if one.name == FAILED || sample.value <= 0.0 {
            let why = value_of(&one.labels, "why").unwrap_or("the page was empty");
            disclosures.failed += 1;
            *disclosures.failures.entry(why.to_owned()).or_default() += 1;
        }
    }
    raw.retain(|one| !matches!(one.name, SCRAPE | FAILED));
    raw.iter_mut().for_each(|one| one.points.sort_by_key(|point| point.0));
    (scraped_pages(names, marks, instants, disclosures), raw)
}

/// Returns the pages with the times of their scrapes: their marks, or each instant with a row if a page has no marks.
fn scraped_pages(
    names: BTreeMap<String, usize>,
    marks: Vec<Vec<(At, bool)>>,
    instants: Vec<Vec<At>>,
    disclosures: &mut Disclosures,
) -> Vec<ScrapedPage> {
    let mut pages: Vec<ScrapedPage> = marks
        .into_iter()
        .zip(instants)
        .map(|(marks, mut instants)| {
            let marked = !marks.is_empty();
            instants.sort_unstable();
            instants.dedup();
            let scrapes =
                Scrapes::new(if marked { marks } else { instants.iter().map(|at| (*at, true)).collect() });
            if !marked {
                disclosures.scrapes += scrapes.at.len() as u64;
            }
            ScrapedPage { known: scrapes.known(), scrapes, ..ScrapedPage::default() }
        })
        .collect();
    for (name, page) in names {
        pages[page].name = name;
    }
    pages
}

/// Returns the vendor prefix of this series' name.
fn vendor<'a>(raw: &[Raw<'a>], number: usize) -> &'a str {
    SignalTable::shipped().read_as(raw[number].name).0
}

/// The server of the names that are read, their rank and their vendor prefix.
type Chosen<'a> = (&'static str, u32, &'a str);

/// Returns the names that are read, per page, signal and side of the gateway.
fn chosen<'a>(
    raw: &[Raw<'a>],
    found: &[(usize, &'static SignalName)],
) -> HashMap<(usize, Signal, bool), Chosen<'a>> {
    let mut best: HashMap<(usize, Signal, bool), (usize, Chosen<'a>)> = HashMap::new();
    for (number, row) in found {
        let key = (raw[*number].page, row.signal, row.layer == SignalLayer::Gateway);
        let mine = (row.server, row.rank, vendor(raw, *number));
        let held = best.entry(key).or_insert((row.order, mine));
        // The order is: the server that is first in the table, its lowest rank, then the shortest prefix. A page with a name twice
        // counts the same requests twice.
        if held.1.0 == row.server {
            held.1 = held.1.min(mine);
        } else if row.order < held.0 {
            *held = (row.order, mine);
        }
    }
    best.into_iter().map(|(key, (_, chosen))| (key, chosen)).collect()
}

/// Returns whether the series is of the first rank: ranks of one tensor- or pipeline-parallel group count the same requests.
fn leads(row: &SignalName, one: &Raw<'_>) -> bool {
    let first = |label: &str| value_of(&one.labels, label).is_none_or(|rank| rank == "0");
    row.layer != SignalLayer::Engine || (first("tp_rank") && first("pp_rank"))
}

/// Returns the replicas, the devices and the hosts, in order of their names.
fn identities(
    raw: &[Raw<'_>],
    found: &[(usize, &'static SignalName)],
    pages: &[ScrapedPage],
) -> [Vec<ObservedReplica>; 3] {
    let mut of = [BTreeSet::new(), BTreeSet::new(), BTreeSet::new()];
    for (number, row) in found {
        let one = &raw[*number];
        match row.layer {
            // Totals of a fleet are not a replica.
            SignalLayer::Engine if matches!(row.server, "plimsoll" | HISTORY) => {}
            SignalLayer::Engine => _ = of[0].insert((one.page, identity(one, row))),
            SignalLayer::Gpu => _ = of[1].insert((one.page, identity(one, row))),
            SignalLayer::Host => _ = of[2].insert((one.page, identity(one, row))),
            SignalLayer::Gateway | SignalLayer::Process => {}
        }
    }
    of.map(|found| {
        // A page without replicas, such as an exporter's, needs no name to tell replicas apart.
        let several = found.iter().map(|(page, _)| page).collect::<BTreeSet<_>>().len() > 1;
        let labelled = |page: usize| found.iter().any(|(other, labels)| *other == page && !labels.is_empty());
        let mut all: Vec<ObservedReplica> = found
            .iter()
            .filter(|(page, labels)| !labels.is_empty() || !labelled(*page))
            .map(|(page, labels)| ObservedReplica {
                name: name(if several { &pages[*page].name } else { "" }, labels),
                page: pages[*page].name.clone(),
                labels: labels.clone(),
            })
            .collect();
        all.sort_by(|a, b| natural(a).cmp(&natural(b)));
        all
    })
}

/// Returns a sort key that compares numbers by value, so that 10 follows 9.
fn natural(replica: &ObservedReplica) -> (&str, Vec<(u64, &str)>) {
    let values = replica.labels.split(',').map(|label| {
        let value = label.split_once('=').map_or(label, |(_, value)| value);
        (value.parse().unwrap_or(u64::MAX), value)
    });
    (&replica.page, values.collect())
}

fn name(page: &str, labels: &str) -> String {
    let values: Vec<String> = split_labels(labels).into_iter().map(|(_, value)| value).collect();
    match (page, values.join("/")) {
        ("", values) if values.is_empty() => "server".to_owned(),
        ("", values) => values,
        (page, values) if values.is_empty() => page.to_owned(),
        (page, values) => format!("{page}/{values}"),
    }
}

/// Returns the labels of a series that identify its replica.
fn identity(one: &Raw<'_>, row: &SignalName) -> String {
    let telling = SignalTable::shipped().replica_labels(row.server);
    let labels: Vec<(&str, &str)> =
        telling.iter().filter_map(|name| Some((*name, value_of(&one.labels, name)?))).collect();
    plimsoll_model::join_labels(&labels)
}

fn track(one: &Raw<'_>, row: &SignalName, pages: &[ScrapedPage], among: &[ObservedReplica]) -> Option<Track> {
    let edge = match row.part {
        SignalPart::Bucket => {
            Some(value_of(&one.labels, "le")?.parse().ok().filter(|edge: &f64| !edge.is_nan())?)
        }
        _ => None,
    };
    let replica = match row.layer {
        SignalLayer::Engine | SignalLayer::Gpu | SignalLayer::Host => {
            let labels = identity(one, row);
            let page = &pages[one.page].name;
            let mut of_page = among.iter().enumerate().filter(|(_, replica)| replica.page == *page);
            let exact = of_page.clone().find(|(_, replica)| replica.labels == labels);
            // On a page with one replica, a series without the identifying label belongs to that replica.
            exact.or_else(|| of_page.next().filter(|_| of_page.next().is_none())).map(|(number, _)| number)
        }
        SignalLayer::Gateway | SignalLayer::Process => None,
    };
    let mut points = one.points.clone();
    if let SignalPart::Label(label) = &row.part {
        let value: f64 = value_of(&one.labels, label)?.parse().ok()?;
        points.iter_mut().filter(|point| !point.1.is_nan()).for_each(|point| point.1 = value);
    }
    let group: Vec<(&str, &str)> =
        one.labels.iter().filter(|(name, _)| name != "le").map(|(a, b)| (a.as_str(), b.as_str())).collect();
    Some(Track {
        page: one.page,
        layer: row.layer,
        replica,
        part: row.part.clone(),
        edge,
        group: plimsoll_model::join_labels(&group).into(),
        factor: row.factor,
        points,
    })
}

fn value_of<'a>(labels: &'a [(String, String)], name: &str) -> Option<&'a str> {
    labels.iter().find(|label| label.0 == name).map(|label| label.1.as_str())
}

/// Records the number of decreases of counters, and whether they can be restarts.
fn judge_resets(
    pages: &mut [ScrapedPage],
    tracks: &BTreeMap<Signal, Vec<Track>>,
    disclosures: &mut Disclosures,
) {
    for track in tracks.values().flatten().filter(|track| track.grows()) {
        let resets = track.falls(At(i64::MIN), At::MAX);
        let page = &mut pages[track.page];
        page.alternates |= resets > MOST_RESTARTS && resets as usize * 10 > page.scrapes.at.len();
        // An exporter that restarts is no server.
        if !track.is_of_machine() {
            disclosures.resets = disclosures.resets.max(resets);
            disclosures.alternates |= page.alternates;
        }
    }
}

impl ObservedReplica {
    /// Returns this replica on a page of the given name.
    pub(super) fn on(&self, page: &str) -> ObservedReplica {
        ObservedReplica { name: name(page, &self.labels), page: page.to_owned(), labels: self.labels.clone() }
    }
}

impl ScrapedPage {
    /// Returns a page with these scrapes.
    pub fn new(name: &str, scrapes: Scrapes) -> ScrapedPage {
        ScrapedPage { name: name.to_owned(), known: scrapes.known(), scrapes, alternates: false }
    }

    /// Returns the increase of one counter with known restarts.
    ///
    /// `unseen` is the value of a series before it first appeared. `anew` contains instants in ascending order at which the
    /// counter restarts from zero, even if it does not fall.
    pub(crate) fn gained(
        &self,
        track: &Track,
        (from, to): (At, At),
        (unseen, anew): (f64, &[At]),
    ) -> Option<CounterDelta> {
        if self.alternates {
            return None;
        }
        let numbers = || track.points.iter().filter(|point| point.1.is_finite());
        let end = self.scrapes.last_good(to)?;
        let base = numbers().take_while(|point| point.0 <= from).last().map(|point| point.1);
        let (start, mut last) = match (base, self.scrapes.last_good(from)) {
            (Some(value), Some(scrape)) => (scrape, value),
            // The series was absent at an earlier scrape, and counters begin at zero.
            (None, Some(scrape)) => (scrape, unseen),
            // There is no earlier scrape, so the value at that time is unknown.
            (_, None) => {
                let first = numbers().next()?;
                let scrape = self.scrapes.first_good()?;
                if first.0 > scrape { (scrape, unseen) } else { *first }
            }
        };
        if start >= end {
            return None;
        }
        let (mut value, mut resets) = (0.0, 0);
        let mut is_there = track.value_at(start).is_some();
        // A row is a change. A series with a value and no row at such an instant repeated its value; an absent series begins at zero.
        let again = |is_there: bool, last: f64| if is_there { (last, last, 1) } else { (0.0, 0.0, 0) };
        let mut anew = anew.iter().filter(|at| **at > start && **at <= to).peekable();
        for &(at, now) in track.points.iter().filter(|point| point.0 > start && point.0 <= to) {
            while anew.next_if(|begins| **begins < at).is_some() {
                let (gained, stands, reset) = again(is_there, last);
                (value, last, resets) = (value + gained, stands, resets + reset);
            }
            let begins = anew.next_if(|begins| **begins == at).is_some();
            is_there = now.is_finite();
            if !is_there {
                last = if begins { 0.0 } else { last };
                continue;
            }
            let is_anew = begins || now < last;
            resets += u32::from(is_anew);
            value += if is_anew { now.max(0.0) } else { now - last };
            last = now;
        }
        for _ in anew {
            let (gained, stands, reset) = again(is_there, last);
            (value, last, resets) = (value + gained, stands, resets + reset);
        }
        // A unit applies to the edges of a histogram and not to its counts.
        let factor =
            if matches!(track.part, SignalPart::Bucket | SignalPart::Count) { 1.0 } else { track.factor };
        Some(CounterDelta { value: value * factor, resets, from: start, to: end })
    }
}

/// Combines several tracks into one series.
pub(super) fn combine(
    pages: &[ScrapedPage],
    tracks: &[&Track],
    rule: AggregationRule,
) -> Option<GaugeSeries> {
    let mut parts: Vec<Walk<'_>> = tracks
        .iter()
        .map(|track| {
            let page = &pages[track.page];
            Walk { series: held(&track.points, &page.scrapes, &page.known, track.factor), page, place: 0 }
        })
        .filter(|part| !part.series.steps.is_empty())
        .collect();
    if parts.len() < 2 {
        return parts.pop().map(|part| part.series);
    }
    let steps = parts.iter().flat_map(|part| part.series.steps.iter());
    let mut instants: Vec<At> = steps.flat_map(|step| [step.from, step.to]).collect();
    instants.sort_unstable();
    instants.dedup();
    let mut steps = Vec::new();
    for pair in instants.windows(2) {
        if let Some(value) = together(&mut parts, pair[0], rule) {
            steps.push(SeriesStep { from: pair[0], to: pair[1], value });
        }
    }
    Some(GaugeSeries { steps })
}

/// A series that is read once from start to end.
struct Walk<'a> {
    series: GaugeSeries,
    page: &'a ScrapedPage,
    place: usize,
}

/// Returns the combined value at one instant; unknown if one series has a gap.
fn together(parts: &mut [Walk<'_>], at: At, rule: AggregationRule) -> Option<f64> {
    let mut values = Vec::with_capacity(parts.len());
    for part in parts {
        while part.series.steps.get(part.place).is_some_and(|step| step.to <= at) {
            part.place += 1;
        }
        match part.series.steps.get(part.place) {
            Some(step) if step.from <= at => values.push(step.value),
            // The series does not exist yet or any more; or it exists before and after, but the scrape failed.
            Some(_) if part.place > 0 && is_gap(part.page, at) => return None,
            _ => {}
        }
    }
    rule.of(&values)
}

fn is_gap(page: &ScrapedPage, at: At) -> bool {
    let next = page.known.partition_point(|known| known.1 <= at);
    page.known.get(next).is_none_or(|known| known.0 > at)
}
