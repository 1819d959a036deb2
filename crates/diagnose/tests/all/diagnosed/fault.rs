//! The injected faults and the expected verdicts: a class per row of the rule table that can be injected, faults
//! outside the table, and pairs.

use plimsoll_diagnose::{Cause, Layer};
use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::{BudgetSpec, Ceiling, Metric};
use plimsoll_model::Span;
use plimsoll_sim::{Events, ModeSpec, RouteSpec, StepSpec};
use plimsoll_workload::{ArrivalSpec, Connections, RetrySpec, Timeouts};
use serde::{Deserialize, Serialize};

use super::run::{Setup, Touch};
use super::system::{System, scaled};
use super::truth::Facts;

/// Steps of severity of each fault.
pub const SEVERITIES: usize = 5;

macro_rules! classes {
    ($($class:ident,)*) => {
        /// The class of a fault.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum Class { $($class,)* }

        impl Class {
            /// Every class, in the order of the tables.
            pub const ALL: [Class; [$(stringify!($class)),*].len()] = [$(Class::$class,)*];
        }
    };
}

classes! {
    Clean,
    LateClient,
    CappedClient,
    LostRows,
    Drift,
    Rate,
    Prompts,
    Answers,
    SamePromptsLongerAnswers,
    Mix,
    Bursts,
    LessShared,
    Slower,
    OverBudget,
    Capacity,
    Cache,
    LongPrompts,
    Window,
    PeriodicStall,
    Stalls,
    Noisy,
    Connections,
    RetryStorm,
    ColdStart,
    ScalingLag,
    SlowReplica,
    Imbalance,
    PrefixLoss,
    Buffering,
    HostBound,
    FrontEnd,
    Crash,
    Cut,
    Errors,
    SlowDependency,
    DependencyTail,
    DependencyCapacity,
    RateLimit,
    UnlistedUsers,
    UnlistedNetwork,
    UnlistedPause,
    UnlistedPlan,
    PairRateReplica,
    PairModelPrefix,
    PairPromptsStall,
    PairDependencyCache,
    PairBufferingModel,
    PairLimitReplica,
    PairModelRate,
    PairErrorsModel,
}

use Class::*;

