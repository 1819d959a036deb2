//! Defines the protocols of endpoints and their properties in one table. A new protocol changes only this file and `wire`,
//! which implements the encoding.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SizeUnit;

/// Protocol of an endpoint.
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
    /// Anthropic messages.
    Messages,
    /// Ollama chat.
    OllamaChat,
    /// Ollama generate.
    OllamaGenerate,
    /// Documents ranked by a query (Cohere, Jina, vLLM).
    Rerank,
    /// Similarity of a query and documents (vLLM).
    Score,
    /// Pooled vectors of a text (vLLM).
    Pooling,
    /// Classification of a text (vLLM).
    Classify,
    /// Audio transcriptions (OpenAI, vLLM, whisper.cpp).
    Transcriptions,
    /// Speech from a text (OpenAI, vLLM).
    Speech,
    /// Images from a text (OpenAI, vLLM, SGLang).
    Images,
    /// KServe v2 (Open Inference Protocol) over HTTP: tensors in and out, without generation.
    Kserve,
    /// KServe v2 over gRPC, which also permits a stream of responses (Triton's `ModelStreamInfer`).
    KserveGrpc,
    /// Any HTTP endpoint, by a body template.
    Http,
}

/// The content of a protocol's requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Carries {
    Messages,
    Text,
    Tensors,
    /// A query and the documents to compare with it.
    Documents,
    Sound,
}

struct Facts {
    name: &'static str,
    /// Other common names of the protocol.
    aliases: &'static [&'static str],
    /// Usual path on servers: the end of the base URL, and the path below it.
    route: Option<(&'static str, &'static str)>,
    carries: Carries,
    streams: bool,
    /// Set if a stream consists of JSON lines instead of server-sent events.
    lines: bool,
    /// Set if a request can set the output length, which then applies to its response.
    asks_length: bool,
    /// Set if a common field makes the output have the requested length (`ignore_eos`).
    pins_length: bool,
    provider: &'static str,
    operation: Option<&'static str>,
}

impl Protocol {
    /// All protocols. If a path ends with another's path, the longer one is first ([`Protocol::at`]).
    pub const ALL: [Protocol; 17] = [
        Protocol::Chat,
        Protocol::Completions,
        Protocol::Responses,
        Protocol::Embeddings,
        Protocol::Messages,
        Protocol::OllamaChat,
        Protocol::OllamaGenerate,
        Protocol::Rerank,
        Protocol::Score,
        Protocol::Pooling,
        Protocol::Classify,
        Protocol::Transcriptions,
        Protocol::Speech,
        Protocol::Images,
        Protocol::Kserve,
        Protocol::KserveGrpc,
        Protocol::Http,
    ];

    fn facts(self) -> Facts {
        let generates = |name, path, carries, operation| Facts {
            name,
            aliases: &[],
            route: Some(("/v1", path)),
            carries,
            streams: true,
            lines: false,
            asks_length: true,
            pins_length: true,
            provider: "openai",
            operation: Some(operation),
        };
        let whole = |name, route, carries| Facts {
            name,
            aliases: &[],
            route,
            carries,
            streams: false,
            lines: false,
            asks_length: false,
            pins_length: false,
            provider: "openai",
            operation: None,
        };
        let ollama = |name, path, carries, operation| Facts {
            route: Some(("", path)),
            lines: true,
            pins_length: false,
            provider: "ollama",
            ..generates(name, path, carries, operation)
        };
        match self {
            Protocol::Chat => generates("chat", "/chat/completions", Carries::Messages, "chat"),
            Protocol::Completions => {
                generates("completions", "/completions", Carries::Text, "text_completion")
            }
            Protocol::Responses => generates("responses", "/responses", Carries::Messages, "chat"),
            Protocol::Embeddings => Facts {
                streams: false,
                asks_length: false,
                ..generates("embeddings", "/embeddings", Carries::Text, "embeddings")
            },
            Protocol::Messages => Facts {
                aliases: &["anthropic"],
                pins_length: false,
                provider: "anthropic",
                ..generates("messages", "/messages", Carries::Messages, "chat")
            },
            Protocol::OllamaChat => Facts {
                aliases: &["ollama", "ollama-chat"],
                ..ollama("ollama_chat", "/api/chat", Carries::Messages, "chat")
            },
            Protocol::OllamaGenerate => Facts {
                aliases: &["ollama-generate"],
                ..ollama("ollama_generate", "/api/generate", Carries::Text, "text_completion")
            },
            Protocol::Rerank => whole("rerank", Some(("/v1", "/rerank")), Carries::Documents),
            Protocol::Score => whole("score", Some(("/v1", "/score")), Carries::Documents),
            // vLLM serves these only at its root.
            Protocol::Pooling => whole("pooling", Some(("", "/pooling")), Carries::Text),
            Protocol::Classify => whole("classify", Some(("", "/classify")), Carries::Text),
            Protocol::Transcriptions => Facts {
                aliases: &["transcription"],
                streams: true,
                ..whole("transcriptions", Some(("/v1", "/audio/transcriptions")), Carries::Sound)
            },
            Protocol::Speech => Facts {
                aliases: &["tts"],
                streams: true,
                ..whole("speech", Some(("/v1", "/audio/speech")), Carries::Text)
            },
            Protocol::Images => Facts {
                aliases: &["image"],
                ..whole("images", Some(("/v1", "/images/generations")), Carries::Text)
            },
            Protocol::Kserve => Facts {
                aliases: &["kserve-v2", "kserve_v2", "triton", "oip"],
                ..whole("kserve", None, Carries::Tensors)
            },
            Protocol::KserveGrpc => Facts {
                aliases: &["kserve-grpc", "triton-grpc", "triton_grpc"],
                streams: true,
                ..whole("kserve_grpc", None, Carries::Tensors)
            },
            Protocol::Http => Facts {
                name: "http",
                aliases: &[],
                route: None,
                carries: Carries::Text,
                streams: true,
                lines: false,
                asks_length: false,
                pins_length: true,
                provider: "openai",
                operation: None,
            },
        }
    }

