//! Which replica gets a request.
//!
//! The router sees replicas as it last heard of them, never as they are; how old its knowledge is, is its caller's affair.
//! One enum and not a trait: a policy is a line of a file, and its state is small.

mod spec;

pub use spec::{LoadMeasure, RouteSpec};

use plimsoll_math::rng::Stream;
use plimsoll_model::{Arm, At, Span};

use crate::affinity::{Expected, Match, PrefixIndex};
use crate::cost;
use crate::load::{Booking, Load};
use crate::peak::Peaks;
use crate::rendezvous;
use crate::speed::{Speed, Speeds};

/// A replica that takes requests, as it was last seen.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaView {
    /// Its name, which it keeps.
    pub replica: u32,
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
    pub ends: BlockEnds<'a>,
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
    pub(crate) fn weighs_seconds(&self) -> bool {
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
    pub(crate) fn outlook(&mut self, views: &[ReplicaView], facts: &Facts<'_>) -> Option<Outlook> {
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
