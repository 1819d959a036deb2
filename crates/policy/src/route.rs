//! Which replica gets a request.
//!
//! The router sees replicas as it last heard of them, never as they are; how old its knowledge is, is its caller's affair.
//! One enum and not a trait: a policy is a line of a file, and its state is small.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, KvEvent, Span};
use schemars::{JsonSchema, Schema, json_schema};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::affinity::{Expected, Match, PrefixIndex};
use crate::cost;
use crate::load::{Booking, Load};
use crate::peak::Peaks;
use crate::rendezvous;
use crate::setting::{SettingError, Written};
use crate::speed::{Speed, Speeds};

/// Blocks that a prefix router remembers unless told otherwise: a million of 16 tokens, about 50 MB.
const INDEX_BLOCKS: u32 = 1 << 20;

/// The load bound of sticky policies unless told otherwise: a quarter over the mean, as in the paper's examples.
const BOUND: f64 = 1.25;

/// Names of the policies, as written.
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

/// How requests are spread over replicas: a line as [`RouteSpec::parse`] reads it, or the same as fields.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[serde(tag = "policy", rename_all = "snake_case", deny_unknown_fields)]
#[schemars(transform = or_a_line)]
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
    /// The better of two drawn by chance, by the time that each takes to its first token, its worst of late, × the requests on it (Finagle's `PeakEwma`).
    PeakEwma {
        /// For how long a slow answer is remembered, seconds.
        #[serde(default = "decay_s")]
        decay_s: f64,
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
    /// The one where it costs the fewest seconds, by the router's own count of what is there, what each replica's speed was so far, and which
    /// prompts it was sent (see [`cost`]).
    LeastCost {
        /// What slowing down others weighs against the own first token.
        #[serde(default = "weight")]
        weight: f64,
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
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaView {
    /// Its name, which it keeps.
    pub replica: u32,
    /// What is on it.
    pub load: Load,
    /// What is laid on top of its cost: it refused requests a moment ago.
    pub penalty: Span,
}

/// What a router may know of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts<'a> {
    /// The conversation it belongs to.
    pub session: Option<u64>,
    /// Names of its prompt's full blocks, each chained to the one before.
    pub blocks: &'a [u64],
    /// Where they end.
    pub ends: BlockEnds<'a>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Most tokens that its answer may have, where it says so.
    pub most_tokens: Option<u32>,
    /// Will its first token be seen?
    pub streams: bool,
    /// Whose it is, where a version is on trial.
    pub arm: Arm,
    /// The model that it asks for, by a hash of its name.
    pub model: Option<u64>,
    /// Of the models that this stands for, those from this one on.
    pub tier: u32,
    /// The replicas that may get it, in ascending order; none = any.
    pub among: Option<&'a [u32]>,
}

/// How many tokens of a prompt its first so many blocks are.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BlockEnds<'a> {
    /// All blocks are of this many tokens.
    Every(u32),
    /// The end of each block, in tokens from the start.
    At(&'a [u32]),
}

impl Default for BlockEnds<'_> {
    fn default() -> Self {
        BlockEnds::Every(1)
    }
}

impl BlockEnds<'_> {
    /// Tokens of the first `blocks` blocks.
    fn tokens(self, blocks: u32) -> u32 {
        match self {
            BlockEnds::Every(tokens) => blocks.saturating_mul(tokens),
            BlockEnds::At(ends) => {
                (blocks as usize).checked_sub(1).and_then(|last| ends.get(last).copied()).unwrap_or(0)
            }
        }
    }
}

/// The replica that gets a request.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Pick {
    /// Its place in the views.
    pub place: usize,
    /// Prompt tokens that it will have to compute, as far as the router knows.
    pub uncached: u32,
    /// What of its prompt is taken to be cached there.
    pub expected: Expected,
}

/// What a request can hope for, whoever gets it.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Outlook {
    /// The least time to its first token.
    pub first: Span,
    /// The fewest prompt tokens that a replica would have to compute.
    pub uncached: u32,
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
            RouteSpec::Prefix { index_blocks, .. } | RouteSpec::LeastCost { index_blocks, .. }
                if index_blocks < 2 =>
            {
                Err(value("index_blocks", index_blocks.to_string(), INDEX_WANT))
            }
            RouteSpec::PeakEwma { decay_s } if !(LEAST_DECAY_S..=MOST_DECAY_S).contains(&decay_s) => {
                Err(value("decay_s", decay_s.to_string(), DECAY_WANT))
            }
            RouteSpec::LeastCost { weight, .. } if !(0.0..=MOST_WEIGHT).contains(&weight) => {
                Err(value("weight", weight.to_string(), WEIGHT_WANT))
            }
            _ => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for RouteSpec {
    /// By hand, because the usual reader of enums says nothing that the writer of a file understands, and takes no line.
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
                let mut written = Written::new(&policy, fields);
                let spec = RouteSpec::read(&mut written).map_err(A::Error::custom)?;
                written.finish().map_err(A::Error::custom)?;
                Ok(spec)
            }
        }
        from.deserialize_any(Route)
    }
}

