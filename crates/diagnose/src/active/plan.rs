//! Experiments that active diagnosis can run: what each changes, how much it sends, and what it may show.
//!
//! An experiment is a row of [`LevelAsk`]s, each one level. Where two settings are compared their blocks are interleaved A B B A, so
//! that what drifts meanwhile (a throttling GPU, the hour) falls on both. What a level was is written into its `purpose`, so
//! that the run folder alone says what was done and `diagnose RUN` reads it again; a list beside the levels lost, because a
//! run that was cut off would lack it.

use plimsoll_model::{Level, Load, Span};
use plimsoll_workload::policy::Connections;
use plimsoll_workload::{Scenario, SharedPrefix, Size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use plimsoll_measure::findings::Ceiling;

/// Seconds in which a level of one request at a time may wait for its answers.
const LONGEST_S: f64 = 600.0;
/// Tokens of an answer of which only the beginning matters.
const GLIMPSE: f64 = 8.0;
/// Requests of a block where time is short: two blocks are a dozen, of which the third and the tenth bound the median.
const FEWEST: u64 = 6;

/// What an active diagnosis may do, and what it knows of the traffic.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveSpec {
    /// Time for all of it, ns.
    pub time: Span,
    /// Most requests in flight.
    pub max_concurrency: u32,
    /// Highest rate offered, requests/s; none = the load is never doubled.
    pub max_rate: Option<f64>,
    /// Most requests sent in all.
    pub max_requests: u64,
    /// Most requests that may fail before nothing more is sent.
    pub max_errors: u64,
    /// Longest time to first token that half of the requests alone may have, s; none = no such promise.
    pub ttft_s: Option<f64>,
    /// The ceilings of a budget.
    pub ceilings: Vec<Ceiling>,
    /// Replicas that can be asked one by one.
    pub replicas: u32,
}

impl Default for ActiveSpec {
    fn default() -> ActiveSpec {
        ActiveSpec {
            time: Span::from_secs(300),
            max_concurrency: 16,
            max_rate: None,
            max_requests: 2_000,
            max_errors: 200,
            ttft_s: None,
            ceilings: Vec::new(),
            replicas: 0,
        }
    }
}

/// What the traffic allows: which experiments mean anything.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TrafficTraits {
    pub prompt: f64,
    pub output: f64,
    /// May prompts and answers be made of other lengths? Not where they are the user's own.
    pub synthetic: bool,
    pub streams: bool,
    /// The client's own pool, if it has one.
    pub pool: Option<u32>,
}

impl TrafficTraits {
    /// What this scenario allows.
    pub fn of(scenario: &Scenario, (prompt, output): (f64, f64)) -> TrafficTraits {
        let target = &scenario.target;
        let own = scenario.prompts.file.is_some() || scenario.sizes.pairs.is_some();
        let plain = scenario.classes.is_empty() && scenario.prompts.sessions.is_none();
        TrafficTraits {
            prompt,
            output,
            synthetic: !own && plain && target.body_template.is_none() && prompt >= 1.0,
            streams: target.stream && target.protocol.streams(),
            pool: match scenario.client.connections {
                Connections::Pool { limit } => Some(limit),
                Connections::Prewarmed | Connections::Fresh => None,
            },
        }
    }
}

plimsoll_model::named! {
    /// An experiment.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum ExperimentKind {
        /// Requests one after the other.
        Alone => "alone",
        /// 2, 4, 8 … requests in flight.
        Together => "together",
        /// A moderate load for longer.
        Watch => "watch",
        /// Half of what it carried, open loop, and twice it.
        Rates => "rates",
        /// A fresh connection for each request against kept ones.
        Connections => "connections",
        /// The client's pool as it is against twice as large.
        Pool => "pool",
        /// Short prompts against long ones.
        Prompts => "prompts",
        /// Short answers against long ones.
        Answers => "answers",
        /// One prompt again and again against distinct ones.
        Repeats => "repeats",
        /// Nothing for a while, then one request.
        Idle => "idle",
        /// Each replica alone.
        Replicas => "replicas",
    }
}

