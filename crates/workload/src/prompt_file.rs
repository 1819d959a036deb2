//! Prompts of the user's own: JSON Lines, one request a line.
//!
//! `{"prompt": "…"}` or `{"messages": [{"role": "user", "content": "…"}]}`, each with an optional `output_tokens`.
//! They are sent as they are, but for the salt. Plain text lines lost: a prompt with a line break in it would be two.

use plimsoll_model::{Message, Role};
use serde::Deserialize;

use crate::error::TraceError;
use crate::trace::{lines, unpack};

/// One line of a prompt file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The conversation to send; a bare prompt is one message of the user.
    pub messages: Vec<Message>,
    /// Output tokens to ask for; none = the scenario's sizes.
    pub output_tokens: Option<u32>,
    /// Whitespace-separated words in it.
    pub words: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<LineMessage>>,
    output_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineMessage {
    role: Role,
    content: String,
}

/// Reads a prompt file, gzipped or not. Blank lines are skipped.
///
/// # Errors
/// [`TraceError`] with the number of the first line that is no prompt; line 0 where there is none at all.
pub fn read_prompts(bytes: &[u8], name: &str) -> Result<Vec<Entry>, TraceError> {
    let bytes = unpack(bytes, name)?;
    let mut entries = Vec::new();
    for (number, text) in lines(&bytes, name) {
        let text = text?;
        let broken = |what: String| TraceError { file: name.to_string(), line: number, what };
        let line: Line = serde_json::from_str(text).map_err(|e| {
            broken(format!(
                "{e}; want {{\"prompt\": …}} or {{\"messages\": […]}} and optionally output_tokens"
            ))
        })?;
        let messages = match (line.prompt, line.messages) {
            (Some(content), None) => vec![Message::text(Role::User, content)],
            (None, Some(list)) if !list.is_empty() => {
                list.into_iter().map(|m| Message::text(m.role, m.content)).collect()
            }
            _ => return Err(broken("want either \"prompt\" or a non-empty \"messages\"".to_string())),
        };
        if line.output_tokens == Some(0) {
            return Err(broken("output_tokens is 0; want at least 1".to_string()));
        }
        let words = messages.iter().map(|m| m.content.split_whitespace().count()).sum::<usize>();
        let words = u32::try_from(words).unwrap_or(u32::MAX);
        entries.push(Entry { messages, output_tokens: line.output_tokens, words });
    }
    match entries.is_empty() {
        true => Err(TraceError { file: name.to_string(), line: 0, what: "holds no prompt".to_string() }),
        false => Ok(entries),
    }
}
