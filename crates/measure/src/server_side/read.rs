//! Samples → tracks: which series of which page, process and replica say something of a signal.
//!
//! A page may have a signal under several names (an old and a new one, two servers' names on one page): one of them is read,
//! because added they would count twice. Series that the table's filters leave apart are added.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use plimsoll_model::{At, Sample, SeriesName, split_labels};

use super::buckets::Gained;
use super::layout::{PageLayout, PlacedTrack};
use super::series::{Scrapes, Series, SeriesStep, held};
use super::signal::{Rule, Signal};
use super::table::{HISTORY, Layer, SignalName, SignalPart, Table};
use super::{Disclosures, ExposedSeries, FAILED, LEFT, PAGE_LABEL, PATIENCE, Replica, SCRAPE, ServerSide};

/// More falls than this of one counter are not restarts.
const MOST_RESTARTS: u32 = 3;

/// A page that was looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct ScrapedPage {
    pub name: String,
    pub scrapes: Scrapes,
    known: Vec<(At, At)>,
    /// Are several processes answering in turn?
    alternates: bool,
}

/// One series that says something of a signal.
#[derive(Clone, Debug)]
pub(super) struct Track {
    pub page: usize,
    pub layer: Layer,
    pub replica: Option<usize>,
    pub part: SignalPart,
    /// Upper edge of a bucket.
    pub edge: Option<f64>,
    /// All labels but the bucket's edge: series of one histogram.
    pub group: Arc<str>,
    pub factor: f64,
    pub points: Vec<(At, f64)>,
}

impl Track {
    /// Is it a value at an instant?
    pub(crate) fn is_level(&self) -> bool {
        matches!(self.part, SignalPart::Gauge | SignalPart::Label(_))
    }

    /// Does it only grow, but for restarts?
    pub fn grows(&self) -> bool {
        !self.is_level() && !matches!(self.part, SignalPart::Min | SignalPart::Max)
    }

    /// The same in the signal's unit; of a histogram what is counted has none.
    pub(crate) fn stood_at(&self, at: At) -> Option<f64> {
        let factor = if self.part == SignalPart::Count { 1.0 } else { self.factor };
        Some(self.value_at(at)? * factor)
    }

    /// Does it count what a histogram took in?
    pub fn counts(&self) -> bool {
        matches!(self.part, SignalPart::Bucket | SignalPart::Count)
    }

    /// The last number of it that was read by then, though it may have left since; and what was read from there to the end.
    pub fn numbers(&self, from: At, to: At) -> (Option<f64>, &[(At, f64)]) {
        let (earlier, rest) = self.points.split_at(self.points.partition_point(|point| point.0 <= from));
        let last = earlier.iter().rev().map(|point| point.1).find(|value| value.is_finite());
        (last, &rest[..rest.partition_point(|point| point.0 <= to)])
    }

    /// How many numbers of it between these instants are below the one before. A process that begins anew is often without the series for a while (NaN),
    /// until the first request.
    pub fn falls(&self, from: At, to: At) -> u32 {
        let (last, points) = self.numbers(from, to);
        let mut last = last.unwrap_or(f64::NEG_INFINITY);
        let numbers = points.iter().map(|point| point.1).filter(|value| value.is_finite());
        numbers.filter(|now| *now < std::mem::replace(&mut last, *now)).count() as u32
    }

    /// The last number that was read by then; `None` = there was none yet, or the series had left.
    pub fn value_at(&self, at: At) -> Option<f64> {
        let end = self.points.partition_point(|point| point.0 <= at);
        self.points[..end].last().map(|point| point.1).filter(|value| value.is_finite())
    }
}

/// A series as it was read.
struct Raw<'a> {
    name: &'a str,
    page: usize,
    labels: Vec<(String, String)>,
    points: Vec<(At, f64)>,
}

pub(super) fn read<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> ServerSide {
    let mut disclosures = Disclosures::default();
    let (mut pages, raw) = gather(samples, &mut disclosures);
    let found = spoken(&raw, &mut disclosures);
    let (replicas, devices) = identities(&raw, &found, &pages);
    let servers = found.iter().map(|(_, row)| row.server).collect();
    let mut tracks: BTreeMap<Signal, Vec<Track>> = BTreeMap::new();
    for (number, row) in found {
        let among = if row.layer == Layer::Gpu { &devices } else { &replicas };
        if let Some(track) = track(&raw[number], row, &pages, among) {
            tracks.entry(row.signal).or_default().push(track);
        }
    }
    judge_resets(&mut pages, &tracks, &mut disclosures);
    ServerSide { pages, replicas, devices, tracks, servers, disclosures }
}

