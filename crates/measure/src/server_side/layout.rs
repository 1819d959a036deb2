//! The layout of a metrics endpoint: its series, matched once to signals.
//!
//! Callers that scrape repeatedly pass only values. Endpoints with equal series (replicas of one engine) share one layout.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_model::{At, SeriesName};

use super::read::{self, ScrapedPage, Track};
use super::series::Scrapes;
use super::table::{SignalLayer, SignalTable};
use super::{Disclosures, ObservedReplica, ServerSide, Signal};

#[derive(Clone, Debug)]
pub struct PageLayout {
    pub(super) replicas: Vec<ObservedReplica>,
    pub(super) devices: Vec<ObservedReplica>,
    pub(super) hosts: Vec<ObservedReplica>,
    pub(super) tracks: BTreeMap<Signal, Vec<PlacedTrack>>,
    pub(super) servers: BTreeSet<&'static str>,
}

/// A track without values, with the position of its series on the page.
#[derive(Clone, Debug)]
pub(super) struct PlacedTrack {
    pub place: usize,
    /// Value given by a label; `None` if the sample's value counts.
    pub fixed: Option<f64>,
    pub track: Track,
}

impl PageLayout {
    /// Returns the layout of these series.
    pub fn of(series: &[SeriesName]) -> PageLayout {
        read::laid_out(series)
    }

    /// Returns the signals of a scrape and of the scrape before it; counters increase from one to the other.
    ///
    /// Values are in the order of the series; NaN marks an absent series. Before the first scrape all signals are unknown.
    pub fn between(&self, page: &str, before: Option<(At, &[f64])>, now: (At, &[f64])) -> ServerSide {
        let scrapes = [before, Some(now)].into_iter().flatten();
        let points = |placed: &PlacedTrack| -> Vec<(At, f64)> {
            let value = |values: &[f64]| values.get(placed.place).copied().unwrap_or(f64::NAN);
            let is_there = |value: f64| placed.fixed.filter(|_| !value.is_nan()).unwrap_or(value);
            let read = scrapes.clone().map(|(at, values)| (at, is_there(value(values))));
            // A series that was absent has no row, and NaN marks a series that disappeared.
            read.enumerate().filter(|(n, (_, value))| *n > 0 || !value.is_nan()).map(|(_, p)| p).collect()
        };
        let placed = |placed: &PlacedTrack| Track { points: points(placed), ..placed.track.clone() };
        let tracks = self.tracks.iter();
        let tracks = tracks.map(|(signal, tracks)| (*signal, tracks.iter().map(placed).collect())).collect();
        let named = |replica: &ObservedReplica| replica.on(page);
        let marks: Vec<(At, bool)> = scrapes.clone().map(|(at, _)| (at, true)).collect();
        let disclosures = Disclosures { scrapes: marks.len() as u64, ..Disclosures::default() };
        ServerSide {
            pages: vec![ScrapedPage::new(page, Scrapes::new(marks))],
            replicas: self.replicas.iter().map(named).collect(),
            devices: self.devices.iter().map(named).collect(),
            hosts: self.hosts.iter().map(named).collect(),
            tracks,
            servers: self.servers.clone(),
            disclosures,
        }
    }

    /// Returns whether a count of a histogram is lower than before, so that a new process counts.
    pub fn begins_anew(&self, before: &[f64], now: &[f64]) -> bool {
        let counted = self.tracks.values().flatten().filter(|placed| placed.track.counts());
        let mut read = counted.map(|placed| (before.get(placed.place), now.get(placed.place)));
        read.any(|(before, now)| before.zip(now).is_some_and(|(before, now)| now < before))
    }

    /// Returns whether there is a series for this signal.
    pub fn has(&self, signal: Signal) -> bool {
        self.tracks.contains_key(&signal)
    }

    /// Returns whether any of the servers has a name for this signal.
    pub fn may_say(&self, signal: Signal) -> bool {
        self.has(signal) || self.servers.iter().any(|server| SignalTable::shipped().says(server, signal))
    }

    /// Returns the signals with a series, each with [`SignalLayer::Engine`], or [`SignalLayer::Gateway`] if only a gateway reports it.
    pub fn signals(&self) -> impl Iterator<Item = (Signal, SignalLayer)> + '_ {
        self.tracks.iter().map(|(signal, tracks)| {
            let is_gateways = tracks.iter().all(|placed| placed.track.layer == SignalLayer::Gateway);
            (*signal, if is_gateways { SignalLayer::Gateway } else { SignalLayer::Engine })
        })
    }
}
