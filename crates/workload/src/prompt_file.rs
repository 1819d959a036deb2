//! Reads the user's prompts: JSON Lines with one request per line, or one JSON list of requests.
//!
//! A request is `{"prompt": "…"}` or `{"messages": [{"role": "user", "content": "…"}]}`, with an optional `output_tokens`.
//! Prompts are sent unchanged except for the salt. Plain text lines were rejected, because a prompt with a line break would
//! become two.
//!
//! Files of other tools are read too: OpenAI's requests and batches, with tools, parts and any role; single turns of
//! GuideLLM and AIPerf. Of `conversations` in the format of ShareGPT or SGLang the first question is sent, as in vLLM's and
//! SGLang's benchmarks. The requested output length is the number of words of its answer, because no tokeniser is
//! available.

use plimsoll_model::{Message, Role, WrittenMessage};
use serde_json::{Map, Value};

use crate::error::TraceFileError;
use crate::trace::{lines, unpack};

/// One request of a prompt file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromptFileEntry {
    /// Conversation to send; a bare prompt is one user message.
    pub messages: Vec<Message>,
    /// Output tokens to request; `None` = the scenario's sizes.
    pub output_tokens: Option<u32>,
    /// Number of whitespace-separated words.
    pub words: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PromptFile {
    pub entries: Vec<PromptFileEntry>,
    /// Number of conversations without a question, which are skipped.
    pub empty: usize,
}

/// Accepted format, for error messages.
const WANT: &str = "want {\"prompt\": …} or {\"messages\": […]} and optionally output_tokens";
/// Keys of a prompt in one text.
const TEXTS: [&str; 2] = ["prompt", "text"];
/// Accepted keys of the output length in tokens.
const LENGTHS: [&str; 7] = [
    "output_tokens",
    "output_tokens_count",
    "output_length",
    "output_len",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
];
/// Keys that identify or describe a request, or that the run's target sets; they are ignored.
const PASSED_BY: [&str; 13] = [
    "id",
    "custom_id",
    "method",
    "url",
    "source",
    "metadata",
    "prompt_tokens_count",
    "prompt_len",
    "input_length",
    "model",
    "stream",
    "stream_options",
    "user",
];
/// Keys of an OpenAI request that are sent unchanged.
const SENT: [&str; 17] = [
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "stop",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "reasoning_effort",
    "chat_template_kwargs",
];

/// Parses a prompt file, optionally gzipped. Blank lines are skipped.
///
/// # Errors
/// Fails with a [`TraceFileError`] at the first line that is no prompt; line 0 if the file has no prompt.
pub fn read_prompts(bytes: &[u8], name: &str) -> Result<PromptFile, TraceFileError> {
    let bytes = unpack(bytes, name)?;
    let broken = |line: usize, what: String| TraceFileError { file: name.to_string(), line, what };
    let mut read = PromptFile { entries: Vec::new(), empty: 0 };
    let mut take = |line: usize, value: Value| -> Result<(), TraceFileError> {
        match entry(value).map_err(|what| broken(line, what))? {
            Some(entry) => read.entries.push(entry),
            None => read.empty += 1,
        }
        Ok(())
    };
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'[') {
        let list: Vec<Value> =
            serde_json::from_slice(&bytes).map_err(|e| broken(e.line(), format!("{e}; {WANT}")))?;
        for (number, value) in list.into_iter().enumerate() {
            take(0, value).map_err(|e: TraceFileError| TraceFileError {
                what: format!("item {}: {}", number + 1, e.what),
                ..e
            })?;
        }
    } else {
        for (number, text) in lines(&bytes, name) {
            let value = serde_json::from_str(text?).map_err(|e| broken(number, format!("{e}; {WANT}")))?;
            take(number, value)?;
        }
    }
    match read.entries.is_empty() {
        true => Err(broken(0, "contains no prompt".to_string())),
        false => Ok(read),
    }
}

