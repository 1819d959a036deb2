//! Thirteen steady systems with known truth, and one with an incident: references for verdicts on percentiles.
//!
//! The systems are queues with one line and several servers (exponential, fixed and log-normal services), and a batching engine.
//! A step of the engine takes a, plus b per output token, c per prompt token and d per token of context.
//! Prompts are chunked within a token budget, and admission is in order of arrival. Times in seconds.
//! Each series is stationary: the warm-up is simulated and discarded.

use plimsoll_math::dist::{exponential, lognormal, normal};
use plimsoll_math::rng::Stream;

/// A system and one of its latencies.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum System {
    Queue {
        servers: usize,
        /// Share of the server capacity that the arrivals use.
        load: f64,
        service: Service,
        /// Whether a tenth of the series has three times the service time.
        incident: bool,
    },
    /// A batching engine at a share of its capacity.
    Engine {
        metric: SystemMetric,
        /// Offered load as a share of the capacity.
        load: f64,
    },
}

/// Distribution of the service times, with mean [`SERVICE_S`].
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Service {
    Exponential,
    Fixed,
    /// Log-normal with sigma 1.
    LogNormal,
}

/// A latency of one engine request.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum SystemMetric {
    Ttft,
    /// Time to last token.
    E2e,
    Tpot,
}

/// Mean service time of a queue, s.
pub const SERVICE_S: f64 = 0.02;

const fn queue(servers: usize, load: f64, service: Service) -> System {
    System::Queue { servers, load, service, incident: false }
}

const fn engine(metric: SystemMetric, load: f64) -> System {
    System::Engine { metric, load }
}

/// The thirteen stationary systems.
pub const STEADY: [System; 13] = [
    queue(4, 0.5, Service::Exponential),
    queue(4, 0.7, Service::Exponential),
    queue(4, 0.85, Service::Exponential),
    queue(4, 0.9, Service::Exponential),
    queue(1, 0.7, Service::Exponential),
    queue(16, 0.8, Service::Exponential),
    queue(16, 0.9, Service::Exponential),
    queue(8, 0.8, Service::Fixed),
    queue(4, 0.7, Service::LogNormal),
    engine(SystemMetric::Ttft, 0.6),
    engine(SystemMetric::Ttft, 0.8),
    engine(SystemMetric::E2e, 0.6),
    engine(SystemMetric::Tpot, 0.8),
];

/// The system with an incident: a tenth of each series is three times as slow.
pub const INCIDENT: System =
    System::Queue { servers: 4, load: 0.25, service: Service::Exponential, incident: true };

/// Capacity of the engine in requests per second, measured with 20 000 queued requests ([`capacity_per_s`]).
const CAPACITY_PER_S: f64 = 21.0;

impl System {
    /// Returns the printed name: `M/M/4@0.7`, `batching ttft@0.6`.
    pub fn name(self) -> String {
        match self {
            System::Queue { incident: true, .. } => "incident, 3 x slower".to_owned(),
            System::Queue { servers, load, service, .. } => {
                let law = match service {
                    Service::Exponential => "M",
                    Service::Fixed => "D",
                    Service::LogNormal => "LN",
                };
                format!("M/{law}/{servers}@{load}")
            }
            System::Engine { metric, load } => format!("batching {metric:?}@{load}").to_lowercase(),
        }
    }

    /// Returns the arrival rate per second.
    pub fn rate_per_s(self) -> f64 {
        match self {
            System::Queue { servers, load, .. } => load * servers as f64 / SERVICE_S,
            System::Engine { load, .. } => load * CAPACITY_PER_S,
        }
    }

    /// Returns `n` latencies in the order of arrival, s.
    pub fn draw(self, stream: &mut Stream, n: usize) -> Vec<f64> {
        match self {
            System::Queue { servers, load, service, incident } => {
                let warm_up = (60.0 / (1.0 - load).powi(2) + 500.0).min(20_000.0) as usize;
                let (slow, of) = (n / 10, stream.below((n - n / 10) as u64) as usize);
                let within = |i: usize| incident && (warm_up + of..warm_up + of + slow).contains(&i);
                let services = |stream: &mut Stream, i: usize| {
                    let one = match service {
                        Service::Exponential => exponential(stream, SERVICE_S),
                        Service::Fixed => SERVICE_S,
                        // With sigma 1, the mean is e^(1/2) medians.
                        Service::LogNormal => lognormal(stream, SERVICE_S * (-0.5f64).exp(), 1.0),
                    };
                    if within(i) { 3.0 * one } else { one }
                };
                let mut all = first_come(stream, n + warm_up, (servers, 1.0 / self.rate_per_s()), services);
                all.split_off(warm_up)
            }
            System::Engine { metric, .. } => {
                let warm_up = 1_500;
                let mut at = 0.0;
                let requests: Vec<Request> = (0..n + warm_up)
                    .map(|_| {
                        at += exponential(stream, 1.0 / self.rate_per_s());
                        Request::drawn(stream, at)
                    })
                    .collect();
                let ends = batching(stream, &requests);
                let of = |(request, (first, last)): (&Request, &(f64, f64))| match metric {
                    SystemMetric::Ttft => first - request.at,
                    SystemMetric::E2e => last - request.at,
                    SystemMetric::Tpot => (last - first) / f64::from((request.answer - 1).max(1)),
                };
                requests.iter().zip(&ends).skip(warm_up).map(of).collect()
            }
        }
    }
}

