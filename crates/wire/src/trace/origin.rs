//! Where spans were made, and the last touches that every format's spans get.

use plimsoll_model::{AttributeValue, SpanEvent, TraceSpan};

use super::Notes;
use super::id::{NAME_MAX, short};

/// Attributes of a resource that say *where* a span was made and are therefore kept with it. The rest of a resource (the
/// SDK's name and version, the command line, the operating system) is the same in all its spans and answers no question that
/// is asked of one.
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

/// Attributes kept from one resource at most: each once, and the scope's name.
const KEPT_MAX: usize = 16;

/// What the spans of one resource share.
#[derive(Clone, Default, Debug)]
pub(crate) struct Origin {
    /// `service.name`.
    pub service: Option<String>,
    /// What else is kept of it.
    pub attributes: Vec<(String, AttributeValue)>,
}

impl Origin {
    /// Looks at one attribute of the resource. Long texts are cut or passed over: they would be copied into every span.
    pub(crate) fn learn(&mut self, key: &str, value: AttributeValue) {
        if key == "service.name" {
            self.service = value.text().filter(|name| !name.is_empty()).map(|name| short(name).to_owned());
        } else if KEPT.contains(&key) {
            self.keep(key, value);
        }
    }

    /// Keeps an attribute whatever its key.
    pub(crate) fn keep(&mut self, key: &str, value: AttributeValue) {
        let is_short = value.text().is_none_or(|text| text.len() <= NAME_MAX);
        if is_short && self.attributes.len() < KEPT_MAX {
            self.attributes.push((key.to_owned(), value));
        }
    }
}

/// Puts what was read in order: attributes by key and each once (its own before its resource's, the last of its own), events by time, an end that
/// is not before the start. What had to be changed is counted.
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
    // A stable sort of the list turned round leaves the last of equal keys first.
    own.reverse();
    own.extend(origin.attributes.iter().cloned());
    own.sort_by(|a, b| a.0.cmp(&b.0));
    own.dedup_by(|later, kept| later.0 == kept.0);
    span.events.sort_by_key(|event: &SpanEvent| event.at_ns);
    span
}

/// Epoch nanoseconds from the unsigned number that formats hold.
pub(crate) fn time_ns(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
