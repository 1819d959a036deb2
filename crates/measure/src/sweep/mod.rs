//! The sweep: a stepper that requests levels until the limits are narrow enough or the time is up.
//!
//! Results go in and the next experiment comes out. The stepper has no clock and starts nothing, so one implementation drives
//! a live endpoint and a simulated one. There are these phases:
//!
//! * concurrency 1 measures the latency without contention;
//! * closed-loop levels with rising concurrency measure the capacity, because a closed loop cannot overload the target;
//! * open-loop levels follow: a first set with rising loads, then one at a time at the load with the most information;
//! * the sustained level is last.
//!
//! If a budget must be proven, `prove` chooses the levels. Plain bisection on latency was rejected: it needs a ceiling, and
//! each of its steps trusts one noisy level.

mod ladder;
mod place;
mod preview;
mod prove;
mod spec;

pub use preview::{CAPACITIES, Preview, PreviewAt, RequestPrice};
pub use prove::least_time_s;
pub use spec::{SweepError, SweepLevel, SweepNext, SweepProgress, SweepSpec};

use std::collections::VecDeque;

use plimsoll_model::{Attempt, Level, Load, Sample, Span};

use crate::findings::{CapacityLine, Findings, LevelFinding, LoadKeptUp};
use crate::gather::LevelAccumulator;
use crate::lines::{self, LineLevel, LineSpec};
use crate::purpose::WARM_UP;
use crate::whole;
use ladder::RUNG_FACTOR;
pub(crate) use ladder::{BASELINE_SHARE, LADDER_SHARE};
use place::{KnownLine, MeasuredLoads, first_loads};
use prove::PlacingBisection;

/// Growth below which throughput is saturated when the number in flight doubles.
pub const SATURATED_GROWTH: f64 = 0.03;

/// Share of the search time for the first level at concurrency 1.
const PROBE_SHARE: f64 = 0.01;
/// Planned open-loop levels per kind of traffic. More follow if levels need less than their share of the time.
pub(crate) const LEVELS_PLANNED: u32 = 11;
/// Upper bound of the mean load of the open-loop levels, as a share of the capacity.
pub(crate) const NEAR: f64 = 1.0;
/// Maximum number of levels per kind of traffic; more levels do not find a limit that these did not find.
const MOST_LEVELS: usize = 40;
/// Factor over the minimum requests of a percentile, because arrivals are random and a warm-up may be cut.
const TAIL_MARGIN: f64 = 1.25;
/// Largest factor by which a level, or concurrency 1, is extended to reach a percentile.
const REACH: f64 = 1.7;
/// Minimum expected arrivals of a level. With fewer it is random whether the level even has a median.
///
/// A sweep of one minute spent levels on one to four requests, and one of them drew none.
const WORTH_A_LEVEL: f64 = TAIL_MARGIN * crate::tail::BEYOND / (1.0 - 0.5);
/// Largest factor by which a level is extended. Beyond it, more levels give more information.
const LONGER_AT_MOST: f64 = 4.0;
/// Bootstrap replicates during the search, and for the final findings.
const REDRAWS: (usize, usize) = (120, 800);

pub struct Sweep {
    spec: SweepSpec,
    observed: Vec<LineLevel>,
    asked: Option<SweepLevel>,
    phase: Phase,
    kind: usize,
    spent: Span,
    requests: u64,
    failed: u64,
    /// First open-loop loads that are still to run.
    first: VecDeque<f64>,
    /// Time at which the search of the current kind of traffic ends.
    kind_ends: Span,
    /// Budget limit by the placing levels, in requests per second.
    placed_at: f64,
    /// Drain time of the last level; `None` if no requests were abandoned.
    gave_up: Option<Span>,
    notice: Option<String>,
}

#[derive(Clone, PartialEq, Debug)]
enum Phase {
    Probe,
    Idle,
    Baseline,
    Ladder(u32),
    First,
    Search,
    /// An overload at this load in requests per second.
    Overload(f64),
    /// Short levels that bracket the budget limit.
    Place(PlacingBisection),
    /// Long levels that prove the budget limit: load in requests per second, and number of levels left.
    Prove(f64, u32),
    Hold,
    Done(String),
}

impl Sweep {
    /// Returns a sweep without levels.
    ///
    /// # Errors
    /// Fails if a field of the spec is invalid; the error contains the first invalid field.
    pub fn new(spec: SweepSpec) -> Result<Sweep, SweepError> {
        spec.check()?;
        Ok(Sweep {
            spec,
            observed: Vec::new(),
            asked: None,
            phase: Phase::Probe,
            kind: 0,
            spent: Span::ZERO,
            requests: 0,
            failed: 0,
            first: VecDeque::new(),
            kind_ends: Span::ZERO,
            placed_at: 0.0,
            gave_up: None,
            notice: None,
        })
    }

