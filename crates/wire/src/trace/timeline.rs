//! Converts slices on threads and streams to spans in traces.
//!
//! A profiler records *when* each slice ran on which track; the nesting shows the cause. A slice within another on the
//! track is its child. The call that launched GPU work is its parent, by the correlation id. A trace contains the slices below
//! one top-level annotation (`ProfilerStep#3`, an NVTX range), because this is the user's
//! unit of work. Slices below none form one trace per file. A trace per top-level call was rejected: it gives a
//! million traces of one span, in which no stage is a share of a whole.

use std::collections::HashMap;

use plimsoll_model::{AttributeValue, TraceSpan};

use super::Notes;
use super::origin::{Origin, settle};

/// A time range on a track.
pub(crate) struct TrackSlice {
    pub track: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    pub name: String,
    /// Whether a user placed the slice.
    pub is_annotation: bool,
    /// Correlation id of the slices that this one launches as `launched_by`.
    pub launches: Option<u64>,
    pub launched_by: Option<u64>,
    /// Trace id that the slice itself has.
    pub trace: Option<u128>,
    pub attributes: Vec<(String, AttributeValue)>,
}

const NONE: u32 = u32::MAX;

/// Returns slices as spans, in order of track and time. `tracks` are the origins of the tracks; `seed` distinguishes the traces of files.
pub(crate) fn spans(
    mut slices: Vec<TrackSlice>,
    tracks: &[Origin],
    seed: u64,
    notes: &mut Notes,
) -> Vec<TraceSpan> {
    // More slices than a u32 counts need more memory than a file can fill.
    slices.truncate(NONE as usize);
    slices.sort_by_key(|slice| (slice.track, slice.start_ns, std::cmp::Reverse(slice.end_ns)));
    let parents = parents(&slices);
    let traces = traces(&slices, &parents, seed);
    let none = Origin::default();
    let all = slices.into_iter().zip(parents).zip(traces).zip(1u64..);
    all.map(|(((slice, parent), trace), id)| {
        let origin = tracks.get(slice.track as usize).unwrap_or(&none);
        let span = TraceSpan {
            trace,
            id,
            parent: (parent != NONE).then(|| u64::from(parent) + 1),
            name: slice.name,
            start_ns: slice.start_ns,
            end_ns: slice.end_ns,
            attributes: slice.attributes,
            ..TraceSpan::blank()
        };
        settle(span, origin, notes)
    })
    .collect()
}

/// Returns the parent of each slice.
fn parents(slices: &[TrackSlice]) -> Vec<u32> {
    let launches: HashMap<u64, u32> =
        (0..).zip(slices).filter_map(|(at, slice)| Some((slice.launches?, at))).collect();
    let mut open: Vec<u32> = Vec::new();
    let mut track = None;
    let mut parents = Vec::with_capacity(slices.len());
    for (at, slice) in (0u32..).zip(slices) {
        if track != Some(slice.track) {
            open.clear();
            track = Some(slice.track);
        }
        // A slice that reaches past the open one only overlaps it: it is not a child, and it covers all possible later children
        // of the open one.
        while open.last().is_some_and(|top| {
            let top = &slices[*top as usize];
            top.end_ns < slice.end_ns || (top.end_ns <= slice.start_ns && top.end_ns > top.start_ns)
        }) {
            open.pop();
        }
        let launcher = slice.launched_by.and_then(|number| launches.get(&number)).copied();
        let inner = open.last().copied();
        // A launch after the launched slice has another slice's number, or a wrong clock.
        let launcher =
            launcher.filter(|from| (slices[*from as usize].start_ns, *from) < (slice.start_ns, at));
        parents.push(launcher.or(inner).unwrap_or(NONE));
        open.push(at);
    }
    parents
}

/// Returns the trace of each slice: its own id, otherwise its parent's, otherwise a new one for an annotation, otherwise the file's.
fn traces(slices: &[TrackSlice], parents: &[u32], seed: u64) -> Vec<u128> {
    let of_file = u128::from(seed) << 64 | 1;
    let mut traces: Vec<u128> = vec![0; slices.len()];
    let mut way = Vec::new();
    for at in 0..slices.len() {
        let mut here = at;
        // Up to the first known ancestor. Parents are never later than their children, so this ends.
        while traces[here] == 0 {
            way.push(here);
            traces[here] = of_file;
            if slices[here].trace.is_some() || parents[here] == NONE {
                break;
            }
            here = parents[here] as usize;
        }
        let mut known = traces[here];
        while let Some(slice) = way.pop() {
            if parents[slice] == NONE && slices[slice].is_annotation {
                known = u128::from(seed) << 64 | (slice as u128 + 2);
            }
            known = slices[slice].trace.unwrap_or(known);
            traces[slice] = known;
        }
    }
    traces
}
