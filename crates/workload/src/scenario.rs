//! Defines the scenario: the scenario file, the manifest's section, and the input of this crate.
//!
//! Every field has a default, and every default is written into the manifest. The rate is separate from the arrival
//! process, so that a sweep varies only the rate. Files are named and not opened, because this crate reads no files;
//! [`Scenario::attach`] passes their bytes.

use plimsoll_model::{Carries, Protocol, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arrivals::{ArrivalSpec, TraceSizes};
use crate::material::ParsedFiles;
use crate::media::{AudioSpec, ImageSpec};
use crate::policy::ClientSpec;
use crate::scrape::ScrapeSpec;
use crate::sizes::{Pause, Size};
use crate::target::TargetSpec;
use crate::trace::Trace;
use crate::units::{Rate, SpanText, format_span, span_text, span_text_opt};
use crate::{Documents, SpecError, check};

/// The complete description of a run, as a file.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Settings of the endpoint, the protocol and the requests.
    pub target: TargetSpec,
    /// Amount and duration of the load.
    pub load: LoadSpec,
    /// Arrival process: the distribution of arrivals in time.
    pub arrivals: ArrivalSpec,
    /// Lengths of prompts and outputs, in tokens.
    pub sizes: SizeSpec,
    /// Content of the prompts, with shared prefixes, sessions and media.
    pub prompts: PromptSpec,
    /// Request classes; default: one class with the scenario's sizes and prompts.
    pub classes: Vec<ClassSpec>,
    /// The classes are the stages of a chain. Each start sends one request per class, in this order, and each waits for
    /// the answer before it. Default false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub chain: bool,
    /// Behaviour of the client: connections, time limits, retries.
    pub client: ClientSpec,
    /// Metrics endpoints to scrape during the run.
    pub scrape: ScrapeSpec,
    /// Seed of all random choices; default 0.
    pub seed: u64,
    /// Salt of the prompts; default: a new value per run.
    pub nonce: Option<u64>,
    /// Content of the files that the scenario names.
    #[serde(skip)]
    #[schemars(skip)]
    pub material: ParsedFiles,
}

/// Amount and duration of the load.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum LoadSpec {
    /// Open loop: arrivals follow the schedule, independent of the server.
    Open {
        /// Mean arrivals per second; default: the rate of the trace.
        #[serde(default)]
        rate: Option<Rate>,
        /// Duration of the arrivals; default 60s.
        #[serde(default = "default_window", with = "span_text")]
        #[schemars(with = "SpanText")]
        window: Span,
        /// Uncounted requests before the measured part, one at a time; default 0.
        #[serde(default, skip_serializing_if = "is_none")]
        warm_up: u32,
        /// Isolated requests (one in flight) in a separate level before the load; default 0. A diagnosis uses them as
        /// latency baseline.
        #[serde(default, skip_serializing_if = "is_none")]
        alone: u32,
    },
    /// Closed loop: a fixed number of requests in flight. With sessions it is a fixed number of users, and a thinking user
    /// has none in flight.
    Closed {
        /// Number of requests in flight, or users.
        concurrency: u32,
        /// Time during which new requests begin; default 60s.
        #[serde(default = "default_window", with = "span_text")]
        #[schemars(with = "SpanText")]
        window: Span,
        /// Number of requests (with sessions: conversations) after which the level ends; default: no limit. The level lasts
        /// until the last response.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requests: Option<u64>,
        /// Uncounted requests before the measured part, with the concurrency of the level; default 0.
        #[serde(default, skip_serializing_if = "is_none")]
        warm_up: u32,
    },
    /// A single burst: all requests are sent immediately, and the level lasts until the last response.
    Wave {
        /// Number of requests in the burst.
        requests: u32,
        /// Uncounted requests before the measured part, one at a time; default 0.
        #[serde(default, skip_serializing_if = "is_none")]
        warm_up: u32,
    },
    /// Closed loop whose concurrency doubles until throughput stops growing.
    Saturating {
        /// Duration of each step; default 60s.
        #[serde(default = "default_window", with = "span_text")]
        #[schemars(with = "SpanText")]
        window: Span,
    },
}

fn is_none(n: &u32) -> bool {
    *n == 0
}

/// Longest duration of a level that ends with its requests.
pub const LONGEST: Span = Span::from_secs(24 * 3600);

fn default_window() -> Span {
    Span::from_secs(60)
}