/// A word or a number, as a line would have it.
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

/// Beyond this a bound bounds nothing.
const MOST_BOUND: f64 = 1e6;
const BOUND_WANT: &str = "a number from 1, such as 1.25";
const INDEX_WANT: &str = "a whole number from 2";
/// Beyond this nothing but others counts.
const MOST_WEIGHT: f64 = 100.0;
/// For how long a slow answer is remembered unless told otherwise, as Finagle has it, and how long or short it may be, seconds.
const DECAY_S: f64 = 10.0;
const LEAST_DECAY_S: f64 = 0.1;
const MOST_DECAY_S: f64 = 3_600.0;
const DECAY_WANT: &str = "seconds from 0.1 to 3600, such as 10";
const WEIGHT_WANT: &str = "a number from 0 to 100, such as 0.2";

/// A routing policy at work.
#[derive(Clone, Debug)]
pub struct Router {
    spec: RouteSpec,
    /// The replica that was chosen in turn last.
    last: Option<u32>,
    index: PrefixIndex,
    speeds: Speeds,
    peaks: Peaks,
    /// What the last look into the index found, and each replica's cost: kept so that a decision allocates nothing.
    matches: Vec<Match>,
    costs: Vec<f64>,
}

impl Router {
    /// A router that has seen nothing.
    pub fn new(spec: &RouteSpec) -> Router {
        let blocks = match spec {
            RouteSpec::Prefix { index_blocks, .. } | RouteSpec::LeastCost { index_blocks, .. } => {
                *index_blocks
            }
            _ => 2,
        };
        Router {
            spec: *spec,
            last: None,
            index: PrefixIndex::new(blocks as usize),
            speeds: Speeds::default(),
            peaks: Peaks::default(),
            matches: Vec::new(),
            costs: Vec::new(),
        }
    }

    /// Takes all its memory at once: for a router that decides while somebody waits. A simulated one takes it as it needs it.
    #[must_use]
    pub fn reserved(mut self) -> Router {
        self.index.reserve();
        self
    }

    /// Does it look at loads at all? Where it doesn't, nobody need find them out.
    pub fn needs_load(&self) -> bool {
        !matches!(self.spec, RouteSpec::RoundRobin {} | RouteSpec::Random {})
    }

    /// Does it look at prompts? Where it doesn't, nobody need cut them into blocks.
    pub fn needs_blocks(&self) -> bool {
        matches!(self.spec, RouteSpec::Prefix { .. } | RouteSpec::LeastCost { .. })
    }

    /// Does it weigh seconds? Where it doesn't, nobody need tell it of tokens, and whoever asks leaves replicas with a penalty out.
    pub fn weighs_seconds(&self) -> bool {
        matches!(self.spec, RouteSpec::LeastCost { .. })
    }

    /// Does it look at how long replicas take? Where it doesn't, nobody need tell it of first tokens.
    pub fn learns(&self) -> bool {
        self.weighs_seconds() || matches!(self.spec, RouteSpec::PeakEwma { .. })
    }

    /// The replica that gets the request; `None` where there are none. `views` are in ascending order of their names.
    /// Call it once per request: it remembers what it decided.
    pub fn pick(&mut self, views: &[ReplicaView], facts: &Facts<'_>, chance: &mut Stream) -> Option<Pick> {
        if views.is_empty() {
            return None;
        }
        if self.needs_blocks() {
            self.index.matches(facts.blocks, &mut self.matches);
        }
        let place = match self.spec {
            RouteSpec::RoundRobin {} => self.in_turn(views, |_| true),
            RouteSpec::Random {} => chance.below(views.len() as u64) as usize,
            RouteSpec::LeastRequests {} => self.least(views, LoadMeasure::Requests),
            RouteSpec::LeastTokens {} => self.least(views, LoadMeasure::Tokens),
            RouteSpec::PowerOfTwo { load } => better_of_two(views, chance, |view| view.load(load)),
            RouteSpec::PeakEwma { .. } => {
                better_of_two(views, chance, |view| self.peaks.cost(view.replica, view.load.requests))
            }
            RouteSpec::Session { bound } => match facts.session {
                Some(session) => rendezvous::place(session, views, bound)?,
                None => self.least(views, LoadMeasure::Requests),
            },
            RouteSpec::Prefix { bound, .. } => {
                self.longest(views, bound).unwrap_or_else(|| self.least(views, LoadMeasure::Requests))
            }
            RouteSpec::LeastCost { weight, .. } => self.cheapest(views, facts, weight, chance),
        };
        // Before the index learns where this prompt goes: see `cost`.
        let replica = views[place].replica;
        let uncached = self.uncached(replica, facts);
        if self.needs_blocks() {
            self.index.learn(replica, facts.blocks, uncached);
        }
        let share = 1.0 - f64::from(uncached) / f64::from(facts.prompt_tokens.max(1));
        let expected = self.matched(replica).map(|found| found.expected(share)).unwrap_or_default();
        Some(Pick { place, uncached, expected })
    }

