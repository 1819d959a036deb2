//! Request routing: picks the replica that serves a request.
//!
//! The router works on the last known state of each replica. The caller decides how fresh that state is. Policies are
//! one enum and not a trait, because a policy is a line of configuration with little state.

mod spec;

pub use spec::{LoadMeasure, RouteSpec};

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, Span};

use crate::affinity::{ExpectedHit, PrefixIndex, PrefixMatch};
use crate::cost;
use crate::load::{Booking, ReplicaLoad};
use crate::peak::PeakEwmaState;
use crate::rendezvous;
use crate::speed::{Speed, Speeds};

/// The last known state of a replica that accepts requests.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaView {
    /// Stable number of the replica.
    pub replica: u32,
    pub load: ReplicaLoad,
    /// Extra cost because the replica recently rejected requests.
    pub penalty: Span,
}

/// The properties of a request that routing may use.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RequestFacts<'a> {
    /// Conversation that the request belongs to.
    pub session: Option<u64>,
    /// Hashes of the prompt's full blocks; each hash covers the whole prefix.
    pub blocks: &'a [u64],
    pub ends: BlockEnds<'a>,
    pub prompt_tokens: u32,
    /// Limit on output tokens; `None` if the request sets no limit.
    pub most_tokens: Option<u32>,
    /// Set if the router will see the first token.
    pub streams: bool,
    pub arm: Arm,
    /// Hash of the requested model name.
    pub model: Option<u64>,
    /// Index of the first model tier that may serve the request.
    pub tier: u32,
    /// Allowed replicas in ascending order; `None` allows all.
    pub among: Option<&'a [u32]>,
}

/// Token offsets at which the blocks of a prompt end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BlockEnds<'a> {
    /// Every block has this many tokens.
    Every(u32),
    /// The end of each block, in tokens from the start of the prompt.
    At(&'a [u32]),
}

impl Default for BlockEnds<'_> {
    fn default() -> Self {
        BlockEnds::Every(1)
    }
}

impl BlockEnds<'_> {
    /// Returns the number of tokens in the first `blocks` blocks.
    fn tokens(self, blocks: u32) -> u32 {
        match self {
            BlockEnds::Every(tokens) => blocks.saturating_mul(tokens),
            BlockEnds::At(ends) => {
                (blocks as usize).checked_sub(1).and_then(|last| ends.get(last).copied()).unwrap_or(0)
            }
        }
    }
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct RouteDecision {
    pub place: usize,
    /// Prompt tokens that the replica must compute, if the router's record is right.
    pub uncached: u32,
    /// Expected prefix-cache hit on the replica.
    pub expected: ExpectedHit,
}

/// Best-case estimates for a request over all replicas.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct RequestForecast {
    /// Shortest estimated time to first token.
    pub first: Span,
    /// Fewest prompt tokens that any replica would compute.
    pub uncached: u32,
}

/// A router: a policy and its state.
#[derive(Clone, Debug)]
pub struct Router {
    spec: RouteSpec,
    /// Replica chosen last in rotation; `None` before the first choice.
    last: Option<u32>,
    index: PrefixIndex,
    speeds: Speeds,
    peaks: PeakEwmaState,
    /// Buffers for prefix matches and costs. They are reused so that a decision does not allocate.
    matches: Vec<PrefixMatch>,
    costs: Vec<f64>,
}

