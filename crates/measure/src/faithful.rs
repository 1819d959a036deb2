//! Fidelity of a workload to its source, property by property.
//!
//! One side is the log's requests. The other is the traffic that a run would *send*. The file is read back, its schedule drawn
//! and its prompt blocks named as in a run. Comparing the log with the generated rows would test the generator against itself.
//! Each property is equal, different or unknown. A log in whole seconds does not show the burstiness within a second, and an
//! unknown property does not count as equal.
//!
//! Bounds: two empirical distributions are equal up to a Kolmogorov-Smirnov distance of 0.03. An index of dispersion of counts
//! is equal within a tenth, a share within two points, and a mean within two hundredths.

use std::collections::{HashMap, HashSet};

use plimsoll_math::distance::ks_between;
use plimsoll_math::series;
use plimsoll_model::{How, LoggedRequest};
use plimsoll_workload::{BlockNames, Schedule, Trace};
use serde::Serialize;

/// Windows of the index of dispersion in seconds.
const WINDOWS_S: [f64; 5] = [0.1, 1.0, 10.0, 60.0, 600.0];
/// Minimum number of windows for an index.
const LEAST_WINDOWS: f64 = 20.0;
/// Tokens per block in the block names of runs.
const BLOCK_TOKENS: f64 = 16.0;

/// The verdict on a property of a workload compared with its source.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FidelityVerdict {
    Same,
    Differs,
    /// The source does not contain the property.
    Unknown,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Property {
    pub name: String,
    pub source: Option<f64>,
    pub workload: Option<f64>,
    /// Distance of the two values, in the measure of the bound.
    pub apart: Option<f64>,
    /// Largest distance at which the values count as equal.
    pub bound: Option<f64>,
    pub measure: &'static str,
    pub verdict: FidelityVerdict,
    pub why: Option<String>,
}

/// The requests of one side in order of time, with the data that properties need.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TrafficSample {
    pub at_ns: Vec<i64>,
    /// Prompt tokens of the requests with a known number.
    pub prompt: Vec<f64>,
    pub output: Vec<f64>,
    /// Share of the prompt tokens that an unlimited cache would contain; `None` if unknown.
    pub reuse: Option<f64>,
    /// Conversation of each request.
    pub session: Vec<Option<u64>>,
    /// Set if the starts of the sessions are unknown.
    pub is_relative: bool,
    /// Largest error of the distributions of prompt and output tokens if they are known between edges only, else `None`.
    pub counts_only: Option<[f64; 2]>,
}

impl TrafficSample {
    /// Returns the requests of a log. `block_tokens` is the block size of its block names; 0 if there are none.
    pub fn of_log(logged: &[LoggedRequest], block_tokens: u32) -> TrafficSample {
        let count =
            |of: fn(&LoggedRequest) -> Option<u32>| logged.iter().filter_map(of).map(f64::from).collect();
        let named = logged.iter().filter(|one| one.prompt.is_some());
        let by_name = hit_share(
            named.map(|one| (f64::from(one.prompt.unwrap_or(0)), one.blocks.as_slice())),
            f64::from(block_tokens),
        );
        let said = logged.iter().filter_map(|one| Some((f64::from(one.cached?), f64::from(one.prompt?))));
        let (cached, of) = said.fold((0.0, 0.0), |sum, one| (sum.0 + one.0.min(one.1), sum.1 + one.1));
        TrafficSample {
            at_ns: logged.iter().map(|one| one.at_ns).collect(),
            prompt: count(|one| one.prompt),
            output: count(|one| one.output),
            reuse: if block_tokens > 0 { by_name } else { (of > 0.0).then(|| cached / of) },
            session: logged.iter().map(|one| one.session).collect(),
            is_relative: false,
            counts_only: None,
        }
    }

