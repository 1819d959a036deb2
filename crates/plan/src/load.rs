//! The load of a plan: draws numbered schedules, one request at a time, and describes them.
//!
//! A schedule number gives equal requests for every number of replicas and every load (common random numbers). Two
//! experiments therefore differ only by the compared setting.
//!
//! A generated load (Poisson, gamma, bursts, shapes) is drawn from a separate seed per schedule. A trace is a record, so
//! schedule 0 is the trace, sped up by `factor`. The other schedules come from the **local block bootstrap** (Paparoditis
//! and Politis 2002). The trace is cut into pieces of equal time. Each place gets a piece from its neighbourhood, a twelfth
//! of the trace to either side. Bursts within a piece and the daily pattern remain; only the number of coinciding bursts is
//! random.
//!
//! Resampling single gaps was rejected, because it turns a burst into noise. Resampling from the whole trace was rejected,
//! because it moves the night's pieces into the day. A further copy of a piece has new prompts, because a prefix cache
//! would recognise the first copy's prompts. Rounded timestamps are spread inside their tick by each schedule's seed. If
//! turns of a trace wait for each other, whole sessions are drawn by their beginnings.

use std::collections::BTreeMap;

use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_model::{SizeUnit, Span};
use plimsoll_sim::traffic::Submit;
use plimsoll_sim::{ModeSpec, RouteSpec, WorldSpec};
use plimsoll_workload::chain::ExternalClasses;
use plimsoll_workload::graph::Graph;
use plimsoll_workload::trace::TraceRow;
use plimsoll_workload::{
    Arrival, ArrivalFeed, ArrivalSpec, BlockNames, ClientSpec, Player, Scenario, Timeouts, Trace, TraceSizes,
};

use super::finding::LoadFinding;
use super::spec::{PlanError, PlanRuleSpec, TrafficSpec};
use crate::replay::{DueRequest, ReplaySource, SessionRequests};

/// Maximum number of pieces of a trace.
const PIECES: usize = 48;
/// Minimum number of pieces, then the mean requests per piece below which a trace has fewer than [`PIECES`] pieces.
const LEAST_PIECES: usize = 8;
const ROWS_PER_PIECE: usize = 25;
/// Divisor of the number of pieces that gives the reach of a draw to either side.
const REACH: usize = 12;

/// A schedule, request by request.
pub struct Draw {
    feed: ArrivalFeed,
    handing: ArrivalConverter,
    external: ExternalClasses,
    /// Number of requests that the world serves.
    pub requests: u64,
    /// Time until the last arrival, ns.
    pub window_ns: i64,
    /// Whether the rate is intended to be constant.
    pub even: bool,
    /// Whether turns wait for earlier responses. If so, the iterator's times assume responses of zero duration.
    pub steps: bool,
}

/// Converts an arrival to a request of the simulated world.
struct ArrivalConverter {
    names: Option<BlockNames>,
    /// Priority and queue time-out of each class.
    queues: Vec<(u32, Option<Span>)>,
    items: bool,
}

impl ArrivalConverter {
    fn submit(&mut self, arrival: &Arrival) -> Submit {
        let blocks = self.names.as_mut().map_or_else(Vec::new, |names| names.of(arrival));
        let (priority, queue_timeout) =
            self.queues.get(usize::from(arrival.class)).copied().unwrap_or_default();
        Submit {
            blocks,
            session: arrival.session,
            priority,
            queue_timeout,
            items: if self.items { arrival.prompt_tokens } else { 0 },
            ..Submit::new(arrival.id, arrival.prompt_tokens.max(1), arrival.output_tokens)
        }
    }
}

/// A time span longer than any simulation.
const NEVER: Span = Span::from_secs(1_000_000_000);

impl Draw {
    /// Returns the schedule as a stepped source: a turn is due after the end of its predecessors.
    pub fn stepped(self, seed: u64) -> impl ReplaySource {
        let timeouts = Timeouts { total: NEVER, ..Timeouts::default() };
        let client = ClientSpec { timeouts, ..ClientSpec::default() };
        let Draw { feed, mut handing, external, .. } = self;
        let player = Player::fed(feed, &client, seed).to_their_ends();
        SessionRequests::new(player, external, move |arrival| handing.submit(arrival))
    }
}

impl Iterator for Draw {
    type Item = DueRequest;

    fn next(&mut self) -> Option<DueRequest> {
        let arrival = self.feed.find(|arrival| self.external.latency(arrival).is_none())?;
        Some(DueRequest { at_ns: arrival.due.0, request: self.handing.submit(&arrival) })
    }
}

