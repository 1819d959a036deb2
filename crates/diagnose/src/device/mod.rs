//! Analysis of a profiler's timeline (PyTorch's Kineto, Nsight Systems): device utilisation, its kinds of work, and the reason for
//! idle time.
//!
//! A trace of requests shows which stage took the time. A profiler shows whether the stage used the device or the
//! host, which no metrics endpoint reports. The busy time of a device is the union of its activities. Idle time has
//! two kinds. Either work was launched and has not started (launch latency, or a wait for another stream). Or no work
//! was launched, or the launching call was still running: then the device waits for the host.
//!
//! Attribution of whole gaps by their length was rejected: a gap of 20 µs is launch latency on one machine and host
//! time on another. The launch's own time decides. The three kinds of time are exclusive and add up to the window.
//!
//! Reading order: [`kind`] (kinds of kernels), [`stretch`] (time intervals), `read` (input from spans), `layer` (ranges), [`finding`]
//! (the output), [`judge`] below.

pub mod finding;
pub mod kind;
mod layer;
mod read;
pub mod stretch;

use std::collections::{HashMap, HashSet};

use plimsoll_math::quantile::{of_sorted, sort};
use plimsoll_model::TraceSpan;

pub use finding::{Bound, Device, DeviceFinding, DeviceStep, HostShare, KindTime, Launches, LayerTime, Top};
pub use kind::DeviceWork;
pub use read::{is_timeline, within};

use read::{Host, Timeline, Work};
use stretch::IntervalSet;

/// Share of the window from which the host, communication or copies are the bottleneck.
const MUCH: f64 = 0.25;
/// Share of the window from which the device is the bottleneck because it computes.
const BUSY: f64 = 0.75;
/// Minimum share of device work with known launches; below it, idle time is not split.
const LAUNCHES_KNOWN: f64 = 0.9;
/// Beginning of the name of a CUDA graph that was recorded as one piece of work (`wire/trace/nsys.rs`).
const WHOLE_GRAPH: &str = "CUDA graph ";
/// Maximum number of listed kernels and copies.
const LISTED: usize = 12;
/// Maximum number of listed host functions.
const HOST_LISTED: usize = 6;

pub fn judge(spans: &[TraceSpan]) -> DeviceFinding {
    let timeline = read::timeline(spans);
    let window = window(&timeline);
    let length_ns = (window.1 - window.0).max(1);
    let known = timeline.work.iter().filter(|work| work.launch.is_some()).count() as f64;
    let tells = !timeline.work.is_empty() && known >= LAUNCHES_KNOWN * timeline.work.len() as f64;
    let lanes: Vec<Lane> =
        (0..timeline.devices.len()).map(|device| Lane::new(&timeline, device, window)).collect();
    let mut devices: Vec<Device> =
        timeline.devices.iter().zip(&lanes).map(|(name, lane)| lane.device(name, length_ns, tells)).collect();
    devices.sort_by(|a, b| (a.device.len(), &a.device).cmp(&(b.device.len(), &b.device)));
    let (top, more) = top(&timeline);
    let mut finding = DeviceFinding {
        bound: Bound::NoDevice,
        says: String::new(),
        window_s: if timeline.work.is_empty() && timeline.steps.is_empty() {
            0.0
        } else {
            length_ns as f64 / 1e9
        },
        kinds: kinds(&timeline),
        layers: layer::layers(&timeline),
        top,
        more,
        launches: launches(&timeline, window),
        host_meanwhile: if tells { meanwhile(&timeline, &lanes) } else { Vec::new() },
        host_top: host_top(&timeline),
        steps: steps(&timeline, &lanes, tells),
        notes: Vec::new(),
        devices,
    };
    (finding.bound, finding.says) = verdict(&finding);
    finding.notes = notes(&timeline, &finding, tells);
    finding
}

/// Returns the window: the steps, else from the first launch to the end of the last device work.
fn window(timeline: &Timeline<'_>) -> (i64, i64) {
    if let (Some((_, from, _)), Some((_, _, to))) = (timeline.steps.first(), timeline.steps.last()) {
        return (*from, *to);
    }
    let launched = |work: &Work| {
        work.launch.map_or(work.from, |place| timeline.host[place as usize].from.min(work.from))
    };
    let from = timeline.work.iter().map(launched).min().unwrap_or(0);
    let to = timeline.work.iter().map(|work| work.to).max().unwrap_or(0);
    (from, to.max(from))
}

/// The time intervals of one device within the window.
struct Lane {
    all: IntervalSet,
    computing: IntervalSet,
    collective: IntervalSet,
    copies: IntervalSet,
    /// Intervals without activity after a launch.
    queued: IntervalSet,
    /// Intervals without activity and without a launch, or during the launching call.
    host: IntervalSet,
    streams: u64,
    activities: u64,
}