    /// What the last [`pick`](Router::pick) weighed, in the order of its views: of each replica the prompt tokens that it was taken to have cached, and where
    /// seconds were weighed what it cost. To be asked right after it, with the same views and facts.
    pub fn weighed(&self, views: &[ReplicaView], facts: &Facts<'_>) -> Vec<(u32, Option<cost::CostTerms>)> {
        let weighed = |view: &ReplicaView| {
            let uncached = self.uncached(view.replica, facts);
            let terms = match self.spec {
                RouteSpec::LeastCost { weight, .. } => {
                    let (speed, answer) = (self.speeds.of(view.replica), self.answer(facts));
                    let terms = cost::CostTerms::of(&speed, view.load, uncached, answer, weight);
                    Some(cost::CostTerms { penalty_s: view.penalty.as_secs_f64(), ..terms })
                }
                _ => None,
            };
            (facts.prompt_tokens.saturating_sub(uncached), terms)
        };
        views.iter().map(weighed).collect()
    }

    /// The places of `views` from the best for this request to the worst, by the figure that the policy goes by, or the requests there: who would get it next. Nothing is
    /// remembered of it.
    pub fn ranked(&mut self, views: &[ReplicaView], facts: &Facts<'_>) -> Vec<usize> {
        if self.needs_blocks() {
            self.index.matches(facts.blocks, &mut self.matches);
        }
        let mut places: Vec<usize> = (0..views.len()).collect();
        match self.spec {
            RouteSpec::LeastCost { .. } => {
                let weighed = self.weighed(views, facts);
                let cost = |place: &usize| weighed[*place].1.map_or(0.0, |terms| terms.cost_s());
                places.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
            }
            RouteSpec::LeastTokens {} | RouteSpec::PowerOfTwo { load: LoadMeasure::Tokens } => {
                places.sort_by_key(|place| views[*place].load.tokens);
            }
            _ => places.sort_by_key(|place| views[*place].load.requests),
        }
        places
    }

    /// Tokens that an answer is expected to have.
    fn answer(&self, facts: &Facts<'_>) -> f64 {
        let answer = self.speeds.answer_tokens();
        facts.most_tokens.map_or(answer, |most| answer.min(f64::from(most)))
    }

    /// What a request can hope for on these replicas; `None` where there are none.
    pub fn outlook(&mut self, views: &[ReplicaView], facts: &Facts<'_>) -> Option<Outlook> {
        if self.needs_blocks() {
            self.index.matches(facts.blocks, &mut self.matches);
        }
        let each = views.iter().map(|view| {
            let uncached = self.uncached(view.replica, facts);
            (cost::first_token(&self.speeds.of(view.replica), view.load, uncached), uncached)
        });
        let (first, uncached) = each.reduce(|best, one| (best.0.min(one.0), best.1.min(one.1)))?;
        Some(Outlook { first: Span::from_secs_f64(first), uncached })
    }

    /// A replica has lost its cache.
    pub fn forget(&mut self, replica: u32) {
        self.index.forget(replica);
    }

    /// A replica's engine says what changed in its KV cache.
    pub fn told_kv(&mut self, replica: u32, event: &KvEvent) {
        if self.needs_blocks() {
            self.index.told(replica, event);
        }
    }

    /// What a replica's engine says of its KV cache is not heard any more, or some of it was missed.
    pub fn kv_lost(&mut self, replica: u32) {
        self.index.not_heard(replica);
    }

    /// A replica has gone for good: one that gets its number begins anew.
    pub fn part(&mut self, replica: u32) {
        self.index.part(replica);
        self.speeds.forget(replica);
        self.peaks.forget(replica);
    }

    /// An answer says which share of its prompt the replica had cached.
    pub fn cached(&mut self, booking: &Booking, share: f64) {
        if self.weighs_seconds() {
            self.index.heard(booking.replica, booking.expected, share);
        }
    }