/// Which of an experiment's settings a level has.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ArmSetting {
    /// There is one alone.
    Only,
    /// The first of two.
    First,
    /// The second of two.
    Second,
    Number(u32),
}

#[derive(Clone, PartialEq, Debug)]
pub struct LevelAsk {
    /// The experiment that it belongs to.
    pub kind: ExperimentKind,
    pub arm: ArmSetting,
    /// Nothing is sent for so long before it.
    pub pause: Span,
    pub load: Load,
    /// How long arrivals fall at most.
    pub window: Span,
    /// A closed loop ends after so many requests.
    pub requests: Option<u64>,
    /// A closed loop begins no more than so many a second: a target that fails at once would be hammered.
    pub pace_per_s: f64,
    pub change: ScenarioChange,
}

/// What an experiment changes of the scenario.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScenarioChange {
    pub connections: Option<Connections>,
    pub prompt: Option<Size>,
    pub output: Option<Size>,
    /// Is it one prompt again and again?
    pub repeat: bool,
    pub replica: Option<u32>,
}

impl ScenarioChange {
    /// The scenario with it.
    pub fn apply(&self, scenario: &Scenario) -> Scenario {
        let mut changed = scenario.clone();
        if let Some(connections) = self.connections {
            changed.client.connections = connections;
        }
        if let Some(prompt) = &self.prompt {
            changed.sizes.prompt = prompt.clone();
        }
        if let Some(output) = &self.output {
            changed.sizes.output = output.clone();
        }
        if self.repeat {
            changed.prompts.shared_prefix = Some(SharedPrefix { groups: 1, share: 1.0 });
        } else if self.prompt.is_some() {
            changed.prompts.shared_prefix = None;
        }
        changed
    }
}

impl ExperimentKind {
    /// What is done, in a few words.
    pub fn does(self) -> &'static str {
        match self {
            ExperimentKind::Alone => "requests one at a time",
            ExperimentKind::Together => "2, 4, 8 … requests in flight",
            ExperimentKind::Watch => "a moderate load for longer",
            ExperimentKind::Rates => {
                "half of what it carried, open loop (and twice it, where --max-rate allows)"
            }
            ExperimentKind::Connections => "a fresh connection for each request against kept ones",
            ExperimentKind::Pool => "the client's pool as it is against twice as large",
            ExperimentKind::Prompts => "short prompts against long ones",
            ExperimentKind::Answers => "short answers against long ones",
            ExperimentKind::Repeats => "one prompt again and again against distinct ones",
            ExperimentKind::Idle => "nothing for a while, then one request",
            ExperimentKind::Replicas => "each replica by itself",
        }
    }

    /// The names of its two settings.
    fn settings(self) -> [&'static str; 2] {
        match self {
            ExperimentKind::Rates => ["half", "double"],
            ExperimentKind::Connections => ["kept", "fresh"],
            ExperimentKind::Pool => ["once", "twice"],
            ExperimentKind::Prompts | ExperimentKind::Answers => ["short", "long"],
            ExperimentKind::Repeats => ["distinct", "same"],
            _ => ["first", "second"],
        }
    }

    /// Does this traffic let it be run at all?
    pub(crate) fn is_possible(self, spec: &ActiveSpec, traffic: &TrafficTraits) -> bool {
        match self {
            ExperimentKind::Alone
            | ExperimentKind::Watch
            | ExperimentKind::Rates
            | ExperimentKind::Idle
            | ExperimentKind::Connections => true,
            ExperimentKind::Together => spec.max_concurrency >= 2,
            ExperimentKind::Pool => traffic.pool.is_some_and(|limit| 2 * limit <= spec.max_concurrency),
            ExperimentKind::Prompts | ExperimentKind::Repeats => traffic.synthetic && traffic.streams,
            ExperimentKind::Answers => traffic.synthetic && traffic.streams && traffic.output >= 8.0,
            ExperimentKind::Replicas => spec.replicas >= 2,
        }
    }
}

