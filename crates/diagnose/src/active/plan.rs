//! The experiments of active diagnosis: their settings, load and purpose.
//!
//! An experiment is a list of [`LevelAsk`]s, each one level. The levels of two settings are interleaved A B B A, so
//! that drift (a throttling GPU, the time of day) affects both. The experiment of a level is stored in its `purpose`,
//! so that the run folder is complete and `diagnose RUN` can read it again. A separate list was rejected, because an
//! interrupted run would lack it.

use plimsoll_model::{Level, Load, Span};
use plimsoll_workload::policy::Connections;
use plimsoll_workload::{Scenario, SharedPrefix, Size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use plimsoll_measure::findings::Ceiling;

/// Maximum duration in s of a level with one request in flight.
const LONGEST_S: f64 = 600.0;
/// Output tokens of a response if only its start matters.
const GLIMPSE: f64 = 8.0;
/// Minimum number of requests per level if time is short. Two levels then have a dozen requests, whose third and
/// tenth bound the median.
const FEWEST: u64 = 6;

/// Limits of an active diagnosis, and known properties of the service.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ActiveSpec {
    /// Maximum total time of all experiments in ns.
    pub time: Span,
    /// Maximum number of requests in flight.
    pub max_concurrency: u32,
    /// Maximum offered rate in requests/s [default: the load is never doubled].
    pub max_rate: Option<f64>,
    /// Maximum total number of requests of all experiments.
    pub max_requests: u64,
    /// Maximum number of failed requests before the diagnosis stops.
    pub max_errors: u64,
    /// Ceiling of the median time to first token of isolated requests in s [default: none].
    pub ttft_s: Option<f64>,
    /// Ceilings of the budget; empty without a budget.
    pub ceilings: Vec<Ceiling>,
    /// Number of replicas that can be addressed separately.
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

/// The properties of the traffic, which decide the possible experiments.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TrafficTraits {
    pub prompt: f64,
    pub output: f64,
    /// Set if prompts and responses may get other lengths; not set for the user's own prompts.
    pub synthetic: bool,
    pub streams: bool,
    /// Size of the client's connection pool; `None` without a limit.
    pub pool: Option<u32>,
}

impl TrafficTraits {
    /// Returns the properties of this scenario.
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
    /// An experiment of an active diagnosis.
    #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum ExperimentKind {
        /// Requests in sequence, one at a time.
        Alone => "alone",
        /// Closed loops with 2, 4, 8 … requests in flight.
        Together => "together",
        /// A moderate load for a longer time.
        Watch => "watch",
        /// Open loops at half and at twice the measured throughput.
        Rates => "rates",
        /// New connections compared with reused ones.
        Connections => "connections",
        /// The client's connection pool compared with one twice as large.
        Pool => "pool",
        /// Short prompts compared with long ones.
        Prompts => "prompts",
        /// Short responses compared with long ones.
        Answers => "answers",
        /// One repeated prompt compared with distinct ones.
        Repeats => "repeats",
        /// An idle period, then one request.
        Idle => "idle",
        /// Requests to each replica of the service separately.
        Replicas => "replicas",
    }
}

/// The setting of an experiment that a level has.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ArmSetting {
    Only,
    First,
    Second,
    Number(u32),
}

#[derive(Clone, PartialEq, Debug)]
pub struct LevelAsk {
    pub kind: ExperimentKind,
    pub arm: ArmSetting,
    /// Idle time before the level.
    pub pause: Span,
    pub load: Load,
    /// Maximum duration of the arrivals.
    pub window: Span,
    /// Number of requests after which a closed loop ends; `None` without a limit.
    pub requests: Option<u64>,
    /// Maximum rate of a closed loop in requests/s, because a target that fails immediately would be flooded.
    pub pace_per_s: f64,
    pub change: ScenarioChange,
}

/// The changes of an experiment to the scenario; `None` fields are unchanged.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScenarioChange {
    pub connections: Option<Connections>,
    pub prompt: Option<Size>,
    pub output: Option<Size>,
    /// Set if one prompt is repeated.
    pub repeat: bool,
    pub replica: Option<u32>,
}

impl ScenarioChange {
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
    /// Returns a short description of the experiment.
    pub fn does(self) -> &'static str {
        match self {
            ExperimentKind::Alone => "requests one at a time",
            ExperimentKind::Together => "2, 4, 8 … requests in flight",
            ExperimentKind::Watch => "a moderate load for longer",
            ExperimentKind::Rates => {
                "half of the rate it carried, open loop (and twice the rate, if --max-rate allows)"
            }
            ExperimentKind::Connections => "a fresh connection for each request against kept ones",
            ExperimentKind::Pool => "the client's current pool against one twice as large",
            ExperimentKind::Prompts => "short prompts against long ones",
            ExperimentKind::Answers => "short answers against long ones",
            ExperimentKind::Repeats => "one prompt again and again against distinct ones",
            ExperimentKind::Idle => "nothing for a while, then one request",
            ExperimentKind::Replicas => "each replica separately",
        }
    }

    /// Returns the names of the two settings.
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

    /// Returns whether the traffic permits the experiment.
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