/// Parses one request; `None` for a conversation without a question.
fn entry(value: Value) -> Result<Option<PromptFileEntry>, String> {
    let Value::Object(mut object) = value else { return Err(format!("no JSON object; {WANT}")) };
    if object.contains_key("custom_id")
        && let Some(Value::Object(body)) = object.remove("body")
    {
        object = body;
    }
    if let Some(conversation) = object.get("conversations").or_else(|| object.get("conversation")) {
        return first_question(conversation);
    }
    if object.contains_key("turns") {
        return Err(format!(
            "contains a session of several turns (`turns`), and a prompt file has one request a line; {WANT}, or draw sessions with --sessions"
        ));
    }
    let (mut text, mut list, mut output_tokens, mut fields) = (None, None, None, Vec::new());
    for (key, value) in object {
        match (key.as_str(), value) {
            (_, Value::Null) => {}
            (key, Value::String(words)) if TEXTS.contains(&key) && text.is_none() => text = Some(words),
            ("messages", Value::Array(messages)) => list = Some(messages),
            (key, value) if LENGTHS.contains(&key) => {
                let tokens = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
                output_tokens = Some(
                    tokens.ok_or_else(|| format!("{key} is {value}; want a whole number of at least 1"))?,
                );
            }
            (key, _) if PASSED_BY.contains(&key) => {}
            (key, value) if SENT.contains(&key) => fields.push((key.to_owned(), value.to_string())),
            (key, _) if TEXTS.contains(&key) || key == "messages" => {
                return Err(format!("`{key}` is not what it should be; {WANT}"));
            }
            (key, _) => return Err(format!("unknown field `{key}`; {WANT}")),
        }
    }
    let messages = match (text, list) {
        (Some(content), None) => vec![Message::text(Role::User, content)],
        (None, Some(list)) if !list.is_empty() => list.iter().map(message).collect::<Result<_, _>>()?,
        _ => return Err(format!("want either \"prompt\" or a non-empty \"messages\"; {WANT}")),
    };
    Ok(Some(of(with_fields(messages, fields), output_tokens)))
}

fn of(messages: Vec<Message>, output_tokens: Option<u32>) -> PromptFileEntry {
    let words = messages.iter().map(|m| m.content.split_whitespace().count()).sum::<usize>();
    PromptFileEntry { messages, output_tokens, words: u32::try_from(words).unwrap_or(u32::MAX) }
}

fn with_fields(mut messages: Vec<Message>, fields: Vec<(String, String)>) -> Vec<Message> {
    if let Some(first) = messages.first_mut().filter(|_| !fields.is_empty()) {
        let (role, content) = (first.role, &first.content);
        let json = || serde_json::json!({ "role": role, "content": content }).to_string();
        let json = first.written.take().map_or_else(json, |written| written.json);
        first.written = Some(Box::new(WrittenMessage { json, fields }));
    }
    messages
}

/// Parses a message in OpenAI's format. A message with more than a role and a text is kept as written.
fn message(value: &Value) -> Result<Message, String> {
    let Some(object) = value.as_object() else { return Err(format!("a message that is no object; {WANT}")) };
    let named = object.get("role").and_then(Value::as_str).unwrap_or_default();
    let (role, is_plain) = match named {
        "system" => (Role::System, true),
        "user" => (Role::User, true),
        "assistant" => (Role::Assistant, true),
        "developer" => (Role::System, false),
        "tool" | "function" => (Role::User, false),
        other => {
            return Err(format!(
                "a message of the role `{other}`; want system, developer, user, assistant, tool or function"
            ));
        }
    };
    let content = match object.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts: Vec<&str> =
                parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect();
            texts.join("\n")
        }
        None | Some(Value::Null) => String::new(),
        Some(_) => return Err("a message whose content is neither a text nor a list of parts".into()),
    };
    let is_plain = is_plain && object.len() == 2 && object.get("content").is_some_and(Value::is_string);
    let written = WrittenMessage { json: value.to_string(), fields: Vec::new() };
    Ok(Message { written: (!is_plain).then(|| Box::new(written)), ..Message::text(role, content) })
}