    /// Returns the next step. Repeated calls without [`observe`](Sweep::observe) return an equal step.
    #[expect(
        clippy::should_implement_trait,
        reason = "a stepper answers before its end too, and is no sequence"
    )]
    pub fn next(&mut self) -> SweepNext {
        loop {
            if let Some(asked) = &self.asked {
                return SweepNext::Run(asked.clone());
            }
            if let Phase::Done(why) = &self.phase {
                return SweepNext::Done { why: why.clone() };
            }
            match self.wanted() {
                Some(experiment) => self.asked = self.within_ceilings(experiment),
                None => continue,
            }
        }
    }

    /// Takes the records and samples of the level that [`next`](Sweep::next) requested. Records of other levels are skipped.
    pub fn observe(&mut self, level: &Level, attempts: &[Attempt], samples: &[Sample]) -> LevelFinding {
        let own: Vec<&Attempt> = attempts.iter().filter(|a| a.level == level.id).collect();
        let samples: Vec<&Sample> =
            samples.iter().filter(|s| s.at >= level.start && s.at < level.drained).collect();
        let observed = LineLevel::new(level, &own, &samples, self.spec.budget.as_ref());
        self.take(level, observed, own.len() as u64)
    }

    /// Takes the result of a level whose records were gathered as they ended.
    pub fn observe_gathered(
        &mut self,
        level: &Level,
        rows: LevelAccumulator,
        samples: &[Sample],
    ) -> LevelFinding {
        let attempts = rows.attempts();
        let observed = LineLevel::gathered(level, rows, samples, self.spec.budget.as_ref());
        self.take(level, observed, attempts)
    }

    fn take(&mut self, level: &Level, observed: LineLevel, attempts: u64) -> LevelFinding {
        let finding = observed.finding.clone();
        self.asked = None;
        self.spent += level.drained.max(level.stop) - level.start;
        self.requests += attempts;
        self.failed += finding.summary.counts.failed;
        self.remember_drain(level);
        if level.purpose != WARM_UP {
            self.observed.push(observed);
            self.advance(level);
        }
        finding
    }

    /// Ends the sweep early because the user requested it; the findings use the levels so far.
    pub fn stop(&mut self, why: &str) {
        self.asked = None;
        self.phase = Phase::Done(why.to_owned());
    }

    /// Returns the progress of the sweep.
    pub fn progress(&self) -> SweepProgress {
        let phase = match &self.phase {
            Phase::Probe | Phase::Idle | Phase::Baseline => "one at a time",
            Phase::Ladder(_) => "looking for the capacity",
            Phase::First => "drawing the curve",
            Phase::Search => "closing in on the lines",
            Phase::Overload(_) => "looking for the breaking point",
            Phase::Place(_) => "placing the budget limit",
            Phase::Prove(..) => "proving the budget limit",
            Phase::Hold => "holding the line",
            Phase::Done(_) => "done",
        };
        SweepProgress {
            spent_s: self.spent.as_secs_f64(),
            time_s: self.spec.time.as_secs_f64(),
            levels: self.observed.len(),
            requests: self.requests,
            phase: format!("{}: {phase}", self.traffic()),
        }
    }

    /// Returns the findings of the levels so far.
    pub fn findings(&self) -> Findings {
        whole::findings(&self.observed, &self.line_spec(REDRAWS.1), true)
    }

    fn line_spec(&self, replicates: usize) -> LineSpec {
        line_spec(&self.spec, replicates)
    }

    fn traffic(&self) -> &str {
        self.spec.traffic.get(self.kind).map_or("", String::as_str)
    }

    // -------------------------------------------------------------------------------- phases

    /// Returns the next experiment of the current phase, or `None` after a change of phase.
    fn wanted(&mut self) -> Option<SweepLevel> {
        match self.phase.clone() {
            Phase::Probe => Some(self.baseline(PROBE_SHARE)),
            Phase::Idle => self.idle().or_else(|| {
                self.phase = Phase::Baseline;
                None
            }),
            Phase::Baseline => Some(self.baseline(self.closed_shares().0)),
            Phase::Ladder(concurrency) => Some(self.rung(concurrency)),
            Phase::First => self.first_level(),
            Phase::Search => self.search_level(),
            Phase::Prove(_, 0) => self.search_ends(),
            phase @ (Phase::Overload(_) | Phase::Place(_) | Phase::Prove(..)) => self.proving(&phase),
            Phase::Hold => self.hold_level(),
            Phase::Done(_) => None,
        }
    }

    /// Changes the phase after a result.
    fn advance(&mut self, level: &Level) {
        let finished = self.observed.last().map_or(0, |o| o.finding.summary.counts.finished);
        use plimsoll_model::EndedBy::{Ceiling, Complete, Cut, DrainLimit, Errors, Known, User, UserNow};
        match level.ended_by {
            User | UserNow => return self.finish("stopped by the user"),
            Errors => return self.finish("too many errors"),
            Ceiling => return self.finish("a ceiling was reached"),
            Cut => return self.finish("the generator was cut off"),
            Complete | Known | DrainLimit => {}
        }
        if self.spec.max_errors.is_some_and(|most| self.failed > most) {
            return self.finish("too many requests failed");
        }
        match self.phase.clone() {
            Phase::Probe if finished == 0 => self.finish("nothing finished at concurrency 1"),
            // A closed loop with a limited rate shows no capacity. If one request at a time is over the maximum rate, or the first
            // step may be, the open loop begins. The driver spaces a closed loop's requests by the maximum rate in any case. One request
            // at a time has no contention with pauses or without.
            Phase::Probe if self.over_ceiling(1) => self.open_loop(),
            Phase::Probe => self.phase = Phase::Idle,
            Phase::Idle => self.phase = Phase::Baseline,
            Phase::Baseline if self.over_ceiling(RUNG_FACTOR) => self.open_loop(),
            Phase::Baseline => self.phase = Phase::Ladder(RUNG_FACTOR),
            Phase::Ladder(concurrency) => self.climb(concurrency),
            Phase::Hold => self.next_kind(),
            phase @ (Phase::Overload(_) | Phase::Place(_) | Phase::Prove(..)) => self.proved(&phase),
            Phase::First | Phase::Search | Phase::Done(_) => {}
        }
    }

    /// Returns the largest shares of the search time for concurrency 1 and for the concurrency steps.
    fn closed_shares(&self) -> (f64, f64) {
        if self.spec.proves_budget { prove::CLOSED_SHARES } else { (BASELINE_SHARE, LADDER_SHARE) }
    }

    fn finish(&mut self, why: &str) {
        self.phase = Phase::Done(why.to_owned());
    }

    fn search_time(&self) -> Span {
        Span(self.spec.time.0 - self.spec.hold.0 * self.spec.traffic.len() as i64)
    }

    /// Starts the open-loop levels of the current kind of traffic.
    fn open_loop(&mut self) {
        // Without closed-loop steps the capacity is unknown, so the maximum rate replaces it.
        let climbed = self.observed.iter().any(|o| o.level.purpose == "ladder");
        let capacity = match self.spec.max_rate {
            Some(most) if !climbed => most,
            _ => self.capacity(),
        };
        if capacity <= 0.0 || capacity.is_nan() {
            return self.finish("no request finished at any level");
        }
        let left = self.search_time() - self.spent;
        let kinds_left = (self.spec.traffic.len() - self.kind) as i64;
        self.kind_ends = self.spent + Span(left.0.max(0) / kinds_left.max(1));
        if self.spec.proves_budget && self.spec.budget.is_some() {
            return self.begin_proof(capacity);
        }
        let arrivals = self.arrivals(capacity);
        let loads = first_loads(capacity, arrivals, self.spec.max_rate);
        let longest = REACH * self.level_s();
        self.first = loads.into_iter().filter(|load| WORTH_A_LEVEL / load <= longest).collect();
        self.phase = Phase::First;
    }

    fn first_level(&mut self) -> Option<SweepLevel> {
        match self.first.pop_front() {
            Some(load) => self.open_level("curve", load, 1.0),
            None => {
                self.phase = Phase::Search;
                None
            }
        }
    }

    /// Returns the level at the load with the most information, or starts the sustained level.
    fn search_level(&mut self) -> Option<SweepLevel> {
        let here: Vec<&LineLevel> = self.of_kind();
        if here.len() >= MOST_LEVELS {
            return self.search_ends();
        }
        match self.most_urgent(&here) {
            Some((urgency, load, longer)) if urgency > 1.0 => self.open_level("bisect", load, longer),
            _ => self.search_ends(),
        }
    }

    /// Returns the question that is furthest from its answer: (urgency, load, factor on the usual length).
    fn most_urgent(&self, here: &[&LineLevel]) -> Option<(f64, f64, f64)> {
        let zero = self.zero();
        let read = lines::read(self.traffic(), here, &zero, &self.line_spec(REDRAWS.0));
        let good = lines::usable(here);
        let loads: Vec<f64> = good.iter().map(|o| o.rate()).collect();
        let [(stable, unstable), (pass, fail)] = lines::brackets(&good);
        let full = unstable.and_then(|unstable| lines::saturated(&good, unstable)).map(|full| full.value);
        let board = MeasuredLoads {
            loads: &loads,
            capacity: full.unwrap_or_else(|| self.capacity()),
            open_above: full.is_none() && self.cut_while_growing(),
            narrow: self.spec.narrow,
            arrivals: self.arrivals(self.capacity()),
            ceiling: self.spec.max_rate.unwrap_or(f64::INFINITY),
        };
        let mut wishes = vec![board.onset(known(&read.lines.onset)), board.bracket(stable, unstable, full)];
        if let Some(line) = &read.lines.budget {
            wishes.push(board.bracket(pass, fail, line.rate().map(|rate| rate.value)));
        }
        let ceiling = board.ceiling;
        // The first level may take all the remaining time, because one conclusive level is better than several inconclusive ones.
        let most = if good.is_empty() { f64::INFINITY } else { LONGER_AT_MOST * self.level_s() };
        let longest = most.min((self.kind_ends - self.spent).as_secs_f64());
        let (urgency, load) = wishes
            .into_iter()
            .flatten()
            // A second level at the maximum rate gives no more information.
            .filter(|(_, load)| *load < 0.99 * ceiling || loads.iter().all(|l| *l < 0.98 * ceiling))
            .filter(|(_, load)| WORTH_A_LEVEL / load <= longest)
            .max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some((urgency, load, self.longer(&good, load)))
    }

    /// Returns the factor on the usual length of a level at this load, from the levels nearby.
    ///
    /// The factor is what the tail lacks in effective requests, because queues near saturation are correlated for a long time.
    /// It is 2 if the slope of requests in flight was inconclusive.
    fn longer(&self, good: &[&LineLevel], load: f64) -> f64 {
        let near = good.iter().filter(|o| (o.rate() / load - 1.0).abs() < 0.03);
        let lacking = near.map(|o| {
            let usual = o.level.window().as_secs_f64() * load / self.spec.completions as f64;
            let needed = crate::tail::BEYOND / (1.0 - self.spec.percentile);
            let tail = needed / o.upper.n_eff(self.spec.percentile).max(1.0) * usual.max(0.1);
            match o.finding.summary.stability.verdict {
                LoadKeptUp::Stable => tail,
                LoadKeptUp::Undecided => 2.0,
                LoadKeptUp::Unstable => 1.0,
            }
        });
        lacking.fold(1.0, f64::max).clamp(1.0, LONGER_AT_MOST)
    }

    fn search_ends(&mut self) -> Option<SweepLevel> {
        if self.spec.hold > Span::ZERO {
            self.phase = Phase::Hold;
        } else {
            self.next_kind();
        }
        None
    }

    fn hold_level(&mut self) -> Option<SweepLevel> {
        let here = self.of_kind();
        let read = lines::read(self.traffic(), &here, &self.zero(), &self.line_spec(REDRAWS.0));
        match whole::line_to_hold(&read.lines) {
            Some((_, rate_per_s)) => {
                Some(self.experiment("hold", Load::Open { rate_per_s }, self.spec.hold.as_secs_f64()))
            }
            None => {
                self.next_kind();
                None
            }
        }
    }

    fn next_kind(&mut self) {
        self.kind += 1;
        if self.kind >= self.spec.traffic.len() {
            self.kind = self.spec.traffic.len() - 1;
            return self.finish("complete");
        }
        self.open_loop();
    }

    // -------------------------------------------------------------------------------- time and ceilings

    /// Returns the length of a planned open-loop level, in seconds.
    fn level_s(&self) -> f64 {
        let kinds = self.spec.traffic.len().max(1) as f64;
        let closed = BASELINE_SHARE + LADDER_SHARE;
        self.search_time().as_secs_f64() * (1.0 - closed) / kinds / f64::from(LEVELS_PLANNED)
    }

    /// Returns the arrivals of a planned level at this load.
    fn arrivals(&self, load: f64) -> f64 {
        (load * self.level_s()).min(self.spec.completions as f64)
    }

    /// Returns an open-loop level, as long as its completions need and the time allows.
    ///
    /// `None`, after a change of phase, if less than half a level of time or too little for useful requests is left.
    fn open_level(&mut self, purpose: &str, load: f64, longer: f64) -> Option<SweepLevel> {
        let planned = self.level_s();
        let left = (self.kind_ends - self.spent).as_secs_f64();
        // Light levels of the first set are at most as long as levels near the limit, because their accuracy matters less.
        let least = if purpose == "curve" { 0.6 * self.capacity() } else { 0.0 };
        let enough = self.spec.completions as f64 / load.max(least);
        // Slow requests need a window of several response times at any rate.
        let slow = 20.0 * self.latency_s();
        let usual = enough.max(slow).min(planned);
        // A level that nearly reaches the requested percentile is extended to reach it.
        let tail = TAIL_MARGIN * crate::tail::BEYOND / (1.0 - self.spec.percentile) / load;
        let reach = if tail > usual && tail <= REACH * planned { tail / usual } else { 1.0 };
        let least = WORTH_A_LEVEL / load;
        let window = (usual * longer.max(reach)).max(least).min(left);
        if window < least.max(0.5 * usual) {
            self.first.clear();
            return self.search_ends();
        }
        Some(self.experiment(purpose, Load::Open { rate_per_s: load }, window))
    }

    /// Returns the mean latency at concurrency 1, in seconds.
    fn latency_s(&self) -> f64 {
        self.closed().first().map_or(0.0, |(concurrency, rate)| f64::from(*concurrency) / rate.max(1e-9))
    }

    fn experiment(&self, purpose: &str, load: Load, window_s: f64) -> SweepLevel {
        SweepLevel {
            traffic: self.traffic().to_owned(),
            purpose: purpose.to_owned(),
            load,
            window: Span::from_secs_f64(window_s),
            max_requests: self.spec.max_requests.map(|most| most.saturating_sub(self.requests)),
            max_rate_per_s: None,
        }
    }

    /// Limits an experiment to the requests that are left, or ends the sweep if too few are left.
    fn within_ceilings(&mut self, mut experiment: SweepLevel) -> Option<SweepLevel> {
        let Some(left) = experiment.max_requests else { return Some(experiment) };
        let rate = match experiment.load {
            Load::Open { rate_per_s } => rate_per_s,
            Load::Closed { concurrency }
            | Load::Wave { requests: concurrency }
            | Load::Saturating { concurrency } => {
                // Upper bound of the rate, by the last closed level.
                let fastest = self
                    .last_closed()
                    .map_or(0.0, |(before, rate)| rate * f64::from(concurrency) / f64::from(before));
                fastest.min(experiment.max_rate_per_s.unwrap_or(f64::INFINITY))
            }
        };
        let wanted = rate * experiment.window.as_secs_f64();
        if left == 0 || (wanted > 0.0 && (left as f64) < 0.3 * wanted) {
            self.finish("the ceiling on requests is reached");
            return None;
        }
        if wanted > left as f64 {
            experiment.window = Span::from_secs_f64(left as f64 / rate);
        }
        Some(experiment)
    }

    // -------------------------------------------------------------------------------- views

    fn of_kind(&self) -> Vec<&LineLevel> {
        let kind = self.traffic();
        self.observed.iter().filter(|o| o.level.traffic == kind).collect()
    }

    fn zero(&self) -> Vec<&LineLevel> {
        self.observed.iter().filter(|o| matches!(o.level.load, Load::Closed { concurrency: 1 })).collect()
    }

    /// Returns the capacity that the closed loops found, in requests per second.
    fn capacity(&self) -> f64 {
        let all: Vec<&LineLevel> = self.observed.iter().collect();
        lines::ladder_capacity(&all).unwrap_or(0.0)
    }
}

/// Returns the settings of the capacity limits of a sweep.
pub(crate) fn line_spec(spec: &SweepSpec, replicates: usize) -> LineSpec {
    LineSpec {
        knee_factor: spec.knee_factor,
        percentile: spec.percentile,
        think_time_s: spec.think_time_s,
        budget: spec.budget.clone(),
        seed: spec.seed,
        replicates,
    }
}

fn known(line: &CapacityLine) -> KnownLine {
    match line {
        CapacityLine::Found { rate, .. } => {
            KnownLine::At { value: rate.value, lower: rate.lower, upper: rate.upper }
        }
        CapacityLine::Above { .. } => KnownLine::Above,
        CapacityLine::Below { .. } => KnownLine::Below,
        CapacityLine::CannotTell { .. } => KnownLine::Nothing,
    }
}