fn first_come(
    stream: &mut Stream,
    n: usize,
    (servers, gap_s): (usize, f64),
    service: impl Fn(&mut Stream, usize) -> f64,
) -> Vec<f64> {
    // Kiefer and Wolfowitz: the time when each server is free, as the next arrival finds it.
    let (mut free, mut at) = (vec![0.0f64; servers], 0.0);
    let one = |i: usize| {
        at += exponential(stream, gap_s);
        let mut first = 0;
        for server in 1..servers {
            if free[server] < free[first] {
                first = server;
            }
        }
        free[first] = free[first].max(at) + service(stream, i);
        free[first] - at
    };
    (0..n).map(one).collect()
}

/// A request of the engine: its arrival time and its lengths in tokens.
struct Request {
    at: f64,
    prompt: u32,
    answer: u32,
}

impl Request {
    fn drawn(stream: &mut Stream, at: f64) -> Request {
        let tokens = |length: f64| length.round().max(1.0) as u32;
        let prompt = tokens(lognormal(stream, 256.0, 0.6));
        Request { at, prompt, answer: tokens(lognormal(stream, 40.0, 0.5)) }
    }
}

/// Limits: tokens of a step, running requests, and tokens of KV cache.
const BUDGET: u32 = 512;
const SLOTS: usize = 32;
const KV: u32 = 9_000;

/// Returns the times of the first and the last token of each request.
fn batching(stream: &mut Stream, requests: &[Request]) -> Vec<(f64, f64)> {
    struct RunningRequest {
        who: usize,
        left: u32,
        made: u32,
        chunk: u32,
    }
    let mut ends = vec![(0.0, 0.0); requests.len()];
    let mut running: Vec<RunningRequest> = Vec::new();
    let (mut now, mut next, mut held) = (0.0f64, 0, 0);
    while next < requests.len() || !running.is_empty() {
        if running.is_empty() {
            now = now.max(requests[next].at);
        }
        while let Some(request) = requests.get(next).filter(|r| r.at <= now && running.len() < SLOTS) {
            let reserved = request.prompt + request.answer;
            if held + reserved > KV && !running.is_empty() {
                break;
            }
            held += reserved;
            running.push(RunningRequest { who: next, left: request.prompt, made: 0, chunk: 0 });
            next += 1;
        }
        let decodes = running.iter().filter(|one| one.left == 0);
        let (made, context) = decodes.fold((0u32, 0u32), |(made, context), one| {
            (made + 1, context + requests[one.who].prompt + one.made)
        });
        let (mut room, mut prefilled) = (BUDGET.saturating_sub(made), 0);
        for one in running.iter_mut().filter(|one| one.left > 0) {
            one.chunk = one.left.min(room);
            (room, prefilled) = (room - one.chunk, prefilled + one.chunk);
        }
        let step =
            0.008 + 0.0003 * f64::from(made) + 0.000_06 * f64::from(prefilled) + 4e-8 * f64::from(context);
        now += step * normal(stream, 0.0, 0.03).exp();
        running.retain_mut(|one| {
            let request = &requests[one.who];
            if one.left > 0 {
                one.left -= one.chunk;
                if one.left > 0 || one.chunk == 0 {
                    return true;
                }
                ends[one.who].0 = now;
            }
            one.made += 1;
            let ended = one.made >= request.answer;
            if ended {
                ends[one.who].1 = now;
                held -= request.prompt + request.answer;
            }
            !ended
        });
    }
    ends
}

/// Returns the throughput in requests per second of n requests that all wait from the start, between the first and the last tenth.
pub fn capacity_per_s(stream: &mut Stream, n: usize) -> f64 {
    let requests: Vec<Request> = (0..n).map(|_| Request::drawn(stream, 0.0)).collect();
    let mut ends: Vec<f64> = batching(stream, &requests).into_iter().map(|(_, last)| last).collect();
    ends.sort_by(f64::total_cmp);
    0.8 * n as f64 / (ends[9 * n / 10] - ends[n / 10])
}
