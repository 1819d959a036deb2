//! The search for a budget line that is to be proven: one overload, short levels that place the line, long levels that prove it.
//!
//! A verdict on a percentile takes hundreds of requests that count in full. Eleven levels of equal length lost: none of them was long enough, so that
//! twenty minutes ended without a lower end in 7 of 7 sweeps. Short levels only say where to look. What proves is long.

use plimsoll_model::{EndedBy, Load, Span};

use super::{Phase, Sweep, SweepLevel, WORTH_A_LEVEL};
use crate::findings::{BudgetRow, KeptUp};
use crate::lines::{self, Observed};
use crate::purpose::{OVERLOAD, PLACE, PROVE, WARM_UP};
use crate::say::number;

/// Shares of the time for concurrency 1 and for the ladder where a budget is to be proven.
pub(super) const CLOSED_SHARES: (f64, f64) = (0.05, 0.10);
/// Shares of the open-loop time: the overload, the levels that place; the rest proves.
const OVERLOAD_SHARE: f64 = 0.06;
const PLACE_SHARE: f64 = 0.18;
/// Shortest overload, s: growth takes this long to be seen in answers of a few seconds.
const OVERLOAD_LEAST_S: f64 = 30.0;
/// Most of the open-loop time that overloads take.
const OVERLOADS_AT_MOST: f64 = 0.4;
/// The overload, in times of the capacity.
const OVER: f64 = 1.2;
/// Factor between overloads while nothing piles up.
const STRIDE: f64 = 1.4;
/// Most levels that place the line, and the levels that prove it.
const PLACES: u32 = 5;
const PROOFS: u32 = 3;
/// Levels in all, and the share of the open-loop time of each that proves.
pub(super) const LEVELS: u32 = 1 + PLACES + PROOFS;
pub(super) const PROOF_SHARE: f64 = (1.0 - OVERLOAD_SHARE - PLACE_SHARE) / PROOFS as f64;
/// Shortest level that places, in times of an answer.
const ANSWERS: f64 = 8.0;
/// Shortest level that proves, in times of an answer of an idle target.
const PROOF_ANSWERS: f64 = 60.0;
/// Independent requests, times the allowed share, that prove a percentile: with none over the ceiling, and with a third of what is allowed.
const NONE_OVER: f64 = 3.7;
const THIRD_OVER: f64 = 9.0;

/// Where the line lies, as far as levels that place it say.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct Placing {
    low: f64,
    high: f64,
    next: f64,
    left: u32,
    level_s: f64,
}

impl Sweep {
    /// Time for open loops of this kind of traffic, s.
    fn open_s(&self) -> f64 {
        let (baseline, ladder) = self.closed_shares();
        let kinds = self.spec.traffic.len().max(1) as f64;
        self.search_time().as_secs_f64() * (1.0 - baseline - ladder) / kinds
    }

    fn left_s(&self) -> f64 {
        (self.kind_ends - self.spent).as_secs_f64()
    }

    /// The next level of these phases, or `None` after moving on.
    pub(super) fn proving(&mut self, phase: &Phase) -> Option<SweepLevel> {
        let (purpose, load, window_s) = match phase {
            Phase::Overload(load) => (
                OVERLOAD,
                *load,
                (OVERLOAD_SHARE * self.open_s()).max(OVERLOAD_LEAST_S).min(0.5 * self.left_s()),
            ),
            Phase::Place(placing) => (PLACE, placing.next, placing.level_s.min(self.left_s())),
            Phase::Prove(load, left) => (PROVE, *load, self.left_s() / f64::from((*left).max(1))),
            _ => return None,
        };
        let load = load.min(self.spec.max_rate.unwrap_or(f64::INFINITY));
        let window_s = window_s.max(WORTH_A_LEVEL / load);
        if window_s > self.left_s() {
            return self.search_ends();
        }
        if let Some(drain) = self.drain() {
            return Some(drain);
        }
        Some(self.experiment(purpose, Load::Open { rate_per_s: load }, window_s))
    }

    /// One request at a time for as long as the level before was drained, where requests of that level were given up: the target may still work on them.
    fn drain(&self) -> Option<SweepLevel> {
        let level = self.gave_up?;
        Some(self.experiment(
            WARM_UP,
            Load::Closed { concurrency: 1 },
            level.as_secs_f64().min(0.05 * self.open_s()),
        ))
    }

    /// Moves on after a level of these phases.
    pub(super) fn proved(&mut self, phase: &Phase) {
        match phase {
            Phase::Overload(load) => self.overloaded(*load),
            Phase::Place(placing) => self.placed(*placing),
            Phase::Prove(load, left) => self.phase = self.prove_next(*load, left.saturating_sub(1)),
            _ => {}
        }
    }

    pub(super) fn begin_proof(&mut self, capacity: f64) {
        self.phase = Phase::Overload(OVER * capacity);
    }

    fn overloaded(&mut self, load: f64) {
        let piles_up = self.observed.last().is_some_and(|o| o.kept() == KeptUp::Unstable);
        let most = self.spec.max_rate.unwrap_or(f64::INFINITY);
        let spent = self.open_s() - self.left_s();
        self.phase = match piles_up || load >= most || spent > OVERLOADS_AT_MOST * self.open_s() {
            true => Phase::Place(self.placing()),
            false => Phase::Overload(STRIDE * load),
        };
    }

