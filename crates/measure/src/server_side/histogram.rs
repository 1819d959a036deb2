//! Counters of buckets between two instants → what a histogram took in, at the edges that it had.

use std::collections::BTreeMap;

use plimsoll_model::At;

use super::buckets::{Buckets, Gained, merged};
use super::read::{ScrapedPage, Track};
use super::table::SignalPart;

/// What the histogram of these tracks took in.
pub(super) fn taken_in(pages: &[ScrapedPage], tracks: &[&Track], from: At, to: At) -> Option<Buckets> {
    let (mut sum, mut count, mut span): (Option<f64>, Option<f64>, Option<Gained>) = (None, None, None);
    let mut rungs: BTreeMap<(usize, &str), Vec<(f64, &Track)>> = BTreeMap::new();
    let anew = begun_anew(tracks, (from, to));
    for track in tracks.iter().filter(|track| track.grows()) {
        if let (SignalPart::Bucket, Some(edge)) = (&track.part, track.edge) {
            rungs.entry((track.page, &*track.group)).or_default().push((edge, track));
            continue;
        }
        let begins = anew.get(&(track.page, &*track.group)).map_or(&[][..], Vec::as_slice);
        let Some(gained) = pages[track.page].gained_since(track, (from, to), (0.0, begins)) else { continue };
        match track.part {
            SignalPart::Sum => sum = Some(sum.unwrap_or(0.0) + gained.value),
            SignalPart::Count => count = Some(count.unwrap_or(0.0) + gained.value),
            _ => continue,
        }
        span = Some(span.map_or(gained, |span| span.with(gained)));
    }
    let mut ladders = Vec::new();
    for ((page, group), rungs) in rungs {
        let begins = anew.get(&(page, group)).map_or(&[][..], Vec::as_slice);
        let (ladder, gained) = ladder(&pages[page], rungs, (from, to), begins);
        span = gained.or(span).map(|gained| span.map_or(gained, |span| span.with(gained)));
        ladders.extend((!ladder.is_empty()).then_some(ladder));
    }
    let span = span?;
    let (edges, counts) = merged(ladders);
    let counted = if counts.is_empty() { count } else { Some(counts.iter().sum()) };
    Some(Buckets {
        edges,
        counts,
        sum,
        count: count.or(counted),
        bounds: bounds(pages, tracks, (from, to)),
        resets: span.resets,
        from: span.from,
        to: span.to,
    })
}

/// When histograms began anew: where one of its series falls another process counts, and all of them count from zero, also those that have more by then than
/// the process before had. Else a redeploy under load, or one with other edges, would be counted partly from zero and partly from where it stood.
fn begun_anew<'a>(tracks: &[&'a Track], (from, to): (At, At)) -> BTreeMap<(usize, &'a str), Vec<At>> {
    let mut found: BTreeMap<(usize, &str), Vec<At>> = BTreeMap::new();
    for track in tracks.iter().filter(|track| track.grows()) {
        let begin = track.points.partition_point(|point| point.0 <= from);
        let before = track.points[..begin].iter().rfind(|point| point.1.is_finite());
        let mut last = before.map_or(f64::NEG_INFINITY, |point| point.1);
        for &(at, now) in track.points[begin..].iter().take_while(|point| point.0 <= to) {
            if now < last {
                found.entry((track.page, &track.group)).or_default().push(at);
            }
            last = if now.is_finite() { now } else { last };
        }
    }
    for instants in found.values_mut() {
        instants.sort_unstable();
        instants.dedup();
    }
    found
}

/// What the rungs of one ladder gained, by edge, and between which scrapes. Edges of powers of two come and go as values do: one that has left says nothing beside
/// those that stand, and one that comes had below it what the next higher one had, because nothing lay between.
fn ladder(
    page: &ScrapedPage,
    mut rungs: Vec<(f64, &Track)>,
    (from, to): (At, At),
    anew: &[At],
) -> (Vec<(f64, f64)>, Option<Gained>) {
    rungs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let stands = rungs.iter().any(|(_, track)| track.value_at(to).is_some());
    let (mut found, mut span, mut higher) = (Vec::new(), None::<Gained>, 0.0);
    for (edge, track) in rungs {
        if stands && track.value_at(to).is_none() {
            continue;
        }
        let gained = page.gained_since(track, (from, to), (higher, anew));
        higher = track.value_at(from).unwrap_or(higher);
        let Some(gained) = gained else { continue };
        found.push((edge * track.factor, gained.value));
        span = Some(span.map_or(gained, |span| span.with(gained)));
    }
    (found, span)
}

/// Bounds of what was observed, where every histogram among these tells them of every scrape.
fn bounds(pages: &[ScrapedPage], tracks: &[&Track], (from, to): (At, At)) -> [Option<f64>; 2] {
    let of = |part: SignalPart| tracks.iter().filter(move |track| track.part == part);
    let all = of(SignalPart::Count).count();
    let bound = |part: SignalPart, of_two: fn(f64, f64) -> f64| {
        let told = of(part).map(|track| told(&pages[track.page], track, (from, to), of_two));
        let each: Option<Vec<f64>> = told.collect();
        each.filter(|each| each.len() == all)?.into_iter().reduce(of_two)
    };
    [bound(SignalPart::Min, f64::min), bound(SignalPart::Max, f64::max)]
}

/// What bounds the observations between two instants: what was told then, and what stood before where a scrape told nothing else.
fn told(page: &ScrapedPage, track: &Track, (from, to): (At, At), of_two: fn(f64, f64) -> f64) -> Option<f64> {
    let within = |at: &At| *at > from && *at <= to;
    let points = || track.points.iter().filter(|point| within(&point.0));
    if points().any(|point| !point.1.is_finite()) {
        return None;
    }
    // A row is a change: where the first scrape has none, what stood before was told again.
    let first = page.scrapes.at.iter().find(|scrape| scrape.1 && within(&scrape.0))?.0;
    let stood = track.value_at(from).filter(|_| points().next().is_none_or(|point| point.0 > first));
    let bound = points().map(|point| point.1).chain(stood).reduce(of_two)?;
    Some(bound * track.factor)
}
