//! Active diagnosis: a stepper that requests the most informative experiment per second until one cause is believed.
//!
//! It takes results and returns the next experiment, without clock or socket, so a live endpoint and a simulated one
//! are driven alike. After each experiment all measurements are evaluated again by the function that reads a run
//! folder. Therefore `diagnose URL` and `diagnose RUN` of its folder can't disagree. The first two experiments are
//! fixed: isolated latency, and latency against concurrency. Every later one is chosen.
//!
//! Reading order: [`plan`] (experiments), [`block`] (results of a level), [`facts`] (their facts), [`before`] (an
//! earlier run), [`choose`] (the next experiment), [`tell`] (the verdict). The verdict uses the belief and the texts
//! of every diagnosis.

pub mod before;
pub mod block;
pub mod choose;
pub mod facts;
pub mod plan;
pub mod tell;

use std::collections::VecDeque;

use plimsoll_model::{Attempt, EndedBy, Level, Sample};

use crate::Cause;
use crate::belief::{CausePosterior, EvidenceSource, Likelihood, states};
use crate::causes::{CauseRow, row};
use crate::fact::{FactState, Observed};
use crate::facts::Finding;
use before::EarlierRun;
use block::{BlockRow, ExperimentLevel, mean};
use choose::{CONFIDENT, Choice, decides};
use plan::{ActiveSpec, ExperimentKind, KnownTarget, LevelAsk, TrafficTraits};

/// Minimum expected information of an experiment in bits.
const WORTH: f64 = 0.02;
/// Growth of throughput at twice the concurrency below which higher concurrency adds no information.
const FLAT: f64 = 1.15;

/// The next step of an active diagnosis.
#[derive(Clone, PartialEq, Debug)]
pub enum ActiveNext {
    /// An experiment begins: print `why`, then call `next` again.
    Begin {
        kind: ExperimentKind,
        why: String,
    },
    /// Run this level and pass its records to `observe`.
    Run(Box<LevelAsk>),
    Done {
        why: String,
    },
}

pub struct Active {
    spec: ActiveSpec,
    traffic: TrafficTraits,
    before: Option<EarlierRun>,
    blocks: Vec<ExperimentLevel>,
    shown: Vec<Finding>,
    waiting: VecDeque<LevelAsk>,
    begun: Option<ExperimentKind>,
    done: Vec<ExperimentKind>,
    step: u32,
    spent_s: f64,
    sent: u64,
    failed: u64,
    over: Option<String>,
}

impl Active {
    pub fn new(spec: ActiveSpec, traffic: TrafficTraits) -> Active {
        Active {
            step: if spec.max_concurrency >= 2 { 2 } else { 0 },
            spec,
            traffic,
            before: None,
            blocks: Vec::new(),
            shown: Vec::new(),
            waiting: VecDeque::new(),
            begun: None,
            done: Vec::new(),
            spent_s: 0.0,
            sent: 0,
            failed: 0,
            over: None,
        }
    }

    /// Adds an earlier run to compare with.
    pub fn against(mut self, before: Option<EarlierRun>) -> Active {
        self.before = before;
        self
    }