impl TrafficSpec {
    /// Draws schedule number `index` of this load at `factor` times its rate, for this world.
    ///
    /// A generated process runs at the higher rate for the same window; its durations (a burst, a day) are unchanged. A
    /// trace keeps its shape and its number of requests, and runs `factor` times as fast.
    ///
    /// # Errors
    /// Fails if the scenario can't be drawn, or its files are not attached.
    pub fn draw(&self, world: &WorldSpec, factor: f64, index: u32, seed: u64) -> Result<Draw, PlanError> {
        let mut stream = Stream::new(seed, "plan schedules", u64::from(index));
        let mut scenario = Scenario { seed: stream.next_u64(), ..self.scenario.clone() };
        let (mut rate, mut window_s) = (self.rate_per_s * factor, self.window_s);
        if let ArrivalSpec::Trace { file, .. } = &self.scenario.arrivals {
            let own = self.scenario.material.trace(file)?;
            window_s /= factor;
            if index > 0 {
                let again = resampled(own, &mut stream)?;
                // The clock speed is that of the trace; the number of requests is random.
                rate *= again.rate_per_s()? / own.rate_per_s()?;
                window_s *= again.rows.len() as f64 / own.rows.len() as f64 * self.rate_per_s * factor / rate;
                scenario.material.insert_trace(file, again);
            }
        }
        let window = Span::from_secs_f64(window_s);
        let external = ExternalClasses::of(&scenario)?;
        let feed = ArrivalFeed::new(&scenario, rate / external.served(), window, 0, None)?;
        let names = (shares(&scenario) && looks_at_names(world)).then(|| BlockNames::new(&scenario));
        let queues = scenario.classes.iter().map(|class| (class.priority.unwrap_or(0), class.queue_timeout));
        Ok(Draw {
            requests: (feed.len() as f64 * external.served()).round() as u64,
            feed,
            external,
            handing: ArrivalConverter {
                names: names.transpose()?,
                queues: queues.collect(),
                items: scenario.target.protocol.counts() == SizeUnit::Items,
            },
            steps: scenario.plays_sessions_out() || scenario.chain,
            window_ns: window.0,
            even: scenario.arrivals.rate_course() == plimsoll_model::RateCourse::Even,
        })
    }

    /// Returns the same requests in the same order at Poisson times, to isolate the effect of bursts. A load without a
    /// trace also becomes Poisson.
    pub fn poisson(&self, seed: u64) -> Result<TrafficSpec, PlanError> {
        let mut scenario = self.scenario.clone();
        match &self.scenario.arrivals {
            ArrivalSpec::Trace { file, .. } => {
                let own = self.scenario.material.trace(file)?;
                let mut stream = Stream::new(seed, "poisson times", 0);
                if let Some(graph) = &own.graph {
                    let again = poisson_sessions(own, graph, &mut stream)?;
                    scenario.material.insert_trace(file, again);
                    let source = format!("{}, its sessions at Poisson times", self.source);
                    return Ok(TrafficSpec { scenario, source, ..self.clone() });
                }
                let (gap_s, mut at_s) = (1.0 / own.rate_per_s()?, 0.0);
                let rows = own.rows.iter().map(|row| {
                    at_s += exponential(&mut stream, gap_s);
                    TraceRow { at: Span::from_secs_f64(at_s), ..row.clone() }
                });
                let poisson = Trace::from_rows(rows.collect(), false, file);
                scenario.material.insert_trace(file, poisson.map_err(setting)?);
            }
            _ => scenario.arrivals = ArrivalSpec::Poisson,
        }
        let source = format!("{}, at Poisson times", self.source);
        Ok(TrafficSpec { scenario, source, ..self.clone() })
    }
}

fn setting(error: impl ToString) -> PlanError {
    PlanError::Setting(error.to_string())
}

/// Returns whether any prompts share a prefix.
fn shares(scenario: &Scenario) -> bool {
    let own = match &scenario.arrivals {
        ArrivalSpec::Trace { file, sizes: TraceSizes::Own, .. } => {
            scenario.material.trace(file).is_ok_and(|trace| trace.block_tokens > 0 || trace.graph.is_some())
        }
        _ => scenario.plays_sessions_out(),
    };
    let of_class = |class: u16| {
        let prompts = scenario.prompts_of(class);
        prompts.shared_prefix.is_some() || prompts.sessions.is_some() || prompts.file.is_some()
    };
    own || (0..scenario.class_count() as u16).any(of_class)
}

