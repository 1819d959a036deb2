//! Which span is which stage: rules in order, the first that fits decides.
//!
//! The shipped pack is data (`data/profile/rules.json`); a user's rules are asked before it. A rule is a conjunction, so that a
//! reader sees from one line why a span was called what it was; scores over several features lost for that reason. What a rule
//! asks of the name is computed once per distinct name: traces have millions of spans and dozens of names.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::OnceLock;

use plimsoll_model::trace::{SpanKind, TraceSpan};
use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::names::Facts;
use super::stage::Stage;

pub(crate) const RULES_VERSION: u32 = 1;

/// A file of rules.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleFile {
    /// Version of the layout: 1.
    pub version: u32,
    /// The rules, in the order in which they are asked.
    pub rules: Vec<RuleSpec>,
}

/// One rule: every condition that it names must hold.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSpec {
    /// What the span is.
    pub stage: Stage,
    /// Regular expression found in its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Regular expression not found in its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not: Option<String>,
    /// Regular expression found in its service's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Regular expression found in its HTTP route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// `gen_ai.operation.name`: one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub operation: Vec<String>,
    /// `openinference.span.kind`, or MLflow's and Langfuse's type: one of these, whatever their case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub span_kind: Vec<String>,
    /// Which side of a call it is: one of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<CallSide>,
    /// Attributes that it must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub has: Vec<String>,
    /// Attributes with a regular expression found in each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// Which side of a call a span is.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CallSide {
    /// Nobody said.
    Unspecified,
    /// Work inside a process.
    Internal,
    /// The side that was called.
    Server,
    /// The side that calls.
    Client,
    /// Puts something into a queue.
    Producer,
    /// Takes it out.
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

/// A rule that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// A layout that nobody here knows.
    #[error("version: {0} is not known; this version reads 1")]
    Version(u32),
    /// It asks nothing, so that it would take every span.
    #[error(
        "rules[{0}]: asks nothing; name at least one of name, service, route, operation, span_kind, kind, has, attributes"
    )]
    Empty(usize),
    /// A pattern that is no regular expression.
    #[error("rules[{rule}].{field}: {why}")]
    Pattern {
        /// Which rule, from 0.
        rule: usize,
        /// Which of its fields.
        field: String,
        /// What is wrong with it.
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

/// Rules ready to be asked.
pub struct Rules(Vec<Rule>);

impl Rules {
    /// The shipped pack alone.
    pub fn shipped() -> Rules {
        Rules::new(None).expect("the shipped rules compile: a test compiles them")
    }

    /// A user's rules, then the shipped pack.
    pub fn new(own: Option<&RuleFile>) -> Result<Rules, RuleError> {
        if let Some(file) = own.filter(|file| file.version != RULES_VERSION) {
            return Err(RuleError::Version(file.version));
        }
        let own = own.map_or(&[][..], |file| &file.rules);
        let own = own.iter().enumerate().map(|(i, spec)| compile(i, spec));
        let pack = shipped_file().rules.iter().enumerate().map(|(i, spec)| compile(i, spec));
        Ok(Rules(own.chain(pack).collect::<Result<_, _>>()?))
    }

    /// The stage of a span by the first rule that fits; `names` says of each whether the span's names do.
    pub fn stage(&self, span: &TraceSpan, facts: &Facts<'_>, names: &[bool]) -> Option<Stage> {
        let fits = |(rule, named): &(&Rule, &bool)| **named && rule.fits(span, facts);
        self.0.iter().zip(names).find(fits).map(|(rule, _)| rule.spec.stage)
    }

    /// Which rules a span of this name and service may fit. It is the same for all of them: asked once.
    pub(crate) fn fits_names(&self, name: &str, service: &str) -> Rc<[bool]> {
        self.0.iter().map(|rule| rule.fits_names(name, service)).collect()
    }
}

/// The shipped pack as it is in its file.
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

    /// Everything but the names.
    fn fits(&self, span: &TraceSpan, facts: &Facts<'_>) -> bool {
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
