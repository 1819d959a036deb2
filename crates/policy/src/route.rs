//! Which replica gets a request.
//!
//! The router sees replicas as it last heard of them, never as they are; how old its knowledge is, is its caller's affair.
//! One enum and not a trait: a policy is a line of a file, and its state is small.

use plimsoll_math::rng::Stream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::affinity::PrefixIndex;
use crate::rendezvous;
use crate::setting::{SettingError, Written};

/// Blocks that a prefix router remembers unless told otherwise: a million of 16 tokens, about 50 MB.
const INDEX_BLOCKS: u32 = 1 << 20;

/// The load bound of sticky policies unless told otherwise: a quarter over the mean, as in the paper's examples.
const BOUND: f64 = 1.25;

/// Names of the policies, as written.
const NAMES: [&str; 7] =
    ["round_robin", "random", "least_requests", "least_tokens", "power_of_two", "session", "prefix"];

/// How requests are spread over replicas.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
pub enum RouteSpec {
    /// In turn.
    RoundRobin {},
    /// By chance, all alike.
    Random {},
    /// The one with the fewest requests in flight; among equals in turn.
    LeastRequests {},
    /// The one with the fewest tokens asked for and not answered; among equals in turn.
    LeastTokens {},
    /// The better of two drawn by chance (Mitzenmacher 2001).
    PowerOfTwo {
        /// What is compared.
        #[serde(default)]
        load: LoadMeasure,
    },
    /// A session stays on its replica, unless that is over the bound. What has no session goes by least requests.
    Session {
        /// Most requests on one replica, × mean.
        #[serde(default = "bound")]
        bound: f64,
    },
    /// To the one that was sent the longest beginning of the prompt, unless it is over the bound; then, and for prompts
    /// that nobody was sent, by least requests.
    Prefix {
        /// Most requests on one replica, × mean.
        #[serde(default = "bound")]
        bound: f64,
        /// Blocks that the router remembers.
        #[serde(default = "index_blocks")]
        index_blocks: u32,
    },
}

impl Default for RouteSpec {
    fn default() -> RouteSpec {
        RouteSpec::RoundRobin {}
    }
}

/// What counts as a replica's load.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadMeasure {
    /// Requests in flight.
    #[default]
    Requests,
    /// Tokens asked for and not answered.
    Tokens,
}

/// A replica that takes requests, as it was last seen.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ReplicaView {
    /// Its name, which it keeps.
    pub replica: u32,
    /// Requests in flight there.
    pub requests: u32,
    /// Tokens, of prompts and answers, of those requests.
    pub tokens: u64,
}

/// What a router may know of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts<'a> {
    /// The conversation it belongs to.
    pub session: Option<u64>,
    /// Names of its prompt's full blocks, each chained to the one before.
    pub blocks: &'a [u64],
}

impl RouteSpec {
    /// Reads `round_robin`, `session:bound=1.5`, `power_of_two:load=tokens`, ….
    ///
    /// # Errors
    /// An unknown policy, parameter or value, with what there is.
    pub fn parse(text: &str) -> Result<RouteSpec, SettingError> {
        let mut written = Written::parse(text)?;
        let spec = RouteSpec::read(&mut written)?;
        written.finish()?;
        Ok(spec)
    }

