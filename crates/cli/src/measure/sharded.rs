//! Measures a level whose parts are sent by several machines.
//!
//! A `run` has one level, and `plimsoll merge` joins its parts later. In a sweep or a gate, shard 0 needs the whole level
//! before it decides the next one. It announces the level, sends its own part and fetches the others' parts. The joined level
//! equals a level from one machine, so planners and judges do not depend on shards. The other shards measure the
//! announced levels.

use std::collections::HashSet;
use std::sync::Arc;

use plimsoll_client::{Clock, Control, LevelPlan, LevelTraffic, ShardStart};
use plimsoll_measure::shards::{MergedRun, ShardRun, join};
use plimsoll_model::{At, EndedBy, Level, Load, RunState, Shard, Span};
use plimsoll_report::figure::{counted, per_second};
use plimsoll_store::RunWriter;
use plimsoll_workload::{ArrivalSpec, Schedule};

use super::closed::kept;
use super::level::part_of;
use super::{Driver, FinishedMeasurement, LevelRecords, LevelStep, MeasuredLevel, MeasurementSession};
use crate::exit::Stop;
use crate::screen::Screen;
use crate::shard::{LevelParts, NextLevel, ShardAgreement, ShardLevel};

/// Interval between two checks of whether shard 0 was stopped.
const LOOK: Span = Span(1_000_000_000);

/// The data of a level that shard 0 needs to join its parts.
pub(super) struct ShardedLevel {
    load: Load,
    arrivals: u64,
    schedule_hash: String,
    schedule: Option<Arc<Schedule>>,
    of: u32,
    constant: bool,
}

/// Reduces a level's plan to this shard's part. In a search, shard 0 announces the level to the others.
/// `took` is the time that drawing the schedule took.
pub(super) fn deal(
    agreed: &mut ShardAgreement,
    plan: &mut LevelPlan,
    (step, arrivals): (&LevelStep, &ArrivalSpec),
    (writer, screen): (&RunWriter, &mut Screen),
    (clock, took): (Clock, Span),
) -> Result<Option<ShardedLevel>, Stop> {
    let concurrency = match &plan.requests {
        LevelTraffic::Open(_) => None,
        LevelTraffic::Closed { concurrency, .. } => Some(*concurrency),
    };
    let Some(part) = agreed.takes(concurrency) else { return Ok(None) };
    let search = agreed.levels.is_some();
    if search && part.of == 1 {
        return Ok(None);
    }
    let load = plan.load;
    let schedule = match &mut plan.requests {
        LevelTraffic::Open(schedule) => Some(Arc::clone(schedule)),
        LevelTraffic::Closed { sequence, .. } => {
            // A limit on requests applies to all shards together, which only the numbers of a sequence preserve.
            if step.requests.is_none() && step.max_requests.is_some() {
                *sequence = sequence.clone().bounded(step.max_requests);
            }
            None
        }
    };
    if let Some(levels) = agreed.levels.as_mut().filter(|levels| levels.leads()) {
        let step = LevelStep { max_rate_per_s: plan.max_rate_per_s, ..step.clone() };
        agreed.at = levels.say(plan.id, &step, (clock, took))?;
    }
    let (of_all, hash) = part_of(plan, ShardStart { shard: part, at: agreed.at });
    if !search {
        let told = agreed.part(of_all, hash);
        writer.update(|manifest| manifest.shard = Some(told)).map_err(kept)?;
        let own = plan.arrivals().unwrap_or(0);
        screen.say(&format!("shard {}: sends {own} of them", agreed.shard));
        return Ok(None);
    }
    let leads = agreed.levels.as_ref().is_some_and(crate::shard::Levels::leads);
    let constant = matches!(arrivals, ArrivalSpec::Constant) && schedule.is_some();
    let whole = ShardedLevel { load, arrivals: of_all, schedule_hash: hash, schedule, of: part.of, constant };
    Ok(leads.then_some(whole))
}

