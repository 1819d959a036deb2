//! Parses a JSON document with traces from any tool in one pass, in which the keys decide the format.
//!
//! `resourceSpans` is OTLP, `traceEvents` a Chrome trace, `processes` next to `spans` Jaeger.
//! Lists of documents and nested documents are walked. Detecting the format before parsing was rejected: the deciding key
//! may follow gigabytes of others, and files would be read twice.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use plimsoll_model::{AttributeValue, TraceSpan};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;

use super::attributes::{Many, Scalar, Text};
use super::chrome::{self, Chrome};
use super::loose::{PartialSpan, Process, Resource};
use super::origin::{Origin, settle};
use super::scan::Scan;
use super::{Notes, TraceError, TraceFormat};

/// Limit of unknown keys that an error lists.
const KEYS_SHOWN: usize = 8;

/// The content of a document so far.
pub(crate) struct TraceDocument<'a> {
    each: SpanVisitor<'a>,
    notes: Notes,
    format: Option<TraceFormat>,
    chrome: Chrome<'a>,
    unknown: Vec<String>,
    documents: u64,
    /// Whether there are spans of a tracer with an unsupported format.
    has_other_spans: bool,
    /// Whether a document contained others, or none, under a key that OTLP lacks.
    has_inner: bool,
    /// Whether the outermost value is a list.
    is_list: bool,
}

/// A callback that receives spans one at a time.
pub(crate) type SpanVisitor<'a> = &'a mut (dyn FnMut(TraceSpan) + 'a);

/// The facts of one or several documents, without spans.
pub(crate) struct DocumentNotes {
    /// Format; `None` if it is unknown.
    pub format: Option<TraceFormat>,
    /// Counts of changed or omitted parts.
    pub notes: Notes,
    pub words: String,
}

/// Parses JSON: one document, several in sequence (JSON lines), or a list of them. Passes on each span.
pub(crate) fn read<'a>(bytes: &'a [u8], each: SpanVisitor<'a>) -> Result<DocumentNotes, TraceError> {
    let mut found = TraceDocument::new(each);
    found.walk(bytes)?;
    Ok(found.told(bytes))
}

/// Parses one complete document. `None` if it has events of a Chrome trace, which need the documents after it; then no span
/// was passed on.
pub(crate) fn read_one<'a>(
    bytes: &'a [u8],
    each: SpanVisitor<'a>,
) -> Result<Option<DocumentNotes>, TraceError> {
    let mut found = TraceDocument::new(each);
    found.one(bytes).map_err(|error| wrong(&error))?;
    Ok((found.chrome.events == 0).then(|| found.told(bytes)))
}

/// Parses JSON as an export request: an empty object is one without spans (protobuf's JSON leaves out empty lists).
pub(crate) fn read_otlp<'a>(bytes: &'a [u8], each: SpanVisitor<'a>) -> Result<DocumentNotes, TraceError> {
    let mut found = TraceDocument::new(each);
    found.walk(bytes)?;
    if found.documents > 0 && found.unknown.is_empty() && !found.has_other_spans && !found.has_inner {
        found.is(TraceFormat::OtlpJson);
    }
    Ok(found.told(bytes))
}

/// Returns the error with its position relative to the beginning of `before`.
pub(crate) fn later(error: TraceError, before: &[u8]) -> TraceError {
    match error {
        TraceError::Json { line, column, what } => {
            let lines = before.iter().filter(|b| **b == b'\n').count();
            let begun = before.iter().rev().take_while(|b| **b != b'\n').count();
            TraceError::Json {
                line: line + lines,
                column: if line == 1 { column + begun } else { column },
                what,
            }
        }
        other => other,
    }
}

fn wrong(error: &serde_json::Error) -> TraceError {
    TraceError::Json { line: error.line(), column: error.column(), what: super::plain(error) }
}

