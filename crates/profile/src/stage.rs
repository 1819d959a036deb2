//! The canonical stages: one vocabulary for whatever a tracer, a server or an inference calls its parts.
//!
//! A closed list won over free names: a budget slice, a baseline and a rule must mean the same thing in two systems, and what
//! no rule knows is shown as such and not as a stage of its own. `model_call` is on it because most applications trace the
//! call and not the engine: that a request waited for the model is known, what the model did meanwhile is not.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

plimsoll_model::named! {
    /// A stage of the serving path.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    #[repr(u8)]
    pub enum Stage {
        /// The client's own time: due and not sent, a connection not there yet.
        ClientWait = 0 => "client_wait",
        /// A gateway, proxy or application handler, beside what has a stage of its own.
        Gateway => "gateway",
        /// Who is asking, and may they.
        Auth => "auth",
        /// Held back by a limit.
        RateLimit => "rate_limit",
        /// The embedding of a query.
        Embed => "embed",
        /// Looking up documents.
        Retrieve => "retrieve",
        /// Ordering them again.
        Rerank => "rerank",
        /// Building the prompt.
        PromptAssembly => "prompt_assembly",
        /// Text to tokens.
        #[serde(alias = "tokenize")]
        Tokenise => "tokenise",
        /// Input made ready for a model that is no language model.
        #[serde(alias = "pre_process")]
        Preprocess => "preprocess",
        /// In the engine and not yet running.
        Queue => "queue",
        /// Waiting for a batch to fill.
        BatchWait => "batch_wait",
        /// The prompt is computed.
        Prefill => "prefill",
        /// Tokens are computed.
        Decode => "decode",
        /// The model runs, where it does not generate.
        Compute => "compute",
        /// A call of a model whose inside nobody traced: queue, prefill, decode and network together.
        ModelCall => "model_call",
        /// Tokens to text.
        #[serde(alias = "detokenize")]
        Detokenise => "detokenise",
        /// What is done with the answer: filters, guardrails, formats.
        #[serde(alias = "post_process")]
        Postprocess => "postprocess",
        /// The answer is encoded.
        #[serde(alias = "serialize")]
        Serialise => "serialise",
        /// Between two processes.
        Network => "network",
        /// Nobody says.
        Unattributed => "unattributed",
    }
}

impl Stage {
    pub const COUNT: usize = Stage::ALL.len();

    /// Its place in [`Stage::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The stage that a budget file or a server means by this name; spelling, case and joints are forgiven.
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

    /// Is what runs below a span of this stage a part of the stage, unless a rule says otherwise? A database call inside a
    /// retrieval is retrieval; an unknown call inside a gateway is not the gateway's.
    pub fn covers(self) -> bool {
        !matches!(self, Stage::ClientWait | Stage::Gateway | Stage::Network | Stage::Unattributed)
    }

    /// Can it go on after the span that began it has ended? An answer that streams does; a log written afterwards is none of the
    /// request's time.
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
