//! What is asked of an endpoint, before any protocol has turned it into bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How an endpoint is spoken to.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// OpenAI chat completions.
    #[default]
    Chat,
    /// OpenAI (legacy) completions.
    Completions,
    /// OpenAI responses.
    Responses,
    /// OpenAI embeddings.
    Embeddings,
    /// Any HTTP endpoint, by a body template.
    Http,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Protocol; 5] =
        [Protocol::Chat, Protocol::Completions, Protocol::Responses, Protocol::Embeddings, Protocol::Http];

    /// The name used in files, flags and on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Chat => "chat",
            Protocol::Completions => "completions",
            Protocol::Responses => "responses",
            Protocol::Embeddings => "embeddings",
            Protocol::Http => "http",
        }
    }
}

/// Who speaks a [`Message`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The operator's instructions.
    System,
    /// The person.
    User,
    /// The model, in an earlier turn.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// What one request carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// A conversation: chat and responses.
    Messages(Vec<Message>),
    /// A plain text: completions, embeddings, the `{{prompt}}` of a template.
    Text(String),
}