impl<'a> TraceDocument<'a> {
    fn new(each: SpanVisitor<'a>) -> TraceDocument<'a> {
        TraceDocument {
            each,
            notes: Notes::default(),
            format: None,
            chrome: Chrome::default(),
            unknown: Vec::new(),
            documents: 0,
            has_other_spans: false,
            has_inner: false,
            is_list: false,
        }
    }

    /// Parses all documents of these bytes. Brackets delimit each, and it is parsed separately, because serde's reader would
    /// count its position from the beginning after every document.
    fn walk(&mut self, bytes: &'a [u8]) -> Result<(), TraceError> {
        let mut from = 0;
        while let Some(begun) = bytes[from..].iter().position(|b| !b.is_ascii_whitespace()) {
            from += begun;
            let end = Scan::default().end(&bytes[from..]).map_or(bytes.len(), |end| from + end);
            if let Err(error) = self.one(&bytes[from..end]) {
                if error.classify() == Category::Eof && end == bytes.len() && self.is_chrome_list() {
                    // "The closing ] is optional" (Trace Event Format): a killed tracer leaves the list open.
                    self.notes.cut_off = true;
                    break;
                }
                return Err(later(wrong(&error), &bytes[..from]));
            }
            from = end;
        }
        Ok(())
    }

    fn one(&mut self, bytes: &'a [u8]) -> Result<(), serde_json::Error> {
        let mut stream = serde_json::Deserializer::from_slice(bytes);
        (Document { found: self, depth: 0 }).deserialize(&mut stream)?;
        stream.end()
    }

    fn told(mut self, bytes: &'a [u8]) -> DocumentNotes {
        let chrome = std::mem::take(&mut self.chrome);
        if chrome.events > 0 {
            let seed = super::digest(bytes);
            chrome::spans(chrome, seed, &mut self.notes).into_iter().for_each(&mut self.each);
        }
        DocumentNotes { format: self.format, notes: self.notes, words: self.unknown_words() }
    }

    fn unknown_words(&self) -> String {
        if self.has_other_spans {
            return "spans in a tracer's own JSON (MLflow, Phoenix, console): send them as OTLP to `plimsoll collect`".into();
        }
        if self.documents == 0 {
            return "JSON without an object in it".into();
        }
        match self.unknown.as_slice() {
            [] => "an empty JSON object".into(),
            keys => format!("a JSON object with the keys {}", keys.join(", ")),
        }
    }

    /// Returns whether the bytes are an unclosed list of Chrome events.
    fn is_chrome_list(&self) -> bool {
        self.is_list && self.format == Some(TraceFormat::Chrome)
    }

    fn is(&mut self, format: TraceFormat) {
        self.format.get_or_insert(format);
    }

    fn push(&mut self, span: PartialSpan<'_>, origin: &Origin) {
        let own = span.origin.clone();
        match span.into_span() {
            Some(span) => {
                (self.each)(settle(span, own.as_ref().unwrap_or(origin), &mut self.notes));
            }
            None => self.notes.refused += 1,
        }
    }
}

/// Deserializes one JSON value that may contain traces.
struct Document<'f, 'a> {
    found: &'f mut TraceDocument<'a>,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Document<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

/// The fields of an object besides its spans.
#[derive(Default)]
struct Frame<'a> {
    /// Spans that wait for their processes.
    spans: Vec<PartialSpan<'a>>,
    processes: HashMap<Cow<'a, str>, Origin>,
    loose: PartialSpan<'a>,
    event: chrome::Event<'a>,
}

impl<'de> Visitor<'de> for Document<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or a list of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.found.is_list |= self.depth == 0;
        while seq.next_element_seed(Document { found: self.found, depth: self.depth + 1 })?.is_some() {}
        self.found.is_list &= self.depth > 0;
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let found = self.found;
        found.documents += 1;
        let mut frame = Frame::default();
        while let Some(Text(key)) = map.next_key()? {
            frame.entry(&key, &mut map, found, self.depth)?;
        }
        frame.close(found);
        Ok(())
    }
}