    fn read(written: &mut Written) -> Result<RouteSpec, SettingError> {
        let bound = |written: &mut Written| {
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
            "session" => RouteSpec::Session { bound: bound(written)? },
            "prefix" => RouteSpec::Prefix {
                bound: bound(written)?,
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

    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// A number is outside what its field means.
    pub fn validate(&self) -> Result<(), SettingError> {
        let value =
            |key, value: String, want| SettingError::Value { name: "route".to_owned(), key, value, want };
        match *self {
            RouteSpec::Session { bound } | RouteSpec::Prefix { bound, .. }
                if !(1.0..=MOST_BOUND).contains(&bound) =>
            {
                Err(value("bound", bound.to_string(), BOUND_WANT))
            }
            RouteSpec::Prefix { index_blocks, .. } if index_blocks < 2 => {
                Err(value("index_blocks", index_blocks.to_string(), INDEX_WANT))
            }
            _ => Ok(()),
        }
    }
}

/// Beyond this a bound bounds nothing.
const MOST_BOUND: f64 = 1e6;
const BOUND_WANT: &str = "a number from 1, such as 1.25";
const INDEX_WANT: &str = "a whole number from 2";

/// A routing policy at work.
#[derive(Clone, Debug)]
pub struct Router {
    spec: RouteSpec,
    /// The replica that was chosen in turn last.
    last: Option<u32>,
    index: PrefixIndex,
}

impl Router {
    /// A router that has seen nothing.
    pub fn new(spec: &RouteSpec) -> Router {
        let blocks = if let RouteSpec::Prefix { index_blocks, .. } = spec { *index_blocks } else { 2 };
        Router { spec: *spec, last: None, index: PrefixIndex::new(blocks as usize) }
    }

    /// Does it look at loads at all? Where it doesn't, nobody need find them out.
    pub fn needs_load(&self) -> bool {
        !matches!(self.spec, RouteSpec::RoundRobin {} | RouteSpec::Random {})
    }

    /// The place in `views` of the replica that gets the request; `None` where there are none. `views` are in
    /// ascending order of their names. Call it once per request: it remembers what it decided.
    pub fn pick(&mut self, views: &[ReplicaView], facts: &Facts<'_>, chance: &mut Stream) -> Option<usize> {
        if views.is_empty() {
            return None;
        }
        match self.spec {
            RouteSpec::RoundRobin {} => Some(self.in_turn(views, |_| true)),
            RouteSpec::Random {} => Some(chance.below(views.len() as u64) as usize),
            RouteSpec::LeastRequests {} => Some(self.least(views, LoadMeasure::Requests)),
            RouteSpec::LeastTokens {} => Some(self.least(views, LoadMeasure::Tokens)),
            RouteSpec::PowerOfTwo { load } => Some(better_of_two(views, load, chance)),
            RouteSpec::Session { bound } => match facts.session {
                Some(session) => rendezvous::place(session, views, bound),
                None => Some(self.least(views, LoadMeasure::Requests)),
            },
            RouteSpec::Prefix { bound, .. } => {
                let place = self.longest(views, facts.blocks, bound);
                let place = place.unwrap_or_else(|| self.least(views, LoadMeasure::Requests));
                self.index.learn(views[place].replica, facts.blocks);
                Some(place)
            }
        }
    }

    /// A replica has lost its cache.
    pub fn forget(&mut self, replica: u32) {
        self.index.forget(replica);
    }

    /// The next after the last chosen among those that `may`.
    fn in_turn(&mut self, views: &[ReplicaView], may: impl Fn(&ReplicaView) -> bool) -> usize {
        let after = |view: &ReplicaView| self.last.is_none_or(|last| view.replica > last);
        let next = views.iter().position(|view| may(view) && after(view));
        let place = next.or_else(|| views.iter().position(may)).unwrap_or(0);
        self.last = Some(views[place].replica);
        place
    }

    fn least(&mut self, views: &[ReplicaView], load: LoadMeasure) -> usize {
        let least = views.iter().map(|view| view.load(load)).min();
        self.in_turn(views, |view| Some(view.load(load)) == least)
    }

    /// The replica with the longest match, if it is under the bound; the first of `views` among equals in match and load.
    fn longest(&mut self, views: &[ReplicaView], blocks: &[u64], bound: f64) -> Option<usize> {
        let matches = self.index.matches(blocks);
        let most = rendezvous::most_requests(views, bound);
        let known = |found: &crate::affinity::Match| {
            let place = views.binary_search_by_key(&found.replica, |view| view.replica).ok()?;
            Some((found.blocks, place))
        };
        let candidates = matches.iter().filter_map(known);
        let (_, place) = candidates
            .min_by_key(|&(blocks, place)| (std::cmp::Reverse(blocks), views[place].requests, place))?;
        (views[place].requests < most).then_some(place)
    }
}

impl ReplicaView {
    fn load(&self, measure: LoadMeasure) -> u64 {
        match measure {
            LoadMeasure::Requests => u64::from(self.requests),
            LoadMeasure::Tokens => self.tokens,
        }
    }
}

/// Two different ones by chance, the less loaded of them; the first drawn among equals.
fn better_of_two(views: &[ReplicaView], load: LoadMeasure, chance: &mut Stream) -> usize {
    let first = chance.below(views.len() as u64) as usize;
    if views.len() == 1 {
        return first;
    }
    let mut second = chance.below(views.len() as u64 - 1) as usize;
    second += usize::from(second >= first);
    if views[second].load(load) < views[first].load(load) { second } else { first }
}

fn bound() -> f64 {
    BOUND
}

fn index_blocks() -> u32 {
    INDEX_BLOCKS
}