/// Returns the first question of a conversation in ShareGPT's or SGLang's format, with its system message. The requested
/// length is the number of words of the answer.
fn first_question(value: &Value) -> Result<Option<PromptFileEntry>, String> {
    let Some(turns) = value.as_array() else { return Err(format!("conversations are a list; {WANT}")) };
    let text = |turn: &Map<String, Value>, names: [&str; 2]| {
        names.into_iter().find_map(|name| turn.get(name)?.as_str()).map(str::to_owned)
    };
    let mut messages = Vec::new();
    let mut turns = turns.iter().filter_map(Value::as_object);
    for turn in turns.by_ref() {
        let (Some(from), Some(words)) = (text(turn, ["from", "role"]), text(turn, ["value", "content"]))
        else {
            return Err(format!(
                "a turn of conversations has no from and value, and no role and content; {WANT}"
            ));
        };
        match from.as_str() {
            "system" if messages.is_empty() => messages.push(Message::text(Role::System, words)),
            "human" | "user" if !words.trim().is_empty() => {
                messages.push(Message::text(Role::User, words));
                break;
            }
            _ => {}
        }
    }
    if messages.last().is_none_or(|last| last.role != Role::User) {
        return Ok(None);
    }
    let answer = turns.next().and_then(|turn| text(turn, ["value", "content"]));
    let words = answer.map(|answer| answer.split_whitespace().count()).filter(|words| *words > 0);
    Ok(Some(of(messages, words.and_then(|words| u32::try_from(words).ok()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(line: &str) -> Result<PromptFileEntry, String> {
        Ok(read_prompts(line.as_bytes(), "p").map_err(|e| e.to_string())?.entries.swap_remove(0))
    }

    /// Lines of other tools, and the parts that are sent.
    #[test]
    fn files_of_other_tools_are_read() {
        for (line, text, output) in [
            (r#"{"text": "Explain", "output_length": 7}"#, "Explain", Some(7)),
            (r#"{"prompt": "Tell", "prompt_tokens_count": 3, "output_tokens_count": 7}"#, "Tell", Some(7)),
            (r#"{"messages": [{"role": "user", "content": "Say"}], "max_tokens": 7}"#, "Say", Some(7)),
            (
                r#"{"custom_id": "r0", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": "Count"}], "max_completion_tokens": 9}}"#,
                "Count",
                Some(9),
            ),
            (
                r#"[{"id": "s", "conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So it is."}]}]"#,
                "Why?",
                Some(3),
            ),
            (
                r#"{"conversations": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a b"}]}"#,
                "Hi",
                Some(2),
            ),
            (r#"{"conversations": [{"role": "user", "content": "Hi"}]}"#, "Hi", None),
        ] {
            let entry = first(line).expect(line);
            let sent = entry.messages.last().expect("one").content.as_str();
            assert_eq!((sent, entry.output_tokens), (text, output), "{line}");
            assert!(entry.messages.iter().all(|message| message.written.is_none()), "{line}");
        }
        let read = read_prompts(
            br#"[{"conversations": []}, {"conversations": [{"from": "gpt", "value": "x"}]}, {"prompt": "a"}]"#,
            "p",
        );
        assert_eq!(read.map(|read| (read.entries.len(), read.empty)).expect("one"), (1, 2));
    }

    #[test]
    fn what_is_no_single_request_is_refused_with_the_wanted_form() {
        for (line, names) in [
            (r#"{"session_id": "u", "turns": [{"text": "a"}]}"#, "turns"),
            (r#"{"prompt": "a", "best_of": 3}"#, "best_of"),
            ("Tell me a story", "expected"),
            (r#"["a"]"#, "object"),
            (r#"{"prompt": ["a", "b"]}"#, "prompt"),
        ] {
            let why = first(line).expect_err(line);
            assert!(why.contains(names) && why.contains("want {\"prompt\""), "{line}: {why}");
        }
    }

    #[test]
    fn an_agents_conversation_is_kept_as_it_is_written() {
        let line = r#"{"messages": [{"role": "developer", "content": "Be terse."}, {"role": "user", "content": [{"type": "text", "text": "This?"}, {"type": "image_url", "image_url": {"url": "data:"}}]}, {"role": "assistant", "content": null, "tool_calls": []}, {"role": "user", "content": "So?"}], "tools": [{"type": "function"}]}"#;
        let entry = first(line).expect("read");
        let written: Vec<bool> = entry.messages.iter().map(|message| message.written.is_some()).collect();
        assert_eq!(written, [true, true, true, false]);
        let first = entry.messages[0].written.as_ref().expect("written");
        assert_eq!(first.fields, [("tools".to_owned(), r#"[{"type":"function"}]"#.to_owned())]);
        assert_eq!((entry.words, entry.messages[1].content.as_str()), (4, "This?"));
    }
}