    /// Returns the requests that a schedule sends.
    ///
    /// `trace` is the source file of the schedule, whose rows contain the conversations. `took_ns` is the duration of each line's
    /// request in the log; turns that wait for others are due after these durations.
    pub fn of_schedule(
        schedule: &Schedule,
        names: &mut BlockNames,
        trace: &Trace,
        took_ns: &[i64],
    ) -> TrafficSample {
        let arrivals = &schedule.arrivals;
        let due = stepped(schedule, trace, took_ns);
        let mut in_time: Vec<(i64, Option<u64>)> = match &trace.graph {
            Some(_) => due.iter().zip(arrivals).map(|(due, one)| (*due, one.session)).collect(),
            None => due.iter().zip(&trace.rows).map(|(due, row)| (*due, row.session)).collect(),
        };
        in_time.sort_by_key(|(due, _)| *due);
        let blocks: Vec<Vec<u64>> = arrivals.iter().map(|arrival| names.of(arrival)).collect();
        let prompts = arrivals.iter().zip(&blocks);
        let prompts = prompts.map(|(one, blocks)| (f64::from(one.prompt_tokens), blocks.as_slice()));
        TrafficSample {
            at_ns: in_time.iter().map(|(due, _)| *due).collect(),
            prompt: arrivals.iter().map(|one| f64::from(one.prompt_tokens)).collect(),
            output: arrivals.iter().map(|one| f64::from(one.output_tokens)).collect(),
            reuse: hit_share(prompts, BLOCK_TOKENS),
            session: in_time.into_iter().map(|(_, session)| session).collect(),
            is_relative: false,
            counts_only: None,
        }
    }
}

/// Returns the due times of a schedule's requests in ns, if each takes as long as its line in the log.
///
/// `took_ns` is indexed by the line number minus 1. Without turns that wait for others, the times are the scheduled times.
pub fn stepped(schedule: &Schedule, trace: &Trace, took_ns: &[i64]) -> Vec<i64> {
    let mut due: Vec<i64> = schedule.arrivals.iter().map(|one| one.due.0).collect();
    let Some(graph) = &trace.graph else { return due };
    let mut order: Vec<usize> = (0..due.len()).collect();
    // A turn is always after the turns that it waits for.
    order.sort_by_key(|i| (schedule.arrivals[*i].session, schedule.arrivals[*i].turn));
    let mut ends: HashMap<(Option<u64>, u16), i64> = HashMap::new();
    for i in order {
        let one = &schedule.arrivals[i];
        let last = one.after.iter().filter_map(|turn| ends.get(&(one.session, *turn)).copied()).max();
        if let Some(last) = last {
            due[i] = last + one.think.0;
        }
        let place = one.session.map_or(0, |session| session as usize % graph.sessions.len().max(1));
        let turn = graph.sessions.get(place).and_then(|session| session.turns.get(usize::from(one.turn)));
        let line = turn.map_or(0, |turn| trace.rows[turn.row].line as usize);
        let took = line.checked_sub(1).and_then(|at| took_ns.get(at)).copied().unwrap_or(0);
        ends.insert((one.session, one.turn), due[i] + took);
    }
    due
}

/// Returns the share of prompt tokens in blocks that occurred before, counted from the beginning of each prompt.
fn hit_share<'a>(prompts: impl Iterator<Item = (f64, &'a [u64])>, block_tokens: f64) -> Option<f64> {
    let (mut seen, mut hits, mut all) = (HashSet::new(), 0.0, 0.0);
    for (tokens, blocks) in prompts {
        let known = blocks.iter().take_while(|block| seen.contains(*block)).count();
        hits += (known as f64 * block_tokens).min(tokens);
        all += tokens;
        seen.extend(blocks.iter().copied());
    }
    (all > 0.0).then(|| hits / all)
}

/// Compares the requests of a workload with its source. `tick_ns` is the resolution of the source's timestamps.
pub fn properties(source: &TrafficSample, workload: &TrafficSample, tick_ns: i64) -> Vec<Property> {
    let mut all =
        vec![relative("requests", Some(source.at_ns.len() as f64), Some(workload.at_ns.len() as f64), 0.0)];
    if source.is_relative {
        let why = "the log has no session start times";
        all.extend(["mean rate, 1/s", "gaps between requests, s"].map(|name| unknown(name, None, why)));
    } else {
        all.push(relative("mean rate, 1/s", rate(&source.at_ns), rate(&workload.at_ns), 0.02));
        all.extend(dispersion(source, workload, tick_ns));
        all.extend(gaps(source, workload, tick_ns));
    }
    all.extend(lengths(
        "prompt tokens",
        (&source.prompt, source.counts_only.map(|both| both[0])),
        &workload.prompt,
    ));
    all.extend(lengths(
        "output tokens",
        (&source.output, source.counts_only.map(|both| both[1])),
        &workload.output,
    ));
    all.push(match (source.reuse, workload.reuse) {
        (Some(a), Some(b)) => judged("prompt tokens seen before", (a, b), (a - b).abs(), 0.02, "points"),
        _ => unknown("prompt tokens seen before", workload.reuse, "the log has no data on shared prefixes"),
    });
    all.extend(turns(source, workload));
    all
}

