//! Converts bucket counters between two instants to the observations of a histogram, at the edges that exist.

use std::collections::BTreeMap;

use plimsoll_model::At;

use super::buckets::{Buckets, CounterDelta, merged};
use super::read::{ScrapedPage, Track};
use super::table::SignalPart;

/// Returns the observations of the histogram that these tracks belong to.
pub(super) fn taken_in(pages: &[ScrapedPage], tracks: &[&Track], from: At, to: At) -> Option<Buckets> {
    let (mut sum, mut count, mut span): (Option<f64>, Option<f64>, Option<CounterDelta>) = (None, None, None);
    let mut rungs: BTreeMap<(usize, &str), Vec<(f64, &Track)>> = BTreeMap::new();
    let anew = begun_anew(tracks, (from, to));
    for track in tracks.iter().filter(|track| track.grows()) {
        if let (SignalPart::Bucket, Some(edge)) = (&track.part, track.edge) {
            rungs.entry((track.page, &*track.group)).or_default().push((edge, track));
            continue;
        }
        let begins = anew.get(&(track.page, &*track.group)).map_or(&[][..], Vec::as_slice);
        let Some(gained) = pages[track.page].gained(track, (from, to), (0.0, begins)) else { continue };
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

/// Returns the instants at which each histogram restarted.
///
/// If one of its counts falls, a new process counts. All series of the histogram then count from zero, including series that
/// are already higher than in the previous process. Otherwise a redeploy under load, or with other edges, would be counted
/// partly from zero and partly from the old value. A fall of only the sum is no evidence: observations below zero and
/// rounding in another order of addition cause it too.
fn begun_anew<'a>(tracks: &[&'a Track], (from, to): (At, At)) -> BTreeMap<(usize, &'a str), Vec<At>> {
    let mut groups: BTreeMap<(usize, &str), Vec<&Track>> = BTreeMap::new();
    for track in tracks.iter().filter(|track| track.counts() && track.falls(from, to) > 0) {
        groups.entry((track.page, &track.group)).or_default();
    }
    if groups.is_empty() {
        return BTreeMap::new();
    }
    for track in tracks.iter().filter(|track| track.counts()) {
        groups.entry((track.page, &track.group)).and_modify(|group| group.push(track));
    }
    groups.into_iter().map(|(key, group)| (key, falls(&group, (from, to)))).collect()
}

/// Returns the instants at which one of these tracks falls; all tracks belong to one process at a time.
///
/// An edge that disappears while others stay is forgotten. If the edge reappears with a lower count, that is no fall, because
/// the process may have changed in the meantime.
fn falls(group: &[&Track], (from, to): (At, At)) -> Vec<At> {
    let mut there: Vec<bool> = group.iter().map(|track| track.value_at(from).is_some()).collect();
    // If no track has a value at `from`, the values before the tracks disappeared count.
    let is_gone = !there.contains(&true);
    let (mut stood, mut points) = (Vec::new(), Vec::new());
    for (of, track) in group.iter().enumerate() {
        let (last, within) = track.numbers(from, to);
        stood.push(last.filter(|_| there[of] || is_gone));
        points.extend(within.iter().map(|&(at, now)| (at, of, now)));
    }
    points.sort_by_key(|(at, of, _)| (*at, *of));
    let mut found = Vec::new();
    for scrape in points.chunk_by(|a, b| a.0 == b.0) {
        let mut fell = false;
        for &(_, of, now) in scrape {
            there[of] = now.is_finite();
            if there[of] {
                fell |= stood[of].is_some_and(|stood| now < stood);
                stood[of] = Some(now);
            }
        }
        if there.contains(&true) {
            stood.iter_mut().zip(&there).filter(|(_, there)| !**there).for_each(|(stood, _)| *stood = None);
        }
        if fell {
            found.push(scrape[0].0);
        }
    }
    found
}

/// Returns the increases of the cumulative counts of one histogram by edge, and the interval between the scrapes.
///
/// Edges at powers of two appear and disappear with the values. An edge that disappeared is ignored if others have values.
/// A new edge starts at the count of the next higher edge, because no observation was between them.
fn ladder(
    page: &ScrapedPage,
    mut rungs: Vec<(f64, &Track)>,
    (from, to): (At, At),
    anew: &[At],
) -> (Vec<(f64, f64)>, Option<CounterDelta>) {
    rungs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let stands = rungs.iter().any(|(_, track)| track.value_at(to).is_some());
    let (mut found, mut span, mut higher) = (Vec::new(), None::<CounterDelta>, 0.0);
    for (edge, track) in rungs {
        if stands && track.value_at(to).is_none() {
            continue;
        }
        let gained = page.gained(track, (from, to), (higher, anew));
        higher = track.value_at(from).unwrap_or(higher);
        let Some(gained) = gained else { continue };
        found.push((edge * track.factor, gained.value));
        span = Some(span.map_or(gained, |span| span.with(gained)));
    }
    (found, span)
}

/// Returns the smallest and largest observed value, if every histogram among these tracks reports them at every scrape.
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

/// Returns the bound of the observations between two instants. The earlier value counts too, if the first scrape has no row.
fn told(page: &ScrapedPage, track: &Track, (from, to): (At, At), of_two: fn(f64, f64) -> f64) -> Option<f64> {
    let within = |at: &At| *at > from && *at <= to;
    let points = || track.points.iter().filter(|point| within(&point.0));
    if points().any(|point| !point.1.is_finite()) {
        return None;
    }
    // A row is a change, so a first scrape without a row repeated the earlier value.
    let first = page.scrapes.at.iter().find(|scrape| scrape.1 && within(&scrape.0))?.0;
    let stood = track.value_at(from).filter(|_| points().next().is_none_or(|point| point.0 > first));
    let bound = points().map(|point| point.1).chain(stood).reduce(of_two)?;
    Some(bound * track.factor)
}
