//! Two timelines of the same work side by side: which part of a step moved, and by which kernels and host operations.
//!
//! Times are per step where both mark steps, else over the whole window, which says something only where both did as much. The parts
//! are exclusive, so that what they moved by adds up to what a step moved by. The interval is of the median step: steps are few and
//! their times not normal, and steps that follow each other are not quite independent, which is said. Pairing kernels one by one lost: a changed
//! library or batch calls other kernels in another order, and what was *gone* and what is *new* is then the finding.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_model::TraceSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::Kind;
use super::read::{self, Timeline};
use super::stretch::Stretches;
use super::{LAUNCHES_KNOWN, Lane, window};
use crate::diagnose::active::block::{median, ratio};
use crate::findings::Estimate;
use crate::say::{number, percent};

/// Names listed of each side.
const LISTED: usize = 12;
/// Share of the step from which a part that moved is named in the sentence.
const MUCH: f64 = 0.02;

/// What became of one thing. Seconds per step, or per window.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// A part of the step, a kind, a kernel or a host operation.
    pub name: String,
    /// Before, s.
    pub base_s: f64,
    /// Now, s.
    pub now_s: f64,
    /// How often before.
    pub base_count: f64,
    /// How often now.
    pub now_count: f64,
}

impl Moved {
    /// By how much, s.
    pub fn moved_s(&self) -> f64 {
        self.now_s - self.base_s
    }
}

/// A timeline held against an earlier one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceChange {
    /// The same as a sentence with its figures.
    pub says: String,
    /// Are times per step? Else they are of the whole window.
    pub per_step: bool,
    /// Steps before.
    pub base_steps: u64,
    /// Steps now.
    pub now_steps: u64,
    /// The median step now over the median step before; `None` where steps are not marked or too few.
    pub step_ratio: Option<Estimate>,
    /// The parts of a step, mean over its devices: computing, exchange alone, copy alone, idle though launched, idle for the host. They add up to
    /// the step.
    pub parts: Vec<Moved>,
    /// Device time by kind.
    pub kinds: Vec<Moved>,
    /// Kernels and copies, those that moved most first.
    pub kernels: Vec<Moved>,
    /// Host operations by time of their own, those that moved most first.
    pub host: Vec<Moved>,
    /// What has to be known of these figures.
    pub notes: Vec<String>,
}

impl DeviceChange {
    /// Which share of what the step grew by this part grew by, from 0 to 1; `None` where the step did not grow or has no such part.
    pub fn explains(&self, part: &str) -> Option<f64> {
        let grown: f64 = self.parts.iter().map(Moved::moved_s).sum();
        let own = self.parts.iter().find(|one| one.name == part)?.moved_s();
        (grown > 0.0).then(|| (own / grown).clamp(0.0, 1.0))
    }
}

/// One side.
struct Side {
    /// By what times are divided: steps, or 1.
    by: f64,
    steps: Vec<f64>,
    parts: BTreeMap<&'static str, f64>,
    kinds: BTreeMap<Kind, (f64, f64)>,
    kernels: BTreeMap<String, (f64, f64)>,
    host: BTreeMap<String, (f64, f64)>,
    devices: usize,
}

/// Only an exchange with other devices ran.
pub const EXCHANGE_ALONE: &str = "exchange alone";
/// Nothing ran, and the host had launched nothing.
pub const IDLE_HOST: &str = "idle: host";
/// The parts, in the order in which they are shown.
const PARTS: [&str; 6] = ["computing", EXCHANGE_ALONE, "copy alone", "idle: launched", IDLE_HOST, "idle"];