/// What is known of the target when an experiment is planned.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct KnownTarget {
    /// Seconds from the first request of a level until it is answered, alone.
    pub e2e_s: f64,
    /// The fastest answer, s.
    pub least_s: f64,
    /// Of those, until the first token.
    pub ttft_s: f64,
    /// The most it answered per second so far.
    pub best_rate: f64,
    /// The concurrency of [`ExperimentKind::Together`] that comes next; zero = no more.
    pub step: u32,
    /// Seconds left for everything.
    pub left_s: f64,
}

impl KnownTarget {
    /// Seconds of a request whose answer is a glimpse of eight tokens.
    fn glimpse_s(&self, traffic: &TrafficTraits) -> f64 {
        self.ttft_s + (self.e2e_s - self.ttft_s) * (GLIMPSE / traffic.output.max(GLIMPSE))
    }

    /// Requests of each of four blocks that take so long each: as many as are wanted where they fit into the time left, else the
    /// fewest of which two blocks have a median with an interval.
    fn fitting(&self, wanted: u64, each_s: f64) -> u64 {
        if 4.0 * wanted as f64 * each_s <= self.left_s { wanted } else { FEWEST }
    }
}

impl ExperimentKind {
    /// Its levels, in order. Of [`ExperimentKind::Together`] the next step.
    pub fn asks(self, spec: &ActiveSpec, traffic: &TrafficTraits, known: &KnownTarget) -> Vec<LevelAsk> {
        let short = |tokens: f64| Size::Fixed(tokens.round().max(1.0) as u32);
        let glimpse = || Some(short(traffic.output.min(GLIMPSE)));
        let compared = |wanted: u64| known.fitting(wanted, 1.5 * known.glimpse_s(traffic));
        let time = spec.time.as_secs_f64();
        let one = |arm, requests: u64, change: ScenarioChange| LevelAsk {
            kind: self,
            arm,
            pause: Span::ZERO,
            load: Load::Closed { concurrency: 1 },
            window: Span::from_secs_f64((0.2 * time).min(LONGEST_S)),
            requests: Some(requests),
            pace_per_s: pace(known, 1, spec),
            change,
        };
        match self {
            // Answers of different lengths, so that each request begins at another phase of whatever has a clock.
            ExperimentKind::Alone => vec![one(
                ArmSetting::Only,
                40,
                ScenarioChange { output: varied(traffic), ..ScenarioChange::default() },
            )],
            ExperimentKind::Together => match known.step {
                0 => Vec::new(),
                concurrency => vec![LevelAsk {
                    load: Load::Closed { concurrency },
                    pace_per_s: pace(known, concurrency, spec),
                    ..one(
                        ArmSetting::Number(concurrency),
                        concurrent_requests(concurrency, spec, known),
                        ScenarioChange::default(),
                    )
                }],
            },
            ExperimentKind::Watch => vec![LevelAsk {
                load: Load::Closed { concurrency: spec.max_concurrency.clamp(1, 4) },
                pace_per_s: pace(known, 4, spec),
                window: Span::from_secs_f64(watch_s(spec)),
                requests: None,
                ..one(
                    ArmSetting::Only,
                    0,
                    ScenarioChange { output: varied(traffic), ..ScenarioChange::default() },
                )
            }],
            ExperimentKind::Rates => rates(spec, known)
                .into_iter()
                .map(|(arm, rate_per_s)| LevelAsk {
                    load: Load::Open { rate_per_s },
                    window: Span::from_secs_f64((24.0 / rate_per_s).max(5.0).min(0.08 * time)),
                    requests: None,
                    ..one(arm, 0, ScenarioChange::default())
                })
                .collect(),
            ExperimentKind::Connections => alternate(|arm| {
                let fresh =
                    if arm == ArmSetting::Second { Connections::Fresh } else { Connections::Prewarmed };
                one(
                    arm,
                    compared(10),
                    ScenarioChange {
                        connections: Some(fresh),
                        output: glimpse().filter(|_| traffic.synthetic),
                        ..ScenarioChange::default()
                    },
                )
            }),
            ExperimentKind::Pool => {
                let limit = traffic.pool.unwrap_or(1);
                alternate(|arm| LevelAsk {
                    load: Load::Closed { concurrency: 2 * limit },
                    pace_per_s: pace(known, 2 * limit, spec),
                    ..one(
                        arm,
                        u64::from(8 * limit).max(16),
                        ScenarioChange {
                            connections: Some(Connections::Pool {
                                limit: if arm == ArmSetting::Second { 2 * limit } else { limit },
                            }),
                            ..ScenarioChange::default()
                        },
                    )
                })
            }
            ExperimentKind::Prompts => alternate(|arm| {
                let tokens =
                    if arm == ArmSetting::Second { 4.0 * traffic.prompt } else { traffic.prompt / 4.0 };
                let change = ScenarioChange {
                    prompt: Some(short(tokens)),
                    output: glimpse(),
                    ..ScenarioChange::default()
                };
                one(arm, compared(10), change)
            }),
            ExperimentKind::Answers => alternate(|arm| {
                let tokens =
                    if arm == ArmSetting::Second { 2.0 * traffic.output } else { traffic.output / 2.0 };
                one(arm, 6, ScenarioChange { output: Some(short(tokens)), ..ScenarioChange::default() })
            }),
            ExperimentKind::Repeats => alternate(|arm| {
                let (prompt, repeat) = (Some(short(4.0 * traffic.prompt)), arm == ArmSetting::Second);
                one(
                    arm,
                    compared(12),
                    ScenarioChange { prompt, repeat, output: glimpse(), ..ScenarioChange::default() },
                )
            }),
            ExperimentKind::Idle => (0..3)
                .map(|n| LevelAsk {
                    pause: Span::from_secs_f64(idle_s(spec)),
                    ..one(ArmSetting::Number(n), 2, ScenarioChange::default())
                })
                .collect(),
            ExperimentKind::Replicas => {
                let there = 0..spec.replicas;
                there
                    .clone()
                    .chain(there.rev())
                    .map(|n| {
                        one(
                            ArmSetting::Number(n),
                            10,
                            ScenarioChange { replica: Some(n), ..ScenarioChange::default() },
                        )
                    })
                    .collect()
            }
        }
    }

