//! Watches a level from start to drain: the number in flight, the clocks and stop requests.

use std::net::SocketAddr;
use std::sync::mpsc::{self, RecvTimeoutError};

use plimsoll_model::{At, By, EndedBy, GeneratorHealth, Level, Room, Sample, SizeUnit, Span, StampSource};

use plimsoll_workload::scenario::LONGEST;

use super::{Client, ClientError};
use crate::clock::ClockTie;
use crate::doctor;
use crate::driver::control::{Control, StopLimits, StopReason};
use crate::driver::level::{LevelPlan, LevelTraffic};
use crate::driver::sink::Sink;
use crate::driver::worker::{WorkerCommand, WorkerReport};
use crate::histogram::LogHistogram;
use crate::http1::keeping::together;
use crate::http1::link::Route;

/// Interval at which the watching thread samples the number in flight.
pub(super) const TICK: Span = Span::from_millis(10);

/// Lead time between the decision that the data suffices and the end of the load.
const KNOWN_AHEAD: Span = Span::from_millis(50);

/// Interval at which averages of the number in flight are recorded.
pub(super) const SAMPLE: Span = Span::from_millis(100);

/// The state of the watching thread during a level.
pub(super) struct LevelWatch<'a> {
    client: &'a Client,
    plan: &'a LevelPlan,
    sink: &'a dyn Sink,
    control: &'a Control,
    active: usize,
    ties: ClockTie,
    start: At,
    stop: At,
    marked: bool,
    ended_by: EndedBy,
    stopping: bool,
    last_tick: At,
    /// Integral of the number in flight over the window (requests × ns), and the length covered.
    area: f64,
    area_ns: f64,
    max: u64,
    samples: u64,
    /// The current sample: sum and number of readings in flight, and its end.
    gather: (f64, u64, At),
    /// Requests in flight at the start of the level; zero unless a worker miscounted.
    base: u64,
    begun_before: u64,
    /// Requests in flight at the previous tick.
    before: u64,
    /// Listen-queue overflows of this machine before the level; `None` if no target is on this machine.
    overflows: Option<u64>,
}

pub(super) fn ended_by(reached: StopReason) -> EndedBy {
    if reached == StopReason::Errors { EndedBy::Errors } else { EndedBy::Ceiling }
}

/// The result of watching a level.
pub(super) struct LevelWatchResult {
    stop: At,
    drained: At,
    ended_by: EndedBy,
    arrivals: u64,
    health: GeneratorHealth,
}

