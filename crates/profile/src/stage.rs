//! The canonical stages: one vocabulary for the parts of any tracer, server or inference.
//!
//! Free names were rejected in favour of a closed list. A budget slice, a baseline and a rule must have one meaning
//! in two systems. Time without a rule is shown as unattributed and not as a new stage. `model_call` is in the list
//! because most applications trace the call and not the engine. The wait for the model is then known, and its parts
//! are not.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

plimsoll_model::named! {
    /// A stage of the serving path.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[repr(u8)]
    pub enum Stage {
        /// Client time: lag of the generator, and the wait for a connection.
        ClientWait = 0 => "client_wait",
        /// A gateway, proxy or application handler, except for parts with a separate stage.
        Gateway => "gateway",
        /// Authentication and authorisation.
        Auth => "auth",
        /// Delay of a request by a rate limit.
        RateLimit => "rate_limit",
        /// Embedding of a query as a vector.
        Embed => "embed",
        /// Retrieval of documents.
        Retrieve => "retrieve",
        /// Reranking of documents.
        Rerank => "rerank",
        /// Building the prompt from its parts.
        PromptAssembly => "prompt_assembly",
        /// Conversion of the text to tokens.
        #[serde(alias = "tokenize")]
        Tokenise => "tokenise",
        /// Preparation of the input of a model that is not a language model.
        #[serde(alias = "pre_process")]
        Preprocess => "preprocess",
        /// In the engine, and not yet running.
        Queue => "queue",
        /// Waiting for a batch to fill.
        BatchWait => "batch_wait",
        /// Computation of the prompt before the first token.
        Prefill => "prefill",
        /// Computation of the output tokens, step by step.
        Decode => "decode",
        /// Computation of a model that does not generate.
        Compute => "compute",
        /// An untraced model call: queue, prefill, decode and network together.
        ModelCall => "model_call",
        /// Conversion of the tokens to text.
        #[serde(alias = "detokenize")]
        Detokenise => "detokenise",
        /// Processing of the response: filters, guardrails, formats.
        #[serde(alias = "post_process")]
        Postprocess => "postprocess",
        /// Encoding of the response.
        #[serde(alias = "serialize")]
        Serialise => "serialise",
        /// Transfer between two processes.
        Network => "network",
        /// Time that belongs to no known stage.
        Unattributed => "unattributed",
    }
}

impl Stage {
    pub const COUNT: usize = Stage::ALL.len();

    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the stage for a name in a budget file or of a server; spelling variants, case and separators are
    /// accepted.
    pub fn from_name(name: &str) -> Option<Stage> {
        let plain = name.trim().to_ascii_lowercase().replace(['-', ' '], "_").replace("ize", "ise");
        let known = Stage::ALL.into_iter().find(|stage| stage.name() == plain);
        known.or_else(|| {
            Some(match plain.as_str() {
                "client" => Stage::ClientWait,
                "authentication" | "authorisation" => Stage::Auth,
                "ratelimit" => Stage::RateLimit,
                "embedding" | "embeddings" => Stage::Embed,
                "retrieval" | "search" | "vector_search" => Stage::Retrieve,
                "reranker" | "reranking" => Stage::Rerank,
                "prompt" => Stage::PromptAssembly,
                "tokenisation" | "tokeniser" => Stage::Tokenise,
                "pre_process" | "pre_processing" | "preprocessing" => Stage::Preprocess,
                "post_process" | "post_processing" | "postprocessing" => Stage::Postprocess,
                "detokenisation" => Stage::Detokenise,
                "inference" | "infer" => Stage::Compute,
                "model" => Stage::ModelCall,
                "serialisation" | "response" => Stage::Serialise,
                _ => return None,
            })
        })
    }

    /// Returns whether spans below this stage belong to it, unless a rule sets another stage. A database call inside
    /// a retrieval is retrieval; an unknown call inside a gateway is not the gateway's.
    pub fn covers(self) -> bool {
        !matches!(self, Stage::ClientWait | Stage::Gateway | Stage::Network | Stage::Unattributed)
    }

    /// Returns whether the stage can outlive the span that started it. A streamed response can; a log written
    /// afterwards is not part of the request.
    pub fn streams(self) -> bool {
        matches!(
            self,
            Stage::Queue
                | Stage::Prefill
                | Stage::Decode
                | Stage::Compute
                | Stage::ModelCall
                | Stage::Detokenise
                | Stage::Serialise
                | Stage::Network
        )
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Stage;

    #[test]
    fn every_stage_is_where_it_says_and_finds_itself_by_name() {
        for (i, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage.index(), i);
            assert_eq!(Stage::from_name(stage.name()), Some(stage));
        }
        for (said, meant) in [
            ("Tokenize", Stage::Tokenise),
            ("prompt assembly", Stage::PromptAssembly),
            ("post-processing", Stage::Postprocess),
            ("search", Stage::Retrieve),
        ] {
            assert_eq!(Stage::from_name(said), Some(meant), "{said}");
        }
        assert_eq!(Stage::from_name("lunch"), None);
    }
}
