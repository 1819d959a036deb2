//! Configuration of routing policies: a line of text, or fields.

use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::cost;
use crate::setting::{ParsedSetting, SettingError};

/// Default size of the prefix index: a million blocks of 16 tokens take about 50 MB.
const INDEX_BLOCKS: u32 = 1 << 20;

/// Default load bound of sticky policies: a quarter above the mean, as in the paper's examples.
const BOUND: f64 = 1.25;

/// Limit on a load bound; a larger bound has no effect.
const MOST_BOUND: f64 = 1e6;
const BOUND_WANT: &str = "a number from 1, such as 1.25";
const INDEX_WANT: &str = "a whole number from 2";
/// Limit on the weight; beyond it, only the other requests count.
const MOST_WEIGHT: f64 = 100.0;
/// Default, minimum and maximum of the latency memory in s; the default is Finagle's.
const DECAY_S: f64 = 10.0;
const LEAST_DECAY_S: f64 = 0.1;
const MOST_DECAY_S: f64 = 3_600.0;
const DECAY_WANT: &str = "seconds from 0.1 to 3600, such as 10";
const WEIGHT_WANT: &str = "a number from 0 to 100, such as 0.2";

/// Names of the policies in configuration files.
const NAMES: [&str; 9] = [
    "round_robin",
    "random",
    "least_requests",
    "least_tokens",
    "power_of_two",
    "peak_ewma",
    "session",
    "prefix",
    "least_cost",
];

/// Routing policy: a line such as `session:bound=1.5`, or the equivalent fields.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(transform = or_a_line)]
pub enum RouteSpec {
    /// Sends requests to the replicas in rotation.
    RoundRobin {},
    /// Sends each request to a random replica.
    Random {},
    /// Replica with the fewest requests in flight; ties in rotation.
    LeastRequests {},
    /// Replica with the fewest outstanding tokens; ties in rotation.
    LeastTokens {},
    /// Better of two random replicas (Mitzenmacher 2001).
    PowerOfTwo {
        /// Load that is compared [default: requests].
        #[serde(default)]
        load: LoadMeasure,
    },
    /// Better of two random replicas by recent peak time to first token × requests in flight (Finagle's `PeakEwma`).
    PeakEwma {
        /// Memory of slow responses in s [default: 10].
        #[serde(default = "decay_s")]
        decay_s: f64,
    },
    /// Sticky sessions within a load bound. Requests without a session use least requests.
    Session {
        /// Limit on the requests of a replica, as a multiple of the mean [default: 1.25].
        #[serde(default = "bound")]
        bound: f64,
    },
    /// Replica with the longest prefix of the prompt, within a load bound. Otherwise, and for unknown prompts, least
    /// requests.
    Prefix {
        /// Limit on the requests of a replica, as a multiple of the mean [default: 1.25].
        #[serde(default = "bound")]
        bound: f64,
        /// Size of the prefix index in blocks [default: 1048576].
        #[serde(default = "index_blocks")]
        index_blocks: u32,
    },
    /// Replica with the lowest cost in seconds, from the gateway's own load count, learnt speeds and the prefix
    /// index.
    LeastCost {
        /// Weight of the delay for other requests relative to the request's own first token [default: 0.2].
        #[serde(default = "weight")]
        weight: f64,
        /// Size of the prefix index in blocks [default: 1048576].
        #[serde(default = "index_blocks")]
        index_blocks: u32,
    },
}

impl Default for RouteSpec {
    fn default() -> RouteSpec {
        RouteSpec::RoundRobin {}
    }
}

/// Measure of a replica's load.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadMeasure {
    /// Number of requests in flight on the replica.
    #[default]
    Requests,
    /// Outstanding tokens: requested and not yet answered.
    Tokens,
}

impl RouteSpec {
    /// Parses `round_robin`, `session:bound=1.5`, `power_of_two:load=tokens`, ….
    ///
    /// # Errors
    /// Fails if the policy, a parameter or a value is unknown; the error lists the alternatives.
    pub fn parse(text: &str) -> Result<RouteSpec, SettingError> {
        let mut written = ParsedSetting::parse(text)?;
        let spec = RouteSpec::read(&mut written)?;
        written.finish()?;
        Ok(spec)
    }