    /// Bisection from 0.2 to 1.05 of the capacity: what was finished when full, else what the closed loops and steady levels reached.
    fn placing(&self) -> Placing {
        let here = self.of_kind();
        let good = lines::usable(&here);
        let [(_, unstable), _] = lines::brackets(&good);
        let full = unstable.and_then(|unstable| lines::saturated(&good, unstable)).map(|full| full.value);
        let capacity = full.map_or(self.capacity(), |full| full.max(0.5 * self.capacity()));
        let high = (1.05 * capacity).min(self.spec.max_rate.unwrap_or(f64::INFINITY));
        let next = 0.57 * high;
        let time_s = PLACE_SHARE * self.open_s();
        let least_s = (ANSWERS * self.latency_s()).max(2.0 * WORTH_A_LEVEL / next.max(1e-9));
        let left = ((time_s / least_s) as u32).clamp(2, PLACES);
        Placing { low: 0.2 * capacity, high, next, left, level_s: time_s / f64::from(left) }
    }

    fn placed(&mut self, placing: Placing) {
        let within = self.observed.last().is_some_and(is_within);
        let Placing { low, high, next, .. } = placing;
        let (low, high) = if within { (next, high) } else { (low, next) };
        let placing = Placing { low, high, next: 0.5 * (low + high), left: placing.left - 1, ..placing };
        if placing.left > 0 {
            self.phase = Phase::Place(placing);
            return;
        }
        self.placed_at = placing.next;
        let factor = self.too_short(placing.next).unwrap_or(1.0);
        self.notice = (factor > 1.0).then(|| self.short_of_time(placing.next, factor));
        // In a level of a few answers not even growth is decided: then one long level in place of three.
        let proofs = (self.left_s() / (PROOF_ANSWERS * self.latency_s())) as u32;
        let proofs = proofs.clamp(1, PROOFS);
        self.phase = Phase::Prove(0.85 * placing.next, proofs);
    }

    /// The load of the next level that proves, by whether the line has a lower end by now.
    fn prove_next(&self, load: f64, left: u32) -> Phase {
        let b = self.placed_at;
        let here = self.of_kind();
        let [_, (pass, _)] = lines::brackets(&lines::usable(&here));
        let share = match pass {
            Some(pass) if pass >= 1.08 * b => 1.25,
            Some(pass) if pass >= 0.8 * b && load > b => 0.95,
            Some(pass) if pass >= 0.8 * b => 1.12,
            Some(_) => 0.79,
            None if load > 0.8 * b => 0.68,
            None => 0.5,
        };
        Phase::Prove(share * b, left)
    }

    /// Length that a level takes to prove the tightest ceiling, by the correlation that the nearest level has, over the length that it has.
    fn too_short(&self, load: f64) -> Option<f64> {
        let nearest = self.of_kind().into_iter().filter(|o| o.is_open()).min_by(|a, b| {
            let off = |o: &Observed| (o.rate() / load).ln().abs();
            off(a).total_cmp(&off(b))
        })?;
        let rows = &nearest.finding.summary.budget.as_ref()?.rows;
        let effect = |row: &BudgetRow| (row.share_over.n as f64 / row.share_over.n_eff.max(1.0)).max(1.0);
        let takes =
            rows.iter().map(|row| NONE_OVER * effect(row) / row.allowed.max(1e-9)).fold(0.0, f64::max);
        Some(takes / load / self.proof_s())
    }

    /// Length of one of the levels that prove, s.
    fn proof_s(&self) -> f64 {
        self.left_s() / f64::from(PROOFS)
    }

    /// Says that the time is short, with the time that would do.
    fn short_of_time(&self, load: f64, factor: f64) -> String {
        format!(
            "the time is short for a verdict near {} requests/s: a level takes about {} s there and has {}; --time {}m would be \
             enough",
            number(load),
            number((factor * self.proof_s()).ceil()),
            number(self.proof_s().floor()),
            number((factor * self.spec.time.as_secs_f64() / 60.0).ceil())
        )
    }

    /// What is to be said before the sweep goes on, once.
    pub fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Remembers for how long the last level was drained, where requests of that level were given up.
    pub(super) fn remember_drain(&mut self, level: &plimsoll_model::Level) {
        self.gave_up = (level.ended_by == EndedBy::DrainLimit && level.purpose != WARM_UP)
            .then(|| Span((level.drained - level.stop).0.max(1)));
    }
}

/// Whether every share over a ceiling is within what is allowed, and nothing is known to pile up.
fn is_within(o: &Observed) -> bool {
    let rows = o.finding.summary.budget.as_ref().map(|budget| budget.rows.as_slice()).unwrap_or_default();
    o.kept() != KeptUp::Unstable && rows.iter().all(|row| row.share_over.value <= row.allowed)
}

/// Seconds that a sweep takes to prove a percentile at this load, if every request counts in full and a third of what is allowed is over the ceiling.
pub fn least_time_s(allowed: f64, rate_per_s: f64) -> f64 {
    let open = 1.0 - CLOSED_SHARES.0 - CLOSED_SHARES.1;
    THIRD_OVER / (allowed * rate_per_s) / (PROOF_SHARE * open)
}