impl Default for LoadSpec {
    fn default() -> LoadSpec {
        LoadSpec::Open { rate: None, window: default_window(), warm_up: 0, alone: 0 }
    }
}

impl LoadSpec {
    /// Returns the time during which requests begin.
    pub fn window(&self) -> Span {
        match self {
            LoadSpec::Open { window, .. }
            | LoadSpec::Closed { window, .. }
            | LoadSpec::Saturating { window } => *window,
            LoadSpec::Wave { .. } => LONGEST,
        }
    }

    /// Returns the number of uncounted requests before the measured part.
    pub fn warm_up(&self) -> u32 {
        match self {
            LoadSpec::Open { warm_up, .. }
            | LoadSpec::Closed { warm_up, .. }
            | LoadSpec::Wave { warm_up, .. } => *warm_up,
            LoadSpec::Saturating { .. } => 0,
        }
    }

    /// Returns the number of isolated requests before the load.
    pub fn alone(&self) -> u32 {
        match self {
            LoadSpec::Open { alone, .. } => *alone,
            _ => 0,
        }
    }
}

/// Prompt and output lengths. The replay of a trace uses the trace's lengths, unless its `sizes` is `drawn`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SizeSpec {
    /// Prompt tokens (with sessions: of each turn's new message); for `kserve`, rows per request; default 128.
    pub prompt: Size,
    /// Output tokens; default 64. With 0 no length is requested, for endpoints that generate no tokens or a body template.
    pub output: Size,
    /// Trace or table file from which (prompt, output) pairs are drawn, in place of the two distributions.
    pub pairs: Option<String>,
}

impl Default for SizeSpec {
    fn default() -> SizeSpec {
        SizeSpec { prompt: Size::Fixed(128), output: Size::Fixed(64), pairs: None }
    }
}

/// Content of the prompts, with shared prefixes, sessions and media.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PromptSpec {
    /// JSON Lines file with prompts, in place of synthetic text.
    pub file: Option<String>,
    /// Order in which the lines of `file` are used; default `cycle`.
    pub order: PromptOrder,
    /// Prefixes that prompts share; absent without shared prefixes.
    pub shared_prefix: Option<SharedPrefix>,
    /// Conversations of several turns; absent for single requests.
    pub sessions: Option<SessionSpec>,
    /// Source of the earlier answers in a session's prompts; default `synthetic`.
    pub answers: AnswerText,
    /// Images in every user message; absent without images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageSpec>,
    /// Audio clips in every user message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<AudioSpec>,
    /// Let the nonce change the text, so that a cache from an earlier run has no hits; default true.
    pub salt: bool,
    /// Words of synthetic text per requested token, calibrated with the server's `usage`; default 1.
    pub words_per_token: f64,
    /// Tokens of the server's chat template around every synthetic prompt, which is shortened by this number; default 0.
    /// Measured together with `words_per_token`.
    pub template_tokens: u32,
}

impl Default for PromptSpec {
    fn default() -> PromptSpec {
        PromptSpec {
            file: None,
            order: PromptOrder::Cycle,
            shared_prefix: None,
            sessions: None,
            answers: AnswerText::Synthetic,
            images: None,
            audio: None,
            salt: true,
            words_per_token: 1.0,
            template_tokens: 0,
        }
    }
}

/// Source of the earlier answers in a session's prompts.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerText {
    /// Synthetic text of the requested length, so that prompts do not depend on the server and are equal in two runs.
    #[default]
    Synthetic,
    /// The server's real answers, kept in memory until the session ends and never written to disk.
    Real,
}

/// Order in which the lines of a prompt file are used.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptOrder {
    /// First to last, then from the start again.
    #[default]
    Cycle,
    /// Random lines, each with equal probability.
    Random,
}

/// Prefixes that prompts share: each prompt begins with the text of one of `groups` groups.
///
/// The share applies to *each* prompt: of n tokens the first `share · n` belong to the group. A fixed prefix length was
/// rejected, because short prompts would consist of only the prefix, and the shared part would depend on the drawn lengths.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// Number of groups with equal probability.
    pub groups: u32,
    /// Share of the prompt's tokens that belongs to the group, 0 to 1.
    pub share: f64,
}

/// Conversations of several turns. Each turn contains the conversation so far.
///
/// The assistant's part is synthetic text of the *requested* output length and not the server's answer. Prompts therefore
/// remain a function of spec, seed and nonce. A server's cache shares the user's part and the prompt prefix, but not
/// generated text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionSpec {
    /// Number of turns per session, as a size.
    pub turns: Size,
    /// Think time from the end of a turn to the start of the next one; default: exponential with mean 10s.
    #[serde(default = "default_think")]
    pub think: Pause,
}