/// The known properties of the target when an experiment is planned.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct KnownTarget {
    /// Isolated latency of a whole response, s.
    pub e2e_s: f64,
    /// Minimum latency of a whole response, s.
    pub least_s: f64,
    /// Isolated time to first token, s.
    pub ttft_s: f64,
    /// Maximum throughput so far in responses/s.
    pub best_rate: f64,
    /// Next concurrency of [`ExperimentKind::Together`]; 0 if there is none.
    pub step: u32,
    pub left_s: f64,
}

impl KnownTarget {
    /// Returns the duration in s of a request with eight output tokens.
    fn glimpse_s(&self, traffic: &TrafficTraits) -> f64 {
        self.ttft_s + (self.e2e_s - self.ttft_s) * (GLIMPSE / traffic.output.max(GLIMPSE))
    }

    /// Returns the number of requests for each of four levels with `each_s` seconds per request. It is `wanted` if
    /// that fits into the remaining time. Otherwise it is the minimum for a median with an interval in two levels.
    fn fitting(&self, wanted: u64, each_s: f64) -> u64 {
        if 4.0 * wanted as f64 * each_s <= self.left_s { wanted } else { FEWEST }
    }
}

impl ExperimentKind {
    /// Returns the levels in order. For [`ExperimentKind::Together`] it returns the next step.
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
            // Response lengths vary so that each request starts at another phase of a periodic process.
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

    /// Returns the approximate duration in s.
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

/// Returns the number of concurrency steps from `step` to `most`, doubling each time.
fn steps_left(step: u32, most: u32) -> u32 {
    if step == 0 { 0 } else { (f64::from(most.max(step)) / f64::from(step)).log2().ceil() as u32 + 1 }
}

/// Minimum duration of a concurrency level in s, limited to a tenth of the requests. On an engine that responds in
/// ms, six rounds end before a scrape and within one hiccup of the machine.
const COMPANY_S: f64 = 2.0;

/// Returns the number of requests of a concurrency level: six rounds, and more if the rounds are short.
pub(crate) fn concurrent_requests(concurrency: u32, spec: &ActiveSpec, known: &KnownTarget) -> u64 {
    let rounds = (6 * u64::from(concurrency)).max(24);
    // Twice the concurrency has at most twice the throughput.
    let rate = match known.best_rate > 0.0 {
        true => 2.0 * known.best_rate,
        false => f64::from(concurrency) / known.e2e_s.max(1e-3),
    };
    rounds.max(((COMPANY_S * rate) as u64).min(spec.max_requests / 10))
}

/// Returns the maximum request rate: three times the throughput without any queueing, and at most the configured
/// maximum.
fn pace(known: &KnownTarget, concurrency: u32, spec: &ActiveSpec) -> f64 {
    let answered = 3.0 * f64::from(concurrency) / known.least_s.max(1e-3);
    answered.min(spec.max_rate.unwrap_or(f64::INFINITY))
}

/// Returns the duration of the watch experiment in s.
pub(crate) fn watch_s(spec: &ActiveSpec) -> f64 {
    (0.15 * spec.time.as_secs_f64()).clamp(2.0, 30.0)
}

/// Returns the length of the idle period in s.
pub fn idle_s(spec: &ActiveSpec) -> f64 {
    (0.04 * spec.time.as_secs_f64()).clamp(0.5, 10.0)
}

/// Returns half of the best rate, and twice the best rate if permitted.
fn rates(spec: &ActiveSpec, known: &KnownTarget) -> Vec<(ArmSetting, f64)> {
    if known.best_rate <= 0.0 {
        return Vec::new();
    }
    let most = spec.max_rate.unwrap_or(known.best_rate);
    let half = (ArmSetting::First, (0.5 * known.best_rate).min(most));
    let double = (ArmSetting::Second, 2.0 * known.best_rate);
    [half, double].into_iter().filter(|(_, rate)| *rate <= most).collect()
}

/// Returns response lengths from half to one and a half times the mean.
fn varied(traffic: &TrafficTraits) -> Option<Size> {
    let tokens = |factor: f64| (factor * traffic.output).round().max(1.0) as u32;
    (traffic.synthetic && traffic.output >= 4.0).then(|| Size::Uniform(tokens(0.5), tokens(1.5)))
}

/// Returns the levels in the order A B B A.
fn alternate(ask: impl Fn(ArmSetting) -> LevelAsk) -> Vec<LevelAsk> {
    [ArmSetting::First, ArmSetting::Second, ArmSetting::Second, ArmSetting::First]
        .into_iter()
        .map(ask)
        .collect()
}

impl LevelAsk {
    /// Returns the purpose of the level: `alone`, `together:8`, `connections:fresh`.
    pub fn purpose(&self) -> String {
        let word = self.kind.name();
        match self.arm {
            ArmSetting::Only => word.to_owned(),
            ArmSetting::First => format!("{word}:{}", self.kind.settings()[0]),
            ArmSetting::Second => format!("{word}:{}", self.kind.settings()[1]),
            ArmSetting::Number(n) => format!("{word}:{n}"),
        }
    }

    /// Returns the kind of traffic of the level: `steady` if only the load differs from the scenario's.
    pub fn traffic(&self) -> String {
        match self.change.prompt.is_some() || self.kind == ExperimentKind::Answers {
            true => self.purpose().replace(':', "-"),
            false => "steady".to_owned(),
        }
    }
}

/// Returns the experiment and the setting of a level; `None` if a diagnosis did not run it.
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
