//! Embeddings requests as they are written, and several of them as one.
//!
//! A body is its `input` and what is before and after it; bodies that are the same before and after are joined by putting their inputs into one list. Nothing
//! of them is written anew, so that no field is lost and no text changed.

use std::ops::Range;

use bytes::Bytes;
use plimsoll_policy::JoinSize;
use serde_json::value::RawValue;

use crate::request::{BYTES_PER_TOKEN, members};

/// How inputs are written. A list of both kinds is refused by servers that take each.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum InputKind {
    /// As texts.
    Texts,
    /// As token numbers.
    Tokens,
}

/// The inputs of an embeddings request.
#[derive(Clone, PartialEq, Debug)]
pub struct EmbeddingInputs {
    body: Bytes,
    /// Where in the body its `input` is,
    at: Range<usize>,
    /// and what of that goes into a list of several requests' inputs.
    elements: Range<usize>,
    /// How they are written.
    pub kind: InputKind,
    /// How many.
    pub count: u32,
    /// What each request's share of the tokens is counted by: bytes of texts, or numbers of tokens.
    pub weight: u64,
}

impl EmbeddingInputs {
    /// Those of a body. `None` = it can't be joined: its inputs are neither texts nor tokens, or it is not clear where they are.
    pub fn read(body: &Bytes) -> Option<EmbeddingInputs> {
        let text = std::str::from_utf8(body).ok()?;
        let mut input = None;
        for member in members(body) {
            let (key, value) = member?;
            // A name that is written with escapes may be any.
            let is_plain = !key.contains(&b'\\');
            let streams = key == b"stream" && text.get(value.clone()) == Some("true");
            let again = key == b"input" && input.is_some();
            if !is_plain || streams || again {
                return None;
            }
            if key == b"input" {
                input = Some(value);
            }
        }
        let at = input?;
        let value = text.get(at.clone())?;
        let inside = at.start + 1..at.end - 1;
        let inputs = |elements, kind, count: usize, weight: usize| EmbeddingInputs {
            body: body.clone(),
            at: at.clone(),
            elements,
            kind,
            count: count as u32,
            weight: weight.max(1) as u64,
        };
        if value.starts_with('"') {
            serde_json::from_str::<&RawValue>(value).ok()?;
            return Some(inputs(at.clone(), InputKind::Texts, 1, value.len() - 2));
        }
        let list: Vec<&RawValue> = serde_json::from_str(value).ok()?;
        let all = |first: &[u8]| {
            !list.is_empty() && list.iter().all(|one| first.contains(&one.get().as_bytes()[0]))
        };
        if all(b"\"") {
            let bytes = list.iter().map(|one| one.get().len() - 2).sum();
            return Some(inputs(inside, InputKind::Texts, list.len(), bytes));
        }
        if all(b"0123456789") {
            let tokens: Vec<u32> = serde_json::from_str(value).ok()?;
            return Some(inputs(at.clone(), InputKind::Tokens, 1, tokens.len()));
        }
        let lists: Vec<Vec<u32>> = if all(b"[") { serde_json::from_str(value).ok()? } else { return None };
        let tokens = lists.iter().map(Vec::len).sum();
        lists
            .iter()
            .all(|one| !one.is_empty())
            .then(|| inputs(inside, InputKind::Tokens, lists.len(), tokens))
    }

    /// The body before its inputs, and after them.
    pub fn around(&self) -> [&[u8]; 2] {
        [&self.body[..self.at.start], &self.body[self.at.end..]]
    }

    /// What it adds to a joined request.
    pub fn size(&self) -> JoinSize {
        let tokens = match self.kind {
            InputKind::Texts => self.weight.div_ceil(BYTES_PER_TOKEN as u64),
            InputKind::Tokens => self.weight,
        };
        JoinSize { inputs: self.count, tokens }
    }
}

/// The body of a request for the inputs of all of these, which have the same around them, in their order.
pub fn join(each: &[&EmbeddingInputs]) -> Bytes {
    let Some(first) = each.first() else { return Bytes::new() };
    let [before, after] = first.around();
    let lists: Vec<&[u8]> = each.iter().map(|one| &one.body[one.elements.clone()]).collect();
    Bytes::from([before, b"[", &lists.join(&b","[..]), b"]", after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Option<EmbeddingInputs> {
        EmbeddingInputs::read(&Bytes::copy_from_slice(body.as_bytes()))
    }

    #[test]
    fn every_form_of_inputs_is_joined_and_nothing_around_them_is_touched() {
        let of = |input: &str| {
            read(&format!("{{\"model\": \"m\" ,\"input\":{input},  \"x\":[1.50]}}")).expect(input)
        };
        let told = |one: &EmbeddingInputs| (one.kind, one.count, one.weight);
        let texts = [of("\"a \\\" b\""), of("[\"c\"]"), of("[ \"d\", \"e]\" ]")];
        assert_eq!(
            texts.each_ref().map(told),
            [(InputKind::Texts, 1, 6), (InputKind::Texts, 1, 1), (InputKind::Texts, 2, 3)]
        );
        let joined = join(&texts.iter().collect::<Vec<_>>());
        let expected = "{\"model\": \"m\" ,\"input\":[\"a \\\" b\",\"c\", \"d\", \"e]\" ],  \"x\":[1.50]}";
        assert_eq!(joined, expected.as_bytes());
        let tokens = [of("[1, 2,3]"), of("[[4],[5 , 6]]")];
        assert_eq!(tokens.each_ref().map(told), [(InputKind::Tokens, 1, 3), (InputKind::Tokens, 2, 3)]);
        let joined = join(&tokens.iter().collect::<Vec<_>>());
        assert_eq!(joined, "{\"model\": \"m\" ,\"input\":[[1, 2,3],[4],[5 , 6]],  \"x\":[1.50]}".as_bytes());
        assert_eq!((texts[0].size().tokens, tokens[0].size().tokens), (2, 3));
    }

    #[test]
    fn what_might_be_read_otherwise_elsewhere_is_not_joined() {
        for body in [
            r#"{"model": "m"}"#,
            r#"{"input": []}"#,
            r#"{"input": null}"#,
            r#"{"input": {"text": "a"}}"#,
            r#"{"input": ["a", 1]}"#,
            r#"{"input": ["a", ["b"]]}"#,
            r#"{"input": [[1], []]}"#,
            r#"{"input": [1.5]}"#,
            r#"{"input": [-1]}"#,
            r#"{"input": ["a" "b"]}"#,
            r#"{"input": "a\q"}"#,
            r#"{"input": "a", "input": "b"}"#,
            r#"{"input": "a", "inp\u0075t": "b"}"#,
            r#"{"input": "a", "stream": true}"#,
            r#"["input"]"#,
            r#"{"input": "a""#,
            "",
        ] {
            assert_eq!(read(body), None, "{body}");
        }
        assert_eq!(EmbeddingInputs::read(&Bytes::from_static(b"{\"input\": \"\xff\"}")), None);
    }
}
