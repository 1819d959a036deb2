//! Provides the helpers of these tests: arrivals, a spec, and the resulting rows.

use std::sync::Arc;
use std::thread;

use plimsoll_client::{
    Client, ClientConfig, Clock, Control, LevelPlan, LevelTraffic, MemorySink, Sink, StopLimits,
};
use plimsoll_model::{At, Attempt, Level, Load, Span};
use plimsoll_workload::{Arrival, ClientSpec, Connections, Prompts, Scenario, Schedule, TargetSpec};

pub struct Rig {
    pub target: TargetSpec,
    pub client: ClientSpec,
    pub workers: usize,
    pub window: Span,
    pub limits: StopLimits,
}

impl Rig {
    pub fn at(url: impl Into<String>) -> Rig {
        let client = ClientSpec {
            drain: Span::from_secs(20),
            connections: Connections::Prewarmed,
            ..ClientSpec::default()
        };
        Rig {
            target: TargetSpec { url: url.into(), model: Some("m".into()), ..TargetSpec::default() },
            client,
            workers: 1,
            window: Span::from_millis(50),
            limits: StopLimits::default(),
        }
    }

    pub fn start(&self) -> Client {
        let clock = Clock::start();
        let config = ClientConfig {
            target: self.target.clone(),
            classes: Vec::new(),
            key: None,
            workers: Some(self.workers),
            run_id: "run0".into(),
            clock,
            keep_text: true,
        };
        Client::start(config).unwrap()
    }

    pub fn plan(&self, due: &[Span]) -> LevelPlan {
        let arrivals = due
            .iter()
            .enumerate()
            .map(|(id, due)| Arrival {
                id: id as u64,
                due: At(due.0),
                prompt_tokens: 4,
                output_tokens: 3,
                ..Arrival::default()
            })
            .collect();
        let requests = LevelTraffic::Open(Arc::new(Schedule { arrivals }));
        LevelPlan {
            id: 7,
            client: self.client.clone(),
            seed: 1,
            warm: Some(0),
            ..LevelPlan::new(&scenario(), Load::Open { rate_per_s: 1.0 }, requests, self.window, prompts())
        }
    }

    /// Returns the plan of a closed loop.
    pub fn closed(&self, concurrency: u32) -> LevelPlan {
        let sequence = Schedule::sequence(&scenario(), 7).unwrap();
        LevelPlan {
            load: Load::Closed { concurrency },
            requests: LevelTraffic::Closed { sequence, concurrency },
            ..self.plan(&[])
        }
    }

    /// Runs arrivals due at these times and returns the rows by number.
    pub fn run(&self, due: &[Span]) -> (Level, Vec<Attempt>) {
        self.run_plan(&self.plan(due))
    }

    pub fn run_plan(&self, plan: &LevelPlan) -> (Level, Vec<Attempt>) {
        let client = self.start();
        let control = Control::new(self.limits);
        run_on(&client, plan, &control)
    }

    /// Runs a plan until one run has at least `rows` rows, six times at most. A machine that stalls for the whole window
    /// sends no requests.
    pub fn run_until(&self, rows: usize, plan: &LevelPlan) -> (Level, Vec<Attempt>) {
        let client = self.start();
        let run = || run_on(&client, plan, &Control::new(self.limits));
        let first = run();
        (0..5).fold(first, |found, _| if found.1.len() >= rows { found } else { run() })
    }

    /// Runs one request and returns its only row.
    pub fn one(&self) -> Attempt {
        let (level, mut rows) = self.run(&[Span::ZERO]);
        assert_eq!((rows.len(), level.arrivals), (1, 1), "{rows:#?}");
        let row = rows.remove(0);
        assert_eq!((row.request, row.level), (0, 7));
        row
    }
}

pub fn run_on(client: &Client, plan: &LevelPlan, control: &Control) -> (Level, Vec<Attempt>) {
    let memory = Arc::new(MemorySink::default());
    let sink: Arc<dyn Sink> = Arc::clone(&memory) as Arc<dyn Sink>;
    let level = client.run_level(plan, &sink, control).unwrap();
    let mut rows = memory.take_attempts();
    rows.sort_by_key(|row| (row.request, row.attempt));
    (level, rows)
}

/// Runs a level while `meanwhile` runs on another thread.
pub fn run_with(
    client: &Client,
    plan: &LevelPlan,
    meanwhile: impl FnOnce(&Control) + Send,
) -> (Level, Vec<Attempt>) {
    let control = Control::default();
    thread::scope(|scope| {
        scope.spawn(|| meanwhile(&control));
        run_on(client, plan, &control)
    })
}

pub fn scenario() -> Scenario {
    let mut scenario = Scenario::default();
    scenario.sizes.prompt = plimsoll_workload::Size::Fixed(4);
    scenario.sizes.output = plimsoll_workload::Size::Fixed(3);
    scenario
}

fn prompts() -> Arc<Prompts> {
    Arc::new(Prompts::new(&scenario(), 1).unwrap())
}

pub fn ms(n: i64) -> Span {
    Span::from_millis(n)
}