/// Holds one timeline against an earlier one.
pub fn compare(base: &[TraceSpan], now: &[TraceSpan]) -> DeviceChange {
    let (base, now) = (read::timeline(base), read::timeline(now));
    let per_step = !base.steps.is_empty() && !now.steps.is_empty();
    let split = tells(&base) && tells(&now);
    let (a, b) = (Side::new(&base, per_step, split), Side::new(&now, per_step, split));
    let step_ratio = (per_step).then(|| medians(&a.steps, &b.steps)).flatten();
    let parts: Vec<Moved> = PARTS
        .iter()
        .filter_map(|part| {
            let (base_s, now_s) = (*a.parts.get(part)?, *b.parts.get(part)?);
            let name = (*part).to_owned();
            Some(Moved {
                name,
                base_s: base_s / a.by,
                now_s: now_s / b.by,
                base_count: a.by,
                now_count: b.by,
            })
        })
        .collect();
    let kinds = a.kinds.iter().map(|(kind, sum)| (kind.word().to_owned(), *sum)).collect();
    let kinds_now = b.kinds.iter().map(|(kind, sum)| (kind.word().to_owned(), *sum)).collect();
    let mut change = DeviceChange {
        says: String::new(),
        per_step,
        base_steps: a.steps.len() as u64,
        now_steps: b.steps.len() as u64,
        step_ratio,
        parts,
        kinds: moved((&kinds, a.by), (&kinds_now, b.by), usize::MAX),
        kernels: moved((&a.kernels, a.by), (&b.kernels, b.by), LISTED),
        host: moved((&a.host, a.by), (&b.host, b.by), LISTED),
        notes: Vec::new(),
    };
    change.says = says(&change);
    change.notes = notes(&change, (&a, &b), split);
    change
}

/// Do launches say whose idle time is?
fn tells(timeline: &Timeline<'_>) -> bool {
    let known = timeline.work.iter().filter(|work| work.launch.is_some()).count() as f64;
    !timeline.work.is_empty() && known >= LAUNCHES_KNOWN * timeline.work.len() as f64
}

impl Side {
    fn new(timeline: &Timeline<'_>, per_step: bool, split: bool) -> Side {
        let window = window(timeline);
        let seconds = |ns: i64| ns as f64 * 1e-9;
        let within = |from: i64, to: i64| seconds((to.min(window.1) - from.max(window.0)).max(0));
        let mut side = Side {
            by: if per_step { timeline.steps.len() as f64 } else { 1.0 },
            steps: timeline.steps.iter().map(|(_, from, to)| seconds(to - from)).collect(),
            parts: BTreeMap::new(),
            kinds: BTreeMap::new(),
            kernels: BTreeMap::new(),
            host: BTreeMap::new(),
            devices: timeline.devices.len(),
        };
        side.divide(timeline, window, split);
        for work in timeline.work.iter().filter(|work| work.to > window.0 && work.from < window.1) {
            let took = within(work.from, work.to);
            add(side.kinds.entry(work.kind).or_default(), took);
            let name = timeline.names.get(work.name as usize).copied().unwrap_or_default();
            add(side.kernels.entry(name.to_owned()).or_default(), took);
        }
        let steps: BTreeSet<&str> = timeline.steps.iter().map(|(name, ..)| *name).collect();
        for host in timeline.host.iter().filter(|host| host.to > window.0 && host.from < window.1) {
            let name = timeline.names.get(host.name as usize).copied().unwrap_or_default();
            // A step's own time is what nothing in it accounts for, under a name that differs from step to step.
            let name = if steps.contains(name) { "the step itself" } else { name };
            add(side.host.entry(name.to_owned()).or_default(), seconds(host.own_ns.max(0)));
        }
        side
    }

    /// The window's exclusive parts, mean over the devices.
    fn divide(&mut self, timeline: &Timeline<'_>, window: (i64, i64), split: bool) {
        let whole = Stretches::union(vec![window]);
        let devices = timeline.devices.len().max(1) as f64;
        let mut put = |part: &'static str, of: &Stretches| {
            *self.parts.entry(part).or_default() += of.length_ns() as f64 * 1e-9 / devices;
        };
        for device in 0..timeline.devices.len() {
            let lane = Lane::new(timeline, device, window);
            put("computing", &lane.computing);
            put(EXCHANGE_ALONE, &lane.collective.without(&lane.computing));
            put("copy alone", &lane.copies.without(&lane.computing).without(&lane.collective));
            match split {
                true => {
                    put("idle: launched", &lane.queued);
                    put(IDLE_HOST, &lane.host);
                }
                false => put("idle", &whole.without(&lane.all)),
            }
        }
    }
}

