//! Extraction and comparison of the text of two responses.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use plimsoll_wire::Decoder;

use crate::cache::flight::SharedResponse;
use crate::response_observer;

/// Returns the text of the first choice. Returns `None` if the response calls tools, is empty or compressed, or
/// exceeds `most` bytes.
pub fn text(flight: &SharedResponse, path: &str, most: usize) -> Option<String> {
    let (headers, body) = flight.whole()?;
    if headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let mut decoder = Decoder::new(response_observer::protocol(path), false, 200, kind, true);
    decoder.feed(&body, &mut Vec::new());
    let verdict = decoder.finish(true);
    let calls_tools = verdict.answer.finish_reason.as_deref() == Some("tool_calls");
    let text = verdict.answer.text.filter(|_| verdict.outcome.is_finished() && !calls_tools)?;
    (!text.trim().is_empty() && text.len() <= most).then_some(text)
}

/// Returns whether two texts have equal words in equal order. Case, punctuation and spacing are ignored, but the
/// signs of numbers are not.
pub(crate) fn same_words(one: &str, other: &str) -> bool {
    words(one).eq(words(other))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let trimmed = text.split_whitespace().map(|word| {
        let is_noise = |c: char| !c.is_alphanumeric() && !"+-%°€$£<>=".contains(c);
        word.trim_matches(is_noise).to_lowercase()
    });
    trimmed.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, StatusCode};
    use std::sync::Arc;

    use super::*;

    fn answered(kind: &str, body: &str) -> Option<String> {
        let flight = Arc::new(SharedResponse::new(1 << 20, HeaderMap::new()));
        let kind = HeaderValue::from_str(kind).expect("a header");
        flight.begin(StatusCode::OK, HeaderMap::from_iter([(CONTENT_TYPE, kind)]));
        flight.push(&Bytes::copy_from_slice(body.as_bytes()));
        flight.end(true, true, false);
        text(&flight, "/v1/chat/completions", 100)
    }

    #[test]
    fn an_answer_has_the_same_text_streamed_or_not_and_calls_of_tools_have_none() {
        let whole = |message: &str, reason: &str| {
            let body = format!(
                "{{\"choices\":[{{\"index\":0,\"message\":{message},\"finish_reason\":\"{reason}\"}}]}}"
            );
            answered("application/json", &body)
        };
        assert_eq!(
            whole(r#"{"role":"assistant","content":"It is Bonn."}"#, "stop"),
            Some("It is Bonn.".to_owned())
        );
        let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"It is\"}}]}\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" Bonn.\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        assert_eq!(answered("text/event-stream", stream), Some("It is Bonn.".to_owned()));
        assert_eq!(
            whole(r#"{"role":"assistant","content":"x","tool_calls":[{"id":"1"}]}"#, "tool_calls"),
            None
        );
        assert_eq!(whole(r#"{"role":"assistant","content":null}"#, "stop"), None);
        assert_eq!(whole(&format!("{{\"content\":\"{}\"}}", "a".repeat(101)), "stop"), None);
        assert_eq!(answered("application/json", "{"), None);
    }

    #[test]
    fn words_are_compared_and_not_how_they_are_set() {
        assert!(same_words("It is **Bonn**.", "  it is\n\"bonn\""));
        for (one, other) in
            [("It is Bonn.", "It is not Bonn."), ("-5", "5"), ("5 %", "5"), ("a b", "b a"), ("a", "")]
        {
            assert!(!same_words(one, other), "{one} and {other}");
        }
    }
}
