//! An answer to several embeddings requests that were sent as one, taken apart again.
//!
//! The bytes of each embedding are passed on as they came, whatever their form; its number in the list is another one, and what the server counted is each
//! request's share. An answer that is not just what was asked for is nobody's: whose an embedding is must not be guessed.

use std::ops::Range;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::request::{members, string};

/// What a request has asked for of a joined answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct AnswerShare {
    /// Embeddings.
    pub inputs: u32,
    /// Its share of the tokens: see [`EmbeddingInputs`](super::body::EmbeddingInputs).
    pub weight: u64,
}

/// The answer to each of those who asked. `None` = it is not an answer to all of them.
pub fn split(answer: &[u8], asked: &[AnswerShare]) -> Option<Vec<Bytes>> {
    let text = std::str::from_utf8(answer).ok()?;
    let (mut data, mut usage) = (None, None);
    for member in members(answer) {
        let (key, value) = member?;
        let is_known = match key {
            b"data" => data.replace(value).is_none(),
            b"usage" => usage.replace(value).is_none(),
            b"error" => text.get(value) == Some("null"),
            _ => !key.contains(&b'\\'),
        };
        if !is_known {
            return None;
        }
    }
    let data = data?;
    // What is in the list is looked at apart, so that the mass of it is read once.
    let around = [&text[..data.start], "[]", &text[data.end..]].concat();
    serde_json::from_str::<IgnoredAny>(&around).ok()?;
    let listed: Vec<&RawValue> = serde_json::from_str(&text[data.clone()]).ok()?;
    let count: usize = asked.iter().map(|one| one.inputs as usize).sum();
    let mut each: Vec<Option<(&str, Range<usize>)>> = vec![None; count];
    if listed.len() != count {
        return None;
    }
    for one in listed {
        let (number, at) = numbered(one.get())?;
        // Two of the same number: another one is missing.
        if each.get_mut(number)?.replace((one.get(), at)).is_some() {
            return None;
        }
    }
    let each: Vec<(&str, Range<usize>)> = each.into_iter().collect::<Option<_>>()?;
    let whole: u64 = asked.iter().map(|one| one.weight).sum();
    let (mut first, mut before) = (0, 0);
    let parts = asked.iter().map(|share| {
        let own = &each[first..first + share.inputs as usize];
        let mut patches = vec![(data.clone(), list(own))];
        if let Some(usage) = &usage {
            let counted = |count| share_of(count, (before, before + share.weight), whole);
            patches.push((usage.clone(), counts(&text[usage.clone()], counted)));
        }
        (first, before) = (first + own.len(), before + share.weight);
        patched(text, patches)
    });
    Some(parts.collect())
}

/// The number of an embedding in its list, and where it is written.
fn numbered(element: &str) -> Option<(usize, Range<usize>)> {
    let mut found = None;
    for member in members(element.as_bytes()) {
        let (key, value) = member?;
        if key.contains(&b'\\') || key == b"index" && found.is_some() {
            return None;
        }
        if key == b"index" {
            found = Some((element[value.clone()].parse().ok()?, value));
        }
    }
    found
}

/// A list of these embeddings, numbered from 0.
fn list(own: &[(&str, Range<usize>)]) -> String {
    let mut out = String::with_capacity(own.iter().map(|(text, _)| text.len() + 8).sum());
    for (number, (text, at)) in own.iter().enumerate() {
        out.push(if number == 0 { '[' } else { ',' });
        out.push_str(&text[..at.start]);
        out.push_str(&number.to_string());
        out.push_str(&text[at.end..]);
    }
    out + "]"
}

/// A text with other values in these places.
fn patched(text: &str, mut patches: Vec<(Range<usize>, String)>) -> Bytes {
    patches.sort_by_key(|(at, _)| at.start);
    let mut out = String::with_capacity(patches.iter().map(|(_, value)| value.len()).sum::<usize>() + 256);
    let mut from = 0;
    for (at, value) in patches {
        out.push_str(&text[from..at.start]);
        out.push_str(&value);
        from = at.end;
    }
    Bytes::from(out + &text[from..])
}

/// Of a count, what falls between two marks of a whole: shares of all marks sum up to it.
fn share_of(count: u64, (from, to): (u64, u64), whole: u64) -> u64 {
    let until = |mark: u64| u128::from(count) * u128::from(mark) / u128::from(whole.max(1));
    (until(to) - until(from)) as u64
}

/// JSON with each of its whole numbers as this says, however deep it is; all else stays.
fn counts(json: &str, share: impl Fn(u64) -> u64) -> String {
    let bytes = json.as_bytes();
    let (mut out, mut at) = (String::new(), 0);
    while at < bytes.len() {
        let end = match bytes[at] {
            b'"' => string(bytes, at).unwrap_or(bytes.len()),
            b'0'..=b'9' | b'-' => {
                let of_number = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let end = at + bytes[at..].iter().take_while(|byte| of_number(byte)).count();
                if let Ok(count) = json[at..end].parse::<u64>() {
                    out.push_str(&share(count).to_string());
                    at = end;
                    continue;
                }
                end
            }
            _ => {
                at + bytes[at..].iter().take_while(|byte| !matches!(byte, b'"' | b'0'..=b'9' | b'-')).count()
            }
        };
        out.push_str(&json[at..end]);
        at = end;
    }
    out
}