    /// The first token of a request came.
    pub fn first(&mut self, booking: &Booking, at: At) {
        self.speeds.first(booking, at);
        self.took(booking, at);
    }

    /// An answer came, of which only its end was seen.
    pub fn whole(&mut self, booking: &Booking, at: At) {
        self.took(booking, at);
    }

    fn took(&mut self, booking: &Booking, at: At) {
        if let RouteSpec::PeakEwma { decay_s } = self.spec {
            self.peaks.took(booking.replica, at - booking.sent, at, Span::from_secs_f64(decay_s));
        }
    }

    /// A request was answered with so many tokens; `beside`: requests that decode there now.
    pub fn ended(&mut self, booking: &Booking, beside: u32, tokens: u32, at: At) {
        self.speeds.ended(booking, beside, tokens, at);
    }

    /// How fast a replica is taken to be.
    pub fn speed(&self, replica: u32) -> Speed {
        self.speeds.of(replica)
    }

    /// Blocks of prompts that are remembered.
    pub fn remembered(&self) -> usize {
        self.index.len()
    }

    /// What the last look into the index found of a replica.
    fn matched(&self, replica: u32) -> Option<&Match> {
        self.matches.iter().find(|found| found.replica == replica)
    }

    /// Prompt tokens that this replica would have to compute: all that it was not sent before.
    fn uncached(&self, replica: u32, facts: &Facts<'_>) -> u32 {
        left(facts, self.matched(replica).map_or(0, |found| found.blocks))
    }

    /// One of those that cost the least, by chance.
    fn cheapest(
        &mut self,
        views: &[ReplicaView],
        facts: &Facts<'_>,
        weight: f64,
        chance: &mut Stream,
    ) -> usize {
        let answer = self.answer(facts);
        let Router { speeds, costs, .. } = self;
        let cost = |view: &ReplicaView, uncached: u32| {
            let speed = speeds.of(view.replica);
            cost::seconds(&speed, view.load, uncached, answer, weight) + view.penalty.as_secs_f64()
        };
        costs.clear();
        costs.extend(views.iter().map(|view| cost(view, facts.prompt_tokens)));
        // Few have a part of the prompt, and they are not looked for at each of many that don't.
        for found in &self.matches {
            if let Ok(place) = views.binary_search_by_key(&found.replica, |view| view.replica) {
                costs[place] = cost(&views[place], left(facts, found.blocks));
            }
        }
        let least = self.costs.iter().copied().fold(f64::INFINITY, f64::min);
        let level = |cost: &f64| *cost <= least * (1.0 + cost::LEVEL) + cost::LEVEL_S;
        let several = self.costs.iter().filter(|cost| level(cost)).count() as u64;
        let drawn = if several > 1 { chance.below(several) as usize } else { 0 };
        let mut places = (0..views.len()).filter(|&place| level(&self.costs[place]));
        places.nth(drawn).unwrap_or(0)
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
    fn longest(&self, views: &[ReplicaView], bound: f64) -> Option<usize> {
        let most = rendezvous::most_requests(views, bound);
        let known = |found: &Match| {
            let place = views.binary_search_by_key(&found.replica, |view| view.replica).ok()?;
            Some((found.blocks, place))
        };
        let candidates = self.matches.iter().filter(|found| found.blocks > 0).filter_map(known);
        let (_, place) = candidates
            .min_by_key(|&(blocks, place)| (std::cmp::Reverse(blocks), views[place].load.requests, place))?;
        (views[place].load.requests < most).then_some(place)
    }
}

/// Prompt tokens that are left to compute where so many blocks are cached. The last token is computed always.
fn left(facts: &Facts<'_>, blocks: u32) -> u32 {
    facts.prompt_tokens.saturating_sub(facts.ends.tokens(blocks)).max(facts.prompt_tokens.min(1))
}

impl ReplicaView {
    fn load(&self, measure: LoadMeasure) -> u64 {
        match measure {
            LoadMeasure::Requests => u64::from(self.load.requests),
            LoadMeasure::Tokens => self.load.tokens,
        }
    }
}

/// Two different ones by chance, the less loaded of them; the first drawn among equals.
fn better_of_two<T: PartialOrd>(
    views: &[ReplicaView],
    chance: &mut Stream,
    load: impl Fn(&ReplicaView) -> T,
) -> usize {
    let first = chance.below(views.len() as u64) as usize;
    if views.len() == 1 {
        return first;
    }
    let mut second = chance.below(views.len() as u64 - 1) as usize;
    second += usize::from(second >= first);
    if load(&views[second]) < load(&views[first]) { second } else { first }
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