impl<'a> LevelWatch<'a> {
    pub(super) fn new(
        client: &'a Client,
        plan: &'a LevelPlan,
        sink: &'a dyn Sink,
        control: &'a Control,
        start: At,
        active: usize,
    ) -> LevelWatch<'a> {
        LevelWatch {
            client,
            plan,
            sink,
            control,
            active,
            ties: ClockTie::new(client.config.clock),
            start,
            stop: start + if plan.plays_sessions_out { plan.window.max(LONGEST) } else { plan.window },
            marked: false,
            ended_by: EndedBy::Complete,
            stopping: false,
            last_tick: start,
            area: 0.0,
            area_ns: 0.0,
            max: 0,
            samples: 0,
            gather: (0.0, 0, start + SAMPLE),
            base: client.live.in_flight(),
            begun_before: client.live.totals().requests,
            before: 0,
            overflows: None,
        }
    }

    /// Also watches the listening sockets of this machine, if a target is on this machine.
    pub(super) fn beside(mut self, routes: &[Route]) -> LevelWatch<'a> {
        let here = |addrs: &Vec<SocketAddr>| !addrs.is_empty() && addrs.iter().all(|a| a.ip().is_loopback());
        let all_here = routes.iter().all(|route| route.addrs.as_ref().is_ok_and(here));
        self.overflows = if all_here { doctor::listen_overflows() } else { None };
        self
    }

    pub(super) fn until_done(
        mut self,
        reports: &mpsc::Receiver<WorkerReport>,
    ) -> Result<LevelWatchResult, ClientError> {
        let mut all = Vec::with_capacity(self.active);
        let clock = self.client.config.clock;
        let mut next = self.start;
        while all.len() < self.active {
            let wait = (next - clock.now()).as_duration();
            match reports.recv_timeout(wait) {
                Ok(report) => all.push(report),
                Err(RecvTimeoutError::Timeout) => {
                    let now = clock.now();
                    self.tick(now);
                    while next <= now {
                        next += TICK;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(ClientError::WorkerDied),
            }
        }
        let drained = clock.now();
        // Workers check ceilings too and may finish before the next tick.
        if self.ended_by == EndedBy::Complete
            && let Some(reached) = self.control.limits.reached(&self.client.live.totals())
        {
            self.end_window(drained, ended_by(reached));
        }
        let begun = self.client.live.totals().requests - self.begun_before;
        let health = self.health(&all);
        // An open loop may drain early because no arrival was due before the window's end; that idle time counts.
        let stop = match &self.plan.requests {
            // A bounded sequence lasts until its last response.
            LevelTraffic::Closed { sequence, .. } if sequence.is_bounded() => self.stop.min(drained),
            _ if self.plan.plays_sessions_out => self.stop.min(drained.max(self.start + self.plan.window)),
            _ => self.stop,
        };
        Ok(LevelWatchResult {
            stop,
            drained: match &self.plan.requests {
                LevelTraffic::Closed { sequence, .. } if sequence.is_bounded() => drained,
                _ => drained.max(stop),
            },
            ended_by: self.ended_by,
            // Arrivals due after the end were never meant to be sent.
            arrivals: self.plan.arrivals().filter(|_| self.ended_by != EndedBy::Known).unwrap_or(begun),
            health,
        })
    }

    fn tick(&mut self, now: At) {
        self.ties.refresh();
        self.sample(now);
        let by_hand = self.control.stops();
        if by_hand >= 2 && self.ended_by != EndedBy::UserNow {
            self.end_window(now, EndedBy::UserNow);
            self.tell_all(|| WorkerCommand::StopNow(By::User));
        } else if by_hand == 1 && !self.stopping {
            self.end_window(now, EndedBy::User);
            self.tell_all(|| WorkerCommand::Stop(By::User));
        } else if !self.stopping && self.control.is_hopeless() {
            self.end_window(now, EndedBy::Errors);
            self.tell_all(|| WorkerCommand::Stop(By::Client));
        } else if !self.stopping && self.control.is_enough() {
            // Far enough ahead that no worker has sent a request due later.
            let end = now + KNOWN_AHEAD;
            self.end_window(end, EndedBy::Known);
            self.tell_all(|| WorkerCommand::EndAt(end));
        } else if !self.stopping
            && self.control.limits != StopLimits::default()
            && let Some(reached) = self.control.limits.reached(&self.client.live.totals())
        {
            self.end_window(now, ended_by(reached));
            self.tell_all(|| WorkerCommand::Stop(By::Client));
        }
        if now >= self.stop && !self.marked {
            self.marked = true;
            self.tell_all(|| WorkerCommand::Mark);
        }
        if now >= self.stop + self.plan.client.drain
            && !matches!(self.ended_by, EndedBy::UserNow | EndedBy::DrainLimit)
        {
            if self.ended_by == EndedBy::Complete {
                self.ended_by = EndedBy::DrainLimit;
            }
            self.tell_all(|| WorkerCommand::StopNow(By::Client));
        }
    }

    fn end_window(&mut self, now: At, by: EndedBy) {
        self.stopping = true;
        self.ended_by = by;
        self.stop = self.stop.min(now.max(self.start));
    }

    fn tell_all(&self, command: impl Fn() -> WorkerCommand) {
        for worker in &self.client.workers[..self.active] {
            // A worker that died is detected by its missing report.
            let _ = worker.send(command());
        }
    }

    fn sample(&mut self, now: At) {
        let in_flight = self.client.live.in_flight().saturating_sub(self.base);
        let ns = (now - self.last_tick).0.max(0) as f64;
        if now <= self.stop {
            // Uses the mean of two ticks, because a level that fills within a few ticks would be overcounted.
            self.area += 0.5 * (self.before + in_flight) as f64 * ns;
            self.area_ns += ns;
        }
        self.before = in_flight;
        self.last_tick = now;
        self.max = self.max.max(in_flight);
        self.samples += 1;
        self.gather.0 += in_flight as f64;
        self.gather.1 += 1;
        if now >= self.gather.2 {
            self.sink.sample(Sample {
                at: now,
                source: "client".into(),
                name: "in_flight".into(),
                labels: format!("level={}", self.plan.id).into(),
                value: self.gather.0 / self.gather.1 as f64,
            });
            self.gather = (0.0, 0, now + SAMPLE);
        }
    }

    fn health(&self, reports: &[WorkerReport]) -> GeneratorHealth {
        let (mut lag, mut delay) = (LogHistogram::default(), LogHistogram::default());
        for report in reports {
            lag.merge(&report.tally.lag);
            delay.merge(&report.user_delay);
        }
        let sum = |f: fn(&WorkerReport) -> u64| reports.iter().map(f).sum::<u64>();
        let share = |f: &dyn Fn(&WorkerReport) -> Option<i64>| {
            let shares = reports.iter().map(|r| Some(f(r)? as f64 / r.wall_ns.max(1) as f64));
            shares.collect::<Option<Vec<f64>>>().map(|all| all.into_iter().fold(0.0, f64::max))
        };
        let stamps = match (sum(|r| r.kernel_reads), sum(|r| r.user_reads)) {
            (0, _) => StampSource::User,
            (_, 0) => StampSource::Kernel,
            _ => StampSource::Mixed,
        };
        GeneratorHealth {
            lag: lag.quantiles(),
            user_delay: delay.quantiles(),
            stamps,
            workers: reports.len() as u32,
            cpu_share_max: share(&|r| Some(r.cpu_ns)),
            cpu_ns: Some(reports.iter().map(|r| r.cpu_ns).sum()),
            run_queue_share_max: share(&|r| r.run_queue_ns),
            events: sum(|r| r.tally.events),
            events_coalesced: sum(|r| r.tally.coalesced),
            clock_steps: self.ties.steps(),
            in_flight_mean: (self.area_ns > 0.0).then(|| self.area / self.area_ns),
            in_flight_max: self.max,
            in_flight_samples: self.samples,
            closed_since: reports.iter().filter_map(|r| r.closed_since).min(),
            sockets_max: reports.iter().map(|r| r.sockets_max).sum(),
            connects: reports.iter().map(|r| r.connects).sum(),
            kept: Some(together(reports.iter().map(|r| r.kept))),
            room: Some(Room {
                descriptors: doctor::descriptor_limit().map(|(soft, _)| soft),
                ports: doctor::local_ports(),
                listen_overflows: self
                    .overflows
                    .and_then(|before| Some(doctor::listen_overflows()?.saturating_sub(before))),
                no_socket: sum(|r| r.tally.no_socket),
            }),
            shards: None,
        }
    }
}

impl LevelWatchResult {
    pub(super) fn level(self, plan: &LevelPlan, start: At, unit: SizeUnit) -> Level {
        Level {
            id: plan.id,
            traffic: plan.traffic.clone(),
            purpose: plan.purpose.clone(),
            load: plan.load,
            rate_course: plan.rate_course,
            start,
            stop: self.stop,
            drained: self.drained,
            ended_by: self.ended_by,
            arrivals: self.arrivals,
            schedule_hash: plan.schedule_hash(),
            unit,
            generator: self.health,
        }
    }
}
