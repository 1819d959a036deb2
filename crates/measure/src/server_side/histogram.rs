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

/// When histograms began anew: where a count of one falls another process counts, and all of its series count from zero, also those that have more by then than
/// the process before had. Else a redeploy under load, or one with other edges, would be counted partly from zero and partly from where it stood. A sum alone is no
/// evidence: it falls by what is observed below zero, or by the last digit where it is added up in another order.
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

/// When one of these falls, all of which one process counts at a time. An edge that leaves while others stay is forgotten: where it comes back lower that is no
/// fall, because the process may have changed in the meantime.
fn falls(group: &[&Track], (from, to): (At, At)) -> Vec<At> {
    let mut there: Vec<bool> = group.iter().map(|track| track.value_at(from).is_some()).collect();
    // Where nothing of it stood then, what it was before it left.
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