/// Returns whether the engine or the router uses prompt prefixes.
fn looks_at_names(world: &WorldSpec) -> bool {
    let cached = matches!(&world.engine.mode, ModeSpec::Batching(batching) if batching.prefix_cache);
    cached || matches!(world.fleet.route, RouteSpec::Prefix { .. } | RouteSpec::LeastCost { .. })
}

/// Returns a trace of these sessions: index in the graph, begin, and number of earlier copies.
fn of_sessions(
    own: &Trace,
    graph: &Graph,
    sessions: impl Iterator<Item = (usize, Span, u64)>,
) -> Result<Trace, PlanError> {
    let ids = own.rows.iter().flat_map(|row| &row.blocks).max().map_or(0, |id| id.saturating_add(1));
    let mut rows = Vec::with_capacity(own.rows.len());
    for (number, (of, begins, copy)) in sessions.enumerate() {
        let apart = copy.wrapping_mul(ids);
        rows.extend(graph.sessions[of].turns.iter().map(|turn| {
            let row = &own.rows[turn.row];
            TraceRow {
                at: begins + turn.earliest,
                session: Some(number as u64),
                blocks: row.blocks.iter().map(|id| id.wrapping_add(apart)).collect(),
                ..row.clone()
            }
        }));
    }
    let mut again = Trace::from_rows(rows, false, "trace").map_err(setting)?;
    again.block_tokens = own.block_tokens;
    Ok(again)
}

/// Returns the sessions in their order, at Poisson times.
fn poisson_sessions(own: &Trace, graph: &Graph, stream: &mut Stream) -> Result<Trace, PlanError> {
    let last_s = graph.sessions.last().map_or(0.0, |session| session.begins.as_secs_f64());
    let gap_s = last_s / (graph.sessions.len() as f64 - 1.0).max(1.0);
    let mut at_s = 0.0;
    let begins = (0..graph.sessions.len()).map(|of| {
        at_s += exponential(stream, gap_s);
        (of, Span::from_secs_f64(at_s), 0)
    });
    of_sessions(own, graph, begins)
}

/// Resamples whole sessions: the pieces contain their beginnings.
fn resampled_sessions(own: &Trace, graph: &Graph, stream: &mut Stream) -> Result<Trace, PlanError> {
    let begins: Vec<i64> = graph.sessions.iter().map(|session| session.begins.0).collect();
    let last = begins.last().copied().unwrap_or(0);
    if last == 0 {
        return Ok(own.clone());
    }
    let pieces = (begins.len() / ROWS_PER_PIECE).clamp(LEAST_PIECES, PIECES);
    let width = last / pieces as i64 + 1;
    let reach = (pieces / REACH).max(1);
    let (mut copies, mut drawn) = (vec![0u64; pieces], Vec::new());
    for place in 0..pieces {
        let (first, end) = (place.saturating_sub(reach), (place + reach + 1).min(pieces));
        let from = first + stream.below((end - first) as u64) as usize;
        let range = begins.partition_point(|at| *at < from as i64 * width)
            ..begins.partition_point(|at| *at < (from as i64 + 1) * width);
        let shift = Span((place as i64 - from as i64) * width);
        drawn.extend(range.map(|of| (of, Span(begins[of]) + shift, copies[from])));
        copies[from] += 1;
    }
    if drawn.len() < 2 {
        return Ok(own.clone());
    }
    let again = of_sessions(own, graph, drawn.into_iter())?;
    Ok(if again.rate_per_s().is_err() { own.clone() } else { again })
}

