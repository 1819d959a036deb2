//! A run's requests in the form that a fit needs: send time, first and last token, sizes.
//!
//! Times count from the start of their level, because each level is replayed separately on an idle engine. A run is cut
//! into intervals of equal time, and every third interval is held out. Single requests can't be held out, because
//! neighbours share their steps and would reveal them.

use plimsoll_model::{Attempt, EventKind, Level, Load};

use super::words::{FitError, FittedRun, StatedTarget};
use crate::replay::ReplayRequest;
use plimsoll_measure::columns::Fate;

/// Minimum number of answered requests for a fit.
pub const FEWEST: usize = 150;
/// Maximum number of requests of a run that a fit reads; more requests only add time.
const MOST: usize = 6_000;
/// Share of failures beyond which the other requests are not representative.
const FAILING: f64 = 0.2;
/// Target number of requests per interval.
const OF_STRETCH: usize = 60;

/// A request of a run. Times are ns from the start of its level.
#[derive(Clone, Debug)]
pub struct FitRequest {
    /// The request as replayed.
    pub asked: ReplayRequest,
    pub sent: i64,
    /// First token; the end if there are no tokens.
    pub first: i64,
    pub last: i64,
    pub end: i64,
    /// Prompt tokens, including cached ones.
    pub prompt: f64,
    /// Computed prompt tokens, if the number of cached ones is known; otherwise all.
    pub uncached: f64,
    pub output: u32,
    pub ok: bool,
    /// Replica that responded, if replicas are distinguishable; otherwise 0.
    pub replica: usize,
    /// Number of the level's interval that contains the request.
    pub stretch: usize,
    /// Requests in flight at the send time.
    pub beside: f64,
}

impl FitRequest {
    /// Returns whether the request is held out of the fit.
    pub fn held_out(&self) -> bool {
        self.stretch % 3 == 2
    }

    /// Returns the number of steps between the first token and the last.
    pub fn steps(&self) -> f64 {
        f64::from(self.output.saturating_sub(1))
    }
}

/// The requests of a level in send order.
#[derive(Clone, Debug)]
pub struct LevelPart {
    pub level: u32,
    pub ones: Vec<FitRequest>,
    /// Whether the arrivals depended on responses (closed loop).
    pub closed: bool,
}

/// All data of a run that a fit uses.
#[derive(Clone, Debug)]
pub struct FitRows {
    pub parts: Vec<LevelPart>,
    pub tokens: bool,
    /// Whether the number of cached prompt tokens is reported.
    pub cached_known: bool,
    pub cached: f64,
    /// Replicas that the responses name.
    pub replicas: usize,
    pub failed: usize,
}

impl FitRows {
    /// Returns the requests of the selected levels.
    pub fn of(run: &FittedRun<'_>, told: &StatedTarget) -> Result<FitRows, FitError> {
        let levels: Vec<&Level> =
            run.levels.iter().filter(|level| told.level.is_none_or(|id| level.id == id)).collect();
        if run.levels.is_empty() {
            return Err(FitError::TooFew { found: 0, needed: FEWEST });
        }
        if levels.is_empty() {
            let ids: Vec<String> = run.levels.iter().map(|level| level.id.to_string()).collect();
            return Err(FitError::Ask(format!("no such level; the run's are {}", ids.join(", "))));
        }
        let mut rows = FitRows {
            parts: Vec::new(),
            tokens: false,
            cached_known: false,
            cached: 0.0,
            replicas: 0,
            failed: 0,
        };
        let mut names: Vec<Option<&str>> = Vec::new();
        let most = MOST / levels.len();
        for level in levels {
            let mut own: Vec<&Attempt> = run.attempts.iter().filter(|a| a.level == level.id).collect();
            own.sort_by_key(|a| (a.sent.unwrap_or(a.due), a.request, a.attempt));
            own.truncate(most.max(FEWEST));
            let ones = rows.part(level, &own, &mut names);
            if ones.iter().filter(|one| one.ok).count() >= OF_STRETCH {
                let closed = !matches!(level.load, Load::Open { .. });
                rows.parts.push(LevelPart { level: level.id, ones, closed });
            }
        }
        rows.replicas = names.len().max(1);
        let (answered, all) = (rows.answered().count(), rows.all().count());
        if answered < FEWEST {
            return Err(FitError::TooFew { found: answered, needed: FEWEST });
        }
        rows.failed = all - answered;
        let share = rows.failed as f64 / all as f64;
        if share > FAILING {
            return Err(FitError::Failing { percent: 100.0 * share });
        }
        Ok(rows)
    }

