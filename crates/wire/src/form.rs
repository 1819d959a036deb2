//! Learns the fixed form of a stream's chunks, so that most chunks need no JSON parsing.
//!
//! A server prints the chunks of one stream from one template: only the text and the running counts differ.
//! A form is learnt from a fully parsed chunk: its bytes, with holes in place of the text and the counts.
//! Another chunk fits if it equals the bytes outside the holes, and has fitting values in the holes.
//! These are the inside of a non-empty JSON string for the text, and a plain JSON integer for each count. It then *is* the learnt JSON with
//! another text and other counts, so full parsing would give an equal result. Any other chunk is parsed in
//! full. A hand-written scanner for "content": was rejected: it is as fast, but only probably right.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Failed attempts to learn after which a stream is treated as having no form.
const TRIES: u8 = 6;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Hole {
    Text,
    Output,
    Total,
    Reasoning,
}

/// A learnt form: literal bytes, each but the last followed by a hole.
#[derive(Clone, Debug)]
struct Form {
    bytes: Vec<u8>,
    /// End of each literal in `bytes`, and the hole after it.
    parts: Vec<(usize, Hole)>,
}

/// The values of a chunk that fits the form.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FormValues<'a> {
    pub text: Cow<'a, str>,
    pub output: Option<u32>,
    pub reasoning: Option<u32>,
    pub total: Option<u32>,
}

/// The form of a stream, and the progress of learning it.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamForm {
    form: Option<Form>,
    tries: u8,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Counts<'a> {
    #[serde(borrow)]
    usage: Option<CountFields<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CountFields<'a> {
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    total_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens_details: Option<DetailFields<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct DetailFields<'a> {
    #[serde(borrow)]
    reasoning_tokens: Option<&'a RawValue>,
}

impl StreamForm {
    /// Returns whether the form can still be learnt.
    pub fn learns(&self) -> bool {
        self.tries < TRIES
    }

    /// Returns the chunk's text and counts, if it fits the form.
    pub fn fill<'a>(&mut self, data: &'a [u8]) -> Option<FormValues<'a>> {
        let filled = self.form.as_ref()?.fill(data)?;
        self.tries = 0;
        Some(filled)
    }

    /// Learns the form of a fully parsed chunk with one choice and this one text, borrowed from it.
    /// Returns whether a form was learnt.
    pub fn learn(&mut self, data: &str, text: &str) -> bool {
        self.tries = self.tries.saturating_add(1);
        self.form = Form::of(data, text);
        self.form.is_some()
    }
}

impl Form {
    fn of(data: &str, text: &str) -> Option<Form> {
        let mut holes = vec![(offset(data, text)?, text.len(), Hole::Text)];
        let at = holes[0].0;
        let quoted =
            at > 0 && data.as_bytes()[at - 1] == b'"' && data.as_bytes().get(at + text.len()) == Some(&b'"');
        if !quoted {
            return None;
        }
        let counts: Counts<'_> = serde_json::from_str(data).ok()?;
        if let Some(fields) = counts.usage {
            let reasoning = fields.completion_tokens_details.and_then(|details| details.reasoning_tokens);
            let found = [
                (fields.completion_tokens, Hole::Output),
                (fields.total_tokens, Hole::Total),
                (reasoning, Hole::Reasoning),
            ];
            for (raw, hole) in found {
                let Some(raw) = raw else { continue };
                if integer(raw.get().as_bytes())?.1 != raw.get().len() {
                    return None;
                }
                holes.push((offset(data, raw.get())?, raw.get().len(), hole));
            }
        }
        holes.sort_unstable_by_key(|hole| hole.0);
        let mut form = Form { bytes: Vec::with_capacity(data.len()), parts: Vec::new() };
        let mut from = 0;
        for (at, len, hole) in holes {
            form.bytes.extend_from_slice(data.as_bytes().get(from..at)?);
            form.parts.push((form.bytes.len(), hole));
            from = at + len;
        }
        form.bytes.extend_from_slice(&data.as_bytes()[from..]);
        Some(form)
    }

    fn fill<'a>(&self, data: &'a [u8]) -> Option<FormValues<'a>> {
        let mut filled = FormValues::default();
        let mut rest = data;
        let mut from = 0;
        for &(end, hole) in &self.parts {
            rest = rest.strip_prefix(&self.bytes[from..end])?;
            from = end;
            if hole == Hole::Text {
                let at = data.len() - rest.len();
                let len = string_end(rest)?;
                filled.text = text(data.get(at - 1..at + len + 1)?)?;
                rest = &rest[len..];
                continue;
            }
            let (n, len) = integer(rest)?;
            rest = &rest[len..];
            match hole {
                Hole::Output => filled.output = Some(n),
                Hole::Reasoning => filled.reasoning = Some(n),
                Hole::Total => filled.total = Some(n),
                Hole::Text => {}
            }
        }
        (rest == &self.bytes[from..]).then_some(filled)
    }
}

/// Returns the length of the inside of a JSON string: up to the first quote that no backslash escapes.
fn string_end(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 2;
    }
}

/// Returns the text of a JSON string with its quotes; borrowed if it has no escapes. `None` if empty or not valid.
fn text(quoted: &[u8]) -> Option<Cow<'_, str>> {
    let inside = &quoted[1..quoted.len() - 1];
    if inside.is_empty() {
        return None;
    }
    if inside.iter().any(|b| *b == b'\\' || *b < 0x20) {
        return serde_json::from_slice::<String>(quoted).ok().map(Cow::Owned);
    }
    std::str::from_utf8(inside).ok().map(Cow::Borrowed)
}

/// Parses a JSON integer of at most nine digits at the front of `bytes`, and returns its length. Nine, so that no sum overflows.
///
/// The following literal cannot continue a number, because it followed a number when the form was learnt.
fn integer(bytes: &[u8]) -> Option<(u32, usize)> {
    let len = bytes.iter().take(10).take_while(|b| b.is_ascii_digit()).count();
    if len == 0 || len > 9 || (len > 1 && bytes[0] == b'0') {
        return None;
    }
    Some((bytes[..len].iter().fold(0, |n, b| n * 10 + u32::from(b - b'0')), len))
}

/// Returns the position of `part` in `whole`, if it is borrowed from it.
fn offset(whole: &str, part: &str) -> Option<usize> {
    let at = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (whole.get(at..at.checked_add(part.len())?)? == part).then_some(at)
}