fn default_think() -> Pause {
    Pause::Exponential(Span::from_secs(10))
}

/// A class of requests with its own settings.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassSpec {
    /// Name of the class in reports.
    pub name: String,
    /// Share of the requests, relative to the other classes; default 1.
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// Prompt and output lengths; default: the scenario's.
    #[serde(default)]
    pub sizes: Option<SizeSpec>,
    /// Content of the prompts; default: the scenario's.
    #[serde(default)]
    pub prompts: Option<PromptSpec>,
    /// Model or adapter; default: the target's.
    #[serde(default)]
    pub model: Option<String>,
    /// Documents per request; default: the target's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<Documents>,
    /// Target of the class: endpoint, protocol and requests. Default: the scenario's. Without `url`, or with only a path,
    /// the host and its credentials are the scenario's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetSpec>,
    /// Latency of the class in simulations, in place of the simulated engine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Pause>,
    /// Priority in the server's queue, 1 = highest (`kserve`, `kserve_grpc`); default: the server's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// Queue timeout on the server (`kserve`, `kserve_grpc`); default: the server's.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub queue_timeout: Option<Span>,
}

fn default_weight() -> f64 {
    1.0
}

impl Default for ClassSpec {
    fn default() -> ClassSpec {
        ClassSpec {
            name: String::new(),
            weight: default_weight(),
            sizes: None,
            prompts: None,
            model: None,
            documents: None,
            target: None,
            simulated: None,
            priority: None,
            queue_timeout: None,
        }
    }
}

impl Scenario {
    /// Parses a scenario from JSON. Keys and names are checked against the schema, and numbers against their ranges.
    ///
    /// # Errors
    /// Fails with any [`SpecError`] that is not about a file.
    pub fn from_json(value: &Value) -> Result<Scenario, SpecError> {
        check::scenario(value)?;
        let scenario: Scenario = serde_json::from_value(value.clone()).map_err(|e| SpecError::Conflict {
            path: String::new(),
            what: format!("the scenario can't be read: {e}"),
        })?;
        scenario.validate()?;
        Ok(scenario)
    }

    /// Reads and parses the files of the scenario. `read` returns the bytes of a file name, or the reason of a failure.
    ///
    /// # Errors
    /// Fails with [`SpecError::File`] or [`SpecError::Trace`].
    pub fn attach(&mut self, read: impl FnMut(&str) -> Result<Vec<u8>, String>) -> Result<(), SpecError> {
        self.material = ParsedFiles::load(self, read)?;
        Ok(())
    }

    /// Returns the mean arrivals per second of the open mode: the configured rate, or the trace's rate times its speed.
    ///
    /// # Errors
    /// Fails with [`SpecError::Missing`] if neither is known or the mode is another, and with [`SpecError::Conflict`] if
    /// both a rate and a speed are given.
    pub fn rate(&self) -> Result<f64, SpecError> {
        let LoadSpec::Open { rate, .. } = &self.load else {
            return Err(SpecError::Missing {
                path: "load.rate".into(),
                want: "only the open mode has a rate".into(),
            });
        };
        match (rate, &self.arrivals) {
            (Some(_), ArrivalSpec::Trace { speed: Some(_), .. }) => Err(SpecError::Conflict {
                path: "load.rate".into(),
                what: "a rate and a trace speed set the same value; give only one".into(),
            }),
            (Some(rate), _) => Ok(rate.as_per_s()),
            (None, ArrivalSpec::Trace { file, speed, .. }) => {
                Ok(self.material.trace(file)?.rate_per_s()? * speed.unwrap_or(1.0))
            }
            (None, _) => Err(SpecError::Missing {
                path: "load.rate".into(),
                want: "how many arrivals per second, such as 12/s".into(),
            }),
        }
    }

    /// Returns the duration of the trace at [`Scenario::rate`]; `None` for other processes.
    pub fn trace_window(&self) -> Result<Option<Span>, SpecError> {
        match self.trace()? {
            Some(trace) => Ok(Some(Span::from_secs_f64(trace.rows.len() as f64 / self.rate()?))),
            None => Ok(None),
        }
    }