impl<'a> Frame<'a> {
    fn entry<A: MapAccess<'a>>(
        &mut self,
        key: &str,
        map: &mut A,
        found: &mut TraceDocument<'a>,
        depth: usize,
    ) -> Result<(), A::Error> {
        match key {
            "resourceSpans" | "resource_spans" | "batches" => {
                found.is(TraceFormat::OtlpJson);
                map.next_value_seed(ResourceSpans(found))
            }
            "traceEvents" => {
                found.is(TraceFormat::Chrome);
                map.next_value_seed(chrome::Events(&mut found.chrome))
            }
            "baseTimeNanoseconds" => {
                found.chrome.base_ns = map.next_value::<Scalar<'_>>()?.int().unwrap_or(0);
                Ok(())
            }
            "spans" => {
                self.spans.extend(map.next_value::<Many<PartialSpan<'a>>>()?.0);
                Ok(())
            }
            "processes" => {
                let processes: Option<HashMap<Text<'a>, Option<Process>>> = map.next_value()?;
                let named = processes.into_iter().flatten();
                self.processes.extend(named.filter_map(|(key, process)| Some((key.0, process?.origin()))));
                Ok(())
            }
            "trace" | "traces" | "data" if !self.loose.seen => {
                found.has_inner = true;
                map.next_value_seed(Document { found, depth: depth + 1 })
            }
            _ => self.other(key, map, found, depth),
        }
    }

    fn other<A: MapAccess<'a>>(
        &mut self,
        key: &str,
        map: &mut A,
        found: &mut TraceDocument<'a>,
        depth: usize,
    ) -> Result<(), A::Error> {
        if self.event.field(key, map)? || self.loose.field(key, map)? {
            return Ok(());
        }
        found.has_other_spans |= matches!(key, "trace_info" | "trace_location" | "parent_id");
        if depth == 0 && found.unknown.len() < KEYS_SHOWN {
            found.unknown.push(super::id::short(key).to_owned());
        }
        map.next_value::<IgnoredAny>().map(|_| ())
    }

    /// Ends the object: now its spans have all their facts.
    fn close(self, found: &mut TraceDocument<'a>) {
        let Frame { spans, processes, mut loose, event } = self;
        if event.is_event() {
            found.is(TraceFormat::Chrome);
            found.chrome.push(event, loose.take_name());
            return;
        }
        if !processes.is_empty() || spans.iter().any(|span| span.is_jaeger) {
            found.is(TraceFormat::Jaeger);
        } else if !spans.is_empty() || loose.is_span() {
            found.has_other_spans = true;
            return;
        }
        // A sampler records its share only at the root, and it applies to the whole trace.
        let share = spans.iter().find_map(PartialSpan::weight);
        let none = Origin::default();
        for mut span in spans {
            if let (None, Some(share)) = (span.weight(), share) {
                span.set_weight(share);
            }
            let place = span.process.as_ref().and_then(|key| processes.get(key)).unwrap_or(&none);
            found.push(span, place);
        }
    }
}

/// Deserializes OTLP's `resourceSpans`.
struct ResourceSpans<'f, 'a>(&'f mut TraceDocument<'a>);

impl<'de> DeserializeSeed<'de> for ResourceSpans<'_, 'de> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ResourceSpans<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of resources and their spans")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(batch) = seq.next_element::<Option<Batch<'de>>>()? {
            let Some(batch) = batch else { continue };
            let origin = batch.resource.unwrap_or_default().origin();
            for scope in batch.scopes.0 {
                let mut origin = origin.clone();
                if let Some(name) = scope.scope.and_then(|scope| scope.name).filter(|name| !name.is_empty()) {
                    origin.keep(super::SCOPE, AttributeValue::Text(name));
                }
                scope.spans.0.into_iter().for_each(|span| self.0.push(span, &origin));
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
struct Batch<'a> {
    resource: Option<Resource>,
    #[serde(
        borrow,
        default,
        rename = "scopeSpans",
        alias = "scope_spans",
        alias = "instrumentationLibrarySpans"
    )]
    scopes: Many<ScopeSpans<'a>>,
}

#[derive(Deserialize)]
struct ScopeSpans<'a> {
    #[serde(alias = "instrumentationLibrary")]
    scope: Option<Scope>,
    #[serde(borrow, default)]
    spans: Many<PartialSpan<'a>>,
}

#[derive(Deserialize)]
struct Scope {
    name: Option<String>,
}