    fn part<'a>(
        &mut self,
        level: &Level,
        own: &[&'a Attempt],
        names: &mut Vec<Option<&'a str>>,
    ) -> Vec<FitRequest> {
        let mut ones: Vec<FitRequest> = Vec::with_capacity(own.len());
        for attempt in own {
            let Some(sent) = attempt.sent else { continue };
            let ok = Fate::of(attempt).ended_well() && attempt.end.is_some();
            let body = attempt.events.iter().any(|event| event.kind == EventKind::Body);
            let tokens = attempt.answer.tokens;
            let prompt = tokens.prompt.unwrap_or(attempt.asked_prompt).max(1);
            let output = tokens.output.unwrap_or(attempt.asked_output).max(1);
            let cached = tokens.cached.unwrap_or(0).min(prompt - 1);
            let name = attempt.answer.replica.as_deref();
            let replica = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                if ok {
                    names.push(name);
                }
                names.len().saturating_sub(1)
            });
            let since =
                |at: Option<plimsoll_model::At>| at.map_or(sent - level.start, |at| at - level.start).0;
            let end = since(attempt.end);
            let first = if body { end } else { attempt.first_token.map_or(end, |at| since(Some(at))) };
            let last = if body { end } else { attempt.last_token.map_or(first, |at| since(Some(at))) };
            self.tokens |= ok && !body && attempt.first_token.is_some();
            self.cached_known |= tokens.cached.is_some();
            self.cached += f64::from(cached);
            let sent = since(Some(sent));
            ones.push(FitRequest {
                asked: ReplayRequest {
                    due_ns: sent,
                    prompt,
                    output,
                    blocks: attempt.prompt_blocks.clone(),
                    session: attempt.session,
                    turn: None,
                    think_ns: None,
                },
                sent,
                first: first.max(sent),
                last: last.max(first),
                end: end.max(last),
                prompt: f64::from(prompt),
                uncached: f64::from(prompt - cached),
                output,
                ok,
                replica,
                stretch: 0,
                beside: 0.0,
            });
        }
        let stretches = (ones.len() / OF_STRETCH).clamp(6, 60) as i64;
        let length = ones.last().map_or(1, |one| one.sent + 1);
        let mut ends: Vec<i64> = ones.iter().map(|one| one.end).collect();
        ends.sort_unstable();
        for (sent, one) in ones.iter_mut().enumerate() {
            one.beside = sent.saturating_sub(ends.partition_point(|end| *end <= one.sent)) as f64;
            one.stretch = (one.sent * stretches / length.max(1)).clamp(0, stretches - 1) as usize;
        }
        ones
    }

    pub fn all(&self) -> impl Iterator<Item = &FitRequest> {
        self.parts.iter().flat_map(|part| &part.ones)
    }

    pub fn answered(&self) -> impl Iterator<Item = &FitRequest> {
        self.all().filter(|one| one.ok)
    }

    /// Returns the maximum number of responses that one replica generated concurrently.
    pub(crate) fn most_running(&self) -> u32 {
        let mut most = 0i64;
        for part in &self.parts {
            for replica in 0..self.replicas {
                let own =
                    part.ones.iter().filter(|one| one.ok && one.replica == replica && one.last > one.first);
                let mut edges: Vec<(i64, i64)> =
                    own.flat_map(|one| [(one.first, 1), (one.last, -1)]).collect();
                edges.sort_unstable();
                let mut now = 0i64;
                for (_, change) in edges {
                    now += change;
                    most = most.max(now);
                }
            }
        }
        most.max(1) as u32
    }

    /// Returns the mean requests in flight of each level, and the maximum over all levels.
    pub fn in_flight(&self) -> (Vec<f64>, u32) {
        let mut most = 0i64;
        let mut means = Vec::new();
        for part in &self.parts {
            let mut edges: Vec<(i64, i64)> = part
                .ones
                .iter()
                .filter(|one| one.ok)
                .flat_map(|one| [(one.sent, 1), (one.end, -1)])
                .collect();
            edges.sort_unstable();
            let (mut now, mut area, mut before) = (0i64, 0f64, 0i64);
            for (at, change) in &edges {
                area += now as f64 * (at - before) as f64;
                (now, before) = (now + change, *at);
                most = most.max(now);
            }
            let length = part.ones.last().map_or(1, |one| one.sent).max(1);
            means.push(area / length as f64);
        }
        (means, most as u32)
    }
}
