//! The search for a proven budget limit: an overload, short levels that bracket the limit, long levels that prove it.
//!
//! A verdict on a percentile needs hundreds of independent requests. Eleven levels of equal length were rejected because none
//! was long enough: 7 of 7 sweeps of twenty minutes had no lower end.

use plimsoll_model::{EndedBy, Load, Span};

use super::{Phase, Sweep, SweepLevel, WORTH_A_LEVEL};
use crate::findings::{BudgetRow, LoadKeptUp};
use crate::lines::{self, LineLevel};
use crate::purpose::{OVERLOAD, PLACE, PROVE, WARM_UP};
use crate::say::number;

/// Shares of the time for concurrency 1 and for the concurrency steps.
pub(super) const CLOSED_SHARES: (f64, f64) = (0.05, 0.10);
/// Shares of the open-loop time for the overload and for placing; the rest is for proving levels.
const OVERLOAD_SHARE: f64 = 0.06;
const PLACE_SHARE: f64 = 0.18;
/// Minimum length of an overload in seconds. Growth needs this time if responses take a few seconds.
const OVERLOAD_LEAST_S: f64 = 30.0;
/// Largest share of the open-loop time for overloads.
const OVERLOADS_AT_MOST: f64 = 0.4;
/// First overload as a multiple of the capacity.
const OVER: f64 = 1.2;
/// Factor between overloads while the target is stable.
const STRIDE: f64 = 1.4;
/// Maximum numbers of placing and proving levels.
const PLACES: u32 = 5;
const PROOFS: u32 = 3;
/// Number of levels, and the share of the open-loop time of a proving level.
pub(super) const LEVELS: u32 = 1 + PLACES + PROOFS;
pub(super) const PROOF_SHARE: f64 = (1.0 - OVERLOAD_SHARE - PLACE_SHARE) / PROOFS as f64;
/// Minimum length of a placing level, in response times.
const ANSWERS: f64 = 8.0;
/// Minimum length of a proving level, in response times of an idle target.
const PROOF_ANSWERS: f64 = 60.0;
/// Independent requests × allowed share that prove a percentile.
///
/// The first value is for no request over the ceiling, the second for a third of the allowed share.
const NONE_OVER: f64 = 3.7;
const THIRD_OVER: f64 = 9.0;

/// The bisection of the placing levels, requests/s.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(super) struct PlacingBisection {
    low: f64,
    high: f64,
    next: f64,
    left: u32,
    level_s: f64,
}

impl Sweep {
    /// Returns the open-loop time of this kind of traffic in seconds.
    fn open_s(&self) -> f64 {
        let (baseline, ladder) = self.closed_shares();
        let kinds = self.spec.traffic.len().max(1) as f64;
        self.search_time().as_secs_f64() * (1.0 - baseline - ladder) / kinds
    }

    fn left_s(&self) -> f64 {
        (self.kind_ends - self.spent).as_secs_f64()
    }

    /// Returns the next level of these phases; `None` after a change of phase.
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

    /// Returns a level of one request at a time after a level whose last requests were abandoned.
    ///
    /// It is needed because the target may still process the abandoned requests.
    fn drain(&self) -> Option<SweepLevel> {
        let level = self.gave_up?;
        Some(self.experiment(
            WARM_UP,
            Load::Closed { concurrency: 1 },
            level.as_secs_f64().min(0.05 * self.open_s()),
        ))
    }

    /// Changes the phase after a level.
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
        let piles_up = self.observed.last().is_some_and(|o| o.kept() == LoadKeptUp::Unstable);
        let most = self.spec.max_rate.unwrap_or(f64::INFINITY);
        let spent = self.open_s() - self.left_s();
        self.phase = match piles_up || load >= most || spent > OVERLOADS_AT_MOST * self.open_s() {
            true => Phase::Place(self.placing()),
            false => Phase::Overload(STRIDE * load),
        };
    }

    /// Returns the bisection of 0.2 to 1.05 × the capacity.
    ///
    /// The capacity is the throughput of an overload if there is one, else that of closed loops and stable levels.
    fn placing(&self) -> PlacingBisection {
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
        PlacingBisection { low: 0.2 * capacity, high, next, left, level_s: time_s / f64::from(left) }
    }

    fn placed(&mut self, placing: PlacingBisection) {
        let within = self.observed.last().is_some_and(is_within);
        let PlacingBisection { low, high, next, .. } = placing;
        let (low, high) = if within { (next, high) } else { (low, next) };
        let placing =
            PlacingBisection { low, high, next: 0.5 * (low + high), left: placing.left - 1, ..placing };
        if placing.left > 0 {
            self.phase = Phase::Place(placing);
            return;
        }
        self.placed_at = placing.next;
        let factor = self.too_short(placing.next).unwrap_or(1.0);
        self.notice = (factor > 1.0).then(|| self.short_of_time(placing.next, factor));
        // In a level of a few response times not even growth is decided, so one long level replaces three.
        let proofs = (self.left_s() / (PROOF_ANSWERS * self.latency_s())) as u32;
        let proofs = proofs.clamp(1, PROOFS);
        self.phase = Phase::Prove(0.85 * placing.next, proofs);
    }

    /// Returns the next proving level, by the current lower end of the limit.
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

    /// Returns the length that proves the tightest ceiling, divided by the planned length. It uses the nearest level's correlation.
    fn too_short(&self, load: f64) -> Option<f64> {
        let nearest = self.of_kind().into_iter().filter(|o| o.is_open()).min_by(|a, b| {
            let off = |o: &LineLevel| (o.rate() / load).ln().abs();
            off(a).total_cmp(&off(b))
        })?;
        let rows = &nearest.finding.summary.budget.as_ref()?.rows;
        let effect = |row: &BudgetRow| (row.share_over.n as f64 / row.share_over.n_eff.max(1.0)).max(1.0);
        let takes =
            rows.iter().map(|row| NONE_OVER * effect(row) / row.allowed.max(1e-9)).fold(0.0, f64::max);
        Some(takes / load / self.proof_s())
    }

    /// Returns the length of a proving level in seconds.
    fn proof_s(&self) -> f64 {
        self.left_s() / f64::from(PROOFS)
    }

    /// Returns a warning that the time is short, with a time that is enough.
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

    /// Takes the warning for the user, if there is one.
    pub fn notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Records the drain time of a level whose last requests were abandoned.
    pub(super) fn remember_drain(&mut self, level: &plimsoll_model::Level) {
        self.gave_up = (level.ended_by == EndedBy::DrainLimit && level.purpose != WARM_UP)
            .then(|| Span((level.drained - level.stop).0.max(1)));
    }
}

/// Returns whether every share over a ceiling is allowed and the level is not unstable.
fn is_within(o: &LineLevel) -> bool {
    let rows = o.finding.summary.budget.as_ref().map(|budget| budget.rows.as_slice()).unwrap_or_default();
    o.kept() != LoadKeptUp::Unstable && rows.iter().all(|row| row.share_over.value <= row.allowed)
}

/// Returns the seconds that a sweep needs to prove a percentile at this load with independent requests.
pub fn least_time_s(allowed: f64, rate_per_s: f64) -> f64 {
    let open = 1.0 - CLOSED_SHARES.0 - CLOSED_SHARES.1;
    THIRD_OVER / (allowed * rate_per_s) / (PROOF_SHARE * open)
}
