//! Reads a profiler's spans: device work with its launches, host work with its callers, and steps.
//!
//! The reader does not assume a layout, because categories differ between profilers and versions (`kernel`,
//! `Kernel`). A trace may lack launches, steps or the device. Device annotations (`gpu_user_annotation`) cover
//! kernels and are not work.

use std::collections::HashMap;

use plimsoll_model::{AttributeValue, TraceSpan};

use super::kind::DeviceWork;

/// An activity on a device.
pub(super) struct Work {
    pub from: i64,
    pub to: i64,
    pub name: u32,
    pub kind: DeviceWork,
    pub device: u16,
    pub stream: i64,
    /// Index of the host span that launched the work; `None` if unknown.
    pub launch: Option<u32>,
}

/// An activity on the host.
pub(super) struct Host {
    pub from: i64,
    pub to: i64,
    pub name: u32,
    pub thread: u32,
    /// Self time (without callees) in ns.
    pub own_ns: i64,
    /// Set for calls of the device runtime.
    pub is_call: bool,
    /// Index of the caller; `None` at the top.
    pub parent: Option<u32>,
    /// Set for ranges of a user, modules and operators.
    pub is_range: bool,
}

/// Returns whether a host activity names a part of the program: a range of a user, a module or an operator.
fn is_range(span: &TraceSpan) -> bool {
    match category(span) {
        "nvtx" | "user_annotation" | "cpu_op" | "Operator" => true,
        "python_function" => span.name.starts_with("nn.Module: "),
        _ => false,
    }
}

#[derive(Default)]
pub(super) struct Timeline<'a> {
    pub names: Vec<&'a str>,
    pub devices: Vec<String>,
    pub work: Vec<Work>,
    pub host: Vec<Host>,
    /// Steps: span name, start and end in ns.
    pub steps: Vec<(&'a str, i64, i64)>,
}

/// The kind of a span.
enum Sort {
    Work(bool),
    Call,
    Host,
    Neither,
}

fn category(span: &TraceSpan) -> &str {
    span.attribute("category").and_then(AttributeValue::text).unwrap_or_default()
}

fn sort(category: &str) -> Sort {
    match category {
        "kernel" | "Kernel" => Sort::Work(true),
        "gpu_memcpy" | "gpu_memset" | "Memcpy" | "Memset" => Sort::Work(false),
        "cuda_runtime" | "cuda_driver" | "hip_runtime" | "Runtime" => Sort::Call,
        "cpu_op" | "user_annotation" | "python_function" | "Operator" | "nvtx" | "os_runtime"
        | "xpu_runtime" => Sort::Host,
        _ => Sort::Neither,
    }
}

/// Returns whether the spans are a profiler's timeline and not a trace of requests.
pub fn is_timeline(spans: &[TraceSpan]) -> bool {
    spans
        .iter()
        .any(|span| matches!(sort(category(span)), Sort::Work(_) | Sort::Call) || category(span) == "cpu_op")
}

/// Returns the part of a timeline in a time range; `None` if no device work is in it.
pub fn within(spans: &[TraceSpan], (from_ns, to_ns): (i64, i64)) -> Option<Vec<TraceSpan>> {
    let is_in = |span: &&TraceSpan| span.start_ns < to_ns && span.end_ns > from_ns;
    let clip = |span: &TraceSpan| TraceSpan {
        start_ns: span.start_ns.max(from_ns),
        end_ns: span.end_ns.min(to_ns),
        ..span.clone()
    };
    let part: Vec<TraceSpan> = spans.iter().filter(is_in).map(clip).collect();
    part.iter().any(|span| matches!(sort(category(span)), Sort::Work(_))).then_some(part)
}

/// Returns the name of the device.
fn device(span: &TraceSpan) -> String {
    let name = match span.attribute("device") {
        Some(AttributeValue::Int(n)) => n.to_string(),
        Some(AttributeValue::Text(text)) => text.clone(),
        _ => return span.service.clone().unwrap_or_else(|| "a device".into()),
    };
    format!("GPU {name}")
}

/// Names in order of first occurrence.
#[derive(Default)]
struct Names<'a> {
    places: HashMap<&'a str, u32>,
    list: Vec<&'a str>,
}

impl<'a> Names<'a> {
    fn place(&mut self, name: &'a str) -> u32 {
        let next = self.list.len() as u32;
        *self.places.entry(name).or_insert_with(|| {
            self.list.push(name);
            next
        })
    }
}