/// The result of a shard that measured the levels of shard 0.
pub struct FollowerResult {
    pub closed: FinishedMeasurement,
    /// Number of levels in which this shard took part.
    pub levels: u32,
    /// Whether the user of this shard stopped it.
    pub stopped: bool,
}

impl MeasurementSession {
    /// Fetches the other shards' parts of a level and joins them, in memory and in the run folder.
    pub(super) fn put_together(
        &mut self,
        whole: &ShardedLevel,
        own: MeasuredLevel,
    ) -> Result<MeasuredLevel, Stop> {
        let Driver::Live { clock, .. } = &self.driver else { return Ok(own) };
        let Some((levels, shard)) =
            self.shard.as_mut().and_then(|agreed| Some((agreed.levels.as_mut()?, agreed.shard)))
        else {
            return Ok(own);
        };
        let MeasuredLevel { level, rows, samples } = own;
        let LevelRecords::Records(attempts) = rows else {
            return Err(Stop::invalid("a level of shards whose records were not kept"));
        };
        let latest = level.stop + self.scenario.client.drain;
        let screen = &mut self.screen;
        let LevelParts { parts, mut missing } =
            levels.take(whole.of, latest, (*clock, &self.control), &mut |line| screen.say(line))?;
        let here: HashSet<(u64, u16)> = attempts.iter().map(|row| (row.request, row.attempt)).collect();
        let first = Shard { index: 0, of: whole.of };
        let (own_arrivals, id) = (level.arrivals, level.id);
        let clock_error_ns = levels.clock_error_ns();
        let mut runs = vec![ShardRun { shard: first, level: Some(level), attempts, samples, clock_error_ns }];
        let of_others: u64 = parts.iter().filter_map(|part| Some(part.level.as_ref()?.arrivals)).sum();
        for part in parts {
            if part.level.as_ref().is_some_and(|level| by_user(level.ended_by)) && self.control.stops() == 0 {
                missing.push(format!("shard {} was stopped by its user", part.shard.shard));
            }
            let shard = Shard { of: whole.of, ..part.shard.shard };
            let clock_error_ns = part.shard.clock_error_ns;
            let ShardLevel { level, attempts, samples, .. } = part;
            runs.push(ShardRun { shard, level, attempts, samples, clock_error_ns });
        }
        let joined = join(runs, whole.of, whole.arrivals, whole.schedule.as_deref())
            .map_err(|misfit| Stop::invalid(misfit.to_string()))?;
        // The endpoint is set here, because rows of a lost shard have none.
        let attempts = joined.attempts.into_iter().map(|row| self.scenario.placed(row)).collect();
        let joined = MergedRun { attempts, ..joined };
        let closed_loop = whole.schedule.is_none();
        let arrivals = if closed_loop { own_arrivals + of_others } else { whole.arrivals };
        let mut level = Level {
            load: whole.load,
            arrivals,
            schedule_hash: whole.schedule_hash.clone(),
            ended_by: if missing.is_empty() { joined.level.ended_by } else { EndedBy::Cut },
            ..joined.level
        };
        if let Some(shards) = &mut level.generator.shards {
            shards.constant = whole.constant;
        }
        levels.owes(&joined.lost, arrivals, &missing);
        if let (Some(why), None) = (missing.first(), &self.unkept) {
            let lost: u64 = joined.lost.iter().sum();
            let of =
                format!("level {id} ({}), sent by {}", said(whole.load), counted(shard.of.into(), "shard"));
            let never = match lost {
                0 => String::new(),
                lost => format!("; {} of it count as never sent", counted(lost, "request")),
            };
            self.unkept = Some(format!("{of}: {why}{never}"));
        }
        let sink = self.writer.sink();
        joined
            .attempts
            .iter()
            .filter(|row| !here.contains(&(row.request, row.attempt)))
            .for_each(|row| sink.attempt(row));
        joined.samples.iter().for_each(|sample| sink.sample(sample));
        self.log_level(&level);
        Ok(MeasuredLevel { level, rows: LevelRecords::Records(joined.attempts), samples: joined.samples })
    }

