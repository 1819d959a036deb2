//! What was asked: one value that is the scenario file, the manifest's section and the argument of everything here.
//!
//! Every field has a default and every default is written into the manifest. The rate stands apart from the shape of
//! the arrivals, so that a sweep varies the one and keeps the other. Files are named, not opened: their bytes are
//! handed in by [`Scenario::attach`], because this crate reads no files.

use plimsoll_model::{Carries, Protocol, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::arrivals::{ArrivalSpec, TraceSizes};
use crate::material::Material;
use crate::media::{AudioSpec, ImageSpec};
use crate::policy::ClientSpec;
use crate::scrape::ScrapeSpec;
use crate::sizes::{Pause, Size};
use crate::target::TargetSpec;
use crate::trace::Trace;
use crate::units::{Rate, SpanText, format_span, span_text, span_text_opt};
use crate::{Documents, SpecError, check};

/// Everything a run does, before it does it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// The endpoint and how it is spoken to.
    pub target: TargetSpec,
    /// How much load, for how long.
    pub load: LoadSpec,
    /// The shape of the arrivals in time.
    pub arrivals: ArrivalSpec,
    /// Lengths of prompts and answers.
    pub sizes: SizeSpec,
    /// What the prompts are made of.
    pub prompts: PromptSpec,
    /// Request classes; none = one class that is the scenario's own sizes and prompts.
    pub classes: Vec<ClassSpec>,
    /// How the client behaves.
    pub client: ClientSpec,
    /// What servers' pages are looked at meanwhile.
    pub scrape: ScrapeSpec,
    /// Seed of everything drawn.
    pub seed: u64,
    /// Salts the prompts; none = to be drawn per run by whoever runs it (and counted as 0 here).
    pub nonce: Option<u64>,
    /// The content of the files it names.
    #[serde(skip)]
    #[schemars(skip)]
    pub material: Material,
}

/// How much load, for how long.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum LoadSpec {
    /// Arrivals follow the schedule whatever the server does.
    Open {
        /// Mean arrivals per second; none = the trace's own.
        #[serde(default)]
        rate: Option<Rate>,
        /// How long arrivals are due.
        #[serde(default = "default_window", with = "span_text")]
        #[schemars(with = "SpanText")]
        window: Span,
        /// Requests before the measured part, not counted: one after the other.
        #[serde(default, skip_serializing_if = "is_none")]
        warm_up: u32,
        /// Requests before the load, one after the other, nobody beside them: a level of its own. A diagnosis asks it what a request takes
        /// alone.
        #[serde(default, skip_serializing_if = "is_none")]
        alone: u32,
    },
    /// So many requests in flight (with sessions: so many users, a thinking one not in flight).
    Closed {
        /// How many.
        concurrency: u32,
        /// How long new ones are begun.
        #[serde(default = "default_window", with = "span_text")]
        #[schemars(with = "SpanText")]
        window: Span,
        /// End after so many requests (with sessions: conversations). The level is then as long as they take.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        requests: Option<u64>,
        /// Requests before the measured part, not counted: as many in flight as in it.
        #[serde(default, skip_serializing_if = "is_none")]
        warm_up: u32,
    },
    /// So many requests at once, and none after them. The level is as long as they take.
    Wave {
        /// How many.
        requests: u32,
        /// Requests before the measured part, not counted: one after the other.
        #[serde(default, skip_serializing_if = "is_none")]
        warm_up: u32,
    },
    /// Closed, with the concurrency doubled until throughput stops growing.
    Saturating {
        /// How long each step lasts.
        #[serde(default = "default_window", with = "span_text")]
        #[schemars(with = "SpanText")]
        window: Span,
    },
}

fn is_none(n: &u32) -> bool {
    *n == 0
}

/// A level that ends with its requests ends here at the latest.
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
    /// How long requests are begun.
    pub fn window(&self) -> Span {
        match self {
            LoadSpec::Open { window, .. }
            | LoadSpec::Closed { window, .. }
            | LoadSpec::Saturating { window } => *window,
            LoadSpec::Wave { .. } => LONGEST,
        }
    }

    /// Requests before the measured part.
    pub fn warm_up(&self) -> u32 {
        match self {
            LoadSpec::Open { warm_up, .. }
            | LoadSpec::Closed { warm_up, .. }
            | LoadSpec::Wave { warm_up, .. } => *warm_up,
            LoadSpec::Saturating { .. } => 0,
        }
    }

    /// Requests before the load, each alone.
    pub fn alone(&self) -> u32 {
        match self {
            LoadSpec::Open { alone, .. } => *alone,
            _ => 0,
        }
    }
}

/// Lengths of prompts and answers. The replay of a trace takes the trace's, unless its `sizes` is `drawn`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SizeSpec {
    /// Prompt tokens (of a session: of each turn's new message); for `kserve` the rows of a request's batch.
    pub prompt: Size,
    /// Output tokens; 0 = no length is asked for (endpoints that generate nothing, or by a template of their own).
    pub output: Size,
    /// A trace or table from which (prompt, output) pairs are drawn together, in place of the two laws.
    pub pairs: Option<String>,
}