    /// Returns the replayed trace; `None` for other processes.
    pub fn trace(&self) -> Result<Option<&Trace>, SpecError> {
        match &self.arrivals {
            ArrivalSpec::Trace { file, .. } => Ok(Some(self.material.trace(file)?.as_ref())),
            _ => Ok(None),
        }
    }

    /// Returns whether started sessions are played to their end without a time limit. Sessions of a trace are, because a
    /// cut would remove the long ones.
    pub fn plays_sessions_out(&self) -> bool {
        matches!(self.trace(), Ok(Some(trace)) if trace.graph.is_some())
    }

    /// Returns the number of request classes, at least 1.
    pub fn class_count(&self) -> usize {
        self.classes.len().max(1)
    }

    pub fn sizes_of(&self, class: u16) -> &SizeSpec {
        self.classes.get(class as usize).and_then(|c| c.sizes.as_ref()).unwrap_or(&self.sizes)
    }

    pub fn prompts_of(&self, class: u16) -> &PromptSpec {
        self.classes.get(class as usize).and_then(|c| c.prompts.as_ref()).unwrap_or(&self.prompts)
    }

    /// Returns the documents of a class; `None` if its requests have a single text.
    pub fn documents_of(&self, class: u16) -> Option<Documents> {
        let target = self.requests_of(class);
        let protocol = target.protocol;
        let own = self.classes.get(class as usize).and_then(|c| c.documents.as_ref());
        let said = own.or(target.documents.as_ref());
        match protocol.carries() {
            Carries::Documents => Some(said.cloned().unwrap_or_else(Documents::usual)),
            _ => said.filter(|_| protocol.takes_texts()).cloned(),
        }
    }

    /// Checks rules that the schema can't express: ranges, and settings that exclude each other.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.load.window().0 <= 0 {
            return Err(SpecError::value("load.window", format_span(self.load.window()), "a span above 0"));
        }
        if matches!(self.load, LoadSpec::Closed { concurrency: 0, .. }) {
            return Err(SpecError::value("load.concurrency", 0, "a concurrency of at least 1"));
        }
        if matches!(
            self.load,
            LoadSpec::Wave { requests: 0, .. } | LoadSpec::Closed { requests: Some(0), .. }
        ) {
            return Err(SpecError::value("load.requests", 0, "at least 1 request"));
        }
        for class in 0..self.class_count() as u16 {
            if self.sizes_of(class).prompt == Size::Fixed(0) {
                return Err(SpecError::value("sizes.prompt", 0, "at least 1 token"));
            }
            let prompts = self.prompts_of(class);
            let target = self.requests_of(class);
            target.carries_media(prompts.images.is_some(), prompts.audio.is_some())?;
            if target.protocol.carries() == Carries::Sound {
                prompts.one_sound()?;
            }
        }
        self.target.validate().map_err(|e| e.at("target"))?;
        self.documents()?;
        self.validate_chain()?;
        self.arrivals.validate().map_err(|e| e.at("arrivals"))?;
        self.prompts.validate().map_err(|e| e.at("prompts"))?;
        self.client.validate().map_err(|e| e.at("client"))?;
        if self.classes.len() > usize::from(u16::MAX) {
            return Err(SpecError::value("classes", self.classes.len(), "at most 65535 classes"));
        }
        for (i, class) in self.classes.iter().enumerate() {
            if !(class.weight.is_finite() && class.weight >= 0.0) {
                return Err(SpecError::value(
                    &format!("classes.{i}.weight"),
                    class.weight,
                    "a weight of 0 or more",
                ));
            }
            class
                .validate_queue(self.requests_of(i as u16).protocol)
                .map_err(|e| e.at(&format!("classes.{i}")))?;
            if let Some(prompts) = &class.prompts {
                prompts.validate().map_err(|e| e.at(&format!("classes.{i}.prompts")))?;
            }
        }
        if !self.classes.is_empty() && self.classes.iter().map(|c| c.weight).sum::<f64>() <= 0.0 {
            return Err(SpecError::value("classes", "all weights 0", "at least one weight above 0"));
        }
        if matches!(self.arrivals, ArrivalSpec::Trace { .. })
            && (0..self.class_count() as u16).any(|class| self.prompts_of(class).sessions.is_some())
        {
            return Err(SpecError::Conflict {
                path: "prompts.sessions".into(),
                what: "a trace has its own arrivals; sessions need a generated process".into(),
            });
        }
        Ok(())
    }
}