    /// Returns the name for files, flags and display.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// Returns the protocol with this name or alias.
    pub fn from_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| {
            let facts = protocol.facts();
            facts.name == name || facts.aliases.contains(&name)
        })
    }

    /// Returns the path of requests below an endpoint's base URL; `None` if the model or the URL determines it.
    pub fn path(self) -> Option<&'static str> {
        self.facts().route.map(|(_, path)| path)
    }

    /// Returns the usual absolute path on servers.
    pub fn route(self) -> Option<String> {
        self.facts().route.map(|(base, path)| format!("{base}{path}"))
    }

    /// Returns the protocol whose requests use this path, with any prefix.
    pub fn at(path: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.path().is_some_and(|own| path.ends_with(own)))
    }

    /// Returns the content type of requests.
    pub fn carries(self) -> Carries {
        self.facts().carries
    }

    /// Returns whether a request can have several texts with a result each.
    pub fn takes_texts(self) -> bool {
        self.carries() == Carries::Documents
            || matches!(self, Protocol::Pooling | Protocol::Classify | Protocol::Embeddings)
    }

    /// Returns whether a response can arrive in parts.
    pub fn streams(self) -> bool {
        self.facts().streams
    }

    /// Returns whether a scenario's output length applies. The request determines the length of transcriptions and speech.
    pub fn takes_output_length(self) -> bool {
        self.streams() && !matches!(self, Protocol::Transcriptions | Protocol::Speech)
    }

    /// Returns whether servers usually report the length of a request's text in tokens.
    pub fn reports_prompt_tokens(self) -> bool {
        let never = [Protocol::Transcriptions, Protocol::Speech, Protocol::Images, Protocol::Http];
        self.counts() == SizeUnit::Tokens && !never.contains(&self)
    }

    /// Returns whether a stream consists of JSON lines (`application/x-ndjson`) instead of server-sent events.
    pub fn sends_lines(self) -> bool {
        self.facts().lines
    }

    /// Returns whether a request can set the output length in tokens, which then applies to its response.
    pub fn asks_length(self) -> bool {
        self.facts().asks_length
    }

    /// Returns whether servers usually support `ignore_eos`, which makes the output have the requested length.
    pub fn pins_length(self) -> bool {
        self.facts().pins_length
    }

    /// Returns the provider in OpenTelemetry's conventions (`gen_ai.provider.name`).
    pub fn provider(self) -> &'static str {
        self.facts().provider
    }

    /// Returns the operation in OpenTelemetry's conventions (`gen_ai.operation.name`); `None` without a defined value.
    pub fn operation(self) -> Option<&'static str> {
        self.facts().operation
    }

    /// Returns the unit of a request's size.
    pub fn counts(self) -> SizeUnit {
        if self.carries() == Carries::Tensors { SizeUnit::Items } else { SizeUnit::Tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_and_paths_find_their_own_protocol() {
        for protocol in Protocol::ALL {
            assert_eq!(serde_json::to_value(protocol).unwrap(), protocol.name());
            assert_eq!(Protocol::from_name(protocol.name()), Some(protocol));
            if let Some(path) = protocol.path() {
                assert_eq!(Protocol::at(path), Some(protocol));
                assert_eq!(Protocol::at(&format!("/team/v1{path}")), Some(protocol));
            }
        }
        assert_eq!(Protocol::from_name("triton"), Some(Protocol::Kserve));
        assert_eq!((Protocol::from_name("smoke"), Protocol::at("/v1/models")), (None, None));
    }
}