    /// Seconds that it takes about.
    pub fn seconds(self, spec: &ActiveSpec, traffic: &TrafficTraits, known: &KnownTarget) -> f64 {
        let asks = self.asks(spec, traffic, known);
        let requests: f64 = asks.iter().filter_map(|ask| ask.requests).sum::<u64>() as f64;
        match self {
            ExperimentKind::Alone => requests * known.e2e_s,
            ExperimentKind::Together => {
                let level = (6.0 * known.e2e_s).max(COMPANY_S);
                level * f64::from(steps_left(known.step, spec.max_concurrency))
            }
            ExperimentKind::Watch | ExperimentKind::Rates => {
                asks.iter().map(|ask| ask.window.as_secs_f64() + known.e2e_s).sum()
            }
            ExperimentKind::Connections | ExperimentKind::Prompts | ExperimentKind::Repeats => {
                1.5 * requests * known.glimpse_s(traffic)
            }
            ExperimentKind::Answers => 1.25 * requests * known.e2e_s,
            ExperimentKind::Pool => requests * known.e2e_s / f64::from(traffic.pool.unwrap_or(1)),
            ExperimentKind::Idle => 3.0 * (idle_s(spec) + 2.0 * known.e2e_s),
            ExperimentKind::Replicas => requests * known.e2e_s,
        }
    }
}

/// Closed loops answer within their own time, so that a level of so many requests lasts about so many rounds.
fn steps_left(step: u32, most: u32) -> u32 {
    if step == 0 { 0 } else { (f64::from(most.max(step)) / f64::from(step)).log2().ceil() as u32 + 1 }
}

/// Seconds that a level of concurrency lasts at least, as far as a tenth of the requests go: of an engine that answers in
/// milliseconds six rounds are over before its page is read, and within one hiccup of the machine.
const COMPANY_S: f64 = 2.0;

