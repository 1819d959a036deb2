//! The facts of a span that determine its stage, under the attribute names of any tracer.
//!
//! The names are versioned data (`data/profile/names.json`), because they change. The GenAI conventions left the main
//! repository in May 2026 and are still in development. Queue, prefill and decode have no convention at all. Name
//! matching in code was rejected, because readers could not see which of two spellings has priority. The first key of
//! a fact that a span has is used.

use std::collections::HashMap;
use std::sync::OnceLock;

use plimsoll_model::trace::{AttributeValue, TraceSpan};
use serde::Deserialize;

/// A fact that determines a stage.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fact {
    Operation,
    Kind,
    Route,
    Model,
    Stage,
    QueueS,
    PrefillS,
    DecodeS,
    InferenceS,
    E2eS,
    TtftS,
    FirstTokenAt,
}

#[derive(Deserialize)]
struct File {
    version: u32,
    names: Vec<Names>,
    first_token_events: Vec<EventName>,
}

#[derive(Deserialize)]
struct Names {
    fact: Fact,
    keys: Vec<KeyName>,
}

#[derive(Deserialize)]
struct KeyName {
    key: String,
}

#[derive(Deserialize)]
struct EventName {
    name: String,
}

struct Table {
    version: u32,
    /// Key → its fact, and its priority among the keys of that fact.
    keys: HashMap<String, (Fact, u8)>,
    events: Vec<String>,
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let file: File = serde_json::from_str(include_str!("../data/names.json"))
            .expect("the shipped names are well formed: a test reads them");
        let mut keys = HashMap::new();
        for names in file.names {
            for (place, name) in names.keys.into_iter().enumerate() {
                keys.insert(name.key, (names.fact, place as u8));
            }
        }
        Table {
            version: file.version,
            keys,
            events: file.first_token_events.into_iter().map(|event| event.name).collect(),
        }
    })
}

/// Returns the version of the table of names, for the output.
pub fn version() -> u32 {
    table().version
}

/// The facts of a span. Durations in seconds from its start; `None` if the span lacks the fact.
#[derive(Clone, Debug, Default)]
pub struct SpanFacts<'a> {
    /// Value of `gen_ai.operation.name`.
    pub operation: Option<&'a str>,
    /// Kind by OpenInference, or its equivalent.
    pub kind: Option<&'a str>,
    pub route: Option<&'a str>,
    pub model: Option<&'a str>,
    pub stage: Option<&'a str>,
    pub queue_s: Option<f64>,
    pub prefill_s: Option<f64>,
    pub decode_s: Option<f64>,
    pub inference_s: Option<f64>,
    /// Time of the whole request in the engine.
    pub e2e_s: Option<f64>,
    pub ttft_s: Option<f64>,
    /// Time of the first token, ns of the Unix epoch, from an event or a timestamp attribute.
    pub first_token_ns: Option<i64>,
}

impl<'a> SpanFacts<'a> {
    /// Reads the facts of a span.
    pub fn of(span: &'a TraceSpan) -> SpanFacts<'a> {
        let table = table();
        let mut facts = SpanFacts::default();
        let mut places = [u8::MAX; 12];
        for (key, value) in &span.attributes {
            let Some((fact, place)) = table.keys.get(key.as_str()) else { continue };
            if *place < places[*fact as usize] && facts.take(*fact, value) {
                places[*fact as usize] = *place;
            }
        }
        let mark = span.events.iter().find(|event| table.events.contains(&event.name));
        if let Some(mark) = mark {
            facts.first_token_ns = Some(mark.at_ns);
        }
        facts
    }

    fn take(&mut self, fact: Fact, value: &'a AttributeValue) -> bool {
        let text = || value.text().map(|text| text.trim_matches('"')).filter(|text| !text.is_empty());
        let seconds = || value.number().filter(|s| s.is_finite() && *s >= 0.0 && *s < 1e9);
        fn set<T>(place: &mut Option<T>, value: Option<T>) -> bool {
            let some = value.is_some();
            if some {
                *place = value;
            }
            some
        }
        match fact {
            Fact::Operation => set(&mut self.operation, text()),
            Fact::Kind => set(&mut self.kind, text()),
            Fact::Route => set(&mut self.route, text()),
            Fact::Model => set(&mut self.model, text()),
            Fact::Stage => set(&mut self.stage, text()),
            Fact::QueueS => set(&mut self.queue_s, seconds()),
            Fact::PrefillS => set(&mut self.prefill_s, seconds()),
            Fact::DecodeS => set(&mut self.decode_s, seconds()),
            Fact::InferenceS => set(&mut self.inference_s, seconds()),
            Fact::E2eS => set(&mut self.e2e_s, seconds()),
            Fact::TtftS => set(&mut self.ttft_s, seconds()),
            Fact::FirstTokenAt => set(&mut self.first_token_ns, text().and_then(instant_ns)),
        }
    }
}

/// Parses `2026-11-20T11:56:04.657811Z` to ns of the Unix epoch. An offset is applied; without one the time is UTC.
/// Days are computed from the civil date by Howard Hinnant's algorithm.
pub fn instant_ns(text: &str) -> Option<i64> {
    let (date, rest) = text.trim().split_once(['T', ' '])?;
    let mut parts = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(1970..2200).contains(&year) {
        return None;
    }
    let zone = rest.find(['Z', 'z', '+', '-']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(zone);
    let mut parts = clock.splitn(3, ':');
    let hours: i64 = parts.next()?.parse().ok()?;
    let minutes: i64 = parts.next()?.parse().ok()?;
    let (whole, fraction) = parts.next().map_or(("0", ""), |s| s.split_once('.').unwrap_or((s, "")));
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: i64 = digits.parse().ok()?;
    let offset = match zone.strip_prefix(['+', '-']) {
        Some(ahead) => {
            let ahead = ahead.replace(':', "");
            let minutes = ahead.get(..2)?.parse::<i64>().ok()? * 60
                + ahead.get(2..4).map_or(Some(0), |m| m.parse().ok())?;
            if zone.starts_with('-') { -minutes } else { minutes }
        }
        None => 0,
    };
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let yoe = y - era * 400;
    let doy = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468;
    Some((((days * 24 + hours) * 60 + minutes - offset) * 60 + seconds) * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::{instant_ns, version};

    #[test]
    fn instants_are_read_to_the_nanosecond() {
        assert_eq!(version(), 1);
        for (text, ns) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-20T13:00:00Z", 1_795_179_600_000_000_000),
            ("2026-11-20T14:00:00.000000001+01:00", 1_795_179_600_000_000_001),
            ("2026-11-20 13:00:00.5", 1_795_179_600_500_000_000),
        ] {
            assert_eq!(instant_ns(text), Some(ns), "{text}");
        }
        assert_eq!(instant_ns("yesterday"), None);
        assert_eq!(instant_ns("2026-13-01T00:00:00Z"), None);
    }
}
