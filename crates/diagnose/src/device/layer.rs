//! Device time by layer: the work that was launched inside each named range of the host.
//!
//! Ranges whose names differ only in numbers are one layer (`model.layers.#.mlp`), because a model has dozens of equal
//! ones; the longest of them is named. Time is inclusive: a range contains the work of the ranges inside it. A share per
//! innermost range was rejected, because a module that only calls others would have none.

use std::collections::HashMap;

use super::DeviceWork;
use super::finding::LayerTime;
use super::read::Timeline;

/// Maximum number of listed layers.
const LISTED: usize = 16;

/// Maximum depth of callers, because the parents in a foreign trace may form a circle.
const DEEPEST: usize = 1_000;

#[derive(Default)]
struct Sum {
    count: u64,
    ns: i64,
    kinds: HashMap<DeviceWork, i64>,
    names: HashMap<u32, i64>,
}

/// Returns the layers by device time, longest first.
pub(super) fn layers(timeline: &Timeline<'_>) -> Vec<LayerTime> {
    // The names of steps differ only in numbers.
    let step = timeline.steps.first().map(|(name, ..)| without_numbers(name));
    let groups: Vec<String> = timeline.names.iter().map(|name| without_numbers(name)).collect();
    let mut sums: HashMap<&str, Sum> = HashMap::new();
    for work in &timeline.work {
        let ns = work.to - work.from;
        let caller = |place: &u32| timeline.host.get(*place as usize)?.parent;
        let mut seen: Vec<&str> = Vec::new();
        for place in std::iter::successors(work.launch, caller).take(DEEPEST) {
            let host = &timeline.host[place as usize];
            let group = groups[host.name as usize].as_str();
            // A range inside its like counts once.
            if !host.is_range || seen.contains(&group) || step.as_deref() == Some(group) {
                continue;
            }
            seen.push(group);
            let sum = sums.entry(group).or_default();
            (sum.count, sum.ns) = (sum.count + 1, sum.ns + ns);
            *sum.kinds.entry(work.kind).or_default() += ns;
            *sum.names.entry(host.name).or_default() += ns;
        }
    }
    let whole = timeline.work.iter().map(|work| work.to - work.from).sum::<i64>().max(1) as f64;
    let mut all: Vec<LayerTime> = sums
        .into_iter()
        .filter_map(|(layer, sum)| {
            let (kind, kind_ns) =
                sum.kinds.iter().max_by_key(|(kind, ns)| (**ns, std::cmp::Reverse(**kind)))?;
            let longest = sum.names.iter().max_by_key(|(name, ns)| (**ns, std::cmp::Reverse(**name)))?;
            Some(LayerTime {
                layer: layer.to_owned(),
                ranges: sum.names.len() as u64,
                activities: sum.count,
                total_s: sum.ns as f64 / 1e9,
                share: sum.ns as f64 / whole,
                kind: *kind,
                kind_share: *kind_ns as f64 / sum.ns.max(1) as f64,
                longest: timeline.names[*longest.0 as usize].to_owned(),
                longest_s: *longest.1 as f64 / 1e9,
            })
        })
        .collect();
    all.sort_by(|a, b| b.total_s.total_cmp(&a.total_s).then_with(|| a.layer.cmp(&b.layer)));
    all.truncate(LISTED);
    all
}

/// Returns a name with `#` for each number.
fn without_numbers(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    for c in name.chars() {
        match c.is_ascii_digit() {
            true if plain.ends_with('#') => {}
            true => plain.push('#'),
            false => plain.push(c),
        }
    }
    plain
}