impl Scenario {
    fn documents(&self) -> Result<(), SpecError> {
        let given = |path: String, law: Option<&Documents>, protocol: Protocol| {
            law.map_or(Ok(()), |law| law.validate(protocol).map_err(|e| e.at(&path)))
        };
        given("target.documents".into(), self.target.documents.as_ref(), self.target.protocol)?;
        for (i, class) in self.classes.iter().enumerate() {
            let target = self.requests_of(i as u16);
            given(format!("classes.{i}.documents"), class.documents.as_ref(), target.protocol)?;
            given(format!("classes.{i}.target.documents"), target.documents.as_ref(), target.protocol)?;
        }
        let own = |class: &u16| self.documents_of(*class).is_some_and(|law| law.length.is_some());
        for prompts in (0..self.class_count() as u16).filter(own).map(|class| self.prompts_of(class)) {
            let other = [("file", prompts.file.is_some()), ("sessions", prompts.sessions.is_some())];
            if let Some((field, _)) = other.iter().find(|(_, given)| *given) {
                return Err(SpecError::Conflict {
                    path: format!("prompts.{field}"),
                    what: "documents with a drawn length are synthetic text; give only their number".into(),
                });
            }
        }
        match &self.arrivals {
            ArrivalSpec::Trace { sizes: TraceSizes::Own, .. }
                if (0..self.class_count() as u16).any(|class| own(&class)) =>
            {
                Err(SpecError::Conflict {
                    path: "arrivals.sizes".into(),
                    what: "the trace and the documents both set the tokens of a request; set sizes to drawn"
                        .into(),
                })
            }
            _ => Ok(()),
        }
    }
}

impl ClassSpec {
    /// Checks the settings of the server's queue.
    fn validate_queue(&self, protocol: Protocol) -> Result<(), SpecError> {
        let asked = [("priority", self.priority.is_some()), ("queue_timeout", self.queue_timeout.is_some())];
        if let Some((field, _)) = asked.iter().find(|(_, asked)| *asked)
            && protocol.carries() != Carries::Tensors
        {
            return Err(SpecError::Conflict {
                path: (*field).into(),
                what: format!("only kserve requests carry it, and this target uses {}", protocol.name()),
            });
        }
        if self.priority == Some(0) {
            return Err(SpecError::value("priority", 0, "a level from 1, the highest"));
        }
        match self.queue_timeout {
            Some(wait) if wait.0 < 1_000 => {
                Err(SpecError::value("queue_timeout", format_span(wait), "a span of at least 1us"))
            }
            _ => Ok(()),
        }
    }
}

impl PromptSpec {
    /// Checks that every request has exactly one audio clip and no other content.
    fn one_sound(&self) -> Result<(), SpecError> {
        let conflict = |field: &str, what: &str| {
            Err(SpecError::Conflict { path: format!("prompts.{field}"), what: what.into() })
        };
        match &self.audio {
            None => conflict("audio", "a transcription needs audio: set its length, such as {length: 10s}"),
            Some(audio) if audio.count != Size::Fixed(1) => {
                conflict("audio.count", "a transcription has one audio clip")
            }
            Some(_) if self.file.is_some() => conflict("file", "a transcription has audio and no text"),
            Some(_) if self.sessions.is_some() => conflict("sessions", "transcriptions have no sessions"),
            Some(_) => Ok(()),
        }
    }

    fn validate(&self) -> Result<(), SpecError> {
        if !(self.words_per_token.is_finite() && self.words_per_token > 0.0 && self.words_per_token <= 16.0) {
            return Err(SpecError::value(
                "words_per_token",
                self.words_per_token,
                "a factor above 0, at most 16",
            ));
        }
        if let Some(shared) = &self.shared_prefix {
            if shared.groups == 0 {
                return Err(SpecError::value("shared_prefix.groups", 0, "at least one group"));
            }
            if !(0.0..=1.0).contains(&shared.share) {
                return Err(SpecError::value("shared_prefix.share", shared.share, "a share between 0 and 1"));
            }
        }
        self.images.as_ref().map_or(Ok(()), |images| images.validate().map_err(|e| e.at("images")))?;
        self.audio.as_ref().map_or(Ok(()), |audio| audio.validate().map_err(|e| e.at("audio")))?;
        if self.file.is_some() && (self.shared_prefix.is_some() || self.sessions.is_some()) {
            return Err(SpecError::Conflict {
                path: "file".into(),
                what:
                    "prompts from a file are sent unchanged; shared_prefix and sessions need synthetic text"
                        .into(),
            });
        }
        Ok(())
    }
}