/// Returns a trace resampled by the local block bootstrap.
fn resampled(own: &Trace, stream: &mut Stream) -> Result<Trace, PlanError> {
    if let Some(graph) = &own.graph {
        return resampled_sessions(own, graph, stream);
    }
    let rows = &own.rows;
    let pieces = (rows.len() / ROWS_PER_PIECE).clamp(LEAST_PIECES, PIECES);
    let length = rows.last().map_or(0, |row| row.at.0) + own.tick.map_or(1, |tick| tick.0);
    let width = (length / pieces as i64).max(1);
    let reach = (pieces / REACH).max(1);
    let ids = rows.iter().flat_map(|row| &row.blocks).max().map_or(0, |id| id.saturating_add(1));
    let mut copies = vec![0u64; pieces];
    let mut out = Vec::with_capacity(rows.len());
    for place in 0..pieces {
        let first = place.saturating_sub(reach);
        let last = (place + reach).min(pieces - 1);
        let from = first + stream.below((last - first + 1) as u64) as usize;
        let begin = rows.partition_point(|row| row.at.0 < from as i64 * width);
        // The last piece includes the rounding remainder.
        let end = match from + 1 == pieces {
            true => rows.len(),
            false => rows.partition_point(|row| row.at.0 < (from as i64 + 1) * width),
        };
        let shift = Span((place as i64 - from as i64) * width);
        let apart = copies[from].wrapping_mul(ids);
        copies[from] += 1;
        out.extend(rows[begin..end].iter().map(|row| TraceRow {
            at: row.at + shift,
            blocks: row.blocks.iter().map(|id| id.wrapping_add(apart)).collect(),
            ..row.clone()
        }));
    }
    if out.len() < 2 {
        return Ok(own.clone());
    }
    let mut again = Trace::from_rows(out, false, "trace").map_err(setting)?;
    // The tick is a property of the whole trace, and a draw does not reveal it.
    (again.tick, again.block_tokens) = (own.tick, own.block_tokens);
    if again.rate_per_s().is_err() {
        return Ok(own.clone());
    }
    Ok(again)
}

/// Describes schedule 0 at the peak load.
///
/// # Errors
/// Fails like [`TrafficSpec::draw`], or if the schedule is empty.
pub fn describe(
    traffic: &TrafficSpec,
    world: &WorldSpec,
    rules: &PlanRuleSpec,
    seed: u64,
) -> Result<LoadFinding, PlanError> {
    let draw = traffic.draw(world, rules.peak, 0, seed)?;
    let window_s = draw.window_ns as f64 / 1e9;
    let (mut gaps, mut minutes) = (Moments::default(), vec![0u64; (window_s / 60.0) as usize]);
    let (mut prompts, mut outputs) = (Lengths::default(), Lengths::default());
    let (mut before, mut requests) = (None, 0u64);
    for DueRequest { at_ns, request } in draw {
        if let Some(before) = before.replace(at_ns) {
            gaps.push((at_ns - before) as f64);
        }
        if let Some(minute) = minutes.get_mut((at_ns / 60_000_000_000) as usize) {
            *minute += 1;
        }
        prompts.push(request.prompt_tokens);
        outputs.push(request.output_tokens);
        requests += 1;
    }
    if requests == 0 {
        let what = "the load brings no request in its window; give a higher rate or a longer window";
        return Err(setting(what));
    }
    let per_minute = requests as f64 / window_s * 60.0;
    let busiest = minutes.iter().max().map_or(1.0, |most| *most as f64 / per_minute);
    Ok(LoadFinding {
        source: traffic.source.clone(),
        rate_per_s: traffic.rate_per_s,
        peak_per_s: traffic.rate_per_s * rules.peak,
        gap_cv: gaps.cv(),
        busiest_minute: busiest,
        prompt: prompts.summary(),
        output: outputs.summary(),
        requests,
        window_s,
    })
}

/// Running mean and variance (Welford 1962).
#[derive(Default)]
struct Moments {
    n: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn push(&mut self, value: f64) {
        self.n += 1.0;
        let off = value - self.mean;
        self.mean += off / self.n;
        self.squares += off * (value - self.mean);
    }

    /// Returns standard deviation / mean; 0 without data.
    fn cv(&self) -> f64 {
        if self.n < 2.0 || self.mean <= 0.0 {
            return 0.0;
        }
        (self.squares / (self.n - 1.0)).sqrt() / self.mean
    }
}

/// Counts per length. Memory is bounded, because there are at most as many lengths as a context has tokens.
#[derive(Default)]
struct Lengths(BTreeMap<u32, u64>);

impl Lengths {
    fn push(&mut self, tokens: u32) {
        *self.0.entry(tokens).or_default() += 1;
    }

    /// Returns mean, median and 99th percentile.
    fn summary(&self) -> [f64; 3] {
        let n: u64 = self.0.values().sum();
        let total: f64 = self.0.iter().map(|(tokens, count)| f64::from(*tokens) * *count as f64).sum();
        let at = |p: f64| {
            let rank = plimsoll_math::quantile::rank(n.max(1) as usize, p) as u64;
            let mut below = 0;
            let found = self.0.iter().find(|(_, count)| {
                below += **count;
                below >= rank
            });
            found.map_or(0.0, |(tokens, _)| f64::from(*tokens))
        };
        [total / n.max(1) as f64, at(0.5), at(0.99)]
    }
}