/// Returns the distribution of a length; if it is known between edges only, its mean and largest error too.
fn lengths(name: &str, (source, slack): (&[f64], Option<f64>), workload: &[f64]) -> Vec<Property> {
    let law = law(name, source, workload);
    let Some(slack) = slack else { return vec![law] };
    let mean = |all: &[f64]| (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64);
    let mean = relative(&format!("mean of {name}"), mean(source), mean(workload), 0.02);
    let apart = law.apart.map(|apart| apart + slack);
    let law = match apart.zip(law.bound) {
        Some((apart, bound)) if apart <= bound => Property { apart: Some(apart), ..law },
        _ => {
            let why = format!(
                "known only between bucket edges: up to {:.0} % are between two edges",
                100.0 * slack
            );
            unknown(name, law.workload, &why)
        }
    };
    vec![mean, law]
}

fn dispersion(source: &TrafficSample, workload: &TrafficSample, tick_ns: i64) -> Vec<Property> {
    let mut all = Vec::new();
    for window in WINDOWS_S {
        let name = format!("index of dispersion at {window} s");
        let index = |side: &TrafficSample| {
            let (first, last) = (side.at_ns.first()?, side.at_ns.last()?);
            let enough = (last - first) as f64 / 1e9 >= LEAST_WINDOWS * window;
            let times: Vec<i64> = side.at_ns.iter().map(|at| at - first).collect();
            let counts = series::counts(&times, 0, last - first, (window * 1e9) as i64);
            enough.then(|| series::dispersion_index(&counts)).flatten()
        };
        match (index(source), index(workload)) {
            _ if tick_ns as f64 > window * 1e9 * 0.5 => {
                all.push(unknown(&name, index(workload), "the log's stamps are coarser"));
            }
            (Some(a), Some(b)) => all.push(relative(&name, Some(a), Some(b), 0.1)),
            // Both sides are too short for windows of this length.
            _ => {}
        }
    }
    all
}

fn gaps(source: &TrafficSample, workload: &TrafficSample, tick_ns: i64) -> Vec<Property> {
    let of = |side: &TrafficSample| -> Vec<f64> {
        side.at_ns.windows(2).map(|w| (w[1] - w[0]) as f64 / 1e9).collect()
    };
    let (a, b) = (of(source), of(workload));
    let names = ["variation of gaps", "gaps between requests, s"];
    let mean = a.iter().sum::<f64>() / a.len().max(1) as f64;
    if tick_ns as f64 / 1e9 > 0.2 * mean {
        let why = "the log's stamps are too coarse for gaps so short";
        return names.map(|name| unknown(name, None, why)).into();
    }
    let cv = series::coefficient_of_variation;
    vec![relative(names[0], cv(&a), cv(&b), 0.1), law(names[1], &a, &b)]
}

/// Compares the turns of conversations, and the time between them.
fn turns(source: &TrafficSample, workload: &TrafficSample) -> Vec<Property> {
    let of = |side: &TrafficSample| {
        let mut last: HashMap<u64, (i64, u32)> = HashMap::new();
        let mut pauses = Vec::new();
        for (at, session) in side.at_ns.iter().zip(&side.session) {
            let Some(session) = session else { continue };
            let (before, turns) = last.entry(*session).or_insert((*at, 0));
            if *turns > 0 {
                pauses.push((at - *before) as f64 / 1e9);
            }
            (*before, *turns) = (*at, *turns + 1);
        }
        let mean = last.values().map(|(_, turns)| f64::from(*turns)).sum::<f64>() / last.len().max(1) as f64;
        ((!last.is_empty()).then_some(mean), pauses)
    };
    let ((a, pauses_a), (b, pauses_b)) = (of(source), of(workload));
    if a.is_none() {
        return vec![unknown("turns of a conversation", b, "the log names no conversations")];
    }
    let mut all = vec![relative("turns of a conversation", a, b, 0.02)];
    if !pauses_a.is_empty() {
        all.push(law("time from turn to turn, s", &pauses_a, &pauses_b));
    }
    all
}