pub(super) fn timeline(spans: &[TraceSpan]) -> Timeline<'_> {
    let mut all = Timeline::default();
    let mut names = Names::default();
    let mut threads: HashMap<(&str, String), u32> = HashMap::new();
    let mut places: HashMap<(u128, u64), u32> = HashMap::new();
    let mut own_of: Vec<(usize, i64)> = Vec::new();
    for span in spans {
        let is_call = match sort(category(span)) {
            Sort::Call => true,
            Sort::Host => false,
            Sort::Work(_) | Sort::Neither => continue,
        };
        let thread = (span.service.as_deref().unwrap_or_default(), shown(span.attribute("thread.id")));
        let next = threads.len() as u32;
        let thread = *threads.entry(thread).or_insert(next);
        places.insert((span.trace, span.id), all.host.len() as u32);
        let name = names.place(&span.name);
        let (from, to) = (span.start_ns, span.end_ns);
        let (own_ns, is_range) = (to - from, is_range(span));
        all.host.push(Host { from, to, name, thread, own_ns, is_call, parent: None, is_range });
    }
    for span in spans {
        let parent = || span.parent.and_then(|parent| places.get(&(span.trace, parent)).copied());
        match sort(category(span)) {
            Sort::Work(computes) => {
                let device = device(span);
                let device = all.devices.iter().position(|known| *known == device).unwrap_or_else(|| {
                    all.devices.push(device);
                    all.devices.len() - 1
                });
                let launch = parent().filter(|place| all.host[*place as usize].is_call);
                all.work.push(Work {
                    from: span.start_ns,
                    to: span.end_ns,
                    name: names.place(&span.name),
                    kind: if computes { DeviceWork::of_kernel(&span.name) } else { DeviceWork::Copy },
                    device: device.min(usize::from(u16::MAX)) as u16,
                    stream: shown(span.attribute("stream")).parse().unwrap_or(0),
                    launch,
                });
            }
            Sort::Call | Sort::Host => {
                if let (Some(parent), Some(own)) = (parent(), places.get(&(span.trace, span.id))) {
                    all.host[*own as usize].parent = Some(parent);
                    own_of.push((parent as usize, span.took_ns()));
                }
            }
            Sort::Neither => {}
        }
    }
    for (parent, ns) in own_of {
        all.host[parent].own_ns -= ns;
    }
    all.names = names.list;
    all.work.sort_by_key(|work| (work.from, work.to));
    all.steps = steps(spans);
    all
}

fn shown(value: Option<&AttributeValue>) -> String {
    match value {
        Some(AttributeValue::Int(n)) => n.to_string(),
        Some(AttributeValue::Text(text)) => text.clone(),
        _ => String::new(),
    }
}

/// Returns the steps: top-level annotations whose names differ only in numbers, at least two of them. Of several such
/// names, the one with the longest total time is used.
fn steps(spans: &[TraceSpan]) -> Vec<(&str, i64, i64)> {
    let outer =
        |span: &&TraceSpan| span.parent.is_none() && matches!(category(span), "user_annotation" | "nvtx");
    let mut groups: HashMap<String, Vec<&TraceSpan>> = HashMap::new();
    for span in spans.iter().filter(outer) {
        let name: String = span.name.chars().filter(|c| !c.is_ascii_digit()).collect();
        groups.entry(name).or_default().push(span);
    }
    let covers = |of: &[&TraceSpan]| of.iter().map(|span| span.took_ns()).sum::<i64>();
    let mut repeated: Vec<(String, Vec<&TraceSpan>)> =
        groups.into_iter().filter(|(_, of)| of.len() >= 2).collect();
    repeated.sort_by(|a, b| covers(&b.1).cmp(&covers(&a.1)).then_with(|| a.0.cmp(&b.0)));
    let Some((_, mut of)) = repeated.into_iter().next() else { return Vec::new() };
    of.sort_by_key(|span| span.start_ns);
    // Steps are sequential; overlapping annotations (of two threads or processes) are no steps.
    let apart = of.windows(2).all(|pair| pair[0].end_ns <= pair[1].start_ns);
    match apart {
        true => of.iter().map(|span| (span.name.as_str(), span.start_ns, span.end_ns)).collect(),
        false => Vec::new(),
    }
}