fn add((sum, count): &mut (f64, f64), took: f64) {
    *sum += took;
    *count += 1.0;
}

fn medians(base: &[f64], now: &[f64]) -> Option<Estimate> {
    let of = |steps: &[f64]| median(steps.iter().copied(), 1.0);
    ratio(&of(now)?, &of(base)?).filter(|found| found.lower > 0.0 && found.upper.is_finite())
}

/// Names of both sides, those that moved most first.
fn moved(
    (base, base_by): (&BTreeMap<String, (f64, f64)>, f64),
    (now, now_by): (&BTreeMap<String, (f64, f64)>, f64),
    listed: usize,
) -> Vec<Moved> {
    let names: BTreeSet<&String> = base.keys().chain(now.keys()).collect();
    let of = |side: &BTreeMap<String, (f64, f64)>, name: &String| side.get(name).copied().unwrap_or_default();
    let mut all: Vec<Moved> = names
        .into_iter()
        .map(|name| {
            let ((base_s, base_count), (now_s, now_count)) = (of(base, name), of(now, name));
            Moved {
                name: name.clone(),
                base_s: base_s / base_by,
                now_s: now_s / now_by,
                base_count: base_count / base_by,
                now_count: now_count / now_by,
            }
        })
        .collect();
    all.sort_by(|a, b| b.moved_s().abs().total_cmp(&a.moved_s().abs()).then_with(|| a.name.cmp(&b.name)));
    all.retain(|one| one.base_s > 0.0 || one.now_s > 0.0);
    all.truncate(listed);
    all
}

/// What moved, in one sentence.
fn says(change: &DeviceChange) -> String {
    let (base, now): (f64, f64) =
        change.parts.iter().fold((0.0, 0.0), |(a, b), part| (a + part.base_s, b + part.now_s));
    if change.parts.is_empty() || base <= 0.0 {
        return "a side has no device work, so that only the host's part can be held against the other"
            .to_owned();
    }
    let what = if change.per_step { "a step" } else { "the window" };
    let by = signed(now - base);
    let sure = change.step_ratio.map_or_else(String::new, |found| {
        format!(
            "; the median step × {} [{}, {}]",
            number(found.value),
            number(found.lower),
            number(found.upper)
        )
    });
    let mut most: Vec<&Moved> =
        change.parts.iter().filter(|part| part.moved_s().abs() >= MUCH * base).collect();
    most.sort_by(|a, b| b.moved_s().abs().total_cmp(&a.moved_s().abs()));
    let parts: Vec<String> =
        most.iter().map(|part| format!("{} {}", part.name, signed(part.moved_s()))).collect();
    let parts = match parts.is_empty() {
        true => format!("no part of it moved by {} of it or more", percent(MUCH)),
        false => parts.join(", "),
    };
    format!("{what} takes {} on average, it took {}: {by}{sure}. Of that: {parts}", time(now), time(base))
}

/// A time of microseconds to seconds.
fn time(s: f64) -> String {
    match s.abs() {
        x if x >= 1.0 => format!("{} s", number(s)),
        x if x >= 1e-3 => format!("{} ms", number(1e3 * s)),
        _ => format!("{} µs", number(1e6 * s)),
    }
}

fn signed(s: f64) -> String {
    if s < 0.0 { format!("−{}", time(-s)) } else { format!("+{}", time(s)) }
}

fn notes(change: &DeviceChange, (base, now): (&Side, &Side), split: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if !change.per_step {
        notes.push("steps are not marked on both sides: the windows are compared as they are, which says something only where both did as much work".to_owned());
    }
    if change.step_ratio.is_some() {
        notes.push("the interval takes steps for independent; where they drift (a warming device, growing contexts) it is too narrow".to_owned());
    }
    if !split {
        notes.push("a side lacks the launches of its device work: idle time is not split between the host and what had been launched".to_owned());
    }
    if base.devices != now.devices {
        notes.push(format!(
            "{} devices before, {} now: parts are means over the devices",
            base.devices, now.devices
        ));
    }
    notes
}
