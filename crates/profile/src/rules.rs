//! The assignment of spans to stages: ordered rules; the first match decides.
//!
//! The shipped rules are data (`data/profile/rules.json`); a user's rules come first. A rule is a conjunction, so
//! that one line explains the stage of a span. Scores over several features were rejected because they do not.
//! Conditions on names are evaluated once per distinct name, because traces have millions of spans and dozens of
//! names.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::OnceLock;

use plimsoll_model::trace::{SpanKind, TraceSpan};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::SpanFacts;
use super::stage::Stage;

pub(crate) const RULES_VERSION: u32 = 1;

/// A file with rules for stages.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Version of the file layout: 1.
    pub version: u32,
    /// List of rules in order of priority.
    pub rules: Vec<RuleSpec>,
}

/// One rule. All its conditions must be true.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// Stage that matching spans belong to.
    pub stage: Stage,
    /// Regular expression that the span name contains [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Regular expression that the span name does not contain [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not: Option<String>,
    /// Regular expression that the service name contains [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Regular expression that the HTTP route contains [default: none].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Accepted values of `gen_ai.operation.name` [default: any].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operation: Vec<String>,
    /// Accepted values of `openinference.span.kind`, or of MLflow's and Langfuse's type, in any case [default: any].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub span_kind: Vec<String>,
    /// Accepted sides of a call [default: any].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<CallSide>,
    /// Names of required attributes [default: none].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub has: Vec<String>,
    /// Attributes with a regular expression that each contains [default: none].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// The side of a call that a span records.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallSide {
    /// Not specified by the tracing library.
    Unspecified,
    /// Work inside a process, without a remote call.
    Internal,
    /// Called side of a remote call.
    Server,
    /// Calling side of a remote call.
    Client,
    /// Sender of a message to a queue.
    Producer,
    /// Receiver of a message from a queue.
    Consumer,
}

impl CallSide {
    fn is(self, kind: SpanKind) -> bool {
        matches!(
            (self, kind),
            (CallSide::Unspecified, SpanKind::Unspecified)
                | (CallSide::Internal, SpanKind::Internal)
                | (CallSide::Server, SpanKind::Server)
                | (CallSide::Client, SpanKind::Client)
                | (CallSide::Producer, SpanKind::Producer)
                | (CallSide::Consumer, SpanKind::Consumer)
        )
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The version of the layout is unknown.
    #[error("version: {0} is not known; this version reads 1")]
    Version(u32),
    /// The rule has no condition, so that it would match every span.
    #[error(
        "rules[{0}]: has no condition; set at least one of name, service, route, operation, span_kind, kind, has, attributes"
    )]
    Empty(usize),
    /// A pattern is not a regular expression.
    #[error("rules[{rule}].{field}: {why}")]
    Pattern {
        /// Index of the rule, from 0.
        rule: usize,
        field: String,
        why: String,
    },
}

struct Rule {
    spec: RuleSpec,
    name: Option<Regex>,
    not: Option<Regex>,
    service: Option<Regex>,
    route: Option<Regex>,
    attributes: Vec<(String, Regex)>,
}

pub struct Rules(Vec<Rule>);

impl Rules {
    pub fn shipped() -> Rules {
        Rules::new(None).expect("the shipped rules compile: a test compiles them")
    }

    /// Returns a user's rules, followed by the shipped ones.
    pub fn new(own: Option<&RuleFile>) -> Result<Rules, RuleError> {
        if let Some(file) = own.filter(|file| file.version != RULES_VERSION) {
            return Err(RuleError::Version(file.version));
        }
        let own = own.map_or(&[][..], |file| &file.rules);
        let own = own.iter().enumerate().map(|(i, spec)| compile(i, spec));
        let pack = shipped_file().rules.iter().enumerate().map(|(i, spec)| compile(i, spec));
        Ok(Rules(own.chain(pack).collect::<Result<_, _>>()?))
    }

    /// Returns the stage of a span by the first matching rule. `names` states for each rule whether the span's names
    /// match.
    pub fn stage(&self, span: &TraceSpan, facts: &SpanFacts<'_>, names: &[bool]) -> Option<Stage> {
        let fits = |(rule, named): &(&Rule, &bool)| **named && rule.fits(span, facts);
        self.0.iter().zip(names).find(fits).map(|(rule, _)| rule.spec.stage)
    }

    /// Returns for each rule whether it may match spans of this name and service. The result is constant, so compute
    /// it once.
    pub(crate) fn fits_names(&self, name: &str, service: &str) -> Rc<[bool]> {
        self.0.iter().map(|rule| rule.fits_names(name, service)).collect()
    }
}

/// Returns the shipped rules as in their file.
pub(crate) fn shipped_file() -> &'static RuleFile {
    static PACK: OnceLock<RuleFile> = OnceLock::new();
    PACK.get_or_init(|| {
        serde_json::from_str(include_str!("../data/rules.json"))
            .expect("the shipped rules are well formed: a test reads them")
    })
}

fn compile(rule: usize, spec: &RuleSpec) -> Result<Rule, RuleError> {
    let pattern = |field: &str, text: &str| {
        Regex::new(text).map_err(|e| {
            let why =
                e.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
            RuleError::Pattern { rule, field: field.to_owned(), why }
        })
    };
    let some =
        |field: &str, text: &Option<String>| text.as_ref().map(|text| pattern(field, text)).transpose();
    let asks_nothing = spec.name.is_none()
        && spec.service.is_none()
        && spec.route.is_none()
        && spec.operation.is_empty()
        && spec.span_kind.is_empty()
        && spec.kind.is_empty()
        && spec.has.is_empty()
        && spec.attributes.is_empty();
    if asks_nothing {
        return Err(RuleError::Empty(rule));
    }
    let attributes = spec
        .attributes
        .iter()
        .map(|(key, text)| pattern(&format!("attributes.{key}"), text).map(|regex| (key.clone(), regex)));
    Ok(Rule {
        name: some("name", &spec.name)?,
        not: some("not", &spec.not)?,
        service: some("service", &spec.service)?,
        route: some("route", &spec.route)?,
        attributes: attributes.collect::<Result<_, _>>()?,
        spec: spec.clone(),
    })
}

impl Rule {
    fn fits_names(&self, name: &str, service: &str) -> bool {
        self.name.as_ref().is_none_or(|regex| regex.is_match(name))
            && self.not.as_ref().is_none_or(|regex| !regex.is_match(name))
            && self.service.as_ref().is_none_or(|regex| regex.is_match(service))
    }

    /// Returns whether all conditions except names match.
    fn fits(&self, span: &TraceSpan, facts: &SpanFacts<'_>) -> bool {
        let spec = &self.spec;
        let one_of = |list: &[String], value: Option<&str>| {
            list.is_empty()
                || value.is_some_and(|value| list.iter().any(|one| one.eq_ignore_ascii_case(value)))
        };
        let found = |regex: &Option<Regex>, text: Option<&str>| {
            regex.as_ref().is_none_or(|regex| text.is_some_and(|text| regex.is_match(text)))
        };
        one_of(&spec.operation, facts.operation)
            && one_of(&spec.span_kind, facts.kind)
            && (spec.kind.is_empty() || spec.kind.iter().any(|side| side.is(span.kind)))
            && spec.has.iter().all(|key| span.attribute(key).is_some())
            && found(&self.route, facts.route)
            && self.attributes.iter().all(|(key, regex)| {
                span.attribute(key).and_then(|value| value.text()).is_some_and(|text| regex.is_match(text))
            })
    }
}