    /// Measures this shard's parts of the levels that shard 0 announces, until the search is over.
    pub fn follow(mut self) -> Result<FollowerResult, Stop> {
        let mut levels = 0;
        let mut after = At::ZERO;
        while let Some((id, step)) = self.told(after)? {
            (self.levels, levels) = (id, levels + 1);
            let measured = match self.level(&step, &said(step.load)) {
                Ok(measured) => measured,
                Err(stop) => {
                    self.bring(None, RunState::Partial { why: stop.line.clone() })?;
                    return Err(stop);
                }
            };
            after = measured.level.drained + self.scenario.client.drain;
            self.bring(Some(measured), RunState::Complete)?;
            if self.stopped() {
                break;
            }
        }
        let stopped = self.control.stops() > 0;
        if let Some(agreed) = &mut self.shard
            && let Some(levels) = &mut agreed.levels
        {
            levels.leave("it was stopped by its user");
        }
        let findings = self.analyse();
        Ok(FollowerResult { closed: self.finish(&findings), levels, stopped })
    }

    fn told(&mut self, after: At) -> Result<Option<(u32, LevelStep)>, Stop> {
        let Driver::Live { clock, .. } = &self.driver else { return Ok(None) };
        let Some(agreed) = &mut self.shard else { return Ok(None) };
        loop {
            let Some(levels) = &mut agreed.levels else { return Ok(None) };
            let (next, at) = levels.next::<LevelStep>(after, (*clock, &self.control))?;
            let NextLevel::Step { id, step } = next else { return Ok(None) };
            agreed.at = at;
            let concurrency = match step.load {
                Load::Open { .. } => None,
                Load::Closed { concurrency } | Load::Saturating { concurrency } => Some(concurrency),
                Load::Wave { requests } => Some(requests),
            };
            if agreed.takes(concurrency).is_some() {
                return Ok(Some((id, step)));
            }
        }
    }

    fn bring(&mut self, measured: Option<MeasuredLevel>, progress: RunState) -> Result<(), Stop> {
        let Some(agreed) = &mut self.shard else { return Ok(()) };
        let mut told = agreed.part(0, String::new());
        let Some(levels) = &mut agreed.levels else { return Ok(()) };
        told.clock_error_ns = levels.clock_error_ns();
        told.progress = progress;
        let manifest = self.writer.manifest();
        told.host = Some(manifest.host.clone());
        let mut part = ShardLevel { shard: told, level: None, attempts: Vec::new(), samples: Vec::new() };
        if let Some(MeasuredLevel { level, rows: LevelRecords::Records(attempts), samples }) = measured {
            part = ShardLevel { level: Some(level), attempts, samples, ..part };
        }
        levels.bring(&part, &manifest)?;
        if let Some(level) = part.level {
            let rows = LevelRecords::Records(part.attempts);
            self.keep(MeasuredLevel { level, rows, samples: part.samples });
        }
        Ok(())
    }
}

/// Stops this shard if shard 0 was stopped. Called at every redraw; polls once a second.
pub(super) fn heed(agreed: Option<&ShardAgreement>, control: &Control, (looked, now): (&mut At, At)) {
    let Some(levels) = agreed.and_then(|agreed| agreed.levels.as_ref()) else { return };
    if levels.leads() || now - *looked < LOOK || control.stops() > 0 {
        return;
    }
    *looked = now;
    if levels.is_stopped() {
        control.stop();
    }
}

fn by_user(ended: EndedBy) -> bool {
    matches!(ended, EndedBy::User | EndedBy::UserNow)
}

/// Returns a load as text for the screen.
fn said(load: Load) -> String {
    match load {
        Load::Open { rate_per_s } => per_second(rate_per_s),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Closed { concurrency } | Load::Saturating { concurrency } => format!("{concurrency} in flight"),
    }
}