impl Lane {
    fn new(timeline: &Timeline<'_>, device: usize, window: (i64, i64)) -> Lane {
        let own: Vec<&Work> =
            timeline.work.iter().filter(|work| usize::from(work.device) == device).collect();
        let whole = IntervalSet::union(vec![window]);
        let of = |is: &dyn Fn(&Work) -> bool| {
            let these = own.iter().filter(|work| is(work)).map(|work| (work.from, work.to));
            IntervalSet::union(these.collect()).and(&whole)
        };
        let all = of(&|_| true);
        let idle = whole.without(&all);
        let launched =
            own.iter().filter_map(|work| Some((timeline.host[work.launch? as usize].to, work.from)));
        let queued = idle.and(&IntervalSet::union(launched.collect()));
        let mut streams: Vec<i64> = own.iter().map(|work| work.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        let within = |work: &&&Work| work.from < window.1 && work.to > window.0;
        Lane {
            computing: of(&|work| !matches!(work.kind, DeviceWork::Collective | DeviceWork::Copy)),
            collective: of(&|work| work.kind == DeviceWork::Collective),
            copies: of(&|work| work.kind == DeviceWork::Copy),
            host: idle.without(&queued),
            queued,
            all,
            streams: streams.len() as u64,
            activities: own.iter().filter(within).count() as u64,
        }
    }

    fn device(&self, name: &str, length_ns: i64, tells: bool) -> Device {
        let share = |of: &IntervalSet| of.length_ns() as f64 / length_ns as f64;
        let others = |of: &IntervalSet, a: &IntervalSet, b: &IntervalSet| share(&of.without(a).without(b));
        Device {
            device: name.to_owned(),
            busy: share(&self.all),
            computing: share(&self.computing),
            collective_alone: others(&self.collective, &self.computing, &self.copies),
            copy_alone: others(&self.copies, &self.computing, &self.collective),
            host_idle: tells.then(|| share(&self.host)),
            queued_idle: tells.then(|| share(&self.queued)),
            streams: self.streams,
            activities: self.activities,
        }
    }
}

fn kinds(timeline: &Timeline<'_>) -> Vec<KindTime> {
    let mut by: HashMap<DeviceWork, (u64, i64)> = HashMap::new();
    for work in &timeline.work {
        let (count, ns) = by.entry(work.kind).or_default();
        (*count, *ns) = (*count + 1, *ns + (work.to - work.from));
    }
    let whole = by.values().map(|(_, ns)| *ns).sum::<i64>().max(1) as f64;
    let mut all: Vec<KindTime> = by
        .into_iter()
        .map(|(kind, (count, ns))| KindTime {
            kind,
            count,
            total_s: ns as f64 / 1e9,
            share: ns as f64 / whole,
        })
        .collect();
    all.sort_by(|a, b| b.total_s.total_cmp(&a.total_s).then(a.kind.cmp(&b.kind)));
    all
}

/// Kind of work, number of calls, and total time in ns.
type Sum = (Option<DeviceWork>, u64, i64);

/// Returns names by time, longest first, and the number of names left out.
fn by_name(
    of: impl Iterator<Item = (u32, Option<DeviceWork>, i64)>,
    names: &[&str],
    listed: usize,
) -> (Vec<Top>, u64) {
    let mut by: HashMap<u32, Sum> = HashMap::new();
    for (name, kind, ns) in of {
        let entry = by.entry(name).or_insert((kind, 0, 0));
        (entry.1, entry.2) = (entry.1 + 1, entry.2 + ns);
    }
    let whole = by.values().map(|(.., ns)| *ns).sum::<i64>().max(1) as f64;
    let mut all: Vec<(u32, Sum)> = by.into_iter().collect();
    all.sort_by_key(|(name, (.., ns))| (std::cmp::Reverse(*ns), *name));
    let more = all.len().saturating_sub(listed) as u64;
    let top =
        all.into_iter().take(listed).filter(|(_, (.., ns))| *ns > 0).map(|(name, (kind, count, ns))| Top {
            name: names.get(name as usize).copied().unwrap_or_default().to_owned(),
            kind,
            count,
            total_s: ns as f64 / 1e9,
            mean_s: ns as f64 / 1e9 / count as f64,
            share: ns as f64 / whole,
        });
    (top.collect(), more)
}

fn top(timeline: &Timeline<'_>) -> (Vec<Top>, u64) {
    let all = timeline.work.iter().map(|work| (work.name, Some(work.kind), work.to - work.from));
    by_name(all, &timeline.names, LISTED)
}

fn host_top(timeline: &Timeline<'_>) -> Vec<Top> {
    // Steps are left out because they are listed separately, and each step has its own name.
    let steps: HashSet<&str> = timeline.steps.iter().map(|(name, ..)| *name).collect();
    let is_step =
        |host: &&Host| timeline.names.get(host.name as usize).is_some_and(|name| steps.contains(name));
    let own = timeline.host.iter().filter(|host| !is_step(host));
    by_name(own.map(|host| (host.name, None, host.own_ns.max(0))), &timeline.names, HOST_LISTED).0
}

fn launches(timeline: &Timeline<'_>, window: (i64, i64)) -> Option<Launches> {
    let launched =
        || timeline.work.iter().filter_map(|work| Some((work, &timeline.host[work.launch? as usize])));
    // The launch of a graph starts many kernels and is one call.
    let mut calls: Vec<u32> = timeline.work.iter().filter_map(|work| work.launch).collect();
    calls.sort_unstable();
    calls.dedup();
    let in_calls: i64 =
        calls.iter().map(|place| &timeline.host[*place as usize]).map(|call| call.to - call.from).sum();
    let on_device: i64 = launched().map(|(work, _)| work.to - work.from).sum();
    let mut delays: Vec<f64> = launched().map(|(work, call)| (work.from - call.from) as f64 / 1e9).collect();
    sort(&mut delays);
    let waits = |host: &&Host| host.is_call && timeline.names[host.name as usize].contains("Synchronize");
    let waited = timeline.host.iter().filter(waits).map(|host| (host.from, host.to)).collect();
    let synchronising = IntervalSet::union(waited).and(&IntervalSet::union(vec![window])).length_ns() as f64;
    Some(Launches {
        count: calls.len() as u64,
        call_mean_s: in_calls as f64 / 1e9 / calls.len().max(1) as f64,
        delay_p50_s: of_sorted(&delays, 0.5)?,
        delay_p99_s: of_sorted(&delays, 0.99)?,
        call_over_device: in_calls as f64 / on_device.max(1) as f64,
        synchronising: synchronising / (window.1 - window.0).max(1) as f64,
    })
}

/// Returns the host work in the middle of each idle interval of a device. It is the innermost function on the thread
/// that launched the next work.
fn meanwhile(timeline: &Timeline<'_>, lanes: &[Lane]) -> Vec<HostShare> {
    let mut asked: HashMap<u32, Vec<(i64, i64)>> = HashMap::new();
    for (device, lane) in lanes.iter().enumerate() {
        let own: Vec<&Work> =
            timeline.work.iter().filter(|work| usize::from(work.device) == device).collect();
        for (from, to) in lane.host.iter() {
            let after = own.partition_point(|work| work.from < to);
            // After the last piece of work, use the thread that launched it.
            let next = own.get(after).or(own.last()).and_then(|work| work.launch);
            if let Some(call) = next {
                let thread = timeline.host[call as usize].thread;
                asked.entry(thread).or_default().push((from + (to - from) / 2, to - from));
            }
        }
    }
    // Steps are skipped because they add no information to their names.
    let is_step = |host: &Host| {
        let at = timeline.steps.partition_point(|(_, from, _)| *from < host.from);
        timeline.steps.get(at).is_some_and(|(_, from, to)| (*from, *to) == (host.from, host.to))
    };
    let mut by: HashMap<Option<u32>, i64> = HashMap::new();
    for (thread, mut times) in asked {
        times.sort_unstable();
        let mut own: Vec<&Host> =
            timeline.host.iter().filter(|host| host.thread == thread && !is_step(host)).collect();
        own.sort_by_key(|host| (host.from, std::cmp::Reverse(host.to)));
        let (mut open, mut at): (Vec<&Host>, usize) = (Vec::new(), 0);
        for (time, length) in times {
            while own.get(at).is_some_and(|host| host.from <= time) {
                open.push(own[at]);
                at += 1;
            }
            open.retain(|host| host.to > time);
            *by.entry(open.last().map(|host| host.name)).or_default() += length;
        }
    }
    let whole = by.values().sum::<i64>().max(1) as f64;
    let mut all: Vec<(Option<u32>, i64)> = by.into_iter().collect();
    all.sort_by_key(|(name, ns)| (std::cmp::Reverse(*ns), *name));
    let named = |name: Option<u32>| name.map_or("", |name| timeline.names[name as usize]).to_owned();
    all.into_iter()
        .take(HOST_LISTED)
        .map(|(name, ns)| HostShare { name: named(name), share: ns as f64 / whole })
        .collect()
}

fn steps(timeline: &Timeline<'_>, lanes: &[Lane], tells: bool) -> Vec<DeviceStep> {
    let first = timeline.steps.first().map_or(0, |(_, from, _)| *from);
    let one = |(name, from, to): &(&str, i64, i64)| {
        let whole = IntervalSet::union(vec![(*from, *to)]);
        let share = |of: &dyn Fn(&Lane) -> &IntervalSet| {
            let sum: i64 = lanes.iter().map(|lane| of(lane).and(&whole).length_ns()).sum();
            sum as f64 / lanes.len().max(1) as f64 / (to - from).max(1) as f64
        };
        DeviceStep {
            name: (*name).to_owned(),
            at_s: (from - first) as f64 / 1e9,
            took_s: (to - from) as f64 / 1e9,
            busy: share(&|lane| &lane.all),
            host_idle: tells.then(|| share(&|lane| &lane.host)),
            activities: timeline.work.iter().filter(|work| (*from..*to).contains(&work.from)).count() as u64,
        }
    };
    timeline.steps.iter().map(one).collect()
}

/// Returns the bottleneck from the mean over the devices.
fn verdict(finding: &DeviceFinding) -> (Bound, String) {
    if finding.devices.is_empty() {
        let says = "no device work was recorded: only the host's part is shown; record the device too (ProfilerActivity.CUDA, or nsys --trace=cuda)";
        return (Bound::NoDevice, says.to_owned());
    }
    let mean = |of: &dyn Fn(&Device) -> f64| {
        finding.devices.iter().map(of).sum::<f64>() / finding.devices.len() as f64
    };
    let percent = plimsoll_measure::say::percent;
    let host = mean(&|device| device.host_idle.unwrap_or(0.0));
    let (collective, copies) = (mean(&|device| device.collective_alone), mean(&|device| device.copy_alone));
    let (busy, computing) = (mean(&|device| device.busy), mean(&|device| device.computing));
    let told = finding.devices.iter().all(|device| device.host_idle.is_some());
    let most =
        finding.kinds.iter().find(|kind| !matches!(kind.kind, DeviceWork::Copy | DeviceWork::Collective));
    match () {
        () if host >= MUCH && host >= collective.max(copies) => {
            let did = finding.host_meanwhile.first().filter(|did| !did.name.is_empty() && did.share >= 0.2);
            let did = did.map_or_else(String::new, |did| {
                format!("; meanwhile the host was in {} ({} of it)", did.name, percent(did.share))
            });
            (
                Bound::Host,
                format!(
                    "host-bound: for {} of the time the device idled until the host had launched something{did}",
                    percent(host)
                ),
            )
        }
        () if collective >= MUCH && collective >= copies => (
            Bound::Communication,
            format!(
                "communication: for {} of the time nothing but an exchange between devices ran",
                percent(collective)
            ),
        ),
        () if copies >= MUCH => {
            (Bound::Copies, format!("copies: for {} of the time nothing but a copy ran", percent(copies)))
        }
        () if computing >= BUSY => {
            let kind = most.map_or_else(String::new, |kind| {
                let word = match kind.kind {
                    DeviceWork::Other => "in kernels of an unknown kind",
                    known => known.word(),
                };
                format!(", most of it {word} ({} of device time)", percent(kind.share))
            });
            (
                Bound::Device,
                format!("device-bound: a kernel computed for {} of the time{kind}", percent(computing)),
            )
        }
        () if !told && 1.0 - busy >= MUCH => (
            Bound::Idle,
            format!(
                "the device idled for {} of the time; whether the host made it wait is unknown without its launches",
                percent(1.0 - busy)
            ),
        ),
        () => (
            Bound::Mixed,
            format!(
                "mixed: kernels {}, host {}, exchange only {}, copies only {} of the time",
                percent(computing),
                percent(host),
                percent(collective),
                percent(copies)
            ),
        ),
    }
}

fn notes(timeline: &Timeline<'_>, finding: &DeviceFinding, tells: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let orphans = timeline.work.iter().filter(|work| work.launch.is_none()).count();
    if !timeline.work.is_empty() && !tells {
        notes.push(format!(
            "the launches of {orphans} of {} pieces of device work are not in the trace: idle time is not split into the host's and the device's",
            timeline.work.len()
        ));
    }
    let is_graph = |work: &&Work| timeline.names[work.name as usize].starts_with(WHOLE_GRAPH);
    let graphs = timeline.work.iter().filter(is_graph).count();
    if graphs > 0 {
        notes.push(format!(
            "{graphs} launches of CUDA graphs are one piece of work each: record their kernels with nsys --cuda-graph-trace=node"
        ));
    }
    if finding.bound == Bound::Host {
        notes.push(
            "a profiler slows the host and not the device: without it the host's share is smaller".into(),
        );
    }
    if finding.launches.is_some_and(|launches| launches.call_over_device > 0.5) {
        notes.push("launching a kernel takes more than half as long as the kernel: try larger batches, fused kernels or CUDA graphs".into());
    }
    if finding.steps.is_empty() && !timeline.work.is_empty() {
        notes.push("no steps are marked (ProfilerStep#, an NVTX range around each): the window is from the first launch to the last device work".into());
    }
    notes
}