impl Class {
    /// Returns the accepted causes; for a pair, either one.
    pub fn causes(self) -> &'static [Cause] {
        match self {
            Clean => &[Cause::Nothing],
            LateClient => &[Cause::GeneratorLag],
            CappedClient => &[Cause::ClientCap],
            LostRows => &[Cause::ClocksDisagree],
            Drift => &[Cause::NoSteadyState],
            Rate => &[Cause::HigherRate],
            Prompts => &[Cause::LongerPrompts],
            Answers => &[Cause::LongerAnswers],
            SamePromptsLongerAnswers => &[Cause::LongerAnswersToSamePrompts],
            Mix => &[Cause::OtherMix],
            Bursts => &[Cause::Bursts],
            LessShared => &[Cause::LessSharedPrompts],
            Slower => &[Cause::SlowerModel],
            OverBudget => &[Cause::SingleRequestOverBudget],
            Capacity => &[Cause::Saturation],
            Cache => &[Cause::KvExhaustion],
            LongPrompts => &[Cause::HeadOfLine],
            Window => &[Cause::BatchingWindow],
            PeriodicStall => &[Cause::PeriodicStall],
            Stalls => &[Cause::HostContention],
            Noisy => &[Cause::NoisyNeighbour],
            Class::Connections => &[Cause::ConnectionLimit],
            RetryStorm => &[Cause::RetryStorm],
            ColdStart => &[Cause::ColdStart],
            ScalingLag => &[Cause::AutoscalingLag],
            SlowReplica => &[Cause::BadReplica],
            Imbalance => &[Cause::RoutingImbalance],
            PrefixLoss => &[Cause::PrefixCacheLoss],
            Buffering => &[Cause::ProxyBuffering],
            HostBound => &[Cause::HostBound],
            FrontEnd => &[Cause::PerRequestCost],
            Crash => &[Cause::EngineCrash],
            Cut => &[Cause::StreamDisconnect],
            Errors => &[Cause::ServerErrors],
            SlowDependency => &[Cause::SlowDependency],
            DependencyTail => &[Cause::DependencyTail],
            DependencyCapacity => &[Cause::DependencyCapacity],
            RateLimit => &[Cause::RateLimit],
            UnlistedUsers | UnlistedNetwork | UnlistedPause | UnlistedPlan => &[Cause::Unknown],
            PairRateReplica => &[Cause::HigherRate, Cause::BadReplica],
            PairModelPrefix => &[Cause::SlowerModel, Cause::PrefixCacheLoss],
            PairPromptsStall => &[Cause::LongerPrompts, Cause::PeriodicStall],
            PairDependencyCache => &[Cause::SlowDependency, Cause::KvExhaustion],
            PairBufferingModel => &[Cause::ProxyBuffering, Cause::SlowerModel],
            PairLimitReplica => &[Cause::RateLimit, Cause::BadReplica],
            PairModelRate => &[Cause::SlowerModel, Cause::HigherRate],
            PairErrorsModel => &[Cause::ServerErrors, Cause::SlowerModel],
        }
    }

    /// Returns the accepted layers.
    pub fn layers(self) -> Vec<Layer> {
        self.causes().iter().map(|cause| cause.layer()).collect()
    }

    /// Returns whether no rule covers the fault.
    pub fn is_unlisted(self) -> bool {
        matches!(self, UnlistedUsers | UnlistedNetwork | UnlistedPause | UnlistedPlan)
    }

    /// Returns whether there are two faults.
    pub fn is_pair(self) -> bool {
        self.causes().len() > 1
    }

    /// Returns the row of the table: the rule's name, or the class's own.
    pub fn name(self) -> String {
        match self {
            _ if self.is_unlisted() || self.is_pair() => format!("{self:?}"),
            Clean => "none".to_owned(),
            _ => self.causes()[0].id(),
        }
    }

    /// Returns the baseline system, changed so that this class is possible.
    pub fn variant(self, system: &System) -> System {
        let chance = &mut Stream::new(system.seed, "diagnosed variant", self as u64);
        let system = system.clone();
        let several = |system: System| match system.world.fleet.replicas {
            1 => system.fleet_of(2),
            _ => system,
        };
        match self {
            Mix => system.mixed(0.12, (4.0, 2.0)),
            LongPrompts => {
                // Without chunking, the longest prompt must fit into a step; for half of the systems the share of
                // long prompts is equal on both sides.
                let mut system = system.loaded(0.35);
                let batching = system.batching();
                batching.kv_blocks = batching.kv_blocks.map(|blocks| blocks + 8_000);
                system
            }
            Answers | SamePromptsLongerAnswers => system.naming_blocks(),
            Class::Drift => system.loaded(0.5),
            RetryStorm => retrying(system.loaded(0.72)),
            ColdStart | SlowReplica | Imbalance | PairRateReplica | PairLimitReplica => {
                let system = several(system);
                match self {
                    Imbalance => system.loaded(0.65).sharing(16, 0.5),
                    _ => system,
                }
            }
            ScalingLag => scaling(system.fleet_of(2).loaded(0.9), 3.0),
            PrefixLoss | LessShared | PairModelPrefix => {
                let share = 0.6 + 0.25 * chance.uniform();
                let mut system = system;
                system.scenario.sizes.prompt = scaled(&system.scenario.sizes.prompt, 2.0);
                system.batching().kv_blocks = system.batching().kv_blocks.map(|blocks| blocks * 2);
                system.sharing(8, share)
            }
            SlowDependency | DependencyTail | PairDependencyCache => {
                let delay = 20.0 + 40.0 * chance.uniform();
                system.depending(&format!("dependency:delay={delay:.0}ms"))
            }
            DependencyCapacity => {
                // A number of concurrent calls at which a backend with nine servers is fine and one with six is
                // nearly full.
                let delay = 1e3 * (5.3 + 0.4 * chance.uniform()) / system.rate_per_s;
                system.depending(&format!("dependency:delay={delay:.1}ms,spread=exponential"))
            }
            _ => system,
        }
    }

    /// Returns the candidate: the variant with the fault of this severity, from 0 to 4; and the budget to compare
    /// with.
    pub fn inject(self, system: &System, facts: &Facts, severity: usize) -> (Setup, Option<BudgetSpec>) {
        let chance = &mut Stream::new(system.seed, "diagnosed fault", 16 * self as u64 + severity as u64);
        let base = Setup::of(system);
        let pick = |values: [f64; SEVERITIES]| values[severity];
        let setup = match self {
            Clean => natural(base, chance),
            OverBudget => {
                let share = pick([0.9, 0.8, 0.65, 0.5, 0.35]);
                let ceiling = match chance.chance(0.5) {
                    true => Ceiling::new(Metric::Ttft, 0.95, facts.alone_ttft * share),
                    false => Ceiling::new(Metric::Tpot, 0.95, facts.alone_tpot * share),
                };
                let budget =
                    BudgetSpec { name: "drawn".into(), latency: vec![ceiling], error_rate: Some(0.05) };
                return (base, Some(budget));
            }
            LateClient | CappedClient | LostRows | Drift => {
                self.of_measurement(base, facts, chance, severity)
            }
            Rate | Prompts | Answers | SamePromptsLongerAnswers | Mix | Bursts | LessShared => {
                self.of_load(base, severity)
            }
            SlowDependency | DependencyTail | DependencyCapacity | RateLimit | Crash | Cut | Errors => {
                self.of_others(base, chance, severity)
            }
            UnlistedUsers | UnlistedNetwork | UnlistedPause | UnlistedPlan => {
                self.of_nobody(base, facts, severity)
            }
            PairRateReplica | PairModelPrefix | PairPromptsStall | PairDependencyCache
            | PairBufferingModel | PairLimitReplica | PairModelRate | PairErrorsModel => {
                self.of_two(base, system, facts, severity)
            }
            _ => self.of_stack(base, system, facts, chance, severity),
        };
        (setup, None)
    }

    fn of_measurement(self, mut setup: Setup, facts: &Facts, chance: &mut Stream, severity: usize) -> Setup {
        let pick = |values: [f64; SEVERITIES]| values[severity];
        match self {
            LateClient => {
                // A dispatcher that is nearly saturated, or one that stops at times.
                let touch = if chance.chance(0.5) {
                    let busy = pick([0.85, 0.9, 0.94, 0.97, 1.0]);
                    Touch::LateDispatcher { each_s: busy / setup.rate_per_s, every_s: 0.0, stop_s: 0.0 }
                } else {
                    let stop_s = pick([0.25, 0.5, 0.8, 1.3, 2.0]);
                    Touch::LateDispatcher { each_s: 2e-4, every_s: 7.0 + 6.0 * chance.uniform(), stop_s }
                };
                setup.touches.push(touch);
            }
            CappedClient => {
                let cap = facts.in_flight * pick([1.15, 1.05, 0.98, 0.9, 0.8]);
                setup.scenario.client.max_in_flight = Some(cap.round().max(1.0) as u32);
            }
            LostRows => setup.touches.push(Touch::LostRows { share: pick([0.06, 0.08, 0.12, 0.2, 0.3]) }),
            _ => {
                // Gradually slower, in ten steps.
                let (steps, end) = (10, pick([1.15, 1.3, 1.5, 1.8, 2.2f64]));
                let window = setup.window.as_secs_f64();
                let each = end.powf(1.0 / f64::from(steps));
                for step in 1..=steps {
                    let at = window * f64::from(step) / f64::from(steps + 1);
                    setup.timed.push((at, format!("slow:factor={each:.5}")));
                }
            }
        }
        setup
    }

    fn of_load(self, mut setup: Setup, severity: usize) -> Setup {
        let pick = |values: [f64; SEVERITIES]| values[severity];
        let sizes = &mut setup.scenario.sizes;
        match self {
            Rate => setup.rate_per_s *= pick([1.2, 1.35, 1.6, 2.0, 2.6]),
            Prompts => sizes.prompt = scaled(&sizes.prompt, pick([1.3, 1.6, 2.0, 2.6, 3.5])),
            Answers | SamePromptsLongerAnswers => {
                let factor = pick([1.2, 1.35, 1.5, 1.8, 2.2]);
                sizes.output = scaled(&sizes.output, factor);
                if self == SamePromptsLongerAnswers {
                    // The client's requests are unchanged; the model generates longer responses.
                    setup.touches.push(Touch::AskedForLess { factor });
                }
            }
            Mix => {
                let share = pick([0.2, 0.28, 0.36, 0.48, 0.6]);
                setup.scenario.classes[0].weight = 1.0 - share;
                setup.scenario.classes[1].weight = share;
            }
            Bursts => {
                let (on, off) = (Span::from_secs(5), Span::from_secs(9));
                setup.scenario.arrivals =
                    ArrivalSpec::OnOff { on, off, floor: pick([0.5, 0.35, 0.2, 0.1, 0.0]) };
            }
            _ => {
                let shared = setup.scenario.prompts.shared_prefix.as_mut().expect("the variant shares");
                shared.share *= pick([0.7, 0.5, 0.35, 0.2, 0.05]);
            }
        }
        setup
    }

    fn of_stack(
        self,
        mut setup: Setup,
        system: &System,
        facts: &Facts,
        chance: &mut Stream,
        severity: usize,
    ) -> Setup {
        let pick = |values: [f64; SEVERITIES]| values[severity];
        let seconds = setup.window.as_secs_f64();
        let replicas = setup.world.fleet.replicas;
        let each = f64::from(replicas);
        match self {
            Slower => return slower(setup, pick([1.1, 1.25, 1.5, 1.8, 2.2]), chance.below(3)),
            Capacity => {
                if replicas > 1 && chance.chance(0.5) {
                    let lost = (each * pick([0.25, 0.3, 0.4, 0.5, 0.6])).round().clamp(1.0, each - 1.0);
                    setup.world.fleet.replicas -= lost as u32;
                } else {
                    let room = facts.in_flight / each * pick([1.35, 1.2, 1.05, 0.95, 0.85]);
                    let batching = batching(&mut setup);
                    batching.max_seqs = (room.round().max(1.0) as u32).min(batching.max_seqs);
                }
            }
            Cache => {
                let blocks = facts.kv_blocks / each * pick([1.3, 1.1, 0.95, 0.85, 0.75]);
                let batching = batching(&mut setup);
                batching.kv_blocks = Some(blocks.max(f64::from(facts.largest / 16 + 8)) as u32);
            }
            LongPrompts => {
                let share = pick([0.006, 0.01, 0.015, 0.02, 0.03]);
                let long = setup.scenario.sizes.clone();
                let long = plimsoll_workload::scenario::SizeSpec {
                    prompt: plimsoll_workload::Size::Uniform(14_000, 22_000),
                    ..long
                };
                let class = |name: &str, weight, sizes| plimsoll_workload::ClassSpec {
                    name: name.to_owned(),
                    weight,
                    sizes,
                    ..plimsoll_workload::ClassSpec::default()
                };
                setup.scenario.classes =
                    vec![class("chat", 1.0 - share, None), class("long", share, Some(long))];
                let batching = batching(&mut setup);
                batching.chunked_prefill = false;
                batching.token_budget = 24_576;
            }
            Window => {
                return setup
                    .with(&format!("batch_window:window={:.0}ms", pick([50.0, 80.0, 120.0, 180.0, 250.0])));
            }
            PeriodicStall => {
                let (every, lasts) = (6.0 + 8.0 * chance.uniform(), pick([0.3, 0.45, 0.6, 0.8, 1.0]));
                setup.timed.push((every / 2.0, format!("stall:every={every:.2}s,for={lasts}s")));
            }
            Stalls => {
                let (mut at, lasts) = (2.0, pick([0.3, 0.5, 0.7, 1.0, 1.5]));
                loop {
                    at += lasts + dist::exponential(chance, 8.0);
                    if at > seconds - 2.0 {
                        break;
                    }
                    let this = lasts * (0.6 + 0.8 * chance.uniform());
                    setup.timed.push((at, format!("stall:for={this:.3}s")));
                }
            }
            Noisy => {
                let factor = pick([1.6, 2.0, 2.5, 3.2, 4.0]);
                setup.timed.push((0.0, format!("noisy:factor={factor},on=4s,off=9s")));
            }
            Class::Connections => {
                let room = pick([1.25, 1.1, 1.0, 0.93, 0.87]);
                if chance.chance(0.5) {
                    let limit = (facts.in_flight * room).round().max(1.0) as u32;
                    setup.scenario.client.connections = Connections::Pool { limit };
                } else {
                    let limit = (facts.in_flight / each * room).round().max(1.0) as u32;
                    return setup.with(&format!("connection_limit:limit={limit},backlog=100000"));
                }
            }
            RetryStorm => {
                let factor = pick([2.0, 3.0, 4.0, 5.0, 6.0]);
                let lasts = 15.0 + 5.0 * chance.uniform();
                setup.timed.push((seconds * 0.25, format!("slow:factor={factor},for={lasts:.0}s")));
            }
            ColdStart => {
                // One more replica than before, which is slow at first.
                let (born, slow) =
                    (seconds * (0.25 + 0.2 * chance.uniform()), 15.0 + 15.0 * chance.uniform());
                setup.world.fleet.replicas += 1;
                let factor = pick([2.0, 3.0, 4.0, 5.0, 6.0]);
                setup.timed.push((0.0, format!("lost:for={born:.0}s,replica={replicas},notice=0s")));
                setup.timed.push((born, format!("slow:factor={factor},for={slow:.0}s,replica={replicas}")));
            }
            ScalingLag => {
                let lag = pick([15.0, 25.0, 40.0, 60.0, 90.0]);
                setup.world.fleet = scaling(system.clone(), lag).world.fleet;
            }
            SlowReplica => {
                let factor = pick([1.2, 1.4, 1.8, 2.2, 2.6]);
                return setup
                    .with(&format!("slow:factor={factor},replica={}", chance.below(u64::from(replicas))));
            }
            Imbalance => {
                // Prefixes stick to replicas and are assigned in turn (by the isolated requests). Their number is
                // chosen so that the busiest replica gets 1.14 to 2, 1.2 to 3 or 1.14 to 4 times its share. A
                // multiple of the number of replicas would be balanced; under a limit on requests in flight a prefix
                // soon sticks to several replicas.
                let groups = match replicas {
                    ..=2 => [7, 5, 3, 3, 1],
                    3 => [5, 7, 4, 2, 1],
                    _ => [7, 6, 5, 2, 1],
                };
                let shared = setup.scenario.prompts.shared_prefix.as_mut().expect("the variant shares");
                shared.groups = groups[severity];
                setup.world.fleet.route = RouteSpec::Prefix { bound: 50.0, index_blocks: 1 << 16 };
            }
            PrefixLoss => {
                if severity == 4 || chance.chance(0.3) {
                    batching(&mut setup).prefix_cache = false;
                } else {
                    let every = pick([8.0, 4.0, 2.0, 1.0, 0.5]);
                    return setup.with(&format!("cache_flush:every={every}s"));
                }
            }
            Buffering => {
                let every = pick([120.0, 250.0, 400.0, 700.0, 1_000.0]);
                let tokens = [8, 12, 16, 24, 32][severity];
                return match chance.below(2) {
                    0 => setup.with(&format!("buffering:every={every}ms")),
                    _ => setup.with(&format!("buffering:tokens={tokens}")),
                };
            }
            HostBound => {
                let extra = facts.alone_tpot * pick([0.15, 0.3, 0.5, 0.8, 1.2]);
                setup.host_share = extra / (facts.tpot + extra);
                return setup.with(&format!("host_bound:step={:.0}us", extra * 1e6));
            }
            FrontEnd => {
                batching(&mut setup).front_ms += 1e3 * facts.ttft * pick([0.15, 0.3, 0.6, 1.0, 2.0]);
            }
            other => unreachable!("{other:?} is none of the stack's"),
        }
        setup
    }

    fn of_others(self, mut setup: Setup, chance: &mut Stream, severity: usize) -> Setup {
        let pick = |values: [f64; SEVERITIES]| values[severity];
        match self {
            SlowDependency => return delayed(setup, pick([2.0, 3.0, 5.0, 8.0, 14.0])),
            DependencyTail => {
                let (share, delay) = (pick([0.012, 0.016, 0.022, 0.03, 0.04]), 1.5 + 1.5 * chance.uniform());
                return setup.with(&format!("dependency:delay={delay:.2}s,share={share}"));
            }
            DependencyCapacity => {
                let Some(before) = setup.world.faults.pop() else { return setup };
                let (delay, servers) = (1e3 * delay_s(&before), [9, 8, 7, 6, 6][severity]);
                let most = format!("dependency:delay={delay:.1}ms,spread=exponential,servers={servers}");
                return setup.with(&most);
            }
            RateLimit => {
                let (rate, burst) =
                    (setup.rate_per_s * pick([1.0, 0.95, 0.88, 0.78, 0.65]), 3 + chance.below(8));
                setup.timed.push((0.0, format!("rate_limit:rate={rate:.3},burst={burst}")));
            }
            Crash => {
                let at = setup.window.as_secs_f64() * (0.3 + 0.3 * chance.uniform());
                let replica = chance.below(u64::from(setup.world.fleet.replicas));
                let lasts = pick([5.0, 8.0, 12.0, 20.0, 30.0]);
                setup.timed.push((at, format!("crash:for={lasts}s,replica={replica},notice=2s")));
            }
            Cut => return setup.with(&format!("disconnect:share={}", pick([0.015, 0.03, 0.06, 0.1, 0.2]))),
            _ => {
                let share = pick([0.015, 0.03, 0.06, 0.1, 0.2]);
                setup
                    .timed
                    .push((0.0, format!("error:share={share},status={}", [500, 502, 504][severity % 3])));
            }
        }
        setup
    }

    fn of_nobody(self, mut setup: Setup, facts: &Facts, severity: usize) -> Setup {
        let pick = |values: [f64; SEVERITIES]| values[severity];
        let wait_s = facts.ttft.max(0.05) * pick([0.6, 1.0, 1.6, 2.5, 4.0]);
        setup.touches.push(match self {
            UnlistedUsers => Touch::SlowUsers { share: 0.3, wait_s: 2.0 * wait_s },
            UnlistedNetwork => Touch::SlowNetwork { wait_s: 1.5 * wait_s, on_s: 3.0, off_s: 5.0 },
            UnlistedPause => {
                Touch::Pause { before: 12, wait_s: facts.e2e * pick([0.15, 0.25, 0.4, 0.6, 1.0]) }
            }
            _ => Touch::PlansAhead { per_token_s: 1.5 * wait_s / facts.output },
        });
        setup
    }

    fn of_two(self, mut setup: Setup, system: &System, facts: &Facts, severity: usize) -> Setup {
        let pick = |values: [f64; SEVERITIES]| values[severity];
        let factor = pick([1.3, 1.5, 1.8, 2.2, 2.6]);
        match self {
            PairRateReplica => {
                setup.rate_per_s *= pick([1.2, 1.3, 1.4, 1.5, 1.7]);
                setup.with(&format!("slow:factor={factor},replica=0"))
            }
            PairModelPrefix => {
                batching(&mut setup).prefix_cache = false;
                slower(setup, pick([1.15, 1.25, 1.4, 1.6, 1.8]), 0)
            }
            PairPromptsStall => {
                let sizes = &mut setup.scenario.sizes;
                sizes.prompt = scaled(&sizes.prompt, pick([1.5, 1.8, 2.0, 2.3, 2.6]));
                setup.timed.push((4.0, "stall:every=9s,for=700ms".to_owned()));
                setup
            }
            PairDependencyCache => {
                let broken = Cache.inject(system, facts, severity.max(2)).0;
                delayed(broken, pick([3.0, 5.0, 8.0, 10.0, 14.0]))
            }
            PairBufferingModel => {
                slower(setup, pick([1.2, 1.3, 1.5, 1.8, 2.0]), 0).with("buffering:every=500ms")
            }
            PairModelRate => {
                setup.rate_per_s *= pick([1.2, 1.3, 1.4, 1.5, 1.7]);
                slower(setup, pick([1.2, 1.3, 1.4, 1.5, 1.6]), 0)
            }
            PairErrorsModel => {
                let share = pick([0.02, 0.03, 0.05, 0.1, 0.2]);
                setup.timed.push((0.0, format!("error:share={share},status=500")));
                slower(setup, pick([1.2, 1.3, 1.5, 1.8, 2.0]), 0)
            }
            _ => {
                let rate = setup.rate_per_s * pick([0.95, 0.92, 0.88, 0.83, 0.78]);
                setup.timed.push((0.0, format!("rate_limit:rate={rate:.3},burst=5")));
                setup.with(&format!("slow:factor={factor},replica=0"))
            }
        }
    }
}