    fn read(written: &mut ParsedSetting) -> Result<RouteSpec, SettingError> {
        let bound = |written: &mut ParsedSetting| {
            let accept = |bound: &f64| (1.0..=MOST_BOUND).contains(bound);
            written.take("bound", BOUND_WANT, accept).map(|bound| bound.unwrap_or(BOUND))
        };
        Ok(match written.name.as_str() {
            "round_robin" => RouteSpec::RoundRobin {},
            "random" => RouteSpec::Random {},
            "least_requests" => RouteSpec::LeastRequests {},
            "least_tokens" => RouteSpec::LeastTokens {},
            "power_of_two" => {
                let load = written.take_with("load", "requests or tokens", |text| match text {
                    "requests" => Some(LoadMeasure::Requests),
                    "tokens" => Some(LoadMeasure::Tokens),
                    _ => None,
                })?;
                RouteSpec::PowerOfTwo { load: load.unwrap_or_default() }
            }
            "peak_ewma" => RouteSpec::PeakEwma {
                decay_s: written
                    .take("decay_s", DECAY_WANT, |decay| (LEAST_DECAY_S..=MOST_DECAY_S).contains(decay))?
                    .unwrap_or(DECAY_S),
            },
            "session" => RouteSpec::Session { bound: bound(written)? },
            "prefix" => RouteSpec::Prefix {
                bound: bound(written)?,
                index_blocks: written
                    .take("index_blocks", INDEX_WANT, |&blocks: &u32| blocks >= 2)?
                    .unwrap_or(INDEX_BLOCKS),
            },
            "least_cost" => RouteSpec::LeastCost {
                weight: written
                    .take("weight", WEIGHT_WANT, |weight| (0.0..=MOST_WEIGHT).contains(weight))?
                    .unwrap_or(cost::WEIGHT),
                index_blocks: written
                    .take("index_blocks", INDEX_WANT, |&blocks: &u32| blocks >= 2)?
                    .unwrap_or(INDEX_BLOCKS),
            },
            _ => {
                let (asked, known) = (written.name.clone(), NAMES.to_vec());
                return Err(SettingError::UnknownName { what: "routing policy", asked, known });
            }
        })
    }
}

impl<'de> Deserialize<'de> for RouteSpec {
    /// This is implemented manually, because the derived parser gives unclear errors and does not accept a line of
    /// text.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RouteSpec, D::Error> {
        struct Route;
        impl<'de> Visitor<'de> for Route {
            type Value = RouteSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a route: least_cost, session:bound=1.5 or {policy: session, bound: 1.5}")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RouteSpec, E> {
                RouteSpec::parse(text).map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RouteSpec, A::Error> {
                let (mut policy, mut fields) = (None, BTreeMap::new());
                while let Some((key, Plain(value))) = map.next_entry::<String, Plain>()? {
                    match key.as_str() {
                        "policy" => policy = Some(value),
                        _ => drop(fields.insert(key, value)),
                    }
                }
                let policy = policy.ok_or_else(|| A::Error::missing_field("policy"))?;
                let mut written = ParsedSetting::new(&policy, fields);
                let spec = RouteSpec::read(&mut written).map_err(A::Error::custom)?;
                written.finish().map_err(A::Error::custom)?;
                Ok(spec)
            }
        }
        from.deserialize_any(Route)
    }
}

/// A word or a number as text, as in a line.
struct Plain(String);

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Plain, D::Error> {
        struct Word;
        impl Visitor<'_> for Word {
            type Value = Plain;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a word or a number")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Plain, E> {
                Ok(Plain(text.to_owned()))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Plain, E> {
                Ok(Plain(number.to_string()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Plain, E> {
                Ok(Plain(number.to_string()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Plain, E> {
                Ok(Plain(number.to_string()))
            }
        }
        from.deserialize_any(Word)
    }
}

fn or_a_line(schema: &mut Schema) {
    let description = schema.remove("description");
    let fields = std::mem::take(schema);
    *schema = json_schema!({"anyOf": [{"type": "string"}, fields]});
    description.into_iter().for_each(|text| drop(schema.insert("description".to_owned(), text)));
}

fn decay_s() -> f64 {
    DECAY_S
}

fn bound() -> f64 {
    BOUND
}

fn weight() -> f64 {
    cost::WEIGHT
}

fn index_blocks() -> u32 {
    INDEX_BLOCKS
}