/// Requests of a level of concurrency: six rounds, and more where they are short.
pub(crate) fn concurrent_requests(concurrency: u32, spec: &ActiveSpec, known: &KnownTarget) -> u64 {
    let rounds = (6 * u64::from(concurrency)).max(24);
    // Twice the concurrency answers twice as many at best.
    let rate = match known.best_rate > 0.0 {
        true => 2.0 * known.best_rate,
        false => f64::from(concurrency) / known.e2e_s.max(1e-3),
    };
    rounds.max(((COMPANY_S * rate) as u64).min(spec.max_requests / 10))
}

/// Three times what so many would be answered if nobody waited for anybody, and never over the ceiling.
fn pace(known: &KnownTarget, concurrency: u32, spec: &ActiveSpec) -> f64 {
    let answered = 3.0 * f64::from(concurrency) / known.least_s.max(1e-3);
    answered.min(spec.max_rate.unwrap_or(f64::INFINITY))
}

/// How long the moderate load is watched.
pub(crate) fn watch_s(spec: &ActiveSpec) -> f64 {
    (0.15 * spec.time.as_secs_f64()).clamp(2.0, 30.0)
}

/// How long nothing is sent.
pub fn idle_s(spec: &ActiveSpec) -> f64 {
    (0.04 * spec.time.as_secs_f64()).clamp(0.5, 10.0)
}

/// Half of the best rate, and twice it where that is allowed.
fn rates(spec: &ActiveSpec, known: &KnownTarget) -> Vec<(ArmSetting, f64)> {
    if known.best_rate <= 0.0 {
        return Vec::new();
    }
    let most = spec.max_rate.unwrap_or(known.best_rate);
    let half = (ArmSetting::First, (0.5 * known.best_rate).min(most));
    let double = (ArmSetting::Second, 2.0 * known.best_rate);
    [half, double].into_iter().filter(|(_, rate)| *rate <= most).collect()
}

/// Answers of half to one and a half times the mean length.
fn varied(traffic: &TrafficTraits) -> Option<Size> {
    let tokens = |factor: f64| (factor * traffic.output).round().max(1.0) as u32;
    (traffic.synthetic && traffic.output >= 4.0).then(|| Size::Uniform(tokens(0.5), tokens(1.5)))
}

/// A B B A.
fn alternate(ask: impl Fn(ArmSetting) -> LevelAsk) -> Vec<LevelAsk> {
    [ArmSetting::First, ArmSetting::Second, ArmSetting::Second, ArmSetting::First]
        .into_iter()
        .map(ask)
        .collect()
}

impl LevelAsk {
    /// The purpose of its level: `alone`, `together:8`, `connections:fresh`.
    pub fn purpose(&self) -> String {
        let word = self.kind.name();
        match self.arm {
            ArmSetting::Only => word.to_owned(),
            ArmSetting::First => format!("{word}:{}", self.kind.settings()[0]),
            ArmSetting::Second => format!("{word}:{}", self.kind.settings()[1]),
            ArmSetting::Number(n) => format!("{word}:{n}"),
        }
    }

    /// The kind of traffic of its level: `steady` where only the load differs from the scenario's.
    pub fn traffic(&self) -> String {
        match self.change.prompt.is_some() || self.kind == ExperimentKind::Answers {
            true => self.purpose().replace(':', "-"),
            false => "steady".to_owned(),
        }
    }
}

/// The experiment and the setting that a level was run for, if it was run by a diagnosis.
pub fn of_level(level: &Level) -> Option<(ExperimentKind, ArmSetting)> {
    let (word, arm) = match level.purpose.split_once(':') {
        Some((word, arm)) => (word, Some(arm)),
        None => (level.purpose.as_str(), None),
    };
    let kind = ExperimentKind::ALL.into_iter().find(|kind| kind.name() == word)?;
    let [first, second] = kind.settings();
    let arm = match arm {
        None => ArmSetting::Only,
        Some(name) if name == first => ArmSetting::First,
        Some(name) if name == second => ArmSetting::Second,
        Some(name) => ArmSetting::Number(name.parse().ok()?),
    };
    Some((kind, arm))
}