impl Router {
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
            peaks: PeakEwmaState::default(),
            matches: Vec::new(),
            costs: Vec::new(),
        }
    }

    /// Allocates the prefix index up front, because allocation would delay live requests. The simulator skips this
    /// call and allocates on demand.
    #[must_use]
    pub fn reserved(mut self) -> Router {
        self.index.reserve();
        self
    }

    /// Returns whether the policy uses replica load. If not, callers may skip computing the load.
    pub fn needs_load(&self) -> bool {
        !matches!(self.spec, RouteSpec::RoundRobin {} | RouteSpec::Random {})
    }

    /// Returns whether the policy uses prompt blocks. If not, callers may skip hashing prompts.
    pub fn needs_blocks(&self) -> bool {
        matches!(self.spec, RouteSpec::Prefix { .. } | RouteSpec::LeastCost { .. })
    }

    /// Returns whether the policy compares costs in seconds. If not, callers need not report tokens and must leave
    /// out replicas with a penalty.
    pub(crate) fn weighs_seconds(&self) -> bool {
        matches!(self.spec, RouteSpec::LeastCost { .. })
    }

    /// Returns whether the policy uses measured latency. If not, callers need not report first tokens.
    pub fn learns(&self) -> bool {
        self.weighs_seconds() || matches!(self.spec, RouteSpec::PeakEwma { .. })
    }

    /// Picks a replica for a request, or returns `None` if `views` is empty.
    ///
    /// `views` must be in ascending order of replica number. Call this once per request, because the router records
    /// its decision.
    pub fn pick(
        &mut self,
        views: &[ReplicaView],
        facts: &RequestFacts<'_>,
        chance: &mut Stream,
    ) -> Option<RouteDecision> {
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
        // The uncached tokens are computed before the index learns this prompt, because afterwards every prompt looks
        // cached.
        let replica = views[place].replica;
        let uncached = self.uncached(replica, facts);
        if self.needs_blocks() {
            self.index.learn(replica, facts.blocks, uncached);
        }
        let share = 1.0 - f64::from(uncached) / f64::from(facts.prompt_tokens.max(1));
        let expected = self.matched(replica).map(|found| found.expected(share)).unwrap_or_default();
        Some(RouteDecision { place, uncached, expected })
    }

    /// Returns the cached prompt tokens and cost terms of each view, as used by the last [`pick`](Router::pick).
    ///
    /// Cost terms exist for `least_cost` only. Call this right after `pick` with the same arguments.
    pub fn weighed(
        &self,
        views: &[ReplicaView],
        facts: &RequestFacts<'_>,
    ) -> Vec<(u32, Option<cost::CostTerms>)> {
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

    /// Returns the indices of `views` from the best replica for this request to the worst.
    ///
    /// The order uses the cost or token load of the policy; other policies use requests in flight. The call records
    /// no decision.
    pub fn ranked(&mut self, views: &[ReplicaView], facts: &RequestFacts<'_>) -> Vec<usize> {
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

    /// Returns the expected number of output tokens, capped by the request's limit.
    fn answer(&self, facts: &RequestFacts<'_>) -> f64 {
        let answer = self.speeds.answer_tokens();
        facts.most_tokens.map_or(answer, |most| answer.min(f64::from(most)))
    }

    /// Returns best-case estimates over `views`, or `None` if `views` is empty.
    pub(crate) fn outlook(
        &mut self,
        views: &[ReplicaView],
        facts: &RequestFacts<'_>,
    ) -> Option<RequestForecast> {
        if self.needs_blocks() {
            self.index.matches(facts.blocks, &mut self.matches);
        }
        let each = views.iter().map(|view| {
            let uncached = self.uncached(view.replica, facts);
            (cost::first_token(&self.speeds.of(view.replica), view.load, uncached), uncached)
        });
        let (first, uncached) = each.reduce(|best, one| (best.0.min(one.0), best.1.min(one.1)))?;
        Some(RequestForecast { first: Span::from_secs_f64(first), uncached })
    }

    /// Drops the prefix memory of a replica that lost its cache.
    pub fn forget(&mut self, replica: u32) {
        self.index.forget(replica);
    }

    /// Removes a replica. A later replica with this number starts without history.
    pub fn part(&mut self, replica: u32) {
        self.index.part(replica);
        self.speeds.forget(replica);
        self.peaks.forget(replica);
    }

    /// Records the share of a prompt that the replica reported as cached.
    pub fn cached(&mut self, booking: &Booking, share: f64) {
        if self.weighs_seconds() {
            self.index.heard(booking.replica, booking.expected, share);
        }
    }

    /// Records the first token of a streamed response.
    pub fn first(&mut self, booking: &Booking, at: At) {
        self.speeds.first(booking, at);
        self.took(booking, at);
    }

    /// Records the end of a response whose first token the router did not see.
    pub fn whole(&mut self, booking: &Booking, at: At) {
        self.took(booking, at);
    }

    fn took(&mut self, booking: &Booking, at: At) {
        if let RouteSpec::PeakEwma { decay_s } = self.spec {
            self.peaks.took(booking.replica, at - booking.sent, at, Span::from_secs_f64(decay_s));
        }
    }

    /// Records the end of a request with `tokens` output tokens. `beside` is the number of requests that decode on
    /// the replica at that time.
    pub fn ended(&mut self, booking: &Booking, beside: u32, tokens: u32, at: At) {
        self.speeds.ended(booking, beside, tokens, at);
    }

    /// Returns the estimated speed of a replica.
    pub fn speed(&self, replica: u32) -> Speed {
        self.speeds.of(replica)
    }

    /// Returns the number of prompt blocks in the prefix index.
    pub fn remembered(&self) -> usize {
        self.index.len()
    }

    /// Returns the replica's prefix match from the last index lookup.
    fn matched(&self, replica: u32) -> Option<&PrefixMatch> {
        self.matches.iter().find(|found| found.replica == replica)
    }

    /// Returns the prompt tokens that this replica would compute.
    fn uncached(&self, replica: u32, facts: &RequestFacts<'_>) -> u32 {
        left(facts, self.matched(replica).map_or(0, |found| found.blocks))
    }

    /// Returns the index of a replica with the lowest cost, at random among equals.
    fn cheapest(
        &mut self,
        views: &[ReplicaView],
        facts: &RequestFacts<'_>,
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
        // Few replicas have a match, so the loop runs over the matches and not over all views.
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

    /// Returns the index of the next replica in rotation among the views that satisfy `may`.
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

    /// Returns the index of the replica with the longest match, unless it is over the bound. Equal matches go to the
    /// lower load, then to the first view.
    fn longest(&self, views: &[ReplicaView], bound: f64) -> Option<usize> {
        let most = rendezvous::most_requests(views, bound);
        let known = |found: &PrefixMatch| {
            let place = views.binary_search_by_key(&found.replica, |view| view.replica).ok()?;
            Some((found.blocks, place))
        };
        let candidates = self.matches.iter().filter(|found| found.blocks > 0).filter_map(known);
        let (_, place) = candidates
            .min_by_key(|&(blocks, place)| (std::cmp::Reverse(blocks), views[place].load.requests, place))?;
        (views[place].load.requests < most).then_some(place)
    }
}

/// Returns the prompt tokens left to compute with this many cached blocks. The last token is always computed.
fn left(facts: &RequestFacts<'_>, blocks: u32) -> u32 {
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

/// Returns the index of the less loaded of two different random replicas; the first drawn wins a tie.
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
