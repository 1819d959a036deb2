//! The stored part of a span: ninety bytes for any span.
//!
//! A span with its name, service and a few attributes takes 800 bytes. A profile needs all spans in memory, because
//! the spans of a trace may be anywhere in a file. All questions on texts and attributes concern a single span: its
//! stage by rule, its durations, equality of names. They are answered when the span is read, and only the answers are
//! stored. Reading the files trace by trace was rejected, because it needs them sorted by trace, and no exporter
//! sorts.

use std::collections::HashMap;
use std::rc::Rc;

use plimsoll_model::trace::{SpanKind, TraceSpan};

use super::names::SpanFacts;
use super::rules::Rules;
use super::stage::Stage;

/// Index of a missing text or missing facts.
const NOTHING: u32 = u32::MAX;
/// Maximum number of cached name and service pairs with their matching rules, because a tracer that puts ids into
/// names would fill the memory.
const REMEMBERED: usize = 20_000;

/// One span. Times in ns of the Unix epoch.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Piece {
    pub trace: u128,
    pub id: u64,
    /// Id of the parent span; `None` for a root.
    pub parent: Option<u64>,
    pub start_ns: i64,
    pub end_ns: i64,
    /// Number of traces that its trace represents.
    pub weight: f64,
    pub name: u32,
    service: u32,
    /// Index of its durations.
    carries: u32,
    pub kind: SpanKind,
    /// Set if the span ended in an error.
    pub failed: bool,
    /// Stage by rule; `None` if no rule matches.
    pub stage: Option<Stage>,
}

impl Piece {
    pub fn took_ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }

    /// Returns the index of its service, if it has one.
    pub fn service(&self) -> Option<u32> {
        (self.service != NOTHING).then_some(self.service)
    }
}

/// The durations and times of a span, in seconds from its start; `None` if missing.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct SpanDurations {
    pub queue_s: Option<f64>,
    pub prefill_s: Option<f64>,
    pub decode_s: Option<f64>,
    pub inference_s: Option<f64>,
    /// Time of the whole request in the engine.
    pub e2e_s: Option<f64>,
    pub ttft_s: Option<f64>,
    /// Time of the first token, ns of the Unix epoch.
    pub first_token_ns: Option<i64>,
}

impl SpanDurations {
    fn of(facts: &SpanFacts<'_>) -> SpanDurations {
        SpanDurations {
            queue_s: facts.queue_s,
            prefill_s: facts.prefill_s,
            decode_s: facts.decode_s,
            inference_s: facts.inference_s,
            e2e_s: facts.e2e_s,
            ttft_s: facts.ttft_s,
            first_token_ns: facts.first_token_ns,
        }
    }

    /// Returns whether any engine duration is present.
    pub(crate) fn is_engine(&self) -> bool {
        self.queue_s.is_some() || self.prefill_s.is_some() || self.decode_s.is_some()
    }
}

/// The stored spans, added in any order.
pub struct Pieces<'r> {
    rules: &'r Rules,
    all: Vec<Piece>,
    texts: Texts,
    carried: Vec<SpanDurations>,
    /// Cache of the rules that match a name and a service.
    fits: HashMap<(u32, u32), Rc<[bool]>>,
}

impl<'r> Pieces<'r> {
    /// Returns an empty store for these rules.
    pub fn new(rules: &'r Rules) -> Pieces<'r> {
        let (texts, fits) = (Texts::default(), HashMap::new());
        Pieces { rules, all: Vec::new(), texts, carried: Vec::new(), fits }
    }

    pub fn add(&mut self, span: &TraceSpan) {
        let facts = SpanFacts::of(span);
        let name = self.texts.place(&span.name);
        let service = span.service.as_deref().map_or(NOTHING, |service| self.texts.place(service));
        let stage = facts.stage.and_then(Stage::from_name).or_else(|| {
            let fits = self.fits(name, service, span);
            self.rules.stage(span, &facts, &fits)
        });
        let carried = SpanDurations::of(&facts);
        let carries = if carried == SpanDurations::default() {
            NOTHING
        } else {
            self.carried.push(carried);
            self.carried.len() as u32 - 1
        };
        self.all.push(Piece {
            trace: span.trace,
            id: span.id,
            parent: span.parent,
            start_ns: span.start_ns,
            end_ns: span.end_ns,
            weight: span.weight,
            name,
            service,
            carries,
            kind: span.kind,
            failed: span.failed,
            stage,
        });
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns all spans in order of addition.
    pub(super) fn all(&self) -> &[Piece] {
        &self.all
    }

    /// Returns the durations of a span.
    pub(super) fn carried(&self, piece: &Piece) -> SpanDurations {
        self.carried.get(piece.carries as usize).copied().unwrap_or_default()
    }

    pub(super) fn text(&self, place: u32) -> &str {
        self.texts.all.get(place as usize).map_or("", |text| text)
    }

    fn fits(&mut self, name: u32, service: u32, span: &TraceSpan) -> Rc<[bool]> {
        if let Some(fits) = self.fits.get(&(name, service)) {
            return Rc::clone(fits);
        }
        let fits = self.rules.fits_names(&span.name, span.service.as_deref().unwrap_or_default());
        if self.fits.len() < REMEMBERED {
            self.fits.insert((name, service), Rc::clone(&fits));
        }
        fits
    }
}

#[derive(Default)]
struct Texts {
    places: HashMap<Rc<str>, u32>,
    all: Vec<Rc<str>>,
}

impl Texts {
    fn place(&mut self, text: &str) -> u32 {
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        let place = self.all.len() as u32;
        let text: Rc<str> = text.into();
        self.all.push(Rc::clone(&text));
        self.places.insert(text, place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::Piece;

    /// The memory figures of the documentation depend on this size.
    #[test]
    fn a_piece_is_ninety_six_bytes_at_most() {
        assert!(size_of::<Piece>() <= 96, "{}", size_of::<Piece>());
    }
}