/// Adds normal variation between two days: small changes that users do not notice.
fn natural(mut setup: Setup, chance: &mut Stream) -> Setup {
    if chance.chance(0.5) {
        let mut wobble = |by: f64| 1.0 + by * (2.0 * chance.uniform() - 1.0);
        setup.rate_per_s *= wobble(0.02);
        let sizes = &mut setup.scenario.sizes;
        sizes.prompt = scaled(&sizes.prompt, wobble(0.02));
        sizes.output = scaled(&sizes.output, wobble(0.01));
        batching(&mut setup).front_ms *= wobble(0.05);
    }
    setup
}

fn batching(setup: &mut Setup) -> &mut plimsoll_sim::BatchingSpec {
    match &mut setup.world.engine.mode {
        ModeSpec::Batching(batching) => batching,
        _ => unreachable!("every system batches"),
    }
}

/// Makes steps longer: all of them, the prefill part, or the decode part (if the engine's constants have such parts).
fn slower(mut setup: Setup, factor: f64, part: u64) -> Setup {
    if let StepSpec::Linear(linear) = &mut batching(&mut setup).step
        && part > 0
    {
        if part == 1 {
            linear.prefill_us *= 1.0 + 1.6 * (factor - 1.0);
        } else {
            linear.base_us *= factor;
            linear.decode_us *= factor;
            linear.context_ns *= factor;
        }
        return setup;
    }
    setup.with(&format!("slow:factor={factor}"))
}

