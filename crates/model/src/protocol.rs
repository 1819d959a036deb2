//! How an endpoint is spoken to, and what is known of each way of speaking: one table, so that a protocol is added in one
//! place outside of `wire`, which knows its bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::SizeUnit;

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
    /// Anthropic messages.
    Messages,
    /// Ollama's chat.
    OllamaChat,
    /// Ollama's generate.
    OllamaGenerate,
    /// Documents ranked by a query (Cohere, Jina, vLLM).
    Rerank,
    /// How alike a query and documents are (vLLM).
    Score,
    /// A text's pooled vectors (vLLM).
    Pooling,
    /// A text's class (vLLM).
    Classify,
    /// What is said in a sound (OpenAI, vLLM, whisper.cpp).
    Transcriptions,
    /// KServe v2 (the Open Inference Protocol) over HTTP: tensors in, tensors out, nothing generated.
    Kserve,
    /// The same over gRPC, where an answer may also come as a stream of responses (Triton's `ModelStreamInfer`).
    KserveGrpc,
    /// Any HTTP endpoint, by a body template.
    Http,
}

/// What a request of a protocol carries.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Carries {
    Messages,
    Text,
    Tensors,
    /// A query and documents that are held against it.
    Documents,
    Sound,
}

struct Facts {
    name: &'static str,
    /// Other names under which people know it.
    aliases: &'static [&'static str],
    /// Where servers answer it: the end of the usual base URL, and the path below that.
    route: Option<(&'static str, &'static str)>,
    carries: Carries,
    streams: bool,
    /// Does a stream come as lines of JSON, in place of server-sent events?
    lines: bool,
    /// Can a request ask for a length, and be judged by it?
    asks_length: bool,
    /// Is there a usual field that pins an answer to that length (`ignore_eos`)?
    pins_length: bool,
    provider: &'static str,
    operation: Option<&'static str>,
}

impl Protocol {
    /// Every protocol. Where a path ends in another's, the longer comes first ([`Protocol::at`]).
    pub const ALL: [Protocol; 15] = [
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
            // vLLM has these at its root alone.
            Protocol::Pooling => whole("pooling", Some(("", "/pooling")), Carries::Text),
            Protocol::Classify => whole("classify", Some(("", "/classify")), Carries::Text),
            Protocol::Transcriptions => Facts {
                aliases: &["transcription"],
                streams: true,
                ..whole("transcriptions", Some(("/v1", "/audio/transcriptions")), Carries::Sound)
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

    /// The name used in files, flags and on the screen.
    pub fn name(self) -> &'static str {
        self.facts().name
    }

    /// The protocol with this name, or one of its other names.
    pub fn from_name(name: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| {
            let facts = protocol.facts();
            facts.name == name || facts.aliases.contains(&name)
        })
    }

    /// Where its requests go, below an endpoint's base URL; `None` where the model or the URL itself says it.
    pub fn path(self) -> Option<&'static str> {
        self.facts().route.map(|(_, path)| path)
    }

    /// The path at which the usual servers answer it.
    pub fn route(self) -> Option<String> {
        self.facts().route.map(|(base, path)| format!("{base}{path}"))
    }

    /// The protocol whose requests go to this path, whatever stands before it.
    pub fn at(path: &str) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|protocol| protocol.path().is_some_and(|own| path.ends_with(own)))
    }

    /// What a request carries.
    pub fn carries(self) -> Carries {
        self.facts().carries
    }

    /// Can a request carry several texts, each with a result of its own?
    pub fn takes_texts(self) -> bool {
        self.carries() == Carries::Documents
            || matches!(self, Protocol::Pooling | Protocol::Classify | Protocol::Embeddings)
    }

    /// Can an answer come token by token?
    pub fn streams(self) -> bool {
        self.facts().streams
    }

    /// Does a streamed answer come as lines of JSON (`application/x-ndjson`), in place of server-sent events?
    pub fn sends_lines(self) -> bool {
        self.facts().lines
    }

    /// Can a request ask for a length in tokens that its answer is then judged by?
    pub fn asks_length(self) -> bool {
        self.facts().asks_length
    }

    /// Do its servers usually take `ignore_eos`, which pins an answer to the asked length?
    pub fn pins_length(self) -> bool {
        self.facts().pins_length
    }

    /// Whose protocol it is, in the words of OpenTelemetry's conventions (`gen_ai.provider.name`).
    pub fn provider(self) -> &'static str {
        self.facts().provider
    }

    /// What it does, in the words of OpenTelemetry's conventions (`gen_ai.operation.name`), where they have one.
    pub fn operation(self) -> Option<&'static str> {
        self.facts().operation
    }

    /// What the size of a request counts.
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