fn rate(at_ns: &[i64]) -> Option<f64> {
    let span = at_ns.last()?.checked_sub(*at_ns.first()?)? as f64 / 1e9;
    (span > 0.0).then(|| (at_ns.len() - 1) as f64 / span)
}

/// Compares two empirical distributions by their largest distance; the values are their medians.
fn law(name: &str, source: &[f64], workload: &[f64]) -> Property {
    let sorted = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values
    };
    let (a, b) = (sorted(source), sorted(workload));
    let middle = |values: &[f64]| values.get(values.len().saturating_sub(1) / 2).copied();
    match (middle(&a), middle(&b)) {
        (Some(x), Some(y)) => {
            judged(name, (x, y), ks_between(&a, &b), 0.03, "KS distance of all, medians shown")
        }
        (None, known) => unknown(name, known, "not in the log"),
        (known, None) => Property { source: known, ..unknown(name, None, "nothing is sent") },
    }
}

fn relative(name: &str, source: Option<f64>, workload: Option<f64>, bound: f64) -> Property {
    match (source, workload) {
        (Some(a), Some(b)) if a != 0.0 => judged(name, (a, b), (b / a - 1.0).abs(), bound, "relative"),
        (Some(a), Some(b)) => judged(name, (a, b), (b - a).abs(), bound, "difference"),
        (_, known) => unknown(name, known, "too few requests"),
    }
}

fn judged(
    name: &str,
    (source, workload): (f64, f64),
    apart: f64,
    bound: f64,
    measure: &'static str,
) -> Property {
    let verdict = if apart <= bound + 1e-9 { FidelityVerdict::Same } else { FidelityVerdict::Differs };
    Property {
        name: name.to_owned(),
        source: Some(source),
        workload: Some(workload),
        apart: Some(apart),
        bound: Some(bound),
        measure,
        verdict,
        why: None,
    }
}

fn unknown(name: &str, workload: Option<f64>, why: &str) -> Property {
    Property {
        name: name.to_owned(),
        source: None,
        workload,
        apart: None,
        bound: None,
        measure: "",
        verdict: FidelityVerdict::Unknown,
        why: Some(why.to_owned()),
    }
}

/// The number of a log's requests by outcome.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct EndCounts {
    pub answered: u64,
    pub left: u64,
    /// Rejected for lack of capacity (429, 503).
    pub shed: u64,
    pub failed: u64,
    /// Forwarded more than once.
    pub retried: u64,
}

impl EndCounts {
    /// Counts the outcomes of a log's requests.
    pub fn of(logged: &[LoggedRequest]) -> EndCounts {
        let mut ended = EndCounts::default();
        for one in logged {
            match one.how {
                How::Finished => ended.answered += 1,
                How::Cancelled | How::Unfinished => ended.left += 1,
                How::Shed => ended.shed += 1,
                _ => ended.failed += 1,
            }
            ended.retried += u64::from(one.tries > 1);
        }
        ended
    }
}

/// The workload that was reconstructed from a log, and its fidelity.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Reconstruction {
    pub source: String,
    pub stamp: String,
    pub requests: u64,
    /// Seconds from the first request to the last.
    pub span_s: f64,
    pub ended: EndCounts,
    /// Requests rejected as invalid (4xx), which are left out.
    pub refused: u64,
    /// Requested models with the number of requests.
    pub models: Vec<(String, u64)>,
    pub lengths_drawn: u64,
    pub reuse: &'static str,
    /// Width in seconds of the ticks within which timestamps were spread; `None` if they were not.
    pub spread_s: Option<f64>,
    /// Sessions whose turns wait for each other; 0 if none do.
    pub sessions: u64,
    /// Waits for tools that were cut to the maximum.
    pub waits_cut: u64,
    /// Set if the starts of the sessions were drawn.
    pub begins_drawn: bool,
    /// Share of the requests that the log contains.
    pub kept_share: f64,
    pub left_out: Vec<String>,
    pub blind: Vec<String>,
    pub properties: Vec<Property>,
}