    /// Returns the next step. After [`ActiveNext::Begin`] call it again; a second call for a level returns an equal
    /// level.
    #[expect(
        clippy::should_implement_trait,
        reason = "a stepper answers before its end too, and is no sequence"
    )]
    pub fn next(&mut self) -> ActiveNext {
        if let Some(why) = &self.over {
            return ActiveNext::Done { why: why.clone() };
        }
        if let Some(ask) = self.waiting.front() {
            return match self.fits(ask) {
                Some(ask) => ActiveNext::Run(Box::new(ask)),
                None => self.end("the ceiling on requests is reached"),
            };
        }
        self.choose()
    }

    /// Records the results of the requested level.
    pub fn observe(&mut self, level: &Level, attempts: &[Attempt], samples: &[Sample]) {
        let Some(ask) = self.waiting.pop_front() else { return };
        let block = ExperimentLevel::new((ask.kind, ask.arm), level, attempts, samples);
        self.spent_s += (level.drained.max(level.stop) - level.start).as_secs_f64() + ask.pause.as_secs_f64();
        self.sent += block.attempts;
        self.failed += block.rows.iter().filter(|row| row.failed()).count() as u64;
        self.blocks.push(block);
        self.shown = facts::read(&self.blocks, &self.spec, self.before.as_ref());
        match level.ended_by {
            EndedBy::User | EndedBy::UserNow => self.over = Some("stopped by the user".into()),
            EndedBy::Ceiling => self.over = Some("a ceiling was reached".into()),
            EndedBy::Cut => self.over = Some("the generator was cut off".into()),
            EndedBy::Errors => self.over = Some("too many requests failed".into()),
            EndedBy::Complete | EndedBy::Known | EndedBy::DrainLimit => {}
        }
        if self.failed > self.spec.max_errors {
            self.over = Some("too many requests failed".into());
        }
        if self.spent_s >= self.spec.time.as_secs_f64() {
            self.over = Some("the time is over".into());
        }
        self.after(ask.kind);
    }

    /// Ends the diagnosis early at the user's request; the verdict uses the present results.
    pub fn stop(&mut self, why: &str) {
        self.waiting.clear();
        self.over = Some(why.to_owned());
    }

    /// Returns the facts shown so far.
    pub fn shown(&self) -> &[Finding] {
        &self.shown
    }

    /// Returns the levels measured so far.
    pub fn blocks(&self) -> &[ExperimentLevel] {
        &self.blocks
    }

    pub fn belief(&self) -> CausePosterior {
        let learnt = Likelihood::learnt(EvidenceSource::Experiments);
        learnt.posterior(&states(&self.shown), |row| self.may_show(row))
    }

    /// Returns whether an open experiment could show a decisive fact of this cause.
    fn may_show(&self, row: &CauseRow) -> bool {
        let held_against = match row.cause {
            Cause::SingleRequestOverBudget => !self.spec.promised().is_empty(),
            Cause::SlowerModel => self.before.is_some(),
            _ => true,
        };
        let shows =
            |kind: &ExperimentKind| decides(*kind).iter().any(|(fact, _)| row.decisive.contains(fact));
        held_against && ExperimentKind::ALL.iter().filter(|kind| self.open(**kind)).any(shows)
    }

    /// Returns the number of sent requests and the elapsed time in s.
    pub fn spent(&self) -> (u64, f64) {
        (self.sent, self.spent_s)
    }

    // ---------------------------------------------------------------------------------------- choosing

    /// Schedules the next step of concurrency, or ends the experiment.
    fn after(&mut self, kind: ExperimentKind) {
        if kind == ExperimentKind::Together {
            self.step = self.next_step();
        }
        let more = kind == ExperimentKind::Together && self.step > 0;
        if self.waiting.is_empty() {
            match more {
                true => self.waiting.extend(kind.asks(&self.spec, &self.traffic, &self.known())),
                false => self.done.push(kind),
            }
        }
    }

    /// Returns twice the concurrency, or 0 to stop. It stops if the last two doublings gained nothing, requests were
    /// rejected, the limit is reached, or 70 % of the time is spent.
    fn next_step(&self) -> u32 {
        let steps: Vec<&ExperimentLevel> = facts::of(&self.blocks, ExperimentKind::Together).collect();
        let at = steps.last().and_then(|block| block.concurrency()).unwrap_or(1);
        let rates: Vec<f64> = steps.iter().filter_map(|block| block.rate()).collect();
        let flat = |n: usize| rates.len() > n && rates[rates.len() - n] < FLAT * rates[rates.len() - n - 1];
        let refused = is_so(&self.shown, Observed::TurnedAway) == FactState::Yes;
        let next = (2 * at).min(self.spec.max_concurrency);
        if next <= at || (flat(1) && flat(2)) || refused || self.spent_s > 0.7 * self.spec.time.as_secs_f64()
        {
            0
        } else {
            next
        }
    }

    fn choose(&mut self) -> ActiveNext {
        let belief = self.belief();
        let known = self.known();
        let first =
            [ExperimentKind::Alone, ExperimentKind::Together].into_iter().find(|kind| self.open(*kind));
        if self.sent > 0 && self.blocks.iter().all(|block| block.rows.iter().all(|row| !row.fine)) {
            return self.end("nothing was answered");
        }
        let kind = match first {
            Some(kind) => kind,
            None if self.settled(&belief) => return self.end("one cause is clear"),
            None => match self.most_telling(&belief, &known) {
                Some(kind) => kind,
                None => return self.end("no experiment would add evidence in the time left"),
            },
        };
        if self.begun == Some(kind) {
            // The experiment has no levels (for example because no rate is known), so it ends.
            self.done.push(kind);
            return self.choose();
        }
        self.begun = Some(kind);
        let asks = kind.asks(&self.spec, &self.traffic, &known);
        if asks.is_empty() {
            self.done.push(kind);
            return self.choose();
        }
        let why = self.why(kind, &asks, &known, &belief);
        self.waiting.extend(asks);
        ActiveNext::Begin { kind, why }
    }

    /// Returns the best next experiment. First it selects the set with the most information within the remaining
    /// time, then its member with the most information per second. Ranking all experiments by information per second was rejected: with
    /// little time left, a cheap experiment would take the time of an informative one.
    fn most_telling(&self, belief: &CausePosterior, known: &KnownTarget) -> Option<ExperimentKind> {
        let choice = Choice::new(belief, &self.shown);
        let worth = |kind: ExperimentKind| {
            let seconds = kind.seconds(&self.spec, &self.traffic, known).max(0.1);
            (kind, choice.information(&[kind]), seconds)
        };
        let open = ExperimentKind::ALL.into_iter().filter(|kind| self.open(*kind)).map(worth);
        let telling: Vec<(ExperimentKind, f64, f64)> = open.filter(|(_, bits, _)| *bits >= WORTH).collect();
        let set = |members: u32| {
            telling.iter().enumerate().filter(move |(n, _)| members & (1 << n) != 0).map(|(_, one)| *one)
        };
        let fits =
            |members: &u32| set(*members).map(|(_, _, seconds)| seconds).sum::<f64>() <= 1.2 * known.left_s;
        let bits =
            |members: &u32| choice.information(&set(*members).map(|(kind, _, _)| kind).collect::<Vec<_>>());
        let best = (1..1u32 << telling.len()).filter(fits).map(|members| (members, bits(&members)));
        let (best, _) = best.max_by(|a, b| a.1.total_cmp(&b.1))?;
        set(best).max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2))).map(|(kind, _, _)| kind)
    }

    fn open(&self, kind: ExperimentKind) -> bool {
        kind.is_possible(&self.spec, &self.traffic) && !self.done.contains(&kind)
    }

    /// Returns whether one cause is believed and its decisive fact was seen. "Nothing" also needs the watch
    /// experiment, because rare faults show late.
    fn settled(&self, belief: &CausePosterior) -> bool {
        let (cause, chance) = belief.first();
        if chance < CONFIDENT {
            return false;
        }
        let needs = &row(cause).decisive;
        let seen = needs.is_empty() || needs.iter().any(|fact| is_so(&self.shown, *fact) == FactState::Yes);
        let watched = cause != Cause::Nothing || self.done.contains(&ExperimentKind::Watch);
        let rest = ExperimentKind::ALL.into_iter().filter(|kind| self.open(*kind));
        let choice = Choice::new(belief, &self.shown);
        let nothing_left = rest.map(|kind| choice.information(&[kind])).fold(0.0, f64::max) < WORTH;
        seen && watched && (chance >= 0.98 || nothing_left)
    }

    /// Returns one line on an experiment: its maximum number of requests, duration and purpose.
    fn why(
        &self,
        kind: ExperimentKind,
        asks: &[LevelAsk],
        known: &KnownTarget,
        belief: &CausePosterior,
    ) -> String {
        let seconds = kind.seconds(&self.spec, &self.traffic, known);
        let what = match kind {
            ExperimentKind::Alone => "unloaded latency".to_owned(),
            ExperimentKind::Together => "latency against concurrency".to_owned(),
            kind => match Choice::new(belief, &self.shown).told_apart(kind) {
                Some((a, b)) => format!("distinguishes \"{}\" from \"{}\"", a.title(), b.title()),
                None => "rules out rare causes".to_owned(),
            },
        };
        let requests: u64 = match kind {
            ExperimentKind::Together => {
                let mut sum = 0;
                let mut c = known.step.max(1);
                loop {
                    sum += plan::concurrent_requests(c, &self.spec, known);
                    if c >= self.spec.max_concurrency {
                        break sum;
                    }
                    c = (2 * c).min(self.spec.max_concurrency);
                }
            }
            _ => asks.iter().map(|ask| self.most(ask, known)).sum(),
        };
        let about =
            if self.blocks.is_empty() { String::new() } else { format!(", about {}", facts::ms(seconds)) };
        let bits = Choice::new(belief, &self.shown).information(&[kind]);
        let gain = match kind {
            ExperimentKind::Alone | ExperimentKind::Together => String::new(),
            _ => format!(" ({bits:.2} bits)"),
        };
        format!("{}: {}; at most {requests} requests{about}{gain}", kind.does(), what)
    }

    /// Returns the maximum number of requests of a level.
    fn most(&self, ask: &LevelAsk, known: &KnownTarget) -> u64 {
        let left = self.spec.max_requests.saturating_sub(self.sent);
        let most = ask.requests.unwrap_or_else(|| {
            let window = ask.window.as_secs_f64();
            match ask.load {
                plimsoll_model::Load::Open { rate_per_s } => (1.5 * rate_per_s * window).ceil() as u64 + 5,
                _ => self.watched(known),
            }
        });
        most.min(left)
    }

    /// Returns the maximum number of requests of the watch experiment: a quarter of the rest, because other
    /// experiments follow.
    fn watched(&self, _known: &KnownTarget) -> u64 {
        self.spec.max_requests.saturating_sub(self.sent) / 4
    }

    /// Returns the level within the limits; `None` if too few requests are left.
    fn fits(&self, ask: &LevelAsk) -> Option<LevelAsk> {
        let left = self.spec.max_requests.saturating_sub(self.sent);
        let mut ask = ask.clone();
        let known = self.known();
        match ask.requests {
            Some(requests) if requests > left => return None,
            Some(_) => {}
            None => ask.requests = Some(self.most(&ask, &known)).filter(|most| *most > 0),
        }
        if let (Some(most), plimsoll_model::Load::Open { rate_per_s }) = (self.spec.max_rate, ask.load) {
            ask.load = plimsoll_model::Load::Open { rate_per_s: rate_per_s.min(most) };
        }
        ask.requests.map(|_| ask)
    }

    fn end(&mut self, why: &str) -> ActiveNext {
        self.over = Some(why.to_owned());
        ActiveNext::Done { why: why.to_owned() }
    }

    fn known(&self) -> KnownTarget {
        let rows = || facts::of(&self.blocks, ExperimentKind::Alone).flat_map(|block| &block.rows);
        let rates = facts::of(&self.blocks, ExperimentKind::Together).filter_map(|block| block.rate());
        KnownTarget {
            e2e_s: mean(rows().filter_map(BlockRow::e2e_s)).unwrap_or(1.0),
            // Before any measurement, assume 0.15 s because twenty requests per second are few for any endpoint.
            least_s: rows().filter_map(BlockRow::e2e_s).reduce(f64::min).unwrap_or(0.15),
            ttft_s: mean(rows().filter_map(BlockRow::ttft_s)).unwrap_or(0.5),
            best_rate: rates.fold(0.0, f64::max),
            step: self.step,
            left_s: self.spec.time.as_secs_f64() - self.spent_s,
        }
    }
}

/// Returns the levels of a run folder that a diagnosis wrote; empty for other runs.
pub fn blocks(levels: &[Level], attempts: &[Attempt], samples: &[Sample]) -> Vec<ExperimentLevel> {
    let of = levels.iter().filter_map(|level| Some((plan::of_level(level)?, level)));
    of.map(|(what, level)| ExperimentLevel::new(what, level, attempts, samples)).collect()
}

/// Returns the state of a fact; unclear if it was not checked.
pub fn is_so(shown: &[Finding], fact: Observed) -> FactState {
    shown.iter().find(|shown| shown.fact == fact).map_or(FactState::Unclear, |shown| shown.is)
}
