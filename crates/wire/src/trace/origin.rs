//! The origin of spans, and the final normalisation of spans of every format.

use plimsoll_model::{AttributeValue, SpanEvent, TraceSpan};

use super::Notes;
use super::id::{NAME_MAX, short};

/// Attributes of a resource that identify the *origin* of a span and are therefore kept with it.
///
/// The rest of a resource is equal in all its spans and does not help to analyse one. Examples are the SDK's name
/// and version, the command line and the operating system.
const KEPT: &[&str] = &[
    "container.id",
    "host.id",
    "host.name",
    "k8s.node.name",
    "k8s.pod.name",
    "process.pid",
    "service.instance.id",
    "service.namespace",
    "service.version",
    "vllm.instrumenting_module_name",
];

/// Limit of attributes kept from one resource: each once, and the scope's name.
const KEPT_MAX: usize = 16;

/// The shared facts of the spans of one resource.
#[derive(Clone, Default, Debug)]
pub(crate) struct Origin {
    /// Value of `service.name`; `None` if it is missing.
    pub service: Option<String>,
    /// Other kept attributes of the resource.
    pub attributes: Vec<(String, AttributeValue)>,
}

impl Origin {
    /// Adds one attribute of the resource. Long texts are cut or skipped, because they would be copied into every span.
    pub(crate) fn learn(&mut self, key: &str, value: AttributeValue) {
        if key == "service.name" {
            self.service = value.text().filter(|name| !name.is_empty()).map(|name| short(name).to_owned());
        } else if KEPT.contains(&key) {
            self.keep(key, value);
        }
    }

    /// Keeps an attribute with any key.
    pub(crate) fn keep(&mut self, key: &str, value: AttributeValue) {
        let is_short = value.text().is_none_or(|text| text.len() <= NAME_MAX);
        if is_short && self.attributes.len() < KEPT_MAX {
            self.attributes.push((key.to_owned(), value));
        }
    }
}

/// Normalises a span and counts the changes.
///
/// Attributes are sorted by key and occur once: the span's own before its resource's, and the last of equal ones. Events are sorted by time,
/// and the end is not before the start.
pub(crate) fn settle(mut span: TraceSpan, origin: &Origin, notes: &mut Notes) -> TraceSpan {
    if span.end_ns < span.start_ns {
        if span.end_ns == 0 {
            notes.unended += 1;
        } else {
            notes.backwards += 1;
        }
        span.end_ns = span.start_ns;
    }
    if span.service.is_none() {
        span.service.clone_from(&origin.service);
    }
    let own = &mut span.attributes;
    // A stable sort of the reversed list leaves the last of equal keys first.
    own.reverse();
    own.extend(origin.attributes.iter().cloned());
    own.sort_by(|a, b| a.0.cmp(&b.0));
    own.dedup_by(|later, kept| later.0 == kept.0);
    span.events.sort_by_key(|event: &SpanEvent| event.at_ns);
    span
}

/// Converts unsigned epoch nanoseconds, as formats have them.
pub(crate) fn time_ns(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