/// What the series of one page say, without values.
pub(super) fn laid_out(series: &[SeriesName]) -> PageLayout {
    let raw = series.iter().map(|series| Raw {
        name: &series.name,
        page: 0,
        labels: series.labels.clone(),
        points: vec![(At::ZERO, 0.0)],
    });
    let raw: Vec<Raw<'_>> = raw.collect();
    let found = spoken(&raw, &mut Disclosures::default());
    let pages = [ScrapedPage::default()];
    let (replicas, devices) = identities(&raw, &found, &pages);
    let servers = found.iter().map(|(_, row)| row.server).collect();
    let mut tracks: BTreeMap<Signal, Vec<PlacedTrack>> = BTreeMap::new();
    for (place, row) in found {
        let among = if row.layer == Layer::Gpu { &devices } else { &replicas };
        let Some(mut track) = track(&raw[place], row, &pages, among) else { continue };
        let points = std::mem::take(&mut track.points);
        let fixed = matches!(row.part, SignalPart::Label(_)).then(|| points[0].1);
        tracks.entry(row.signal).or_default().push(PlacedTrack { place, fixed, track });
    }
    PageLayout { replicas, devices, tracks, servers }
}

/// The series that are read, and for what.
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

/// What series stand at that are read, in the units of their signals.
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

