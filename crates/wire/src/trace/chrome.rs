//! Parses the Trace Event Format: the JSON of Chrome's tracing, of Perfetto's importers and of PyTorch's profiler (Kineto).
//!
//! It accepts complete events (`X`), pairs (`B`/`E`), nestable asynchronous pairs (`b`/`e`), and names of processes and threads
//! (`M`). Counters, instants and flows are not spans and are counted. Times are microseconds, parsed as decimals, because a double
//! represents an epoch time only to a quarter of a microsecond. Kineto's `baseTimeNanoseconds` is added if present.
//! Source: "Trace Event Format", Google, <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use plimsoll_model::{AttributeValue, TraceSpan};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Notes;
use super::attributes::{Attributes, Scalar, Text};
use super::id::{short, trace_text};
use super::origin::Origin;
use super::timeline::{self, TrackSlice};

#[derive(Default)]
pub(crate) struct Event<'a> {
    phase: Option<u8>,
    ts_ns: Option<i64>,
    dur_ns: i64,
    pid: Cow<'a, str>,
    tid: Cow<'a, str>,
    category: Cow<'a, str>,
    id: Cow<'a, str>,
    args: Option<&'a RawValue>,
}

impl<'a> Event<'a> {
    /// Reads the value of `key` if it is an event's; returns false otherwise.
    pub(crate) fn field<A: MapAccess<'a>>(&mut self, key: &str, map: &mut A) -> Result<bool, A::Error> {
        match key {
            "ph" => self.phase = map.next_value::<Scalar<'_>>()?.text().and_then(|ph| ph.bytes().next()),
            "ts" => self.ts_ns = micros(map.next_value::<&RawValue>()?.get()),
            "dur" => self.dur_ns = micros(map.next_value::<&RawValue>()?.get()).unwrap_or(0),
            "pid" => self.pid = bare(map.next_value::<&'a RawValue>()?.get()),
            "tid" => self.tid = bare(map.next_value::<&'a RawValue>()?.get()),
            "id" | "id2" => self.id = bare(map.next_value::<&'a RawValue>()?.get()),
            "cat" => self.category = bare(map.next_value::<&'a RawValue>()?.get()),
            "args" => self.args = Some(map.next_value()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns whether this is an event: only events have a phase.
    pub(crate) fn is_event(&self) -> bool {
        self.phase.is_some()
    }

    fn attributes(&self) -> Vec<(String, AttributeValue)> {
        let read = |args: &RawValue| serde_json::from_str::<Attributes>(args.get()).ok();
        let mut all = self.args.and_then(read).unwrap_or_default().0;
        if !self.category.is_empty() {
            all.push(("category".into(), AttributeValue::Text(self.category.clone().into_owned())));
        }
        all
    }
}

/// Returns a number, or a text without its quotes. Escapes in a text remain, because it serves as a key.
fn bare(raw: &str) -> Cow<'_, str> {
    Cow::Borrowed(raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"')).unwrap_or(raw))
}

/// Parses microseconds as a decimal number, to nanoseconds; a number with an exponent is parsed as a double.
fn micros(raw: &str) -> Option<i64> {
    let text = raw.trim_matches('"');
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    if !rest.bytes().all(|b| b.is_ascii_digit()) || whole.contains(['e', 'E']) {
        return text.parse::<f64>().ok().filter(|n| n.is_finite()).map(|us| (us * 1e3) as i64);
    }
    let digit = |at: usize| rest.as_bytes().get(at).map_or(0, |b| i64::from(b - b'0'));
    let nanos = digit(0) * 100 + digit(1) * 10 + digit(2);
    let is_negative = whole.starts_with('-');
    let whole: i64 = whole.parse().ok()?;
    whole.checked_mul(1_000)?.checked_add(if is_negative { -nanos } else { nanos })
}

#[derive(Default)]
pub(crate) struct Chrome<'a> {
    pub events: u64,
    /// Offset added to every time, ns.
    pub base_ns: i64,
    slices: Vec<TrackSlice>,
    unused: u64,
    /// Number of the track of (process, thread or asynchronous id).
    tracks: HashMap<(Cow<'a, str>, Cow<'a, str>), u32>,
    /// Unfinished slices per track, by index.
    open: HashMap<u32, Vec<usize>>,
    processes: HashMap<Cow<'a, str>, ProcessName>,
    threads: HashMap<(Cow<'a, str>, Cow<'a, str>), String>,
}

#[derive(Default)]
struct ProcessName {
    name: Option<String>,
    label: Option<String>,
}

impl<'a> Chrome<'a> {
    pub(crate) fn push(&mut self, event: Event<'a>, name: String) {
        self.events += 1;
        match event.phase {
            Some(b'X') => self.complete(event, name),
            Some(b'B' | b'b') => self.begin(event, name),
            Some(b'E' | b'e') => self.end(&event),
            Some(b'M') => self.named(event, &name),
            _ => self.unused += 1,
        }
    }

    fn complete(&mut self, event: Event<'a>, name: String) {
        let Some(start_ns) = event.ts_ns else {
            self.unused += 1;
            return;
        };
        let track = self.track(&event);
        self.slices.push(slice(track, &event, name, start_ns, start_ns.saturating_add(event.dur_ns)));
    }

    fn begin(&mut self, event: Event<'a>, name: String) {
        let Some(start_ns) = event.ts_ns else {
            self.unused += 1;
            return;
        };
        let track = self.track(&event);
        self.open.entry(track).or_default().push(self.slices.len());
        // An end before every start marks it as open.
        self.slices.push(slice(track, &event, name, start_ns, i64::MIN));
    }

    fn end(&mut self, event: &Event<'a>) {
        let track = self.track(event);
        let begun = self.open.get_mut(&track).and_then(Vec::pop);
        match (begun, event.ts_ns) {
            (Some(begun), Some(end_ns)) => {
                let slice = &mut self.slices[begun];
                slice.end_ns = end_ns;
                // Arguments may come with the end.
                slice.attributes.extend(event.attributes());
            }
            _ => self.unused += 1,
        }
    }

    /// Records the name of a process or a thread.
    fn named(&mut self, event: Event<'a>, what: &str) {
        let said = |key: &str| {
            let args = event.attributes();
            let found = args.iter().find(|(name, _)| name == key);
            found.and_then(|(_, value)| value.text()).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        match what {
            "process_name" => self.processes.entry(event.pid.clone()).or_default().name = said("name"),
            "process_labels" => self.processes.entry(event.pid.clone()).or_default().label = said("labels"),
            "thread_name" => {
                if let Some(name) = said("name") {
                    self.threads.insert((event.pid.clone(), event.tid.clone()), name);
                }
            }
            _ => {}
        }
    }

    fn track(&mut self, event: &Event<'a>) -> u32 {
        let is_async = matches!(event.phase, Some(b'b' | b'e'));
        let lane = if is_async {
            Cow::Owned(format!("{}\u{0}{}", event.category, event.id))
        } else {
            event.tid.clone()
        };
        let next = self.tracks.len() as u32;
        *self.tracks.entry((event.pid.clone(), lane)).or_insert(next)
    }

    /// Returns the origin of each track.
    fn origins(&self) -> Vec<Origin> {
        let mut origins = vec![Origin::default(); self.tracks.len()];
        for (key, track) in &self.tracks {
            let (pid, tid) = key;
            let origin = &mut origins[*track as usize];
            let process = self.processes.get(pid);
            let name = process.and_then(|process| process.name.clone());
            let mut service = name.unwrap_or_else(|| format!("pid {pid}"));
            if let Some(label) = process.and_then(|process| process.label.as_deref()) {
                service = format!("{service} ({label})");
            }
            origin.service = Some(short(&service).to_owned());
            let mut keep = |key: &str, text: &str| {
                origin.keep(key, AttributeValue::Text(text.to_owned()));
            };
            if !pid.is_empty() {
                keep("process.pid", pid);
            }
            if !tid.contains('\0') {
                keep("thread.id", tid);
            }
            if let Some(name) = self.threads.get(key) {
                keep("thread.name", name);
            }
        }
        origins
    }
}

fn slice(track: u32, event: &Event<'_>, name: String, start_ns: i64, end_ns: i64) -> TrackSlice {
    let attributes = event.attributes();
    let find = |key: &str| attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let correlation = match find("correlation") {
        Some(AttributeValue::Int(n)) if *n > 0 => u64::try_from(*n).ok(),
        _ => None,
    };
    let is_launch = matches!(&*event.category, "cuda_runtime" | "cuda_driver" | "Runtime" | "hip_runtime");
    let is_device =
        matches!(&*event.category, "kernel" | "Kernel" | "gpu_memcpy" | "gpu_memset" | "Memcpy" | "Memset");
    let said = find("trace_id").or_else(|| find("trace.id")).and_then(AttributeValue::text);
    let of_async = || {
        let is_async = event.phase == Some(b'b');
        let (category, id) = (event.category.as_bytes(), event.id.as_bytes());
        let half = |salt: u8| u128::from(super::fnv(&[&[salt], category, b"\0", id]));
        is_async.then(|| half(1) << 64 | half(2) | 1)
    };
    TrackSlice {
        track,
        start_ns,
        end_ns,
        name,
        is_annotation: event.category == "user_annotation",
        launches: correlation.filter(|_| is_launch),
        launched_by: correlation.filter(|_| is_device),
        trace: said.and_then(trace_text).or_else(of_async),
        attributes,
    }
}

pub(crate) fn spans(mut chrome: Chrome<'_>, seed: u64, notes: &mut Notes) -> Vec<TraceSpan> {
    notes.unused += chrome.unused;
    let origins = chrome.origins();
    for slice in &mut chrome.slices {
        slice.start_ns = slice.start_ns.saturating_add(chrome.base_ns);
        if slice.end_ns == i64::MIN {
            notes.unended += 1;
            slice.end_ns = slice.start_ns;
        } else {
            slice.end_ns = slice.end_ns.saturating_add(chrome.base_ns);
        }
    }
    timeline::spans(chrome.slices, &origins, seed, notes)
}

/// Deserializes the list under `traceEvents`.
pub(crate) struct Events<'c, 'a>(pub(crate) &'c mut Chrome<'a>);

impl<'de> DeserializeSeed<'de> for Events<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(OneEvent(self.0))?.is_some() {}
        Ok(())
    }
}

struct OneEvent<'c, 'a>(&'c mut Chrome<'a>);

impl<'de> DeserializeSeed<'de> for OneEvent<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneEvent<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut event, mut name) = (Event::default(), String::new());
        while let Some(Text(key)) = map.next_key()? {
            if key == "name" {
                name = map.next_value::<Scalar<'_>>()?.text().unwrap_or_default().to_owned();
            } else if !event.field(&key, &mut map)? {
                map.next_value::<IgnoredAny>()?;
            }
        }
        self.0.push(event, name);
        Ok(())
    }
}
