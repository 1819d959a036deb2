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

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp's own answer to two inputs, as it came: the number of each embedding behind it, and the account before them.
    const LLAMA: &[u8] = include_bytes!("../../../wire/fixtures/llama.cpp/embeddings_two_inputs.http");

    fn body(capture: &[u8]) -> &[u8] {
        let end = capture.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
        &capture[end + 4..]
    }

    fn share(inputs: u32, weight: u64) -> AnswerShare {
        AnswerShare { inputs, weight }
    }

    #[test]
    fn a_real_answer_is_taken_apart_without_a_digit_changed() {
        let whole = std::str::from_utf8(body(LLAMA)).expect("text");
        let parts = split(whole.as_bytes(), &[share(1, 10), share(1, 24)]).expect("an answer to both");
        let vector = |text: &str, place: usize| {
            let from = text.match_indices("\"embedding\":[").nth(place).expect("a vector").0;
            text[from..].split_once(']').expect("its end").0.to_owned()
        };
        for (number, part) in parts.iter().enumerate() {
            let part = std::str::from_utf8(part).expect("text");
            assert_eq!(vector(part, 0), vector(whole, number));
            // A third of 17 tokens in the first, and the rest: both counts alike.
            let tokens = [5, 12][number];
            let head = format!(
                "{{\"model\":\"tiny\",\"object\":\"list\",\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}},\"data\":[{{"
            );
            assert!(part.starts_with(&head), "{part}");
            assert!(part.ends_with("],\"index\":0,\"object\":\"embedding\"}]}"), "{part}");
        }
        // All of it is the same bytes again.
        assert_eq!(split(whole.as_bytes(), &[share(2, 1)]).expect("an answer")[0], whole.as_bytes());
        assert_eq!(split(whole.as_bytes(), &[share(1, 1)]), None);
        assert_eq!(split(whole.as_bytes(), &[share(2, 1), share(1, 1)]), None);
    }

    #[test]
    fn what_is_no_answer_to_each_is_nobodys() {
        let both = [share(1, 1), share(1, 1)];
        let sound =
            r#" {"data": [{"index":1,"embedding":"bb=="},{"embedding":"a\"a","index":0}], "usage": null } "#;
        let parts = split(sound.as_bytes(), &both).expect("sound");
        assert_eq!(parts[0], r#" {"data": [{"embedding":"a\"a","index":0}], "usage": null } "#.as_bytes());
        assert_eq!(parts[1], r#" {"data": [{"index":0,"embedding":"bb=="}], "usage": null } "#.as_bytes());
        for wrong in [
            r#"{"data": [{"index":0},{"index":0}]}"#,
            r#"{"data": [{"index":0},{"index":2}]}"#,
            r#"{"data": [{"index":0},{"index":-1}]}"#,
            r#"{"data": [{"index":0},{"index":1.0}]}"#,
            r#"{"data": [{"index":0},{"index":"1"}]}"#,
            r#"{"data": [{"index":0},{"index":1,"index":0}]}"#,
            r#"{"data": [{"index":0},{"ind\u0065x":1}]}"#,
            r#"{"data": [{"index":0},{}]}"#,
            r#"{"data": [{"index":0}]}"#,
            r#"{"data": [{"index":0},{"index":1},{"index":2}]}"#,
            r#"{"data": [{"index":0},{"index":1}], "data": []}"#,
            r#"{"data": [{"index":0},{"index":1}], "error": {}}"#,
            r#"{"data": [{"index":0},{"index":1}]} x"#,
            r#"{"data": [{"index":0},{"index":1}]"#,
            r#"{"data": [{"index":0},{"index":1,}]}"#,
            r#"{"data": {"0": {"index":0}, "1": {"index":1}}}"#,
            r#"[{"index":0},{"index":1}]"#,
            "",
        ] {
            assert_eq!(split(wrong.as_bytes(), &both), None, "{wrong}");
        }
    }

    #[test]
    fn shares_of_every_count_add_up_however_deep_it_is() {
        let usage = r#"{"prompt_tokens":17,"total_tokens":17,"cost":0.5,"of":"7 b\"2","details":{"cached_tokens":3,"none":null,"low":-4}}"#;
        let weights = [5_u64, 1, 0, 9];
        let whole: u64 = weights.iter().sum();
        let mut before = 0;
        let mut sums = [0; 2];
        for weight in weights {
            let text = counts(usage, |count| share_of(count, (before, before + weight), whole));
            let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let own = [&read["prompt_tokens"], &read["details"]["cached_tokens"]]
                .map(|count| count.as_u64().expect("a count"));
            // None is off by a token.
            assert!((own[0] as f64 - 17.0 * weight as f64 / whole as f64).abs() < 1.0);
            assert_eq!(read["total_tokens"], read["prompt_tokens"]);
            assert_eq!(
                (&read["cost"], &read["of"], &read["details"]["low"]),
                (&0.5.into(), &"7 b\"2".into(), &(-4).into())
            );
            sums = [sums[0] + own[0], sums[1] + own[1]];
            before += weight;
        }
        assert_eq!(sums, [17, 3]);
    }
}