impl Default for SizeSpec {
    fn default() -> SizeSpec {
        SizeSpec { prompt: Size::Fixed(128), output: Size::Fixed(64), pairs: None }
    }
}

/// What the prompts are made of.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct PromptSpec {
    /// JSON Lines of prompts to send in place of synthetic text.
    pub file: Option<String>,
    /// Order in which the lines of `file` are used.
    pub order: PromptOrder,
    /// Prefixes shared between prompts.
    pub shared_prefix: Option<SharedPrefix>,
    /// Conversations of several turns.
    pub sessions: Option<SessionSpec>,
    /// What stands in a session's prompts for the answers that came before.
    pub answers: AnswerText,
    /// Pictures of every message of a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<ImageSpec>,
    /// Sounds of every message of a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<AudioSpec>,
    /// Let the nonce change the text, so that a cache left warm by an earlier run does not answer.
    pub salt: bool,
    /// Words of synthetic text per asked token; set after comparing with the server's `usage`.
    pub words_per_token: f64,
    /// Tokens that the server puts around every synthetic prompt, its chat template; so many fewer are written. Measured with
    /// `words_per_token`.
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

/// What stands in a session's prompts for the answers that came before.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AnswerText {
    /// Text of the asked length: prompts do not depend on the server, and two runs have the same.
    #[default]
    Synthetic,
    /// What the server really said. It is kept in memory until the session is over and written nowhere.
    Real,
}

/// Order in which the lines of a prompt file are used.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PromptOrder {
    /// First to last, again and again.
    #[default]
    Cycle,
    /// Drawn, each line equally likely.
    Random,
}

/// Prefixes shared between prompts: each prompt begins with the text of one of `groups` groups.
///
/// The share holds for *each* prompt: of n tokens the first `share · n` are the group's. A fixed prefix length lost:
/// with drawn lengths the share of shared tokens would depend on the lengths, and short prompts be all prefix.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SharedPrefix {
    /// Number of groups, equally likely.
    pub groups: u32,
    /// Share of the prompt's tokens that belong to the group, 0 to 1.
    pub share: f64,
}

/// Conversations of several turns. Each turn carries the conversation so far; the assistant's part of it is synthetic
/// text of the *asked* output length, not what the server answered, so that prompts stay a function of spec, seed and
/// nonce. A server's cache therefore shares the user's part and its own prompt prefix, not its generated text.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionSpec {
    /// Turns per session.
    pub turns: Size,
    /// From the end of a turn to the moment the next one is due.
    #[serde(default = "default_think")]
    pub think: Pause,
}

fn default_think() -> Pause {
    Pause::Exponential(Span::from_secs(10))
}

/// A class of requests.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassSpec {
    /// Its name in reports.
    pub name: String,
    /// Its share of the requests, relative to the other classes.
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// Its lengths; none = the scenario's.
    #[serde(default)]
    pub sizes: Option<SizeSpec>,
    /// Its prompts; none = the scenario's.
    #[serde(default)]
    pub prompts: Option<PromptSpec>,
    /// The model (or adapter) it asks for; none = the target's.
    #[serde(default)]
    pub model: Option<String>,
    /// Its documents; none = the target's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<Documents>,
    /// Its priority in the server's queue, 1 the highest (`kserve`, `kserve_grpc`); none = the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// How long the server may keep it in its queue (`kserve`, `kserve_grpc`); none = the server's default.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "span_text_opt")]
    #[schemars(with = "Option<SpanText>")]
    pub queue_timeout: Option<Span>,
}

fn default_weight() -> f64 {
    1.0
}

impl Scenario {
    /// Reads a scenario from JSON: keys and names are checked against the schema, numbers against their ranges.
    ///
    /// # Errors
    /// Any [`SpecError`] but those of files.
    pub fn from_json(value: &Value) -> Result<Scenario, SpecError> {
        check::scenario(value)?;
        let scenario: Scenario = serde_json::from_value(value.clone()).map_err(|e| SpecError::Conflict {
            path: String::new(),
            what: format!("the scenario can't be read: {e}"),
        })?;
        scenario.validate()?;
        Ok(scenario)
    }

    /// Reads and parses the files it names. `read` gets a name and returns the bytes, or why there are none.
    ///
    /// # Errors
    /// [`SpecError::File`] and [`SpecError::Trace`].
    pub fn attach(&mut self, read: impl FnMut(&str) -> Result<Vec<u8>, String>) -> Result<(), SpecError> {
        self.material = Material::load(self, read)?;
        Ok(())
    }

    /// Mean arrivals per second of the open mode: the asked rate, or the trace's own times its speed.
    ///
    /// # Errors
    /// [`SpecError::Missing`] where neither is known or the mode is another; [`SpecError::Conflict`] where both a rate
    /// and a speed are given.
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
                what: "a rate and a trace speed say the same thing twice; give one of them".into(),
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

    /// How long the trace lasts when replayed at [`Scenario::rate`]; `None` for other processes.
    pub fn trace_window(&self) -> Result<Option<Span>, SpecError> {
        match self.trace()? {
            Some(trace) => Ok(Some(Span::from_secs_f64(trace.rows.len() as f64 / self.rate()?))),
            None => Ok(None),
        }
    }

