//! Splits a chat request into the question, which is the last user message, and the context, which is everything
//! else.
//!
//! Only the question is compared by embedding. The rest of the body (model, tools, earlier turns, sampling
//! parameters, images) must match byte for byte. The numbers in the question must match too, because "in 3 days" and
//! "in 5 days" have nearly equal embeddings.

use serde_json::value::RawValue;

use crate::cache::digest;
use crate::request::members;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SemanticQuery {
    pub text: String,
    /// SHA-256 of the rest of the request, including the numbers in the text.
    pub context: [u8; 32],
}

impl SemanticQuery {
    /// Parses a body. `before` is further data that must match. Returns `None` without a user question, above `most`
    /// bytes, or if servers may read the body differently.
    pub fn read<'a>(body: &'a [u8], before: Vec<&'a [u8]>, most: usize) -> Option<SemanticQuery> {
        let mut parts = before;
        let messages = set_apart(body, b"messages", &mut parts)?;
        let messages = list(messages)?;
        let (last, earlier) = messages.split_last()?;
        parts.extend(earlier.iter().map(|message| message.get().as_bytes()));
        let from = parts.len();
        let content = set_apart(last.get().as_bytes(), b"content", &mut parts)?;
        let is_users = parts[from..].chunks(2).any(|member| member == [&b"role"[..], b"\"user\""]);
        let text = if content.starts_with(b"[") { only_text(content, &mut parts)? } else { content };
        let text: String = serde_json::from_slice(text).ok().filter(|_| is_users)?;
        if text.trim().is_empty() || text.len() > most {
            return None;
        }
        let numbers = numbers(&text);
        let context = digest(parts.into_iter().chain([numbers.as_bytes()]));
        Some(SemanticQuery { text, context })
    }
}

/// Returns the value of the only member with this name, and appends the other members to `parts`.
fn set_apart<'a>(object: &'a [u8], name: &[u8], parts: &mut Vec<&'a [u8]>) -> Option<&'a [u8]> {
    let mut found = None;
    for member in members(object) {
        let (key, at) = member?;
        // An escaped name may equal any name. For duplicate names, some servers use the first and some the last.
        if key.contains(&b'\\') || (key == name && found.is_some()) {
            return None;
        }
        let value = &object[at];
        if key == name {
            found = Some(value);
        }
        parts.extend([key, if key == name { &value[..0] } else { value }]);
    }
    found
}

fn list(text: &[u8]) -> Option<Vec<&RawValue>> {
    serde_json::from_slice(text).ok()
}

/// Returns the text of a message with exactly one text part, and appends the other parts to `parts`.
fn only_text<'a>(content: &'a [u8], parts: &mut Vec<&'a [u8]>) -> Option<&'a [u8]> {
    let mut found = None;
    for part in list(content)? {
        let part = part.get().as_bytes();
        let mut inside = Vec::new();
        match set_apart(part, b"text", &mut inside) {
            Some(_) if found.is_some() => return None,
            Some(text) => {
                found = Some(text);
                parts.extend(inside);
            }
            None => parts.push(part),
        }
    }
    found
}

/// Returns the numbers in a text, in order.
fn numbers(text: &str) -> String {
    let digits = text.split(|c: char| !c.is_numeric()).filter(|digits| !digits.is_empty());
    digits.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Option<SemanticQuery> {
        SemanticQuery::read(body.as_bytes(), vec![b"path"], 64)
    }

    fn chat(rest: &str, messages: &str) -> Option<SemanticQuery> {
        read(&format!("{{\"model\": \"m\"{rest}, \"messages\": [{messages}], \"temperature\": 0}}"))
    }

    const SYSTEM: &str = r#"{"role": "system", "content": "Be brief."}, "#;

    fn user(text: &str) -> String {
        format!("{SYSTEM}{{\"role\": \"user\", \"content\": \"{text}\"}}")
    }

    #[test]
    fn requests_that_differ_in_the_last_text_alone_have_one_context() {
        let first = chat("", &user("Where is \\\"Bonn\\\"?")).expect("a question");
        assert_eq!(first.text, "Where is \"Bonn\"?");
        assert_eq!(chat("", &user("And Berlin?")).map(|one| one.context), Some(first.context));
        let parts = |url: &str, text: &str| {
            chat(
                "",
                &format!(
                    "{{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":\"{text}\"}},{{\"type\":\"image_url\",\"image_url\":\"{url}\"}}]}}"
                ),
            )
            .expect("a question")
        };
        assert_eq!(parts("a", "What is it?").text, "What is it?");
        assert_eq!(parts("a", "What is it?").context, parts("a", "Which is that?").context);
        assert_ne!(parts("a", "What is it?").context, parts("b", "What is it?").context);
    }

    #[test]
    fn whatever_else_differs_is_another_context() {
        let question = user("Where?");
        let same = chat("", &question).expect("a question").context;
        let contexts = [
            chat(", \"seed\": 1", &question),
            chat(", \"tools\": [{\"type\": \"function\"}]", &question),
            chat(", \"response_format\": {\"type\": \"json_object\"}", &question),
            chat("", &question.replace("brief", "long")),
            chat("", &question.replace(SYSTEM, "")),
            chat(
                "",
                &question.replace("\"content\": \"Where?\"", "\"name\": \"a\", \"content\": \"Where?\""),
            ),
            chat("", &user("Where in 3 days?")),
            chat("", &user("Where in 5 days?")),
        ];
        for (number, other) in contexts.iter().enumerate() {
            let other = other.as_ref().expect("a question").context;
            assert_ne!(other, same, "{number}");
        }
        assert_ne!(contexts[6], contexts[7]);
        let elsewhere = SemanticQuery::read(
            format!("{{\"messages\":[{}]}}", user("a")).as_bytes(),
            vec![b"other path"],
            64,
        );
        assert_ne!(
            elsewhere.map(|one| one.context),
            read(&format!("{{\"messages\":[{}]}}", user("a"))).map(|one| one.context)
        );
    }

    #[test]
    fn what_asks_no_question_of_a_user_or_may_be_read_in_two_ways_has_none() {
        for (body, why) in [
            ("", "nothing"),
            ("[1]", "no object"),
            (r#"{"prompt": "a"}"#, "no messages"),
            (r#"{"messages": "a"}"#, "no list"),
            (r#"{"messages": []}"#, "none of them"),
            (
                r#"{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}"#,
                "a tool's",
            ),
            (r#"{"messages": [{"role": "assistant", "content": "a"}]}"#, "an assistant's"),
            (r#"{"messages": [{"role": "user", "content": "  "}]}"#, "empty"),
            (r#"{"messages": [{"role": "user", "content": null}]}"#, "null"),
            (r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#, "no text"),
            (r#"{"messages": [{"role": "user", "content": [{"text": "a"}, {"text": "b"}]}]}"#, "two texts"),
            (r#"{"messages": [{"role": "user", "content": "a"}], "messages": []}"#, "twice"),
            (r#"{"messages": [{"role": "user", "content": "a", "content": "b"}]}"#, "twice"),
            (r#"{"messages": [{"role": "user", "content": "a", "c\u006fntent": "b"}]}"#, "escaped"),
            (r#"{"messages": [{"role": "user", "content": "a"}"#, "cut"),
        ] {
            assert_eq!(read(body), None, "{why}");
        }
        let long = format!("{{\"messages\": [{}]}}", user(&"a".repeat(65)));
        assert_eq!(read(&long), None);
    }
}