/// Returns the system with a dependency for each request: quick or slow, constant or random. A third of the systems
/// has as many concurrent calls as a nearly full dependency in others.
pub fn depending(system: System) -> System {
    let chance = &mut Stream::new(system.seed, "diagnosed dependency", 0);
    let delay = match chance.below(3) {
        0 => 5e3 / system.rate_per_s * chance.uniform().max(0.2),
        _ => 20.0 + 130.0 * chance.uniform(),
    };
    let spread = if chance.chance(0.6) { ",spread=exponential" } else { "" };
    system.depending(&format!("dependency:delay={delay:.1}ms{spread}"))
}

/// Makes the dependency slower by a factor.
fn delayed(mut setup: Setup, factor: f64) -> Setup {
    let Some(before) = setup.world.faults.pop() else { return setup };
    let delay = delay_s(&before) * factor;
    setup.with(&format!("dependency:delay={:.1}ms", delay * 1e3))
}

fn delay_s(fault: &plimsoll_sim::FaultSpec) -> f64 {
    match &fault.kind {
        plimsoll_sim::FaultKind::Dependency { delay, .. } => delay.as_secs_f64(),
        _ => 0.0,
    }
}

/// Adds a client with time-outs and retries.
fn retrying(mut system: System) -> System {
    let calm = Facts::of(&Setup::of(&system).quick(system.seed, Events::Ends));
    let total = Span::from_secs_f64((2.0 * calm.e2e_p99 * 10.0).ceil() / 10.0);
    system.scenario.client.timeouts = Timeouts { total, ..Timeouts::default() };
    system.scenario.client.retries =
        RetrySpec { max: 4, base: Span::from_millis(200), ..RetrySpec::default() };
    system
}

/// Adds a load that rises by half after a third of the time, and an autoscaler whose replicas take `lag_s` to start.
fn scaling(mut system: System, lag_s: f64) -> System {
    use plimsoll_sim::ColdStartSpec;
    let depth = serde_json::json!({"kind": "queue_depth", "depth": 3.0, "min": 2, "max": 6, "interval_s": 2, "down_after_s": 600});
    let fleet = &mut system.world.fleet;
    fleet.autoscale = Some(serde_json::from_value(depth).expect("a scaler"));
    fleet.cold_start = ColdStartSpec {
        provision: Span::from_secs_f64(lag_s),
        image_pull: Span::ZERO,
        weights_gb: Some(0.0),
        compile: Span::ZERO,
        ..ColdStartSpec::default()
    };
    system.scenario.arrivals = ArrivalSpec::Step { heights: vec![0.7, 1.5, 1.5], cv: 1.0 };
    system
}