    /// The trace that is replayed, if one is.
    pub fn trace(&self) -> Result<Option<&Trace>, SpecError> {
        match &self.arrivals {
            ArrivalSpec::Trace { file, .. } => Ok(Some(self.material.trace(file)?.as_ref())),
            _ => Ok(None),
        }
    }

    /// Are sessions that have begun played to their ends, however late that is? Those of a trace are: cut off, the long ones would be missing.
    pub fn plays_sessions_out(&self) -> bool {
        matches!(self.trace(), Ok(Some(trace)) if trace.graph.is_some())
    }

    /// Number of request classes, at least 1.
    pub fn class_count(&self) -> usize {
        self.classes.len().max(1)
    }

    pub fn sizes_of(&self, class: u16) -> &SizeSpec {
        self.classes.get(class as usize).and_then(|c| c.sizes.as_ref()).unwrap_or(&self.sizes)
    }

    pub fn prompts_of(&self, class: u16) -> &PromptSpec {
        self.classes.get(class as usize).and_then(|c| c.prompts.as_ref()).unwrap_or(&self.prompts)
    }

    /// The law of a class's documents, where its requests carry several texts.
    pub fn documents_of(&self, class: u16) -> Option<Documents> {
        let protocol = self.target.protocol;
        let said = self
            .classes
            .get(class as usize)
            .and_then(|c| c.documents.as_ref())
            .or(self.target.documents.as_ref());
        match protocol.carries() {
            Carries::Documents => Some(said.cloned().unwrap_or_else(Documents::usual)),
            _ => said.filter(|_| protocol.takes_texts()).cloned(),
        }
    }

    /// Checks what the schema can't: ranges, and settings that exclude each other.
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
            self.target.carries_media(prompts.images.is_some(), prompts.audio.is_some())?;
            if self.target.protocol.carries() == Carries::Sound {
                prompts.one_sound()?;
            }
        }
        self.target.validate().map_err(|e| e.at("target"))?;
        self.documents()?;
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
            class.validate_queue(self.target.protocol).map_err(|e| e.at(&format!("classes.{i}")))?;
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
    /// Checks the laws of documents.
    fn documents(&self) -> Result<(), SpecError> {
        let of_classes = self.classes.iter().enumerate();
        let of_classes =
            of_classes.map(|(i, class)| (format!("classes.{i}.documents"), class.documents.as_ref()));
        let all = std::iter::once(("target.documents".to_owned(), self.target.documents.as_ref()))
            .chain(of_classes);
        for (path, law) in all.filter_map(|(path, law)| Some((path, law?))) {
            law.validate(self.target.protocol).map_err(|e| e.at(&path))?;
        }
        let own = |class: &u16| self.documents_of(*class).is_some_and(|law| law.length.is_some());
        for prompts in (0..self.class_count() as u16).filter(own).map(|class| self.prompts_of(class)) {
            let other = [("file", prompts.file.is_some()), ("sessions", prompts.sessions.is_some())];
            if let Some((field, _)) = other.iter().find(|(_, given)| *given) {
                return Err(SpecError::Conflict {
                    path: format!("prompts.{field}"),
                    what: "documents whose length is drawn are synthetic text; give their number alone"
                        .into(),
                });
            }
        }
        match &self.arrivals {
            ArrivalSpec::Trace { sizes: TraceSizes::Own, .. }
                if (0..self.class_count() as u16).any(|class| own(&class)) =>
            {
                Err(SpecError::Conflict {
                    path: "arrivals.sizes".into(),
                    what: "the trace says how many tokens a request has, and so do the documents; set it to drawn".into(),
                })
            }
            _ => Ok(()),
        }
    }
}

impl ClassSpec {
    /// What is asked of the server's queue.
    fn validate_queue(&self, protocol: Protocol) -> Result<(), SpecError> {
        let asked = [("priority", self.priority.is_some()), ("queue_timeout", self.queue_timeout.is_some())];
        if let Some((field, _)) = asked.iter().find(|(_, asked)| *asked)
            && protocol.carries() != Carries::Tensors
        {
            return Err(SpecError::Conflict {
                path: (*field).into(),
                what: format!("only kserve requests carry it, and this target speaks {}", protocol.name()),
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
    /// Does every request have one sound, and nothing else?
    fn one_sound(&self) -> Result<(), SpecError> {
        let conflict = |field: &str, what: &str| {
            Err(SpecError::Conflict { path: format!("prompts.{field}"), what: what.into() })
        };
        match &self.audio {
            None => conflict("audio", "a transcription needs a sound: say how long, such as {length: 10s}"),
            Some(audio) if audio.count != Size::Fixed(1) => {
                conflict("audio.count", "a transcription carries one sound")
            }
            Some(_) if self.file.is_some() => {
                conflict("file", "a transcription carries a sound, and no text")
            }
            Some(_) if self.sessions.is_some() => {
                conflict("sessions", "a transcription is no turn of a conversation")
            }
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
                    "prompts from a file are sent as they are; shared_prefix and sessions need synthetic text"
                        .into(),
            });
        }
        Ok(())
    }
}
