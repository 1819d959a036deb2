//! Green, amber or red: one state for a budget's rows and alerts, for automation that acts on live traffic.
//!
//! A worse state applies immediately, because the error budget burns. A better state applies only after it has
//! lasted. The reaction to red (less bulk traffic, no hedges) improves the metrics, and would otherwise be toggled
//! every few seconds.

use plimsoll_model::{At, BudgetState, Span};

use crate::{AlertKind, RowState, WatchFinding};

/// Minimum duration of a better state before it applies.
const HOLD: Span = Span::from_secs(60);

#[derive(Copy, Clone, Debug, Default)]
pub struct Light {
    state: BudgetState,
    /// Start of a period that is better than `state`, and the worst state of that period.
    better: Option<(At, BudgetState)>,
}

impl Light {
    /// Returns the state after another finding.
    pub fn step(&mut self, found: &WatchFinding, now: At) -> BudgetState {
        let seen = seen(found);
        if seen >= self.state {
            (self.state, self.better) = (seen, None);
            return self.state;
        }
        let (since, worst) = self.better.map_or((now, seen), |(since, worst)| (since, worst.max(seen)));
        self.better = Some((since, worst));
        if now - since >= HOLD {
            (self.state, self.better) = (worst, None);
        }
        self.state
    }
}

/// Returns the state of one finding. Red means that a ceiling is broken with certainty or all replicas are stalled. Amber means that a ceiling
/// may be broken, or that the allowed share is used up too fast.
fn seen(found: &WatchFinding) -> BudgetState {
    let rows = || found.rows.iter();
    if rows().any(|row| matches!(row.state, RowState::Broken | RowState::Stalled)) {
        return BudgetState::Red;
    }
    let over = rows().any(|row| {
        let share = row.over.map(|[least, most]| (least + most) / 2.0).zip(row.allowed);
        row.state == RowState::CannotTell
            && row.n >= LEAST
            && share.is_some_and(|(over, allowed)| over > allowed)
    });
    let burns = found.alerts.iter().any(|alert| alert.kind == AlertKind::BurnRate && alert.stands());
    if over || burns { BudgetState::Amber } else { BudgetState::Green }
}

/// Minimum number of requests, because with fewer requests a single one over the ceiling proves nothing.
const LEAST: u64 = 20;