/// Which series are read, and by which row of the table.
fn spoken(raw: &[Raw<'_>], disclosures: &mut Disclosures) -> Vec<(usize, &'static SignalName)> {
    let mut found = Vec::new();
    let mut unknown = BTreeSet::new();
    for (number, one) in raw.iter().enumerate() {
        let rows = Table::shipped().of(one.name);
        if rows.is_empty() && !one.name.ends_with("_created") {
            unknown.insert(one.name);
        }
        disclosures.per_process |= one.labels.iter().any(|(name, _)| name == "pid");
        found.extend(rows.iter().filter(|row| row.allows(&one.labels)).map(|row| (number, row)));
    }
    disclosures.unknown_names = unknown.len();
    let chosen = chosen(raw, &found);
    found.retain(|(number, row)| {
        chosen.get(&(raw[*number].page, row.signal, row.layer == Layer::Gateway))
            == Some(&(row.server, row.rank, vendor(raw, *number)))
            && leads(row, &raw[*number])
    });
    found
}

/// Does [`PAGE_LABEL`] say the page? The scraper writes it on every row where it reads several pages, on its own rows of each
/// scrape too. Where those have none, a label of that name is the server's own (vLLM counts prompt tokens by `source`).
fn pages_are_named(samples: &[&Sample]) -> bool {
    let mut scrapes =
        samples.iter().filter(|sample| matches!(sample.name.as_str(), SCRAPE | FAILED)).peekable();
    scrapes.peek().is_none()
        || scrapes.any(|sample| value_of(&split_labels(&sample.labels), PAGE_LABEL).is_some())
}

/// What only a watch is told of a page.
fn is_of_watch(name: &str) -> bool {
    matches!(name, LEFT | PATIENCE)
}

/// The pages with their scrapes, and the series.
fn gather<'a>(
    samples: impl IntoIterator<Item = &'a Sample>,
    disclosures: &mut Disclosures,
) -> (Vec<ScrapedPage>, Vec<Raw<'a>>) {
    let mut raw: Vec<Raw<'a>> = Vec::new();
    let mut index: HashMap<(&str, &str, &str), usize> = HashMap::new();
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    let mut marks: Vec<Vec<(At, bool)>> = Vec::new();
    let mut instants: Vec<BTreeSet<At>> = Vec::new();
    let samples: Vec<&Sample> = samples
        .into_iter()
        .filter(|sample| sample.source != "client" && !is_of_watch(&sample.name))
        .collect();
    let named = pages_are_named(&samples);
    for sample in samples {
        let key = (sample.source.as_str(), sample.name.as_str(), sample.labels.as_str());
        let place = *index.entry(key).or_insert_with(|| {
            let labels = split_labels(&sample.labels);
            let name = value_of(&labels, PAGE_LABEL).filter(|_| named).unwrap_or_default().to_owned();
            let count = names.len();
            let page = *names.entry(name).or_insert(count);
            marks.resize_with(names.len(), Vec::new);
            instants.resize_with(names.len(), BTreeSet::new);
            raw.push(Raw { name: &sample.name, page, labels, points: Vec::new() });
            raw.len() - 1
        });
        let one = &mut raw[place];
        match one.name {
            SCRAPE => marks[one.page].push((sample.at, sample.value > 0.0)),
            FAILED => marks[one.page].push((sample.at, false)),
            _ => {
                instants[one.page].insert(sample.at);
                one.points.push((sample.at, sample.value));
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
    raw.retain(|one| !one.points.is_empty());
    raw.iter_mut().for_each(|one| one.points.sort_by_key(|point| point.0));
    let mut pages: Vec<ScrapedPage> = marks
        .into_iter()
        .zip(instants)
        .map(|(marks, instants)| {
            let marked = !marks.is_empty();
            // Rows without marks: each instant with a row was a scrape.
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
    (pages, raw)
}

/// What a vendor wrote before the name of this series.
fn vendor<'a>(raw: &[Raw<'a>], number: usize) -> &'a str {
    Table::shipped().read_as(raw[number].name).0
}

/// Whose names are read, of which rank, and what stands before them.
type Chosen<'a> = (&'static str, u32, &'a str);

/// Per page, signal and side of the gateway what is read.
fn chosen<'a>(
    raw: &[Raw<'a>],
    found: &[(usize, &'static SignalName)],
) -> HashMap<(usize, Signal, bool), Chosen<'a>> {
    let mut best: HashMap<(usize, Signal, bool), (usize, Chosen<'a>)> = HashMap::new();
    for (number, row) in found {
        let key = (raw[*number].page, row.signal, row.layer == Layer::Gateway);
        let mine = (row.server, row.rank, vendor(raw, *number));
        let held = best.entry(key).or_insert((row.order, mine));
        // The server that comes first in the table, then its lowest rank, then the name with the least before it: a page that has a name twice
        // counts the same requests twice.
        if held.1.0 == row.server {
            held.1 = held.1.min(mine);
        } else if row.order < held.0 {
            *held = (row.order, mine);
        }
    }
    best.into_iter().map(|(key, (_, chosen))| (key, chosen)).collect()
}

/// Ranks of one tensor- or pipeline-parallel group tell the same requests: the first speaks.
fn leads(row: &SignalName, one: &Raw<'_>) -> bool {
    let first = |label: &str| value_of(&one.labels, label).is_none_or(|rank| rank == "0");
    row.layer != Layer::Engine || (first("tp_rank") && first("pp_rank"))
}

/// The replicas and the devices, in order of their names.
fn identities(
    raw: &[Raw<'_>],
    found: &[(usize, &'static SignalName)],
    pages: &[ScrapedPage],
) -> (Vec<Replica>, Vec<Replica>) {
    let mut of = [BTreeSet::new(), BTreeSet::new()];
    for (number, row) in found {
        let one = &raw[*number];
        match row.layer {
            // What a fleet says of itself is no replica.
            Layer::Engine if matches!(row.server, "plimsoll" | HISTORY) => {}
            Layer::Engine => _ = of[0].insert((one.page, identity(one, row))),
            Layer::Gpu => _ = of[1].insert((one.page, identity(one, row))),
            Layer::Gateway | Layer::Process => {}
        }
    }
    let several = pages.len() > 1;
    of.map(|found| {
        let labelled = |page: usize| found.iter().any(|(other, labels)| *other == page && !labels.is_empty());
        let mut all: Vec<Replica> = found
            .iter()
            .filter(|(page, labels)| !labels.is_empty() || !labelled(*page))
            .map(|(page, labels)| Replica {
                name: name(if several { &pages[*page].name } else { "" }, labels),
                page: pages[*page].name.clone(),
                labels: labels.clone(),
            })
            .collect();
        all.sort_by(|a, b| natural(a).cmp(&natural(b)));
        all
    })
    .into()
}

/// Numbers by their value, so that 10 comes after 9.
fn natural(replica: &Replica) -> (&str, Vec<(u64, &str)>) {
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

/// The labels of a series that tell its replica apart.
fn identity(one: &Raw<'_>, row: &SignalName) -> String {
    let telling = Table::shipped().replica_labels(row.server);
    let labels: Vec<(&str, &str)> =
        telling.iter().filter_map(|name| Some((*name, value_of(&one.labels, name)?))).collect();
    plimsoll_model::join_labels(&labels)
}

fn track(one: &Raw<'_>, row: &SignalName, pages: &[ScrapedPage], among: &[Replica]) -> Option<Track> {
    let edge = match row.part {
        SignalPart::Bucket => {
            Some(value_of(&one.labels, "le")?.parse().ok().filter(|edge: &f64| !edge.is_nan())?)
        }
        _ => None,
    };
    let replica = match row.layer {
        Layer::Engine | Layer::Gpu => {
            let labels = identity(one, row);
            let page = &pages[one.page].name;
            let mut of_page = among.iter().enumerate().filter(|(_, replica)| replica.page == *page);
            let exact = of_page.clone().find(|(_, replica)| replica.labels == labels);
            // A series without the telling label, on a page with one replica, is that replica's.
            exact.or_else(|| of_page.next().filter(|_| of_page.next().is_none())).map(|(number, _)| number)
        }
        Layer::Gateway | Layer::Process => None,
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

/// How often counters went back, and whether that can be restarts.
fn judge_resets(
    pages: &mut [ScrapedPage],
    tracks: &BTreeMap<Signal, Vec<Track>>,
    disclosures: &mut Disclosures,
) {
    for track in tracks.values().flatten().filter(|track| track.grows()) {
        let resets = track.falls(At(i64::MIN), At::MAX);
        disclosures.resets = disclosures.resets.max(resets);
        let page = &mut pages[track.page];
        page.alternates |= resets > MOST_RESTARTS && resets as usize * 10 > page.scrapes.at.len();
        disclosures.alternates |= page.alternates;
    }
}

impl Replica {
    /// The same, on a page of this name.
    pub(super) fn on(&self, page: &str) -> Replica {
        Replica { name: name(page, &self.labels), page: page.to_owned(), labels: self.labels.clone() }
    }
}

impl ScrapedPage {
    /// A page that was scraped then.
    pub fn new(name: &str, scrapes: Scrapes) -> ScrapedPage {
        ScrapedPage { name: name.to_owned(), known: scrapes.known(), scrapes, alternates: false }
    }

    /// What one counter gained.
    pub fn gained(&self, track: &Track, from: At, to: At) -> Option<Gained> {
        self.gained_since(track, (from, to), (0.0, &[]))
    }

    /// The same; `unseen`: what it was when it was not on the page yet. `anew`: instants at which it counts from zero though it may not have fallen, in order.
    pub(crate) fn gained_since(
        &self,
        track: &Track,
        (from, to): (At, At),
        (unseen, anew): (f64, &[At]),
    ) -> Option<Gained> {
        if self.alternates {
            return None;
        }
        let numbers = || track.points.iter().filter(|point| point.1.is_finite());
        let end = self.scrapes.last_good(to)?;
        let base = numbers().take_while(|point| point.0 <= from).last().map(|point| point.1);
        let (start, mut last) = match (base, self.scrapes.last_good(from)) {
            (Some(value), Some(scrape)) => (scrape, value),
            // It was not there yet when the page was looked at: counters begin at zero.
            (None, Some(scrape)) => (scrape, unseen),
            // Nobody looked before: what it had by then is not known.
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
        // A row is a change: what is there and has none at such an instant counted as much again, and what is not there begins at zero when it comes.
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
        // Of a histogram the edges have a unit, not what is counted.
        let factor =
            if matches!(track.part, SignalPart::Bucket | SignalPart::Count) { 1.0 } else { track.factor };
        Some(Gained { value: value * factor, resets, from: start, to: end })
    }
}

/// Several tracks as one series.
pub(super) fn combine(pages: &[ScrapedPage], tracks: &[&Track], rule: Rule) -> Option<Series> {
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
    Some(Series { steps })
}

/// A series that is gone through once.
struct Walk<'a> {
    series: Series,
    page: &'a ScrapedPage,
    place: usize,
}

/// The value of all at one instant: unknown where one of them is for a while.
fn together(parts: &mut [Walk<'_>], at: At, rule: Rule) -> Option<f64> {
    let mut values = Vec::with_capacity(parts.len());
    for part in parts {
        while part.series.steps.get(part.place).is_some_and(|step| step.to <= at) {
            part.place += 1;
        }
        match part.series.steps.get(part.place) {
            Some(step) if step.from <= at => values.push(step.value),
            // Not yet or no longer there; or there before and after, but the page could not be read.
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
