//! Slices on threads and streams become spans in traces.
//!
//! A profiler says *when* something ran on which track; who caused it is in the nesting: a slice that lies within another on the same
//! track is its child. What a GPU runs is caused by the call that launched it, which the correlation id names. A trace is
//! what lies below one top-level annotation (`ProfilerStep#3`, an NVTX range): that is the unit in which the person who
//! placed it thinks. What lies below none is one trace per file. A trace per top-level call was the alternative: a
//! million traces of one span, in which no stage is a share of anything.

use std::collections::HashMap;

use plimsoll_model::{AttributeValue, TraceSpan};

use super::Notes;
use super::origin::{Origin, settle};

/// A stretch of time on a track.
pub(crate) struct TrackSlice {
    pub track: u32,
    pub start_ns: i64,
    pub end_ns: i64,
    pub name: String,
    /// Was it placed by a person?
    pub is_annotation: bool,
    /// Launches what has this number as `launched_by`.
    pub launches: Option<u64>,
    pub launched_by: Option<u64>,
    /// The trace it says it belongs to.
    pub trace: Option<u128>,
    pub attributes: Vec<(String, AttributeValue)>,
}

const NONE: u32 = u32::MAX;

/// Slices as spans, in order of track and time; `tracks` says where each track is, `seed` tells this file's traces from others'.
pub(crate) fn spans(
    mut slices: Vec<TrackSlice>,
    tracks: &[Origin],
    seed: u64,
    notes: &mut Notes,
) -> Vec<TraceSpan> {
    // More slices than a u32 counts are more memory than a file can fill.
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

/// Whose child each slice is.
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
        // A slice that reaches past the open one only overlaps it: it is no child, and it covers whatever the open one
        // could still have had as children.
        while open.last().is_some_and(|top| {
            let top = &slices[*top as usize];
            top.end_ns < slice.end_ns || (top.end_ns <= slice.start_ns && top.end_ns > top.start_ns)
        }) {
            open.pop();
        }
        let launcher = slice.launched_by.and_then(|number| launches.get(&number)).copied();
        let inner = open.last().copied();
        // A launch that comes after what it launched is another's number, or a clock's fault.
        let launcher =
            launcher.filter(|from| (slices[*from as usize].start_ns, *from) < (slice.start_ns, at));
        parents.push(launcher.or(inner).unwrap_or(NONE));
        open.push(at);
    }
    parents
}

/// Which trace each slice belongs to: its own word, else its parent's, else its own as an annotation, else the file's.
fn traces(slices: &[TrackSlice], parents: &[u32], seed: u64) -> Vec<u128> {
    let of_file = u128::from(seed) << 64 | 1;
    let mut traces: Vec<u128> = vec![0; slices.len()];
    let mut way = Vec::new();
    for at in 0..slices.len() {
        let mut here = at;
        // Up to what is known. Parents are never later than their children, so this ends.
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
