//! What a profile keeps of a span: ninety bytes, whatever its tracer wrote into it.
//!
//! A span with its name, service and a few attributes takes 800 bytes, and a profile has to hold all of them, because the spans of a trace lie
//! anywhere in a file. All that is asked of texts and attributes is asked of one span at a time: its stage by rule, the durations that it
//! carries, whether two names are the same. That is asked when a span comes by, and only the answers stay. Going through the files trace by
//! trace lost: it needs them sorted by trace, which no exporter does.

use std::collections::HashMap;
use std::rc::Rc;

use plimsoll_model::trace::{SpanKind, TraceSpan};

use super::names::Facts;
use super::rules::Rules;
use super::stage::Stage;

/// No text, no facts.
const NOTHING: u32 = u32::MAX;
/// Pairs of name and service of which it is remembered which rules they fit; a tracer that puts ids into names would fill the memory.
const REMEMBERED: usize = 20_000;

/// One span. Times in ns of the Unix epoch.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Piece {
    pub trace: u128,
    pub id: u64,
    /// The span that caused it.
    pub parent: Option<u64>,
    pub start_ns: i64,
    pub end_ns: i64,
    /// How many traces its trace stands for.
    pub weight: f64,
    pub name: u32,
    service: u32,
    /// Place of what it carries.
    carries: u32,
    /// Which side of a call it is.
    pub kind: SpanKind,
    /// Did it end in an error?
    pub failed: bool,
    pub stage: Option<Stage>,
}

impl Piece {
    /// How long it took, ns.
    pub fn took_ns(&self) -> i64 {
        self.end_ns - self.start_ns
    }

    pub fn service(&self) -> Option<u32> {
        (self.service != NOTHING).then_some(self.service)
    }
}

/// Durations and instants that a span carries. Seconds, from its start.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct Carried {
    /// Time in the engine's queue.
    pub queue_s: Option<f64>,
    /// Time of the prompt.
    pub prefill_s: Option<f64>,
    /// Time of the tokens.
    pub decode_s: Option<f64>,
    pub inference_s: Option<f64>,
    /// The whole request, by the engine.
    pub e2e_s: Option<f64>,
    pub ttft_s: Option<f64>,
    /// The instant of the first token, ns of the Unix epoch.
    pub first_token_ns: Option<i64>,
}

impl Carried {
    fn of(facts: &Facts<'_>) -> Carried {
        Carried {
            queue_s: facts.queue_s,
            prefill_s: facts.prefill_s,
            decode_s: facts.decode_s,
            inference_s: facts.inference_s,
            e2e_s: facts.e2e_s,
            ttft_s: facts.ttft_s,
            first_token_ns: facts.first_token_ns,
        }
    }

    /// Is there a duration that an engine would say?
    pub(crate) fn is_engine(&self) -> bool {
        self.queue_s.is_some() || self.prefill_s.is_some() || self.decode_s.is_some()
    }
}

/// Spans as they come by, in any order.
pub struct Pieces<'r> {
    rules: &'r Rules,
    all: Vec<Piece>,
    texts: Texts,
    carried: Vec<Carried>,
    /// Which rules a name and a service fit.
    fits: HashMap<(u32, u32), Rc<[bool]>>,
}

impl<'r> Pieces<'r> {
    /// None yet, for these rules.
    pub fn new(rules: &'r Rules) -> Pieces<'r> {
        let (texts, fits) = (Texts::default(), HashMap::new());
        Pieces { rules, all: Vec::new(), texts, carried: Vec::new(), fits }
    }

    /// One more.
    pub fn add(&mut self, span: &TraceSpan) {
        let facts = Facts::of(span);
        let name = self.texts.place(&span.name);
        let service = span.service.as_deref().map_or(NOTHING, |service| self.texts.place(service));
        let stage = facts.stage.and_then(Stage::from_name).or_else(|| {
            let fits = self.fits(name, service, span);
            self.rules.stage(span, &facts, &fits)
        });
        let carried = Carried::of(&facts);
        let carries = if carried == Carried::default() {
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them, in the order in which they came.
    pub(super) fn all(&self) -> &[Piece] {
        &self.all
    }

    /// What a span carries.
    pub(super) fn carried(&self, piece: &Piece) -> Carried {
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

/// Texts, each once.
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

    /// What the documentation says of memory rests on it.
    #[test]
    fn a_piece_is_ninety_six_bytes_at_most() {
        assert!(size_of::<Piece>() <= 96, "{}", size_of::<Piece>());
    }
}
